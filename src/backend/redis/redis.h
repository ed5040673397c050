/* SPDX-License-Identifier: MIT
 *
 * redis.h - what the parts of the redis: backend share.
 *
 *   redis.c       the rules; the table, opening and closing
 *   acquire.c     taking a lock, and which fence is great enough
 *   several.c     taking several at once
 *   renew.c       keeping many locks at once
 *   release.c     giving back
 *   wait.c        being told of a lock, and of our own being wanted
 *   alter.c       sharing what is held, and keeping what is released
 *   handle.c      locks that are passed on
 *   inspect.c     inspect, list
 *   break.c       breaking a lock
 *   collect.c     removing what free keys left behind
 *   companions.c  what is kept beside the locks: for how long, of which keys
 *   unfenced.c    locks that are a key and nothing else
 *   replicas.c    grants that replicas must have
 *   handshake.c   how a connection begins
 *   sentinel.c    which server is the master, and when it is another
 *   cluster.c     which node of a cluster has a key
 *   slots.c       and how that is found out
 *   migrate.c     locks whose slot goes to another node
 *   eval.c        commands that go where their key is
 *   ahead.c       steps of several claims that are sent together
 *   script.c      the scripts, which are files: fenced.lua, unfenced.lua,
 *                 move.lua
 *   names.c       names of keys, and their slots
 *   call.c        commands and replies over the shared connection
 *   channel.c     how the channels for messages are called
 *   subscriber.c  the connections on which they come
 *   observe.c     being told of keys that are observed; tracker.c for it
 */
#ifndef HFI_BACKEND_REDIS_H
#define HFI_BACKEND_REDIS_H

#include "backend/backend.h"
#include "base/env.h"
#include "net/resp.h"
#include "net/resp_link.h"

/* How the key itself is taken. */
enum redis_acquire {
    REDIS_FENCED, /* by the script: with fence, queue and owners */
    REDIS_SET,    /* SET NX PX, and nothing else */
    REDIS_SETNX   /* SETNX and PEXPIRE in a script, and nothing else */
};

/* What a redis_sub is to, if not to a node of a cluster. */
enum { REDIS_ALONE = -1, REDIS_SENTINEL = -2 };

/* A connection on which one server tells us things. */
struct redis_sub {
    struct redis_conn *rc;
    struct hfi_mux *mux;   /* the server that it is to */
    int node;              /* its number in a cluster, or one of the above */
    pthread_mutex_t mu;    /* guards what follows */
    struct hfi_cond put;   /* it is not `taken` any more */
    struct mux_link *link; /* NULL: not connected */
    bool taken;            /* somebody connects it, or subscribes on it */
    atomic_bool late;      /* meanwhile its server has become another */
    bool asked;            /* it has not answered a PING */
    unsigned channels;     /* that it has */
    unsigned epoch;        /* of the conn when it was connected */
    atomic_int fd;         /* of `link`, or -1 */
};

/* How a server is asked whether its replicas have a grant. */
struct redis_replica_link {
    struct hfi_mux mux;  /* of its own: see replicas.c (2) */
    atomic_bool too_few; /* the last time they had not */
};

/* A master of a cluster, or what was one. */
struct redis_node {
    struct redis_conn *rc;
    struct hfi_endpoint at;
    struct hfi_mux mux;
    struct redis_replica_link replica_link;
    struct redis_sub sub;
    atomic_bool unhealthy;    /* it did not answer, and has not since */
    struct hfi_thread prober; /* see cluster.c (3); guarded, as what
                               * follows, by the cluster's mutex */
    bool refreshing, stale;   /* it runs; it is to make another round */
};

#define REDIS_SLOTS     16384
#define REDIS_NODES_MAX 255

