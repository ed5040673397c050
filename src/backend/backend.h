/* SPDX-License-Identifier: MIT
 *
 * backend.h - what a lock service must be able to do.
 *
 * A backend is one folder, src/backend/NAME/, and one line in
 * src/backend/meson.build.  Its main file ends with one constant:
 * `const struct hfi_backend hfi_backend_NAME = { ... };`.  It speaks one
 * protocol.  How long to wait, when to renew, when a lease is lost and what to
 * retry are decided once, in core/.
 *
 * RULES OF THE GAME
 *  (1) Any number of threads use a conn at once.  A backend shares its
 *      connection, keeps a pool or has a mutex, as its service likes best.
 *  (2) Every call returns by `deadline`.  If a request was sent and no answer
 *      came, the status is HF_UNCERTAIN, and what comes later is never taken
 *      for the answer to another.  If nothing was sent it is HF_UNAVAILABLE.
 *      Both are worth a retry; any other failure is final.
 *  (3) try_acquire() of a claim that holds already is HF_OK with the same
 *      fence; release() of a claim that does not hold is HF_LOST and changes
 *      nothing that belongs to another.  Both are safe to repeat.  A grant that
 *      was marked by break_grant() is given back, and that is HF_LOST, too; a
 *      plain one on file: is not looked at, since that would cost a call.
 *  (4) HF_OK from try_acquire() and renew() comes with a proof (base/lease.h
 *      (4)). The core has filled it in as if the service answered for itself:
 *      it will not grant the key to another before ttl_ms have passed since the
 *      call began.  A backend that can prove less says so there.
 *  (5) The core calls with none of its locks held, so a backend may hold its
 *      own mutex while it calls hfi_wake(), hfi_wanted() and their like.
 *  (6) Time and randomness come from base/env.h only; every wait ends by a
 *      deadline; nothing is printed.  What a backend decides by itself concerns
 *      its own connections: which of several servers to ask, how long to wait
 *      for a silent one and when to connect again, since only it knows the
 *      servers, in a thread of its own where no call may wait for it.
 *      (ZooKeeper has no sweep() and removes by itself what has lapsed on a
 *      session that other locks keep alive: zk/node.c (2) says why.)
 *  (7) A claim is used by one call at a time.
 *  (8) A grant is a token and a fence.  One that lapsed and was given again to
 *      the same token, by a try that arrived late, has another fence: renew()
 *      of the old one is HF_LOST.
 *  (9) Nothing is passed on while a holder may still be at work: a grant that
 *      break_grant() marked stays taken until its holder releases it or its
 *      lease is over.  Only free_grant() ends one at once.
 * (10) What is removed in passing (a sweep, a take-back) is removed on the
 *      condition that it still belongs to the session, or to the token and
 *      fence, that it is removed for; and it counts as removed only when the
 *      service has said so.
 * (11) A renewal for the bearer of a handle (claim.bearer) always changes what
 *      the service keeps of the grant, where removals and moves compare that:
 *      nothing that an earlier call has sent without an answer, from whichever
 *      process, fits the grant any longer.
 * (12) A grant is moved to another session only if that is proven for as long as
 *      the holder relies on the grant, which is what renew() was asked for at
 *      most; or hfi_lower() has told the core before that how long it is.  The
 *      answer to the move may be lost, and then nobody knows which session
 *      counts.
 * (13) A key is used in one way at a time.  It is plain, and then has one
 *      exclusive holder or any number of shared ones; or it has N permits, and
 *      then at most N holders, whose slots differ.  try_acquire() in another
 *      way than holders and waiters use is HF_INVALID, by hfi_fail_use().
 *      Whoever holds, holds by itself: each has a token, a fence and a lease of
 *      its own, and none keeps another alive.
 * (14) First come, first served, also among modes: a shared claim behind an
 *      exclusive one that waits stays behind it; where there is no queue, one
 *      that waits keeps new shared ones out for as long as it goes on asking.
 *      Shared claims next to each other at the head go in together.
 * (15) The fence of an exclusive grant is greater than every earlier one of the
 *      key; that of a shared one greater than every earlier exclusive one.
 *      Grants with permits have rising fences.
 * (16) renew(), release() and sweep() find a grant by its token and fence,
 *      whatever its mode, its permits and its owner id: a downgrade may have had
 *      no answer, and the bearer of a handle need not know.  take_over() takes
 *      up a grant in the mode of the claim and with its permits only, whatever
 *      its owner id; the core finds out why it was refused.
 */
