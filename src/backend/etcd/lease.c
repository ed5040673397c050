/* SPDX-License-Identifier: MIT
 *
 * lease.c - the leases of this client.
 *
 * All locks of one ttl hang on one lease, so a thousand of them are kept by one
 * message.  The lease of a ttl of some seconds is longer than it by one to two:
 * etcd counts whole seconds, and as long as it was proven less than a second
 * ago a lock can be taken without proving it again.
 *
 * What hangs on a lease is in key.c.
 *
 * INVARIANTS
 *  (1) lease->sure is counted from before the request was sent that the server
 *      answered with its ttl.  A grant goes through the log and proves itself.
 *      A KeepAlive is answered from the memory of a member that takes itself
 *      for the leader, also by one that was stopped, was deposed and has just
 *      been continued (etcd before 3.4.31 and 3.5.13).  So its answer counts
 *      only with a linearizable answer of the same member in the same raft
 *      term, to a request that was sent no earlier than the KeepAlive is
 *      counted from: until that moment no later leader was elected, and a
 *      leader that is elected afterwards gives the lease its full time.
 *      lease_proof() is the only place that decides it.
 *  (2) A lease that is dead is never used again, and its keys are gone.  The
 *      last call that looks at it frees it, and ends its watch.
 */
#include "etcd.h"

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* A lease of this ttl or more is given the second of room; a shorter one should
 * rather lapse in time. */
#define ROOM_MS 5000

/* So long after it must have lapsed a lease that nobody uses is forgotten. */
#define PRUNE_MS 10000

/* ---- leases ------------------------------------------------------------ */

