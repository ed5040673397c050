/* SPDX-License-Identifier: MIT
 *
 * core.h - the structs of the core: who points to whom and who guards what.
 *
 *   hf_client -- key queues: one per key that this client wants or has
 *                  |-- waiting:    requests in the local queue
 *                  |-- contending: requests that talk to the service
 *                  `-- grants:      grants of this key
 *             -- lost, reap: grants that are over but not yet done with
 *             -- timers: when the keeper must look at a grant or a request
 *             -- renewers: a thread for each class of lease (renewer.c)
 *             -- workers: threads that step requests, reap and look (worker.c)
 *             -- observed: what observers want to know (observe.h)
 *   hf_lock   -- a caller's handle; several may share one grant
 *   hf_request-- one acquisition under way; or the face of a job (job.h)
 *
 * LOCKING  `mu` of the client guards everything below unless a field says
 * otherwise.  It is never held across a call to the backend.  A backend's own
 * mutex may be held while `mu` is taken, never the other way round.
 *
 * A grant is in exactly one place at a time, and its state says which:
 *
 *   CLAIMING   of a request that asks for it        (in no list)
 *   HELD       has handles                          (queue->grants)
 *   LINGERING  has no handle, is kept for the next  (queue->grants)
 *   RELEASING  its release is on the wire           (queue->grants)
 *   LOST       latched; handles may remain          (client->lost)
 *   REAPING    to be taken back in the background   (client->reap or timer)
 *   LEFT       of a bearer; swept when its lease is over    (queue->left; and
 *                                                    client->reap or timer)
 *
 *   CLAIMING -> HELD <-> LINGERING -> RELEASING -> gone
 *       |         `-> LOST -> RELEASING -> gone |
 *       `------------> REAPING <----------------'   (no answer)
 *   HELD -> LEFT -> gone                            (detached)
 */
#ifndef HFI_CORE_H
#define HFI_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/env.h"
#include "base/heap.h"
#include "base/lease.h"
#include "base/list.h"
#include "base/map.h"
#include "core/observe.h"

#define HFI_RETRY_DEFAULT   INT64_C(50)
#define HFI_TURNS_DEFAULT   16
#define HFI_RENEWERS        13 /* classes of leases, from 10 ms to 41 s and more */
#define HFI_RENEWER_THREADS 8 /* of one class at most, where many are due */
#define HFI_WORKERS         16
#define HFI_WORKERS_MAX     64 /* while the service answers */
#define HFI_AHEAD_MAX       32 /* requests that a worker sends together */

/* A try that is on the wire when the wait is over may still be answered: a
 * little late and certain is better than in time and not. */
#define HFI_ANSWER_MS 1000

/* What a caller asks for, checked and with all defaults filled in. */
struct hfi_lock_params {
    const char *owner, *note; /* the caller's; copied into the claim */
    int64_t ttl_ms, retry_ms, linger_ms, max_hold_ms, min_hold_ms;
    int32_t max_tries, local_turns; /* INT32_MAX: no limit */
    int32_t permits;
    unsigned flags;
    struct hf_canceler *canceler;
    bool unchecked; /* made offline: what the service can do is not known */
};

enum hfi_grant_state {
    HFI_CLAIMING,
    HFI_HELD,
    HFI_LINGERING,
    HFI_RELEASING,
    HFI_LOST,
    HFI_REAPING,
    HFI_LEFT
};

