/* SPDX-License-Identifier: MIT
 *
 * session.c - a session of Consul: making it, what proves it, ending it.
 *
 * A session carries every lock of one ttl and is renewed once for all of them.
 * Finding, sharing and dropping them is backend/session.c.  The keys that a
 * session holds stay a list of its own: a key is used by one call at a time
 * (key.c), and that call learns of the end of the session from the entry, so
 * nobody may take the key off its session meanwhile.
 *
 * The leader ends it no earlier than twice its ttl after the last renewal, as
 * every release of Consul has done since sessions have a ttl; a new leader
 * gives it twice its ttl again.  But a renewal is not written to the log, so a
 * leader that was deposed while it was stopped may answer one, from its memory,
 * in the moment in which it wakes up.  Hence (4).
 *
 * INVARIANTS
 *  (1) A session always has a ttl, so whatever we fail to clean up goes away.
 *  (2) A session that the service does not know is dead for good: what it held
 *      is lost, and the next who needs one gets a new one.  Only a consistent
 *      read, or a transaction that was refused because of it, says so.  The
 *      404 of a renewal does not: a load balancer may have made it, or a new
 *      leader that has not applied its whole log yet.
 *  (3) A session is destroyed only if nothing hangs on it that was detached, or
 *      may: while a move was not answered the lock may be in either session.
 *  (4) A session lasts for twice its ttl, whoever answered a renewal, but not
 *      from when that was sent: from `sure`, when the
 *      last request was sent before it that only a true leader can serve, a
 *      write or a consistent read, and that was served by way of the same
 *      agent. A leader that answered the renewal and was not one any more has
 *      been deposed after that, and its successor began to count later still.
 *  (5) What is taken or renewed relies on a session for one ttl.  So `sure` is
 *      at most three quarters of a ttl old then, which leaves a quarter more
 *      than backend/backend.h (4) asks for.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

/* What a session is asked for by: its ttl, whether it is for the queue, or for
 * keys that several hold (common.c), and, if it carries one permit only, a number
 * that no other has. */
#define SESSION_KIND(ttl_ms, queue) ((ttl_ms)*4 + (queue))
#define SESSION_COMMON(ttl_ms)      ((ttl_ms)*4 + 2)
#define SESSION_PERMIT(kind, n)                                                \
    ((kind) + ((int64_t)((n)&0xffffff) + 1) * PERMIT)
#define SESSION_TTL(kind)       ((kind) % PERMIT / 4)
#define SESSION_IS_QUEUE(kind)  ((kind) % 2 != 0)
#define SESSION_IS_COMMON(kind) ((kind) % 4 == 2)
#define SESSION_IS_PERMIT(kind) ((kind) >= PERMIT)
#define PERMIT                  (INT64_C(1) << 38) /* > 4 * HFI_TTL_MAX */

static struct consul_session *session_of(struct hfi_session *s)
{
    return (struct consul_session *)s;
}

/* With the mutex held: the living session with this id, or NULL. */
struct consul_session *hfi_consul_session_find(struct consul_conn *cc,
                                               const char *id)
{
    struct hfi_session *s = NULL;

    while ((s = hfi_session_next(&cc->sessions, s)))
        if (!strcmp(session_of(s)->id, id))
            return session_of(s);
    return NULL;
}

static char *session_body(const struct consul_conn *cc,
                          const struct consul_session *s)
{
    char ttl[32], delay[32], *checks = hfi_strdup(cc->options.checks), *name,
                             *rest;
    json_t *list = json_array(), *body;
    char *text = NULL;

    snprintf(ttl, sizeof(ttl), "%lldms", (long long)s->ttl_ms);
    snprintf(
        delay, sizeof(delay), "%lldms",
        (long long)(s->queue || s->common ? 0 : cc->options.lock_delay_ms));
    for (name = checks; name && *name; name = rest) {
        rest = name + strcspn(name, ",");
        if (*rest)
            *rest++ = '\0';
        json_array_append_new(list, json_string(name));
    }
    body = json_pack("{s:s,s:s,s:s,s:s,s:O,s:O}", "Name",
                     s->queue    ? "holdfast queue"
                     : s->common ? "holdfast common"
                     : s->handle ? CONSUL_HANDLE_NAME
                                 : "holdfast",
                     "TTL", ttl, "LockDelay", delay, "Behavior",
                     s->queue || s->permit ? "delete" : "release", "NodeChecks",
                     list, "Checks", list);
    if (checks && body)
        text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    json_decref(list);
    hfi_free(checks);
    return text;
}

