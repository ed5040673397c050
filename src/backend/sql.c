/* SPDX-License-Identifier: MIT
 *
 * sql.c - a lock is a row: strategies lease and version, on any SQL service.
 *
 * ON THE WIRE  One row for each key that was ever locked, and one statement
 *   for each step, outside any transaction of the caller:
 *   acquire   insert the row, or change it if it is free, lapsed, or ours
 *   renew     change it if it has our token; sql_renew.c
 *   release   take the token out, if it is ours; the row and its fence stay
 *
 * INVARIANTS
 *  (1) A claim owns the lock if and only if the row has its token, 128 random
 *      bits, and, with strategy lease, the time in it has not come by the
 *      server's clock.
 *  (2) No statement changes a row that has another's token, but for taking
 *      over a lapsed one, breaking by fence, and the mark `wanted`.
 *  (3) The fence is computed in the statement that grants, under the row's
 *      lock: the greater of the last one plus one and the server's clock in
 *      microseconds.  It is never deleted with the lock.
 *  (4) Strategy version stores no time.  Who waits may take over a row whose
 *      version has not changed while it watched, on its own clock, for the
 *      ttl that the row names and a margin; the watch begins anew at every
 *      change, and when the answer came, not when the question was sent.  The
 *      statement that takes over compares the version once more.
 *  (5) Who found the row busy and will wait leaves a mark in it, so that only
 *      a release that somebody waits for rings a bell; after the mark there is
 *      another look.
 *  (6) To break is to revoke: the token is spoiled by a '!' before it, so that
 *      its holder can neither renew nor release, but the row is not free before
 *      the holder has heard (it then lets go of the spoiled token) or its
 *      lease is over.  Nobody is granted what another still believes to hold.
 *  (7) Nothing but a request that was made to do so shortens a lease.
 *
 * LEASE  Lease: the server's clock, read after the request arrived, so later
 *   than the moment from which the holder counts.  Version: see (4).
 *
 * LIMITS  A server whose clock jumps forward ends leases early, and the fence
 *   is then what protects; with strategy version it does not matter, but a
 *   dead holder's lock is only taken over by somebody who waits a whole ttl.
 *   What an asynchronous replica had not heard of is forgotten by a failover.
 */
#include "sql.h"

#include "../lease.h"
#include "../mem.h"
#include "sql_row.h"

#include "../banned.h"

/* How often a row may change between two statements of one try. */
#define TRY_MAX 20

/* What a claim that waits has seen; kept in grant->ref until it is granted. */
struct sql_note {
    int64_t version, since;
    bool busy; /* look before the next try */
};

/* A row as SQL_LOOK describes it. */
struct sql_seen {
    bool there, held, wanted;
    bool broken; /* held, but revoked */
    int64_t left_ms, version, ttl_ms;
    char token[HFI_TOKEN_LEN + 2];
    struct hf_info info;
};

/* ---- looking ----------------------------------------------------------- */

static void seen_text(char *buf, size_t size, const struct sql_cell *cell)
{
    size_t len = cell->len < size - 1 ? cell->len : size - 1;

    if (cell->data)
        memcpy(buf, cell->data, len);
    buf[cell->data ? len : 0] = '\0';
}

static void seen_fill(const struct sql_conn *conn, const struct sql_cell *cells,
                      struct sql_seen *ret)
{
    struct hf_info *info = &ret->info;
    const struct sql_cell *left = &cells[SQL_LOOK_LEFT];
    const struct sql_cell *since = &cells[SQL_LOOK_SINCE];

    ret->there = true;
    ret->left_ms = left->num;
    ret->version = cells[SQL_LOOK_VERSION].num;
    ret->ttl_ms = cells[SQL_LOOK_TTL].num;
    ret->wanted = cells[SQL_LOOK_WANTED].num != 0;
    seen_text(ret->token, sizeof(ret->token), &cells[SQL_LOOK_TOKEN]);
    ret->held = cells[SQL_LOOK_TOKEN].data &&
                (conn->strategy != SQL_LEASE || left->num > 0);
    info->fence = (uint64_t)cells[SQL_LOOK_FENCE].num;
    ret->broken = ret->held && ret->token[0] == '!';
    info->held = ret->held && !ret->broken;
    info->holders = info->held;
    info->waiters = conn->strategy == SQL_ROW && cells[SQL_LOOK_WANTED].data
                        ? (int32_t)cells[SQL_LOOK_WANTED].num
                        : -1;
    info->left_ms = info->since_ms = -1;
    if (!info->held)
        return;
    info->left_ms = left->data ? left->num : -1;
    info->since_ms = since->data ? since->num : -1;
    seen_text(
        info->owner, sizeof(info->owner),
        &cells[cells[SQL_LOOK_OWNER].data ? SQL_LOOK_OWNER : SQL_LOOK_TOKEN]);
    seen_text(info->note, sizeof(info->note), &cells[SQL_LOOK_NOTE]);
}

