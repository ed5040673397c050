/* SPDX-License-Identifier: MIT
 *
 * The arithmetic of validity, for every ttl that makes a difference: the
 * numbered invariants are those of src/base/lease.h.
 */
#include "t.h"

#include "base/lease.h"

static const int64_t ttls[] = {HFI_TTL_MIN, 11,    12,      29,         30,
                               99,          100,   101,     250,        1000,
                               5000,        30000, 3600000, HFI_TTL_MAX};

#define EACH(i) for (size_t i = 0; i < sizeof(ttls) / sizeof(ttls[0]); i++)

TEST(the_holder_stops_believing_before_the_service_may_grant_again) /* (1) */
{
    EACH(i)
    CHECK_LT(hfi_lease_deadline(1000, ttls[i]), 1000 + ttls[i]);
}

TEST(an_answer_proves_no_more_than_it_says) /* (4) */
{
    EACH(i)
    {
        struct hfi_proof p = hfi_proof_plain(1000, ttls[i]);
        int64_t end = hfi_lease_deadline(1000, ttls[i]);

        CHECK_EQ(hfi_lease_proven(&p, 1000, ttls[i]), end);
        p.since = 1500; /* later than it was sent: not believed */
        CHECK_EQ(hfi_lease_proven(&p, 1000, ttls[i]), end);
        p.since = 900;
        CHECK_EQ(hfi_lease_proven(&p, 1000, ttls[i]), end - 100);
        p.ms = ttls[i] * 2; /* longer than was asked for, but from earlier */
        CHECK_LE(hfi_lease_proven(&p, 1000, ttls[i]), end);
        p.asked = 7; /* another session or term answered */
        CHECK_EQ(hfi_lease_proven(&p, 1000, ttls[i]), 0);
        p.answered = 7;
        CHECK_LT(0, hfi_lease_proven(&p, 1000, ttls[i]));
        p.ms = 0;
        CHECK_EQ(hfi_lease_proven(&p, 1000, ttls[i]), 0);
    }
}

TEST(renewal_comes_before_the_warning_and_that_before_the_end) /* (2) */
{
    EACH(i)
    {
        int64_t deadline = hfi_lease_deadline(1000, ttls[i]);
        int64_t risk = hfi_lease_at_risk_at(deadline, ttls[i]);

        CHECK_LE(1000, hfi_lease_renew_at(1000, ttls[i]));
        CHECK_LT(hfi_lease_renew_at(1000, ttls[i]), risk);
        CHECK_LT(risk, deadline);
    }
}

TEST(there_is_time_for_three_attempts_that_each_run_to_their_limit) /* (3) */
{
    EACH(i)
    {
        int64_t deadline = hfi_lease_deadline(0, ttls[i]);
        int64_t now = hfi_lease_renew_at(0, ttls[i]);
        int attempts = 0;

        for (; now < deadline; attempts++) {
            int64_t end = hfi_lease_attempt_end(now, ttls[i], deadline,
                                                INT64_MAX / 4, attempts);

            CHECK_LE(end, deadline);
            CHECK_GT(end, now);
            now = hfi_lease_retry_at(now, ttls[i]);
            now = now > end ? now : end;
        }
        CHECK_GE(attempts, 3);
    }
}

TEST(an_attempt_never_outlives_the_limit_of_a_request)
{
    CHECK_EQ(hfi_lease_attempt_end(1000, 30000, 90000, 50, 0), 1050);
    CHECK_EQ(hfi_lease_attempt_end(1000, 30000, 1010, 50, 2), 1010);
}

TEST(never_stays_never)
{
    CHECK(hfi_after(5, HFI_NEVER) == HFI_NEVER);
    CHECK(hfi_after(HFI_NEVER - 1, 7) == HFI_NEVER);
    CHECK(hfi_lease_at_risk_at(HFI_NEVER, 30000) == HFI_NEVER);
    CHECK_EQ(hfi_after(5, 7), 12);
}

T_MAIN
