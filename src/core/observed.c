/* SPDX-License-Identifier: MIT
 *
 * observed.c - what is observed, and when it is looked at.
 *
 * Any number of observers of one key, or of one prefix, have one observation of
 * the service.  The service says that something may have changed
 * (hfi_changed()); what it is a worker finds out by asking, as hf_inspect() or
 * hf_list() would.  So a message that is lost, late or twice does no harm, and
 * every service tells the same.
 *
 * A look is taken
 *   - when the observation begins, after it is armed; and for each observer
 *     that comes later, so that the first it is told is the present state;
 *   - when the service says so, but every GAP_MS at most, or as seldom as the
 *     service asks for (observe_gap_ms); and once more where its word may come
 *     before the change (HFI_TRAIT_EARLY);
 *   - when a lease that was seen must be over: nobody may say so;
 *   - at times, behind all this; and often where the service cannot tell.
 * Whoever lists the prefix meanwhile takes one for the observation (listed.c).
 *
 * Renewals and waiters are words of the service, too, and nothing to tell: where
 * there are many locks they come all the time.  So looks at a prefix that have
 * nothing to tell are farther and farther apart, up to IDLE_GAP_MS, and each has
 * more to look at; one that has something to tell is followed by the next as soon
 * as ever.
 *
 * INVARIANTS
 *  (1) One worker at a time is at an observation: `busy`.  What is said
 *      meanwhile is kept in `all` and `dirty`, which are cleared before a look
 *      and not after it; `all` even before the service is asked to go on
 *      telling.  So a look begins after the last word of the service.
 *  (2) HFI_INSPECTORS workers at most look at a time, and only while nothing
 *      else waits for them: however many observers there are and however long
 *      the service is silent, acquisitions, releases and renewals go on.
 *  (3) observe() comes before the look that it is for.  unobserve() is called
 *      once for each HF_OK of it, by a worker or by hf_close(), never with the
 *      mutex held; until it has returned the observation stays.
 *  (4) A look that fails is taken again, later each time, as long as there is an
 *      observer; and so is one that has succeeded while reobserve() has failed.
 */
#include "core.h"

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

/* Two looks at the same are that far apart, at least; a listing costs more. */
#define GAP_MS      2
#define LIST_GAP_MS 20

/* So many looks in a row may have nothing to tell, since the word of a service may
 * come before what it announces; then the gap doubles with each, up to this.  Looks
 * that are farther apart than IDLE_ROW_MS are in no row. */
#define IDLE_LOOKS  4
#define IDLE_MAX    16
#define IDLE_GAP_MS 64
#define IDLE_ROW_MS 250

/* Where the service tells, ask as seldom as this all the same.  A listing is one
 * request or many, and leases that were seen bring others (`lapses`); it is
 * rarer the more keys it shows, so that it costs no more than 100 keys/s. */
#define TOLD_POLL_MS      15000
#define TOLD_LIST_POLL_MS 30000
#define TOLD_LIST_KEY_MS  10

/* Where it does not: a key, a listing; and a little more for each other thing
 * that is observed. */
#define KEY_POLL_MS  250
#define LIST_POLL_MS 1000

/* How soon a look is taken once more after one that may have been early. */
#define EARLY_MS 5

#define RETRY_MIN_MS 50
#define RETRY_MAX_MS 5000

/* Keys that one step of a worker looks at: one by one, or together. */
#define DIRTY_MAX     32
#define DIRTY_SEVERAL 128

static struct hfi_observed *observed_new(const char *key, bool prefix,
                                         size_t own_size)
{
    size_t own = (own_size + 7) / 8, size = strlen(key) + 1;
    struct hfi_observed *o =
        hfi_alloc(sizeof(*o) + own * sizeof(o->own[0]) + 1 + size);
    char *name;

    if (!o)
        return NULL;
    name = (char *)&o->own[own];
    name[0] = prefix ? 'p' : 'k';
    memcpy(name + 1, key, size);
    o->node.key = name;
    o->base = (struct hfi_observation){
        .key = name + 1, .own = o->own, .prefix = prefix};
    o->timer.kind = HFI_TIMER_OBSERVED;
    o->lapses = HFI_NEVER;
    o->since = UINT64_MAX;
    hfi_link_init(&o->ready);
    hfi_link_init(&o->observers);
    hfi_link_init(&o->changes);
    hfi_link_init(&o->dirty);
    return o;
}

/* What is known goes; the observation must be out of the client's hands. */
static void observed_discard(struct hfi_observed *o)
{
    struct hfi_node *node;
    struct hfi_seen *seen;

    while ((node = hfi_map_next(&o->keys, NULL))) {
        seen = hfi_container(node, struct hfi_seen, node);
        hfi_map_remove(&o->keys, node);
        hfi_free(seen);
    }
    hfi_map_fini(&o->keys);
    hfi_free(o);
}

