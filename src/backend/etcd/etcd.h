/* SPDX-License-Identifier: MIT
 *
 * etcd.h - what the parts of the etcd: backend share.
 *
 *   etcd.c     the rules; open, close
 *   acquire.c  try_acquire
 *   try.c      what a try asks
 *   verdict.c  what it is told
 *   several.c  try_acquire_all
 *   renew.c    renew
 *   release.c  release, sweep
 *   wait.c     watch, unwatch: wake-ups, over a connection of their own
 *   connect.c  that connection
 *   observe.c  observe, unobserve
 *   handle.c   attach, take_over
 *   inspect.c  inspect, list, holders
 *   break.c    break_grant, free_grant
 *   part.c     downgrade, keep: giving back a part
 *   order.c    who holds, given the claims in their order
 *   change.c   changing a key that was read
 *   lease.c    the leases of this client, on backend/session.c
 *   key.c      the keys that hang on them
 *   combine.c  transactions of many threads, together
 *   names.c    names of keys, and what stands in them
 *   rpc.c      calls: packing, credentials, errors
 */
#ifndef HFI_BACKEND_ETCD_H
#define HFI_BACKEND_ETCD_H

#include <string.h>

#include "backend/backend.h"
#include "backend/etcd/etcd.pb-c.h"
#include "backend/session.h"
#include "base/env.h"
#include "base/map.h"
#include "net/grpc_link.h"

#define ETCD_PREFIX_MAX 256

/* What ends a name: what kind it is (names.c), a lease, '-' and a number. */
#define ETCD_LAST_MAX 40

/* The prefix, each byte of the key escaped, '/', and that. */
#define ETCD_NAME_MAX   (ETCD_PREFIX_MAX + 3 * HF_KEY_MAX + 1 + ETCD_LAST_MAX)
#define ETCD_NOTICE_MAX (ETCD_PREFIX_MAX + 7 + 16 + 1 + HFI_TOKEN_LEN + 1)
#define ETCD_VALUE_MAX                                                         \
    (8 + HFI_TOKEN_LEN + 3 * HF_OWNER_MAX + 3 * HF_NOTE_MAX + 80)

/* The sum of all calls that go out together. */
#define ETCD_CALLS_MAX 16

/* How far before us the queue is read: a place behind that is not told. */
#define ETCD_QUEUE_LIMIT 64

/* For so many locks it is known who of us waits at the end of a long queue. */
#define ETCD_QUEUE_TAILS 8

/* One lease of ours; `kind` is the seconds that were asked for. */
struct etcd_lease {
    struct hfi_session session;
    int64_t id;
    int64_t break_notice; /* the watch on word of broken locks; see watch_mu */
};

/* A key that hangs on a lease. */
struct etcd_key {
    struct hfi_session_claim claim;
    bool moving;      /* a move to another lease had no answer */
    bool unsure;      /* a write of it had no answer */
    bool leaving;     /* a removal of it had no answer: key.c (2) */
    int32_t position; /* in the queue, when it was last looked at */
    int64_t revision; /* at which it was made; 0: not known */
    int64_t predecessor_revision;
    char *predecessor; /* who is before it, or NULL */
    char name[];
};

/* What a grant remembers: receipt->own.  Another process needs `last`. */
struct etcd_grant {
    char last[ETCD_LAST_MAX]; /* the end of its name; "": it has none */
    bool held;                /* this claim has the lock */
    bool watched;             /* wake me */
    int64_t watch;            /* its watch, or 0 */
};

struct etcd_request;

struct etcd_conn {
    struct hfi_conn base;
    bool opened;
    struct hfi_h2 h2;
    struct hfi_endpoint ends[HFI_HOSTS_MAX];
    size_t nends, first; /* the first to be asked */
    struct ssl_ctx_st *tls;
    char prefix[ETCD_PREFIX_MAX];
    char *user, *password, *password_file; /* the last is NULL without one */
    _Atomic uint64_t cluster; /* that we speak to; 0: not known yet */
    _Atomic uint64_t term;    /* the highest that was seen there */
    _Atomic int64_t revision; /* the same */
    atomic_bool doubted;  /* an answer was of another, or of an older time */
    atomic_bool troubled; /* the last renewal had no answer */

