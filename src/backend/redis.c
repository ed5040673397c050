/* SPDX-License-Identifier: MIT
 *
 * redis.c - one Redis or Valkey server, or the master that Sentinel names.
 *
 * ON THE WIRE  Each step is one script, so it happens whole or not at all
 *   (redis_script.c).  The lock itself is a plain string key with an expiry, as
 *   redis-py, node-redlock, redsync and others have it, so they and holdfast
 *   exclude each other on the same key.
 *
 * INVARIANTS
 *  (1) The key holds the token, or the owner id, of whoever has the lock.
 *  (2) No step changes the key without having compared it.
 *  (3) Only relative times are sent, and no client's clock is stored.
 *  (4) The fence is max(last + 1, the server's clock in microseconds), taken in
 *      the step that grants.
 *
 * LEASE  The expiry of the key.  It is renewed as long as the key is ours and
 *   never set again once it is gone.
 *
 * LIMITS  Replication is asynchronous: a fail-over can forget a grant, and the
 *   next one is then given early; its fence is still larger.  replicas=K makes
 *   that unlikely, not impossible.  Expiry follows the server's wall clock.
 */
#include "redis.h"

#include <inttypes.h>

#include "../env.h"
#include "../mem.h"

#include "../banned.h"

#define REDIS_PORT    6379
#define SENTINEL_PORT 26379

/* A place lasts this long after its waiter's last try, at least. */
#define PATIENCE_MIN INT64_C(5000)

/* ---- connecting -------------------------------------------------------- */

static hf_status find_fixed(void *arg, struct hfi_endpoint *ret,
                            int64_t deadline, struct hf_error *err)
{
    (void)deadline;
    (void)err;
    *ret = *(struct hfi_endpoint *)arg;
    return HF_OK;
}

static hf_status hello_none(void *arg, struct mux_link *link, int64_t deadline,
                            struct hf_error *err)
{
    (void)arg;
    (void)link;
    (void)deadline;
    (void)err;
    return HF_OK;
}

/* Ask one sentinel where the master is. */
static hf_status sentinel_ask(struct redis_conn *rc, struct hfi_endpoint *at,
                              struct hfi_endpoint *ret, int64_t deadline,
                              struct hf_error *err)
{
    const char *argv[] = {"SENTINEL", "get-master-addr-by-name", rc->master};
    struct redis_batch batch = {0};
    struct hfi_mux mux;
    redisReply *reply = NULL;
    hf_status st;

    hfi_mux_init(&mux, find_fixed, hello_none, at);
    redis_batch_add(&batch, 3, argv);
    st = batch.failed ? hfi_nomem(err)
                      : hfi_mux_call(&mux, batch.bytes, batch.len, 1, &reply,
                                     deadline, err);
    if (!st && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
        reply->element[0]->str && reply->element[1]->str) {
        *ret = rc->ends[0]; /* for what is not an address */
        snprintf(ret->host, sizeof(ret->host), "%s", reply->element[0]->str);
        ret->port = (int)strtol(reply->element[1]->str, NULL, 10);
    } else if (!st) {
        st = hfi_fail(err, HF_UNAVAILABLE, "the sentinel knows no master '%s'",
                      rc->master);
    }
    freeReplyObject(reply);
    redis_batch_free(&batch);
    hfi_mux_fini(&mux);
    return st;
}

/* Each sentinel in turn, sharing the time. */
hf_status redis_find(void *arg, struct hfi_endpoint *ret, int64_t deadline,
                     struct hf_error *err)
{
    struct redis_conn *rc = arg;
    hf_status st = HF_UNAVAILABLE;
    int64_t now;
    size_t i;

    if (!rc->master[0]) {
        *ret = rc->ends[0];
        return HF_OK;
    }
    for (i = 0; st && i < rc->nends; i++) {
        now = hfi_now();
        st = sentinel_ask(rc, &rc->ends[i], ret,
                          now + (deadline - now) / (int64_t)(rc->nends - i),
                          err);
    }
    return st;
}