/* A claim, and once it is granted, the grant. */
struct hfi_grant {
    struct hfi_timer timer;      /* what the keeper has to do next */
    struct hfi_link link;        /* in the list that `state` names */
    struct hfi_link handles;     /* of struct hf_lock */
    struct hfi_link due;         /* of its renewer, while it waits for that; in
                                  * queue->left while LEFT; in queue->extended
                                  * during a renewal for a bearer */
    struct hfi_key_queue *queue; /* owns the key */
    struct hfi_claim claim;      /* constant while a backend looks at it */
    struct hfi_receipt receipt;  /* the backend's, one call at a time */
    _Atomic int64_t deadline;    /* held before it; 0 once lost; read freely */
    int64_t lease_end;           /* end of the proven lease */
    _Atomic int64_t hold_end;    /* end by max_hold_ms, or HFI_NEVER */
    int64_t min_end;             /* given back before it, it is kept; or 0 */
    int64_t lease_ms;            /* and how long that was in all */
    int64_t next_at;             /* next renewal; end of ttl when reaping; when
                                 * its last try began while CLAIMING */
    int64_t most_ms;             /* the longest lease that a request asked for;
                                  * HFI_NEVER: not known */
    int64_t want_ms;             /* a longer lease, from the next renewal on */
    int64_t reap_pause;          /* while REAPING */
    int64_t linger_end;          /* while LINGERING */
    int32_t linger_ms;           /* after the next release */
    int32_t turns;               /* local hand-overs left */
    _Atomic unsigned char loss;  /* hf_loss, latched; read freely */
    unsigned char state;         /* enum hfi_grant_state */
    unsigned short quiet;        /* calls that wait for its renewal to end */
    unsigned short failed;       /* renewals in a row that had no answer */
    unsigned aside;              /* handles whose caller waits for others too */
    int64_t short_ms;      /* a shorter lease that was asked for and had no
                                 * answer, and may yet arrive; 0: none */
    bool local_grant : 1;  /* the local queue goes through it */
    bool manual : 1;       /* HF_MANUAL: never renewed by the keeper */
    bool busy : 1;         /* a renewal is on the wire */
    bool warned : 1;       /* HF_AT_RISK was told for this lease */
    bool watched : 1;      /* unwatch() is due */
    bool unsubscribed : 1; /* what the watch should tell may have been missed */
    bool uncertain : 1;    /* a try had no answer */
    bool wanted : 1;       /* somebody elsewhere asked: do not linger */
    bool abandoned : 1;    /* its request ended while a try was on the wire */
    bool answered : 1;     /* the service has answered to its release */
    bool downgrading : 1;  /* a downgrade had no answer */
    int64_t own[];         /* receipt.own: be->grant_size bytes */
};

struct hfi_key_queue {
    struct hfi_node node;       /* in client->queues */
    struct hfi_link waiting;    /* of struct hf_request: the local queue */
    struct hfi_link contending; /* of struct hf_request */
    struct hfi_link grants;     /* of struct hfi_grant */
    struct hfi_link left;       /* of struct hfi_grant: to be swept */
    struct hfi_link extended;   /* the same: renewed for bearers just now */
    struct hfi_grant
        *local_grant;          /* the grant that the local queue waits for */
    struct hf_request *leader; /* the contender that will bring one */
    struct hfi_link held_back; /* of struct hf_request: their first try waits */
    bool trying;    /* for the first try of one that a worker is at */
    uint32_t users; /* grants and requests that point here */
    char key[];
};

struct hf_lock {
    struct hf_client *client;
    struct hfi_grant *grant;
    struct hfi_link link; /* in grant->handles */
    struct hfi_notice notice;
    void *user;
    int64_t since_us; /* the caller has it since then; 0: not known */
    int lost_fd;
    bool aside;   /* of several: the caller has not got it yet */
    bool leaving; /* hf_release_start() has ended it; see release.c (2) */
    struct hfi_link queued; /* and it waits for a worker: in client->releases */
    struct hfi_job *job;    /* to tell the outcome, or NULL */
};

/* Several keys that one request takes, one after the other; see several.c. */
struct hfi_part {
    char *key;
    size_t place; /* in the caller's list */
    struct hf_lock *lock;
};

struct hfi_several {
    struct hfi_lock_params params;
    char *owner, *note; /* of `params`, unless the note is the client's */
    struct hf_lock **ret;
    int64_t max_hold_ms, min_hold_ms; /* from when the caller has them all */
    size_t n, at;                     /* the request asks for parts[at] */
    struct hfi_part parts[];
};

/* A grant that came by itself, and not as the answer to a try. */
struct hfi_handoff {
    uint64_t fence; /* 0: there is none */
    int32_t slot;
    int64_t ms;
};

/* Where the thread of a blocking request sleeps.  They belong to the client and
 * are used again and again, so one may be woken after its sleeper has left: a
 * wake-up for nothing, where a condition of the request's own would be gone. */
struct hfi_sleeper {
    struct hfi_sleeper *next; /* in client->sleepers */
    struct hfi_cond cond;
    atomic_bool
        listens; /* its thread sleeps on the listener's notifier instead */
};

enum hfi_request_state {
    HFI_WAITING,    /* in the local queue */
    HFI_CONTENDING, /* asks the service */
    HFI_GRANTED,    /* `lock` holds */
    HFI_FAILED      /* `result` says why */
};

