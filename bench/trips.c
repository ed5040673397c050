/* SPDX-License-Identifier: MIT
 *
 * trips.c - how many round trips to the service one call waits for.
 *
 *     HF_PROXY=build/test/fault/proxy test/servers/consul test/servers/far 100 \
 *         build/bench/bench-trips 100
 *
 * Behind a proxy that delays every message, the time of a call is its round trips,
 * one after the other, and little else.  What is sent side by side counts once.
 * The argument is the round trip of the proxy in ms.  Each figure is the least of
 * some tries, on a client that has been used before: the first line alone has what
 * a client needs once.
 */
#include "bench.h"
#include "holdfast.h"

#include <stdio.h>
#include <stdlib.h>

#define TRIES 3
#define KEYS  3

static double trip_ms;
static hf_client *client, *other;
static int serial; /* so that each key is new */

static void must(hf_status st, const struct hf_error *err)
{
    if (st)
        bench_die("%s", err->text);
}

/* One try of a question takes so many ms. */
struct question {
    const char *name;
    double (*ask)(const struct hf_lock_opts *);
    struct hf_lock_opts opts;
};

static double since(double from_ns)
{
    return ((double)bench_now() - from_ns) / 1e6;
}

static hf_lock *take(hf_client *of, const char *key,
                     const struct hf_lock_opts *opts, double *ms)
{
    struct hf_error err;
    double from = (double)bench_now();
    hf_lock *lk = NULL;

    must(hf_acquire(of, key, 0, opts, &lk, &err), &err);
    *ms = since(from);
    return lk;
}

static double give(hf_lock *lk)
{
    struct hf_error err;
    double from = (double)bench_now();

    must(hf_release(lk, &err), &err);
    return since(from);
}

/* A key that nobody has used, and one that this client has just released. */
static const char *new_key(void)
{
    static char key[64];

    snprintf(key, sizeof(key), "trips/%d", serial++);
    return key;
}

static const char *used_key(const struct hf_lock_opts *opts)
{
    const char *key = new_key();
    double ms;

    give(take(client, key, opts, &ms));
    return key;
}

static double ask_new(const struct hf_lock_opts *opts)
{
    double ms;

    give(take(client, new_key(), opts, &ms));
    return ms;
}

static double ask_used(const struct hf_lock_opts *opts)
{
    double ms;

    give(take(client, used_key(opts), opts, &ms));
    return ms;
}

/* The other client has released it. */
static double ask_others(const struct hf_lock_opts *opts)
{
    const char *key = new_key();
    double ms;

    give(take(other, key, opts, &ms));
    give(take(client, key, opts, &ms));
    return ms;
}

static double ask_release(const struct hf_lock_opts *opts)
{
    double ms;

    return give(take(client, used_key(opts), opts, &ms));
}

/* The other client holds it, exclusively. */
static double ask_busy(const struct hf_lock_opts *opts)
{
    const char *key = new_key();
    struct hf_error err;
    hf_lock *none = NULL, *lk;
    double ms, from;

    lk = take(other, key, NULL, &ms);
    from = (double)bench_now();
    if (hf_acquire(client, key, 0, opts, &none, &err) != HF_BUSY)
        bench_die("it was not busy");
    ms = since(from);
    give(lk);
    return ms;
}

/* The other client holds it, and lets others in. */
static double ask_second(const struct hf_lock_opts *opts)
{
    const char *key = new_key();
    hf_lock *first, *second;
    double ms;

    first = take(other, key, opts, &ms);
    second = take(client, key, opts, &ms);
    give(second);
    give(first);
    return ms;
}

/* One of two leaves, and the last. */
static double leave(const struct hf_lock_opts *opts, bool last)
{
    const char *key = new_key();
    double ms, one, two;
    hf_lock *first, *second;

    first = take(other, key, opts, &ms);
    second = take(client, key, opts, &ms);
    one = give(first);
    two = give(second);
    return last ? two : one;
}

static double ask_leave(const struct hf_lock_opts *opts)
{
    return leave(opts, false);
}

static double ask_leave_last(const struct hf_lock_opts *opts)
{
    return leave(opts, true);
}

