/* SPDX-License-Identifier: MIT
 *
 * end.c - calls at the end of a command, which may take a limited time.
 *
 * To release a lock and to close a client is to wait for an answer, and a
 * service that is frozen gives none.  By then nothing depends on the answer:
 * the command is dead, and the lease ends by itself.  So such a call is made in
 * a thread of its own and waited for; if it takes too long, the process ends
 * without it.  It then ends by _exit(2), because the destructors of libraries
 * must not run under a thread that uses them.
 */
#include "cli.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct end_call {
    void (*fn)(void *);
    void *arg;
    bool done;
};

static pthread_mutex_t end_mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t end_cond;
static bool end_ready;     /* end_cond is initialized */
static bool end_abandoned; /* a call is still under way */

static void *end_thread(void *arg)
{
    struct end_call *call = arg;

    call->fn(call->arg);
    pthread_mutex_lock(&end_mu);
    call->done = true;
    pthread_cond_broadcast(&end_cond);
    pthread_mutex_unlock(&end_mu);
    return NULL;
}

/* The condition counts on a clock that nobody sets. */
static void end_prepare(void)
{
    pthread_condattr_t attr;

    if (end_ready)
        return;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&end_cond, &attr);
    pthread_condattr_destroy(&attr);
    end_ready = true;
}

/* Start the call; false if there is no thread for it. */
static bool end_begin(struct end_call *call, pthread_t *ret)
{
    sigset_t all, old;
    bool ok;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ok = pthread_create(ret, NULL, end_thread, call) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ok;
}

bool end_within(int64_t ms, void (*fn)(void *), void *arg)
{
    struct end_call *call = malloc(sizeof(*call));
    struct timespec until;
    pthread_t thread;
    bool done;
    int rc = 0;

    end_prepare();
    if (call)
        *call = (struct end_call){fn, arg, false};
    if (!call || !end_begin(call, &thread)) {
        free(call);
        fn(arg);
        return true;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&end_mu);
    while (rc == 0 && !call->done)
        rc = pthread_cond_timedwait(&end_cond, &end_mu, &until);
    done = call->done;
    end_abandoned = end_abandoned || !done;
    pthread_mutex_unlock(&end_mu);
    if (!done)
        return false; /* the call owns its memory for as long as it runs */
    pthread_join(thread, NULL);
    free(call);
    return true;
}

int end_process(int code)
{
    say_flush(END_SAY_MS);
    if (!end_abandoned)
        return code;
    fflush(stdout);
    _exit(code);
}