#ifndef HFI_BACKEND_H
#define HFI_BACKEND_H

#include <stdatomic.h>

#include "base/error.h"
#include "base/lease.h"
#include "base/traffic.h"
#include "base/url.h"
#include "holdfast.h"

#define HFI_TOKEN_LEN 32

/* What we ask for.  Built by the core; only ttl_ms, poll_ms, nth and doubt ever
 * change. */
struct hfi_claim {
    const char *key;
    const char *owner; /* injected id: reentrant with its equals; or NULL */
    const char *note;
    int64_t ttl_ms;
    int64_t poll_ms; /* if this try is busy and nobody wakes us, we try again
                      * after so long */
    uint32_t nth;    /* which try_acquire() of this claim it is */
    int32_t permits; /* at most so many holders at once; 0: a plain lock */
    bool shared;     /* with others that share; never with permits */
    bool queue;      /* we shall wait: keep a place if it is busy */
    bool doubt;  /* a try had no answer: it may arrive after any later call */
    bool bearer; /* renewed for the bearer of a handle; see (11) */
    char token[HFI_TOKEN_LEN + 1]; /* hex digits, unique to this claim */
};

/* What we got.  Written by the backend, kept by the core, zeroed before the
 * first call.  A place in a queue is kept here too: release() of a claim that
 * was never granted withdraws it.  After HF_OK something is always kept. */
struct hfi_receipt {
    uint64_t fence;
    void *own;       /* the backend's own struct, of be->grant_size bytes */
    int32_t slot;    /* with permits: which it is, from 0 on.  try_acquire() and
                      * take_over() write it */
    bool registered; /* something of this claim is kept: release() it */
};

/* What the service says along with HF_BUSY, zeroed before the call; and with
 * HF_OK what that proves. */
struct hfi_answer {
    int64_t left_ms;  /* the holder's lease ends by then; 0 unknown */
    int32_t position; /* in the queue, 1 is next; 0 unknown */
    struct hfi_proof proof;
};

/* One of several keys that are to be taken together. */
struct hfi_attempt {
    const struct hfi_claim *claim;
    struct hfi_receipt *receipt;
    struct hfi_answer answer;
};

/* See send_ahead(); nobody else is told. */
#define HFI_AGAIN ((hf_status)-1)

/* A call that is about to be made: try_acquire(), or release(). */
struct hfi_ahead {
    const struct hfi_claim *claim;
    struct hfi_receipt *receipt;
    bool release;
};

/* One grant to be renewed. */
struct hfi_renewal {
    const struct hfi_claim *claim;
    struct hfi_receipt *receipt;
    int64_t ttl_ms;
    hf_status st;           /* out: HF_OK, HF_LOST, or why it is not known */
    hf_loss reason;         /* out, with HF_LOST */
    struct hfi_proof proof; /* with HF_OK */
};

/* Something that is observed for hf_observe_start(): a key, or all keys that
 * begin with a prefix.  The core has one for any number of observers. */
struct hfi_observation {
    const char *key; /* or the prefix */
    void *own;       /* be->observation_size bytes, zeroed */
    bool prefix;
    int64_t end; /* the deadline of unobserve() */
};

/* Every backend's connection starts with this. */
struct hfi_conn {
    const struct hfi_backend *be;
    struct hf_client *client;   /* for hfi_wake() and its like */
    unsigned traits;            /* be->traits, to which open() may add */
    atomic_bool listening;      /* watch() costs nothing now */
    struct hfi_traffic traffic; /* for hf_stats() */
    char endpoint[256];         /* for messages; never a password */
    char warning[256];          /* doubts about this set-up, or ""; open() may
                               * write it, later only hfi_warn() */
};

