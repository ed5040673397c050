/* SPDX-License-Identifier: MIT
 *
 * rule.c - what is decided about a majority; see rule.h, and
 * redlock.c for why it is right.
 */
#include "rule.h"

#include "base/banned.h"

static int count(unsigned nodes)
{
    return __builtin_popcount(nodes);
}

int redlock_majority(int n)
{
    return n / 2 + 1;
}

uint64_t redlock_proposal(uint64_t confirmed, uint64_t clock_us)
{
    return confirmed >= clock_us ? confirmed + 1 : clock_us;
}

void redlock_vote_yes(struct redlock_votes *votes, int node, uint64_t proposal,
                      uint64_t own)
{
    votes->yes |= 1U << node;
    if (proposal > votes->fence)
        votes->fence = proposal;
    if (own > votes->own) {
        votes->own = own;
        votes->owners = 0;
    }
    if (own && own == votes->own)
        votes->owners |= 1U << node;
}

void redlock_vote_no(struct redlock_votes *votes, int node)
{
    votes->no |= 1U << node;
}

enum redlock_verdict redlock_verdict(const struct redlock_votes *votes,
                                     int waiting)
{
    int majority = redlock_majority(votes->n);
    int yes = count(votes->yes), all = yes + count(votes->no);

    if (yes >= majority)
        return REDLOCK_WON;
    if (yes + waiting >= majority)
        return REDLOCK_OPEN;
    if (all >= majority)
        return REDLOCK_HELD;
    return waiting ? REDLOCK_BEATEN : REDLOCK_TOO_FEW;
}

bool redlock_fence(const struct redlock_votes *votes, uint64_t *ret)
{
    bool before = redlock_is_confirmed(votes->n, count(votes->owners));

    *ret = before ? votes->own : votes->fence;
    return !before;
}

bool redlock_is_confirmed(int n, int confirmed)
{
    return confirmed >= redlock_majority(n);
}

bool redlock_may_be_confirmed(int n, int confirmed, int waiting)
{
    return confirmed + waiting >= redlock_majority(n);
}

enum redlock_standing redlock_standing(int n, const struct redlock_tally *tally)
{
    int against = count(tally->gone) + tally->stolen + tally->broken;

    if (tally->confirmed >= redlock_majority(n))
        return REDLOCK_STANDS;
    return n - against < redlock_majority(n) ? REDLOCK_FALLEN : REDLOCK_UNKNOWN;
}

bool redlock_may_restore(int n, const struct redlock_tally *tally)
{
    return tally->gone && tally->confirmed &&
           redlock_standing(n, tally) != REDLOCK_FALLEN &&
           tally->confirmed + count(tally->gone) >= redlock_majority(n);
}

bool redlock_subscribed_enough(int n, int subscribers)
{
    return redlock_majority(n) - (n - subscribers) >= 1;
}
