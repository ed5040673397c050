/* SPDX-License-Identifier: MIT
 *
 * share.c - under which name a claim's grant is kept, and downgrade.
 *
 * A grant is the entry of the key, or that of one of its holders (many.c).  The
 * claim says which; but a downgrade without an answer may have been done or not,
 * and the bearer of a handle may say the wrong one.  So what this client knows
 * counts before what the claim says, and who finds nothing under one name looks
 * under the other.
 */
#include "consul.h"

#include "base/banned.h"

/* With the mutex held: does the token have this entry, as far as we know? */
static bool entry_is_of(struct consul_conn *cc, const char *name,
                        const char *token)
{
    struct hfi_node *node = hfi_map_find(&cc->keys, name);

    return node &&
           !strcmp(hfi_container(node, struct consul_key, node)->holder, token);
}

/* The entry of the claim's grant; false: the key is too long.  ret has
 * CONSUL_NAME_MAX. */
bool hfi_consul_claim_name(struct consul_conn *cc,
                           const struct hfi_claim *claim, char *ret)
{
    char joint[CONSUL_NAME_MAX];
    bool there;

    if (!hfi_consul_name(&cc->options, claim->key, ret))
        return false;
    pthread_mutex_lock(&cc->mu);
    there = !entry_is_of(cc, ret, claim->token);
    pthread_mutex_unlock(&cc->mu);
    if (!there)
        return true;
    if (!hfi_consul_holder_name(&cc->options, claim->key, claim->token, joint))
        return false;
    pthread_mutex_lock(&cc->mu);
    there = consul_is_joint(claim) || entry_is_of(cc, joint, claim->token);
    pthread_mutex_unlock(&cc->mu);
    if (there)
        memcpy(ret, joint, sizeof(joint));
    return true;
}

/* Where else it may be, if it is not `name`. */
bool hfi_consul_other_name(struct consul_conn *cc,
                           const struct hfi_claim *claim, const char *name,
                           char *ret)
{
    return hfi_consul_name(&cc->options, claim->key, ret) &&
           (strcmp(ret, name) != 0 ||
            hfi_consul_holder_name(&cc->options, claim->key, claim->token,
                                   ret));
}

/* Have the entry of the grant to oneself. */
hf_status hfi_consul_claim_enter(struct consul_conn *cc,
                                 const struct hfi_claim *claim,
                                 int64_t deadline, struct consul_key **ret,
                                 struct hf_error *err)
{
    char name[CONSUL_NAME_MAX];

    if (!hfi_consul_claim_name(cc, claim, name))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        cc->base.endpoint);
    return hfi_consul_name_enter(cc, claim->key, name, deadline, ret, err);
}

/* ---- downgrade ---------------------------------------------------------- */

struct downgrade {
    struct consul_conn *cc;
    const struct hfi_claim *claim;
    struct hfi_receipt *receipt;
    struct consul_key *k, *joint;
    struct consul_session
        *common; /* that is to have the key locked: common.c */
    int64_t deadline;
    struct hf_error *err;
};

/* The grant is the entry `kv` of one of the holders from now on. */
static hf_status downgrade_done(struct downgrade *d, const char *session,
                                uint64_t index, uint64_t granted_index)
{
    struct consul_session *s;

    pthread_mutex_lock(&d->cc->mu);
    s = hfi_consul_session_find(d->cc, session);
    if (s)
        s->base.users++;
    pthread_mutex_unlock(&d->cc->mu);
    if (!strcmp(d->k->holder, d->claim->token))
        hfi_consul_key_free(d->cc, d->k, CONSUL_UNKNOWN, 0);
    if (!s)
        return hfi_fail(d->err, HF_LOST, "%s: the session has ended",
                        d->cc->base.endpoint);
    d->joint->index = index;
    d->joint->granted_index = granted_index;
    hfi_consul_key_held(d->cc, d->joint, d->claim->token, s, d->receipt->fence);
    hfi_consul_carried_by(d->receipt, s);
    hfi_consul_monitor(d->cc, d->joint, d->claim->token);
    hfi_consul_session_put(d->cc, s);
    return HF_OK;
}

/* The key, which is as it was at `index` and locked by `from` or ("") by nobody,
 * is one that several hold from now on. */
