/* SPDX-License-Identifier: MIT
 *
 * holdfast.h - distributed locks over the service you already run.
 *
 *     hf_client *client;
 *     hf_lock *lock;
 *     struct hf_error err;
 *
 *     if (hf_open("file:/var/lock/app", NULL, &client, &err) ||
 *         hf_acquire(client, "nightly", 5000, NULL, &lock, &err))
 *         return puts(err.text), 1;
 *     while (work_left() && hf_held(lock))
 *         do_some_work(hf_fence(lock));
 *     hf_release(lock, &err);
 *     hf_close(client);
 *
 * OWNERSHIP  A client and a lock are opaque handles.  hf_close() ends a client
 *   and releases everything it holds; hf_release() always ends the lock handle,
 *   whatever it returns, as close(2) does.  A handle whose client is closed is
 *   still yours to pass to hf_release(): it answers HF_LOST.  Strings passed
 *   in are copied.  Destructors take NULL.
 *
 * THREADS  Every function may be called from any thread at any time, on the
 *   same handle too, except that no other call may use a handle during or
 *   after the call that ends it.  Each client runs a few threads of its own: a
 *   keeper, a renewer for each class of lease in use, and up to 16 workers once
 *   there is work in the background, or 64 once a service that answers could
 *   not keep up; they last until hf_close().  None runs your code but the one
 *   that calls opts.log, and all of them block all signals.
 *   hf_canceler_cancel(), hf_cancel() and hf_held() are async-signal-safe.
 *
 * FORK  Handles are dead in a forked child: calls answer HF_INVALID and touch
 *   neither the parent's locks nor the service, and hf_held() is false.  Every
 *   descriptor is closed by exec; a child that goes on without exec calls
 *   hf_close(), which there only closes what it inherited.
 *
 * TIME  Durations are milliseconds.  Validity is counted on CLOCK_BOOTTIME,
 *   which runs while the machine is suspended and ignores changes of the wall
 *   clock, from the moment before the request was sent.
 *
 * ERRORS  Each call returns a status that is the whole truth; `err`, which may
 *   be NULL, then holds one line of text that names the place and never a
 *   password.  Nothing prints, nothing aborts.  Outputs are written on HF_OK
 *   only, unless the text beside a function says otherwise.
 *
 * ABI  Every struct but hf_error starts with its size and grows at the end; set
 *   `size` with the macros below, and zero means the default.  A library reads
 *   and writes no more of a struct than its size says, so a program that was
 *   built with an older header goes on working.  hf_error never changes.
 */
#ifndef HOLDFAST_H
#define HOLDFAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HF_VERSION_MAJOR 0
#define HF_VERSION_MINOR 2
#define HF_VERSION_PATCH 0

#if defined(__GNUC__)
#define HF_CHECK __attribute__((warn_unused_result))
#else
#define HF_CHECK
#endif

/* The longest key, owner id and note, in bytes, without the final NUL. */
#define HF_KEY_MAX   1024
#define HF_OWNER_MAX 128
#define HF_NOTE_MAX  256

/* ---- status ------------------------------------------------------------ */

/* Each means one thing.  hf_status_name() gives "busy" for HF_BUSY. */
typedef enum hf_status {
    HF_OK = 0,
    HF_BUSY,        /* somebody else holds it, and you did not want to wait */
    HF_TIMEOUT,     /* somebody else held it for as long as you would wait */
    HF_CANCELED,    /* hf_canceler_cancel(), hf_cancel(), hf_request_cancel()
                     * or hf_close() */
    HF_LOST,        /* the lock is not (or no longer) yours */
    HF_UNCERTAIN,   /* sent, no answer: being taken back in the background */
    HF_UNAVAILABLE, /* the service could not be reached or cannot serve now */
    HF_DENIED,      /* the service or the system refused: credentials, rights */
    HF_INVALID,     /* a wrong argument, URL, option or a dead handle */
    HF_UNSUPPORTED, /* this service or build cannot do that */
    HF_PROTOCOL,    /* an answer that makes no sense, or foreign data there */
    HF_NOMEM,       /* out of memory */
    HF_SYSTEM       /* a system call failed; see sys_errno */
} hf_status;

