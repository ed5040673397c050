/* SPDX-License-Identifier: MIT
 *
 * consul_renew.c - renewing, moving to another ttl, taking up the detached.
 *
 * A renewal has two halves: the session is renewed, once for all the locks
 * that it carries, and each lock is checked to be still locked by it, up to 64
 * in one read-only transaction.  Either alone would not do: a session can
 * live on while an operator deletes an entry, and an entry says nothing of how
 * long its session will live.
 *
 * A lock that is to have another ttl, or that another process has left behind,
 * is moved: unlocked by the old session and locked by ours in one step, so
 * that nobody can come in between.  Its fence is written into the value and
 * stays what it was.
 *
 * Locks that were not renewed in time, because they lapsed or were detached
 * and never taken up, are unlocked here once their session is renewed for
 * others.  consul.c (4)
 */
#include "consul.h"

#include "../banned.h"

/* What is swept in one renewal. */
#define SWEEP_MAX 8

/* Items that are checked in one transaction. */
struct renew_batch {
    struct hfi_renewal *items[CONSUL_OPS_MAX];
    size_t n;
};

/* Why is it not ours any more?  The entry tells. */
hf_loss hfi_consul_why(const struct consul_kv *kv, const char *token,
                       uint64_t fence)
{
    if (kv->broken && kv->broken == fence)
        return HF_LOSS_BROKEN;
    if (!kv->exists)
        return HF_LOSS_DELETED;
    if (kv->session[0])
        return HF_LOSS_STOLEN;
    return !strcmp(kv->token, token) ? HF_LOSS_SESSION : HF_LOSS_DELETED;
}

/* The check of this item failed: look why. */
static void renew_look(struct consul_conn *cc, struct hfi_renewal *item,
                       int64_t deadline)
{
    char name[CONSUL_NAME_MAX];
    struct consul_kv kv;

    if (!hfi_consul_name(&cc->conf, item->claim->key, name))
        return;
    item->st =
        hfi_consul_read(cc, &cc->renewals, name, true, deadline, &kv, NULL);
    if (item->st)
        return;
    if (!strcmp(kv.session, item->grant->ref.text))
        return; /* It was the check that came too early or too late. */
    item->st = HF_LOST;
    item->reason = hfi_consul_why(&kv, item->claim->token, item->grant->fence);
}

/* Check what is in the batch, and empty it. */
static void renew_check(struct consul_conn *cc, struct renew_batch *batch,
                        int64_t deadline)
{
    char name[CONSUL_NAME_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;
    size_t i;

    for (i = 0; i < batch->n; i++)
        if (hfi_consul_name(&cc->conf, batch->items[i]->claim->key, name))
            hfi_consul_op(&ops, "check-session", name,
                          batch->items[i]->grant->ref.text, NULL, 0);
    st = hfi_consul_txn(cc, &cc->renewals, &ops, false, deadline, &done, NULL);
    for (i = 0; i < batch->n; i++) {
        batch->items[i]->st = st;
        if (!st && !done.ok && done.failed >> i & 1)
            renew_look(cc, batch->items[i], deadline);
    }
    batch->n = 0;
}

/* What was proven, counted from `began`. */
static void renew_note(struct consul_conn *cc, struct hfi_renewal *item,
                       int64_t began)
{
    char name[CONSUL_NAME_MAX];
    struct hfi_node *node;
    struct consul_key *k;

    if (!hfi_consul_name(&cc->conf, item->claim->key, name))
        return;
    pthread_mutex_lock(&cc->mu);
    node = hfi_map_find(&cc->keys, name);
    k = node ? hfi_container(node, struct consul_key, node) : NULL;
    if (k && k->session && !strcmp(k->holder, item->claim->token)) {
        k->end = began + item->ttl_ms;
        hfi_link_remove(&k->link);
        hfi_link_append(&k->session->held, &k->link);
    }
    pthread_mutex_unlock(&cc->mu);
}

/* The oldest lock of the session that has lapsed, or NULL. */
static bool sweep_find(struct consul_conn *cc, struct consul_session *s,
                       char *key, char *token)
{
    struct consul_key *k = NULL;

    pthread_mutex_lock(&cc->mu);
    if (!hfi_link_alone(&s->held)) {
        k = hfi_container(s->held.next, struct consul_key, link);
        if (k->end > hfi_now() || strlen(k->key) > HF_KEY_MAX)
            k = NULL;
    }
    if (k) {
        memcpy(key, k->key, strlen(k->key) + 1);
        memcpy(token, k->holder, sizeof(k->holder));
    }
    pthread_mutex_unlock(&cc->mu);
    return k;
}

/* Let go of what has lapsed in a session that lives on for others. */
static void renew_sweep(struct consul_conn *cc, struct consul_session *s,
                        int64_t deadline)
{
    char key[HF_KEY_MAX + 1], token[HFI_TOKEN_LEN + 1];
    struct consul_key *k;
    hf_status st;
    int i;

    for (i = 0; i < SWEEP_MAX && sweep_find(cc, s, key, token); i++) {
        if (hfi_consul_key_enter(cc, key, deadline, &k, NULL))
            return;
        st = HF_LOST;
        if (!strcmp(k->holder, token) && k->session == s)
            st = hfi_consul_unlock(cc, k, token, s->id, deadline, NULL);
        hfi_consul_key_leave(cc, k);
        if (st != HF_OK && st != HF_LOST)
            return;
    }
}

/* Lock it with `s` instead, if it is still locked by the session in its ref. */
static void move_key(struct consul_conn *cc, struct consul_key *k,
                     struct hfi_renewal *item, struct consul_session *s,
                     int64_t deadline, struct hf_error *err)
{
    struct hfi_grant *grant = item->grant;
    char value[CONSUL_VALUE_MAX];
    struct consul_done done = {.ok = true};
    struct consul_ops ops = {.len = 0};
    struct consul_kv kv;
    int64_t began = hfi_now();

    item->st =
        hfi_consul_read(cc, &cc->calls, k->name, true, deadline, &kv, err);
    if (item->st)
        return;
    if ((strcmp(kv.session, grant->ref.text) != 0 &&
         strcmp(kv.session, s->id) != 0) ||
        strcmp(kv.token, item->claim->token) != 0) {
        item->st = hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                            cc->base.endpoint);
        item->reason = hfi_consul_why(&kv, item->claim->token, grant->fence);
        return;
    }
    if (grant->fence != (kv.fence ? kv.fence : kv.index))
        grant->fence = kv.fence ? kv.fence : kv.index;
    if (strcmp(kv.session, s->id) != 0) {
        hfi_consul_value(value, item->claim, grant->fence);
        hfi_consul_guard(&ops, k->name, kv.index);
        hfi_consul_op(&ops, "unlock", k->name, kv.session, value, 0);
        hfi_consul_op(&ops, "lock", k->name, s->id, value, 0);
        item->st =
            hfi_consul_txn(cc, &cc->calls, &ops, true, deadline, &done, err);
    }
    if (!item->st && !done.ok)
        item->st = hfi_fail(err, HF_UNAVAILABLE, "%s: changed meanwhile",
                            cc->base.endpoint);
    if (item->st)
        return;
    k->index = done.index ? done.index : kv.index;
    memcpy(grant->ref.text, s->id, sizeof(s->id));
    hfi_consul_key_held(cc, k, item->claim->token, s, grant->fence,
                        began + item->ttl_ms);
}

