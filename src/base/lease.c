/* SPDX-License-Identifier: MIT
 *
 * lease.c - the arithmetic of validity.  No I/O, no clock; see lease.h.
 */
#include "lease.h"

#include "mutant.h"

#include "banned.h"

int64_t hfi_after(int64_t at, int64_t ms)
{
    return ms >= HFI_NEVER - at ? HFI_NEVER : at + ms;
}

int64_t hfi_lease_margin(int64_t ttl_ms)
{
    return HFI_MUTANT(no_margin_for_drift) ? 0 : ttl_ms / 100 + 2;
}

int64_t hfi_lease_deadline(int64_t sent, int64_t ttl_ms)
{
    return hfi_after(sent, ttl_ms - hfi_lease_margin(ttl_ms));
}

struct hfi_proof hfi_proof_plain(int64_t sent, int64_t ttl_ms)
{
    return (struct hfi_proof){.since = sent, .ms = ttl_ms};
}

int64_t hfi_lease_proven(const struct hfi_proof *proof, int64_t sent,
                         int64_t ttl_ms)
{
    int64_t since = proof->since < sent ? proof->since : sent;
    int64_t end, most = hfi_lease_deadline(sent, ttl_ms);

    if (proof->ms <= 0 || proof->asked != proof->answered)
        return 0;
    end = hfi_lease_deadline(since, proof->ms);
    return end < most ? end : most;
}

int64_t hfi_lease_renew_at(int64_t sent, int64_t ttl_ms)
{
    return hfi_after(sent, ttl_ms / 3);
}

int64_t hfi_lease_at_risk_at(int64_t deadline, int64_t ttl_ms)
{
    return deadline == HFI_NEVER ? HFI_NEVER : deadline - ttl_ms / 3;
}

int64_t hfi_lease_slack(int64_t ttl_ms)
{
    return ttl_ms / 40; /* less than what lies between two attempts */
}

int64_t hfi_lease_attempt_end(int64_t now, int64_t ttl_ms, int64_t deadline,
                              int64_t timeout_ms, int failed)
{
    int64_t limit = failed < 2 ? (ttl_ms + 5) / 6 : ttl_ms;
    int64_t end = hfi_after(now, limit < timeout_ms ? limit : timeout_ms);

    return end < deadline ? end : deadline;
}

int64_t hfi_lease_retry_at(int64_t began, int64_t ttl_ms)
{
    return began + ttl_ms / 30 + 1;
}
