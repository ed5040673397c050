/* SPDX-License-Identifier: MIT
 *
 * wait.c - threads that wait, see binding.h (4).
 */
#include "binding.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* A handler of Python can be due although no call was interrupted: the signal
 * came just before the call, or another thread got it.  So a wait looks again. */
enum { LOOK_MS = 500 };

static struct waiter *wait_first;

/* The others are threads of the parent. */
void wait_forked(void)
{
    wait_first = NULL;
}

static int64_t wait_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t wait_until(long long ms)
{
    if (ms > INT64_MAX / 4)
        ms = INT64_MAX / 4;
    return ms < 0 ? -1 : wait_now() + ms + (ms > 0);
}

/* How long to sleep at most; 0 if the time is over. */
static int wait_left(int64_t until)
{
    int64_t left = until < 0 ? LOOK_MS : until - wait_now();

    return (int)(left < 0 ? 0 : left > LOOK_MS ? LOOK_MS : left);
}

bool wait_over(int64_t until)
{
    return !wait_left(until);
}

struct waiter *wait_begin(const void *owner, const void *what)
{
    struct waiter *waiter = PyMem_Malloc(sizeof(*waiter));

    if (!waiter) {
        PyErr_NoMemory();
        return NULL;
    }
    *waiter = (struct waiter){
        wait_first,     owner,      what,
        pthread_self(), lend_forks, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (waiter->fd < 0) {
        PyMem_Free(waiter);
        raise_text(HF_SYSTEM, "no descriptor to wait with");
        return NULL;
    }
    wait_first = waiter;
    return waiter;
}

void wait_end(struct waiter *waiter)
{
    struct waiter **at = &wait_first;

    while (*at && *at != waiter)
        at = &(*at)->next;
    if (*at)
        *at = waiter->next;
    close(waiter->fd);
    PyMem_Free(waiter);
}

void wait_tell(const void *whom)
{
    uint64_t one = 1;
    ssize_t n;

    for (struct waiter *w = wait_first; w; w = w->next) {
        if ((w->owner != whom && w->what != whom) ||
            pthread_equal(w->thread, pthread_self()))
            continue;
        n = write(w->fd, &one, sizeof(one));
        (void)
            n; /* Only a counter that is full refuses, and that is readable. */
    }
}

int wait_sleep(struct waiter *waiter, int fd, int64_t until)
{
    struct pollfd fds[2] = {{waiter->fd, POLLIN, 0}, {fd, POLLIN, 0}};
    uint64_t count;
    ssize_t n;

    Py_BEGIN_ALLOW_THREADS;
    if (poll(fds, 2, wait_left(until)) < 0)
        fds[0].revents = fds[1].revents = 0;
    if (fds[0].revents) {
        n = read(waiter->fd, &count, sizeof(count));
        (void)n;
    }
    Py_END_ALLOW_THREADS;
    return fds[1].revents != 0;
}

/* ---- events of a client ------------------------------------------------------ */

/* Sleep until the descriptor of events is readable, or the waiter is told.
 * Nobody closes the client meanwhile. */
static int wait_events(struct client *client, struct waiter *waiter,
                       int64_t until)
{
    hf_client *handle = NULL;
    int fd;

    if (client->lend.handle && waiter->forks == lend_forks)
        handle = begin_use(&client->lend, "client");
    if (!handle) {
        raise_text(HF_CANCELED, "the client is closed");
        return -1;
    }
    fd = hf_events_fd(handle);
    if (fd >= 0)
        wait_sleep(waiter, fd, until);
    end_use(&client->lend);
    if (fd < 0)
        raise_text(HF_SYSTEM, "no descriptor for events");
    return fd < 0 ? -1 : 0;
}

int wait_for(struct client *client, PyObject *list, int64_t until,
             bool handlers, int (*ready)(void *arg), void *arg)
{
    struct waiter *waiter = wait_begin(client, list);
    PyObject *told;
    int ret;

    if (!waiter)
        return -1;
    do {
        told = client_events((PyObject *)client, NULL);
        Py_XDECREF(told);
        ret = told ? ready(arg) : -1;
        if (ret || wait_over(until))
            break;
        ret = wait_events(client, waiter, until);
        if (!ret && handlers)
            ret = PyErr_CheckSignals();
    } while (!ret);
    wait_end(waiter);
    return ret;
}
