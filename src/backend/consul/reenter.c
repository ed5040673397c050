/* SPDX-License-Identifier: MIT
 *
 * reenter.c - an owner id counts across processes.
 *
 * ON THE WIRE  A grant with an owner id says `joins`.  A claim that finds the key
 *   taken and its own owner id among those who hold it joins that grant: it gets
 *   the entry of one of several holders, K/.holdfast-holders/TOKEN (many.c), in
 *   a session of its own client, with the fence of the grant.
 *
 *   join    K unchanged              set K, lock the entry; shared, or with
 *                                    permits: lock K (common.c (1)), the entry
 *   leave   the entry unchanged      unlock the entry
 *   leave   K unchanged (the first)  unlock K
 *   tidy    K unchanged, all left    set K: a free lock, as any other
 *
 *   An exclusive lock stays what it was: K, locked by the session of the first,
 *   with its value.  But K has Flags of its own from then on, and it keeps them
 *   when the first releases it and when the session of the first ends: K is free
 *   when it is not locked and none of the entries below it is.
 *
 * INVARIANTS
 *  (1) Whoever joins changes K, on the condition that K and with it all holders
 *      are as they were when they were looked at.  So a release of the first that
 *      does not know of a joiner fails, looks, and leaves those Flags; nobody
 *      takes K for free in between; and a join that comes late changes nothing.
 *  (2) Nobody joins what is not locked (it has lapsed or was released), what was
 *      broken, or what belongs to another owner id.  To mark or to free a grant
 *      concerns all who have its fence, in one step: break.c.
 *  (3) Each has a session of its own client, which it alone renews.  Whoever dies
 *      ends with it, and none keeps another alive.
 *  (4) A try that is repeated finds its own entry.  One without an answer is
 *      barred by its release, as that of a reader is: release.c.
 *  (5) Who does not know the Flags of K (`consul lock`, an older release) takes it
 *      for something that is no lock and leaves it alone.  A grant of an older
 *      release does not say `joins`, and so is not joined: it would be released
 *      as if nobody else had it.
 *  (6) Who wants a permit looks for its owner id among the holders before it takes
 *      one that is free: K, which each of them changes, is then as it was.
 *  (7) A claim that stands in line leaves it in the step that joins.
 *
 * COST  A read of K after a try that has found the key taken, and only where the
 *   claim has an owner id.  Who is granted the key at once pays nothing.
 *
 * WAITING  Nobody tells a claim that waits in one process that its owner id has
 *   got the lock in another: it asks every REENTER_ASK_MS.
 *
 * LIMITS  Permits with layout=cli are not joined: in the format of `consul lock -n`
 *   each session counts as one (semaphore.c).
 *
 *   K of an exclusive lock is locked by the session of the first, and not by a
 *   common one (common.c) until the first has released it.  If the first dies
 *   instead, nobody has K locked from the end of its session to the next renewal
 *   of one who joined, which locks it (common.c (4)).  A program that looked at K
 *   before the first came in, and whose request arrives in this time, gets it; who
 *   joined is told at that renewal.  The same holds after a release of the first
 *   if its ttl, which the common session has then, is shorter than that of who
 *   joined.  To close this gap, whoever joins would have to give the first an
 *   entry of its own and K to a common session, in one step, and the client of
 *   the first would have to follow.
 */
#include "consul.h"

#include "base/banned.h"

/* How long a claim with an owner id waits at most until it asks again. */
#define REENTER_ASK_MS 1500

bool hfi_consul_reenters(const struct consul_conn *cc,
                         const struct hfi_claim *claim)
{
    return claim->owner && !hfi_consul_is_semaphore(cc, claim);
}

int64_t hfi_consul_reenter_left(int64_t left_ms)
{
    return left_ms > 0 && left_ms < REENTER_ASK_MS ? left_ms : REENTER_ASK_MS;
}

/* Has the claim, which is for a plain lock, joined a grant, or may it have? */
bool hfi_consul_reentered(struct consul_conn *cc, const struct hfi_claim *claim)
{
    char name[CONSUL_NAME_MAX];
    struct hfi_node *node;
    bool has;

    if (consul_is_joint(claim) ||
        !hfi_consul_holder_name(&cc->options, claim->key, claim->token, name))
        return false;
    pthread_mutex_lock(&cc->mu);
    node = hfi_map_find(&cc->keys, name);
    has = node && hfi_container(node, struct consul_key, node)->holder[0];
    pthread_mutex_unlock(&cc->mu);
    return has;
}

