/* SPDX-License-Identifier: MIT
 *
 * consul.c - locks on Consul: sessions, the key-value store, blocking queries.
 *
 * ON THE WIRE  The lock K is the entry K of the store (K/.lock with layout=cli,
 *   as `consul lock K` has it), locked by a session.  Each step is one
 *   transaction that happens whole or not at all:
 *
 *   create    there is no K                         set K
 *   acquire   K unchanged since we saw it free      lock K
 *   release   K unchanged since we locked it        unlock K
 *   move      K unchanged, for another ttl, or      unlock K, lock K
 *             to take up or renew what was detached
 *   renew     PUT session/renew once per session, and a read-only transaction
 *             that checks up to 64 keys at a time
 *
 * INVARIANTS
 *  (1) A claim owns the lock if and only if the entry is locked and its value
 *      names the claim's token.  Its fence tells two grants to one token apart.
 *  (2) Every write is conditional on the entry's ModifyIndex, so a request that
 *      comes late, after its answer was given up for lost, changes nothing.
 *      Nothing that is not a lock is ever overwritten.  "There is no entry" is
 *      no such condition: it is true again once somebody deletes the entry.  So
 *      a lock is never taken on it: the entry is made first, without a lock.
 *  (3) The fence is the ModifyIndex of the grant, an index of the Raft log: it
 *      rises over everything, also over a deletion of the entry, which resets
 *      its LockIndex.  We never delete an entry.
 *  (4) A lock whose lease is over is not kept by the session that other locks
 *      keep alive: before a session is renewed, what has lapsed is unlocked.
 *
 * SESSION  The service's clock ends it, after up to twice the ttl (see
 *   session.c).  So a dead holder's lock passes on after at most twice
 *   its ttl and the lock-delay.  The holder's own end comes after one ttl.
 *
 * LIMITS  What a leader that was deposed without noticing answers to a renewal
 *   is not believed if agents are servers: session.c (4).  An agent that is
 *   none chooses a server for each request.  A restored snapshot takes grants
 *   back and brings old ones again; the index of the next grant is beyond all
 *   of them, unless the cluster is new.
 */
#include "consul.h"

#include "base/lease.h"

#include "base/banned.h"

/* Between tries of a key that is free but under a lock-delay. */
#define DELAY_MS 250

/* ---- open and close ----------------------------------------------------- */

static void consul_describe(struct consul_conn *cc, const struct hfi_url *url)
{
    const struct consul_conf *conf = &cc->conf;
    const char *at = strstr(conf->agents[0], "://");
    size_t len, i;

    if (conf->socket) {
        snprintf(cc->base.endpoint, sizeof(cc->base.endpoint), "%s://%s",
                 url->scheme, conf->socket);
    } else {
        len = (size_t)snprintf(cc->base.endpoint, sizeof(cc->base.endpoint),
                               "%s%s", url->scheme, at);
        for (i = 1; i < conf->nagents && len < sizeof(cc->base.endpoint); i++)
            len += (size_t)snprintf(cc->base.endpoint + len,
                                    sizeof(cc->base.endpoint) - len, ",%s",
                                    strstr(conf->agents[i], "://") + 3);
    }
}

/* Is there a leader?  This also finds a wrong address. */
static hf_status consul_greet(struct consul_conn *cc, int64_t deadline,
                              struct hf_error *err)
{
    struct consul_request rq = {.method = "GET", .path = "/v1/status/leader"};
    struct consul_reply reply;
    hf_status st = hfi_consul_call(cc, &cc->calls, &rq, deadline, &reply, err);

    if (st)
        return st;
    if (reply.status != 200 || !reply.data || reply.data[0] != '"')
        st = hfi_fail(err, HF_PROTOCOL, "%s: that is not Consul",
                      cc->base.endpoint);
    hfi_consul_reply_fini(&reply);
    return st;
}