struct redis_cluster {
    pthread_mutex_t mu; /* for adding nodes, and guards their addresses and
                         * probers, and what stands at the end */
    struct redis_node *nodes[REDIS_NODES_MAX];
    atomic_uint nnodes;
    atomic_uchar slots[REDIS_SLOTS];    /* index into `nodes` */
    atomic_uchar heard[REDIS_SLOTS];    /* 1 + where its channel is heard */
    atomic_ushort waiters[REDIS_SLOTS]; /* who want to hear it */
    _Atomic uint64_t seen[REDIS_SLOTS]; /* the greatest fence */
    _Atomic int64_t asked_at;           /* when a slot was last found moving */
    struct hfi_cond closed;
    bool closing;
    void (*stale)(struct redis_conn *); /* have the map read anew */
    unsigned spare;  /* the node that was last given another address */
    unsigned reader; /* whose prober last read the map for MOVED */
};

#define REDIS_MANNER_MAX 24

/* How we hear that the master is another. */
struct redis_follow {
    bool opened;
    struct hfi_mux mux;     /* finds the sentinel; no call is made on it */
    struct redis_sub sub;   /* at that sentinel */
    int timer;              /* when to look whether it is there, or -1 */
    atomic_uint first;      /* sentinel to ask */
    atomic_uint at;         /* that `sub` is to, or is to be */
    _Atomic uint64_t epoch; /* of Sentinel's newest word, as far as we know */
    atomic_bool on;         /* nobody needs to begin it */
    pthread_mutex_t mu;     /* guards what follows */
    struct hfi_cond closed;
    struct hfi_thread seeker; /* sentinel.c (4) */
    bool seeking, stale;      /* it runs; it is to look for another sentinel */
    bool closing;
};

/* What was known before the first try of a claim was sent. */
struct redis_asked {
    int64_t began_us;
    uint64_t seen;
};

/* A step that was sent before the call whose step it is; see ahead.c. */
struct redis_ahead {
    struct hfi_mux_call call;
    redisReply *reply;
    struct redis_asked asked;
    bool under_way;
    bool first;        /* of those that were sent together */
    bool unsubscribed; /* nobody will wake the claim */
};

/* What a claim remembers: receipt->own. */
struct redis_grant {
    struct redis_ahead ahead;
    bool watched;
    uint64_t seen;     /* the greatest fence before its first try, or the last
                        * that was refused */
    uint64_t returned; /* the greatest that was given back without an answer, 0
                        * if none was; UINT64_MAX: a lock without a fence */
};
static inline struct redis_grant *redis_own(const struct hfi_receipt *receipt)
{
    return receipt->own;
}

/* Is its token all that the key says of the claim, once that is granted? */
static inline bool redis_is_plain(const struct hfi_claim *claim)
{
    return !claim->owner && !claim->shared && !claim->permits;
}

struct redis_conn {
    struct hfi_conn base;
    bool opened;
    struct hfi_endpoint ends[HFI_HOSTS_MAX]; /* servers, or sentinels */
    size_t nends;
    char master[128]; /* Sentinel's name of the master, or "" */
    struct redis_follow follow;
    struct redis_cluster *cluster; /* NULL: it is none */
    char *user, *password;         /* NULL: none */
    char *password_file;           /* where the password is instead, or NULL */
    char *sentinel_user, *sentinel_password_file; /* NULL: they want none */
    int db;
    char prefix[128];
    struct ssl_ctx_st *tls;
    enum redis_acquire acquire;
    bool fair;
    char script_mode[REDIS_MANNER_MAX]; /* how the script is to take it */
    int64_t keep_ms; /* companions outlive their use so long */
    char *script, *several;
    int replicas;         /* that must have a grant */
    int spin_us;          /* an answer is waited for awake */
    char script_id[41];   /* SHA-1 of the script */
    char unfenced_id[41]; /* and of that for bare locks */
    char several_id[41];
    struct hfi_mux mux;
    struct redis_replica_link replica_link; /* of one server */

    atomic_uint epoch;  /* counts the connections that were made for `mux` */
    atomic_uint moves;  /* counts other masters */
    atomic_uint lacks;  /* enum redis_native: what the server does not know */
    atomic_bool silent; /* we may not publish: who waits for us must ask */
    _Atomic uint64_t seen; /* the greatest fence, where there is no cluster */

