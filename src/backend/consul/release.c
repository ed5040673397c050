/* SPDX-License-Identifier: MIT
 *
 * release.c - giving up a grant, a queue entry, or what may have been granted.
 *
 * INVARIANTS
 *  (1) An entry is unlocked only on the condition that it has not changed since
 *      it was seen, or written by us, as the grant that is given up: its token
 *      and its fence, or, while no answer told the fence, its token and our own
 *      session.
 *  (2) What is removed in passing must be locked by a session of ours too.  A
 *      lock that was detached keeps its token and its fence while a bearer of
 *      its handle renews it, in another session.
 *  (3) What a release writes names the client that released, so of several who
 *      release one grant exactly one finds that it was the one.
 */
#include "consul.h"

#include "base/banned.h"

/* What is to be unlocked, and what may be. */
struct release {
    struct consul_conn *cc;
    struct consul_key *k;
    const char *token;
    uint64_t fence;                  /* 0: a try that was not answered */
    char session[CONSUL_ID_LEN + 1]; /* of the claim, if it is known here */
    bool sweep;                      /* in passing: release.c (2) */
    bool mine, maybe;
    int64_t deadline;
    struct hf_error *err;
};

/* Unlock the entry, if it is still as it was at `index`; else HF_LOST. */
hf_status hfi_consul_unlock_at(struct consul_conn *cc, struct consul_key *k,
                               const char *session, uint64_t index,
                               uint64_t fence, int64_t deadline,
                               struct hf_error *err)
{
    struct consul_kv kv = {.fence = fence};
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;

    memcpy(kv.by, cc->id, sizeof(kv.by));
    hfi_consul_kv_value(value, &kv);
    hfi_consul_expect_index(&ops, k->name, index);
    hfi_consul_op(&ops, "unlock", k->name, session, value, 0);
    st = hfi_consul_txn(cc, &cc->calls, &ops, true, deadline, &done, err);
    if (st)
        return st;
    if (!done.ok)
        return HF_LOST;
    hfi_consul_key_free(cc, k, done.index ? CONSUL_FREE : CONSUL_UNKNOWN,
                        done.index);
    return HF_OK;
}

/* A try of ours that was not answered may still be on its way: change the index
 * that it was for, and nothing else.  consul.c (2)  The service does not write
 * a value that is the same, so this one names the index; it is read by nobody.
 * */
static hf_status release_bar(struct release *r, struct consul_kv *kv)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;
    size_t len;

    kv->fence = hfi_consul_fence(kv);
    hfi_consul_kv_value(value, kv);
    len = strlen(value);
    snprintf(value + len, sizeof(value) - len, "barred %llu\n",
             (unsigned long long)kv->index);
    hfi_consul_expect_index(&ops, r->k->name, kv->index);
    hfi_consul_op(&ops, "set", r->k->name, NULL, value, 0);
    st = hfi_consul_txn(r->cc, &r->cc->calls, &ops, true, r->deadline, &done,
                        r->err);
    if (!st && !done.ok)
        st = HF_LOST;
    if (!st) {
        kv->index = done.index;
        hfi_consul_key_settle(r->cc, r->k, kv);
    }
    return st;
}

/* Is that what our own release has written?  It was not answered, or libcurl
 * has sent it twice because the connection broke in between.  release.c (3) */
static bool release_was_ours(const struct release *r,
                             const struct consul_kv *kv)
{
    return r->mine && r->k->fence && kv->fence == r->k->fence &&
           !kv->session[0] && !kv->token[0] && !kv->broken &&
           !strcmp(kv->by, r->cc->id);
}

/* Is the entry the grant that is given up?  release.c (1), (2) */
static bool release_fits(const struct release *r, const struct consul_kv *kv)
{
    bool here = r->session[0] && !strcmp(kv->session, r->session), ours;

    pthread_mutex_lock(&r->cc->mu);
    ours = here || hfi_consul_session_find(r->cc, kv->session);
    pthread_mutex_unlock(&r->cc->mu);
    if (!kv->session[0] || ((r->sweep || !r->fence) && !ours))
        return false;
    if (!kv->token[0]) /* An operator has written another value. */
        return here && !r->maybe;
    return !strcmp(kv->token, r->token) &&
           (!r->fence || r->fence == hfi_consul_fence(kv));
}

