/* SPDX-License-Identifier: MIT
 *
 * renew.c - renewing, and moving to another ttl.
 *
 * A renewal has two halves: sessions are renewed side by side, each once for
 * all the locks that it carries, and then each entry is checked to be as it
 * was, up to 64 in one read-only transaction.  Either alone would not do: a
 * session can live on while an operator deletes an entry, and an entry says
 * nothing of how long its session will live.  The transaction is a consistent
 * read, so it is also what makes the next renewal of the session a proof:
 * session.c (4).
 *
 * A lock that is to have another ttl is moved: unlocked by the old session and
 * locked by another of ours in one step, so that nobody can come in between.
 * Its fence is written into the value and stays what it was.
 *
 * What is renewed for the bearer of a handle goes another way: handle.c (1).
 */
#include "consul.h"

#include "base/banned.h"

/* Items that are renewed at once. */
#define RENEW_MAX 256

struct renewal {
    struct consul_conn *cc;
    struct hfi_renewal *items;
    size_t n;
    struct consul_session *of[RENEW_MAX];       /* of each item, or NULL */
    struct consul_session *sessions[RENEW_MAX]; /* each once ... */
    hf_status st[RENEW_MAX];                    /* ... and what became of it */
    size_t nsessions;
    int64_t deadline;
    struct hf_error *err;
};

/* Items that are checked in one transaction. */
struct renew_batch {
    struct hfi_renewal *items[CONSUL_OPS_MAX];
    struct consul_session *of[CONSUL_OPS_MAX];
    size_t n;
};

/* Why is it not ours any more?  The entry tells. */
hf_loss hfi_consul_why(const struct consul_kv *kv, const char *token,
                       uint64_t fence)
{
    if (kv->broken && kv->broken == fence)
        return HF_LOSS_BROKEN;
    if (!kv->exists)
        return HF_LOSS_DELETED;
    if (kv->session[0])
        return HF_LOSS_STOLEN;
    return !strcmp(kv->token, token) ? HF_LOSS_SESSION : HF_LOSS_DELETED;
}

/* With the mutex held: the key, if this claim has it, or NULL. */
static struct consul_key *renew_key(struct consul_conn *cc, const char *name,
                                    const struct hfi_claim *claim)
{
    struct hfi_node *node = hfi_map_find(&cc->keys, name);
    struct consul_key *k =
        node ? hfi_container(node, struct consul_key, node) : NULL;

    return k && k->session && !strcmp(k->holder, claim->token) ? k : NULL;
}

static void renew_lost(const struct consul_conn *cc, struct hfi_renewal *item,
                       const struct consul_kv *kv, struct hf_error *err)
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
        renew_lost(cc, item, &kv, err);
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
    k->index = kv.index;
    hfi_consul_carried_by(receipt, s);
    hfi_consul_key_held(cc, k, item->claim->token, s, receipt->fence);
}

