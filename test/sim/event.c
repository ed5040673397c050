/* SPDX-License-Identifier: MIT
 *
 * event.c - a process with an event loop: many requests, one thread.
 *
 * Every request that was started must end with exactly one event, GRANTED or
 * FAILED, and each event must name what was started.  A lock that is GONE is
 * not held.
 */
#include "sim.h"

#include <poll.h>

#define SLOTS 4

struct slot {
    enum { FREE, ASKED, HELD } state;
    struct sim_params params;
    hf_request *request;
    int n; /* how many keys */
    hf_lock *lk[2];
    struct sim_belief belief[2];
    int64_t until; /* us: release it then */
    bool gone[2];  /* an event told so */
};

static int slot_key(const struct slot *slot, int i)
{
    return (slot->params.key + i) % sim.nkeys;
}

/* One key, or two at once. */
static hf_status slot_ask(struct slot *slot)
{
    const char *keys[] = {sim_key_name(slot_key(slot, 0)),
                          sim_key_name(slot_key(slot, 1))};
    const struct sim_params *params = &slot->params;

    slot->n = 1;
    if (sim.nkeys < 2 || !(sim.family->habits & SIM_SEVERAL) || sim_chance(500))
        return hf_acquire_start(sim.proc->client, keys[0], params->wait_ms,
                                &params->opts, slot, &slot->request, NULL);
    slot->n = 2;
    return hf_acquire_all_start(sim.proc->client, keys, 2, params->wait_ms,
                                &params->opts, slot->lk, slot, &slot->request,
                                NULL);
}

static void slot_start(struct slot *slot)
{
    hf_status st;

    sim_params_draw(&slot->params);
    st = slot_ask(slot);
    sim_trace("starts to ask for %s%s, waits %lld, flags %x: %s",
              sim_key_name(slot->params.key),
              slot->n > 1 ? " and the other" : "",
              (long long)slot->params.wait_ms, slot->params.opts.flags,
              hf_status_name(st));
    sim_params_check(&slot->params, st);
    if (!st)
        slot->state = ASKED;
}

static void slot_ended(struct slot *slot, const struct hf_event *event)
{
    struct sim_params params = slot->params;
    int i;

    if (slot->state != ASKED || event->request != slot->request) {
        sim_fail("S8: an event for a request that does not exist");
        return;
    }
    slot->state = FREE;
    if (event->type == HF_FAILED) {
        sim_params_check(&slot->params, event->error.status);
        sim_trace("event: no %s: %s", sim_key_name(slot->params.key),
                  hf_status_name(event->error.status));
        return;
    }
    slot->state = HELD;
    if (slot->n == 1)
        slot->lk[0] = event->lock;
    else if (event->lock != slot->lk[0])
        sim_fail("S8: an event has another lock than the first");
    slot->until = sim.now + sim_below(sim.hold_ms * 1000);
    for (i = 0; i < slot->n; i++) {
        slot->gone[i] = false;
        params.key = slot_key(slot, i);
        sim_believe(&slot->belief[i], slot->lk[i], &params);
    }
}

/* A lock of ours is lost. */
static void slot_gone(struct slot *slot, const hf_lock *lk)
{
    int i;

    for (i = 0; i < slot->n; i++)
        if (slot->lk[i] == lk)
            slot->gone[i] = true;
}

/* The descriptor is readable if and only if an event waits. */
static void look_at_descriptor(void)
{
    hf_client *client = sim.proc->client;
    struct pollfd poller = {.fd = hf_events_fd(client), .events = POLLIN};
    bool waits = !hfi_link_alone(&client->notices);

    if (poller.fd >= 0 && poll(&poller, 1, 0) >= 0 &&
        waits != (poller.revents != 0))
        sim_fail("S5: an event waits: %d, but the descriptor says otherwise",
                 waits);
}

/* Take all events.  Those of locks that threads have are theirs to look at. */
static void take_events(void)
{
    struct hf_event event = HF_EVENT_INIT;

    while (!sim.failed && hf_next_event(sim.proc->client, &event)) {
        if (event.type == HF_GRANTED || event.type == HF_FAILED)
            slot_ended(event.user, &event);
        else if (event.type == HF_GONE && hf_held(event.lock))
            sim_fail("S5: a lock that is gone is held");
        else if (event.type == HF_GONE && !event.reason)
            sim_fail("S5: a lock is gone for no reason");
        else if (event.type == HF_GONE && event.user)
            slot_gone(event.user, event.lock);
    }
}

/* With all events taken: a loss that is latched has been told. */
static void slot_check(const struct slot *slot)
{
    int i;

    for (i = 0; slot->state == HELD && i < slot->n; i++)
        if (!slot->gone[i] && atomic_load(&slot->lk[i]->grant->loss))
            sim_fail("S5: %s is lost, and no event tells", hf_key(slot->lk[i]));
}

static void slot_let_go(struct slot *slot)
{
    int i;

    slot->state = FREE;
    for (i = 0; i < slot->n && !sim.failed; i++)
        sim_let_go(slot->lk[i], &slot->belief[i]);
}

static void slot_turn(struct slot *slot)
{
    if (slot->state == FREE && !sim_done() && sim_chance(200))
        slot_start(slot);
    else if (slot->state == ASKED && sim_chance(5))
        hf_request_cancel(slot->request);
    else if (slot->state == HELD && sim.now >= slot->until)
        slot_let_go(slot);
}

/* The client was or is being closed: requests are gone, locks are ours. */
static void slots_end(struct slot *slots)
{
    int i;

    for (i = 0; i < SLOTS; i++)
        if (slots[i].state == HELD)
            slot_let_go(&slots[i]);
}

void *sim_events_run(void *arg)
{
    struct slot *slots = sim_alloc(SLOTS * sizeof(*slots));
    int i, used = 1;

    (void)arg;
    while ((used || !sim_done()) && !sim.proc->closing && !sim.failed) {
        if (sim_chance(50))
            look_at_descriptor();
        take_events();
        for (i = 0; i < SLOTS; i++)
            slot_check(&slots[i]);
        for (used = 0, i = 0; i < SLOTS && !sim.proc->closing; i++) {
            slot_turn(&slots[i]);
            used += slots[i].state != FREE;
        }
        sim_sleep(200 + sim_below(3000));
    }
    slots_end(slots);
    return NULL;
}