struct hf_request {
    struct hf_client *client;
    struct hfi_key_queue *queue;
    struct hfi_link link;    /* in queue->waiting or ->contending */
    struct hfi_grant *grant; /* its claim; NULL once granted or given up */
    struct hfi_grant *return_first; /* to be given back before its first try */
    struct hf_lock *lock;           /* the handle it will fill */
    struct hfi_several *several;    /* it goes on to other keys; or NULL */
    struct hfi_lock_params params;  /* owner and note point into grant->claim */
    int64_t wait_end;               /* HFI_NEVER; or `begin` for a single try */
    int64_t began_us,
        ended_us; /* for hf_stats(): when it began and was granted;
                                 * 0: not yet */
    int64_t next_try;
    int64_t expected; /* by then its turn may have come; 0: not told */
    struct hfi_handoff handoff; /* what the service gave it while it slept */
    unsigned cancel_seen;       /* client->cancels when it began */
    unsigned canceler_seen;     /* and hfi_canceler_times() */
    int32_t tries;
    _Atomic int32_t position;
    enum hfi_request_state state;
    bool once;             /* wait_ms 0 */
    bool canceled;         /* by hf_request_cancel() */
    bool woken;            /* try now */
    bool retry_early_wake; /* the last try followed a wake-up */
    bool called;           /* the service told it to try */
    bool broken;           /* its claim was, since its last try was sent */
    bool arm_first;        /* it arranges to be woken before its next try */
    bool on_wire;          /* its try, or its watch, is on the wire */
    bool async;            /* a worker steps it, an event ends it */
    bool stepping;         /* a worker is at it */
    bool moving;           /* it goes on to the next of several keys */
    bool waited;           /* it was not served at once */
    bool moves_on;         /* and has that already: on to the one after it */
    int failures;          /* tries in a row that the service did not answer */
    int late;              /* grants that came when their lease was over */
    hf_status result;
    struct hfi_sleeper *sleeper; /* blocking: its thread sleeps here, or NULL */
    struct hfi_timer timer;      /* async: when to step it */
    struct hfi_link ready;    /* async: in client->ready or queue->held_back */
    struct hfi_notice notice; /* async: its end */
    struct hfi_job *job;      /* it is the face of a job (job.h), or NULL */
    void *user;
    struct hf_error err; /* last: only its status is set at the beginning */
};

/* A try of a request, from before it is sent to after its answer; acquire.c. */
struct hfi_try {
    struct hf_request *rq;   /* gone if the grant was abandoned */
    struct hfi_grant *grant; /* its claim */
    struct hfi_answer answer;
    int64_t sent, deadline;
    bool with_others; /* the thread that sends it has others to see to */
    struct hf_error err;
};

/* What a step of a request has come to. */
enum hfi_step {
    HFI_STEP_OVER,  /* the request is, and may be gone */
    HFI_STEP_LATER, /* it is to be stepped again */
    HFI_STEP_TRY    /* it is about to ask the service, or must ask again */
};

/* The thread that reads the wake-ups of the service; see listener.c. */
struct hfi_listener {
    struct hf_request *by; /* the waiter that listens, or NULL */
    unsigned asking;       /* requests under way */
    int64_t kept_until;    /* before that the keeper leaves it to waiters */
    bool of_keeper;        /* the keeper sleeps on it */
    bool dispatching;      /* the keeper reads */
    struct hfi_notifier notifier; /* wakes the waiter; made when first needed */
};

/* The renewals of one class of leases; see renewer.c. */
struct hfi_renewer {
    struct hf_client *client;
    struct hfi_link due; /* of struct hfi_grant: to be renewed */
    struct hfi_cond cond;
    struct hfi_thread threads[HFI_RENEWER_THREADS];
};

/* One that blocks on the service for others; see worker.c. */
struct hfi_worker {
    struct hf_client *client;
    struct hfi_link idle; /* in client->idle while it has nothing to do */
    struct hfi_cond cond;
    struct hfi_thread thread;
};

enum hfi_timer_kind { HFI_TIMER_GRANT, HFI_TIMER_REQUEST, HFI_TIMER_OBSERVED };

/* Whether there is a connection; see connect.c. */
enum hfi_offline {
    HFI_ONLINE,
    HFI_CONNECTING, /* attempts are being made */
    HFI_OFFLINE     /* there are no more */
};