/* Why a lock was lost.  hf_loss_name() gives "expired" for HF_LOSS_EXPIRED. */
typedef enum hf_loss {
    HF_LOSS_NONE = 0, /* not lost */
    HF_LOSS_EXPIRED,  /* not renewed in time, as far as can be proven */
    HF_LOSS_STOLEN,   /* the service says that it belongs to somebody else */
    HF_LOSS_DELETED,  /* the service has no such lock any more */
    HF_LOSS_BROKEN,   /* an operator used hf_break() */
    HF_LOSS_SESSION,  /* the session or connection that carried it ended */
    HF_LOSS_QUORUM,   /* too few nodes confirm it */
    HF_LOSS_RESTART,  /* the node that granted it has restarted */
    HF_LOSS_MAX_HOLD, /* held for max_hold_ms */
    HF_LOSS_CLOSED    /* its client was closed */
} hf_loss;

/* Frozen: the only struct without a size, since nobody initialises it. */
struct hf_error {
    hf_status status;
    int sys_errno;  /* of the failed system call, else 0 */
    char text[256]; /* one line, lower case, without a final newline */
};

const char *hf_status_name(hf_status status);
const char *hf_loss_name(hf_loss reason);
const char *hf_version(void); /* of the library that runs: "0.2.0" */

/* ---- client ------------------------------------------------------------ */

typedef struct hf_client hf_client;

/* What happens in the background, for people.  Called by a thread of its own,
 * with no lock of the library held: it may take its time, and may not call the
 * library.  At most a hundred messages of a second are kept for it, and one more
 * says how many were left out; the text is one line without a final newline, and
 * never has a password. */
typedef enum hf_log_level {
    HF_LOG_ERROR = 1, /* a lock was lost; no more attempts to connect */
    HF_LOG_WARNING, /* renewals fail, a lock is at risk, a set-up is doubtful */
    HF_LOG_INFO,    /* retries, connections, what is taken back */
    HF_LOG_DEBUG    /* every grant and release */
} hf_log_level;
typedef void hf_log_fn(void *arg, hf_log_level level, const char *text);

struct hf_client_opts {
    size_t size;        /* sizeof(struct hf_client_opts) */
    int64_t timeout_ms; /* limit of one request to the service; default 5000 */
    const char *note;   /* note of locks that bring none; default host:pid */
    int64_t connect_ms; /* 0: hf_open() connects, or fails.  n, or -1 for no
                         * limit: hf_open() returns at once, and the client
                         * connects in the background, again and again for up to
                         * n ms */
    hf_log_fn *log;     /* NULL: no messages */
    void *log_arg;
    hf_log_level log_level; /* and all that are more urgent; default
                             * HF_LOG_WARNING */
    unsigned reserved;      /* 0 */
};

#define HF_CLIENT_OPTS_INIT                                                    \
    {                                                                          \
        sizeof(struct hf_client_opts), 0, NULL, 0, NULL, NULL,                 \
            (hf_log_level)0, 0                                                 \
    }

/* Open the service that `url` names; NULL is "file:".  "" is HF_INVALID: it
 * comes from a variable that was never set, and a local lock instead of a
 * shared one would not be noticed.  See holdfast-url(7).  A network service is
 * contacted, so that a wrong address or password fails here.
 * With connect_ms a call waits for the connection as part of its own limit:
 * wait_ms of an acquisition, timeout_ms of a single try and of all others.
 * When connect_ms are over, or after an error that is final, such as
 * a wrong password, every call fails at once with that error. */
HF_CHECK hf_status hf_open(const char *url, const struct hf_client_opts *opts,
                           hf_client **ret, struct hf_error *err);

/* Cancel every waiter of the client, wait until their calls have returned,
 * release what is held (at most timeout_ms long) and free the client.  Locks
 * not yet released are lost with HF_LOSS_CLOSED; their handles still want
 * hf_release(), and keep the descriptors of hf_lost_fd() until then.  All others
 * of the client are closed, but one that a canceler keeps. */
void hf_close(hf_client *client);

/* Wake every call that waits in this client and every request that it has
 * started: they end with HF_CANCELED and leave nothing behind.  Calls that
 * begin later are not touched: a signal handler that must not miss a call uses
 * an hf_canceler.  Async-signal-safe. */
void hf_cancel(hf_client *client);

/* Cancellation that cannot be lost.  A call that was given the canceler in its
 * options ends with HF_CANCELED, also one that begins after it was cancelled,
 * until hf_canceler_reset().  So it does not matter whether a signal comes
 * before the call or during it. */
typedef struct hf_canceler hf_canceler;
HF_CHECK hf_status hf_canceler_new(hf_client *client, hf_canceler **ret,
                                   struct hf_error *err);

/* Async-signal-safe, also after hf_close().  A lock that is granted just now is
 * granted. */
void hf_canceler_cancel(hf_canceler *canceler);

/* For calls that begin later; those that were under way end all the same. */
void hf_canceler_reset(hf_canceler *canceler);

