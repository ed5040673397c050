/* SPDX-License-Identifier: MIT
 *
 * lease.c - the leases of this client.
 *
 * All locks of one ttl hang on one lease, so a thousand of them are kept by one
 * message.  Finding, making, sharing and ending them is backend/session.c; here
 * is what etcd is asked, and what its answers prove.  The lease of a ttl of
 * some seconds is longer than it by one to two: etcd counts whole seconds, and
 * as long as it was proven less than a second ago a lock can be taken without
 * proving it again.
 *
 * What hangs on a lease is in key.c.
 *
 * INVARIANTS
 *  (1) A lease is proven from before the request was sent that the server
 *      answered with its ttl.  A grant goes through the log and proves itself.
 *      A KeepAlive is answered from the memory of a member that takes itself
 *      for the leader, also by one that was stopped, was deposed and has just
 *      been continued (etcd before 3.4.31 and 3.5.13).  So its answer counts
 *      only with a linearizable answer of the same member in the same raft
 *      term, to a request that was sent no earlier than the KeepAlive is
 *      counted from: until that moment no later leader was elected, and a
 *      leader that is elected afterwards gives the lease its full time.
 *      lease_proof() is the only place that decides it.
 *  (2) A lease is revoked only when nothing hangs on it: what was detached
 *      must stay (backend/session.h (4)).
 */
#include "etcd.h"

#include "base/env.h"

#include "base/banned.h"

/* A lease of this ttl or more is given the second of room; a shorter one should
 * rather lapse in time. */
#define ROOM_MS 5000

static struct etcd_lease *lease_of(struct hfi_session *s)
{
    return (struct etcd_lease *)s;
}

/* ---- making one -------------------------------------------------------- */

static hf_status lease_create(void *conn, struct hfi_session *s,
                              int64_t deadline, struct hf_error *err)
{
    Pb__LeaseGrantRequest ask = PB__LEASE_GRANT_REQUEST__INIT;
    Pb__LeaseGrantResponse *answer;
    ProtobufCMessage *message = NULL;
    struct etcd_conn *ec = conn;
    struct hfi_proof proof;
    int64_t sent = hfi_now();
    hf_status st;

    ask.ttl = s->kind;
    st = etcd_call(ec, ETCD_GRANT, &ask.base,
                   &pb__lease_grant_response__descriptor, &message, deadline,
                   err);
    answer = (Pb__LeaseGrantResponse *)message;
    if (!st && (!answer->id || answer->ttl < s->kind ||
                answer->ttl > INT64_C(9000000000)))
        st = etcd_bad_reply(ec, err);
    if (!st) {
        pthread_mutex_lock(&ec->mu);
        lease_of(s)->id = answer->id;
        s->ttl_ms = answer->ttl * 1000;
        proof = hfi_proof_plain(sent, s->ttl_ms); /* lease.c (1) */
        hfi_session_proven(s, &proof, sent);
        pthread_mutex_unlock(&ec->mu);
    }
    etcd_free(message);
    return st;
}

static void lease_drop(void *conn, struct hfi_session *s)
{
    etcd_unwatch_break_notice(conn, lease_of(s));
}

hf_status etcd_lease_get(struct etcd_conn *ec, int64_t ttl_ms,
                         struct etcd_lease **ret, int64_t deadline,
                         struct hf_error *err)
{
    int64_t seconds =
        ttl_ms / 1000 + (ttl_ms % 1000 != 0) + (ttl_ms >= ROOM_MS);
    struct hfi_session *s;
    bool fresh;
    hf_status st =
        hfi_session_get(&ec->leases, seconds, &s, &fresh, deadline, err);

    if (st)
        return st;
    *ret = lease_of(s);
    if (fresh)
        etcd_watch_break_notice(ec, *ret);
    return HF_OK;
}

void etcd_lease_put(struct etcd_conn *ec, struct etcd_lease *lease)
{
    hfi_session_put(&ec->leases, &lease->session);
}

void etcd_lease_gone(struct etcd_conn *ec, struct etcd_lease *lease)
{
    hfi_session_died(&ec->leases, &lease->session);
}

/* ---- proving it -------------------------------------------------------- */

