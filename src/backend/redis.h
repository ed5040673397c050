/* SPDX-License-Identifier: MIT
 *
 * redis.h - what the parts of the redis: backend share.
 *
 *   redis.c         the rules; finding the server, opening
 *   redis_hello.c   how a connection begins
 *   redis_lock.c    taking, keeping, giving back, waking
 *   redis_look.c    inspect, list, break
 *   redis_cluster.c which node of a cluster has a key
 *   redis_script.c  the steps that must be atomic, in Lua; names of keys
 *   redis_call.c    commands and replies over the shared connection
 *   redis_sub.c     wake-ups, over a connection of their own
 */
#ifndef HFI_BACKEND_REDIS_H
#define HFI_BACKEND_REDIS_H

#include "../net/mux.h"
#include "../net/resp.h"

/* How the key itself is taken. */
enum redis_acquire {
    REDIS_FENCED, /* by the script: with fence, queue and owners */
    REDIS_SET,    /* SET NX PX, and nothing else */
    REDIS_SETNX   /* SETNX and PEXPIRE in a script, and nothing else */
};

/* A master of a cluster, or what was one. */
struct redis_node {
    struct redis_conn *rc;
    struct hfi_endpoint at;
    struct hfi_mux mux;
};

#define REDIS_SLOTS     16384
#define REDIS_NODES_MAX 255

struct redis_cluster {
    pthread_mutex_t mu; /* for adding nodes */
    struct redis_node *nodes[REDIS_NODES_MAX];
    atomic_uint nnodes;
    atomic_uchar slots[REDIS_SLOTS]; /* index into `nodes` */
    _Atomic int64_t read_at;         /* when the map was last read */
};

struct redis_conn {
    struct hfi_conn base;
    bool opened;
    struct hfi_endpoint ends[HFI_HOSTS_MAX]; /* servers, or sentinels */
    size_t nends;
    char master[128];              /* Sentinel's name of the master, or "" */
    struct redis_cluster *cluster; /* NULL: it is none */
    char *user, *password;
    int db;
    char prefix[128];
    struct ssl_ctx_st *tls;
    enum redis_acquire acquire;
    bool fair;
    int replicas;       /* that must have a grant */
    char script_id[41]; /* SHA-1 of the script */
    struct hfi_mux mux;
    struct hfi_mux
        wait_mux; /* for grants that WAIT, and would hold up others */

    char channel[192];      /* where this client is told things */
    pthread_mutex_t sub_mu; /* guards what follows */
    pthread_cond_t sub_connected;
    struct mux_link *sub; /* NULL: not connected */
    bool sub_connecting;
    atomic_int sub_fd; /* of `sub`, or -1 */
};

/* A waiter whose turn has come must take it up within this. */
#define REDIS_WINDOW_MS 2000

/* ---- redis_script.c ---------------------------------------------------- */

#define REDIS_NAME_MAX (2 * (HF_KEY_MAX + 128) + 32)

/* The key and its companions, which share its slot. */
enum { REDIS_MAIN, REDIS_META, REDIS_QUEUE, REDIS_PLACES, REDIS_OWNERS };
#define REDIS_NAMES 5

struct redis_names {
    char text[REDIS_NAMES][REDIS_NAME_MAX];
};

extern const char redis_script[];
extern const char redis_script_setnx[];

void redis_script_digest(const char *script, char ret[41]);
void redis_name(const struct redis_conn *, const char *key,
                struct redis_names *ret);
unsigned redis_slot(const char *name);

/* ---- redis_call.c ------------------------------------------------------ */

/* A few commands, to be sent together. */
struct redis_batch {
    char *bytes;
    size_t len, room;
    int count;
    bool failed; /* no memory */
};

void redis_batch_add(struct redis_batch *, int argc, const char **argv);
void redis_batch_free(struct redis_batch *);

/* Send them and wait for the replies, which may be errors. */
hf_status redis_batch_send(struct redis_conn *, struct hfi_mux *,
                           struct redis_batch *, redisReply **replies,
                           int64_t deadline, struct hf_error *);

