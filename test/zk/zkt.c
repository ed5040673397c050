/* SPDX-License-Identifier: MIT
 *
 * zkt.c - the operator and the proxy of the ZooKeeper tests; see zkt.h.
 */
#include "zkt.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zookeeper/zookeeper.h>

/* The library without threads: whoever wants an answer reads until it is
 * there, and a thread of ours keeps the session alive between times. */
static zhandle_t *operator_zh;
static pthread_mutex_t operator_mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_t operator_thread;
static atomic_int operator_stop;

static void nothing(zhandle_t *zh, int type, int state, const char *path,
                    void *ctx)
{
    (void)zh, (void)type, (void)state, (void)path, (void)ctx;
}

/* Wait so long for something and take it in. */
static void turn(int ms)
{
    struct timeval tv = {0, 0};
    struct pollfd pfd = {.fd = -1};
    int interest = 0, events = 0;

    zookeeper_interest(operator_zh, &pfd.fd, &interest, &tv);
    pfd.events = (short)((interest & ZOOKEEPER_READ ? POLLIN : 0) |
                         (interest & ZOOKEEPER_WRITE ? POLLOUT : 0));
    if (poll(&pfd, 1, ms) > 0)
        events = (pfd.revents & ~POLLOUT ? ZOOKEEPER_READ : 0) |
                 (pfd.revents & POLLOUT ? ZOOKEEPER_WRITE : 0);
    zookeeper_process(operator_zh, events);
}

static void *operator_run(void *arg)
{
    (void)arg;
    while (!atomic_load(&operator_stop)) {
        pthread_mutex_lock(&operator_mu);
        turn(0);
        pthread_mutex_unlock(&operator_mu);
        t_sleep_ms(50);
    }
    return NULL;
}

void zkt_begin(void)
{
    int64_t end = t_now_ms() + 20000;

    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    operator_zh =
        zookeeper_init(getenv("HF_ZK_HOSTS"), nothing, 20000, NULL, NULL, 0);
    CHECK(operator_zh != NULL);
    while (zoo_state(operator_zh) != ZOO_CONNECTED_STATE) {
        turn(10);
        CHECK_LT(t_now_ms(), end);
    }
    atomic_store(&operator_stop, 0);
    CHECK_EQ(pthread_create(&operator_thread, NULL, operator_run, NULL), 0);
}

void zkt_end(void)
{
    atomic_store(&operator_stop, 1);
    pthread_join(operator_thread, NULL);
    zookeeper_close(operator_zh);
    operator_zh = NULL;
}

/* What an answer brought. */
struct answer {
    int done, rc;
    struct String_vector *names;
    struct zkt_node *node;
};

static void answered(int rc, const void *data)
{
    struct answer *a = (struct answer *)(uintptr_t)data;

    a->rc = rc;
    a->done = 1;
}

static void on_string(int rc, const char *text, const void *data)
{
    (void)text;
    answered(rc, data);
}

static void on_names(int rc, const struct String_vector *names,
                     const void *data)
{
    const struct answer *a = data;

    a->names->count = rc ? 0 : names->count;
    a->names->data = calloc((size_t)a->names->count + 1, sizeof(char *));
    for (int i = 0; i < a->names->count; i++)
        a->names->data[i] = strdup(names->data[i]);
    answered(rc, data);
}

static void on_data(int rc, const char *text, int len, const struct Stat *stat,
                    const void *data)
{
    const struct answer *a = data;

    if (!rc) {
        snprintf(a->node->data, sizeof(a->node->data), "%.*s",
                 len > 0 ? len : 0, text);
        a->node->czxid = stat->czxid;
        a->node->owner = stat->ephemeralOwner;
    }
    answered(rc, data);
}

/* Read until the answer to a request is there; `rc` is what sending it said.
 * The mutex is held by the caller, and let go. */
static int await(struct answer *a, int rc)
{
    int64_t end = t_now_ms() + 30000;

    while (!rc && !a->done) {
        turn(10);
        CHECK_LT(t_now_ms(), end);
    }
    pthread_mutex_unlock(&operator_mu);
    return rc ? rc : a->rc;
}

/* Reads go to the leader's state, and outlast a change of leader. */
static int settled(int rc, int64_t end)
{
    if (rc != ZCONNECTIONLOSS && rc != ZOPERATIONTIMEOUT)
        return rc;
    CHECK_LT(t_now_ms(), end);
    t_sleep_ms(50);
    return ZCONNECTIONLOSS;
}

static int children_of(const char *path, struct String_vector *names)
{
    int64_t end = t_now_ms() + 30000;
    int rc;

    do {
        struct answer a = {.names = names};

        deallocate_String_vector(names);
        pthread_mutex_lock(&operator_mu);
        rc = await(&a, zoo_aget_children(operator_zh, path, 0, on_names, &a));
        rc = settled(rc, end);
    } while (rc == ZCONNECTIONLOSS);
    CHECK(rc == ZOK || rc == ZNONODE || rc == ZNOAUTH);
    return rc;
}

