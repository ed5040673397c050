/* SPDX-License-Identifier: MIT
 *
 * zk.h - what the parts of the ZooKeeper backend share; zk.c has the essay.
 *
 *   zk_conn -- sessions: one per length of lease
 *              |-- nodes:   those that this session keeps alive
 *              `-- batches: requests that wait for their answers
 *           -- nodes by token
 *
 * LOCKING  `mu` of the conn guards all that is here, and the library's handles
 * while they are connected (io.c (1)).  So the library's callbacks find it
 * held.  It is held while the core is called (hfi_wake() and its like), never
 * while anybody waits.  A node is used by one call at a time
 * (backend/backend.h (7)); what callbacks look at in it is changed under `mu`
 * only.
 */
#ifndef HFI_ZK_H
#define HFI_ZK_H

#include "backend/backend.h"
#include "base/env.h"
#include "base/lease.h"
#include "base/list.h"
#include "base/map.h"

#include <pthread.h>
#include <stdatomic.h>
#include <zookeeper/zookeeper.h>

/* The longest name of a contender: prefix, uuid, tag, word, number. */
#define ZK_NAME_MAX 128
#define ZK_DATA_MAX 2048

/* The last grant of a key that was given back here; see predict.c. */
#define ZK_LAST_MAX 256
struct zk_last {
    char *parent;
    char *tail;     /* who stood last; NULL: it was our own node */
    int32_t number; /* of that one */
    int64_t zxid;   /* of the transaction that created our node */
    bool fresh;     /* no other of ours has been created since */
    unsigned epoch; /* zk_conn.epoch when our node was created */
    bool missed;    /* the last node that was had another number */
};

/* Two for the conn, four for each of a few sessions. */
#define ZK_FDS 66

struct zk_conn {
    struct hfi_conn base;
    pthread_mutex_t mu;
    bool ready;              /* `mu` and the lists are there */
    bool single;             /* recipe=ephemeral */
    bool readwrite;          /* recipe=readwrite */
    bool latch;              /* recipe=latch */
    bool kazoo;              /* layout=kazoo */
    _Atomic bool plain;      /* the server has no container nodes */
    struct hfi_map nodes;    /* of struct zk_node, by token */
    struct hfi_link living;  /* of struct zk_session */
    struct hfi_link dead;    /* to be closed by a caller's thread */
    char *hosts;             /* "a:2181,b:2181" */
    char *auth;              /* "user:password", or NULL */
    char caution[256];       /* what open() had to say of that */
    _Atomic int fds[ZK_FDS]; /* what a forked child closes, plus one; 0: none */
    char *root;              /* what all paths begin with; "" or "/a/b" */
    int64_t ttl_ms;          /* of the session that open() makes */
    int poll_fd;             /* an epoll: `timer_fd`, and what sessions hear */
    int timer_fd;            /* when the first held node lapses */
    int64_t timer_due;
    int64_t lapse_at;         /* no held node lapses before */
    struct hfi_link fresh;    /* of struct zk_node: held, not yet watched */
    struct hfi_link observed; /* of struct zk_observation */
    struct zk_last last[ZK_LAST_MAX];
    int64_t zxid;   /* the newest creation that we know of */
    unsigned epoch; /* how often a connection came about or broke */
};

/* A request that the server has answered: see touch.c. */
#define ZK_TOUCHES 32
struct zk_touch {
    int64_t sent;
    int64_t after; /* the next that counts for it is sent then or later */
    int passed;    /* how many did, and were answered */
};

enum zk_state { ZK_CONNECTING, ZK_UP, ZK_DEAD };