/* One command; an error reply becomes a status. */
hf_status redis_command(struct redis_conn *, struct hfi_mux *, int argc,
                        const char **argv, redisReply **ret, int64_t deadline,
                        struct hf_error *);

/* One step of the script on a key, on the server that has it (NULL) or on this
 * one.  `argc` arguments follow the operation,
 * token, owner, fairness and key, which come from the claim. */
void redis_step_add(struct redis_conn *, struct redis_batch *, char op,
                    const struct hfi_claim *, int argc, const char **argv,
                    bool whole);
hf_status redis_step(struct redis_conn *, struct hfi_mux *, char op,
                     const struct hfi_claim *, int argc, const char **argv,
                     redisReply **ret, int64_t deadline, struct hf_error *);

/* A number in a reply, 0 if there is none; and a reply that is none of ours. */
uint64_t redis_number(const redisReply *);
hf_status redis_nonsense(struct redis_conn *, struct hf_error *);

/* The status that an error reply stands for. */
hf_status redis_error(struct redis_conn *, const redisReply *,
                      struct hf_error *);
bool redis_is_noscript(const redisReply *);

/* Where to connect to, and how to begin; for mux and subscriber alike. */
hf_status redis_find(void *conn, struct hfi_endpoint *ret, int64_t deadline,
                     struct hf_error *);
hf_status redis_hello(void *conn, struct mux_link *, int64_t deadline,
                      struct hf_error *);

/* One command on a connection that is being begun; an error reply becomes a
 * status. */
hf_status redis_hello_send(struct redis_conn *, struct mux_link *, int argc,
                           const char **argv, redisReply **reply,
                           int64_t deadline, struct hf_error *);

/* ---- redis_cluster.c --------------------------------------------------- */

/* The connection to whoever has the key. */
struct hfi_mux *redis_route(struct redis_conn *, const char *key);

/* The one that an error reply names as having it, or NULL. */
struct hfi_mux *redis_redirect(struct redis_conn *, const redisReply *,
                               bool *ask);

/* Read anew who has what. */
hf_status redis_map(struct redis_conn *, int64_t deadline, struct hf_error *);
hf_status redis_cluster_open(struct redis_conn *, int64_t deadline,
                             struct hf_error *);
void redis_cluster_close(struct redis_conn *);

/* ---- redis_lock.c ------------------------------------------------------ */

hf_status redis_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                            struct hfi_grant *, struct hfi_busy *,
                            int64_t deadline, struct hf_error *);
void redis_renew(struct hfi_conn *, struct hfi_renewal *, size_t n,
                 int64_t deadline, struct hf_error *);
hf_status redis_release(struct hfi_conn *, const struct hfi_claim *,
                        struct hfi_grant *, int64_t deadline,
                        struct hf_error *);
hf_status redis_watch(struct hfi_conn *, const struct hfi_claim *,
                      struct hfi_grant *, int64_t deadline, struct hf_error *);
void redis_unwatch(struct hfi_conn *, const struct hfi_claim *,
                   struct hfi_grant *);
hf_status redis_attach(struct hfi_conn *, const struct hfi_claim *,
                       const struct hf_handle *, struct hfi_grant *,
                       struct hf_error *);

/* ---- redis_look.c ------------------------------------------------------ */

hf_status redis_inspect(struct hfi_conn *, const char *key, struct hf_info *,
                        int64_t deadline, struct hf_error *);
hf_status redis_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                     void *arg, int64_t deadline, struct hf_error *);
hf_status redis_break(struct hfi_conn *, const char *key, uint64_t fence,
                      int64_t deadline, struct hf_error *);

/* ---- redis_sub.c ------------------------------------------------------- */

hf_status redis_sub_ensure(struct redis_conn *, int64_t deadline,
                           struct hf_error *);
int redis_sub_fd(struct hfi_conn *);
void redis_sub_pump(struct hfi_conn *);
void redis_sub_close(struct redis_conn *);

#endif