/* Calls that have it may still be under way: they go on. */
void hf_canceler_free(hf_canceler *canceler);

/* What the service promises, as a set of bits. */
enum hf_trait {
    HF_TRAIT_FENCED = 1 << 0,    /* every grant has a rising number */
    HF_TRAIT_LEASED = 1 << 1,    /* lapses by itself when not renewed */
    HF_TRAIT_QUEUED = 1 << 2,    /* first come, first served */
    HF_TRAIT_NOTIFY = 1 << 3,    /* waiters are woken, not polling */
    HF_TRAIT_SHARED = 1 << 4,    /* HF_SHARED works */
    HF_TRAIT_REENTRANT = 1 << 5, /* owner ids count across processes */
    HF_TRAIT_DETACH = 1 << 6,    /* hf_detach() and hf_attach() work */
    HF_TRAIT_BREAK = 1 << 7,     /* hf_break() works */
    HF_TRAIT_PROCESSES = 1 << 8, /* excludes between processes */
    HF_TRAIT_MACHINES = 1 << 9,  /* excludes between machines */
    HF_TRAIT_DEATH = 1 << 10,    /* a dead process frees its locks at once */
    HF_TRAIT_TWICE = 1 << 11,    /* or only after up to twice the lease */
    HF_TRAIT_NOTED = 1 << 12,    /* owner id and note are kept with the lock */
    HF_TRAIT_PERMITS = 1 << 13,  /* opts.permits works */
    HF_TRAIT_MIN_HOLD = 1 << 14  /* opts.min_hold_ms works */
};

struct hf_service {
    size_t size;        /* sizeof(struct hf_service) */
    unsigned traits;    /* enum hf_trait */
    char scheme[24];    /* "file" */
    char endpoint[256]; /* where, without any password: "file:/run/lock/x" */
    char warning[256];  /* what is doubtful about this set-up; "" if nothing */
    int64_t ttl_ms;     /* the lease of a lock that asks for none */
};

#define HF_SERVICE_INIT                                                        \
    {                                                                          \
        sizeof(struct hf_service), 0, "", "", "", 0                            \
    }

HF_CHECK hf_status hf_describe(hf_client *client, struct hf_service *ret,
                               struct hf_error *err);

/* ---- counters ----------------------------------------------------------- */

/* Times that something took.  buckets[i] counts those below 2^i us that are in
 * no earlier one; the last has the rest. */
struct hf_histogram {
    uint64_t count, sum_us;
    uint64_t buckets[32];
};

/* Everything since hf_open(), but for `held` and `waiting`, which are now. */
struct hf_stats {
    size_t size; /* sizeof(struct hf_stats) */

    /* Acquisitions that have ended, by their status, and how long each has
     * waited: 0 if the client had the lock already. */
    uint64_t granted, busy, timeout, canceled, unavailable, uncertain, failed;
    struct hf_histogram wait;

    /* From grant to release, of reentrant locks to the last, in whole
     * milliseconds. */
    struct hf_histogram hold;

    /* Renewals: confirmed; not confirmed; confirmed when the lease was over.
     * What was left of the lease when a renewal was confirmed, in whole
     * milliseconds. */
    uint64_t renewed, renewals_failed, renewals_late;
    struct hf_histogram margin;

    uint64_t lost[16]; /* by hf_loss */
    uint64_t at_risk;
    uint64_t taken_back; /* claims, in the background */
    uint64_t reconnects; /* times that events may have been missed */

    /* On Redis, Redlock and etcd, and requests on the databases as well; 0 where
     * a client library or the system does the sending. */
    uint64_t requests, bytes_sent, bytes_received;

    uint64_t held, waiting;
};

#define HF_STATS_INIT                                                          \
    {                                                                          \
        sizeof(struct hf_stats), 0, 0, 0, 0, 0, 0, 0, {0, 0, {0}},             \
            {0, 0, {0}}, 0, 0, 0, {0, 0, {0}}, {0}, 0, 0, 0, 0, 0, 0, 0, 0     \
    }

#if defined(__cplusplus) && defined(__GNUC__) /* as with stat(2) */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
HF_CHECK hf_status hf_stats(hf_client *client, struct hf_stats *ret,
                            struct hf_error *err);
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* The same as OpenMetrics text, with a final NUL; *need is its size.  HF_INVALID
 * if that is more than `size`; a size of 0 only asks for *need. */
HF_CHECK hf_status hf_stats_text(hf_client *client, char *buf, size_t size,
                                 size_t *need, struct hf_error *err);

/* A kind of service that this build knows.  It is valid during the call that
 * shows it. */
