/* SPDX-License-Identifier: MIT
 *
 * prove.c - renewing sessions, so that the answers prove something.
 *
 * Sessions are renewed side by side, up to 16 at a time: a client whose locks
 * have many ttls has many, and each takes a round trip.  What makes an answer a
 * proof is described in session.c (4).
 */
#include "consul.h"

#include "base/banned.h"

static hf_status session_ended(const struct consul_conn *cc,
                               struct hf_error *err)
{
    return hfi_fail(err, HF_LOST, "%s: the session has ended",
                    cc->base.endpoint);
}

/* Something that stands before the agent has answered in its place. */
static hf_status session_not_consul(const struct consul_conn *cc, long status,
                                    struct hf_error *err)
{
    return hfi_fail(err, HF_UNAVAILABLE,
                    "%s: an answer about a session that is not Consul's (%ld)",
                    cc->base.endpoint, status);
}

/* What a renewal was answered; HF_LOST: the session has ended, which
 * session_verify() has to confirm. */
static hf_status session_answer(const struct consul_conn *cc,
                                const struct consul_session *s,
                                const struct consul_reply *reply,
                                struct hf_error *err)
{
    if (reply->status != 200)
        return session_ended(cc, err);
    if (!reply->data || !strstr(reply->data, s->id))
        return session_not_consul(cc, reply->status, err);
    return HF_OK;
}

/* What a leader that is one says of a session; HF_LOST: there is none.  The
 * answer to a read has an index and is a list, which is empty then. */
static hf_status session_verify(struct consul_conn *cc,
                                struct consul_pool *pool, const char *id,
                                int64_t deadline, struct consul_about *ret,
                                struct hf_error *err)
{
    char path[64 + CONSUL_ID_LEN];
    struct consul_request rq = {.method = "GET", .path = path};
    struct consul_reply reply;
    const json_t *entry;
    const char *text;
    hf_status st;

    *ret = (struct consul_about){.ttl_ms = 0};
    snprintf(path, sizeof(path), "/v1/session/info/%s?consistent", id);
    st = hfi_consul_call(cc, pool, &rq, deadline, &reply, err);
    if (st)
        return st;
    ret->agent = reply.agent;
    hfi_consul_reply_parse(&reply);
    entry = json_array_get(reply.json, 0);
    if (json_is_object(entry)) {
        text = json_string_value(json_object_get(entry, "TTL"));
        ret->ttl_ms = text ? hfi_consul_duration(text) : 0;
        ret->delay_ms = /* in nanoseconds */
            json_integer_value(json_object_get(entry, "LockDelay")) / 1000000;
        text = json_string_value(json_object_get(entry, "Name"));
        ret->handle = text && !strcmp(text, CONSUL_HANDLE_NAME);
    } else if (reply.status == 200 && reply.index &&
               json_is_array(reply.json)) {
        st = session_ended(cc, err);
    } else {
        st = session_not_consul(cc, reply.status, err);
    }
    hfi_consul_reply_fini(&reply);
    return st;
}

hf_status hfi_consul_session_inspect(struct consul_conn *cc, const char *id,
                                     int64_t deadline, struct consul_about *ret)
{
    return session_verify(cc, &cc->calls, id, deadline, ret, NULL);
}

/* Sessions that are renewed side by side. */
struct session_batch {
    struct consul_session *of[CONSUL_CALLS_MAX];
    hf_status st[CONSUL_CALLS_MAX];
    bool open[CONSUL_CALLS_MAX]; /* neither proven nor failed yet */
    size_t n;
    bool to; /* ask this agent */
    size_t agent;
};

/* With the mutex held: is that, sent at `sent`, a proof?  session.c (4), (5)  On
 * the session of a queue, or a common one, no grant depends: there any answer will
 * do. */
static bool session_is_proven(struct consul_session *s, int64_t sent,
                              size_t agent)
{
    if (!s->queue && !s->common &&
        (agent != s->agent || sent - s->sure > CONSUL_FRESH(s->ttl_ms)))
        return false;
    return hfi_consul_session_proven(s, sent);
}

