/* SPDX-License-Identifier: MIT
 *
 * service.c - the lock service at the other end.
 *
 * It is what a good service is: every request happens whole or not at all,
 * every change is owner-checked by the token (and a renewal by the fence too,
 * since a late try may be granted once more), leases lapse on its own clock,
 * and the fence is hybrid, max(last + 1, clock in us), so that it rises across
 * a restart without memory.  What it can do beyond that is the family's traits:
 *
 *   QUEUED     a free key belongs to the first place in the queue.  A place
 *              lasts a ttl after its last try, so that the dead do not block.
 *   NOTIFY     who watches is told when the key becomes free, or is wanted.
 *   SHARED, REENTRANT   groups may hold together.
 *   LEASED     a renewal never shortens a lease, unless it is meant to: one
 *              that is late or repeated must not undo a longer one.
 *   not LEASED nothing lapses, but the death of a process frees at once.
 *   MIN_HOLD   a grant may stay for a while without its holder; then whatever
 *              comes late for it changes nothing.
 *   BOUND      what is held or queued lives on a session, as long as that is
 *              kept; it has no end of its own.  What a request changes or
 *              removes in passing is compared with the version that was read.
 *
 * INVARIANTS (checked here, where the grants are made)
 *  (1) All holders of a key are one, or all shared, or of one owner, or have
 *      permits in slots of their own.
 *  (2) Every grant has a greater fence than every grant of the key before it,
 *      unless it joins its own owner's.
 */
#include "sim.h"

#include <stdio.h>
#include <string.h>

#define ENTRIES 64

/* What is passed on stands for so long at most. */
#define SIM_WINDOW_MS 100

/* A holder or a place in the queue. */
struct entry {
    char token[HFI_TOKEN_LEN + 1];
    char owner[8];
    bool shared;
    int permits, slot;
    int proc;
    bool kept;       /* its holder has let go of it */
    int64_t granted; /* us of the world */
    uint32_t nth;    /* of the try that last asked for this place */
    uint64_t fence;
    uint64_t session; /* that it lives on; 0: it has an end of its own */
    uint64_t version; /* changes whenever it is written */
    int64_t expires;  /* us of the service's clock */
};

struct list {
    struct entry at[ENTRIES];
    int len;
};

struct watcher {
    char token[HFI_TOKEN_LEN + 1];
    int proc;
};

struct key {
    struct list holders, queue;
    struct watcher watchers[ENTRIES];
    int nwatchers;
    uint64_t fence; /* of the newest grant; forgotten in a restart */
    uint64_t proof; /* the same, and never forgotten */
    struct sim_answer now, before; /* what a look shows, and showed */
};

/* Grants that were taken away from their holders on purpose. */
struct excuse {
    struct excuse *next;
    char token[HFI_TOKEN_LEN + 1];
};

/* A session, where the family has them (HFI_TRAIT_BOUND). */
struct session {
    struct session *next;
    uint64_t id;
    int64_t ttl_us, expires;
};

static struct key keys[SIM_KEYS];
static bool observers[SIM_PROCS];
static struct session *sessions;
static uint64_t last_session, last_version;
static struct excuse *excuses;
static int drift_ppm;

static bool has(unsigned trait)
{
    return sim.family->traits & trait;
}

static int64_t clock_us(void)
{
    return INT64_C(1700000000000000) + sim.now + sim.now * drift_ppm / 1000000;
}

/* ---- lists ------------------------------------------------------------- */

static struct entry *list_find(struct list *list, const char *token)
{
    int i;

    for (i = 0; i < list->len; i++)
        if (!strcmp(list->at[i].token, token))
            return &list->at[i];
    return NULL;
}

static void list_remove(struct list *list, struct entry *entry)
{
    int i = (int)(entry - list->at);

    memmove(entry, entry + 1, (size_t)(list->len - i - 1) * sizeof(*entry));
    list->len--;
}

static struct entry *list_add(struct list *list, const struct sim_request *rq)
{
    struct entry *entry = &list->at[list->len];

    if (list->len == ENTRIES) {
        sim_fail("S6: more than %d entries of one key are left in the service",
                 ENTRIES);
        return &list->at[0];
    }
    list->len++;
    *entry = (struct entry){
        .shared = rq->shared, .permits = rq->permits, .proc = rq->proc};
    memcpy(entry->token, rq->token, sizeof(entry->token));
    memcpy(entry->owner, rq->owner, sizeof(entry->owner));
    return entry;
}

