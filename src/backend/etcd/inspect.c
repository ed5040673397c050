/* SPDX-License-Identifier: MIT
 *
 * inspect.c - who holds a lock, and which locks there are.  Who holds is in
 * order.c.
 *
 * A listing reads all places in the order of their names, a page at a time, and
 * each lease once: what it costs does not depend on how many locks there are so
 * much as on how many clients hold them.
 */
#include "etcd.h"

#include <stdlib.h>

#include "backend/waiters.h"
#include "base/alloc.h"
#include "base/escape.h"

#include "base/banned.h"

/* How many places are asked for at once; and how few, when the answer did not
 * come: values may be of 1.5 megabytes, and an answer of HFI_GRPC_MAX. */
#define LIST_PAGE 500
#define LIST_FEW  8

/* ---- pages ------------------------------------------------------------- */

/* A walk over names, in their order. */
struct pages {
    struct etcd_conn *ec;
    ProtobufCBinaryData at, end; /* the next, and the first that is not meant */
    char *from;       /* ours to free, or NULL: what `at` points to */
    int64_t revision; /* 0: each page as it is now */
    int64_t limit, deadline;
    bool last; /* there is no other page */
};

/* The next page begins behind this name. */
static hf_status pages_go(struct pages *p, ProtobufCBinaryData name,
                          struct hf_error *err)
{
    char *from = hfi_alloc(name.len + 1);

    if (!from)
        return hfi_nomem(err);
    memcpy(from, name.data, name.len);
    from[name.len] = '\0'; /* the very next name */
    hfi_free(p->from);
    p->from = from;
    p->at = (ProtobufCBinaryData){name.len + 1, (uint8_t *)from};
    return HF_OK;
}

static hf_status pages_next(struct pages *p, Pb__RangeResponse **ret,
                            struct hf_error *err)
{
    Pb__RangeRequest ask = PB__RANGE_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    Pb__RangeResponse *page;
    hf_status st;
    bool again;

    ask.key = p->at;
    ask.range_end = p->end;
    ask.revision = p->revision;
    do {
        ask.limit = p->limit;
        st = etcd_call(p->ec, ETCD_RANGE, &ask.base,
                       &pb__range_response__descriptor, &message, p->deadline,
                       err);
        again = st == HF_UNCERTAIN && p->limit > LIST_FEW &&
                hfi_left_ms(p->deadline);
        p->limit = st ? LIST_FEW : p->limit;
    } while (again);
    if (st)
        return st;
    page = *ret = (Pb__RangeResponse *)message;
    p->limit = 2 * p->limit < LIST_PAGE ? 2 * p->limit : LIST_PAGE;
    p->last = !page->more || !page->n_kvs;
    return p->last ? HF_OK : pages_go(p, page->kvs[page->n_kvs - 1]->key, err);
}

/* Take one over from its page; false: no memory. */
static bool places_add(struct etcd_places *places, Pb__KeyValue **kv)
{
    size_t room = places->room ? 2 * places->room : 64;
    Pb__KeyValue **grown;

    if (places->n == places->room) {
        grown = hfi_realloc(places->kvs, room * sizeof(Pb__KeyValue *));
        if (!grown)
            return false;
        places->kvs = grown;
        places->room = room;
    }
    if ((*kv)->value.len > ETCD_VALUE_MAX)
        (*kv)->value.len = 0;
    places->kvs[places->n++] = *kv;
    *kv = NULL;
    return true;
}

static int places_compare(const void *one, const void *two)
{
    const Pb__KeyValue *const *a = one, *const *b = two;

    return ((*a)->create_revision > (*b)->create_revision) -
           ((*a)->create_revision < (*b)->create_revision);
}

static void places_sort(struct etcd_places *places)
{
    if (places->n)
        qsort(places->kvs, places->n, sizeof(*places->kvs), places_compare);
}

static void places_clear(struct etcd_places *places)
{
    while (places->n)
        etcd_free(places->kvs[--places->n]);
}

void etcd_places_free(struct etcd_places *places)
{
    places_clear(places);
    hfi_free(places->kvs);
}

/* All pages are of one revision: that of the first. */
hf_status etcd_queue(struct etcd_conn *ec, const char *key,
                     struct etcd_places *ret, int64_t deadline,
                     struct hf_error *err)
{
    char dir[ETCD_NAME_MAX], end[ETCD_NAME_MAX];
    struct pages p = {.ec = ec, .limit = LIST_PAGE, .deadline = deadline};
    Pb__RangeResponse *page;
    hf_status st = HF_OK;
    size_t i;