/* Traits that only the core needs to know, beside enum hf_trait. */
enum hfi_trait {
    HFI_TRAIT_EARLY = 1 << 24, /* a wake-up may overtake what it announces: try
                                * once more, shortly after */
    HFI_TRAIT_BOUND = 1 << 25, /* a grant lasts as long as a session, which
                                * other locks may keep alive */
    HFI_TRAIT_AHEAD = 1 << 26  /* send_ahead() sends: all calls go over one
                                * connection */
};

/* Those that callers see. */
#define HFI_TRAITS_PUBLIC 0xffffffu

struct hfi_backend {
    const char *const *schemes; /* "redis", "rediss"; ends with NULL */
    const char *const *options; /* its own URL options; ends with NULL */
    bool users;        /* each host of the URL may have a user of its own */
    size_t conn_size;  /* the core allocates this much, zeroed */
    size_t grant_size; /* and this much for each claim: receipt->own.  The core
                        * may move the bytes from one receipt to another */
    size_t observation_size; /* and this much for each observation->own */
    unsigned traits;
    unsigned usual;     /* traits that open() adds, but for some URLs */
    unsigned varies;    /* traits that it adds or removes for some URLs or
                         * servers */
    const char *page;   /* "redis": the manual page is holdfast-redis(7) */
    const char *tested; /* the versions that the tests run against; or NULL */
    const char *no_shared;    /* why it lacks HF_TRAIT_SHARED; or NULL */
    const char *no_permits;   /* why it lacks HF_TRAIT_PERMITS; or NULL */
    const char *no_min_hold;  /* why it lacks HF_TRAIT_MIN_HOLD; or NULL */
    int64_t fallback_poll_ms; /* waiters ask this often although they would be
                               * woken; 0 for half a lease */
    int64_t observe_gap_ms;   /* the least time between two looks at a key that
                               * is observed, where hfi_changed() often means
                               * other keys; 0 for 2 ms.  Ten times as long for
                               * a prefix */
    uint64_t fence_slack;     /* for list_since(): a grant that is shown later
                               * than another may have a fence that is smaller,
                               * by so much */

    /* Connect.  On failure the core calls close() all the same. */
    hf_status (*open)(struct hfi_conn *, const struct hfi_url *,
                      int64_t deadline, struct hf_error *);

    /* Undo open(), however far it got.  Every grant has been released. */
    void (*close)(struct hfi_conn *);

    /* Optional.  In a forked child: close the descriptors that it inherited,
     * and do nothing else.  Another thread of the parent may have been in the
     * middle of anything. */
    void (*after_fork_child)(struct hfi_conn *);

    /* Take the key if it is free: HF_OK or HF_BUSY.  Never waits for it.
     * HF_LOST if the service refuses this token from now on, because the claim
     * was given back before, or was granted and broken before this try: the core
     * gives back what it may have left and goes on with a fresh one. */
    hf_status (*try_acquire)(struct hfi_conn *, const struct hfi_claim *,
                             struct hfi_receipt *, struct hfi_answer *,
                             int64_t deadline, struct hf_error *);

    /* Goes with HFI_TRAIT_AHEAD.  These calls are made next, each once, in this
     * order, by this thread, none of a claim in doubt: send what they send
     * first, and wait for nothing but room to send.  What is not sent here they
     * send themselves.  A call that was sent may return HFI_AGAIN: nothing was
     * done, and it is to be made again, ahead or not. */
    void (*send_ahead)(struct hfi_conn *, const struct hfi_ahead *, size_t n,
                       int64_t deadline);

    /* Optional.  Take all these keys if all are free, in one request: HF_OK, as
     * from try_acquire() of each; or HF_BUSY, and none is taken and nothing is
     * kept of any.  HF_UNSUPPORTED if these cannot be had in one request: then
     * they are asked for one by one.  After HF_UNCERTAIN each may be taken. */
    hf_status (*try_acquire_all)(struct hfi_conn *, struct hfi_attempt *,
                                 size_t n, int64_t deadline, struct hf_error *);