static hf_status consul_open(struct hfi_conn *conn, const struct hfi_url *url,
                             int64_t deadline, struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    hf_status st;

    cc->timeout_ms = hfi_left_ms(deadline);
    pthread_mutex_init(&cc->mu, NULL);
    hfi_cond_init(&cc->turn);
    hfi_link_init(&cc->sessions);
    hfi_link_init(&cc->idle);
    hfi_link_init(&cc->calls.idle);
    hfi_link_init(&cc->renewals.idle);
    atomic_init(&cc->fresh, true);
    cc->ready = true;
    cc->hub.epoll_fd = cc->hub.event_fd = cc->hub.timer_fd = -1;
    if (!hfi_consul_global_init())
        return hfi_fail(err, HF_SYSTEM, "consul: libcurl does not start");
    st = hfi_consul_conf_init(&cc->conf, url, err);
    if (st)
        return st;
    consul_describe(cc, url);
    hfi_consul_conf_warn(&cc->conf, conn->warning, sizeof(conn->warning));
    if (cc->conf.fair)
        conn->traits |= HF_TRAIT_QUEUED;
    st = hfi_consul_hub_init(cc, err);
    return st ? st : consul_greet(cc, deadline, err);
}

static void consul_close(struct hfi_conn *conn)
{
    struct consul_conn *cc = (struct consul_conn *)conn;

    if (!cc->ready)
        return;
    hfi_consul_fd_closing(cc);
    hfi_consul_hub_fini(cc);
    hfi_consul_sessions_end(cc);
    hfi_consul_keys_fini(cc);
    hfi_consul_queue_fini(cc);
    hfi_consul_pool_fini(&cc->calls);
    hfi_consul_pool_fini(&cc->renewals);
    hfi_consul_conf_fini(&cc->conf);
    hfi_cond_fini(&cc->turn);
    pthread_mutex_destroy(&cc->mu);
    cc->ready = false;
}

/* In a forked child. */
static void consul_forget(struct hfi_conn *conn)
{
    hfi_consul_fd_forget((struct consul_conn *)conn);
}

/* ---- acquire ------------------------------------------------------------ */

/* One acquisition under way. */
struct consul_try {
    struct consul_conn *cc;
    const struct hfi_claim *claim;
    struct hfi_receipt *receipt;
    struct hfi_answer *busy;
    struct consul_session *s;
    struct consul_key *k;
    int64_t began, deadline;
    char place[CONSUL_NAME_MAX]; /* in the queue, or "" */
    struct hf_error *err;
};

static hf_status try_granted(struct consul_try *t, uint64_t fence)
{
    hfi_consul_key_held(t->cc, t->k, t->claim->token, t->s, fence,
                        t->began + t->claim->ttl_ms);
    t->receipt->fence = fence;
    t->receipt->placed = true;
    memcpy(t->receipt->ref.text, t->s->id, sizeof(t->s->id));
    hfi_consul_monitor(t->cc, t->k, t->claim->token);
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
    hfi_consul_op(&ops, "cas", t->k->name, NULL, value, kv->index);
    hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done, NULL);
}

/* Is it locked by a session of ours, for no claim of ours?  A restored snapshot
 * can bring back what was released, and who but us could let go of it? */
static bool try_is_ghost(struct consul_try *t, const struct consul_kv *kv)
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
    return hfi_consul_unlock_at(t->cc, t->k, kv->session, kv->index,
                                hfi_consul_fence(kv), t->deadline, t->err)
               ? HF_BUSY
               : HF_LOST;
}

/* What the entry, just read, means to this try: HF_OK: it is ours already;
 * HF_BUSY; or HF_LOST, which here means that nobody has it. */
