/* SPDX-License-Identifier: MIT
 *
 * inspect.c - looking at rows, one or all that are held.
 *
 * INVARIANTS
 *  (1) A look and a try agree: what keeps a try out is held, also if it was
 *      broken.
 */
#include "sql.h"

#include "base/alloc.h"

#include "base/banned.h"

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
    info->held = ret->held; /* inspect.c (1) */
    info->broken = ret->held && ret->token[0] == '!';
    info->holders = info->held;
    info->waiters = conn->strategy == SQL_ROW && cells[SQL_LOOK_WANTED].data
                        ? (int32_t)cells[SQL_LOOK_WANTED].num
                        : -1;
    info->left_ms = info->since_ms = -1;
    if (!info->held)
        return;
    info->left_ms = left->data ? left->num : -1;
    info->since_ms = since->data ? since->num : -1;
    if (conn->strategy == SQL_VERSION)
        info->takeover_ms = sql_patience(ret->ttl_ms);
    if (cells[SQL_LOOK_OWNER].data)
        seen_text(info->owner, sizeof(info->owner), &cells[SQL_LOOK_OWNER]);
    else
        snprintf(info->owner, sizeof(info->owner), "%s",
                 ret->token + info->broken);
    seen_text(info->note, sizeof(info->note), &cells[SQL_LOOK_NOTE]);
}

struct sql_inspecting {
    struct sql_conn *conn;
    struct sql_seen *seen;
};

static void inspect_row(struct sql_answer *answer, const struct sql_cell *cells,
                        int n)
{
    struct sql_inspecting *looking = answer->arg;

    if (n == SQL_LOOK_COLUMNS)
        seen_fill(looking->conn, cells, looking->seen);
}

hf_status sql_inspect_row(struct sql_conn *conn, const char *key,
                          struct sql_seen *ret, int64_t deadline,
                          struct hf_error *err)
{
    struct sql_call call = {.key = key};
    struct sql_inspecting looking = {conn, ret};
    struct sql_answer answer = {.row = inspect_row, .arg = &looking};

    *ret = (struct sql_seen){.info = {.size = sizeof(ret->info)}};
    return sql_run(conn, SQL_LOOK, &call, &answer, deadline, err);
}

hf_status sql_is_wanted(struct sql_conn *conn, const char *key, bool *ret,
                        int64_t deadline, struct hf_error *err)
{
    struct sql_seen seen;
    hf_status st = sql_inspect_row(conn, key, &seen, deadline, err);

    *ret = !st && seen.held && seen.wanted;
    return st;
}

/* ---- for people -------------------------------------------------------- */

hf_status sql_inspect(struct hfi_conn *base, const char *key,
                      struct hf_info *ret, int64_t deadline,
                      struct hf_error *err)
{
    struct sql_seen seen;
    hf_status st =
        sql_inspect_row((struct sql_conn *)base, key, &seen, deadline, err);

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
    if (!seen.info.held)
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
