/* SPDX-License-Identifier: MIT
 *
 * zk_last.c - being alone, known without asking.
 *
 * A sequence number is the count of nodes that were ever created under the
 * parent.  If we held number k, gave it back, and are given k + 1, then no node
 * was created in between; those before k had gone when we held it, so nobody
 * is there but us, and the children need not be read.  A pair is then two
 * requests, as many as a create and a delete.
 *
 * That fails only if the parent is not the same one: removed when it was empty,
 * made again, and used for k + 1 creates, all of it between our delete and our
 * create.  The server numbers its transactions, too, and tells in the stat of a
 * node which one created it.  So it is seen whether there was room for that:
 *
 * INVARIANTS
 *  (1) The number proves something only if no more than k transactions lie
 *      between the creation of k and that of k + 1.  Making the parent anew and
 *      counting up to k again takes more, one for each node.
 *  (2) Only numbers that were held here, without an owner id (which others may
 *      join), and whose removal was confirmed are remembered.
 *
 * LIMITS  A transaction that creates many numbered nodes at once (a multi),
 * under a parent that was removed and made again within the same moment, would
 * pass unseen.  No client is known that takes locks in this way; who has one can
 * use layout=kazoo, whose parents are never removed.
 *
 * A key that is new, or others use, is asked for as ever.  What is remembered
 * is a small table in which keys push each other out.
 */
#include "zk.h"

#include "../mem.h"

#include "../banned.h"

static struct zk_last *last_slot(struct zk_conn *zc, const char *parent)
{
    uint32_t hash = 2166136261u;

    for (; *parent; parent++)
        hash = (hash ^ (unsigned char)*parent) * 16777619u;
    return &zc->last[hash % ZK_LAST_MAX];
}

/* A place that was held is gone; with the mutex held.  zk_last.c (2) */
void zk_last_note(struct zk_conn *zc, const struct zk_place *place)
{
    struct zk_last *last = last_slot(zc, place->parent);
    int32_t number;
    char *copy;

    if (!place->alone || !place->path ||
        !zk_number(zk_name_of(place->path), &number))
        return;
    if (!last->parent || strcmp(last->parent, place->parent) != 0) {
        copy = hfi_strdup(place->parent);
        if (!copy)
            return;
        hfi_free(last->parent);
        last->parent = copy;
    }
    last->number = number;
    last->zxid = (int64_t)place->fence;
}

/* zk_last.c (1), for a node that was, or would be, created by `zxid`. */
static bool last_is(const struct zk_last *last, const char *parent,
                    int64_t zxid)
{
    return last->parent && !strcmp(last->parent, parent) &&
           zxid - last->zxid <= last->number;
}

/* Is it likely that we shall be alone? */
bool zk_last_known(struct zk_conn *zc, const char *parent)
{
    bool known;

    pthread_mutex_lock(&zc->mu);
    known = last_is(last_slot(zc, parent), parent, zc->zxid);
    pthread_mutex_unlock(&zc->mu);
    return known;
}

/* Does the node that was just created show that we are? */
bool zk_last_proves(struct zk_conn *zc, const struct zk_place *place)
{
    struct zk_last *last = last_slot(zc, place->parent);
    int64_t zxid = (int64_t)place->fence;
    int32_t number = 0;
    bool proves;

    pthread_mutex_lock(&zc->mu);
    proves = last_is(last, place->parent, zxid) &&
             zk_number(zk_name_of(place->path), &number) &&
             last->number < INT32_MAX && number == last->number + 1;
    if (!proves && last->parent) {
        hfi_free(last->parent);
        last->parent = NULL; /* Others are about. */
    }
    pthread_mutex_unlock(&zc->mu);
    return proves;
}

void zk_last_fini(struct zk_conn *zc)
{
    size_t i;

    for (i = 0; i < ZK_LAST_MAX; i++)
        hfi_free(zc->last[i].parent);
}