struct hf_client {
    unsigned char *mark; /* 0 in a forked child; see base/env.h */
    struct hfi_conn *conn;
    const struct hfi_backend *be;
    int64_t timeout_ms; /* of one request */

    atomic_int offline;          /* enum hfi_offline */
    struct hfi_conn *stand_in;   /* client->conn while offline, or NULL */
    struct hfi_url url;          /* the connector's */
    int64_t connect_end;         /* no attempt begins later */
    struct hf_error connect_err; /* of the last attempt, */
    bool connect_failed;         /* if one has ended */
    bool connector_done;
    struct hfi_thread connector;

    struct hfi_log *log; /* NULL: nobody is told; see log.h */
    hf_log_level log_level;

    struct hfi_lock_params defaults;
    char note[HF_NOTE_MAX + 1];

    atomic_uint refs;          /* hf_open() and each handle */
    atomic_uint cancels;       /* counted up by hf_cancel() */
    atomic_uint cancelers_set; /* and by hf_canceler_cancel() */
    atomic_uint cancelers;     /* that there are, and the client if open */

    pthread_mutex_t mu;
    bool closing;           /* no new call may begin */
    int64_t close_end;      /* by then hf_close() has given back what it can */
    bool closed;            /* the backend is gone */
    bool stopping;          /* the threads must end */
    bool silent;            /* the last try or release had no answer */
    unsigned calls;         /* under way in callers' threads */
    struct hfi_cond settle; /* a renewal came back, a call ended, closed */

    struct hfi_sleeper *sleepers; /* that nobody sleeps in */

    struct hfi_map queues;
    struct hfi_link lost; /* of struct hfi_grant */

    struct hfi_heap timers;
    int64_t keeper_until; /* the keeper sleeps until then */
    unsigned cancels_told, cancelers_told;
    struct hfi_notifier notifier;
    struct hfi_thread keeper;
    struct hfi_listener listener;

    struct hfi_renewer renewers[HFI_RENEWERS];

    struct hfi_link ready;    /* of struct hf_request: to be stepped */
    struct hfi_link reap;     /* of struct hfi_grant: to be released */
    struct hfi_link releases; /* of struct hf_lock: that were left to us */
    struct hfi_link jobs;     /* of struct hfi_job: that wait for a worker */
    struct hfi_link at_jobs;  /* that one is at */
    struct hfi_link listings; /* whose answer is being read */
    int asking;               /* workers that are at jobs */
    struct hfi_link idle;     /* of struct hfi_worker */
    int reaping;              /* workers that are at releases and take-backs */
    int arming;               /* and at arranging that requests are woken */
    int lent;                 /* threads that hf_lend() has announced */
    int lent_work;    /* pieces of work that were left to them; worker.c (5) */
    int64_t short_at; /* work waits: another worker is due then; 0: no */
    struct hfi_worker workers[HFI_WORKERS_MAX];
    int n_workers; /* that run: the first ones */
    bool coming;   /* one was called, and takes all it can; worker.c (7) */
    bool stepped;  /* one has finished something since the last was started */

    struct hfi_map observed;   /* of struct hfi_observed */
    struct hfi_link observing; /* the same: to be looked at */
    int inspecting;            /* workers that are at it */

    struct hf_stats stats; /* but for what is counted when asked for */

    struct hfi_link notices;
    int events_fd; /* -1 until asked for */
    bool signaled; /* it is readable */

    unsigned char random[1024]; /* tokens are made of this */
    size_t random_left;
    uint32_t jitter;
};

/* client.c: opening and closing */
hf_status hfi_open_with(const struct hfi_backend *, struct hfi_url *,
                        const struct hf_client_opts *, hf_client **ret,
                        struct hf_error *);
void hfi_close(struct hf_client *);
void hfi_after_fork_child(struct hf_client *);
void hfi_client_put(struct hf_client *);

/* connect.c: connecting in the background */
struct hfi_conn *hfi_conn_new(struct hf_client *);
hf_status hfi_connect_start(struct hf_client *, struct hfi_url *,
                            int64_t connect_ms, struct hf_error *);
hf_status hfi_connect_error(const struct hf_client *, struct hf_error *);
hf_status hfi_connect_await(struct hf_client *, struct hf_error *);
void hfi_connect_close(struct hf_client *);

/* able.c: what the service can do */
hf_status hfi_params_able(const struct hf_client *,
                          const struct hfi_lock_params *, struct hf_error *);

