/* SPDX-License-Identifier: MIT
 *
 * check_key.c - the promises that concern the grants of one key: fences,
 * belief, ownership, turns, order.  Each is a sort and a sweep; see check.h.
 */
#include "check_grant.h"

#include <stdlib.h>

/* A request sent less than this before another may arrive after it. */
#define ORDER_SLACK_US 200000

static int by_got(const void *a, const void *b)
{
    const struct grant *x = a, *y = b;

    return x->got < y->got ? -1 : x->got > y->got;
}

static int by_fence(const void *a, const void *b)
{
    const struct grant *x = *(struct grant *const *)a;
    const struct grant *y = *(struct grant *const *)b;

    if (x->fence != y->fence)
        return x->fence < y->fence ? -1 : 1;
    return x->got < y->got ? -1 : x->got > y->got;
}

/* For each grant in the order of got, the one with the greatest fence among
 * itself and those before it. */
static void greatest(const struct grant *grants, size_t count, size_t *ret)
{
    for (size_t i = 0; i < count; i++)
        ret[i] =
            i && grants[ret[i - 1]].fence >= grants[i].fence ? ret[i - 1] : i;
}

/* How many grants had been got before `time`. */
static size_t got_before(const struct grant *grants, size_t count, int64_t time)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (grants[mid].got < time)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Readers have rising fences among themselves, or not: nothing is promised. */
static bool both_shared(const struct grant *a, const struct grant *b)
{
    return (a->asked & ASK_SHARED) == ASK_SHARED &&
           (b->asked & ASK_SHARED) == ASK_SHARED;
}

static void key_fences(struct verdict *v, const struct grant *grants,
                       size_t count, const size_t *best)
{
    for (size_t i = 0; i < count; i++) {
        const struct grant *g = &grants[i], *h;
        size_t n = got_before(grants, i, g->ask);

        if (n) {
            h = &grants[best[n - 1]];
            if (!both_shared(g, h) &&
                (h->fence > g->fence ||
                 (h->fence == g->fence && !grants_may_share(g, h))))
                check_found(v, K_fence_order,
                            (const struct event *[]){h->got_event, g->ask_event,
                                                     g->got_event},
                            3,
                            "asked after fence %llu had been granted, got "
                            "%llu",
                            (unsigned long long)h->fence,
                            (unsigned long long)g->fence);
        }
        /* One that was over when it arrived may have been overtaken. */
        if (i && g->until > g->got && grants[best[i - 1]].fence > g->fence &&
            !both_shared(g, &grants[best[i - 1]]))
            check_found(v, K_grant_order,
                        (const struct event *[]){grants[best[i - 1]].got_event,
                                                 g->ask_event, g->got_event},
                        3, "fence %llu came after %llu",
                        (unsigned long long)g->fence,
                        (unsigned long long)grants[best[i - 1]].fence);
    }
}

/* Equal fences: only of one client, and only so many in a row. */
static bool key_equal_fences(struct verdict *v, struct grant *grants,
                             size_t count)
{
    struct grant **order = malloc((count + 1) * sizeof(*order));
    unsigned asked = 0;
    size_t run = 1;

    if (!order)
        return false;
    for (size_t i = 0; i < count; i++)
        order[i] = &grants[i];
    qsort(order, count, sizeof(*order), by_fence);
    for (size_t i = 1; i < count; i++) {
        const struct grant *a = order[i - 1], *b = order[i];
        bool same = a->fence == b->fence;

        run = same ? run + 1 : 1;
        asked = same ? asked | b->asked : b->asked;
        if (same && !grants_may_share(a, b))
            check_found(v, K_fence_unique,
                        (const struct event *[]){a->got_event, b->got_event}, 2,
                        "both have fence %llu", (unsigned long long)a->fence);
        if (v->setup.turns > 0 && !(asked & (ASK_LINGER | ASK_ATTACH)) &&
            !ASK_OWNER_OF(asked) && (int64_t)run == v->setup.turns + 2)
            check_found(v, K_turns,
                        (const struct event *[]){order[i + 1 - run]->got_event,
                                                 b->got_event},
                        2, "more than %lld grants in a row with fence %llu",
                        (long long)v->setup.turns + 1,
                        (unsigned long long)b->fence);
    }
    free(order);
    return true;
}

