/* SPDX-License-Identifier: MIT
 *
 * move.c - moving a lock to a session of another ttl.
 *
 * A lock that is to have another ttl is moved: unlocked by the old session and
 * locked by another of ours in one step, so that nobody can come in between.
 * Its fence is written into the value and stays what it was.
 */
#include "consul.h"

#include "base/banned.h"

void hfi_consul_renew_lost(const struct consul_conn *cc,
                           struct hfi_renewal *item, const struct consul_kv *kv,
                           struct hf_error *err)
{
    item->st = hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                        cc->base.endpoint);
    item->reason = hfi_consul_why(kv, item->claim->token, item->receipt->fence);
}

/* The move was refused or not answered.  It may have been done all the same:
 * the entry tells.  If it does not, the move may still come, and the next
 * renewal bars it by changing the index that it is for. */
static void move_settle(struct consul_conn *cc, struct consul_key *k,
                        struct hfi_renewal *item,
                        const struct consul_session *s, struct consul_kv *kv,
                        int64_t deadline, struct hf_error *err)
{
    uint64_t before = kv->index;

    if (!item->st) {
        item->st = hfi_fail(err, HF_UNAVAILABLE, "%s: changed meanwhile",
                            cc->base.endpoint);
    } else if (item->st == HF_UNCERTAIN || item->st == HF_PROTOCOL) {
        pthread_mutex_lock(&cc->mu);
        k->moving = true;
        k->expected_index = before;
        pthread_mutex_unlock(&cc->mu);
    } else {
        return;
    }
    if (!hfi_consul_read(cc, &cc->calls, k->name, true, deadline, kv, NULL) &&
        hfi_consul_is_grant(kv, item->claim->token, item->receipt->fence) &&
        !strcmp(kv->session, s->id) && kv->index != before)
        item->st = HF_OK;
}

/* Lock it with `s` instead. */
static void move_key(struct consul_conn *cc, struct consul_key *k,
                     struct hfi_renewal *item, struct consul_session *s,
                     int64_t deadline, struct hf_error *err)
{
    struct hfi_receipt *receipt = item->receipt;
    char value[CONSUL_VALUE_MAX];
    struct consul_done done;
    struct consul_kv kv;

    item->st =
        hfi_consul_read(cc, &cc->calls, k->name, true, deadline, &kv, err);
    if (item->st)
        return;
    if (!hfi_consul_is_grant(&kv, item->claim->token, receipt->fence) ||
        kv.broken == receipt->fence) {
        hfi_consul_renew_lost(cc, item, &kv, err);
        return;
    }
    if (strcmp(kv.session, s->id) != 0 ||
        (k->moving && kv.index == k->expected_index)) {
        hfi_consul_value(value, item->claim, receipt->fence, receipt->slot);
        item->st = hfi_consul_move(cc, k->name, &kv, s->id, value, deadline,
                                   &done, err);
        if (!item->st && done.bad_session)
            hfi_consul_session_dead(cc, s);
        if (item->st || !done.ok)
            move_settle(cc, k, item, s, &kv, deadline, err);
        else if (done.index)
            kv.index = done.index;
    }
    if (item->st)
        return;
    hfi_consul_key_seen(k, &kv);
    hfi_consul_carried_by(receipt, s);
    hfi_consul_key_held(cc, k, item->claim->token, s, receipt->fence);
}

void hfi_consul_renew_move(struct consul_conn *cc, struct hfi_renewal *item,
                           int64_t deadline, struct hf_error *err)
{
    struct consul_session *s;
    struct consul_key *k;
    hf_status st;

    st = hfi_consul_session_for(cc, item->claim, item->ttl_ms, deadline, &s,
                                err);
    if (!st) {
        st = hfi_consul_claim_enter(cc, item->claim, deadline, &k, err);
        if (!st) {
            move_key(cc, k, item, s, deadline, err);
            st = item->st;
            hfi_consul_key_leave(cc, k);
        }
        hfi_consul_session_put(cc, s);
    }
    item->st = st;
}