/* May the claim join this grant?  HF_OK, and t->fence says so; or HF_BUSY. */
static hf_status reenter_judge(struct consul_try *t, const struct consul_kv *kv)
{
    const struct hfi_claim *claim = t->claim;

    if (!kv->session[0] || kv->foreign || !kv->joins || kv->broken ||
        strcmp(kv->owner, claim->owner) != 0 || kv->permits != claim->permits ||
        !strcmp(kv->token, claim->token))
        return HF_BUSY;
    if (kv->shared != claim->shared)
        return hfi_fail_other_mode(t->err, claim);
    t->fence = hfi_consul_fence(kv);
    t->slot = kv->slot;
    return HF_OK;
}

/* Among those who hold the key? */
static hf_status reenter_among(struct consul_try *t,
                               const struct consul_many *many)
{
    hf_status st = HF_BUSY;
    struct consul_kv one;
    size_t i;

    for (i = 0; st == HF_BUSY && i < many->n; i++) {
        hfi_consul_kv_parse(&one, many->holders[i].entry);
        st = reenter_judge(t, &one);
    }
    return st;
}

/* t->many has those who hold it: does the claim's owner id have a permit, so that
 * it must not take another? */
bool hfi_consul_reenters_permit(struct consul_try *t)
{
    return t->claim->permits && hfi_consul_reenters(t->cc, t->claim) &&
           !reenter_among(t, &t->many);
}

/* Find a grant of the owner id; `kv` is the entry of the key.  HF_LOST: it has
 * changed. */
static hf_status reenter_find(struct consul_try *t, const struct consul_kv *kv)
{
    hf_status st = reenter_judge(t, kv);
    struct consul_many many;

    if (st != HF_BUSY || kv->session[0] || !kv->many || kv->foreign)
        return st;
    st = hfi_consul_many_read(t->cc, t->claim->key, t->k->name, kv->index, NULL,
                              t->deadline, &many, t->err);
    if (st)
        return st;
    st = reenter_among(t, &many);
    hfi_consul_many_fini(&many);
    return st;
}

/* With the key and the claim's own entry to ourselves. */
static hf_status reenter_key(struct consul_try *t)
{
    hf_status st = HF_LOST;
    struct consul_kv kv;
    int i;

    for (i = 0; st == HF_LOST && i < CONSUL_ROUNDS; i++) {
        st = hfi_consul_try_session(t);
        if (!st && t->joint->holder[0]) {
            st = hfi_consul_join_again(t);
            if (st != HF_LOST)
                return st;
            st = HF_OK;
        }
        if (!st)
            st = hfi_consul_read(t->cc, &t->cc->calls, t->k->name, true,
                                 t->deadline, &kv, t->err);
        if (!st)
            st = reenter_find(t, &kv);
        if (!st) {
            t->joins = &kv;
            st = hfi_consul_join(t);
            t->joins = NULL;
        }
    }
    return st == HF_LOST ? HF_BUSY : st;
}

/* The key is taken: does the claim's owner id have it?  HF_BUSY: it does not. */
hf_status hfi_consul_reenter(struct consul_try *t)
{
    struct consul_conn *cc = t->cc;
    const struct hfi_claim *claim = t->claim;
    char name[CONSUL_NAME_MAX];
    hf_status st = HF_BUSY;

    if (!hfi_consul_holder_name(&cc->options, claim->key, claim->token, name) ||
        hfi_consul_key_enter(cc, claim->key, t->deadline, &t->k, NULL))
        return HF_BUSY; /* Another claim of ours works on it. */
    t->joint = NULL;
    if (strcmp(t->k->holder, claim->token) != 0) /* Nor may it have the key. */
        st = hfi_consul_name_enter(cc, claim->key, name, t->deadline, &t->joint,
                                   t->err);
    if (t->joint) {
        st = reenter_key(t);
        hfi_consul_key_leave(cc, t->joint);
    }
    t->joint = NULL;
    hfi_consul_key_leave(cc, t->k);
    return st;
}