    etcd_dir(ec, key, dir, sizeof(dir));
    memcpy(end, dir, sizeof(end));
    p.at = etcd_text(dir);
    p.end = etcd_end(end);
    while (!st && !p.last) {
        page = NULL;
        st = pages_next(&p, &page, err);
        for (i = 0; !st && i < page->n_kvs; i++)
            if (!places_add(ret, &page->kvs[i]))
                st = hfi_nomem(err);
        if (!st && page->header)
            p.revision = p.revision ? p.revision : page->header->revision;
        etcd_free(page);
    }
    hfi_free(p.from);
    places_sort(ret);
    ret->revision = p.revision;
    ret->dir = strlen(dir);
    return st;
}

/* The value of another program, as that of `etcdctl elect`: show it if it is
 * text. */
static void inspect_foreign(struct hf_info *ret, ProtobufCBinaryData value)
{
    size_t len = value.len < HF_NOTE_MAX ? value.len : HF_NOTE_MAX, i;

    for (i = 0; i < len; i++)
        if (value.data[i] < ' ' || value.data[i] == 0x7f)
            return;
    if (len)
        memcpy(ret->note, value.data, len);
    ret->note[len] = '\0';
}

/* What one of several claims says of its holder. */
static void inspect_holder(struct hf_info *ret, const Pb__KeyValue *kv,
                           const struct etcd_place *p)
{
    struct etcd_words words;

    etcd_read_value(kv->value, &words);
    ret->held = true;
    ret->shared = p->shared;
    ret->fence = p->fence;
    ret->permits = p->permits > 0 ? p->permits : 0;
    ret->slot = p->slot;
    ret->broken = p->broken;
    ret->kept = p->kept;
    snprintf(ret->owner, sizeof(ret->owner), "%s",
             words.owner[0] ? words.owner : words.token);
    snprintf(ret->note, sizeof(ret->note), "%s", words.note);
    if (!words.token[0])
        inspect_foreign(ret, kv->value);
}

/* How many hold and wait, and which of them is the first holder; NULL: none. */
static const struct etcd_place *inspect_count(struct hf_info *ret,
                                              const struct etcd_place *places,
                                              size_t n)
{
    const struct etcd_place *first = NULL;
    size_t i;

    ret->holders = ret->waiters = 0;
    for (i = 0; i < n; i++) {
        if (places[i].holds)
            ret->holders++;
        else
            ret->waiters++;
        if (places[i].holds && !first)
            first = &places[i];
    }
    return first;
}

/* What a queue, in order, says of the first holder, and *lease its lease, or 0.
 * False: no memory. */
static bool inspect_fill(struct hf_info *ret, const struct etcd_places *queue,
                         int64_t *lease)
{
    struct etcd_place *places =
        etcd_order(queue->kvs, queue->n, queue->dir, NULL);
    const struct etcd_place *first;
    size_t i;

    *lease = 0;
    if (!places)
        return false;
    first = inspect_count(ret, places, queue->n);
    if (first) {
        inspect_holder(ret, queue->kvs[first - places], first);
        *lease = queue->kvs[first - places]->lease;
    }
    for (i = 0; first && i < queue->n;
         i++) /* Equal owner ids have one grant. */
        if (places[i].holds && places[i].fence == first->fence)
            ret->broken = ret->broken || places[i].broken;
    hfi_free(places);
    return true;
}

/* ---- leases ------------------------------------------------------------ */

/* What is left of leases, as far as it was asked for. */
struct lefts {
    struct left {
        int64_t lease, ms; /* -1: not known */
    } * all;
    size_t n, room;
};

static struct left *lefts_find(const struct lefts *lefts, int64_t lease)
{
    size_t i;

    for (i = lefts->n; i-- > 0;)
        if (lefts->all[i].lease == lease)
            return &lefts->all[i];
    return NULL;
}

/* Have a line for the lease; false: no memory. */
static bool lefts_add(struct lefts *lefts, int64_t lease)
{
    size_t room = lefts->room ? 2 * lefts->room : 16;
    struct left *grown;

    if (lefts->n == lefts->room) {
        grown = hfi_realloc(lefts->all, room * sizeof(*grown));
        if (!grown)
            return false;
        lefts->all = grown;
        lefts->room = room;
    }
    lefts->all[lefts->n++] = (struct left){lease, -1};
    return true;
}

/* Ask for those from `from` on, as many as go together.  A lease that is not
 * told of is not known, which is no failure.  Seconds are rounded down: 0 is the
 * last of them, or that the service is about to remove what hangs on it. */
