/* SPDX-License-Identifier: MIT
 *
 * sweep.c - what has lapsed on a session that lives on.
 *
 * Where grants hang on a session of the client (HFI_TRAIT_BOUND), one that
 * nobody renews lives on as long as other locks keep the session.  What this
 * client has lost or given up is released by the reaper.  What it gave away is
 * left to the bearer of its handle, and is swept by the reaper when its lease
 * is over: the service removes it on the condition that a session of this
 * client still carries it.  One that was broken, and whose holder never
 * releases it, is released at the same moment.
 *
 * INVARIANTS
 *  (1) Nothing is swept before the lease is over that was last proven here, be
 *      it by this client as the holder or in a renewal for a bearer.
 *  (2) A sweep counts when the service has answered.  Until then it is
 *      repeated.
 *  (3) A sweep and a renewal for a bearer of the same grant in this client are
 *      never on the wire at once: the sweep looks whose the grant is, and could
 *      take what the renewal has just written for what has lapsed.  That holds
 *      for each of several renewals, also for one that began before there was
 *      anything to sweep: queue->extended has them all.
 *  (4) What was left is not touched when the client is closed: its bearer
 *      counts on it.
 *  (5) What was left is forgotten when the service has said that it is gone, was
 *      taken up or was given back.  No other outcome of a call about its handle
 *      is a reason: one that was refused has changed nothing.
 */
#include "core.h"

#include "base/mutant.h"

#include "base/banned.h"

/* A sweep that a bearer's renewal keeps off comes back after this. */
#define SWEEP_AGAIN_MS 50

bool hfi_sweeps(const struct hf_client *c)
{
    return c->be->sweep && c->conn->traits & HFI_TRAIT_BOUND;
}

/* When the service's lease is over, of which the holder believes less. */
int64_t hfi_sweep_due(const struct hfi_grant *grant)
{
    return hfi_after(grant->lease_end, hfi_lease_margin(grant->lease_ms) + 1);
}

/* Leave a grant that is in no list to its bearer until then.  sweep.c (1) */
void hfi_sweep_later(struct hf_client *c, struct hfi_grant *grant, int64_t due)
{
    grant->state = HFI_LEFT;
    grant->receipt.registered = true;
    grant->next_at = due;
    hfi_link_remove(&grant->link);
    hfi_link_remove(&grant->due);
    hfi_link_append(&grant->queue->left, &grant->due);
    hfi_keeper_set(c, &grant->timer, due);
}

static struct hfi_grant *sweep_find(struct hfi_link *list, const char *token)
{
    struct hfi_link *at;
    struct hfi_grant *grant;

    for (at = list->next; at != list; at = at->next) {
        grant = hfi_container(at, struct hfi_grant, due);
        if (!strcmp(grant->claim.token, token))
            return grant;
    }
    return NULL;
}

/* A renewal for the bearer begins: nothing of the same token is swept before
 * hfi_sweep_renewed().  sweep.c (3) */
void hfi_sweep_hold(struct hf_client *c, struct hfi_grant *grant)
{
    const struct hfi_grant *left;

    hfi_link_append(&grant->queue->extended, &grant->due);
    while ((left = sweep_find(&grant->queue->left, grant->claim.token)) &&
           left->busy)
        hfi_cond_wait(&c->settle, &c->mu, HFI_NEVER);
}

/* Is what was left being renewed for a bearer?  sweep.c (3) */
static bool sweep_is_held(const struct hfi_grant *left)
{
    return sweep_find(&left->queue->extended, left->claim.token);
}

/* Nothing is left of it that this client has to see to. */
static void sweep_done(struct hf_client *c, struct hfi_grant *grant)
{
    if (sweep_is_held(grant)) /* A renewal is yet to see. */
        hfi_keeper_set(c, &grant->timer, hfi_now() + SWEEP_AGAIN_MS);
    else
        hfi_grant_free(c, grant);
}

/* The renewal of `grant` for a bearer, which was sent at `sent`, has ended so.
 * A session of this client may carry the grant now, so it is this client's to
 * sweep, at the later of both ends. */
void hfi_sweep_renewed(struct hf_client *c, struct hfi_grant *grant,
                       hf_status st, int64_t sent)
{
    int64_t due = hfi_after(sent, grant->claim.ttl_ms + 1);
    struct hfi_grant *left;

    hfi_link_remove(&grant->due);
    if (!hfi_sweeps(c) || (st && st != HF_UNCERTAIN && st != HF_PROTOCOL)) {
        hfi_grant_free(c, grant); /* Nothing has come to hang here. */
        return;
    }
    grant->claim.doubt = st != HF_OK;
    left = sweep_find(&grant->queue->left, grant->claim.token);
    if (!left) {
        hfi_sweep_later(c, grant, due);
        return;
    }
    if (left->next_at < due)
        left->next_at = due;
    left->claim.doubt = left->claim.doubt || grant->claim.doubt;
    hfi_grant_keep(c, left, &grant->receipt);
    left->receipt.registered = true;
    hfi_keeper_set(c, &left->timer, left->next_at);
    hfi_grant_free(c, grant);
}

/* To take up or to give back the grant of this token has ended so.  If the
 * service has done it, or knows of none, there is nothing left to sweep.
 * sweep.c (5) */
void hfi_sweep_drop(struct hf_client *c, const char *key, const char *token,
                    hf_status st)
{
    bool gone = st == HF_OK || st == HF_LOST;
    struct hfi_key_queue *queue = gone ? hfi_key_queue_find(c, key) : NULL;
    struct hfi_grant *left = queue ? sweep_find(&queue->left, token) : NULL;

    if (left && !left->busy && !left->claim.doubt && !sweep_is_held(left))
        hfi_grant_free(c, left);
}

/* Sweep one grant of client->reap, once; the mutex is let go meanwhile. */
void hfi_sweep(struct hf_client *c, struct hfi_grant *grant)
{
    int64_t sent = hfi_now();
    bool held = sweep_is_held(grant);
    hf_status st;

    if (held || sent < grant->next_at) { /* sweep.c (1), (3) */
        hfi_keeper_set(c, &grant->timer,
                       held ? sent + SWEEP_AGAIN_MS : grant->next_at);
        return;
    }
    grant->busy = true;
    pthread_mutex_unlock(&c->mu);
    st = c->be->sweep(c->conn, &grant->claim, &grant->receipt,
                      sent + c->timeout_ms, NULL);
    pthread_mutex_lock(&c->mu);
    grant->busy = false;
    hfi_cond_wake(&c->settle);
    if (hfi_reap_goes_on(c, grant, st, sent) && !HFI_MUTANT(sweep_unanswered))
        hfi_keeper_set(c, &grant->timer, hfi_now() + hfi_reap_pause(grant));
    else
        sweep_done(c, grant); /* sweep.c (2) */
}
