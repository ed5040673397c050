/* SPDX-License-Identifier: MIT
 *
 * renew.c - renewing: one statement for many grants.
 *
 * The core brings what is due, up to a few hundred grants at once.  Those with
 * the same ttl go out in one statement, as many as its text has room for, so
 * that ten thousand locks cost some forty statements and not ten thousand.
 *
 * INVARIANTS
 *  (1) A grant is renewed if and only if its row has both its token and its
 *      fence: a token that lapsed and was granted once more by a try that
 *      came late has another fence, and the old grant stays lost.
 *  (2) A statement says how many rows it has found.  If that is all of them,
 *      all stand.  If not, and it names them, the others are asked one by one;
 *      if it does not, each half is asked again, down to single ones.  So a
 *      lost grant costs the others nothing but a few more statements; to renew
 *      twice does no harm.
 *  (3) Rows are locked in the order of their keys, so two such statements
 *      cannot wait for each other in a circle.
 *  (4) No grant waits for the row of another.  Where there are row locks a
 *      statement for many takes only what nobody else has locked.  When all
 *      the statements are done, of whatever kind, the rows that are left are
 *      waited for, each one alone and for its share of the time.
 *  (5) What is in the table of holders is renewed one by one, since the row of
 *      its key changes with it.  A grant that is not where its claim says is
 *      looked for in the other table before it counts as lost: share_hold.c (1).
 */
#include "sql.h"

#include <stdlib.h>

#include "row.h"

#include "base/banned.h"

/* The most grants of one statement. */
#define MANY_MAX 256

/* What one may take beside its key, which is written in hex. */
#define MANY_EACH 160

/* What kind of renewal: only those of one kind share a statement. */
static bool renew_shortens(const struct hfi_renewal *item)
{
    return item->ttl_ms < item->claim->ttl_ms;
}

static int renew_compare(const void *a, const void *b)
{
    const struct hfi_renewal *x = *(struct hfi_renewal *const *)a;
    const struct hfi_renewal *y = *(struct hfi_renewal *const *)b;

    if (x->ttl_ms != y->ttl_ms)
        return x->ttl_ms < y->ttl_ms ? -1 : 1;
    if (sql_share_is(x->claim) != sql_share_is(y->claim))
        return sql_share_is(x->claim) ? 1 : -1;
    if (renew_shortens(x) != renew_shortens(y))
        return renew_shortens(x) ? 1 : -1;
    return strcmp(x->claim->key, y->claim->key);
}

/* ---- what was lost ----------------------------------------------------- */

/* Our token is not there any more: who took it out? */
static hf_loss renew_reason(struct sql_conn *conn,
                            const struct hfi_renewal *item, int64_t deadline)
{
    struct sql_seen seen;
    struct hf_info info;
    bool there = false;

    if (sql_inspect_row(conn, item->claim->key, &seen, deadline, NULL) ||
        !seen.there)
        return HF_LOSS_DELETED;
    if (seen.use >= 0 &&
        !sql_inspect_holder(conn, item->claim->key, item->receipt->fence, &info,
                            &there, deadline, NULL) &&
        there)
        return info.broken ? HF_LOSS_BROKEN : HF_LOSS_STOLEN;
    return seen.info.fence != item->receipt->fence ? HF_LOSS_STOLEN
                                                   : HF_LOSS_BROKEN;
}

static void renew_lost(struct sql_conn *conn, struct hfi_renewal *item,
                       int64_t deadline)
{
    item->st = HF_LOST;
    item->reason = conn->strategy == SQL_ROW
                       ? HF_LOSS_BROKEN
                       : renew_reason(conn, item, deadline);
}

/* ---- many and one ------------------------------------------------------ */

/* How a cell compares with a text. */
static int renew_versus(const struct sql_cell *cell, const char *text)
{
    size_t len = strlen(text), least = len < cell->len ? len : cell->len;
    int order = memcmp(cell->data, text, least);

    return order ? order : (cell->len > len) - (cell->len < len);
}

/* A name and a token that SQL_RENEW_MANY returns: that one stands.  The items
 * are in the order of their keys. */
static void renew_named(struct sql_answer *answer, const struct sql_cell *cells,
                        int n)
{
    const struct sql_call *call = answer->arg;
    size_t low = 0, high = call->count;

    if (n != 2 || !cells[0].data || !cells[1].data)
        return;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (renew_versus(&cells[0], call->items[middle]->claim->key) > 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < call->count &&
           !renew_versus(&cells[0], call->items[low]->claim->key);
         low++)
        if (!renew_versus(&cells[1], call->items[low]->claim->token))
            call->items[low]->st = HF_OK;
}

/* One statement; *all: all the rows were there. */
static hf_status renew_ask(struct sql_conn *conn, enum sql_stmt stmt,
                           struct sql_call *call,
                           struct hfi_renewal *const *items, bool *all,
                           int64_t deadline, struct hf_error *err)
{
    struct sql_answer answer = {.row = renew_named, .arg = call};
    hf_status st;

    call->key = items[0]->claim->key;
    call->token = items[0]->claim->token;
    call->ttl_ms = items[0]->ttl_ms;
    call->queue = renew_shortens(items[0]);
    call->number = (int64_t)items[0]->receipt->fence;
    call->items = items;
    st = sql_run(conn, stmt, call, &answer, deadline, err);
    *all = (conn->strategy == SQL_ROW ? answer.rows : answer.affected) >=
           (int64_t)call->count;
    return st;
}