    char id[17];          /* part of the names of this client's channels */
    struct redis_sub sub; /* of one server */
    int epoll;            /* hears all subs where there are several, or -1 */
    _Atomic(struct redis_tracker *) tracker; /* NULL: nothing was observed */
};

/* Commands that newer servers have. */
enum redis_native {
    REDIS_SHARDED = 1 << 0, /* SSUBSCRIBE, SPUBLISH: 7.0 */
    REDIS_NX_GET = 1 << 1,  /* SET NX GET: 7.0 */
    REDIS_IFEQ = 1 << 2,    /* SET IFEQ: Valkey 8.1, Redis 8.4 */
    REDIS_DELIFEQ = 1 << 3, /* DELIFEQ: Valkey 9.0 */
    REDIS_DELEX = 1 << 4    /* DELEX IFEQ: Redis 8.4 */
};

#define REDIS_SECRET_MAX  1024 /* of a password, with its NUL */
#define REDIS_CHANNEL_MAX 192  /* of a channel's name */

/* A waiter whose turn has come must take it up within this. */
#define REDIS_WINDOW_MS 2000

/* ---- script.c ---------------------------------------------------- */

/* The script for this keep=, to be freed; NULL: no memory. */
char *redis_script_make(int64_t keep_ms);
char *redis_script_make_several(int64_t keep_ms);

/* What a lock without a fence needs, and one whose slot moves: see
 * unfenced.lua, move.lua. */
extern const char redis_unfenced_script[], redis_move_script[];

/* ---- names.c ------------------------------------------------------ */

#define REDIS_NAME_MAX (2 * (HF_KEY_MAX + 128) + 32)

/* The key and its companions, which share its slot. */
enum { REDIS_MAIN, REDIS_META, REDIS_QUEUE, REDIS_OWNERS };
#define REDIS_NAMES 4

struct redis_names {
    char text[REDIS_NAMES][REDIS_NAME_MAX];
};

void redis_script_digest(const char *script, char ret[41]);
void redis_name(const struct redis_conn *, const char *key,
                struct redis_names *ret);
unsigned redis_slot(const char *name);

/* The least number whose digits are in the slot. */
unsigned redis_slot_number(unsigned slot);

/* ---- call.c ------------------------------------------------------ */

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

/* A number in a reply, 0 if there is none; and a reply that is none of ours. */
uint64_t redis_number(const redisReply *);
hf_status redis_bad_reply(struct redis_conn *, struct hf_error *);

/* The status that an error reply stands for. */
hf_status redis_error(struct redis_conn *, const redisReply *,
                      struct hf_error *);

/* The same without the name of the server.  While a link is opened, by redis_find()
 * and by a handshake, no error names it: whoever wanted the link does. */
hf_status redis_error_bare(struct redis_conn *, const redisReply *,
                           struct hf_error *);
bool redis_is_noscript(const redisReply *);

/* The same for another than the server of this client: `who` begins the
 * message, if given. */
hf_status redis_error_from_reply(const char *who, const redisReply *,
                                 struct hf_error *);

/* What a reply of names and values has for this name, or "". */
const char *redis_setting(const redisReply *, const char *name);

/* Where to connect to, and how to begin; for mux and subscriber alike. */
hf_status redis_find(void *conn, struct hfi_endpoint *ret, int64_t deadline,
                     struct hf_error *);
hf_status redis_handshake(void *conn, struct mux_link *, int64_t deadline,
                          struct hf_error *);

/* What stands in the file of an option, which must not be empty. */
hf_status redis_secret(const char *file, const char *option,
                       char ret[REDIS_SECRET_MAX], struct hf_error *);

/* How a connection to a sentinel begins; what it refuses is told in the words
 * of the URL. */
hf_status redis_handshake_sentinel(void *conn, struct mux_link *,
                                   int64_t deadline, struct hf_error *);

/* One command on a connection that is being begun; an error reply becomes a
 * status.  Or several, sent together, with a reply for each: over a long way the
 * round trips are what a beginning takes.  The batch is freed. */
