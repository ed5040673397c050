/* SPDX-License-Identifier: MIT
 *
 * handle.c - locks that outlive the process that took them.
 *
 * A handle names a grant by its token and its fence.  Which session carries the
 * lock is not a part of it: that changes while the handle stays good.
 *
 * TAKEN UP  The lock moves to a session of this client, and its entry names the
 *   new claim's token, in one transaction.  After that no copy of the handle
 *   fits the entry.
 *
 * RENEWED BY A BEARER  The first renewal moves the lock to a session that
 *   carries nothing else; the later ones renew that session.  It belongs to no
 *   client: none keeps it alive, none destroys it at its end, and it goes when
 *   the lock is released or taken up.  In the session of the process that
 *   detached it the lock would live for as long as that process has other
 *   locks, or be swept by it although a bearer has renewed it.
 *
 * INVARIANTS
 *  (1) A renewal for a bearer writes the entry, whoever asks: also the process
 *      that detached the lock and still has it in its books.  So the entry has
 *      another index, and nothing that was sent before has an effect any more:
 *      a sweep of the process that detached it, or a move of somebody who took
 *      the handle up and had no answer.
 */
#include "consul.h"

#include "base/banned.h"

/* No question is asked: what follows looks whether the handle is good. */
hf_status hfi_consul_attach(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            const struct hf_handle *handle,
                            struct hfi_receipt *receipt, struct hf_error *err)
{
    (void)claim;
    if (!handle->fence)
        return hfi_fail(err, HF_LOST, "%s: there is no such grant",
                        conn->endpoint);
    receipt->fence = handle->fence;
    return HF_OK;
}

/* Is the session one that carries a single lock, of a handle?  *ttl_ms is its
 * ttl. */
static bool handle_owns(struct consul_conn *cc, const char *session,
                        int64_t deadline, int64_t *ttl_ms)
{
    struct consul_about about;

    if (hfi_consul_session_inspect(cc, session, deadline, &about))
        return false;
    *ttl_ms = about.ttl_ms;
    return about.handle;
}

/* The lock is not in that session any more: destroy it if it was there for this
 * one only.  If that fails, it lapses. */
void hfi_consul_handle_end(struct consul_conn *cc, const char *session,
                           int64_t deadline)
{
    int64_t ttl_ms;

    if (handle_owns(cc, session, deadline, &ttl_ms))
        hfi_consul_session_destroy(cc, session, deadline);
}

/* Lock it with the session `id` instead, with this value, if the entry is still
 * what `kv` says; see `done`. */
hf_status hfi_consul_move(struct consul_conn *cc, const char *name,
                          const struct consul_kv *kv, const char *id,
                          const char *value, int64_t deadline,
                          struct consul_done *done, struct hf_error *err)
{
    struct consul_ops ops = {.len = 0};
    hf_status st = HF_OK;

    hfi_consul_expect_index(&ops, name, kv->index);
    if (cc->options.cli && kv->permits && strcmp(kv->session, id) != 0)
        st = hfi_consul_semaphore_swap(cc, name, kv->session, id, deadline,
                                       &ops, err);
    hfi_consul_op_as(&ops, kv, "unlock", name, kv->session, value);
    hfi_consul_op_as(&ops, kv, "lock", name, id, value);
    if (!st)
        return hfi_consul_txn(cc, &cc->calls, &ops, true, deadline, done, err);
    hfi_consul_ops_fini(&ops);
    return st;
}

static hf_status handle_void(const struct consul_conn *cc, struct hf_error *err)
{
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    cc->base.endpoint);
}

static hf_status handle_changed(const struct consul_conn *cc,
                                struct hf_error *err)
{
    return hfi_fail(err, HF_UNAVAILABLE, "%s: the lock changed meanwhile",
                    cc->base.endpoint);
}

/* ---- taken up ----------------------------------------------------------- */

/* With the key to ourselves: give the entry `kv` to the claim and to `s`. */
static hf_status take_entry(struct consul_conn *cc, struct consul_key *k,
                            const struct consul_kv *kv,
                            const struct hfi_claim *claim, uint64_t fence,
                            struct consul_session *s, int64_t deadline,
                            struct hf_error *err)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_done done;
    hf_status st;

    hfi_consul_value(value, claim, fence, 0);
    st = hfi_consul_move(cc, k->name, kv, s->id, value, deadline, &done, err);
    if (st == HF_UNCERTAIN || st == HF_PROTOCOL) {
        k->expected_index = kv->index;
        hfi_consul_key_maybe(cc, k, claim->token, s);
    }
    if (st)
        return st;
    if (done.bad_session)
        hfi_consul_session_dead(cc, s);
    if (!done.ok)
        return handle_changed(cc, err);
    hfi_consul_key_seen(k, kv);
    k->index = done.index;
    return HF_OK;
}