static double ask_extend(const struct hf_lock_opts *opts)
{
    struct hf_error err;
    double ms, from;
    hf_lock *lk = take(client, used_key(opts), opts, &ms);

    from = (double)bench_now();
    must(hf_extend(lk, 0, &err), &err);
    ms = since(from);
    give(lk);
    return ms;
}

/* KEYS keys that were used before, at once. */
static double ask_all(const struct hf_lock_opts *opts)
{
    char names[KEYS][64];
    const char *keys[KEYS];
    struct hf_error err;
    hf_lock *lk[KEYS];
    double ms, from;
    int i;

    for (i = 0; i < KEYS; i++) {
        snprintf(names[i], sizeof(names[i]), "%s", used_key(opts));
        keys[i] = names[i];
    }
    from = (double)bench_now();
    must(hf_acquire_all(client, keys, KEYS, 0, opts, lk, &err), &err);
    ms = since(from);
    for (i = 0; i < KEYS; i++)
        give(lk[i]);
    return ms;
}

/* Open, acquire, release, close: what a command does. */
static double ask_all_of_it(const struct hf_lock_opts *opts)
{
    hf_client *one = NULL;
    struct hf_error err;
    double ms, from = (double)bench_now();

    must(hf_open(getenv("HF_TEST_URL"), NULL, &one, &err), &err);
    give(take(one, new_key(), opts, &ms));
    hf_close(one);
    return since(from);
}

#define PLAIN                                                                  \
    {                                                                          \
        .size = sizeof(struct hf_lock_opts)                                    \
    }
#define SHARED                                                                 \
    {                                                                          \
        .size = sizeof(struct hf_lock_opts), .flags = HF_SHARED                \
    }
#define PERMIT                                                                 \
    {                                                                          \
        .size = sizeof(struct hf_lock_opts), .permits = 4                      \
    }

static struct question questions[] = {
    {"open, acquire, release, close", ask_all_of_it, PLAIN},
    {"acquire a new key", ask_new, PLAIN},
    {"acquire a key that was used here", ask_used, PLAIN},
    {"acquire a key that was used elsewhere", ask_others, PLAIN},
    {"try a key that is taken", ask_busy, PLAIN},
    {"extend", ask_extend, PLAIN},
    {"release", ask_release, PLAIN},
    {"acquire 3 keys that were used here", ask_all, PLAIN},
    {"reader: a new key", ask_new, SHARED},
    {"reader: a key that was used here", ask_used, SHARED},
    {"reader: beside another", ask_second, SHARED},
    {"reader: try a key that is taken", ask_busy, SHARED},
    {"reader: extend", ask_extend, SHARED},
    {"reader: release, others stay", ask_leave, SHARED},
    {"reader: release, the last", ask_leave_last, SHARED},
    {"reader: release, the only one", ask_release, SHARED},
    {"permit: a new key", ask_new, PERMIT},
    {"permit: a key that was used here", ask_used, PERMIT},
    {"permit: beside another", ask_second, PERMIT},
    {"permit: extend", ask_extend, PERMIT},
    {"permit: release, others stay", ask_leave, PERMIT},
    {"permit: release, the last", ask_leave_last, PERMIT},
    {"permit: release, the only one", ask_release, PERMIT},
};

static double least(const struct question *q)
{
    double ms, best = 1e9;
    int i;

    for (i = 0; i < TRIES; i++) {
        ms = q->ask(&q->opts);
        if (ms < best)
            best = ms;
    }
    return best;
}

int main(int argc, char **argv)
{
    const char *url = getenv("HF_TEST_URL");
    struct hf_error err;
    size_t i;

    trip_ms = argc > 1 ? atof(argv[1]) : 0;
    if (!url || trip_ms < 1)
        bench_die("usage: bench-trips MS, with HF_TEST_URL behind a proxy");
    must(hf_open(url, NULL, &client, &err), &err);
    must(hf_open(url, NULL, &other, &err), &err);
    bench_begin("trips", "round trips that a call waits for");
    for (i = 0; i < sizeof(questions) / sizeof(questions[0]); i++)
        bench_value(questions[i].name, least(&questions[i]) / trip_ms, "trips",
                    NULL);
    hf_close(client);
    hf_close(other);
    return 0;
}