static hf_status hello_send(struct redis_conn *rc, struct mux_link *link,
                            int argc, const char **argv, redisReply **reply,
                            int64_t deadline, struct hf_error *err)
{
    struct redis_batch batch = {0};
    hf_status st;

    redis_batch_add(&batch, argc, argv);
    if (batch.failed)
        return hfi_nomem(err);
    st = hfi_mux_exchange(link, batch.bytes, batch.len, reply, deadline, err);
    if (batch.bytes)
        explicit_bzero(batch.bytes, batch.len);
    redis_batch_free(&batch);
    if (!st && (*reply)->type == REDIS_REPLY_ERROR) {
        st = redis_error(rc, *reply, err);
        freeReplyObject(*reply);
        *reply = NULL;
    }
    return st;
}

/* A master that Sentinel named may have become a replica meanwhile. */
static hf_status hello_role(struct redis_conn *rc, struct mux_link *link,
                            int64_t deadline, struct hf_error *err)
{
    const char *argv[] = {"ROLE"};
    redisReply *reply = NULL;
    hf_status st = hello_send(rc, link, 1, argv, &reply, deadline, err);

    if (!st && (reply->type != REDIS_REPLY_ARRAY || !reply->elements ||
                !reply->element[0]->str ||
                strcmp(reply->element[0]->str, "master") != 0))
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: it is not the master (yet)",
                      rc->base.endpoint);
    if (reply)
        freeReplyObject(reply);
    return st;
}

hf_status redis_hello(void *arg, struct mux_link *link, int64_t deadline,
                      struct hf_error *err)
{
    struct redis_conn *rc = arg;
    const char *argv[3] = {"AUTH"};
    redisReply *reply = NULL;
    char db[16];
    int n = 1;
    hf_status st = HF_OK;

    if (rc->password) {
        if (rc->user)
            argv[n++] = rc->user;
        argv[n++] = rc->password;
        st = hello_send(rc, link, n, argv, &reply, deadline, err);
        if (!st)
            freeReplyObject(reply);
    }
    if (!st && rc->db) {
        snprintf(db, sizeof(db), "%d", rc->db);
        argv[0] = "SELECT";
        argv[1] = db;
        st = hello_send(rc, link, 2, argv, &reply, deadline, err);
        if (!st)
            freeReplyObject(reply);
    }
    if (!st && rc->master[0])
        st = hello_role(rc, link, deadline, err);
    return st;
}

/* ---- opening ----------------------------------------------------------- */

static hf_status open_number(const struct hfi_url *url, const char *name,
                             const char *text, int max, int *ret,
                             struct hf_error *err)
{
    char *end;
    long n = strtol(text, &end, 10);

    (void)url;
    if (!*text || *end || n < 0 || n > max)
        return hfi_fail(err, HF_INVALID,
                        "url: %s must be a number from 0 to %d", name, max);
    *ret = (int)n;
    return HF_OK;
}

/* One of a few words. */
static hf_status open_word(const struct hfi_url *url, const char *name,
                           const char *const *words, int *ret,
                           struct hf_error *err)
{
    const char *value = hfi_url_param(url, name, words[0]);
    int i;

    for (i = 0; words[i]; i++) {
        if (!strcmp(words[i], value)) {
            *ret = i;
            return HF_OK;
        }
    }
    return hfi_fail(err, HF_INVALID,
                    "url: %s= is not one of its words; "
                    "holdfast-url(7) lists them",
                    name);
}

static hf_status open_options(struct redis_conn *rc, const struct hfi_url *url,
                              struct hf_error *err)
{
    static const char *const queues[] = {"fair", "barge", NULL};
    static const char *const acquires[] = {"fenced", "set", "script", NULL};
    const char *prefix = hfi_url_param(url, "prefix", "holdfast:");
    int queue = 0, acquire = 0;
    hf_status st = open_word(url, "queue", queues, &queue, err);

    if (!st)
        st = open_word(url, "acquire", acquires, &acquire, err);
    if (!st)
        st = open_number(url, "replicas=", hfi_url_param(url, "replicas", "0"),
                         100, &rc->replicas, err);
    if (!st && strlen(prefix) >= sizeof(rc->prefix))
        st = hfi_fail(err, HF_INVALID, "url: prefix= is too long");
    if (st)
        return st;
    snprintf(rc->prefix, sizeof(rc->prefix), "%s", prefix);
    rc->fair = queue == 0;
    rc->acquire = (enum redis_acquire)acquire;
    if (!rc->fair)
        rc->base.traits &= ~(unsigned)HF_TRAIT_QUEUED;
    if (rc->acquire != REDIS_FENCED)
        rc->base.traits = HF_TRAIT_LEASED | HF_TRAIT_DETACH |
                          HF_TRAIT_PROCESSES | HF_TRAIT_MACHINES;
    return HF_OK;
}