struct zk_session {
    struct hfi_link link; /* in zk_conn.living or .dead */
    struct zk_conn *conn;
    zhandle_t *zh;            /* NULL: not yet, or it could not be made */
    struct zk_lookup *lookup; /* of the I/O thread: names are being resolved */
    char *addrs;              /* what the library was told */
    int64_t resolved_at;      /* when that was last begun */
    int fails;                /* attempts to connect since then */
    int64_t down_at;          /* when its connection broke; 0: it has not */
    bool replaced;            /* session.c (4): another came up meanwhile */
    int refusals;             /* servers that have hung up since then */
    int error;                /* errno of the last, or 0 */
    char why[160];            /* there is no connection; "" if there is */
    struct hfi_thread io_thread;
    struct hfi_notifier notifier; /* wakes the I/O thread */
    int epoll_fd;      /* of `sock`: so does this, or it wakes who dispatches */
    int sock;          /* the library's; -1: none */
    uint32_t events;   /* what it waits for there */
    int64_t ask_at;    /* when it has something to do at the latest */
    int64_t heard_at;  /* when something came, or was first asked for */
    int64_t sent_at;   /* when something was; perhaps also later */
    int64_t patience;  /* how long an attempt to connect may take; 0: not
                           * begun */
    int64_t try_until; /* the end of this one */
    int heard;         /* what it said of the connection, or 0 */
    size_t pending;    /* requests of batches without an answer */
    struct hfi_cond cond; /* `state` has changed, or `done` */
    enum zk_state state;
    bool reading; /* a caller reads for all */
    bool armed;   /* who dispatches will */
    bool shut;    /* being closed: answers mean nothing any more */
    bool done;    /* the I/O thread has ended */
    bool denied;  /* dead because the server refused the credentials */
    bool used;    /* somebody other than open() wanted it */
    _Atomic bool standalone; /* its server is no ensemble: it need ask nobody */
    bool closing;            /* its end is our own doing */
    int64_t id;              /* what ephemeralOwner must be */
    int64_t asked_ms, got_ms;
    int64_t proven_at; /* a majority has agreed to something sent then */
    int64_t try_at;    /* when this attempt to connect began */
    int64_t asked_at;  /* when the last request was sent, but for those */
    int64_t chase_at;  /* when one is due that proves an earlier one */
    int64_t known_at;  /* the leader has heard of us at that time or later */
    struct zk_touch touches[ZK_TOUCHES]; /* a ring */
    size_t ntouches;                     /* how many there were */
    unsigned users; /* calls under way; it is not freed meanwhile */
    struct hfi_link nodes, batches, async_reqs;
    struct hfi_link subscribers; /* those of them that an event may concern */
    unsigned life;               /* how often it has been connected */
};

/* A claim's node, or the request for one. */
struct zk_node {
    struct hfi_node entry;      /* in zk_conn.nodes */
    struct hfi_link link;       /* in zk_session.nodes */
    struct hfi_link subscribed; /* in zk_session.subscribers, or alone */
    struct zk_session *ses;     /* NULL: none yet, or it has ended */
    int64_t alt; /* id of where an unanswered move may have put it */
    char *key;
    char *parent;          /* the node whose children contend */
    char *keydir;          /* with permits: the node of the key, */
    char *leases;          /* and the one whose children hold; else NULL */
    int32_t slot;          /* with permits, when it holds */
    int looks;             /* how often one that does not wait has looked */
    char *path;            /* of our node; NULL: none, or not known */
    char *ahead;           /* the node whose end we wait for */
    char *tail;            /* held: who stood last; NULL: our own node */
    uint64_t fence;        /* 0: not known */
    uint64_t used;         /* the age that its node has; 0: its fence */
    int64_t expires;       /* when a held one lapses */
    int64_t remove_at;     /* deleting: when that is tried again; 0: not */
    int64_t remove_ms;     /* how long after the last try that is */
    int64_t yield_at;      /* recipe=ephemeral: when it must not linger on */
    int64_t node_watch_at; /* when it is held for long enough to be watched */
    struct hfi_link fresh; /* in zk_conn.fresh */
    bool busy;             /* a call is at it: nobody else frees it */
    bool sent;             /* a create may have been executed */
    bool held;
    bool lost;       /* it was held, and its session has ended */
    bool broken;     /* it is held, and was broken: its node stays for now */
    bool watched;    /* watch() was called */
    bool deleting;   /* to be removed, in the background if need be */
    bool moving;     /* its node changes sessions */
    bool counted;    /* held, and `top` is known: not with an owner id */
    unsigned epoch;  /* zk_conn.epoch when its create was sent */
    bool told;       /* busy, and a watch was just set: nothing is new */
    bool listening;  /* a watch on the parent tells who else comes */
    int32_t top;     /* the highest number when it was granted */
    int32_t version; /* of its node's data, when that was last seen */
    int64_t czxid;   /* of its node then, which a fence may be older than */
    bool renaming;   /* downgrade.c (3): its name is not known */
    unsigned names;  /* how often it got another */
    bool marked;     /* move.c (4): its mark may be there */
    bool paired;     /* ephemeral.c (4): its companion may be there */
    unsigned
        node_watch; /* the life of its session in which its node was seen, and a
                     * watch set that has not spoken since; 0: none */
    char token[HFI_TOKEN_LEN + 1];
};

