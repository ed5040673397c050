/* SPDX-License-Identifier: MIT
 *
 * torture.h - a run: who takes part and what they share.
 *
 *   main.c      options; begin, calm, end; merge and judge the histories
 *   client.c    a process of clients: acquire, work on the register, release
 *   register.c  the register inside the lock, and the page that all share
 *   nemesis.c   faults; fault.c is the table of them
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

/* What the clients are to do. */
struct plan {
    int64_t ttl_ms;
    int64_t trip_ms; /* what a round trip takes at least, without a fault */
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
};

/* One page file, mapped by all. */
struct shared {
    struct plan plan;
    atomic_bool calm; /* no more long work */
    atomic_bool stop;
    _Atomic int64_t grants[MAX_PROCESSES + 1][MAX_THREADS];
    struct cell cells[MAX_KEYS + 1];
};

/* register.c */
struct shared *shared_new(const char *dir, const struct plan *plan);
struct shared *shared_open(const char *dir);
bool register_read(struct cell *cell, uint64_t fence, int64_t *value,
                   uint64_t *seen);
bool register_write(struct cell *cell, uint64_t fence, int64_t value,
                    uint64_t *seen);

/* client.c: the process PROCESS.LIFE; does not return before shared->stop. */
int client_main(const char *dir, const char *name, const char *url);
void client_key(const struct plan *plan, int key, char *ret, size_t size);

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
    int members; /* servers that the hook knows */
    const char *shim;
    unsigned faults; /* a bit for each enum of fault.c */
    uint64_t chance;
    bool verbose;
};

/* Somebody wants it to end: heal, and judge what there is. */
extern volatile sig_atomic_t run_interrupted;

uint64_t run_chance(struct run *run, uint64_t below);
void run_log(struct run *run, enum what what, int key, int64_t number,
             const char *text);
void run_sleep_ms(int64_t ms);

/* process.c */
bool process_start(struct run *run, int process);
void process_kill(struct run *run, int process);
void process_stop(struct run *run, int process);
void process_cont(struct run *run, int process);
bool process_end(struct run *run, int64_t limit_ms);

/* route.c: false and why if this URL cannot be led through a net */
bool route_open(struct run *run, char *why, size_t size);
void route_tell(struct run *run, int process, int host, const char *words);
void route_heal(struct run *run, int process);

/* fault.c */
bool fault_parse(const char *list, unsigned *ret, char *why, size_t size);
unsigned fault_possible(const struct run *run, bool processes);
unsigned fault_missing(unsigned asked, unsigned possible);
unsigned fault_default(void);
void wall_set(struct run *run, int process, int64_t seconds);
void fault_names(unsigned faults, char *ret, size_t size);

/* nemesis.c */
bool hook_count(struct run *run);
void hook_call(struct run *run, const char *verb, int member, int64_t number);
void nemesis_run(struct run *run, int64_t end_us);

/* fault.c */
struct fault {
    const char *name;
    const char *group;
    void (*begin)(struct run *run, int target);
    void (*heal)(struct run *run, int target);
    bool server; /* the target is a server, not a process */
    const char *help;
};
const struct fault *fault_list(int *count);

#endif
