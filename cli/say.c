/* SPDX-License-Identifier: MIT
 *
 * say.c - messages on stderr that keep nobody waiting.
 *
 * A write to stderr can block for ever: the terminal was stopped with ^S, the
 * reader of a pipe is stuck, a pseudo terminal is full.  While a lock is held
 * or waited for, the command must still be ended in time, so the thread that
 * does that never writes:
 *
 *  (1) After say_start() a message is put into a buffer, and a thread of its
 *      own writes it.  Only that thread can block.
 *  (2) What does not fit into the buffer is dropped; the exit status and
 *      --report do not depend on it.
 *  (3) say_flush() waits for the thread, but only for a limited time.  It is
 *      called where order matters (before the command starts, before holdfast
 *      stops) and at the end.  Nobody calls it between the loss of a lock and
 *      the end of the command.
 *  (4) What is still unwritten when the process ends is lost, and the thread
 *      with it.
 *
 * poll(2) with O_NONBLOCK is no way out: the flag belongs to the open file
 * description, which the command shares, and without it the command's own
 * output can fill a pipe between poll and write.
 */
#include "cli.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SAY_ROOM 16384

static struct {
    pthread_mutex_t mu;
    pthread_cond_t more; /* there is something to write */
    pthread_cond_t done; /* all has been written */
    bool running;        /* the thread exists; changed by say_start() only */
    bool writing;        /* the thread is in write(2) */
    size_t len;
    char text[SAY_ROOM];
} say_state = {.mu = PTHREAD_MUTEX_INITIALIZER,
               .more = PTHREAD_COND_INITIALIZER};

static void say_out(const char *text, size_t len)
{
    if (write(STDERR_FILENO, text, len) < 0)
        return; /* nobody is left to be told */
}

/* Write line by line, so that each is one write and stays in one piece. */
static void *say_thread(void *arg)
{
    char line[SAY_ROOM];

    (void)arg;
    pthread_mutex_lock(&say_state.mu);
    for (;;) {
        const char *end;
        size_t len;

        while (!say_state.len) {
            say_state.writing = false;
            pthread_cond_broadcast(&say_state.done);
            pthread_cond_wait(&say_state.more, &say_state.mu);
        }
        say_state.writing = true;
        end = memchr(say_state.text, '\n', say_state.len);
        len = end ? (size_t)(end + 1 - say_state.text) : say_state.len;
        memcpy(line, say_state.text, len);
        say_state.len -= len;
        memmove(say_state.text, say_state.text + len, say_state.len);
        pthread_mutex_unlock(&say_state.mu);
        say_out(line, len);
        pthread_mutex_lock(&say_state.mu);
    }
    return NULL;
}

bool say_start(void)
{
    pthread_condattr_t attr;
    sigset_t all, old;
    pthread_t thread;

    if (say_state.running)
        return true;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&say_state.done, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    say_state.running = pthread_create(&thread, NULL, say_thread, NULL) == 0 &&
                        pthread_detach(thread) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return say_state.running;
}

void say_text(const char *text)
{
    size_t len = strlen(text);

    if (!say_state.running) {
        say_out(text, len);
        return;
    }
    pthread_mutex_lock(&say_state.mu);
    if (len <= SAY_ROOM - say_state.len) {
        memcpy(say_state.text + say_state.len, text, len);
        say_state.len += len;
        pthread_cond_signal(&say_state.more);
    }
    pthread_mutex_unlock(&say_state.mu);
}

bool say_behind(void)
{
    bool behind;

    pthread_mutex_lock(&say_state.mu);
    behind = say_state.len || say_state.writing;
    pthread_mutex_unlock(&say_state.mu);
    return behind;
}

void say_flush(int64_t ms)
{
    struct timespec until;
    int rc = 0;

    if (!say_state.running)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&say_state.mu);
    while (rc == 0 && (say_state.len || say_state.writing))
        rc = pthread_cond_timedwait(&say_state.done, &say_state.mu, &until);
    pthread_mutex_unlock(&say_state.mu);
}
