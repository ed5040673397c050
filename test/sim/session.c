/* SPDX-License-Identifier: MIT
 *
 * session.c - the backend of a service whose grants live on sessions.
 *
 * It stands on the backend/session.c that ships, as etcd, ZooKeeper and Consul
 * do, and speaks to the sessions of service.c over the network of net.c:
 *
 *   try      on a session that is proven for the whole ttl, or kept by the try
 *   renew    keep the session and read the grant; if it hangs on another
 *            session, if a move of it had no answer, or for a bearer: move it,
 *            if it is as it was read
 *   release  whatever bears the token; what a request without an answer may yet
 *            make goes with the session (backend.h, registered)
 *   sweep    read, and remove it if it hangs on a session of ours and is as it
 *            was read
 *
 * Sessions come in steps of half a lease and last a quarter longer than the
 * longest lease that they carry.
 */
#include "sim.h"

#include <stdio.h>
#include <string.h>

#include "backend/session.h"
#include "base/alloc.h"

#define AGAIN 4 /* how often one call finds another session or a change */

struct session_conn {
    struct sim_conn base;
    pthread_mutex_t mu;
    struct hfi_sessions sessions;
};

struct sim_session {
    struct hfi_session session;
    uint64_t id;
};

/* A claim that hangs on a session. */
struct session_claim {
    struct hfi_session_claim claim;
    int key;
    bool held;
    bool moving; /* a move had no answer */
};

static struct session_conn *conn_of(struct hfi_conn *conn)
{
    return (struct session_conn *)(void *)conn;
}

static struct sim_session *session_of(struct hfi_session *s)
{
    return (struct sim_session *)(void *)s;
}

/* What a grant remembers: the sessions that a try or a take-over, and that a
 * renewal, was last sent to. */
struct session_grant {
    uint64_t tried, renewed;
};

static struct session_grant *own_of(const struct hfi_receipt *receipt)
{
    return receipt->own;
}

/* ---- sessions ---------------------------------------------------------- */

static hf_status session_create(void *arg, struct hfi_session *s,
                                int64_t deadline, struct hf_error *err)
{
    struct session_conn *sc = arg;
    struct sim_call *call = sim_call_new(&sc->base.base, 1);
    int64_t sent = hfi_now(), ttl_ms = s->kind + s->kind / 4;
    struct hfi_proof proof = hfi_proof_plain(sent, ttl_ms);
    hf_status st;

    sim_call_fill(call, 0, SIM_CREATE, NULL);
    call->requests[0].ttl_ms = ttl_ms;
    st = sim_call_send(call, deadline);
    if (st)
        return hfi_fail(err, st, "sim: no session");
    pthread_mutex_lock(&sc->mu);
    session_of(s)->id = call->answers[0].session;
    s->ttl_ms = ttl_ms;
    hfi_session_proven(s, &proof, sent);
    pthread_mutex_unlock(&sc->mu);
    return HF_OK;
}

/* Its holder is told; who waits finds out by its next try. */
static void session_claim_lost(void *arg, struct hfi_session_claim *claim)
{
    struct session_claim *mine = (struct session_claim *)(void *)claim;
    struct session_conn *sc = arg;

    if (mine->held && !sc->base.proc->closing)
        hfi_gone(&sc->base.base, sim_key_name(mine->key), claim->token,
                 HF_LOSS_SESSION);
    hfi_free(mine);
}

/* What was detached must stay: a session that carried anything lapses. */
static void session_end(void *arg, struct hfi_session *s, int64_t deadline)
{
    struct session_conn *sc = arg;
    struct sim_call *call;

    if (!hfi_link_alone(&s->claims))
        return;
    call = sim_call_new(&sc->base.base, 1);
    sim_call_fill(call, 0, SIM_END, NULL);
    call->requests[0].session = session_of(s)->id;
    if (sim_call_send(call, deadline))
        sim_trace("session %d is not ended", (int)session_of(s)->id);
}

static const struct hfi_session_service session_service = {
    .size = sizeof(struct sim_session),
    .create = session_create,
    .claim_lost = session_claim_lost,
    .end = session_end,
};