int zkt_children_like(const char *path, const char *prefix)
{
    struct String_vector names = {0, NULL};
    int n = 0;

    children_of(path, &names);
    for (int i = 0; i < names.count; i++)
        n += !strncmp(names.data[i], prefix, strlen(prefix));
    deallocate_String_vector(&names);
    return n;
}

void zkt_remove_like(const char *path, const char *prefix)
{
    struct String_vector names = {0, NULL};
    char full[512];

    children_of(path, &names);
    for (int i = 0; i < names.count; i++) {
        snprintf(full, sizeof(full), "%.250s/%.250s", path, names.data[i]);
        if (!strncmp(names.data[i], prefix, strlen(prefix)))
            zkt_remove(full);
    }
    deallocate_String_vector(&names);
}

int zkt_children(const char *path)
{
    return zkt_children_like(path, "");
}

static bool child_of(const char *path, bool last, struct zkt_node *ret)
{
    struct String_vector names = {0, NULL};
    char found[256] = "", full[512];

    children_of(path, &names);
    for (int i = 0; i < names.count; i++) {
        const char *name = names.data[i];
        int order = found[0] ? strcmp(name + strlen(name) - 10,
                                      found + strlen(found) - 10)
                             : 0;

        if (!found[0] || (last ? order > 0 : order < 0))
            snprintf(found, sizeof(found), "%s", name);
    }
    deallocate_String_vector(&names);
    snprintf(full, sizeof(full), "%.250s/%s", path, found);
    return found[0] && zkt_read(full, ret);
}

bool zkt_first(const char *path, struct zkt_node *ret)
{
    return child_of(path, false, ret);
}

bool zkt_last(const char *path, struct zkt_node *ret)
{
    return child_of(path, true, ret);
}

bool zkt_read(const char *path, struct zkt_node *ret)
{
    struct answer a = {.node = ret};
    int rc;

    pthread_mutex_lock(&operator_mu);
    rc = await(&a, zoo_aget(operator_zh, path, 0, on_data, &a));
    CHECK(rc == ZOK || rc == ZNONODE);
    if (path != ret->path)
        snprintf(ret->path, sizeof(ret->path), "%s", path);
    return rc == ZOK;
}

void zkt_remove(const char *path)
{
    struct answer a = {0};

    pthread_mutex_lock(&operator_mu);
    CHECK_EQ(await(&a, zoo_adelete(operator_zh, path, -1, answered, &a)), ZOK);
}

static void on_written(int rc, const struct Stat *stat, const void *data)
{
    (void)stat;
    answered(rc, data);
}

void zkt_write(const char *path, const char *data)
{
    struct answer a = {0};

    pthread_mutex_lock(&operator_mu);
    CHECK_EQ(await(&a, zoo_aset(operator_zh, path, data, (int)strlen(data), -1,
                                on_written, &a)),
             ZOK);
}

static void make(const char *path, const char *data, int mode)
{
    struct answer a = {0};
    int rc;

    pthread_mutex_lock(&operator_mu);
    rc = zoo_acreate(operator_zh, path, data, (int)strlen(data),
                     &ZOO_OPEN_ACL_UNSAFE, mode, on_string, &a);
    CHECK_EQ(await(&a, rc), ZOK);
}

void zkt_make(const char *path, const char *data)
{
    make(path, data, 0);
}

void zkt_make_ephemeral(const char *path)
{
    make(path, "", ZOO_EPHEMERAL);
}

void zkt_keep(const char *key, const char *options)
{
    static const char *const curator[] = {"/locks/keep", "/leases/keep"};
    static const char *const kazoo[] = {"-__lock__/keep", "/keep"};
    const char *const *places = strstr(options, "kazoo") ? kazoo : curator;
    char path[600];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%.500s%s", zkt_path(key), places[i]);
        zkt_make(path, "");
    }
}

void zkt_permit(const char *path, bool may_delete)
{
    struct ACL all = {may_delete ? ZOO_PERM_ALL
                                 : ZOO_PERM_ALL & ~ZOO_PERM_DELETE,
                      ZOO_ANYONE_ID_UNSAFE};
    struct ACL_vector acl = {1, &all};
    struct answer a = {0};

    pthread_mutex_lock(&operator_mu);
    CHECK_EQ(await(&a, zoo_aset_acl(operator_zh, path, -1, &acl, answered, &a)),
             ZOK);
}

const char *zkt_path(const char *key)
{
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "/hf-test/%s", key);
    return path;
}

const char *zkt_key(const char *suffix)
{
    static char keys[8][128];
    static int next;
    char *key = keys[next++ % 8];

    snprintf(key, sizeof(keys[0]), "zk-%d-%s", (int)getpgrp(), suffix);
    return key;
}

