/* SPDX-License-Identifier: MIT
 *
 * sql.h - what the three SQL services share.
 *
 *   sql.c      what is promised; the URL, the statements, opening and closing
 *   acquire.c  try_acquire      strategies lease and version
 *   several.c  try_acquire_all
 *   renew.c    renew            many at once
 *   release.c  release
 *   handle.c   attach, take_over
 *   inspect.c  inspect, list, holders
 *   break.c    break_grant, free_grant
 *   collect.c  collect          rows that nobody has used for long
 *   queue.c    first come, first served: what is promised; waiting in line
 *   share.c    shared locks and permits: what is promised; taking one
 *   share_hold.c   and what is done with one that is held; downgrade, keep
 *   reenter.c  owner ids that count across processes
 *   promote.c  putting a waiter before the others
 *   script.c   several statements in one message
 *   row*.c     the same for strategy row: a lock held by an open transaction
 *   pool.c     sessions: a small pool, what is retried, making the table
 *   verify.c   what a table must be, so that the statements keep their promises
 *   doubt.c    statements without an answer, which must not arrive later
 *   fds.c      what a forked child closes
 *
 *   postgres/ mysql/ sqlite/   a driver each: statements, sessions, wait.c
 *
 * A driver knows how to open a session and to run one statement in it by a
 * deadline.  What a statement is for, and what its answer means, is the same
 * for all of them: parameters and columns have fixed numbers, and the texts
 * stand in a file for each strategy, such as mysql/lease.sql.
 */
#ifndef HFI_BACKEND_SQL_H
#define HFI_BACKEND_SQL_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "base/env.h"
#include "base/list.h"

enum sql_strategy { SQL_LEASE, SQL_VERSION, SQL_ROW, SQL_STRATEGIES };

/* What a driver must be able to say.  A statement that a strategy does not
 * need is NULL.  In the text, @T is the table, @F the table of fences of
 * strategy row, @H that of holders of the others, @Q that of their queue; as
 * strings, @C is the table as the URL names it, @S its schema and @N its name
 * without that.  @{a@|b@} is b with strategy version, else a; @(a@) is a where
 * there is a queue, else nothing. */
enum sql_stmt {
    SQL_CREATE,       /* the table, if it is not there; run without call */
    SQL_CREATE_FENCE, /* @F; run without call */
    SQL_ACQUIRE,      /* columns enum sql_try, or the fence as answer->id */
    SQL_RETAKE,       /* where the row is there and free: the fence as column 0
                       * or answer->id; else nothing is changed.  NULL:
                       * SQL_ACQUIRE costs no more */
    SQL_MAKE_ALL,     /* rows of the keys that `token` lists; several.c */
    SQL_TAKE_ALL,     /* take those that are free: columns name and fence */
    SQL_RENEW,        /* changes one row if token and fence hold */
    SQL_RENEW_MANY,   /* the same for call->items, as many rows as hold; it may
                       * pass over rows that others have locked, and return
                       * name and token of those that it has changed */
    SQL_RENEW_SKIP,   /* the same, for a driver that has two ways to do it */
    SQL_RELEASE,      /* changes or returns one row if the token holds */
    SQL_BREAK,        /* puts a '!' before the token if the fence holds */
    SQL_FREE,         /* as SQL_RELEASE, if the fence holds, whatever the token;
                       * row: end the session that has the fence.  NULL with
                       * row: SQL_LOOK and SQL_KILL do it */
    SQL_TAKE,         /* the token becomes `token` if the fence holds and it is
                       * `token` already or `note` */
    SQL_KILL,         /* end the session `number`; rows or a change tell that
                       * it was still there */
    SQL_LOOK,         /* columns enum sql_inspect_row */
    SQL_LIST,         /* columns enum sql_inspect_row, all that are held, and
                       * those with this fence or a newer one */
    SQL_WANT,         /* marks the row: somebody waits */
    SQL_LOCK,         /* row: for row_send() */
    SQL_MAKE,         /* row: the row to be locked, and its fence */
    SQL_SIGN,         /* row: the next fence, as column 0 or answer->id */
    SQL_UNSIGN,       /* row: the token holds no longer */
    SQL_END,          /* row: end the session `number` and wait for that */
    SQL_STANDS,       /* row: 1 once the session `number` is in the queue */
    SQL_VERIFY, /* columns enum sql_verify, for the table if it is there */
    SQL_VERIFY_FENCE, /* the same for @F, which is @N there */
    SQL_SHOW,         /* for a driver whose SQL_VERIFY does not see all */
    SQL_SHOW_FENCE,

