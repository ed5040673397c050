/* SPDX-License-Identifier: MIT
 *
 * top-lease.c - how long `holdfast top` takes the lease of a lock to be.
 */
#include "../../top/top.h"

#include "../t.h"

#define USUAL 30000

/* A listing that shows one lock, after the one before. */
static void list(struct top_table *table, int64_t left_ms, int64_t since_ms)
{
    struct top_table fresh = {0};
    struct hf_change change = HF_CHANGE_INIT;

    snprintf(change.key, sizeof(change.key), "k");
    change.info.held = true;
    change.info.fence = 7;
    change.info.left_ms = left_ms;
    change.info.since_ms = since_ms;
    CHECK(table_add(&fresh, &change));
    table_inherit(&fresh, table);
    table_clear(table);
    *table = fresh;
}

TEST(the_first_sight_of_a_lock_says_nothing_of_its_whole_lease)
{
    struct top_table table = {0};

    list(&table, 4000, -1);
    CHECK_EQ(table_lease(table.rows, USUAL), USUAL);
    list(&table, 3000, -1);
    CHECK_EQ(table_lease(table.rows, USUAL), USUAL);
    list(&table, 9000, -1); /* It was renewed: so it is short. */
    CHECK_EQ(table_lease(table.rows, USUAL), 9000);
    list(&table, 22000, -1);
    CHECK_EQ(table_lease(table.rows, USUAL), USUAL);
    list(&table, 60000, -1);
    CHECK_EQ(table_lease(table.rows, USUAL), 60000);
    table_clear(&table);
}

TEST(a_lease_is_no_longer_than_what_is_left_and_what_has_passed)
{
    struct top_table table = {0};

    list(&table, 2000, 500);
    CHECK_EQ(table_lease(table.rows, USUAL), 2500);
    table_clear(&table);
}

T_MAIN
