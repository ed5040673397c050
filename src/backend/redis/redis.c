/* SPDX-License-Identifier: MIT
 *
 * redis.c - one Redis or Valkey server, the master that Sentinel names, or a
 * cluster.
 *
 * ON THE WIRE  Each step is one script, so it happens whole or not at all
 *   (fenced.lua).  The lock itself is a plain string key with an expiry, as
 *   redis-py, node-redlock, redsync and others have it, so they and holdfast
 *   exclude each other on the same key.
 *
 * INVARIANTS
 *  (1) The key holds the token, or the owner id, of whoever has the lock; or,
 *      where a group has it, how it is used; each member stands beside it with an
 *      end of its own.
 *  (2) No step changes the key without having compared it.
 *  (3) Only relative times are sent, and no client's clock is stored.
 *  (4) The fence is max(last + 1, the server's clock in microseconds), taken in
 *      the step that grants.
 *
 * LEASE  The expiry of the key.  It is renewed as long as the key is ours and
 *   never set again once it is gone.
 *
 * DECISIONS
 *   One script for the fenced steps, because fence, queue and key must change
 *   together (fenced.lua).  The server pays for each argument, each command and
 *   each function of a script, so the script has four keys and few arguments,
 *   and handles the common cases before it defines a function.  Rejected:
 *   fewer keys with names that the script makes up, which a cluster forbids; a
 *   library of functions (7.0), which would stay on the server for good; MULTI
 *   with plain commands, of which the only one that makes a rising number by
 *   the clock, XADD, costs more than the whole script.
 *   Shared locks, permits and kept locks stand in the key as a word that no
 *   token and no owner id's grant can be, and their holders in the hash of the
 *   owners (group.lua): so the plain lock finds an empty key or a string, as
 *   before, and costs what it did; and libraries that know only the key, and
 *   older clients, find it taken.  Rejected: a fifth key, which every step would
 *   name and pay for; a sorted set by ends, which would keep a holder's end apart
 *   from the rest of it, and one may be evicted or moved without the other.
 *   Joining and leaving cost the same however many members there are: a lower
 *   bound of all ends says that none can have died, and the greatest end may be
 *   too late for a while (group.lua).  Where nobody waits, shared locks have a
 *   short way before any function is made (fast_share.lua); permits have one
 *   also where others wait, after a few of them (permit.lua, permit_pass.lua):
 *   making the functions took most of the server's time.
 *   Plain commands for acquire=set, where they say enough (unfenced.c).
 *   In a cluster a channel for each slot, not for each client: a sharded
 *   message reaches only the shard of its channel, and a script may publish
 *   only there.  The channel of a slot moves with its keys (wait.c).
 *   A release checks for subscribers (PUBSUB NUMSUB) before it publishes, and
 *   then notifies one waiter: a message is replicated, and may be heard where
 *   the script cannot count it.
 *   A node of a cluster that did not answer is probed by a thread of its own,
 *   and its locks fail at once until it answers, so that renewals on other
 *   nodes do not wait.  Rejected: one thread for all such nodes, which would
 *   wait for the one that hangs (cluster.c).
 *   +switch-master of Sentinel only causes a question, because it has no
 *   number and a sentinel may be behind the others (sentinel.c).
 *   Observed keys are tracked by the server, which knows of every change, and
 *   no script does anything for them (tracker.c).
 *   WAIT has a connection of its own and follows a renewal there, because it
 *   speaks only of what its own connection wrote (replicas.c).
 *
 * LIMITS  Replication is asynchronous: a fail-over can forget a grant, and the
 *   next one is then given early.  Its fence is larger, unless the new master's
 *   clock is behind by more than the fail-over took, and neither the client nor
 *   the server has heard of the old fence yet (acquire.c, renew.lua). replicas=K
 *   makes that unlikely, not impossible.  Expiry follows the server's wall
 *   clock.
 */
#include "redis.h"
#include "tracker.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

#define REDIS_PORT    6379
#define SENTINEL_PORT 26379
#define SPIN_US_MAX   10000

