/* SPDX-License-Identifier: MIT
 *
 * collect.c - removing what keys that are free left behind.
 *
 * Each node is asked for its own: what it has kept of a key is one hash, with
 * the largest fence that it has confirmed.  A node removes it only when its own
 * clock is a day past that fence, so it need not know of the others; redlock.c
 * (11).  The hash expires by itself after keep=, so this is for those who cannot
 * wait for that.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/banned.h"

struct collect_job {
    struct redlock_conn *rl;
    int node;
    struct redis_batch batch;
    char older[24];
    const char *dry;
    struct hf_collected *ret;
    int64_t limit_ms;
};

static void collect_add(void *arg, const char *key)
{
    struct collect_job *job = arg;
    const char *argv[] = {"", job->older, job->dry};

    redlock_step(job->rl, &job->batch, 'Z', key, 3, argv);
}

static hf_status collect_send(void *arg, struct hf_error *err)
{
    struct collect_job *job = arg;
    int i, n = job->batch.count;
    int64_t deadline = hfi_now() + job->limit_ms;
    struct redlock_round round;
    const struct redlock_node_call *call;
    hf_status st;

    redlock_round_init(&round, job->rl);
    redlock_ask(&round, job->node, &job->batch, deadline);
    redlock_hear(&round, deadline);
    call = &round.calls[job->node];
    st = call->st;
    if (st && err)
        *err = call->err;
    else if (!st && !call->landed)
        st = hfi_fail(err, HF_UNAVAILABLE, "no answer in time");
    for (i = 0; !st && i < n; i++)
        redis_collected(job->ret, redlock_reply(call, i));
    redlock_round_fini(&round);
    redis_batch_free(&job->batch);
    job->batch = (struct redis_batch){0};
    return st;
}

hf_status redlock_collect(struct hfi_conn *conn, int64_t older_ms, bool dry_run,
                          struct hf_collected *ret, int64_t deadline,
                          struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    struct collect_job job = {.rl = rl,
                              .dry = dry_run ? "1" : "0",
                              .ret = ret,
                              .limit_ms = hfi_left_ms(deadline)};
    const struct redis_companions walk = {collect_add, collect_send, &job};
    int64_t limit = redlock_limit(rl, REDLOCK_LOOK_TTL);
    hf_status st = HF_OK;
    int asked = 0;

    if (!rl->fenced)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: nothing is left behind",
                        conn->endpoint);
    snprintf(job.older, sizeof(job.older), "%" PRId64, older_ms);
    redlock_await_majority(rl, deadline);
    for (job.node = 0; job.node < rl->n; job.node++) {
        struct redis_conn *rc = &rl->nodes[job.node].rc;

        if (!redlock_node_is_ready(&rl->nodes[job.node], limit))
            continue;
        st = redis_companions(rc, &rc->mux, &walk, job.limit_ms, err);
        asked += !st;
        if (st && st != HF_UNAVAILABLE && st != HF_UNCERTAIN)
            return st;
    }
    if (asked == rl->n)
        return HF_OK;
    return hfi_fail(err, HF_UNAVAILABLE,
                    "%s: %d of %d nodes could be looked through",
                    conn->endpoint, asked, rl->n);
}
