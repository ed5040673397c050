/* SPDX-License-Identifier: MIT
 *
 * consul.h - the parts of the Consul backend, and what they share.
 *
 *   consul.c   the table, open, close
 *   acquire.c  taking a key that is free
 *   look.c     one look at all that decides
 *   several.c  taking several keys at once
 *   join.c     taking a key that several may hold
 *   many.c     who holds such a key
 *   common.c   the session that has it locked for all of them
 *   reenter.c  taking a key that one's owner id has already
 *   semaphore.c  permits as `consul lock -n` has them
 *   share.c    downgrade, and what a grant is found by
 *   options.c  what the URL and the environment say, put on a handle
 *   http.c     one request, on one agent after the other
 *   fds.c      the descriptors of curl, for exec and fork
 *   reply.c    what came back, and what it means
 *   kv.c       names and values
 *   txn.c      transactions
 *   key.c      what this client knows of each key
 *   release.c  release, and what is given back in passing
 *   renew.c    renewing
 *   move.c     moving to a session of another ttl
 *   handle.c   what was detached: taken up, or renewed by a bearer
 *   session.c  what a session of Consul is; the rest is backend/session.c
 *   prove.c    renewing sessions, side by side
 *   queue.c    queue=fair
 *   wait.c     watching keys, and what an answer means to whom
 *   stagger.c  which of many waiters tries first
 *   observe.c  observe, unobserve
 *   poller.c   blocking queries, which only the keeper drives
 *   inspect.c  inspect, list
 *   break.c    taking a lock from its holder
 *   collect.c  removing what nobody uses
 *
 * LOCKING  `mu` guards sessions, keys and watches.  It is never held across
 * a request.  A key and a session are used by one call at a time: whoever has
 * set `busy` owns the rest of the struct, others wait for `turn`.
 */
#ifndef HFI_CONSUL_H
#define HFI_CONSUL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <curl/curl.h>
#include <jansson.h>

#include "backend/backend.h"
#include "backend/session.h"
#include "base/env.h"
#include "base/list.h"
#include "base/map.h"

/* What `consul lock` and the Go library put into Flags, so that each knows the
 * other's locks and refuses what is none. */
#define CONSUL_FLAGS INT64_C(0x2ddccbc058a50c18)

/* The same for a key that has, or had, several holders: neither those two nor
 * releases of ours that do not know of it take it for a free lock.  many.c */
#define CONSUL_MANY_FLAGS INT64_C(0x686f6c6466617374)

/* The same for a lock that others of the owner id of its holder have joined, or
 * had: releases of ours that do not know of that leave it alone too.  reenter.c */
#define CONSUL_JOINED_FLAGS INT64_C(0x686f6c646a6f696e)

/* What those two put into the Flags of a semaphore, read as a signed number.
 * semaphore.c */
#define CONSUL_SEMAPHORE_FLAGS (-INT64_C(2236430652612194848))
#define CONSUL_SEMAPHORE_TEXT  "16210313421097356768"
#define CONSUL_SEMAPHORE_MS    "CommonMs" /* common.c: the ttl, in its JSON */

#define CONSUL_ID_LEN   36
#define CONSUL_BY_LEN   16
#define CONSUL_NAME_MAX 4096
#define CONSUL_VALUE_MAX                                                       \
    (3 * (HF_OWNER_MAX + HF_NOTE_MAX) + HFI_TOKEN_LEN + 256)
#define CONSUL_OPS_MAX 64 /* in one transaction */
#define CONSUL_ROUNDS  4  /* when an entry changes while we work on it */

/* Between tries of a key that is free but under a lock-delay. */
#define CONSUL_DELAY_MS 250

/* ---- options.c ------------------------------------------------------ */

struct consul_headers;

struct consul_options {
    char *agents[HFI_HOSTS_MAX];                  /* "http://127.0.0.1:8500" */
    struct curl_slist *connect_to[HFI_HOSTS_MAX]; /* where it is, or NULL */
    size_t nagents;
    char *socket;                           /* of a consul+unix: URL, or NULL */
    struct consul_headers *_Atomic headers; /* the ACL token is in here only */
    char *token_file;                       /* or NULL */
    char *auth;                             /* "user:password", or NULL */
    char *ca_file, *ca_dir, *cert, *key;
    bool insecure;
    char *prefix; /* of every name in the store */
    char *checks; /* health checks that sessions depend on; "" for none */
    int64_t lock_delay_ms;
    int64_t keep_ms; /* how long what nobody uses stays; 0: for ever */
    bool cli;        /* layout=cli */
    bool fair;       /* queue=fair */
};

hf_status hfi_consul_options_init(struct consul_options *,
                                  const struct hfi_url *, struct hf_error *);
void hfi_consul_options_fini(struct consul_options *);
bool hfi_consul_options_apply(struct consul_options *, CURL *, size_t agent);
bool hfi_consul_options_reread(struct consul_options *, pthread_mutex_t *);
void hfi_consul_options_warn(const struct consul_options *, char *warning,
                             size_t size);
extern const char *const hfi_consul_options[];

/* ---- http.c ------------------------------------------------------ */

/* An answer; hfi_consul_reply_fini() it. */
struct consul_reply {
    long status;
    uint64_t index; /* X-Consul-Index */
    bool headed;    /* all headers were there */
    size_t agent;   /* who has answered */
    int64_t sent;   /* when the first attempt began */
    char *data;     /* ends with a NUL that `len` does not count */
    size_t len, size;
    json_t *json; /* of `data`, where that was asked for */
};