static hf_status try_judge(struct consul_try *t, struct consul_kv *kv)
{
    struct consul_key *k = t->k;
    bool mine = !strcmp(k->holder, t->claim->token);

    if (kv->session[0]) {
        if (mine && !strcmp(kv->session, k->session->id) &&
            !strcmp(kv->token, t->claim->token)) {
            if (kv->broken) /* No answer told of it: nobody is at work. */
                return try_free(t, kv);
            k->index = kv->index;
            return HF_OK;
        }
        if (!mine && hfi_consul_key_rebind(t->cc, k, kv)) {
            try_ask_for(t, kv);
            return HF_BUSY;
        }
        if (k->holder[0] && !(k->maybe && kv->index == k->guard) &&
            (mine || strcmp(kv->session, k->session->id) != 0))
            hfi_consul_key_settle(t->cc, k, kv);
        if (try_is_ghost(t, kv))
            return try_free(t, kv);
        try_ask_for(t, kv);
        return HF_BUSY;
    }
    if (kv->foreign)
        return hfi_fail(t->err, HF_PROTOCOL,
                        "%s: there is something at this key that is no lock",
                        t->cc->base.endpoint);
    if (!mine && k->holder[0] && k->maybe && kv->index == k->guard)
        return HF_BUSY; /* Its try may still come: nothing has barred it. */
    atomic_store(&t->cc->fresh, !kv->exists);
    if (!mine)
        hfi_consul_key_free(t->cc, k, CONSUL_FREE, kv->index);
    k->index = kv->index;
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

    hfi_consul_guard(&ops, k->name, 0);
    hfi_consul_op(&ops, "set", k->name, NULL, "", 0);
    st = hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done,
                        t->err);
    if (!st && done.ok && done.index) {
        k->index = done.index;
        return HF_OK;
    }
    k->seen = CONSUL_UNKNOWN;
    if (st == HF_UNCERTAIN)
        return hfi_fail(t->err, HF_UNAVAILABLE,
                        "%s: no answer, and nothing was locked",
                        t->cc->base.endpoint);
    if (st)
        return st;
    atomic_store(&t->cc->fresh, false);
    return HF_LOST;
}

/* Write the grant, if the key is as we saw it.  HF_LOST: it was not. */
static hf_status try_lock(struct consul_try *t)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_key *k = t->k;
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;

    hfi_consul_value(value, t->claim, 0);
    hfi_consul_guard(&ops, k->name, k->index);
    if (t->place[0])
        hfi_consul_op(&ops, "delete", t->place, NULL, NULL, 0);
    hfi_consul_op(&ops, "lock", k->name, t->s->id, value, 0);
    k->guard = k->index;
    st = hfi_consul_txn(t->cc, &t->cc->calls, &ops, true, t->deadline, &done,
                        t->err);
    if (!st && done.ok && !done.index)
        st = hfi_fail(t->err, HF_PROTOCOL, "%s: a grant without an index",
                      t->cc->base.endpoint);
    if (st == HF_UNCERTAIN || st == HF_PROTOCOL) {
        hfi_consul_key_maybe(t->cc, k, t->claim->token, t->s);
        t->receipt->placed = true;
    }
    if (st)
        return st;
    if (done.ok) {
        k->index = done.index;
        if (t->place[0])
            hfi_consul_queue_left(t->cc, t->claim->key, t->claim->token, true);
        return try_granted(t, done.index);
    }
    if (done.bad_session)
        hfi_consul_session_dead(t->cc, t->s);
    k->seen = CONSUL_UNKNOWN;
    if (done.delayed)
        t->busy->left_ms = DELAY_MS;
    return done.delayed ? HF_BUSY : HF_LOST;
}

