/* SPDX-License-Identifier: MIT
 *
 * break.c - taking a lock away: telling its holder, or freeing it at once.
 *
 * A grant is known by its fence, which a majority has confirmed.  It is broken
 * when no majority is left that was not told, so that the next renewal, which
 * needs a majority, meets a node that was.  It is free when a majority has no
 * key of it any more.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/banned.h"

/* Too few have answered; those that were asked and are silent may do it yet. */
static hf_status break_few(struct redlock_round *round, int answered, int done,
                           struct hf_error *err)
{
    hf_status st = redlock_too_few(round, answered, 0, err);
    bool asked = done > 0;
    int i;

    for (i = 0; i < round->rl->n; i++)
        asked = asked || round->calls[i].st == HF_UNCERTAIN;
    return st == HF_UNAVAILABLE && asked
               ? hfi_wrap(err, HF_UNCERTAIN, "it may be broken all the same")
               : st;
}

/* What the nodes said to `op`, which ends the grant with this fence: how many
 * did it, and how many have no lock at all. */
static hf_status break_ask(struct redlock_conn *rl, char op, const char *key,
                           uint64_t fence, int64_t deadline, int *done,
                           int *none, struct hf_error *err)
{
    char number[24];
    const char *argv[] = {"", number};
    struct redlock_round round;
    struct redis_batch batch = {0};
    const redisReply *reply;
    hf_status st = HF_OK;
    int i, answered;

    *done = *none = 0;
    snprintf(number, sizeof(number), "%" PRIu64, fence);
    redlock_round_init(&round, rl);
    redlock_step(rl, &batch, op, key, 2, argv);
    answered = redlock_inspect_ask(&round, &batch, deadline);
    for (i = 0; i < rl->n; i++) {
        reply = redlock_reply(&round.calls[i], 0);
        if (!reply || reply->type != REDIS_REPLY_INTEGER)
            continue;
        *done += reply->integer == 1;
        *none += reply->integer == 2;
    }
    if (answered < rl->majority)
        st = break_few(&round, answered, *done, err);
    else if (!*done)
        st =
            hfi_fail(err, HF_LOST, "%s: that grant is over", rl->base.endpoint);
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return st;
}

hf_status redlock_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                        int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    int done, none;
    hf_status st = break_ask(rl, 'B', key, fence, deadline, &done, &none, err);

    if (!st && rl->n - done >= rl->majority)
        st =
            hfi_fail(err, HF_UNCERTAIN, "%s: only %d of %d nodes could be told",
                     conn->endpoint, done, rl->n);
    return st;
}

hf_status redlock_free(struct hfi_conn *conn, const char *key, uint64_t fence,
                       int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    int done, none;
    hf_status st = break_ask(rl, 'F', key, fence, deadline, &done, &none, err);

    if (!st && done + none < rl->majority)
        st = hfi_fail(err, HF_UNCERTAIN,
                      "%s: only %d of %d nodes have given the lock up",
                      conn->endpoint, done + none, rl->n);
    return st;
}