/* Where it is: a socket's path, one host, or sentinels and a name. */
static hf_status open_where(struct redis_conn *rc, const struct hfi_url *url,
                            struct hf_error *err)
{
    bool sentinel = !strcmp(url->scheme, "redis+sentinel");
    const char *path = url->path;
    size_t i;

    if (!strcmp(url->scheme, "redis+unix")) {
        if (url->nhosts || !*path || strlen(path) >= sizeof(rc->ends[0].host))
            return hfi_fail(err, HF_INVALID,
                            "url: redis+unix: takes the path of a socket");
        snprintf(rc->ends[0].host, sizeof(rc->ends[0].host), "%s", path);
        rc->nends = 1;
        return open_number(url, "db=", hfi_url_param(url, "db", "0"), 1 << 20,
                           &rc->db, err);
    }
    path += *path == '/';
    if (!url->nhosts || (url->nhosts > 1 && !sentinel))
        return hfi_fail(err, HF_INVALID,
                        "url: redis: takes one host, as in redis://host:6379");
    for (i = 0; i < url->nhosts; i++) {
        snprintf(rc->ends[i].host, sizeof(rc->ends[i].host), "%s",
                 url->hosts[i].name);
        rc->ends[i].port = url->hosts[i].port ? url->hosts[i].port
                           : sentinel         ? SENTINEL_PORT
                                              : REDIS_PORT;
    }
    rc->nends = url->nhosts;
    if (!sentinel)
        return open_number(url, "the database",
                           *path ? path : hfi_url_param(url, "db", "0"),
                           1 << 20, &rc->db, err);
    if (!*path || strlen(path) >= sizeof(rc->master))
        return hfi_fail(err, HF_INVALID,
                        "url: redis+sentinel: needs the master's name, as in "
                        "redis+sentinel://a,b,c/main");
    snprintf(rc->master, sizeof(rc->master), "%s", path);
    return open_number(url, "db=", hfi_url_param(url, "db", "0"), 1 << 20,
                       &rc->db, err);
}

/* The password may also come from REDISCLI_AUTH, as redis-cli has it. */
static hf_status open_secrets(struct redis_conn *rc, const struct hfi_url *url,
                              struct hf_error *err)
{
    const char *password = url->password;
    const char *user = url->user && *url->user ? url->user : NULL;

    if (!password)
        password = secure_getenv("REDISCLI_AUTH");
    rc->user = hfi_strdup(user);
    rc->password = hfi_strdup(password);
    if ((user && !rc->user) || (password && !rc->password))
        return hfi_nomem(err);
    return HF_OK;
}

static void open_names(struct redis_conn *rc, const struct hfi_url *url)
{
    char where[300];
    unsigned char id[8];
    int i, len;

    hfi_endpoint_name(&rc->ends[0], where, sizeof(where));
    snprintf(rc->base.endpoint, sizeof(rc->base.endpoint), "%s:%.200s",
             url->scheme, where);
    len = snprintf(rc->channel, sizeof(rc->channel), "%swake:", rc->prefix);
    hfi_random(id, sizeof(id));
    for (i = 0; i < (int)sizeof(id); i++)
        snprintf(rc->channel + len + 2 * i, 3, "%02x", id[i]);
    redis_script_digest(redis_script, rc->script_id);
}

static hf_status redis_open(struct hfi_conn *conn, const struct hfi_url *url,
                            int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    const char *argv[] = {"PING"};
    redisReply *reply;
    hf_status st;
    size_t i;

    pthread_mutex_init(&rc->sub_mu, NULL);
    hfi_mux_init(&rc->mux, redis_find, redis_hello, rc);
    rc->opened = true;
    st = open_options(rc, url, err);
    if (!st)
        st = open_where(rc, url, err);
    if (!st)
        st = open_secrets(rc, url, err);
    if (!st && !strcmp(url->scheme, "rediss"))
        st = hfi_tls_new(&rc->tls, url, err);
    if (st)
        return st;
    for (i = 0; i < rc->nends; i++) {
        rc->ends[i].tls = rc->tls;
        rc->ends[i].alive_ms = 15000;
    }
    open_names(rc, url);
    st = redis_command(rc, 1, argv, &reply, deadline, err);
    if (!st)
        freeReplyObject(reply);
    return st;
}

