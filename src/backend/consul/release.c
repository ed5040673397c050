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
    bool many;   /* several hold the key, as was seen */
    bool permit; /* of a semaphore: semaphore.c */
    bool broken; /* out: what was unlocked had been broken */
    int64_t deadline;
    struct hf_error *err;
};

/* One of several holders has left: were they all? */
static void release_tidy(struct consul_conn *cc, struct consul_key *k,
                         uint64_t granted_index, uint64_t fence,
                         struct consul_reply *reply, int64_t deadline)
{
    struct consul_many many = {.n = 0};
    char folder[CONSUL_NAME_MAX], base[CONSUL_NAME_MAX];
    json_t *results;

    hfi_consul_reply_parse(reply);
    results = json_object_get(reply->json, "Results");
    json_array_remove(results, 0); /* the entry as it was ... */
    json_array_remove(results, 0); /* ... and without its value */
    if (!json_is_array(results) ||
        !hfi_consul_holder_name(&cc->options, k->key, "", folder) ||
        !hfi_consul_below(&cc->options, k->key, "", base) ||
        !hfi_consul_many_collect(&many, results, folder))
        return;
    if (k->permit) {
        hfi_consul_semaphore_collect(&many, results, base);
        hfi_consul_semaphore_tidy(cc, k->key, &many, deadline);
    } else {
        hfi_consul_many_tidy(cc, k, granted_index, fence, &many, deadline);
    }
    hfi_consul_many_fini(&many);
}

/* Does anybody stand in line?  The answer has the names of all who do, or whose
 * places are kept closed. */
static void release_line(struct consul_key *k, const struct consul_reply *reply)
{
    k->line = reply->data && strstr(reply->data, "/.holdfast/")
                  ? CONSUL_LINE_STANDS
                  : CONSUL_LINE_EMPTY;
}

/* Others have joined the grant of the key, which is given up: from now on a common
 * session has it locked for them.  Without one they lock it themselves, at their
 * next renewal: common.c (4). */
static void release_to_common(struct consul_conn *cc, struct consul_key *k,
                              struct consul_kv *kv, struct consul_ops *ops,
                              int64_t deadline)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_session *s;

    if (!k->session ||
        hfi_consul_common_get(cc, k->session->ttl_ms, 0, deadline, &s, NULL))
        return;
    kv->common_ms = s->ttl_ms;
    hfi_consul_kv_value(value, kv);
    hfi_consul_common_locks(cc, s, k->name);
    hfi_consul_common_ops(ops, kv, k->name, "", s, value);
    hfi_consul_session_put(cc, s);
}

/* Unlock the entry, if it is still as it was at `index`; else HF_LOST.  What
 * stands in its queue is read before that, so that the answer ends with the
 * entry itself. */
hf_status hfi_consul_unlock_at(struct consul_conn *cc, struct consul_key *k,
                               const char *session, uint64_t index,
                               uint64_t fence, int64_t deadline,
                               struct hf_error *err)
{
    struct consul_kv kv = {.fence = fence,
                           .freed = (uint64_t)(hfi_wall_us() / 1000000),
                           .joined = !k->joint && k->joined};
    char value[CONSUL_VALUE_MAX], folder[CONSUL_NAME_MAX];
    uint64_t granted_index = k->granted_index;
    bool joined = !k->joint && k->joined, several = k->joint || joined;
    struct consul_ops ops = {.len = 0};
    struct consul_reply reply;
    struct consul_done done;
    hf_status st;