/* ---- telling ----------------------------------------------------------- */

static bool is_watched(const struct key *key, const char *token)
{
    int i;

    for (i = 0; i < key->nwatchers; i++)
        if (!strcmp(key->watchers[i].token, token))
            return true;
    return false;
}

static void expire(void *key);

static void next_fence(struct key *key)
{
    key->fence = key->fence + 1 > (uint64_t)clock_us() ? key->fence + 1
                                                       : (uint64_t)clock_us();
    if (key->fence <= key->proof)
        sim_fail("S2: fence %llu is not above %llu",
                 (unsigned long long)key->fence,
                 (unsigned long long)key->proof);
    key->proof = key->fence;
}

/* The lowest slot that nobody has; -1 if there is none. */
static int free_slot(const struct key *key, int permits)
{
    int slot, i;

    for (slot = 0; slot < permits; slot++) {
        for (i = 0; i < key->holders.len; i++)
            if (key->holders.at[i].slot == slot)
                break;
        if (i == key->holders.len)
            return slot;
    }
    return -1;
}

/* May one more hold beside those who do? */
static bool has_room(const struct key *key, bool shared, int permits)
{
    if (permits)
        return free_slot(key, permits) >= 0;
    return !key->holders.len || (key->holders.at[0].shared && shared);
}

/* Give a free key to the first in the queue without being asked again, for a
 * short while, in which it must renew. */
static bool pass_on(struct key *key)
{
    struct entry entry, *place = key->queue.at;
    int64_t ms = 5 + sim_below(SIM_WINDOW_MS);

    if (!has(HF_TRAIT_QUEUED) || !has(HF_TRAIT_LEASED) ||
        has(HFI_TRAIT_BOUND) || !key->queue.len || place->shared ||
        !has_room(key, false, place->permits) ||
        !is_watched(key, place->token) || sim_chance(500))
        return false;
    entry = *place;
    list_remove(&key->queue, place);
    next_fence(key);
    entry.fence = key->fence;
    entry.slot = free_slot(key, entry.permits);
    entry.expires = clock_us() + ms * 1000;
    entry.granted = sim.now;
    key->holders.at[key->holders.len++] = entry;
    sim_at(sim.now + ms * 1000 + ms * 1000 / 90 + 2000, expire, key);
    sim_trace("service: passed on to %.6s", entry.token);
    sim_net_give(entry.proc, (int)(key - keys), entry.token, entry.nth,
                 entry.fence, entry.slot, ms);
    return true;
}

/* Somebody may get in: give it to the first in the queue, or tell that one, and
 * the shared ones right behind a shared one; without a queue, everyone who
 * watches. */
static void tell_free(struct key *key)
{
    int i, k = (int)(key - keys);

    const struct entry *first = key->holders.at;

    if ((key->holders.len && !first->shared && !first->permits) || pass_on(key))
        return;
    for (i = 0; !has(HF_TRAIT_QUEUED) && i < key->nwatchers; i++)
        sim_net_tell(key->watchers[i].proc, k, key->watchers[i].token, 0);
    for (i = 0; i < key->queue.len; i++) {
        struct entry *place = &key->queue.at[i];

        if (!place->permits && (i || key->holders.len) && !place->shared)
            break;
        if (is_watched(key, place->token))
            sim_net_tell(place->proc, k, place->token, 0);
        if (!place->shared && !place->permits)
            break;
    }
}

static void tell_wanted(struct key *key)
{
    int i;

    for (i = 0; i < key->holders.len; i++)
        if (is_watched(key, key->holders.at[i].token))
            sim_net_tell(key->holders.at[i].proc, (int)(key - keys), NULL, 0);
}

/* ---- looking ----------------------------------------------------------- */

static struct sim_answer state_of(const struct key *key)
{
    const struct entry *first = key->holders.at;
    struct sim_answer answer = {.st = HF_OK, .fence = key->fence};

    answer.left_ms = -1;
    answer.holders = key->holders.len;
    if (!key->holders.len)
        return answer;
    answer.fence = first->fence;
    answer.shared = first->shared;
    answer.permits = first->permits;
    if (first->expires != INT64_MAX)
        answer.left_ms = (first->expires - clock_us()) / 1000;
    if (first->expires != INT64_MAX && answer.left_ms < 0)
        answer.left_ms = 0;
    memcpy(answer.token, first->token, sizeof(answer.token));
    return answer;
}

