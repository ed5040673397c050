/* SPDX-License-Identifier: MIT
 *
 * node.c - connecting a node.
 *
 * A call never connects: it would wait for a node that is down, once for each.
 * A node that is not connected has a thread that tries again and again, at
 * growing intervals, and ends when it has succeeded; so where all is well there
 * are no threads.  A call that finds too few nodes connected waits for the
 * first attempt on each, since they may all have closed idle connections; but
 * not for nodes whose last attempt has failed.
 *
 * A connection begins with what must come before anything else is said on it:
 *  (a) who we are, as with any Redis;
 *  (b) which server it is: its run id, which is another after each start; the
 *      same one twice in the list would be two votes of one node, and is
 *      refused;
 *  (c) the end of the connection before: CLIENT KILL by its id, unless it was
 *      surely to another server.  When that is answered, nothing that we ever
 *      sent there can still be served.  A node that forbids it is left to the
 *      expiry of what it may yet take;
 *  (d) how long the longest lease is there (quarantine.c);
 *  (e) what was to be given back there and has had no answer.
 * What does not depend on an answer before it is sent together: over a long way
 * the round trips are what an attempt takes, and (c) keeps (e) apart.
 *
 * An attempt lasts as long as a request may (timeout_ms), since hf_close() waits
 * for it.  A node that has answered in that time, but not to the end, is far
 * away or busy and not silent: the next attempt has CONNECT_MS.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/alloc.h"

#include "base/banned.h"

/* Long enough for a node on a machine that is very busy: nobody waits for one
 * that is silent once there is a majority. */
#define CONNECT_MS     2500
#define CONNECT_MS_MIN 100 /* hf_open() may have had less left */
#define AGAIN_MS       50
#define AGAIN_MS_MAX   1000
#define SILENT_MS      1000 /* owing for so long, it is given up */

/* Only the thread of a node connects it. */
static _Thread_local bool node_connects;

/* ---- the beginning of a connection ------------------------------------- */

hf_status redlock_handshake_may(struct redlock_node *node,
                                struct mux_link *link, redisReply **reply,
                                int64_t deadline, struct hf_error *err)
{
    struct hf_error why = {0};
    hf_status st;

    *reply = NULL;
    st = redis_handshake_reply(&node->rc, link, reply, deadline, &why);
    if (!st || st == HF_DENIED || st == HF_UNSUPPORTED ||
        (st == HF_PROTOCOL && !why.sys_errno))
        return HF_OK;
    if (err)
        *err = why;
    return st;
}

static const char *info_field(const redisReply *reply, const char *name)
{
    const char *at =
        reply && reply->type == REDIS_REPLY_STRING ? reply->str : NULL;

    at = at ? strstr(at, name) : NULL;
    return at ? at + strlen(name) : NULL;
}

/* The first other node that is this very server. */
static const struct redlock_node *handshake_twin(
    const struct redlock_node *node, const char *run_id)
{
    struct redlock_conn *rl = node->rl;
    int i;

    for (i = 0; i < rl->n; i++)
        if (&rl->nodes[i] != node && rl->nodes[i].state != REDLOCK_DOWN &&
            !strcmp(rl->nodes[i].run_id, run_id))
            return &rl->nodes[i];
    return NULL;
}

/* (b): who it is.  Who does not say which it is may be another each time. */
static hf_status handshake_identity(struct redlock_node *node,
                                    const redisReply *info,
                                    struct hf_error *err)
{
    const char *id = info_field(info, "\nrun_id:");
    const char *version = info_field(info, "\nredis_version:");
    const struct redlock_node *twin = NULL;
    char run_id[48] = "";
    bool same;
    hf_status st = HF_OK;

    if (id)
        snprintf(run_id, sizeof(run_id), "%.*s", (int)strcspn(id, "\r\n"), id);
    atomic_store(&node->native, version && strtol(version, NULL, 10) >= 7);
    pthread_mutex_lock(&node->rl->mu);
    same = run_id[0] && !strcmp(node->run_id, run_id);
    if (run_id[0])
        twin = handshake_twin(node, run_id);
    if (twin) {
        st = hfi_fail(err, HF_INVALID, "it is the same server as %s",
                      twin->rc.base.endpoint);
    } else if (!same) {
        node->born = hfi_now(); /* Its uptime proves nothing. */
        node->noted = 0;
        memcpy(node->run_id, run_id, sizeof(run_id));
    }
    pthread_mutex_unlock(&node->rl->mu);
    return st;
}

