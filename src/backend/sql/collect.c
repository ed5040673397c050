/* SPDX-License-Identifier: MIT
 *
 * collect.c - strategies lease and version: removing the rows of keys that nobody
 * has used for long.
 *
 * The rows are gone through in the order of their keys, some hundred at a time:
 * one statement looks, and another removes what is still idle then.
 *
 * INVARIANTS
 *  (1) A row is removed by a statement that sees, under the lock of the row, that
 *      nobody holds it, or that its lease ended so long ago.  Who takes the key
 *      meanwhile comes before, and the row stays, or after, and makes another.
 *  (2) A row is removed only if its fence, which is the time of a grant, lies
 *      COLLECT_BACK_MS further back than what was asked for.  The next row begins
 *      with the server's clock, so its fence is greater also if that clock was
 *      put back by as much.  Its version begins with that clock, too: who has
 *      watched the old row for long must not take the new one for it.
 *  (3) Holders are removed whose key nobody shares, and tickets that lapsed so
 *      long ago.
 *
 * BY THE CLIENTS  Of so many releases one is followed by a look at the next rows,
 *   after the lock is free; what it finds older than `keep` is removed (keep=off:
 *   nothing).  A client goes on where it has stopped, from the end to the
 *   beginning.  It begins near the key that it has released: at a name that has
 *   some bytes of that one and another behind them, by chance, so that many
 *   clients which release once look everywhere.  Rows of keys that are used once
 *   so make up no more than twice what `keep` holds.
 */
#include "sql.h"

#include "base/banned.h"

/* collect.c (2) */
#define COLLECT_BACK_MS INT64_C(3660000)

struct collect_batch {
    uint64_t rows, idle;
    char last[HF_KEY_MAX + 1];
};

static void collect_row(struct sql_answer *answer, const struct sql_cell *cells,
                        int n)
{
    struct collect_batch *batch = answer->arg;

    if (n != 2 || !cells[0].data || cells[0].len > HF_KEY_MAX)
        return;
    batch->rows++;
    batch->idle += cells[1].num != 0;
    memcpy(batch->last, cells[0].data, cells[0].len);
    batch->last[cells[0].len] = '\0';
}

/* One batch behind `from`, to which the last of its keys is written. */
static hf_status collect_some(struct sql_conn *conn, struct sql_call *call,
                              char *from, bool dry_run,
                              struct hf_collected *ret, bool *more,
                              int64_t deadline, struct hf_error *err)
{
    struct collect_batch batch = {0};
    struct sql_answer looked = {.row = collect_row, .arg = &batch};
    struct sql_answer removed = {0};
    hf_status st =
        sql_run(conn, SQL_COLLECT_LOOK, call, &looked, deadline, err);

    *more = !st && batch.rows;
    if (!*more)
        return st;
    if (batch.idle && !dry_run) {
        call->owner = batch.last;
        st = sql_run(conn, SQL_COLLECT, call, &removed, deadline, err);
        call->owner = NULL; /* The next look sends what is there. */
    }
    if (st)
        return st;
    ret->looked_at += batch.rows;
    ret->removed += dry_run ? batch.idle : (uint64_t)removed.affected;
    ret->kept = ret->looked_at - ret->removed;
    snprintf(from, HF_KEY_MAX + 1, "%s", batch.last);
    return HF_OK;
}

/* collect.c (3) */
static hf_status collect_rest(struct sql_conn *conn,
                              const struct sql_call *call, int64_t deadline,
                              struct hf_error *err)
{
    static const enum sql_stmt all[] = {SQL_COLLECT_HOLDERS, SQL_COLLECT_QUEUE};
    struct sql_answer answer = {0};
    hf_status st = HF_OK;
    size_t i;

    for (i = 0; !st && i < sizeof(all) / sizeof(all[0]); i++)
        if (conn->texts[all[i]])
            st = sql_run(conn, all[i], call, &answer, deadline, err);
    return st;
}

hf_status sql_collect(struct hfi_conn *base, int64_t older_ms, bool dry_run,
                      struct hf_collected *ret, int64_t deadline,
                      struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    int64_t step_ms = hfi_left_ms(deadline);
    char from[HF_KEY_MAX + 1] = "";
    struct sql_call call = {.key = from, .token = ""};
    bool more = true;
    hf_status st = HF_OK;

    if (!conn->texts[SQL_COLLECT])
        return hfi_fail(err, HF_UNSUPPORTED, "%s: strategy=row: its rows stay",
                        base->endpoint);
    call.ttl_ms = older_ms < INT64_MAX / 4000 ? older_ms : INT64_MAX / 4000;
    call.ttl_ms += COLLECT_BACK_MS;
    while (!st && more) {
        call.key = from;
        st = collect_some(conn, &call, from, dry_run, ret, &more,
                          hfi_now() + step_ms, err);
    }
    if (st || dry_run)
        return st;
    return collect_rest(conn, &call, hfi_now() + step_ms, err);
}

/* ---- by the clients ---------------------------------------------------- */

/* One release of so many. */
#define COLLECT_EACH 256

unsigned sql_collect_begin(void)
{
    unsigned ret;

    hfi_random(&ret, sizeof(ret));
    return ret;
}

/* Some bytes of the key, and one more that a key may have. */
static void collect_start(char from[HF_KEY_MAX + 1], const char *key)
{
    unsigned char chance[4];
    size_t len = strlen(key);

    hfi_random(chance, sizeof(chance));
    len = ((size_t)chance[0] << 8 | chance[1]) % (len ? len : 1);
    while (len && (key[len] & 0xc0) == 0x80) /* not within a character */
        len--;
    memcpy(from, key, len);
    from[len] = (char)(' ' + chance[2] % ('~' - ' '));
    from[len + 1] = '\0';
}

/* The next rows; at the end, what stands beside them, and to the beginning. */
static void collect_step(struct sql_conn *conn, const struct hfi_claim *claim,
                         int64_t deadline)
{
    struct sql_call call = {.key = conn->keep_from,
                            .token = "",
                            .ttl_ms = conn->keep_ms < INT64_MAX / 4000
                                          ? conn->keep_ms
                                          : INT64_MAX / 4000};
    struct hf_collected found = HF_COLLECTED_INIT;
    struct sql_answer answer = {0};
    bool more = false;
    hf_status st;

    call.ttl_ms += COLLECT_BACK_MS;
    if (!conn->keep_began)
        collect_start(conn->keep_from, claim->key);
    conn->keep_began = true;
    st = collect_some(conn, &call, conn->keep_from, false, &found, &more,
                      deadline, NULL);
    if (st || more)
        return;
    conn->keep_from[0] = '\0';
    if (atomic_load(&conn->sharing))
        sql_run(conn, SQL_COLLECT_HOLDERS, &call, &answer, deadline, NULL);
    if (conn->texts[SQL_COLLECT_QUEUE])
        sql_run(conn, SQL_COLLECT_QUEUE, &call, &answer, deadline, NULL);
}

void sql_collect_some(struct sql_conn *conn, const struct hfi_claim *claim,
                      int64_t deadline)
{
    if (sql_share_is(claim))
        atomic_store(&conn->sharing, true);
    if (!conn->keep_ms || !conn->texts[SQL_COLLECT] ||
        atomic_fetch_add(&conn->uses, 1) % COLLECT_EACH ||
        pthread_mutex_trylock(&conn->keep_mu))
        return;
    collect_step(conn, claim, deadline);
    pthread_mutex_unlock(&conn->keep_mu);
}