/* stats.c: counters; see stats.h */
void hfi_stats(struct hf_client *, struct hf_stats *ret);

/* key_queue.c: who in this client wants or has which key */
struct hfi_key_queue *hfi_key_queue_find(struct hf_client *, const char *key);
struct hfi_key_queue *hfi_key_queue_next(struct hf_client *,
                                         struct hfi_key_queue *);
struct hfi_key_queue *hfi_key_queue_get(struct hf_client *, const char *key);
void hfi_key_queue_put(struct hf_client *, struct hfi_key_queue *);
void hfi_key_queue_spur(struct hfi_key_queue *, const struct hfi_lock_params *);
struct hfi_grant *hfi_key_queue_owned(const struct hfi_key_queue *,
                                      const struct hfi_lock_params *);
bool hfi_key_queue_other_mode(const struct hfi_key_queue *,
                              const struct hfi_lock_params *);
void hfi_key_queue_wake_owner(struct hfi_key_queue *, const struct hfi_grant *);
void hfi_key_queue_promote(struct hf_client *, struct hfi_key_queue *);
void hfi_key_queue_schedule_all(struct hf_client *);

/* grant.c: a grant, from its claim to its end */
struct hfi_grant *hfi_grant_new(struct hf_client *, struct hfi_key_queue *,
                                const struct hfi_lock_params *);
struct hfi_lock_params hfi_grant_params(const struct hfi_claim *);
void hfi_grant_keep(const struct hf_client *, struct hfi_grant *,
                    const struct hfi_receipt *);
void hfi_grant_free(struct hf_client *, struct hfi_grant *);
int64_t hfi_grant_proven(const struct hf_client *, const struct hfi_grant *,
                         const struct hfi_proof *, int64_t sent,
                         int64_t ttl_ms);
void hfi_grant_begin(struct hf_client *, struct hfi_grant *,
                     const struct hfi_lock_params *, const struct hfi_proof *,
                     int64_t sent, int64_t ttl_ms);
hf_status hfi_grant_renewed(struct hf_client *, struct hfi_grant *,
                            const struct hfi_proof *, int64_t sent,
                            int64_t ttl_ms);
bool hfi_grant_fits(const struct hfi_grant *, const struct hfi_lock_params *);
void hfi_grant_give(struct hf_client *, struct hfi_grant *, struct hf_lock *);
void hfi_grant_take_up(struct hf_client *, struct hfi_grant *,
                       const struct hfi_lock_params *);
void hfi_grant_join(struct hf_client *, struct hfi_grant *,
                    const struct hfi_lock_params *);
void hfi_grant_limit(struct hfi_grant *, int64_t max_hold_ms,
                     int64_t min_hold_ms);
void hfi_grant_want(struct hfi_grant *);
void hfi_grant_lower(struct hfi_grant *, int64_t end);
void hfi_grant_believe_less(struct hfi_grant *, int64_t end);
void hfi_grant_unhold(struct hfi_grant *);
void hfi_grant_lose(struct hf_client *, struct hfi_grant *, hf_loss);
void hfi_grant_quiet(struct hf_client *, struct hfi_grant *);
hf_status hfi_grant_send_release(struct hf_client *, struct hfi_grant *,
                                 int64_t deadline, struct hf_error *);
hf_status hfi_grant_drop(struct hf_client *, struct hfi_grant *,
                         int64_t deadline, struct hf_error *);
int64_t hfi_grant_drop_begin(struct hf_client *, struct hfi_grant *);
hf_status hfi_grant_drop_end(struct hf_client *, struct hfi_grant *,
                             int64_t sent, int64_t deadline, struct hf_error *);
void hfi_grant_reap(struct hf_client *, struct hfi_grant *);
void hfi_grant_stop_lingering(struct hf_client *, struct hfi_grant *);
bool hfi_held(const struct hfi_grant *);
bool hfi_stays(const struct hf_client *);

/* handle.c: what a caller does with a lock */
struct hf_lock *hfi_lock_new(struct hf_client *);
void hfi_handle_enter(struct hf_client *);
hf_status hfi_handle_lost(const struct hfi_grant *, struct hf_error *);
void hfi_handle_lose(struct hf_client *, struct hfi_grant *);
bool hfi_handle_pause(struct hf_client *, int64_t until, unsigned cancels);
void hfi_handle_ask(struct hf_client *, struct hfi_grant *,
                    struct hfi_renewal *, int64_t end, int64_t *sent,
                    struct hf_error *);