static hf_status session_get(struct session_conn *sc, int64_t ttl_ms,
                             struct hfi_session **ret, int64_t deadline,
                             struct hf_error *err)
{
    int64_t step = sim.ttl_ms / 2 + 1;
    bool fresh;

    return hfi_session_get(&sc->sessions, (ttl_ms + step - 1) / step * step,
                           ret, &fresh, deadline, err);
}

static bool session_is_ours(struct session_conn *sc, uint64_t id)
{
    struct hfi_session *s = NULL;
    bool yes = false;

    pthread_mutex_lock(&sc->mu);
    while (!yes && (s = hfi_session_next(&sc->sessions, s)))
        yes = session_of(s)->id == id;
    pthread_mutex_unlock(&sc->mu);
    return yes;
}

/* The service does not know it any more. */
static void session_gone(struct session_conn *sc, uint64_t id)
{
    struct hfi_session *s = NULL;

    pthread_mutex_lock(&sc->mu);
    while ((s = hfi_session_next(&sc->sessions, s)) && session_of(s)->id != id)
        continue;
    if (s)
        s->users++;
    pthread_mutex_unlock(&sc->mu);
    if (!s)
        return;
    hfi_session_died(&sc->sessions, s);
    hfi_session_put(&sc->sessions, s);
}

/* ---- claims ------------------------------------------------------------ */

static void claim_note(struct session_conn *sc, struct hfi_session *s,
                       const struct hfi_claim *claim, bool held, bool moving)
{
    struct session_claim *mine;

    pthread_mutex_lock(&sc->mu);
    mine = (struct session_claim *)(void *)hfi_session_claim_find(&sc->sessions,
                                                                  claim->token);
    if (!mine && hfi_session_claim_reserve(&sc->sessions) &&
        (mine = hfi_alloc(sizeof(*mine)))) {
        mine->key = sim_key_of(claim->key);
        hfi_session_claim_add(&sc->sessions, &mine->claim, claim->token);
    }
    if (mine && s->dead) {
        hfi_session_claim_remove(&sc->sessions, &mine->claim);
        hfi_free(mine);
    } else if (mine) {
        mine->held = held;
        mine->moving = moving;
        hfi_session_claim_hang(&mine->claim, s);
    }
    pthread_mutex_unlock(&sc->mu);
}

static void claim_forget(struct session_conn *sc, const char *token)
{
    struct hfi_session_claim *claim;

    pthread_mutex_lock(&sc->mu);
    claim = hfi_session_claim_find(&sc->sessions, token);
    if (claim)
        hfi_session_claim_remove(&sc->sessions, claim);
    pthread_mutex_unlock(&sc->mu);
    hfi_free(claim);
}

static bool claim_is_moving(struct session_conn *sc, const char *token)
{
    struct session_claim *mine;
    bool yes;

    pthread_mutex_lock(&sc->mu);
    mine = (struct session_claim *)(void *)hfi_session_claim_find(&sc->sessions,
                                                                  token);
    yes = mine && mine->moving;
    pthread_mutex_unlock(&sc->mu);
    return yes;
}

/* One request about a claim, on a session; filled by the caller. */
static struct sim_call *claim_call(struct hfi_conn *conn, int what,
                                   const struct hfi_claim *claim,
                                   struct hfi_receipt *receipt,
                                   uint64_t session)
{
    struct sim_call *call = sim_call_new(conn, 1);

    sim_call_fill(call, 0, what, claim);
    call->requests[0].fence = receipt->fence;
    call->requests[0].session = session;
    return call;
}

/* ---- the vtable -------------------------------------------------------- */

static hf_status session_open(struct hfi_conn *conn, const struct hfi_url *url,
                              int64_t deadline, struct hf_error *err)
{
    struct session_conn *sc = conn_of(conn);

    pthread_mutex_init(&sc->mu, NULL);
    hfi_sessions_init(&sc->sessions, &session_service, sc, &sc->mu);
    return sim_net_open(conn, url, deadline, err);
}

static void session_close(struct hfi_conn *conn)
{
    struct session_conn *sc = conn_of(conn);

    hfi_sessions_close(&sc->sessions, hfi_now() + sim.timeout_ms);
    pthread_mutex_destroy(&sc->mu);
    sim_net_close(conn);
}

