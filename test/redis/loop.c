/* SPDX-License-Identifier: MIT
 *
 * loop.c - an event loop whose server is frozen waits in no call.
 *
 * That is counted and not timed: every function with which the library could
 * sleep (on a condition, on a descriptor, for a time, for a thread) is the
 * test's own in this program, and counts calls that would block in the thread
 * of the event loop while that is inside of a function of the library.  A mutex
 * is not counted: it is held for moments, never across a call to the service
 * (src/core/core.h).
 */
#include "rt.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#define LOCKS 1000

/* ---- the system -------------------------------------------------------- */

static _Thread_local bool inside; /* of a function of the library */
static atomic_int blocked;        /* calls that would have blocked there */
static const char *_Atomic where; /* the last of them */

static void *next(const char *name)
{
    /* Conditions have an older form, which is found first. */
    void *fn = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");

    return fn ? fn : dlsym(RTLD_NEXT, name);
}

static void blocks(const char *name)
{
    if (!inside)
        return;
    atomic_fetch_add(&blocked, 1);
    atomic_store(&where, name);
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
    int (*real)(struct pollfd *, nfds_t, int);

    *(void **)&real = next("poll");
    if (timeout)
        blocks("poll");
    return real(fds, n, timeout);
}

int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mu)
{
    int (*real)(pthread_cond_t *, pthread_mutex_t *);

    *(void **)&real = next("pthread_cond_wait");
    blocks("pthread_cond_wait");
    return real(cond, mu);
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mu,
                           clockid_t clock, const struct timespec *until)
{
    int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t,
                const struct timespec *);

    *(void **)&real = next("pthread_cond_clockwait");
    blocks("pthread_cond_clockwait");
    return real(cond, mu, clock, until);
}

int pthread_join(pthread_t thread, void **ret)
{
    int (*real)(pthread_t, void **);

    *(void **)&real = next("pthread_join");
    blocks("pthread_join");
    return real(thread, ret);
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    int (*real)(const struct timespec *, struct timespec *);

    *(void **)&real = next("nanosleep");
    blocks("nanosleep");
    return real(time, left);
}

/* A descriptor that can make its caller wait. */
static bool waits(int fd, int flags)
{
    return !(flags & MSG_DONTWAIT) && !(fcntl(fd, F_GETFL) & O_NONBLOCK);
}

ssize_t recv(int fd, void *buf, size_t size, int flags)
{
    ssize_t (*real)(int, void *, size_t, int);

    *(void **)&real = next("recv");
    if (inside && waits(fd, flags))
        blocks("recv");
    return real(fd, buf, size, flags);
}

ssize_t send(int fd, const void *buf, size_t size, int flags)
{
    ssize_t (*real)(int, const void *, size_t, int);

    *(void **)&real = next("send");
    if (inside && waits(fd, flags))
        blocks("send");
    return real(fd, buf, size, flags);
}

ssize_t read(int fd, void *buf, size_t size)
{
    ssize_t (*real)(int, void *, size_t);

    *(void **)&real = next("read");
    if (inside && waits(fd, 0))
        blocks("read");
    return real(fd, buf, size);
}

ssize_t write(int fd, const void *buf, size_t size)
{
    ssize_t (*real)(int, const void *, size_t);

    *(void **)&real = next("write");
    if (inside && waits(fd, 0))
        blocks("write");
    return real(fd, buf, size);
}

/* A call of the library, by the event loop. */
#define LOOP(call) (inside = true, (call), inside = false)

/* ---- the loop ---------------------------------------------------------- */

/* What the events were, by type and, for answers, by status. */
struct seen {
    int granted, canceled, gone, answered, questions;
};

static int question; /* user data of what is no lock */

static void take(struct hf_event *event, hf_lock **locks, struct seen *seen)
{
    hf_lock **slot = event->user;
    hf_status st = HF_OK;

    switch (event->type) {
    case HF_GRANTED:
        *slot = event->lock;
        seen->granted++;
        break;
    case HF_FAILED:
        CHECK_EQ(event->error.status, HF_CANCELED);
        seen->canceled++;
        break;
    case HF_GONE:
        CHECK(slot >= locks && slot < locks + LOCKS && *slot == event->lock);
        LOOP(st = hf_release(*slot, &t_err));
        CHECK_EQ(st, HF_LOST);
        *slot = NULL;
        seen->gone++;
        break;
    case HF_ANSWERED:
        if (event->user == &question)
            seen->questions++;
        else
            seen->answered++;
        break;
    case HF_AT_RISK:
    case HF_CHANGED:
        break;
    }
}