/* (b), and what needs no answer before it: our id there, and the script. */
static hf_status handshake_know(struct redlock_node *node,
                                struct mux_link *link, long long *id,
                                int64_t deadline, struct hf_error *err)
{
    const char *info[] = {"INFO", "server"}, *ask[] = {"CLIENT", "ID"};
    const char *load[] = {"SCRIPT", "LOAD", node->rl->script};
    struct redis_batch batch = {0};
    redisReply *reply = NULL;
    hf_status st;

    redis_batch_add(&batch, 2, info);
    redis_batch_add(&batch, 2, ask);
    redis_batch_add(&batch, 3, load);
    st = redis_handshake_batch(link, &batch, deadline, err);
    if (!st)
        st = redlock_handshake_may(node, link, &reply, deadline, err);
    if (!st) {
        node->slow = true; /* until all is done */
        st = handshake_identity(node, reply, err);
    }
    if (reply)
        freeReplyObject(reply);
    if (st)
        return st;
    st = redlock_handshake_may(node, link, &reply, deadline, err);
    *id = reply && reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
    if (reply)
        freeReplyObject(reply);
    if (!st)
        st = redis_handshake_reply(&node->rc, link, &reply, deadline, err);
    if (!st)
        freeReplyObject(reply);
    return st;
}

/* The id of the connection before; 0 if there is none to end.  In another run of
 * the server it is that of a stranger. */
static long long handshake_before(const struct redlock_node *node)
{
    bool other = node->run_id[0] && node->client_run[0] &&
                 strcmp(node->run_id, node->client_run) != 0;

    return other ? 0 : node->client_id;
}

/* (c): nothing of the connection before is served any more.  And (d), which may
 * be asked before that. */
static hf_status handshake_kill(struct redlock_node *node,
                                struct mux_link *link, long long now,
                                int64_t deadline, struct hf_error *err)
{
    long long before = handshake_before(node);
    char id[24];
    const char *kill[] = {"CLIENT", "KILL", "ID", id};
    struct redis_batch batch = {0};
    redisReply *reply = NULL;
    int64_t sent = hfi_now();
    hf_status st;

    snprintf(id, sizeof(id), "%lld", before);
    if (before)
        redis_batch_add(&batch, 4, kill);
    redlock_quarantine_ask(node, &batch);
    st = redis_handshake_batch(link, &batch, deadline, err);
    if (!st && before)
        st = redlock_handshake_may(node, link, &reply, deadline, err);
    if (reply)
        freeReplyObject(reply);
    if (st)
        return st;
    node->client_id = now;
    memcpy(node->client_run, node->run_id, sizeof(node->client_run));
    return redlock_quarantine_handshake(node, link, sent, deadline, err);
}

static hf_status node_handshake(void *arg, struct mux_link *link,
                                int64_t deadline, struct hf_error *err)
{
    struct redlock_node *node = arg;
    long long id = 0;
    hf_status st = redis_handshake(&node->rc, link, deadline, err);

    if (!st)
        st = handshake_know(node, link, &id, deadline, err);
    if (!st)
        st = handshake_kill(node, link, id, deadline, err);
    return st ? st : redlock_pending_send(node, link, deadline, err);
}

static hf_status node_find(void *arg, struct hfi_endpoint *ret,
                           int64_t deadline, struct hf_error *err)
{
    struct redlock_node *node = arg;

    (void)deadline;
    if (!node_connects)
        return hfi_fail(err, HF_UNAVAILABLE, "not connected");
    *ret = node->rc.ends[0];
    return HF_OK;
}

/* The tracker waits for its servers by itself. */
static hf_status node_find_observed(void *arg, struct hfi_endpoint *ret,
                                    int64_t deadline, struct hf_error *err)
{
    const struct redlock_node *node = arg;

    (void)deadline;
    (void)err;
    *ret = node->rc.ends[0];
    return HF_OK;
}

/* ---- connecting -------------------------------------------------------- */