/* Handles that are used by one request each, so that one kind of request
 * never waits for another. */
struct consul_pool {
    struct hfi_link idle;
    unsigned open;
};

struct consul_request {
    const char *method, *path, *body;
    bool write; /* no answer leaves it open whether it took effect */
    bool to;    /* ask this agent first, not the one that all begin with */
    size_t agent;
};

/* One of several requests that are sent side by side. */
#define CONSUL_CALLS_MAX 16

struct consul_call {
    struct consul_request rq;
    struct consul_reply reply; /* on HF_OK, to be finished by the caller */
    hf_status st;
};

struct consul_conn;
struct consul_try;
bool hfi_consul_global_init(void);
CURL *hfi_consul_easy_new(struct consul_conn *, struct consul_reply *);
bool hfi_consul_easy_aim(struct consul_conn *, CURL *, size_t agent,
                         const struct consul_request *, int64_t timeout_ms);
hf_status hfi_consul_call(struct consul_conn *, struct consul_pool *,
                          const struct consul_request *, int64_t deadline,
                          struct consul_reply *, struct hf_error *);
void hfi_consul_calls(struct consul_conn *, struct consul_pool *,
                      struct consul_call *, size_t n, int64_t deadline,
                      struct hf_error *);
void hfi_consul_pool_fini(struct consul_pool *);

/* ---- fds.c -------------------------------------------------------- */

#define CONSUL_FDS_MAX 512

void hfi_consul_fd_watch(struct consul_conn *, CURL *);
CURLM *hfi_consul_multi_new(struct consul_conn *);
void hfi_consul_fd_closing(struct consul_conn *);
void hfi_consul_fd_forget(struct consul_conn *);

/* ---- reply.c ----------------------------------------------------- */

size_t hfi_consul_reply_body(char *data, size_t one, size_t n, void *arg);
size_t hfi_consul_reply_header(char *line, size_t one, size_t n, void *arg);
bool hfi_consul_reply_parse(struct consul_reply *);
void hfi_consul_reply_fini(struct consul_reply *);
hf_status hfi_consul_status(const struct consul_conn *,
                            const struct consul_request *,
                            const struct consul_reply *, struct hf_error *);

/* ---- kv.c -------------------------------------------------------- */

/* An entry of the store, and what its value says if we wrote it. */
struct consul_kv {
    bool exists, foreign; /* foreign: somebody's data, not a lock */
    bool many;            /* the key of several holders: many.c */
    bool joined;          /* ... of one owner id; `many` too: reenter.c */
    bool joins;           /* a grant that others of its owner id may join */
    bool semaphore;       /* the .lock of one; `foreign` too: semaphore.c */
    bool contender;       /* of one, another program's or ours; the same */
    bool shared;          /* ... who share it, or one of them */
    int32_t permits;      /* ... or so many permits; 0: none */
    int32_t slot;         /* of one of them */
    char common[CONSUL_ID_LEN +
                1];    /* `many`: the session that has the key locked
                                     * for all who hold it, or "": common.c */
    int64_t common_ms; /* its ttl; 0: unknown */
    uint64_t index, create;
    char session[CONSUL_ID_LEN + 1];
    char token[HFI_TOKEN_LEN + 1];
    char owner[HF_OWNER_MAX + 1], note[HF_NOTE_MAX + 1];
    uint64_t fence;  /* of the grant; 0: it is `index` */
    uint64_t broken; /* the fence of a grant that an operator took away */
    char by[CONSUL_BY_LEN + 1]; /* free: the client that has released it */
    uint64_t freed;             /* free: since then, in s; 0: unknown */
    bool linger;                /* its holder would give it up if asked ... */
    bool wanted;                /* ... and was asked */
    size_t agent;               /* who was asked */
};

bool hfi_consul_name(const struct consul_options *, const char *key, char *ret);
bool hfi_consul_key_of(const struct consul_options *, const char *name,
                       char *ret);
void hfi_consul_list_prefix(const struct consul_options *, const char *prefix,
                            char *ret);
bool hfi_consul_is_id(const char *text);
void hfi_consul_path(char *buf, size_t size, const char *name,
                     const char *query);
void hfi_consul_value(char *ret, const struct hfi_claim *, uint64_t fence,
                      int32_t slot);
bool hfi_consul_kv_is_free(const struct consul_kv *);
bool hfi_consul_below(const struct consul_options *, const char *key,
                      const char *part, char *ret);
bool hfi_consul_part(const struct consul_options *, const char *key,
                     const char *folder, const char *token, char *ret);
json_t *hfi_consul_kv_json(const json_t *entry);
void hfi_consul_kv_value(char *ret, const struct consul_kv *);
void hfi_consul_kv_parse(struct consul_kv *, const json_t *);
uint64_t hfi_consul_fence(const struct consul_kv *);
bool hfi_consul_is_grant(const struct consul_kv *, const char *token,
                         uint64_t fence);
bool hfi_consul_kv_read(struct consul_kv *, struct consul_reply *);
hf_status hfi_consul_read(struct consul_conn *, struct consul_pool *,
                          const char *name, bool consistent, int64_t deadline,
                          struct consul_kv *, struct hf_error *);
void hfi_consul_encode(char *ret, const char *text);

/* ---- txn.c ------------------------------------------------------- */

/* Operations to be done at once, as the service wants to read them; begins as
 * {.len = 0}.  What has no room in `first` is on the heap. */
