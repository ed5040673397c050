/* SPDX-License-Identifier: MIT
 *
 * try.h - one try: what acquire.c, try.c, verdict.c and several.c share.
 */
#ifndef HFI_BACKEND_ETCD_TRY_H
#define HFI_BACKEND_ETCD_TRY_H

#include "etcd.h"

/* Another's place, into which a slot is to be written before ours. */
struct etcd_help {
    char name[ETCD_NAME_MAX];
    char value[ETCD_VALUE_MAX + 16];
    int64_t written; /* when it was, as we have read it */
};

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
    int32_t holder_slot;
    bool admitted;    /* as of `seen` it may hold, if nobody came since */
    int64_t slotting; /* our key was last written then, and its turn to have a
                       * slot has come; 0: not yet */
    int32_t slot;     /* with either of them */
    struct etcd_help *helps; /* the same; to be freed */
    size_t nhelps;
    char dir[ETCD_NAME_MAX], end[ETCD_NAME_MAX], name[ETCD_NAME_MAX];
    bool at_queue_tail; /* `predecessor` is ours, and far from its turn */

    /* what came of it */
    hf_status alive;  /* the lease */
    int64_t revision; /* of our key; 0: it is not there */
    uint64_t fence;   /* of what we hold */
    bool foreign;     /* our name is another's: acquire.c (6) */
    bool broken;      /* our place was granted, and broken since */
    bool mine;        /* we hold, or would if our key were there */
    bool inspected;   /* the queue was read */
    enum { TRY_MAY, TRY_OTHER_USE, TRY_OTHER_MODE, TRY_STRANGE } refused;
    int32_t in_use; /* with TRY_OTHER_USE: so many permits */
    struct etcd_predecessor predecessor; /* known from earlier, too */
};

/* A transaction and what it is made of. */
struct etcd_try_txn {
    Pb__TxnRequest txn;
    Pb__Compare all[5 + ETCD_HELP_MAX], *compares[5 + ETCD_HELP_MAX];
    struct etcd_bears bears;
    Pb__PutRequest put, helps[ETCD_HELP_MAX];
    Pb__RangeRequest inspect, own, joined, used;
    Pb__RequestOp put_op, inspect_op, own_op, joined_op, used_op;
    Pb__RequestOp help_ops[ETCD_HELP_MAX], *yes[3 + ETCD_HELP_MAX], *no[3];
    bool grants;  /* if our key is put, it holds */
    int32_t slot; /* that is put with the key; -1: none yet */
    char value[ETCD_VALUE_MAX];
    char texts[6][ETCD_NAME_MAX + 16]; /* ends of ranges */
    size_t ntexts;
};

/* Does a look read all claims with their values?  Without an owner id, an
 * exclusive claim needs to know only who is before it. */
static inline bool etcd_try_full(const struct etcd_try *t)
{
    return t->claim->owner || t->claim->shared || t->claim->permits;
}

/* Is it a reader that needs to know of writers only, when it comes?  With an
 * owner id it must know which of these hold, and that depends on readers. */
static inline bool etcd_try_is_reader(const struct etcd_try *t)
{
    return t->claim->shared && !t->claim->owner;
}

/* acquire.c: send it together with what the lease needs, which the batch has as
 * its number `proof`; t->alive is what came of that. */
hf_status etcd_try_exchange(struct etcd_try *, const Pb__TxnRequest *,
                            struct etcd_batch *, size_t proof,
                            Pb__TxnResponse **ret, struct hf_error *);

/* try.c: what stands in the key of the claim, with that slot. */
void etcd_try_value(const struct etcd_try *, int32_t slot, char *ret,
                    size_t size);

/* Put together what to ask, given all above "what came of it". */
void etcd_try_make(struct etcd_try *, struct etcd_try_txn *);

/* verdict.c: read what was answered into what came of it. */
hf_status etcd_try_read(struct etcd_try *, const struct etcd_try_txn *,
                        const Pb__TxnResponse *, struct hf_error *);

#endif