    /* Prove that each grant stands, and extend it where it can lapse; never
     * shorten it, unless item.ttl_ms is less than claim.ttl_ms, since a request
     * may arrive later than the one that was sent after it.  One item's failure
     * never keeps another from being renewed. */
    void (*renew)(struct hfi_conn *, struct hfi_renewal *, size_t n,
                  int64_t deadline, struct hf_error *);

    /* Give up a grant or a place, owner-checked. */
    hf_status (*release)(struct hfi_conn *, const struct hfi_claim *,
                         struct hfi_receipt *, int64_t deadline,
                         struct hf_error *);

    /* Goes with HF_TRAIT_MIN_HOLD.  The holder has released the grant before
     * min_hold_ms were over: let it stay for `ms` from now on, whatever becomes
     * of this client, and mark it for hf_info.kept.  Nobody renews it, and its
     * owner id joins it no more.  HF_OK; HF_LOST if it is not ours, or was
     * broken: then the core goes on to release() it, so nothing that release()
     * needs is forgotten; safe to repeat. */
    hf_status (*keep)(struct hfi_conn *, const struct hfi_claim *,
                      struct hfi_receipt *, int64_t ms, int64_t deadline,
                      struct hf_error *);

    /* Goes with HF_TRAIT_SHARED.  Make the exclusive grant a shared one, in one
     * step, and let in the shared claims at the head of the queue.  Fence and
     * lease stay.  The claim says `shared` already.  HF_OK if it is shared;
     * HF_LOST if it is not ours; hfi_fail_joined() if others have it with us;
     * safe to repeat. */
    hf_status (*downgrade)(struct hfi_conn *, const struct hfi_claim *,
                           struct hfi_receipt *, int64_t deadline,
                           struct hf_error *);

    /* For a service whose grants hang on sessions (HFI_TRAIT_BOUND).  Nobody
     * here has this grant any more, and its lease is over (core/sweep.c):
     * remove it if a session of this client still carries it and it has not
     * changed since that was seen.  HF_OK; HF_LOST if it is gone or another's.
     * Where there is sweep(), it and release() leave receipt->registered set as
     * long as something of the claim may yet appear: a write had no answer, and
     * the session that it names may be alive.  Then they are called again. */
    hf_status (*sweep)(struct hfi_conn *, const struct hfi_claim *,
                       struct hfi_receipt *, int64_t deadline,
                       struct hf_error *);

    /* Optional.  Arrange that hfi_wake() is called when a try may succeed, from
     * now on; and, for a claim that holds, that hfi_wanted() is called when
     * somebody else asks for the key, or has asked already and still waits.
     * unwatch() ends it and never fails. */
    hf_status (*watch)(struct hfi_conn *, const struct hfi_claim *,
                       struct hfi_receipt *, int64_t deadline,
                       struct hf_error *);
    void (*unwatch)(struct hfi_conn *, const struct hfi_claim *,
                    struct hfi_receipt *);

    /* Optional.  A descriptor that is readable when dispatch() has something to
     * do, or -1; dispatch() is called by one thread at a time (core/listener.c)
     * and never blocks.  After a waiter has listened nobody may for 20 ms: a
     * call that waits for what dispatch() reads looks itself now and then.
     * Tell hfi_poll_fd_changed() when there is another descriptor. */
    int (*poll_fd)(struct hfi_conn *);
    void (*dispatch)(struct hfi_conn *);

    /* Optional.  See hf_detach(): write what the bearer of a handle must know
     * beside token and fence to ret->ref, which is zeroed. */
    void (*detach)(const struct hfi_receipt *, struct hf_handle *ret);

    /* Optional.  See hf_attach(): fill the receipt from a handle.  No question
     * is asked. */
    hf_status (*attach)(struct hfi_conn *, const struct hfi_claim *,
                        const struct hf_handle *, struct hfi_receipt *,
                        struct hf_error *);

