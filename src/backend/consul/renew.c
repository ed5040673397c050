/* SPDX-License-Identifier: MIT
 *
 * renew.c - renewing.
 *
 * A renewal has two halves: sessions are renewed side by side, each once for
 * all the locks that it carries, and then each entry is checked to be as it
 * was, up to 64 in one read-only transaction.  Either alone would not do: a
 * session can live on while an operator deletes an entry, and an entry says
 * nothing of how long its session will live.  The transaction is a consistent
 * read, so it is also what makes the next renewal of the session a proof:
 * session.c (4).  For one of several holders it checks too that the key is locked
 * by the common session, which is renewed with the others: common.c.
 *
 * A lock that is to have another ttl is moved: move.c.
 *
 * What is renewed for the bearer of a handle goes another way: handle.c (1).
 */
#include "consul.h"

#include "base/banned.h"

/* Items that are renewed at once. */
#define RENEW_MAX 256

/* Common sessions of others that are renewed at once. */
#define COMMON_MAX 16

struct renewal {
    struct consul_conn *cc;
    struct hfi_renewal *items;
    size_t n;
    struct consul_session *of[RENEW_MAX];           /* of each item, or NULL */
    struct consul_session *sessions[2 * RENEW_MAX]; /* each once ... */
    hf_status st[2 * RENEW_MAX]; /* ... and what became of it */
    size_t nsessions;
    struct consul_session common[COMMON_MAX]; /* of others */
    size_t ncommon;
    int64_t deadline;
    struct hf_error *err;
};

