/* SPDX-License-Identifier: MIT
 *
 * acquire.c - strategies lease and version: taking a row that is free, lapsed, or
 * has stood still; see sql.c for what that promises.
 */
#include "sql.h"

#include "base/lease.h"
#include "row.h"

#include "base/banned.h"

/* How often a row may change between two statements of one try. */
#define TRY_MAX 20

/* ---- taking over what stands still ------------------------------------- */

/* How long a version must have stood still.  sql.c (4) */
int64_t sql_patience(int64_t ttl_ms)
{
    return ttl_ms + hfi_lease_margin(ttl_ms);
}

/* The row was busy with this version just now: how long must we watch? */
static int64_t note_watch(struct sql_note *note, int64_t version,
                          int64_t ttl_ms)
{
    int64_t now = hfi_now(), left;

    if (!note->since || note->version != version) {
        note->version = version;
        note->since = now;
    }
    left = note->since + sql_patience(ttl_ms) - now;
    return left > 0 ? left : 0;
}

/* ---- acquiring --------------------------------------------------------- */

static void try_row(struct sql_answer *answer, const struct sql_cell *cells,
                    int n)
{
    struct sql_tried *tried = answer->arg;

    if (n <= SQL_TRY_AGAIN)
        return;
    tried->fence = cells[SQL_TRY_FENCE].num;
    tried->left_ms = cells[SQL_TRY_LEFT].num;
    tried->version = cells[SQL_TRY_VERSION].num;
    tried->ttl_ms = cells[SQL_TRY_TTL].num;
    tried->again = cells[SQL_TRY_AGAIN].num != 0;
    if (n > SQL_TRY_TOKEN)
        tried->use =
            sql_share_use(cells[SQL_TRY_TOKEN].data, cells[SQL_TRY_TOKEN].len);
}

/* The statement tells everything. */
static hf_status try_once(struct sql_conn *conn, const struct sql_call *call,
                          struct sql_tried *ret, int64_t deadline,
                          struct hf_error *err)
{
    struct sql_answer answer = {.row = try_row, .arg = ret};
    hf_status st = sql_run(conn, SQL_ACQUIRE, call, &answer, deadline, err);

    if (!answer.rows) /* Free when we looked, and not when we wrote. */
        ret->again = true;
    return st;
}

/* Look, mark and look again: *ret is what keeps us out, or `again`. */
static hf_status try_look(struct sql_conn *conn, const struct sql_call *call,
                          struct sql_tried *ret, int64_t deadline,
                          struct hf_error *err)
{
    struct sql_answer answer = {0};
    struct sql_seen seen;
    hf_status st = sql_inspect_row(conn, call->key, &seen, deadline, err);

    if (!st && seen.held && !seen.wanted && call->queue &&
        conn->texts[SQL_WANT]) { /* sql.c (5) */
        st = sql_run(conn, SQL_WANT, call, &answer, deadline, err);
        if (!st)
            st = sql_inspect_row(conn, call->key, &seen, deadline, err);
    }
    ret->mine = seen.held && !strcmp(seen.token, call->token)
                    ? (int64_t)seen.info.fence
                    : 0;
    ret->again =
        !seen.held || ret->mine ||
        (conn->strategy == SQL_VERSION && seen.version == call->number);
    ret->use = seen.held ? seen.use : -1;
    ret->left_ms = seen.left_ms;
    ret->version = seen.version;
    ret->ttl_ms = seen.ttl_ms;
    return st;
}

/* The statement tells only whether it was granted; a look tells the rest. */
static hf_status try_by_look(struct sql_conn *conn, const struct sql_call *call,
                             struct sql_note *note, struct sql_tried *ret,
                             int64_t deadline, struct hf_error *err)
{
    struct sql_answer answer = {0};
    hf_status st = HF_OK;

    if (note->busy) {
        st = try_look(conn, call, ret, deadline, err);
        if (st || !ret->again)
            return st;
    }
    ret->again = false;
    st = sql_run(conn, SQL_ACQUIRE, call, &answer, deadline, err);
    ret->fence = answer.id;
    if (st || answer.id)
        return st;
    note->busy = true;
    st = try_look(conn, call, ret, deadline, err);
    if (!st && ret->mine)
        ret->fence = ret->mine; /* It was, and the answer did not say so. */
    return st;
}

hf_status sql_try_free(struct sql_conn *conn, const struct sql_call *call,
                       struct sql_tried *ret, int64_t deadline,
                       struct hf_error *err)
{
    struct sql_answer answer = {0};
    hf_status st;

    if (!conn->driver->by_look)
        return try_once(conn, call, ret, deadline, err);
    st = sql_run(conn, SQL_ACQUIRE, call, &answer, deadline, err);
    ret->fence = answer.id;
    ret->again = !ret->fence;
    if (st || ret->fence || call->queue)
        return st;
    st = try_look(conn, call, ret, deadline, err);
    if (!st && ret->mine)
        ret->fence = ret->mine; /* It was, and the answer did not say so. */
    return st;
}

