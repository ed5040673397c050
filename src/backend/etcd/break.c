/* SPDX-License-Identifier: MIT
 *
 * break.c - taking a lock away.
 *
 * A lock that was broken keeps its place: its value says so, its holder is told
 * by a key beside it (wait.c) and at its next renewal, and nobody joins it.
 * It goes when the holder releases it, when its lease is over and its client's
 * core sweeps it, or with its session.  Freeing one removes it at once.
 *
 * INVARIANTS
 *  (1) A key is changed only if it was not written since it was read
 *      (change.c).
 *  (2) All who hold with one fence, since they have one owner id, are broken or
 *      freed together.  Nobody joins one that is broken: so when all have been
 *      seen to be, they stay.  Others who share, or have a permit, have fences
 *      of their own and are left alone.
 */
#include "change.h"

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* Break or free one holder. */
static hf_status break_one(struct etcd_conn *ec, const char *key,
                           const Pb__KeyValue *kv, struct etcd_words *words,
                           bool force, int64_t deadline, struct hf_error *err)
{
    char notice[ETCD_NOTICE_MAX], value[ETCD_VALUE_MAX];
    struct etcd_change ch;
    hf_status st;

    if (!words->token[0] && !force)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "%s: the holder is another program and cannot be told: "
                        "free the lock by force",
                        ec->base.endpoint);
    etcd_change_begin(&ch, kv);
    words->broken = true;
    etcd_write_value(words, value, sizeof(value));
    etcd_break_notice(ec, kv->lease, words->token, notice, sizeof(notice));
    ch.put.ignore_lease = 1;
    if (!force)
        etcd_change_put(&ch, value);
    if (kv->lease && words->token[0])
        etcd_change_tell(&ch, notice, key, kv->lease);
    st = etcd_change_send(ec, &ch, deadline, err);
    if (force && (st == HF_UNAVAILABLE || st == HF_UNCERTAIN)) {
        ch.txn.n_success = 1; /* There may be no room for a word. */
        st = etcd_change_send(ec, &ch, deadline, err);
        if (st == HF_BUSY)
            st = HF_OK; /* It has gone since, perhaps by the first. */
    }
    return st;
}

/* Break or free all that hold with this fence and are not broken yet; *done:
 * some were.  HF_LOST: nobody holds with it; HF_BUSY: look again. */
static hf_status break_all(struct etcd_conn *ec, const char *key,
                           uint64_t fence, bool force, bool *done,
                           int64_t deadline, struct hf_error *err)
{
    struct etcd_places queue = {.n = 0};
    struct etcd_place *places = NULL;
    struct etcd_words words;
    bool any = false, changed = false;
    hf_status st = etcd_queue(ec, key, &queue, deadline, err);
    size_t i;

    if (!st && !(places = etcd_order(queue.kvs, queue.n, queue.dir, NULL)))
        st = hfi_nomem(err);
    for (i = 0; i < queue.n && !st; i++) {
        if (!places[i].holds || places[i].fence != fence)
            continue;
        any = true;
        if (places[i].broken && !force)
            continue;
        etcd_read_value(queue.kvs[i]->value, &words);
        st = break_one(ec, key, queue.kvs[i], &words, force, deadline, err);
        changed = changed || !st;
    }
    hfi_free(places);
    etcd_places_free(&queue);
    *done = *done || changed;
    if (!st && !any)
        return HF_LOST;
    return !st && changed ? HF_BUSY : st; /* break.c (2) */
}

static hf_status break_until(struct etcd_conn *ec, const char *key,
                             uint64_t fence, bool force, int64_t deadline,
                             struct hf_error *err)
{
    bool done = false;
    hf_status st;

    do {
        if (!hfi_left_ms(deadline))
            return hfi_fail(err, HF_UNCERTAIN, "%s: not in time",
                            ec->base.endpoint);
        st = break_all(ec, key, fence, force, &done, deadline, err);
    } while (st == HF_BUSY);
    if (st == HF_LOST && done)
        return HF_OK; /* It has gone since. */
    return st == HF_LOST ? hfi_fail(err, HF_LOST, "%s: that grant is over",
                                    ec->base.endpoint)
                         : st;
}

hf_status etcd_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *err)
{
    return break_until((struct etcd_conn *)conn, key, fence, false, deadline,
                       err);
}

hf_status etcd_free_grant(struct hfi_conn *conn, const char *key,
                          uint64_t fence, int64_t deadline,
                          struct hf_error *err)
{
    return break_until((struct etcd_conn *)conn, key, fence, true, deadline,
                       err);
}
