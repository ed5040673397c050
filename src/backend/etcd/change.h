/* SPDX-License-Identifier: MIT
 *
 * change.h - changing a key that was read, if it was not written since: for
 * break.c, handle.c and release.c.
 */
#ifndef HFI_BACKEND_ETCD_CHANGE_H
#define HFI_BACKEND_ETCD_CHANGE_H

#include "etcd.h"

/* One key, changed or removed, and word of it for its holder. */
struct etcd_change {
    Pb__TxnRequest txn;
    Pb__Compare made, same, *compares[2];
    Pb__PutRequest put, word;
    Pb__DeleteRangeRequest gone;
    Pb__RequestOp op, word_op, *ops[2];
};

/* Remove the key that was read. */
void etcd_change_begin(struct etcd_change *, const Pb__KeyValue *);
/* Put a value there instead of removing it. */
void etcd_change_put(struct etcd_change *, const char *value);
/* Leave word for the holder, with its lease. */
void etcd_change_tell(struct etcd_change *, const char *notice, const char *key,
                      int64_t lease);
/* HF_BUSY: it is not as it was read. */
hf_status etcd_change_send(struct etcd_conn *, struct etcd_change *,
                           int64_t deadline, struct hf_error *);
/* Read the key of a name, to be changed; NULL in *ret: there is none.  The
 * message is freed with etcd_free(). */
hf_status etcd_change_read(struct etcd_conn *, const char *name,
                           ProtobufCMessage **message, const Pb__KeyValue **ret,
                           int64_t deadline, struct hf_error *);

#endif