hf_status redis_handshake_send(struct redis_conn *, struct mux_link *, int argc,
                               const char **argv, redisReply **reply,
                               int64_t deadline, struct hf_error *);
hf_status redis_handshake_batch(struct mux_link *, struct redis_batch *,
                                int64_t deadline, struct hf_error *);
hf_status redis_handshake_reply(struct redis_conn *, struct mux_link *,
                                redisReply **reply, int64_t deadline,
                                struct hf_error *);

/* ---- companions.c ---------------------------------------------- */

/* keep=: how long companions, and with them the fence of a key, outlive its last
 * use: a week, and not less than the clocks of servers may be apart. */
hf_status redis_url_keep(const struct hfi_url *, int64_t *ret,
                         struct hf_error *);

/* The next page of the keys of a server with this pattern and type: the caller
 * frees the reply, whose second element it is. */
struct redis_scan {
    const char *pattern, *type;
    char cursor[32]; /* "": the first page */
    bool over;       /* it was the last */
};
hf_status redis_scan(struct redis_conn *, struct hfi_mux *, struct redis_scan *,
                     redisReply **ret, int64_t deadline, struct hf_error *);

/* Its two halves: the command for the next page, and what the reply says. */
#define REDIS_SCAN_ARGS 8
void redis_scan_ask(const struct redis_scan *, const char **argv);
hf_status redis_scan_take(struct redis_conn *, struct redis_scan *,
                          const redisReply *, struct hf_error *);

/* Go over all keys of a server that have companions: `add` is called for each,
 * and `send` after some of them: half a page of redis_scan(), so that a distant
 * or busy server is waited for three times in 500 keys.  It serves others after
 * each read, of 16 KB or more, some 70 keys; and renewals do not wait for it
 * (hfi_mux_begin_first()). */
#define REDIS_COMPANIONS_AT_ONCE 256
struct redis_companions {
    void (*add)(void *arg, const char *key);
    hf_status (*send)(void *arg, struct hf_error *);
    void *arg;
};
hf_status redis_companions(struct redis_conn *, struct hfi_mux *,
                           const struct redis_companions *, int64_t limit_ms,
                           struct hf_error *);

/* Count the answer to Z. */
void redis_collected(struct hf_collected *, const redisReply *);

/* ---- sentinel.c -------------------------------------------------- */

hf_status redis_follow_open(struct redis_conn *, struct hf_error *);
void redis_follow_close(struct redis_conn *);
void redis_follow_after_fork_child(struct redis_conn *);

/* Whoever uses the client wants to know when the master is another. */
void redis_follow(struct redis_conn *);

/* The keeper: what a sentinel said; it is time to see whether it is there; and
 * it is not. */
void redis_follow_heard(struct redis_conn *, const redisReply *payload);
void redis_follow_tick(struct redis_conn *);
void redis_follow_lost(struct redis_conn *);

/* ---- eval.c ------------------------------------------------------ */

/* What WAIT is to say of an order, and has said: the reply is the caller's. */
struct redis_wait {
    int64_t ms;
    redisReply *reply;
};

/* A command about one key.  A script is called by its digest. */
struct redis_key_command {
    const char *script; /* NULL: it is none */
    int argc;
    const char *argv[24];
    const char **longer;       /* instead of argv, if those are too few */
    struct redis_wait *wait;   /* replicas must have it; or NULL */
    struct redis_ahead *ahead; /* it may have been sent already; or NULL */
};

void redis_key_command_add(struct redis_batch *,
                           const struct redis_key_command *, bool whole);

/* Give it to the server that has the key, following that to where it has gone;
 * an error reply becomes a status. */
hf_status redis_key_command(struct redis_conn *, const char *key,
                            const struct redis_key_command *, redisReply **ret,
                            int64_t deadline, struct hf_error *);

/* One step of the script on a key.  `argc` arguments follow the operation and
 * the token, which come from the claim. */