/* Operations of one transaction. */
#define ZK_MULTI_MAX 5

/* One request and its answer. */
struct zk_op {
    struct zk_batch *batch;
    int rc;
    int64_t sent_at;
    bool leads; /* the leader has to answer it */
    bool wrote; /* and a majority to agree */
    struct Stat stat;
    char *path; /* of the node, where its asker has put it, or NULL */
    char *text; /* created path or data; ends with NUL */
    int len;
    struct String_vector names;
};

/* Requests that went out together and are waited for together. */
struct zk_batch {
    struct hfi_link link; /* in zk_session.batches */
    struct zk_session *ses;
    struct hfi_cond cond;
    size_t n, room, pending;
    bool waits; /* its caller sleeps, and somebody else reads */
    bool left;  /* its caller has gone: the last answer frees it */
    zoo_op_result_t results[ZK_MULTI_MAX];
    struct Stat changed; /* the same, of a node that it writes to */
    char made[8];        /* where a multi writes what nobody reads */
    struct zk_op ops[];
};

/* ---- session.c: sessions -------------------------------------------- */

/* A living session for leases of this length, with one more user. */
hf_status zk_session_for(struct zk_conn *, int64_t ttl_ms, int64_t deadline,
                         struct zk_session **ret, struct hf_error *);
/* Any session, for reading, with one more user. */
hf_status zk_session_any(struct zk_conn *, int64_t deadline,
                         struct zk_session **ret, struct hf_error *);
/* Wait until it is connected; the mutex is held by the caller. */
hf_status zk_session_up(struct zk_session *, int64_t deadline,
                        struct hf_error *);
void zk_session_put(struct zk_session *);
void zk_session_beside(struct zk_session *, int64_t ttl_ms);
/* A living one; NULL: none.  With the mutex held. */
struct zk_session *zk_session_by_id(struct zk_conn *, int64_t id);
void zk_session_leave(struct zk_session *); /* with the mutex held */
/* Is it what a lease of this length should have; is it enough for one? */
bool zk_session_fits(const struct zk_session *, int64_t ttl_ms);
bool zk_session_serves(const struct zk_session *, int64_t ttl_ms);
/* Free those that have ended. */
void zk_sessions_reap(struct zk_conn *);
void zk_sessions_end(struct zk_conn *);
void zk_watcher(zhandle_t *, int type, int state, const char *path, void *);
/* With the mutex held: the library has said so. */
void zk_session_changed(struct zk_session *, int state);
void zk_session_died(struct zk_session *);
/* The same, in its I/O thread: one of so many servers has hung up on it. */
void zk_session_refused(struct zk_session *, int servers);

/* ---- resolve.c: names ----------------------------------------------- */

struct zk_lookup *zk_lookup_start(const char *hosts);
int zk_lookup_fd(const struct zk_lookup *);
const char *zk_lookup_found(struct zk_lookup *);
void zk_lookup_why(struct zk_lookup *, char *ret, size_t size);
void zk_lookup_end(struct zk_lookup *); /* NULL is fine */

/* ---- wrap.c: calls of the library ----------------------------------- */

/* Until zk_library_left() this thread is in the library, for that conn. */
void zk_library_entered(struct zk_conn *);
/* Why it could not connect meanwhile: an errno, or 0. */
int zk_library_left(void);
/* Close a handle, and wait so long for the server at most. */
void zk_library_close(struct zk_conn *, zhandle_t *, int ms);
/* Descriptors that a forked child is to close. */
void zk_fd_keep(struct zk_conn *, int fd);
void zk_fd_drop(struct zk_conn *, int fd);
void zk_forget(struct hfi_conn *);

/* ---- io.c: who reads --------------------------------------------- */

void *zk_io_run(void *session);
/* Read for all until *pending is 0; with the mutex held, which is let go
 * meanwhile, nobody else reading, and the session up. */
void zk_read(struct zk_session *, const size_t *pending, int64_t deadline);
/* See that somebody reads; with the mutex held. */
void zk_pass(struct zk_session *);
/* With the mutex held: take in what came unasked, of sessions that are up. */
void zk_hear(struct zk_conn *);
void zk_hear_from(struct zk_session *, bool up);