    /* Goes with attach().  Give the grant of `token` with receipt->fence to the
     * claim's own token, in one step, so that a handle is taken up once only.
     * HF_OK if the claim has it already; HF_LOST if neither has.  What arrives
     * later for the old token, a renewal or a shorter lease, changes nothing. A
     * try of it may still take the key once that is free: the core goes on to
     * release() the old token, with claim->doubt, where one may be under
     * way. */
    hf_status (*take_over)(struct hfi_conn *, const struct hfi_claim *,
                           const char *token, struct hfi_receipt *,
                           int64_t deadline, struct hf_error *);

    /* Optional.  See hf_inspect(), hf_list() and hf_break().  A listing that
     * takes many requests may take longer: `deadline` is that of the first, and
     * each of the others may take as long. */
    hf_status (*inspect)(struct hfi_conn *, const char *key,
                         struct hf_info *ret, int64_t deadline,
                         struct hf_error *);
    hf_status (*list)(struct hfi_conn *, const char *prefix, hf_list_fn *,
                      void *arg, int64_t deadline, struct hf_error *);

    /* Optional, for a service that keeps the fences of free keys and whose fences
     * rise from grant to grant, whichever keys they are of (but for
     * `fence_slack`): as list(), and also those that nobody holds and whose fence
     * is this or a newer one.  UINT64_MAX: of the free ones that with the newest
     * fence, unless one that is held has a newer one. */
    hf_status (*list_since)(struct hfi_conn *, const char *prefix,
                            uint64_t fence, hf_list_fn *, void *arg,
                            int64_t deadline, struct hf_error *);

    /* Optional: inspect() of several keys in fewer requests than keys.  Calls
     * the function for each, in any order, whether it is held or not; but not
     * for a key of which the service could tell nothing now. */
    hf_status (*inspect_several)(struct hfi_conn *, const char *const *keys,
                                 int n, hf_list_fn *, void *arg,
                                 int64_t deadline, struct hf_error *);

    /* Goes with HF_TRAIT_SHARED and HF_TRAIT_PERMITS.  See hf_holders(). */
    hf_status (*holders)(struct hfi_conn *, const char *key, hf_holders_fn *,
                         void *arg, int64_t deadline, struct hf_error *);

    /* Optional.  See hf_waiters(): in the order of the queue, `place` counted
     * from 1.  Who is known to be dead may be left out. */
    hf_status (*waiters)(struct hfi_conn *, const char *key, hf_waiters_fn *,
                         void *arg, int64_t deadline, struct hf_error *);
    hf_status (*break_grant)(struct hfi_conn *, const char *key, uint64_t fence,
                             int64_t deadline, struct hf_error *);

    /* Goes with break_grant().  See hf_break_force(): end the grant at once and
     * let the next in, though its holder may be at work. */
    hf_status (*free_grant)(struct hfi_conn *, const char *key, uint64_t fence,
                            int64_t deadline, struct hf_error *);

    /* Optional.  Arrange that hfi_changed() is called when what inspect() says
     * of the key, or list() of the prefix, may have changed, from now on; it
     * may be called for nothing.  An inspect() after this has returned HF_OK
     * misses nothing.  It lasts until unobserve(), through reconnects and
     * restarts of the service: then hfi_changed() with NULL says that events
     * may have been missed; and when a connection breaks that tells, so that
     * the core finds out at once whether the service is there.  After any other
     * status the core tries again, and polls meanwhile; HF_UNSUPPORTED is final
     * for this observation.  unobserve() never fails, is called once after HF_OK, and no upcall for
     * the observation is under way once it has returned.  What it asks of the
     * service ends by observation->end, and lapses where it was not asked.
     * Both are called by one thread at a time for one observation.  Without
     * them the core polls. */
    hf_status (*observe)(struct hfi_conn *, struct hfi_observation *,
                         int64_t deadline, struct hf_error *);
    void (*unobserve)(struct hfi_conn *, struct hfi_observation *);

