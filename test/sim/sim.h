/* SPDX-License-Identifier: MIT
 *
 * sim.h - the whole core in simulated time.
 *
 *   main.c      which worlds to live through, and what came of it
 *   family.c    the families of worlds: services, weather, workloads
 *   world.c     one life: the processes, their mishaps, and their end
 *   work.c      what a process does with its locks
 *   event.c     the same for a process with an event loop
 *   observe.c   observers, and what the service tells them
 *   check.c     what must be true after every step
 *   net.c       the backend: requests that are late, lost or doubled
 *   service.c   the lock service at the other end
 *   session.c   the backend of a service whose grants live on sessions
 *   trace.c     the last things that happened, and what was wrong
 *   sched.c     threads as coroutines, one clock, one source of chance
 *
 * Everything runs in one thread of the operating system.  The core does not
 * know: it asks hfi_env for the time, for sleep and for threads, and its
 * backend is opened with hfi_open_with() as any other.
 *
 * TIME  `sim.now` counts microseconds.  Each process reads it in milliseconds,
 * from an offset of its own, as the core does; the service has a clock that
 * runs up to one percent fast or slow.
 */
#ifndef HFI_SIM_H
#define HFI_SIM_H

#include "core/core.h"

/* Both sanitizers have to be told about stacks and leaks; gcc and clang say in
 * different ways that one is there. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define SIM_ASAN 1
#else
#define SIM_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define SIM_TSAN 1
#else
#define SIM_TSAN 0
#endif

#define SIM_PROCS 6
#define SIM_KEYS  3
#define SIM_SHORT 64
#define SIM_NEVER INT64_MAX

/* ---- the world --------------------------------------------------------- */

/* How bad it gets.  Chances are per mille. */
struct sim_weather {
    int delay_us;   /* of one message, at most, most of the time */
    int slow;       /* per mille: it takes up to half a ttl */
    int lost;       /* a request or an answer never arrives */
    int late;       /* it arrives after the caller has given up */
    int twice;      /* a request arrives a second time */
    int wake_lost;  /* the same for wake-ups, */
    int wake_late;  /* */
    int wake_twice; /* */
    int stale;      /* a look at a key shows what it was */
    int pause;      /* per mishap drawn: a process stands still */
    int crash;      /* a process ends without a word */
    int cut;        /* a process cannot reach the service, and knows it */
    int broken;     /* an operator breaks a lock */
    int restart;    /* the service forgets everything */
    int denied;     /* the service refuses for good */
    int no_thread;  /* the system has no thread to give */
    int drift_ppm;  /* the service's clock is at most that wrong */
};

/* What the applications like to do; bits. */
enum sim_habit {
    SIM_MANUAL = 1 << 0,
    SIM_FAIR = 1 << 1,
    SIM_POLL = 1 << 2,
    SIM_SHARED = 1 << 3,
    SIM_OWNER = 1 << 4,
    SIM_LINGER = 1 << 5,
    SIM_MAX_HOLD = 1 << 6,
    SIM_EXTEND = 1 << 7,
    SIM_CANCEL = 1 << 8,
    SIM_EVENTS = 1 << 9,
    SIM_CLOSE = 1 << 10,
    SIM_DETACH = 1 << 11,
    SIM_TURNS = 1 << 12,
    SIM_BEARER = 1 << 13,  /* of a handle: renew it without taking it up */
    SIM_PERMITS = 1 << 14, /* every lock has SIM_PERMITS_N of them */
    SIM_DOWNGRADE = 1 << 15,
    SIM_SEVERAL = 1 << 16, /* two keys at once */
    SIM_OBSERVES = 1 << 17,
    SIM_MIN_HOLD = 1 << 18
};

#define SIM_PERMITS_N 2

struct sim_family {
    const char *name;
    unsigned traits; /* of the service */
    unsigned habits;
    bool prompt; /* nothing may wait for a timeout or a lease to end */
    struct sim_weather weather;
};

struct sim_proc {
    int id;
    int64_t offset;    /* its clock, in ms, against ours */
    hf_client *client; /* NULL before it is open and once it is closed */
    hf_canceler *canceler;
    bool paused;        /* none of its threads runs */
    bool crashed;       /* none ever will */
    bool closing;       /* hf_close() is or was under way */
    int busy;           /* applications that have not come home */
    int refused;        /* attempts to connect in the background */
    int64_t cut_until;  /* every request fails at once */
    int64_t paused_at;  /* if it is */
    int64_t paused_sum; /* us of earlier pauses */
    int64_t arrival;    /* of its last request, where order is kept */
};

/* Where a detached lock is left for another process. */
struct sim_parcel {
    bool full;
    int key;
    struct hf_handle handle;
};

