/* SPDX-License-Identifier: MIT
 *
 * key_queue.c - who in this client wants or has which key.
 *
 * A key queue is the part of a lock that is inside this process: the queue of
 * those who wait for it here.  At most one of them, the leader, stands in the
 * service's queue for all; when it has the grant, that becomes the local grant
 * of the key queue, and releases hand the local grant on (grant.c) or give it
 * back.  So many threads that want one key cost the service no more than one.
 *
 * INVARIANTS
 *  (1) A key queue is in the table while something points to it, and no longer.
 *  (2) Never both a local grant and a leader: who would ask for what we have?
 *  (3) With neither, nobody is left waiting: hfi_key_queue_promote() is called
 *      whenever a local grant or a leader goes.
 */
#include "core.h"

#include "base/alloc.h"

#include "base/banned.h"

static struct hfi_key_queue *queue_of(struct hfi_node *node)
{
    return node ? hfi_container(node, struct hfi_key_queue, node) : NULL;
}

struct hfi_key_queue *hfi_key_queue_find(struct hf_client *c, const char *key)
{
    return queue_of(hfi_map_find(&c->queues, key));
}

/* The key queue after this one, or the first after NULL. */
struct hfi_key_queue *hfi_key_queue_next(struct hf_client *c,
                                         struct hfi_key_queue *queue)
{
    return queue_of(hfi_map_next(&c->queues, queue ? &queue->node : NULL));
}

/* The key queue of a key, made if need be, with one more user; NULL: no
 * memory. */
struct hfi_key_queue *hfi_key_queue_get(struct hf_client *c, const char *key)
{
    struct hfi_key_queue *queue = hfi_key_queue_find(c, key);
    size_t size = strlen(key) + 1;

    if (queue) {
        queue->users++;
        return queue;
    }
    queue = hfi_map_reserve(&c->queues)
                ? hfi_alloc(offsetof(struct hfi_key_queue, key) + size)
                : NULL;
    if (!queue)
        return NULL;
    queue->node.key = memcpy(queue->key, key, size);
    hfi_map_add(&c->queues, &queue->node);
    hfi_link_init(&queue->waiting);
    hfi_link_init(&queue->contending);
    hfi_link_init(&queue->grants);
    hfi_link_init(&queue->left);
    hfi_link_init(&queue->extended);
    hfi_link_init(&queue->held_back);
    queue->users = 1;
    return queue;
}

void hfi_key_queue_put(struct hf_client *c, struct hfi_key_queue *queue)
{
    if (--queue->users)
        return;
    hfi_map_remove(&c->queues, &queue->node);
    hfi_free(queue);
}

/* The leader asks for all who wait behind it, so it asks as often as the
 * keenest of them would. */
void hfi_key_queue_spur(struct hfi_key_queue *queue,
                        const struct hfi_lock_params *params)
{
    struct hf_request *leader = queue->leader;
    int64_t by;

    if (!leader || !leader->grant || /* It is ending. */
        (leader->params.retry_ms <= params->retry_ms &&
         !(leader->params.flags & ~params->flags & HF_POLL)))
        return;
    if (leader->params.flags & ~params->flags & HF_POLL) {
        leader->params.flags &= ~(unsigned)HF_POLL;
        leader->woken = true; /* It arms a wake-up after this try. */
    }
    if (params->retry_ms < leader->params.retry_ms)
        leader->params.retry_ms = params->retry_ms;
    by = hfi_now() + leader->params.retry_ms;
    if (by < leader->next_try && !leader->grant->watched)
        leader->next_try = by;
    else if (!leader->woken)
        return;
    hfi_request_schedule(leader);
}

/* The same for a new leader, which others wait behind already. */
static void queue_spur_by_all(struct hf_client *c, struct hfi_key_queue *queue)
{
    struct hfi_link *at;

    if (c->conn->traits & HF_TRAIT_NOTIFY &&
        !(queue->leader->params.flags & HF_POLL))
        return; /* It is woken. */
    for (at = queue->waiting.next; at != &queue->waiting; at = at->next)
        hfi_key_queue_spur(queue,
                           &hfi_container(at, struct hf_request, link)->params);
}