struct consul_ops {
    size_t len, size;
    bool bad; /* no memory */
    char *text;
    char first[1500];
};

/* What became of a transaction that was answered. */
struct consul_done {
    bool ok;
    uint64_t index;   /* of the last entry written; 0 if it has none */
    uint64_t failed;  /* bit n: the operation n did */
    uint64_t denied;  /* bit n: the token does not allow the operation n */
    bool delayed;     /* by a lock-delay */
    bool bad_session; /* it does not exist any more ... */
    char bad[CONSUL_ID_LEN + 1]; /* ... the first of these */
    size_t agent;                /* who has answered */
    int64_t sent;                /* when it was asked */
};

void hfi_consul_op(struct consul_ops *, const char *verb, const char *name,
                   const char *session, const char *value, uint64_t index);
void hfi_consul_op_many(struct consul_ops *, const char *verb, const char *name,
                        const char *session, const char *value);
void hfi_consul_op_as(struct consul_ops *, const struct consul_kv *,
                      const char *verb, const char *name, const char *session,
                      const char *value);
void hfi_consul_op_semaphore(struct consul_ops *, const char *verb,
                             const char *name, const char *session,
                             const char *value);
void hfi_consul_expect_index(struct consul_ops *, const char *name,
                             uint64_t index);
const char *hfi_consul_ops_text(struct consul_ops *);
void hfi_consul_ops_fini(struct consul_ops *);
hf_status hfi_consul_txn(struct consul_conn *, struct consul_pool *,
                         struct consul_ops *, bool write, int64_t deadline,
                         struct consul_done *, struct hf_error *);
hf_status hfi_consul_txn_keep(struct consul_conn *, struct consul_pool *,
                              struct consul_ops *, bool write, int64_t deadline,
                              struct consul_done *, struct consul_reply *,
                              struct hf_error *);
hf_status hfi_consul_txn_read(const struct consul_conn *, struct consul_reply *,
                              struct consul_done *, struct hf_error *);

/* ---- session.c --------------------------------------------------- */

/* What a claim remembers: receipt->own. */
struct consul_grant {
    char session[CONSUL_ID_LEN + 1];     /* that carries it, once granted */
    char predecessor[HFI_TOKEN_LEN + 1]; /* the token of the queue entry before
                                           * ours, or "" */
    bool among;                          /* waits for one of many holders */
    bool looked; /* it has seen who is before it, as far as anybody is */
};
static inline struct consul_grant *consul_own(const struct hfi_receipt *receipt)
{
    return receipt->own;
}

struct consul_session {
    struct hfi_session base;    /* its users: calls and keys */
    struct hfi_link held;       /* of consul_key: what it holds */
    char id[CONSUL_ID_LEN + 1]; /* "" until it is made */
    int64_t ttl_ms;
    bool queue;  /* its keys are deleted with it, not released */
    bool handle; /* it carries one lock, which is detached */
    bool permit; /* it carries one permit: semaphore.c */
    bool common; /* it has keys locked that several hold: common.c ... */
    struct hfi_map kept; /* ... which, as far as is known */
    bool busy;           /* being renewed */
    int64_t sure; /* when that was sent which a true leader has served ... */
    size_t agent; /* ... by way of this agent */
};

#define CONSUL_HANDLE_NAME   "holdfast handle"  /* of a session; see handle.c */
#define CONSUL_FRESH(ttl_ms) ((ttl_ms) / 4 * 3) /* session.c (5) */

/* What the service says of a session. */
struct consul_about {
    int64_t ttl_ms, delay_ms; /* 0: none */
    bool handle;              /* see handle.c */
    size_t agent;             /* who was asked */
};

/* The session that carries a grant, as its receipt remembers it. */
static inline void hfi_consul_carried_by(struct hfi_receipt *receipt,
                                         const struct consul_session *s)
{
    memcpy(consul_own(receipt)->session, s->id, sizeof(s->id));
}

hf_status hfi_consul_session_get(struct consul_conn *, int64_t ttl_ms,
                                 bool queue, int64_t deadline,
                                 struct consul_session **ret,
                                 struct hf_error *);
hf_status hfi_consul_session_own(struct consul_conn *, int64_t ttl_ms,
                                 int64_t deadline, struct consul_session **ret,
                                 struct hf_error *);
hf_status hfi_consul_session_common(struct consul_conn *, int64_t ttl_ms,
                                    int64_t deadline,
                                    struct consul_session **ret,
                                    struct hf_error *);
hf_status hfi_consul_session_for(struct consul_conn *, const struct hfi_claim *,
                                 int64_t ttl_ms, int64_t deadline,
                                 struct consul_session **ret,
                                 struct hf_error *);
void hfi_consul_session_put(struct consul_conn *, struct consul_session *);
struct consul_session *hfi_consul_session_find(struct consul_conn *,
                                               const char *id);
hf_status hfi_consul_session_create(struct consul_conn *,
                                    struct consul_session *, int64_t deadline,
                                    struct hf_error *);
hf_status hfi_consul_session_bar(struct consul_conn *, const char *id,
                                 int64_t deadline, struct hf_error *);
void hfi_consul_session_sure(struct consul_conn *, struct consul_session *,
                             int64_t at, size_t agent);
void hfi_consul_session_destroy(struct consul_conn *, const char *id,
                                int64_t deadline);