/* Items that are checked in one transaction. */
struct renew_batch {
    struct hfi_renewal *items[CONSUL_OPS_MAX];
    struct consul_session *of[CONSUL_OPS_MAX];
    struct consul_common common[CONSUL_OPS_MAX];
    size_t n, ops;
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
struct consul_key *hfi_consul_renew_key(struct consul_conn *cc,
                                        const char *name,
                                        const struct hfi_claim *claim)
{
    struct hfi_node *node = hfi_map_find(&cc->keys, name);
    struct consul_key *k =
        node ? hfi_container(node, struct consul_key, node) : NULL;

    return k && k->session && !strcmp(k->holder, claim->token) ? k : NULL;
}

/* It was renewed: see that its key is locked for it, or find out who has it. */
static void renew_tend(struct consul_conn *cc, struct hfi_renewal *item,
                       int64_t deadline, struct hf_error *err)
{
    if (!item->st)
        item->st = hfi_consul_common_tend(cc, item->claim, item->ttl_ms,
                                          deadline, &item->reason, err);
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
    k = hfi_consul_renew_key(cc, name, item->claim);
    *mine = k;
    if (k && here)
        hfi_consul_key_seen(k, kv);
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
        (!kv->many && !kv->semaphore && !consul_is_joint(claim)) ||
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

/* Is that the entry of one of several holders, whatever the claim says? */
static bool renew_is_joint(const struct consul_conn *cc,
                           const struct hfi_claim *claim, const char *name)
{
    char plain[CONSUL_NAME_MAX];

    return hfi_consul_name(&cc->options, claim->key, plain) &&
           strcmp(name, plain) != 0;
}

/* Look at the entry, because its check failed or because it is not in a session
 * of ours with the right ttl (`session` is NULL).  Is it one of several? */
static bool renew_inspect(struct consul_conn *cc, struct hfi_renewal *item,
                          const char *session, int64_t deadline,
                          struct hf_error *err)
{
    char name[CONSUL_NAME_MAX];
    uint64_t fence = item->receipt->fence;
    int64_t asked = hfi_now();
    struct consul_kv kv;
    bool mine;

    if (!hfi_consul_claim_name(cc, item->claim, name))
        return false;
    item->st =
        hfi_consul_read(cc, &cc->renewals, name, true, deadline, &kv, err);
    if (!item->st && !(kv.broken && kv.broken == fence))
        item->st = renew_elsewhere(cc, item, name, &kv, deadline, err);
    if (item->st)
        return false;
    if (kv.broken && kv.broken == fence) {
        hfi_consul_renew_lost(cc, item, &kv, err);
    } else if (renew_stands(cc, name, item, session, &kv, &mine)) {
        item->st = HF_OK;
    } else if (!hfi_consul_is_grant(&kv, item->claim->token, fence)) {
        hfi_consul_renew_lost(cc, item, &kv, err);
    } else if (mine && !item->claim->bearer) {
        hfi_consul_renew_move(cc, item, deadline, err);
    } else {
        item->st = hfi_consul_bearer(cc, name, &kv, item->ttl_ms, asked,
                                     deadline, err);
        item->reason = HF_LOSS_SESSION;
    }
    return renew_is_joint(cc, item->claim, name);
}

/* That the entry is as we wrote it says more than that our session has it: an
 * operator may have marked it.  The number of operations. */
static size_t renew_op(struct consul_conn *cc, struct consul_ops *ops,
                       const struct hfi_renewal *item,
                       const struct consul_common *common)
{
    char name[CONSUL_NAME_MAX];
    struct consul_key *k;
    uint64_t index = 0;

    if (!hfi_consul_claim_name(cc, item->claim, name))
        return 0;
    pthread_mutex_lock(&cc->mu);
    k = hfi_consul_renew_key(cc, name, item->claim);
    if (k)
        index = k->index;
    pthread_mutex_unlock(&cc->mu);
    hfi_consul_op(ops, "check-index", name, NULL, NULL, index);
    if (!common->locked_by[0] ||
        !hfi_consul_name(&cc->options, item->claim->key, name))
        return 1;
    hfi_consul_op(ops, "check-session", name, common->locked_by, NULL, 0);
    return 2;
}

/* A leader has served a request that was sent at `sent`. */
static void renew_sure(struct consul_conn *cc, struct consul_session *s,
                       const struct consul_common *common, int64_t sent,
                       size_t agent)
{
    struct consul_session *own;

    hfi_consul_session_sure(cc, s, sent, agent);
    if (!common->ms)
        return;
    pthread_mutex_lock(&cc->mu);
    own = hfi_consul_session_find(cc, common->locked_by);
    if (own)
        own->base.users++;
    pthread_mutex_unlock(&cc->mu);
    if (!own)
        return;
    hfi_consul_session_sure(cc, own, sent, agent);
    hfi_consul_session_put(cc, own);
}

/* What the check of the entry, and of its key, has found. */
static void renew_found(struct consul_conn *cc, struct hfi_renewal *item,
                        const struct consul_session *s,
                        const struct consul_common *common, unsigned failed,
                        int64_t deadline, struct hf_error *err)
{
    if (failed & 1)
        renew_inspect(cc, item, s->id, deadline, err);
    if (common->joint && (failed & 2 || !common->locked_by[0] ||
                          (common->ms && common->ms < item->ttl_ms)))
        renew_tend(cc, item, deadline, err);
}

/* Check what is in the batch; the bits of `denied` say which items the token
 * may not read, in which case no other was checked. */
static hf_status renew_ask(struct consul_conn *cc, struct renew_batch *batch,
                           uint64_t *denied, int64_t deadline,
                           struct hf_error *err)
{
    struct consul_ops ops = {.len = 0};
    const struct consul_common *common = batch->common;
    size_t at[CONSUL_OPS_MAX] = {0}, n[CONSUL_OPS_MAX] = {0}, i, nops = 0;
    int64_t asked = hfi_now();
    struct consul_done done = {.ok = false};
    hf_status st;

    for (i = 0; i < batch->n; i++) {
        at[i] = nops;
        n[i] = renew_op(cc, &ops, batch->items[i], &common[i]);
        nops += n[i];
    }
    st = hfi_consul_txn(cc, &cc->renewals, &ops, false, deadline, &done, err);
    for (i = 0; i < batch->n; i++) {
        unsigned mask = (1u << n[i]) - 1;

        batch->items[i]->st = st;
        if (done.denied >> at[i] & mask)
            *denied |= UINT64_C(1) << i;
        if (st)
            continue;
        renew_sure(cc, batch->of[i], &common[i], asked, done.agent);
        renew_found(cc, batch->items[i], batch->of[i], &common[i],
                    (unsigned)(done.failed >> at[i]) & mask, deadline, err);
    }
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
        denied = 0;
        if (renew_ask(cc, batch, &denied, deadline, err) != HF_DENIED)
            break;
        for (i = batch->n = 0; i < n; i++)
            if (!(denied >> i & 1)) {
                batch->items[batch->n] = batch->items[i];
                batch->common[batch->n] = batch->common[i];
                batch->of[batch->n++] = batch->of[i];
            }
    } while (batch->n && batch->n < n);
    batch->n = batch->ops = 0;
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
    k = hfi_consul_renew_key(cc, name, item->claim);
    if (k)
        s = k->session;
    if (s && ((!s->base.dead && s->ttl_ms != item->ttl_ms) || k->moving))
        s = NULL;
    if (s)
        s->base.users++;
    pthread_mutex_unlock(&cc->mu);
    return s;
}

static bool renew_has(const struct renewal *r, const char *id)
{
    size_t i;

    for (i = 0; i < r->nsessions; i++)
        if (!strcmp(r->sessions[i]->id, id))
            return true;
    return false;
}

/* The session of this id, if it is one of ours, with a reference; else one that
 * is good for a renewal. */
static struct consul_session *renew_any(struct renewal *r,
                                        const struct consul_common *common)
{
    struct consul_session *s;

    pthread_mutex_lock(&r->cc->mu);
    s = hfi_consul_session_find(r->cc, common->locked_by);
    if (s)
        s->base.users++;
    pthread_mutex_unlock(&r->cc->mu);
    if (s)
        return s;
    s = &r->common[r->ncommon++];
    *s = (struct consul_session){.common = true, .ttl_ms = common->ms};
    hfi_link_init(&s->base.claims);
    memcpy(s->id, common->locked_by, sizeof(s->id));
    return s;
}

/* Add the common sessions of the items from this one on, whoever made them
 * (common.c (2)); the item to go on with. */
static size_t renew_add_common(struct renewal *r, size_t i)
{
    struct consul_common common;

    for (; i < r->n && r->ncommon < COMMON_MAX; i++) {
        common = hfi_consul_common_of(r->cc, r->items[i].claim);
        if (common.ms && common.locked_by[0] && !renew_has(r, common.locked_by))
            r->sessions[r->nsessions++] = renew_any(r, &common);
    }
    return i;
}

/* Is it one of those that are only there to be renewed? */
static bool renew_is_lent(const struct renewal *r,
                          const struct consul_session *s)
{
    size_t i;

    for (i = 0; i < r->ncommon; i++)
        if (s == &r->common[i])
            return true;
    return false;
}

static void renew_put_common(struct renewal *r, size_t from)
{
    for (; r->nsessions > from; r->nsessions--)
        if (!renew_is_lent(r, r->sessions[r->nsessions - 1]))
            hfi_consul_session_put(r->cc, r->sessions[r->nsessions - 1]);
    r->ncommon = 0;
}

/* Renew the sessions of all items, `own`, and the common sessions with them.  What
 * becomes of these, the check of the key tells. */
static void renew_all(struct renewal *r)
{
    size_t own = r->nsessions, next = renew_add_common(r, 0);

    hfi_consul_sessions_renew(r->cc, r->sessions, r->st, r->nsessions,
                              r->deadline, r->err);
    renew_put_common(r, own);
    while (next < r->n) {
        next = renew_add_common(r, next);
        hfi_consul_sessions_renew(r->cc, r->sessions + own, r->st + own,
                                  r->nsessions - own, r->deadline, r->err);
        renew_put_common(r, own);
    }
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
    renew_all(r);
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
        batch.common[batch.n] = hfi_consul_common_of(r->cc, r->items[i].claim);
        batch.ops += batch.common[batch.n].joint ? 2 : 1;
        batch.of[batch.n++] = r->of[i];
        if (batch.ops + 2 > CONSUL_OPS_MAX)
            renew_check(r->cc, &batch, r->deadline, r->err);
    }
    if (batch.n)
        renew_check(r->cc, &batch, r->deadline, r->err);
}

/* One that has no session as it should have it, or is renewed for a bearer. */
static void renew_alone(struct consul_conn *cc, struct hfi_renewal *item,
                        int64_t deadline, struct hf_error *err)
{
    bool joint = renew_inspect(cc, item, NULL, deadline, err);
    struct consul_common common;

    common = hfi_consul_common_of(cc, item->claim);
    if (common.joint ? common.ms < item->ttl_ms : item->claim->bearer && joint)
        renew_tend(cc, item, deadline, err);
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
            renew_alone(r->cc, &r->items[i], r->deadline, r->err);
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
        r.nsessions = r.ncommon = 0;
        r.deadline = deadline;
        r.err = err;
        renew_part(&r);
    }
}