/* HF_LOST: its session is dead, begin anew. */
static hf_status try_once(struct session_conn *sc,
                          const struct hfi_claim *claim,
                          struct hfi_receipt *receipt,
                          struct hfi_answer *answer, struct hfi_session *s,
                          int64_t deadline)
{
    int64_t sent = hfi_now();
    struct hfi_proof proof = hfi_proof_plain(sent, s->ttl_ms);
    struct sim_call *call =
        claim_call(&sc->base.base, SIM_TRY, claim, receipt, session_of(s)->id);
    struct sim_request *rq = &call->requests[0];
    hf_status st;

    own_of(receipt)->tried = session_of(s)->id;
    pthread_mutex_lock(&sc->mu);
    rq->keep = !hfi_session_lasts(s, sent, claim->ttl_ms);
    pthread_mutex_unlock(&sc->mu);
    claim_note(sc, s, claim, false, false);
    st = sim_call_send(call, deadline);
    if (st) {
        if (st == HF_UNAVAILABLE && !receipt->registered && !claim->doubt)
            claim_forget(sc, claim->token);
        return st;
    }
    st = call->answers[0].st;
    if (call->answers[0].dead) {
        hfi_session_died(&sc->sessions, s);
        return HF_LOST;
    }
    pthread_mutex_lock(&sc->mu);
    if (rq->keep)
        hfi_session_proven(s, &proof, sent);
    pthread_mutex_unlock(&sc->mu);
    receipt->registered = receipt->registered || call->answers[0].registered;
    answer->position = call->answers[0].busy.position;
    if (st == HF_OK) {
        receipt->fence = call->answers[0].fence;
        claim_note(sc, s, claim, true, false);
        if (!session_is_ours(sc, session_of(s)->id))
            return HF_LOST; /* It died meanwhile. */
    } else if (!receipt->registered && !claim->doubt) {
        claim_forget(sc, claim->token);
    }
    answer->proof.since = sent;
    return st;
}

static hf_status session_try_acquire(struct hfi_conn *conn,
                                     const struct hfi_claim *claim,
                                     struct hfi_receipt *receipt,
                                     struct hfi_answer *answer,
                                     int64_t deadline, struct hf_error *err)
{
    struct session_conn *sc = conn_of(conn);
    struct hfi_session *s;
    hf_status st = HF_LOST;
    int i;

    sim_claim_begin(claim);
    for (i = 0; i < AGAIN && st == HF_LOST; i++) {
        st = session_get(sc, claim->ttl_ms, &s, deadline, err);
        if (st)
            break;
        st = try_once(sc, claim, receipt, answer, s, deadline);
        hfi_session_put(&sc->sessions, s);
    }
    sim_claim_end(claim);
    if (st == HF_LOST)
        st = HF_UNAVAILABLE;
    sim_trace("try %s %.6s: %s", claim->key, claim->token, hf_status_name(st));
    return st ? hfi_fail(err, st, "sim: %s", hf_status_name(st)) : HF_OK;
}

/* Put it on the session, as it was read.  HF_BUSY: look again. */
static hf_status renew_move(struct session_conn *sc, struct hfi_renewal *item,
                            struct hfi_session *s, uint64_t version,
                            int64_t deadline)
{
    struct sim_call *call = claim_call(&sc->base.base, SIM_MOVE, item->claim,
                                       item->receipt, session_of(s)->id);
    hf_status st;

    call->requests[0].version = version;
    own_of(item->receipt)->renewed = session_of(s)->id;
    st = sim_call_send(call, deadline);
    if (st) {
        if (st == HF_UNCERTAIN)
            hfi_session_doubt(&sc->sessions, s);
        claim_note(sc, s, item->claim, true, true);
        return st;
    }
    if (call->answers[0].dead) {
        hfi_session_died(&sc->sessions, s);
        return HF_BUSY;
    }
    return call->answers[0].st;
}

