/* SPDX-License-Identifier: MIT
 *
 * watch.c - one thread for each service: what its locks are, told to table.c.
 *
 * The service pushes changes where it can (hf_observe_start()).  What it does not
 * push is how often a lock was renewed, so a listing refreshes what is left of
 * the leases, twice in a lease of the service's default length, and finds what an
 * observation may have missed.  While no lock is held it comes three times in two
 * leases: then nothing but the listing finds out that a service has fallen
 * silent, and with what a service needs to go on telling there are at most two
 * requests a lease.  The library asks for nothing beside these listings.  Leases
 * that are shorter are refreshed one by one, WATCH_SHORT of them in a second at
 * most.
 *
 * Whether a service answers is told by the observer as well, which asks as soon as a
 * connection breaks.  A service that cannot be reached costs its own thread only,
 * which tries again.
 */
#include "serve.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "../cli/cli.h"

#define WATCH_RETRY_MS 2000
#define WATCH_SHORT    50
#define WATCH_SHORT_MS 1000

struct watch {
    pthread_t thread;
    const char *url, *prefix;
    _Atomic(hf_client *) client;
    int service;
    unsigned mark;
    int64_t listed; /* when it was listed last; 0: it has to be, now */
    bool started;
};

static struct watch watches[SERVE_SERVICES];
static atomic_bool watch_ends;
static const struct hf_client_opts *watch_opts; /* of all clients */
static int watch_fd = -1;

hf_client *serve_client(int service)
{
    return atomic_load(&watches[service].client);
}

static int64_t watch_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static bool watch_listed(void *arg, const char *key, const struct hf_info *info)
{
    const struct watch *w = arg;

    serve_table_change(w->service, key, info, w->mark);
    return !atomic_load(&watch_ends);
}

/* Whether it answers, and if not, why: to the table, and if that is news to
 * $HOLDFAST_LOG. */
static void watch_told(const struct watch *w, const struct hf_error *why,
                       const char *endpoint, int64_t trip_us)
{
    const struct serve_service *service = &serve_table.services[w->service];
    hf_log_level level = why ? HF_LOG_WARNING : HF_LOG_INFO;
    struct hf_error err = {.text = ""};
    char text[1024];
    bool was = service->up; /* No other thread changes it. */

    if (why)
        err = *why;
    cli_mask(err.text, false);
    serve_table_up(w->service, !why, endpoint, err.text, trip_us);
    if (was == !why || !watch_opts->log || watch_opts->log_level < level)
        return;
    snprintf(text, sizeof(text), "%s: %s", service->endpoint,
             why ? err.text : "up");
    watch_opts->log(watch_opts->log_arg, level, text);
}

/* Ask for everything that is held. */
static void watch_list(struct watch *w, hf_client *client)
{
    struct hf_error err;
    int64_t begin = watch_us();
    hf_status st;

    w->mark++;
    st = hf_list(client, w->prefix, watch_listed, w, &err);
    watch_told(w, st ? &err : NULL, NULL, watch_us() - begin);
    if (!st)
        serve_table_sweep(w->service, w->mark);
    w->listed = serve_now();
}

static void watch_sleep(int fd, int64_t ms)
{
    struct pollfd fds[2] = {{.fd = watch_fd, .events = POLLIN},
                            {.fd = fd, .events = POLLIN}};

    poll(fds, fd < 0 ? 1 : 2, ms > 60000 ? 60000 : ms < 0 ? 0 : (int)ms);
}

/* What has changed, and whether the service answers: if it does again, a listing
 * shows what there is now. */
static void watch_drain(struct watch *w, hf_client *client,
                        hf_observer *observer)
{
    struct hf_event event = HF_EVENT_INIT;
    struct hf_change change = HF_CHANGE_INIT;

    while (hf_next_event(client, &event)) {
        if (event.type == HF_CHANGED && event.error.status)
            watch_told(w, &event.error, NULL, 0);
        else if (!serve_table.services[w->service].up)
            w->listed = 0;
        while (observer && hf_observer_next(observer, &change))
            serve_table_change(w->service, change.key, &change.info, 0);
    }
}

/* Look at locks whose leases are too short for the listings. */
static void watch_short(const struct watch *w, hf_client *client, int64_t every)
{
    char keys[WATCH_SHORT][HF_KEY_MAX + 1];
    int n = serve_table_short(w->service, every, keys, WATCH_SHORT);

    for (int i = 0; i < n && !atomic_load(&watch_ends); i++) {
        struct hf_info info = HF_INFO_INIT;

        if (hf_inspect(client, keys[i], &info, NULL))
            return; /* The next listing says why. */
        serve_table_change(w->service, keys[i], &info, 0);
    }
}

