/* SPDX-License-Identifier: MIT
 *
 * acquire.c - taking a key that is free.
 *
 * A key whose last index is known is taken by a single conditional write; else
 * the entry is read first, and made if there is none: look.c, consul.c (2).
 */
#include "consul.h"

#include "base/lease.h"

#include "base/banned.h"

hf_status hfi_consul_granted(struct consul_try *t, uint64_t fence)
{
    struct consul_key *k = t->joint ? t->joint : t->k;

    hfi_consul_key_held(t->cc, k, t->claim->token, t->s, fence);
    t->receipt->fence = fence;
    t->receipt->slot = t->slot;
    t->receipt->registered = true;
    hfi_consul_carried_by(t->receipt, t->s);
    hfi_consul_monitor(t->cc, k, t->claim->token);
    return HF_OK;
}

/* Ask a holder that lingers to let go.  If that fails, so be it: whoever waits
 * will ask again. */
static void try_ask_for(struct consul_try *t, struct consul_kv *kv)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;

    if (!kv->linger || kv->wanted)
        return;
    kv->wanted = true;
    kv->fence = hfi_consul_fence(kv);
    hfi_consul_kv_value(value, kv);
    hfi_consul_expect_index(&ops, t->k->name, kv->index);
    hfi_consul_op_as(&ops, kv, "set", t->k->name, NULL, value);
    hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done, NULL);
}

/* Is it locked by a session of ours, for no claim of ours?  A restored snapshot
 * can bring back what was released, and who but us could let go of it? */
static bool try_is_unclaimed(struct consul_try *t, const struct consul_kv *kv)
{
    struct consul_session *s = NULL;

    pthread_mutex_lock(&t->cc->mu);
    if (!t->k->holder[0])
        s = hfi_consul_session_find(t->cc, kv->session);
    pthread_mutex_unlock(&t->cc->mu);
    return s;
}

/* Unlock what one of our sessions holds for nobody: HF_LOST, or HF_BUSY if it
 * has changed. */
static hf_status try_free(struct consul_try *t, const struct consul_kv *kv)
{
    hfi_consul_key_seen(t->k, kv);
    return hfi_consul_unlock_at(t->cc, t->k, kv->session, kv->index,
                                hfi_consul_fence(kv), t->deadline, t->err)
               ? HF_BUSY
               : HF_LOST;
}

/* Somebody has the key for itself. */
static hf_status try_busy(struct consul_try *t, struct consul_kv *kv)
{
    struct consul_grant *own = consul_own(t->receipt);

    if (t->claim->permits)
        return hfi_fail_use(t->err, t->claim, 0);
    if (own->among || (own->predecessor[0] && !t->cc->options.fair)) {
        own->among = false; /* Until now it has waited for another entry. */
        own->predecessor[0] = '\0';
        hfi_consul_retarget(t->cc, t->claim->key, t->k->name, t->claim->token);
    }
    try_ask_for(t, kv);
    return HF_BUSY;
}

/* What the entry, just read, means to this try: HF_OK: it is ours already;
 * HF_BUSY; or HF_LOST, which here means that nobody has it, or (t->again) that
 * it is to be read again. */
static hf_status try_judge(struct consul_try *t, struct consul_kv *kv)
{
    struct consul_key *k = t->k;
    bool mine = !strcmp(k->holder, t->claim->token);
    hf_status st = HF_LOST;

    memcpy(t->locked_by, kv->common, sizeof(t->locked_by));
    t->common_ms = kv->common_ms;
    if (kv->session[0]) {
        if (mine && !strcmp(kv->session, k->session->id) &&
            !strcmp(kv->token, t->claim->token)) {
            if (kv->broken) /* No answer told of it: nobody is at work. */
                return try_free(t, kv);
            hfi_consul_key_seen(k, kv);
            return HF_OK;
        }
        if (!mine && hfi_consul_key_rebind(t->cc, k, kv))
            return try_busy(t, kv);
        if (k->holder[0] && !(k->maybe && kv->index == k->expected_index) &&
            (mine || strcmp(kv->session, k->session->id) != 0))
            hfi_consul_key_settle(t->cc, k, kv);
        if (try_is_unclaimed(t, kv))
            return try_free(t, kv);
        return try_busy(t, kv);
    }
    if (kv->semaphore && t->cc->options.cli) {
        st = hfi_consul_semaphore_judge(t, kv);
        if (st != HF_LOST || t->again)
            return st;
    } else if (kv->foreign) {
        return hfi_fail(t->err, HF_PROTOCOL,
                        "%s: there is something at this key that is no lock",
                        t->cc->base.endpoint);
    }
    if (!mine && k->holder[0] && k->maybe && kv->index == k->expected_index)
        return HF_BUSY; /* Its try may still come: nothing has barred it. */
    if (kv->many) {
        st = hfi_consul_join_judge(t, kv);
        if (st != HF_LOST || t->again)
            return st;
    }
    atomic_store(&t->cc->fresh, !kv->exists || t->look.made);
    if (!mine)
        hfi_consul_key_free(
            t->cc, k, kv->many || kv->semaphore ? CONSUL_UNKNOWN : CONSUL_FREE,
            kv->index);
    k->index = kv->index;
    return HF_LOST;
}

