/* SPDX-License-Identifier: MIT
 *
 * resp_wire.h - one connection and the calls that are under way on it; what
 * resp_link.c is made of.  Everything here wants the mutex of the mux, unless
 * the link is known to nobody else yet.
 */
#ifndef HFI_MUX_LINK_H
#define HFI_MUX_LINK_H

#include "resp.h"
#include "resp_link.h"
#include "sendbuf.h"

/* Callers whose requests went out in one write.  Their replies come together,
 * as a rule, and so one call to the system wakes them all.  When there are more
 * of them than wake groups have room for, some are woken for nothing. */
struct mux_wake_group {
    struct hfi_cond cond;
    unsigned asleep;
};
#define MUX_WAKE_GROUPS    16
#define MUX_WAKE_GROUP_MAX 16

/* A crowd sends in so many flights, so that the server is at one of them while
 * the callers of another are served.  Were all in one, server and callers would
 * take turns and each would be idle half of the time. */
#define MUX_PIPELINES 4

/* The answer of a server that is near is waited for awake, unless so many calls
 * are under way that there is enough else to do.  Where that was in vain, a
 * call sleeps the next times, up to 2 to the power of so many. */
#define MUX_SPIN_MAX        32
#define MUX_SPIN_MISSES_MAX 10

struct mux_link {
    struct hfi_mux *mux;
    struct hfi_endpoint to;
    struct hfi_stream stream;
    redisReader *reader;
    struct hfi_link calls;
    struct hfi_sendbuf out;
    uint64_t appended, written; /* in bytes since the beginning */
    unsigned users;
    int64_t used_at;  /* when its last call ended */
    int64_t heard_at; /* when something last arrived */
    int64_t slow_ms;  /* how long the slowest answer took, of late */
    bool reading, writing, batching, retired, broken;
    bool heard; /* it has said something */
    struct hf_error why;
    struct mux_wake_group wake_groups[MUX_WAKE_GROUPS];
    unsigned wake_group, wake_group_size; /* of those who append now */
    unsigned unsent;                      /* calls that wait to be written */
    unsigned spin_misses;                 /* times in a row */
    unsigned sleeps;                      /* before it is tried again */
    unsigned to_wake;  /* by the reader: a bit for each wake group */
    unsigned answered; /* by the last read, and have not sent again */
};

struct mux_link *mux_link_new(struct hfi_mux *);
void mux_link_free(struct mux_link *);
void mux_link_put(struct mux_link *); /* one user less */

/* Nobody begins on it any more; nobody will get an answer any more. */
void mux_link_retire(struct mux_link *);
void mux_link_break(struct mux_link *, const char *what, int why);

/* Queue the bytes of a call; send what is queued, for all, together with what
 * others are about to add. */
bool mux_link_say(struct mux_link *, const char *bytes, size_t len);
struct mux_wake_group *mux_link_join(struct mux_link *);
void mux_link_flush(struct mux_link *, int64_t deadline);
void mux_link_batch(struct mux_link *, int64_t deadline);
bool mux_link_is_busy(const struct mux_link *);

/* Read for all, once; false if nothing was there. */
bool mux_link_read(struct mux_link *, int64_t deadline);

/* Who stops reading wakes the first who can go on. */
void mux_link_pass_reading(struct mux_link *);

#endif
