/* SPDX-License-Identifier: MIT
 *
 * session.c - one session for each ttl of a client.
 *
 * A session carries every lock of one ttl and is renewed once for all of them.
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
 *  (4) `proven` is a time from which the session lasts for twice its ttl, who-
 *      ever answered.  It is not when a renewal was sent but `sure`: when the
 *      last request was sent before it that only a true leader can serve, a
 *      write or a consistent read, and that was served by way of the same
 *      agent. A leader that answered the renewal and was not one any more has
 *      been deposed after that, and its successor began to count later still.
 *  (5) What is taken or renewed relies on a session for one ttl.  So `proven`
 *      is at most three quarters of a ttl old then, which leaves a quarter more
 *      than backend/backend.h (4) asks for.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

static struct consul_session *session_new(struct consul_conn *cc,
                                          int64_t ttl_ms, bool queue)
{
    struct consul_session *s = hfi_alloc(sizeof(*s));

    if (!s)
        return NULL;
    hfi_link_init(&s->link);
    hfi_link_init(&s->held);
    s->ttl_ms = ttl_ms;
    s->queue = queue;
    hfi_link_append(&cc->sessions, &s->link);
    return s;
}

static void session_free(struct consul_session *s)
{
    hfi_link_remove(&s->link);
    hfi_free(s);
}

/* With the mutex held.  On the way, forget those that nobody has used for so
 * long that they have lapsed. */
static struct consul_session *session_of(struct consul_conn *cc, int64_t ttl_ms,
                                         bool queue)
{
    int64_t now = hfi_now();
    struct consul_session *s;
    struct hfi_link *at, *next;

    for (at = cc->sessions.next; at != &cc->sessions; at = next) {
        next = at->next;
        s = hfi_container(at, struct consul_session, link);
        if (!s->dead && s->ttl_ms == ttl_ms && s->queue == queue)
            return s;
        if (!s->users && now - s->proven > 3 * s->ttl_ms)
            session_free(s);
    }
    return session_new(cc, ttl_ms, queue);
}

/* With the mutex held: the session with this id, dead or alive, or NULL. */
struct consul_session *hfi_consul_session_find(struct consul_conn *cc,
                                               const char *id)
{
    struct consul_session *s;
    struct hfi_link *at;

    for (at = cc->sessions.next; at != &cc->sessions; at = at->next) {
        s = hfi_container(at, struct consul_session, link);
        if (s->id[0] && !strcmp(s->id, id))
            return s;
    }
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
    snprintf(delay, sizeof(delay), "%lldms",
             (long long)(s->queue ? 0 : cc->options.lock_delay_ms));
    for (name = checks; name && *name; name = rest) {
        rest = name + strcspn(name, ",");
        if (*rest)
            *rest++ = '\0';
        json_array_append_new(list, json_string(name));
    }
    body = json_pack("{s:s,s:s,s:s,s:s,s:O,s:O}", "Name",
                     s->queue    ? "holdfast queue"
                     : s->handle ? CONSUL_HANDLE_NAME
                                 : "holdfast",
                     "TTL", ttl, "LockDelay", delay, "Behavior",
                     s->queue ? "delete" : "release", "NodeChecks", list,
                     "Checks", list);
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
        return st == HF_UNCERTAIN ? HF_UNAVAILABLE : st;
    hfi_consul_reply_parse(&reply);
    id = json_string_value(json_object_get(reply.json, "ID"));
    if (id && hfi_consul_is_id(id)) {
        memcpy(s->id, id, sizeof(s->id));
        session_note(s, sent, reply.agent);
        s->proven = sent;
        session_doubt(cc, &reply);
    } else {
        st = hfi_fail(err, HF_PROTOCOL, "%s: a session without an id",
                      cc->base.endpoint);
    }
    hfi_consul_reply_fini(&reply);
    return st;
}

/* A consistent read or a write that was sent at `at` was served. */
void hfi_consul_session_sure(struct consul_conn *cc, struct consul_session *s,
                             int64_t at, size_t agent)
{
    pthread_mutex_lock(&cc->mu);
    session_note(s, at, agent);
    pthread_mutex_unlock(&cc->mu);
}

/* If that fails, it lapses. */
void hfi_consul_session_destroy(struct consul_conn *cc, const char *id,
                                int64_t deadline)
{
    char path[64 + CONSUL_ID_LEN];
    struct consul_request rq = {.method = "PUT", .path = path, .write = true};
    struct consul_reply reply;

    snprintf(path, sizeof(path), "/v1/session/destroy/%s", id);
    if (!hfi_consul_call(cc, &cc->calls, &rq, deadline, &reply, NULL))
        hfi_consul_reply_fini(&reply);
}