    SQL_COLLECT_LOOK, /* keys behind `key`, and whether they are idle */
    SQL_COLLECT,      /* remove those, up to `owner` */

    /* What follows is about @Q; see queue.c.  From SQL_TICKET on, scripts. */
    SQL_COLLECT_QUEUE, /* remove what has lapsed for long */
    SQL_PEEK,          /* as SQL_JOIN, and changes nothing */
    SQL_WAITERS,       /* columns enum sql_waiter, in their order */
    SQL_OBSERVE,       /* `queue`: `key` is a prefix; `note` is the channel; or
                        * run without call, for a driver that writes no row */
    SQL_UNOBSERVE,
    SQL_CREATE_QUEUE, /* run without call */
    SQL_VERIFY_QUEUE, /* as SQL_VERIFY for @Q, which is @N there */
    SQL_SHOW_QUEUE,
    SQL_TICKET,  /* as SQL_JOIN where others wait already; or no row */
    SQL_JOIN,    /* columns enum sql_try */
    SQL_HAND,    /* as SQL_PASS where others wait; or no row */
    SQL_PASS,    /* columns enum sql_pass, if the token was there, or the
                 * fence */
    SQL_PROMOTE, /* 1: `note` is the first who waits; 2: nobody is called so; no
                  * row: it is not held; see promote.c */
    SQL_LINGER,  /* a row if somebody waits */

    /* What follows is about @H; see share.c.  All of it but the last two are
     * scripts: several statements that are one transaction, of which those
     * count that return a column `hf`. */
    SQL_CREATE_HOLDERS, /* run without call */
    SQL_VERIFY_HOLDERS, /* as SQL_VERIFY for @H, which is @N there */
    SQL_SHOW_HOLDERS,
    SQL_ENTER,           /* columns enum sql_try */
    SQL_REENTER,         /* columns fence, or 0, and whether the owner id has it
                          * in the other mode; see reenter.c */
    SQL_ADMIT,           /* a row if it is to be run again */
    SQL_DOOR,            /* 1 if the key has become free; what is left in ms */
    SQL_DOOR_END,        /* nobody is to be kept out any longer */
    SQL_STAY,            /* a row if token and fence hold */
    SQL_LEAVE,           /* a row if the token was there, or the fence */
    SQL_SPOIL,           /* as SQL_BREAK; a row if that is so */
    SQL_TAKE_UP,         /* as SQL_TAKE; a row, column 1 is the slot */
    SQL_DOWNGRADE,       /* 1 if it shares, 2 if others have it with us */
    SQL_KEEP,            /* a row if it is kept */
    SQL_PROMOTE_HOLDER,  /* as SQL_PROMOTE */
    SQL_HOLDERS,         /* columns enum sql_inspect_row, all of `key` */
    SQL_HOLDERS_ALL,     /* the same by prefix, in the order of their keys */
    SQL_COLLECT_HOLDERS, /* remove those whose key nobody shares */
    SQL_STMTS
};

static inline bool sql_is_of_holders(enum sql_stmt stmt)
{
    return stmt > SQL_SHOW_HOLDERS;
}

static inline bool sql_is_script(enum sql_stmt stmt)
{
    return (sql_is_of_holders(stmt) && stmt < SQL_HOLDERS) ||
           (stmt >= SQL_TICKET && stmt <= SQL_LINGER);
}

/* Parameters: $1 key, $2 token, $3 ttl_ms, $4 owner, $5 note, $6 queue,
 * $7 number; in scripts $8 permits, $9 channel, $a nth, $b place_ms.  A
 * statement that has none of a kind just does not name it. */
struct sql_call {
    const char *key, *token, *owner, *note; /* NULL is NULL */
    int64_t ttl_ms;
    bool queue;          /* shall wait; with SQL_RENEW: may shorten the lease */
    int64_t number;      /* a version, a fence, a session */
    int32_t permits;     /* with a queue -1 of a plain claim */
    uint32_t nth;        /* try */
    int64_t place_ms;    /* how long a ticket lasts */
    const char *channel; /* where the waiter hears; NULL: nowhere */

