/* SPDX-License-Identifier: MIT
 *
 * cluster.c - which node of a Redis Cluster has a key.
 *
 * Every key belongs to one of 16384 slots and every slot to one master.  The
 * map is read from any node that answers (CLUSTER SLOTS), and mended by what
 * the nodes say: MOVED, the slot lives there now; ASK, this one key does,
 * while its slot moves.  All keys of one lock share a slot (names.c), so
 * a step never leaves its node.
 *
 * INVARIANTS
 *  (1) A node, once made, stays until the conn is closed: calls may be under
 *      way on it.  Where there are too many, one without slots is given a new
 *      address; a call that comes there by mistake is told so by MOVED.
 *  (2) A command that was answered by MOVED or ASK was not executed, so it is
 *      sent again without doubt.
 *  (3) A node that did not answer is unhealthy until it has answered a PING.
 *      Its prober, a thread that runs while there is something to refresh, sends
 *      that, and reads the map anew, so that a fail-over is followed without
 *      anybody having to tell; neither takes the time of a call, nor that of
 *      another node's prober.
 *  (4) A call that finds a slot elsewhere, or learns that a node has not what
 *      was asked for (CLUSTERDOWN, READONLY, LOADING), has the whole map read:
 *      where one slot has gone others have, too.
 *
 * LIMITS  While a slot moves, the server refuses a step on a lock whose keys
 * are partly here and partly there; such a lock can be renewed but neither
 * taken nor given back until the move is over (renew.c (3)).
 */
#include "redis.h"

#include "base/alloc.h"
#include "base/lease.h"

#include "base/banned.h"

/* How long a prober waits for its node, and between its rounds. */
#define MEND_MS       1000
#define MEND_EVERY_MS 100

/* After a slot was found moving, others may be for so long. */
#define MOVING_MS 1000

/* ---- nodes ------------------------------------------------------------- */

struct hfi_endpoint redis_node_at(struct redis_node *node)
{
    struct hfi_endpoint at;

    pthread_mutex_lock(&node->rc->cluster->mu);
    at = node->at;
    pthread_mutex_unlock(&node->rc->cluster->mu);
    return at;
}

static hf_status node_find(void *arg, struct hfi_endpoint *ret,
                           int64_t deadline, struct hf_error *err)
{
    (void)deadline;
    (void)err;
    *ret = redis_node_at(arg);
    return HF_OK;
}

static hf_status node_handshake(void *arg, struct mux_link *link,
                                int64_t deadline, struct hf_error *err)
{
    return redis_handshake(((struct redis_node *)arg)->rc, link, deadline, err);
}

static void node_move(struct redis_node *node, const char *host, int port)
{
    snprintf(node->at.host, sizeof(node->at.host), "%s", host);
    node->at.port = port;
}

static struct redis_node *node_new(struct redis_conn *rc, unsigned i)
{
    struct redis_node *node = hfi_alloc(sizeof(*node));

    if (!node)
        return NULL;
    node->rc = rc;
    node->at = rc->ends[0]; /* for what is not an address */
    hfi_mux_init(&node->mux, node_find, node_handshake, node);
    hfi_mux_set_aside(&node->mux, node_handshake);
    hfi_mux_init(&node->replica_link.mux, node_find, node_handshake, node);
    node->replica_link.mux.blocks = true;
    redis_sub_init(&node->sub, rc, &node->mux, (int)i);
    return node;
}

/* One that has no slots, no prober and no listener, or NULL.  Those of
 * the URL are kept: they are what there is to begin with. */
static struct redis_node *node_spare(struct redis_conn *rc)
{
    struct redis_cluster *cl = rc->cluster;
    unsigned i, n = atomic_load(&cl->nnodes);
    struct redis_node *node;

    for (i = 0; i < n; i++) {
        cl->spare = (cl->spare + 1) % n;
        node = cl->nodes[cl->spare];
        if (cl->spare >= rc->nends && !node->refreshing &&
            atomic_load(&node->sub.fd) < 0 && !redis_has_slots(cl, cl->spare))
            return node;
    }
    return NULL;
}

/* Room for a new address: another node, or one that is not needed any more.
 * cluster.c (1) */
static struct redis_node *node_make(struct redis_conn *rc)
{
    struct redis_cluster *cl = rc->cluster;
    unsigned n = atomic_load(&cl->nnodes);
    struct redis_node *node;

    if (n < REDIS_NODES_MAX) {
        node = node_new(rc, n);
        if (node) {
            cl->nodes[n] = node;
            atomic_store(&cl->nnodes, n + 1);
        }
        return node;
    }
    node = node_spare(rc);
    if (node) {
        hfi_mux_retire(&node->mux);
        hfi_mux_retire(&node->replica_link.mux);
        atomic_store(&node->replica_link.too_few, false);
        atomic_store(&node->unhealthy, false);
    }
    return node;
}