/* A peer that is silent for so long has vanished, and before the lease is over
 * in any case.  A call has a deadline of its own; this is for connections that
 * only listen. */
#define ALIVE_MS     INT64_C(15000)
#define ALIVE_MS_MIN INT64_C(1000)

/* ---- connecting -------------------------------------------------------- */

/* A new connection: those that listen may be to a server that hangs, or is not
 * the master any more.  Those who wait look again, and listen anew. */
static hf_status open_handshake(void *arg, struct mux_link *link,
                                int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = arg;
    hf_status st = redis_handshake(rc, link, deadline, err);

    if (st)
        return st;
    atomic_fetch_add(&rc->epoch, 1);
    if (atomic_load(&rc->sub.fd) >= 0)
        hfi_wake_all(&rc->base);
    tracker_stir(atomic_load(&rc->tracker));
    return HF_OK;
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
                    "holdfast-redis(7) lists them",
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
    rc->spin_us = HFI_SPIN_US;
    if (!st && hfi_url_param(url, "spin_us", NULL))
        st = open_number(url, "spin_us=", hfi_url_param(url, "spin_us", ""),
                         SPIN_US_MAX, &rc->spin_us, err);
    if (!st)
        st = redis_url_keep(url, &rc->keep_ms, err);
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

/* "redis+sentinel" and "rediss+sentinel" are the same but for TLS. */
static bool open_is(const struct hfi_url *url, const char *kind)
{
    const char *plus = strchr(url->scheme, '+');

    return plus && !strcmp(plus + 1, kind);
}

static bool open_is_tls(const struct hfi_url *url)
{
    return !strncmp(url->scheme, "rediss", 6);
}

/* Where it is: a socket's path, one host, or sentinels and a name. */
static hf_status open_where(struct redis_conn *rc, const struct hfi_url *url,
                            struct hf_error *err)
{
    bool sentinel = open_is(url, "sentinel");
    bool cluster = open_is(url, "cluster");
    const char *path = url->path;
    size_t i;

    if (open_is(url, "unix")) {
        if (url->nhosts || !*path || strlen(path) >= sizeof(rc->ends[0].host))
            return hfi_fail(err, HF_INVALID,
                            "url: redis+unix: takes the path of a socket");
        snprintf(rc->ends[0].host, sizeof(rc->ends[0].host), "%s", path);
        rc->nends = 1;
        return open_number(url, "db=", hfi_url_param(url, "db", "0"), 1 << 20,
                           &rc->db, err);
    }
    path += *path == '/';
    if (!url->nhosts || (url->nhosts > 1 && !sentinel && !cluster))
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

/* Is there a password in the file?  It is read again for each connection. */
static hf_status open_file(const char *file, const char *option, char **ret,
                           struct hf_error *err)
{
    char secret[REDIS_SECRET_MAX];
    hf_status st = redis_secret(file, option, secret, err);

    explicit_bzero(secret, sizeof(secret));
    if (st)
        return st;
    *ret = hfi_strdup(file);
    return *ret ? HF_OK : hfi_nomem(err);
}

/* The password may also come from a file, or from REDISCLI_AUTH, as redis-cli
 * has it. */
static hf_status open_secrets(struct redis_conn *rc, const struct hfi_url *url,
                              struct hf_error *err)
{
    const char *password = url->password;
    const char *user = url->user && *url->user ? url->user : NULL;
    const char *file = hfi_url_param(url, "password_file", NULL);

    if (file && password)
        return hfi_fail(err, HF_INVALID,
                        "url: has a password and password_file=");
    if (!password && !file)
        password = secure_getenv("REDISCLI_AUTH");
    rc->user = hfi_strdup(user);
    rc->password = hfi_strdup(password);
    if ((user && !rc->user) || (password && !rc->password))
        return hfi_nomem(err);
    return file ? open_file(file, "password_file=", &rc->password_file, err)
                : HF_OK;
}

/* The sentinels may want others.  The place for a password in the URL is the
 * server's; this one comes from a file. */
static hf_status open_sentinel_secrets(struct redis_conn *rc,
                                       const struct hfi_url *url,
                                       struct hf_error *err)
{
    const char *user = hfi_url_param(url, "sentinel_user", NULL);
    const char *file = hfi_url_param(url, "sentinel_password_file", NULL);
    if (!user && !file)
        return HF_OK;
    if (!rc->master[0] || !file)
        return hfi_fail(err, HF_INVALID, "url: %s",
                        file ? "sentinel_password_file= is for sentinels only"
                             : "sentinel_user= needs sentinel_password_file=");
    rc->sentinel_user = hfi_strdup(user);
    if (user && !rc->sentinel_user)
        return hfi_nomem(err);
    return open_file(
        file, "sentinel_password_file=", &rc->sentinel_password_file, err);
}

static hf_status open_names(struct redis_conn *rc, const struct hfi_url *url,
                            struct hf_error *err)
{
    char where[300];
    unsigned char id[8];
    int i;

    hfi_endpoint_name(&rc->ends[0], where, sizeof(where));
    snprintf(rc->base.endpoint, sizeof(rc->base.endpoint), "%s:%.200s",
             url->scheme, where);
    hfi_random(id, sizeof(id));
    for (i = 0; i < (int)sizeof(id); i++)
        snprintf(rc->id + 2 * i, 3, "%02x", id[i]);
    snprintf(rc->script_mode, sizeof(rc->script_mode), "%d%zu ", rc->fair,
             strlen(rc->prefix));
    rc->script = redis_script_make(rc->keep_ms);
    if (!rc->script)
        return hfi_nomem(err);
    rc->several = redis_script_make_several(rc->keep_ms);
    if (!rc->several)
        return hfi_nomem(err);
    redis_script_digest(rc->several, rc->several_id);
    redis_script_digest(rc->script, rc->script_id);
    redis_script_digest(redis_unfenced_script, rc->unfenced_id);
    return HF_OK;
}

/* A name, its value, the next name and so on. */
const char *redis_setting(const redisReply *reply, const char *name)
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

/* What follows "name:" in the lines of INFO, or "". */
static const char *open_info(const redisReply *info, const char *name)
{
    const char *at = info->type == REDIS_REPLY_STRING ? info->str : "";

    while ((at = strstr(at, name)))
        if (at[strlen(name)] == ':' && at > info->str && at[-1] == '\n')
            return at + strlen(name) + 1;
        else
            at++;
    return "";
}

static bool open_is_denied(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ERROR &&
           !strncmp(reply->str, "NOPERM", 6);
}

/* What is doubtful, by the answers to INFO and to a message that nobody
 * hears. */
static void open_doubts(struct redis_conn *rc, const redisReply *info,
                        const redisReply *told)
{
    size_t size = sizeof(rc->base.warning);
    const char *policy = open_info(info, "maxmemory_policy");

    if (strtoull(open_info(info, "maxmemory"), NULL, 10) && *policy &&
        strncmp(policy, "noeviction", 10) != 0)
        snprintf(rc->base.warning, size,
                 "the server evicts keys when it is full, and locks are keys: "
                 "set maxmemory-policy to noeviction");
    if (rc->acquire == REDIS_FENCED && open_is_denied(told)) {
        atomic_store(&rc->silent, true);
        if (!*rc->base.warning)
            snprintf(rc->base.warning, size, "%s", redis_silent_warning);
    }
    if (open_is_denied(info) && !*rc->base.warning)
        snprintf(rc->base.warning, size,
                 "this user may not ask whether the server evicts keys (INFO): "
                 "see \"Rights\" in holdfast-redis(7)");
}

/* Is it a Redis, would it throw locks away, and may we wake those who wait for
 * ours?  INFO tells the second also where CONFIG is kept from users, as hosted
 * servers do. */
static hf_status open_greet(struct redis_conn *rc, struct hfi_mux *mux,
                            int64_t deadline, struct hf_error *err)
{
    char channel[REDIS_CHANNEL_MAX];
    const char *ping[] = {"PING"}, *get[] = {"INFO", "memory"};
    const char *tell[] = {"SPUBLISH", channel, ""};
    struct redis_batch batch = {0};
    redisReply *reply[3];
    hf_status st;

    redis_channel(rc, "", channel);
    redis_batch_add(&batch, 1, ping);
    redis_batch_add(&batch, 2, get);
    redis_batch_add(&batch, 3, tell);
    st = redis_batch_send(rc, mux, &batch, reply, deadline, err);
    redis_batch_free(&batch);
    if (st)
        return st;
    if (reply[0]->type == REDIS_REPLY_ERROR)
        st = redis_error(rc, reply[0], err);
    else if (reply[0]->type != REDIS_REPLY_STATUS ||
             strcmp(reply[0]->str, "PONG") != 0)
        st = hfi_fail(err, HF_PROTOCOL, "%s: this is no redis server",
                      rc->base.endpoint);
    else
        open_doubts(rc, reply[1], reply[2]);
    freeReplyObject(reply[0]);
    freeReplyObject(reply[1]);
    freeReplyObject(reply[2]);
    return st;
}

/* Half the lease that locks have unless they say otherwise. */
static int64_t open_alive_ms(const struct hfi_url *url)
{
    int64_t ttl_ms = 2 * ALIVE_MS;

    if (hfi_url_duration(url, "ttl", &ttl_ms, NULL) || ttl_ms > 2 * ALIVE_MS)
        return ALIVE_MS;
    return ttl_ms > 2 * ALIVE_MS_MIN ? ttl_ms / 2 : ALIVE_MS_MIN;
}

static hf_status redis_open(struct hfi_conn *conn, const struct hfi_url *url,
                            int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    hf_status st;
    size_t i;

    hfi_mux_init(&rc->mux, redis_find, open_handshake, rc);
    hfi_mux_set_aside(&rc->mux, redis_handshake);
    rc->epoll = rc->follow.timer = -1;
    redis_sub_init(&rc->sub, rc, &rc->mux, REDIS_ALONE);
    hfi_mux_init(&rc->replica_link.mux, redis_find, redis_handshake, rc);
    rc->replica_link.mux.blocks = true;
    rc->opened = true;
    st = open_options(rc, url, err);
    if (!st)
        st = open_where(rc, url, err);
    if (!st)
        st = open_secrets(rc, url, err);
    if (!st)
        st = open_sentinel_secrets(rc, url, err);
    if (!st && open_is_tls(url))
        st = hfi_tls_new(&rc->tls, url, err);
    if (!st && (rc->password || rc->password_file))
        hfi_warn_passwords(conn->warning, sizeof(conn->warning), url,
                           hfi_tls_is_verified(rc->tls));
    if (!st && rc->master[0])
        st = redis_follow_open(rc, err);
    if (st)
        return st;
    for (i = 0; i < rc->nends; i++) {
        rc->ends[i].tls = rc->tls;
        rc->ends[i].alive_ms = open_alive_ms(url);
        rc->ends[i].spin_us = rc->spin_us;
        rc->ends[i].traffic = &rc->base.traffic;
    }
    st = open_names(rc, url, err);
    if (st)
        return st;
    if (!open_is(url, "cluster") && !rc->replicas &&
        rc->acquire == REDIS_FENCED)
        rc->base.traits |= HFI_TRAIT_AHEAD; /* ahead.c (3) */
    if (!open_is(url, "cluster"))
        return open_greet(rc, &rc->mux, deadline, err);
    st = redis_cluster_open(rc, deadline, err);
    return st ? st : open_greet(rc, redis_route(rc, ""), deadline, err);
}

static void close_secret(char *secret)
{
    if (secret)
        explicit_bzero(secret, strlen(secret));
    hfi_free(secret);
}

static void redis_close(struct hfi_conn *conn)
{
    struct redis_conn *rc = (struct redis_conn *)conn;

    if (!rc->opened)
        return;
    tracker_free(atomic_load(&rc->tracker));
    redis_cluster_close(rc);
    redis_follow_close(rc);
    redis_sub_fini(&rc->sub);
    if (rc->epoll >= 0)
        close(rc->epoll);
    hfi_mux_fini(&rc->mux);
    hfi_mux_fini(&rc->replica_link.mux);
    if (rc->tls)
        hfi_tls_free(rc->tls);
    close_secret(rc->password);
    hfi_free(rc->password_file);
    hfi_free(rc->sentinel_password_file);
    hfi_free(rc->script);
    hfi_free(rc->several);
    hfi_free(rc->user);
    hfi_free(rc->sentinel_user);
    rc->opened = false;
}

static void redis_after_fork_child(struct hfi_conn *conn)
{
    struct redis_conn *rc = (struct redis_conn *)conn;

    hfi_mux_after_fork_child(&rc->mux);
    hfi_mux_after_fork_child(&rc->replica_link.mux);
    redis_sub_after_fork_child(&rc->sub);
    tracker_after_fork_child(atomic_load(&rc->tracker));
    redis_cluster_after_fork_child(rc);
    redis_follow_after_fork_child(rc);
    if (rc->epoll >= 0)
        close(rc->epoll);
}

static const char *const redis_schemes[] = {
    "redis",           "rediss",        "redis+unix",     "redis+sentinel",
    "rediss+sentinel", "redis+cluster", "rediss+cluster", NULL};
static const char *const redis_options[] = {"prefix",
                                            "queue",
                                            "acquire",
                                            "replicas",
                                            "spin_us",
                                            "db",
                                            "keep",
                                            "ca",
                                            "cert",
                                            "key",
                                            "verify",
                                            "password_file",
                                            "sentinel_user",
                                            "sentinel_password_file",
                                            NULL};

const struct hfi_backend hfi_backend_redis = {
    .schemes = redis_schemes,
    .options = redis_options,
    .conn_size = sizeof(struct redis_conn),
    .grant_size = sizeof(struct redis_grant),
    .observation_size = sizeof(struct tracker_watch),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_QUEUED |
              HF_TRAIT_NOTIFY | HF_TRAIT_REENTRANT | HF_TRAIT_DETACH |
              HF_TRAIT_BREAK | HF_TRAIT_PROCESSES | HF_TRAIT_MACHINES |
              HF_TRAIT_NOTED | HF_TRAIT_SHARED | HF_TRAIT_PERMITS |
              HF_TRAIT_MIN_HOLD,
    .varies = HF_TRAIT_FENCED | HF_TRAIT_QUEUED | HF_TRAIT_NOTIFY |
              HF_TRAIT_REENTRANT | HF_TRAIT_BREAK | HF_TRAIT_NOTED |
              HF_TRAIT_SHARED | HF_TRAIT_PERMITS | HF_TRAIT_MIN_HOLD,
    .no_permits = "acquire=set and acquire=script write nothing but the key",
    .no_min_hold = "acquire=set and acquire=script write nothing but the key",
    .page = "redis",
    .tested = "Redis 6.0, 7.0, 8.0, 8.6; Valkey 8.0, 8.1, 9",
    .open = redis_open,
    .close = redis_close,
    .after_fork_child = redis_after_fork_child,
    .try_acquire = redis_try_acquire,
    .send_ahead = redis_send_ahead,
    .try_acquire_all = redis_try_acquire_all,
    .renew = redis_renew,
    .release = redis_release,
    .keep = redis_keep,
    .downgrade = redis_downgrade,
    .watch = redis_watch,
    .unwatch = redis_unwatch,
    .poll_fd = redis_poll_fd,
    .dispatch = redis_dispatch,
    .attach = redis_attach,
    .take_over = redis_take_over,
    .inspect = redis_inspect,
    .inspect_several = redis_inspect_several,
    .list = redis_list,
    .holders = redis_holders,
    .waiters = redis_waiters,
    .break_grant = redis_break,
    .free_grant = redis_free,
    .observe = redis_observe,
    .unobserve = redis_unobserve,
    .promote = redis_promote,
    .collect = redis_collect,
};