void hfi_consul_session_dead(struct consul_conn *, struct consul_session *);
void hfi_consul_sessions_end(struct consul_conn *);
bool hfi_consul_session_proven(struct consul_session *, int64_t sent);
extern const struct hfi_session_service hfi_consul_session_service;
hf_status hfi_consul_session_claim(struct consul_conn *,
                                   struct consul_session *, int64_t deadline,
                                   struct hf_error *);
void hfi_consul_session_yield(struct consul_conn *, struct consul_session *);

/* ---- prove.c ----------------------------------------------------- */

hf_status hfi_consul_session_inspect(struct consul_conn *, const char *id,
                                     int64_t deadline, struct consul_about *);
hf_status hfi_consul_session_prove(struct consul_conn *, struct consul_pool *,
                                   struct consul_session *, int64_t deadline,
                                   struct hf_error *);
void hfi_consul_sessions_renew(struct consul_conn *,
                               struct consul_session *const *, hf_status *ret,
                               size_t n, int64_t deadline, struct hf_error *);

/* ---- key.c ------------------------------------------------------- */

enum consul_seen {
    CONSUL_UNKNOWN, /* ask before writing */
    CONSUL_FREE     /* nobody held it at `index`; 0: it did not exist */
};

/* What is known of the queue of a key that is free. */
enum consul_line { CONSUL_LINE_UNKNOWN, CONSUL_LINE_EMPTY, CONSUL_LINE_STANDS };

/* What this client knows of a key. */
struct consul_key {
    struct hfi_node node; /* in consul_conn.keys, by its name */
    struct hfi_link link; /* in consul_session.held, or consul_conn.idle */
    enum consul_seen seen;
    uint64_t index;                 /* of the entry when it was last seen */
    bool busy;                      /* a call works on it */
    unsigned users;                 /* calls and watches */
    char holder[HFI_TOKEN_LEN + 1]; /* our claim that has it, or "" */
    bool maybe;                     /* ... or may have it: no answer came */
    bool leaving;                   /* ... and was told to release it */
    bool joined;                    /* others have joined it: reenter.c */
    bool moving;           /* a move to another session may still take effect */
    enum consul_line line; /* who stands in its queue, with CONSUL_FREE */
    bool joint;  /* not the key but the entry of one of its holders: many.c */
    bool permit; /* ... with a permit of a semaphore: semaphore.c */
    uint64_t granted_index; /* joint: of the key, when the grant was made */
    char
        locked_by[CONSUL_ID_LEN + 1]; /* ... and the session that has it locked,
                                        * or "" ... */
    int64_t common_ms; /* ... with this ttl, for all holders; 0: for one */
    struct consul_session *session; /* of the holder */
    uint64_t fence;
    uint64_t
        expected_index; /* the index that the unanswered try or move was for */
    const char *key;
    char name[];
};

hf_status hfi_consul_name_enter(struct consul_conn *, const char *key,
                                const char *name, int64_t deadline,
                                struct consul_key **ret, struct hf_error *);
hf_status hfi_consul_key_enter(struct consul_conn *, const char *key,
                               int64_t deadline, struct consul_key **ret,
                               struct hf_error *);
void hfi_consul_key_leave(struct consul_conn *, struct consul_key *);
void hfi_consul_key_seen(struct consul_key *, const struct consul_kv *);
void hfi_consul_key_held(struct consul_conn *, struct consul_key *,
                         const char *token, struct consul_session *,
                         uint64_t fence);
void hfi_consul_key_maybe(struct consul_conn *, struct consul_key *,
                          const char *token, struct consul_session *);
bool hfi_consul_key_rebind(struct consul_conn *, struct consul_key *,
                           const struct consul_kv *);
void hfi_consul_key_settle(struct consul_conn *, struct consul_key *,
                           const struct consul_kv *);
void hfi_consul_key_free(struct consul_conn *, struct consul_key *,
                         enum consul_seen, uint64_t index);
void hfi_consul_keys_fini(struct consul_conn *);

/* ---- queue.c ----------------------------------------------------- */

/* HF_OK: it is our turn to take the key, and *queue_entry is what to delete
 * with that ("" if there is none); HF_BUSY: it is not.  *stands: we are in
 * line. */
hf_status hfi_consul_queue_turn(struct consul_conn *, const struct hfi_claim *,
                                struct hfi_receipt *, struct hfi_answer *,
                                int64_t deadline, char *queue_entry,
                                bool *stands, struct hf_error *);
/* May a claim that has no place try without a look at the queue?  Else:
 * CONSUL_LINE_STANDS if somebody was there a moment ago. */
enum consul_line hfi_consul_queue_known(struct consul_conn *,
                                        const struct hfi_claim *,
                                        const struct hfi_receipt *);
/* May a claim that has no place go, in view of all entries of the queue? */
hf_status hfi_consul_queue_judge(const struct hfi_claim *, const json_t *list,
                                 struct hf_error *);
hf_status hfi_consul_queue_join(struct consul_conn *, const struct hfi_claim *,
                                struct hfi_receipt *, struct hfi_answer *,
                                int64_t deadline, struct hf_error *);
hf_status hfi_consul_queue_door(struct consul_conn *, const struct hfi_claim *,
                                struct hfi_receipt *, bool stands,
                                int64_t deadline, struct hf_error *);
bool hfi_consul_queue_stands(struct consul_conn *, const char *token);
hf_status hfi_consul_queue_leave(struct consul_conn *, const struct hfi_claim *,
                                 int64_t deadline, struct hf_error *);