/* The node at an address, known or new; -1 if there is no room. */
int redis_node_for(struct redis_conn *rc, const char *host, int port)
{
    struct redis_cluster *cl = rc->cluster;
    struct redis_node *node = NULL;
    unsigned i, n;

    pthread_mutex_lock(&cl->mu);
    n = atomic_load(&cl->nnodes);
    for (i = 0; i < n && !node; i++)
        if (cl->nodes[i]->at.port == port &&
            !strcmp(cl->nodes[i]->at.host, host))
            node = cl->nodes[i];
    if (!node && (node = node_make(rc)))
        node_move(node, host, port);
    pthread_mutex_unlock(&cl->mu);
    return node ? node->sub.node : -1;
}

unsigned redis_key_slot(const struct redis_conn *rc, const char *key)
{
    char name[REDIS_NAME_MAX];

    snprintf(name, sizeof(name), "%s%s", rc->prefix, key);
    return redis_slot(name);
}

struct hfi_mux *redis_route(struct redis_conn *rc, const char *key)
{
    struct redis_cluster *cl = rc->cluster;

    if (!cl) {
        redis_follow(rc);
        return &rc->mux;
    }
    return &cl->nodes[atomic_load(&cl->slots[redis_key_slot(rc, key)])]->mux;
}

bool redis_has_slots(const struct redis_cluster *cl, unsigned node)
{
    int slot;

    for (slot = 0; slot < REDIS_SLOTS; slot++)
        if (atomic_load(&cl->slots[slot]) == node)
            return true;
    return false;
}

bool redis_is_moving(struct redis_conn *rc)
{
    return rc->cluster &&
           hfi_now() - atomic_load(&rc->cluster->asked_at) < MOVING_MS;
}

static void refresh_map(struct redis_node *);

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
    if (!port)
        return NULL;
    host++;
    *port++ = '\0';
    if (!*host) /* Where we are anyway, but for the port. */
        host = rc->ends[0].host;
    number = (int)strtol(slot, NULL, 10);
    node = redis_node_for(rc, host, (int)strtol(port, NULL, 10));
    if (node < 0 || number < 0 || number >= REDIS_SLOTS)
        return NULL;
    if (*ask) {
        atomic_store(&rc->cluster->asked_at, hfi_now());
    } else if (atomic_exchange(&rc->cluster->slots[number],
                               (unsigned char)node) != node) {
        refresh_map(rc->cluster->nodes[node]); /* cluster.c (4) */
    }
    return &rc->cluster->nodes[node]->mux;
}

/* ---- mending ----------------------------------------------------------- */

struct redis_node *redis_node_of(struct redis_conn *rc,
                                 const struct hfi_mux *mux)
{
    unsigned i, n = rc->cluster ? atomic_load(&rc->cluster->nnodes) : 0;

    for (i = 0; i < n; i++)
        if (&rc->cluster->nodes[i]->mux == mux)
            return rc->cluster->nodes[i];
    return NULL;
}

bool redis_is_unhealthy(struct redis_conn *rc, const struct hfi_mux *mux)
{
    struct redis_node *node = redis_node_of(rc, mux);

    return node && atomic_load(&node->unhealthy);
}

static void prober_wake(struct redis_node *);

void redis_doubt(struct redis_conn *rc, const struct hfi_mux *mux)
{
    struct redis_node *node = redis_node_of(rc, mux);

    if (!node)
        return;
    atomic_store(&node->unhealthy, true);
    prober_wake(node);
}

void redis_stir(struct redis_conn *rc, const struct hfi_mux *mux)
{
    struct redis_node *node = redis_node_of(rc, mux);

    if (node)
        prober_wake(node);
}

/* Has it answered, or lost its slots, so that it is nobody's concern? */
static bool prober_ping(struct redis_node *node)
{
    const char *argv[] = {"PING"};
    redisReply *reply;

    if (!redis_has_slots(node->rc->cluster, (unsigned)node->sub.node))
        return true;
    if (redis_command(node->rc, &node->mux, 1, argv, &reply,
                      hfi_now() + MEND_MS, NULL))
        return false;
    freeReplyObject(reply);
    return true;
}

/* One round; true if nothing is left to refresh. */
static bool prober_round(struct redis_node *node)
{
    if (atomic_load(&node->unhealthy) && prober_ping(node))
        atomic_store(&node->unhealthy, false);
    return !redis_map(node->rc, hfi_now() + MEND_MS, NULL) &&
           !atomic_load(&node->unhealthy);
}

