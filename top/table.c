/* SPDX-License-Identifier: MIT
 *
 * table.c - what is known of the locks, sorted and filtered.
 *
 * A listing makes a new table.  What only time shows, how much of its lease a
 * grant had at most, is inherited from the table before.
 */
#include "top.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What clocks and roundings of a service may differ by, in ms. */
#define TABLE_JITTER 1500

static enum top_sort table_order; /* for qsort(), which has no argument */

const char *table_sort_name(enum top_sort sort)
{
    static const char *const names[SORT_COUNT] = {"age", "lease left",
                                                  "waiters", "key"};

    return names[sort];
}

int64_t table_left(const struct top_row *row)
{
    int64_t left = row->info.left_ms;

    if (left < 0)
        return -1;
    left -= cli_now() - row->at;
    return left < 0 ? 0 : left;
}

int64_t table_age(const struct top_row *row)
{
    if (row->info.since_ms < 0)
        return -1;
    return row->info.since_ms + cli_now() - row->at;
}

/* The first sight says no more than that it is not longer than what is left and
 * what has passed since the grant: a lock with 4 of 30 seconds is about to be lost.
 * Holders renew in thirds, so of the usual lease two thirds are left at least. */
int64_t table_lease(const struct top_row *row, int64_t usual)
{
    int64_t most = row->info.left_ms + row->info.since_ms;

    if (row->renewed)
        return row->full < usual && 3 * row->full >= 2 * usual ? usual
                                                               : row->full;
    if (row->info.since_ms >= 0 && most < usual)
        usual = most;
    return row->full > usual ? row->full : usual;
}

bool table_add(struct top_table *table, const struct hf_change *change)
{
    struct top_row *more = table->rows;

    if (table->count == table->room) {
        table->room = table->room ? 2 * table->room : 64;
        more = realloc(more, table->room * sizeof(*more));
        if (!more)
            return false;
        table->rows = more;
    }
    more += table->count;
    *more = (struct top_row){.key = strdup(change->key),
                             .info = change->info,
                             .at = cli_now(),
                             .full = change->info.left_ms};
    more->ends = more->at + more->full;
    table->count += more->key != NULL;
    return more->key != NULL;
}

static int table_by_key(const void *a, const void *b)
{
    const struct top_row *x = a, *y = b;

    return strcmp(x->key, y->key);
}

/* Both by key. */
void table_inherit(struct top_table *table, const struct top_table *old)
{
    struct top_table past = *old;

    table->sort = old->sort;
    memcpy(table->filter, old->filter, sizeof(table->filter));
    if (!table->count || !past.count)
        return;
    qsort(table->rows, table->count, sizeof(*table->rows), table_by_key);
    qsort(past.rows, past.count, sizeof(*past.rows), table_by_key);
    for (size_t i = 0, k = 0; i < table->count && k < past.count;) {
        struct top_row *row = &table->rows[i];
        const struct top_row *was = &past.rows[k];
        int order = strcmp(row->key, was->key);

        if (!order && row->info.fence == was->info.fence &&
            was->info.left_ms >= 0) {
            row->renewed = was->renewed || row->ends - was->ends > TABLE_JITTER;
            row->ends = was->ends;
            row->full = was->full > row->full ? was->full : row->full;
        }
        i += order <= 0;
        k += order >= 0;
    }
}

static bool table_matches(const struct top_table *table,
                          const struct top_row *row)
{
    return !table->filter[0] || strcasestr(row->key, table->filter) ||
           strcasestr(row->info.note, table->filter);
}

/* What is not known comes last.  No clock is read: an order that moves while it
 * is made is none. */
static int table_compare(const void *a, const void *b)
{
    const struct top_row *x = a, *y = b;
    int64_t one = 0, two = 0;

    if (table_order == SORT_AGE) {
        one = y->info.since_ms < 0 ? INT64_MIN : y->info.since_ms - y->at;
        two = x->info.since_ms < 0 ? INT64_MIN : x->info.since_ms - x->at;
    } else if (table_order == SORT_WAITERS) {
        one = y->info.waiters;
        two = x->info.waiters;
    } else if (table_order == SORT_LEFT) {
        one = x->info.left_ms < 0 ? INT64_MAX : x->info.left_ms + x->at;
        two = y->info.left_ms < 0 ? INT64_MAX : y->info.left_ms + y->at;
    }
    return one != two ? (one < two ? -1 : 1) : strcmp(x->key, y->key);
}

void table_arrange(struct top_table *table)
{
    size_t n = 0;

    for (size_t i = 0; i < table->count; i++)
        if (table_matches(table, &table->rows[i])) {
            struct top_row row = table->rows[n];

            table->rows[n] = table->rows[i];
            table->rows[i] = row;
            n++;
        }
    table->shown = n;
    table_order = table->sort;
    if (n)
        qsort(table->rows, n, sizeof(*table->rows), table_compare);
}

void table_clear(struct top_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        free(table->rows[i].key);
    free(table->rows);
    *table = (struct top_table){0};
}