/* Ask for the renewal of all that are open. */
static void batch_ask(struct consul_conn *cc, struct consul_pool *pool,
                      struct session_batch *b, int64_t deadline,
                      struct hf_error *err)
{
    char paths[CONSUL_CALLS_MAX][64 + CONSUL_ID_LEN];
    struct consul_call calls[CONSUL_CALLS_MAX];
    size_t at[CONSUL_CALLS_MAX], i, n = 0;
    int64_t sent = hfi_now(), half = sent + hfi_left_ms(deadline) / 2;

    for (i = 0; i < b->n; i++) {
        if (!b->open[i])
            continue;
        snprintf(paths[n], sizeof(paths[n]), "/v1/session/renew/%s",
                 b->of[i]->id);
        /* What became of one that was not answered matters to nobody. */
        calls[n] = (struct consul_call){.rq = {.method = "PUT",
                                               .path = paths[n],
                                               .to = b->to,
                                               .agent = b->agent}};
        at[n++] = i;
    }
    if (n == 1)
        calls[0].st = hfi_consul_call(cc, pool, &calls[0].rq, deadline,
                                      &calls[0].reply, err);
    else /* One that is not answered leaves time to go on with the others. */
        hfi_consul_calls(cc, pool, calls, n, half, err);
    for (i = 0; i < n; i++) {
        b->st[at[i]] = calls[i].st;
        if (calls[i].st)
            continue;
        b->st[at[i]] = session_answer(cc, b->of[at[i]], &calls[i].reply, err);
        pthread_mutex_lock(&cc->mu);
        if (!b->st[at[i]] &&
            session_is_proven(b->of[at[i]], sent, calls[i].reply.agent))
            b->open[at[i]] = false;
        pthread_mutex_unlock(&cc->mu);
        hfi_consul_reply_fini(&calls[i].reply);
    }
}

/* Have a true leader asked, so that the next answer of its agent is a proof.
 * One question is enough for all, but one that may have ended is asked for
 * itself. session.c (2), (4) */
static void batch_verify(struct consul_conn *cc, struct consul_pool *pool,
                         struct session_batch *b, int64_t deadline,
                         struct hf_error *err)
{
    struct consul_about about;
    bool asked = false;
    size_t i, j;
    int64_t sent;

    for (i = 0; i < b->n; i++) {
        if (!b->open[i] || (b->st[i] && b->st[i] != HF_LOST) ||
            (asked && !b->st[i]))
            continue;
        sent = hfi_now();
        b->st[i] =
            session_verify(cc, pool, b->of[i]->id, deadline, &about, err);
        b->open[i] = !b->st[i];
        if (b->st[i])
            continue;
        for (j = 0; j < b->n; j++)
            hfi_consul_session_sure(cc, b->of[j], sent, about.agent);
        /* Others may turn to another agent at any time: after the question, its
         * own agent is asked. */
        b->to = asked = true;
        b->agent = about.agent;
    }
}

/* Which of those that were not answered may be asked again? */
static void batch_settle(struct consul_conn *cc, struct session_batch *b)
{
    bool reread = false;
    size_t i;

    for (i = 0; i < b->n; i++) {
        if (!b->open[i] || !b->st[i] || b->st[i] == HF_LOST)
            continue;
        b->to = false;
        if (b->st[i] == HF_DENIED && !reread)
            reread = hfi_consul_options_reread(&cc->options, &cc->mu);
        b->open[i] = b->st[i] == HF_DENIED
                         ? reread
                         : b->st[i] == HF_UNAVAILABLE && b->n > 1 &&
                               cc->options.nagents > 1;
    }
}

/* Renew, so that the answers prove something: session.c (4).  HF_LOST: the
 * session has ended. */
static void batch_prove(struct consul_conn *cc, struct consul_pool *pool,
                        struct session_batch *b, int64_t deadline,
                        struct hf_error *err)
{
    bool open = true;
    size_t i;
    int round;