struct hf_service_kind {
    size_t size;         /* of what the library knows: later fields are not
                          * there */
    const char *name;    /* "redis" */
    const char *schemes; /* "redis rediss redis+unix" */
    const char *options; /* those that are its own: "db keep"; "" if none */
    const char *page;    /* "holdfast-redis": its manual page, section 7 */
    const char *tested;  /* the versions that the tests run against; "" */
    const char *module;  /* the file that serves it; "" if the library does */
    const char *missing; /* why that cannot be loaded; "" if it can.  If not,
                          * only name, schemes and module are known */
    unsigned traits;     /* enum hf_trait, of most URLs */
    unsigned varies;     /* traits that some URLs or servers add or remove */
};

typedef bool hf_services_fn(void *arg, const struct hf_service_kind *kind);

/* Show each kind to `fn`, until that returns false.  Their modules are loaded,
 * and no server is asked. */
HF_CHECK hf_status hf_services(hf_services_fn *fn, void *arg,
                               struct hf_error *err);

/* ---- lock -------------------------------------------------------------- */

typedef struct hf_lock hf_lock;

enum hf_lock_flag {
    HF_MANUAL = 1 << 0, /* no keeper: hf_extend() is up to you */
    HF_FAIR = 1 << 1,   /* a place of its own in the service's queue, and no
                         * hand-over inside this client */
    HF_SHARED = 1 << 2, /* with other shared holders, never with another */
    HF_POLL = 1 << 3    /* ask every retry_ms even where the service notifies */
};

struct hf_lock_opts {
    size_t size;         /* sizeof(struct hf_lock_opts) */
    int64_t ttl_ms;      /* the lease; default 30000, at least 10 */
    const char *owner;   /* acquisitions with the same id are reentrant */
    const char *note;    /* for people who look at the lock */
    unsigned flags;      /* enum hf_lock_flag */
    int32_t max_tries;   /* give up after so many, answered or not; default no
                          * limit */
    int64_t retry_ms;    /* between polls, jittered; default 50 */
    int64_t linger_ms;   /* keep the lease this long after the last release */
    int64_t max_hold_ms; /* lose it after so long; default no limit */
    int32_t local_turns; /* hand-overs inside this client in a row; default 16,
                          * -1 no limit */
    int32_t permits;     /* at most so many holders at once, each with a slot of
                          * its own; default a plain lock.  All who use the key
                          * at a time say the same number */
    int64_t
        min_hold_ms; /* released earlier, it stays taken in the service until
                          * so long after the grant; nobody renews it, and the
                          * process may end */
    hf_canceler *canceler; /* of the same client: ends the wait */
};

#define HF_LOCK_OPTS_INIT                                                      \
    {                                                                          \
        sizeof(struct hf_lock_opts), 0, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0,    \
            NULL                                                               \
    }

/* Take the lock `key` (1 to HF_KEY_MAX bytes, any but NUL).  `wait_ms`: 0 try
 * once, -1 wait for ever, n at most n ms, and where the service does not answer
 * up to a second more, for what was sent.  On HF_OK the lock is held, and kept
 * by the keeper unless HF_MANUAL is set.  On any other status nothing of this
 * call stays in the service but, where a try had no answer, a mark that refuses
 * it if it arrives late; that ends by itself and is in nobody's way.  Where the
 * service does not answer, what may be there is being removed in the background,
 * and after HF_UNCERTAIN that may be the lock.  HF_TIMEOUT is also the answer
 * when max_tries is used up. */
HF_CHECK hf_status hf_acquire(hf_client *client, const char *key,
                              int64_t wait_ms, const struct hf_lock_opts *opts,
                              hf_lock **ret, struct hf_error *err);

/* Take the locks of `n` keys, all or none, with one limit of time for all:
 * locks[i] is that of keys[i].  They are taken in an order of their own, so that
 * two callers never wait for each other in a circle; what is held while the next
 * is waited for is renewed, and if it is lost meanwhile the call starts over.
 * HF_INVALID if there is no key or one is named twice. */
HF_CHECK hf_status hf_acquire_all(hf_client *client, const char *const *keys,
                                  size_t n, int64_t wait_ms,
                                  const struct hf_lock_opts *opts,
                                  hf_lock **locks, struct hf_error *err);

/* Give the lock back and end the handle.  HF_OK: it was ours until now.
 * HF_LOST: it had been lost before, also to an hf_break() that we have not heard
 * of, unless the lock only passes to another thread of the client or lingers;
 * whatever another has is untouched, and a loss that is known here does not
 * wait for the service.
 * HF_UNCERTAIN: no answer; the client goes on trying until the lease is over.
 * An inner release of a reentrant lock only counts down. */