static void check_none_blocked(void)
{
    if (atomic_load(&blocked))
        t_fail(__FILE__, __LINE__, "a call of the loop waits in %s()",
               atomic_load(&where));
}

/* Go round until `cond` is true, for a minute at most. */
#define ROUND(client, locks, seen, cond)                                       \
    do {                                                                       \
        struct pollfd wait = {hf_events_fd(client), POLLIN, 0};                \
        struct hf_event event = HF_EVENT_INIT;                                 \
        int64_t end = t_now_ms() + 60000;                                      \
        bool more;                                                             \
                                                                               \
        while (!(cond)) {                                                      \
            CHECK_LT(t_now_ms(), end);                                         \
            poll(&wait, 1, 100);                                               \
            do {                                                               \
                LOOP(more = hf_next_event(client, &event));                    \
                if (more)                                                      \
                    take(&event, locks, seen);                                 \
                check_none_blocked();                                          \
            } while (more);                                                    \
        }                                                                      \
    } while (0)

static void start(hf_client *client, hf_lock **slot, int i, int64_t ttl_ms)
{
    struct hf_lock_opts opts = rt_opts(ttl_ms, 0);
    hf_request *req;
    hf_status st;
    char key[32];

    snprintf(key, sizeof(key), "lock-%d", i);
    LOOP(st = hf_acquire_start(client, key, 60000, &opts, slot, &req, &t_err));
    CHECK_EQ(st, HF_OK);
}

static void ask(hf_client *client, struct hf_info *info)
{
    hf_request *req[4];
    hf_status st[4];
    int i;

    LOOP(st[0] = hf_inspect_start(client, "lock-0", info, &question, &req[0],
                                  &t_err));
    LOOP(st[1] =
             hf_check_start(client, "lock-1", 1, &question, &req[1], &t_err));
    LOOP(st[2] = hf_list_start(client, "", &question, &req[2], &t_err));
    LOOP(st[3] = hf_acquire_start(client, "another", -1, NULL, NULL, &req[3],
                                  &t_err));
    for (i = 0; i < 4; i++) {
        CHECK_EQ(st[i], HF_OK);
        LOOP(hf_request_cancel(req[i]));
    }
}

/* Half of the locks are given back while the server is frozen and they are
 * still held, the others are lost. */
TEST_TIMEOUT(a_loop_with_a_thousand_locks_waits_for_no_frozen_server, 120)
{
    static hf_lock *locks[LOCKS];
    struct hf_info info = HF_INFO_INIT;
    struct rt_server server = {0};
    struct seen seen = {0};
    hf_client *client;
    hf_request *req;
    int i;

    rt_start(&server, NULL);
    client = rt_open(&server, "?timeout=1s");
    for (i = 0; i < LOCKS; i++)
        start(client, &locks[i], i, 4000);
    ROUND(client, locks, &seen, seen.granted == LOCKS);
    rt_signal(&server, SIGSTOP);
    for (i = 0; i < LOCKS; i += 2) {
        LOOP(hf_release_start(locks[i], &locks[i], &req));
        CHECK(req != NULL);
    }
    ask(client, &info);
    ROUND(client, locks, &seen,
          seen.gone == LOCKS / 2 && seen.answered == LOCKS / 2 &&
              seen.questions == 3 && seen.canceled == 1);
    rt_signal(&server, SIGCONT);
    hf_close(client);
    rt_stop(&server);
}

/* Or nothing above would prove anything. */
TEST(a_call_that_waits_is_counted)
{
    struct rt_server server = {0};
    hf_client *client;
    hf_lock *lk;

    rt_start(&server, NULL);
    client = rt_open(&server, "?timeout=300ms");
    lk = rt_lock(client, "k", 0, 30000, 0);
    rt_signal(&server, SIGSTOP);
    LOOP((void)hf_release(lk, NULL));
    CHECK_GT(atomic_load(&blocked), 0);
    rt_signal(&server, SIGCONT);
    hf_close(client);
    rt_stop(&server);
}

T_MAIN
