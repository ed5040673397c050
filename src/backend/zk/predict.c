/* SPDX-License-Identifier: MIT
 *
 * predict.c - who is there, known without asking.
 *
 * A sequence number is the count of nodes that were ever created under the
 * parent.  If k was the highest when we held, and after giving that back we are
 * given k + 1, then no node was created in between, and the children need not
 * be read to know who is before us:
 *
 *   k was our own   Nobody: those before k had gone when we held it.  A pair is
 *                   two requests, as many as a create and a delete.
 *   k was another's That one, and it is who we have to watch, or it has gone.
 *                   Who takes turns with others saves a request each time.
 *
 * The first fails only if the parent is not the same one: removed when it was
 * empty, made again, and used for k + 1 creates, all of it between our delete
 * and our create.  The server numbers its transactions, too, and tells in the
 * stat of a node which one created it.  So it is seen whether there was room
 * for that. The second grants nothing: who waits reads the children when it is
 * woken, and a node that is not there, of whichever parent, is noticed by who
 * would watch it.
 *
 * INVARIANTS
 *  (1) Being alone is believed only if no more than k transactions lie between
 *      the creation of k and that of k + 1.  Making the parent anew and
 *      counting up to k again takes more, one for each node.
 *  (2) Only numbers that were seen while we held, without an owner id (which
 *      others may join), and whose removal was confirmed are remembered.
 *  (3) What is remembered ends with the connection.  Servers whose data was
 *      replaced by an older copy give the same numbers again, to other nodes;
 *      they were stopped for that, so every connection broke.
 *
 * LIMITS  A transaction that creates many numbered nodes at once (a multi),
 * under a parent that was removed and made again within the same moment, would
 * pass unseen.  No client is known that takes locks in this way; who has one
 * can use layout=kazoo, whose parents are never removed.
 *
 * A key that is new is asked for as ever, and so is one for which this was
 * wrong the last time: a create that does not tell enough costs a round trip
 * more than one that is sent along with the question.  A client that will have
 * to wait anyway has the time.  What is remembered is a small table in which
 * keys push each other out.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

static struct zk_last *last_slot(struct zk_conn *zc, const char *parent)
{
    uint32_t hash = 2166136261u;

    for (; *parent; parent++)
        hash = (hash ^ (unsigned char)*parent) * 16777619u;
    return &zc->last[hash % ZK_LAST_MAX];
}

/* A node that was held is gone; with the mutex held.  predict.c (2) */
void zk_last_note(struct zk_conn *zc, struct zk_node *node)
{
    struct zk_last *last = last_slot(zc, node->parent);
    char *copy;

    if (!node->counted || node->epoch != zc->epoch) /* predict.c (3) */
        return;
    if (!last->parent || strcmp(last->parent, node->parent) != 0) {
        copy = hfi_strdup(node->parent);
        if (!copy)
            return;
        hfi_free(last->parent);
        last->parent = copy;
        last->missed = false;
    }
    hfi_free(last->tail);
    last->tail = node->tail;
    node->tail = NULL;
    last->number = node->top;
    last->zxid = (int64_t)node->fence;
    last->fresh = true;
    last->epoch = node->epoch;
}

/* What is remembered of this parent, or NULL.  If we would be alone: for a node
 * that was, or would be, created by `zxid`.  predict.c (1) */
static struct zk_last *last_of(struct zk_conn *zc, const char *parent,
                               int64_t zxid)
{
    struct zk_last *last = last_slot(zc, parent);

    if (!last->fresh || last->epoch != zc->epoch ||
        strcmp(last->parent, parent) != 0)
        return NULL;
    return last->tail || zxid - last->zxid <= last->number ? last : NULL;
}

/* Is it likely that the next number tells enough? */
bool zk_last_known(struct zk_conn *zc, const char *parent, bool queue)
{
    struct zk_last *last;
    bool known;

    pthread_mutex_lock(&zc->mu);
    last = last_of(zc, parent, zc->zxid);
    known = last && (last->tail ? queue : !last->missed);
    pthread_mutex_unlock(&zc->mu);
    return known;
}

/* Does the number of the node that was just created tell who is before it?
 * *tail is the path of that one, to be freed, or NULL: nobody. */
bool zk_last_tells(struct zk_conn *zc, const struct zk_node *node, char **tail)
{
    struct zk_last *last;
    int32_t number = 0;
    bool tells = false;

    *tail = NULL;
    pthread_mutex_lock(&zc->mu);
    last = last_of(zc, node->parent, (int64_t)node->fence);
    if (last) {
        tells = zk_number(zk_name_of(node->path), &number) &&
                last->number < INT32_MAX && number == last->number + 1;
        *tail = tells ? last->tail : NULL;
        if (tells)
            last->tail = NULL;
        last->missed = !tells;
        last->fresh = false;
    }
    pthread_mutex_unlock(&zc->mu);
    return tells;
}

/* With the mutex held.  What is created later has a higher number, unless the
 * servers have forgotten: fences are these numbers, so nobody may miss it. */
void zk_last_created(struct zk_conn *zc, int64_t zxid, int64_t before)
{
    if (zxid <= before)
        hfi_warn(&zc->base,
                 "transaction ids have gone back: the servers' data was "
                 "replaced by older or new data, and fences begin again");
    zc->zxid = zxid;
}

void zk_last_fini(struct zk_conn *zc)
{
    size_t i;

    for (i = 0; i < ZK_LAST_MAX; i++) {
        hfi_free(zc->last[i].parent);
        hfi_free(zc->last[i].tail);
    }
}
