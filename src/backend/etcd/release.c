/* SPDX-License-Identifier: MIT
 *
 * release.c - giving back, and removing what has lapsed.
 *
 * A release removes the key if it bears the claim's token and, where nothing of
 * the claim is in doubt, is of its revision.  A sweep removes a key that nobody
 * here has any more: one that was detached, and that nobody has renewed since.
 * Its lease says whether this client still carries it; a bearer elsewhere has
 * put it on a lease of its own.  Between the look and the removal the key must
 * not have been written (change.c): every renewal for a bearer writes it, so a
 * sweep that arrives late finds another key than the one that it is meant for.
 */
#include "change.h"

#include <stdlib.h>

#include "base/banned.h"

/* Only on a lease that lives: that of a try is in the name of the key; that of
 * a take-over, or of a renewal for a bearer, is where the key was noted.
 * key.c (3) */
bool etcd_may_come(struct etcd_conn *ec, const struct hfi_claim *claim,
                   const struct hfi_receipt *receipt, int64_t deadline)
{
    int64_t tried =
        (int64_t)strtoull(etcd_last_lease(etcd_own(receipt)->last), NULL, 16);
    int64_t noted = etcd_key_lease(ec, claim->token);

    return etcd_lease_lives(ec, tried, deadline) ||
           (noted && noted != tried && etcd_lease_lives(ec, noted, deadline));
}

hf_status etcd_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                       struct hfi_receipt *receipt, int64_t deadline,
                       struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    struct etcd_grant *own = etcd_own(receipt);
    char name[ETCD_NAME_MAX];
    bool absent = false, left;
    hf_status st = HF_LOST;

    etcd_name(ec, claim, receipt, name, sizeof(name));
    if (own->last[0])
        st = etcd_remove(ec, name, claim->token,
                         claim->doubt ? 0 : etcd_revision(receipt), &absent,
                         deadline, err);
    if (st && st != HF_LOST) {
        if (st != HF_UNAVAILABLE)
            etcd_key_leaving(ec, claim->token, own->last);
        return st;
    }
    left = !etcd_key_done(ec, claim->token, own->last, absent) || claim->doubt;
    receipt->registered =
        left && own->last[0] && etcd_may_come(ec, claim, receipt, deadline);
    if (!left)
        own->last[0] = '\0';
    else if (!receipt->registered)
        etcd_key_forget(ec, claim->token);
    return st ? hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                         conn->endpoint)
              : HF_OK;
}

/* Is what was read, or NULL, the claim's key, on a lease of this client? */
static bool sweep_is_ours(struct etcd_conn *ec, const struct hfi_claim *claim,
                          const struct hfi_receipt *receipt,
                          const Pb__KeyValue *kv)
{
    struct etcd_words words;

    if (!kv || !etcd_lease_is_ours(ec, kv->lease))
        return false;
    etcd_read_value(kv->value, &words);
    return !strcmp(words.token, claim->token) && !words.kept &&
           etcd_fence(kv, &words) == receipt->fence;
}

hf_status etcd_sweep(struct hfi_conn *conn, const struct hfi_claim *claim,
                     struct hfi_receipt *receipt, int64_t deadline,
                     struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    ProtobufCMessage *message = NULL;
    const Pb__KeyValue *kv;
    struct etcd_change ch;
    char name[ETCD_NAME_MAX];
    hf_status st;

    etcd_name(ec, claim, receipt, name, sizeof(name));
    st = etcd_change_read(ec, name, &message, &kv, deadline, err);
    if (st)
        return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
    st = HF_LOST;
    if (sweep_is_ours(ec, claim, receipt, kv)) {
        etcd_change_begin(&ch, kv);
        st = etcd_change_send(ec, &ch, deadline, err);
    }
    etcd_free(message);
    if (st && st != HF_LOST)
        return st == HF_BUSY
                   ? hfi_fail(err, HF_UNAVAILABLE, "%s: the lock has changed",
                              conn->endpoint)
                   : st;
    receipt->registered =
        claim->doubt && etcd_may_come(ec, claim, receipt, deadline);
    if (!receipt->registered)
        etcd_key_forget(ec, claim->token);
    return st;
}
