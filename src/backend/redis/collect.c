/* SPDX-License-Identifier: MIT
 *
 * collect.c - removing what keys that are free left behind: collect.lua says
 * what may be removed, and removes it in one step for each key.
 *
 * What stays behind is one hash, the last grant.  It expires by itself after
 * keep=, so this is for those who cannot wait for that.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/banned.h"

struct collect_job {
    struct redis_conn *rc;
    struct hfi_mux *mux;
    struct redis_batch batch;
    char older[24];
    const char *dry;
    bool loaded; /* the server has the script */
    struct hf_collected *ret;
    int64_t limit_ms;
};

static void collect_add(void *arg, const char *key)
{
    struct collect_job *job = arg;
    const char *argv[] = {job->older, job->dry};
    struct hfi_claim claim = {.key = key};

    redis_eval_add(job->rc, &job->batch, 'Z', &claim, 2, argv,
                   !job->loaded && !job->batch.count);
}

/* Some keys of one server, in one write.  The first brings the script, which is
 * a hundred times as long as the rest for a key.  If the server is made to drop
 * its scripts after that, these keys stay, and the next write brings it again. */
static hf_status collect_send(void *arg, struct hf_error *err)
{
    struct collect_job *job = arg;
    redisReply *replies[REDIS_COMPANIONS_AT_ONCE];
    int i, n = job->batch.count;
    hf_status st = redis_batch_send(job->rc, job->mux, &job->batch, replies,
                                    hfi_now() + job->limit_ms, err);

    redis_batch_free(&job->batch);
    job->batch = (struct redis_batch){0};
    job->loaded = !st;
    for (i = 0; !st && i < n; i++) {
        job->loaded = job->loaded && !redis_is_noscript(replies[i]);
        redis_collected(job->ret, replies[i]);
        freeReplyObject(replies[i]);
    }
    return st;
}

static hf_status collect_server(struct collect_job *job, struct hf_error *err)
{
    const struct redis_companions walk = {collect_add, collect_send, job};

    job->loaded = false;
    return redis_companions(job->rc, job->mux, &walk, job->limit_ms, err);
}

hf_status redis_collect(struct hfi_conn *conn, int64_t older_ms, bool dry_run,
                        struct hf_collected *ret, int64_t deadline,
                        struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct collect_job job = {.rc = rc,
                              .mux = &rc->mux,
                              .dry = dry_run ? "1" : "0",
                              .ret = ret,
                              .limit_ms = hfi_left_ms(deadline)};
    hf_status st = HF_OK;
    unsigned i;

    if (rc->acquire != REDIS_FENCED)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: nothing is left behind",
                        conn->endpoint);
    snprintf(job.older, sizeof(job.older), "%" PRId64, older_ms);
    if (!rc->cluster)
        return collect_server(&job, err);
    for (i = 0; !st && i < atomic_load(&rc->cluster->nnodes); i++) {
        job.mux = &rc->cluster->nodes[i]->mux;
        if (redis_has_slots(rc->cluster, i))
            st = collect_server(&job, err);
    }
    return st;
}