/* Another session, where the service has forgotten the one we had. */
static hf_status try_session(struct consul_try *t)
{
    struct consul_session *old = t->s;
    hf_status st;

    if (old && !old->dead)
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
static bool try_must_look(const struct consul_try *t)
{
    return t->k->holder[0] || t->k->seen == CONSUL_UNKNOWN ||
           (t->place[0] && !t->k->index);
}

static hf_status try_key(struct consul_try *t)
{
    struct consul_kv kv;
    hf_status st = HF_LOST;
    int i;

    for (i = 0; st == HF_LOST && i < CONSUL_ROUNDS; i++) {
        st = try_session(t);
        if (!st && try_must_look(t)) {
            /* What may be ours is asked of a leader that is one. */
            st = hfi_consul_read(t->cc, &t->cc->calls, t->k->name,
                                 t->k->holder[0], t->deadline, &kv, t->err);
            if (!st)
                st = try_judge(t, &kv);
            if (!st)
                return try_granted(t, hfi_consul_fence(&kv));
            if (st == HF_LOST)
                st = HF_OK;
        }
        if (!st && !t->k->index)
            st = try_create(t);
        if (!st)
            st = try_lock(t);
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

    pthread_mutex_lock(&cc->mu);
    if (hfi_consul_name(&cc->conf, claim->key, name))
        node = hfi_map_find(&cc->keys, name);
    may = node && !strcmp(hfi_container(node, struct consul_key, node)->holder,
                          claim->token);
    pthread_mutex_unlock(&cc->mu);
    return may;
}

static hf_status consul_try_acquire(struct hfi_conn *conn,
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
                           .began = hfi_now(),
                           .deadline = deadline,
                           .err = err};
    bool again = cc->conf.fair && try_may_hold(cc, claim), stands = false;
    hf_status st = HF_OK;

    if (cc->conf.fair && !again)
        st = hfi_consul_queue_turn(cc, claim, receipt, busy, deadline, t.place,
                                   &stands, err);
    if (!st) {
        st = hfi_consul_key_enter(cc, claim->key, deadline, &t.k, err);
        if (st == HF_UNAVAILABLE)
            return HF_BUSY; /* with another claim of this client */
    }
    if (!st) {
        st = try_session(&t);
        if (!st)
            st = try_key(&t);
        hfi_consul_key_leave(cc, t.k);
    }
    if (t.s)
        hfi_consul_session_put(cc, t.s);
    if (st == HF_OK && (again || (cc->conf.fair &&
                                  hfi_consul_queue_in_doubt(cc, claim->token))))
        hfi_consul_queue_leave(cc, claim, deadline, NULL);
    if (st == HF_BUSY && cc->conf.fair && claim->queue && !stands)
        st = hfi_consul_queue_join(cc, claim, receipt, busy, deadline, err);
    return st;
}

/* ---- waiting ------------------------------------------------------------ */

static hf_status consul_watch(struct hfi_conn *conn,
                              const struct hfi_claim *claim,
                              struct hfi_receipt *receipt, int64_t deadline,
                              struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    char name[CONSUL_NAME_MAX];

    (void)deadline;
    /* In a queue, `ref` is the token of the place before ours. */
    if (cc->conf.fair && !receipt->fence && receipt->ref.text[0]) {
        if (!hfi_consul_queue_place(&cc->conf, claim->key, receipt->ref.text,
                                    name))
            return HF_INVALID;
    } else if (!hfi_consul_name(&cc->conf, claim->key, name)) {
        return HF_INVALID;
    }
    return hfi_consul_wait(cc, claim->key, name, claim->token, err);
}

static void consul_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt)
{
    (void)receipt;
    hfi_consul_unwait((struct consul_conn *)conn, claim->token);
}

static const char *const consul_schemes[] = {"consul", "consuls", "consul+unix",
                                             NULL};

const struct hfi_backend hfi_backend_consul = {
    .schemes = consul_schemes,
    .options = hfi_consul_options,
    .conn_size = sizeof(struct consul_conn),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_NOTIFY |
              HF_TRAIT_DETACH | HF_TRAIT_BREAK | HF_TRAIT_PROCESSES |
              HF_TRAIT_MACHINES | HF_TRAIT_TWICE | HF_TRAIT_NOTED |
              HFI_TRAIT_BOUND,
    .open = consul_open,
    .close = consul_close,
    .after_fork_child = consul_forget,
    .try_acquire = consul_try_acquire,
    .renew = hfi_consul_renew,
    .release = hfi_consul_release,
    .watch = consul_watch,
    .unwatch = consul_unwatch,
    .poll_fd = hfi_consul_poll_fd,
    .dispatch = hfi_consul_dispatch,
    .attach = hfi_consul_attach,
    .take_over = hfi_consul_take_over,
    .inspect = hfi_consul_inspect,
    .list = hfi_consul_list,
    .break_grant = hfi_consul_break,
    .free_grant = hfi_consul_free,
};
