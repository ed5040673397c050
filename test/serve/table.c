/* SPDX-License-Identifier: MIT
 *
 * table.c - the table of holdfast serve: when there are more locks than it keeps,
 * which is eight here; what it counts; and what it knows of leases.
 */
#include "../../serve/serve.h"

#include <stdlib.h>
#include <string.h>

#include "../t.h"

static void see(const char *key, bool held, unsigned mark)
{
    struct hf_info info = HF_INFO_INIT;

    info.held = held;
    info.holders = held;
    info.fence = 1;
    serve_table_change(0, key, &info, mark);
}

/* A listing that shows locks number `from` to `to`. */
static void list(int from, int to, unsigned mark)
{
    char key[16];

    for (int i = from; i < to; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        see(key, true, mark);
    }
    serve_table_sweep(0, mark);
}

TEST(what_is_not_shown_is_counted_once_and_until_it_is_gone)
{
    serve_table_init(1);
    list(0, SERVE_KEYS + 3, 1);
    CHECK_EQ(serve_table_not_shown(), 3);
    list(0, SERVE_KEYS + 3, 2);
    CHECK_EQ(serve_table_not_shown(), 3);
    see("pushed", true, 0);
    see("pushed", true, 0);
    CHECK_EQ(serve_table_not_shown(), 3);
    list(0, SERVE_KEYS, 3);
    CHECK_EQ(serve_table_not_shown(), 0);
}

/* Who holds "k": so many of `permits`, or readers if that is 0; `fence` is that of
 * the one who is shown. */
static void hold(int holders, int permits, uint64_t fence)
{
    struct hf_info info = HF_INFO_INIT;

    info.held = holders > 0;
    info.shared = !permits;
    info.permits = permits;
    info.holders = holders;
    info.fence = fence;
    info.since_ms = 0;
    serve_table_change(0, "k", &info, 0);
}

TEST(readers_who_leave_hand_nothing_over)
{
    const struct serve_service *service = &serve_table.services[0];

    serve_table_init(1);
    hold(1, 0, 1);
    hold(2, 0, 1);
    hold(3, 0, 1);
    CHECK_EQ(service->grants, 3);
    hold(2, 0, 2);
    hold(1, 0, 3);
    CHECK_EQ(service->grants, 3);
    CHECK_EQ(service->handovers, 0);
    CHECK_EQ(service->hold.count, 2);
    hold(0, 0, 3);
    CHECK_EQ(service->hold.count, 3);
    see("k", true, 0); /* somebody alone, and behind him a reader */
    hold(1, 0, 5);
    CHECK_EQ(service->grants, 5);
    CHECK_EQ(service->handovers, 1);
}

TEST(a_permit_is_handed_over_where_all_were_taken)
{
    const struct serve_service *service = &serve_table.services[0];

    serve_table_init(1);
    hold(1, 2, 1);
    hold(2, 2, 1);
    CHECK_EQ(service->handovers, 0);
    hold(2, 2, 2);
    CHECK_EQ(service->grants, 3);
    CHECK_EQ(service->handovers, 1);
    hold(1, 2, 3);
    CHECK_EQ(service->grants, 3);
    CHECK_EQ(service->handovers, 1);
}

/* Listings tell the fence of one who is there, observers the greatest that they were
 * told: they differ for good when the newest has left. */
TEST(a_fence_that_goes_back_and_forth_is_neither_a_grant_nor_an_end)
{
    const struct serve_service *service = &serve_table.services[0];

    for (int permits = 0; permits <= 3; permits += 3) {
        serve_table_init(1);
        memset(&serve_table.services[0], 0, sizeof(serve_table.services[0]));
        hold(1, permits, 1);
        hold(2, permits, 2);
        hold(1, permits, 1);
        for (int i = 0; i < 3; i++) {
            hold(1, permits, 2);
            hold(1, permits, 1);
        }
        CHECK_EQ(service->grants, 2);
        CHECK_EQ(service->hold.count, 1);
        hold(1, permits, 3); /* Somebody else has it. */
        CHECK_EQ(service->grants, 3);
        CHECK_EQ(service->hold.count, 2);
        hold(0, permits, 0);
        hold(1, permits, 2); /* A service that has begun again. */
        hold(1, permits, 3);
        CHECK_EQ(service->grants, 5);
        hold(0, permits, 0);
    }
}

