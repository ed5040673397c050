/* SPDX-License-Identifier: MIT
 *
 * rule.h - what is decided about a majority: pure functions, without
 * clock, memory or network.
 *
 * The backend counts answers with them, and so does the simulation of the fence
 * in test/redlock, which lets nodes fail, forget and go wrong in time at every
 * step.  Sets of nodes are bits of an unsigned.
 */
#ifndef HFI_BACKEND_REDLOCK_RULE_H
#define HFI_BACKEND_REDLOCK_RULE_H

#include <stdbool.h>
#include <stdint.h>

int redlock_majority(int n);

/* What a node proposes as the next fence, from the largest that was confirmed
 * there (0: none) and its clock.  redlock.c (4) */
uint64_t redlock_proposal(uint64_t confirmed, uint64_t clock_us);

/* ---- taking ------------------------------------------------------------ */

struct redlock_votes {
    int n;
    unsigned yes, no;
    uint64_t fence;  /* the largest proposal of those who said yes */
    uint64_t own;    /* a fence of this very claim that was confirmed before */
    unsigned owners; /* by these */
};

/* `own`: the fence that it has confirmed for this claim, which had the key
 * there already; 0: none. */
void redlock_vote_yes(struct redlock_votes *, int node, uint64_t proposal,
                      uint64_t own);
void redlock_vote_no(struct redlock_votes *, int node);

enum redlock_verdict {
    REDLOCK_OPEN,    /* it may still become ours */
    REDLOCK_BEATEN,  /* it will not, but why is not known yet */
    REDLOCK_WON,     /* a majority said yes */
    REDLOCK_HELD,    /* a majority answered, and others have too much of it */
    REDLOCK_TOO_FEW, /* all have answered who will, and they are too few */
};

/* With so many answers still to come. */
enum redlock_verdict redlock_verdict(const struct redlock_votes *, int waiting);

/* The fence of a claim that has WON.  False: it was confirmed by a majority
 * before, and need not be again. */
bool redlock_fence(const struct redlock_votes *, uint64_t *ret);

/* Is a fence that so many have confirmed one that may be told?  And if not, can
 * it still become one with `waiting` more? */
bool redlock_is_confirmed(int n, int confirmed);
bool redlock_may_be_confirmed(int n, int confirmed, int waiting);

/* ---- keeping ----------------------------------------------------------- */

/* What the nodes said of one grant. */
struct redlock_tally {
    int confirmed, stolen, broken;
    unsigned gone; /* the set of nodes that have no such key */
};

enum redlock_standing { REDLOCK_STANDS, REDLOCK_UNKNOWN, REDLOCK_FALLEN };

enum redlock_standing redlock_standing(int n, const struct redlock_tally *);

/* May the nodes that have no such key be given it again?  redlock.c (5) */
bool redlock_may_restore(int n, const struct redlock_tally *);

/* ---- waking ------------------------------------------------------------ */

/* A release reaches a majority.  While we listen to `subscribers` of n nodes,
 * do we surely hear of it? */
bool redlock_subscribed_enough(int n, int subscribers);

#endif