static hf_status take_key(struct consul_conn *cc, struct consul_key *k,
                          const struct hfi_claim *claim, const char *token,
                          struct hfi_receipt *receipt, struct consul_session *s,
                          int64_t deadline, struct hf_error *err)
{
    struct consul_kv kv;
    hf_status st =
        hfi_consul_read(cc, &cc->calls, k->name, true, deadline, &kv, err);

    if (st)
        return st;
    if (kv.broken && kv.broken == receipt->fence)
        return handle_void(cc, err);
    if (hfi_consul_is_grant(&kv, claim->token, receipt->fence) &&
        !strcmp(kv.session, s->id)) {
        hfi_consul_key_seen(k, &kv); /* A move that was not answered. */
    } else if (hfi_consul_is_grant(&kv, token, receipt->fence)) {
        st = take_entry(cc, k, &kv, claim, receipt->fence, s, deadline, err);
        if (st)
            return st;
    } else {
        return handle_void(cc, err);
    }
    hfi_consul_key_held(cc, k, claim->token, s, receipt->fence);
    hfi_consul_carried_by(receipt, s);
    hfi_consul_monitor(cc, k, claim->token);
    if (strcmp(kv.session, s->id) != 0)
        hfi_consul_handle_end(cc, kv.session, deadline);
    return HF_OK;
}

/* ---- taken up by one of several holders: many.c -------------------------- */

/* One that is being taken up. */
struct take {
    struct consul_conn *cc;
    const struct hfi_claim *claim;
    const char *token;
    struct hfi_receipt *receipt;
    struct consul_session *s;
    struct consul_key *k, *joint;
    int64_t deadline;
    struct hf_error *err;
};

/* In one step: the entry `old` goes, the claim's own comes.  As for any other
 * who comes in, the key changes: many.c (1).  HF_LOST: something had changed. */
static hf_status take_joint_write(struct take *t, const struct consul_kv *old,
                                  const char *old_name,
                                  const struct consul_kv *key)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st = HF_OK;

    hfi_consul_expect_index(&ops, t->k->name, key->index);
    hfi_consul_expect_index(&ops, old_name, old->index);
    if (hfi_consul_is_semaphore(t->cc, t->claim)) {
        st = hfi_consul_semaphore_swap(t->cc, old_name, old->session, t->s->id,
                                       t->deadline, &ops, t->err);
    } else {
        hfi_consul_many_touch(&ops, t->k->name, key);
    }
    if (st) {
        hfi_consul_ops_fini(&ops);
        return st;
    }
    hfi_consul_op(&ops, "delete", old_name, NULL, NULL, 0);
    hfi_consul_value(value, t->claim, t->receipt->fence, old->slot);
    hfi_consul_op(&ops, "lock", t->joint->name, t->s->id, value, 0);
    st = hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done,
                        t->err);
    if (st == HF_UNCERTAIN || st == HF_PROTOCOL) {
        t->joint->expected_index = key->index;
        hfi_consul_key_maybe(t->cc, t->joint, t->claim->token, t->s);
    }
    if (st)
        return st;
    if (done.bad_session)
        hfi_consul_session_dead(t->cc, t->s);
    t->joint->index = done.index;
    t->joint->granted_index = key->joined ? 0 : done.index;
    hfi_consul_common_seen(t->joint, key);
    return done.ok ? HF_OK : HF_LOST;
}

static hf_status take_joint_done(struct take *t, int32_t slot,
                                 const char *session)
{
    t->receipt->slot = slot;
    hfi_consul_key_held(t->cc, t->joint, t->claim->token, t->s,
                        t->receipt->fence);
    hfi_consul_carried_by(t->receipt, t->s);
    hfi_consul_monitor(t->cc, t->joint, t->claim->token);
    hfi_consul_holder_forget(t->cc, t->claim->key, t->token, t->deadline);
    if (strcmp(session, t->s->id) != 0)
        hfi_consul_handle_end(t->cc, session, t->deadline);
    return HF_OK;
}

/* Is the entry a grant in the way that the claim says? */
static bool take_joint_fits(const struct take *t, const struct consul_kv *kv,
                            const char *token)
{
    return hfi_consul_is_grant(kv, token, t->receipt->fence) &&
           kv->broken != t->receipt->fence && kv->shared == t->claim->shared &&
           kv->permits == t->claim->permits;
}

/* With the key and the claim's own entry to ourselves. */
static hf_status take_joint(struct take *t)
{
    char old_name[CONSUL_NAME_MAX];
    struct consul_kv own, old, key;
    hf_status st = HF_LOST;
    int i;

    if (!hfi_consul_holder_name(&t->cc->options, t->claim->key, t->token,
                                old_name))
        return handle_void(t->cc, t->err);
    for (i = 0; i < CONSUL_ROUNDS && st == HF_LOST; i++) {
        st = hfi_consul_read(t->cc, &t->cc->calls, t->k->name, true,
                             t->deadline, &key, t->err);
        if (!st)
            st = hfi_consul_read(t->cc, &t->cc->calls, old_name, true,
                                 t->deadline, &old, t->err);
        if (!st)
            st = hfi_consul_read(t->cc, &t->cc->calls, t->joint->name, true,
                                 t->deadline, &own, t->err);
        if (st)
            return st;
        if (take_joint_fits(t, &own, t->claim->token) &&
            !strcmp(own.session, t->s->id)) {
            t->joint->index = own.index; /* A write that was not answered. */
            return take_joint_done(t, own.slot, own.session);
        }
        if (!(key.many || key.semaphore) || !take_joint_fits(t, &old, t->token))
            return handle_void(t->cc, t->err);
        st = take_joint_write(t, &old, old_name, &key);
    }
    if (st)
        return st == HF_LOST ? handle_changed(t->cc, t->err) : st;
    return take_joint_done(t, old.slot, old.session);
}

