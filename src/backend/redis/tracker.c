/* SPDX-License-Identifier: MIT
 *
 * tracker.c - servers that tell when keys change.
 *
 * Redis remembers which keys a connection has read, if that asks for it, and
 * tells it once when one of them is changed, by whomever, or expires, or is
 * flushed (CLIENT TRACKING, since 6.0).  Keys that nobody observes cost nothing,
 * no script knows of any of this, and what other libraries do with a key is told
 * as well.  Rejected: a mark that the scripts read and a channel for what they
 * do, which would say nothing of an expiry, of another library or of a flush,
 * would make a release read what it does not read today, and cannot be had for
 * a prefix; keyspace notifications, which an operator must switch on and which
 * cost every key.
 *
 * To each server that has an observed key there are two connections: one that
 * reads, and one that is told, because a connection that is subscribed cannot
 * read.  For a prefix the latter asks for all keys that begin with it (BCAST):
 * then the server compares every key that it changes with the prefixes, which is
 * the price of observing one.  A server without the command, or a user without
 * the right, is HF_UNSUPPORTED, and the core polls.
 *
 * INVARIANTS
 *  (1) A key is armed, by reading it, before the core is told to look at it.  So
 *      the look finds the change, or comes before another message.
 *  (2) A message takes the mark `armed` away; the thread arms the key again and
 *      only then tells the core.
 *  (3) Both connections end together, and what was armed on them counts no more.
 *      The core is told to look, which says whether the server is there.  When
 *      they are there again each key is armed anew, and (1) tells the core to
 *      look at it: what happened meanwhile is found by that look.
 *  (4) The thread never waits for long: not for a server that does not answer,
 *      and for no lock of the core while it waits for one.
 *  (5) The core is told with the mutex held, and unobserve() takes it: no upcall
 *      is under way after that.
 *  (6) There are connections only while something is observed.
 *  (7) observe() waits for one round of the thread, which tries every server that
 *      is not to be left alone for a while.  What failed in it is tried again
 *      by the core, which polls meanwhile: nobody, and hf_close() least of all,
 *      waits for tries that are still to come.
 *  (8) A key that may not be read ends nothing: the connections are those of all
 *      keys.  They do not ask for it again; new ones do.
 */
#include "tracker.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/mutant.h"
#include "redis.h"

#include "base/banned.h"

#define TRACKER_CALL_MS   1000 /* to connect, or for an answer */
#define TRACKER_PAUSE_MS  100  /* until what failed is tried again, at least, */
#define TRACKER_PAUSE_MAX 5000 /* and at most */

static const char tracker_channel[] = "__redis__:invalidate";

struct tracker_link {
    struct mux_link *reader, *told;
    atomic_int fds[2];        /* of both, or -1 */
    unsigned made;            /* counts them; 0: there were none yet */
    unsigned epoch, prefixes; /* at that time */
    int64_t pause, retry_at;  /* after a failure */
};

struct redis_tracker {
    struct hfi_conn *conn;
    const struct tracker_servers *servers;
    void *arg;
    const char *prefix;
    int wake;                                   /* eventfd */
    struct tracker_link links[TRACKER_SERVERS]; /* the thread's */

    pthread_mutex_t mu; /* guards what follows */
    struct hfi_cond armed;
    struct hfi_thread thread;
    bool running, closing;
    hf_status refused;           /* HF_UNSUPPORTED, once a server said so */
    uint64_t begun, ended;       /* rounds */
    struct hfi_map keys;         /* of struct tracker_watch */
    struct tracker_watch *below; /* those of prefixes */
    unsigned prefixes;           /* another number when they are others */
    struct tracker_watch *all;   /* every key's, by `next` */
};

/* ---- connections ------------------------------------------------------- */

static void link_close(struct tracker_link *link, int64_t now)
{
    atomic_store(&link->fds[0], -1);
    atomic_store(&link->fds[1], -1);
    hfi_mux_close(link->reader);
    hfi_mux_close(link->told);
    link->reader = link->told = NULL;
    link->pause =
        link->pause < TRACKER_PAUSE_MAX ? 2 * link->pause : TRACKER_PAUSE_MAX;
    link->retry_at = now + link->pause;
}

