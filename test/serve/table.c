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

T_MAIN
