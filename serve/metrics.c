/* SPDX-License-Identifier: MIT
 *
 * metrics.c - the table as text for Prometheus.
 *
 * Series are labelled by service.  No series is labelled by key unless
 * --label-keys names its prefix, and then at most METRICS_KEYS of them are.
 *
 * INVARIANT  What is not known has no series: 0 would be a statement.  Of a service
 * that was never listed, or does not answer now, nothing is known of now: so it has
 * no gauges but holdfast_service_up.  What was seen to happen was seen, so counters
 * and histograms stay.
 */
#include "serve.h"

#include <inttypes.h>
#include <string.h>

#include "../cli/cli.h"

#define METRICS_KEYS 1000

/* A label value: one line of UTF-8, as people see it, in which backslash and
 * quote are escaped.  Prometheus refuses all of a scrape that has a byte that is
 * no UTF-8, and keeps one of two series that are called the same: so no two keys
 * look the same (cli/out.c (4)). */
static void metrics_label(FILE *out, const char *text)
{
    char clean[4 * HF_KEY_MAX + 1];

    cli_show(text, clean, sizeof(clean));
    fputc('"', out);
    for (const char *at = clean; *at; at++)
        fprintf(out, *at == '\\' || *at == '"' ? "\\%c" : "%c", *at);
    fputc('"', out);
}