/* One command; an error reply becomes a status, and is told to the servers. */
static hf_status link_ask(struct redis_tracker *tr, unsigned server,
                          struct mux_link *link, int argc, const char **argv,
                          long long *number, int64_t deadline)
{
    struct redis_batch batch = {0};
    redisReply *reply = NULL;
    hf_status st;

    redis_batch_add(&batch, argc, argv);
    st = batch.failed ? HF_SYSTEM
                      : hfi_mux_exchange(link, batch.bytes, batch.len, &reply,
                                         deadline, NULL);
    redis_batch_free(&batch);
    if (st)
        return st;
    if (number)
        *number = reply->integer;
    if (reply->type == REDIS_REPLY_ERROR) {
        st = redis_error_from_reply("", reply, NULL);
        tr->servers->refused(tr->arg, server, reply);
    }
    freeReplyObject(reply);
    return st;
}

/* Is the prefix covered by a shorter one?  The server takes none that overlap.
 */
static bool prefix_is_covered(const struct tracker_watch *all,
                              const struct tracker_watch *watch)
{
    const char *text = watch->of->key;

    for (; all; all = all->next)
        if (all != watch && !strncmp(all->of->key, text, strlen(all->of->key)))
            return true;
    return false;
}

/* CLIENT TRACKING on REDIRECT ID [BCAST PREFIX a PREFIX {a ...]; -1: no memory.
 * The text is the caller's to free. */
static int prefix_say(struct redis_tracker *tr, const char ***ret, char **text)
{
    size_t n = 0, size = 0, len = strlen(tr->prefix);
    struct tracker_watch *w;
    const char **argv;
    char *at;
    int argc = 6;

    for (w = tr->below; w; w = w->next, n++)
        size += 2 * (len + strlen(w->of->key) + 2);
    argv = hfi_alloc((6 + 4 * n) * sizeof(*argv));
    at = *text = hfi_alloc(size + 1);
    *ret = argv;
    if (!argv || !at)
        return -1;
    argv[5] = "BCAST";
    for (w = tr->below; w; w = w->next) {
        if (prefix_is_covered(tr->below, w))
            continue;
        argv[argc++] = "PREFIX";
        argv[argc++] = at;
        at += snprintf(at, size, "%s%s", tr->prefix, w->of->key) + 1;
        argv[argc++] = "PREFIX";
        argv[argc++] = at;
        at += snprintf(at, size, "{%s%s", tr->prefix, w->of->key) + 1;
    }
    return argc;
}

/* Have the connection told of all that begins with the prefixes, if any. */
static hf_status link_broadcast(struct redis_tracker *tr, unsigned server,
                                struct tracker_link *link, const char *id,
                                int64_t deadline)
{
    const char **argv = NULL;
    char *text = NULL;
    hf_status st = HF_OK;
    int argc = 0;

    pthread_mutex_lock(&tr->mu);
    link->prefixes = tr->prefixes;
    if (tr->below)
        argc = prefix_say(tr, &argv, &text);
    pthread_mutex_unlock(&tr->mu);
    if (argc > 0) {
        argv[0] = "CLIENT";
        argv[1] = "TRACKING";
        argv[2] = "on";
        argv[3] = "REDIRECT";
        argv[4] = id;
        st = link_ask(tr, server, link->told, argc, argv, NULL, deadline);
    }
    hfi_free(argv);
    hfi_free(text);
    return argc < 0 ? HF_SYSTEM : st;
}

static hf_status link_begin(struct redis_tracker *tr, unsigned server,
                            struct tracker_link *link, int64_t deadline)
{
    const char *who[] = {"CLIENT", "ID"};
    const char *listen[] = {"SUBSCRIBE", tracker_channel};
    const char *track[] = {"CLIENT", "TRACKING", "on", "REDIRECT", NULL};
    struct hfi_mux *mux = tr->servers->mux(tr->arg, server);
    long long number = 0;
    char id[24];
    hf_status st = hfi_mux_open(mux, deadline, &link->told, NULL);

    if (!st)
        st = link_ask(tr, server, link->told, 2, who, &number, deadline);
    snprintf(id, sizeof(id), "%lld", number);
    track[4] = id;
    if (!st)
        st = link_broadcast(tr, server, link, id, deadline);
    if (!st)
        st = link_ask(tr, server, link->told, 2, listen, NULL, deadline);
    if (!st)
        st = hfi_mux_open(mux, deadline, &link->reader, NULL);
    if (!st)
        st = link_ask(tr, server, link->reader, 5, track, NULL, deadline);
    return st;
}

