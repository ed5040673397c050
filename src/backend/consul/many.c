/* SPDX-License-Identifier: MIT
 *
 * many.c - a key that several hold at once: who they are.
 *
 * ON THE WIRE  Each holder has an entry of its own, K/.holdfast-holders/TOKEN,
 *   locked by a session of its client.  From then on it is a lock like any
 *   other: it is renewed, moved, marked and unlocked under this name.  The entry
 *   of the key itself has other Flags and says in which way the key is used
 *   (`shared`, or `permits N`), and after which index of its own that was written,
 *   so that each time it is another value.  It is locked, but by a session that is
 *   nobody's: common.c.
 *
 *   join       K unchanged                  lock K, lock the entry
 *   downgrade  K unchanged                  unlock K, lock K, lock the entry
 *   take up    K and the entry unchanged    set K, delete the entry, lock another
 *   leave      the entry unchanged          unlock the entry
 *   alone      K unchanged, all have left   unlock K, lock K
 *   tidy       K unchanged, all have left   unlock K: a free lock, as any other
 *
 *   Who joins a grant of its own owner id has such an entry too, beside a lock
 *   that may be held: reenter.c.
 *
 * INVARIANTS
 *  (1) Whoever comes in changes K, and only on the condition that K is as it was
 *      when the holders were looked at.  So between the look and the write there
 *      were never more of them, and a write that comes late changes nothing.
 *  (2) One that is not locked holds no more, and never will again: all that
 *      might lock it is for an index that it does not have any longer.
 *  (3) While anybody holds, K has the Flags of several holders.  Who does not
 *      know them (`consul lock`, an older release) takes K for something that
 *      is no lock and leaves it alone.  Whoever has looked before that, and
 *      locks it without another look, finds it locked: common.c; except where
 *      the first of an owner id has died: reenter.c, LIMITS.
 *  (4) Who released says so in its entry (`by`).  Another entry that is not
 *      locked belonged to a session that has ended; a lock-delay may hold for
 *      it, so whoever needs its place locks and deletes it in the same step.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

#define HOLDERS ".holdfast-holders"

/* Does the entry of a key say that several hold it, or did? */
bool hfi_consul_is_many(const struct consul_conn *cc,
                        const struct consul_kv *kv)
{
    return (kv->many && !kv->foreign) || (kv->semaphore && cc->options.cli);
}

bool hfi_consul_holder_name(const struct consul_options *options,
                            const char *key, const char *token, char *ret)
{
    return hfi_consul_part(options, key, HOLDERS, token, ret);
}

/* Somebody who waits. */
static void many_waiter(struct consul_many *many, const json_t *entry,
                        const char *name, const char *token)
{
    struct consul_kv kv;

    hfi_consul_kv_parse(&kv, entry);
    if (!hfi_consul_is_queue_entry(&kv) || kv.shared || kv.permits ||
        strlen(name) != HFI_TOKEN_LEN)
        return;
    if (!strcmp(name, token))
        many->stands = true;
    else
        memcpy(many->writer, name, HFI_TOKEN_LEN + 1);
}

static void many_holder(struct consul_holder *h, const json_t *entry,
                        const char *name)
{
    struct consul_kv kv;

    hfi_consul_kv_parse(&kv, entry);
    *h = (struct consul_holder){
        .entry = entry,
        .name = name,
        .index = kv.index,
        .slot = kv.slot,
        .gone = !kv.session[0] && !kv.token[0],
        .unasked = kv.session[0] && kv.linger && !kv.wanted,
    };
    memcpy(h->session, kv.session, sizeof(h->session));
}

/* Add those whose names begin with `folder`, of a list of entries or of results
 * of a transaction; false: no memory. */
bool hfi_consul_many_collect(struct consul_many *many, const json_t *list,
                             const char *folder)
{
    size_t i, n = json_array_size(list), len = strlen(folder);
    const json_t *entry, *inner;
    const char *name;

    if (!many->holders)
        many->holders = hfi_alloc((n + 1) * sizeof(*many->holders));
    if (!many->holders)
        return false;
    for (i = 0; i < n; i++) {
        entry = json_array_get(list, i);
        inner = json_object_get(entry, "KV");
        if (inner)
            entry = inner;
        name = json_string_value(json_object_get(entry, "Key"));
        if (!name || strncmp(name, folder, len) != 0)
            continue;
        many_holder(&many->holders[many->n], entry, name);
        if (many->holders[many->n++].session[0])
            many->live++;
    }
    return true;
}

