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
 *   keeper, a renewer for each class of lease in use, and up to 16 workers
 *   while there is work in the background.  None of them ever runs your code,
 *   and all of them block all signals.  hf_cancel() and hf_held() may
 *   be called from a signal handler.
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
 * ABI  Structs that you fill start with their size and grow at the end; set
 *   `size` with the macros below, and zero means the default.
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
#define HF_VERSION_MINOR 1
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
    HF_CANCELED,    /* hf_cancel(), hf_request_cancel() or hf_close() */
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

struct hf_error {
    hf_status status;
    int sys_errno;  /* of the failed system call, else 0 */
    char text[256]; /* one line, lower case, without a final newline */
};

const char *hf_status_name(hf_status status);
const char *hf_loss_name(hf_loss reason);
const char *hf_version(void); /* of the library that runs: "0.1.0" */

/* ---- client ------------------------------------------------------------ */

typedef struct hf_client hf_client;

struct hf_client_opts {
    size_t size;        /* sizeof(struct hf_client_opts) */
    int64_t timeout_ms; /* limit of one request to the service; default 5000 */
    const char *note;   /* note of locks that bring none; default host:pid */
};

#define HF_CLIENT_OPTS_INIT                                                    \
    {                                                                          \
        sizeof(struct hf_client_opts), 0, NULL                                 \
    }

/* Open the service that `url` names; NULL is "file:".  "" is HF_INVALID: it
 * comes from a variable that was never set, and a local lock instead of a
 * shared one would not be noticed.  See holdfast-url(7).  A network service is
 * contacted, so that a wrong address or password is told here. */
HF_CHECK hf_status hf_open(const char *url, const struct hf_client_opts *opts,
                           hf_client **ret, struct hf_error *err);

/* Cancel every waiter of the client, wait until their calls have returned,
 * release what is held (at most timeout_ms long) and free the client.  Locks
 * not yet released are lost with HF_LOSS_CLOSED; their handles still want
 * hf_release(). */
void hf_close(hf_client *client);

/* Wake every call that waits in this client and every request that it has
 * started: they end with HF_CANCELED and leave nothing behind.  Calls that
 * begin later are not touched.  Async-signal-safe. */
void hf_cancel(hf_client *client);

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
    size_t size;        /* sizeof(struct hf_service), set by you */
    unsigned traits;    /* enum hf_trait */
    char scheme[24];    /* "file" */
    char endpoint[256]; /* where, without any password: "file:/run/lock/x" */
    char warning[256];  /* what is doubtful about this set-up; "" if nothing */
    int64_t ttl_ms;     /* the lease of a lock that asks for none */
};

HF_CHECK hf_status hf_describe(hf_client *client, struct hf_service *ret,
                               struct hf_error *err);

/* A kind of service that this build knows.  It is valid during the call that
 * shows it. */
struct hf_service_kind {
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
};

#define HF_LOCK_OPTS_INIT                                                      \
    {                                                                          \
        sizeof(struct hf_lock_opts), 0, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0     \
    }

/* Take the lock `key` (1 to HF_KEY_MAX bytes, any but NUL).  `wait_ms`: 0 try
 * once, -1 wait for ever, n at most n ms.  On HF_OK the lock is held, and kept
 * by the keeper unless HF_MANUAL is set.  On any other status nothing of this
 * call stays in the service; where the service does not answer, what may be
 * there is being removed in the background, and after HF_UNCERTAIN that may be
 * the lock.  HF_TIMEOUT is also the answer when max_tries is used up. */
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
 * HF_LOST: it had been lost before; whatever is there now is untouched, and
 * the call does not wait for the service.
 * HF_UNCERTAIN: no answer; the client goes on trying until the lease is over.
 * An inner release of a reentrant lock only counts down. */
hf_status hf_release(hf_lock *lock, struct hf_error *err);

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

/* Greater than the fence of every earlier grant of this key.  Hand it to the
 * resource that the lock protects and let that refuse a smaller one.  Stays
 * the same while the lock stays with this client (reentrancy, linger, local
 * hand-over); HF_FAIR gives every acquisition its own.  The fence of a shared
 * lock is greater than that of every earlier exclusive one. */
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
    char token[40];
    char ref[64]; /* the service's own note; "" for most */
    uint64_t fence;
};