/* ---- batch.c: requests --------------------------------------------- */

struct zk_batch *zk_batch_new(struct zk_session *, size_t room);
/* HF_OK once every answer is there, whatever it says. */
hf_status zk_batch_wait(struct zk_batch *, int64_t deadline);
void zk_batch_end(struct zk_batch *); /* NULL is fine */
void zk_batches_drop(struct zk_session *);
bool zk_sync(struct zk_batch *, const char *path);
bool zk_prove(struct zk_batch *, const char *path);
void zk_create(struct zk_batch *, const char *path, const char *data, int mode);
void zk_delete(struct zk_batch *, const char *path, int version);
void zk_set(struct zk_batch *, const char *path, const char *data, int version);
void zk_exists(struct zk_batch *, const char *path, bool watch);
void zk_get(struct zk_batch *, const char *path, bool watch);
void zk_children(struct zk_batch *, const char *path, bool watch);
void zk_multi(struct zk_batch *, int n, const zoo_op_t *);
const struct ACL_vector *zk_acl(const struct zk_conn *);
/* What an answer means; HF_OK for ZOK. */
hf_status zk_status(const struct zk_conn *, int rc, const char *what,
                    struct hf_error *);
hf_status zk_no_answer(const struct zk_conn *, struct hf_error *);

/* ---- names.c: names and data, pure ----------------------------------- */

char *zk_join(const char *parent, const char *name);
char *zk_key_path(const struct zk_conn *, const char *key);
char *zk_queue_path(const struct zk_conn *, const char *key_path);
char *zk_leases_path(const struct zk_conn *, const char *key_path);
char *zk_companion_path(const struct zk_conn *, const char *token);
bool zk_key_of_name(char *name);
void zk_name_start(const struct zk_conn *, char ret[ZK_NAME_MAX],
                   const char *token);
void zk_owner_prefix(const struct zk_conn *, char ret[ZK_NAME_MAX],
                     const struct hfi_claim *);
void zk_node_prefix(const struct zk_conn *, char ret[ZK_NAME_MAX],
                    const struct hfi_claim *);
bool zk_name_is(const char *name, const char *prefix);
const char *zk_name_of(const char *path);
/* The token in the name of a node of ours. */
bool zk_name_token(const char *name, char ret[HFI_TOKEN_LEN + 1]);
bool zk_name_owned_alike(const char *a, const char *b);
bool zk_number(const char *name, int32_t *ret);
bool zk_contender(const char *name, int32_t *number, bool *shared);

void zk_data_write(char ret[ZK_DATA_MAX], const struct hfi_claim *,
                   int64_t session_ms, uint64_t fence, uint64_t used);
void zk_data_mark(char ret[ZK_DATA_MAX + 32], const char *text, uint64_t fence);
/* What is said of the holder; `fence` is left alone if the data has none. */
void zk_data_read(const char *text, struct hf_info *ret, uint64_t *fence,
                  char token[HFI_TOKEN_LEN + 1]);
/* Since when its key is used in its way (use.c): its fence, or before that. */
uint64_t zk_data_age(const char *text, uint64_t czxid);

/* ---- leases.c: names of permits, pure -------------------------------- */

/* What the name of a holder says; another program's: no permits, slot -1. */
struct zk_lease {
    int32_t permits, slot;
};
/* What all of them say. */
struct zk_leases {
    int32_t nodes, holders; /* those who joined have several nodes */
    int32_t foreign;        /* of them, other programs' */
    int32_t slot;           /* the lowest that is free */
    int32_t permits;        /* 0: there is none of ours */
};
int32_t zk_waiter_permits(const char *name);
bool zk_lease_parse(const struct zk_conn *, const char *name,
                    struct zk_lease *ret);
void zk_waiter_prefix(const struct zk_conn *, char ret[ZK_NAME_MAX],
                      const struct hfi_claim *);
void zk_lease_name(const struct zk_conn *, char ret[ZK_NAME_MAX],
                   const struct hfi_claim *, int32_t slot, int32_t number);
bool zk_leases_count(const struct zk_conn *, const struct String_vector *,
                     struct zk_leases *ret);

/* ---- rank.c: who holds, pure ------------------------------------------ */

