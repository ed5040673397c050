/* SPDX-License-Identifier: MIT
 *
 * ahead.c - the first steps of several claims, sent together.
 *
 * An event loop asks for many locks at a time, and gives many back.  One thread
 * sends all of that in one write; the calls that follow take the answers, which
 * come one after the other on the one connection.
 *
 * INVARIANTS
 *  (1) What is sent here is what the call would send first, with the same
 *      token, and the call repeats it if the answer asks for that.  So all that
 *      is known of a try that had no answer is as it was.
 *  (2) What a fence is compared with was read before the try was sent.
 *  (3) All claims are on one connection: a server that is silent for one is
 *      silent for all.  So there is none of this in a cluster, and none where
 *      replicas must have a grant: there each call has a thread of its own.
 *  (4) A server that has lost its scripts refuses all of them together.  The
 *      first call sends the script whole, and the others say HFI_AGAIN: they go
 *      out together once more, behind it.
 */
#include "redis.h"

#include "base/alloc.h"

#include "base/banned.h"

/* At most so many in one write. */
#define AHEAD_MAX 64

/* Add the step of one claim, and return its length. */
static size_t ahead_add(struct redis_conn *rc, struct redis_batch *batch,
                        const struct hfi_ahead *item, int64_t deadline)
{
    struct redis_ahead *ahead = &redis_own(item->receipt)->ahead;
    size_t before = batch->len;

    if (item->release) {
        redis_eval_add(rc, batch, 'L', item->claim, 0, NULL, false);
        return batch->len - before;
    }
    ahead->unsubscribed = redis_own(item->receipt)->watched &&
                          !redis_listen(rc, item->claim, deadline);
    ahead->asked = redis_ask(rc, item->claim->key); /* ahead.c (2) */
    redis_take_add(rc, batch, item->claim, item->receipt);
    return batch->len - before;
}

void redis_send_ahead(struct hfi_conn *conn, const struct hfi_ahead *items,
                      size_t n, int64_t deadline)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct hfi_mux_start starts[AHEAD_MAX];
    struct redis_batch batch = {0};
    struct redis_ahead *ahead;
    size_t i;

    if (n > AHEAD_MAX)
        n = AHEAD_MAX;
    for (i = 0; i < n; i++) {
        ahead = &redis_own(items[i].receipt)->ahead;
        starts[i] = (struct hfi_mux_start){
            &ahead->call, ahead_add(rc, &batch, &items[i], deadline),
            &ahead->reply};
    }
    if (batch.failed)
        n = 0;
    else
        n = hfi_mux_begin_several(&rc->mux, batch.bytes, starts, n, deadline);
    for (i = 0; i < n; i++) {
        ahead = &redis_own(items[i].receipt)->ahead;
        ahead->under_way = true;
        ahead->first = !i;
    }
    redis_batch_free(&batch);
}