/* Have the holders changed?  Then observers are told. */
static void tell_changed(struct key *key)
{
    struct sim_answer state = state_of(key);
    int i;

    if (state.holders == key->now.holders && state.fence == key->now.fence &&
        state.shared == key->now.shared && !strcmp(state.token, key->now.token))
        return;
    key->before = key->now;
    key->now = state;
    for (i = 0; i < SIM_PROCS; i++)
        if (observers[i])
            sim_net_changed(i, (int)(key - keys));
}

/* A follower may not know the newest. */
static struct sim_answer do_inspect(struct key *key)
{
    if (sim_chance(sim.weather.stale))
        return key->before;
    return state_of(key);
}

uint64_t sim_service_newest(int k)
{
    return keys[k].proof;
}

int64_t sim_service_granted(int k, const char *token)
{
    struct entry *mine = list_find(&keys[k].holders, token);

    return mine ? mine->granted : -1;
}

/* ---- time -------------------------------------------------------------- */

static struct session *session_find(uint64_t id)
{
    struct session *s;

    for (s = sessions; s; s = s->next)
        if (s->id == id)
            return s->expires > clock_us() ? s : NULL;
    return NULL;
}

static bool entry_lives(const struct entry *entry)
{
    return entry->expires > clock_us() &&
           (!entry->session || session_find(entry->session));
}

static bool list_expire(struct list *list)
{
    int i = 0, old = list->len;

    while (i < list->len) {
        if (!entry_lives(&list->at[i])) {
            sim_trace("service: %.6s lapsed", list->at[i].token);
            list_remove(list, &list->at[i]);
        } else {
            i++;
        }
    }
    return list->len < old;
}

static void expire(void *arg)
{
    struct key *key = arg;
    bool any = list_expire(&key->holders);

    if (list_expire(&key->queue) || any)
        tell_free(key);
    tell_changed(key);
}

/* Only a request that says so shortens a lease: a late one must not. */
static void set_expiry(struct key *key, struct entry *entry,
                       const struct sim_request *rq)
{
    int64_t us = rq->ttl_ms * 1000, end = clock_us() + us;

    if (rq->session) { /* entry.expires is that of its session */
        if (!entry->session)
            entry->session = rq->session;
        if (!entry->version)
            entry->version = ++last_version;
        entry->expires = INT64_MAX;
        return;
    }
    if (!has(HF_TRAIT_LEASED))
        end = INT64_MAX;
    if (end > entry->expires || rq->shorten)
        entry->expires = end;
    if (has(HF_TRAIT_LEASED))
        sim_at(sim.now + us + us / 90 + 2000, expire, key);
}

/* ---- requests ---------------------------------------------------------- */

/* service.c (1) */
static bool may_join(const struct key *key, const struct sim_request *rq)
{
    const struct entry *holder = key->holders.at;

    if (key->holders.len && has(HF_TRAIT_REENTRANT) && *rq->owner &&
        !strcmp(holder->owner, rq->owner))
        return holder->shared == rq->shared;
    return has_room(key, rq->shared, rq->permits);
}

static bool is_turn(const struct key *key, const struct entry *mine,
                    const struct sim_request *rq)
{
    int i;

    if (rq->permits) { /* as many as there are permits left */
        int left = rq->permits - key->holders.len;

        i = mine ? (int)(mine - key->queue.at) : key->queue.len;
        return i < left;
    }
    for (i = 0; i < key->queue.len; i++) {
        if (&key->queue.at[i] == mine)
            return true;
        if (!key->queue.at[i].shared || !rq->shared)
            return false;
    }
    return true;
}

static struct sim_answer do_busy(struct key *key, struct entry *mine,
                                 const struct sim_request *rq)
{
    struct sim_answer answer = {.st = HF_BUSY};
    int64_t left;

    if (has(HF_TRAIT_QUEUED) && !mine && rq->queue)
        mine = list_add(&key->queue, rq);
    if (mine) {
        set_expiry(key, mine, rq);
        mine->nth = rq->nth;
        answer.registered = true;
        answer.busy.position = (int32_t)(mine - key->queue.at) + 1;
    }
    if (key->holders.len && has(HF_TRAIT_LEASED) && sim_chance(500)) {
        left = (key->holders.at[0].expires - clock_us()) / 1000;
        answer.busy.left_ms = left > 0 ? left : 0;
    }
    tell_wanted(key);
    return answer;
}

