/* SPDX-License-Identifier: MIT
 *
 * torture.h - a run: who takes part and what they share.
 *
 *   main.c      options; begin, calm, end; merge and judge the histories
 *   client.c    a process of clients: acquire, work on the register, release
 *   register.c  the register inside the lock, and the page that all share
 *   work.c      what is done while a lock is held
 *   workload.c  the ways to get one: plain, by a handle, under `holdfast run' ...
 *   run.c       a command under `holdfast run'
 *   nemesis.c   faults; fault.c is the table of them
 *   fault_net.c, fault_members.c    what they do to a network, to servers
 *   hook.c      servers, by the command that the user names
 *   process.c      starting, killing, stopping client processes
 *   route.c     the URL through the net, one way for each process
 *   history.c, check*.c    see history.h, check.h
 *   net*.c                 see net.h
 */
#ifndef TORTURE_H
#define TORTURE_H

#include "history.h"
#include "holdfast.h"
#include "net.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { MAX_PROCESSES = 32, MAX_THREADS = 64, MAX_KEYS = 64, MAX_MEMBERS = 9 };

/* One more key has permits.  Each of its slots is a key of its own for the
 * history and the registers: at most one holder at a time. */
enum { PERMITS = 3, CELLS = MAX_KEYS + PERMITS };

/* What the clients are to do. */
struct plan {
    int64_t ttl_ms;
    unsigned traits;    /* of the service */
    unsigned workloads; /* a bit for each of workload.c */
    int64_t trip_ms;    /* what a round trip takes at least, without a fault */
    int processes, threads, keys;
    uint64_t seed;
    char prefix[64]; /* of every key */
    char url[1024];  /* as the user gave it */
};

/* The register of one key, in two copies: one checks the fence, one does not. */
struct cell {
    pthread_mutex_t mu; /* robust: its owner may be killed */
    uint64_t fence;     /* the greatest that was shown */
    int64_t value;
    _Atomic int64_t plain;
    atomic_bool
        boxed; /* somebody has detached the lock, and here is the handle */
    struct hf_handle box;
    _Atomic unsigned owner;  /* of those who hold it; 0: none */
    _Atomic int staying;     /* the process that will hold it for long */
    _Atomic int64_t renewed; /* how often it was renewed */
};

/* One page file, mapped by all. */
struct shared {
    struct plan plan;
    atomic_bool calm; /* no more long work */
    atomic_bool stop;
    atomic_bool tense; /* a fault is near: many stay for longer than a lease */
    _Atomic int prey; /* the key whose holder it is aimed at, who stays; or 0 */
    _Atomic int runs[MAX_PROCESSES + 1][MAX_THREADS]; /* pids of `holdfast' */
    /* of a thread, and of its second keys */
    _Atomic int64_t grants[MAX_PROCESSES + 1][2 * MAX_THREADS];
    struct cell cells[CELLS + 1];
};

/* register.c */
struct shared *shared_new(const char *dir, const struct plan *plan);
struct shared *shared_open(const char *dir);
bool register_read(struct cell *cell, uint64_t fence, int64_t *value,
                   uint64_t *seen);
bool register_write(struct cell *cell, uint64_t fence, int64_t value,
                    uint64_t *seen);
void register_box(struct cell *cell, const struct hf_handle *handle);
bool register_unbox(struct cell *cell, struct hf_handle *ret, bool keep);

/* client.c: the process PROCESS.LIFE; does not return before shared->stop. */
int client_main(const char *dir, const char *name, const char *url);
void client_key(const struct plan *plan, int key, char *ret, size_t size);
hf_client *client_open(struct shared *shared, const char *url);

/* workload.c */
const char *workload_name(int at); /* NULL: there are no more */
bool workload_parse(const char *list, unsigned *ret);
unsigned workload_possible(unsigned asked, unsigned traits);

/* run.c: the command that `holdfast run' runs */
int run_inside(const char *dir, const char *name, const char *key,
               const char *work);

/* A process of clients, or a place for one. */
struct client_process {
    pid_t pid; /* 0: none */
    int life;
    bool stopped;
    char url[1024]; /* its own way to the service */
};

