/* SPDX-License-Identifier: MIT
 *
 * join.c - taking a key that several may hold: shared, or with permits; and
 * taking one alone that several have held.  The rules are in many.c.
 *
 * WHO WAITS TO BE ALONE  With queue=fair everybody has a place in the queue.
 *   Without, an exclusive claim that finds others who share leaves a queue entry
 *   all the same, for as long as it goes on asking: whoever wants to share stays
 *   out while there is one.  It lapses with the session of a waiter that died.
 */
#include "consul.h"

#include "base/banned.h"

/* ---- may it? ------------------------------------------------------------ */

/* Ask those who linger to let go.  If that fails, whoever waits asks again: the
 * watch tells of each change. */
static void join_ask(struct consul_try *t)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops;
    struct consul_done done;
    struct consul_kv kv;
    size_t i;

    for (i = 0; i < t->many.n; i++) {
        if (!t->many.holders[i].unasked)
            continue;
        hfi_consul_kv_parse(&kv, t->many.holders[i].entry);
        kv.wanted = true;
        kv.fence = hfi_consul_fence(&kv);
        hfi_consul_kv_value(value, &kv);
        ops = (struct consul_ops){.len = 0};
        hfi_consul_op(&ops, "cas", t->many.holders[i].name, NULL, value,
                      kv.index);
        hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done,
                       NULL);
    }
}

/* Too many hold it: wait for one of them to leave, and (exclusive) keep others
 * out meanwhile. */
hf_status hfi_consul_join_wait(struct consul_try *t)
{
    struct consul_grant *own = consul_own(t->receipt);
    char folder[CONSUL_NAME_MAX];
    hf_status st = HF_OK;

    join_ask(t);
    if (!t->cc->options.fair && t->claim->queue && !consul_is_joint(t->claim))
        st = hfi_consul_queue_door(t->cc, t->claim, t->receipt, t->many.stands,
                                   t->deadline, t->err);
    own->among = true;
    own->predecessor[0] = '\0';
    if (hfi_consul_among_name(t->cc, t->claim, folder))
        hfi_consul_retarget(t->cc, t->claim->key, folder, t->claim->token);
    return st ? st : HF_BUSY;
}

/* Somebody waits to be alone: stay behind. */
static hf_status join_behind(struct consul_try *t)
{
    struct consul_grant *own = consul_own(t->receipt);
    char name[CONSUL_NAME_MAX];

    memcpy(own->predecessor, t->many.writer, sizeof(t->many.writer));
    if (hfi_consul_queue_entry(&t->cc->options, t->claim->key, own->predecessor,
                               name))
        hfi_consul_retarget(t->cc, t->claim->key, name, t->claim->token);
    return HF_BUSY;
}

/* The lowest slot that nobody has. */
int32_t hfi_consul_join_slot(const struct consul_many *many)
{
    int32_t slot = 0;
    size_t i;

    for (i = 0; i < many->n; i++)
        if (many->holders[i].session[0] && many->holders[i].slot == slot) {
            slot++;
            i = (size_t)-1; /* from the beginning */
        }
    return slot;
}

/* Locked by a session of ours, for no claim of ours?  A restored snapshot can
 * bring back what was released, and who but us could let go of it?  Whoever
 * comes in has the key to itself, as we have it now. */
static bool join_is_unclaimed(struct consul_try *t,
                              const struct consul_holder *h)
{
    struct hfi_node *node;
    bool unclaimed;

    if (!h->session[0])
        return false;
    pthread_mutex_lock(&t->cc->mu);
    node = hfi_map_find(&t->cc->keys, h->name);
    unclaimed =
        hfi_consul_session_find(t->cc, h->session) &&
        (!node || !hfi_container(node, struct consul_key, node)->holder[0]);
    pthread_mutex_unlock(&t->cc->mu);
    return unclaimed;
}

/* Unlock such entries: have we found any? */
static bool join_free(struct consul_try *t)
{
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    size_t i, n = 0;

    for (i = 0; i < t->many.n && n < CONSUL_PRUNE_MAX; i++) {
        if (!join_is_unclaimed(t, &t->many.holders[i]))
            continue;
        hfi_consul_op(&ops, "delete-cas", t->many.holders[i].name, NULL, NULL,
                      t->many.holders[i].index);
        n++;
    }
    if (!n)
        return false;
    return !hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done,
                           t->err) &&
           done.ok;
}