/* ---- the proxy --------------------------------------------------------- */

enum { LINKS = 32, FRAME = 1 << 16 };

/* One connection through the proxy, and what of a request is here so far. */
struct link {
    int client, server; /* -1: free */
    size_t have;
    bool greeted; /* its first frame is no request */
    bool held;    /* its next request waits */
    unsigned char buf[FRAME];
};

static void link_close(struct link *link)
{
    if (link->client >= 0)
        close(link->client);
    if (link->server >= 0)
        close(link->server);
    link->client = link->server = -1;
    link->have = 0;
    link->greeted = link->held = false;
}

static void link_open(struct zkt_proxy *proxy, struct link *links)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)proxy->target),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = accept4(proxy->listener, NULL, NULL, SOCK_CLOEXEC), i, on = 1;

    if (fd < 0)
        return;
    for (i = 0; i < LINKS && links[i].client >= 0; i++)
        ;
    CHECK_LT(i, LINKS);
    links[i].client = fd;
    atomic_store(&proxy->youngest, i);
    links[i].server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* Small requests are not to wait for each other. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(links[i].server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(links[i].server, (struct sockaddr *)&to, sizeof(to)) < 0)
        link_close(&links[i]);
}

static bool pass_on(int fd, const unsigned char *buf, size_t len)
{
    while (len) {
        ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        buf += n;
        len -= (size_t)n;
    }
    return true;
}

enum { PING = 11 };

/* Is this the request at which to cut?  Pings and greetings do not count. */
static bool counts_down(struct zkt_proxy *proxy, struct link *link)
{
    uint32_t type;

    if (!link->greeted) {
        link->greeted = true;
        return false;
    }
    memcpy(&type, link->buf + 8, 4);
    if (ntohl(type) != PING)
        atomic_fetch_add(&proxy->requests, 1);
    if (ntohl(type) == 8)
        atomic_fetch_add(&proxy->lists, 1);
    if (ntohl(type) == 3 || ntohl(type) == 4)
        atomic_fetch_add(&proxy->looks, 1);
    if (ntohl(type) == PING || !atomic_load(&proxy->cut))
        return false;
    return atomic_fetch_sub(&proxy->left, 1) == 0;
}

/* Does this request wait? */
static bool holds(struct zkt_proxy *proxy, struct link *link)
{
    int hold = atomic_load(&proxy->hold), type;
    bool here =
        atomic_load(&proxy->hold_at) == atomic_load(&proxy->requests) + 1;
    uint32_t bytes;

    memcpy(&bytes, link->buf + 8, 4);
    type = (int)ntohl(bytes);
    if (!link->greeted ||
        (type != hold && !(here && type != PING) &&
         (hold != ZKT_CHANGE ||
          (type != ZKT_DELETE && type != ZKT_SET_DATA && type != ZKT_MULTI))))
        return false;
    if (link->held && atomic_load(&proxy->let_by) > 0) {
        atomic_fetch_sub(&proxy->let_by, 1);
        return false;
    }
    if (!link->held) {
        if (here)
            t_sleep_ms(30); /* Those before it are executed. */
        atomic_fetch_add(&proxy->held, 1);
    }
    link->held = true;
    return true;
}

/* Pass on whole requests; false when the connection is to end. */
static bool link_requests(struct zkt_proxy *proxy, struct link *link)
{
    uint32_t len;
    size_t size;
    int cut;

    while (link->have >= 4) {
        memcpy(&len, link->buf, 4);
        size = ntohl(len) + 4;
        if (size > FRAME || link->have < size)
            return size <= FRAME;
        if (holds(proxy, link))
            return true;
        link->held = false;
        if (counts_down(proxy, link)) {
            cut = atomic_exchange(&proxy->cut, ZKT_NEVER);
            if (cut == ZKT_AFTER) {
                pass_on(link->server, link->buf, size);
                t_sleep_ms(30); /* It is executed; its answer is dropped. */
            }
            atomic_fetch_add(&proxy->cuts, 1);
            return false;
        }
        if (!pass_on(link->server, link->buf, size))
            return false;
        link->have -= size;
        memmove(link->buf, link->buf + size, link->have);
    }
    return true;
}

static bool link_turn(struct zkt_proxy *proxy, struct link *link, bool up,
                      bool down)
{
    unsigned char answer[4096];
    ssize_t n;

    if (up) {
        n = recv(link->client, link->buf + link->have, FRAME - link->have, 0);
        if (n <= 0)
            return false;
        link->have += (size_t)n;
        if (!link_requests(proxy, link))
            return false;
    }
    if (down) {
        n = recv(link->server, answer, sizeof(answer), 0);
        if (n <= 0 || !pass_on(link->client, answer, (size_t)n))
            return false;
    }
    return true;
}