    pthread_mutex_t mu;      /* guards the rest of this part */
    struct hfi_cond settled; /* a login has ended */
    int64_t old_since;       /* only such answers came since then, and ... */
    bool old[HFI_HOSTS_MAX]; /* ... from these endpoints */
    char *token;
    unsigned token_age; /* counts the tokens that we had */
    bool logging_in;
    struct hfi_sessions leases; /* of struct etcd_lease and etcd_key */
    uint32_t *numbers;          /* that ended a name, and may again */
    size_t nnumbers, numbers_room;
    uint32_t number; /* the first that never did */
    /* Tokens of those who last queued far behind. */
    char queue_tails[ETCD_QUEUE_TAILS][HFI_TOKEN_LEN + 1];

    pthread_mutex_t combine_mu; /* guards the rest of this part */
    struct hfi_link requests;   /* of struct etcd_request, not sent yet */
    struct etcd_request *spare; /* that are in no use */
    unsigned in_flight;         /* calls that are under way */
    size_t carried;             /* requests in them */
    int64_t begun_at;           /* when the last of them was */

    pthread_mutex_t watch_mu; /* guards the rest */
    struct hfi_cond watch_cond;
    struct h2_link *watch;
    bool watch_opening; /* by this thread: */
    struct hfi_thread watch_opener;
    struct hfi_backoff watch_backoff;
    bool watch_closing;
    bool watch_refused;    /* its token is too old */
    unsigned watch_age;    /* of its token */
    unsigned watch_forget; /* tokens up to this age are too old */
    int64_t watch_last;    /* the last id */
    int64_t watch_heard;   /* when something last came */
    struct hfi_map watches;
    struct hfi_link parked; /* of struct etcd_watch, the oldest first */
    size_t nparked;
    bool watch_spent;         /* one of those was used up */
    struct hfi_link observed; /* of struct etcd_observation */
    atomic_int watch_fd;
};

/* names.c */
void etcd_dir(const struct etcd_conn *, const char *key, char *ret,
              size_t size); /* "PREFIX KEY/" */
void etcd_name(const struct etcd_conn *, const struct hfi_claim *,
               const struct hfi_receipt *, char *ret, size_t size);
void etcd_break_notice(const struct etcd_conn *, int64_t lease,
                       const char *token, char *ret, size_t size);
/* The end of a name for the claim, which joins others or does not; and where
 * the lease begins in it. */
void etcd_last(char ret[ETCD_LAST_MAX], const struct hfi_claim *, bool joined,
               int64_t lease, uint32_t number);
const char *etcd_last_lease(const char *last);
/* What kind of claim a name says it is that begins with so many bytes of
 * "PREFIX KEY/", and with how many permits: 0 for a plain lock, -1 if it makes
 * no sense.  What lies deeper is another program's. */
enum etcd_kind {
    ETCD_ALONE, /* exclusive, unless its value says that it was downgraded */
    ETCD_SHARED,
    ETCD_PERMIT,
    ETCD_JOINED, /* with or without permits */
    ETCD_STRANGE /* holdfast makes no such name */
};
enum etcd_kind etcd_kind(ProtobufCBinaryData name, size_t dir,
                         int32_t *permits);
ProtobufCBinaryData etcd_text(const char *text);
/* Was the key made at this revision?  At 0: is it not there? */
void etcd_compare(Pb__Compare *, ProtobufCBinaryData key, int64_t revision);
/* The first key after all that begin with `text`, which is changed. */
ProtobufCBinaryData etcd_end(char *text);
bool etcd_is(ProtobufCBinaryData, const char *text);
/* The lock's key in the name of a place, into `ret` of ETCD_NAME_MAX bytes;
 * false: it is none of ours. */
