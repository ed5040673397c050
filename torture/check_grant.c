/* SPDX-License-Identifier: MIT
 *
 * check_grant.c - from lines to grants: who believed from when until when.
 *
 * A thread does one thing at a time, so its lines in the order of time are
 * ask, no, or ask, got, ..., free, freed.  Whatever is cut short by death ends
 * when the nemesis was about to kill: it is not known how long it lived on.  A
 * process that is alive believes until the end that it computed itself: it may
 * be stopped in the middle of anything, and that is when a wrong end does its
 * harm.  Terms of one candidate may not overlap: each has a state of its own.
 */
#include "check_grant.h"

#include <stdlib.h>
#include <string.h>

/* What a thread is about. */
struct state {
    struct who who;
    const struct event *ask;
    size_t grant; /* index + 1; 0: none */
};

struct builder {
    struct verdict *v;
    struct grants grants;
    const struct event *kill; /* the last that was about to happen */
    size_t room;
    struct state *states;
    size_t nstates;
};

bool grants_may_share(const struct grant *a, const struct grant *b)
{
    return (a->process == b->process && a->life == b->life) ||
           (a->asked | b->asked) & ASK_ATTACH ||
           (ASK_OWNER_OF(a->asked) &&
            ASK_OWNER_OF(a->asked) == ASK_OWNER_OF(b->asked));
}

static struct state *builder_state(struct builder *b, struct who who)
{
    struct state *more;

    for (size_t i = 0; i < b->nstates; i++)
        if (b->states[i].who.process == who.process &&
            b->states[i].who.thread == who.thread &&
            (who.process <= ELECT_PROCESS ||
             b->states[i].who.life == who.life)) {
            if (b->states[i].who.life != who.life)
                b->states[i] = (struct state){.who = who};
            return &b->states[i];
        }
    more = realloc(b->states, (b->nstates + 1) * sizeof(*more));
    if (!more)
        return NULL;
    b->states = more;
    more[b->nstates] = (struct state){.who = who};
    return &more[b->nstates++];
}

static bool builder_grant(struct builder *b, struct state *s,
                          const struct event *e)
{
    struct grant *more;

    if (b->grants.count == b->room) {
        b->room = b->room ? 2 * b->room : 256;
        more = realloc(b->grants.all, b->room * sizeof(*more));
        if (!more)
            return false;
        b->grants.all = more;
    }
    b->grants.all[b->grants.count++] =
        (struct grant){.key = e->key,
                       .process = e->who.process,
                       .life = e->who.life,
                       .thread = e->who.thread,
                       .asked = s->ask ? (unsigned)s->ask->number : 0,
                       .ask = s->ask ? s->ask->time : e->time,
                       .got = e->time,
                       .until = e->number < 0 ? INT64_MAX : e->number,
                       .fence = e->fence,
                       .ask_event = s->ask,
                       .got_event = e,
                       .end_event = e};
    s->grant = b->grants.count;
    s->ask = NULL;
    return true;
}

/* Whoever held it does not believe any longer. */
static void grant_end(struct grant *g, const struct event *e)
{
    if (e->time < g->until) {
        g->until = e->time;
        g->end_event = e;
    }
}

static void grant_renewed(const struct builder *b, struct grant *g,
                          const struct event *e)
{
    bool less = e->number < g->until;

    if (e->number < 0)
        return;
    g->until = e->number;
    g->end_event = e;
    if (less)
        return; /* was asked for less, and may not have been heard */
    /* The end is a margin less than a lease after it was sent. */
    g->renew = e->number - b->v->setup.ttl_ms * 1000;
    g->renew_event = e;
}

static void builder_killed(struct builder *b, const struct event *e)
{
    for (size_t i = 0; i < b->nstates; i++) {
        struct state *s = &b->states[i];

        if (s->who.process != e->number)
            continue;
        if (s->grant)
            grant_end(&b->grants.all[s->grant - 1], b->kill ? b->kill : e);
        s->grant = 0;
        s->ask = NULL;
    }
}

static void builder_count(struct figures *f, const struct event *e)
{
    switch (e->what) {
    case W_ask:
        f->asked++;
        break;
    case W_no:
        f->failed++;
        break;
    case W_got:
        f->granted++;
        break;
    case W_kept:
    case W_extended:
        f->kept++;
        break;
    case W_write:
        f->writes++;
        break;
    case W_refuse:
        f->refused++;
        break;
    case W_plain:
        f->plain++;
        break;
    case W_lost:
        f->lost++;
        break;
    case W_freed:
    case W_detached:
        f->released++;
        break;
    case W_fault:
        f->faults++;
        break;
    case W_killed:
        f->kills++;
        break;
    default:
        return;
    }
    /* A command under `run' says all the time that it lives. */
    if (e->what != W_fault && e->what != W_killed && e->what != W_ask &&
        !(e->what == W_kept && e->who.process > RUN_PROCESS))
        f->operations++;
}

/* Something that happens to a grant that stands. */
static void builder_on_grant(struct builder *b, struct state *s,
                             const struct event *e)
{
    struct grant *g = &b->grants.all[s->grant - 1];

    switch (e->what) {
    case W_kept:
        grant_renewed(b, g, e);
        break;
    case W_extend:
        /* It may be heard, and the answer may not. */
        if (e->number > 0 && e->time + e->number * 1000 < g->until) {
            g->until = e->time + e->number * 1000;
            g->end_event = e;
        }
        break;
    case W_detach:
        grant_end(g, e);
        break;
    case W_detached:
        s->grant = 0;
        break;
    case W_extended:
        if (!strcmp(e->text, "ok"))
            grant_renewed(b, g, e);
        break;
    case W_lost:
        grant_end(g, e);
        break;
    case W_refuse:
        if (e->time < g->until)
            check_found(b->v, K_refused,
                        (const struct event *[]){g->got_event, g->end_event, e},
                        3, "fence %llu was refused while it was believed in",
                        (unsigned long long)e->fence);
        break;
    case W_free:
        grant_end(g, e);
        g->free = e->time;
        break;
    case W_freed:
        g->freed_ok = !strcmp(e->text, "ok");
        s->grant = 0;
        break;
    default:
        break;
    }
}

static bool builder_event(struct builder *b, const struct event *e)
{
    struct state *s;

    builder_count(&b->v->figures, e);
    if (e->what == W_kill)
        b->kill = e;
    if (e->what == W_killed)
        builder_killed(b, e);
    if (e->who.process == 0)
        return true;
    s = builder_state(b, e->who);
    if (!s)
        return false;
    if (e->what == W_ask)
        s->ask = e;
    else if (e->what == W_no)
        s->ask = NULL; /* a command under `run' has ended, too */
    else if (e->what == W_got)
        return builder_grant(b, s, e);
    else if (s->grant)
        builder_on_grant(b, s, e);
    return true;
}

bool grants_build(const struct history *history, struct verdict *v,
                  struct grants *ret)
{
    struct builder b = {.v = v};
    bool ok = true;

    for (size_t i = 0; ok && i < history->count; i++)
        ok = builder_event(&b, &history->events[i]);
    free(b.states);
    if (ok)
        *ret = b.grants;
    else
        free(b.grants.all);
    return ok;
}