static struct entry *do_grant(struct key *key, struct entry *place,
                              const struct sim_request *rq)
{
    bool joins = key->holders.len && !key->holders.at[0].shared && !rq->permits;
    int slot = free_slot(key, rq->permits);
    struct entry *entry;

    if (place)
        list_remove(&key->queue, place);
    entry = list_add(&key->holders, rq);
    entry->granted = sim.now;
    if (joins) {
        entry->fence = key->holders.at[0].fence;
        return entry;
    }
    next_fence(key);
    entry->fence = key->fence;
    entry->slot = slot;
    return entry;
}

static struct sim_answer do_try(struct key *key, const struct sim_request *rq)
{
    struct entry *mine = list_find(&key->holders, rq->token);
    struct entry *place = list_find(&key->queue, rq->token);
    bool join = key->holders.len && !key->holders.at[0].shared && !rq->permits;

    if (!mine) {
        if (!may_join(key, rq) || (!join && !is_turn(key, place, rq)))
            return do_busy(key, place, rq);
        mine = do_grant(key, place, rq);
        sim.granted++;
    }
    if (!mine->kept)
        set_expiry(key, mine, rq);
    return (struct sim_answer){.st = HF_OK,
                               .fence = mine->fence,
                               .slot = mine->slot,
                               .registered = true};
}

static struct sim_answer do_share(struct key *key, const struct sim_request *rq)
{
    struct entry *mine = list_find(&key->holders, rq->token);

    if (!mine || mine->fence != rq->fence)
        return (struct sim_answer){.st = HF_LOST};
    if (!mine->shared && key->holders.len > 1)
        return (struct sim_answer){.st = HF_INVALID};
    mine->shared = true;
    tell_free(key);
    return (struct sim_answer){.st = HF_OK, .fence = mine->fence};
}

static struct sim_answer do_renew(struct key *key, const struct sim_request *rq)
{
    struct entry *mine = list_find(&key->holders, rq->token);
    struct sim_answer answer = {.st = HF_LOST};

    answer.reason = key->holders.len ? HF_LOSS_STOLEN : HF_LOSS_DELETED;
    if (!mine || mine->fence != rq->fence || mine->kept)
        return answer;
    mine->proc = rq->proc;
    set_expiry(key, mine, rq);
    return (struct sim_answer){.st = HF_OK, .fence = mine->fence};
}

/* The end may be earlier than that of the lease, and is never moved forward by
 * the same request that arrives once more. */
static struct sim_answer do_keep(struct key *key, const struct sim_request *rq)
{
    struct entry *mine = list_find(&key->holders, rq->token);
    int64_t us = rq->ttl_ms * 1000;

    if (!mine || mine->fence != rq->fence)
        return (struct sim_answer){.st = HF_LOST};
    if (!mine->kept) {
        mine->kept = true;
        mine->expires = clock_us() + us;
        sim_at(sim.now + us + us / 90 + 2000, expire, key);
    }
    return (struct sim_answer){.st = HF_OK, .fence = mine->fence};
}

static void unwatch(struct key *key, const char *token)
{
    int i = 0;

    while (i < key->nwatchers)
        if (!strcmp(key->watchers[i].token, token))
            key->watchers[i] = key->watchers[--key->nwatchers];
        else
            i++;
}

static struct sim_answer do_release(struct key *key,
                                    const struct sim_request *rq)
{
    struct entry *mine = list_find(&key->holders, rq->token);
    struct entry *place = list_find(&key->queue, rq->token);

    unwatch(key, rq->token);
    if (mine)
        list_remove(&key->holders, mine);
    if (place)
        list_remove(&key->queue, place);
    if (mine || place)
        tell_free(key);
    return (struct sim_answer){.st = mine ? HF_OK : HF_LOST};
}

static struct sim_answer do_watch(struct key *key, const struct sim_request *rq)
{
    struct watcher *watcher = &key->watchers[key->nwatchers];

    if (is_watched(key, rq->token))
        return (struct sim_answer){.st = HF_OK};
    if (key->nwatchers == ENTRIES) {
        sim_fail("S6: more than %d watches of one key are left", ENTRIES);
        return (struct sim_answer){.st = HF_UNAVAILABLE};
    }
    key->nwatchers++;
    memcpy(watcher->token, rq->token, sizeof(watcher->token));
    watcher->proc = rq->proc;
    /* A holder also hears of those who have asked before. */
    if (list_find(&key->holders, rq->token) &&
        (key->queue.len || key->nwatchers > 1))
        sim_net_tell(rq->proc, rq->key, NULL, 0);
    return (struct sim_answer){.st = HF_OK};
}

/* ---- sessions ---------------------------------------------------------- */

