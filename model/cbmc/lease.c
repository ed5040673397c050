/* SPDX-License-Identifier: MIT
 *
 * lease.c - the arithmetic of leases, for all inputs.
 *
 * CHECKED  for every time of 0 to 2^62 ms, every lease of HFI_TTL_MIN to
 * HFI_TTL_MAX and every proof that a backend may fill in: no overflow, and
 * lease.h (1) to (4).  That a plain answer is believed whole is checked for
 * leases of powers of two.
 *
 * UNWIND 5
 * SLOW our_end_is_before_theirs an_answer_proves_no_more_than_was_promised
 * BUGS
 *   our_end_is_before_theirs s|ttl_ms / 100 + 2|ttl_ms / 100|
 *   our_end_is_before_theirs s|ttl_ms / 100 + 2|2|
 *   an_answer_proves_no_more_than_was_promised s|proof->since < sent ? proof->since : sent|sent|
 *   an_answer_proves_no_more_than_was_asked s/ || proof->asked != proof->answered//
 *   an_answer_proves_no_more_than_was_asked s|end < most ? end : most|end|
 *   a_sum_does_not_wrap s|return ms >= HFI_NEVER - at ? HFI_NEVER : |return |
 *   three_attempts_fit s|(ttl_ms + 5) / 6|ttl_ms / 6 + 1|
 *   an_attempt_ends_in_time s|return end < deadline ? end : deadline|return end|
 */
#include "cbmc.h"

#include "src/base/lease.c"

#define LATEST (INT64_C(1) << 62)

static int64_t any_ttl(void)
{
    int64_t ttl = any_upto(HFI_TTL_MAX);

    assume(ttl >= HFI_TTL_MIN);
    return ttl;
}

void a_sum_does_not_wrap(void)
{
    int64_t at = any_upto(INT64_MAX), ms = any_upto(INT64_MAX);
    int64_t sum = hfi_after(at, ms);

    check(sum >= at && sum >= ms, "a sum does not wrap");
}

/* The client reads its clock, `sent`; then the service grants; then the client
 * reads its clock again, and believes: `passed` whole milliseconds by its
 * readings.  That is less than passed + 1, so less than 101/100 of that has
 * passed on the service's clock, whose readings show less than one more: they
 * show the end of the lease only if 100 * ttl < 101 * (passed + 1) + 100.  The
 * more has passed, the sooner, so the last moment of belief decides: there
 * passed + 1 is end - sent.  With less = ttl - (end - sent) that is, in numbers
 * that a solver compares more easily, 101 * less < ttl + 100. */
void our_end_is_before_theirs(void)
{
    int64_t sent = any_upto(LATEST), ttl = any_ttl();
    int64_t less = sent + ttl - hfi_lease_deadline(sent, ttl);

    check(101 * less >= ttl + 100, "who believes has it: lease.h (1)");
}

void times_of_a_lease_are_in_order(void)
{
    int64_t sent = any_upto(LATEST), ttl = any_ttl();
    int64_t end = hfi_lease_deadline(sent, ttl);
    int64_t renew = hfi_lease_renew_at(sent, ttl);
    int64_t risk = hfi_lease_at_risk_at(end, ttl);

    check(sent <= renew && renew < risk && risk < end, "lease.h (2)");
    check(end < sent + ttl, "lease.h (1)");
    check(hfi_lease_slack(ttl) <= ttl / 40, "renewed early, not late");
    check(hfi_lease_at_risk_at(HFI_NEVER, ttl) == HFI_NEVER, "no end, no risk");
}

void an_attempt_ends_in_time(void)
{
    int64_t sent = any_upto(LATEST), ttl = any_ttl();
    int64_t now = sent + any_upto(HFI_TTL_MAX);
    int64_t end = hfi_lease_deadline(sent, ttl), timeout = any_upto(LATEST);
    int failed = any_int();
    int64_t stop;

    assume(now < end && timeout > 0 && failed >= 0);
    stop = hfi_lease_attempt_end(now, ttl, end, timeout, failed);
    check(now < stop && stop <= end, "no attempt lasts beyond the deadline");
    check(hfi_lease_retry_at(now, ttl) > now, "a pause is not empty");
}

/* Three that take all their time, from when the first is due. */
void three_attempts_fit(void)
{
    int64_t ttl = any_ttl(), end = hfi_lease_deadline(0, ttl);
    int64_t at = hfi_lease_renew_at(0, ttl), stop;
    int i;

    for (i = 0; i < 3; i++) {
        check(at < end, "lease.h (3)");
        stop = hfi_lease_attempt_end(at, ttl, end, HFI_NEVER, i);
        at = hfi_lease_retry_at(at, ttl);
        at = stop > at ? stop : at;
    }
}

static struct hfi_proof any_proof(void)
{
    return (struct hfi_proof){
        .since = any_upto(LATEST),
        .ms = any_upto(HFI_TTL_MAX) - 1,
        .asked = any_u64(),
        .answered = any_u64(),
    };
}

void an_answer_proves_no_more_than_was_asked(void)
{
    int64_t sent = any_upto(LATEST), ttl = any_ttl();
    struct hfi_proof proof = any_proof();
    int64_t end = hfi_lease_proven(&proof, sent, ttl);

    check(end < sent + ttl, "no longer than asked for");
    check(proof.ms > 0 || !end, "nothing promised, nothing proven");
    check(proof.asked == proof.answered || !end, "an answer for another term");
}

void an_answer_proves_no_more_than_was_promised(void)
{
    int64_t sent = any_upto(LATEST);
    struct hfi_proof proof = any_proof();
    int64_t end = hfi_lease_proven(&proof, sent, HFI_TTL_MAX);

    check(end <= 0 || end < proof.since + proof.ms, "no longer than promised");
}

void a_plain_answer_is_believed(void)
{
    int64_t sent = any_upto(LATEST), ttl = 1 << any_upto(31) % 25;
    struct hfi_proof own;

    assume(ttl >= HFI_TTL_MIN);
    own = hfi_proof_plain(sent, ttl);
    check(hfi_lease_proven(&own, sent, ttl) == hfi_lease_deadline(sent, ttl),
          "a plain answer is believed");
}