void redis_eval_add(struct redis_conn *, struct redis_batch *, char op,
                    const struct hfi_claim *, int argc, const char **argv,
                    bool whole);
hf_status redis_eval(struct redis_conn *, struct redis_wait *, char op,
                     const struct hfi_claim *, int argc, const char **argv,
                     redisReply **ret, int64_t deadline, struct hf_error *);

/* The same, of a claim whose step may have been sent ahead. */
hf_status redis_eval_ahead(struct redis_conn *, struct redis_ahead *, char op,
                           const struct hfi_claim *, int argc,
                           const char **argv, redisReply **ret,
                           int64_t deadline, struct hf_error *);

/* ---- ahead.c -------------------------------------------------------- */

void redis_send_ahead(struct hfi_conn *, const struct hfi_ahead *, size_t n,
                      int64_t deadline);

/* ---- replicas.c ------------------------------------------------------ */

/* That of the server at the other end of `mux`. */
struct redis_replica_link *redis_replicas_of(struct redis_conn *,
                                             const struct hfi_mux *);

/* WAIT, for so long. */
void redis_replicas_add(struct redis_conn *, struct redis_batch *, int64_t ms);

/* Before a grant: are there replicas enough, as far as is known? */
hf_status redis_replicas_may(struct redis_conn *, const char *key,
                             int64_t deadline, struct hf_error *);

/* After it: have they got it? */
hf_status redis_replicas_confirm(struct redis_conn *, const struct hfi_claim *,
                                 const struct hfi_receipt *, int64_t deadline,
                                 struct hf_error *);

/* ---- slots.c ------------------------------------------------------- */

/* Read the map from whoever knows it best. */
hf_status redis_map(struct redis_conn *, int64_t deadline, struct hf_error *);

/* ---- cluster.c --------------------------------------------------- */

/* Where a node is; and the number of the node at an address, known or new, or
 * -1 if there is no room. */
struct hfi_endpoint redis_node_at(struct redis_node *);
int redis_node_for(struct redis_conn *, const char *host, int port);

/* The slot of a key, and the connection to whoever has it. */
unsigned redis_key_slot(const struct redis_conn *, const char *key);
struct hfi_mux *redis_route(struct redis_conn *, const char *key);

/* The one that an error reply names as having it, or NULL. */
struct hfi_mux *redis_redirect(struct redis_conn *, const redisReply *,
                               bool *ask);

/* Whoever was asked there did not get an answer; or the node may have gone, so
 * that the map is to be read anew.  Where there is no cluster they do nothing.
 * */
void redis_doubt(struct redis_conn *, const struct hfi_mux *);
void redis_stir(struct redis_conn *, const struct hfi_mux *);

/* The node at the other end, or NULL. */
struct redis_node *redis_node_of(struct redis_conn *, const struct hfi_mux *);

/* Are slots moving, so that wake-ups may go astray? */
bool redis_is_moving(struct redis_conn *);

/* Has it been silent since, so that nobody should wait for it? */
bool redis_is_unhealthy(struct redis_conn *, const struct hfi_mux *);

/* Does the node have any slot, that is, keys of its own? */
bool redis_has_slots(const struct redis_cluster *, unsigned node);

hf_status redis_cluster_open(struct redis_conn *, int64_t deadline,
                             struct hf_error *);
void redis_cluster_close(struct redis_conn *);
void redis_cluster_after_fork_child(struct redis_conn *);

/* ---- unfenced.c ------------------------------------------------------ */

/* A lock that is nothing but its key: SET NX PX, or SETNX and PEXPIRE. */
hf_status redis_unfenced_take(struct redis_conn *, const struct hfi_claim *,
                              int64_t deadline, struct hf_error *);
hf_status redis_unfenced_release(struct redis_conn *, const struct hfi_claim *,
                                 int64_t deadline, struct hf_error *);

/* Renew a key that is ours, and look at nothing beside it, in a batch.  The
 * reply is an integer: 1 done, 0 not there, 2 another's. */