struct sql_looking {
    struct sql_conn *conn;
    struct sql_seen *seen;
};

static void look_row(struct sql_answer *answer, const struct sql_cell *cells,
                     int n)
{
    struct sql_looking *looking = answer->arg;

    if (n == SQL_LOOK_COLUMNS)
        seen_fill(looking->conn, cells, looking->seen);
}

static hf_status sql_look(struct sql_conn *conn, const char *key,
                          struct sql_seen *ret, int64_t deadline,
                          struct hf_error *err)
{
    struct sql_call call = {.key = key};
    struct sql_looking looking = {conn, ret};
    struct sql_answer answer = {.row = look_row, .arg = &looking};

    *ret = (struct sql_seen){.info = {.size = sizeof(ret->info)}};
    return sql_run(conn, SQL_LOOK, &call, &answer, deadline, err);
}

hf_status sql_is_wanted(struct sql_conn *conn, const char *key, bool *ret,
                        int64_t deadline, struct hf_error *err)
{
    struct sql_seen seen;
    hf_status st = sql_look(conn, key, &seen, deadline, err);

    *ret = !st && seen.held && seen.wanted;
    return st;
}

hf_status sql_fence_of(struct sql_conn *conn, const char *key, bool *there,
                       uint64_t *ret, int64_t deadline)
{
    struct sql_seen seen;
    hf_status st = sql_look(conn, key, &seen, deadline, NULL);

    *there = !st && seen.there;
    *ret = seen.info.fence;
    return st;
}

/* ---- taking over what stands still ------------------------------------- */

/* How long a version must have stood still.  sql.c (4) */
static int64_t note_patience(int64_t ttl_ms)
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
    left = note->since + note_patience(ttl_ms) - now;
    return left > 0 ? left : 0;
}

/* ---- acquiring --------------------------------------------------------- */

/* One try, as the statement or a look tells it. */
struct sql_tried {
    int64_t fence, left_ms, version, ttl_ms;
    int64_t mine; /* the fence, if a look has found our own token */
    bool again;
};

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
    hf_status st = sql_look(conn, call->key, &seen, deadline, err);

    if (!st && seen.held && !seen.wanted && call->queue &&
        conn->texts[SQL_WANT]) { /* sql.c (5) */
        st = sql_run(conn, SQL_WANT, call, &answer, deadline, err);
        if (!st)
            st = sql_look(conn, call->key, &seen, deadline, err);
    }
    ret->mine = seen.held && !strcmp(seen.token, call->token)
                    ? (int64_t)seen.info.fence
                    : 0;
    ret->again =
        !seen.held || ret->mine ||
        (conn->strategy == SQL_VERSION && seen.version == call->number);
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
    if (!call->queue && !conn->driver->mute)
        return HF_OK;
    st = try_look(conn, call, ret, deadline, err);
    if (!st && ret->mine)
        ret->fence = ret->mine; /* It was, and the answer did not say so. */
    return st;
}

static void try_busy(struct sql_conn *conn, struct sql_note *note,
                     const struct sql_tried *tried, struct hfi_answer *busy)
{
    if (conn->strategy == SQL_VERSION && tried->version)
        busy->left_ms = note_watch(note, tried->version, tried->ttl_ms);
    else
        busy->left_ms = tried->left_ms > 0 ? tried->left_ms : 0;
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
                            .number = -1};
    hf_status st;
    int i = 0;

    do {
        struct hfi_answer watched = {0};

        *tried = (struct sql_tried){0};
        st = conn->driver->by_look
                 ? try_by_look(conn, &call, note, tried, deadline, err)
                 : try_once(conn, &call, tried, deadline, err);
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
                          struct hfi_grant *grant, struct hfi_answer *busy,
                          int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_tried tried;
    struct sql_note note;
    hf_status st;

    if (conn->strategy == SQL_ROW)
        return sql_row_try_acquire(conn, claim, grant, busy, deadline, err);
    memcpy(&note, grant->ref.text, sizeof(note));
    st = sql_try(conn, claim, &note, &tried, deadline, err);
    if (st)
        return st;
    if (tried.fence) {
        memset(&grant->ref, 0, sizeof(grant->ref));
        grant->fence = (uint64_t)tried.fence;
        grant->placed = true;
        return HF_OK;
    }
    note.busy = true;
    if (err)
        err->status = HF_OK; /* of a deadlock that was gone through again */
    try_busy(conn, &note, &tried, busy);
    memcpy(grant->ref.text, &note, sizeof(note));
    return HF_BUSY;
}