/* Where a node stands among those who contend. */
struct zk_rank {
    const char *own, *head, *last; /* names; NULL: none */
    const char *ahead;             /* the last of those that it waits for */
    int32_t top;                   /* the number of the last */
    int32_t holders, waiters;
    int32_t position;    /* how many are before it */
    bool first;          /* it is among the holders */
    bool shared;         /* the holders share */
    int32_t base, front; /* what numbers are compared with; the head's */
    int64_t wall;        /* that of the first exclusive one */
};
void zk_rank(struct zk_rank *ret, const struct String_vector *,
             const char *own);
bool zk_rank_holds(const struct zk_rank *, const char *name);
bool zk_rank_before(const struct zk_rank *, const char *name);

/* ---- node.c: what we have in the service --------------------------- */

struct zk_node *zk_node_find(struct zk_conn *, const char *token);
struct zk_node *zk_node_new(struct zk_conn *, const struct hfi_claim *);
void zk_node_drop(struct zk_conn *, struct zk_node *);
void zk_node_bind(struct zk_node *, struct zk_session *);
void zk_node_follow(struct zk_node *, struct zk_session *alt);
/* It has no node any more. */
void zk_node_clear(struct zk_node *);
/* It wants to hear of another node than its own. */
void zk_node_subscribe(struct zk_node *);
void zk_node_hold(struct zk_conn *, struct zk_node *, int64_t ttl_ms);
void zk_nodes_lapse(struct zk_conn *);
/* Have it called then, or earlier. */
void zk_nodes_check_by(struct zk_conn *, int64_t due);
/* Make sure that its session is there and connected; one more user. */
hf_status zk_node_session(struct zk_conn *, struct zk_node *, int64_t ttl_ms,
                          int64_t deadline, struct zk_session **ret,
                          struct hf_error *);
/* Learn the outcome of a create that had no answer. */
hf_status zk_node_resolve(struct zk_session *, struct zk_node *,
                          const struct hfi_claim *, int64_t deadline,
                          struct hf_error *);
/* Make the node at `path` and what is missing above it. */
hf_status zk_make_parents(struct zk_session *, const char *path,
                          int64_t deadline, struct hf_error *);

/* ---- async.c: requests that nobody waits for; with the mutex held --- */

void zk_node_delete_async(struct zk_node *);
void zk_node_listen(struct zk_node *);
void zk_node_watch(struct zk_node *);
void zk_node_gone(struct zk_node *, hf_loss);
void zk_node_broken(struct zk_node *);
/* Remove the mark of a move, or the companion, if there is one. */
void zk_node_unmark(struct zk_node *);
void zk_node_unpair(struct zk_node *);
/* Find out whether the server stands alone. */
void zk_ask_standalone(struct zk_session *);
/* Send something, so that the server hears of us; see touch.c. */
void zk_touch(struct zk_session *);
void zk_async_drop(struct zk_session *);

/* ---- touch.c: what the leader has heard; with the mutex held --------- */

void zk_touch_begin(struct zk_session *);
/* The server has answered a request that was sent then. */
void zk_touched(struct zk_session *, int64_t sent);
/* And the leader has, too. */
void zk_touch_passed(struct zk_session *, int64_t sent);
/* When zk_touch() is due, and that it is done: is its answer one to note? */
int64_t zk_touch_due(const struct zk_session *);
bool zk_touch_sent(struct zk_session *);
/* What the answers so far prove; left alone where the server answers for
 * itself. */
void zk_proof(const struct zk_session *, struct hfi_proof *);

/* ---- predict.c: who is there, known without asking --------------------- */

void zk_last_note(struct zk_conn *, struct zk_node *);
bool zk_last_known(struct zk_conn *, const char *parent, bool queue);
bool zk_last_tells(struct zk_conn *, const struct zk_node *, char **tail);
void zk_last_fini(struct zk_conn *);
/* A node was created by `zxid`, and `before` was known when that was sent. */
void zk_last_created(struct zk_conn *, int64_t zxid, int64_t before);

/* ---- acquire.c, release.c, wait.c ------------------------------------ */

hf_status zk_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                         struct hfi_receipt *, struct hfi_answer *,
                         int64_t deadline, struct hf_error *);
hf_status zk_release(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_receipt *, int64_t deadline, struct hf_error *);
/* The next try sets the watch that a waiter needs; a holder hears of others. */
hf_status zk_watch(struct hfi_conn *, const struct hfi_claim *,
                   struct hfi_receipt *, int64_t deadline, struct hf_error *);
