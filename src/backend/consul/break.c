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
 * nothing: consul.c (2).
 */
#include "consul.h"

#include "base/banned.h"

/* Write the entry `kv` back, marked as broken: with its lock, or (`free`)
 * without. */
static hf_status break_write(struct consul_conn *cc, const char *name,
                             struct consul_kv *kv, bool free, int64_t deadline,
                             struct consul_done *done, struct hf_error *err)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};

    kv->broken = kv->fence = hfi_consul_fence(kv);
    if (free) {
        kv->token[0] = kv->owner[0] = kv->note[0] = '\0';
        kv->linger = kv->wanted = false;
    }
    hfi_consul_kv_value(value, kv);
    hfi_consul_expect_index(&ops, name, kv->index);
    hfi_consul_op(&ops, free ? "unlock" : "set", name,
                  free ? kv->session : NULL, value, 0);
    return hfi_consul_txn(cc, &cc->calls, &ops, true, deadline, done, err);
}

/* The entry that is the grant, if there is any. */
static hf_status break_find(struct consul_conn *cc, const char *key,
                            uint64_t fence, char *name, int64_t deadline,
                            struct consul_kv *kv, struct hf_error *err)
{
    struct consul_many many;
    struct consul_kv one;
    hf_status st;
    size_t i;

    if (!hfi_consul_name(&cc->options, key, name))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        cc->base.endpoint);
    st = hfi_consul_read(cc, &cc->calls, name, true, deadline, kv, err);
    if (st || !kv->many || kv->foreign)
        return st;
    st = hfi_consul_many_read(cc, key, name, 0, NULL, deadline, &many, err);
    for (i = 0; !st && i < many.n; i++) {
        hfi_consul_kv_parse(&one, many.holders[i].entry);
        if (!one.session[0] || hfi_consul_fence(&one) != fence)
            continue;
        *kv = one;
        snprintf(name, CONSUL_NAME_MAX, "%s", many.holders[i].name);
    }
    if (!st)
        hfi_consul_many_fini(&many);
    return st;
}

static hf_status break_entry(struct consul_conn *cc, const char *key,
                             uint64_t fence, bool free, int64_t deadline,
                             struct hf_error *err)
{
    char name[CONSUL_NAME_MAX];
    struct consul_done done;
    struct consul_kv kv;
    hf_status st;
    int i;

    for (i = 0; i < CONSUL_ROUNDS; i++) {
        st = break_find(cc, key, fence, name, deadline, &kv, err);
        if (st)
            return st;
        if (!kv.session[0] || hfi_consul_fence(&kv) != fence)
            return hfi_fail(err, HF_LOST, "%s: that grant is over",
                            cc->base.endpoint);
        if (kv.foreign)
            return hfi_fail(err, HF_PROTOCOL,
                            "%s: held by something that is no lock of ours",
                            cc->base.endpoint);
        if (kv.broken == fence && !free)
            return HF_OK;
        st = break_write(cc, name, &kv, free, deadline, &done, err);
        if (st || done.ok)
            return st;
    }
    return hfi_fail(err, HF_UNAVAILABLE, "%s: the lock changes all the time",
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
