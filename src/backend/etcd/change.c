/* SPDX-License-Identifier: MIT
 *
 * change.c - changing a key that was read.
 *
 * INVARIANT  A key is changed or removed only if it was not written since it
 * was read: its revisions are compared.  So what arrives late never changes a
 * key that somebody has renewed, moved, broken or taken up meanwhile.
 */
#include "change.h"

#include "base/banned.h"

void etcd_change_begin(struct etcd_change *ch, const Pb__KeyValue *kv)
{
    pb__txn_request__init(&ch->txn);
    pb__compare__init(&ch->made);
    pb__compare__init(&ch->same);
    pb__put_request__init(&ch->put);
    pb__put_request__init(&ch->word);
    pb__delete_range_request__init(&ch->gone);
    pb__request_op__init(&ch->op);
    pb__request_op__init(&ch->word_op);
    etcd_compare(&ch->made, kv->key, kv->create_revision);
    ch->same.key = ch->put.key = ch->gone.key = kv->key;
    ch->same.target = 2; /* when it was last written; equal */
    ch->same.with_case = PB__COMPARE__WITH_MOD_REVISION;
    ch->same.mod_revision = kv->mod_revision;
    ch->compares[0] = &ch->made;
    ch->compares[1] = &ch->same;
    ch->op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    ch->op.delete_range = &ch->gone;
    ch->ops[0] = &ch->op;
    ch->ops[1] = &ch->word_op;
    ch->txn.n_compare = 2;
    ch->txn.compare = ch->compares;
    ch->txn.n_success = 1;
    ch->txn.success = ch->ops;
}

void etcd_change_put(struct etcd_change *ch, const char *value)
{
    ch->put.value = etcd_text(value);
    ch->op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    ch->op.put = &ch->put;
}

void etcd_change_tell(struct etcd_change *ch, const char *notice,
                      const char *key, int64_t lease)
{
    ch->word.key = etcd_text(notice);
    ch->word.value = etcd_text(key);
    ch->word.lease = lease;
    ch->word_op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    ch->word_op.put = &ch->word;
    ch->txn.n_success = 2;
}

hf_status etcd_change_send(struct etcd_conn *ec, struct etcd_change *ch,
                           int64_t deadline, struct hf_error *err)
{
    Pb__TxnResponse *answer = NULL;
    hf_status st = etcd_txn(ec, &ch->txn, NULL, &answer, deadline, err);

    if (!st && !answer->succeeded)
        st = HF_BUSY;
    etcd_free(answer);
    return st;
}

hf_status etcd_change_read(struct etcd_conn *ec, const char *name,
                           ProtobufCMessage **message, const Pb__KeyValue **ret,
                           int64_t deadline, struct hf_error *err)
{
    Pb__RangeRequest ask = PB__RANGE_REQUEST__INIT;
    const Pb__RangeResponse *answer;
    hf_status st;

    *ret = NULL;
    ask.key = etcd_text(name);
    st = etcd_call(ec, ETCD_RANGE, &ask.base, &pb__range_response__descriptor,
                   message, deadline, err);
    answer = (const Pb__RangeResponse *)*message;
    if (!st && answer->n_kvs == 1)
        *ret = answer->kvs[0];
    return st;
}