TEST(each_of_several_who_follow_one_alone_is_a_grant)
{
    const struct serve_service *service = &serve_table.services[0];

    serve_table_init(1);
    memset(&serve_table.services[0], 0, sizeof(serve_table.services[0]));
    hold(1, 0, 1);
    hold(2, 3, 3);
    CHECK_EQ(service->grants, 3);
    hold(0, 0, 0);
}

TEST(a_hold_ends_with_whoever_was_shown_though_the_fence_stays)
{
    struct hf_info info = HF_INFO_INIT;

    serve_table_init(1);
    hold(1, 0, 1);
    hold(2, 0, 2);
    info.held = info.shared = true;
    info.holders = 1;
    info.fence = 2;
    snprintf(info.owner, sizeof(info.owner), "one who stays");
    serve_table_change(0, "k", &info, 0);
    CHECK_EQ(serve_table.services[0].hold.count, 1);
    info.fence = 1;
    serve_table_change(0, "k", &info, 1);
    CHECK_EQ(serve_table.services[0].hold.count, 1);
    CHECK_EQ(serve_table.services[0].grants, 2);
}

/* Somebody alone holds "k", and so much of the lease is left. */
static void lease(int64_t left_ms, int64_t since_ms, unsigned mark)
{
    struct hf_info info = HF_INFO_INIT;

    info.held = true;
    info.holders = 1;
    info.fence = 7;
    info.left_ms = left_ms;
    info.since_ms = since_ms;
    serve_table_change(0, "k", &info, mark);
}

static void begin(void)
{
    serve_table_init(1);
    serve_table.services[0].every_ms = 15000;
    serve_table.services[0].lease_ms = 30000;
}

TEST(the_first_sight_of_a_lock_says_nothing_of_its_whole_lease)
{
    begin();
    lease(4000, -1, 1);
    CHECK_EQ(serve_lease(serve_table.last), 30000);
    lease(9000, -1, 2); /* It was renewed: so it is short. */
    CHECK_EQ(serve_lease(serve_table.last), 9000);
    lease(22000, -1, 3);
    CHECK_EQ(serve_lease(serve_table.last), 30000);
    lease(60000, -1, 4);
    CHECK_EQ(serve_lease(serve_table.last), 60000);
}

TEST(a_lease_is_no_longer_than_what_is_left_and_what_has_passed)
{
    begin();
    lease(2000, 500, 1);
    CHECK_EQ(serve_lease(serve_table.last), 2500);
}

TEST(a_lock_that_was_granted_before_our_eyes_shows_its_lease)
{
    begin();
    serve_table_sweep(0, 1);
    lease(2000, -1, 0);
    CHECK_EQ(serve_lease(serve_table.last), 2000);
}

TEST(a_lock_that_was_first_seen_dying_lapses)
{
    begin();
    lease(1, -1, 1);
    while (serve_left(serve_table.last, serve_now()))
        continue;
    serve_table_sweep(0, 2);
    CHECK_EQ(serve_table.services[0].lapses, 1);
}

TEST(where_no_grant_says_when_it_was_holds_count_from_when_they_were_seen)
{
    begin();
    lease(-1, -1, 1);
    CHECK(serve_age(serve_table.last, serve_now()) >= 0);
    serve_table_sweep(0, 2);
    CHECK_EQ(serve_table.services[0].hold.count, 1);
}

/* What Prometheus reads, with a label for each key. */
static char *metrics(void)
{
    struct serve_opts opts = {.labels = {""}, .nlabels = 1};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    CHECK(out != NULL);
    serve_metrics(out, &opts);
    CHECK_EQ(fclose(out), 0);
    return text;
}