hf_status hf_release(hf_lock *lock, struct hf_error *err);

/* The same, but return at once: the request to the service is sent in the
 * background.  If `ret` is not NULL an HF_ANSWERED event tells what
 * hf_release() would have returned; *ret is its request, or NULL if there is no
 * memory for one: then the lock is released all the same, and no event comes.
 * hf_request_cancel() has no effect on it.  Each request is limited by
 * timeout_ms, and a few are under way at a time: where the service is silent and
 * many releases wait, the event may take until the lease is over. */
typedef struct hf_request hf_request;
void hf_release_start(hf_lock *lock, void *user, hf_request **ret);

/* Renew now, with a new lease of `ttl_ms` (0 keeps the old one), counted from
 * this call; it may be shorter.  HF_LOST if the lock is not ours any more.
 * After a shorter lease that had no answer (HF_UNCERTAIN) the lock is relied on
 * for that much at a time, also if a longer one is confirmed later: the request
 * for the shorter one may yet arrive. */
HF_CHECK hf_status hf_extend(hf_lock *lock, int64_t ttl_ms,
                             struct hf_error *err);

/* Pure arithmetic, no system call but reading the clock.  Once false, always
 * false. */
bool hf_held(const hf_lock *lock);
hf_loss hf_lost_reason(const hf_lock *lock);

/* How long the lock can be relied on without another renewal; 0 once lost,
 * INT64_MAX where the service never takes a lock from a living process.  A lock
 * that was passed on to us may begin with less than its ttl and have all of it
 * a moment later; hf_extend() does not wait for that. */
int64_t hf_remaining_ms(const hf_lock *lock);

/* That of the grant: greater than the fence of every earlier grant of this key.
 * Hand it to the resource that the lock protects and let that refuse a smaller
 * one.  Stays the same while the lock stays with this client: acquisitions that
 * share a grant (reentrancy, linger, local hand-over) have its fence, also after
 * another's hf_break_force() and a later grant, until this client is told of it.
 * HF_FAIR gives every acquisition its own.  The fence of a shared lock is greater
 * than that of every earlier exclusive one. */
uint64_t hf_fence(const hf_lock *lock);

/* Which of the permits it is: 0 to permits - 1, different from that of every
 * other holder, and the same as long as it is held.  -1 without permits. */
int32_t hf_slot(const hf_lock *lock);

/* Make an exclusive lock a shared one, which nobody can come in between;
 * waiting shared ones that are next may join.  The fence stays.  After
 * HF_UNCERTAIN others may share it already: call again, or release it.  There
 * is no way back: two who upgrade would wait for each other, so acquiring in
 * the other mode under an owner id that holds the key is HF_INVALID. */
HF_CHECK hf_status hf_downgrade(hf_lock *lock, struct hf_error *err);

/* Let the waiter of that token, owner id or note be the next: it becomes the
 * first in the queue.  The lock stays ours until hf_release(), and then passes
 * to it; one that can share it with us has it at once.  HF_INVALID if nobody of
 * that name waits: the service knows those whom hf_waiters() tells, so of several
 * in another client that wait as one only the first can be named.
 * HF_UNSUPPORTED where the service cannot do it. */
HF_CHECK hf_status hf_transfer(hf_lock *lock, const char *heir,
                               struct hf_error *err);

/* The id of the acquisition in the service: the owner id, or 32 hex digits if
 * there is none or the service does not keep it (HF_TRAIT_NOTED). */
const char *hf_token(const hf_lock *lock);
const char *hf_key(const hf_lock *lock);

/* A descriptor that becomes readable when the lock is lost.  Made on first
 * use, closed by hf_release(); -1 if there are no descriptors left. */
int hf_lost_fd(hf_lock *lock);

/* ---- a lock that outlives the process ---------------------------------- */

/* What another process needs to go on with a lock. */
struct hf_handle {
    size_t size; /* sizeof(struct hf_handle) */
    char token[40];
    char ref[64]; /* the service's own note; "" for most */
    uint64_t fence;
};

#define HF_HANDLE_INIT                                                         \
    {                                                                          \
        sizeof(struct hf_handle), "", "", 0                                    \
    }

/* End the handle but leave the lock in the service, where it lapses at the end
 * of the lease unless somebody attaches to it and renews it.  If that fails the
 * lock is released. */
HF_CHECK hf_status hf_detach(hf_lock *lock, struct hf_handle *ret,
                             struct hf_error *err);

