/* SPDX-License-Identifier: MIT
 *
 * collect.c - removing the entries of locks that nobody has used for long.
 *
 * A release writes into the entry when it was (`freed`).  An entry that is free
 * and does not say so, because its holder has died, is given that mark by the
 * first who collects.  The time is that of some client's clock.  Nothing but
 * the length of time for which an entry stays depends on it.
 *
 * INVARIANTS
 *  (1) An entry is deleted only if it is a lock by its Flags, nobody has it, and
 *      it is as it was read (delete-cas).  Whoever takes it, or comes in as one
 *      of several, changes it first.
 *  (2) Nothing that is late does harm then.  What locks an entry is conditional
 *      on an index that is not given twice, and "there is no entry" only ever
 *      makes one that is not locked (consul.c (2)).
 *  (3) Fences go on: they are indexes of the log, which does not begin again.
 *  (4) A key below which there is a place of a waiter, or the entry of a holder,
 *      stays.  A place that comes after the look is that of a waiter who finds
 *      no entry, and makes it.
 *
 * BY THEMSELVES  Clients do it, too, for entries that are older than keep=.
 *   Consul lists all names or none, so that is done rarely: a client that has
 *   made about a thousand entries, or a quarter as many as there were last time
 *   if that is more, does it in a thread of its own.  The number is random and
 *   begins anew with each client, so programs that make one entry each do it
 *   now and then, too.  A step is a transaction of 32 entries; closing the
 *   client ends it between two of them.
 */
#include "consul.h"

#include "base/env.h"

#include "base/banned.h"

/* Entries in one transaction. */
#define GROUP 32

/* A client looks after about so many new entries. */
#define COLLECT_EVERY 1024

struct collection {
    struct consul_conn *cc;
    const json_t *names; /* in the order of their bytes */
    int64_t older_ms;
    bool dry_run;
    const atomic_bool *stop; /* or NULL */
    struct hf_collected *ret;
    struct hf_error *err;
    const char *group[GROUP]; /* to be read together */
    size_t n;
    struct {
        const char *name;
        uint64_t index;
    } old[GROUP]; /* to be deleted together */
    size_t nold;
};

static int64_t collect_deadline(const struct collection *c)
{
    return hfi_now() + c->cc->timeout_ms;
}

static const char *collect_name(const struct collection *c, size_t i)
{
    const char *name = json_string_value(json_array_get(c->names, i));

    return name ? name : "";
}