static void renew_move(struct consul_conn *cc, struct hfi_renewal *item,
                       int64_t deadline, struct hf_error *err)
{
    struct consul_session *s;
    struct consul_key *k;
    hf_status st;

    st = hfi_consul_session_get(cc, item->ttl_ms, false, deadline, &s, err);
    if (!st) {
        st = hfi_consul_key_enter(cc, item->claim->key, deadline, &k, err);
        if (!st) {
            move_key(cc, k, item, s, deadline, err);
            st = item->st;
            hfi_consul_key_leave(cc, k);
        }
        hfi_consul_session_put(cc, s);
    }
    item->st = st;
}

/* The session that carries the item as it should be, with a reference; NULL if
 * it must be moved to one. */
static struct consul_session *renew_session(struct consul_conn *cc,
                                            const struct hfi_renewal *item)
{
    char name[CONSUL_NAME_MAX];
    struct consul_session *s;
    struct hfi_node *node = NULL;

    pthread_mutex_lock(&cc->mu);
    s = hfi_consul_session_find(cc, item->grant->ref.text);
    if (hfi_consul_name(&cc->conf, item->claim->key, name))
        node = hfi_map_find(&cc->keys, name);
    if (s && !s->dead &&
        (s->ttl_ms != item->ttl_ms || !node ||
         strcmp(hfi_container(node, struct consul_key, node)->holder,
                item->claim->token) != 0))
        s = NULL;
    if (s)
        s->users++;
    pthread_mutex_unlock(&cc->mu);
    return s;
}

/* Renew all items from `at` on that share its session. */
static void renew_group(struct consul_conn *cc, struct hfi_renewal *items,
                        size_t at, size_t n, bool *done, int64_t deadline,
                        struct hf_error *err)
{
    struct consul_session *s = renew_session(cc, &items[at]), *other;
    struct renew_batch batch = {.n = 0};
    int64_t began = hfi_now();
    hf_status st;
    size_t i;

    done[at] = true;
    if (!s) {
        renew_move(cc, &items[at], deadline, err);
        return;
    }
    st = hfi_consul_session_renew(cc, s, deadline, err);
    for (i = at; i < n; i++) {
        other = i == at ? s : done[i] ? NULL : renew_session(cc, &items[i]);
        if (other && i != at)
            hfi_consul_session_put(cc, other);
        if (other != s)
            continue;
        done[i] = true;
        items[i].st = st;
        items[i].reason = HF_LOSS_SESSION;
        if (st)
            continue;
        batch.items[batch.n++] = &items[i];
        if (batch.n == CONSUL_OPS_MAX)
            renew_check(cc, &batch, deadline);
    }
    if (batch.n)
        renew_check(cc, &batch, deadline);
    for (i = at; !st && i < n; i++)
        if (done[i] && items[i].st == HF_OK &&
            !strcmp(items[i].grant->ref.text, s->id))
            renew_note(cc, &items[i], began);
    if (!st)
        renew_sweep(cc, s, deadline);
    hfi_consul_session_put(cc, s);
}

void hfi_consul_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                      size_t n, int64_t deadline, struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    bool done[256];
    size_t at, from, part;

    for (from = 0; from < n; from += part) {
        part = n - from < 256 ? n - from : 256;
        memset(done, 0, sizeof(done));
        for (at = 0; at < part; at++)
            if (!done[at])
                renew_group(cc, items + from, at, part, done, deadline, err);
    }
}

/* The renewal that follows looks whether the handle is good. */
hf_status hfi_consul_attach(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            const struct hf_handle *handle,
                            struct hfi_grant *grant, struct hf_error *err)
{
    (void)claim;
    if (!hfi_consul_is_id(handle->ref))
        return hfi_fail(err, HF_LOST, "%s: there is no such grant",
                        conn->endpoint);
    memcpy(grant->ref.text, handle->ref, CONSUL_ID_LEN + 1);
    grant->fence = handle->fence;
    return HF_OK;
}