hf_status hfi_handle_renew(struct hf_client *, struct hfi_grant *,
                           int64_t ttl_ms, struct hf_error *);
hf_status hfi_handle_share(struct hf_client *, struct hfi_grant *,
                           struct hf_error *);
hf_status hfi_extend(struct hf_lock *, int64_t ttl_ms, struct hf_error *);
hf_status hfi_downgrade(struct hf_lock *, struct hf_error *);

/* release.c: the end of a handle */
hf_status hfi_release(struct hf_lock *, struct hf_error *);
void hfi_release_step(struct hf_client *, bool quiet);
void hfi_release_steps(struct hf_client *);
void hfi_release_close(struct hf_client *);

/* look.c: looking at locks */
hf_status hfi_inspect(struct hf_client *, const char *key, struct hf_info *ret,
                      struct hf_error *);
hf_status hfi_holders(struct hf_client *, const char *key, hf_holders_fn *,
                      void *arg, struct hf_error *);
hf_status hfi_waiters(struct hf_client *, const char *key, hf_waiters_fn *,
                      void *arg, struct hf_error *);
hf_status hfi_check(struct hf_client *, const char *key, uint64_t fence,
                    struct hf_error *);

/* job.c: requests of event loops that get no lock; see job.h */
bool hfi_jobs_wait(const struct hf_client *);
int64_t hfi_jobs_expire(struct hf_client *, int64_t now);
void hfi_job_step(struct hf_client *);
void hfi_job_cancel(struct hf_request *);
void hfi_jobs_cancel(struct hf_client *);
void hfi_job_take(struct hf_request *, struct hf_event *ret);
void hfi_jobs_close(struct hf_client *);

/* detached.c: locks that leave the process */
hf_status hfi_detach(struct hf_lock *, struct hf_handle *ret,
                     struct hf_error *);
hf_status hfi_attach(struct hf_client *, const char *key,
                     const struct hf_handle *, const struct hfi_lock_params *,
                     struct hf_lock **ret, struct hf_error *);
hf_status hfi_handle_extend(struct hf_client *, const char *key,
                            const struct hf_handle *,
                            const struct hfi_lock_params *, struct hf_error *);
hf_status hfi_handle_release(struct hf_client *, const char *key,
                             const struct hf_handle *,
                             const struct hfi_lock_params *, struct hf_error *);

/* request.c: an acquisition as a call, and for an event loop */
hf_status hfi_acquire(struct hf_client *, const char *key, int64_t wait_ms,
                      const struct hfi_lock_params *, struct hf_lock **ret,
                      struct hf_error *);
hf_status hfi_acquire_start(struct hf_client *, const char *key,
                            int64_t wait_ms, const struct hfi_lock_params *,
                            void *user, struct hf_request **ret,
                            struct hf_error *);
void hfi_request_free(struct hf_request *);

hf_status hfi_acquire_all(struct hf_client *, struct hfi_several *,
                          int64_t wait_ms, struct hf_error *);
hf_status hfi_acquire_all_start(struct hf_client *, struct hfi_several *,
                                int64_t wait_ms, void *user,
                                struct hf_request **ret, struct hf_error *);
void hfi_request_next_key(struct hf_request *);
int64_t hfi_request_limit(const struct hf_request *, int64_t now);

/* canceler.c: cancellation that cannot be lost */
struct hf_canceler *hfi_canceler_new(struct hf_client *);
void hfi_canceler_get(struct hf_canceler *);
void hfi_canceler_put(struct hf_canceler *);
struct hf_client *hfi_canceler_client(const struct hf_canceler *);
unsigned hfi_canceler_times(const struct hf_canceler *);
bool hfi_canceler_is_set(const struct hf_canceler *, unsigned times);
void hfi_canceler_set(struct hf_canceler *, bool canceled);
void hfi_cancelers_tell(struct hf_client *);

/* several.c: several keys at once */
hf_status hfi_several_new(struct hf_client *, const char *const *keys, size_t n,
                          const struct hfi_lock_params *,
                          struct hf_lock **locks, struct hfi_several **ret,
                          struct hf_error *);
void hfi_several_free(struct hfi_several *);
struct hf_lock *hfi_several_lock(const struct hfi_several *);
const char *hfi_several_key(const struct hfi_several *);
bool hfi_several_goes_on(struct hf_client *, struct hfi_several *);
void hfi_several_drop(struct hf_client *, struct hfi_several *);
void hfi_several_return(struct hf_client *, struct hfi_several *);
void hfi_several_give(struct hfi_several *);
hf_status hfi_several_at_once(struct hf_client *, struct hfi_several *,
                              int64_t deadline, struct hf_error *);