/* Has it a series of each of these names? */
static int series(const char *const names[])
{
    char *text = metrics(), name[96];
    int n = 0;

    for (; *names; names++) {
        snprintf(name, sizeof(name), "\nholdfast_%s{", *names);
        n += strstr(text, name) != NULL;
    }
    free(text);
    return n;
}

TEST(what_is_not_known_has_no_series)
{
    struct hf_info info = HF_INFO_INIT;
    char *text;

    begin();
    info.held = true;
    info.holders = 1;
    info.since_ms = info.left_ms = -1;
    info.waiters = -1;
    serve_table_change(0, "k", &info, 1);
    serve_table_up(0, true, NULL, "", 1);
    serve_table_sweep(0, 1);
    text = metrics();
    CHECK(strstr(text, "\nholdfast_lock_age_seconds{") != NULL);
    CHECK(strstr(text, "\nholdfast_lock_key_waiters{") == NULL);
    CHECK(strstr(text, "\nholdfast_lock_waiters{") == NULL);
    CHECK(strstr(text, "\nholdfast_lease_left_seconds{") == NULL);
    free(text);
}

/* Is this in what the page is told of the services? */
static bool told(const char *what)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    bool ret;

    CHECK(out != NULL);
    serve_json_services(out);
    CHECK_EQ(fclose(out), 0);
    ret = strstr(text, what) != NULL;
    free(text);
    return ret;
}

TEST(nobody_is_said_to_wait_for_nothing_where_that_is_not_known)
{
    struct hf_info info = HF_INFO_INIT;

    begin();
    CHECK(told("\"waiters\":0,"));
    info.held = true;
    info.holders = 1;
    info.waiters = -1;
    serve_table_change(0, "k", &info, 1);
    CHECK(told("\"waiters\":null,"));
    info.waiters = 2;
    serve_table_change(0, "k", &info, 1);
    CHECK(told("\"waiters\":2,"));
}

TEST(streams_are_told_when_all_was_listed)
{
    uint64_t version;

    begin();
    lease(30000, 5, 1);
    CHECK(told("\"listed\":false,"));
    version = serve_table.version;
    serve_table_sweep(0, 1);
    CHECK(told("\"listed\":true,"));
    CHECK(serve_table.version > version);
    version = serve_table.version;
    serve_table_sweep(0, 1);
    CHECK_EQ(serve_table.version, version);
}

TEST(a_lock_has_a_number_while_it_is_known)
{
    begin();
    CHECK_EQ(serve_table_id(0, "k"), 0);
    lease(30000, 5, 1);
    CHECK_EQ(serve_table_id(0, "k"), serve_table.last->id);
}

TEST(a_service_of_which_nothing_is_known_now_has_no_gauges)
{
    static const char *const now[] = {
        "locks_held",         "lock_holders",         "lock_waiters",
        "round_trip_seconds", "oldest_grant_seconds", "lease_left_seconds",
        "lock_age_seconds",   "lock_key_waiters",     NULL};
    static const char *const ever[] = {"service_up",
                                       "grants_observed_total",
                                       "handovers_observed_total",
                                       "breaks_observed_total",
                                       "lapses_observed_total",
                                       "hold_seconds_count",
                                       "first_in_line_seconds_count",
                                       NULL};

    begin();
    CHECK_EQ(series(now), 0);
    CHECK_EQ(series(ever), 7);
    serve_table_up(0, true, NULL, "", 1); /* It answers; nothing was listed. */
    CHECK_EQ(series(now), 0);
    lease(30000, 5, 1);
    serve_table_sweep(0, 1);
    CHECK_EQ(series(now), 8);
    serve_table_up(0, false, NULL, "gone", 0);
    CHECK_EQ(series(now), 0);
    CHECK_EQ(series(ever), 7);
    serve_table_up(0, true, NULL, "", 1);
    CHECK_EQ(series(now), 8);
}

T_MAIN