static hf_status take_joint_key(struct take *t)
{
    char name[CONSUL_NAME_MAX];
    hf_status st;

    if (!hfi_consul_holder_name(&t->cc->options, t->claim->key, t->claim->token,
                                name))
        return handle_void(t->cc, t->err);
    st = hfi_consul_name_enter(t->cc, t->claim->key, name, t->deadline,
                               &t->joint, t->err);
    if (!st) {
        t->joint->permit = hfi_consul_is_semaphore(t->cc, t->claim);
        st = take_joint(t);
        hfi_consul_key_leave(t->cc, t->joint);
    }
    return st;
}

hf_status hfi_consul_take_over(struct hfi_conn *conn,
                               const struct hfi_claim *claim, const char *token,
                               struct hfi_receipt *receipt, int64_t deadline,
                               struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct take t = {.cc = cc,
                     .claim = claim,
                     .token = token,
                     .receipt = receipt,
                     .deadline = deadline,
                     .err = err};
    hf_status st;

    st = hfi_consul_session_for(cc, claim, claim->ttl_ms, deadline, &t.s, err);
    if (st)
        return st;
    st = hfi_consul_key_enter(cc, claim->key, deadline, &t.k, err);
    if (!st) {
        st = consul_is_joint(claim)
                 ? HF_LOST
                 : take_key(cc, t.k, claim, token, receipt, t.s, deadline, err);
        if (st == HF_LOST) /* Also a plain one may be joined: reenter.c. */
            st = take_joint_key(&t);
        hfi_consul_key_leave(cc, t.k);
    }
    hfi_consul_session_put(cc, t.s);
    return st;
}

/* ---- renewed by a bearer ------------------------------------------------ */

/* The lock is in a session of its own: renew that.  The entry is written anew,
 * so that a move of another bearer which comes late changes nothing. */
static hf_status bearer_renew(struct consul_conn *cc, const char *name,
                              const struct consul_kv *kv, int64_t ttl_ms,
                              int64_t sure, int64_t deadline,
                              struct hf_error *err)
{
    struct consul_session s = {
        .ttl_ms = ttl_ms, .sure = sure, .agent = kv->agent};
    char value[CONSUL_VALUE_MAX];
    struct consul_done done;
    hf_status st;

    memcpy(s.id, kv->session, sizeof(s.id));
    st = hfi_consul_session_prove(cc, &cc->calls, &s, deadline, err);
    if (st)
        return st;
    hfi_consul_kv_value(value, kv);
    st = hfi_consul_move(cc, name, kv, s.id, value, deadline, &done, err);
    return st ? st : done.ok ? HF_OK : handle_changed(cc, err);
}

/* Give the lock a session of its own. */
static hf_status bearer_move(struct consul_conn *cc, const char *name,
                             struct consul_kv *kv, int64_t ttl_ms,
                             int64_t deadline, struct hf_error *err)
{
    struct consul_session s = {.ttl_ms = ttl_ms,
                               .handle = true,
                               .permit = cc->options.cli && kv->permits};
    char value[CONSUL_VALUE_MAX];
    struct consul_done done;
    hf_status st = hfi_consul_session_create(cc, &s, deadline, err);

    if (st)
        return st;
    kv->fence = hfi_consul_fence(kv);
    kv->linger = kv->wanted = false;
    hfi_consul_kv_value(value, kv);
    st = hfi_consul_move(cc, name, kv, s.id, value, deadline, &done, err);
    if (!st && !done.ok)
        st = handle_changed(cc, err);
    if (!st)
        hfi_consul_handle_end(cc, kv->session, deadline);
    else if (st != HF_UNCERTAIN && st != HF_PROTOCOL)
        hfi_consul_session_destroy(cc, s.id, deadline);
    return st;
}

/* Renew a grant that no claim of this client has; `kv`, which was asked for at
 * `sure`, says that it stands. */
hf_status hfi_consul_bearer(struct consul_conn *cc, const char *name,
                            struct consul_kv *kv, int64_t ttl_ms, int64_t sure,
                            int64_t deadline, struct hf_error *err)
{
    int64_t now_ms = 0;

    if (handle_owns(cc, kv->session, deadline, &now_ms) && now_ms == ttl_ms)
        return bearer_renew(cc, name, kv, ttl_ms, sure, deadline, err);
    return bearer_move(cc, name, kv, ttl_ms, deadline, err);
}