static void many_waiters(struct consul_many *many, const json_t *list,
                         const char *folder, const char *token)
{
    size_t i, len = strlen(folder);
    const json_t *entry;
    const char *name;

    for (i = 0; i < json_array_size(list); i++) {
        entry = json_object_get(json_array_get(list, i), "KV");
        name = json_string_value(json_object_get(entry, "Key"));
        if (name && !strncmp(name, folder, len))
            many_waiter(many, entry, name + len, token);
    }
}

/* many->reply, whose transaction was done, has all entries below the key. */
hf_status hfi_consul_many_fill(struct consul_conn *cc, const char *key,
                               const char *token, struct consul_many *many,
                               struct hf_error *err)
{
    char folder[CONSUL_NAME_MAX], queue[CONSUL_NAME_MAX], base[CONSUL_NAME_MAX];
    const json_t *list;

    hfi_consul_reply_parse(&many->reply);
    list = json_object_get(many->reply.json, "Results");
    if (!hfi_consul_holder_name(&cc->options, key, "", folder) ||
        !hfi_consul_below(&cc->options, key, "", base) ||
        !hfi_consul_queue_entry(&cc->options, key, "", queue) ||
        !hfi_consul_many_collect(many, list, folder)) {
        hfi_consul_many_fini(many);
        return hfi_nomem(err);
    }
    if (cc->options.cli)
        hfi_consul_semaphore_collect(many, list, base);
    if (token)
        many_waiters(many, list, queue, token);
    return HF_OK;
}

/* Who holds the key whose entry is `name`?  HF_LOST: the entry is not as it was
 * at `index` (0: it does not matter).  With a token, also who waits to be
 * alone. */
hf_status hfi_consul_many_read(struct consul_conn *cc, const char *key,
                               const char *name, uint64_t index,
                               const char *token, int64_t deadline,
                               struct consul_many *many, struct hf_error *err)
{
    char folder[CONSUL_NAME_MAX], queue[CONSUL_NAME_MAX], base[CONSUL_NAME_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;

    *many = (struct consul_many){.n = 0};
    if (!hfi_consul_holder_name(&cc->options, key, "", folder) ||
        !hfi_consul_below(&cc->options, key, "", base) ||
        !hfi_consul_queue_entry(&cc->options, key, "", queue))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        cc->base.endpoint);
    if (index)
        hfi_consul_expect_index(&ops, name, index);
    hfi_consul_op(&ops, "get-tree", cc->options.cli ? base : folder, NULL, NULL,
                  0);
    if (token && !cc->options.cli)
        hfi_consul_op(&ops, "get-tree", queue, NULL, NULL, 0);
    st = hfi_consul_txn_keep(cc, &cc->calls, &ops, false, deadline, &done,
                             &many->reply, err);
    if (st)
        return st;
    if (done.ok)
        return hfi_consul_many_fill(cc, key, token, many, err);
    hfi_consul_many_fini(many);
    return HF_LOST;
}

void hfi_consul_many_fini(struct consul_many *many)
{
    hfi_free(many->holders);
    hfi_consul_reply_fini(&many->reply);
    *many = (struct consul_many){.n = 0};
}

/* Delete the entries of those who hold no more, as many as fit; the number of
 * those that are left.  Without a session only of those who have released.  (4)
 */
size_t hfi_consul_many_prune(const struct consul_many *many,
                             struct consul_ops *ops, const char *session)
{
    const struct consul_holder *h;
    size_t i, n = 0;

    for (i = 0; i < many->n; i++) {
        h = &many->holders[i];
        if (h->session[0] || (!h->gone && !session) || n++ >= CONSUL_PRUNE_MAX)
            continue;
        if (h->gone) {
            hfi_consul_op(ops, "delete-cas", h->name, NULL, NULL, h->index);
        } else {
            hfi_consul_expect_index(ops, h->name, h->index);
            hfi_consul_op(ops, "lock", h->name, session, NULL, 0);
            hfi_consul_op(ops, "delete", h->name, NULL, NULL, 0);
        }
    }
    return n > CONSUL_PRUNE_MAX ? n - CONSUL_PRUNE_MAX : 0;
}

/* What `kv` says, and after which index. */
static void many_after(char *ret, const struct consul_kv *kv)
{
    size_t len;

    hfi_consul_kv_value(ret, kv);
    len = strlen(ret);
    snprintf(ret + len, CONSUL_VALUE_MAX - len, "after %llu\n",
             (unsigned long long)kv->index);
}

/* What the entry of a key says that several hold; `fence` is that of the newest
 * grant if it is not the entry's index. */