    memcpy(kv.by, cc->id, sizeof(kv.by));
    hfi_consul_kv_value(value, &kv);
    if (cc->options.fair && !several &&
        hfi_consul_queue_entry(&cc->options, k->key, "", folder))
        hfi_consul_op(&ops, "get-tree", folder, NULL, NULL, 0);
    hfi_consul_expect_index(&ops, k->name, index);
    hfi_consul_op_as(&ops, &kv, "unlock", k->name, session, value);
    if (joined)
        release_to_common(cc, k, &kv, &ops, deadline);
    if (k->permit && hfi_consul_below(&cc->options, k->key, session, folder))
        hfi_consul_op(&ops, "delete", folder, NULL, NULL, 0);
    if (k->permit ? hfi_consul_below(&cc->options, k->key, "", folder)
                  : several && hfi_consul_holder_name(&cc->options, k->key, "",
                                                      folder))
        hfi_consul_op(&ops, "get-tree", folder, NULL, NULL, 0);
    st = hfi_consul_txn_keep(cc, &cc->calls, &ops, true, deadline, &done,
                             &reply, err);
    if (st)
        return st;
    if (done.ok) {
        hfi_consul_key_free(
            cc, k, done.index && !joined ? CONSUL_FREE : CONSUL_UNKNOWN,
            done.index);
        if (cc->options.fair && !several && done.index)
            release_line(k, &reply);
        if (several)
            release_tidy(cc, k, joined ? 0 : granted_index, fence, &reply,
                         deadline);
    }
    hfi_consul_reply_fini(&reply);
    return done.ok ? HF_OK : HF_LOST;
}

/* A try of ours that was not answered may still be on its way: change the index
 * that it was for, and nothing else.  consul.c (2)  The service does not write
 * a value that is the same, so this one names the index; it is read by nobody.
 * */
static hf_status release_bar(struct release *r, const char *name,
                             struct consul_kv *kv)
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
    hfi_consul_expect_index(&ops, name, kv->index);
    hfi_consul_op_as(&ops, kv, "set", name, NULL, value);
    st = hfi_consul_txn(r->cc, &r->cc->calls, &ops, true, r->deadline, &done,
                        r->err);
    if (!st && !done.ok)
        st = HF_LOST;
    if (!st && !r->k->joint) {
        kv->index = done.index;
        hfi_consul_key_settle(r->cc, r->k, kv);
    }
    return st;
}

/* The same for one of several holders: its try was for an index of the key.
 * HF_LOST: it cannot come any more. */
static hf_status release_bar_joint(struct release *r)
{
    char name[CONSUL_NAME_MAX];
    struct consul_kv kv;
    hf_status st;
    int i;

    if (!r->maybe || !hfi_consul_name(&r->cc->options, r->k->key, name))
        return HF_LOST;
    if (r->permit) /* It was for a session that carries nothing else. */
        return hfi_consul_session_bar(r->cc, r->session, r->deadline, r->err);
    for (i = 0; i < CONSUL_ROUNDS; i++) {
        st = hfi_consul_read(r->cc, &r->cc->calls, name, true, r->deadline, &kv,
                             r->err);
        if (st)
            return st;
        if (kv.index != r->k->expected_index)
            return HF_LOST;
        st = release_bar(r, name, &kv);
        if (st != HF_LOST)
            return st; /* What it was for is gone, and so is its chance. */
    }
    return HF_LOST;
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
    hf_status st;

    hfi_consul_key_seen(r->k, kv);
    if (kv->token[0]) /* It knows better than the bearer of a handle. */
        r->permit = r->k->permit =
            r->k->joint && r->cc->options.cli && kv->permits;
    st = hfi_consul_unlock_at(r->cc, r->k, kv->session, kv->index,
                              hfi_consul_fence(kv), r->deadline, r->err);
    r->broken = !st && kv->broken;
    if (!st && strcmp(kv->session, r->session) != 0)
        hfi_consul_handle_end(r->cc, kv->session, r->deadline);
    return st;
}

/* The entry of one of several holders is not there: bar what may still come, and
 * look whether it came before that.  HF_LOST: it did not. */
static hf_status release_late(struct release *r)
{
    struct consul_kv kv;
    hf_status st, barred = release_bar_joint(r);

    if (!r->maybe || (barred && barred != HF_LOST))
        return barred;
    st = hfi_consul_read(r->cc, &r->cc->calls, r->k->name, true, r->deadline,
                         &kv, r->err);
    if (st)
        return st;
    if (release_fits(r, &kv))
        return release_seen(r, &kv);
    if (!barred)
        hfi_consul_key_free(r->cc, r->k, CONSUL_UNKNOWN, 0);
    return barred;
}