static void try_busy(struct sql_conn *conn, struct sql_note *note,
                     const struct sql_tried *tried, struct hfi_answer *busy)
{
    int64_t left = tried->left_ms > 0 ? tried->left_ms : 0, watch;

    busy->left_ms = left;
    if (conn->strategy != SQL_VERSION || !tried->version)
        return;
    watch = note_watch(note, tried->version, tried->ttl_ms);
    busy->left_ms = left && left < watch ? left : watch;
}

/* A plain claim; others may share the key. */
static hf_status try_plain(struct sql_conn *conn, const struct hfi_claim *claim,
                           const struct sql_call *call, struct sql_note *note,
                           struct sql_tried *tried, int64_t deadline,
                           struct hf_error *err)
{
    hf_status st = conn->driver->by_look
                       ? try_by_look(conn, call, note, tried, deadline, err)
                       : try_once(conn, call, tried, deadline, err);
    int64_t age = hfi_now() - note->marked_at;

    if (st || tried->fence || tried->again || tried->use)
        return st;
    /* Who polls does not write each time. */
    if (conn->strategy == SQL_LEASE && note->marked && age < SQL_DOOR_MS) {
        if (tried->left_ms > SQL_DOOR_MS - age)
            tried->left_ms = SQL_DOOR_MS - age;
        return HF_OK;
    }
    note->marked_at = hfi_now();
    return sql_share_door(conn, claim, note, tried, deadline, err);
}

static hf_status sql_try(struct sql_conn *conn, const struct hfi_claim *claim,
                         struct sql_note *note, struct sql_tried *tried,
                         int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {.key = claim->key,
                            .token = claim->token,
                            .owner = claim->owner,
                            .note = claim->note,
                            .ttl_ms = claim->ttl_ms,
                            .queue = claim->queue,
                            .permits = claim->permits,
                            .number = -1};
    hf_status st;
    int i = 0;

    do {
        struct hfi_answer watched = {0};

        *tried = (struct sql_tried){.use = -1};
        if (conn->fair)
            st = sql_queue_try(conn, claim, &call, note, tried, deadline, err);
        else
            st =
                sql_share_is(claim)
                    ? sql_share_enter(conn, &call, tried, deadline, err)
                    : try_plain(conn, claim, &call, note, tried, deadline, err);
        if (!st && !tried->fence && !tried->again && claim->owner &&
            !claim->permits)
            st = sql_reenter(conn, claim, tried, deadline, err);
        if (st || tried->fence || conn->strategy != SQL_VERSION || tried->again)
            continue;
        try_busy(conn, note, tried, &watched);
        if (!watched.left_ms && tried->version && call.number < 0) {
            call.number = note->version; /* It has stood still. */
            tried->again = true;
        }
    } while (!st && !tried->fence && tried->again && ++i < TRY_MAX);
    return st;
}

hf_status sql_try_acquire(struct hfi_conn *base, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, struct hfi_answer *busy,
                          int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_tried tried;
    struct sql_grant *own = receipt->own;
    struct sql_note note = own->note;
    hf_status st;

    if (conn->strategy == SQL_ROW)
        return sql_row_try_acquire(conn, claim, receipt, busy, deadline, err);
    st = sql_try(conn, claim, &note, &tried, deadline, err);
    receipt->registered = receipt->registered || note.marked || note.in_line;
    own->note.marked = note.marked;
    own->note.in_line = note.in_line;
    own->note.shared = note.shared;
    if (st)
        return st;
    if (tried.fence < 0) /* queue.c (9) */
        return hfi_fail(err, HF_LOST,
                        "%s: what this claim was passed was broken before it "
                        "was taken up",
                        base->endpoint);
    if (tried.fence) {
        memset(own, 0, sizeof(*own));
        receipt->fence = (uint64_t)tried.fence;
        receipt->slot = tried.slot;
        receipt->registered = true;
        if (note.marked)
            sql_share_door_end(conn, claim, deadline);
        return HF_OK;
    }
    if (tried.use >= 0 && tried.use != claim->permits)
        return hfi_fail_use(err, claim, tried.use);
    note.busy = true;
    if (err)
        err->status = HF_OK; /* of a deadlock that was gone through again */
    try_busy(conn, &note, &tried, busy);
    busy->position = tried.place;
    busy->left_ms = sql_queue_left(busy->left_ms, tried.place);
    sql_queue_expect(conn, claim);
    if (claim->owner)
        busy->left_ms = sql_reenter_left(busy->left_ms);
    own->note = note;
    return HF_BUSY;
}
