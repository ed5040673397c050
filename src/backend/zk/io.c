/* SPDX-License-Identifier: MIT
 *
 * io.c - who reads a session's connection.
 *
 * The library is the one without threads: whoever calls it does the work.  A
 * caller that waits for an answer, and finds nobody reading, reads for all
 * until it has its own; then the reading goes to somebody else who waits.  So a
 * lone caller's answer reaches it without a change of threads.  When nobody
 * waits, what comes unasked is read by who reads the wake-ups for the core
 * (zk_hear(), called by dispatch()).  A thread of the session's own, the
 * I/O thread, connects it, keeps it alive, and closes it.
 *
 * INVARIANTS
 *  (1) While the session is up its handle is used with the mutex held only, and
 *      the library never blocks then.  While it is not, nobody uses the handle
 *      but the I/O thread, without the mutex.
 *  (2) Requests are sent only while the session is up, so when the connection
 *      breaks the library answers all of them in that very call.  What it says
 *      of the connection is only noted in the callback (`heard`) and acted upon
 *      when the call is over: nothing else happens in callbacks of a session
 *      that is not up.
 *  (3) Somebody will read: a caller is at it (`reading`), or one was woken for
 *      it, or the socket is armed, to wake who calls dispatch().  Whoever stops
 *      reading, or was woken for it and does not, passes it on.
 *  (4) Only who reads closes the socket, so nobody sleeps on a stale one.
 *
 * SILENCE  A server that is frozen, or whose machine is gone, keeps quiet.  The
 * library waits two thirds of the session's timeout before it turns to another,
 * also for the first answer to a new connection.  Where there are others it is
 * made to turn sooner: a connection is given a second to come about, then twice
 * as long, and so on, since servers may just be slow; and once it is there, a
 * quarter of the timeout to answer a request.
 */
#include "zk.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

/* What a connection is given to come about, at first, and a server to answer,
 * at least. */
#define PATIENCE_MS 1000

/* What a server is given to say that it has closed a session. */
#define CLOSE_MS 200

/* Between two times that names are resolved. */
#define RESOLVE_MS 2000

/* ---- the connection ---------------------------------------------------- */

/* Is there another server to turn to? */
static bool io_has_choice(const struct zk_session *ses)
{
    return strchr(ses->addrs, ',') != NULL;
}

static int io_servers(const struct zk_session *ses)
{
    const char *at;
    int n = 1;

    for (at = strchr(ses->addrs, ','); at; at = strchr(at + 1, ','))
        n++;
    return n;
}

/* Make the library believe that the server has hung up: it reads that next.
 * Unless there is something to read: then it was us who kept quiet. */
static void io_hang_up(struct zk_session *ses)
{
    struct pollfd pfd = {ses->sock, POLLIN, 0};

    if (poll(&pfd, 1, 0) == 0)
        shutdown(ses->sock, SHUT_RDWR);
}

/* When it has been quiet for too long to a request; with the mutex held and the
 * session up. */
static int64_t io_silent_at(const struct zk_session *ses)
{
    int64_t limit = ses->got_ms / 4;

    if (!ses->pending || !io_has_choice(ses))
        return HFI_NEVER;
    return ses->heard_at + (limit > PATIENCE_MS ? limit : PATIENCE_MS);
}

/* Act upon what was heard; with the mutex held.  io.c (2) */
static void io_settle(struct zk_session *ses)
{
    int state = ses->heard;

    ses->heard = 0;
    if (state && ses->state != ZK_DEAD)
        zk_session_changed(ses, state);
}

/* Let the library ping, give up a silent server or connect to another, and ask
 * what it waits for. */
static int io_ask(struct zk_session *ses)
{
    struct timeval tv = {0, 0};
    int interest = 0, rc;

    ses->sock = -1;
    zk_library_entered(ses->conn);
    rc = zookeeper_interest(ses->zh, &ses->sock, &interest, &tv);
    ses->error = zk_library_left();
    ses->events = (interest & ZOOKEEPER_READ ? EPOLLIN : 0u) |
                  (interest & ZOOKEEPER_WRITE ? EPOLLOUT : 0u);
    ses->ask_at = hfi_now() + tv.tv_sec * 1000 + tv.tv_usec / 1000 + 1;
    return rc;
}

static void io_set(struct zk_session *ses, uint32_t events)
{
    struct epoll_event ev = {.events = events | EPOLLONESHOT};

    if (ses->sock >= 0 &&
        epoll_ctl(ses->epoll_fd, EPOLL_CTL_MOD, ses->sock, &ev) < 0 &&
        errno == ENOENT)
        epoll_ctl(ses->epoll_fd, EPOLL_CTL_ADD, ses->sock, &ev);
}