static size_t lefts_ask(struct etcd_conn *ec, struct lefts *lefts, size_t from,
                        int64_t deadline)
{
    Pb__LeaseTimeToLiveRequest ask = PB__LEASE_TIME_TO_LIVE_REQUEST__INIT;
    struct etcd_batch batch = {.n = 0};
    ProtobufCMessage *answer;
    size_t i, n = lefts->n - from;
    int64_t left;

    n = n < ETCD_CALLS_MAX ? n : ETCD_CALLS_MAX;
    for (i = 0; i < n; i++) {
        ask.id = lefts->all[from + i].lease;
        etcd_add(&batch, ETCD_TTL, &ask.base);
    }
    etcd_send(ec, &batch, deadline, NULL);
    for (i = 0; i < n && !batch.failed; i++) {
        answer = NULL;
        if (etcd_answer(ec, &batch, i,
                        &pb__lease_time_to_live_response__descriptor, &answer,
                        NULL))
            continue;
        left = ((Pb__LeaseTimeToLiveResponse *)answer)->ttl;
        lefts->all[from + i].ms =
            left > 0 && left < INT64_MAX / 1000 ? left * 1000 : 0;
        etcd_free(answer);
    }
    etcd_batch_free(&batch);
    return n;
}

/* Know of the leases of all these; false: no memory. */
static bool lefts_know(struct etcd_conn *ec, struct lefts *lefts,
                       Pb__KeyValue *const *kvs, size_t n, int64_t deadline)
{
    size_t i, from = lefts->n;

    for (i = 0; i < n; i++)
        if (kvs[i]->lease && !lefts_find(lefts, kvs[i]->lease) &&
            !lefts_add(lefts, kvs[i]->lease))
            return false;
    while (from < lefts->n)
        from += lefts_ask(ec, lefts, from, deadline);
    return true;
}

static int64_t lefts_ms(const struct lefts *lefts, int64_t lease)
{
    const struct left *left = lease ? lefts_find(lefts, lease) : NULL;

    return left ? left->ms : -1;
}

hf_status etcd_inspect(struct hfi_conn *conn, const char *key,
                       struct hf_info *ret, int64_t deadline,
                       struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    struct etcd_places queue = {.n = 0};
    struct lefts lefts = {.n = 0};
    int64_t lease = 0;
    hf_status st;

    etcd_watch_doubt(ec);
    st = etcd_queue(ec, key, &queue, deadline, err);
    if (!st && !inspect_fill(ret, &queue, &lease))
        st = hfi_nomem(err);
    if (lease && lefts_add(&lefts, lease))
        lefts_ask(ec, &lefts, 0, deadline);
    if (!st && ret->held)
        ret->left_ms = lefts_ms(&lefts, lease);
    hfi_free(lefts.all);
    etcd_places_free(&queue);
    return st;
}

/* Tell of each holder. */
static void holders_tell(const struct etcd_places *queue,
                         const struct etcd_place *places,
                         const struct lefts *lefts, hf_holders_fn *fn,
                         void *arg)
{
    struct hf_info all = {.size = sizeof(all), .since_ms = -1, .slot = -1};
    struct hf_info info;
    bool more = true;
    size_t i;

    inspect_count(&all, places, queue->n);
    for (i = 0; i < queue->n && more; i++) {
        if (!places[i].holds)
            continue;
        info = all;
        inspect_holder(&info, queue->kvs[i], &places[i]);
        info.left_ms = lefts_ms(lefts, queue->kvs[i]->lease);
        more = fn(arg, &info);
    }
}

hf_status etcd_holders(struct hfi_conn *conn, const char *key,
                       hf_holders_fn *fn, void *arg, int64_t deadline,
                       struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    struct etcd_places queue = {.n = 0};
    struct etcd_place *places = NULL;
    struct lefts lefts = {.n = 0};
    hf_status st = etcd_queue(ec, key, &queue, deadline, err);

    if (!st)
        places = etcd_order(queue.kvs, queue.n, queue.dir, NULL);
    if (!st &&
        (!places || !lefts_know(ec, &lefts, queue.kvs, queue.n, deadline)))
        st = hfi_nomem(err);
    if (!st)
        holders_tell(&queue, places, &lefts, fn, arg);
    hfi_free(places);
    hfi_free(lefts.all);
    etcd_places_free(&queue);
    return st;
}