static void expire_all(void *arg)
{
    struct key *key;

    (void)arg;
    for (key = keys; key < keys + SIM_KEYS; key++)
        expire(key);
}

static void session_keep(struct session *s)
{
    int64_t end = clock_us() + s->ttl_us;

    if (end > s->expires)
        s->expires = end;
    sim_at(sim.now + s->ttl_us + s->ttl_us / 90 + 2000, expire_all, NULL);
}

static struct sim_answer do_create(const struct sim_request *rq)
{
    struct session *s = sim_alloc(sizeof(*s));

    *s = (struct session){.next = sessions, .id = ++last_session};
    s->ttl_us = rq->ttl_ms * 1000;
    sessions = s;
    session_keep(s);
    return (struct sim_answer){.st = HF_OK, .session = s->id};
}

static struct sim_answer do_end(const struct sim_request *rq)
{
    struct session *s = session_find(rq->session);

    if (s)
        s->expires = 0;
    expire_all(NULL);
    return (struct sim_answer){.st = HF_OK};
}

static struct sim_answer do_read(struct key *key, const struct sim_request *rq)
{
    struct entry *mine = list_find(&key->holders, rq->token);
    struct sim_answer answer = {.st = HF_LOST};

    answer.reason = key->holders.len ? HF_LOSS_STOLEN : HF_LOSS_DELETED;
    if (!mine || mine->fence != rq->fence)
        return answer;
    return (struct sim_answer){.st = HF_OK,
                               .fence = mine->fence,
                               .session = mine->session,
                               .version = mine->version};
}

/* HF_BUSY: it is not as it was read. */
static struct sim_answer do_change(struct key *key,
                                   const struct sim_request *rq)
{
    struct entry *mine = list_find(&key->holders, rq->token);

    if (!mine || mine->version != rq->version)
        return (struct sim_answer){.st = HF_BUSY};
    if (rq->what == SIM_MOVE) {
        mine->session = rq->session;
        mine->version = ++last_version;
        mine->proc = rq->proc;
    } else {
        list_remove(&key->holders, mine);
        tell_free(key);
    }
    return (struct sim_answer){.st = HF_OK};
}

static struct sim_answer do_take(struct key *key, const struct sim_request *rq)
{
    struct entry *mine = list_find(&key->holders, rq->token);
    struct entry *old = list_find(&key->holders, rq->old);

    if (!mine && old && old->fence == rq->fence) {
        memcpy(old->token, rq->token, sizeof(old->token));
        old->session = rq->session;
        old->version = ++last_version;
        old->proc = rq->proc;
        mine = old;
    }
    return (struct sim_answer){.st = mine ? HF_OK : HF_LOST};
}

/* A request that names a session which is not there does nothing. */
static struct sim_answer do_bound(struct key *key, const struct sim_request *rq)
{
    struct session *s = session_find(rq->session);
    struct sim_answer answer;

    if (rq->what == SIM_CREATE)
        return do_create(rq);
    if (rq->what == SIM_END)
        return do_end(rq);
    if (!s && rq->what != SIM_RELEASE && rq->what != SIM_SWEEP &&
        (rq->what != SIM_READ || rq->keep))
        return (struct sim_answer){.st = HF_LOST, .dead = true};
    if (s && rq->keep)
        session_keep(s);
    if (rq->what == SIM_RELEASE)
        answer = do_release(key, rq);
    else if (rq->what == SIM_TRY)
        answer = do_try(key, rq);
    else if (rq->what == SIM_READ)
        answer = do_read(key, rq);
    else if (rq->what == SIM_TAKE)
        answer = do_take(key, rq);
    else
        answer = do_change(key, rq);
    answer.dead = !s;
    return answer;
}

static struct sim_answer do_request(struct key *key,
                                    const struct sim_request *rq)
{
    if (has(HFI_TRAIT_BOUND) && rq->what != SIM_WATCH &&
        rq->what != SIM_UNWATCH && rq->what != SIM_INSPECT &&
        rq->what != SIM_OBSERVE)
        return do_bound(key, rq);
    switch (rq->what) {
    case SIM_TRY:
        return do_try(key, rq);
    case SIM_RENEW:
        return do_renew(key, rq);
    case SIM_RELEASE:
        return do_release(key, rq);
    case SIM_WATCH:
        return do_watch(key, rq);
    case SIM_KEEP:
        return do_keep(key, rq);
    case SIM_SHARE:
        return do_share(key, rq);
    case SIM_INSPECT:
        return do_inspect(key);
    case SIM_UNWATCH:
        unwatch(key, rq->token);
        break;
    case SIM_OBSERVE:
        observers[rq->proc] = true;
        break;
    default:
        break;
    }
    return (struct sim_answer){.st = HF_OK};
}