/* A value of an answer to CONFIG GET; "" if it is not there. */
static const char *node_setting(const redisReply *reply, const char *name)
{
    size_t i;

    for (i = 0; reply->type == REDIS_REPLY_ARRAY && i + 1 < reply->elements;
         i += 2)
        if (reply->element[i]->type == REDIS_REPLY_STRING &&
            reply->element[i + 1]->type == REDIS_REPLY_STRING &&
            !strcmp(reply->element[i]->str, name))
            return reply->element[i + 1]->str;
    return "";
}

/* Would it throw locks away?  A node that does not tell is not suspected. */
static void node_doubt(struct redlock_node *node, const redisReply *settings)
{
    bool evicts =
        strtoull(node_setting(settings, "maxmemory"), NULL, 10) &&
        strcmp(node_setting(settings, "maxmemory-policy"), "noeviction") != 0;

    pthread_mutex_lock(&node->rl->mu);
    node->evicts = evicts;
    pthread_mutex_unlock(&node->rl->mu);
}

/* How long an attempt that begins now may last. */
static int64_t node_limit(struct redlock_node *node)
{
    const struct redlock_conn *rl = node->rl;
    int64_t ms =
        rl->connect_ms > CONNECT_MS_MIN ? rl->connect_ms : CONNECT_MS_MIN;

    return hfi_now() + (node->slow || ms > CONNECT_MS ? CONNECT_MS : ms);
}

/* One attempt. */
static hf_status node_connect(struct redlock_node *node, struct hf_error *err)
{
    const char *ping[] = {"PING"}, *get[] = {"CONFIG", "GET", "maxmemory*"};
    struct redis_batch batch = {0};
    int64_t limit = node_limit(node);
    redisReply *reply[2];
    hf_status st;

    node->slow = false;
    hfi_mux_end_pause(&node->rc.mux); /* The pause is ours. */
    redis_batch_add(&batch, 1, ping);
    redis_batch_add(&batch, 3, get);
    st = batch.failed ? hfi_nomem(err)
                      : hfi_mux_call(&node->rc.mux, batch.bytes, batch.len, 2,
                                     reply, limit, err);
    redis_batch_free(&batch);
    if (st)
        return st;
    node->slow = false;
    node_doubt(node, reply[1]);
    freeReplyObject(reply[0]);
    freeReplyObject(reply[1]);
    return HF_OK;
}

/* With the mutex held. */
static void node_pause(struct redlock_node *node, int64_t ms)
{
    struct redlock_conn *rl = node->rl;
    uint32_t chance;
    int64_t until;

    hfi_random(&chance, sizeof(chance));
    until = hfi_now() + ms / 2 + chance % (uint32_t)(ms / 2 + 1);
    while (!rl->closing && hfi_now() < until)
        hfi_cond_wait(&rl->changed, &rl->mu, until);
}

/* With the mutex held, let go meanwhile: have an subscriber there, if one is
 * wanted. */
static hf_status node_listen(struct redlock_node *node)
{
    hf_status st = HF_OK;

    pthread_mutex_unlock(&node->rl->mu);
    if (redlock_subscriber_lacks(node))
        st = redlock_subscriber_connect(node, node_limit(node), NULL);
    pthread_mutex_lock(&node->rl->mu);
    return st;
}

static void *node_run(void *arg)
{
    struct redlock_node *node = arg;
    struct redlock_conn *rl = node->rl;
    int64_t ms = AGAIN_MS;
    struct hf_error err;
    hf_status st;

    node_connects = true;
    pthread_mutex_lock(&rl->mu);
    while (!rl->closing && node->connecting) {
        pthread_mutex_unlock(&rl->mu);
        err = (struct hf_error){0};
        st = node_connect(node, &err);
        pthread_mutex_lock(&rl->mu);
        node->state = st ? REDLOCK_DOWN : REDLOCK_UP;
        node->why = err;
        node->why.status = st;
        if (!st)
            atomic_store(&node->heard, hfi_now());
        hfi_cond_wake(&rl->changed);
        if (!st)
            st = node_listen(node);
        node->connecting = st != HF_OK;
        if (st)
            node_pause(node, ms);
        ms = ms * 2 < AGAIN_MS_MAX ? ms * 2 : AGAIN_MS_MAX;
    }
    node->connecting = false;
    pthread_mutex_unlock(&rl->mu);
    return NULL;
}

