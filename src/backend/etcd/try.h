/* SPDX-License-Identifier: MIT
 *
 * try.h - one try: what acquire.c and try.c share.
 */
#ifndef HFI_BACKEND_ETCD_TRY_H
#define HFI_BACKEND_ETCD_TRY_H

#include "etcd.h"

/* One try. */
struct etcd_try {
    struct etcd_conn *ec;
    const struct hfi_claim *claim;
    struct hfi_receipt *receipt;
    struct etcd_lease *lease;
    int64_t sent, deadline;
    int64_t limit;              /* of one exchange */
    size_t spare;               /* members that may yet be asked */
    int64_t seen;               /* the same owner has it: as of this revision */
    char holder[ETCD_NAME_MAX]; /* in this key, ... */
    int64_t holder_revision;    /* ... which was made then; 0: it has not */
    uint64_t holder_fence;
    char dir[ETCD_NAME_MAX], end[ETCD_NAME_MAX], name[ETCD_NAME_MAX];
    bool at_queue_tail; /* `predecessor` is ours, and far from its turn */

    /* what came of it */
    hf_status alive;  /* the lease */
    int64_t revision; /* of our key; 0: it is not there */
    uint64_t fence;   /* of what we hold */
    bool foreign;     /* our name is another's: acquire.c (6) */
    bool mine;        /* we hold, or would if our key were there */
    bool inspected;   /* the queue was read */
    struct etcd_predecessor predecessor; /* known from earlier, too */
};

/* A transaction and what it is made of. */
struct etcd_try_txn {
    Pb__TxnRequest txn;
    Pb__Compare compare, holder, unused, *compares[4];
    struct etcd_bears bears;
    Pb__PutRequest put;
    Pb__RangeRequest inspect, own, joined;
    Pb__RequestOp put_op, inspect_op, own_op, joined_op, *yes[3], *no[3];
    char value[ETCD_VALUE_MAX], from[ETCD_NAME_MAX + 1];
    char to[ETCD_NAME_MAX + 1];
};

/* Put together what to ask, given all above "what came of it". */
void etcd_try_make(struct etcd_try *, struct etcd_try_txn *);

/* Read what was answered into what came of it. */
hf_status etcd_try_read(struct etcd_try *, const struct etcd_try_txn *,
                        const Pb__TxnResponse *, struct hf_error *);

#endif