struct sim {
    int64_t now; /* us */
    uint64_t seed, rng, hash;
    uint64_t steps;
    const struct sim_family *family;
    struct sim_weather weather; /* turns fine at the end */
    struct sim_proc procs[SIM_PROCS];
    struct sim_proc *proc; /* whose code runs, or NULL */
    int nprocs, nkeys;
    int64_t ttl_ms, timeout_ms, hold_ms;
    int64_t life_us; /* no message is on its way longer than this */
    int busy;        /* applications that have not come home */
    bool fine;       /* the weather stays fine from now on */
    bool stop;       /* begin nothing new */
    bool night;      /* nobody holds or wants anything any more */
    bool failed;
    bool tracing;
    char why[400];
    struct sim_parcel parcel;
    uint64_t fences[SIM_KEYS]; /* the greatest that an exclusive holder had */
    /* Locks with a shortening that may still be under way: lengthening them
     * again would be a race that nobody can win. */
    char shortened[SIM_SHORT][HFI_TOKEN_LEN + 1];
    int nshortened;
    unsigned granted, lost; /* how often, to see that something happened */
};
extern struct sim sim;

/* ---- sched.c ----------------------------------------------------------- */

struct sim_task;

void sim_sched_begin(void); /* an empty world */
void sim_sched_end(void);
struct sim_task *sim_spawn(struct sim_proc *, void *(*run)(void *), void *arg);
bool sim_run(int64_t until); /* until then, or failed (false) */
bool sim_run_while_busy(int64_t until);
void sim_at(int64_t at, void (*fn)(void *), void *arg);
void sim_sleep(int64_t us);
void sim_wait_on(const void *what, int64_t until); /* us; NEVER */
void sim_ring(const void *what);
void sim_forget_tasks(const struct sim_proc *); /* it crashed */
void *sim_alloc(size_t size); /* zeroed, gone at the end of the world */

uint64_t sim_rand(void);
int64_t sim_below(int64_t n); /* from 0 */
bool sim_chance(int per_mille);

/* ---- trace.c ----------------------------------------------------------- */

/* Remember the first failure; the world ends with the step. */
void sim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void sim_trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void sim_trace_begin(void);
void sim_trace_print(unsigned long n); /* the last `n` lines */

/* ---- service.c --------------------------------------------------------- */

/* A request as it arrives, and what is answered.  The last ones are those of
 * a service with sessions; see session.c. */
struct sim_request {
    enum {
        SIM_TRY,
        SIM_RENEW,
        SIM_RELEASE,
        SIM_WATCH,
        SIM_UNWATCH,
        SIM_KEEP,   /* a grant for ttl_ms more, which nobody renews */
        SIM_SHARE,  /* an exclusive grant from now on */
        SIM_CREATE, /* a session of ttl_ms */
        SIM_READ,   /* what stands under the token */
        SIM_MOVE,   /* put it on the session, if it is as it was read */
        SIM_SWEEP,  /* remove it, if it is as it was read */
        SIM_TAKE,   /* give it to the token, from the token `old` */
        SIM_END,    /* a session */
        SIM_INSPECT,
        SIM_OBSERVE /* tell this process of every change */
    } what;
    int proc;
    int key;
    int permits;
    bool shared, queue;
    bool shorten; /* the lease may end earlier than it would */
    int64_t ttl_ms;
    uint32_t nth;   /* which try of its claim */
    uint64_t fence; /* of the grant to be renewed */
    uint64_t session;
    uint64_t version; /* when it was read */
    bool keep;        /* keep the session, too */
    char old[HFI_TOKEN_LEN + 1];
    char token[HFI_TOKEN_LEN + 1];
    char owner[8]; /* "" none */
};

struct sim_answer {
    hf_status st;
    hf_loss reason;
    uint64_t fence;
    int slot;
    bool registered;
    bool dead;        /* there is no such session */
    uint64_t session; /* what was made; where it hangs */
    uint64_t version; /* of what was read */
    struct hfi_answer busy;
    int holders, permits; /* SIM_INSPECT: and the first of them */
    bool shared;
    int64_t left_ms;
    char token[HFI_TOKEN_LEN + 1];
};

void sim_service_begin(void);
struct sim_answer sim_service_do(const struct sim_request *);
void sim_service_break(int key);               /* whoever holds it */
void sim_service_restart(void);                /* without its memory */
void sim_service_death(int proc);              /* its connection is gone */
void sim_service_show(void);                   /* in the trace */
bool sim_service_idle(char *why, size_t size); /* nothing held or queued */

uint64_t sim_service_newest(int key); /* the greatest fence there ever was */
int64_t sim_service_granted(int key, const char *token); /* us; -1: gone */

/* Does the grant stand?  Excused are those that were broken or forgotten. */
enum sim_standing { SIM_STANDS, SIM_GONE, SIM_EXCUSED };
enum sim_standing sim_service_stands(int key, const char *token,
                                     uint64_t fence);

/* ---- net.c ------------------------------------------------------------- */

extern struct hfi_backend sim_backend, sim_session_backend;