static void metrics_head(FILE *out, const char *name, const char *type,
                         const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Is anything known of how its locks are now? */
static bool metrics_known(int service)
{
    return serve_table.services[service].up &&
           serve_table.services[service].listed;
}

/* Two databases of one server have one endpoint: the second is called "...#2". */
static void metrics_name(FILE *out, const char *name, int service)
{
    char text[sizeof(serve_table.services[0].endpoint) + 12];
    int nth = 1;

    for (int i = 0; i < service; i++)
        nth += !strcmp(serve_table.services[i].endpoint,
                       serve_table.services[service].endpoint);
    snprintf(text, sizeof(text), nth > 1 ? "%s#%d" : "%s",
             serve_table.services[service].endpoint, nth);
    fprintf(out, "%s{service=", name);
    metrics_label(out, text);
}

enum { UP, HELD, HOLDERS, WAITERS, GRANTS, HANDOVERS, BREAKS, LAPSES, NUMBERS };

static const struct {
    const char *name, *type, *help;
} metrics_numbers[NUMBERS] = {
    [UP] = {"holdfast_service_up", "gauge",
            "Whether the last question to the service was answered."},
    [HELD] = {"holdfast_locks_held", "gauge", "Locks that somebody holds."},
    [HOLDERS] = {"holdfast_lock_holders", "gauge",
                 "Holders of these locks: readers and permits count each."},
    [WAITERS] = {"holdfast_lock_waiters", "gauge",
                 "Waiters, of the locks whose service tells how many."},
    [GRANTS] = {"holdfast_grants_observed_total", "counter",
                "Grants that were seen."},
    [HANDOVERS] = {"holdfast_handovers_observed_total", "counter",
                   "Grants that were seen to follow another at once."},
    [BREAKS] = {"holdfast_breaks_observed_total", "counter",
                "Grants that were seen to be broken."},
    [LAPSES] = {"holdfast_lapses_observed_total", "counter",
                "Grants that were seen to end because nobody renewed them."},
};

static uint64_t metrics_number(const struct serve_service *s, int which)
{
    const uint64_t values[NUMBERS] = {
        [UP] = s->up,
        [HELD] = (uint64_t)s->held,
        [HOLDERS] = (uint64_t)s->holders,
        [WAITERS] = (uint64_t)s->waiters,
        [GRANTS] = s->grants,
        [HANDOVERS] = s->handovers,
        [BREAKS] = s->breaks,
        [LAPSES] = s->lapses,
    };

    return values[which];
}

static void metrics_histogram(FILE *out, const char *name, const char *help,
                              size_t offset)
{
    metrics_head(out, name, "histogram", help);
    for (int i = 0; i < serve_table.nservices; i++) {
        const struct serve_histogram *h =
            (const void *)((const char *)&serve_table.services[i] + offset);
        uint64_t below = 0;
        char full[96];

        snprintf(full, sizeof(full), "%s_bucket", name);
        for (int b = 0; b < SERVE_BUCKETS - 1; b++) {
            below += h->buckets[b];
            metrics_name(out, full, i);
            fprintf(out, ",le=\"%g\"} %" PRIu64 "\n",
                    (double)(INT64_C(1) << b) / 1000, below);
        }
        metrics_name(out, full, i);
        fprintf(out, ",le=\"+Inf\"} %" PRIu64 "\n", h->count);
        snprintf(full, sizeof(full), "%s_sum", name);
        metrics_name(out, full, i);
        fprintf(out, "} %.3f\n", (double)h->sum_ms / 1000);
        snprintf(full, sizeof(full), "%s_count", name);
        metrics_name(out, full, i);
        fprintf(out, "} %" PRIu64 "\n", h->count);
    }
}

/* The oldest grant, the longest wait and the shortest lease of each service;
 * -1 if there is none. */
static void metrics_extremes(int64_t now, int64_t age[], int64_t wait[],
                             int64_t left[])
{
    const struct serve_lock *lock;

    for (int i = 0; i < SERVE_SERVICES; i++)
        age[i] = wait[i] = left[i] = -1;
    for (lock = serve_table.first; lock; lock = lock->next) {
        int s = lock->service;

        if (!lock->info.held || !metrics_known(s))
            continue;
        if (serve_age(lock, now) > age[s])
            age[s] = serve_age(lock, now);
        if (lock->waited >= 0 && now - lock->waited > wait[s])
            wait[s] = now - lock->waited;
        if (lock->info.left_ms >= 0 &&
            (left[s] < 0 || serve_left(lock, now) < left[s]))
            left[s] = serve_left(lock, now);
    }
}

static void metrics_ages(FILE *out, const char *name, const char *help,
                         const int64_t ms[])
{
    metrics_head(out, name, "gauge", help);
    for (int i = 0; i < serve_table.nservices; i++) {
        if (ms[i] < 0)
            continue;
        metrics_name(out, name, i);
        fprintf(out, "} %.3f\n", (double)ms[i] / 1000);
    }
}

static bool metrics_labelled(const struct serve_opts *opts, const char *key)
{
    for (int i = 0; i < opts->nlabels; i++)
        if (!strncmp(key, opts->labels[i], strlen(opts->labels[i])))
            return true;
    return false;
}

static void metrics_keys(FILE *out, const struct serve_opts *opts, int64_t now)
{
    const char *const names[] = {"holdfast_lock_age_seconds",
                                 "holdfast_lock_key_waiters"};
    const struct serve_lock *lock;

    for (int which = 0; opts->nlabels && which < 2; which++) {
        int count = 0;

        metrics_head(out, names[which], "gauge",
                     which ? "Waiters for this lock."
                           : "How long this lock has been held.");
        for (lock = serve_table.last; lock && count < METRICS_KEYS;
             lock = lock->prev) {
            if (!lock->info.held || !metrics_known(lock->service) ||
                !metrics_labelled(opts, lock->key) ||
                (which && lock->info.waiters < 0))
                continue;
            metrics_name(out, names[which], lock->service);
            fputs(",key=", out);
            metrics_label(out, lock->key);
            if (which)
                fprintf(out, "} %d\n", (int)lock->info.waiters);
            else
                fprintf(out, "} %.3f\n", (double)serve_age(lock, now) / 1000);
            count++;
        }
    }
}

void serve_metrics(FILE *out, const struct serve_opts *opts)
{
    int64_t age[SERVE_SERVICES], wait[SERVE_SERVICES], left[SERVE_SERVICES];
    int64_t now = serve_now();

    pthread_mutex_lock(&serve_table.mu);
    for (int which = 0; which < NUMBERS; which++) {
        metrics_head(out, metrics_numbers[which].name,
                     metrics_numbers[which].type, metrics_numbers[which].help);
        for (int i = 0; i < serve_table.nservices; i++) {
            if (which >= HELD && which <= WAITERS && !metrics_known(i))
                continue;
            if (which == WAITERS && serve_table.services[i].unknown)
                continue;
            metrics_name(out, metrics_numbers[which].name, i);
            fprintf(out, "} %" PRIu64 "\n",
                    metrics_number(&serve_table.services[i], which));
        }
    }
    metrics_head(out, "holdfast_round_trip_seconds", "gauge",
                 "How long the last listing of locks took.");
    for (int i = 0; i < serve_table.nservices; i++) {
        if (!metrics_known(i))
            continue;
        metrics_name(out, "holdfast_round_trip_seconds", i);
        fprintf(out, "} %.6f\n",
                (double)serve_table.services[i].trip_us / 1000000);
    }
    metrics_extremes(now, age, wait, left);
    metrics_ages(out, "holdfast_oldest_grant_seconds",
                 "Age of the oldest grant.", age);
    metrics_ages(out, "holdfast_oldest_waiter_seconds",
                 "How long somebody has been waiting, since it was seen.",
                 wait);
    metrics_ages(out, "holdfast_lease_left_seconds",
                 "What is left of the lease that ends first, as last seen.",
                 left);
    metrics_histogram(out, "holdfast_hold_seconds",
                      "How long locks were held, as observed.",
                      offsetof(struct serve_service, hold));
    metrics_histogram(out, "holdfast_first_in_line_seconds",
                      "From the first waiter that was seen to the next grant.",
                      offsetof(struct serve_service, wait));
    metrics_keys(out, opts, now);
    pthread_mutex_unlock(&serve_table.mu);
}