/* A leader, reached by way of `agent`, has served a request that was sent at
 * `at`; with the mutex held if others use the session. */
static void session_note(struct consul_session *s, int64_t at, size_t agent)
{
    if (at >= s->sure) {
        s->sure = at;
        s->agent = agent;
    }
}

/* An agent in development mode indents what it writes, and it alone. */
static void session_doubt(struct consul_conn *cc,
                          const struct consul_reply *reply)
{
    if (strstr(reply->data, "\n ") && !atomic_exchange(&cc->doubted, true))
        hfi_warn(&cc->base,
                 "the agent seems to run in development mode (-dev), in memory "
                 "only: when it restarts all locks are free and fences begin "
                 "again");
}

/* Make the session that `s` is to be.  An answer that did not come may have
 * left one, which lapses by itself; nobody will use it. */
hf_status hfi_consul_session_create(struct consul_conn *cc,
                                    struct consul_session *s, int64_t deadline,
                                    struct hf_error *err)
{
    struct consul_request rq = {
        .method = "PUT", .path = "/v1/session/create", .write = true};
    struct consul_reply reply;
    const char *id;
    char *body = session_body(cc, s);
    int64_t sent = hfi_now();
    hf_status st;

    if (!body)
        return hfi_nomem(err);
    rq.body = body;
    st = hfi_consul_call(cc, &cc->calls, &rq, deadline, &reply, err);
    free(body);
    if (st)
        return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
    hfi_consul_reply_parse(&reply);
    id = json_string_value(json_object_get(reply.json, "ID"));
    if (id && hfi_consul_is_id(id)) {
        memcpy(s->id, id, sizeof(s->id));
        session_note(s, sent, reply.agent);
        session_doubt(cc, &reply);
    } else {
        st = hfi_fail(err, HF_PROTOCOL, "%s: a session without an id",
                      cc->base.endpoint);
    }
    hfi_consul_reply_fini(&reply);
    return st;
}

/* A renewal that was sent at `sent` proves that it lasts, with the mutex held:
 * session.c (4). */
bool hfi_consul_session_proven(struct consul_session *s, int64_t sent)
{
    struct hfi_proof proof = hfi_proof_plain(s->sure, 2 * s->ttl_ms);

    s->base.ttl_ms = proof.ms;
    return hfi_session_proven(&s->base, &proof, sent);
}

/* A consistent read or a write that was sent at `at` was served. */
void hfi_consul_session_sure(struct consul_conn *cc, struct consul_session *s,
                             int64_t at, size_t agent)
{
    pthread_mutex_lock(&cc->mu);
    session_note(s, at, agent);
    pthread_mutex_unlock(&cc->mu);
}

/* Destroy it, also if it is dead: after HF_OK nothing that names it has an effect
 * any more. */
hf_status hfi_consul_session_bar(struct consul_conn *cc, const char *id,
                                 int64_t deadline, struct hf_error *err)
{
    char path[64 + CONSUL_ID_LEN];
    struct consul_request rq = {.method = "PUT", .path = path, .write = true};
    struct consul_reply reply;
    hf_status st;

    snprintf(path, sizeof(path), "/v1/session/destroy/%s", id);
    st = hfi_consul_call(cc, &cc->calls, &rq, deadline, &reply, err);
    if (st)
        return st;
    if (reply.status != 200)
        st = hfi_fail(err, HF_PROTOCOL, "%s: an answer without a meaning",
                      cc->base.endpoint);
    hfi_consul_reply_fini(&reply);
    return st;
}

/* If that fails, it lapses. */
void hfi_consul_session_destroy(struct consul_conn *cc, const char *id,
                                int64_t deadline)
{
    hfi_consul_session_bar(cc, id, deadline, NULL);
}