    /* Of SQL_RENEW_MANY: the grants, in the order of their keys; their lists
     * fit into SQL_MANY_TEXT bytes, and there is room for a statement too. */
    struct hfi_renewal *const *items;
    const struct hfi_attempt *attempts; /* of SQL_TAKE_ALL */
    size_t count;
    char *room;
};

#define SQL_MANY_TEXT  (64 * 1024)
#define SQL_MANY_FRAME 4096

struct sql_cell {
    const char *data; /* NULL is NULL */
    size_t len;
    int64_t num; /* of a number, else 0 */
};

enum sql_try {
    SQL_TRY_FENCE, /* 0: busy; -1: ours, and broken; queue.c (9) */
    SQL_TRY_LEFT,
    SQL_TRY_VERSION,
    SQL_TRY_TTL,
    SQL_TRY_AGAIN, /* it changed under our hands */
    SQL_TRY_SLOT,
    SQL_TRY_TOKEN, /* that keeps us out; SQL_ACQUIRE: only one with a '*' */
    SQL_TRY_COLUMNS,
    SQL_TRY_PLACE = SQL_TRY_COLUMNS, /* in the queue, where there is one */
    SQL_TRY_QUEUE_COLUMNS
};

enum sql_pass {
    SQL_PASSED,
    SQL_PASS_ADMIT,  /* others may go in: SQL_ADMIT */
    SQL_PASS_WANTED, /* others wait */
    SQL_PASS_NOBODY, /* a token that was passed the lock and does not want it */
    SQL_PASS_COLUMNS
};

enum sql_inspect_row {
    SQL_LOOK_TOKEN, /* NULL: free */
    SQL_LOOK_FENCE,
    SQL_LOOK_LEFT,  /* ms; NULL: never lapses */
    SQL_LOOK_SINCE, /* ms; NULL: unknown */
    SQL_LOOK_OWNER,
    SQL_LOOK_NOTE,
    SQL_LOOK_VERSION,
    SQL_LOOK_TTL,
    SQL_LOOK_WANTED,
    SQL_LOOK_NAME,
    SQL_LOOK_COLUMNS,
    SQL_LOOK_PERMITS = SQL_LOOK_COLUMNS, /* these of SQL_HOLDERS only */
    SQL_LOOK_SLOT,
    SQL_LOOK_MODE,
    SQL_LOOK_KEPT,
    SQL_HOLDER_COLUMNS
};

enum sql_waiter {
    SQL_WAITER_TOKEN,
    SQL_WAITER_OWNER,
    SQL_WAITER_NOTE,
    SQL_WAITER_KIND,  /* -1 plain, 0 shared, else its permits */
    SQL_WAITER_SINCE, /* ms; NULL: unknown */
    SQL_WAITER_LEFT,  /* ms */
    SQL_WAITER_COLUMNS
};

/* What is wrong with a table, in words; NULL: nothing. */
enum sql_verify {
    SQL_VERIFY_TABLE,     /* its name */
    SQL_VERIFY_UNTRUSTED, /* others could act by it, or it forgets */
    SQL_VERIFY_UNFIT,     /* it lacks what the statements rely on */
    SQL_VERIFY_COLUMNS
};

#define SQL_CELLS SQL_HOLDER_COLUMNS

/* What a statement brought.  `row` is called for each row, and must not use
 * the session. */
struct sql_answer {
    void (*row)(struct sql_answer *, const struct sql_cell *, int n);
    void *arg;
    int64_t rows;     /* returned */
    int64_t affected; /* inserted, changed */
    int64_t id;       /* where a driver answers by a number */
};

/* Why a statement failed, beyond its status, for pool.c. */
enum sql_why {
    SQL_WHY_OTHER,
    SQL_WHY_RETRY,   /* a deadlock or the like: nothing happened, go again */
    SQL_WHY_TABLE,   /* there is no such table */
    SQL_WHY_COLUMN,  /* there is, but not as we know it */
    SQL_WHY_BLOCKED, /* somebody has the row, and we said not to wait */
    SQL_WHY_CUT,     /* its session was ended, which told us so */
    SQL_WHY_DEPOSED  /* this server takes no changes now, and the session is
                      * `broken`; pool.c (6) */
};

