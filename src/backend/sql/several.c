/* SPDX-License-Identifier: MIT
 *
 * several.c - strategies lease and version: several keys by one statement.
 *
 * ON THE WIRE  One UPDATE takes every row that is free and for which nobody
 *   waits, and returns them.  Rows that may be missing are inserted before that,
 *   all by one statement: those of keys that this client does not know, queue.c
 *   (8).  On SQLite it is one transaction that takes all or none, sqlite/many.c,
 *   and of what follows only (2) and (3) matter there.
 *
 * INVARIANTS
 *  (1) HF_OK only if all of them were returned.  If some were, they are released
 *      before anything is said, as by any holder: who has come to wait for one is
 *      passed it.  What cannot be released is HF_UNCERTAIN, and the core takes
 *      all of them back.
 *  (2) A statement locks rows in the order of their keys, since the core names
 *      them in that order, and waits for no lock of a key, only for statements.
 *      So no two of them wait for each other.
 *  (3) Nothing is passed by: where somebody waits for a key, or observes one, the
 *      statement takes nothing of it, or nothing at all, and the keys are asked
 *      for one by one.  So are keys for which others waited lately.
 *
 * To see first whether all are free, in the same statement, was rejected: it
 * takes as long as to take three more keys, and does not make (1) needless, since
 * a row may be taken between the look and the change.
 */
#include "sql.h"

#include "base/alloc.h"

#include "base/banned.h"

struct several {
    struct sql_conn *conn;
    struct hfi_attempt *items;
    size_t n, granted;
    size_t size; /* of the list, with a NUL in place of the last comma */
    char *list;  /* of "TOKENname," with the name in hex */
};

static bool several_fit(struct several *all)
{
    struct sql_conn *conn = all->conn;
    size_t i;

    if (all->n < 2 || !conn->texts[SQL_TAKE_ALL])
        return false;
    for (i = 0; i < all->n; i++) {
        const struct hfi_claim *claim = all->items[i].claim;

        if (sql_share_is(claim) || claim->owner ||
            sql_queue_is_hot(conn, claim->key))
            return false;
        all->size += HFI_TOKEN_LEN + 2 * strlen(claim->key) + 1;
    }
    return all->size <= SQL_MANY_TEXT;
}

static bool several_say(struct several *all)
{
    char *at = all->list = hfi_alloc(all->size);
    size_t i;

    for (i = 0; at && i < all->n; i++) {
        memcpy(at, all->items[i].claim->token, HFI_TOKEN_LEN);
        at = sql_hex(at + HFI_TOKEN_LEN, all->items[i].claim->key);
        *at++ = ',';
    }
    if (at)
        at[-1] = '\0';
    return at;
}

/* Columns: the name and the fence. */
static void several_row(struct sql_answer *answer, const struct sql_cell *cells,
                        int n)
{
    struct several *all = answer->arg;
    size_t i;

    for (i = 0; n > 1 && cells[0].data && i < all->n; i++) {
        const char *key = all->items[i].claim->key;
        struct hfi_receipt *receipt = all->items[i].receipt;

        if (receipt->registered || strlen(key) != cells[0].len ||
            memcmp(key, cells[0].data, cells[0].len) != 0)
            continue;
        receipt->fence = (uint64_t)cells[1].num;
        receipt->registered = true;
        all->granted++;
    }
}

static void several_know(const struct several *all, bool known)
{
    size_t i;

    for (i = 0; i < all->n; i++)
        sql_queue_know(all->conn, all->items[i].claim->key, known);
}

/* Insert the rows that are not there. */
static hf_status several_make(struct several *all, const struct sql_call *call,
                              int64_t deadline, struct hf_error *err)
{
    struct sql_answer answer = {0};
    size_t i;

    if (!all->conn->texts[SQL_MAKE_ALL])
        return HF_OK;
    for (i = 0; i < all->n; i++)
        if (!sql_queue_knows(all->conn, all->items[i].claim->key))
            return sql_run(all->conn, SQL_MAKE_ALL, call, &answer, deadline,
                           err);
    return HF_OK;
}

/* Some were not free: nothing is kept of the others.  several.c (1) */
static hf_status several_undo(struct several *all, int64_t deadline,
                              struct hf_error *err)
{
    hf_status st = HF_OK;
    size_t i;

    for (i = 0; i < all->n && !st; i++) {
        struct hfi_receipt *receipt = all->items[i].receipt;

        if (receipt->registered)
            st = sql_release(&all->conn->base, all->items[i].claim, receipt,
                             deadline, err);
        if (st == HF_LOST)
            st = HF_OK;
        receipt->registered = st;
        receipt->fence = 0;
    }
    return st ? hfi_wrap(err, HF_UNCERTAIN, "give back") : HF_UNSUPPORTED;
}

hf_status sql_try_acquire_all(struct hfi_conn *base, struct hfi_attempt *items,
                              size_t n, int64_t deadline, struct hf_error *err)
{
    struct several all = {
        .conn = (struct sql_conn *)base, .items = items, .n = n};
    struct sql_answer answer = {.row = several_row, .arg = &all};
    struct sql_call call = {.attempts = items, .count = n, .number = -1};
    hf_status st;

    if (!several_fit(&all))
        return HF_UNSUPPORTED;
    if (!several_say(&all))
        return hfi_nomem(err);
    call.key = items[0].claim->key;
    call.owner = items[n - 1].claim->key;
    call.token = all.list;
    call.note = items[0].claim->note;
    call.ttl_ms = items[0].claim->ttl_ms;
    st = several_make(&all, &call, deadline, err);
    if (!st)
        st = sql_run(all.conn, SQL_TAKE_ALL, &call, &answer, deadline, err);
    hfi_free(all.list);
    several_know(&all, !st && all.granted == n);
    return st || all.granted == n ? st : several_undo(&all, deadline, err);
}