void redis_unfenced_renew_add(struct redis_conn *, struct redis_batch *,
                              const struct hfi_renewal *, bool whole);

/* Give the key from one token to the claim's; *said is such an integer. */
hf_status redis_unfenced_take_over(struct redis_conn *,
                                   const struct hfi_claim *, const char *token,
                                   int *said, int64_t deadline,
                                   struct hf_error *);

/* Write it again, as it is, and WAIT; *said is such an integer. */
hf_status redis_unfenced_write(struct redis_conn *, struct redis_wait *,
                               const struct hfi_claim *, int *said,
                               int64_t deadline, struct hf_error *);

/* ---- migrate.c ------------------------------------------------------ */

/* Take a lock whose keys are not all in one place, and renew one with an owner
 * id. */
hf_status redis_move_take(struct redis_conn *, const struct hfi_claim *,
                          const char *about, struct hfi_receipt *,
                          int64_t deadline, struct hf_error *);
void redis_move_renew(struct redis_conn *, struct hfi_renewal *,
                      int64_t deadline, struct hf_error *);

/* ---- renew.c ----------------------------------------------------- */

void redis_renew(struct hfi_conn *, struct hfi_renewal *, size_t n,
                 int64_t deadline, struct hf_error *);

/* ---- acquire.c ------------------------------------------------------ */

hf_status redis_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                            struct hfi_receipt *, struct hfi_answer *,
                            int64_t deadline, struct hf_error *);
extern const char redis_silent_warning[];

/* What a grant says of its holder, and its channel if it has one: see
 * fenced.lua. */
#define REDIS_ABOUT_MAX (REDIS_CHANNEL_MAX + HF_NOTE_MAX + 16)
void redis_about(struct redis_conn *, const struct hfi_claim *,
                 const char *channel, char ret[REDIS_ABOUT_MAX]);

/* Before the first try of a claim; and after a first try that was granted:
 * is its fence great enough?  Else raise it. */
struct redis_asked redis_ask(struct redis_conn *, const char *key);

/* Be listening before a try, or nobody will wake us: false if we are not. */
bool redis_listen(struct redis_conn *, const struct hfi_claim *,
                  int64_t deadline);

/* Add the step that tries the claim. */
void redis_take_add(struct redis_conn *, struct redis_batch *,
                    const struct hfi_claim *, const struct hfi_receipt *);

hf_status redis_settle(struct redis_conn *, const struct hfi_claim *,
                       struct hfi_receipt *, const struct redis_asked *,
                       int64_t deadline, struct hf_error *);

/* ---- several.c ------------------------------------------------------ */

hf_status redis_try_acquire_all(struct hfi_conn *, struct hfi_attempt *,
                                size_t n, int64_t deadline, struct hf_error *);

/* A fence of the key was heard of.  False if a greater one has been already: it
 * is not to be used. */
bool redis_saw(struct redis_conn *, const char *key, uint64_t fence);

/* ---- release.c ------------------------------------------------------ */

/* A try that had no answer is refused for its ttl and so much longer, once its
 * claim is over. */
#define REDIS_LATE_MS INT64_C(60000)

hf_status redis_release(struct hfi_conn *, const struct hfi_claim *,
                        struct hfi_receipt *, int64_t deadline,
                        struct hf_error *);

/* The same; `over`: the claim will not be tried again. */
hf_status redis_give_back(struct redis_conn *, const struct hfi_claim *,
                          struct hfi_receipt *, bool over, int64_t deadline,
                          struct hf_error *);

/* ---- alter.c -------------------------------------------------------- */

hf_status redis_downgrade(struct hfi_conn *, const struct hfi_claim *,
                          struct hfi_receipt *, int64_t deadline,
                          struct hf_error *);
hf_status redis_keep(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_receipt *, int64_t ms, int64_t deadline,
                     struct hf_error *);

hf_status redis_promote(struct hfi_conn *, const struct hfi_claim *,
                        struct hfi_receipt *, const char *heir,
                        int64_t deadline, struct hf_error *);