/* Of those that may not be there beside `g', who believes the longest. */
static const struct grant *longest(const struct grant *const *last,
                                   const struct grant *g)
{
    const struct grant *ret = NULL;

    for (unsigned owner = 0; owner < 8; owner++)
        if (last[owner] && (!owner || owner != ASK_OWNER_OF(g->asked)) &&
            (!ret || last[owner]->until > ret->until))
            ret = last[owner];
    return ret;
}

static void key_overlaps(struct verdict *v, const struct grant *grants,
                         size_t count)
{
    const struct grant *lasts[8] = {NULL}; /* by owner id; 0: none */
    const struct grant *last;

    for (size_t i = 0; i < count; i++) {
        const struct grant *g = &grants[i], **own;

        if (g->until <= g->got)
            continue;
        own = &lasts[ASK_OWNER_OF(g->asked)];
        last = longest(lasts, g);
        if (last && last->until > g->got)
            check_found(
                v, K_overlap,
                (const struct event *[]){last->got_event, last->end_event,
                                         g->ask_event, g->got_event,
                                         g->end_event},
                5,
                "%d.%d.%d believed for %lld us after %d.%d.%d had "
                "got it",
                last->process, last->life, last->thread,
                (long long)((last->until < g->until ? last->until : g->until) -
                            g->got),
                g->process, g->life, g->thread);
        if (!*own || g->until > (*own)->until)
            *own = g;
    }
}

/* A release or renewal that began after another had been granted the key. */
static void key_strangers(struct verdict *v, const struct grant *grants,
                          size_t count, const size_t *best)
{
    for (size_t i = 0; i < count; i++) {
        const struct grant *g = &grants[i], *h;

        if (ASK_OWNER_OF(g->asked))
            continue; /* who came later may be of the same owner */
        size_t n =
            g->free && g->freed_ok ? got_before(grants, count, g->free) : 0;
        size_t m = g->renew ? got_before(grants, count, g->renew) : 0;

        if (n && grants[best[n - 1]].fence > g->fence) {
            h = &grants[best[n - 1]];
            check_found(v, K_stranger,
                        (const struct event *[]){g->got_event, h->got_event,
                                                 g->end_event},
                        3, "a release of fence %llu was answered with ok",
                        (unsigned long long)g->fence);
        }
        if (m && grants[best[m - 1]].fence > g->fence) {
            h = &grants[best[m - 1]];
            check_found(v, K_stranger,
                        (const struct event *[]){g->got_event, h->got_event,
                                                 g->renew_event},
                        3, "a renewal of fence %llu was answered with ok",
                        (unsigned long long)g->fence);
        }
    }
}

/* Grants before which somebody who had asked earlier was still waiting.  Only
 * those with a place of their own count. */
static bool key_inversions(struct verdict *v, const struct grant *grants,
                           size_t count)
{
    int64_t first = INT64_MAX;

    if (!v->setup.queued)
        return true;
    for (size_t i = count; i-- > 0;) {
        if (!(grants[i].asked & ASK_FAIR))
            continue;
        if (first < grants[i].ask - ORDER_SLACK_US)
            v->figures.inversions++;
        if (grants[i].ask < first)
            first = grants[i].ask;
    }
    return true;
}

bool check_key(struct verdict *v, struct grant *grants, size_t count)
{
    size_t *best = malloc((count + 1) * sizeof(*best));
    bool ok;

    if (!best)
        return false;
    qsort(grants, count, sizeof(*grants), by_got);
    key_overlaps(v, grants, count);
    ok = key_inversions(v, grants, count);
    if (v->setup.fenced) {
        greatest(grants, count, best);
        key_fences(v, grants, count, best);
        key_strangers(v, grants, count, best);
        ok = ok && key_equal_fences(v, grants, count);
    }
    free(best);
    return ok;
}