/* Connect, if it is not.  tracker.c (3) */
static bool link_have(struct redis_tracker *tr, unsigned server)
{
    struct tracker_link *link = &tr->links[server];
    int64_t now = hfi_now();
    hf_status st;

    if (link->told)
        return true;
    if (now < link->retry_at)
        return false;
    link->epoch = tr->servers->epoch(tr->arg);
    st = link_begin(tr, server, link, now + TRACKER_CALL_MS);
    if (st) {
        link_close(link, hfi_now());
        pthread_mutex_lock(&tr->mu);
        if (st == HF_UNSUPPORTED || st == HF_DENIED)
            tr->refused = HF_UNSUPPORTED;
        hfi_cond_wake(&tr->armed);
        pthread_mutex_unlock(&tr->mu);
        return false;
    }
    link->made++;
    link->pause = TRACKER_PAUSE_MS / 2;
    atomic_store(&link->fds[0], hfi_mux_fd(link->told));
    atomic_store(&link->fds[1], hfi_mux_fd(link->reader));
    return true;
}

/* ---- arming ------------------------------------------------------------ */

/* By how many servers is it told of? */
static unsigned watch_count(struct redis_tracker *tr,
                            const struct tracker_watch *watch)
{
    unsigned i, n = tr->servers->count(tr->arg), ret = 0;

    for (i = 0; i < n; i++)
        ret += tr->links[i].told && watch->armed[i] == tr->links[i].made &&
               !watch->denied[i];
    return ret;
}

static bool watch_is_denied(struct redis_tracker *tr,
                            const struct tracker_watch *watch)
{
    unsigned i, n = tr->servers->count(tr->arg);

    for (i = 0; i < n; i++)
        if (watch->denied[i])
            return true;
    return false;
}

/* With the mutex held: the core may look, and those who wait for that. */
static void watch_tell(struct redis_tracker *tr, struct tracker_watch *watch)
{
    if (watch_count(tr, watch) < tr->servers->enough(tr->arg))
        return;
    if (watch->ready)
        hfi_changed(tr->conn, watch->of, NULL);
    watch->ready = true;
    hfi_cond_wake(&tr->armed);
}

/* The connections broke: what this server told of it does not any more.
 * tracker.c (3) */
static void watch_lost(struct redis_tracker *tr, unsigned server)
{
    struct tracker_watch *w;
    unsigned made = tr->links[server].made;
    int i;

    link_close(&tr->links[server], hfi_now());
    pthread_mutex_lock(&tr->mu);
    for (i = 0; i < 2; i++)
        for (w = i ? tr->below : tr->all; w; w = w->next)
            if (w->ready && w->armed[server] == made)
                hfi_changed(tr->conn, w->of, NULL);
    pthread_mutex_unlock(&tr->mu);
}

/* A key that this server has and does not tell of: its names. */
static bool watch_next(struct redis_tracker *tr, unsigned server,
                       struct tracker_names *ret)
{
    struct tracker_link *link = &tr->links[server];
    struct tracker_watch *w;

    pthread_mutex_lock(&tr->mu);
    for (w = tr->all; w; w = w->next)
        if ((!link->told || w->armed[server] != link->made) &&
            tr->servers->has(tr->arg, server, w->of->key))
            break;
    if (w)
        tr->servers->name(tr->arg, w->of->key, ret);
    pthread_mutex_unlock(&tr->mu);
    return w != NULL;
}

/* The server has answered.  Where it does not tell any more, the core finds out
 * why.  tracker.c (8) */
static void watch_armed(struct redis_tracker *tr, unsigned server,
                        const char *lock, bool denied)
{
    struct hfi_node *node;
    struct tracker_watch *w;

    pthread_mutex_lock(&tr->mu);
    node = hfi_map_find(&tr->keys, lock);
    if (node) {
        w = hfi_container(node, struct tracker_watch, node);
        w->armed[server] = tr->links[server].made;
        w->denied[server] = denied;
        if (!denied)
            watch_tell(tr, w);
        else if (w->ready)
            hfi_changed(tr->conn, w->of, NULL);
    }
    pthread_mutex_unlock(&tr->mu);
}

