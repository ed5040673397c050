/* SPDX-License-Identifier: MIT
 *
 * migrate.c - locks whose slot goes to another node of a cluster.
 *
 * While a slot moves, a server refuses every command with several keys unless
 * all of them are in one place ("TRYAGAIN").  The script has four, and some are
 * there only while somebody waits, or an owner id is in use: so it is refused
 * from the first moment of the move to the last.  A command with one key always
 * works, on the one node or the other.  So a lock without an owner id is taken,
 * renewed and given back in parts with one key each.
 *
 * INVARIANTS
 *  (1) The key itself decides who has the lock: it is taken where it is not
 *      there, and changed by the one whose token it is.  It is in one place at
 *      any time.
 *  (2) The fence is taken after the key, and written over that grant only which
 *      was read after the key was taken: a part that arrives late finds another
 *      grant, if there was one, and changes nothing.  Before another is read
 *      the key is taken again: it may have become another's meanwhile.
 *  (3) The queue is left alone: who waits asks every 100 ms meanwhile, and
 *      whoever comes first gets the lock.
 *  (4) A claim with an owner id, and a member of a group (group.lua), is
 *      renewed among the owners first, then the key for all of them: so the key
 *      never ends before the claim.  Who is not found as a member may have
 *      the lock alone, since its downgrade did not arrive.
 *  (5) Nodes may have different clocks.  A lease is decided by the expiry of a
 *      key, of which MIGRATE passes on what is left, and by no time that is
 *      stored in a value (owners_time.lua).
 */
#include "redis.h"

#include <inttypes.h>

#include "base/banned.h"

/* How often the last grant may have become another while we look at it. */
#define ATTEMPTS 4

static hf_status move_step(struct redis_conn *rc, const char *key,
                           const char *name, int argc, const char **argv,
                           redisReply **ret, int64_t deadline,
                           struct hf_error *err)
{
    char id[41];
    struct redis_key_command order = {.script = redis_move_script,
                                      .argc = 4 + argc,
                                      .argv = {"EVALSHA", id, "1", name}};
    int i;

    redis_script_digest(redis_move_script, id);
    for (i = 0; i < argc; i++)
        order.argv[4 + i] = argv[i];
    return redis_key_command(rc, key, &order, ret, deadline, err);
}

/* One attempt: read the last grant and replace it.  *fence is 0 if it had
 * become another.  migrate.c (2) */
static hf_status move_fence(struct redis_conn *rc,
                            const struct hfi_claim *claim, const char *name,
                            const char *about, uint64_t *fence,
                            int64_t deadline, struct hf_error *err)
{
    const struct redis_key_command read = {.argc = 3,
                                           .argv = {"HGET", name, "g"}};
    char keep[24];
    const char *argv[] = {"F", "", claim->token, about, keep};
    redisReply *last, *reply;
    hf_status st =
        redis_key_command(rc, claim->key, &read, &last, deadline, err);

    if (st)
        return st;
    if (last->type == REDIS_REPLY_STRING)
        argv[1] = last->str;
    snprintf(keep, sizeof(keep), "%" PRId64, rc->keep_ms + claim->ttl_ms);
    st = move_step(rc, claim->key, name, 5, argv, &reply, deadline, err);
    freeReplyObject(last);
    if (st)
        return st;
    *fence = redis_number(reply);
    freeReplyObject(reply);
    return HF_OK;
}

hf_status redis_move_take(struct redis_conn *rc, const struct hfi_claim *claim,
                          const char *about, struct hfi_receipt *receipt,
                          int64_t deadline, struct hf_error *err)
{
    struct redis_names names;
    uint64_t fence = 0;
    hf_status st = HF_OK;
    int i;

    redis_name(rc, claim->key, &names);
    for (i = 0; i < ATTEMPTS && !st && !fence; i++) {
        st = redis_unfenced_take(rc, claim, deadline, err);
        if (st == HF_BUSY || (st && !i))
            return st;
        if (!st)
            st = move_fence(rc, claim, names.text[REDIS_META], about, &fence,
                            deadline, err);
    }
    if (st || !fence) /* The key may be ours. */
        return st ? hfi_restate(err, HF_UNCERTAIN)
                  : hfi_fail(err, HF_UNCERTAIN, "%s: its slot is moving",
                             rc->base.endpoint);
    receipt->fence = fence;
    return HF_OK;
}

/* What the key says: how a group uses it, "OWNER FENCE", or the token. */
static void move_value(const struct hfi_renewal *item, bool is_member,
                       char *ret, size_t size)
{
    const struct hfi_claim *claim = item->claim;

    if (is_member && claim->permits)
        snprintf(ret, size, "permits %d:", claim->permits);
    else if (is_member)
        snprintf(ret, size, "shared:");
    else if (claim->owner)
        snprintf(ret, size, "%s %" PRIu64, claim->owner, item->receipt->fence);
    else
        snprintf(ret, size, "%s", claim->token);
}

static hf_status move_renew_key(struct redis_conn *rc,
                                const struct hfi_renewal *item,
                                const char *value, const char *name,
                                const char *ttl, redisReply **ret,
                                int64_t deadline, struct hf_error *err)
{
    const struct redis_key_command order = {
        .script = redis_unfenced_script,
        .argc = 8,
        .argv = {"EVALSHA", rc->unfenced_id, "1", name, "R", value, ttl, "0"}};

    return redis_key_command(rc, item->claim->key, &order, ret, deadline, err);
}

/* The claim among the owners, as a member or as an owner id's; *said is 0 if it
 * is not there. */
static hf_status move_renew_claim(struct redis_conn *rc,
                                  const struct hfi_renewal *item,
                                  bool is_member, const char *name,
                                  const char *ttl, uint64_t *said,
                                  int64_t deadline, struct hf_error *err)
{
    char fence[24];
    const char *argv[] = {is_member ? "P" : "O", item->claim->token, ttl,
                          fence};
    redisReply *reply;
    hf_status st;

    snprintf(fence, sizeof(fence), "%" PRIu64, item->receipt->fence);
    st = move_step(rc, item->claim->key, name, 4, argv, &reply, deadline, err);
    if (st)
        return st;
    *said = redis_number(reply);
    freeReplyObject(reply);
    return HF_OK;
}

void redis_move_renew(struct redis_conn *rc, struct hfi_renewal *item,
                      int64_t deadline, struct hf_error *err)
{
    const struct hfi_claim *claim = item->claim;
    bool is_member = claim->shared || claim->permits;
    char ttl[24], value[HF_OWNER_MAX + 24];
    struct redis_names names;
    redisReply *reply;
    uint64_t said = 0;

    redis_name(rc, claim->key, &names);
    snprintf(ttl, sizeof(ttl), "%" PRId64, item->ttl_ms);
    if (is_member) {
        item->st = move_renew_claim(rc, item, true, names.text[REDIS_OWNERS],
                                    ttl, &said, deadline, err);
        if (item->st)
            return;
        is_member = said == 1;
    }
    if (!is_member && claim->owner)
        item->st = move_renew_claim(rc, item, false, names.text[REDIS_OWNERS],
                                    ttl, &said, deadline, err);
    if (item->st)
        return;
    if (said || !claim->owner) {
        move_value(item, is_member, value, sizeof(value));
        item->st = move_renew_key(rc, item, value, names.text[REDIS_MAIN], ttl,
                                  &reply, deadline, err);
        if (item->st)
            return;
        said = redis_number(reply);
        freeReplyObject(reply);
    }
    if (said == 1)
        return;
    item->st = HF_LOST;
    item->reason = said == 2 ? HF_LOSS_STOLEN : HF_LOSS_DELETED;
}