static hf_status downgrade_common(struct downgrade *d, struct consul_ops *ops,
                                  const char *from, uint64_t index)
{
    static const struct consul_kv many = {.many = true};
    char value[CONSUL_VALUE_MAX];
    hf_status st = HF_OK;

    if (!d->common)
        st = hfi_consul_common_get(d->cc, d->claim->ttl_ms, 0, d->deadline,
                                   &d->common, d->err);
    if (st)
        return st;
    hfi_consul_common_locks(d->cc, d->common, d->k->name);
    hfi_consul_many_value(value, d->claim, index, d->receipt->fence,
                          d->common->ttl_ms);
    hfi_consul_expect_index(ops, d->k->name, index);
    hfi_consul_common_ops(ops, &many, d->k->name, from, d->common, value);
    return HF_OK;
}

static hf_status downgrade_txn(struct downgrade *d, struct consul_ops *ops,
                               struct consul_done *done)
{
    hf_status st = hfi_consul_txn(d->cc, &d->cc->calls, ops, true, d->deadline,
                                  done, d->err);

    if (!st && done->ok) {
        hfi_consul_session_sure(d->cc, d->common, done->sent, done->agent);
        hfi_consul_common_set(d->joint, d->common->id, d->common->ttl_ms);
    } else if (!st && !strcmp(done->bad, d->common->id)) {
        hfi_consul_session_dead(d->cc, d->common);
        hfi_consul_session_put(d->cc, d->common);
        d->common = NULL;
    }
    return st;
}

/* In one step, if the entry of the key is still what it was at `index`. */
static hf_status downgrade_write(struct downgrade *d, const char *session,
                                 uint64_t index, struct consul_done *done)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    uint64_t fence = d->receipt->fence;
    hf_status st = downgrade_common(d, &ops, session, index);

    if (st)
        return st;
    hfi_consul_value(value, d->claim, fence, 0);
    hfi_consul_op(&ops, "lock", d->joint->name, session, value, 0);
    return downgrade_txn(d, &ops, done);
}

/* No answer came: either entry may be ours. */
static void downgrade_maybe(struct downgrade *d, const char *session,
                            uint64_t index)
{
    struct consul_session *s;

    pthread_mutex_lock(&d->cc->mu);
    s = hfi_consul_session_find(d->cc, session);
    if (s)
        s->base.users++;
    pthread_mutex_unlock(&d->cc->mu);
    if (!s)
        return;
    d->joint->expected_index = index;
    d->joint->fence = d->receipt->fence;
    hfi_consul_key_maybe(d->cc, d->joint, d->claim->token, s);
    hfi_consul_session_put(d->cc, s);
}

/* Others of the owner id had joined the grant, as the entry of the key says: are
 * they gone?  Whoever comes in later changes that. */
static hf_status downgrade_alone(struct downgrade *d,
                                 const struct consul_kv *key)
{
    const char *mine = key->session[0] ? "" : d->joint->name;
    struct consul_many many;
    hf_status st =
        hfi_consul_many_read(d->cc, d->claim->key, d->k->name, key->index, NULL,
                             d->deadline, &many, d->err);
    size_t i;

    if (st)
        return st == HF_LOST ? hfi_fail(d->err, HF_UNAVAILABLE,
                                        "%s: the lock changed meanwhile",
                                        d->cc->base.endpoint)
                             : st;
    for (i = 0; !st && i < many.n; i++)
        if (many.holders[i].session[0] &&
            strcmp(many.holders[i].name, mine) != 0)
            st = hfi_fail_joined(d->err, d->claim);
    hfi_consul_many_fini(&many);
    return st;
}

/* The grant is the entry `kv`, which has joined one: it must be the last. */
static hf_status downgrade_joined(struct downgrade *d,
                                  const struct consul_kv *key,
                                  const struct consul_kv *kv)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    uint64_t fence = d->receipt->fence;
    struct consul_done done;
    hf_status st = key->session[0] ? hfi_fail_joined(d->err, d->claim)
                                   : downgrade_alone(d, key);

    if (st)
        return st;
    st = downgrade_common(d, &ops, key->common, key->index);
    if (st)
        return st;
    hfi_consul_expect_index(&ops, d->joint->name, kv->index);
    hfi_consul_value(value, d->claim, fence, 0);
    hfi_consul_op(&ops, "set", d->joint->name, NULL, value, 0);
    st = downgrade_txn(d, &ops, &done);
    if (st)
        return st;
    if (!done.ok)
        return hfi_fail(d->err, HF_UNAVAILABLE,
                        "%s: the lock changed meanwhile", d->cc->base.endpoint);
    return downgrade_done(d, kv->session, done.index, done.index);
}

