/* SPDX-License-Identifier: MIT
 *
 * table.c - every lock that was seen, in order of its last change.
 *
 * Each change gives its lock the next version and moves it to the end of the
 * list.  So whoever has seen version V finds what is new behind the last lock
 * with a version of V or less, from the end backwards, and pays for what changed
 * only.  A lock that is free stays until SERVE_FREE_KEPT others have been freed
 * after it, so that a stream that was told of it hears that it is free; one that
 * is further behind begins again (`oldest`).
 *
 * A listing names every lock, and most are as they were but for the lease, which
 * was renewed.  That is no change: it has a count of its own (`lease`), so that
 * streams tell a number for it and not the lock.
 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SERVE_FREE_KEPT 1000
#define SERVE_SLOTS     16384

struct serve_table serve_table;

int64_t serve_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int64_t serve_wall(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void serve_table_init(int services)
{
    pthread_mutex_init(&serve_table.mu, NULL);
    serve_table.nslots = SERVE_SLOTS;
    serve_table.slots = calloc(SERVE_SLOTS, sizeof(struct serve_lock *));
    serve_table.nservices = services;
    if (!serve_table.slots)
        abort();
}

static size_t table_hash(int service, const char *key)
{
    uint64_t hash = 14695981039346656037u + (unsigned)service;

    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 1099511628211u;
    return (hash ^ hash >> 32) % serve_table.nslots;
}

static void table_unlink(struct serve_lock *lock)
{
    if (lock->prev)
        lock->prev->next = lock->next;
    else
        serve_table.first = lock->next;
    if (lock->next)
        lock->next->prev = lock->prev;
    else
        serve_table.last = lock->prev;
}

static void table_append(struct serve_lock *lock)
{
    lock->version = ++serve_table.version;
    lock->prev = serve_table.last;
    lock->next = NULL;
    if (lock->prev)
        lock->prev->next = lock;
    else
        serve_table.first = lock;
    serve_table.last = lock;
}

static struct serve_lock *table_find(int service, const char *key)
{
    struct serve_lock *lock = serve_table.slots[table_hash(service, key)];

    while (lock && (lock->service != service || strcmp(lock->key, key)))
        lock = lock->chain;
    return lock;
}

/* A new one, free so far; NULL if there are too many. */
static struct serve_lock *table_add(int service, const char *key)
{
    size_t len = strlen(key) + 1, slot = table_hash(service, key);
    struct serve_lock *lock;

    if (serve_table.count >= SERVE_KEYS)
        return NULL;
    lock = calloc(1, sizeof(*lock) + len);
    if (!lock)
        return NULL;
    memcpy(lock->key, key, len);
    lock->service = service;
    lock->id = ++serve_table.ids;
    lock->waited = -1;
    lock->ends = -1;
    lock->chain = serve_table.slots[slot];
    serve_table.slots[slot] = lock;
    serve_table.count++;
    table_append(lock);
    return lock;
}

static void table_remove(struct serve_lock *lock)
{
    struct serve_lock **at =
        &serve_table.slots[table_hash(lock->service, lock->key)];

    while (*at != lock)
        at = &(*at)->chain;
    *at = lock->chain;
    table_unlink(lock);
    serve_table.count--;
    free(lock);
}

/* Forget the oldest of those that are free, if there are too many of them.  The
 * list is in order of changes, so they are near its beginning. */
static void table_trim(void)
{
    size_t held = 0;
    int i;

    for (i = 0; i < serve_table.nservices; i++)
        held += (size_t)serve_table.services[i].held;
    while (serve_table.count > held + SERVE_FREE_KEPT) {
        struct serve_lock *lock = serve_table.first;

        while (lock && lock->info.held)
            lock = lock->next;
        if (!lock)
            return;
        if (lock->version > serve_table.oldest)
            serve_table.oldest = lock->version;
        table_remove(lock);
    }
}

static void table_count(struct serve_histogram *histogram, int64_t ms)
{
    int bucket = 0;

    if (ms < 0)
        return;
    while (bucket < SERVE_BUCKETS - 1 && ms >= INT64_C(1) << bucket)
        bucket++;
    histogram->buckets[bucket]++;
    histogram->count++;
    histogram->sum_ms += (uint64_t)ms;
}

static void table_tell(enum serve_kind kind, int service, const char *key,
                       const struct hf_info *info)
{
    struct serve_event *event =
        &serve_table.events[serve_table.nevents % SERVE_EVENTS];

    *event = (struct serve_event){.version = ++serve_table.version,
                                  .wall = serve_wall(),
                                  .kind = kind,
                                  .service = service,
                                  .fence = info ? info->fence : 0};
    snprintf(event->key, sizeof(event->key), "%s", key);
    snprintf(event->note, sizeof(event->note), "%s", info ? info->note : "");
    serve_table.nevents++;
}

/* Has the lease of the grant that is over run out?  That is known only where it
 * is so long that a renewal would have been seen: holders renew in thirds of it,
 * and a listing comes every_ms after another, unless it is late. */
