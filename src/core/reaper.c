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
 *      gone, or until it has lapsed there by itself.
 *  (2) "Not there" is no certainty while a try without an answer may still
 *      arrive (claim.doubt): the claim stays for a whole ttl, counted from the
 *      first answer of the service, because what is under way to a service that
 *      is silent arrives when it speaks again.
 *  (3) A release touches nothing but its own token and fence (backend/backend.h (10)),
 *      so to repeat it harms nobody.
 */
#include "core.h"

#include "base/banned.h"

/* Between the first attempts to take back one claim. */
#define REAP_EVERY_MS 100

/* Done with a hold: handles may still point to it. */
static void reap_done(struct hf_client *c, struct hfi_hold *hold)
{
    if (hfi_link_alone(&hold->handles)) {
        hfi_hold_free(c, hold);
        return;
    }
    hold->state = HFI_LOST;
    hfi_link_append(&c->lost, &hold->link);
}

/* Must it be released once more after this outcome?  reaper.c (1), (2) */
bool hfi_reap_goes_on(const struct hf_client *c, struct hfi_hold *hold,
                      hf_status st)
{
    int64_t now = hfi_now();

    if (st == HF_UNCERTAIN || st == HF_UNAVAILABLE)
        return now < hold->next_at || hfi_stays(c) || hold->claim.doubt;
    if (!hold->claim.doubt)
        return false;
    if (!hold->answered) {
        hold->answered = true;
        hold->next_at = now + hold->claim.ttl_ms;
    }
    return now < hold->next_at;
}

/* Twice as long each time, and once in a ttl at least. */
static int64_t reap_pause(const struct hfi_hold *hold, int64_t now)
{
    int64_t since = now - (hold->next_at - hold->claim.ttl_ms);

    if (since > hold->claim.ttl_ms)
        since = hold->claim.ttl_ms;
    return since > REAP_EVERY_MS ? since : REAP_EVERY_MS;
}

/* Release one hold of client->reap, once; the mutex is let go meanwhile. */
void hfi_reap(struct hf_client *c, struct hfi_hold *hold)
{
    hf_status st;
    int64_t now;

    hfi_link_remove(&hold->link);
    if (hold->state == HFI_RELEASING) { /* It lingered. */
        hfi_hold_drop(c, hold, hfi_now() + c->timeout_ms, NULL);
        return;
    }
    hfi_hold_quiet(c, hold);
    if (hold->quiet) { /* Another call waited for the same, and is yet to see. */
        hfi_keeper_set(c, &hold->timer, hfi_now() + 1);
        return;
    }
    st = hfi_hold_send_release(c, hold, hfi_now() + c->timeout_ms, NULL);
    now = hfi_now();
    if (hfi_reap_goes_on(c, hold, st))
        hfi_keeper_set(c, &hold->timer, now + reap_pause(hold, now));
    else
        reap_done(c, hold);
}
