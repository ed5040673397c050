/* SPDX-License-Identifier: MIT
 *
 * shared.h - one connection, many threads; what RESP and gRPC have in common.
 *
 * A caller appends its request and flushes.  Whoever waits and finds no reader
 * reads for all, hands each answer to its owner, and passes the reading on when
 * its own has come.  So one thread pays nothing extra, and many threads
 * pipeline by themselves.  One thread connects, the others wait for it.
 *
 * A protocol has a struct for its connections that begins with struct
 * hfi_shared_link, one for its calls that begins with struct hfi_shared_call,
 * and a table of functions.  Everything here wants the mutex, unless it says
 * otherwise or the link is known to nobody else yet.
 */
#ifndef HFI_SHARED_H
#define HFI_SHARED_H

#include <stdatomic.h>

#include "backoff.h"
#include "base/env.h"
#include "base/list.h"
#include "sendbuf.h"
#include "stream.h"

/* Callers whose requests went out in one write.  Their answers come together,
 * as a rule, and so one call to the system wakes them all.  When there are more
 * of them than wake groups have room for, some are woken for nothing. */
struct hfi_wake_group {
    struct hfi_cond cond;
    unsigned asleep;
};
#define HFI_WAKE_GROUPS    16
#define HFI_WAKE_GROUP_MAX 16

/* A call between its beginning and its end. */
struct hfi_shared_call {
    struct hfi_link in_calls;
    struct hfi_wake_group *wake_group; /* with whom its caller sleeps */
    hf_status st;                      /* once it is done */
    bool done;
    bool abandoned; /* nobody waits for it any more */
};

struct hfi_shared_link {
    struct hfi_shared *shared;
    struct hfi_link in_links;
    struct hfi_stream stream;
    struct hfi_link calls; /* that are under way, in order */
    struct hfi_sendbuf out;
    uint64_t written; /* bytes that were sent, or are being */
    unsigned number;  /* counts the connections, from 1 on */
    unsigned users;
    bool reading, writing, batching, retired, broken;
    struct hf_error why;  /* it is broken */
    int64_t heard_at;     /* when something last arrived; 0: nothing has */
    int spin_us;          /* an answer is waited for awake so long */
    unsigned spin_misses; /* times in a row */
    unsigned sleeps;      /* before it is tried again */
    struct hfi_wake_group wake_groups[HFI_WAKE_GROUPS];
    unsigned wake_group, wake_group_size; /* of those who append now */
    unsigned unsent;                      /* calls that wait to be written */
    unsigned to_wake;  /* by the reader: a bit for each wake group */
    unsigned answered; /* by the last read, and have not sent again */
};

struct hfi_protocol {
    /* Connect.  Without the mutex, by one thread at a time; or by more after
     * hfi_shared_move(). */
    hf_status (*open)(struct hfi_shared *, int64_t deadline,
                      struct hfi_shared_link **ret, struct hf_error *);
    void (*free)(struct hfi_shared_link *);

    /* A link was idle: retire it if the server has closed it.  To find that out
     * by a call would leave the call in doubt. */
    void (*check_idle)(struct hfi_shared_link *);

    /* Take in what was read, and break the link if it makes no sense. */
    void (*feed)(struct hfi_shared_link *, const char *bytes, size_t len);

    /* Optional.  Move what is to be written into link->out. */
    void (*collect)(struct hfi_shared_link *);

    /* Can the server have taken the call? */
    bool (*was_sent)(const struct hfi_shared_link *,
                     const struct hfi_shared_call *);

    /* Optional.  A better word than `what` for a connection that has ended. */
    const char *(*end)(const struct hfi_shared_link *, int sys_errno,
                       const char *what);

    int64_t hurry_ms; /* who had less time than this to connect says nothing of
                       * the server by failing */
    bool fail_fast; /* while a server is known to be down one looks for it, and
                       * the others need not wait */
};

struct hfi_shared {
    const struct hfi_protocol *protocol;
    pthread_mutex_t mu;
    struct hfi_cond connected;
    struct hfi_shared_link *link; /* the one that new calls use, or NULL */
    struct hfi_link links; /* that one, and the retired with calls under way */
    bool connecting;
    unsigned numbers; /* connections so far */
    unsigned moves;   /* counted up: what is being connected is not wanted */
    struct hfi_backoff backoff;
    struct hf_error down; /* why the last connect failed */
    atomic_int fd;        /* of `link`, or -1: for a forked child to close */
};

void hfi_shared_init(struct hfi_shared *, const struct hfi_protocol *);
void hfi_shared_fini(struct hfi_shared *);
void hfi_shared_after_fork_child(struct hfi_shared *);
void hfi_shared_link_init(struct hfi_shared_link *, struct hfi_shared *);
void hfi_shared_link_fini(struct hfi_shared_link *);

/* The current link, with one more user; and one user less. */
hf_status hfi_shared_get(struct hfi_shared *, int64_t deadline,
                         struct hfi_shared_link **ret, struct hf_error *);
void hfi_shared_put(struct hfi_shared_link *);

/* Nobody begins on it any more; nobody will get an answer any more. */
void hfi_shared_retire(struct hfi_shared_link *);
void hfi_shared_retire_current(struct hfi_shared *);

/* The server is another: a connection that is being made is made again, without
 * waiting for the attempt that is under way, and without the pause after one
 * that failed. */
void hfi_shared_move(struct hfi_shared *);
void hfi_shared_break(struct hfi_shared_link *, const char *what,
                      int sys_errno);

/* Is it likely that others are about to send?  Asked before one's own calls are
 * appended to link->calls; hfi_shared_join() is due for each of them, and then
 * all is sent, for all, together with what others are about to add. */
bool hfi_shared_is_busy(const struct hfi_shared_link *);
void hfi_shared_join(struct hfi_shared_link *, struct hfi_shared_call *);
void hfi_shared_send(struct hfi_shared_link *, bool busy, int64_t deadline);
void hfi_shared_flush(struct hfi_shared_link *, int64_t deadline);

/* Read for all, once; false if nothing was there. */
bool hfi_shared_read(struct hfi_shared_link *, int64_t deadline);

/* For feed(): the call is over, and its caller is to be told, soon. */
void hfi_shared_answer(struct hfi_shared_link *, struct hfi_shared_call *,
                       hf_status);

/* Wait until the call is done, reading for all when nobody does; false at the
 * deadline.  Whoever has waited calls hfi_shared_pass_reading() in the end. */
bool hfi_shared_wait(struct hfi_shared_link *, struct hfi_shared_call *,
                     int64_t deadline);
void hfi_shared_pass_reading(struct hfi_shared_link *);

#endif