/* A release that had no answer was done: what it has left of a semaphore. */
static void release_tidy_late(const struct release *r)
{
    struct consul_many many;

    if (hfi_consul_many_read(r->cc, r->k->key, "", 0, NULL, r->deadline, &many,
                             NULL))
        return;
    hfi_consul_semaphore_tidy(r->cc, r->k->key, &many, r->deadline);
    hfi_consul_many_fini(&many);
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
        r->many = kv.many || kv.semaphore;
        if (release_fits(r, &kv))
            st = release_seen(r, &kv);
        else if (!r->k->joint && r->maybe && kv.index == r->k->expected_index)
            st = release_bar(r, r->k->name, &kv);
        else
            break;
        if (st != HF_LOST)
            return st;
    }
    if (r->k->joint && !kv.exists) {
        st = release_late(r);
        if (st != HF_LOST)
            return st;
    }
    st = release_was_ours(r, &kv) ? HF_OK : HF_LOST;
    if (!st && r->permit)
        release_tidy_late(r);
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

static hf_status release_name(struct release *r, const struct hfi_claim *claim,
                              const char *name)
{
    hf_status st = hfi_consul_name_enter(r->cc, claim->key, name, r->deadline,
                                         &r->k, r->err);

    if (st)
        return st;
    if (strcmp(r->k->holder, r->token) != 0) /* not known here */
        r->k->permit = r->k->joint && hfi_consul_is_semaphore(r->cc, claim);
    r->permit = r->k->permit;
    st = release_unlock(r);
    hfi_consul_key_leave(r->cc, r->k);
    return st;
}

/* Under the name where the grant should be, and then, if it is not there, where
 * else it may be: share.c. */
static hf_status release_claim(struct release *r, const struct hfi_claim *claim)
{
    char name[CONSUL_NAME_MAX], other[CONSUL_NAME_MAX];
    hf_status st;

    if (!hfi_consul_claim_name(r->cc, claim, name) ||
        !hfi_consul_other_name(r->cc, claim, name, other))
        return hfi_fail(r->err, HF_INVALID, "%s: the key is too long",
                        r->cc->base.endpoint);
    st = release_name(r, claim, name);
    if (st == HF_LOST && (r->many || consul_is_joint(claim)))
        st = release_name(r, claim, other);
    if ((claim->shared || claim->owner) && (st == HF_OK || st == HF_LOST))
        hfi_consul_holder_forget(r->cc, claim->key, claim->token, r->deadline);
    return st;
}

/* Has the claim an entry, or may it have one, as far as we know? */
static bool release_has(struct consul_conn *cc, const struct hfi_claim *claim)
{
    char name[CONSUL_NAME_MAX];
    struct hfi_node *node;
    bool has;

    if (!hfi_consul_claim_name(cc, claim, name))
        return false;
    pthread_mutex_lock(&cc->mu);
    node = hfi_map_find(&cc->keys, name);
    has = node && !strcmp(hfi_container(node, struct consul_key, node)->holder,
                          claim->token);
    pthread_mutex_unlock(&cc->mu);
    return has;
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
    hf_status st = release_claim(&r, claim);

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
    if (!receipt->fence &&
        (cc->options.fair || hfi_consul_queue_stands(cc, claim->token) ||
         hfi_consul_queue_in_doubt(cc, claim->token)))
        left = hfi_consul_queue_leave(cc, claim, deadline, err);
    if (receipt->fence || release_has(cc, claim))
        st = release_claim(&r, claim);
    else
        st = left ? left : receipt->registered ? HF_OK : HF_LOST;
    if (st == HF_OK || st == HF_LOST)
        receipt->registered = left != HF_OK && left != HF_LOST;
    if (receipt->registered && (st == HF_OK || st == HF_LOST))
        return left;
    if (!st && r.broken) /* Its index had changed, so it was looked at. */
        st = HF_LOST;
    return st == HF_LOST
               ? hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                          conn->endpoint)
               : st;
}