static bool table_lapsed(const struct serve_lock *lock, int64_t at)
{
    int64_t every = serve_table.services[lock->service].every_ms;

    return !lock->info.kept && !lock->info.broken &&
           at - lock->seen <= every + every / 2 &&
           serve_lease(lock) + SERVE_JITTER >= 2 * every &&
           serve_left(lock, at) == 0;
}

/* Of several who hold a lock together one is shown, and the fence is another's when
 * that one leaves.  So their number tells whether somebody came, and where that is
 * the same only a fence that is greater than all before it: when the newest has left,
 * observers go on to tell its fence, and listings tell that of one who is there. */
static bool table_together(const struct hf_info *old, const struct hf_info *now)
{
    return old->held && now->held &&
           ((old->shared && now->shared) ||
            (old->permits > 0 && old->permits == now->permits));
}

/* How many were granted it since. */
static int64_t table_grants(const struct serve_lock *lock,
                            const struct hf_info *now)
{
    const struct hf_info *old = &lock->info;
    int64_t more = now->holders - old->holders;

    if (!now->held)
        return 0;
    if (!old->held || (!table_together(old, now) && now->fence != old->fence))
        return now->holders > 1 ? now->holders : 1;
    if (!table_together(old, now))
        return 0;
    if (more != 0)
        return more > 0 ? more : 0;
    return now->fence > lock->newest;
}

/* Who held it before, and who does now: figures and events. */
static void table_judge(struct serve_lock *lock, const struct hf_info *now,
                        int64_t at)
{
    struct serve_service *service = &serve_table.services[lock->service];
    const struct hf_info *old = &lock->info;
    bool together = table_together(old, now);
    int64_t grants = table_grants(lock, now);
    bool taken = grants > 0, over = old->held && !now->held;

    if (now->held && old->held && !together)
        over = now->fence != old->fence;
    else if (together && now->holders < old->holders)
        over = now->fence != old->fence || strcmp(old->owner, now->owner);
    else if (together && now->holders == old->holders)
        over = taken;
    if (over)
        table_count(&service->hold, serve_age(lock, at));
    if (over && (!now->held || taken) && table_lapsed(lock, at)) {
        service->lapses++;
        table_tell(SERVE_LAPSED, lock->service, lock->key, old);
    }
    if (over && taken && (!together || old->holders == old->permits))
        service->handovers++;
    service->grants += (uint64_t)grants;
    if (taken)
        table_tell(SERVE_GRANT, lock->service, lock->key, now);
    else if (old->held && !now->held)
        table_tell(SERVE_FREE, lock->service, lock->key, old);
    if (now->held && now->broken && (taken || !old->broken)) {
        service->breaks++;
        table_tell(SERVE_BROKEN, lock->service, lock->key, now);
    }
    if (taken && lock->waited >= 0) {
        table_count(&service->wait, at - lock->waited);
        lock->waited = now->waiters > 0 ? at : -1;
    }
    if (now->waiters > 0 && lock->waited < 0)
        lock->waited = at;
    else if (now->waiters <= 0)
        lock->waited = -1;
}

static void table_sum(struct serve_service *service, const struct hf_info *info,
                      int sign)
{
    if (!info->held)
        return;
    service->held += sign;
    service->leases += info->left_ms >= 0 ? sign : 0;
    service->holders += sign * info->holders;
    service->unknown += info->waiters < 0 ? sign : 0;
    if (info->waiters > 0)
        service->waiters += sign * info->waiters;
}

/* Would somebody who looks at both see the same, but for the lease? */
static bool table_same(const struct serve_lock *lock,
                       const struct hf_info *info, int64_t now)
{
    const struct hf_info *old = &lock->info;
    int64_t drift = serve_since(lock, now) - info->since_ms;

    return old->held == info->held && old->shared == info->shared &&
           old->fence == info->fence && old->holders == info->holders &&
           old->waiters == info->waiters && old->broken == info->broken &&
           old->kept == info->kept && old->permits == info->permits &&
           (old->left_ms < 0) == (info->left_ms < 0) && drift < SERVE_JITTER &&
           drift > -SERVE_JITTER && !strcmp(old->owner, info->owner) &&
           !strcmp(old->note, info->note);
}

/* The lease is not what was told: it was renewed, or is shorter. */
static void table_lease(struct serve_lock *lock, int64_t now, bool told)
{
    int64_t ends = lock->info.left_ms < 0 ? -1 : now + lock->info.left_ms;

    if (lock->info.left_ms > lock->full)
        lock->full = lock->info.left_ms;
    if (ends - lock->first > SERVE_JITTER)
        lock->renewed = true;
    if (told || ends - lock->ends > SERVE_JITTER ||
        lock->ends - ends > SERVE_JITTER) {
        lock->ends = ends;
        if (!told)
            lock->lease = ++serve_table.lease;
    }
}

/* Take the news over; `told`: streams are told of all of it; `seen`: a grant in it
 * is new. */