static void renew_move(struct consul_conn *cc, struct hfi_renewal *item,
                       int64_t deadline, struct hf_error *err)
{
    struct consul_session *s;
    struct consul_key *k;
    hf_status st;

    st = hfi_consul_session_get(cc, item->ttl_ms, false, deadline, &s, err);
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

/* Does the entry, as it was just read, stand as it should, in the session that
 * was renewed?  Then that is what the next check is for. */
static bool renew_stands(struct consul_conn *cc, const char *name,
                         const struct hfi_renewal *item, const char *session,
                         const struct consul_kv *kv, bool *mine)
{
    struct consul_key *k;
    bool here =
        session && kv->session[0] && !strcmp(kv->session, session) &&
        (!kv->token[0] || /* An operator has written another value. */
         hfi_consul_is_grant(kv, item->claim->token, item->receipt->fence));

    pthread_mutex_lock(&cc->mu);
    k = renew_key(cc, name, item->claim);
    *mine = k;
    if (k && here)
        k->index = kv->index;
    pthread_mutex_unlock(&cc->mu);
    return here;
}

/* If the entry `kv` is not the grant, it may be another: share.c.  What was
 * found goes to `name` and `kv`. */
static hf_status renew_elsewhere(struct consul_conn *cc,
                                 const struct hfi_renewal *item, char *name,
                                 struct consul_kv *kv, int64_t deadline,
                                 struct hf_error *err)
{
    const struct hfi_claim *claim = item->claim;
    char other[CONSUL_NAME_MAX];
    struct consul_kv there;
    hf_status st;

    if (hfi_consul_is_grant(kv, claim->token, item->receipt->fence) ||
        (!kv->many && !claim->shared) ||
        !hfi_consul_other_name(cc, claim, name, other))
        return HF_OK;
    st = hfi_consul_read(cc, &cc->renewals, other, true, deadline, &there, err);
    if (st || !hfi_consul_is_grant(&there, claim->token, item->receipt->fence))
        return st;
    memcpy(name, other, sizeof(other));
    *kv = there;
    if (claim->shared && !claim->bearer && kv->shared &&
        hfi_consul_adopt(cc, claim, item->receipt, kv, deadline))
        return hfi_fail(err, HF_UNAVAILABLE, "%s: changed meanwhile",
                        cc->base.endpoint);
    return HF_OK;
}

/* Look at the entry, because its check failed or because it is not in a session
 * of ours with the right ttl (`session` is NULL). */
static void renew_inspect(struct consul_conn *cc, struct hfi_renewal *item,
                          const char *session, int64_t deadline,
                          struct hf_error *err)
{
    char name[CONSUL_NAME_MAX];
    uint64_t fence = item->receipt->fence;
    int64_t asked = hfi_now();
    struct consul_kv kv;
    bool mine;

    if (!hfi_consul_claim_name(cc, item->claim, name))
        return;
    item->st =
        hfi_consul_read(cc, &cc->renewals, name, true, deadline, &kv, err);
    if (!item->st && !(kv.broken && kv.broken == fence))
        item->st = renew_elsewhere(cc, item, name, &kv, deadline, err);
    if (item->st)
        return;
    if (kv.broken && kv.broken == fence) {
        renew_lost(cc, item, &kv, err);
    } else if (renew_stands(cc, name, item, session, &kv, &mine)) {
        item->st = HF_OK;
    } else if (!hfi_consul_is_grant(&kv, item->claim->token, fence)) {
        renew_lost(cc, item, &kv, err);
    } else if (mine && !item->claim->bearer) {
        renew_move(cc, item, deadline, err);
    } else {
        item->st = hfi_consul_bearer(cc, name, &kv, item->ttl_ms, asked,
                                     deadline, err);
        item->reason = HF_LOSS_SESSION;
    }
}

/* That the entry is as we wrote it says more than that our session has it: an
 * operator may have marked it. */
static void renew_op(struct consul_conn *cc, struct consul_ops *ops,
                     const struct hfi_renewal *item)
{
    char name[CONSUL_NAME_MAX];
    struct consul_key *k;
    uint64_t index = 0;

    if (!hfi_consul_claim_name(cc, item->claim, name))
        return;
    pthread_mutex_lock(&cc->mu);
    k = renew_key(cc, name, item->claim);
    if (k)
        index = k->index;
    pthread_mutex_unlock(&cc->mu);
    hfi_consul_op(ops, "check-index", name, NULL, NULL, index);
}

/* Check what is in the batch; the bits of `denied` say which items the token
 * may not read, in which case no other was checked. */
static hf_status renew_ask(struct consul_conn *cc, struct renew_batch *batch,
                           uint64_t *denied, int64_t deadline,
                           struct hf_error *err)
{
    struct consul_ops ops = {.len = 0};
    int64_t asked = hfi_now();
    struct consul_done done = {.ok = false};
    hf_status st;
    size_t i;

    for (i = 0; i < batch->n; i++)
        renew_op(cc, &ops, batch->items[i]);
    st = hfi_consul_txn(cc, &cc->renewals, &ops, false, deadline, &done, err);
    for (i = 0; i < batch->n; i++) {
        batch->items[i]->st = st;
        if (!st)
            hfi_consul_session_sure(cc, batch->of[i], asked, done.agent);
        if (!st && !done.ok && done.failed >> i & 1)
            renew_inspect(cc, batch->items[i], batch->of[i]->id, deadline, err);
    }
    *denied = done.denied;
    return st;
}

/* Check what is in the batch, and empty it.  The service refuses a transaction
 * as a whole if the token may not read one of its keys.  That concerns this key
 * only: the others are checked without it. */
static void renew_check(struct consul_conn *cc, struct renew_batch *batch,
                        int64_t deadline, struct hf_error *err)
{
    uint64_t denied;
    size_t i, n;

    do {
        n = batch->n;
        if (renew_ask(cc, batch, &denied, deadline, err) != HF_DENIED)
            break;
        for (i = batch->n = 0; i < n; i++)
            if (!(denied >> i & 1)) {
                batch->items[batch->n] = batch->items[i];
                batch->of[batch->n++] = batch->of[i];
            }
    } while (batch->n && batch->n < n);
    batch->n = 0;
}

/* The session that carries the item as it should be, with a reference; NULL if
 * it must be moved to one.  What a bearer renews is written anew each time, also
 * where it was detached: handle.c (1). */
static struct consul_session *renew_session(struct consul_conn *cc,
                                            const struct hfi_renewal *item)
{
    char name[CONSUL_NAME_MAX];
    struct consul_session *s = NULL;
    struct consul_key *k = NULL;

    if (item->claim->bearer || !hfi_consul_claim_name(cc, item->claim, name))
        return NULL;
    pthread_mutex_lock(&cc->mu);
    k = renew_key(cc, name, item->claim);
    if (k)
        s = k->session;
    if (s && ((!s->base.dead && s->ttl_ms != item->ttl_ms) || k->moving))
        s = NULL;
    if (s)
        s->base.users++;
    pthread_mutex_unlock(&cc->mu);
    return s;
}

/* Find the sessions of all items, and renew them. */
static void renew_sessions(struct renewal *r)
{
    size_t i, j;

    for (i = 0; i < r->n; i++) {
        r->of[i] = renew_session(r->cc, &r->items[i]);
        for (j = 0; r->of[i] && j < r->nsessions; j++)
            if (r->sessions[j] == r->of[i])
                break;
        if (r->of[i] && j == r->nsessions)
            r->sessions[r->nsessions++] = r->of[i];
    }
    hfi_consul_sessions_renew(r->cc, r->sessions, r->st, r->nsessions,
                              r->deadline, r->err);
    for (i = 0; i < r->n; i++)
        for (j = 0; j < r->nsessions; j++)
            if (r->sessions[j] == r->of[i]) {
                r->items[i].st = r->st[j];
                r->items[i].reason = HF_LOSS_SESSION;
            }
}

/* Check the entries of all whose session was renewed, whichever that is. */
static void renew_entries(struct renewal *r)
{
    struct renew_batch batch = {.n = 0};
    size_t i;

    for (i = 0; i < r->n; i++) {
        if (!r->of[i] || r->items[i].st)
            continue;
        batch.items[batch.n] = &r->items[i];
        batch.of[batch.n++] = r->of[i];
        if (batch.n == CONSUL_OPS_MAX)
            renew_check(r->cc, &batch, r->deadline, r->err);
    }
    if (batch.n)
        renew_check(r->cc, &batch, r->deadline, r->err);
}

/* Those that have no session as they should have it come last: each of them
 * takes several round trips of its own. */
static void renew_part(struct renewal *r)
{
    size_t i;

    renew_sessions(r);
    renew_entries(r);
    for (i = 0; i < r->n; i++) {
        if (r->of[i])
            hfi_consul_session_put(r->cc, r->of[i]);
        else
            renew_inspect(r->cc, &r->items[i], NULL, r->deadline, r->err);
    }
}

void hfi_consul_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                      size_t n, int64_t deadline, struct hf_error *err)
{
    struct renewal r;
    size_t from;

    for (from = 0; from < n; from += r.n) {
        r.cc = (struct consul_conn *)conn;
        r.items = items + from;
        r.n = n - from < RENEW_MAX ? n - from : RENEW_MAX;
        r.nsessions = 0;
        r.deadline = deadline;
        r.err = err;
        renew_part(&r);
    }
}