struct sql_session {
    struct hfi_link link; /* in the pool, or of row.c */
    struct sql_conn *conn;
    int64_t used_at;  /* when it came back to the pool */
    enum sql_why why; /* of the last failure */
    bool broken;      /* not to be used again */
    bool late;        /* a renewal is unanswered; pool.c (2) */
    int64_t heard_at; /* while it opens: when it last got on */
    int fd;           /* as fds.c knows it, or -1 */
    bool holders;     /* @H is there and was verified in this session */
    bool prepared[SQL_STMTS];
};

struct sql_conn;

struct sql_driver {
    const char *name;
    const char *quote; /* of an identifier: one or two characters */
    const char *const *texts[SQL_STRATEGIES]; /* NULL: see `refusal` */
    const char *const *queue; /* in place of those where there is a queue */
    const char *refusal;      /* why there is no row */
    const char *bytes[2], *text[2]; /* around hex digits in a script; NULL: the
                                     * driver binds the parameters */
    const char *home;  /* @S of a table without a schema; NULL: connect()
                            * finds it */
    const char *sole;  /* the only schema there is; or NULL */
    unsigned sessions; /* of the pool; 0: 8 */
    bool verify_each;  /* verify the table in each session, not only first */
    bool verify_once;  /* that of holders in the first session only */
    bool by_look;      /* SQL_ACQUIRE says only whether it was granted, and may
                        * forget even that: look when it says no */
    bool names; /* SQL_RENEW_MANY names what it has renewed; not with row */
    bool skips; /* SQL_RENEW_MANY never waits for a row; not with row */

    /* Connect a session, zeroed but for its base; settings included, checks of
     * the service too where `first`.  HF_BUSY at the deadline: another call
     * goes on from there.  disconnect() undoes it, however far it got. */
    size_t session_size;
    hf_status (*connect)(struct sql_session *, bool first, int64_t deadline,
                         struct hf_error *);
    void (*disconnect)(struct sql_session *);
    bool (*alive)(struct sql_session *); /* nothing unexpected has come */

    /* Throw away the answer of a renewal that came late; HF_BUSY if it has not
     * come by the deadline.  NULL: run() never leaves one behind. */
    hf_status (*settle)(struct sql_session *, int64_t deadline);

    /* Make renewals as fast as they can be; it is no failure if that cannot be
     * done.  May be NULL. */
    void (*prepare)(struct sql_session *, int64_t deadline);

    /* HF_OK, or a status as backend/backend.h (2) wants it with
     * session->why. */
    hf_status (*run)(struct sql_session *, enum sql_stmt,
                     const struct sql_call *, struct sql_answer *,
                     int64_t deadline, struct hf_error *);

    /* For strategy row, in a session that nobody else uses; see row.c.
     * Send a transaction that locks the row of `key`, and waits for it or
     * does not; see whether what was sent is done (with deadline 0: HF_BUSY if
     * not yet) and whether there is such a row; send a heartbeat, which says
     * how long the server shall keep it without hearing from us; end it. */
    hf_status (*row_send)(struct sql_session *, const char *key, bool wait,
                          int64_t ttl_ms, int64_t deadline, struct hf_error *);
    hf_status (*row_done)(struct sql_session *, bool *found, int64_t deadline,
                          struct hf_error *);
    hf_status (*row_beat)(struct sql_session *, int64_t ttl_ms,
                          struct hf_error *);
    hf_status (*row_end)(struct sql_session *, int64_t deadline,
                         struct hf_error *);
    int (*fd)(struct sql_session *);     /* needed by every strategy */
    int64_t (*id)(struct sql_session *); /* by which SQL_END and SQL_KILL know
                                          * it, and no other after it; 0: it
                                          * cannot be told */
};

/* Traits of strategies lease and version, and why row lacks them. */
#define SQL_SHARING                                                            \
    (HF_TRAIT_SHARED | HF_TRAIT_PERMITS | HF_TRAIT_MIN_HOLD |                  \
     HF_TRAIT_REENTRANT)
#define SQL_NO_PERMITS                                                         \
    "with strategy=row a lock is a row that one transaction has locked"
#define SQL_NO_WEAKER                                                           \
    "with strategy=row a transaction cannot weaken the lock of a row, so that " \
    "a downgrade would let others in"