/* Is there a name that begins so? */
static bool collect_is_there(const struct collection *c, const char *begin)
{
    size_t low = 0, high = json_array_size(c->names), mid;

    while (low < high) {
        mid = low + (high - low) / 2;
        if (strcmp(collect_name(c, mid), begin) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < json_array_size(c->names) &&
           !strncmp(collect_name(c, low), begin, strlen(begin));
}

/* ---- deleting ---------------------------------------------------------- */

/* Delete these, all or none.  HF_BUSY: one of them has changed. */
static hf_status delete_some(struct collection *c, size_t from, size_t n)
{
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;
    size_t i;

    for (i = from; i < from + n; i++)
        hfi_consul_op(&ops, "delete-cas", c->old[i].name, NULL, NULL,
                      c->old[i].index);
    st = hfi_consul_txn(c->cc, &c->cc->calls, &ops, true, collect_deadline(c),
                        &done, c->err);
    if (!st && !done.ok)
        st = HF_BUSY;
    if (!st)
        c->ret->removed += n;
    return st;
}

static hf_status delete_old(struct collection *c)
{
    hf_status st = c->nold ? delete_some(c, 0, c->nold) : HF_OK;
    size_t i;

    for (i = 0; st == HF_BUSY && i < c->nold; i++) {
        hf_status one = delete_some(c, i, 1);

        if (one == HF_BUSY)
            c->ret->kept++;
        else if (one)
            st = one;
    }
    c->nold = 0;
    return st == HF_BUSY ? HF_OK : st;
}

/* ---- looking ----------------------------------------------------------- */

/* Say that it is free from now on, as far as is known. */
static void collect_mark(struct collection *c, const char *name,
                         struct consul_kv *kv, int64_t now_s)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;

    kv->freed = (uint64_t)now_s;
    hfi_consul_kv_value(value, kv);
    hfi_consul_op(&ops, "cas", name, NULL, value, kv->index);
    hfi_consul_txn(c->cc, &c->cc->calls, &ops, true, collect_deadline(c), &done,
                   NULL);
}

/* One entry, as it was read. */
static void collect_entry(struct collection *c, const char *name,
                          const json_t *entry)
{
    json_int_t flags = json_integer_value(json_object_get(entry, "Flags"));
    int64_t now_s = hfi_wall_us() / 1000000;
    struct consul_kv kv;
    bool old;

    hfi_consul_kv_parse(&kv, entry);
    if (flags != CONSUL_FLAGS && flags != CONSUL_MANY_FLAGS &&
        flags != CONSUL_JOINED_FLAGS)
        return; /* none of ours */
    c->ret->looked_at++;
    old = !c->older_ms ||
          (kv.freed && now_s - (int64_t)kv.freed >= c->older_ms / 1000);
    if (flags != CONSUL_FLAGS || !hfi_consul_kv_is_free(&kv) || !kv.index ||
        !old) {
        c->ret->kept++;
        if (flags == CONSUL_FLAGS && hfi_consul_kv_is_free(&kv) && kv.index &&
            !kv.freed && !c->dry_run)
            collect_mark(c, name, &kv, now_s);
    } else if (c->dry_run) {
        c->ret->removed++;
    } else {
        c->old[c->nold].name = name;
        c->old[c->nold++].index = kv.index;
    }
}

/* Read those of the group.  One that is gone fails the transaction: then each is
 * read by itself. */
static hf_status collect_read(struct collection *c, size_t from, size_t n)
{
    struct consul_ops ops = {.len = 0};
    struct consul_reply reply;
    struct consul_done done;
    const json_t *results;
    hf_status st;
    size_t i;

    for (i = from; i < from + n; i++)
        hfi_consul_op(&ops, "get", c->group[i], NULL, NULL, 0);
    st = hfi_consul_txn_keep(c->cc, &c->cc->calls, &ops, false,
                             collect_deadline(c), &done, &reply, c->err);
    if (st)
        return st;
    if (done.ok)
        hfi_consul_reply_parse(&reply);
    results = done.ok ? json_object_get(reply.json, "Results") : NULL;
    for (i = 0; i < json_array_size(results) && i < n; i++)
        collect_entry(c, c->group[from + i],
                      json_object_get(json_array_get(results, i), "KV"));
    hfi_consul_reply_fini(&reply);
    return done.ok || n == 1 ? HF_OK : HF_BUSY;
}

static hf_status collect_group(struct collection *c)
{
    hf_status st = c->n ? collect_read(c, 0, c->n) : HF_OK;
    bool each = st == HF_BUSY;
    size_t i;

    if (each)
        st = HF_OK;
    for (i = 0; each && !st && i < c->n; i++)
        st = collect_read(c, i, 1);
    c->n = 0;
    return st ? st : delete_old(c);
}

static hf_status collect_all(struct collection *c)
{
    char key[HF_KEY_MAX + 1], below[CONSUL_NAME_MAX];
    size_t i, n = json_array_size(c->names);
    hf_status st = HF_OK;

    for (i = 0; i < n && !st && !(c->stop && atomic_load(c->stop)); i++) {
        const char *name = collect_name(c, i);

        if (!hfi_consul_key_of(&c->cc->options, name, key) ||
            strstr(name, "/.holdfast"))
            continue;
        if (!hfi_consul_part(&c->cc->options, key, ".holdfast", "", below))
            continue;
        below[strlen(below) - 1] = '\0'; /* places, and entries of holders */
        if (collect_is_there(c, below)) {
            c->ret->looked_at++;
            c->ret->kept++;
            continue;
        }
        c->group[c->n++] = name;
        if (c->n == GROUP)
            st = collect_group(c);
    }
    return st ? st : collect_group(c);
}

static hf_status collect_names(struct collection *c, int64_t deadline)
{
    struct consul_conn *cc = c->cc;
    struct hf_error *err = c->err;
    char name[CONSUL_NAME_MAX], path[3 * CONSUL_NAME_MAX];
    struct consul_request rq = {.method = "GET", .path = path};
    struct consul_reply reply;
    hf_status st;

    hfi_consul_list_prefix(&cc->options, "", name);
    hfi_consul_path(path, sizeof(path), name, "?keys");
    st = hfi_consul_call(cc, &cc->calls, &rq, deadline, &reply, err);
    if (st)
        return st;
    if (reply.status == 404 && reply.index) {
        hfi_consul_reply_fini(&reply);
        return HF_OK;
    }
    if (hfi_consul_reply_parse(&reply) && json_is_array(reply.json)) {
        c->names = reply.json;
        st = collect_all(c);
    } else {
        st = hfi_fail(err, HF_PROTOCOL, "%s: an answer that is no list",
                      cc->base.endpoint);
    }
    hfi_consul_reply_fini(&reply);
    return st;
}

hf_status hfi_consul_collect(struct hfi_conn *conn, int64_t older_ms,
                             bool dry_run, struct hf_collected *ret,
                             int64_t deadline, struct hf_error *err)
{
    struct collection c = {.cc = (struct consul_conn *)conn,
                           .older_ms = older_ms,
                           .dry_run = dry_run,
                           .ret = ret,
                           .err = err};

    return collect_names(&c, deadline);
}

/* ---- by themselves ------------------------------------------------------ */

/* With the mutex held, or before anybody else uses the conn: when the next is,
 * if there are so many entries. */
static void collector_plan(struct consul_conn *cc, uint64_t entries)
{
    uint64_t every = entries / 4 > COLLECT_EVERY ? entries / 4 : COLLECT_EVERY;
    uint64_t random;

    hfi_random(&random, sizeof(random));
    every = every < UINT32_MAX / 2 ? every : UINT32_MAX / 2;
    cc->collector.left = (uint32_t)(1 + random % (2 * every));
}

/* What it cannot remove now stays for the next time. */
static void *collector_run(void *arg)
{
    struct consul_conn *cc = arg;
    struct hf_collected found = HF_COLLECTED_INIT;
    struct collection c = {.cc = cc,
                           .older_ms = cc->options.keep_ms,
                           .stop = &cc->collector.stop,
                           .ret = &found};

    collect_names(&c, collect_deadline(&c));
    pthread_mutex_lock(&cc->mu);
    collector_plan(cc, found.looked_at);
    cc->collector.running = false;
    pthread_mutex_unlock(&cc->mu);
    return NULL;
}

void hfi_consul_collect_init(struct consul_conn *cc)
{
    collector_plan(cc, 0);
}

/* An entry was made: is it time to look for old ones? */
void hfi_consul_collect_some(struct consul_conn *cc)
{
    bool begin;

    if (!cc->options.keep_ms)
        return;
    pthread_mutex_lock(&cc->mu);
    begin = !cc->collector.running && !--cc->collector.left;
    if (begin)
        cc->collector.running = true;
    pthread_mutex_unlock(&cc->mu);
    if (!begin)
        return;
    if (cc->collector.joinable)
        hfi_thread_join(&cc->collector.thread); /* It is at its very end. */
    cc->collector.joinable =
        hfi_thread_start(&cc->collector.thread, collector_run, cc);
    if (cc->collector.joinable)
        return;
    pthread_mutex_lock(&cc->mu);
    collector_plan(cc, 0);
    cc->collector.running = false;
    pthread_mutex_unlock(&cc->mu);
}

/* Nobody else uses the conn any more. */
void hfi_consul_collect_fini(struct consul_conn *cc)
{
    atomic_store(&cc->collector.stop, true);
    if (cc->collector.joinable)
        hfi_thread_join(&cc->collector.thread);
}
