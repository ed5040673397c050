/* SPDX-License-Identifier: MIT
 *
 * main.c - holdfast-serve: options, start and end.
 *
 * The main thread wakes the streams, closes connections that are late and waits
 * for a signal.  Everything else is
 * done by the threads of watch.c and of the HTTP library.
 *
 * Threads that ask a service wait for its answer, for seconds if it is silent.
 * Nothing is held that they would have to give back (serve.h (1)), so the end
 * does not wait for them longer than MAIN_END_S.
 */
#include "serve.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define MAIN_TICK_NS (100 * 1000 * 1000)
#define MAIN_END_S   1

static void *main_end(void *arg)
{
    const struct timespec limit = {.tv_sec = MAIN_END_S};

    (void)arg;
    nanosleep(&limit, NULL);
    _exit(0);
}

int main(int argc, char **argv)
{
    const struct timespec tick = {.tv_nsec = MAIN_TICK_NS};
    struct serve_opts opts;
    pthread_t late;
    sigset_t ends;
    int st = serve_opts(argc, argv, &opts);

    if (st)
        return st;
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* Threads inherit it. */
    serve_table_init(opts.services);
    if (!serve_run_init()) {
        fputs("holdfast-serve: there is no randomness\n", stderr);
        return 71;
    }
    st = serve_watch_start(&opts);
    if (!st)
        st = serve_http_start(&opts);
    if (!st) {
        while (sigtimedwait(&ends, NULL, &tick) < 0) {
            serve_stream_tick();
            serve_door_tick();
        }
        if (!pthread_create(&late, NULL, main_end, NULL))
            pthread_detach(late);
        serve_http_stop();
        serve_watch_stop();
    }
    _exit(st); /* Who still asks a service that is silent is not waited for. */
}
