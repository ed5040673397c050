/* SPDX-License-Identifier: MIT
 *
 * peek.c - looking at a lock without waiting for the answer.
 *
 * hf_inspect() waits for the service, and a service that is slow or frozen must
 * not keep holdfast from a signal or from its own clock.  So a look is made in
 * a thread of its own, one at a time, and a descriptor tells when it is over.
 *
 * A look may outlive the interest in it.  It uses the client, so whoever closes
 * the client calls peek_settle() before.
 */
#include "cli.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct {
    pthread_mutex_t mu;
    pthread_cond_t over;
    int fd; /* readable when a look is over; -1 before the first */
    bool busy;
    bool ready; /* there is a result that nobody has taken */
    hf_client *client;
    const char *key;
    struct cli_peek result;
} peek_state = {.mu = PTHREAD_MUTEX_INITIALIZER,
                .over = PTHREAD_COND_INITIALIZER,
                .fd = -1};

static void *peek_thread(void *arg)
{
    struct cli_peek result = {.info = HF_INFO_INIT};

    (void)arg;
    result.st = hf_inspect(peek_state.client, peek_state.key, &result.info,
                           &result.err);
    pthread_mutex_lock(&peek_state.mu);
    peek_state.result = result;
    peek_state.busy = false;
    peek_state.ready = true;
    eventfd_write(peek_state.fd, 1);
    pthread_cond_broadcast(&peek_state.over);
    pthread_mutex_unlock(&peek_state.mu);
    return NULL;
}

static bool peek_launch(void)
{
    sigset_t all, old;
    pthread_t thread;
    bool ok;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ok = pthread_create(&thread, NULL, peek_thread, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ok && pthread_detach(thread) == 0;
}

int peek_fd(void)
{
    if (peek_state.fd < 0)
        peek_state.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return peek_state.fd;
}

bool peek_start(hf_client *client, const char *key)
{
    bool ok = peek_fd() >= 0;

    pthread_mutex_lock(&peek_state.mu);
    if (ok && !peek_state.busy) {
        peek_state.client = client;
        peek_state.key = key;
        peek_state.ready = false;
        peek_state.busy = ok = peek_launch();
    }
    pthread_mutex_unlock(&peek_state.mu);
    return ok;
}

bool peek_take(struct cli_peek *ret)
{
    eventfd_t count;
    bool ready;

    pthread_mutex_lock(&peek_state.mu);
    ready = peek_state.ready;
    peek_state.ready = false;
    if (ready) {
        *ret = peek_state.result;
        eventfd_read(peek_state.fd, &count);
    }
    pthread_mutex_unlock(&peek_state.mu);
    return ready;
}

void peek_settle(void)
{
    pthread_mutex_lock(&peek_state.mu);
    while (peek_state.busy)
        pthread_cond_wait(&peek_state.over, &peek_state.mu);
    pthread_mutex_unlock(&peek_state.mu);
}