struct run {
    const char *self; /* this program */
    char dir[256];
    int log; /* of the nemesis */
    struct plan plan;
    struct shared *shared;
    struct client_process processes[MAX_PROCESSES + 1];
    struct net *net; /* NULL: the clients go straight to the service */
    int hosts;       /* ports of the net for each process */
    const char *hook;
    int members;          /* servers that the hook knows */
    char hook_verbs[256]; /* what it can do, with a space around each */
    hf_client *client;    /* of the operator */
    const char *shim;
    const char *points; /* preloaded, stops at a chosen point of the code */
    uint64_t faults;    /* a bit for each enum of fault.c */
    uint64_t chance;
    bool verbose;
};

/* Somebody wants it to end: heal, and judge what there is. */
extern volatile sig_atomic_t run_interrupted;

uint64_t run_chance(struct run *run, uint64_t below);
void run_log(struct run *run, enum what what, int key, int64_t number,
             const char *text);
void run_sleep_ms(int64_t ms);
void run_until_renewed(struct run *run);

/* process.c */
bool process_start(struct run *run, int process);
void process_kill(struct run *run, int process);
void process_killed(struct run *run, int process);
void process_stop(struct run *run, int process);
void process_cont(struct run *run, int process);
bool process_end(struct run *run, int64_t limit_ms);

/* route.c: false and why if this URL cannot be led through a net */
bool route_open(struct run *run, char *why, size_t size);
void route_tell(struct run *run, int process, int host, const char *words);
void route_heal(struct run *run, int process);

/* fault.c */
bool fault_parse(const char *list, uint64_t *ret, char *why, size_t size);
uint64_t fault_possible(const struct run *run);
uint64_t fault_missing(uint64_t asked, uint64_t possible);
uint64_t fault_default(void);
void wall_set(struct run *run, int process, int64_t seconds);
void point_set(struct run *run, int process, int64_t calls, int64_t signo);
void fault_names(uint64_t faults, char *ret, size_t size);

/* hook.c */
bool hook_count(struct run *run);
bool hook_can(const struct run *run, const char *verb);
bool hook_call(struct run *run, const char *verb, int member, int64_t number);
int hook_ask(struct run *run, const char *verb, int member);

/* nemesis.c */
void nemesis_run(struct run *run, int64_t end_us);

/* fault.c */
struct fault {
    const char *name;
    const char *group;
    void (*begin)(struct run *run, int target);
    void (*heal)(struct run *run, int target);
    bool server;      /* the target is a server, not a process */
    const char *verb; /* what the hook must be able to do, or NULL */
    const char *help;
};

/* fault_net.c */
void net_pass(struct run *run, int target);
void net_part(struct run *run, int target);
void net_lone(struct run *run, int target);
void net_lose_answers(struct run *run, int target);
void net_lose_requests(struct run *run, int target);
void net_reset(struct run *run, int target);
void net_half(struct run *run, int target);
void net_after_half(struct run *run, int target);
void net_refuse(struct run *run, int target);
void net_accept(struct run *run, int target);
void net_slow(struct run *run, int target);
void net_slice(struct run *run, int target);
void net_trickle(struct run *run, int target);
void net_trunc(struct run *run, int target);
void net_lie(struct run *run, int target);

/* fault_members.c */
void crash_begin(struct run *run, int target);
void crash_heal(struct run *run, int target);
void freeze_begin(struct run *run, int target);
void freeze_heal(struct run *run, int target);
void roll_begin(struct run *run, int target);
void clock_begin(struct run *run, int target);
void clock_heal(struct run *run, int target);
void depose_begin(struct run *run, int target);
void depose_heal(struct run *run, int target);
void split_begin(struct run *run, int target);
void split_heal(struct run *run, int target);
void drift_begin(struct run *run, int target);
void drift_heal(struct run *run, int target);
void older_begin(struct run *run, int target);
void full_begin(struct run *run, int target);
void full_heal(struct run *run, int target);
void sessions_begin(struct run *run, int target);
void failover_begin(struct run *run, int target);
void reshard_begin(struct run *run, int target);
void replace_begin(struct run *run, int target);
void rotate_begin(struct run *run, int target);
void rotate_heal(struct run *run, int target);
const struct fault *fault_list(int *count);

#endif