void zk_unwatch(struct hfi_conn *, const struct hfi_claim *,
                struct hfi_receipt *);
/* Readable when a held node may have lapsed, or a session has heard something
 * while nobody waited for an answer. */
int zk_poll_fd(struct hfi_conn *);
void zk_dispatch(struct hfi_conn *);

/* ---- the recipes: HF_OK, HF_BUSY or a failure; `again` to be asked again - */

hf_status zk_sequential_step(struct zk_session *, struct zk_node *,
                             const struct hfi_claim *, struct hfi_answer *,
                             int64_t deadline, bool *again, struct hf_error *);
hf_status zk_ephemeral_step(struct zk_session *, struct zk_node *,
                            const struct hfi_claim *, struct hfi_answer *,
                            int64_t deadline, bool *again, struct hf_error *);
/* Join a holder with the same owner id, if there is one. */
hf_status zk_join_owner(struct zk_session *, struct zk_node *,
                        const struct hfi_claim *, const struct String_vector *,
                        const struct zk_rank *, int64_t deadline, bool *again,
                        struct hf_error *);
/* The same among those who have a permit. */
hf_status zk_join_lease(struct zk_session *, struct zk_node *,
                        const struct hfi_claim *, const struct String_vector *,
                        int64_t deadline, bool *again, struct hf_error *);
/* One with permits: permits.c. */
hf_status zk_permits_step(struct zk_session *, struct zk_node *,
                          const struct hfi_claim *, struct hfi_answer *,
                          int64_t deadline, bool *again, struct hf_error *);
/* Is the key, whose children these are, used in the other way?  HF_INVALID if it
 * is: use.c.  *seen if that had to be asked; `granted` if all else is well. */
hf_status zk_use_as_plain(struct zk_session *, struct zk_node *,
                          const struct hfi_claim *,
                          const struct String_vector *, bool granted,
                          int64_t deadline, bool *seen, bool *again,
                          struct hf_error *);
hf_status zk_use_as_permits(struct zk_session *, struct zk_node *,
                            const struct hfi_claim *,
                            const struct String_vector *, int64_t deadline,
                            bool *again, struct hf_error *);
/* Where there are contenders for a plain lock: are they wrong? */
hf_status zk_use_is_permits(struct zk_session *, const char *key_path,
                            const struct String_vector *, int64_t deadline,
                            bool *ret, struct hf_error *);
/* The core has called watch(), and nothing was told since the last try. */
bool zk_nothing_new(struct zk_session *, struct zk_node *);
/* Its node is gone, or is none of ours: begin again. */
void zk_forget_node(struct zk_conn *, struct zk_node *, bool *again);
/* create.c: begin to queue up under a name that begins so, in a batch with room
 * for more; NULL: no memory.  And what came of it: HF_OK and not *again if the
 * node is made. */
struct zk_batch *zk_queue_up(struct zk_session *, struct zk_node *,
                             const struct hfi_claim *, const char *prefix,
                             size_t room, int64_t *before);
hf_status zk_queued_up(struct zk_session *, struct zk_node *, struct zk_batch *,
                       int64_t before, int64_t deadline, bool *again,
                       struct hf_error *);
/* Does this answer say that nothing was created? */
bool zk_create_refused(int rc);
/* Remove the node: HF_BUSY when it is done. */
hf_status zk_withdraw(struct zk_session *, struct zk_node *, int64_t deadline,
                      struct hf_error *);
/* Wait for the end of the child with this name, or leave if nobody waits. */
hf_status zk_busy(struct zk_session *, struct zk_node *,
                  const struct hfi_claim *, const char *name, int64_t deadline,
                  bool *again, struct hf_error *);
/* There was no time to look. */
hf_status zk_unseen(struct zk_session *, const struct zk_node *,
                    const struct hfi_claim *, struct hf_error *);
/* Our own node, as it was read.  HF_LOST: it was broken before we knew that it
 * is granted. */
hf_status zk_check_unbroken(struct zk_conn *, const struct zk_op *,
                            struct hf_error *);
/* Have zk_watcher() called when the node at `path` ends. */
hf_status zk_arm(struct zk_session *, struct zk_node *, const char *path,
                 int64_t deadline, bool *again, struct hf_error *);

/* ---- move.c: to another session ------------------------------------- */

