/* SPDX-License-Identifier: MIT
 *
 * zk.c - ZooKeeper: ephemeral nodes, in a queue or alone.
 *
 * ON THE WIRE  A key is a node under the path of the URL.
 *   recipe=sequential  contenders are its children, ephemeral and numbered; the
 *                      lowest holds, or the lowest that share do (rank.c), and
 *                      each watches one before it (sequential.c).  The nodes
 *                      are named as Curator's or kazoo's are, so that these
 *                      wait for us and we for them (names.c).
 *   recipe=readwrite   the same with the names of their read-write locks.
 *   recipe=latch       the same with those of Curator's LeaderLatch.
 *   With permits a queue and a place for those who hold lie below the key, as
 *   Curator's and kazoo's semaphores have them (permits.c, leases.c); a key is
 *   used in one of the two ways at a time (use.c).
 *   recipe=ephemeral   the node itself, ephemeral; who creates it holds, and
 *                      everybody else watches it (ephemeral.c).
 *   Parents are containers, which the server removes when they are empty.
 *
 * INVARIANTS
 *  (1) HF_OK is said of a node that belongs to a session we have now, never of
 *      one that an earlier session left.
 *  (2) Every node of ours is in our books until it is known to be gone
 *      (node.c).
 *  (3) The library's callbacks only note what happened and send what need not
 *      be waited for (io.c).
 *
 * SESSION  The server frees what a dead client held when the session's timeout
 *   is over; session.c chooses that by the ttl, renew.c proves that it
 *   has not been.  Leases that are not renewed lapse by our own clock.
 *
 * LIMITS  A network between an ensemble and its clients that is slower than a
 *   third of the ttl makes locks lapse.  Servers with a minSessionTimeout of
 *   less than two ticks break the argument of touch.c; so does a leader that
 *   answers for a while and pings nobody.  No TLS: the library has none here.
 */
#include "zk.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

#define PORT         2181
#define PASSWORD_MAX 1024

/* ---- opening ----------------------------------------------------------- */

/* "a:2181,b:2181", and the same for messages. */
static hf_status zk_hosts(struct zk_conn *zc, const struct hfi_url *url,
                          struct hf_error *err)
{
    size_t i, len = 0, size = 1;

    if (!url->nhosts)
        return hfi_fail(err, HF_INVALID,
                        "zk: a host is needed, as in zk://host/locks");
    for (i = 0; i < url->nhosts; i++)
        size += strlen(url->hosts[i].name) + 16;
    zc->hosts = hfi_alloc(size);
    if (!zc->hosts)
        return hfi_nomem(err);
    for (i = 0; i < url->nhosts; i++) {
        const char *name = url->hosts[i].name;
        bool bare = strchr(name, ':') && name[0] != '[';

        if (!*name || strpbrk(name, ",/"))
            return hfi_fail(err, HF_INVALID, "zk: a host is malformed");
        len += (size_t)snprintf(zc->hosts + len, size - len, "%s%s%s%s:%d",
                                len ? "," : "", bare ? "[" : "", name,
                                bare ? "]" : "",
                                url->hosts[i].port ? url->hosts[i].port : PORT);
    }
    snprintf(zc->base.endpoint, sizeof(zc->base.endpoint), "zk://%.240s",
             zc->hosts);
    return HF_OK;
}

/* The path of the URL without its final slash; it is made if it is missing. */
static hf_status zk_root(struct zk_conn *zc, const struct hfi_url *url,
                         struct hf_error *err)
{
    const char *path = *url->path ? url->path : "/holdfast";
    const unsigned char *at = (const unsigned char *)path;
    size_t len = strlen(path);

    while (len && path[len - 1] == '/')
        len--;
    for (; *at; at++)
        if (*at < ' ' || *at >= 0x7f)
            return hfi_fail(err, HF_INVALID,
                            "zk: the path must be printable ASCII");
    zc->root = hfi_alloc(len + 3);
    if (!zc->root)
        return hfi_nomem(err);
    if (len)
        snprintf(zc->root, len + 2, "%s%.*s", path[0] == '/' ? "" : "/",
                 (int)len, path);
    if (strstr(zc->root, "//") || strstr(zc->root, "/./") ||
        strstr(zc->root, "/../"))
        return hfi_fail(err, HF_INVALID, "zk: the path is malformed");
    return HF_OK;
}

static hf_status zk_options(struct zk_conn *zc, const struct hfi_url *url,
                            struct hf_error *err)
{
    const char *layout = hfi_url_param(url, "layout", "curator");
    const char *recipe = hfi_url_param(url, "recipe", "sequential");

    zc->kazoo = !strcmp(layout, "kazoo");
    zc->single = !strcmp(recipe, "ephemeral");
    zc->readwrite = !strcmp(recipe, "readwrite");
    zc->latch = !strcmp(recipe, "latch");
    zc->plain = zc->kazoo; /* It makes the parent once and counts on it. */
    if (!zc->kazoo && strcmp(layout, "curator") != 0)
        return hfi_fail(err, HF_INVALID, "zk: layout= is curator or kazoo");
    if (!zc->single && !zc->readwrite && !zc->latch &&
        strcmp(recipe, "sequential") != 0)
        return hfi_fail(
            err, HF_INVALID,
            "zk: recipe= is sequential, readwrite, latch or ephemeral");
    if (!zc->single)
        zc->base.traits |= HF_TRAIT_QUEUED | HF_TRAIT_REENTRANT |
                           HF_TRAIT_SHARED | HF_TRAIT_PERMITS;
    zc->ttl_ms = HFI_TTL_DEFAULT;
    return hfi_url_duration(url, "ttl", &zc->ttl_ms, err);
}

