/* SPDX-License-Identifier: MIT
 *
 * renew.c - keeping many locks at once.
 *
 * All renewals for one server go out as one write; those for different nodes of
 * a cluster are under way together.
 *
 * INVARIANTS
 *  (1) One item's failure is that item's alone.
 *  (2) A node that is silent is waited for once.  From then on, until it has
 *      answered the prober of cluster.c, what is to be renewed there
 *      fails at once and is tried again, and the locks on other nodes are not
 *      kept waiting.
 *  (3) While the slot of a lock moves, the server refuses a script whose keys
 *      are not all there yet.  The key alone can always be renewed, and is:
 *      that there was a break is then seen by the renewal after the move.  With
 *      an owner id, or in a group (group.lua), that takes two
 *      steps, one lock after the other (migrate.c).
 *  (4) What was not carried out, because the server lacks the script or has the
 *      slot no more, or has only a part of it, is sent again together: a
 *      fail-over or a move costs all the locks of a shard a few round trips
 *      more, and not each of them.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/alloc.h"

#include "base/banned.h"

static void renew_read(struct redis_conn *rc, struct hfi_renewal *item,
                       const redisReply *reply, struct hf_error *err)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        item->st = redis_error(rc, reply, err);
    } else if (reply->type != REDIS_REPLY_INTEGER) {
        item->st = redis_bad_reply(rc, err);
    } else {
        item->st = reply->integer == 1 ? HF_OK : HF_LOST;
        item->reason = reply->integer == 2   ? HF_LOSS_STOLEN
                       : reply->integer == 3 ? HF_LOSS_BROKEN
                                             : HF_LOSS_DELETED;
    }
}

/* What goes to one server. */
struct renew_part {
    struct hfi_mux *mux;
    struct redis_batch batch;
    struct hfi_mux_call call;
    redisReply **replies;
    hf_status st;
    bool begun;
    bool said[2]; /* the script, and the one for keys alone, is said whole */
};

/* How an item is renewed: by the script; its key alone; or that, at a node that
 * does not have the slot yet. */
enum renew_way { RENEW_SCRIPT, RENEW_KEY, RENEW_ASKING };

/* At most so many servers at once; the rest of the items wait for the next
 * round. */
#define RENEW_PARTS 32

/* The core sends no more at once. */
#define RENEW_ITEMS 256

/* Where the items go, in one round. */
struct renew_round {
    struct redis_conn *rc;
    struct hfi_renewal *items;
    size_t n, left; /* items, and those that are not settled yet */
    bool settled[RENEW_ITEMS];
    unsigned char of[RENEW_ITEMS];   /* the part that has it, or RENEW_PARTS */
    unsigned char way[RENEW_ITEMS];  /* enum renew_way */
    struct hfi_mux *to[RENEW_ITEMS]; /* RENEW_ASKING: that node */
    struct renew_part parts[RENEW_PARTS];
    size_t nparts;
    bool whole; /* the first of each part, and kind, says its script whole */
};

/* What a renewal says beside the claim: whether it may be less; ttl, fence. */
struct renew_args {
    char op, ttl[24], fence[24];
    const char *argv[2];
};

static void renew_say(struct renew_args *args, const struct hfi_renewal *item)
{
    snprintf(args->ttl, sizeof(args->ttl), "%" PRId64, item->ttl_ms);
    snprintf(args->fence, sizeof(args->fence), "%" PRIu64,
             item->receipt->fence);
    args->op = item->ttl_ms < item->claim->ttl_ms ? 'S' : 'R';
    args->argv[0] = args->ttl;
    args->argv[1] = args->fence;
}

static void renew_add(struct renew_round *round, struct renew_part *part,
                      size_t i)
{
    const char *asking[] = {"ASKING"};
    const struct hfi_renewal *item = &round->items[i];
    bool unfenced =
        round->rc->acquire != REDIS_FENCED || round->way[i] != RENEW_SCRIPT;
    bool whole = round->whole && !part->said[unfenced];
    struct renew_args args;

    part->said[unfenced] = true;
    if (round->way[i] == RENEW_ASKING)
        redis_batch_add(&part->batch, 1, asking);
    if (unfenced) {
        redis_unfenced_renew_add(round->rc, &part->batch, item, whole);
        return;
    }
    renew_say(&args, item);
    redis_eval_add(round->rc, &part->batch, args.op, item->claim, 2, args.argv,
                   whole);
}

/* An error of a link does not say whose it is. */
static hf_status renew_named(struct redis_conn *rc, hf_status st,
                             struct hf_error *err)
{
    return st ? hfi_wrap(err, st, "%s", rc->base.endpoint) : HF_OK;
}

static void renew_begin(struct redis_conn *rc, struct renew_part *part,
                        int64_t deadline, struct hf_error *err)
{
    part->begun = true;
    part->replies = hfi_alloc((size_t)part->batch.count * sizeof(redisReply *));
    if (part->batch.failed || !part->replies)
        part->st = hfi_nomem(err);
    else if (redis_is_unhealthy(rc, part->mux)) /* renew.c (2) */
        part->st = hfi_fail(err, HF_UNAVAILABLE, "%s: a node is silent",
                            rc->base.endpoint);
    else
        part->st = renew_named(
            rc,
            hfi_mux_begin_first(part->mux, &part->call, part->batch.bytes,
                                part->batch.len, part->batch.count,
                                part->replies, deadline, err),
            err);
}