/* ---- handle.c ------------------------------------------------------- */

hf_status redis_attach(struct hfi_conn *, const struct hfi_claim *,
                       const struct hf_handle *, struct hfi_receipt *,
                       struct hf_error *);
hf_status redis_take_over(struct hfi_conn *, const struct hfi_claim *,
                          const char *token, struct hfi_receipt *,
                          int64_t deadline, struct hf_error *);

/* ---- inspect.c ------------------------------------------------------ */

hf_status redis_inspect(struct hfi_conn *, const char *key, struct hf_info *,
                        int64_t deadline, struct hf_error *);
hf_status redis_inspect_several(struct hfi_conn *, const char *const *keys,
                                int n, hf_list_fn *, void *arg,
                                int64_t deadline, struct hf_error *);
hf_status redis_holders(struct hfi_conn *, const char *key, hf_holders_fn *,
                        void *arg, int64_t deadline, struct hf_error *);
hf_status redis_waiters(struct hfi_conn *, const char *key, hf_waiters_fn *,
                        void *arg, int64_t deadline, struct hf_error *);
hf_status redis_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                     void *arg, int64_t deadline, struct hf_error *);

/* ---- observe.c ------------------------------------------------------ */

hf_status redis_observe(struct hfi_conn *, struct hfi_observation *,
                        int64_t deadline, struct hf_error *);
void redis_unobserve(struct hfi_conn *, struct hfi_observation *);

/* ---- collect.c ------------------------------------------------------ */

hf_status redis_collect(struct hfi_conn *, int64_t older_ms, bool dry_run,
                        struct hf_collected *, int64_t deadline,
                        struct hf_error *);

/* ---- break.c -------------------------------------------------------- */

hf_status redis_break(struct hfi_conn *, const char *key, uint64_t fence,
                      int64_t deadline, struct hf_error *);
hf_status redis_free(struct hfi_conn *, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *);

/* ---- channel.c --------------------------------------------------- */

/* Where this client is told about a key; about a slot, or -1 for one server
 * that is in no cluster; and are those channels sharded? */
void redis_channel(struct redis_conn *, const char *key,
                   char ret[REDIS_CHANNEL_MAX]);
void redis_channel_name(struct redis_conn *, int slot, bool sharded,
                        char ret[REDIS_CHANNEL_MAX]);
bool redis_is_sharded(struct redis_conn *);

/* ---- wait.c --------------------------------------------------------- */

hf_status redis_watch(struct hfi_conn *, const struct hfi_claim *,
                      struct hfi_receipt *, int64_t deadline,
                      struct hf_error *);
void redis_unwatch(struct hfi_conn *, const struct hfi_claim *,
                   struct hfi_receipt *);
int redis_poll_fd(struct hfi_conn *);
void redis_dispatch(struct hfi_conn *);

/* A message to this client. */
void redis_heard(struct redis_conn *, const redisReply *payload);

/* ---- subscriber.c --------------------------------------------------- */

/* Be listening there. */
hf_status redis_sub_ensure(struct redis_conn *, const char *key,
                           int64_t deadline, struct hf_error *);

/* One more, or one less, who wants to be told. */
void redis_sub_want(struct redis_conn *, const char *key, int more);

void redis_sub_init(struct redis_sub *, struct redis_conn *, struct hfi_mux *,
                    int node);
void redis_sub_fini(struct redis_sub *);
void redis_sub_after_fork_child(struct redis_sub *);

/* There will be several: one descriptor hears them all. */
hf_status redis_sub_connect_all(struct redis_conn *, struct hf_error *);

/* Connect it, if it is not; close it unless it is to there (NULL: in any case),
 * true if it was to elsewhere; and close it if it is silent. */
hf_status redis_sub_open(struct redis_sub *, int64_t deadline,
                         struct hf_error *);
bool redis_sub_leave(struct redis_sub *, const struct hfi_endpoint *to);
void redis_sub_ping(struct redis_sub *);
void redis_sub_dispatch(struct redis_sub *); /* take in what has come */

#endif