/* HF_BUSY: look again. */
static hf_status renew_once(struct session_conn *sc, struct hfi_renewal *item,
                            struct hfi_session *s, int64_t deadline)
{
    int64_t sent = hfi_now();
    struct hfi_proof proof = hfi_proof_plain(sent, s->ttl_ms);
    struct sim_call *call = claim_call(&sc->base.base, SIM_READ, item->claim,
                                       item->receipt, session_of(s)->id);
    const struct sim_answer *answer;
    hf_status st;

    call->requests[0].keep = true;
    st = sim_call_send(call, deadline);
    if (st)
        return st == HF_UNCERTAIN ? HF_UNAVAILABLE : st;
    answer = call->answers;
    if (answer->dead) {
        hfi_session_died(&sc->sessions, s);
        return HF_BUSY;
    }
    pthread_mutex_lock(&sc->mu);
    hfi_session_proven(s, &proof, sent);
    pthread_mutex_unlock(&sc->mu);
    item->reason = answer->reason;
    st = answer->st;
    if (!st && (answer->session != session_of(s)->id || item->claim->bearer ||
                claim_is_moving(sc, item->claim->token)))
        st = renew_move(sc, item, s, answer->version, deadline);
    if (!st) {
        item->proof = hfi_proof_plain(sent, item->ttl_ms);
        claim_note(sc, s, item->claim, !item->claim->bearer, false);
        if (!session_is_ours(sc, session_of(s)->id))
            return HF_BUSY;
    }
    return st;
}

static void session_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                          size_t n, int64_t deadline, struct hf_error *err)
{
    struct session_conn *sc = conn_of(conn);
    struct hfi_session *s;
    size_t i;
    int j;

    for (i = 0; i < n; i++) {
        sim_claim_begin(items[i].claim);
        items[i].st = HF_BUSY;
        for (j = 0; j < AGAIN && items[i].st == HF_BUSY; j++) {
            items[i].st = session_get(sc, items[i].ttl_ms, &s, deadline, err);
            if (items[i].st)
                break;
            items[i].st = renew_once(sc, &items[i], s, deadline);
            hfi_session_put(&sc->sessions, s);
        }
        if (items[i].st == HF_BUSY)
            items[i].st = HF_UNAVAILABLE;
        if (items[i].st == HF_LOST)
            claim_forget(sc, items[i].claim->token);
        sim_claim_end(items[i].claim);
        sim_trace("renew %s %.6s: %s", items[i].claim->key,
                  items[i].claim->token, hf_status_name(items[i].st));
        if (items[i].st)
            hfi_fail(err, items[i].st, "sim: %s", hf_status_name(items[i].st));
    }
}

/* The session to name, of those that something of the claim may yet appear on:
 * one after the other is found to be dead. */
static uint64_t claim_session(struct session_conn *sc,
                              const struct hfi_receipt *receipt)
{
    const struct session_grant *own = own_of(receipt);

    return session_is_ours(sc, own->tried) ? own->tried : own->renewed;
}

/* The service has answered about that session: may something of the claim yet
 * appear? */
static void claim_answered(struct session_conn *sc,
                           const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, uint64_t session,
                           bool dead)
{
    if (dead)
        session_gone(sc, session);
    receipt->registered =
        claim->doubt && session_is_ours(sc, claim_session(sc, receipt));
    if (!receipt->registered)
        claim_forget(sc, claim->token);
}

static hf_status session_release(struct hfi_conn *conn,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt, int64_t deadline,
                                 struct hf_error *err)
{
    uint64_t session = claim_session(conn_of(conn), receipt);
    struct sim_call *call =
        claim_call(conn, SIM_RELEASE, claim, receipt, session);
    hf_status st;

    sim_claim_begin(claim);
    st = sim_call_send(call, deadline);
    sim_claim_end(claim);
    if (!st) {
        st = call->answers[0].st;
        claim_answered(conn_of(conn), claim, receipt, session,
                       call->answers[0].dead);
    }
    sim_trace("release %s %.6s: %s", claim->key, claim->token,
              hf_status_name(st));
    return st ? hfi_fail(err, st, "sim: %s", hf_status_name(st)) : HF_OK;
}