hf_status hfi_consul_not_made(struct consul_try *t, hf_status st)
{
    if (st == HF_UNCERTAIN)
        return hfi_fail(t->err, HF_UNAVAILABLE,
                        "%s: no answer, and nothing was locked",
                        t->cc->base.endpoint);
    if (st)
        return st;
    atomic_store(&t->cc->fresh, false);
    return HF_LOST;
}

/* Make the entry of a key that does not exist; HF_LOST: it does.  consul.c (2)
 * Without an answer it may be made late, which harms nobody. */
static hf_status try_create(struct consul_try *t)
{
    struct consul_key *k = t->k;
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;

    hfi_consul_expect_index(&ops, k->name, 0);
    hfi_consul_op(&ops, "set", k->name, NULL, "", 0);
    st = hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done,
                        t->err);
    if (!st && done.ok && done.index) {
        k->index = done.index;
        hfi_consul_collect_some(t->cc);
        return HF_OK;
    }
    k->seen = CONSUL_UNKNOWN;
    return hfi_consul_not_made(t, st);
}

/* What is written later has a higher index, whatever the key, unless the
 * service has forgotten: fences are indexes, so nobody may miss it.  `before` is
 * what was known when the grant was sent. */
void hfi_consul_index_rose(struct consul_conn *cc, uint64_t index,
                           uint64_t before)
{
    if (index <= before)
        hfi_warn(&cc->base,
                 "the service's index has gone back: a new cluster is in the "
                 "place of the old one, and fences begin again");
    atomic_store(&cc->newest, index);
}

/* Write the grant, if the key is as we saw it.  HF_LOST: it was not. */
static hf_status try_lock(struct consul_try *t)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_key *k = t->k;
    struct consul_ops ops = {.len = 0};
    uint64_t before = atomic_load(&t->cc->newest);
    struct consul_done done;
    hf_status st;

    hfi_consul_value(value, t->claim, 0, 0);
    hfi_consul_expect_index(&ops, k->name, k->index);
    hfi_consul_many_prune(&t->many, &ops, t->s->id);
    if (t->queue_entry[0])
        hfi_consul_op(&ops, "delete", t->queue_entry, NULL, NULL, 0);
    if (t->locked_by[0])
        hfi_consul_op(&ops, "unlock", k->name, t->locked_by, value, 0);
    hfi_consul_op(&ops, "lock", k->name, t->s->id, value, 0);
    k->expected_index = k->index;
    st = hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done,
                        t->err);
    if (!st && done.ok && !done.index)
        st = hfi_fail(t->err, HF_PROTOCOL, "%s: a grant without an index",
                      t->cc->base.endpoint);
    if (st == HF_UNCERTAIN || st == HF_PROTOCOL) {
        hfi_consul_key_maybe(t->cc, k, t->claim->token, t->s);
        t->receipt->registered = true;
    }
    if (st)
        return st;
    if (done.ok) {
        k->index = done.index;
        hfi_consul_common_freed(t->cc, t->locked_by, k->name);
        hfi_consul_index_rose(t->cc, done.index, before);
        if (t->queue_entry[0])
            hfi_consul_queue_left(t->cc, t->claim->key, t->claim->token, true);
        return hfi_consul_granted(t, done.index);
    }
    if (done.bad_session)
        hfi_consul_session_dead(t->cc, t->s);
    k->seen = CONSUL_UNKNOWN;
    if (done.delayed)
        t->busy->left_ms = CONSUL_DELAY_MS;
    return done.delayed ? HF_BUSY : HF_LOST;
}