#define SQL_NO_MIN_HOLD "with strategy=row a lock ends with its connection"

struct sql_row_state;
struct row_lock;

/* What a claim that waits has seen, until it is granted. */
struct sql_note {
    int64_t version, since;
    int64_t place_at; /* of a waiter that polls: since when it is there */
    int32_t place;
    int64_t marked_at; /* when it last did so */
    bool busy;         /* look before the next try */
    bool marked;       /* keeps others from sharing the key; share.c (5) */
    bool in_line;      /* has a ticket, or may have one */
    bool given;        /* has told the core that it was passed the lock */
    bool shared;       /* has found that others share the key */
};

/* receipt->own: `row` if `registered` with strategy row, else `note`. */
struct sql_grant {
    struct sql_note note;
    struct row_lock *row;
};

struct sql_fd;

/* Of keys, by their hash; see queue.c (7) and (8). */
#define SQL_HOT   256
#define SQL_KNOWN 1024

#define SQL_CHANNEL_MAX 96
#define SQL_TABLE_MAX   104
#define SQL_SCHEMA_MAX  136

struct sql_conn {
    struct hfi_conn base;
    const struct sql_driver *driver;
    enum sql_strategy strategy;
    bool opened;                   /* the mutex and the condition are there */
    bool create;                   /* make the table if it is missing */
    bool fair;                     /* there is a queue */
    atomic_uchar hot[SQL_HOT];     /* of the hash of a key: others wanted it */
    atomic_uint known[SQL_KNOWN];  /* hashes of keys that we had lately */
    char channel[SQL_CHANNEL_MAX]; /* where our waiters hear, */
    atomic_bool hears;             /* if they do */
    atomic_bool holders; /* with verify_once: @H is there and was verified */
    int64_t timeout_ms;
    char table[SQL_TABLE_MAX];   /* as the URL names it, checked */
    char schema[SQL_SCHEMA_MAX]; /* quoted, where connect() has found it for a
                                  * table without one; or "" */
    char home[SQL_SCHEMA_MAX];   /* the same as a string of SQL */
    char *texts[SQL_STMTS];

    pthread_mutex_t mu;
    struct hfi_cond freed; /* a session has come back */
    struct hfi_link idle;  /* of struct sql_session */
    struct hfi_link half;  /* likewise: those that are being opened */
    unsigned idles, lent;
    unsigned max_sessions;  /* lent at once, and */
    unsigned spare;         /* so many more to renewals */
    struct hfi_link doubts; /* of doubt.c */
    struct sql_fd *fds;     /* of fds.c */

    int64_t keep_ms;  /* how long a row stays that nobody uses; 0: for ever */
    atomic_uint uses; /* releases, for sql_collect_some() */
    atomic_bool sharing; /* some of them were of @H */
    pthread_mutex_t keep_mu;
    bool keep_began;                /* guarded by that, as is */
    char keep_from[HF_KEY_MAX + 1]; /* rows up to this key were looked at */

    struct sql_row_state *row;
};

/* ---- sql.c ------------------------------------------------------------- */

/* The options that all three have; a driver's list begins with them. */
#define SQL_OPTIONS "table", "strategy", "create", "pool", "queue", "keep"

hf_status sql_open(struct sql_conn *, const struct hfi_url *,
                   const struct sql_driver *, int64_t deadline,
                   struct hf_error *);
void sql_close(struct sql_conn *);

/* ---- pool.c ------------------------------------------------------------ */

/* Run a statement in a session of the pool.  Deadlocks are gone through again,
 * a missing table is made where that is allowed. */
hf_status sql_run(struct sql_conn *, enum sql_stmt, const struct sql_call *,
                  struct sql_answer *, int64_t deadline, struct hf_error *);
hf_status sql_connect(struct sql_conn *, bool first, struct sql_session **ret,
                      int64_t deadline, struct hf_error *);
void sql_disconnect(struct sql_session *);
void sql_prepare(struct sql_conn *, int64_t deadline);
void sql_put(struct sql_session *);

/* A session that may be kept for long: it does not count for the pool. */
hf_status sql_take(struct sql_conn *, struct sql_session **ret,
                   int64_t deadline, struct hf_error *);
void sql_give_back(struct sql_session *);