/* Unlock what was just seen, and end a session that was there for it alone. */
static hf_status release_seen(struct release *r, const struct consul_kv *kv)
{
    hf_status st =
        hfi_consul_unlock_at(r->cc, r->k, kv->session, kv->index,
                             hfi_consul_fence(kv), r->deadline, r->err);

    if (!st && strcmp(kv->session, r->session) != 0)
        hfi_consul_handle_end(r->cc, kv->session, r->deadline);
    return st;
}

/* The slow way: look first.  HF_LOST: it is not ours, and will not be. */
static hf_status release_inspect(struct release *r)
{
    struct consul_kv kv;
    hf_status st;
    int i;

    for (i = 0; i < CONSUL_ROUNDS; i++) {
        st = hfi_consul_read(r->cc, &r->cc->calls, r->k->name, true,
                             r->deadline, &kv, r->err);
        if (st)
            return st;
        if (release_fits(r, &kv))
            st = release_seen(r, &kv);
        else if (r->maybe && kv.index == r->k->expected_index)
            st = release_bar(r, &kv);
        else
            break;
        if (st != HF_LOST)
            return st;
    }
    st = release_was_ours(r, &kv) ? HF_OK : HF_LOST;
    if (r->mine)
        hfi_consul_key_settle(r->cc, r->k, &kv);
    return st;
}

/* With the key to ourselves. */
static hf_status release_unlock(struct release *r)
{
    struct consul_key *k = r->k;
    hf_status st = HF_LOST;

    r->mine = !strcmp(k->holder, r->token);
    r->maybe = r->mine && k->maybe;
    if (r->mine)
        memcpy(r->session, k->session->id, sizeof(r->session));
    if (r->mine && !k->maybe)
        st = hfi_consul_unlock_at(r->cc, k, r->session, k->index, k->fence,
                                  r->deadline, r->err);
    if (st == HF_LOST)
        st = release_inspect(r);
    if (!r->mine || st == HF_OK || st == HF_LOST)
        return st;
    if (st == HF_UNCERTAIN)
        k->maybe = true;
    k->leaving = true;
    return st;
}

/* Nobody here has it any more, and its lease is over.  After an answer nothing
 * of the claim can come: what had none was for another index. */
hf_status hfi_consul_sweep(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, int64_t deadline,
                           struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct release r = {.cc = cc,
                        .token = claim->token,
                        .fence = receipt->fence,
                        .sweep = true,
                        .deadline = deadline,
                        .err = err};
    hf_status st = hfi_consul_key_enter(cc, claim->key, deadline, &r.k, err);

    if (st)
        return st;
    st = release_unlock(&r);
    hfi_consul_key_leave(cc, r.k);
    if (st == HF_OK || st == HF_LOST)
        receipt->registered = false;
    return st;
}

hf_status hfi_consul_release(struct hfi_conn *conn,
                             const struct hfi_claim *claim,
                             struct hfi_receipt *receipt, int64_t deadline,
                             struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct release r = {.cc = cc,
                        .token = claim->token,
                        .fence = receipt->fence,
                        .deadline = deadline,
                        .err = err};
    hf_status st, left = HF_OK;

    hfi_consul_forget(cc, claim->token);
    if (cc->options.fair && !receipt->fence)
        left = hfi_consul_queue_leave(cc, claim, deadline, err);
    st = hfi_consul_key_enter(cc, claim->key, deadline, &r.k, err);
    if (st)
        return st;
    if (receipt->fence || !strcmp(r.k->holder, claim->token))
        st = release_unlock(&r);
    else
        st = left ? left : receipt->registered ? HF_OK : HF_LOST;
    hfi_consul_key_leave(cc, r.k);
    if (st == HF_OK || st == HF_LOST)
        receipt->registered = left != HF_OK && left != HF_LOST;
    if (receipt->registered && (st == HF_OK || st == HF_LOST))
        return left;
    return st == HF_LOST
               ? hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                          conn->endpoint)
               : st;
}