void redlock_node_tend(struct redlock_node *node)
{
    struct redlock_conn *rl = node->rl;
    bool up, lacks = redlock_subscriber_lacks(node);

    pthread_mutex_lock(&rl->mu);
    up = hfi_mux_is_up(&node->rc.mux);
    if (!rl->closing && !node->connecting && (!up || lacks)) {
        if (node->joinable)
            hfi_thread_join(&node->thread); /* It is at its very end. */
        node->connecting = true;
        if (!up)
            node->state = REDLOCK_TRYING;
        node->joinable = hfi_thread_start(&node->thread, node_run, node);
        if (!node->joinable) {
            node->connecting = false;
            node->state = REDLOCK_DOWN;
            hfi_fail(&node->why, HF_UNAVAILABLE, "no thread to connect it");
        }
    }
    pthread_mutex_unlock(&rl->mu);
}

void redlock_await_majority(struct redlock_conn *rl, int64_t deadline)
{
    int i, up, trying;

    for (i = 0; i < rl->n; i++)
        if (!hfi_mux_is_up(&rl->nodes[i].rc.mux))
            redlock_node_tend(&rl->nodes[i]);
    pthread_mutex_lock(&rl->mu);
    for (;;) {
        for (i = up = trying = 0; i < rl->n; i++) {
            if (hfi_mux_is_up(&rl->nodes[i].rc.mux))
                up++;
            else if (rl->nodes[i].state == REDLOCK_TRYING)
                trying++;
        }
        if (up >= rl->majority || up + trying < rl->majority ||
            !hfi_left_ms(deadline))
            break;
        hfi_cond_wait(&rl->changed, &rl->mu, deadline);
    }
    pthread_mutex_unlock(&rl->mu);
}

bool redlock_await_more(struct redlock_conn *rl, unsigned asked,
                        int64_t deadline)
{
    bool found, trying;
    int i;

    redlock_await_majority(rl,
                           deadline); /* a majority at once, if it can be had */
    pthread_mutex_lock(&rl->mu);
    for (;;) {
        found = trying = false;
        for (i = 0; i < rl->n; i++) {
            if (asked & 1U << i)
                continue;
            found = found || hfi_mux_is_up(&rl->nodes[i].rc.mux);
            trying = trying || rl->nodes[i].state == REDLOCK_TRYING;
        }
        if (found || !trying || !hfi_left_ms(deadline))
            break;
        hfi_cond_wait(&rl->changed, &rl->mu, deadline);
    }
    pthread_mutex_unlock(&rl->mu);
    return found;
}

/* ---- who may be asked -------------------------------------------------- */

bool redlock_node_is_ready(struct redlock_node *node, int64_t limit)
{
    int64_t owed = hfi_mux_owed_ms(&node->rc.mux);

    if (owed > SILENT_MS) {
        hfi_mux_retire(&node->rc.mux);
        redlock_subscriber_drop(node);
    }
    if (owed < 0 || owed > SILENT_MS)
        redlock_node_tend(node);
    return owed >= 0 && owed <= limit;
}

void redlock_node_init(struct redlock_conn *rl, int index)
{
    struct redlock_node *node = &rl->nodes[index];

    node->rl = rl;
    node->index = index;
    hfi_mux_init(&node->rc.mux, node_find, node_handshake, node);
    hfi_mux_init(&node->subscriber_mux, node_find, redis_handshake, node);
    hfi_mux_init(&node->observer_mux, node_find_observed, redis_handshake,
                 node);
    atomic_init(&node->subscriber_fd, -1);
}

void redlock_node_fini(struct redlock_node *node)
{
    if (node->joinable)
        hfi_thread_join(&node->thread);
    node->joinable = false;
    redlock_pending_releases_free(node);
    hfi_mux_close(node->subscriber);
    node->subscriber = NULL;
    hfi_mux_fini(&node->subscriber_mux);
    hfi_mux_fini(&node->observer_mux);
    hfi_mux_fini(&node->rc.mux);
    if (node->rc.password)
        explicit_bzero(node->rc.password, strlen(node->rc.password));
    hfi_free(node->rc.password);
    hfi_free(node->rc.password_file);
    hfi_free(node->rc.user);
}