static void table_put(struct serve_lock *lock, const struct hf_info *info,
                      int64_t now, bool told, bool seen)
{
    struct serve_service *service = &serve_table.services[lock->service];

    bool other = !lock->info.held || lock->info.fence != info->fence;
    bool together = table_together(&lock->info, info);

    if (other && !together) {
        lock->begun = now;
        lock->witnessed = seen;
    }
    if (!together || info->fence > lock->newest)
        lock->newest = info->fence;
    if (other || lock->info.left_ms < 0)
        serve_lease_begin(lock, info, now);
    table_sum(service, &lock->info, -1);
    table_sum(service, info, 1);
    lock->info = *info;
    lock->seen = now;
    table_lease(lock, now, told);
    if (told) {
        table_unlink(lock);
        table_append(lock);
    }
}

void serve_table_change(int service, const char *key,
                        const struct hf_info *info, unsigned mark)
{
    int64_t now = serve_now();
    struct serve_lock *lock;

    pthread_mutex_lock(&serve_table.mu);
    lock = table_find(service, key);
    if (!lock && info->held)
        lock = table_add(service, key);
    if (!lock) {
        serve_table.services[service].left_out[1] += info->held && mark;
    } else {
        bool same = table_same(lock, info, now);

        if (!same)
            table_judge(lock, info, now);
        table_put(lock, info, now,
                  !same || serve_lease_is_short(lock, info, now),
                  serve_table.services[service].listed && !mark);
        lock->mark = mark ? mark : lock->mark;
        if (!same)
            table_trim();
    }
    pthread_mutex_unlock(&serve_table.mu);
}

/* What the listing `mark` did not name is free. */
void serve_table_sweep(int service, unsigned mark)
{
    const struct hf_info nobody = HF_INFO_INIT;
    struct serve_lock *lock, *next;
    uint64_t end;

    pthread_mutex_lock(&serve_table.mu);
    end = serve_table.version;
    for (lock = serve_table.first; lock && lock->version <= end; lock = next) {
        next = lock->next;
        if (lock->service != service || lock->mark == mark || !lock->info.held)
            continue;
        table_judge(lock, &nobody, serve_now());
        table_sum(&serve_table.services[service], &lock->info, -1);
        lock->info.held = false;
        lock->seen = serve_now();
        table_unlink(lock);
        table_append(lock);
    }
    table_trim();
    if (!serve_table.services[service].listed)
        serve_table.version++; /* Streams are told so. */
    serve_table.services[service].listed = true;
    serve_table.services[service].left_out[0] =
        serve_table.services[service].left_out[1];
    serve_table.services[service].left_out[1] = 0;
    pthread_mutex_unlock(&serve_table.mu);
}

/* Keys whose leases are too short for a listing every `every` ms, and half over
 * as far as is known. */
int serve_table_short(int service, int64_t every, char (*keys)[HF_KEY_MAX + 1],
                      int max)
{
    const struct serve_lock *lock;
    int64_t now = serve_now();
    int n = 0;

    pthread_mutex_lock(&serve_table.mu);
    for (lock = serve_table.first; lock && n < max; lock = lock->next)
        if (lock->service == service && lock->info.held &&
            lock->info.left_ms >= 0 && lock->full + SERVE_JITTER < 2 * every &&
            2 * serve_left(lock, now) < lock->full)
            snprintf(keys[n++], sizeof(keys[0]), "%s", lock->key);
    pthread_mutex_unlock(&serve_table.mu);
    return n;
}

uint64_t serve_table_id(int service, const char *key)
{
    const struct serve_lock *lock = table_find(service, key);

    return lock ? lock->id : 0;
}

size_t serve_table_not_shown(void)
{
    size_t ret = 0;

    for (int i = 0; i < serve_table.nservices; i++)
        ret += serve_table.services[i].left_out[0];
    return ret;
}

/* The name of a service is that of its URL, whether it can be reached or not, so
 * that its series are the same.  Only a URL that names no place, such as file:,
 * takes what the service says. */
void serve_table_up(int service, bool up, const char *endpoint,
                    const char *error, int64_t trip_us)
{
    struct serve_service *s = &serve_table.services[service];
    size_t len;

    pthread_mutex_lock(&serve_table.mu);
    len = strlen(s->endpoint);
    if (up != s->up && (s->questions || up))
        table_tell(up ? SERVE_UP : SERVE_DOWN, service, "", NULL);
    if (up != s->up || (!up && strcmp(error, s->error)))
        serve_table.version++;
    s->up = up;
    s->questions++;
    if (!up)
        s->left_out[1] = 0; /* The listing has failed. */
    if (up)
        s->trip_us = trip_us;
    snprintf(s->error, sizeof(s->error), "%s", error);
    if (endpoint && (!len || s->endpoint[len - 1] == ':'))
        snprintf(s->endpoint, sizeof(s->endpoint), "%s", endpoint);
    pthread_mutex_unlock(&serve_table.mu);
}