struct sim_answer sim_service_do(const struct sim_request *rq)
{
    struct key *key = &keys[rq->key];
    struct sim_answer answer;

    expire(key);
    answer = do_request(key, rq);
    tell_changed(key);
    return answer;
}

/* ---- what happens to it ------------------------------------------------ */

static void excuse(const struct entry *entry)
{
    struct excuse *item = sim_alloc(sizeof(*item));

    memcpy(item->token, entry->token, sizeof(item->token));
    item->next = excuses;
    excuses = item;
}

void sim_service_break(int k)
{
    struct key *key = &keys[k];
    struct entry *holder = key->holders.at;

    expire(key);
    if (!key->holders.len)
        return;
    sim_trace("operator breaks %s of %.6s", sim_key_name(k), holder->token);
    excuse(holder);
    sim_net_tell(holder->proc, k, holder->token, HF_LOSS_BROKEN);
    list_remove(&key->holders, holder);
    tell_free(key);
    tell_changed(key);
}

/* Backends subscribe again when they come back, so watches stay. */
void sim_service_restart(void)
{
    int i, j;

    sim_trace("service restarts and has forgotten everything");
    for (i = 0; i < SIM_KEYS; i++) {
        for (j = 0; j < keys[i].holders.len; j++)
            excuse(&keys[i].holders.at[j]);
        keys[i].holders.len = keys[i].queue.len = 0;
        keys[i].fence = 0;
        tell_changed(&keys[i]);
    }
    for (i = 0; i < sim.nprocs; i++)
        sim_net_tell(i, -1, NULL, 0);
}

static void list_forget(struct list *list, int proc)
{
    int i = 0;

    while (i < list->len)
        if (list->at[i].proc == proc)
            list_remove(list, &list->at[i]);
        else
            i++;
}

void sim_service_death(int proc)
{
    struct key *key;
    int i;

    for (key = keys; key < keys + SIM_KEYS; key++) {
        for (i = 0; i < key->nwatchers;)
            if (key->watchers[i].proc == proc)
                key->watchers[i] = key->watchers[--key->nwatchers];
            else
                i++;
        if (has(HF_TRAIT_LEASED))
            continue;
        list_forget(&key->holders, proc);
        list_forget(&key->queue, proc);
        tell_free(key);
        tell_changed(key);
    }
    observers[proc] = false;
}

enum sim_standing sim_service_stands(int k, const char *token, uint64_t fence)
{
    const struct entry *holder = list_find(&keys[k].holders, token);
    const struct excuse *item;

    if (holder && holder->fence == fence && entry_lives(holder))
        return SIM_STANDS;
    for (item = excuses; item; item = item->next)
        if (!strcmp(item->token, token))
            return SIM_EXCUSED;
    return SIM_GONE;
}

static void show(const char *what, const struct list *list)
{
    int i;

    for (i = 0; i < list->len; i++)
        sim_trace("service: %s: p%d %.6s%s", what, list->at[i].proc,
                  list->at[i].token, list->at[i].shared ? " shared" : "");
}

void sim_service_show(void)
{
    int i;

    for (i = 0; i < SIM_KEYS; i++) {
        show(sim_key_name(i), &keys[i].holders);
        show("queue", &keys[i].queue);
    }
}

bool sim_service_idle(char *why, size_t size)
{
    int i;

    for (i = 0; i < SIM_KEYS; i++) {
        expire(&keys[i]);
        if (!keys[i].holders.len && !keys[i].queue.len)
            continue;
        snprintf(why, size, "%s has %d holders and %d in the queue",
                 sim_key_name(i), keys[i].holders.len, keys[i].queue.len);
        return false;
    }
    return true;
}

void sim_service_begin(void)
{
    int i;

    memset(keys, 0, sizeof(keys));
    memset(observers, 0, sizeof(observers));
    for (i = 0; i < SIM_KEYS; i++)
        keys[i].now = keys[i].before = state_of(&keys[i]);
    excuses = NULL;
    sessions = NULL;
    last_session = last_version = 0;
    drift_ppm = sim.family->weather.drift_ppm;
    if (sim_chance(500))
        drift_ppm = (int)sim_below(2 * drift_ppm + 1) - drift_ppm;
}
