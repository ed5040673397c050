/* SPDX-License-Identifier: MIT
 *
 * slots.c - reading the map of a cluster: which master has which slot.
 *
 * INVARIANTS
 *  (1) The map of a node is taken as it is if the node is in good order and
 *      knows of every slot.  One that was cut off or removed from the cluster
 *      is not: then all nodes are asked, those of the URL and of the last map,
 *      and the best of their maps is taken.
 */
#include "redis.h"

#include "base/banned.h"

/* One entry of CLUSTER SLOTS: first, last, then the master's {host, port}. */
static void map_entry(struct redis_conn *rc, const struct hfi_endpoint *from,
                      const redisReply *entry)
{
    const redisReply *master;
    const char *host;
    long long slot;
    int node;

    if (entry->type != REDIS_REPLY_ARRAY || entry->elements < 3 ||
        entry->element[0]->type != REDIS_REPLY_INTEGER ||
        entry->element[1]->type != REDIS_REPLY_INTEGER ||
        entry->element[2]->type != REDIS_REPLY_ARRAY ||
        entry->element[2]->elements < 2)
        return;
    master = entry->element[2];
    if (master->element[1]->type != REDIS_REPLY_INTEGER)
        return;
    host = master->element[0]->str;
    if (!host || !*host)
        host = from->host; /* It does not know its own name. */
    node = redis_node_for(rc, host, (int)master->element[1]->integer);
    if (node < 0)
        return;
    for (slot = entry->element[0]->integer;
         slot >= 0 && slot <= entry->element[1]->integer && slot < REDIS_SLOTS;
         slot++)
        atomic_store(&rc->cluster->slots[slot], (unsigned char)node);
}

/* What one node knows of the cluster. */
struct map_view {
    struct hfi_endpoint from;
    redisReply *slots; /* the answer to CLUSTER SLOTS; NULL: there is none */
    bool ok;           /* it can reach a majority of the masters */
    uint64_t known;    /* slots that it knows the master of */
    uint64_t epoch;    /* of the newest configuration that it has heard of */
};

/* "cluster_state:ok\r\n...".  A user that may not ask takes it for good. */
static void view_state(struct map_view *view, const redisReply *info)
{
    static const char name[] = "cluster_current_epoch:";
    const char *at;

    view->ok = info->type != REDIS_REPLY_STRING ||
               strstr(info->str, "cluster_state:ok");
    at = info->type == REDIS_REPLY_STRING ? strstr(info->str, name) : NULL;
    view->epoch = at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static void view_count(struct map_view *view)
{
    const redisReply *entry;
    size_t i;

    for (i = 0; i < view->slots->elements; i++) {
        entry = view->slots->element[i];
        if (entry->type == REDIS_REPLY_ARRAY && entry->elements > 2 &&
            entry->element[0]->type == REDIS_REPLY_INTEGER &&
            entry->element[1]->type == REDIS_REPLY_INTEGER &&
            entry->element[1]->integer >= entry->element[0]->integer)
            view->known += (uint64_t)(entry->element[1]->integer -
                                      entry->element[0]->integer + 1);
    }
}

static hf_status view_read(struct redis_conn *rc, struct redis_node *from,
                           struct map_view *ret, int64_t deadline,
                           struct hf_error *err)
{
    const char *slots[] = {"CLUSTER", "SLOTS"}, *info[] = {"CLUSTER", "INFO"};
    struct redis_batch batch = {0};
    redisReply *reply[2];
    hf_status st;

    *ret = (struct map_view){.from = redis_node_at(from)};
    redis_batch_add(&batch, 2, slots);
    redis_batch_add(&batch, 2, info);
    st = redis_batch_send(rc, &from->mux, &batch, reply, deadline, err);
    redis_batch_free(&batch);
    if (st)
        return st;
    if (reply[0]->type == REDIS_REPLY_ERROR)
        st = redis_error_from_reply(rc->base.endpoint, reply[0], err);
    else if (reply[0]->type != REDIS_REPLY_ARRAY || !reply[0]->elements)
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: its cluster has no slots",
                      rc->base.endpoint);
    if (st) {
        freeReplyObject(reply[0]);
    } else {
        ret->slots = reply[0];
        view_state(ret, reply[1]);
        view_count(ret);
    }
    freeReplyObject(reply[1]);
    return st;
}

static bool view_is_whole(const struct map_view *view)
{
    return view->slots && view->ok && view->known == REDIS_SLOTS;
}

/* slots.c (1) */
static bool view_is_better(const struct map_view *a, const struct map_view *b)
{
    if (!b->slots || a->ok != b->ok)
        return !b->slots || a->ok;
    if (a->known != b->known)
        return a->known > b->known;
    return a->epoch > b->epoch;
}

/* Ask one more node; *best is the better of the two.  HF_OK if it answered. */
static hf_status view_add(struct redis_conn *rc, struct redis_node *from,
                          struct map_view *best, int64_t deadline,
                          struct hf_error *err)
{
    struct map_view view;
    hf_status st = view_read(rc, from, &view, deadline, err);

    if (st)
        return st;
    if (view_is_better(&view, best)) {
        freeReplyObject(best->slots);
        *best = view;
    } else {
        freeReplyObject(view.slots);
    }
    return HF_OK;
}

/* Ask the nodes in turn, sharing the time, until one knows all; the
 * unhealthy ones last. */
hf_status redis_map(struct redis_conn *rc, int64_t deadline,
                    struct hf_error *err)
{
    struct redis_cluster *cl = rc->cluster;
    unsigned i, n = atomic_load(&cl->nnodes), left = n;
    struct map_view best = {.slots = NULL};
    hf_status st = HF_UNAVAILABLE;
    int64_t now;
    size_t at;
    int unhealthy;

    for (unhealthy = 0; unhealthy <= 1; unhealthy++) {
        for (i = 0; i < n && !view_is_whole(&best); i++) {
            if (atomic_load(&cl->nodes[i]->unhealthy) != (bool)unhealthy ||
                !left)
                continue;
            if (best.slots && unhealthy)
                break;
            now = hfi_now();
            st = view_add(rc, cl->nodes[i], &best,
                          now + (deadline - now) / left, err);
            left--;
        }
    }
    if (!best.slots)
        return st;
    for (at = 0; at < best.slots->elements; at++)
        map_entry(rc, &best.from, best.slots->element[at]);
    freeReplyObject(best.slots);
    return HF_OK;
}