static struct hfi_observed *observed_find(struct hf_client *c, const char *key,
                                          bool prefix)
{
    char name[HF_KEY_MAX + 2];
    struct hfi_node *node;

    snprintf(name, sizeof(name), "%c%s", prefix ? 'p' : 'k', key);
    node = hfi_map_find(&c->observed, name);
    return node ? hfi_container(node, struct hfi_observed, node) : NULL;
}

/* The observation of a key or prefix, made if need be; NULL: no memory. */
struct hfi_observed *hfi_observed_get(struct hf_client *c, const char *key,
                                      bool prefix)
{
    struct hfi_observed *o = observed_find(c, key, prefix);

    if (o || !hfi_map_reserve(&c->observed) || !hfi_heap_reserve(&c->timers))
        return o;
    o = observed_new(key, prefix, c->be->observation_size);
    if (o && !prefix && !hfi_seen_get(o, key)) {
        observed_discard(o);
        o = NULL;
    }
    if (o && atomic_load(&c->offline) && c->connect_failed)
        o->why = c->connect_err;
    if (o)
        hfi_map_add(&c->observed, &o->node);
    else
        hfi_heap_unreserve(&c->timers);
    return o;
}

/* End it.  The mutex is let go meanwhile; the client does not know it any
 * more. */
void hfi_observed_free(struct hf_client *c, struct hfi_observed *o)
{
    hfi_map_remove(&c->observed, &o->node);
    hfi_link_remove(&o->ready);
    hfi_heap_remove(&c->timers, &o->timer);
    o->busy = true; /* Words that still arrive change nothing. */
    if (o->armed) {
        o->base.end = c->close_end ? c->close_end : hfi_now() + c->timeout_ms;
        pthread_mutex_unlock(&c->mu);
        c->be->unobserve(c->conn, &o->base); /* observed.c (3) */
        pthread_mutex_lock(&c->mu);
    }
    hfi_heap_unreserve(&c->timers);
    observed_discard(o);
}

/* ---- when -------------------------------------------------------------- */

/* Let a worker come. */
static void observed_ready(struct hf_client *c, struct hfi_observed *o)
{
    if (o->busy || !hfi_link_alone(&o->ready))
        return;
    hfi_heap_remove(&c->timers, &o->timer);
    hfi_link_append(&c->observing, &o->ready);
    hfi_worker_call(c);
}

static void observed_at(struct hf_client *c, struct hfi_observed *o,
                        int64_t when)
{
    if (when <= hfi_now())
        observed_ready(c, o);
    else
        hfi_keeper_set(c, &o->timer, when);
}

static int64_t observed_gap(const struct hf_client *c,
                            const struct hfi_observed *o)
{
    int64_t gap = o->base.prefix && o->all ? LIST_GAP_MS : GAP_MS;
    int i;

    if (c->be->observe_gap_ms)
        gap = gap / GAP_MS * c->be->observe_gap_ms + (int64_t)c->observed.len;
    for (i = IDLE_LOOKS; o->base.prefix && i < o->idle && gap < IDLE_GAP_MS;
         i++)
        gap *= 2;
    return o->began + gap;
}

/* There is something to look at: soon. */
void hfi_observed_wake(struct hf_client *c, struct hfi_observed *o)
{
    if (!o->busy && hfi_link_alone(&o->ready))
        observed_at(c, o, o->began ? observed_gap(c, o) : 0);
}

/* Its last observer has gone. */
void hfi_observed_put(struct hf_client *c, struct hfi_observed *o)
{
    if (hfi_link_alone(&o->observers))
        observed_ready(c, o);
}

/* The time has come.  For the keeper. */
void hfi_observed_due(struct hf_client *c, struct hfi_observed *o)
{
    hfi_heap_remove(&c->timers, &o->timer);
    if (!hfi_worker_start(c)) {
        hfi_keeper_set(c, &o->timer, hfi_now() + RETRY_MIN_MS);
        return;
    }
    if (hfi_link_alone(&o->dirty))
        o->all = true;
    observed_ready(c, o);
}

static int64_t observed_poll_ms(const struct hf_client *c,
                                const struct hfi_observed *o)
{
    int64_t ms = o->base.prefix ? LIST_POLL_MS : KEY_POLL_MS;
    int64_t told = o->base.prefix ? TOLD_LIST_POLL_MS : TOLD_POLL_MS;

    if (o->base.prefix)
        told += TOLD_LIST_KEY_MS * (int64_t)o->keys.len;
    return o->armed ? told : ms + (int64_t)c->observed.len;
}