/* If nobody of this client has or asks for the key, let the first in the local
 * queue ask. */
void hfi_key_queue_promote(struct hf_client *c, struct hfi_key_queue *queue)
{
    struct hf_request *rq;

    if (queue->local_grant || queue->leader || hfi_link_alone(&queue->waiting))
        return;
    rq = hfi_container(queue->waiting.next, struct hf_request, link);
    hfi_link_remove(&rq->link);
    hfi_link_append(&queue->contending, &rq->link);
    queue->leader = rq;
    rq->state = HFI_CONTENDING;
    rq->woken = true;
    hfi_request_schedule(rq);
    queue_spur_by_all(c, queue);
}

/* ---- owner ids --------------------------------------------------------- */

static bool queue_same_owner(const struct hfi_claim *claim,
                             const struct hfi_lock_params *params)
{
    return claim->owner && !strcmp(claim->owner, params->owner) &&
           claim->shared == !!(params->flags & HF_SHARED) &&
           claim->permits == params->permits;
}

/* The lock of this client that an acquisition with an owner id shares. */
struct hfi_grant *hfi_key_queue_owned(const struct hfi_key_queue *queue,
                                      const struct hfi_lock_params *params)
{
    struct hfi_grant *grant;
    struct hfi_link *at;

    for (at = queue->grants.next; at != &queue->grants; at = at->next) {
        grant = hfi_container(at, struct hfi_grant, link);
        if (grant->state == HFI_HELD &&
            queue_same_owner(&grant->claim, params) && hfi_held(grant))
            return grant;
    }
    return NULL;
}

/* Does the owner of the acquisition hold the key in another mode?  Then it would
 * wait for itself. */
bool hfi_key_queue_other_mode(const struct hfi_key_queue *queue,
                              const struct hfi_lock_params *params)
{
    const struct hfi_grant *grant;
    struct hfi_link *at;

    for (at = queue->grants.next; at != &queue->grants; at = at->next) {
        grant = hfi_container(at, struct hfi_grant, link);
        if (grant->state == HFI_HELD && grant->claim.owner &&
            !strcmp(grant->claim.owner, params->owner) &&
            !grant->claim.permits && !params->permits &&
            grant->claim.shared == !(params->flags & HF_SHARED) &&
            hfi_held(grant))
            return true;
    }
    return false;
}

/* A lock with an owner id has begun: all who ask for it under that id have
 * it. */
void hfi_key_queue_wake_owner(struct hfi_key_queue *queue,
                              const struct hfi_grant *grant)
{
    struct hfi_link *at;
    struct hf_request *rq;

    for (at = queue->contending.next; at != &queue->contending; at = at->next) {
        rq = hfi_container(at, struct hf_request, link);
        if (!rq->params.owner || !queue_same_owner(&grant->claim, &rq->params))
            continue;
        rq->woken = true;
        hfi_request_schedule(rq);
    }
}

/* ---- wake-ups ---------------------------------------------------------- */

/* A request that is cancelled may leave the list. */
static void queue_look(struct hfi_link *requests)
{
    struct hfi_link *at, *next;

    for (at = requests->next; at != requests; at = next) {
        next = at->next;
        hfi_request_inspect(hfi_container(at, struct hf_request, link));
    }
}

/* Let every request look at the clock and at whether it is cancelled. */
void hfi_key_queue_schedule_all(struct hf_client *c)
{
    struct hfi_key_queue *queue = hfi_key_queue_next(c, NULL), *next;

    for (; queue; queue = next) {
        queue->users++;
        queue_look(&queue->waiting); /* first: no other takes their turn */
        queue_look(&queue->contending);
        next = hfi_key_queue_next(c, queue);
        hfi_key_queue_put(c, queue);
    }
}