static void redis_close(struct hfi_conn *conn)
{
    struct redis_conn *rc = (struct redis_conn *)conn;

    if (!rc->opened)
        return;
    redis_sub_close(rc);
    hfi_mux_fini(&rc->mux);
    if (rc->tls)
        hfi_tls_free(rc->tls);
    if (rc->password)
        explicit_bzero(rc->password, strlen(rc->password));
    hfi_free(rc->password);
    hfi_free(rc->user);
    pthread_mutex_destroy(&rc->sub_mu);
    rc->opened = false;
}

/* ---- taking ------------------------------------------------------------ */

static uint64_t reply_number(const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_INTEGER)
        return reply->integer > 0 ? (uint64_t)reply->integer : 0;
    return reply->type == REDIS_REPLY_STRING ? strtoull(reply->str, NULL, 10)
                                             : 0;
}

static hf_status reply_nonsense(struct redis_conn *rc, struct hf_error *err)
{
    return hfi_fail(err, HF_PROTOCOL, "%s: an answer that makes no sense",
                    rc->base.endpoint);
}

/* SET NX PX GET tells a lost answer from another holder; servers before 7.0
 * have no GET there. */
static hf_status take_set(struct redis_conn *rc, const struct hfi_claim *claim,
                          int64_t deadline, struct hf_error *err)
{
    struct redis_names names;
    char ttl[24];
    const char *argv[] = {"SET",
                          names.text[REDIS_MAIN],
                          claim->owner ? claim->owner : claim->token,
                          "NX",
                          "PX",
                          ttl,
                          "GET"};
    redisReply *reply;
    hf_status st;

    redis_name(rc, claim->key, &names);
    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    st = redis_command(rc, 7, argv, &reply, deadline, err);
    if (st)
        return st;
    if (reply->type == REDIS_REPLY_NIL)
        st = HF_OK;
    else if (reply->type == REDIS_REPLY_STRING && !strcmp(reply->str, argv[2]))
        st = HF_OK;
    else
        st = HF_BUSY;
    freeReplyObject(reply);
    return st;
}

static hf_status take_setnx(struct redis_conn *rc,
                            const struct hfi_claim *claim, int64_t deadline,
                            struct hf_error *err)
{
    struct redis_names names;
    char ttl[24];
    const char *argv[] = {"EVAL",
                          redis_script_setnx,
                          "1",
                          names.text[REDIS_MAIN],
                          claim->owner ? claim->owner : claim->token,
                          ttl};
    redisReply *reply;
    hf_status st;

    redis_name(rc, claim->key, &names);
    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    st = redis_command(rc, 6, argv, &reply, deadline, err);
    if (st)
        return st;
    st = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1 ? HF_OK
                                                                   : HF_BUSY;
    freeReplyObject(reply);
    return st;
}

/* {1, fence} or {0, ms left, place}. */
static hf_status take_read(struct redis_conn *rc, const redisReply *reply,
                           struct hfi_grant *grant, struct hfi_busy *busy,
                           struct hf_error *err)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 2 ||
        reply->element[0]->type != REDIS_REPLY_INTEGER)
        return reply_nonsense(rc, err);
    if (reply->element[0]->integer == 1) {
        grant->fence = reply_number(reply->element[1]);
        return grant->fence ? HF_OK : reply_nonsense(rc, err);
    }
    if (reply->elements < 3)
        return reply_nonsense(rc, err);
    busy->left_ms = (int64_t)reply_number(reply->element[1]);
    busy->place = (int32_t)reply_number(reply->element[2]);
    return HF_BUSY;
}