/* What the socket is ready for; it is armed no longer. */
static int io_ready(struct zk_session *ses)
{
    struct epoll_event ev = {0};

    ses->armed = false;
    if (epoll_wait(ses->epoll_fd, &ev, 1, 0) <= 0)
        return 0;
    return (ev.events & ~(uint32_t)EPOLLOUT ? ZOOKEEPER_READ : 0) |
           (ev.events & EPOLLOUT ? ZOOKEEPER_WRITE : 0);
}

/* Take in what has come; with the mutex held and the session up. */
static void io_process(struct zk_session *ses, int events)
{
    int rc;

    zk_library_entered(ses->conn);
    rc = zookeeper_process(ses->zh, events);
    if (events & ZOOKEEPER_READ)
        ses->heard_at = hfi_now();
    /* Each call takes one message. */
    while (rc == ZOK && (ses->pending || !hfi_link_alone(&ses->async_reqs)))
        rc = zookeeper_process(ses->zh, ZOOKEEPER_READ);
    zk_library_left();
    io_settle(ses);
}

/* The library was to be asked earlier: this process had no processor.  It would
 * find the server silent before it reads what has come meanwhile. */
static void io_catch_up(struct zk_session *ses)
{
    struct pollfd pfd = {ses->sock, POLLIN, 0};

    if (hfi_now() > ses->ask_at && ses->sock >= 0 && poll(&pfd, 1, 0) > 0)
        io_process(ses, ZOOKEEPER_READ);
}

/* The same of a session that is up; a server that does not answer is left. */
static void io_ask_up(struct zk_session *ses)
{
    int64_t silent;

    io_catch_up(ses);
    if (ses->state != ZK_UP)
        return;
    silent = io_silent_at(ses);
    io_ask(ses);
    if (hfi_now() >= silent)
        io_hang_up(ses);
    else if (silent < ses->ask_at)
        ses->ask_at = silent;
}

/* ---- callers ----------------------------------------------------------- */

/* io.c (3): the newest of those who wait will read for the longest. */
void zk_pass(struct zk_session *ses)
{
    struct hfi_link *at;
    struct zk_batch *reqs;

    if (ses->reading || ses->armed)
        return;
    for (at = ses->batches.prev; at != &ses->batches; at = at->prev) {
        reqs = hfi_container(at, struct zk_batch, link);
        if (reqs->waits && reqs->pending) {
            hfi_cond_wake(&reqs->cond);
            return;
        }
    }
    if (ses->state != ZK_UP) {
        hfi_notifier_notify(&ses->notifier);
        return;
    }
    ses->armed = true;
    io_set(ses, ses->events);
}

void zk_read(struct zk_session *ses, const size_t *pending, int64_t deadline)
{
    pthread_mutex_t *mu = &ses->conn->mu;
    struct pollfd pfd;
    int64_t left;

    ses->reading = true;
    if (ses->armed)
        io_set(ses, 0);
    ses->armed = false;
    while (*pending && ses->state == ZK_UP && hfi_left_ms(deadline)) {
        io_ask_up(ses);
        io_settle(ses);
        if (!*pending || ses->state != ZK_UP)
            break;
        pfd = (struct pollfd){ses->sock, (short)ses->events, 0};
        left = hfi_left_ms(ses->ask_at < deadline ? ses->ask_at : deadline);
        pthread_mutex_unlock(mu);
        poll(&pfd, 1, left < 1000000 ? (int)left : 1000000);
        pthread_mutex_lock(mu);
        io_process(ses, (pfd.revents & ~POLLOUT ? ZOOKEEPER_READ : 0) |
                            (pfd.revents & POLLOUT ? ZOOKEEPER_WRITE : 0));
    }
    ses->reading = false;
}

/* ---- the I/O thread ---------------------------------------------------- */

/* What the library has to say goes nowhere: nothing of ours prints. */
static void io_log(const char *message)
{
    (void)message;
}

/* It formats what it would log in buffers that all handles share: make it not.
 * This is the level of the library's copy in this module. */
static void io_hush(void)
{
    zoo_set_debug_level((ZooLogLevel)0);
}