/* Another session, where the service has forgotten the one we had. */
hf_status hfi_consul_try_session(struct consul_try *t)
{
    struct consul_session *old = t->s;
    hf_status st;

    if (old && !old->base.dead)
        return HF_OK;
    t->s = NULL;
    st = hfi_consul_session_get(t->cc, t->claim->ttl_ms, false, t->deadline,
                                &t->s, t->err);
    if (old)
        hfi_consul_session_put(t->cc, old);
    return st;
}

/* Is it not known whether the key is free?  Who stands in line does not guess
 * that the key does not exist: somebody was there before. */
static bool try_must_inspect(const struct consul_try *t)
{
    return t->k->holder[0] || t->k->seen == CONSUL_UNKNOWN ||
           (t->queue_entry[0] && !t->k->index);
}

/* The entry of the key: as the look has found it, or now.  What may be ours is
 * asked of a leader that is one. */
static hf_status try_read(struct consul_try *t, struct consul_kv *ret)
{
    if (!t->look.done)
        return hfi_consul_read(t->cc, &t->cc->calls, t->k->name,
                               t->k->holder[0], t->deadline, ret, t->err);
    *ret = t->look.kv;
    return HF_OK;
}

/* Look at the key: HF_OK: it may be taken, as t->k says; HF_LOST: look again;
 * *have: we have it already. */
static hf_status try_look(struct consul_try *t, bool *have)
{
    struct consul_kv kv;
    hf_status st;

    *have = false;
    t->again = false;
    t->locked_by[0] = '\0';
    t->common_ms = 0;
    if (t->joint && t->joint->holder[0]) {
        st = hfi_consul_join_again(t);
        *have = !st;
        if (st != HF_LOST)
            return st;
    }
    if (!t->look.done && !try_must_inspect(t))
        return HF_OK;
    st = try_read(t, &kv);
    if (!st)
        st = try_judge(t, &kv);
    hfi_consul_look_fini(t);
    *have = !st;
    if (!st)
        return hfi_consul_granted(t, hfi_consul_fence(&kv));
    return st == HF_LOST && !t->again ? HF_OK : st;
}

static hf_status try_key(struct consul_try *t)
{
    hf_status st = HF_LOST;
    bool have = false;
    int i;

    for (i = 0; st == HF_LOST && i < CONSUL_ROUNDS; i++) {
        st = hfi_consul_try_session(t);
        if (!st)
            st = try_look(t, &have);
        if (have)
            return st;
        if (!st && !t->k->index)
            st = try_create(t);
        if (!st)
            st = t->joint ? hfi_consul_join(t) : try_lock(t);
        hfi_consul_many_fini(&t->many);
        if (t->once)
            return st;
    }
    if (st == HF_LOST) { /* So many want it that somebody has it. */
        t->busy->left_ms = 1;
        st = HF_BUSY;
    }
    return st;
}

/* Has a try of this claim not been answered?  Then it may have the key already,
 * and whoever stands in line now stands behind it. */
static bool try_may_hold(struct consul_conn *cc, const struct hfi_claim *claim)
{
    char name[CONSUL_NAME_MAX];
    struct hfi_node *node = NULL;
    bool may;

    if (!hfi_consul_claim_name(cc, claim, name))
        return false;
    pthread_mutex_lock(&cc->mu);
    node = hfi_map_find(&cc->keys, name);
    may = node && !strcmp(hfi_container(node, struct consul_key, node)->holder,
                          claim->token);
    pthread_mutex_unlock(&cc->mu);
    return may;
}

static hf_status try_session_key(struct consul_try *t)
{
    hf_status st = t->all ? hfi_consul_look(t) : HF_OK;

    if (!st)
        st = hfi_consul_try_session(t);
    return st ? st : try_key(t);
}

/* With the key, and the entry that is its own if it is one of several, to
 * ourselves. */
