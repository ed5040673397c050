/* SPDX-License-Identifier: MIT
 *
 * lend.c - handles that are in use, see binding.h (2).
 */
#include "binding.h"

#include <time.h>

enum { WAKE_MS = 10 };

int lend_forks;

static void lend_forked(void)
{
    lend_forks++;
    wait_forked();
}

int lend_begin(void)
{
    return pthread_atfork(NULL, NULL, lend_forked);
}

void lend_init(struct lend *lend, void *handle)
{
    lend->handle = handle;
    lend->users = 0;
    lend->forks = lend_forks;
    pthread_mutex_init(&lend->mu, NULL);
    pthread_cond_init(&lend->unused, NULL);
}

void lend_fini(struct lend *lend)
{
    pthread_cond_destroy(&lend->unused);
    pthread_mutex_destroy(&lend->mu);
}

bool inherited(const struct lend *lend)
{
    if (!lend->handle || lend->forks == lend_forks)
        return false;
    raise_text(HF_INVALID, "this belongs to another process; open a client "
                           "after fork");
    return true;
}

void *begin_use(struct lend *lend, const char *what)
{
    char text[64];

    if (!lend->handle) {
        PyOS_snprintf(text, sizeof(text), "the %s is %s", what,
                      *what == 'c' ? "closed" : "not held");
        return raise_text(HF_INVALID, text);
    }
    lend->users++;
    return lend->handle;
}

void end_use(struct lend *lend)
{
    if (--lend->users || lend->handle)
        return;
    pthread_mutex_lock(&lend->mu);
    pthread_cond_broadcast(&lend->unused);
    pthread_mutex_unlock(&lend->mu);
}

/* Sleep a while, or until end_use() says that nobody is left. */
static void lend_pause(struct lend *lend)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += WAKE_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_mutex_lock(&lend->mu);
    pthread_cond_timedwait(&lend->unused, &lend->mu, &until);
    pthread_mutex_unlock(&lend->mu);
}

bool in_use(const struct lend *lend)
{
    return lend->users && lend->forks == lend_forks;
}

void *end_uses(struct lend *lend, void (*wake)(void *handle))
{
    void *handle = lend->handle;

    lend->handle = NULL;
    while (handle && in_use(lend)) {
        Py_BEGIN_ALLOW_THREADS;
        if (wake)
            wake(handle);
        lend_pause(lend);
        Py_END_ALLOW_THREADS;
    }
    return handle;
}