/* All entries of the queue; *ret is to be ended by the caller, and may have no
 * list. */
hf_status hfi_consul_queue_fetch(struct consul_conn *, const char *key,
                                 int64_t deadline, struct consul_reply *ret,
                                 struct hf_error *);
/* The token of a queue entry, or NULL if it is none. */
const char *hfi_consul_queue_token(const json_t *entry);
hf_status hfi_consul_queue_count(struct consul_conn *, const char *key,
                                 int64_t deadline, int32_t *ret,
                                 struct hf_error *);
bool hfi_consul_queue_entry(const struct consul_options *, const char *key,
                            const char *token, char *ret);
void hfi_consul_queue_left(struct consul_conn *, const char *key,
                           const char *token, bool sure);
bool hfi_consul_queue_is_own(struct consul_conn *, const char *token);
bool hfi_consul_queue_in_doubt(struct consul_conn *, const char *token);
bool hfi_consul_is_queue_entry(const struct consul_kv *);
void hfi_consul_queue_fini(struct consul_conn *);

/* ---- stagger.c ------------------------------------------------------ */

/* What a waiter has seen of the others. */
struct consul_herd {
    unsigned misses;  /* tries in a row that came too late */
    unsigned passed;  /* how often the key went to another ... */
    uint64_t holders; /* ... and a bit for each of them, or for several */
    bool tried;       /* since it was free */
};

int64_t hfi_consul_herd_delay(struct consul_herd *, const char *token,
                              uint64_t index);
void hfi_consul_herd_taken(struct consul_herd *, const char *session,
                           bool ours);

/* ---- poller.c ------------------------------------------------------- */

struct consul_poller {
    CURLM *multi;
    int epoll_fd, event_fd, timer_fd;
    struct hfi_map watches;  /* of consul_watch, by name */
    struct hfi_map watchers; /* of consul_watcher, by token */
    struct hfi_link pending; /* of consul_watch: to be started */
    struct hfi_link unused;  /* of consul_watch: under way for nobody */
    struct hfi_link waking;  /* of consul_watch.wake: free, but let others in */
    size_t nunused;
    struct hfi_link writes; /* of consul_async_write: under way */
    int64_t timer_at;       /* for when timer_fd is set; HFI_NEVER */
    int64_t curl_at;        /* when curl wants to be called; HFI_NEVER */
    unsigned monitors;
    unsigned running;      /* queries */
    uint64_t observations; /* how many there were */
    bool many;  /* there are more than connections: they take turns */
    bool moved; /* another agent: start all queries again */
};

hf_status hfi_consul_poller_init(struct consul_conn *, struct hf_error *);
void hfi_consul_poller_fini(struct consul_conn *);
void hfi_consul_poller_moved(struct consul_conn *);
int hfi_consul_poll_fd(struct hfi_conn *);
void hfi_consul_dispatch(struct hfi_conn *);

/* ---- wait.c: who watches what ------------------------------------ */

/* A query that the poller keeps in flight. */
struct consul_watch {
    bool is_write;         /* false: see struct consul_async_write */
    struct hfi_node node;  /* in consul_poller.watches */
    struct hfi_link link;  /* in consul_poller.pending or .unused */
    struct hfi_link users; /* of consul_watcher */
    CURL *easy;
    struct consul_reply reply;
    uint64_t index;       /* nothing older is of interest */
    int64_t start_at;     /* while pending */
    int64_t due;          /* an answer by then was not made by time */
    bool running;         /* the keeper's, until it is done with it */
    bool answered;        /* `last` is what it said */
    struct hfi_link wake; /* in consul_poller.waking ... */
    int64_t wake_at;      /* ... until then */
    struct consul_herd herd;
    struct consul_kv last;
    struct consul_observation *observed; /* not one name but all that begin so;
                                          * or NULL: it is none, or over */
    bool names;                          /* the same: names are asked for */
    bool among;       /* not the lock but all entries of its holders */
    bool queue_entry; /* not the lock but an entry of its queue ... */
    bool own;         /* ... of this client, which will say when it is gone */
    const char *key;
    char name[];
};

struct consul_watcher {
    struct hfi_node node; /* in consul_poller.watchers */
    struct hfi_link link; /* in consul_watch.users */
    struct consul_watch *watch;
    char token[HFI_TOKEN_LEN + 1];
    bool holds;     /* tell of its loss; else: wake it */
    bool told;      /* the core has asked for it: while it holds, to hear of
                     * others who want the key */
    bool paused;    /* the grant is about to be another entry: look away */
    uint64_t since; /* of the grant: older answers do not concern it */
    uint64_t fence;
};

/* A write that the keeper sends and whose outcome the watch will show. */
struct consul_async_write {
    bool is_write; /* true */
    struct hfi_link link;
    CURL *easy;
    struct consul_reply reply;
};

hf_status hfi_consul_watch(struct hfi_conn *, const struct hfi_claim *,
                           struct hfi_receipt *, int64_t deadline,
                           struct hf_error *);
void hfi_consul_unwatch(struct hfi_conn *, const struct hfi_claim *,
                        struct hfi_receipt *);
void hfi_consul_retarget(struct consul_conn *, const char *key,
                         const char *name, const char *token);
void hfi_consul_monitor(struct consul_conn *, const struct consul_key *,
                        const char *token);