void sql_pool_close(struct sql_conn *);
/* Write the text in hex digits; its end is returned, without a NUL. */
char *sql_hex(char *at, const char *text);

hf_status sql_create(struct sql_session *, int64_t deadline, struct hf_error *);

/* ---- script.c ---------------------------------------------------------- */

/* The text of a script with the parameters of the call in it; NULL: no
 * memory. */
char *sql_script(const struct sql_conn *, enum sql_stmt,
                 const struct sql_call *);

/* The number of the parameter that begins at `at`; 0: there is none. */
int sql_script_param(const char *at);

/* ---- verify.c ---------------------------------------------------------- */

/* Is the table, or both of strategy row, all that the statements rely on?  Asked
 * in a session of the pool; `*there` tells whether it is there at all. */
hf_status sql_verify(struct sql_conn *, bool *there, int64_t deadline,
                     struct hf_error *);

/* The same in this session. */
hf_status sql_verify_session(struct sql_session *, bool *there,
                             int64_t deadline, struct hf_error *);

/* The same for @H, which nothing but what is about holders relies on. */
hf_status sql_verify_holders(struct sql_session *, bool *there,
                             int64_t deadline, struct hf_error *);

/* The same for @Q; `session` NULL: in one of the pool. */
hf_status sql_verify_queue(struct sql_conn *, struct sql_session *, bool *there,
                           int64_t deadline, struct hf_error *);

/* A table that was just used or made, and that nobody else could see. */
hf_status sql_verify_unseen(const struct sql_conn *, struct hf_error *);

/* One row of the answer. */
hf_status sql_verify_row(const struct sql_conn *, const struct sql_cell *,
                         struct hf_error *);

/* ---- doubt.c ----------------------------------------------------------- */

/* The statement for this token was not answered in that session. */
void sql_doubt_add(struct sql_conn *, struct sql_session *, const char *token);
bool sql_doubt_is(struct sql_conn *, const char *token);

/* The same for each token for which this statement may take a lock. */
void sql_doubt_statement(struct sql_session *, enum sql_stmt,
                         const struct sql_call *);

/* Make sure that none of them can arrive any more. */
hf_status sql_doubt_end(struct sql_conn *, const char *token, int64_t deadline,
                        struct hf_error *);
void sql_doubt_close(struct sql_conn *);

/* ---- fds.c ------------------------------------------------------------- */

bool sql_fds_open(struct sql_conn *);
void sql_fds_close(struct sql_conn *);
void sql_fds_add(struct sql_conn *, int fd);
void sql_fds_remove(struct sql_conn *, int fd);
void sql_after_fork_child(struct hfi_conn *); /* hfi_backend.forget */

/* Does the claim hold the key, and not only wait for it? */
static inline bool sql_holds(const struct hfi_receipt *receipt)
{
    return receipt->registered && receipt->fence;
}

/* ---- inspect.c --------------------------------------------------------- */

/* A row as SQL_LOOK describes it. */
struct sql_seen {
    bool there, held, wanted;
    int32_t use; /* with how many permits it is used, 0 shared; -1 not so */
    int64_t left_ms, version, ttl_ms;
    char token[HFI_TOKEN_LEN + 2]; /* a '!' before it: broken */
    struct hf_info info;
};

hf_status sql_inspect_row(struct sql_conn *, const char *key,
                          struct sql_seen *ret, int64_t deadline,
                          struct hf_error *);
hf_status sql_inspect(struct hfi_conn *, const char *key, struct hf_info *,
                      int64_t deadline, struct hf_error *);
hf_status sql_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                   void *arg, int64_t deadline, struct hf_error *);
/* A fence is the time of a grant in microseconds, and a transaction may take as
 * long as this to commit it. */
#define SQL_FENCE_SLACK 10000000
hf_status sql_list_since(struct hfi_conn *, const char *prefix, uint64_t fence,
                         hf_list_fn *, void *arg, int64_t deadline,
                         struct hf_error *);
hf_status sql_waiters(struct hfi_conn *, const char *key, hf_waiters_fn *,
                      void *arg, int64_t deadline, struct hf_error *);
hf_status sql_holders(struct hfi_conn *, const char *key, hf_holders_fn *,
                      void *arg, int64_t deadline, struct hf_error *);