struct sim_conn {
    struct hfi_conn base;
    struct sim_proc *proc;
};

/* One message to the service and its answer, with n requests. */
struct sim_call {
    struct sim_proc *proc;
    size_t n;
    struct sim_request *requests;
    struct sim_answer *answers; /* NULL until they are here */
    bool shortens;              /* a lease: never twice, and late more often */
};

struct sim_call *sim_call_new(struct hfi_conn *, size_t n);
void sim_call_fill(struct sim_call *, size_t i, int what,
                   const struct hfi_claim *);
hf_status sim_call_send(struct sim_call *, int64_t deadline);
void sim_claim_begin(const struct hfi_claim *); /* one call at a time uses it */
void sim_claim_end(const struct hfi_claim *);
hf_status sim_net_open(struct hfi_conn *, const struct hfi_url *,
                       int64_t deadline, struct hf_error *);
void sim_net_close(struct hfi_conn *);
hf_status sim_net_watch(struct hfi_conn *, const struct hfi_claim *,
                        struct hfi_receipt *, int64_t deadline,
                        struct hf_error *);
void sim_net_unwatch(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_receipt *);
const char *sim_key_name(int key);
int sim_key_of(const char *name);
void sim_net_begin(void);
/* What the service tells a process by itself; token NULL: that it is wanted. */
void sim_net_tell(int proc, int key, const char *token, hf_loss gone);
void sim_net_give(int proc, int key, const char *token, uint32_t nth,
                  uint64_t fence, int slot, int64_t ms);

void sim_net_changed(int proc, int key); /* it tells an observer */

/* ---- observe.c --------------------------------------------------------- */

extern const size_t sim_observation_size;
hf_status sim_net_inspect(struct hfi_conn *, const char *key, struct hf_info *,
                          int64_t deadline, struct hf_error *);
hf_status sim_net_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                       void *arg, int64_t deadline, struct hf_error *);
hf_status sim_net_observe(struct hfi_conn *, struct hfi_observation *,
                          int64_t deadline, struct hf_error *);
void sim_net_unobserve(struct hfi_conn *, struct hfi_observation *);
void sim_observe_begin(void);
void sim_observe_news(struct hfi_conn *, int key);
void *sim_observe_run(void *);

/* What one acquisition asks for. */
struct sim_params {
    struct hf_lock_opts opts;
    int64_t wait_ms;
    int key;
};

/* ---- check.c ----------------------------------------------------------- */

/* An application that thinks it holds a lock. */
struct sim_belief {
    struct hfi_link link;
    hf_lock *lk;
    struct sim_proc *proc;
    int key;
    bool shared;
    int slot; /* -1: no permits */
    const char *owner;
    bool ended;       /* it was seen not to be held */
    int64_t ended_at; /* of its process's running time */
    int64_t max_end;  /* ms of its process, by max_hold_ms; or NEVER */
    int64_t min_end;  /* us, by min_hold_ms since the grant; or 0 */
};

/* What the bearer of a handle may count on, and until when. */
struct sim_bearer {
    struct hfi_link link;
    int key;
    uint64_t fence;
    int64_t until; /* us */
    char token[HFI_TOKEN_LEN + 1];
};
void sim_bearer_begin(struct sim_bearer *, int key, const struct hf_handle *,
                      int64_t until);
void sim_bearer_end(struct sim_bearer *);

/* An application that waits in a call, and must come back by `limit`. */
struct sim_attempt {
    struct hfi_link link;
    struct sim_proc *proc;
    int64_t limit; /* us of its process's running time */
    const char *what;
    bool cancelable; /* it has the canceler of its process */
};

void sim_check_begin(void);
void sim_check_step(void);
void sim_check_idle(struct sim_proc *); /* its client has nothing left */
void sim_check_forget(struct sim_proc *);
void sim_check_cancel(struct sim_proc *, bool all); /* hf_cancel() was called */
void sim_believe(struct sim_belief *, hf_lock *, const struct sim_params *);
/* It was released, and that was answered. */
void sim_check_kept(const struct sim_belief *);
void sim_disbelieve(struct sim_belief *);
void sim_attempt_begin(struct sim_attempt *, int64_t wait_ms, const char *what);
void sim_attempt_end(struct sim_attempt *);
int64_t sim_ran(const struct sim_proc *); /* us, without its pauses */

/* ---- work.c, event.c, world.c, family.c -------------------------------- */

void sim_params_draw(struct sim_params *);
void sim_params_check(const struct sim_params *, hf_status);
hf_status sim_let_go(hf_lock *, struct sim_belief *); /* release, and look */
bool sim_done(void); /* the application should go home */
void *sim_work_run(void *);
void *sim_events_run(void *);
void sim_employ(struct sim_proc *, void *(*run)(void *));
void sim_world(uint64_t seed, const struct sim_family *);
extern const struct sim_family sim_families[];
extern const int sim_nfamilies;

#endif