static hf_status take_fenced(struct redis_conn *rc,
                             const struct hfi_claim *claim,
                             struct hfi_grant *grant, struct hfi_busy *busy,
                             int64_t deadline, struct hf_error *err)
{
    int64_t wait = claim->ttl_ms > PATIENCE_MIN ? claim->ttl_ms : PATIENCE_MIN;
    char ttl[24], patience[24];
    const char *argv[] = {ttl, claim->note ? claim->note : "", rc->channel,
                          claim->queue ? "1" : "0", patience};
    redisReply *reply;
    hf_status st;

    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    snprintf(patience, sizeof(patience), "%" PRId64, wait);
    st = redis_step(rc, 'A', claim, 5, argv, &reply, deadline, err);
    if (st)
        return st;
    st = take_read(rc, reply, grant, busy, err);
    freeReplyObject(reply);
    return st;
}

/* The grant counts only once enough replicas have it. */
static hf_status take_wait(struct redis_conn *rc, int64_t deadline,
                           struct hf_error *err)
{
    int64_t left = hfi_left_ms(deadline) / 2;
    char want[16], limit[24];
    const char *argv[] = {"WAIT", want, limit};
    redisReply *reply;
    long long got;
    hf_status st;

    snprintf(want, sizeof(want), "%d", rc->replicas);
    snprintf(limit, sizeof(limit), "%" PRId64, left > 0 ? left : 1);
    st = redis_command(rc, 3, argv, &reply, deadline, err);
    if (st)
        return st;
    got = reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
    freeReplyObject(reply);
    if (got >= rc->replicas)
        return HF_OK;
    return hfi_fail(err, HF_UNAVAILABLE,
                    "%s: only %lld of %d replicas confirmed the lock",
                    rc->base.endpoint, got, rc->replicas);
}

static hf_status redis_release(struct hfi_conn *, const struct hfi_claim *,
                               struct hfi_grant *, int64_t deadline,
                               struct hf_error *);

static hf_status redis_try_acquire(struct hfi_conn *conn,
                                   const struct hfi_claim *claim,
                                   struct hfi_grant *grant,
                                   struct hfi_busy *busy, int64_t deadline,
                                   struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    hf_status st;

    if (grant->ref.ints[0]) /* watched: be connected before the try */
        redis_sub_ensure(rc, deadline, NULL);
    if (rc->acquire == REDIS_SET)
        st = take_set(rc, claim, deadline, err);
    else if (rc->acquire == REDIS_SETNX)
        st = take_setnx(rc, claim, deadline, err);
    else
        st = take_fenced(rc, claim, grant, busy, deadline, err);
    if (st == HF_OK && rc->replicas) {
        st = take_wait(rc, deadline, err);
        if (st)
            redis_release(conn, claim, grant, hfi_now() + 1000, NULL);
    }
    if (st == HF_OK)
        grant->placed = true;
    else if (st == HF_BUSY)
        grant->placed = claim->queue && rc->acquire == REDIS_FENCED;
    return st;
}

/* ---- keeping and giving back ------------------------------------------- */

static void renew_read(struct redis_conn *rc, struct hfi_renewal *item,
                       const redisReply *reply, struct hf_error *err)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        item->st = redis_error(rc, reply, err);
    } else if (reply->type != REDIS_REPLY_INTEGER) {
        item->st = reply_nonsense(rc, err);
    } else {
        item->st = reply->integer == 1 ? HF_OK : HF_LOST;
        item->reason = reply->integer == 2 ? HF_LOSS_STOLEN : HF_LOSS_DELETED;
    }
}

/* All of them in one go; true if the script must be loaded first. */
static bool renew_once(struct redis_conn *rc, struct hfi_renewal *items,
                       size_t n, bool whole, int64_t deadline,
                       struct hf_error *err)
{
    redisReply **replies = hfi_alloc(n * sizeof(redisReply *));
    struct redis_batch batch = {0};
    bool noscript = false;
    char ttl[24];
    const char *argv[] = {ttl, "0"};
    hf_status st;
    size_t i;

    for (i = 0; replies && i < n; i++) {
        snprintf(ttl, sizeof(ttl), "%" PRId64, items[i].ttl_ms);
        argv[1] = items[i].ttl_ms < items[i].claim->ttl_ms ? "1" : "0";
        redis_step_add(rc, &batch, 'R', items[i].claim, 2, argv,
                       whole && i == 0);
    }
    st = replies ? redis_batch_send(rc, &batch, replies, deadline, err)
                 : hfi_nomem(err);
    for (i = 0; i < n; i++) {
        if (st) {
            items[i].st = st;
            continue;
        }
        noscript = noscript || redis_is_noscript(replies[i]);
        renew_read(rc, &items[i], replies[i], err);
        freeReplyObject(replies[i]);
    }
    redis_batch_free(&batch);
    hfi_free(replies);
    return noscript;
}