/* Take up a lock that was detached.  It is renewed at once with opts->ttl_ms;
 * HF_LOST if it is gone.  A handle is taken up once: from then on it is void,
 * and so is every copy of it.  The owner id need not be known; HF_SHARED and
 * opts->permits say how the lock is held, and if it is held otherwise that is
 * HF_INVALID, the error says how, and the handle stays good.  HF_UNSUPPORTED for a
 * mode or permits that the service does not have. */
HF_CHECK hf_status hf_attach(hf_client *client, const char *key,
                             const struct hf_handle *handle,
                             const struct hf_lock_opts *opts, hf_lock **ret,
                             struct hf_error *err);

/* Renew or release a detached lock without taking it up: the handle stays good
 * for the next call.  HF_LOST if the lock is gone or was taken up.  The handle
 * says which lock it is: of opts only the lease counts. */
HF_CHECK hf_status hf_handle_extend(hf_client *client, const char *key,
                                    const struct hf_handle *handle,
                                    const struct hf_lock_opts *opts,
                                    struct hf_error *err);
HF_CHECK hf_status hf_handle_release(hf_client *client, const char *key,
                                     const struct hf_handle *handle,
                                     const struct hf_lock_opts *opts,
                                     struct hf_error *err);

/* ---- looking and mending ------------------------------------------------ */

struct hf_info {
    size_t size;      /* sizeof(struct hf_info) */
    bool held;        /* the rest describes the first holder */
    bool shared;      /* in shared mode */
    uint64_t fence;   /* of the newest grant, also when it is free; 0 unknown */
    int64_t left_ms;  /* of the lease; -1 unknown or never lapses */
    int64_t since_ms; /* how long it has been held; -1 unknown */
    int32_t holders;  /* how many hold it */
    int32_t waiters;  /* how many wait; -1 unknown */
    char owner[HF_OWNER_MAX + 1]; /* token or owner id; "" unknown */
    char note[HF_NOTE_MAX + 1];   /* "" without HF_TRAIT_NOTED */
    int64_t takeover_ms; /* if the holder dies, others wait this long at most,
                          * where that is more than left_ms; 0 unknown */
    bool broken;         /* hf_break() was used: it stays taken until the holder
                          * releases it, or until left_ms are over */
    bool kept;           /* its holder has released it; min_hold_ms keeps it
                          * until left_ms are over */
    int32_t permits;     /* at most so many at once; 0: a plain lock */
    int32_t slot;        /* of this holder; -1 without permits */
    int32_t reserved;    /* 0 */
};

#define HF_INFO_INIT                                                           \
    {                                                                          \
        sizeof(struct hf_info), false, false, 0, 0, 0, 0, 0, "", "", 0, false, \
            false, 0, -1, 0                                                    \
    }

/* What an observer has to tell of one key; see hf_observe_start(). */
struct hf_change {
    size_t size; /* sizeof(struct hf_change) */
    char key[HF_KEY_MAX + 1];
    uint64_t reserved[4];
    struct hf_info info; /* `held` is false: nobody has it */
};

#define HF_CHANGE_INIT                                                         \
    {                                                                          \
        sizeof(struct hf_change), "", {0, 0, 0, 0}, HF_INFO_INIT               \
    }

/* Look at a lock without touching it.  Display only: it may be outdated when
 * it arrives. */
HF_CHECK hf_status hf_inspect(hf_client *client, const char *key,
                              struct hf_info *ret, struct hf_error *err);

/* Call `fn` for each holder of the lock, in no order, in the caller's thread;
 * false from it ends the listing.  `held` is true, and `holders` says how many
 * there are. */
typedef bool hf_holders_fn(void *arg, const struct hf_info *holder);
HF_CHECK hf_status hf_holders(hf_client *client, const char *key,
                              hf_holders_fn *fn, void *arg,
                              struct hf_error *err);

/* One who waits for a lock. */
struct hf_waiter {
    size_t size;      /* of what the library knows */
    int32_t place;    /* 1: the next */
    int32_t permits;  /* it asks for one of so many; 0: for a plain lock */
    int64_t since_ms; /* how long it has waited; -1 unknown */
    int64_t left_ms;  /* until its place is given up, unless it asks again; -1
                       * unknown */
    bool shared;      /* it asks for shared mode */
    char owner[HF_OWNER_MAX + 1]; /* token or owner id; "" unknown */
    char note[HF_NOTE_MAX + 1];   /* "" if it has none, or it is unknown */
    char reserved[5];             /* 0 */
};

