/* SPDX-License-Identifier: MIT
 *
 * take.h - one attempt to take a lock, as acquire.c and busy.c see it.
 */
#ifndef HFI_BACKEND_REDLOCK_TAKE_H
#define HFI_BACKEND_REDLOCK_TAKE_H

#include "redlock.h"

/* One attempt. */
struct redlock_take {
    struct redlock_conn *rl;
    const struct hfi_claim *claim;
    struct redis_batch plain;  /* what is asked, in plain commands */
    struct redis_batch script; /* and as a script */
    char watched;              /* see redlock.h */
    bool door;                 /* new readers are kept out for it */
    int64_t began;
    uint64_t floor; /* of its fence; redlock.c (7) */
    uint64_t tried; /* the fence that was to be confirmed, or 0 */
    bool refused;   /* a node did not confirm it, and said so */
    bool fenced;    /* a fence is confirmed, if only for the floor's sake */
    struct redlock_round round;
    struct redlock_votes votes;
    unsigned reached;                /* the nodes that were asked */
    unsigned asked;                  /* those of them that may have it now */
    unsigned strange;                /* not known to have a holder of ours */
    const char *holder[REDLOCK_MAX]; /* on each that said no */
    int64_t left[REDLOCK_MAX];       /* of its lease; 0 unknown */
    struct hf_error why;             /* the fence could not be confirmed */
};

/* A writer that keeps new readers out asks again after so long at the latest. */
#define REDLOCK_DOOR_ASK_MS 1000

/* A time after which to ask again that differs from others'. */
int64_t redlock_take_split_ms(const struct redlock_take *, unsigned splits);

/* HF_BUSY, and when to ask again. */
hf_status redlock_take_busy(struct redlock_take *, struct hfi_receipt *,
                            struct hfi_answer *busy, struct hf_error *);

#endif