/* With the mutex held: have the session to oneself, or HF_UNAVAILABLE. */
hf_status hfi_consul_session_claim(struct consul_conn *cc,
                                   struct consul_session *s, int64_t deadline,
                                   struct hf_error *err)
{
    while (s->busy && hfi_left_ms(deadline))
        hfi_cond_wait(&cc->turn, &cc->mu, deadline);
    if (s->busy)
        return hfi_fail(err, HF_UNAVAILABLE, "%s: no time left to ask",
                        cc->base.endpoint);
    s->busy = true;
    return HF_OK;
}

void hfi_consul_session_yield(struct consul_conn *cc, struct consul_session *s)
{
    s->busy = false;
    hfi_cond_wake(&cc->turn);
}

/* With the mutex held: nobody uses it, so nobody misses it. */
static void session_drop(struct consul_session *s)
{
    if (--s->users == 0 && (s->dead || !s->id[0]))
        session_free(s);
}

void hfi_consul_session_put(struct consul_conn *cc, struct consul_session *s)
{
    pthread_mutex_lock(&cc->mu);
    session_drop(s);
    pthread_mutex_unlock(&cc->mu);
}

/* The service says that it does not know the session.  session.c (2) */
void hfi_consul_session_dead(struct consul_conn *cc, struct consul_session *s)
{
    pthread_mutex_lock(&cc->mu);
    s->dead = true;
    pthread_mutex_unlock(&cc->mu);
}

/* With the mutex held and given back: bring it into a state to be used. */
static hf_status session_freshen(struct consul_conn *cc,
                                 struct consul_session *s, int64_t deadline,
                                 struct hf_error *err)
{
    hf_status st = hfi_consul_session_claim(cc, s, deadline, err);

    if (st)
        return st;
    if (s->dead) {
        st = HF_LOST;
    } else if (!s->id[0] || hfi_now() - s->proven > CONSUL_FRESH(s->ttl_ms)) {
        pthread_mutex_unlock(&cc->mu);
        st = s->id[0]
                 ? hfi_consul_session_prove(cc, &cc->calls, s, deadline, err)
                 : hfi_consul_session_create(cc, s, deadline, err);
        pthread_mutex_lock(&cc->mu);
        s->dead = st == HF_LOST;
    }
    hfi_consul_session_yield(cc, s);
    return st;
}

/* A living session whose proof is fresh enough to take a lock with. */
hf_status hfi_consul_session_get(struct consul_conn *cc, int64_t ttl_ms,
                                 bool queue, int64_t deadline,
                                 struct consul_session **ret,
                                 struct hf_error *err)
{
    struct consul_session *s;
    hf_status st;
    int i;

    pthread_mutex_lock(&cc->mu);
    for (i = 0, st = HF_LOST; st == HF_LOST && i < 3; i++) {
        s = session_of(cc, ttl_ms, queue);
        if (!s) {
            st = hfi_nomem(err);
            break;
        }
        s->users++;
        st = session_freshen(cc, s, deadline, err);
        if (st)
            session_drop(s);
        else
            *ret = s;
    }
    pthread_mutex_unlock(&cc->mu);
    return st == HF_LOST
               ? hfi_fail(err, HF_UNAVAILABLE, "%s: no session stays alive",
                          cc->base.endpoint)
               : st;
}

/* With nobody else using the conn: has any lock that is still wanted been sent
 * to another session, without an answer?  Any of ours may have it. */
static bool sessions_in_doubt(const struct consul_conn *cc)
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

/* Nobody else uses the conn any more.  session.c (3)  A service that does
 * not answer is not asked again: the session lapses. */
void hfi_consul_sessions_end(struct consul_conn *cc)
{
    int64_t deadline = hfi_now() + cc->timeout_ms;
    bool doubt = sessions_in_doubt(cc);
    struct consul_session *s;

    while (!hfi_link_alone(&cc->sessions)) {
        s = hfi_container(cc->sessions.next, struct consul_session, link);
        if (s->id[0] && !s->dead && (s->queue || !doubt) &&
            !session_is_needed(s) && !atomic_load(&cc->silent))
            hfi_consul_session_destroy(cc, s->id, deadline);
        while (!hfi_link_alone(&s->held))
            hfi_link_remove(s->held.next);
        session_free(s);
    }
}