/* Describe one of the holders of a key; false: nobody has this fence. */
hf_status sql_inspect_holder(struct sql_conn *, const char *key, uint64_t fence,
                             struct hf_info *, bool *there, int64_t deadline,
                             struct hf_error *);

/* Does somebody wait for the key? */
hf_status sql_is_wanted(struct sql_conn *, const char *key, bool *ret,
                        int64_t deadline, struct hf_error *);

/* ---- acquire.c --------------------------------------------------------- */

hf_status sql_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                          struct hfi_receipt *, struct hfi_answer *,
                          int64_t deadline, struct hf_error *);

/* How long a version must have stood still.  sql.c (4) */
int64_t sql_patience(int64_t ttl_ms);

struct sql_tried;

/* Take the row of a key that is free, and for which nobody waits, by one
 * statement; `again` if that is not all that may be tried. */
hf_status sql_try_free(struct sql_conn *, const struct sql_call *,
                       struct sql_tried *ret, int64_t deadline,
                       struct hf_error *);

/* One try, as the statement or a look tells it. */
struct sql_tried {
    int64_t fence; /* 0: busy; -1: ours, and broken */
    int64_t left_ms, version, ttl_ms;
    int64_t mine; /* the fence, if a look has found our own token */
    int32_t slot;
    int32_t use;   /* with how many permits others have it; -1: nobody has, or,
                  * to a plain claim, a plain one */
    int32_t place; /* in the queue */
    bool again;
};

/* ---- several.c --------------------------------------------------------- */

hf_status sql_try_acquire_all(struct hfi_conn *, struct hfi_attempt *, size_t n,
                              int64_t deadline, struct hf_error *);

/* ---- queue.c ----------------------------------------------------------- */

/* How long who was passed the lock has it until it is renewed, at most; the
 * statements know it, too. */
#define SQL_GIFT_MS 5000

/* One try, where there is a queue. */
hf_status sql_queue_try(struct sql_conn *, const struct hfi_claim *,
                        struct sql_call *, struct sql_note *,
                        struct sql_tried *ret, int64_t deadline,
                        struct hf_error *);

/* Keys for which others waited lately, and keys that are known to have a row:
 * queue.c (7) and (8). */
bool sql_queue_is_hot(struct sql_conn *, const char *key);
bool sql_queue_knows(struct sql_conn *, const char *key);
void sql_queue_know(struct sql_conn *, const char *key, bool known);

/* When a waiter at this place asks again although it hears nothing. */
int64_t sql_queue_left(int64_t left_ms, int32_t place);

/* The claim was told that the lock is busy: one that polls slowly asks soon
 * enough to keep its place. */
void sql_queue_expect(struct sql_conn *, const struct hfi_claim *);

/* Give back a plain lock or a ticket, or what has this fence; *ours: it was
 * there. */
hf_status sql_queue_release(struct sql_conn *, const char *key,
                            const char *token, uint64_t fence, bool *ours,
                            int64_t deadline, struct hf_error *);

/* Let in who can go in. */
hf_status sql_queue_admit(struct sql_conn *, const char *key, int64_t deadline,
                          struct hf_error *);

/* The holder lingers: *wanted, somebody waits already. */
hf_status sql_queue_linger(struct sql_conn *, const struct hfi_claim *,
                           bool *wanted, int64_t deadline, struct hf_error *);

/* ---- share.c ----------------------------------------------------------- */

/* With how many permits the row is used whose token this is: 0 is shared, -1
 * not at all, or by the claim whose token it is. */
int32_t sql_share_use(const char *token, size_t len);

/* Is the grant in @H, as far as the claim knows? */
static inline bool sql_share_is(const struct hfi_claim *claim)
{
    return claim->shared || claim->permits;
}

/* A row of enum sql_try, for struct sql_tried. */
void sql_share_row(struct sql_answer *, const struct sql_cell *, int n);

/* One try of such a claim. */
hf_status sql_share_enter(struct sql_conn *, struct sql_call *,
                          struct sql_tried *ret, int64_t deadline,
                          struct hf_error *);

/* A plain claim has found the key shared; call it again after SQL_DOOR_MS. */
#define SQL_DOOR_MS 1000
hf_status sql_share_door(struct sql_conn *, const struct hfi_claim *,
                         struct sql_note *, struct sql_tried *,
                         int64_t deadline, struct hf_error *);