/* ---- letting go -------------------------------------------------------- */

void sql_let_go(struct sql_conn *conn, const struct hfi_claim *claim,
                int64_t deadline)
{
    char spoiled[HFI_TOKEN_LEN + 2];
    struct sql_call call = {.key = claim->key, .token = spoiled};
    struct sql_answer answer = {0};

    snprintf(spoiled, sizeof(spoiled), "!%s", claim->token);
    sql_run(conn, SQL_RELEASE, &call, &answer, deadline, NULL);
}

hf_status sql_release(struct hfi_conn *base, const struct hfi_claim *claim,
                      struct hfi_grant *grant, int64_t deadline,
                      struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_call call = {.key = claim->key, .token = claim->token};
    struct sql_answer answer = {0};
    hf_status st;

    if (conn->strategy == SQL_ROW)
        return sql_row_release(conn, claim, grant, deadline, err);
    st = sql_run(conn, SQL_RELEASE, &call, &answer, deadline, err);
    if (st)
        return st;
    grant->placed = false;
    if (answer.affected || answer.rows)
        return HF_OK;
    sql_let_go(conn, claim, deadline);
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    base->endpoint);
}

hf_status sql_attach(struct hfi_conn *base, const struct hfi_claim *claim,
                     const struct hf_handle *handle, struct hfi_grant *grant,
                     struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_seen seen;
    hf_status st =
        sql_look(conn, claim->key, &seen, hfi_now() + conn->timeout_ms, err);

    (void)handle;
    if (st)
        return st;
    if (!seen.held || strcmp(seen.token, claim->token) != 0)
        return hfi_fail(err, HF_LOST, "%s: there is no such grant",
                        base->endpoint);
    grant->fence = seen.info.fence;
    return HF_OK;
}

/* ---- for people -------------------------------------------------------- */

hf_status sql_inspect(struct hfi_conn *base, const char *key,
                      struct hf_info *ret, int64_t deadline,
                      struct hf_error *err)
{
    struct sql_seen seen;
    hf_status st = sql_look((struct sql_conn *)base, key, &seen, deadline, err);

    if (st)
        return st;
    seen.info.size = ret->size;
    ret->waiters = -1;
    if (seen.there)
        *ret = seen.info;
    return HF_OK;
}

/* The rows are kept until the session is free: `fn` may use the client. */
struct sql_listed {
    struct hfi_link link;
    struct hf_info info;
    char key[HF_KEY_MAX + 1];
};

struct sql_listing {
    struct sql_conn *conn;
    struct hfi_link found;
    bool nomem;
};

static void list_row(struct sql_answer *answer, const struct sql_cell *cells,
                     int n)
{
    struct sql_listing *listing = answer->arg;
    struct sql_seen seen = {.info = {.size = sizeof(seen.info)}};
    struct sql_listed *item;

    if (n != SQL_LOOK_COLUMNS || cells[SQL_LOOK_NAME].len > HF_KEY_MAX)
        return;
    seen_fill(listing->conn, cells, &seen);
    if (!seen.info.held) /* It has been broken. */
        return;
    item = hfi_alloc(sizeof(*item));
    listing->nomem = listing->nomem || !item;
    if (!item)
        return;
    item->info = seen.info;
    seen_text(item->key, sizeof(item->key), &cells[SQL_LOOK_NAME]);
    hfi_link_append(&listing->found, &item->link);
}

hf_status sql_list(struct hfi_conn *base, const char *prefix, hf_list_fn *fn,
                   void *arg, int64_t deadline, struct hf_error *err)
{
    struct sql_listing listing = {.conn = (struct sql_conn *)base};
    struct sql_answer answer = {.row = list_row, .arg = &listing};
    struct sql_call call = {.key = prefix};
    bool more = true;
    hf_status st;

    hfi_link_init(&listing.found);
    st = sql_run(listing.conn, SQL_LIST, &call, &answer, deadline, err);
    if (!st && listing.nomem)
        st = hfi_nomem(err);
    while (!hfi_link_alone(&listing.found)) {
        struct sql_listed *item =
            hfi_container(listing.found.next, struct sql_listed, link);

        more = more && !st && fn(arg, item->key, &item->info);
        hfi_link_remove(&item->link);
        hfi_free(item);
    }
    return st;
}

hf_status sql_break(struct hfi_conn *base, const char *key, uint64_t fence,
                    int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_call call = {.key = key, .number = (int64_t)fence};
    struct sql_answer answer = {0};
    hf_status st = sql_run(conn, SQL_BREAK, &call, &answer, deadline, err);

    if (st || answer.affected || answer.rows)
        return st;
    return hfi_fail(err, HF_LOST, "%s: that grant is over", base->endpoint);
}