void hfi_consul_look_away(struct consul_conn *, const char *token, bool away);
void hfi_consul_forget(struct consul_conn *, const char *token);
void hfi_consul_watch_free(struct consul_conn *, struct consul_watch *);
void hfi_consul_watch_answer(struct consul_conn *, struct consul_watch *,
                             struct consul_kv *);
void hfi_consul_watch_left(struct consul_conn *, const char *name, bool sure);
int64_t hfi_consul_watch_wake(struct consul_conn *, int64_t now);
/* With the mutex held: is a query under way that will tell when this waiter may
 * have the key, and that has said that it may not yet? */
bool hfi_consul_watch_waits(struct consul_conn *, const char *token);

/* poller.c, with the mutex held */
void hfi_consul_poller_add(struct consul_conn *, struct consul_watch *,
                           int64_t at);
void hfi_consul_poller_unused(struct consul_conn *, struct consul_watch *);
void hfi_consul_poller_write(struct consul_conn *, struct consul_ops *);

/* ---- observe.c ------------------------------------------------------- */

#define CONSUL_MARK_MAX 24

struct consul_observation {
    struct hfi_link link; /* in consul_watch.users */
    struct hfi_observation *observation;
    struct consul_watch *watch;
    uint64_t seen;     /* the index of the last answer */
    unsigned failures; /* since then */
};

hf_status hfi_consul_observe(struct hfi_conn *, struct hfi_observation *,
                             int64_t deadline, struct hf_error *);
void hfi_consul_unobserve(struct hfi_conn *, struct hfi_observation *);

/* With the mutex held: an answer came; none did, and when to ask again. */
void hfi_consul_observed(struct consul_conn *, struct consul_watch *,
                         uint64_t index);
int64_t hfi_consul_observe_failed(struct consul_conn *, struct consul_watch *);

/* ---- inspect.c ------------------------------------------------------ */

hf_status hfi_consul_inspect(struct hfi_conn *, const char *key,
                             struct hf_info *, int64_t deadline,
                             struct hf_error *);
hf_status hfi_consul_waiters(struct hfi_conn *, const char *key,
                             hf_waiters_fn *, void *arg, int64_t deadline,
                             struct hf_error *);
hf_status hfi_consul_holders(struct hfi_conn *, const char *key,
                             hf_holders_fn *, void *arg, int64_t deadline,
                             struct hf_error *);
hf_status hfi_consul_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                          void *arg, int64_t deadline, struct hf_error *);
hf_status hfi_consul_list_since(struct hfi_conn *, const char *prefix,
                                uint64_t fence, hf_list_fn *, void *arg,
                                int64_t deadline, struct hf_error *);
int64_t hfi_consul_duration(const char *text);

/* ---- collect.c ------------------------------------------------------ */

hf_status hfi_consul_collect(struct hfi_conn *, int64_t older_ms, bool dry_run,
                             struct hf_collected *, int64_t deadline,
                             struct hf_error *);

void hfi_consul_collect_init(struct consul_conn *);
void hfi_consul_collect_some(struct consul_conn *);
void hfi_consul_collect_fini(struct consul_conn *);

/* ---- break.c -------------------------------------------------------- */

hf_status hfi_consul_break(struct hfi_conn *, const char *key, uint64_t fence,
                           int64_t deadline, struct hf_error *);
hf_status hfi_consul_free(struct hfi_conn *, const char *key, uint64_t fence,
                          int64_t deadline, struct hf_error *);

/* ---- renew.c ----------------------------------------------------- */

void hfi_consul_renew(struct hfi_conn *, struct hfi_renewal *, size_t n,
                      int64_t deadline, struct hf_error *);
struct consul_key *hfi_consul_renew_key(struct consul_conn *, const char *name,
                                        const struct hfi_claim *);
hf_loss hfi_consul_why(const struct consul_kv *, const char *token,
                       uint64_t fence);

/* ---- move.c ------------------------------------------------------ */

void hfi_consul_renew_lost(const struct consul_conn *, struct hfi_renewal *,
                           const struct consul_kv *, struct hf_error *);
void hfi_consul_renew_move(struct consul_conn *, struct hfi_renewal *,
                           int64_t deadline, struct hf_error *);

/* ---- handle.c ---------------------------------------------------- */

hf_status hfi_consul_attach(struct hfi_conn *, const struct hfi_claim *,
                            const struct hf_handle *, struct hfi_receipt *,
                            struct hf_error *);
hf_status hfi_consul_take_over(struct hfi_conn *, const struct hfi_claim *,
                               const char *token, struct hfi_receipt *,
                               int64_t deadline, struct hf_error *);
hf_status hfi_consul_bearer(struct consul_conn *, const char *name,
                            struct consul_kv *, int64_t ttl_ms, int64_t sure,
                            int64_t deadline, struct hf_error *);
hf_status hfi_consul_move(struct consul_conn *, const char *name,
                          const struct consul_kv *, const char *id,
                          const char *value, int64_t deadline,
                          struct consul_done *, struct hf_error *);
void hfi_consul_handle_end(struct consul_conn *, const char *session,
                           int64_t deadline);

/* ---- many.c ------------------------------------------------------- */

#define CONSUL_PRUNE_MAX 16 /* entries, in one transaction */

/* One of those who hold a key, or did. */
struct consul_holder {
    const json_t *entry;
    const char *name;
    uint64_t index;
    int32_t slot;
    char session[CONSUL_ID_LEN + 1]; /* "": it holds no more */
    bool foreign;                    /* another program's permit */
    bool gone;                       /* it has released it */
    bool unasked; /* it lingers, and nobody has asked it to go */
};