static void *proxy_run(void *arg)
{
    struct zkt_proxy *proxy = arg;
    struct link *links = calloc(LINKS, sizeof(*links));
    struct pollfd fds[2 * LINKS + 1];
    int i;

    for (i = 0; i < LINKS; i++)
        links[i].client = links[i].server = -1;
    while (!atomic_load(&proxy->stop)) {
        if (atomic_load(&proxy->frozen)) {
            t_sleep_ms(5);
            continue;
        }
        fds[2 * LINKS] =
            (struct pollfd){.fd = proxy->listener, .events = POLLIN};
        for (i = 0; i < LINKS; i++) {
            bool waits = atomic_load(&proxy->stalled) &&
                         atomic_load(&proxy->youngest) == i;

            fds[2 * i] = (struct pollfd){.fd = waits ? -1 : links[i].client,
                                         .events = POLLIN};
            fds[2 * i + 1] = (struct pollfd){
                .fd = atomic_load(&proxy->no_replies) ? -1 : links[i].server,
                .events = POLLIN};
        }
        poll(fds, 2 * LINKS + 1, 10);
        if (atomic_load(&proxy->frozen))
            continue;
        for (i = 0; i < LINKS; i++)
            if (links[i].held && !link_requests(proxy, &links[i]))
                link_close(&links[i]);
        for (i = 0; i < LINKS; i++)
            if (links[i].client >= 0 &&
                !link_turn(proxy, &links[i], fds[2 * i].revents != 0,
                           fds[2 * i + 1].revents != 0))
                link_close(&links[i]);
        if (fds[2 * LINKS].revents)
            link_open(proxy, links);
    }
    for (i = 0; i < LINKS; i++)
        link_close(&links[i]);
    free(links);
    return NULL;
}

static void proxy_start(struct zkt_proxy *proxy, bool beside)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK + beside)}};
    const char *hosts = getenv("HF_ZK_HOSTS");
    socklen_t len = sizeof(at);
    int on = 1;

    memset(proxy, 0, sizeof(*proxy));
    proxy->target = (int)strtol(strchr(hosts, ':') + 1, NULL, 10);
    at.sin_port = htons((uint16_t)(beside ? proxy->target : 0));
    proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(proxy->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    CHECK_EQ(bind(proxy->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(proxy->listener, 16), 0);
    getsockname(proxy->listener, (struct sockaddr *)&at, &len);
    proxy->port = ntohs(at.sin_port);
    CHECK_EQ(pthread_create(&proxy->thread, NULL, proxy_run, proxy), 0);
}

void zkt_proxy_start(struct zkt_proxy *proxy)
{
    proxy_start(proxy, false);
}

void zkt_proxy_start_beside(struct zkt_proxy *proxy)
{
    proxy_start(proxy, true);
}

void zkt_proxy_stop(struct zkt_proxy *proxy)
{
    atomic_store(&proxy->stop, 1);
    pthread_join(proxy->thread, NULL);
    close(proxy->listener);
}

const char *zkt_proxy_url(struct zkt_proxy *proxy, const char *options)
{
    static char url[256];

    snprintf(url, sizeof(url), "zk://127.0.0.1:%d/hf-test%s", proxy->port,
             options);
    return url;
}

/* ---- locks ------------------------------------------------------------- */

const char *zkt_url(const char *options)
{
    static _Thread_local char url[512];

    snprintf(url, sizeof(url), "%s%s", getenv("HF_TEST_URL"), options);
    return url;
}

hf_client *zkt_open(const char *url)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

struct hf_lock_opts zkt_opts(int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    return opts;
}

static void *wait_run(void *arg)
{
    struct zkt_waiter *w = arg;

    w->status =
        hf_acquire(w->client, w->key, w->wait_ms, &w->opts, &w->lk, &w->err);
    atomic_store(&w->done, true);
    return NULL;
}

void zkt_wait_start_with(struct zkt_waiter *w, hf_client *client,
                         const char *key, int64_t wait_ms,
                         const struct hf_lock_opts *opts)
{
    memset(w, 0, sizeof(*w));
    w->client = client;
    w->key = key;
    w->wait_ms = wait_ms;
    w->opts = *opts;
    CHECK_EQ(pthread_create(&w->thread, NULL, wait_run, w), 0);
}

void zkt_wait_start(struct zkt_waiter *w, hf_client *client, const char *key,
                    int64_t wait_ms, int64_t ttl_ms)
{
    struct hf_lock_opts opts = zkt_opts(ttl_ms);

    zkt_wait_start_with(w, client, key, wait_ms, &opts);
}

hf_status zkt_wait_end(struct zkt_waiter *w)
{
    pthread_join(w->thread, NULL);
    t_err = w->err;
    return w->status;
}