static bool watch_leases(const struct watch *w)
{
    bool ret;

    pthread_mutex_lock(&serve_table.mu);
    ret = serve_table.services[w->service].leases > 0;
    pthread_mutex_unlock(&serve_table.mu);
    return ret;
}

/* When to list again: sooner while anything is held, whether its lease is known
 * or not. */
static int64_t watch_due(const struct watch *w, int64_t every)
{
    const struct serve_service *service = &serve_table.services[w->service];
    bool held, up;

    pthread_mutex_lock(&serve_table.mu);
    held = service->held > 0;
    up = service->up;
    pthread_mutex_unlock(&serve_table.mu);
    if (!w->listed)
        return 0;
    if (!up && every > WATCH_RETRY_MS)
        return w->listed + WATCH_RETRY_MS;
    return w->listed + (held || every < 2000 ? every : every * 4 / 3);
}

/* While the client lasts, which is until we end. */
static void watch_follow(struct watch *w, hf_client *client)
{
    struct hf_service service = {.size = sizeof(service)};
    hf_observer *observer = NULL;
    struct hf_error err;
    int64_t looked = 0, every = 15000, wait;
    bool lasts = false;

    if (!hf_describe(client, &service, &err)) {
        watch_told(w, NULL, service.endpoint, 0);
        every = service.ttl_ms > 2000 ? service.ttl_ms / 2 : 1000;
        lasts = !(service.traits & HF_TRAIT_LEASED);
    }
    if (hf_observe_start(client, w->prefix, HF_PREFIX, NULL, &observer, &err))
        every = 1000; /* Nobody pushes: look more often. */
    pthread_mutex_lock(&serve_table.mu);
    serve_table.services[w->service].every_ms = every;
    serve_table.services[w->service].lease_ms = service.ttl_ms;
    serve_table.services[w->service].lasts = lasts;
    pthread_mutex_unlock(&serve_table.mu);
    while (!atomic_load(&watch_ends)) {
        if (serve_now() >= watch_due(w, every))
            watch_list(w, client);
        watch_drain(w, client, observer);
        if (serve_now() - looked >= WATCH_SHORT_MS) {
            watch_short(w, client, every);
            looked = serve_now();
        }
        wait = watch_due(w, every) - serve_now();
        if (wait > WATCH_SHORT_MS && watch_leases(w))
            wait = WATCH_SHORT_MS;
        watch_sleep(hf_events_fd(client), wait);
    }
    if (observer)
        hf_observe_stop(observer);
}

static void *watch_run(void *arg)
{
    struct watch *w = arg;

    while (!atomic_load(&watch_ends)) {
        hf_client *client;
        struct hf_error err;

        if (hf_open(w->url, watch_opts, &client, &err)) {
            watch_told(w, &err, NULL, 0);
            watch_sleep(-1, WATCH_RETRY_MS);
            continue;
        }
        atomic_store(&w->client, client);
        watch_follow(w, client);
    }
    return NULL;
}

int serve_watch_start(const struct serve_opts *opts)
{
    int i, error;

    watch_opts = log_opts();
    watch_fd = eventfd(0, EFD_CLOEXEC);
    if (watch_fd < 0) {
        fprintf(stderr, "holdfast-serve: eventfd: %s\n", strerror(errno));
        return 71;
    }
    for (i = 0; i < opts->services; i++) {
        watches[i].url = opts->urls[i];
        watches[i].prefix = opts->prefix;
        watches[i].service = i;
        cli_url_name(opts->urls[i], serve_table.services[i].endpoint,
                     sizeof(serve_table.services[i].endpoint));
        error =
            pthread_create(&watches[i].thread, NULL, watch_run, &watches[i]);
        if (error) {
            fprintf(stderr, "holdfast-serve: no thread for %d services: %s\n",
                    opts->services, strerror(error));
            return 71;
        }
        watches[i].started = true;
    }
    return 0;
}

void serve_watch_stop(void)
{
    uint64_t one = 1;

    atomic_store(&watch_ends, true);
    if (watch_fd >= 0 && write(watch_fd, &one, sizeof(one)) < 0)
        return;
    for (int i = 0; i < SERVE_SERVICES; i++) {
        if (watches[i].started)
            pthread_join(watches[i].thread, NULL);
        hf_close(atomic_exchange(&watches[i].client, NULL));
    }
}
