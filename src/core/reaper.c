/* SPDX-License-Identifier: MIT
 *
 * reaper.c - taking back what must not stay in the service.
 *
 * A claim comes here when nobody wants it any more and the service may still
 * have it: a try, a place or a release had no answer, a lock was lost while the
 * service may keep it, a lingering lock is over.  It is released again and
 * again.
 *
 * INVARIANTS
 *  (1) A claim stays here until the service has said with certainty that it is
 *      gone, or until it has lapsed there by itself, also if the lease became
 *      longer by the last request that had no answer.  How long the lease of a
 *      lock is that others had before is not known.
 *  (2) "Not there" is no certainty while a try without an answer may still
 *      arrive (claim.doubt): the claim stays for a whole lease, counted from
 *      the first answer of the service, because what is under way to a service
 *      that is silent arrives when it speaks again.  The last release is sent
 *      after that lease: an answer says nothing of what arrived after the
 *      service gave it, however late it is read (model/claim.pml, bug 9).
 *  (3) A release touches nothing but its own token and fence (backend/backend.h
 *      (10)), so to repeat it harms nobody.
 *  (4) On a session that other locks keep alive nothing lapses by itself.  So
 *      where grants hang on sessions (2) has no end in time: the claim stays
 *      until the service says that nothing of it can come any more.
 */
#include "log.h"

#include "base/probe.h"

#include "base/banned.h"

/* Between the first attempts to take back one claim. */
#define REAP_EVERY_MS 100

/* Done with a grant: handles may still point to it. */
static void reap_done(struct hf_client *c, struct hfi_grant *grant)
{
    c->stats.taken_back++;
    if (hfi_link_alone(&grant->handles)) {
        hfi_grant_free(c, grant);
        return;
    }
    grant->state = HFI_LOST;
    hfi_link_append(&c->lost, &grant->link);
}

/* Must it be released once more after this outcome of a release that was sent
 * at `sent`?  reaper.c (1), (2) */
bool hfi_reap_goes_on(const struct hf_client *c, struct hfi_grant *grant,
                      hf_status st, int64_t sent)
{
    if (st == HF_UNCERTAIN || st == HF_UNAVAILABLE)
        return hfi_now() < grant->next_at || hfi_stays(c) || grant->claim.doubt;
    if (c->be->sweep) /* reaper.c (4) */
        return grant->receipt.registered ||
               (grant->claim.doubt && st && st != HF_LOST);
    if (!grant->claim.doubt)
        return false;
    if (!grant->answered) {
        grant->answered = true;
        grant->next_at =
            hfi_now() + (grant->most_ms == HFI_NEVER ? grant->claim.ttl_ms
                                                     : grant->most_ms);
    }
    return sent < grant->next_at;
}

/* Twice as long each time, and once in a ttl at least. */
int64_t hfi_reap_pause(struct hfi_grant *grant)
{
    int64_t ms = grant->reap_pause;

    if (ms > grant->claim.ttl_ms)
        ms = grant->claim.ttl_ms;
    if (ms < REAP_EVERY_MS)
        ms = REAP_EVERY_MS;
    grant->reap_pause = 2 * ms;
    return ms;
}

/* Release one grant of client->reap, once; the mutex is let go meanwhile. */
void hfi_reap(struct hf_client *c, struct hfi_grant *grant)
{
    struct hf_error err = {0};
    int64_t sent;
    hf_status st;

    hfi_link_remove(&grant->link);
    if (grant->state == HFI_LEFT) {
        hfi_sweep(c, grant);
        return;
    }
    if (grant->state == HFI_RELEASING) { /* It lingered. */
        hfi_grant_drop(c, grant, hfi_now() + c->timeout_ms, NULL);
        return;
    }
    hfi_grant_quiet(c, grant);
    if (grant
            ->quiet) { /* Another call waited for the same, and is yet to see. */
        hfi_keeper_set(c, &grant->timer, hfi_now() + 1);
        return;
    }
    sent = hfi_now();
    st = hfi_grant_send_release(c, grant, sent + c->timeout_ms, &err);
    HFI_PROBE2(take_back, grant->claim.key, st);
    if (hfi_logs(c, HF_LOG_INFO))
        hfi_log_key(c, HF_LOG_INFO, grant->claim.key, "taken back: %s%s%s",
                    hf_status_name(st), st ? ": " : "", st ? err.text : "");
    if (hfi_reap_goes_on(c, grant, st, sent))
        hfi_keeper_set(c, &grant->timer, hfi_now() + hfi_reap_pause(grant));
    else
        reap_done(c, grant);
}
