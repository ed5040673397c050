/* SPDX-License-Identifier: MIT
 *
 * stats.c - what hf_stats() tells.
 *
 * Counters are plain numbers under the client's mutex, which is held anyway
 * where something is counted.  What is there now, locks held and requests under
 * way, is counted when somebody asks.
 *
 * TIME  What is measured takes readings of the clock that are needed anyway.
 * Those of an acquisition are in microseconds, others in milliseconds.  An
 * acquisition that needs no service has not waited.
 */
#include "stats.h"

#include "base/banned.h"

/* The lock is the caller's from now on. */
void hfi_count_granted(struct hf_request *rq, struct hf_lock *lk)
{
    if (rq->waited && !rq->ended_us)
        rq->ended_us = hfi_now_us();
    lk->since_us = rq->waited ? rq->ended_us : rq->began_us;
}

static uint64_t *stats_of(struct hf_stats *stats, hf_status st)
{
    switch (st) {
    case HF_OK:
        return &stats->granted;
    case HF_BUSY:
        return &stats->busy;
    case HF_TIMEOUT:
        return &stats->timeout;
    case HF_CANCELED:
        return &stats->canceled;
    case HF_UNAVAILABLE:
        return &stats->unavailable;
    case HF_UNCERTAIN:
        return &stats->uncertain;
    default:
        return &stats->failed;
    }
}

void hfi_count_end(struct hf_request *rq, hf_status st)
{
    struct hf_stats *stats = &rq->client->stats;
    int64_t us = 0;

    ++*stats_of(stats, st);
    if (rq->waited)
        us = (rq->ended_us && !st ? rq->ended_us : hfi_now_us()) - rq->began_us;
    hfi_histogram_add(&stats->wait, us);
}

static uint64_t stats_length(const struct hfi_link *list)
{
    const struct hfi_link *at;
    uint64_t n = 0;

    for (at = list->next; at != list; at = at->next)
        n++;
    return n;
}

static uint64_t stats_held(const struct hfi_key_queue *queue)
{
    const struct hfi_link *at;
    uint64_t n = 0;

    for (at = queue->grants.next; at != &queue->grants; at = at->next)
        if (hfi_container(at, struct hfi_grant, link)->state == HFI_HELD)
            n++;
    return n;
}

void hfi_stats(struct hf_client *c, struct hf_stats *ret)
{
    const struct hfi_traffic *traffic;
    struct hfi_key_queue *queue = NULL;

    pthread_mutex_lock(&c->mu);
    *ret = c->stats;
    ret->size = sizeof(*ret);
    while ((queue = hfi_key_queue_next(c, queue))) {
        ret->held += stats_held(queue);
        ret->waiting +=
            stats_length(&queue->waiting) + stats_length(&queue->contending);
    }
    traffic = &c->conn->traffic;
    ret->requests = atomic_load(&traffic->requests);
    ret->bytes_sent = atomic_load(&traffic->sent);
    ret->bytes_received = atomic_load(&traffic->received);
    pthread_mutex_unlock(&c->mu);
}