/* acquire.c: its steps */
bool hfi_request_step(struct hf_request *, int64_t *until);
enum hfi_step hfi_request_step_begin(struct hf_request *, struct hfi_try *,
                                     int64_t *until);
enum hfi_step hfi_request_step_end(struct hf_client *, struct hfi_try *,
                                   int64_t *until);
struct hfi_sleeper *hfi_request_grant(struct hf_request *, struct hfi_grant *);
void hfi_request_schedule(struct hf_request *);

/* request_end.c: its end */
void hfi_request_end(struct hf_request *, enum hfi_request_state);
int64_t hfi_request_soon(const struct hf_client *);
void hfi_request_withdraw(struct hf_request *, bool wait);
void hfi_request_fail(struct hf_request *, hf_status);
void hfi_request_abandoned(struct hf_client *, struct hfi_grant *, hf_status);
hf_status hfi_request_timeout(struct hf_request *);
void hfi_request_inspect(struct hf_request *);
void hfi_request_expire(struct hf_request *);

/* keeper.c: the thread that watches the clock and never blocks on a service */
int64_t hfi_keeper_step(struct hf_client *, bool *listen);
void hfi_keeper_by(struct hf_client *, int64_t due);
void hfi_keeper_set(struct hf_client *, struct hfi_timer *, int64_t due);
void hfi_keeper_add(struct hf_client *, struct hfi_grant *);
void *hfi_keeper_run(void *client);

/* listener.c: who reads the wake-ups of the service */
void hfi_listener_enter(struct hf_request *);
bool hfi_listener_wait(struct hf_request *, int64_t until);
bool hfi_listener_of_keeper(struct hf_client *, int64_t now, int64_t *until);
void hfi_listener_dispatch(struct hf_client *);
void hfi_sleeper_wake(struct hf_client *, struct hfi_sleeper *);

/* renewer.c: the threads that send renewals */
void hfi_renewers_init(struct hf_client *);
void hfi_renewers_wake(struct hf_client *);
void hfi_renewers_join(struct hf_client *);
void hfi_renewers_fini(struct hf_client *);
bool hfi_renewer_add(struct hf_client *, struct hfi_grant *);

/* worker.c: the threads that block on the service for others */
void hfi_workers_init(struct hf_client *);
void hfi_workers_wake(struct hf_client *);
void hfi_workers_join(struct hf_client *);
void hfi_workers_fini(struct hf_client *);
bool hfi_worker_start(struct hf_client *);
bool hfi_workers_busy(const struct hf_client *);
void hfi_worker_call(struct hf_client *);
void hfi_worker_hire(struct hf_client *);
void hfi_worker_pass_call(struct hf_client *);
int64_t hfi_worker_check(struct hf_client *, int64_t now);
void hfi_worker_add(struct hf_client *, struct hf_request *);
void hfi_lend(struct hf_client *);
bool hfi_work(struct hf_client *);

/* transfer.c: who is to have the lock next */
hf_status hfi_transfer(struct hf_lock *, const char *heir, struct hf_error *);

/* observer.c: what callers do with observers */
hf_status hfi_observe_start(struct hf_client *, const char *key, bool prefix,
                            void *user, struct hf_observer **ret,
                            struct hf_error *);
bool hfi_observer_next(struct hf_observer *, struct hf_change *ret);
void hfi_observe_stop(struct hf_observer *);
void hfi_observers_close(struct hf_client *);

/* observed.c: what is observed, one for any number of observers */
struct hfi_observed *hfi_observed_get(struct hf_client *, const char *key,
                                      bool prefix);
void hfi_observed_put(struct hf_client *, struct hfi_observed *);
void hfi_observed_wake(struct hf_client *, struct hfi_observed *);
void hfi_observed_due(struct hf_client *, struct hfi_observed *);
void hfi_observed_step(struct hf_client *, struct hfi_observed *);
void hfi_observed_offline(struct hf_client *);
void hfi_observed_free(struct hf_client *, struct hfi_observed *);
bool hfi_observed_list(struct hf_client *, const char *prefix,
                       struct hfi_listing *);

