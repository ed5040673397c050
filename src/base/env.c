/* SPDX-License-Identifier: MIT
 *
 * env.c - time, randomness, waiting and threads; see env.h.
 *
 * TIME  Deadlines are on CLOCK_BOOTTIME.  The keeper's notifier uses a timer
 * descriptor on that clock, so it rings at once when a machine that was
 * suspended past a deadline wakes up.  Condition variables know no such
 * clock: they sleep for the difference on CLOCK_MONOTONIC, which is enough for
 * a caller's waiting time.
 */
#include "env.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "lease.h"
#include "mutant.h"

#include "banned.h"

const struct hfi_env *hfi_env;

int64_t hfi_now(void)
{
    struct timespec ts;

    if (hfi_env)
        return hfi_env->now();
    clock_gettime(
        HFI_MUTANT(clock_monotonic) ? CLOCK_MONOTONIC : CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int64_t hfi_now_us(void)
{
    struct timespec ts;

    if (hfi_env)
        return hfi_env->now() * 1000;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t hfi_wall_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t hfi_left_ms(int64_t deadline)
{
    int64_t now = hfi_now();

    return deadline > now ? deadline - now : 0;
}

void hfi_random(void *buf, size_t len)
{
    unsigned char *at = buf;
    ssize_t got;

    if (hfi_env) {
        hfi_env->random(buf, len);
        return;
    }
    /* Blocks only before the system's pool is seeded at boot; a signal may cut
     * a long answer short, and nothing else can go wrong. */
    while (len > 0) {
        got = getrandom(at, len, 0);
        if (got > 0) {
            at += got;
            len -= (size_t)got;
        }
    }
}

void hfi_mutex_init(pthread_mutex_t *mu)
{
    pthread_mutexattr_t attr;

    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(mu, &attr);
    pthread_mutexattr_destroy(&attr);
}

void hfi_cond_init(struct hfi_cond *cond)
{
    cond->sim = NULL;
    atomic_init(&cond->asleep, 0);
    pthread_cond_init(&cond->cond, NULL);
}

void hfi_cond_fini(struct hfi_cond *cond)
{
    pthread_cond_destroy(&cond->cond);
}

/* When `deadline` comes on CLOCK_MONOTONIC. */
static void env_monotonic(int64_t deadline, struct timespec *ret)
{
    int64_t left = hfi_left_ms(deadline);

    clock_gettime(CLOCK_MONOTONIC, ret);
    ret->tv_sec += left / 1000;
    ret->tv_nsec += left % 1000 * 1000000;
    if (ret->tv_nsec >= 1000000000) {
        ret->tv_sec++;
        ret->tv_nsec -= 1000000000;
    }
}

void hfi_cond_wait(struct hfi_cond *cond, pthread_mutex_t *mu, int64_t until)
{
    struct timespec ts;

    if (hfi_env) {
        hfi_env->wait(cond, mu, until);
        return;
    }
    atomic_fetch_add(&cond->asleep, 1);
    if (until == HFI_NEVER) {
        pthread_cond_wait(&cond->cond, mu);
    } else {
        env_monotonic(until, &ts);
        pthread_cond_clockwait(&cond->cond, mu, CLOCK_MONOTONIC, &ts);
    }
    atomic_fetch_sub(&cond->asleep, 1);
}

/* A thread that changed something before the sleeper had the mutex is not
 * waited for, and who had it later sees the sleeper counted. */
static bool env_sleeps(struct hfi_cond *cond)
{
    return atomic_load(&cond->asleep) > 0;
}

void hfi_cond_wake(struct hfi_cond *cond)
{
    if (hfi_env)
        hfi_env->wake(cond);
    else if (env_sleeps(cond))
        pthread_cond_broadcast(&cond->cond);
}

void hfi_cond_wake_one(struct hfi_cond *cond)
{
    if (hfi_env)
        hfi_env->wake(cond);
    else if (env_sleeps(cond))
        pthread_cond_signal(&cond->cond);
}

bool hfi_notifier_init(struct hfi_notifier *notifier)
{
    *notifier = (struct hfi_notifier){.event_fd = -1, .timer_fd = -1};
    if (hfi_env)
        return true;
    notifier->armed = HFI_NEVER;
    notifier->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    notifier->timer_fd =
        timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    return notifier->event_fd >= 0 && notifier->timer_fd >= 0;
}

void hfi_notifier_fini(struct hfi_notifier *notifier)
{
    if (notifier->event_fd >= 0)
        close(notifier->event_fd);
    if (notifier->timer_fd >= 0)
        close(notifier->timer_fd);
    notifier->event_fd = notifier->timer_fd = -1;
}

/* Set the timer, unless it is set for that time already. */
static void notifier_arm(struct hfi_notifier *notifier, int64_t until)
{
    struct itimerspec when = {0};

    if (notifier->armed == until)
        return;
    notifier->armed = until;
    if (until != HFI_NEVER) {
        if (until < 1)
            until = 1;
        when.it_value.tv_sec = until / 1000;
        when.it_value.tv_nsec = until % 1000 * 1000000;
    }
    timerfd_settime(notifier->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

bool hfi_notifier_wait(struct hfi_notifier *notifier, int fd, int64_t until)
{
    struct pollfd fds[3];
    uint64_t count;

    if (hfi_env) {
        hfi_env->notifier_wait(notifier, until);
        return false;
    }
    notifier_arm(notifier, until);
    fds[0] = (struct pollfd){.fd = notifier->event_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = notifier->timer_fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = fd, .events = POLLIN};
    if (poll(fds, 3, -1) < 0)
        return false;
    if (fds[0].revents && read(notifier->event_fd, &count, sizeof(count)) < 0)
        return false;
    if (fds[1].revents) {
        notifier->armed = HFI_NEVER;
        if (read(notifier->timer_fd, &count, sizeof(count)) < 0)
            return false;
    }
    return fds[2].revents != 0;
}

void hfi_notifier_notify(struct hfi_notifier *notifier)
{
    uint64_t one = 1;
    int saved = errno;
    ssize_t done;

    if (hfi_env) {
        hfi_env->notifier_notify(notifier);
        return;
    }
    done = write(notifier->event_fd, &one, sizeof(one));
    (void)done; /* Only a full counter fails, and then it rings anyway. */
    errno = saved;
}

bool hfi_thread_start(struct hfi_thread *thread, void *(*run)(void *),
                      void *arg)
{
    sigset_t all, old;

    if (hfi_env) {
        thread->running = hfi_env->start(thread, run, arg);
        return thread->running;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    thread->running = pthread_create(&thread->id, NULL, run, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return thread->running;
}

void hfi_thread_join(struct hfi_thread *thread)
{
    if (!thread->running)
        return;
    if (hfi_env)
        hfi_env->join(thread);
    else
        pthread_join(thread->id, NULL);
    thread->running = false;
}

/* In a simulation all threads are waited for: nothing there lasts. */
void hfi_thread_detach(struct hfi_thread *thread)
{
    if (thread->running && hfi_env)
        hfi_env->join(thread);
    else if (thread->running)
        pthread_detach(thread->id);
    thread->running = false;
}

unsigned char *hfi_fork_mark_new(void)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *mark = mmap(NULL, size, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (mark == MAP_FAILED)
        return NULL;
    if (madvise(mark, size, MADV_WIPEONFORK)) {
        munmap(mark, size);
        return NULL;
    }
    *mark = 1;
    return mark;
}

void hfi_fork_mark_free(unsigned char *mark)
{
    if (mark)
        munmap(mark, (size_t)sysconf(_SC_PAGESIZE));
}

int hfi_off_stdio(int fd)
{
    int other, saved;

    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    other = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    saved = errno;
    close(fd);
    errno = saved;
    return other;
}