/* Those of prefixes are told of since the connection was begun. */
static void watch_below(struct redis_tracker *tr, unsigned server)
{
    struct tracker_link *link = &tr->links[server];
    struct tracker_watch *w;

    pthread_mutex_lock(&tr->mu);
    for (w = tr->below; w; w = w->next) {
        if (link->prefixes != tr->prefixes || w->armed[server] == link->made)
            continue;
        w->armed[server] = link->made;
        watch_tell(tr, w);
    }
    pthread_mutex_unlock(&tr->mu);
}

/* Arm what the server has.  False: not all of it. */
static bool watch_server(struct redis_tracker *tr, unsigned server)
{
    struct tracker_link *link = &tr->links[server];
    struct tracker_names names;
    const char *argv[] = {"EXISTS", names.lock, names.beside, names.meta};
    hf_status st;
    bool below;

    pthread_mutex_lock(&tr->mu);
    below = tr->below && tr->servers->has(tr->arg, server, NULL);
    pthread_mutex_unlock(&tr->mu);
    if (link->told && (link->epoch != tr->servers->epoch(tr->arg) ||
                       link->prefixes != tr->prefixes)) {
        link_close(link, hfi_now());
        link->retry_at = 0;
    }
    if (below && !link_have(tr, server))
        return false;
    if (below)
        watch_below(tr, server);
    while (watch_next(tr, server, &names)) {
        if (!link_have(tr, server))
            return false;
        st = link_ask(tr, server, link->reader, names.meta[0] ? 4 : 3, argv,
                      NULL, hfi_now() + TRACKER_CALL_MS);
        if (st && st != HF_DENIED) {
            watch_lost(tr, server);
            return false;
        }
        watch_armed(tr, server, names.lock, st == HF_DENIED);
    }
    return true;
}

/* ---- messages ---------------------------------------------------------- */

/* The lock that a key belongs to: itself, or of "{TAG}:what:REST" the rest, or
 * the tag. */
static bool heard_lock(const char *name, char *ret, size_t size)
{
    const char *end = *name == '{' ? strstr(name, "}:") : NULL;
    const char *rest = end ? strchr(end + 2, ':') : NULL;

    if (!rest)
        return (size_t)snprintf(ret, size, "%s", name) < size;
    if (rest[1])
        return (size_t)snprintf(ret, size, "%s", rest + 1) < size;
    return (size_t)snprintf(ret, size, "%.*s", (int)(end - name - 1),
                            name + 1) < size;
}

/* Does it tell of the lock, or of a hash of its holders?  Where there are queues
 * these, and what is kept of a grant, change with every waiter. */
static bool heard_counts(const struct redis_tracker *tr, const char *name)
{
    return *name != '{' || strstr(name, "}:owners:") ||
           strstr(name, "}:readers:") ||
           (tr->servers->meta && strstr(name, "}:meta:"));
}

static void heard_name(struct redis_tracker *tr, unsigned server,
                       const char *name)
{
    size_t len = strlen(tr->prefix);
    char lock[TRACKER_NAME_MAX];
    struct hfi_node *node;
    struct tracker_watch *w;

    if (!heard_counts(tr, name) || !heard_lock(name, lock, sizeof(lock)))
        return;
    node = hfi_map_find(&tr->keys, lock);
    w = node ? hfi_container(node, struct tracker_watch, node) : NULL;
    if (w && HFI_MUTANT(observed_once))
        hfi_changed(tr->conn, w->of, NULL);
    else if (w) /* tracker.c (2) */
        w->armed[server] = 0;
    for (w = tr->below; w; w = w->next)
        if (!strncmp(lock, tr->prefix, len) &&
            !strncmp(lock + len, w->of->key, strlen(w->of->key)))
            hfi_changed(tr->conn, w->of, lock + len);
}

/* Everything was flushed. */
static void heard_flush(struct redis_tracker *tr, unsigned server)
{
    struct tracker_watch *w;

    for (w = tr->all; w; w = w->next)
        w->armed[server] = 0;
    for (w = tr->below; w; w = w->next)
        hfi_changed(tr->conn, w->of, NULL);
}

static void heard(struct redis_tracker *tr, unsigned server,
                  const redisReply *reply)
{
    const redisReply *names;
    size_t i;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        reply->element[1]->type != REDIS_REPLY_STRING ||
        strcmp(reply->element[1]->str, tracker_channel) != 0)
        return;
    names = reply->element[2];
    pthread_mutex_lock(&tr->mu);
    if (names->type == REDIS_REPLY_NIL)
        heard_flush(tr, server);
    for (i = 0; names->type == REDIS_REPLY_ARRAY && i < names->elements; i++)
        if (names->element[i]->type == REDIS_REPLY_STRING)
            heard_name(tr, server, names->element[i]->str);
    pthread_mutex_unlock(&tr->mu);
}