static hf_status try_enter(struct consul_try *t)
{
    struct consul_conn *cc = t->cc;
    char name[CONSUL_NAME_MAX];
    hf_status st =
        hfi_consul_key_enter(cc, t->claim->key, t->deadline, &t->k, t->err);

    if (st)
        return st == HF_UNAVAILABLE ? HF_BUSY : st; /* another claim of ours */
    if (consul_is_joint(t->claim)) {
        st = hfi_consul_holder_name(&cc->options, t->claim->key,
                                    t->claim->token, name)
                 ? hfi_consul_name_enter(cc, t->claim->key, name, t->deadline,
                                         &t->joint, t->err)
                 : hfi_fail(t->err, HF_INVALID, "%s: the key is too long",
                            cc->base.endpoint);
    }
    if (!st && hfi_consul_is_semaphore(cc, t->claim))
        st = hfi_consul_semaphore_try(t);
    else if (!st)
        st = try_session_key(t);
    hfi_consul_many_fini(&t->many);
    hfi_consul_look_fini(t);
    if (t->joint)
        hfi_consul_key_leave(cc, t->joint);
    hfi_consul_key_leave(cc, t->k);
    return st;
}

/* Without queue=fair, an exclusive claim may have a queue entry nevertheless:
 * join.c. */
static void try_door(struct consul_try *t)
{
    if (hfi_consul_queue_stands(t->cc, t->claim->token) &&
        !hfi_consul_queue_in_doubt(t->cc, t->claim->token))
        hfi_consul_queue_entry(&t->cc->options, t->claim->key, t->claim->token,
                               t->queue_entry);
}

/* Is everything to be looked at at once?  Who has a place, or may have one, looks
 * at the queue in its own way, and may not need to. */
static bool try_looks_at_all(const struct consul_try *t, bool again)
{
    struct consul_conn *cc = t->cc;

    if (hfi_consul_is_semaphore(cc, t->claim))
        return false;
    if (!cc->options.fair)
        return consul_is_joint(t->claim);
    return !again && !t->receipt->registered &&
           !hfi_consul_queue_stands(cc, t->claim->token) &&
           !hfi_consul_queue_in_doubt(cc, t->claim->token);
}

/* Take the key if it is our turn. */
static hf_status try_in_turn(struct consul_try *t, bool again, bool *stands)
{
    struct consul_conn *cc = t->cc;
    hf_status st = HF_OK;

    t->all = try_looks_at_all(t, again);
    if (cc->options.fair && !again && !t->all)
        st = hfi_consul_queue_turn(cc, t->claim, t->receipt, t->busy,
                                   t->deadline, t->queue_entry, stands, t->err);
    else if (!cc->options.fair)
        try_door(t);
    return st ? st : try_enter(t);
}

/* As everybody does.  *again: a try of this claim had no answer. */
static hf_status try_first(struct consul_try *t, bool *again, bool *stands)
{
    struct consul_conn *cc = t->cc;
    enum consul_line line;
    hf_status st = HF_LOST;

    *again = cc->options.fair && try_may_hold(cc, t->claim);
    line = cc->options.fair && !*again
               ? hfi_consul_queue_known(cc, t->claim, t->receipt)
               : CONSUL_LINE_UNKNOWN;
    t->once = line == CONSUL_LINE_EMPTY;
    if (t->once)
        st = try_enter(t);
    t->once = false;
    if (line == CONSUL_LINE_STANDS && t->claim->queue)
        return HF_BUSY;
    return st == HF_LOST ? try_in_turn(t, *again, stands) : st;
}

hf_status hfi_consul_try_acquire(struct hfi_conn *conn,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt,
                                 struct hfi_answer *busy, int64_t deadline,
                                 struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct consul_try t = {.cc = cc,
                           .claim = claim,
                           .receipt = receipt,
                           .busy = busy,
                           .deadline = deadline,
                           .err = err};
    bool again = false, stands = false,
         reenters = hfi_consul_reenters(cc, claim);
    hf_status st = HF_BUSY;

    if (reenters && hfi_consul_reentered(cc, claim))
        st = hfi_consul_reenter(&t);
    if (st == HF_BUSY)
        st = try_first(&t, &again, &stands);
    if (st == HF_BUSY && reenters)
        st = hfi_consul_reenter(&t);
    if (t.s)
        hfi_consul_session_put(cc, t.s);
    if (st == HF_OK &&
        (again || hfi_consul_queue_in_doubt(cc, claim->token) ||
         (reenters && hfi_consul_queue_stands(cc, claim->token))))
        hfi_consul_queue_leave(cc, claim, deadline, NULL);
    if (st == HF_BUSY && cc->options.fair && claim->queue && !stands)
        st = hfi_consul_queue_join(cc, claim, receipt, busy, deadline, err);
    if (st == HF_BUSY && reenters)
        busy->left_ms = hfi_consul_reenter_left(busy->left_ms);
    return st;
}