bool etcd_key_of(const struct etcd_conn *, ProtobufCBinaryData name, char *ret);
/* Does the value of the key bear this token?  Two comparisons, which the struct
 * has to outlive. */
struct etcd_bears {
    Pb__Compare above, below;
    char low[HFI_TOKEN_LEN + 8], high[HFI_TOKEN_LEN + 8];
};
void etcd_bears(struct etcd_bears *, ProtobufCBinaryData key,
                const char *token);
/* What stands in a value; "" and 0 where there is nothing of ours. */
struct etcd_words {
    char token[HFI_TOKEN_LEN + 1];
    char owner[HF_OWNER_MAX + 1]; /* injected; "" if it is not */
    char note[HF_NOTE_MAX + 1];
    uint64_t fence; /* of those whom it joined; 0: it did not */
    int32_t slot;   /* of the permit that it was granted; -1: none */
    bool shared, permit;
    bool kept;   /* released, and kept by min_hold_ms */
    bool broken; /* by an operator */
};
void etcd_read_value(ProtobufCBinaryData, struct etcd_words *ret);
void etcd_write_value(const struct etcd_words *, char *ret, size_t size);
/* The fence of the claim whose place this is, if it holds. */
uint64_t etcd_fence(const Pb__KeyValue *, const struct etcd_words *);

/* rpc.c: several calls that go out together. */
struct etcd_batch {
    struct hfi_h2_call calls[ETCD_CALLS_MAX];
    size_t n;
    bool failed;      /* no memory */
    bool patient;     /* a member without a leader may wait for one */
    int64_t login_by; /* a new token may take until then; 0: as all the rest */
    int64_t revision; /* that had been seen when it was sent */
};
/* Each adds a call and returns its number. */
size_t etcd_add(struct etcd_batch *, const char *path,
                const ProtobufCMessage *);
hf_status etcd_send(struct etcd_conn *, struct etcd_batch *, int64_t deadline,
                    struct hf_error *);
void etcd_batch_free(struct etcd_batch *);
/* The answer of a call, or why there is none; freed with
 * protobuf_c_message_free_unpacked(). */
hf_status etcd_answer(struct etcd_conn *, const struct etcd_batch *, size_t i,
                      const ProtobufCMessageDescriptor *,
                      ProtobufCMessage **ret, struct hf_error *);
/* One call and its answer. */
hf_status etcd_call(struct etcd_conn *, const char *path,
                    const ProtobufCMessage *,
                    const ProtobufCMessageDescriptor *, ProtobufCMessage **ret,
                    int64_t deadline, struct hf_error *);
void etcd_free(void *message);
hf_status etcd_bad_reply(struct etcd_conn *, struct hf_error *);
/* A copy of the token to call with, or NULL. */
hf_status etcd_token(struct etcd_conn *, unsigned age, char **ret,
                     unsigned *ret_age, int64_t deadline, struct hf_error *);

#define ETCD_RANGE      "/etcdserverpb.KV/Range"
#define ETCD_TXN        "/etcdserverpb.KV/Txn"
#define ETCD_GRANT      "/etcdserverpb.Lease/LeaseGrant"
#define ETCD_REVOKE     "/etcdserverpb.Lease/LeaseRevoke"
#define ETCD_KEEP_ALIVE "/etcdserverpb.Lease/LeaseKeepAlive"
#define ETCD_TTL        "/etcdserverpb.Lease/LeaseTimeToLive"
#define ETCD_WATCH      "/etcdserverpb.Watch/Watch"
#define ETCD_LOGIN      "/etcdserverpb.Auth/Authenticate"

/* lease.c: a lease for that ttl, to be put back. */
hf_status etcd_lease_get(struct etcd_conn *, int64_t ttl_ms,
                         struct etcd_lease **ret, int64_t deadline,
                         struct hf_error *);
void etcd_lease_put(struct etcd_conn *, struct etcd_lease *);
/* Add to the batch what makes sure that the lease carries a lock of `ttl_ms`
 * from `sent` on; SIZE_MAX if nothing is needed. */