/* Ask for a lease.  The mutex is let go meanwhile. */
static hf_status lease_grant(struct etcd_conn *ec, struct etcd_lease *lease,
                             int64_t deadline, struct hf_error *err)
{
    Pb__LeaseGrantRequest ask = PB__LEASE_GRANT_REQUEST__INIT;
    Pb__LeaseGrantResponse *answer;
    ProtobufCMessage *message = NULL;
    int64_t sent = hfi_now();
    hf_status st;

    pthread_mutex_unlock(&ec->mu);
    ask.ttl = lease->seconds;
    st = etcd_call(ec, ETCD_GRANT, &ask.base,
                   &pb__lease_grant_response__descriptor, &message, deadline,
                   err);
    answer = (Pb__LeaseGrantResponse *)message;
    if (!st && (!answer->id || answer->ttl < lease->seconds ||
                answer->ttl > INT64_C(9000000000)))
        st = etcd_bad_reply(ec, err);
    pthread_mutex_lock(&ec->mu);
    if (!st) {
        lease->id = answer->id;
        lease->ttl_ms = answer->ttl * 1000;
        lease->sure = sent + lease->ttl_ms; /* lease.c (1) */
    }
    etcd_free(message);
    pthread_cond_broadcast(&ec->settled);
    /* A lease without keys that nobody knows lapses by itself. */
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

static struct etcd_lease *lease_find(struct etcd_conn *ec, int64_t seconds)
{
    struct etcd_lease *lease;
    struct hfi_link *at;

    for (at = ec->leases.next; at != &ec->leases; at = at->next) {
        lease = hfi_container(at, struct etcd_lease, link);
        if (lease->seconds == seconds && !lease->dead)
            return lease;
    }
    return NULL;
}

/* With the mutex held: make the lease of so many seconds. */
static hf_status lease_new(struct etcd_conn *ec, int64_t seconds,
                           struct etcd_lease **ret, int64_t deadline,
                           struct hf_error *err)
{
    struct etcd_lease *lease = hfi_alloc(sizeof(*lease));
    hf_status st;

    if (!lease)
        return hfi_nomem(err);
    lease->seconds = seconds;
    lease->users = 1;
    hfi_link_init(&lease->keys);
    hfi_link_append(&ec->leases, &lease->link);
    st = lease_grant(ec, lease, deadline, err);
    if (st) {
        hfi_link_remove(&lease->link);
        hfi_free(lease);
    } else {
        *ret = lease;
    }
    return st;
}

/* With the mutex held: take those out that have long lapsed, as nobody has used
 * them. */
static void lease_prune(struct etcd_conn *ec, struct hfi_link *ret)
{
    struct hfi_link *at, *next;
    struct etcd_lease *lease;

    for (at = ec->leases.next; at != &ec->leases; at = next) {
        next = at->next;
        lease = hfi_container(at, struct etcd_lease, link);
        if (lease->users || !hfi_link_alone(&lease->keys) ||
            hfi_now() < lease->sure + PRUNE_MS)
            continue;
        hfi_link_remove(&lease->link);
        hfi_link_append(ret, &lease->link);
    }
}

/* Those that nobody can find any more.  Without the mutex. */
static void lease_free_all(struct etcd_conn *ec, struct hfi_link *list)
{
    struct etcd_lease *lease;

    while (!hfi_link_alone(list)) {
        lease = hfi_container(list->next, struct etcd_lease, link);
        hfi_link_remove(&lease->link);
        etcd_unwatch_break_notice(ec, lease);
        hfi_free(lease);
    }
}

void etcd_lease_put(struct etcd_conn *ec, struct etcd_lease *lease)
{
    struct hfi_link old;

    hfi_link_init(&old);
    pthread_mutex_lock(&ec->mu);
    lease->users--;
    if (lease->dead && !lease->users) { /* lease.c (2) */
        etcd_keys_free(ec, lease);
        hfi_link_remove(&lease->link);
        hfi_link_append(&old, &lease->link);
    }
    pthread_mutex_unlock(&ec->mu);
    lease_free_all(ec, &old);
}

hf_status etcd_lease_get(struct etcd_conn *ec, int64_t ttl_ms,
                         struct etcd_lease **ret, int64_t deadline,
                         struct hf_error *err)
{
    int64_t seconds =
        ttl_ms / 1000 + (ttl_ms % 1000 != 0) + (ttl_ms >= ROOM_MS);
    struct etcd_lease *lease;
    struct timespec ts;
    struct hfi_link old;
    bool fresh = false;
    hf_status st = HF_OK;

    hfi_link_init(&old);
    pthread_mutex_lock(&ec->mu);
    while ((lease = lease_find(ec, seconds)) && !lease->id && !st) {
        hfi_monotonic(deadline, &ts);
        if (pthread_cond_clockwait(&ec->settled, &ec->mu, CLOCK_MONOTONIC, &ts))
            st = hfi_fail(err, HF_UNAVAILABLE, "%s: no lease in time",
                          ec->base.endpoint);
    }
    if (!st && lease) {
        lease->users++;
    } else if (!st) {
        lease_prune(ec, &old);
        st = lease_new(ec, seconds, &lease, deadline, err);
        fresh = !st;
    }
    pthread_mutex_unlock(&ec->mu);
    lease_free_all(ec, &old);
    if (fresh)
        etcd_watch_break_notice(ec, lease);
    if (!st)
        *ret = lease;
    return st;
}

void etcd_lease_gone(struct etcd_conn *ec, struct etcd_lease *lease)
{
    pthread_mutex_lock(&ec->mu);
    lease->dead = true;
    etcd_keys_free(ec, lease); /* lease.c (2) */
    pthread_mutex_unlock(&ec->mu);
}

bool etcd_lease_none(struct etcd_conn *ec)
{
    struct etcd_lease *lease;
    struct hfi_link *at;

    for (at = ec->leases.next; at != &ec->leases; at = at->next) {
        lease = hfi_container(at, struct etcd_lease, link);
        if (!lease->dead && hfi_now() <= lease->sure)
            return false;
    }
    for (at = ec->leases.next; at != &ec->leases; at = at->next) {
        lease = hfi_container(at, struct etcd_lease, link);
        lease->dead = lease->id != 0; /* One that is being granted is new. */
        if (lease->dead)
            etcd_keys_free(ec, lease);
    }
    return true;
}

size_t etcd_lease_prove(struct etcd_conn *ec, struct etcd_lease *lease,
                        int64_t end, struct etcd_batch *batch)
{
    Pb__LeaseKeepAliveRequest ask = PB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    bool stale;

    pthread_mutex_lock(&ec->mu);
    etcd_keys_sweep(batch, lease);
    stale = lease->sure < end;
    pthread_mutex_unlock(&ec->mu);
    if (!stale)
        return SIZE_MAX;
    ask.id = lease->id;
    return etcd_add(batch, ETCD_KEEP_ALIVE, &ask.base);
}

/* What a KeepAlive that was sent at `sent` proves.  lease.c (1) */
static struct hfi_proof lease_proof(const Pb__Header *said,
                                    const Pb__Header *witness, int64_t sent,
                                    int64_t ms)
{
    struct hfi_proof proof = hfi_proof_plain(sent, ms);

    if (!said || !witness || said->member_id != witness->member_id) {
        proof.ms = 0;
        return proof;
    }
    proof.asked = said->raft_term;
    proof.answered = witness->raft_term;
    return proof;
}

/* The server said that the lease has `seconds` left. */
static hf_status lease_judge(struct etcd_conn *ec, struct etcd_lease *lease,
                             int64_t seconds, int64_t sent,
                             struct hf_error *err)
{
    hf_status st = HF_OK;

    if (seconds <= 0) {
        etcd_lease_gone(ec, lease);
        return hfi_fail(err, HF_LOST, "%s: the lease is gone",
                        ec->base.endpoint);
    }
    pthread_mutex_lock(&ec->mu);
    if (seconds < lease->ttl_ms / 1000)
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: the lease is too short",
                      ec->base.endpoint);
    else if (sent + lease->ttl_ms > lease->sure)
        lease->sure = sent + lease->ttl_ms;
    pthread_mutex_unlock(&ec->mu);
    return st;
}