/* With the mutex held: have the session to oneself, or HF_UNAVAILABLE. */
hf_status hfi_consul_session_claim(struct consul_conn *cc,
                                   struct consul_session *s, int64_t deadline,
                                   struct hf_error *err)
{
    while (s->busy && hfi_left_ms(deadline))
        hfi_cond_wait(&cc->turn, &cc->mu, deadline);
    if (s->busy)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: an earlier request of this client still "
                        "waits for its answer",
                        cc->base.endpoint);
    s->busy = true;
    return HF_OK;
}

void hfi_consul_session_yield(struct consul_conn *cc, struct consul_session *s)
{
    s->busy = false;
    hfi_cond_wake(&cc->turn);
}

/* The service says that it does not know the session.  session.c (2) */
void hfi_consul_session_dead(struct consul_conn *cc, struct consul_session *s)
{
    hfi_session_died(&cc->sessions, &s->base);
}

/* Prove it, unless that was done shortly before.  session.c (5) */
static hf_status session_freshen(struct consul_conn *cc,
                                 struct consul_session *s, int64_t deadline,
                                 struct hf_error *err)
{
    bool lasts = false;
    hf_status st;

    pthread_mutex_lock(&cc->mu);
    st = hfi_consul_session_claim(cc, s, deadline, err);
    if (!st) {
        lasts = hfi_session_lasts(&s->base, hfi_now(),
                                  2 * s->ttl_ms - CONSUL_FRESH(s->ttl_ms));
        st = s->base.dead ? HF_LOST : HF_OK;
        if (st || lasts)
            hfi_consul_session_yield(cc, s);
    }
    pthread_mutex_unlock(&cc->mu);
    if (st || lasts)
        return st;
    st = hfi_consul_session_prove(cc, &cc->calls, s, deadline, err);
    if (st == HF_LOST)
        hfi_consul_session_dead(cc, s);
    pthread_mutex_lock(&cc->mu);
    hfi_consul_session_yield(cc, s);
    pthread_mutex_unlock(&cc->mu);
    return st;
}

static hf_status session_get(struct consul_conn *cc, int64_t kind,
                             int64_t deadline, struct consul_session **ret,
                             struct hf_error *err)
{
    struct hfi_session *s;
    hf_status st = HF_LOST;
    bool fresh;
    int i;

    for (i = 0; st == HF_LOST && i < 3; i++) {
        st = hfi_session_get(&cc->sessions, kind, &s, &fresh, deadline, err);
        if (st)
            return st;
        st = session_freshen(cc, session_of(s), deadline, err);
        if (st)
            hfi_session_put(&cc->sessions, s);
        else
            *ret = session_of(s);
    }
    return st == HF_LOST
               ? hfi_fail(err, HF_UNAVAILABLE, "%s: no session stays alive",
                          cc->base.endpoint)
               : st;
}

/* A living session whose proof is fresh enough to take a lock with. */
hf_status hfi_consul_session_get(struct consul_conn *cc, int64_t ttl_ms,
                                 bool queue, int64_t deadline,
                                 struct consul_session **ret,
                                 struct hf_error *err)
{
    return session_get(cc, SESSION_KIND(ttl_ms, queue), deadline, ret, err);
}

/* The same, to lock keys with that several hold: common.c. */
hf_status hfi_consul_session_common(struct consul_conn *cc, int64_t ttl_ms,
                                    int64_t deadline,
                                    struct consul_session **ret,
                                    struct hf_error *err)
{
    return session_get(cc, SESSION_COMMON(ttl_ms), deadline, ret, err);
}

/* One that carries nothing else; or, if *ret is one already, that one, unless it
 * has died. */
hf_status hfi_consul_session_own(struct consul_conn *cc, int64_t ttl_ms,
                                 int64_t deadline, struct consul_session **ret,
                                 struct hf_error *err)
{
    struct hfi_session *s;
    hf_status st = HF_LOST;
    bool fresh;

    if (*ret && !(*ret)->base.dead)
        st = session_freshen(cc, *ret, deadline, err);
    if (st != HF_LOST)
        return st;
    hfi_consul_session_put(cc, *ret);
    *ret = NULL;
    st = hfi_session_get(&cc->sessions,
                         SESSION_PERMIT(SESSION_KIND(ttl_ms, false),
                                        atomic_fetch_add(&cc->permits, 1)),
                         &s, &fresh, deadline, err);
    if (!st)
        *ret = session_of(s);
    return st;
}