void hfi_consul_many_value(char *ret, const struct hfi_claim *claim,
                           uint64_t after, uint64_t fence, int64_t common_ms)
{
    struct consul_kv kv = {.fence = fence,
                           .shared = claim->shared,
                           .permits = claim->permits,
                           .common_ms = common_ms,
                           .index = after};

    many_after(ret, &kv);
}

/* What it says if it is written again, and says the same. */
void hfi_consul_many_again(char *ret, const struct consul_kv *kv)
{
    struct consul_kv now = *kv;

    now.fence = hfi_consul_fence(kv);
    many_after(ret, &now);
}

/* Somebody comes in, so the entry of the key, `kv`, becomes another; what it says
 * and who has locked it stays. */
void hfi_consul_many_touch(struct consul_ops *ops, const char *name,
                           const struct consul_kv *kv)
{
    struct consul_kv now = *kv;
    char value[CONSUL_VALUE_MAX];

    now.joined = kv->joined || !kv->many;
    hfi_consul_many_again(value, &now);
    hfi_consul_op_as(ops, &now, "set", name, NULL, value);
}

/* How many slots have a holder: those of one owner id may share one. */
size_t hfi_consul_many_used(const struct consul_many *many)
{
    size_t i, j, used = 0;

    for (i = 0; i < many->n; i++) {
        if (!many->holders[i].session[0])
            continue;
        for (j = 0; j < i; j++)
            if (many->holders[j].session[0] &&
                many->holders[j].slot == many->holders[i].slot)
                break;
        used += j == i;
    }
    return used;
}

/* Nobody holds it any more, if the entry of the key is as it was at `index`, and
 * locked by the common session `common` or ("") by none: make that a free lock
 * again, for all who know no other.  If that fails, the next one who takes it does
 * it. */
static void many_free(struct consul_conn *cc, const char *name, uint64_t index,
                      const char *common, uint64_t fence,
                      const struct consul_many *many, int64_t deadline,
                      bool *changed)
{
    struct consul_kv kv = {.fence = fence};
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;

    memcpy(kv.by, cc->id, sizeof(kv.by));
    hfi_consul_kv_value(value, &kv);
    hfi_consul_expect_index(&ops, name, index);
    hfi_consul_many_prune(many, &ops, NULL);
    hfi_consul_op(&ops, common[0] ? "unlock" : "set", name,
                  common[0] ? common : NULL, value, 0);
    *changed = false;
    if (hfi_consul_txn(cc, &cc->calls, &ops, true, deadline, &done, NULL))
        return;
    *changed = !done.ok;
    if (done.ok)
        hfi_consul_common_freed(cc, common, name);
}

/* Delete what those have left who have released. */
static void many_forget(struct consul_conn *cc, const struct consul_many *many,
                        int64_t deadline)
{
    struct consul_ops ops = {.len = 0};
    struct consul_done done;

    hfi_consul_many_prune(many, &ops, NULL);
    if (ops.len)
        hfi_consul_txn(cc, &cc->calls, &ops, true, deadline, &done, NULL);
}

static bool many_all_gone(const struct consul_many *many)
{
    size_t i;

    for (i = 0; i < many->n; i++)
        if (!many->holders[i].gone)
            return false;
    return true;
}

/* One of the holders has left, and `many` were there after that.  If nobody has
 * come since it came in itself, its own grant tells the index of the key. */
void hfi_consul_many_tidy(struct consul_conn *cc, struct consul_key *joint,
                          uint64_t granted_index, uint64_t fence,
                          const struct consul_many *many, int64_t deadline)
{
    char name[CONSUL_NAME_MAX];
    struct consul_many now;
    struct consul_kv kv;
    bool changed = true;

    if (!many_all_gone(many) ||
        !hfi_consul_name(&cc->options, joint->key, name))
        return;
    if (granted_index)
        many_free(cc, name, granted_index, joint->locked_by, fence, many,
                  deadline, &changed);
    if (!changed ||
        hfi_consul_read(cc, &cc->calls, name, true, deadline, &kv, NULL) ||
        !kv.many || kv.foreign ||
        hfi_consul_many_read(cc, joint->key, name, kv.index, NULL, deadline,
                             &now, NULL))
        return;
    if (kv.session[0]) /* The one that they had joined holds it: reenter.c. */
        many_forget(cc, &now, deadline);
    else if (many_all_gone(&now))
        many_free(cc, name, kv.index, kv.common, hfi_consul_fence(&kv), &now,
                  deadline, &changed);
    hfi_consul_many_fini(&now);
}