/* Give the library the addresses; without the mutex. */
static void io_open(struct zk_session *ses, const char *addrs)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct zk_conn *zc = ses->conn;

    pthread_once(&once, io_hush);
    ses->addrs = hfi_strdup(addrs);
    if (ses->addrs)
        ses->zh = zookeeper_init2(addrs, zk_watcher, (int)ses->asked_ms, NULL,
                                  ses, ZOO_NO_LOG_CLIENTENV, io_log);
    if (!ses->zh)
        return;
    /* Else it reads them anew each time it is asked for anything. */
    zoo_set_servers_resolution_delay(ses->zh, -1);
    if (zc->auth)
        zoo_add_auth(ses->zh, "digest", zc->auth, (int)strlen(zc->auth), NULL,
                     NULL);
}

/* There is no handle yet: resolve the names, and make it.  With the mutex held,
 * which is let go meanwhile. */
static void io_begin(struct zk_session *ses)
{
    pthread_mutex_t *mu = &ses->conn->mu;
    const char *found;

    if (!ses->lookup) {
        ses->lookup = zk_lookup_start(ses->conn->hosts);
        ses->resolved_at = hfi_now();
    }
    found = ses->lookup ? zk_lookup_found(ses->lookup) : "";
    if (ses->lookup)
        zk_lookup_why(ses->lookup, ses->why, sizeof(ses->why));
    if (!found)
        return;
    if (*found) {
        pthread_mutex_unlock(mu);
        io_open(ses, found);
        pthread_mutex_lock(mu);
        snprintf(ses->why, sizeof(ses->why), "no server has answered");
    }
    zk_lookup_end(ses->lookup);
    ses->lookup = NULL;
    if (!ses->zh)
        zk_session_died(ses);
}

/* All servers were tried in vain: they may have other addresses by now.  In the
 * I/O thread, without the mutex. */
static void io_resolve(struct zk_session *ses)
{
    const char *found;
    char *copy;

    if (!ses->lookup && ses->fails >= io_servers(ses) &&
        hfi_now() >= ses->resolved_at + RESOLVE_MS) {
        ses->lookup = zk_lookup_start(ses->conn->hosts);
        ses->resolved_at = hfi_now();
    }
    found = ses->lookup ? zk_lookup_found(ses->lookup) : NULL;
    if (!found)
        return;
    copy = *found && strcmp(found, ses->addrs) != 0 ? hfi_strdup(found) : NULL;
    if (copy) {
        hfi_free(ses->addrs);
        ses->addrs = copy;
        zoo_set_servers(ses->zh, copy);
    }
    zk_lookup_end(ses->lookup);
    ses->lookup = NULL;
    ses->fails = 0;
}

/* An attempt has failed: note why.  In the I/O thread, without the mutex. */
static void io_failed(struct zk_session *ses, char *why, size_t size)
{
    const char *server = zoo_get_current_server(ses->zh);
    char buf[80];

    ses->fails++;
    snprintf(why, size, "%.64s: %s", server ? server : "",
             ses->error ? strerror_r(ses->error, buf, sizeof(buf))
                        : "it does not answer, or hangs up");
}

/* An attempt to connect goes on, or another has begun: hang up if it takes too
 * long, and when to look again. */
static int64_t io_patience(struct zk_session *ses, bool another)
{
    int64_t now = hfi_now();

    if (!io_has_choice(ses))
        return ses->ask_at;
    if (!ses->patience) {
        ses->patience = PATIENCE_MS;
        another = true;
    } else if (!another && now >= ses->try_until) {
        io_hang_up(ses);
        ses->patience *= 2;
        another = true;
    }
    if (another)
        ses->try_until = now + ses->patience;
    return ses->try_until < ses->ask_at ? ses->try_until : ses->ask_at;
}

/* Let the library go on with its attempt to connect; false if that failed. */
static bool io_step(struct zk_session *ses, int events)
{
    int rc;

    zk_library_entered(ses->conn);
    rc = zookeeper_process(ses->zh, events);
    ses->error = zk_library_left();
    return rc == ZOK;
}

/* The next step towards a connection, and when to take another.
 * io.c (1) */
static int64_t io_connect(struct zk_session *ses)
{
    pthread_mutex_t *mu = &ses->conn->mu;
    int events = io_ready(ses);
    bool another = ses->sock < 0, refused = false;
    char why[sizeof(ses->why)] = "";

    pthread_mutex_unlock(mu);
    if (events && !io_step(ses, events)) {
        another = true;
        refused = !ses->error;
        io_failed(ses, why, sizeof(why));
    }
    if (!ses->heard && another) {
        io_resolve(ses);
        ses->try_at = hfi_now();
    }
    if (!ses->heard && io_ask(ses) != ZOK) {
        another = true;
        io_failed(ses, why, sizeof(why));
    }
    if (!ses->heard)
        io_set(ses, ses->events);
    pthread_mutex_lock(mu);
    if (*why)
        memcpy(ses->why, why, sizeof(why));
    if (ses->heard) {
        io_settle(ses);
        ses->patience = 0;
        ses->fails = 0;
        return 0;
    }
    if (refused)
        zk_session_refused(ses, io_servers(ses));
    return io_patience(ses, another);
}