    /* Optional.  The core is about to look for an observation, after hfi_changed()
     * or by itself: what the service needs so that it goes on telling, and so that
     * the look sees what was told.  After any other status than HF_OK the core
     * looks, and does all this again soon.  Called as observe() is, and never
     * for inspect() and list() by themselves. */
    hf_status (*reobserve)(struct hfi_conn *, struct hfi_observation *,
                           int64_t deadline, struct hf_error *);

    /* Optional.  See hf_transfer(): the waiter of that token, owner id or note
     * becomes the first in the queue of the key that the claim holds.  HF_OK
     * also if it is; HF_INVALID if nobody of that name waits; HF_LOST if the
     * claim does not hold.  Safe to repeat. */
    hf_status (*promote)(struct hfi_conn *, const struct hfi_claim *,
                         struct hfi_receipt *, const char *heir,
                         int64_t deadline, struct hf_error *);

    /* Optional.  See hf_collect(): remove what keys that have been free for
     * `older_ms` left behind, in small steps, each by `deadline` from its own
     * beginning; with dry_run only count.  Fences never go back by it. */
    hf_status (*collect)(struct hfi_conn *, int64_t older_ms, bool dry_run,
                         struct hf_collected *ret, int64_t deadline,
                         struct hf_error *);
};

/* What a backend tells the core, from any thread, at any time. */
void hfi_wake(struct hfi_conn *, const char *key,
              const char *token); /* a try may succeed now; NULL: anybody's */
void hfi_granted(struct hfi_conn *, const char *key, const char *token,
                 uint32_t nth, uint64_t fence, int32_t slot,
                 int64_t ms); /* the claim has it, for `ms` from some moment
                               * after the service served its nth try */
void hfi_wake_all(struct hfi_conn *); /* events may have been missed */
void hfi_expect(
    struct hfi_conn *, const char *key, const char *token,
    int64_t ms); /* a try may succeed by then, if nothing is heard */
void hfi_wanted(struct hfi_conn *, const char *key); /* somebody asks for it */
void hfi_gone(struct hfi_conn *, const char *key, const char *token,
              hf_loss reason); /* this grant is no more */
void hfi_lower(struct hfi_conn *, const char *key, const char *token,
               int64_t end); /* this grant is about to hang on something that is
                              * proven until then: see (12) */
bool hfi_left(struct hfi_conn *, const struct hfi_claim *,
              const struct hfi_receipt *); /* the claim goes on as another:
                                            * what this receipt says may be left
                                            * and is to be released; false: no
                                            * memory */
void hfi_changed(struct hfi_conn *, struct hfi_observation *,
                 const char *key); /* it may have changed; NULL: any key below
                                    * the prefix, or events were missed */
void hfi_poll_fd_changed(struct hfi_conn *); /* ask poll_fd() again */
void hfi_warn(struct hfi_conn *,
              const char *text); /* the set-up is doubtful after all */

/* The key is in use in another way: with `permits`, or as a plain lock if that
 * is 0.  HF_INVALID.  See (13). */
hf_status hfi_fail_use(struct hf_error *, const struct hfi_claim *,
                       int32_t permits);

/* The owner id of the claim holds the key in the other mode already: it would
 * wait for itself.  HF_INVALID.  try_acquire() says so where owner ids count
 * (HF_TRAIT_REENTRANT), and the core for what this client holds. */
hf_status hfi_fail_other_mode(struct hf_error *, const struct hfi_claim *);

/* Nobody that is called so waits for the key.  HF_INVALID, from promote(). */
hf_status hfi_fail_heir(struct hf_error *, const struct hfi_claim *,
                        const char *heir);

/* The grant cannot be downgraded: several claims of one owner id have it
 * together.  HF_INVALID. */
hf_status hfi_fail_joined(struct hf_error *, const struct hfi_claim *);

/* The backend for a URL scheme, loaded if it is a module. */
hf_status hfi_backend_find(const char *scheme, const struct hfi_backend **ret,
                           struct hf_error *);

/* See hf_services(). */
void hfi_backend_each(hf_services_fn *fn, void *arg);

/* "mem:, file:": what this build can open, one scheme of each service. */
void hfi_backend_names(char *buf, size_t size);

#endif