size_t etcd_lease_prove(struct etcd_conn *, struct etcd_lease *, int64_t sent,
                        int64_t ttl_ms, struct etcd_batch *);
/* What came of it: HF_OK; HF_LOST, the lease is gone; HF_UNCERTAIN, nothing is
 * proven.  `witness` heads a linearizable answer to a request that was sent at
 * `sent` or later, or is NULL.  lease.c (1) */
hf_status etcd_lease_proven(struct etcd_conn *, struct etcd_lease *,
                            const struct etcd_batch *, size_t i,
                            const Pb__Header *witness, int64_t sent,
                            struct hf_error *);
void etcd_lease_gone(struct etcd_conn *, struct etcd_lease *);
/* Is it a lease of ours, and may it still be alive? */
bool etcd_lease_lives(struct etcd_conn *, int64_t id, int64_t deadline);
/* Is it the id of a living lease of ours? */
bool etcd_lease_is_ours(struct etcd_conn *, int64_t id);
extern const struct hfi_session_service etcd_lease_service;

/* key.c */
void etcd_key_lost(void *conn, struct hfi_session_claim *);
/* This claim has, or is about to have, a key of that name on the lease.
 * HF_LOST: a removal of it had no answer, so the claim cannot hold under this
 * name.  key.c (2) */
hf_status etcd_key_note(struct etcd_conn *, struct etcd_lease *,
                        const char *token, const char *name, int64_t revision);
/* Is there something that may be left of it?  May it be removed at any time? */
bool etcd_key_is_known(struct etcd_conn *, const char *token);
bool etcd_key_is_leaving(struct etcd_conn *, const char *token);
/* A move to another lease had no answer, or one that came later had. */
void etcd_key_moving(struct etcd_conn *, const char *token, bool yes);
bool etcd_key_is_moving(struct etcd_conn *, const char *token);
/* The lease that it hangs on, or may hang on; 0: none of ours. */
int64_t etcd_key_lease(struct etcd_conn *, const char *token);
/* Its claim has no more to do with it; true: there was one. */
bool etcd_key_forget(struct etcd_conn *, const char *token);
/* No answer came to a write of it, or to a removal under the name that ends so:
 * a claim may have left another name behind. */
void etcd_key_doubt(struct etcd_conn *, const char *token);
void etcd_key_leaving(struct etcd_conn *, const char *token, const char *last);
/* The key is not there, or is no longer ours if not `absent`, and an answer has
 * said so.  True if the claim is done with its name; false: a write or a
 * removal without an answer may still mean it. */
bool etcd_key_done(struct etcd_conn *, const char *token, const char *last,
                   bool absent);
/* A number that ends no name of ours now. */
uint32_t etcd_number(struct etcd_conn *);
/* The claim before it; "" and 0 if that is not known. */
struct etcd_predecessor {
    char name[ETCD_NAME_MAX];
    int64_t revision;
    int32_t position;
    int32_t ahead; /* permits: those before us for whom there is none yet */
};
void etcd_key_set_predecessor(struct etcd_conn *, const char *token,
                              const struct etcd_predecessor *);
void etcd_key_get_predecessor(struct etcd_conn *, const char *token,
                              struct etcd_predecessor *ret);
/* One of ours that waits in that queue far behind: "" and 0 if there is
 * none. */
void etcd_key_queue_tail(struct etcd_conn *, const char *dir,
                         struct etcd_predecessor *ret);
/* combine.c: a transaction, perhaps together with those of other threads but
 * never with one that has the same `conflict_key`, which may be NULL.
 * HF_LOST: it names a lease that is gone. */
hf_status etcd_txn(struct etcd_conn *, Pb__TxnRequest *,
                   const char *conflict_key, Pb__TxnResponse **ret,
                   int64_t deadline, struct hf_error *);