/* Its node moves from `ses` to a session for the length of the item. */
hf_status zk_move(struct zk_session *ses, struct zk_node *,
                  const struct hfi_renewal *, int64_t deadline,
                  struct hf_error *);
/* A move that had no answer is not executed after this; `text` is the data of
 * the node. */
hf_status zk_move_bar(struct zk_session *ses, struct zk_node *,
                      const char *text, int64_t deadline, struct hf_error *);
/* With recipe=ephemeral: the mark of a move of the node with this czxid. */
char *zk_mark_path(const struct zk_conn *, int64_t czxid);

/* ---- downgrade.c ----------------------------------------------------- */

hf_status zk_downgrade(struct hfi_conn *, const struct hfi_claim *,
                       struct hfi_receipt *, int64_t deadline,
                       struct hf_error *);
/* Learn which name the node has, after a downgrade that had no answer. */
hf_status zk_node_settle(struct zk_session *, struct zk_node *,
                         const struct hfi_claim *, int64_t deadline,
                         struct hf_error *);

/* ---- view.c: who holds a key ------------------------------------------ */

struct zk_view {
    char **paths; /* of the nodes of the holders; the first is described */
    size_t n;
    bool shared;
    int32_t permits; /* 0: a plain lock */
    int32_t waiters;
};
/* To be ended by zk_view_fini(), also after a failure. */
hf_status zk_view_read(struct zk_session *, const char *key_path,
                       int64_t deadline, struct zk_view *ret,
                       struct hf_error *);
void zk_view_fini(struct zk_view *);
/* What is known of a holder without reading its node. */
void zk_view_describe(const struct zk_conn *, const struct zk_view *,
                      const char *path, struct hf_info *ret);
/* Do the children of a key say that it may be used with permits? */
bool zk_view_permits(const struct zk_conn *, const struct String_vector *);

/* ---- renew.c, inspect.c --------------------------------------------- */

void zk_renew(struct hfi_conn *, struct hfi_renewal *, size_t n,
              int64_t deadline, struct hf_error *);
/* Somebody has written to the node, perhaps the mark of a break: the next
 * renewal reads it. */
hf_status zk_node_touched(const struct zk_conn *, struct zk_node *,
                          struct hf_error *);
hf_status zk_inspect(struct hfi_conn *, const char *key, struct hf_info *ret,
                     int64_t deadline, struct hf_error *);
hf_status zk_waiters(struct hfi_conn *, const char *key, hf_waiters_fn *,
                     void *arg, int64_t deadline, struct hf_error *);
hf_status zk_holders(struct hfi_conn *, const char *key, hf_holders_fn *,
                     void *arg, int64_t deadline, struct hf_error *);
hf_status zk_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                  void *arg, int64_t deadline, struct hf_error *);
/* What a read that failed means; the holder's node; all contenders, after a
 * sync, to be ended by the caller. */
hf_status zk_inspect_none(const struct zk_conn *, struct hf_error *);
hf_status zk_inspect_status(const struct zk_conn *, int rc, struct hf_error *);
bool zk_inspect_holds(const struct zk_conn *, const struct zk_op *);
void zk_inspect_describe(struct hf_info *, const struct zk_op *);
hf_status zk_inspect_children(struct zk_session *, const char *path,
                              int64_t deadline, struct zk_batch **ret,
                              struct hf_error *);

/* ---- observe.c ------------------------------------------------------ */

struct zk_observation {
    struct hfi_link link; /* in zk_conn.observed */
    struct hfi_observation *observation;
};
hf_status zk_observe(struct hfi_conn *, struct hfi_observation *,
                     int64_t deadline, struct hf_error *);
void zk_unobserve(struct hfi_conn *, struct hfi_observation *);
/* Is what is at `path` to be watched when it is read?  `alone`: for the sake of
 * its key, not of a prefix. */
bool zk_is_observed(struct zk_conn *, const char *path, bool alone);
/* With the mutex held: something has happened there, or anywhere. */
void zk_observed(struct zk_conn *, const char *path);
void zk_observed_anything(struct zk_conn *);

/* ---- break.c -------------------------------------------------------- */

hf_status zk_break(struct hfi_conn *, const char *key, uint64_t fence,
                   int64_t deadline, struct hf_error *);
hf_status zk_free(struct hfi_conn *, const char *key, uint64_t fence,
                  int64_t deadline, struct hf_error *);

#endif