/* When the library must be asked again.  It would ping when it has sent nothing
 * for a third of the timeout; half of it will do, and who waits for a lock asks
 * for that about as often.  `ask_at` is no later than when it would, and may be
 * from before the last answer; so is what we know to have been sent.  No later
 * than when it would find the server silent; and not where there would be
 * little time for the answer. */
static int64_t io_rest(const struct zk_session *ses)
{
    int64_t more = ses->got_ms / 6, dead = ses->heard_at + 4 * more;
    int64_t rest = ses->ask_at + more;

    if (ses->pending || more < PATIENCE_MS)
        return ses->ask_at;
    if (rest < ses->sent_at + 3 * more)
        rest = ses->sent_at + 3 * more;
    if (rest > dead)
        rest = dead > ses->ask_at ? dead : ses->ask_at;
    return rest;
}

/* When the I/O thread has something to do. */
static int64_t io_due(const struct zk_session *ses)
{
    int64_t rest = io_rest(ses), touch = zk_touch_due(ses);

    return rest < touch ? rest : touch;
}

/* Hear what came unasked, see that the session lives on, and when to do so
 * again. */
static int64_t io_listen(struct zk_session *ses)
{
    int events = io_ready(ses);

    if (hfi_now() >= zk_touch_due(ses))
        zk_touch(ses);
    if (ses->reading)
        return hfi_now() + 100; /* The reading thread sees to it. */
    if (events)
        io_process(ses, events);
    if (ses->state == ZK_UP)
        io_ask_up(ses);
    io_settle(ses);
    zk_pass(ses);
    return ses->state == ZK_UP ? io_due(ses) : 0;
}

/* Have zk_hear() called for what comes, while the session is up. */
void zk_hear_from(struct zk_session *ses, bool up)
{
    struct epoll_event ev = {.events = EPOLLIN};

    epoll_ctl(ses->conn->poll_fd, up ? EPOLL_CTL_ADD : EPOLL_CTL_DEL,
              ses->epoll_fd, &ev);
}

void zk_hear(struct zk_conn *zc)
{
    struct hfi_link *at, *next;
    struct zk_session *ses;

    for (at = zc->living.next; at != &zc->living; at = next) {
        next = at->next;
        ses = hfi_container(at, struct zk_session, link);
        if (ses->state == ZK_UP)
            io_listen(ses);
    }
}

static void io_close(struct zk_session *ses)
{
    pthread_mutex_t *mu = &ses->conn->mu;

    ses->shut = true;
    pthread_mutex_unlock(mu);
    if (ses->zh)
        zk_library_close(ses->conn, ses->zh, CLOSE_MS);
    zk_lookup_end(ses->lookup);
    hfi_free(ses->addrs);
    pthread_mutex_lock(mu);
    zk_batches_drop(ses);
    zk_async_drop(ses);
    ses->done = true;
    hfi_cond_wake(&ses->cond);
}

void *zk_io_run(void *arg)
{
    struct zk_session *ses = arg;
    pthread_mutex_t *mu = &ses->conn->mu;
    int64_t until;
    int fd;

    pthread_mutex_lock(mu);
    while (ses->state != ZK_DEAD || ses->users) {
        until = HFI_NEVER; /* A dead one waits for its users. */
        if (ses->state == ZK_CONNECTING && !ses->zh)
            io_begin(ses);
        if (ses->state == ZK_CONNECTING && ses->zh)
            until = io_connect(ses);
        else if (ses->state == ZK_UP)
            until = io_due(ses);
        if (ses->state == ZK_UP &&
            (until <= hfi_now() || !(ses->armed || ses->reading)))
            until = io_listen(ses); /* io.c (3) */
        fd = ses->state == ZK_CONNECTING ? ses->epoll_fd : -1;
        if (fd >= 0 && !ses->zh && ses->lookup)
            fd = zk_lookup_fd(ses->lookup);
        pthread_mutex_unlock(mu);
        hfi_notifier_wait(&ses->notifier, fd, until);
        pthread_mutex_lock(mu);
    }
    io_close(ses);
    pthread_mutex_unlock(mu);
    return NULL;
}
