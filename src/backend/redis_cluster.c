/* SPDX-License-Identifier: MIT
 *
 * redis_cluster.c - which node of a Redis Cluster has a key.
 *
 * Every key belongs to one of 16384 slots and every slot to one master.  The
 * map is read from any node that answers (CLUSTER SLOTS), and mended by what
 * the nodes say: MOVED, the slot lives there now; ASK, this one key does,
 * while its slot moves.  All keys of one lock share a slot (redis_script.c), so
 * a step never leaves its node.
 *
 * INVARIANTS
 *  (1) A node, once known, stays until the conn is closed: calls may be under
 *      way on it.
 *  (2) A command that was answered by MOVED or ASK was not executed, so it is
 *      sent again without doubt.
 *  (3) When a node does not answer the map is read anew before the next try, so
 *      a fail-over is followed without anybody having to tell.
 *
 * LIMITS  Waiters poll: the channel of a client has no slot.
 */
#include "redis.h"

#include "../env.h"
#include "../mem.h"

#include "../banned.h"

/* The map is not read more often than this. */
#define MAP_EVERY_MS 100

/* ---- nodes ------------------------------------------------------------- */

static hf_status node_find(void *arg, struct hfi_endpoint *ret,
                           int64_t deadline, struct hf_error *err)
{
    (void)deadline;
    (void)err;
    *ret = ((struct redis_node *)arg)->at;
    return HF_OK;
}

static hf_status node_hello(void *arg, struct mux_link *link, int64_t deadline,
                            struct hf_error *err)
{
    return redis_hello(((struct redis_node *)arg)->rc, link, deadline, err);
}

/* The node at an address, known or new; -1 if there is no room. */
static int cluster_node(struct redis_conn *rc, const char *host, int port)
{
    struct redis_cluster *cl = rc->cluster;
    struct redis_node *node;
    unsigned i, n;

    pthread_mutex_lock(&cl->mu);
    n = atomic_load(&cl->nnodes);
    for (i = 0; i < n; i++)
        if (cl->nodes[i]->at.port == port &&
            !strcmp(cl->nodes[i]->at.host, host))
            break;
    node = i == n && n < REDIS_NODES_MAX ? hfi_alloc(sizeof(*node)) : NULL;
    if (node) {
        node->rc = rc;
        node->at = rc->ends[0]; /* for what is not an address */
        snprintf(node->at.host, sizeof(node->at.host), "%s", host);
        node->at.port = port;
        hfi_mux_init(&node->mux, node_find, node_hello, node);
        cl->nodes[n] = node;
        atomic_store(&cl->nnodes, n + 1);
    }
    pthread_mutex_unlock(&cl->mu);
    return i < n || node ? (int)i : -1;
}

struct hfi_mux *redis_route(struct redis_conn *rc, const char *key)
{
    struct redis_names names;
    unsigned node;

    if (!rc->cluster)
        return &rc->mux;
    redis_name(rc, key, &names);
    node = atomic_load(&rc->cluster->slots[redis_slot(names.text[0])]);
    return &rc->cluster->nodes[node]->mux;
}

/* "MOVED 3999 127.0.0.1:6381": the mux of that node, or NULL. */
struct hfi_mux *redis_redirect(struct redis_conn *rc, const redisReply *reply,
                               bool *ask)
{
    bool moved = !strncmp(reply->str, "MOVED ", 6);
    char text[320], *slot, *host, *port;
    int node, number;

    *ask = !strncmp(reply->str, "ASK ", 4);
    if (!rc->cluster || (!moved && !*ask))
        return NULL;
    snprintf(text, sizeof(text), "%s", reply->str);
    slot = strchr(text, ' ') + 1;
    host = strchr(slot, ' ');
    port = host ? strrchr(host, ':') : NULL;
    if (!port || port == host + 1)
        return NULL;
    host++;
    *port++ = '\0';
    number = (int)strtol(slot, NULL, 10);
    node = cluster_node(rc, host, (int)strtol(port, NULL, 10));
    if (node < 0 || number < 0 || number >= REDIS_SLOTS)
        return NULL;
    if (moved)
        atomic_store(&rc->cluster->slots[number], (unsigned char)node);
    return &rc->cluster->nodes[node]->mux;
}

/* ---- the map ----------------------------------------------------------- */

/* One entry of CLUSTER SLOTS: first, last, then the master's {host, port}. */
static void map_entry(struct redis_conn *rc, const struct redis_node *from,
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
        host = from->at.host; /* It does not know its own name. */
    node = cluster_node(rc, host, (int)master->element[1]->integer);
    if (node < 0)
        return;
    for (slot = entry->element[0]->integer;
         slot >= 0 && slot <= entry->element[1]->integer && slot < REDIS_SLOTS;
         slot++)
        atomic_store(&rc->cluster->slots[slot], (unsigned char)node);
}

static hf_status map_read(struct redis_conn *rc, struct redis_node *from,
                          int64_t deadline, struct hf_error *err)
{
    const char *argv[] = {"CLUSTER", "SLOTS"};
    redisReply *reply;
    size_t i;
    hf_status st =
        redis_command(rc, &from->mux, 2, argv, &reply, deadline, err);

    if (st)
        return st;
    if (reply->type != REDIS_REPLY_ARRAY || !reply->elements)
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: its cluster has no slots",
                      rc->base.endpoint);
    for (i = 0; !st && i < reply->elements; i++)
        map_entry(rc, from, reply->element[i]);
    freeReplyObject(reply);
    return st;
}

/* Ask the nodes in turn, sharing the time, until one answers. */
hf_status redis_map(struct redis_conn *rc, int64_t deadline,
                    struct hf_error *err)
{
    struct redis_cluster *cl = rc->cluster;
    unsigned i, n = atomic_load(&cl->nnodes);
    hf_status st = HF_UNAVAILABLE;
    int64_t now = hfi_now(), last = atomic_exchange(&cl->read_at, now);

    if (now - last < MAP_EVERY_MS)
        return HF_OK; /* Somebody is at it, or just was. */
    for (i = 0; st && i < n; i++) {
        now = hfi_now();
        st = map_read(rc, cl->nodes[i], now + (deadline - now) / (n - i), err);
    }
    return st;
}

/* ---- opening ----------------------------------------------------------- */

hf_status redis_cluster_open(struct redis_conn *rc, int64_t deadline,
                             struct hf_error *err)
{
    size_t i;

    if (rc->replicas || rc->db)
        return hfi_fail(err, HF_INVALID,
                        "url: redis+cluster: takes neither replicas= nor db=");
    rc->cluster = hfi_alloc(sizeof(*rc->cluster));
    if (!rc->cluster)
        return hfi_nomem(err);
    pthread_mutex_init(&rc->cluster->mu, NULL);
    atomic_init(&rc->cluster->read_at, -MAP_EVERY_MS);
    rc->base.traits &= ~(unsigned)HF_TRAIT_NOTIFY;
    for (i = 0; i < rc->nends; i++)
        if (cluster_node(rc, rc->ends[i].host, rc->ends[i].port) < 0)
            return hfi_nomem(err);
    return redis_map(rc, deadline, err);
}

void redis_cluster_close(struct redis_conn *rc)
{
    unsigned i;

    if (!rc->cluster)
        return;
    for (i = 0; i < atomic_load(&rc->cluster->nnodes); i++) {
        hfi_mux_fini(&rc->cluster->nodes[i]->mux);
        hfi_free(rc->cluster->nodes[i]);
    }
    pthread_mutex_destroy(&rc->cluster->mu);
    hfi_free(rc->cluster);
    rc->cluster = NULL;
}