static hf_status sweep_send(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            struct hfi_receipt *receipt, int64_t deadline)
{
    struct session_conn *sc = conn_of(conn);
    uint64_t session = claim_session(sc, receipt);
    struct sim_call *call = claim_call(conn, SIM_READ, claim, receipt, session);
    struct sim_answer read;
    hf_status st = sim_call_send(call, deadline);

    if (st)
        return st == HF_UNCERTAIN ? HF_UNAVAILABLE : st;
    read = call->answers[0];
    if (!read.st && session_is_ours(sc, read.session)) {
        call = claim_call(conn, SIM_SWEEP, claim, receipt, read.session);
        call->requests[0].version = read.version;
        st = sim_call_send(call, deadline);
        if (!st)
            st = call->answers[0].st;
        if (st)
            return st == HF_BUSY ? HF_UNAVAILABLE : st;
    } else {
        st = HF_LOST;
    }
    claim_answered(sc, claim, receipt, session, read.dead);
    return st;
}

static hf_status session_sweep(struct hfi_conn *conn,
                               const struct hfi_claim *claim,
                               struct hfi_receipt *receipt, int64_t deadline,
                               struct hf_error *err)
{
    hf_status st;

    sim_claim_begin(claim);
    st = sweep_send(conn, claim, receipt, deadline);
    sim_claim_end(claim);
    sim_trace("sweep %s %.6s: %s", claim->key, claim->token,
              hf_status_name(st));
    return st ? hfi_fail(err, st, "sim: %s", hf_status_name(st)) : HF_OK;
}

static hf_status session_attach(struct hfi_conn *conn,
                                const struct hfi_claim *claim,
                                const struct hf_handle *handle,
                                struct hfi_receipt *receipt,
                                struct hf_error *err)
{
    (void)conn;
    (void)claim;
    (void)err;
    receipt->fence = handle->fence;
    return HF_OK;
}

static hf_status take_over_once(struct session_conn *sc,
                                const struct hfi_claim *claim,
                                const char *token, struct hfi_receipt *receipt,
                                struct hfi_session *s, int64_t deadline)
{
    struct sim_call *call =
        claim_call(&sc->base.base, SIM_TAKE, claim, receipt, session_of(s)->id);
    hf_status st;

    memcpy(call->requests[0].old, token, sizeof(call->requests[0].old));
    call->requests[0].keep = true;
    own_of(receipt)->tried = session_of(s)->id;
    claim_note(sc, s, claim, true, false);
    st = sim_call_send(call, deadline);
    if (st)
        return st;
    if (call->answers[0].dead) {
        hfi_session_died(&sc->sessions, s);
        return HF_BUSY;
    }
    return call->answers[0].st;
}

static hf_status session_take_over(struct hfi_conn *conn,
                                   const struct hfi_claim *claim,
                                   const char *token,
                                   struct hfi_receipt *receipt,
                                   int64_t deadline, struct hf_error *err)
{
    struct session_conn *sc = conn_of(conn);
    struct hfi_session *s;
    hf_status st = session_get(sc, claim->ttl_ms, &s, deadline, err);

    if (st)
        return st;
    sim_claim_begin(claim);
    st = take_over_once(sc, claim, token, receipt, s, deadline);
    sim_claim_end(claim);
    hfi_session_put(&sc->sessions, s);
    if (st == HF_LOST)
        claim_forget(sc, claim->token);
    if (!st)
        claim_forget(sc, token);
    sim_trace("take over %s %.6s from %.6s: %s", claim->key, claim->token,
              token, hf_status_name(st));
    if (st == HF_BUSY)
        st = HF_UNAVAILABLE;
    return st ? hfi_fail(err, st, "sim: %s", hf_status_name(st)) : HF_OK;
}

static const char *const session_schemes[] = {"sim", NULL};

struct hfi_backend sim_session_backend = {
    .schemes = session_schemes,
    .conn_size = sizeof(struct session_conn),
    .grant_size = sizeof(struct session_grant),
    .open = session_open,
    .close = session_close,
    .try_acquire = session_try_acquire,
    .renew = session_renew,
    .release = session_release,
    .sweep = session_sweep,
    .unwatch = sim_net_unwatch,
    .attach = session_attach,
    .take_over = session_take_over,
};