/* The session that entries of the dead are deleted with: many.c (4).  Whoever
 * wants to share does not take their place, unless they had it alone. */
static const char *join_pruner(const struct consul_try *t)
{
    return t->claim->shared && t->cc->options.lock_delay_ms && !t->many.joined
               ? NULL
               : t->s->id;
}

/* More are dead than fit into the transaction that grants. */
static bool join_prune(struct consul_try *t)
{
    struct consul_ops ops = {.len = 0}, none = {.len = 0};
    struct consul_done done;
    size_t left = hfi_consul_many_prune(&t->many, &none, join_pruner(t));

    hfi_consul_ops_fini(&none);
    if (!left)
        return false;
    hfi_consul_many_prune(&t->many, &ops, join_pruner(t));
    return !hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done,
                           NULL) &&
           done.ok;
}

/* The entry of the key, `kv`, says that several hold it, or did.  HF_LOST: this
 * claim may have it now, or (t->again) the entry has changed. */
hf_status hfi_consul_join_judge(struct consul_try *t,
                                const struct consul_kv *kv)
{
    const struct hfi_claim *claim = t->claim;
    hf_status st;

    hfi_consul_many_fini(&t->many);
    if (!hfi_consul_look_many(t, &st))
        st = hfi_consul_many_read(t->cc, claim->key, t->k->name, kv->index,
                                  claim->token, t->deadline, &t->many, t->err);
    t->many.joined = kv->joined;
    t->again = st == HF_LOST || (!st && (join_free(t) || join_prune(t)));
    if (t->again)
        return HF_LOST;
    if (st)
        return st;
    t->slot = hfi_consul_join_slot(&t->many);
    if (!t->many.live)
        return HF_LOST;
    if (claim->permits != kv->permits)
        return hfi_fail_use(t->err, claim, kv->permits);
    if (hfi_consul_reenters_permit(t)) {
        t->busy->left_ms = 1; /* unless it joins that now */
        return HF_BUSY;
    }
    if (!claim->shared && (!claim->permits || hfi_consul_many_used(&t->many) >=
                                                  (size_t)claim->permits))
        return hfi_consul_join_wait(t);
    if (kv->joined) /* Those who hold it share it with nobody else. */
        return hfi_consul_join_wait(t);
    if (claim->shared && !t->cc->options.fair && t->many.writer[0])
        return join_behind(t);
    return HF_LOST;
}

/* ---- going in ----------------------------------------------------------- */

/* A try of this claim had no answer: is it in already?  HF_LOST: it is not. */
hf_status hfi_consul_join_again(struct consul_try *t)
{
    struct consul_key *joint = t->joint;
    struct consul_kv kv;
    hf_status st = hfi_consul_read(t->cc, &t->cc->calls, joint->name, true,
                                   t->deadline, &kv, t->err);

    if (st)
        return st;
    if (!kv.session[0] || strcmp(kv.token, t->claim->token) != 0 ||
        strcmp(kv.session, joint->session->id) != 0)
        return HF_LOST;
    if (kv.broken) { /* No answer told of it: nobody is at work. */
        st = hfi_consul_unlock_at(t->cc, joint, kv.session, kv.index,
                                  hfi_consul_fence(&kv), t->deadline, t->err);
        return st ? st : HF_LOST;
    }
    joint->index = kv.index;
    t->slot = kv.slot;
    if (t->s != joint->session) /* It was made again meanwhile. */
        return hfi_fail(t->err, HF_UNAVAILABLE, "%s: the session has ended",
                        t->cc->base.endpoint);
    return hfi_consul_granted(t, hfi_consul_fence(&kv));
}

/* Its place in line goes with what grants. */
static void join_leaves_line(const struct consul_try *t, struct consul_ops *ops)
{
    if (t->queue_entry[0])
        hfi_consul_op(ops, "delete", t->queue_entry, NULL, NULL, 0);
}

static void join_ops(struct consul_try *t, const struct consul_session *common,
                     struct consul_ops *ops)
{
    static const struct consul_kv many = {.many = true};
    char value[CONSUL_VALUE_MAX];