/* The session that is to carry a grant of this claim. */
hf_status hfi_consul_session_for(struct consul_conn *cc,
                                 const struct hfi_claim *claim, int64_t ttl_ms,
                                 int64_t deadline, struct consul_session **ret,
                                 struct hf_error *err)
{
    *ret = NULL;
    return hfi_consul_is_semaphore(cc, claim)
               ? hfi_consul_session_own(cc, ttl_ms, deadline, ret, err)
               : hfi_consul_session_get(cc, ttl_ms, false, deadline, ret, err);
}

/* ---- what backend/session.c asks for ------------------------------------- */

static hf_status session_make(void *conn, struct hfi_session *base,
                              int64_t deadline, struct hf_error *err)
{
    struct consul_session *s = session_of(base);
    struct consul_conn *cc = conn;
    hf_status st;

    hfi_link_init(&s->held);
    s->ttl_ms = SESSION_TTL(base->kind);
    s->queue = SESSION_IS_QUEUE(base->kind);
    s->common = SESSION_IS_COMMON(base->kind);
    s->permit = SESSION_IS_PERMIT(base->kind);
    st = hfi_consul_session_create(cc, s, deadline, err);
    if (st)
        return st;
    pthread_mutex_lock(&cc->mu);
    hfi_consul_session_proven(s, s->sure); /* It went through the log. */
    pthread_mutex_unlock(&cc->mu);
    return HF_OK;
}

/* A key that was never released here was detached: somebody else may count on
 * it.  What was told to go may go with the session. */
static bool session_is_needed(const struct consul_session *s)
{
    const struct hfi_link *at;

    for (at = s->held.next; at != &s->held; at = at->next)
        if (!hfi_container(at, struct consul_key, link)->leaving)
            return true;
    return false;
}

/* Has any lock that is still wanted been sent to another session, without an
 * answer?  Any of ours may have it, until the next answer tells. */
static bool session_in_doubt(const struct consul_conn *cc)
{
    const struct consul_key *k;
    struct hfi_node *node = NULL;

    while ((node = hfi_map_next(&cc->keys, node))) {
        k = hfi_container(node, struct consul_key, node);
        if (k->holder[0] && k->moving && !k->leaving)
            return true;
    }
    return false;
}

/* Nobody needs it any more, and it was there for one permit only?  Then it is
 * destroyed: session.c (3). */
static void session_finish(struct consul_conn *cc, struct consul_session *s)
{
    bool last;

    pthread_mutex_lock(&cc->mu);
    last = s->base.users == 1 && hfi_link_alone(&s->held) && !s->base.dead &&
           !session_in_doubt(cc);
    if (last)
        s->base.dead = true;
    pthread_mutex_unlock(&cc->mu);
    if (last)
        hfi_consul_session_destroy(cc, s->id, hfi_now() + cc->timeout_ms);
}

void hfi_consul_session_put(struct consul_conn *cc, struct consul_session *s)
{
    if (s && s->permit)
        session_finish(cc, s);
    if (s)
        hfi_session_put(&cc->sessions, &s->base);
}

/* session.c (3)  A service that does not answer is not asked again: the session
 * lapses. */
static void session_end(void *conn, struct hfi_session *base, int64_t deadline)
{
    const struct consul_session *s = session_of(base);
    struct consul_conn *cc = conn;

    if (!session_is_needed(s) &&
        (s->queue || s->common || !session_in_doubt(cc)) &&
        !atomic_load(&cc->silent) &&
        !hfi_consul_common_is_needed(cc, s, deadline))
        hfi_consul_session_destroy(cc, s->id, deadline);
}

static void session_drop(void *conn, struct hfi_session *base)
{
    struct consul_session *s = session_of(base);

    (void)conn;
    while (!hfi_link_alone(&s->held))
        hfi_link_remove(s->held.next);
    hfi_consul_common_fini(s);
}

const struct hfi_session_service hfi_consul_session_service = {
    .size = sizeof(struct consul_session),
    .create = session_make,
    .end = session_end,
    .drop = session_drop,
};

/* Nobody else uses the conn any more. */
void hfi_consul_sessions_end(struct consul_conn *cc)
{
    hfi_sessions_close(&cc->sessions, hfi_now() + cc->timeout_ms);
}