/* All of them, at one moment; hfi_consul_many_fini() it. */
struct consul_many {
    struct consul_reply reply;
    struct consul_holder *holders;
    size_t n, live;
    char writer[HFI_TOKEN_LEN + 1]; /* somebody who waits to be alone, or "" */
    bool stands;                    /* the claim itself does */
    bool joined;           /* they had it under one owner id: reenter.c */
    struct consul_kv lock; /* layout=cli: the entry of the key at that moment */
};

static inline bool consul_is_joint(const struct hfi_claim *claim)
{
    return claim->shared || claim->permits;
}
bool hfi_consul_is_many(const struct consul_conn *, const struct consul_kv *);
bool hfi_consul_holder_name(const struct consul_options *, const char *key,
                            const char *token, char *ret);
hf_status hfi_consul_many_read(struct consul_conn *, const char *key,
                               const char *name, uint64_t index,
                               const char *token, int64_t deadline,
                               struct consul_many *, struct hf_error *);
hf_status hfi_consul_many_fill(struct consul_conn *, const char *key,
                               const char *token, struct consul_many *,
                               struct hf_error *);
bool hfi_consul_many_collect(struct consul_many *, const json_t *list,
                             const char *folder);
void hfi_consul_many_fini(struct consul_many *);
size_t hfi_consul_many_prune(const struct consul_many *, struct consul_ops *,
                             const char *session);
void hfi_consul_many_value(char *ret, const struct hfi_claim *, uint64_t after,
                           uint64_t fence, int64_t common_ms);
size_t hfi_consul_many_used(const struct consul_many *);
void hfi_consul_many_again(char *ret, const struct consul_kv *);
void hfi_consul_many_touch(struct consul_ops *, const char *name,
                           const struct consul_kv *);
void hfi_consul_many_tidy(struct consul_conn *, struct consul_key *joint,
                          uint64_t granted_index, uint64_t fence,
                          const struct consul_many *, int64_t deadline);

/* ---- common.c ------------------------------------------------------ */

/* What a holder knows of the session that has its key locked; or nothing. */
struct consul_common {
    bool joint; /* it is one of several holders */
    char locked_by[CONSUL_ID_LEN + 1];
    int64_t ms; /* 0: it is not a common one */
};

hf_status hfi_consul_common_get(struct consul_conn *, int64_t ttl_ms,
                                int64_t before_ms, int64_t deadline,
                                struct consul_session **ret, struct hf_error *);
void hfi_consul_common_ops(struct consul_ops *, const struct consul_kv *,
                           const char *name, const char *from,
                           const struct consul_session *to, const char *value);
void hfi_consul_common_locks(struct consul_conn *, struct consul_session *,
                             const char *name);
void hfi_consul_common_freed(struct consul_conn *, const char *session,
                             const char *name);
void hfi_consul_common_set(struct consul_key *joint, const char *session,
                           int64_t ms);
void hfi_consul_common_seen(struct consul_key *joint,
                            const struct consul_kv *key);
struct consul_common hfi_consul_common_of(struct consul_conn *,
                                          const struct hfi_claim *);
hf_status hfi_consul_common_tend(struct consul_conn *, const struct hfi_claim *,
                                 int64_t ttl_ms, int64_t deadline,
                                 hf_loss *reason, struct hf_error *);
bool hfi_consul_common_is_needed(struct consul_conn *,
                                 const struct consul_session *,
                                 int64_t deadline);
void hfi_consul_common_fini(struct consul_session *);

/* ---- semaphore.c -------------------------------------------------- */

bool hfi_consul_is_semaphore(const struct consul_conn *,
                             const struct hfi_claim *);
bool hfi_consul_among_name(const struct consul_conn *, const struct hfi_claim *,
                           char *ret);
void hfi_consul_semaphore_collect(struct consul_many *, const json_t *list,
                                  const char *base);
hf_status hfi_consul_semaphore_try(struct consul_try *);
hf_status hfi_consul_semaphore_judge(struct consul_try *,
                                     const struct consul_kv *);
void hfi_consul_semaphore_ops(struct consul_try *,
                              const struct consul_session *common,
                              struct consul_ops *);
hf_status hfi_consul_semaphore_common(struct consul_conn *, const char *name,
                                      const struct consul_kv *,
                                      const struct consul_session *,
                                      int64_t deadline, struct consul_ops *,
                                      struct hf_error *);
hf_status hfi_consul_semaphore_swap(struct consul_conn *, const char *name,
                                    const char *from, const char *to,
                                    int64_t deadline, struct consul_ops *,
                                    struct hf_error *);
void hfi_consul_semaphore_tidy(struct consul_conn *, const char *key,
                               const struct consul_many *, int64_t deadline);

/* ---- share.c ------------------------------------------------------ */

bool hfi_consul_claim_name(struct consul_conn *, const struct hfi_claim *,
                           char *ret);
bool hfi_consul_other_name(struct consul_conn *, const struct hfi_claim *,
                           const char *name, char *ret);
hf_status hfi_consul_claim_enter(struct consul_conn *, const struct hfi_claim *,
                                 int64_t deadline, struct consul_key **ret,
                                 struct hf_error *);
void hfi_consul_holder_forget(struct consul_conn *, const char *key,
                              const char *token, int64_t deadline);
hf_status hfi_consul_adopt(struct consul_conn *, const struct hfi_claim *,
                           struct hfi_receipt *, const struct consul_kv *,
                           int64_t deadline);