static void redis_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                        size_t n, int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;

    if (renew_once(rc, items, n, false, deadline, err))
        renew_once(rc, items, n, true, deadline, err);
}

static hf_status redis_release(struct hfi_conn *conn,
                               const struct hfi_claim *claim,
                               struct hfi_grant *grant, int64_t deadline,
                               struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    redisReply *reply;
    bool done;
    hf_status st = redis_step(rc, 'L', claim, 0, NULL, &reply, deadline, err);

    if (st)
        return st;
    done = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
    freeReplyObject(reply);
    grant->placed = false;
    return done ? HF_OK
                : hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                           conn->endpoint);
}

/* ---- waking ------------------------------------------------------------ */

static hf_status redis_watch(struct hfi_conn *conn,
                             const struct hfi_claim *claim,
                             struct hfi_grant *grant, int64_t deadline,
                             struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    const char *argv[] = {rc->channel};
    redisReply *reply;
    hf_status st = redis_sub_ensure(rc, deadline, err);

    if (st)
        return st;
    grant->ref.ints[0] = 1;
    if (!grant->fence)
        return HF_OK;
    st = redis_step(rc, 'H', claim, 1, argv, &reply, deadline, err);
    if (st)
        return st;
    if (reply_number(reply) > 0)
        hfi_wanted(conn, claim->key);
    freeReplyObject(reply);
    return HF_OK;
}

static void redis_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                          struct hfi_grant *grant)
{
    (void)conn;
    (void)claim;
    grant->ref.ints[0] = 0;
}

static hf_status redis_attach(struct hfi_conn *conn,
                              const struct hfi_claim *claim,
                              const struct hf_handle *handle,
                              struct hfi_grant *grant, struct hf_error *err)
{
    (void)conn;
    (void)claim;
    (void)err;
    grant->fence = handle->fence;
    return HF_OK; /* The renewal that follows tells whether it is there. */
}

/* ---- looking and mending ----------------------------------------------- */

/* {value, ms left, fence, note, since, now, waiters, owners} */
static hf_status look_read(struct redis_conn *rc, const redisReply *reply,
                           struct hf_info *ret, struct hf_error *err)
{
    redisReply **item = reply->element;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 8)
        return reply_nonsense(rc, err);
    ret->fence = reply_number(item[2]);
    ret->waiters = (int32_t)reply_number(item[6]);
    ret->held = item[0]->type == REDIS_REPLY_STRING;
    if (!ret->held)
        return HF_OK;
    ret->holders = (int32_t)reply_number(item[7]);
    if (!ret->holders)
        ret->holders = 1;
    ret->left_ms = item[1]->type == REDIS_REPLY_INTEGER ? item[1]->integer : -1;
    if (item[4]->type == REDIS_REPLY_STRING)
        ret->since_ms =
            (int64_t)(reply_number(item[5]) - reply_number(item[4]));
    snprintf(ret->owner, sizeof(ret->owner), "%s", item[0]->str);
    if (item[3]->type == REDIS_REPLY_STRING)
        snprintf(ret->note, sizeof(ret->note), "%s", item[3]->str);
    return HF_OK;
}

static hf_status redis_inspect(struct hfi_conn *conn, const char *key,
                               struct hf_info *ret, int64_t deadline,
                               struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct hfi_claim claim = {.key = key};
    redisReply *reply;
    hf_status st = redis_step(rc, 'I', &claim, 0, NULL, &reply, deadline, err);

    if (st)
        return st;
    st = look_read(rc, reply, ret, err);
    freeReplyObject(reply);
    return st;
}