hf_status etcd_lease_proven(struct etcd_conn *ec, struct etcd_lease *lease,
                            const struct etcd_batch *batch, size_t i,
                            const Pb__Header *witness, int64_t sent,
                            struct hf_error *err)
{
    Pb__LeaseKeepAliveResponse *answer;
    ProtobufCMessage *message = NULL;
    struct hfi_proof proof;
    hf_status st;

    if (i == SIZE_MAX)
        return HF_OK;
    st = etcd_answer(ec, batch, i, &pb__lease_keep_alive_response__descriptor,
                     &message, err);
    if (st)
        return st;
    answer = (Pb__LeaseKeepAliveResponse *)message;
    proof = lease_proof(answer->header, witness, sent, lease->ttl_ms);
    if (hfi_lease_proven(&proof, sent, lease->ttl_ms))
        st = lease_judge(ec, lease, answer->ttl, sent, err);
    else
        st = hfi_fail(err, HF_UNCERTAIN,
                      "%s: the member that renewed the lease has not shown "
                      "that it follows the leader",
                      ec->base.endpoint);
    etcd_free(message);
    return st;
}

/* ---- the end ----------------------------------------------------------- */

/* Is it something else than word of a broken lock? */
static bool is_lock(const struct etcd_conn *ec, const struct etcd_lease *lease,
                    ProtobufCBinaryData name)
{
    char notice[ETCD_NOTICE_MAX];

    etcd_break_notice(ec, lease->id, "", notice, sizeof(notice));
    return name.len < strlen(notice) ||
           memcmp(name.data, notice, strlen(notice)) != 0;
}

/* Does something hang on it yet?  What was detached must stay. */
static bool lease_is_unfenced(struct etcd_conn *ec,
                              const struct etcd_lease *lease, int64_t deadline)
{
    Pb__LeaseTimeToLiveRequest ask = PB__LEASE_TIME_TO_LIVE_REQUEST__INIT;
    Pb__LeaseTimeToLiveResponse *answer;
    ProtobufCMessage *message = NULL;
    bool unfenced = false;
    size_t i;

    ask.id = lease->id;
    ask.keys = 1;
    if (!etcd_call(ec, ETCD_TTL, &ask.base,
                   &pb__lease_time_to_live_response__descriptor, &message,
                   deadline, NULL)) {
        answer = (Pb__LeaseTimeToLiveResponse *)message;
        unfenced = answer->ttl > 0;
        for (i = 0; i < answer->n_keys; i++)
            unfenced = unfenced && !is_lock(ec, lease, answer->keys[i]);
    }
    etcd_free(message);
    return unfenced;
}

static void lease_revoke(struct etcd_conn *ec, const struct etcd_lease *lease,
                         int64_t deadline)
{
    Pb__LeaseRevokeRequest ask = PB__LEASE_REVOKE_REQUEST__INIT;
    ProtobufCMessage *message = NULL;

    ask.id = lease->id;
    etcd_call(ec, ETCD_REVOKE, &ask.base,
              &pb__lease_revoke_response__descriptor, &message, deadline, NULL);
    etcd_free(message);
}

void etcd_lease_close(struct etcd_conn *ec, int64_t deadline)
{
    struct etcd_lease *lease;

    while (!hfi_link_alone(&ec->leases)) {
        lease = hfi_container(ec->leases.next, struct etcd_lease, link);
        if (lease->id && !lease->dead && lease_is_unfenced(ec, lease, deadline))
            lease_revoke(ec, lease, deadline);
        etcd_keys_free(ec, lease);
        hfi_link_remove(&lease->link);
        hfi_free(lease);
    }
    hfi_map_fini(&ec->keys);
    hfi_free(ec->numbers);
}
