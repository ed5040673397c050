/* SPDX-License-Identifier: MIT
 *
 * break.c - taking a lock from its holder.
 *
 * Breaking a lock marks its entry and leaves it locked.  The holder learns of
 * it from its watch, or at the latest from its next renewal, which the mark
 * makes fail, and releases the lock when its work has stopped.  If it never
 * does, the lock ends with the lease: the holder's client sweeps it, or its
 * session ends.  Only hfi_consul_free() unlocks the entry.  Both are conditional
 * on the index of the grant that was looked at, so what arrives late changes
 * nothing: consul.c (2).  Those who have one grant together are marked, or let
 * go, in one step, so that nobody joins it meanwhile.
 */
#include "consul.h"

#include "base/banned.h"

/* A grant that is to be taken away: those of one owner id who have it together
 * (reenter.c) have one fence. */
struct breaking {
    struct consul_conn *cc;
    const char *key;
    char name[CONSUL_NAME_MAX];
    uint64_t fence;
    bool free;
    bool found;   /* somebody has it */
    bool joins;   /* ... whom others may join */
    bool written; /* somebody had it, in an earlier step */
    size_t n;     /* entries that are written in this step */
    bool foreign; /* one of them is no lock of ours */
    int64_t deadline;
    struct hf_error *err;
};

/* Write the entry `kv` back, marked as broken: with its lock, or (`free`)
 * without. */
static void break_write(struct breaking *b, struct consul_ops *ops,
                        const char *name, struct consul_kv *kv)
{
    char value[CONSUL_VALUE_MAX], contender[CONSUL_NAME_MAX];

    if (b->free && kv->foreign) { /* another program's permit: semaphore.c */
        hfi_consul_op(ops, "delete-cas", name, NULL, NULL, kv->index);
        return;
    }
    kv->broken = kv->fence = b->fence;
    if (b->free) {
        kv->token[0] = kv->owner[0] = kv->note[0] = '\0';
        kv->linger = kv->wanted = kv->joins = false;
    }
    hfi_consul_kv_value(value, kv);
    hfi_consul_expect_index(ops, name, kv->index);
    hfi_consul_op_as(ops, kv, b->free ? "unlock" : "set", name,
                     b->free ? kv->session : NULL, value);
    if (b->free && b->cc->options.cli && kv->permits && /* semaphore.c (1) */
        hfi_consul_below(&b->cc->options, b->key, kv->session, contender))
        hfi_consul_op(ops, "delete", contender, NULL, NULL, 0);
}

/* If the entry is the grant, and there is something to be done about it. */
static void break_one(struct breaking *b, struct consul_ops *ops,
                      const char *name, struct consul_kv *kv)
{
    if (!kv->session[0] || hfi_consul_fence(kv) != b->fence)
        return;
    b->found = true;
    b->joins = b->joins || kv->joins;
    if (kv->foreign && !(b->free && kv->contender))
        b->foreign = true;
    if (b->foreign || b->n >= CONSUL_PRUNE_MAX ||
        (kv->broken == b->fence && !b->free))
        return;
    b->n++;
    break_write(b, ops, name, kv);
}

/* All entries that are the grant, as they are at one moment.  Whoever joins it
 * changes the key, so it is a condition that that is as it was. */
static hf_status break_find(struct breaking *b, struct consul_ops *ops)
{
    struct consul_many many = {.n = 0};
    struct consul_conn *cc = b->cc;
    struct consul_kv kv, one;
    hf_status st = hfi_consul_read(cc, &cc->calls, b->name, true, b->deadline,
                                   &kv, b->err);
    bool key_written;
    uint64_t index;
    size_t i;

    if (!st && hfi_consul_is_many(cc, &kv))
        st = hfi_consul_many_read(cc, b->key, b->name, 0, NULL, b->deadline,
                                  &many, b->err);
    if (st)
        return st;
    index = kv.index;
    break_one(b, ops, b->name, &kv);
    key_written = b->n;
    for (i = 0; i < many.n; i++) {
        hfi_consul_kv_parse(&one, many.holders[i].entry);
        break_one(b, ops, many.holders[i].name, &one);
    }
    if (b->joins && b->n && !key_written)
        hfi_consul_expect_index(ops, b->name, index);
    hfi_consul_many_fini(&many);
    return HF_OK;
}

/* One step: HF_OK: nothing is left to do; HF_BUSY: there may be; HF_LOST:
 * something had changed. */
static hf_status break_step(struct breaking *b)
{
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;

    b->n = 0;
    b->found = b->joins = false;
    st = break_find(b, &ops);
    if (!st && b->foreign)
        st = hfi_fail(b->err, HF_PROTOCOL,
                      "%s: held by something that is no lock of ours",
                      b->cc->base.endpoint);
    if (st || !b->n) {
        hfi_consul_ops_fini(&ops);
        return st;
    }
    st = hfi_consul_txn(b->cc, &b->cc->calls, &ops, true, b->deadline, &done,
                        b->err);
    if (st || !done.ok)
        return st ? st : HF_LOST;
    b->written = true;
    return b->n < CONSUL_PRUNE_MAX ? HF_OK : HF_BUSY;
}

static hf_status break_entry(struct consul_conn *cc, const char *key,
                             uint64_t fence, bool free, int64_t deadline,
                             struct hf_error *err)
{
    struct breaking b = {.cc = cc,
                         .key = key,
                         .fence = fence,
                         .free = free,
                         .deadline = deadline,
                         .err = err};
    hf_status st = HF_LOST;
    int i = 0;

    if (!hfi_consul_name(&cc->options, key, b.name))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        cc->base.endpoint);
    while (st == HF_BUSY || (st == HF_LOST && i++ < CONSUL_ROUNDS))
        st = break_step(&b);
    if (st == HF_LOST)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: the lock changes all the time", cc->base.endpoint);
    return st || b.found || b.written
               ? st
               : hfi_fail(err, HF_LOST, "%s: that grant is over",
                          cc->base.endpoint);
}

hf_status hfi_consul_break(struct hfi_conn *conn, const char *key,
                           uint64_t fence, int64_t deadline,
                           struct hf_error *err)
{
    return break_entry((struct consul_conn *)conn, key, fence, false, deadline,
                       err);
}

hf_status hfi_consul_free(struct hfi_conn *conn, const char *key,
                          uint64_t fence, int64_t deadline,
                          struct hf_error *err)
{
    return break_entry((struct consul_conn *)conn, key, fence, true, deadline,
                       err);
}
