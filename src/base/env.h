/* SPDX-License-Identifier: MIT
 *
 * env.h - the only door to time, randomness, waiting and threads.
 *
 * Whatever the core needs from the operating system to know what time it is, to
 * sleep and to be woken goes through here.  A simulation puts its own table
 * in place of the system's and so runs the very code that ships, loops
 * included, in simulated time.
 */
#ifndef HFI_ENV_H
#define HFI_ENV_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* A place to sleep while a mutex is let go. */
struct hfi_cond {
    pthread_cond_t cond;
    atomic_uint asleep; /* raised and lowered under the mutex */
    void *sim;          /* a simulation's own */
};

/* A place to sleep that also hears descriptors, and may be rung by a signal
 * handler. */
struct hfi_notifier {
    int event_fd;
    int timer_fd;
    int64_t armed; /* for when timer_fd is set; only its sleeper looks */
    void *sim;
};

struct hfi_thread {
    pthread_t id;
    bool running;
    void *sim;
};

/* A simulation's table.  NULL, as it is in every program but that one, means
 * the operating system. */
struct hfi_env {
    int64_t (*now)(void);
    void (*random)(void *buf, size_t len);
    void (*wait)(struct hfi_cond *, pthread_mutex_t *, int64_t until);
    void (*wake)(struct hfi_cond *);
    void (*notifier_wait)(struct hfi_notifier *, int64_t until);
    void (*notifier_notify)(struct hfi_notifier *);
    bool (*start)(struct hfi_thread *, void *(*run)(void *), void *arg);
    void (*join)(struct hfi_thread *);
};
extern const struct hfi_env *hfi_env;

int64_t hfi_now(void);     /* ms on CLOCK_BOOTTIME */
int64_t hfi_now_us(void);  /* the same in us, for waits shorter than that */
int64_t hfi_wall_us(void); /* us since 1970, for fences and display only */
int64_t hfi_left_ms(int64_t deadline); /* never negative */
void hfi_random(void *buf, size_t len);

/* One that is held for moments only: who finds it taken spins a little. */
void hfi_mutex_init(pthread_mutex_t *);

void hfi_cond_init(struct hfi_cond *);
void hfi_cond_fini(struct hfi_cond *);
/* Sleep until woken or `until`, or for no reason at all: check and loop. */
void hfi_cond_wait(struct hfi_cond *, pthread_mutex_t *, int64_t until);
/* After a change under the mutex, with it held or let go: nobody sleeps, nobody
 * is called. */
void hfi_cond_wake(struct hfi_cond *);     /* everyone */
void hfi_cond_wake_one(struct hfi_cond *); /* one at least */

bool hfi_notifier_init(struct hfi_notifier *);
void hfi_notifier_fini(struct hfi_notifier *);
/* Sleep until rung, `fd` (or -1) is readable, or `until`; a ring that came
 * before is not forgotten.  True if `fd` is readable. */
bool hfi_notifier_wait(struct hfi_notifier *, int fd, int64_t until);
void hfi_notifier_notify(struct hfi_notifier *); /* async-signal-safe */

/* Threads block all signals, so that no handler of the program runs there. */
bool hfi_thread_start(struct hfi_thread *, void *(*run)(void *), void *arg);
void hfi_thread_join(struct hfi_thread *);
void hfi_thread_detach(struct hfi_thread *); /* it ends by itself */

/* A byte that is 1 in the process that made it and 0 in every forked child, at
 * the price of a load. */
unsigned char *hfi_fork_mark_new(void);
void hfi_fork_mark_free(unsigned char *);

/* The same file under a number that is none of stdin, stdout and stderr; -1 and
 * errno if there is none, or none was given.  A program that has closed those
 * may still write to them, and that must not reach a lock file or a service. */
int hfi_off_stdio(int fd);

#endif