    for (i = 0; i < b->n; i++)
        b->open[i] = true;
    for (round = 0; open && round < CONSUL_ROUNDS; round++) {
        batch_ask(cc, pool, b, deadline, err);
        batch_settle(cc, b);
        batch_verify(cc, pool, b, deadline, err);
        for (i = 0, open = false; i < b->n; i++)
            open = open || b->open[i];
    }
    for (i = 0; i < b->n; i++)
        if (b->open[i] && !b->st[i])
            b->st[i] = hfi_fail(err, HF_UNAVAILABLE,
                                "%s: each answer is another agent's",
                                cc->base.endpoint);
}

hf_status hfi_consul_session_prove(struct consul_conn *cc,
                                   struct consul_pool *pool,
                                   struct consul_session *s, int64_t deadline,
                                   struct hf_error *err)
{
    struct session_batch b = {.of = {s}, .n = 1};

    batch_prove(cc, pool, &b, deadline, err);
    return b.st[0];
}

/* Renew one session on behalf of the locks that it carries. */
static hf_status session_renew(struct consul_conn *cc, struct consul_session *s,
                               int64_t deadline, struct hf_error *err)
{
    hf_status st;

    pthread_mutex_lock(&cc->mu);
    st = hfi_consul_session_claim(cc, s, deadline, err);
    if (!st) {
        if (s->base.dead) {
            st = HF_LOST;
        } else {
            pthread_mutex_unlock(&cc->mu);
            st = hfi_consul_session_prove(cc, &cc->renewals, s, deadline, err);
            if (st == HF_LOST)
                hfi_consul_session_dead(cc, s);
            pthread_mutex_lock(&cc->mu);
        }
        hfi_consul_session_yield(cc, s);
    }
    pthread_mutex_unlock(&cc->mu);
    return st;
}

/* Have those to ourselves that nobody uses now: to wait for one while we have
 * another might never end. */
static void batch_claim(struct consul_conn *cc, struct session_batch *b,
                        struct consul_session *const *sessions, size_t n,
                        size_t *at)
{
    size_t i;

    pthread_mutex_lock(&cc->mu);
    for (i = b->n = 0; i < n; i++) {
        if (sessions[i]->busy || sessions[i]->base.dead)
            continue;
        sessions[i]->busy = true;
        b->of[b->n] = sessions[i];
        at[b->n++] = i;
    }
    pthread_mutex_unlock(&cc->mu);
}

/* Renew sessions on behalf of the locks that they carry, side by side: a client
 * whose locks have many ttls has many. */
void hfi_consul_sessions_renew(struct consul_conn *cc,
                               struct consul_session *const *sessions,
                               hf_status *ret, size_t n, int64_t deadline,
                               struct hf_error *err)
{
    struct session_batch b;
    size_t at[CONSUL_CALLS_MAX], i, part;
    bool asked[CONSUL_CALLS_MAX];

    for (; n; sessions += part, ret += part, n -= part) {
        part = n < CONSUL_CALLS_MAX ? n : CONSUL_CALLS_MAX;
        memset(asked, 0, sizeof(asked));
        b = (struct session_batch){.n = 0};
        batch_claim(cc, &b, sessions, part, at);
        batch_prove(cc, &cc->renewals, &b, deadline, err);
        for (i = 0; i < b.n; i++)
            if (b.st[i] == HF_LOST)
                hfi_consul_session_dead(cc, b.of[i]);
        pthread_mutex_lock(&cc->mu);
        for (i = 0; i < b.n; i++) {
            hfi_consul_session_yield(cc, b.of[i]);
            ret[at[i]] = b.st[i];
            asked[at[i]] = true;
        }
        pthread_mutex_unlock(&cc->mu);
        for (i = 0; i < part; i++)
            if (!asked[i])
                ret[i] = session_renew(cc, sessions[i], deadline, err);
    }
}