/* Remove the key if it bears the token and is of that revision, or of any if
 * that is 0.  HF_LOST: it is not, or was broken before; *absent: nobody has a
 * key of that name now. */
hf_status etcd_remove(struct etcd_conn *, const char *name, const char *token,
                      int64_t revision, bool *absent, int64_t deadline,
                      struct hf_error *);
void etcd_combine_close(struct etcd_conn *);

/* inspect.c: everything that queues for a key, in order, to be freed also after
 * a failure; a value that is too long to be one of ours is left out.  And the
 * fence of those who hold, given that. */
struct etcd_places {
    Pb__KeyValue **kvs;
    size_t n, room;
    int64_t revision; /* as of which etcd_queue() has read them, and ... */
    size_t dir;       /* ... what all names begin with */
};
hf_status etcd_queue(struct etcd_conn *, const char *key, struct etcd_places *,
                     int64_t deadline, struct hf_error *);
void etcd_places_free(struct etcd_places *);
hf_status etcd_waiters(struct hfi_conn *, const char *key, hf_waiters_fn *,
                       void *arg, int64_t deadline, struct hf_error *);
hf_status etcd_holders(struct hfi_conn *, const char *key, hf_holders_fn *,
                       void *arg, int64_t deadline, struct hf_error *);

/* order.c: who holds. */
struct etcd_place {
    uint64_t fence;  /* its rank as well: the lowest came first */
    int32_t permits; /* 0: a plain lock; -1: it makes no sense */
    int32_t slot;    /* -1: none */
    bool shared, joined, holds, broken, kept;
    bool knows; /* what joining is: it is of a holdfast */
    bool equal; /* it has the owner id that was asked for */
};
/* One for each, in the same order; NULL: no memory.  To be freed with
 * hfi_free().  `dir` is the length of what their names begin with; `owner` may
 * be NULL. */
struct etcd_place *etcd_order(Pb__KeyValue *const *, size_t n, size_t dir,
                              const char *owner);
/* The slot for a claim of that rank, and those for who is before it and has
 * none yet: order.c (2).  False: its turn has not come, or there are more than
 * can be written at once, or such as are not to be written. */
#define ETCD_HELP_MAX 2
struct etcd_slots {
    int32_t slot;
    size_t n;
    size_t of[ETCD_HELP_MAX]; /* in the order of ranks */
    int32_t slots[ETCD_HELP_MAX];
};
bool etcd_slots(const struct etcd_place *, size_t n, uint64_t rank,
                int32_t permits, struct etcd_slots *ret);

/* wait.c */
hf_status etcd_watch(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_receipt *, int64_t deadline, struct hf_error *);
void etcd_unwatch(struct hfi_conn *, const struct hfi_claim *,
                  struct hfi_receipt *);
hf_status etcd_watch_predecessor(struct etcd_conn *, const struct hfi_claim *,
                                 struct hfi_receipt *,
                                 const struct etcd_predecessor *, int64_t sent,
                                 int64_t seen, bool *fresh, int64_t deadline,
                                 struct hf_error *);
/* Hear of locks on this lease that an operator breaks, if it can be had; else
 * their renewal tells. */
void etcd_watch_break_notice(struct etcd_conn *, struct etcd_lease *);
void etcd_unwatch_break_notice(struct etcd_conn *, struct etcd_lease *);
int etcd_watch_fd(struct hfi_conn *);
void etcd_watch_dispatch(struct hfi_conn *);
void etcd_watch_message(void *conn, const void *bytes, size_t len);
void etcd_watch_close(struct etcd_conn *);

/* For observe.c, with watch_mu held: a watch on all that begins with `target`,
 * or 0; wait until it has begun; and its end. */
int64_t etcd_watch_observed(struct etcd_conn *, const char *target,
                            struct hfi_observation *);
hf_status etcd_watch_await(struct etcd_conn *, int64_t id, int64_t deadline,
                           struct hf_error *);
void etcd_watch_end(struct etcd_conn *, int64_t id);
hf_status etcd_watch_ensure(struct etcd_conn *, int64_t deadline,
                            struct hf_error *);
