/* SPDX-License-Identifier: MIT
 *
 * leader.c - one leader among any number of processes, and followers that know
 * where it is.
 *
 *     leader URL KEY ADDRESS [TERMS]
 *
 * Each process campaigns and observes at the same time, in one thread: the lock
 * is the leadership, its note is the address of the leader, and its fence is the
 * term.  A leader works until the leadership is lost, or for a moment if TERMS
 * says how often it is to lead; then it resigns and campaigns again.
 *
 * What a leader does must end when the leadership does.  Here it is a step of
 * work that takes no time and asks hf_held() before; a step that takes longer
 * hands the term to whatever it writes to, which refuses a smaller one.
 */
#include <holdfast.h>

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP_MS = 20, STEPS = 5 };

struct candidate {
    hf_client *client;
    const char *key, *address;
    hf_lock *lock; /* NULL: a follower */
    int steps;     /* done in this term */
    int terms;     /* still to lead; -1: for ever */
};

static int campaign(struct candidate *me)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_error err;
    hf_request *request;

    opts.note = me->address;
    opts.flags = HF_FAIR; /* behind those who wait, and a term of its own */
    if (hf_acquire_start(me->client, me->key, -1, &opts, NULL, &request,
                         &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    return 0;
}

/* The work has ended before this is called, so another may begin. */
static int resign(struct candidate *me)
{
    hf_release_start(me->lock, NULL, NULL);
    me->lock = NULL;
    me->steps = 0;
    if (me->terms > 0)
        me->terms--;
    return me->terms ? campaign(me) : 0;
}

static void follow(hf_observer *observer)
{
    struct hf_change change = HF_CHANGE_INIT;

    while (hf_observer_next(observer, &change))
        printf("leader: %s\n", change.info.held ? change.info.note : "nobody");
}

/* 0, or 1 if the election is over for us. */
static int on_event(struct candidate *me, const struct hf_event *event)
{
    switch (event->type) {
    case HF_GRANTED:
        me->lock = event->lock;
        printf("leading, term %" PRIu64 "\n", hf_fence(me->lock));
        return 0;
    case HF_GONE:
        printf("lost: %s\n", hf_loss_name(event->reason));
        return resign(me);
    case HF_FAILED:
        fprintf(stderr, "%s\n", event->error.text);
        return 1;
    case HF_CHANGED:
        follow(event->observer);
        return 0;
    default:
        return 0;
    }
}

/* One step of a leader's work, and its resignation after the last. */
static int work(struct candidate *me)
{
    if (!me->lock || !hf_held(me->lock)) /* HF_GONE is on its way */
        return 0;
    me->steps++;
    return me->terms > 0 && me->steps == STEPS ? resign(me) : 0;
}

int main(int argc, char **argv)
{
    struct candidate me = {.terms = -1};
    struct hf_event event = HF_EVENT_INIT;
    hf_observer *observer = NULL;
    struct hf_error err;
    struct pollfd fd;
    int failed;

    if (argc < 4) {
        fprintf(stderr, "usage: leader URL KEY ADDRESS [TERMS]\n");
        return 64;
    }
    me.key = argv[2];
    me.address = argv[3];
    if (argc > 4)
        me.terms = (int)strtol(argv[4], NULL, 10);
    if (hf_open(argv[1], NULL, &me.client, &err) ||
        hf_observe_start(me.client, me.key, 0, NULL, &observer, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    fd = (struct pollfd){.fd = hf_events_fd(me.client), .events = POLLIN};
    failed = campaign(&me);
    while (!failed && (me.terms || me.lock)) {
        poll(&fd, 1, me.lock ? STEP_MS : -1);
        while (!failed && hf_next_event(me.client, &event))
            failed = on_event(&me, &event);
        if (!failed)
            failed = work(&me);
    }
    hf_observe_stop(observer);
    hf_close(me.client);
    return failed;
}