/* Take in what has come.  False: the connections are gone. */
static bool hear(struct redis_tracker *tr, unsigned server)
{
    struct tracker_link *link = &tr->links[server];
    redisReply *reply;
    hf_status st;

    do {
        reply = NULL;
        st = hfi_mux_hear(link->told, &reply);
        if (!st && reply)
            heard(tr, server, reply);
        if (reply)
            freeReplyObject(reply);
    } while (!st && reply);
    if (!st)
        st = hfi_mux_hear(link->reader, &reply);
    if (!st && !reply)
        return true;
    if (reply)
        freeReplyObject(reply);
    watch_lost(tr, server);
    return false;
}

/* ---- the thread -------------------------------------------------------- */

static void tracker_close_all(struct redis_tracker *tr)
{
    unsigned i;

    for (i = 0; i < TRACKER_SERVERS; i++)
        if (tr->links[i].told)
            link_close(&tr->links[i], 0);
}

/* Arm what is not, and take in what has come; false if there is more to be done
 * after a pause. */
static bool tracker_round(struct redis_tracker *tr)
{
    unsigned i, n = tr->servers->count(tr->arg);
    bool done = true;

    for (i = 0; i < n && i < TRACKER_SERVERS; i++) {
        done = watch_server(tr, i) && done;
        if (tr->links[i].told)
            done = hear(tr, i) && done;
    }
    return done;
}

/* Has a message taken away what was armed?  Then there is no need to wait. */
static bool tracker_has_work(struct redis_tracker *tr)
{
    struct tracker_names names;
    unsigned i, n = tr->servers->count(tr->arg);

    for (i = 0; i < n && i < TRACKER_SERVERS; i++)
        if (tr->links[i].told && watch_next(tr, i, &names))
            return true;
    return false;
}

