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

/* When to renew first, and when the holder should be warned. */
int64_t hfi_lease_renew_at(int64_t sent, int64_t ttl_ms);
int64_t hfi_lease_at_risk_at(int64_t deadline, int64_t ttl_ms);

/* A hold that is due this late may be renewed together with others now. */
int64_t hfi_lease_slack(int64_t ttl_ms);

/* The limit of one attempt to renew that starts now; and when the next may
 * start, after one that began then has failed: at once if that took its time,
 * since a service that comes back for a moment must not find us pausing. */
int64_t hfi_lease_attempt_end(int64_t now, int64_t ttl_ms, int64_t deadline,
                              int64_t timeout_ms);
int64_t hfi_lease_retry_at(int64_t began, int64_t ttl_ms);

/* `at + ms`, or HFI_NEVER where that would overflow or `ms` is HFI_NEVER. */
int64_t hfi_after(int64_t at, int64_t ms);

#endif