/* A pattern that matches the prefix and nothing else. */
static void list_pattern(const struct redis_conn *rc, const char *prefix,
                         char *ret, size_t size)
{
    const char *parts[] = {rc->prefix, prefix};
    size_t len = 0;
    int i;

    for (i = 0; i < 2; i++) {
        const char *at;

        for (at = parts[i]; *at && len + 4 < size; at++) {
            if (strchr("*?[]\\^-", *at))
                ret[len++] = '\\';
            ret[len++] = *at;
        }
    }
    ret[len++] = '*';
    ret[len] = '\0';
}

/* One page of SCAN.  *more is false when the caller wants no more. */
static hf_status list_page(struct redis_conn *rc, const redisReply *keys,
                           hf_list_fn *fn, void *arg, bool *more,
                           int64_t deadline, struct hf_error *err)
{
    size_t i, skip = strlen(rc->prefix);
    struct hf_info info;
    hf_status st;

    for (i = 0; i < keys->elements && *more; i++) {
        const redisReply *key = keys->element[i];

        if (key->type != REDIS_REPLY_STRING || (size_t)key->len <= skip ||
            key->len > skip + HF_KEY_MAX || strlen(key->str) != key->len)
            continue;
        info = (struct hf_info){
            .size = sizeof(info), .left_ms = -1, .since_ms = -1};
        st = redis_inspect(&rc->base, key->str + skip, &info, deadline, err);
        if (st)
            return st;
        if (info.held)
            *more = fn(arg, key->str + skip, &info);
    }
    return HF_OK;
}

static hf_status redis_list(struct hfi_conn *conn, const char *prefix,
                            hf_list_fn *fn, void *arg, int64_t deadline,
                            struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    char cursor[32] = "0", pattern[2 * REDIS_NAME_MAX];
    const char *argv[] = {"SCAN",  cursor, "MATCH", pattern,
                          "COUNT", "500",  "TYPE",  "string"};
    redisReply *reply;
    bool more = true;
    hf_status st;

    list_pattern(rc, prefix, pattern, sizeof(pattern));
    do {
        st = redis_command(rc, 8, argv, &reply, deadline, err);
        if (st)
            return st;
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
            reply->element[0]->type != REDIS_REPLY_STRING ||
            reply->element[1]->type != REDIS_REPLY_ARRAY) {
            freeReplyObject(reply);
            return reply_nonsense(rc, err);
        }
        snprintf(cursor, sizeof(cursor), "%s", reply->element[0]->str);
        st = list_page(rc, reply->element[1], fn, arg, &more, deadline, err);
        freeReplyObject(reply);
    } while (!st && more && strcmp(cursor, "0") != 0);
    return st;
}

static hf_status redis_break(struct hfi_conn *conn, const char *key,
                             uint64_t fence, int64_t deadline,
                             struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct hfi_claim claim = {.key = key};
    char number[24];
    const char *argv[] = {number};
    redisReply *reply;
    bool done;
    hf_status st;

    snprintf(number, sizeof(number), "%" PRIu64, fence);
    st = redis_step(rc, 'B', &claim, 1, argv, &reply, deadline, err);
    if (st)
        return st;
    done = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
    freeReplyObject(reply);
    return done ? HF_OK
                : hfi_fail(err, HF_LOST, "%s: that grant is over",
                           conn->endpoint);
}

static const char *const redis_schemes[] = {"redis", "rediss", "redis+unix",
                                            "redis+sentinel", NULL};
static const char *const redis_options[] = {
    "prefix", "queue", "acquire", "replicas", "db",
    "ca",     "cert",  "key",     "verify",   NULL};

const struct hfi_backend hfi_backend_redis = {
    .schemes = redis_schemes,
    .options = redis_options,
    .conn_size = sizeof(struct redis_conn),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_QUEUED |
              HF_TRAIT_NOTIFY | HF_TRAIT_REENTRANT | HF_TRAIT_DETACH |
              HF_TRAIT_BREAK | HF_TRAIT_PROCESSES | HF_TRAIT_MACHINES,
    .open = redis_open,
    .close = redis_close,
    .try_acquire = redis_try_acquire,
    .renew = redis_renew,
    .release = redis_release,
    .watch = redis_watch,
    .unwatch = redis_unwatch,
    .pump_fd = redis_sub_fd,
    .pump = redis_sub_pump,
    .attach = redis_attach,
    .inspect = redis_inspect,
    .list = redis_list,
    .break_grant = redis_break,
};
