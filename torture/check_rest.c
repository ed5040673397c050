/* SPDX-License-Identifier: MIT
 *
 * check_rest.c - the register, and what must be true after the faults.
 *
 * A write to the register makes the value that its writer had read, plus one.
 * So two writes of one value are an update lost, and the fences of the writes
 * in the order of their values must not fall.  A killed writer may have written
 * what it never told: a value may be missing, but never double.
 */
#include "check_grant.h"

#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    const struct event *x = *(const struct event *const *)a;
    const struct event *y = *(const struct event *const *)b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->time < y->time ? -1 : x->time > y->time;
}

/* The events of one kind, by key and value; NULL: no memory. */
static const struct event **writes_of(const struct history *h, enum what what,
                                      size_t *count)
{
    const struct event **list = malloc((h->count + 1) * sizeof(*list));
    size_t n = 0;

    for (size_t i = 0; list && i < h->count; i++)
        if (h->events[i].what == what)
            list[n++] = &h->events[i];
    if (list)
        qsort(list, n, sizeof(*list), by_value);
    *count = n;
    return list;
}

bool check_register(struct verdict *v, const struct history *h)
{
    size_t nfenced, nplain;
    const struct event **fenced = writes_of(h, W_write, &nfenced);
    const struct event **plain = writes_of(h, W_plain, &nplain);
    bool ok = fenced && plain;

    for (size_t i = 1; ok && i < nfenced; i++) {
        const struct event *a = fenced[i - 1], *b = fenced[i];

        if (a->key != b->key)
            continue;
        if (a->number == b->number)
            check_found(v, K_register_lost, (const struct event *[]){a, b}, 2,
                        "both made the value %lld", (long long)a->number);
        if (a->fence > b->fence)
            check_found(v, K_register_back, (const struct event *[]){a, b}, 2,
                        "fence %llu wrote after %llu",
                        (unsigned long long)b->fence,
                        (unsigned long long)a->fence);
    }
    for (size_t i = 1; ok && i < nplain; i++)
        v->figures.damaged += plain[i - 1]->key == plain[i]->key &&
                              plain[i - 1]->number == plain[i]->number;
    free(fenced);
    free(plain);
    return ok;
}

/* ---- after the faults -------------------------------------------------- */

/* A thread that wants a lock, since when, and by which line. */
struct wanting {
    struct who who;
    const struct event *since; /* NULL: it wants none */
    bool dead;
};

static struct wanting *wanting_of(struct wanting **list, size_t *count,
                                  struct who who)
{
    struct wanting *more;

    for (size_t i = 0; i < *count; i++)
        if ((*list)[i].who.process == who.process &&
            (*list)[i].who.thread == who.thread) {
            (*list)[i].dead = false;
            return &(*list)[i];
        }
    more = realloc(*list, (*count + 1) * sizeof(*more));
    if (!more)
        return NULL;
    *list = more;
    more[*count] = (struct wanting){.who = who};
    return &more[(*count)++];
}

static void live_waited(struct verdict *v, const struct wanting *w,
                        int64_t calm, const struct event *until, bool granted)
{
    int64_t limit =
        (v->setup.twice ? 4 : 2) * v->setup.ttl_ms + v->setup.slack_ms;
    int64_t from = w->since->time > calm ? w->since->time : calm;
    int64_t waited = until->time - from;

    if (granted && waited > v->figures.slowest_us)
        v->figures.slowest_us = waited;
    if (waited > limit * 1000)
        check_found(v, K_late, (const struct event *[]){w->since, until}, 2,
                    "%s after %lld ms, %lld are allowed",
                    granted ? "granted" : "not granted",
                    (long long)waited / 1000, (long long)limit);
}

/* What a thread that lives wants, or has got. */
static void live_event(struct verdict *v, struct wanting *w,
                       const struct event *e, int64_t calm)
{
    if (e->what == W_ask && !w->since)
        w->since = e;
    if (e->what == W_no && e->who.process > RUN_PROCESS)
        w->since = NULL; /* it did not want to wait for longer */
    if (e->what != W_got)
        return;
    if (w->since && e->time > calm)
        live_waited(v, w, calm, e, true);
    w->since = NULL;
}

static void live_killed(struct wanting *list, size_t count, int64_t process)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].who.process == process ||
            list[i].who.process == process + RUN_PROCESS ||
            list[i].who.process == process + ELECT_PROCESS) {
            list[i].since = NULL;
            list[i].dead = true;
        }
}

bool check_live(struct verdict *v, const struct history *h)
{
    struct wanting *list = NULL, *w;
    const struct event *end = NULL;
    int64_t calm = INT64_MAX;
    size_t count = 0;

    for (size_t i = 0; i < h->count; i++) {
        if (h->events[i].what == W_calm)
            calm = h->events[i].time;
        if (h->events[i].what == W_end)
            v->setup.slack_ms += h->events[i].number;
    }
    for (size_t i = 0; i < h->count && !end; i++) {
        const struct event *e = &h->events[i];

        if (e->what == W_killed)
            live_killed(list, count, e->number);
        if (e->what == W_end)
            end = e;
        if (e->who.process == 0)
            continue;
        w = wanting_of(&list, &count, e->who);
        if (!w) {
            free(list);
            return false;
        }
        live_event(v, w, e, calm);
    }
    for (size_t i = 0; end && calm != INT64_MAX && i < count; i++)
        if (list[i].since && !list[i].dead)
            live_waited(v, &list[i], calm, end, false);
    free(list);
    return true;
}

/* A place whose waiter was killed may stay for as long as the service likes, if
 * it is in nobody's way: others were granted, or `late` would have told. */
void check_left(struct verdict *v, const struct history *h)
{
    for (size_t i = 0; i < h->count; i++) {
        const struct event *e = &h->events[i];

        if (e->what == W_left && e->number > 0 &&
            !(v->figures.kills && !strcmp(e->text, "places")))
            check_found(v, K_left, (const struct event *[]){e}, 1,
                        "%lld %s of key %d", (long long)e->number, e->text,
                        e->key);
    }
}