size_t etcd_lease_prove(struct etcd_conn *ec, struct etcd_lease *lease,
                        int64_t sent, int64_t ttl_ms, struct etcd_batch *batch)
{
    Pb__LeaseKeepAliveRequest ask = PB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    bool lasts;

    pthread_mutex_lock(&ec->mu);
    lasts = hfi_session_lasts(&lease->session, sent, ttl_ms);
    pthread_mutex_unlock(&ec->mu);
    if (lasts)
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

/* The member that answered has a quorum: what it says of the lease counts. */
static hf_status lease_judge(struct etcd_conn *ec, struct etcd_lease *lease,
                             int64_t seconds, const struct hfi_proof *proof,
                             int64_t sent, struct hf_error *err)
{
    hf_status st = HF_OK;

    if (seconds <= 0) {
        etcd_lease_gone(ec, lease);
        return hfi_fail(err, HF_LOST, "%s: the lease is gone",
                        ec->base.endpoint);
    }
    pthread_mutex_lock(&ec->mu);
    if (seconds < lease->session.ttl_ms / 1000)
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: the lease is too short",
                      ec->base.endpoint);
    else
        hfi_session_proven(&lease->session, proof, sent);
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
    proof = lease_proof(answer->header, witness, sent, lease->session.ttl_ms);
    if (hfi_lease_proven(&proof, sent, lease->session.ttl_ms))
        st = lease_judge(ec, lease, answer->ttl, &proof, sent, err);
    else
        st = hfi_fail(err, HF_UNCERTAIN,
                      "%s: the member that renewed the lease has not shown "
                      "that it follows the leader",
                      ec->base.endpoint);
    etcd_free(message);
    return st;
}

/* ---- is it there? ------------------------------------------------------ */

bool etcd_lease_is_ours(struct etcd_conn *ec, int64_t id)
{
    struct hfi_session *s = NULL;
    bool yes = false;

    pthread_mutex_lock(&ec->mu);
    while (!yes && (s = hfi_session_next(&ec->leases, s)))
        yes = lease_of(s)->id == id;
    pthread_mutex_unlock(&ec->mu);
    return yes;
}

/* What etcd says of a lease; NULL: it does not answer. */
static Pb__LeaseTimeToLiveResponse *lease_ask(struct etcd_conn *ec, int64_t id,
                                              int64_t deadline)
{
    Pb__LeaseTimeToLiveRequest ask = PB__LEASE_TIME_TO_LIVE_REQUEST__INIT;
    ProtobufCMessage *message = NULL;

    ask.id = id;
    ask.keys = 1;
    if (etcd_call(ec, ETCD_TTL, &ask.base,
                  &pb__lease_time_to_live_response__descriptor, &message,
                  deadline, NULL))
        return NULL;
    return (Pb__LeaseTimeToLiveResponse *)message;
}

/* The lease with this id, with one more user, or NULL; *sure: it was proven. */
static struct etcd_lease *lease_by_id(struct etcd_conn *ec, int64_t id,
                                      bool *sure)
{
    struct hfi_session *s = NULL;

    pthread_mutex_lock(&ec->mu);
    while ((s = hfi_session_next(&ec->leases, s)) && lease_of(s)->id != id)
        continue;
    if (s) {
        s->users++;
        *sure = hfi_now() < s->proven;
    }
    pthread_mutex_unlock(&ec->mu);
    return s ? lease_of(s) : NULL;
}

bool etcd_lease_lives(struct etcd_conn *ec, int64_t id, int64_t deadline)
{
    Pb__LeaseTimeToLiveResponse *answer;
    struct etcd_lease *lease;
    bool lives = false;

    lease = lease_by_id(ec, id, &lives);
    if (!lease)
        return false;
    if (!lives) {
        answer = lease_ask(ec, id, deadline);
        lives = !answer || answer->ttl > 0;
        etcd_free(answer);
        if (!lives)
            etcd_lease_gone(ec, lease);
    }
    etcd_lease_put(ec, lease);
    return lives;
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

/* lease.c (2) */
static bool lease_is_empty(struct etcd_conn *ec, const struct etcd_lease *lease,
                           int64_t deadline)
{
    Pb__LeaseTimeToLiveResponse *answer = lease_ask(ec, lease->id, deadline);
    bool empty = answer && answer->ttl > 0;
    size_t i;

    for (i = 0; empty && i < answer->n_keys; i++)
        empty = !is_lock(ec, lease, answer->keys[i]);
    etcd_free(answer);
    return empty;
}

static void lease_end(void *conn, struct hfi_session *s, int64_t deadline)
{
    Pb__LeaseRevokeRequest ask = PB__LEASE_REVOKE_REQUEST__INIT;
    ProtobufCMessage *message = NULL;

    if (!lease_is_empty(conn, lease_of(s), deadline))
        return;
    ask.id = lease_of(s)->id;
    etcd_call(conn, ETCD_REVOKE, &ask.base,
              &pb__lease_revoke_response__descriptor, &message, deadline, NULL);
    etcd_free(message);
}

const struct hfi_session_service etcd_lease_service = {
    .size = sizeof(struct etcd_lease),
    .create = lease_create,
    .claim_lost = etcd_key_lost,
    .end = lease_end,
    .drop = lease_drop,
};
