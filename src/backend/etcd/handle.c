/* SPDX-License-Identifier: MIT
 *
 * handle.c - taking up a lock that was detached.
 *
 * A handle is taken up by putting another token in place of its own, if the key
 * was not written since it was read (change.c).
 */
#include "change.h"

#include "base/env.h"

#include "base/banned.h"

void etcd_detach(const struct hfi_receipt *receipt, struct hf_handle *ret)
{
    snprintf(ret->ref, sizeof(ret->ref), "%s", etcd_own(receipt)->last);
}

hf_status etcd_attach(struct hfi_conn *conn, const struct hfi_claim *claim,
                      const struct hf_handle *handle,
                      struct hfi_receipt *receipt, struct hf_error *err)
{
    size_t len = strspn(handle->ref, "RS.~0123456789abcdef-");

    (void)claim;
    if (!len || len >= ETCD_LAST_MAX || handle->ref[len])
        return hfi_fail(err, HF_LOST, "%s: there is no such lock",
                        conn->endpoint);
    memcpy(etcd_own(receipt)->last, handle->ref, len + 1);
    etcd_own(receipt)->held = true;
    receipt->fence = handle->fence;
    return HF_OK; /* The renewal that follows tells whether it is there. */
}

/* What stands in a place that the claim takes over.  It remains with its owner
 * id, which others may have joined. */
static void over_value(const struct hfi_claim *claim, struct etcd_words *words,
                       char *ret, size_t size)
{
    snprintf(words->token, sizeof(words->token), "%s", claim->token);
    if (claim->owner && !words->owner[0])
        snprintf(words->owner, sizeof(words->owner), "%s", claim->owner);
    if (claim->note)
        snprintf(words->note, sizeof(words->note), "%s", claim->note);
    etcd_write_value(words, ret, size);
}

/* Put the claim's token, and its lease, into the place that was read. */
static hf_status over_put(struct etcd_conn *ec, const struct hfi_claim *claim,
                          const Pb__KeyValue *kv, struct etcd_words *words,
                          const char *name, int64_t deadline,
                          struct hf_error *err)
{
    char value[ETCD_VALUE_MAX];
    struct etcd_lease *lease = NULL;
    struct etcd_change ch;
    hf_status st = etcd_lease_get(ec, claim->ttl_ms, &lease, deadline, err);

    if (st)
        return st;
    st = etcd_key_note(ec, lease, claim->token, name, kv->create_revision);
    over_value(claim, words, value, sizeof(value));
    etcd_change_begin(&ch, kv);
    etcd_change_put(&ch, value);
    ch.put.lease = lease->id;
    if (st == HF_NOMEM)
        st = hfi_nomem(err);
    else if (st) /* key.c (2) */
        st = hfi_fail(err, HF_UNCERTAIN, "%s: the handle was taken up too late",
                      ec->base.endpoint);
    else
        st = etcd_change_send(ec, &ch, deadline, err);
    if (st == HF_LOST) {
        etcd_lease_gone(ec, lease);
        st = HF_BUSY;
    } else if (st && st != HF_BUSY && st != HF_UNAVAILABLE) {
        etcd_key_doubt(ec, claim->token); /* It may yet be put. */
    }
    etcd_lease_put(ec, lease);
    return st;
}

/* Is this the grant of the receipt, in the mode of the claim? */
static bool over_is_it(const struct etcd_conn *ec,
                       const struct hfi_claim *claim,
                       const struct hfi_receipt *receipt,
                       const Pb__KeyValue *kv, const struct etcd_words *words)
{
    char dir[ETCD_NAME_MAX];
    int32_t permits;

    etcd_dir(ec, claim->key, dir, sizeof(dir));
    etcd_kind(kv->key, strlen(dir), &permits);
    return etcd_fence(kv, words) == receipt->fence && !words->broken &&
           !words->kept && words->shared == claim->shared &&
           permits == claim->permits && (!permits || words->slot >= 0);
}

/* One look, and one step if it is there.  HF_BUSY: look again. */
static hf_status over_once(struct etcd_conn *ec, const struct hfi_claim *claim,
                           const char *token, struct hfi_receipt *receipt,
                           int64_t deadline, struct hf_error *err)
{
    ProtobufCMessage *message = NULL;
    const Pb__KeyValue *kv;
    struct etcd_words words;
    char name[ETCD_NAME_MAX];
    hf_status st;

    etcd_name(ec, claim, receipt, name, sizeof(name));
    st = etcd_change_read(ec, name, &message, &kv, deadline, err);
    if (st)
        return st;
    st = HF_LOST;
    if (kv) {
        etcd_read_value(kv->value, &words);
        receipt->slot = words.slot;
        if (!over_is_it(ec, claim, receipt, kv, &words))
            st = HF_LOST;
        else if (!strcmp(words.token, claim->token))
            st = HF_OK;
        else if (!strcmp(words.token, token))
            st = over_put(ec, claim, kv, &words, name, deadline, err);
    }
    etcd_free(message);
    return st;
}

hf_status etcd_take_over(struct hfi_conn *conn, const struct hfi_claim *claim,
                         const char *token, struct hfi_receipt *receipt,
                         int64_t deadline, struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    hf_status st = HF_BUSY;

    while (st == HF_BUSY && hfi_left_ms(deadline))
        st = over_once(ec, claim, token, receipt, deadline, err);
    if (st == HF_BUSY)
        return hfi_fail(err, HF_UNCERTAIN, "%s: not in time", conn->endpoint);
    if (st == HF_LOST) {
        etcd_key_forget(ec, claim->token);
        return hfi_fail(err, HF_LOST, "%s: there is no such lock any more",
                        conn->endpoint);
    }
    if (!st)
        etcd_key_forget(ec, token);
    return st;
}