/* End the handle but leave the lock in the service, where it lapses at the end
 * of the lease unless somebody attaches to it and renews it.  If that fails the
 * lock is released. */
HF_CHECK hf_status hf_detach(hf_lock *lock, struct hf_handle *ret,
                             struct hf_error *err);

/* Take up a lock that was detached.  It is renewed at once with opts->ttl_ms;
 * HF_LOST if it is gone.  A handle is taken up once: from then on it is void,
 * and so is every copy of it. */
HF_CHECK hf_status hf_attach(hf_client *client, const char *key,
                             const struct hf_handle *handle,
                             const struct hf_lock_opts *opts, hf_lock **ret,
                             struct hf_error *err);

/* Renew or release a detached lock without taking it up: the handle stays good
 * for the next call.  HF_LOST if the lock is gone or was taken up. */
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
    size_t size;      /* sizeof(struct hf_info), set by you */
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
};

#define HF_INFO_INIT                                                           \
    {                                                                          \
        sizeof(struct hf_info), false, false, 0, 0, 0, 0, 0, "", "", 0, false, \
            false, 0, -1                                                       \
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

/* Call `fn` for each lock that is held and whose key begins with `prefix`
 * (NULL: all), in no order, in the caller's thread; false from it ends the
 * listing. */
typedef bool hf_list_fn(void *arg, const char *key, const struct hf_info *info);
HF_CHECK hf_status hf_list(hf_client *client, const char *prefix,
                           hf_list_fn *fn, void *arg, struct hf_error *err);

/* Take the lock away from its holder, if its grant is still the one with this
 * fence; HF_LOST if it is not.  The holder is told and cannot renew; nobody else
 * is granted the lock before the holder has released it or its lease is over.
 * hf_inspect() says how long that may take. */
HF_CHECK hf_status hf_break(hf_client *client, const char *key, uint64_t fence,
                            struct hf_error *err);

/* The same, but free the lock at once.  The old holder may be at work beside the
 * next one until it notices: for a holder that is known to be dead. */
HF_CHECK hf_status hf_break_force(hf_client *client, const char *key,
                                  uint64_t fence, struct hf_error *err);

/* HF_OK while the grant with this fence stands, HF_LOST once it does not; no
 * grant has fence 0. */
HF_CHECK hf_status hf_check(hf_client *client, const char *key, uint64_t fence,
                            struct hf_error *err);

/* ---- for programs with an event loop ----------------------------------- */

typedef struct hf_request hf_request;

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

/* End the request with HF_FAILED and HF_CANCELED, unless it is granted just
 * now; either event will come, also while the service is silent.  What a try
 * that is on the wire leaves in the service is removed in the background.
 * Valid until that event has been taken. */
void hf_request_cancel(hf_request *request);

/* The place in the service's queue, 1 is next; 0 if it is not known. */
int32_t hf_request_place(const hf_request *request);

enum hf_event_type {
    HF_GRANTED = 1, /* a request got its lock; the request is gone */
    HF_FAILED,      /* a request ended without; the request is gone */
    HF_AT_RISK,     /* not renewed, and only a third of the lease is left */
    HF_GONE         /* the lock is lost; hf_release() it */
};

struct hf_event {
    enum hf_event_type type;
    hf_loss reason;      /* HF_GONE */
    hf_request *request; /* HF_GRANTED, HF_FAILED: a name, not a handle */
    hf_lock *lock;       /* all but HF_FAILED */
    void *user;
    struct hf_error error; /* HF_FAILED */
};

/* A descriptor that is readable while events wait; the same one every time,
 * closed by hf_close().  -1 if there are no descriptors left. */
int hf_events_fd(hf_client *client);

/* Take the next event, if there is one.  Never blocks. */
bool hf_next_event(hf_client *client, struct hf_event *ret);

#ifdef __cplusplus
}
#endif

#endif