hf_status etcd_waiters(struct hfi_conn *conn, const char *key,
                       hf_waiters_fn *fn, void *arg, int64_t deadline,
                       struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    struct etcd_places queue = {.n = 0};
    struct hfi_waiters found = {.n = 0};
    struct etcd_place *places = NULL;
    struct lefts lefts = {.n = 0};
    struct hf_waiter *waiter;
    struct hf_info info;
    hf_status st = etcd_queue(ec, key, &queue, deadline, err);
    size_t i;

    if (!st)
        places = etcd_order(queue.kvs, queue.n, queue.dir, NULL);
    if (!st &&
        (!places || !lefts_know(ec, &lefts, queue.kvs, queue.n, deadline)))
        st = hfi_nomem(err);
    for (i = 0; !st && i < queue.n; i++) {
        if (places[i].holds)
            continue;
        waiter = hfi_waiters_add(&found, (int64_t)places[i].fence);
        if (!waiter)
            break;
        inspect_holder(&info, queue.kvs[i], &places[i]);
        waiter->shared = info.shared;
        waiter->permits = info.permits;
        waiter->left_ms = lefts_ms(&lefts, queue.kvs[i]->lease);
        hfi_waiter_names(waiter, info.owner, NULL, info.note);
    }
    hfi_free(places);
    hfi_free(lefts.all);
    etcd_places_free(&queue);
    return hfi_waiters_tell(&found, st, fn, arg, err);
}

/* ---- list -------------------------------------------------------------- */

/* A walk over all places, and those of the lock at which it is. */
struct walk {
    struct pages pages;
    hf_list_fn *fn;
    void *arg;
    bool more;
    bool failed; /* no memory */
    struct lefts lefts;
    struct etcd_places places;
};

/* How much of a name all places of its lock have in common. */
static size_t walk_dir(const Pb__KeyValue *kv)
{
    size_t len = kv->key.len;

    while (len && kv->key.data[len - 1] != '/')
        len--;
    return len;
}

/* All places of a lock are there: tell of it. */
static void walk_tell(struct walk *w)
{
    struct hf_info info = {
        .size = sizeof(info), .left_ms = -1, .since_ms = -1, .slot = -1};
    struct etcd_places *places = &w->places;
    char key[ETCD_NAME_MAX];
    int64_t lease;

    if (places->n && w->more &&
        etcd_key_of(w->pages.ec, places->kvs[0]->key, key)) {
        places_sort(places);
        places->dir = walk_dir(places->kvs[0]);
        w->failed = !inspect_fill(&info, places, &lease);
        info.left_ms = lefts_ms(&w->lefts, lease);
        if (info.held)
            w->more = w->fn(w->arg, key, &info);
    }
    places_clear(places);
}

/* Take one place over from the page; false: no memory. */
static bool walk_add(struct walk *w, Pb__KeyValue **kv)
{
    const Pb__KeyValue *first = w->places.n ? w->places.kvs[0] : NULL;
    size_t len = walk_dir(*kv);

    if (first && (walk_dir(first) != len ||
                  memcmp(first->key.data, (*kv)->key.data, len) != 0))
        walk_tell(w);
    return !w->failed && places_add(&w->places, kv);
}

static hf_status walk_page(struct walk *w, struct hf_error *err)
{
    Pb__RangeResponse *page = NULL;
    hf_status st = pages_next(&w->pages, &page, err);
    size_t i;

    if (!st && !lefts_know(w->pages.ec, &w->lefts, page->kvs, page->n_kvs,
                           w->pages.deadline))
        st = hfi_nomem(err);
    for (i = 0; !st && i < page->n_kvs && w->more; i++)
        if (!walk_add(w, &page->kvs[i]))
            st = hfi_nomem(err);
    if (!st && w->pages.last) {
        walk_tell(w);
        w->more = false;
        if (w->failed)
            st = hfi_nomem(err);
    }
    etcd_free(page);
    return st;
}

hf_status etcd_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                    void *arg, int64_t deadline, struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    struct walk w = {
        .pages = {.ec = ec, .limit = LIST_PAGE, .deadline = deadline},
        .fn = fn,
        .arg = arg,
        .more = true};
    char from[ETCD_NAME_MAX], to[ETCD_NAME_MAX];
    hf_status st = HF_OK;

    etcd_watch_doubt(ec);
    etcd_dir(ec, prefix, from, sizeof(from));
    from[strlen(from) - 1] = '\0'; /* A prefix ends anywhere. */
    memcpy(to, from, sizeof(to));
    w.pages.end = etcd_end(to);
    w.pages.at = etcd_text(from);
    if (!w.pages.at.len) /* an empty prefix= and no prefix */
        w.pages.at = (ProtobufCBinaryData){1, (uint8_t *)from};
    while (!st && w.more)
        st = walk_page(&w, err);
    etcd_places_free(&w.places);
    hfi_free(w.pages.from);
    hfi_free(w.lefts.all);
    return st;
}
