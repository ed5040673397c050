/* SPDX-License-Identifier: MIT
 *
 * lease.h - the arithmetic of validity: pure functions of `now`.
 *
 * A lease is dated from before the request was sent, so the holder's end comes
 * before the service's, whatever the network did in between:
 *
 *     holder  |sent ........ renew ...... at risk ....... deadline|
 *     service     |granted .......................................... lapses|
 *             0            ttl/3         2/3 ttl    ttl - margin    >= ttl
 *
 * INVARIANTS
 *  (1) deadline < sent + ttl: the holder stops believing before the earliest
 *      moment at which the service may grant to another.
 *  (2) sent <= renew_at < at_risk_at < deadline, for every ttl of at least
 *      HFI_TTL_MIN.
 *  (3) No attempt to renew lasts beyond the deadline, and there is time for at
 *      least three.
 *  (4) An answer is believed for what it proves and no more: for the session or
 *      term that it speaks for, for as long as the service promised, counted
 *      from no later than the sending of the request.  hfi_lease_proven() is
 *      the only place where an answer becomes a deadline.
 */
#ifndef HFI_LEASE_H
#define HFI_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#define HFI_TTL_DEFAULT INT64_C(30000)
#define HFI_TTL_MIN     INT64_C(10)
#define HFI_TTL_MAX     (INT64_C(366) * 24 * 3600 * 1000)
#define HFI_NEVER       INT64_MAX

/* What is taken off a lease: two clocks may run apart by one percent while it
 * lasts, and both are read in whole milliseconds. */
int64_t hfi_lease_margin(int64_t ttl_ms);

/* Until when a grant asked for at `sent` may be relied on. */
int64_t hfi_lease_deadline(int64_t sent, int64_t ttl_ms);

/* What an answer proves: the service keeps the grant for `ms`, counted from no
 * earlier than `since`.  `since` is before the sending of the request; it is
 * earlier still where the service may count from an earlier message.  A backend
 * whose grants hang on a session, a raft term or a server's run names the one
 * that it asked about and the one that the answer speaks for; 0 and 0 where
 * there is no such thing. */
struct hfi_proof {
    int64_t since, ms;
    uint64_t asked, answered;
};

/* The proof of a service that answers for itself: `ttl_ms` from `sent`. */
struct hfi_proof hfi_proof_plain(int64_t sent, int64_t ttl_ms);

/* Until when a lease of `ttl_ms` may be relied on after that answer, to a
 * request that was sent at `sent`; 0 if the answer proves nothing.  lease.h (4)
 */
int64_t hfi_lease_proven(const struct hfi_proof *, int64_t sent,
                         int64_t ttl_ms);

/* When to renew first, and when the holder should be warned. */
int64_t hfi_lease_renew_at(int64_t sent, int64_t ttl_ms);
int64_t hfi_lease_at_risk_at(int64_t deadline, int64_t ttl_ms);

/* A grant that is due this late may be renewed together with others now. */
int64_t hfi_lease_slack(int64_t ttl_ms);

/* The limit of one attempt to renew that starts now, after `failed` others in a
 * row: a sixth of the lease, and all that is left of it from the third on,
 * because the service may be further away than that.  And when the next may
 * start, after one that began then has failed: at once if that took its time,
 * since a service that comes back for a moment must not find us pausing. */
int64_t hfi_lease_attempt_end(int64_t now, int64_t ttl_ms, int64_t deadline,
                              int64_t timeout_ms, int failed);
int64_t hfi_lease_retry_at(int64_t began, int64_t ttl_ms);

/* `at + ms`, or HFI_NEVER where that would overflow or `ms` is HFI_NEVER. */
int64_t hfi_after(int64_t at, int64_t ms);

#endif