static hf_status renew_many(struct sql_conn *conn,
                            struct hfi_renewal *const *items, size_t n,
                            bool *all, int64_t deadline, struct hf_error *err)
{
    char room[SQL_MANY_TEXT + SQL_MANY_FRAME];
    struct sql_call call = {.room = room, .count = n};

    return renew_ask(conn, SQL_RENEW_MANY, &call, items, all, deadline, err);
}

static hf_status renew_row(struct sql_conn *conn,
                           struct hfi_renewal *const *item, int64_t deadline,
                           struct hf_error *err)
{
    struct sql_call call = {.count = 1};
    bool all = false;
    hf_status st = renew_ask(conn, SQL_RENEW, &call, item, &all, deadline, err);

    return st || all ? st : HF_LOST;
}

/* renew.c (5) */
static void renew_one(struct sql_conn *conn, struct hfi_renewal *const *item,
                      int64_t deadline, struct hf_error *err)
{
    bool shared = sql_share_is((*item)->claim), row = true;
    hf_status st = HF_LOST;
    int i;

    for (i = 0; i < 2 && st == HF_LOST; i++) {
        row = shared == (i == 1);
        if (row)
            st = renew_row(conn, item, deadline, err);
        else if (conn->strategy != SQL_ROW)
            st = sql_share_renew(conn, *item, deadline, err);
    }
    (*item)->st = st;
    if (st == HF_LOST)
        renew_lost(conn, *item, deadline);
}

/* Those that were found neither free nor lost.  renew.c (4) */
static void renew_rest(struct sql_conn *conn, struct hfi_renewal *const *items,
                       size_t n, int64_t deadline, struct hf_error *err)
{
    size_t i, left = 0;

    for (i = 0; i < n; i++)
        left += items[i]->st == HF_BUSY;
    for (i = 0; i < n; i++)
        if (items[i]->st == HF_BUSY)
            renew_one(conn, &items[i],
                      hfi_now() + hfi_left_ms(deadline) / (int64_t)left--, err);
}

/* Leaves HF_BUSY where renew_rest() must ask. */
static void renew_some(struct sql_conn *conn, struct hfi_renewal *const *items,
                       size_t n, int64_t deadline, struct hf_error *err)
{
    bool locks = conn->driver->skips && conn->strategy != SQL_ROW, all = false;
    bool named = conn->driver->names && conn->strategy != SQL_ROW;
    hf_status st;
    size_t i;

    if (n == 1 && !locks) {
        renew_one(conn, items, deadline, err);
        return;
    }
    for (i = 0; i < n; i++)
        items[i]->st = HF_BUSY;
    st = renew_many(conn, items, n, &all, deadline, err);
    if (!st && !all && !named && n > 1) { /* renew.c (2) */
        renew_some(conn, items, n / 2, deadline, err);
        renew_some(conn, items + n / 2, n - n / 2, deadline, err);
    }
    for (i = 0; (st || all) && i < n; i++)
        items[i]->st = st;
}

/* How many of them, from the first, are of one kind and fit. */
static size_t renew_fit(struct hfi_renewal *const *items, size_t n)
{
    size_t i, room = SQL_MANY_TEXT;

    for (i = 0; i < n && i < MANY_MAX; i++) {
        size_t need = 2 * strlen(items[i]->claim->key) + MANY_EACH;

        if (need > room || sql_share_is(items[i]->claim) ||
            items[i]->ttl_ms != items[0]->ttl_ms ||
            renew_shortens(items[i]) != renew_shortens(items[0]))
            break;
        room -= need;
    }
    return i ? i : 1;
}

void sql_renew_all(struct sql_conn *conn, struct hfi_renewal *const *items,
                   size_t n, int64_t deadline, struct hf_error *err)
{
    size_t i, fit;

    if (n == 1) {
        renew_one(conn, items, deadline, err);
        return;
    }
    for (i = 0; i < n; i += fit) {
        fit = renew_fit(items + i, n - i);
        if (sql_share_is(items[i]->claim))
            items[i]->st = HF_BUSY; /* renew.c (5) */
        else
            renew_some(conn, items + i, fit, deadline, err);
    }
    renew_rest(conn, items, n, deadline, err);
}

/* The core brings no more than MANY_MAX at once; if it did, they would go in
 * turns. */
void sql_renew(struct hfi_conn *base, struct hfi_renewal *items, size_t n,
               int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct hfi_renewal *sorted[MANY_MAX];
    size_t i, some;

    for (; n; items += some, n -= some) {
        some = n < MANY_MAX ? n : MANY_MAX;
        for (i = 0; i < some; i++)
            sorted[i] = &items[i];
        qsort(sorted, some, sizeof(sorted[0]), renew_compare);
        if (conn->strategy == SQL_ROW)
            sql_row_renew(conn, sorted, some, deadline, err);
        else
            sql_renew_all(conn, sorted, some, deadline, err);
    }
}
