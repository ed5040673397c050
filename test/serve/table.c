/* SPDX-License-Identifier: MIT
 *
 * table.c - the table of holdfast serve when there are more locks than it keeps:
 * it is built here for eight.
 */
#include "../../serve/serve.h"

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

T_MAIN
