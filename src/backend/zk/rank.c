/* SPDX-License-Identifier: MIT
 *
 * rank.c - who of those who contend holds, and whom another waits for.  Pure
 * functions of the children of a key.
 *
 * INVARIANTS
 *  (1) Of two contenders that exclude each other at most one finds the other
 *      not before itself (names.c (2)).
 *  (2) An exclusive contender holds if nobody is before it; a shared one if no
 *      exclusive one is.  So those who share and stand next to each other at the
 *      head hold together, and one behind an exclusive one that waits stays
 *      behind it.
 *  (3) Several have one number only if they were made to join the first of them
 *      (sequential.c (4)); they have its mode, too.
 */
#include "zk.h"

#include "base/banned.h"

/* names.c (2): how far `number` is behind `base`; negative: before it. */
static int32_t rank_distance(int32_t number, int32_t base)
{
    return (int32_t)((uint32_t)number - (uint32_t)base);
}

/* What the others are compared with: our own number, or else any.  False if
 * there is nobody. */
static bool rank_base(struct zk_rank *ret, const struct String_vector *names,
                      const char *own)
{
    bool found = false;
    int32_t number;
    int i;

    for (i = 0; i < names->count && !ret->own; i++) {
        if (!zk_number(names->data[i], &number))
            continue;
        if (own && !strcmp(names->data[i], own))
            ret->own = names->data[i];
        if (!found || ret->own)
            ret->base = number;
        found = true;
    }
    return found;
}

/* The first and the last of all, and the first that is exclusive. */
static void rank_ends(struct zk_rank *ret, const struct String_vector *names)
{
    int32_t number, at, last = 0;
    bool shared;
    int i;

    ret->wall = INT64_MAX;
    for (i = 0; i < names->count; i++) {
        if (!zk_contender(names->data[i], &number, &shared))
            continue;
        at = rank_distance(number, ret->base);
        if (!ret->last || at >= last) {
            ret->last = names->data[i];
            ret->top = number;
            last = at;
        }
        if (!ret->head || at < ret->front) {
            ret->head = names->data[i];
            ret->front = at;
        }
        if (!shared && at < ret->wall)
            ret->wall = at;
    }
    ret->shared = ret->head && ret->front < ret->wall;
}

/* rank.c (2), for one of the children that were ranked. */
bool zk_rank_holds(const struct zk_rank *rank, const char *name)
{
    int32_t number, at;
    bool shared;

    if (!rank->head || !zk_contender(name, &number, &shared))
        return false;
    at = rank_distance(number, rank->base);
    return rank->shared ? at < rank->wall : at == rank->front;
}

/* Does one of the children have a lower number than our own node, which is
 * among them? */
bool zk_rank_before(const struct zk_rank *rank, const char *name)
{
    int32_t number;

    return rank->own && zk_number(name, &number) &&
           rank_distance(number, rank->base) < 0;
}

/* Find the node `own` (NULL: none) among the children, the first and the last
 * of all, and the last of those before it that it has to wait for. */
void zk_rank(struct zk_rank *ret, const struct String_vector *names,
             const char *own)
{
    bool shared, own_shared = false;
    int32_t ahead = 0, number, at;
    int i;

    *ret = (struct zk_rank){0};
    if (!rank_base(ret, names, own))
        return;
    rank_ends(ret, names);
    if (ret->own)
        zk_contender(ret->own, &number, &own_shared);
    for (i = 0; i < names->count; i++) {
        const char *name = names->data[i];

        if (!zk_contender(name, &number, &shared)) /* names.c (1) */
            continue;
        if (zk_rank_holds(ret, name))
            ret->holders++;
        else
            ret->waiters++;
        at = rank_distance(number, ret->base);
        if (!ret->own || at >= 0)
            continue;
        ret->position++;
        if ((!own_shared || !shared) && (!ret->ahead || at > ahead)) {
            ret->ahead = name;
            ahead = at;
        }
    }
    ret->first = ret->own && !ret->ahead;
}