/* With both entries to ourselves. */
static hf_status downgrade_key(struct downgrade *d)
{
    const char *token = d->claim->token;
    uint64_t fence = d->receipt->fence;
    struct consul_kv kv, key;
    struct consul_done done;
    hf_status st;
    int i;

    for (i = 0; i < CONSUL_ROUNDS; i++) {
        st = hfi_consul_read(d->cc, &d->cc->calls, d->k->name, true,
                             d->deadline, &kv, d->err);
        if (st)
            return st;
        if (!hfi_consul_is_grant(&kv, token, fence) || kv.broken == fence)
            break;
        st = kv.joined ? downgrade_alone(d, &kv) : HF_OK;
        if (st)
            return st;
        st = downgrade_write(d, kv.session, kv.index, &done);
        if (st == HF_UNCERTAIN || st == HF_PROTOCOL)
            downgrade_maybe(d, kv.session, kv.index);
        if (st)
            return st;
        if (done.ok)
            return downgrade_done(d, kv.session, done.index, done.index);
    }
    key = kv;
    st = hfi_consul_read(d->cc, &d->cc->calls, d->joint->name, true,
                         d->deadline, &kv, d->err);
    if (st)
        return st;
    if (hfi_consul_is_grant(&kv, token, fence) && kv.broken != fence &&
        !kv.shared)
        return downgrade_joined(d, &key, &kv);
    if (hfi_consul_is_grant(&kv, token, fence) && kv.broken != fence)
        return downgrade_done(d, kv.session, kv.index, kv.index);
    return hfi_fail(d->err, HF_LOST, "%s: the lock was not ours any more",
                    d->cc->base.endpoint);
}

static hf_status downgrade_enter(struct downgrade *d)
{
    char name[CONSUL_NAME_MAX];
    hf_status st =
        hfi_consul_key_enter(d->cc, d->claim->key, d->deadline, &d->k, d->err);

    if (st)
        return st;
    if (!hfi_consul_holder_name(&d->cc->options, d->claim->key, d->claim->token,
                                name))
        st = hfi_fail(d->err, HF_INVALID, "%s: the key is too long",
                      d->cc->base.endpoint);
    if (!st)
        st = hfi_consul_name_enter(d->cc, d->claim->key, name, d->deadline,
                                   &d->joint, d->err);
    if (st)
        hfi_consul_key_leave(d->cc, d->k);
    return st;
}

hf_status hfi_consul_downgrade(struct hfi_conn *conn,
                               const struct hfi_claim *claim,
                               struct hfi_receipt *receipt, int64_t deadline,
                               struct hf_error *err)
{
    struct downgrade d = {.cc = (struct consul_conn *)conn,
                          .claim = claim,
                          .receipt = receipt,
                          .deadline = deadline,
                          .err = err};
    hf_status st = downgrade_enter(&d);

    if (st)
        return st;
    hfi_consul_look_away(d.cc, claim->token, true);
    st = downgrade_key(&d);
    if (st && st != HF_UNCERTAIN)
        hfi_consul_look_away(d.cc, claim->token, false);
    hfi_consul_session_put(d.cc, d.common);
    hfi_consul_key_leave(d.cc, d.joint);
    hfi_consul_key_leave(d.cc, d.k);
    return st;
}

/* A downgrade that had no answer was done: `kv` is the entry.  Remember it. */
hf_status hfi_consul_adopt(struct consul_conn *cc,
                           const struct hfi_claim *claim,
                           struct hfi_receipt *receipt,
                           const struct consul_kv *kv, int64_t deadline)
{
    struct downgrade d = {
        .cc = cc, .claim = claim, .receipt = receipt, .deadline = deadline};
    hf_status st = downgrade_enter(&d);

    if (st)
        return st;
    st = downgrade_done(&d, kv->session, kv->index, 0);
    hfi_consul_key_leave(cc, d.joint);
    hfi_consul_key_leave(cc, d.k);
    return st;
}

/* The token is not one of the holders any more, and will not be: forget that it
 * was, or may have been. */
void hfi_consul_holder_forget(struct consul_conn *cc, const char *key,
                              const char *token, int64_t deadline)
{
    char name[CONSUL_NAME_MAX];
    struct consul_key *k;
    bool has;

    if (!hfi_consul_holder_name(&cc->options, key, token, name))
        return;
    pthread_mutex_lock(&cc->mu);
    has = entry_is_of(cc, name, token);
    pthread_mutex_unlock(&cc->mu);
    if (!has || hfi_consul_name_enter(cc, key, name, deadline, &k, NULL))
        return;
    hfi_consul_key_free(cc, k, CONSUL_UNKNOWN, 0);
    hfi_consul_key_leave(cc, k);
}