#define HF_WAITER_INIT                                                         \
    {                                                                          \
        sizeof(struct hf_waiter), 0, 0, -1, -1, false, "", "", ""              \
    }

/* Call `fn` for each waiter of the lock that the service knows of, in the order
 * of its queue, in the caller's thread; false from it ends the listing.  Those
 * of one client that wait as one are one, unless they have HF_FAIR.
 * HF_UNSUPPORTED where the service does not know who waits. */
typedef bool hf_waiters_fn(void *arg, const struct hf_waiter *waiter);
HF_CHECK hf_status hf_waiters(hf_client *client, const char *key,
                              hf_waiters_fn *fn, void *arg,
                              struct hf_error *err);

/* Call `fn` for each lock that is held and whose key begins with `prefix`
 * (NULL: all), in no order, in the caller's thread; false from it ends the
 * listing. */
typedef bool hf_list_fn(void *arg, const char *key, const struct hf_info *info);
HF_CHECK hf_status hf_list(hf_client *client, const char *prefix,
                           hf_list_fn *fn, void *arg, struct hf_error *err);

/* Take the lock away from its holder, if its grant is still the one with this
 * fence; HF_LOST if it is not.  The holder is notified and cannot renew; nobody
 * else is granted the lock before the holder has released it or its lease is
 * over.  hf_inspect() says how long that may take.  Until the holder's client is
 * told, acquisitions inside it may still share the broken grant, with its fence. */
HF_CHECK hf_status hf_break(hf_client *client, const char *key, uint64_t fence,
                            struct hf_error *err);

/* The same, but free the lock at once.  The old holder may be at work beside the
 * next one until it notices: for a holder that is known to be dead. */
HF_CHECK hf_status hf_break_force(hf_client *client, const char *key,
                                  uint64_t fence, struct hf_error *err);

/* What hf_collect() has done. */
struct hf_collected {
    size_t size;        /* sizeof(struct hf_collected) */
    uint64_t looked_at; /* entries of the service */
    uint64_t removed;   /* of keys that have been free for long enough */
    uint64_t kept;
};

#define HF_COLLECTED_INIT                                                      \
    {                                                                          \
        sizeof(struct hf_collected), 0, 0, 0                                   \
    }

/* Remove from the service what keys that have been free for `older_ms` left
 * behind, such as rows, files and counters; with `dry_run` only count it.  Locks
 * that are held or waited for are not touched, and fences never go back by it.
 * HF_UNSUPPORTED where nothing stays.  The limit of time counts for each
 * request. */
HF_CHECK hf_status hf_collect(hf_client *client, int64_t older_ms, bool dry_run,
                              struct hf_collected *ret, struct hf_error *err);

/* HF_OK while the grant with this fence stands, HF_LOST once it does not; no
 * grant has fence 0. */
HF_CHECK hf_status hf_check(hf_client *client, const char *key, uint64_t fence,
                            struct hf_error *err);

/* ---- for programs with an event loop ----------------------------------- */

/* Begin to acquire; hf_next_event() tells the outcome.  `user` comes back in
 * every event of the request and of the lock that it gets. */
HF_CHECK hf_status hf_acquire_start(hf_client *client, const char *key,
                                    int64_t wait_ms,
                                    const struct hf_lock_opts *opts, void *user,
                                    hf_request **ret, struct hf_error *err);

/* The same for several keys.  `locks` has room for n of them and is filled when
 * hf_next_event() tells HF_GRANTED, whose `lock` is the first. */
HF_CHECK hf_status hf_acquire_all_start(hf_client *client,
                                        const char *const *keys, size_t n,
                                        int64_t wait_ms,
                                        const struct hf_lock_opts *opts,
                                        hf_lock **locks, void *user,
                                        hf_request **ret, struct hf_error *err);

/* hf_inspect(), hf_check() and hf_list() without waiting.  HF_ANSWERED tells the
 * end, and error.status how it went; the request is gone with that event.
 * `*ret` is written when the event is taken, if its status is HF_OK, and must be
 * there until then.  Where the service is silent the event may take twice
 * timeout_ms: a request may wait that long for its turn. */
HF_CHECK hf_status hf_inspect_start(hf_client *client, const char *key,
                                    struct hf_info *ret, void *user,
                                    hf_request **request, struct hf_error *err);
HF_CHECK hf_status hf_check_start(hf_client *client, const char *key,
                                  uint64_t fence, void *user,
                                  hf_request **request, struct hf_error *err);
HF_CHECK hf_status hf_list_start(hf_client *client, const char *prefix,
                                 void *user, hf_request **request,
                                 struct hf_error *err);