/* If somebody observes: is the connection still good?  Without watch_mu. */
void etcd_watch_doubt(struct etcd_conn *);

/* observe.c: what hangs on an observation: observation->own. */
struct etcd_observation {
    struct hfi_link link; /* in conn->observed */
    struct hfi_observation *observation;
    int64_t watch;
};
hf_status etcd_observe(struct hfi_conn *, struct hfi_observation *,
                       int64_t deadline, struct hf_error *);
void etcd_unobserve(struct hfi_conn *, struct hfi_observation *);
/* There is a new connection; its watch has begun; the key of that name has
 * changed.  All with watch_mu held. */
void etcd_observe_again(struct etcd_conn *);
void etcd_observe_broken(struct etcd_conn *);
void etcd_observe_begun(struct etcd_conn *, struct hfi_observation *);
void etcd_observed(struct etcd_conn *, struct hfi_observation *,
                   ProtobufCBinaryData name);

/* connect.c: is there a connection for watches?  If not, one is begun, unless
 * the last attempt failed just now.  With watch_mu held. */
bool etcd_watch_is_up(struct etcd_conn *);
void etcd_watch_connect_close(struct etcd_conn *);

/* The rest of the vtable. */
hf_status etcd_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                           struct hfi_receipt *, struct hfi_answer *,
                           int64_t deadline, struct hf_error *);
hf_status etcd_try_acquire_all(struct hfi_conn *, struct hfi_attempt *,
                               size_t n, int64_t deadline, struct hf_error *);
void etcd_renew(struct hfi_conn *, struct hfi_renewal *, size_t n,
                int64_t deadline, struct hf_error *);
hf_status etcd_release(struct hfi_conn *, const struct hfi_claim *,
                       struct hfi_receipt *, int64_t deadline,
                       struct hf_error *);
hf_status etcd_sweep(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_receipt *, int64_t deadline, struct hf_error *);
/* May a write of the claim that had no answer still make or move its key? */
bool etcd_may_come(struct etcd_conn *, const struct hfi_claim *,
                   const struct hfi_receipt *, int64_t deadline);
hf_status etcd_downgrade(struct hfi_conn *, const struct hfi_claim *,
                         struct hfi_receipt *, int64_t deadline,
                         struct hf_error *);
hf_status etcd_keep(struct hfi_conn *, const struct hfi_claim *,
                    struct hfi_receipt *, int64_t ms, int64_t deadline,
                    struct hf_error *);
void etcd_detach(const struct hfi_receipt *, struct hf_handle *ret);
hf_status etcd_attach(struct hfi_conn *, const struct hfi_claim *,
                      const struct hf_handle *, struct hfi_receipt *,
                      struct hf_error *);
hf_status etcd_take_over(struct hfi_conn *, const struct hfi_claim *,
                         const char *token, struct hfi_receipt *,
                         int64_t deadline, struct hf_error *);
hf_status etcd_inspect(struct hfi_conn *, const char *key, struct hf_info *ret,
                       int64_t deadline, struct hf_error *);
hf_status etcd_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                    void *arg, int64_t deadline, struct hf_error *);
hf_status etcd_break(struct hfi_conn *, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *);
hf_status etcd_free_grant(struct hfi_conn *, const char *key, uint64_t fence,
                          int64_t deadline, struct hf_error *);

/* A claim's own create revision is its fence from the moment it has a place,
 * unless it joined others: then it is theirs. */
static inline struct etcd_grant *etcd_own(const struct hfi_receipt *receipt)
{
    return receipt->own;
}
static inline bool etcd_joined(struct hfi_receipt *receipt)
{
    return strchr(etcd_own(receipt)->last, '~') != NULL;
}
/* The revision of its key; 0: not known. */
static inline int64_t etcd_revision(struct hfi_receipt *receipt)
{
    return etcd_joined(receipt) ? 0 : (int64_t)receipt->fence;
}

#endif