static void *prober_run(void *arg)
{
    struct redis_node *node = arg;
    struct redis_cluster *cl = node->rc->cluster;
    int64_t until;

    pthread_mutex_lock(&cl->mu);
    while (!cl->closing && node->stale) {
        node->stale = false;
        pthread_mutex_unlock(&cl->mu);
        if (!prober_round(node))
            prober_wake(node);
        until = hfi_now() + MEND_EVERY_MS;
        pthread_mutex_lock(&cl->mu);
        while (!cl->closing && hfi_left_ms(until))
            hfi_cond_wait(&cl->closed, &cl->mu, until);
    }
    node->refreshing = false;
    pthread_mutex_unlock(&cl->mu);
    return NULL;
}

/* With the mutex held.  Without a thread for it the next who is in doubt will
 * ask again. */
static void prober_begin(struct redis_node *node)
{
    node->stale = true;
    if (node->rc->cluster->closing || node->refreshing)
        return;
    hfi_thread_join(&node->prober); /* It is at its very end. */
    node->refreshing = hfi_thread_start(&node->prober, prober_run, node);
}

/* Have a round made. */
static void prober_wake(struct redis_node *node)
{
    struct redis_cluster *cl = node->rc->cluster;

    pthread_mutex_lock(&cl->mu);
    prober_begin(node);
    pthread_mutex_unlock(&cl->mu);
}

/* Have the map read: by the prober that did it last, if that is at work and its
 * node is well, or else by that of this node. */
static void refresh_map(struct redis_node *node)
{
    struct redis_cluster *cl = node->rc->cluster;
    struct redis_node *last;

    pthread_mutex_lock(&cl->mu);
    last = cl->nodes[cl->reader];
    if (!last->refreshing || atomic_load(&last->unhealthy)) {
        cl->reader = (unsigned)node->sub.node;
        last = node;
    }
    prober_begin(last);
    pthread_mutex_unlock(&cl->mu);
}

/* A node has not what was asked of it.  cluster.c (4) */
static void cluster_stale(struct redis_conn *rc)
{
    refresh_map(rc->cluster->nodes[0]);
}

/* ---- opening ----------------------------------------------------------- */

hf_status redis_cluster_open(struct redis_conn *rc, int64_t deadline,
                             struct hf_error *err)
{
    struct redis_cluster *cl;
    size_t i;

    if (rc->db)
        return hfi_fail(err, HF_INVALID, "url: a cluster takes no db=");
    cl = rc->cluster = hfi_alloc(sizeof(*cl));
    if (!cl)
        return hfi_nomem(err);
    pthread_mutex_init(&cl->mu, NULL);
    hfi_cond_init(&cl->closed);
    atomic_init(&cl->asked_at, -MOVING_MS);
    cl->stale = cluster_stale;
    if (redis_sub_connect_all(rc, err))
        return HF_SYSTEM;
    for (i = 0; i < rc->nends; i++)
        if (redis_node_for(rc, rc->ends[i].host, rc->ends[i].port) < 0)
            return hfi_nomem(err);
    return redis_map(rc, deadline, err);
}

void redis_cluster_close(struct redis_conn *rc)
{
    struct redis_cluster *cl = rc->cluster;
    unsigned i;

    if (!cl)
        return;
    pthread_mutex_lock(&cl->mu);
    cl->closing = true;
    hfi_cond_wake(&cl->closed);
    pthread_mutex_unlock(&cl->mu);
    for (i = 0; i < atomic_load(&cl->nnodes); i++)
        hfi_thread_join(&cl->nodes[i]->prober);
    for (i = 0; i < atomic_load(&cl->nnodes); i++) {
        redis_sub_fini(&cl->nodes[i]->sub);
        hfi_mux_fini(&cl->nodes[i]->mux);
        hfi_mux_fini(&cl->nodes[i]->replica_link.mux);
        hfi_free(cl->nodes[i]);
    }
    hfi_cond_fini(&cl->closed);
    pthread_mutex_destroy(&cl->mu);
    hfi_free(cl);
    rc->cluster = NULL;
}

void redis_cluster_after_fork_child(struct redis_conn *rc)
{
    struct redis_cluster *cl = rc->cluster;
    unsigned i;

    if (!cl)
        return;
    for (i = 0; i < atomic_load(&cl->nnodes); i++) {
        hfi_mux_after_fork_child(&cl->nodes[i]->mux);
        hfi_mux_after_fork_child(&cl->nodes[i]->replica_link.mux);
        redis_sub_after_fork_child(&cl->nodes[i]->sub);
    }
}