/* "user:password".  The password is in the URL or in a file. */
static hf_status zk_credentials(struct zk_conn *zc, const struct hfi_url *url,
                                struct hf_error *err)
{
    const char *file = hfi_url_param(url, "password_file", NULL);
    char password[PASSWORD_MAX] = "";
    hf_status st = HF_OK;
    size_t size, i;

    if (file && (!url->user || url->password))
        return hfi_fail(err, HF_INVALID,
                        "zk: password_file= goes with a user in the URL, as in "
                        "zk://user@host, and not with another password");
    if (!url->user)
        return HF_OK;
    if (file)
        st = hfi_url_secret(file, "zk: the file of password_file=", password,
                            sizeof(password), err);
    size = strlen(url->user) + sizeof(password) +
           (url->password ? strlen(url->password) : 0) + 2;
    zc->auth = hfi_alloc(size);
    if (zc->auth)
        snprintf(zc->auth, size, "%s:%s", url->user,
                 url->password ? url->password : password);
    else
        st = hfi_nomem(err);
    explicit_bzero(password, sizeof(password));
    for (i = 0; i < url->nhosts && !zc->base.warning[0]; i++)
        hfi_warn_password(zc->base.warning, sizeof(zc->base.warning),
                          url->hosts[i].name, false);
    memcpy(zc->caution, zc->base.warning, sizeof(zc->caution));
    return st;
}

/* The library of this system was built without, and would have to be given a
 * connection of ours, which it cannot. */
static hf_status zk_no_tls(const struct hfi_url *url, struct hf_error *err)
{
    if (strcmp(url->scheme, "zks") && !hfi_url_param(url, "tls", NULL))
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED,
                    "zk: there is no TLS to ZooKeeper here: run a TLS proxy "
                    "such as stunnel on this machine and name that, as in "
                    "zk://127.0.0.1:2181/locks");
}

static hf_status zk_open(struct hfi_conn *conn, const struct hfi_url *url,
                         int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct epoll_event ev = {.events = EPOLLIN};
    struct zk_session *ses;
    hf_status st;

    pthread_mutex_init(&zc->mu, NULL);
    hfi_link_init(&zc->living);
    hfi_link_init(&zc->dead);
    hfi_link_init(&zc->fresh);
    hfi_link_init(&zc->observed);
    zc->ready = true;
    zc->timer_due = zc->lapse_at = HFI_NEVER;
    zc->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    zc->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (zc->timer_fd < 0 || zc->poll_fd < 0 ||
        epoll_ctl(zc->poll_fd, EPOLL_CTL_ADD, zc->timer_fd, &ev) < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "zk: no descriptor");
    zk_fd_keep(zc, zc->timer_fd);
    zk_fd_keep(zc, zc->poll_fd);
    st = zk_no_tls(url, err);
    if (!st)
        st = zk_hosts(zc, url, err);
    if (!st)
        st = zk_options(zc, url, err);
    if (!st)
        st = zk_credentials(zc, url, err);
    if (!st)
        st = zk_root(zc, url, err);
    if (!st)
        st = zk_session_any(zc, deadline, &ses, err);
    if (!st)
        zk_session_put(ses);
    return st;
}

static void zk_close(struct hfi_conn *conn)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct hfi_node *entry;

    if (!zc->ready)
        return;
    zk_sessions_end(zc);
    while ((entry = hfi_map_next(&zc->nodes, NULL)))
        zk_node_drop(zc, hfi_container(entry, struct zk_node, entry));
    hfi_map_fini(&zc->nodes);
    zk_last_fini(zc);
    if (zc->timer_fd >= 0)
        close(zc->timer_fd);
    if (zc->poll_fd >= 0)
        close(zc->poll_fd);
    if (zc->auth)
        explicit_bzero(zc->auth, strlen(zc->auth));
    hfi_free(zc->auth);
    hfi_free(zc->hosts);
    hfi_free(zc->root);
    pthread_mutex_destroy(&zc->mu);
    zc->ready = false;
}

static const char *const zk_schemes[] = {"zk", "zks", NULL};
static const char *const zk_own_options[] = {"layout", "recipe",
                                             "password_file", "tls", NULL};

const struct hfi_backend hfi_backend_zk = {
    .schemes = zk_schemes,
    .options = zk_own_options,
    .conn_size = sizeof(struct zk_conn),
    .observation_size = sizeof(struct zk_observation),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_NOTIFY |
              HF_TRAIT_BREAK | HF_TRAIT_PROCESSES | HF_TRAIT_MACHINES |
              HF_TRAIT_TWICE | HF_TRAIT_NOTED | HFI_TRAIT_BOUND,
    .usual = HF_TRAIT_QUEUED | HF_TRAIT_REENTRANT | HF_TRAIT_SHARED |
             HF_TRAIT_PERMITS,
    .page = "zk",
    .tested = "ZooKeeper 3.8, 3.9",
    .no_permits = "recipe=ephemeral has one node for all",
    .no_min_hold = "a node ends with its session",
    .open = zk_open,
    .close = zk_close,
    .after_fork_child = zk_forget,
    .try_acquire = zk_try_acquire,
    .renew = zk_renew,
    .release = zk_release,
    .downgrade = zk_downgrade,
    .watch = zk_watch,
    .unwatch = zk_unwatch,
    .poll_fd = zk_poll_fd,
    .dispatch = zk_dispatch,
    .inspect = zk_inspect,
    .list = zk_list,
    .holders = zk_holders,
    .waiters = zk_waiters,
    .break_grant = zk_break,
    .free_grant = zk_free,
    .observe = zk_observe,
    .unobserve = zk_unobserve,
};