/* Send all parts, then wait for each: first to those who are connected, since
 * connecting may take all the time there is. */
static void renew_send(struct redis_conn *rc, struct renew_part *parts,
                       size_t n, int64_t deadline, struct hf_error *err)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (n > 1 && hfi_mux_is_up(parts[i].mux))
            renew_begin(rc, &parts[i], deadline, err);
    for (i = 0; i < n; i++)
        if (!parts[i].begun)
            renew_begin(rc, &parts[i], deadline, err);
    for (i = 0; i < n; i++) {
        if (!parts[i].st) {
            if (!hfi_left_ms(deadline)) /* We are late; it may be here. */
                hfi_mux_advance(&parts[i].call, true);
            parts[i].st = renew_named(
                rc, hfi_mux_finish(&parts[i].call, deadline, err), err);
        }
        if (parts[i].st)
            redis_doubt(rc, parts[i].mux);
    }
}

/* The slot is moving: renew the key alone, at `to` if it is there already;
 * false if that is to be sent.  renew.c (3) */
static bool renew_moving(struct renew_round *round, size_t i,
                         struct hfi_mux *to, int64_t deadline,
                         struct hf_error *err)
{
    struct hfi_renewal *item = &round->items[i];

    if (!redis_is_plain(item->claim) && round->rc->acquire == REDIS_FENCED) {
        redis_move_renew(round->rc, item, deadline, err);
        return true;
    }
    round->way[i] = to ? RENEW_ASKING : RENEW_KEY;
    round->to[i] = to;
    item->st = hfi_fail(err, HF_UNAVAILABLE, "%s: its slot is moving",
                        round->rc->base.endpoint);
    return false;
}

/* One answer; false if the item is to be sent again.  renew.c (4) */
static bool renew_settle(struct renew_round *round, size_t i,
                         const redisReply *reply, int64_t deadline,
                         struct hf_error *err)
{
    struct redis_conn *rc = round->rc;
    struct hfi_renewal *item = &round->items[i];
    bool ask = false, noscript = redis_is_noscript(reply);
    struct hfi_mux *to = NULL;

    if (reply->type == REDIS_REPLY_ERROR && !noscript) {
        to = redis_redirect(rc, reply, &ask);
        if (ask || !strncmp(reply->str, "TRYAGAIN", 8))
            return renew_moving(round, i, to, deadline, err);
    }
    if (noscript || to) {
        if (to && round->way[i] == RENEW_ASKING)
            round->way[i] = RENEW_KEY; /* It has arrived. */
        item->st = hfi_fail(err, HF_UNAVAILABLE,
                            "%s: nobody has the key, or keeps scripts",
                            rc->base.endpoint);
        return false;
    }
    renew_read(rc, item, reply, err);
    return true;
}

/* Put the answers of a part where they belong, in the order of its items. */
static void renew_apply(struct renew_round *round, size_t p, int64_t deadline,
                        struct hf_error *err)
{
    struct renew_part *part = &round->parts[p];
    size_t i, at = 0;

    for (i = 0; i < round->n; i++) {
        if (round->settled[i] || round->of[i] != p)
            continue;
        round->items[i].st = part->st;
        round->settled[i] = true;
        if (!part->st) {
            if (round->way[i] == RENEW_ASKING)
                freeReplyObject(part->replies[at++]);
            round->settled[i] =
                renew_settle(round, i, part->replies[at], deadline, err);
            freeReplyObject(part->replies[at++]);
        }
        round->left -= round->settled[i];
    }
    redis_batch_free(&part->batch);
    hfi_free(part->replies);
    *part = (struct renew_part){0};
}

/* Give each item that is not settled to the server that has its key. */
static void renew_sort(struct renew_round *round)
{
    struct renew_part *parts = round->parts;
    struct hfi_mux *mux;
    size_t i, p;

    round->nparts = 0;
    for (i = 0; i < round->n; i++) {
        if (round->settled[i])
            continue;
        mux = round->way[i] == RENEW_ASKING
                  ? round->to[i]
                  : redis_route(round->rc, round->items[i].claim->key);
        for (p = 0; p < round->nparts && parts[p].mux != mux; p++)
            continue;
        round->of[i] = (unsigned char)p;
        if (p == RENEW_PARTS)
            continue;
        if (p == round->nparts)
            parts[round->nparts++].mux = mux;
        renew_add(round, &parts[p], i);
    }
}

/* A key may have moved while we followed it, and scripts may be flushed. */
#define RENEW_ROUNDS 6

void redis_renew(struct hfi_conn *conn, struct hfi_renewal *items, size_t n,
                 int64_t deadline, struct hf_error *err)
{
    struct renew_round round = {.rc = (struct redis_conn *)conn,
                                .items = items,
                                .n = n < RENEW_ITEMS ? n : RENEW_ITEMS};
    size_t p;
    int i;

    round.left = round.n;
    for (i = 0; i < RENEW_ROUNDS && round.left; i++) {
        round.whole = i > 0;
        renew_sort(&round);
        renew_send(round.rc, round.parts, round.nparts, deadline, err);
        for (p = 0; p < round.nparts; p++)
            renew_apply(&round, p, deadline, err);
    }
}