    hfi_consul_expect_index(ops, t->k->name, t->k->index);
    hfi_consul_many_prune(&t->many, ops, join_pruner(t));
    join_leaves_line(t, ops);
    hfi_consul_many_value(value, t->claim, t->k->index, 0, common->ttl_ms);
    hfi_consul_common_ops(ops, &many, t->k->name, t->locked_by, common, value);
    hfi_consul_value(value, t->claim, 0, t->slot);
    hfi_consul_op(ops, "lock", t->joint->name, t->s->id, value, 0);
}

/* With the fence of a grant of its owner id: reenter.c. */
static void join_grant_ops(struct consul_try *t,
                           const struct consul_session *common,
                           struct consul_ops *ops)
{
    struct consul_kv key = *t->joins;
    char value[CONSUL_VALUE_MAX];

    hfi_consul_expect_index(ops, t->k->name, key.index);
    join_leaves_line(t, ops);
    if (common) {
        key.common_ms = common->ttl_ms;
        hfi_consul_many_again(value, &key);
        hfi_consul_common_ops(ops, &key, t->k->name, key.common, common, value);
    } else {
        hfi_consul_many_touch(ops, t->k->name, &key);
    }
    hfi_consul_value(value, t->claim, t->fence, t->slot);
    hfi_consul_op(ops, "lock", t->joint->name, t->s->id, value, 0);
}

/* A session that is named there does not exist any more. */
static void join_bad_session(struct consul_try *t,
                             struct consul_session *common,
                             const struct consul_done *done)
{
    hfi_consul_session_dead(
        t->cc, common && !strcmp(done->bad, common->id) ? common : t->s);
}

/* It has become one of the holders: what its entry remembers. */
static void join_done(struct consul_try *t, struct consul_session *common,
                      const struct consul_done *done)
{
    t->joint->index = done->index;
    t->joint->granted_index = t->joins ? 0 : done->index;
    if (t->joins)
        hfi_consul_common_seen(t->joint, t->joins);
    if (!common)
        return;
    hfi_consul_common_set(t->joint, common->id, common->ttl_ms);
    hfi_consul_session_sure(t->cc, common, done->sent, done->agent);
}

/* Become one of the holders, if the key is as we saw it; `common` is to have it
 * locked, if any is.  HF_LOST: it was not. */
static hf_status join_with(struct consul_try *t, struct consul_session *common)
{
    struct consul_key *k = t->k, *joint = t->joint;
    uint64_t before = atomic_load(&t->cc->newest);
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;

    if (joint->permit)
        hfi_consul_semaphore_ops(t, common, &ops);
    else if (t->joins)
        join_grant_ops(t, common, &ops);
    else
        join_ops(t, common, &ops);
    st = hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done,
                        t->err);
    if (!st && done.ok && !done.index)
        st = hfi_fail(t->err, HF_PROTOCOL, "%s: a grant without an index",
                      t->cc->base.endpoint);
    if (st == HF_UNCERTAIN || st == HF_PROTOCOL) {
        joint->expected_index = t->joins ? t->joins->index : k->index;
        hfi_consul_key_maybe(t->cc, joint, t->claim->token, t->s);
        t->receipt->registered = true;
    }
    k->seen = CONSUL_UNKNOWN;
    if (st)
        return st;
    if (done.ok) {
        join_done(t, common, &done);
        hfi_consul_index_rose(t->cc, done.index, before);
        if (t->queue_entry[0])
            hfi_consul_queue_left(t->cc, t->claim->key, t->claim->token, true);
        return hfi_consul_granted(t, t->joins ? t->fence : done.index);
    }
    if (done.bad_session)
        join_bad_session(t, common, &done);
    if (done.delayed)
        t->busy->left_ms = CONSUL_DELAY_MS;
    return done.delayed ? HF_BUSY : HF_LOST;
}

hf_status hfi_consul_join(struct consul_try *t)
{
    struct consul_session *common = NULL;
    hf_status st;

    if (t->joins && t->joins->session[0]) /* The first has it locked. */
        return join_with(t, NULL);
    st = hfi_consul_common_get(t->cc, t->claim->ttl_ms,
                               t->joins ? t->joins->common_ms : t->common_ms,
                               t->deadline, &common, t->err);
    if (st)
        return st;
    hfi_consul_common_locks(t->cc, common, t->k->name);
    st = join_with(t, common);
    hfi_consul_session_put(t->cc, common);
    return st;
}