hf_status hfi_consul_downgrade(struct hfi_conn *, const struct hfi_claim *,
                               struct hfi_receipt *, int64_t deadline,
                               struct hf_error *);

/* ---- acquire.c --------------------------------------------------- */

/* One acquisition under way. */
struct consul_try {
    struct consul_conn *cc;
    const struct hfi_claim *claim;
    struct hfi_receipt *receipt;
    struct hfi_answer *busy;
    struct consul_session *s;
    struct consul_key *k;
    struct consul_key *joint; /* its own entry, if it is one of several; else
                               * NULL */
    struct consul_many many;  /* who holds, or did; or nothing */
    const struct consul_kv
        *joins; /* the key, whose grant with the fence `fence`
                                    * is joined; or NULL: reenter.c */
    uint64_t fence;
    char
        locked_by[CONSUL_ID_LEN + 1]; /* the common session that has the key, or
                                        * "": common.c */
    int64_t common_ms;                /* its ttl */
    bool again;                       /* the key has changed: look once more */
    bool once; /* what is known of key and queue is relied on: no other look */
    bool all;  /* look at everything at once: look.c ... */
    struct {
        bool done;                 /* there is an answer */
        bool made;                 /* the look has made the entry */
        struct consul_kv kv;       /* of the key */
        struct consul_reply reply; /* with all entries, unless `made` */
    } look;                        /* ... and what was seen */
    int32_t slot;
    int64_t deadline;
    char queue_entry[CONSUL_NAME_MAX]; /* of the claim, or "" */
    struct hf_error *err;
};

hf_status hfi_consul_granted(struct consul_try *, uint64_t fence);
hf_status hfi_consul_try_session(struct consul_try *);
void hfi_consul_index_rose(struct consul_conn *, uint64_t index,
                           uint64_t before);

/* What a write that was to make the entry of a key has come to, if not that.
 * HF_LOST: there is one. */
hf_status hfi_consul_not_made(struct consul_try *, hf_status);

/* look.c */
hf_status hfi_consul_look(struct consul_try *);
bool hfi_consul_look_many(struct consul_try *, hf_status *);
void hfi_consul_look_fini(struct consul_try *);

/* several.c */
hf_status hfi_consul_try_acquire_all(struct hfi_conn *, struct hfi_attempt *,
                                     size_t n, int64_t deadline,
                                     struct hf_error *);

/* join.c */
hf_status hfi_consul_join_again(struct consul_try *);
hf_status hfi_consul_join_judge(struct consul_try *, const struct consul_kv *);
hf_status hfi_consul_join_wait(struct consul_try *);
int32_t hfi_consul_join_slot(const struct consul_many *);
hf_status hfi_consul_join(struct consul_try *);

/* reenter.c */
bool hfi_consul_reenters(const struct consul_conn *, const struct hfi_claim *);
bool hfi_consul_reentered(struct consul_conn *, const struct hfi_claim *);
bool hfi_consul_reenters_permit(struct consul_try *);
hf_status hfi_consul_reenter(struct consul_try *);
int64_t hfi_consul_reenter_left(int64_t left_ms);

hf_status hfi_consul_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                                 struct hfi_receipt *, struct hfi_answer *,
                                 int64_t deadline, struct hf_error *);

/* ---- release.c --------------------------------------------------- */

hf_status hfi_consul_release(struct hfi_conn *, const struct hfi_claim *,
                             struct hfi_receipt *, int64_t deadline,
                             struct hf_error *);
hf_status hfi_consul_unlock_at(struct consul_conn *, struct consul_key *,
                               const char *session, uint64_t index,
                               uint64_t fence, int64_t deadline,
                               struct hf_error *);
hf_status hfi_consul_sweep(struct hfi_conn *, const struct hfi_claim *,
                           struct hfi_receipt *, int64_t deadline,
                           struct hf_error *);

/* ---- consul.c ----------------------------------------------------------- */

struct consul_conn {
    struct hfi_conn base;
    struct consul_options options;
    char id[CONSUL_BY_LEN + 1]; /* of this client: see release.c (3) */
    int64_t timeout_ms;      /* for closing, where the core gives no deadline */
    atomic_size_t agent;     /* the one that answered last */
    _Atomic int64_t heard;   /* when it did, or when we turned to it */
    atomic_bool fresh;       /* an unknown key is likely not to exist */
    atomic_bool silent;      /* the last request had no answer */
    atomic_bool doubted;     /* the set-up was warned of */
    _Atomic uint64_t newest; /* the index of our last grant */
    _Atomic uint32_t permits; /* sessions made for one permit each */
    pthread_mutex_t mu;
    bool ready;           /* mu and turn are there */
    struct hfi_cond turn; /* something is not busy any more */
    struct consul_pool calls, renewals;
    struct hfi_sessions sessions;
    struct hfi_map queue_entries; /* of this client; by token */
    struct hfi_map keys;
    struct hfi_link idle; /* of consul_key: kept for what they know */
    size_t nidle;
    struct consul_poller poller;
    struct {
        struct hfi_thread thread;
        bool joinable;    /* it was started */
        bool running;     /* and is not at its end */
        atomic_bool stop; /* the client closes */
        uint32_t left;    /* so many entries are made until the next */
    } collector;          /* collect.c; `mu` guards it */
    atomic_int fds[CONSUL_FDS_MAX]; /* of curl; each plus one, or 0 */
};

#endif