/* A step is over: when is the next? */
static void observed_again(struct hf_client *c, struct hfi_observed *o, bool ok)
{
    int64_t now = hfi_now(), when, pause = RETRY_MIN_MS;
    int i;

    if (hfi_link_alone(&o->observers)) {
        observed_ready(c, o);
        return;
    }
    o->failures = ok ? 0 : o->failures + 1;
    when = now + observed_poll_ms(c, o);
    if (o->lapses <= now) /* It looked at other keys meanwhile. */
        o->all = true;
    else if (o->lapses < when)
        when = o->lapses;
    if (o->all || !hfi_link_alone(&o->dirty))
        when = observed_gap(c, o);
    else if (ok && o->early)
        when = now + EARLY_MS; /* hfi_observed_due() looks at all. */
    o->early = o->early && when != now + EARLY_MS;
    for (i = 1; i < o->failures && pause < RETRY_MAX_MS; i++)
        pause *= 2;
    if (!ok)
        when = now + pause; /* observed.c (4) */
    observed_at(c, o, when);
}

/* ---- a look ------------------------------------------------------------ */

/* Have the service tell, if it can.  When it begins to, that wants a *whole
 * look.  False: it does not tell any more, or not all. */
static bool observed_arm(struct hf_client *c, struct hfi_observed *o,
                         int64_t deadline, bool *whole)
{
    bool again = o->armed;
    hf_status st;

    if (!c->be->observe || o->polled || (again && !c->be->reobserve))
        return true;
    pthread_mutex_unlock(&c->mu);
    st = again ? c->be->reobserve(c->conn, &o->base, deadline, NULL)
               : c->be->observe(c->conn, &o->base, deadline, NULL);
    pthread_mutex_lock(&c->mu);
    if (again)
        return st == HF_OK;
    o->armed = st == HF_OK;
    o->polled = st == HF_UNSUPPORTED;
    *whole = *whole || o->armed;
    return true;
}

/* The service has answered, or not: observers are told when that is another than
 * before, also those who wait for their first look. */
static bool observed_heard(struct hf_client *c, struct hfi_observed *o,
                           hf_status st, const struct hf_error *err)
{
    bool news = (st == HF_OK) != (o->why.status == HF_OK);
    struct hf_observer *ob;
    struct hfi_link *at;

    if (st)
        o->why = *err;
    o->why.status = st;
    for (at = o->observers.next; news && at != &o->observers; at = at->next) {
        ob = hfi_container(at, struct hf_observer, link);
        ob->heard = true;
        hfi_notify(c, &ob->notice, HF_CHANGED);
    }
    return st == HF_OK;
}

/* There is no connection yet, and an attempt has failed. */
void hfi_observed_offline(struct hf_client *c)
{
    struct hfi_node *node = NULL;

    while ((node = hfi_map_next(&c->observed, node)))
        observed_heard(c, hfi_container(node, struct hfi_observed, node),
                       c->connect_err.status, &c->connect_err);
}

/* Look at one key.  The mutex is let go meanwhile. */
static bool observed_inspect(struct hf_client *c, struct hfi_observed *o,
                             struct hfi_seen *seen)
{
    struct hf_info info = {.size = sizeof(info),
                           .left_ms = -1,
                           .since_ms = -1,
                           .waiters = -1,
                           .slot = -1};
    struct hf_error err = {0};
    hf_status st;

    pthread_mutex_unlock(&c->mu);
    st = c->be->inspect(c->conn, seen->key, &info, hfi_now() + c->timeout_ms,
                        &err);
    pthread_mutex_lock(&c->mu);
    return observed_heard(c, o, st, &err) && hfi_seen_read(c, o, seen, &info);
}

/* Those who waited for this look know the present state now. */
static void observed_begin_observers(struct hf_client *c,
                                     struct hfi_observed *o, uint64_t round)
{
    struct hf_observer *ob;
    struct hfi_link *at;

    for (at = o->observers.next; at != &o->observers; at = at->next) {
        ob = hfi_container(at, struct hf_observer, link);
        if (!ob->from || ob->from > round)
            continue;
        ob->from = 0;
        if (ob->place->next != &o->changes)
            hfi_notify(c, &ob->notice, HF_CHANGED);
    }
}

/* Look at all of it, for whomever.  observed.c (1) */
static bool observed_look(struct hf_client *c, struct hfi_observed *o,
                          struct hfi_listing *l)
{
    uint64_t round = ++o->round;
    struct hf_error err = {0};
    hf_status st;
    bool ok;

    o->lapses = HFI_NEVER;
    if (o->base.prefix) {
        st = hfi_listed(c, o, l, &err);
        ok = observed_heard(c, o, st, &err) && l->whole;
    } else {
        ok = observed_inspect(c, o, hfi_seen_get(o, o->base.key));
    }
    if (ok)
        observed_begin_observers(c, o, round);
    else
        o->all = true;
    return ok || l->stopped;
}