/* listed.c: listings, and those of a prefix that is observed */
hf_status hfi_list(struct hf_client *, const char *prefix, hf_list_fn *,
                   void *arg, struct hf_error *);
hf_status hfi_listed(struct hf_client *, struct hfi_observed *,
                     struct hfi_listing *, struct hf_error *);

/* seen.c: what is known of the keys */
struct hfi_seen *hfi_seen_get(struct hfi_observed *, const char *key);
bool hfi_seen_read(struct hf_client *, struct hfi_observed *, struct hfi_seen *,
                   const struct hf_info *);
bool hfi_seen_is_new(const struct hfi_observed *, const struct hf_info *);
void hfi_seen_missing(struct hf_client *, struct hfi_observed *);
void hfi_seen_clear(struct hfi_observed *);

/* reaper.c: taking back what must not stay in the service */
void hfi_reap(struct hf_client *, struct hfi_grant *);
int64_t hfi_reap_pause(struct hfi_grant *);
bool hfi_reap_goes_on(const struct hf_client *, struct hfi_grant *, hf_status,
                      int64_t sent);

/* sweep.c: what has lapsed on a session that lives on */
bool hfi_sweeps(const struct hf_client *);
int64_t hfi_sweep_due(const struct hfi_grant *);
void hfi_sweep_later(struct hf_client *, struct hfi_grant *, int64_t due);
void hfi_sweep_hold(struct hf_client *, struct hfi_grant *);
void hfi_sweep_renewed(struct hf_client *, struct hfi_grant *, hf_status,
                       int64_t sent);
void hfi_sweep_drop(struct hf_client *, const char *key, const char *token,
                    hf_status);
void hfi_sweep(struct hf_client *, struct hfi_grant *);

/* events.c: what hf_next_event() tells */
void hfi_notify(struct hf_client *, struct hfi_notice *, enum hf_event_type);
void hfi_notice_drop(struct hf_client *, struct hfi_notice *);
bool hfi_notice_take(struct hf_client *, struct hf_event *ret);
int hfi_notice_fd(struct hf_client *);

/* ---- what every acquisition and every release goes through -------------- */

/* A call begins, with the mutex held. */
static inline void hfi_handle_begin(struct hf_client *c)
{
    while (c->closing && !c->closed)
        hfi_cond_wait(&c->settle, &c->mu, HFI_NEVER);
    c->calls++;
}

static inline void hfi_handle_leave(struct hf_client *c)
{
    c->calls--;
    if (c->closing)
        hfi_cond_wake(&c->settle);
    pthread_mutex_unlock(&c->mu);
}

/* Latch what the clock says, so that status, descriptor and event agree. */
static inline bool hfi_handle_still_held(struct hf_client *c,
                                         struct hfi_grant *grant)
{
    if (grant->state == HFI_HELD && !hfi_held(grant))
        hfi_grant_lose(c, grant,
                       hfi_now() >= grant->hold_end ? HF_LOSS_MAX_HOLD
                                                    : HF_LOSS_EXPIRED);
    return grant->state == HFI_HELD;
}

static inline void hfi_lock_free(struct hf_lock *lk)
{
    struct hf_client *c;

    if (!lk)
        return;
    c = lk->client;
    if (lk->lost_fd >= 0)
        close(lk->lost_fd);
    hfi_free(lk);
    hfi_client_put(c);
}

/* May a worker send several requests together? */
static inline bool hfi_goes_ahead(const struct hf_client *c)
{
    return c->conn->traits & HFI_TRAIT_AHEAD;
}

static inline void hfi_notice_init(struct hfi_notice *notice)
{
    hfi_link_init(&notice->link);
    notice->pending = 0;
    notice->quiet = false;
}

/* The request is over. */
static inline void hfi_listener_leave(struct hf_request *rq)
{
    rq->client->listener.asking--;
}

/* Is it one try of an event loop, which has the time of one request, also if it
 * waits for a worker?  Whoever asks in its own thread asks at once. */
static inline bool hfi_request_is_single(const struct hf_request *rq)
{
    return rq->once && rq->async && !rq->several && !rq->late;
}

static inline bool hfi_request_is_canceled(const struct hf_request *rq)
{
    return rq->canceled || rq->client->closing ||
           atomic_load(&rq->client->cancels) != rq->cancel_seen ||
           (rq->params.canceler &&
            hfi_canceler_is_set(rq->params.canceler, rq->canceler_seen));
}

#endif