static void tracker_wait(struct redis_tracker *tr, int ms)
{
    struct pollfd fds[2 * TRACKER_SERVERS + 1];
    uint64_t count;
    nfds_t n = 1;
    unsigned i, k;
    int fd;

    fds[0] = (struct pollfd){.fd = tr->wake, .events = POLLIN};
    for (i = 0; i < TRACKER_SERVERS; i++) {
        for (k = 0; k < 2; k++) {
            fd = atomic_load(&tr->links[i].fds[k]);
            if (tr->links[i].told && fd >= 0)
                fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
    }
    if (poll(fds, n, ms) > 0 && fds[0].revents)
        while (read(tr->wake, &count, sizeof(count)) < 0 && errno == EINTR)
            continue;
}

/* A round is over: those who wait for it have what it could give them.
 * tracker.c (7) */
static void tracker_ended(struct redis_tracker *tr)
{
    pthread_mutex_lock(&tr->mu);
    tr->ended = tr->begun;
    hfi_cond_wake(&tr->armed);
    pthread_mutex_unlock(&tr->mu);
}

static void *tracker_run(void *arg)
{
    struct redis_tracker *tr = arg;
    bool done, idle;

    for (;;) {
        pthread_mutex_lock(&tr->mu);
        idle = !tr->all && !tr->below;
        done = tr->closing;
        tr->begun++;
        pthread_mutex_unlock(&tr->mu);
        if (done)
            break;
        if (idle) /* tracker.c (6) */
            tracker_close_all(tr);
        done = idle || tracker_round(tr);
        tracker_ended(tr);
        if (!done || !tracker_has_work(tr))
            tracker_wait(tr, idle ? -1 : done ? 5000 : TRACKER_PAUSE_MS);
    }
    tracker_close_all(tr);
    return NULL;
}

void tracker_stir(struct redis_tracker *tr)
{
    uint64_t one = 1;

    if (tr && write(tr->wake, &one, sizeof(one)) < 0)
        return; /* It is awake. */
}

/* ---- observing --------------------------------------------------------- */

struct redis_tracker *tracker_new(struct hfi_conn *conn,
                                  const struct tracker_servers *servers,
                                  void *arg, const char *prefix)
{
    struct redis_tracker *tr = hfi_alloc(sizeof(*tr));
    unsigned i;

    if (!tr)
        return NULL;
    tr->conn = conn;
    tr->servers = servers;
    tr->arg = arg;
    tr->prefix = prefix;
    tr->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (i = 0; i < TRACKER_SERVERS; i++) {
        atomic_init(&tr->links[i].fds[0], -1);
        atomic_init(&tr->links[i].fds[1], -1);
        tr->links[i].pause = TRACKER_PAUSE_MS / 2;
    }
    pthread_mutex_init(&tr->mu, NULL);
    hfi_cond_init(&tr->armed);
    tr->running =
        tr->wake >= 0 && hfi_thread_start(&tr->thread, tracker_run, tr);
    if (!tr->running) {
        tracker_free(tr);
        return NULL;
    }
    return tr;
}

void tracker_free(struct redis_tracker *tr)
{
    if (!tr)
        return;
    pthread_mutex_lock(&tr->mu);
    tr->closing = true;
    pthread_mutex_unlock(&tr->mu);
    tracker_stir(tr);
    if (tr->running)
        hfi_thread_join(&tr->thread);
    if (tr->wake >= 0)
        close(tr->wake);
    hfi_map_fini(&tr->keys);
    hfi_cond_fini(&tr->armed);
    pthread_mutex_destroy(&tr->mu);
    hfi_free(tr);
}

void tracker_after_fork_child(struct redis_tracker *tr)
{
    unsigned i, k;
    int fd;

    if (!tr)
        return;
    for (i = 0; i < TRACKER_SERVERS; i++) {
        for (k = 0; k < 2; k++) {
            fd = atomic_exchange(&tr->links[i].fds[k], -1);
            if (fd >= 0)
                close(fd);
        }
    }
    close(tr->wake);
}

static hf_status watch_add(struct redis_tracker *tr,
                           struct tracker_watch *watch, struct hf_error *err)
{
    struct tracker_names names;
    char *lock;

    if (watch->of->prefix) {
        watch->next = tr->below;
        tr->below = watch;
        tr->prefixes++;
        return HF_OK;
    }
    tr->servers->name(tr->arg, watch->of->key, &names);
    lock = hfi_strdup(names.lock);
    if (!lock || !hfi_map_reserve(&tr->keys)) {
        hfi_free(lock);
        return hfi_nomem(err);
    }
    watch->node.key = lock;
    hfi_map_add(&tr->keys, &watch->node);
    watch->next = tr->all;
    tr->all = watch;
    return HF_OK;
}

static void watch_remove(struct redis_tracker *tr, struct tracker_watch *watch)
{
    struct tracker_watch **at = watch->of->prefix ? &tr->below : &tr->all;

    while (*at && *at != watch)
        at = &(*at)->next;
    if (*at)
        *at = watch->next;
    if (watch->of->prefix) {
        tr->prefixes++;
        return;
    }
    hfi_map_remove(&tr->keys, &watch->node);
    hfi_free((char *)(uintptr_t)watch->node.key);
}

hf_status tracker_observe(struct redis_tracker *tr, struct hfi_observation *of,
                          int64_t deadline, struct hf_error *err)
{
    struct tracker_watch *watch = of->own;
    hf_status st, why = HF_UNAVAILABLE;
    uint64_t begun;

    *watch = (struct tracker_watch){.of = of};
    pthread_mutex_lock(&tr->mu);
    st = watch_add(tr, watch, err);
    if (!st) {
        tracker_stir(tr);
        begun = tr->begun; /* tracker.c (7) */
        while (!watch->ready && !tr->refused && tr->ended <= begun &&
               hfi_left_ms(deadline))
            hfi_cond_wait(&tr->armed, &tr->mu, deadline);
        if (!watch->ready) {
            if (tr->refused || watch_is_denied(tr, watch))
                why = HF_UNSUPPORTED;
            watch_remove(tr, watch);
            st = hfi_fail(err, why, "%s: %s", tr->conn->endpoint,
                          why == HF_UNSUPPORTED ? "it does not tell of changes"
                                                : "no answer in time");
        }
    }
    pthread_mutex_unlock(&tr->mu);
    return st;
}

void tracker_unobserve(struct redis_tracker *tr, struct hfi_observation *of)
{
    pthread_mutex_lock(&tr->mu);
    watch_remove(tr, of->own);
    pthread_mutex_unlock(&tr->mu);
    tracker_stir(tr);
}