/* One of the keys that were asked for together. */
static bool observed_answer(void *arg, const char *key,
                            const struct hf_info *info)
{
    struct hfi_listing *l = arg;
    struct hfi_seen *seen;

    pthread_mutex_lock(&l->client->mu);
    seen = hfi_seen_get(l->observed, key);
    if (hfi_seen_read(l->client, l->observed, seen, info))
        seen->asked = false;
    pthread_mutex_unlock(&l->client->mu);
    return true;
}

/* Look at keys that the service named, together: renewals of many locks are
 * told one by one, and a request for each would cost more than the renewals.
 * Those without an answer stay. */
static bool observed_inspect_several(struct hf_client *c,
                                     struct hfi_observed *o)
{
    struct hfi_listing l = {.client = c, .observed = o};
    struct hfi_seen *some[DIRTY_SEVERAL];
    const char *keys[DIRTY_SEVERAL];
    struct hf_error err = {0};
    hf_status st;
    bool ok;
    int i, n;

    for (n = 0; n < DIRTY_SEVERAL && !hfi_link_alone(&o->dirty); n++) {
        some[n] = hfi_container(o->dirty.next, struct hfi_seen, dirty);
        some[n]->asked = true;
        keys[n] = some[n]->key;
        hfi_link_remove(&some[n]->dirty);
    }
    pthread_mutex_unlock(&c->mu);
    st = c->be->inspect_several(c->conn, keys, n, observed_answer, &l,
                                hfi_now() + c->timeout_ms, &err);
    pthread_mutex_lock(&c->mu);
    ok = observed_heard(c, o, st, &err);
    for (i = 0; i < n; i++) {
        if (!some[i]->asked)
            continue;
        ok = false;
        if (hfi_link_alone(&some[i]->dirty))
            hfi_link_append(&o->dirty, &some[i]->dirty);
    }
    return ok;
}

/* Look at the keys that the service named. */
static bool observed_look_at_dirty(struct hf_client *c, struct hfi_observed *o)
{
    struct hfi_seen *seen;
    bool ok = true;
    int i;

    if (c->be->inspect_several)
        return observed_inspect_several(c, o);
    for (i = 0; i < DIRTY_MAX && ok && !hfi_link_alone(&o->dirty); i++) {
        seen = hfi_container(o->dirty.next, struct hfi_seen, dirty);
        hfi_link_remove(&seen->dirty);
        ok = observed_inspect(c, o, seen);
        if (!ok && hfi_link_alone(&seen->dirty))
            hfi_link_append(&o->dirty, &seen->dirty);
    }
    return ok;
}

/* A worker, or whoever lists it all, does what is due. */
static void observed_step(struct hf_client *c, struct hfi_observed *o,
                          struct hfi_listing *l)
{
    int64_t deadline = l->fn ? l->deadline : hfi_now() + c->timeout_ms;
    bool ok, told, whole = o->all || l->fn;
    uint64_t before = o->change;

    hfi_link_remove(&o->ready);
    hfi_heap_remove(&c->timers, &o->timer);
    o->busy = true;
    o->all = false; /* observed.c (1) */
    told = observed_arm(c, o, deadline, &whole);
    if (hfi_now() - o->began > IDLE_ROW_MS)
        o->idle = 0;
    o->began = hfi_now();
    ok = whole ? observed_look(c, o, l) : observed_look_at_dirty(c, o);
    o->all = o->all || !told;
    if (o->change != before)
        o->idle = 0;
    else if (o->idle < IDLE_MAX)
        o->idle++;
    hfi_seen_clear(o);
    o->busy = false;
    observed_again(c, o, ok && told);
}

/* Do what is due for an observation of client->observing. */
void hfi_observed_step(struct hf_client *c, struct hfi_observed *o)
{
    struct hfi_listing l = {.client = c, .observed = o};

    if (!hfi_link_alone(&o->observers)) {
        observed_step(c, o, &l);
        return;
    }
    hfi_link_remove(&o->ready);
    hfi_observed_free(c, o);
}

/* The caller lists the prefix: a look, if it is observed and nobody is at it.  What
 * is amiss is left to the workers.  False: the caller has to ask by itself. */
bool hfi_observed_list(struct hf_client *c, const char *prefix,
                       struct hfi_listing *l)
{
    struct hfi_observed *o;

    pthread_mutex_lock(&c->mu);
    o = observed_find(c, prefix, true);
    if (o && (o->busy || o->all || o->failures || !o->round ||
              hfi_link_alone(&o->observers)))
        o = NULL;
    if (o) {
        l->client = c;
        l->observed = o;
        observed_step(c, o, l);
    }
    pthread_mutex_unlock(&c->mu);
    return o != NULL;
}