void sql_share_door_end(struct sql_conn *, const struct hfi_claim *,
                        int64_t deadline);

/* ---- reenter.c --------------------------------------------------------- */

/* The claim has an owner id and was not granted: join those who hold under it,
 * then `tried` has the fence; or HF_INVALID if they hold in the other mode. */
hf_status sql_reenter(struct sql_conn *, const struct hfi_claim *,
                      struct sql_tried *tried, int64_t deadline,
                      struct hf_error *);

/* When a claim with an owner id asks again although it hears nothing. */
int64_t sql_reenter_left(int64_t left_ms);

/* ---- share_hold.c ------------------------------------------------------ */

/* A row of one number, for an int64_t. */
void sql_said_row(struct sql_answer *, const struct sql_cell *, int n);

/* HF_OK or, without a text, HF_LOST. */
hf_status sql_share_renew(struct sql_conn *, struct hfi_renewal *,
                          int64_t deadline, struct hf_error *);
hf_status sql_share_release(struct sql_conn *, const struct hfi_claim *,
                            int64_t deadline, struct hf_error *);
hf_status sql_share_break(struct sql_conn *, const char *key, uint64_t fence,
                          int64_t deadline, struct hf_error *);
hf_status sql_share_free(struct sql_conn *, const char *key, uint64_t fence,
                         int64_t deadline, struct hf_error *);
hf_status sql_share_take_over(struct sql_conn *, const struct hfi_claim *,
                              const char *token, struct hfi_receipt *,
                              int64_t deadline, struct hf_error *);

/* The slots of the vtable. */
hf_status sql_downgrade(struct hfi_conn *, const struct hfi_claim *,
                        struct hfi_receipt *, int64_t deadline,
                        struct hf_error *);
hf_status sql_keep(struct hfi_conn *, const struct hfi_claim *,
                   struct hfi_receipt *, int64_t ms, int64_t deadline,
                   struct hf_error *);

/* ---- release.c --------------------------------------------------------- */

hf_status sql_release(struct hfi_conn *, const struct hfi_claim *,
                      struct hfi_receipt *, int64_t deadline,
                      struct hf_error *);

/* The token as break leaves it.  sql.c (6) */
void sql_spoil(char ret[HFI_TOKEN_LEN + 2], const char *token);

/* ---- promote.c ---------------------------------------------------------- */

hf_status sql_promote(struct hfi_conn *, const struct hfi_claim *,
                      struct hfi_receipt *, const char *heir, int64_t deadline,
                      struct hf_error *);

/* ---- collect.c ---------------------------------------------------------- */

/* Where a client begins to count, by chance: of many that release once, some
 * look. */
unsigned sql_collect_begin(void);

/* The claim was given back: now and then look at a few rows and remove those
 * that nobody has used for `keep`. */
void sql_collect_some(struct sql_conn *, const struct hfi_claim *,
                      int64_t deadline);

hf_status sql_collect(struct hfi_conn *, int64_t older_ms, bool dry_run,
                      struct hf_collected *, int64_t deadline,
                      struct hf_error *);

/* ---- handle.c ---------------------------------------------------------- */

hf_status sql_attach(struct hfi_conn *, const struct hfi_claim *,
                     const struct hf_handle *, struct hfi_receipt *,
                     struct hf_error *);
hf_status sql_take_over(struct hfi_conn *, const struct hfi_claim *,
                        const char *token, struct hfi_receipt *,
                        int64_t deadline, struct hf_error *);

/* ---- break.c ----------------------------------------------------------- */

hf_status sql_break(struct hfi_conn *, const char *key, uint64_t fence,
                    int64_t deadline, struct hf_error *);
hf_status sql_free(struct hfi_conn *, const char *key, uint64_t fence,
                   int64_t deadline, struct hf_error *);

/* ---- renew.c ----------------------------------------------------------- */

void sql_renew(struct hfi_conn *, struct hfi_renewal *, size_t n,
               int64_t deadline, struct hf_error *);

/* In the order of kind and key; writes `st` and `reason` of each. */
void sql_renew_all(struct sql_conn *, struct hfi_renewal *const *, size_t n,
                   int64_t deadline, struct hf_error *);

#endif