/* What a listing has found, one by one, after HF_ANSWERED with HF_OK; after any
 * other status its request is gone.  False: there is no more, and the request
 * is gone; or ret->size is no struct's, and nothing has happened.  hf_list_end()
 * ends it earlier, hf_close() at the latest. */
bool hf_list_next(hf_request *request, struct hf_change *ret);
void hf_list_end(hf_request *request);

/* End the request with HF_FAILED and HF_CANCELED, unless it is granted just
 * now; either event will come, also while the service is silent.  What a try
 * that is on the wire leaves in the service is removed in the background.  A
 * request that gets no lock ends with HF_ANSWERED and HF_CANCELED.
 * Valid until that event has been taken. */
void hf_request_cancel(hf_request *request);

/* The place in the service's queue, 1 is next; 0 if it is not known. */
int32_t hf_request_place(const hf_request *request);

enum hf_event_type {
    HF_GRANTED = 1, /* a request got its lock; the request is gone */
    HF_FAILED,      /* a request ended without; the request is gone */
    HF_AT_RISK,     /* not renewed, and only a third of the lease is left */
    HF_GONE,        /* the lock is lost; hf_release() it */
    HF_CHANGED,     /* hf_observer_next() has something, or the service does
                     * not answer (error), or does again */
    HF_ANSWERED     /* a request that gets no lock is over, and gone;
                     * error.status says how */
};

typedef struct hf_observer hf_observer;

struct hf_event {
    size_t size; /* sizeof(struct hf_event) */
    enum hf_event_type type;
    hf_loss reason;      /* HF_GONE */
    hf_request *request; /* HF_GRANTED, HF_FAILED, HF_ANSWERED: a name, not a
                          * handle */
    hf_lock *lock;       /* HF_GRANTED, HF_AT_RISK, HF_GONE */
    void *user;
    struct hf_error error; /* HF_FAILED, HF_ANSWERED; HF_CHANGED: HF_OK, or why
                            * the service gave no answer when last asked */
    hf_observer *observer; /* HF_CHANGED */
};

#define HF_EVENT_INIT                                                          \
    {                                                                          \
        sizeof(struct hf_event), (enum hf_event_type)0, HF_LOSS_NONE, NULL,    \
            NULL, NULL, {HF_OK, 0, ""}, NULL                                   \
    }

/* A descriptor that is readable while events wait; the same one every time,
 * closed by hf_close().  -1 if there are no descriptors left. */
int hf_events_fd(hf_client *client);

/* Take the next event, if there is one and ret->size is a struct's.  Never
 * blocks. */
bool hf_next_event(hf_client *client, struct hf_event *ret);

/* Lend a thread that may wait, and save the client the wake-up of one of its own
 * and of the one that watches the descriptor.  Call hf_lend() before something
 * is begun, and hf_work() after it, once for each hf_lend() and before anything
 * that may wait: no thread of the client comes for what was left to it.
 * hf_work() makes one request to the service, of what was begun and waits for a
 * thread, perhaps for another caller; false: there is none.  Then take all
 * events: the descriptor is not readable for an event of hf_work()'s own. */
void hf_lend(hf_client *client);
bool hf_work(hf_client *client);

/* ---- observing ---------------------------------------------------------- */

enum { HF_PREFIX = 1 << 0 }; /* the key is a prefix; "" is every key */

/* Hear of every change of a lock, or of all whose key begins with a prefix.
 * The present state comes first; of a key that nobody holds too, and of a
 * prefix the locks that are held.  Then comes another holder, nobody, another
 * mode, number of holders or mark.  Changes may be merged, and the last one is
 * always told; fences never go back, unless the service has lost its data.  That
 * of a free key, and of one that several hold, is the greatest that was seen:
 * where the service forgets it, later grants may have come and gone unseen.  It
 * goes on when the service cannot be reached for a while.  HF_CHANGED says when
 * to call hf_observer_next(), and whether the service answers; its `user` is this
 * one.  Any number of observers of one key cost the service no more than one. */
HF_CHECK hf_status hf_observe_start(hf_client *client, const char *key,
                                    unsigned flags, void *user,
                                    hf_observer **ret, struct hf_error *err);

/* Take the next change, with what is known of its key by now; false if there is
 * none, or ret->size is no struct's.  Never blocks.  Call it until it is
 * false. */
bool hf_observer_next(hf_observer *observer, struct hf_change *ret);

/* End the observer.  Never waits.  After hf_close() it is still yours to stop,
 * and has nothing to tell. */
void hf_observe_stop(hf_observer *observer);

#ifdef __cplusplus
}
#endif

#endif
