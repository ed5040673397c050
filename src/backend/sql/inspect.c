/* SPDX-License-Identifier: MIT
 *
 * inspect.c - looking at rows, one or all that are held, and at holders.
 *
 * INVARIANTS
 *  (1) A look and a try agree: what keeps a try out is held, also if it was
 *      broken.
 *  (2) The table of holders is asked only where the row of a key says that
 *      several have it: share.c (2).  The holder that describes a key is the
 *      newest, so that the fence is that of a grant which stands.
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
    ret->use =
        sql_share_use(cells[SQL_LOOK_TOKEN].data, cells[SQL_LOOK_TOKEN].len);
    info->fence = (uint64_t)cells[SQL_LOOK_FENCE].num;
    info->held = ret->held; /* inspect.c (1) */
    info->broken = ret->held && ret->token[0] == '!';
    info->holders = info->held;
    info->waiters =
        (conn->fair || conn->strategy == SQL_ROW) && cells[SQL_LOOK_WANTED].data
            ? (int32_t)cells[SQL_LOOK_WANTED].num
            : -1;
    info->left_ms = info->since_ms = info->slot = -1;
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

/* A row of the table of holders. */
static void seen_fill_holder(const struct sql_conn *conn,
                             const struct sql_cell *cells, struct hf_info *ret)
{
    struct sql_seen seen = {.info = {.size = sizeof(seen.info)}};
    bool kept = cells[SQL_LOOK_KEPT].num;

    seen_fill(conn, cells, &seen);
    *ret = seen.info;
    ret->permits = (int32_t)cells[SQL_LOOK_PERMITS].num;
    ret->slot = ret->permits ? (int32_t)cells[SQL_LOOK_SLOT].num : -1;
    ret->shared = !ret->permits && !cells[SQL_LOOK_MODE].num;
    ret->kept = kept;
    ret->waiters = -1; /* The row of the key tells. */
    if (kept)
        ret->takeover_ms = 0; /* share.c (7) */
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

/* ---- holders ----------------------------------------------------------- */

/* The rows are kept until the session is free: a caller's function may use the
 * client. */
struct sql_listed {
    struct hfi_link link;
    struct hf_info info;
    char key[HF_KEY_MAX + 1];
};

struct sql_listing {
    struct sql_conn *conn;
    struct hfi_link found;
    bool freed;  /* keys that nobody holds are wanted, too */
    bool shared; /* some are in the table of holders */
    bool nomem;
};

static struct sql_listed *listing_add(struct sql_listing *listing,
                                      const struct sql_cell *name)
{
    struct sql_listed *item = hfi_alloc(sizeof(*item));

    listing->nomem = listing->nomem || !item;
    if (!item)
        return NULL;
    seen_text(item->key, sizeof(item->key), name);
    hfi_link_append(&listing->found, &item->link);
    return item;
}

static struct sql_listed *listing_take(struct sql_listing *listing)
{
    struct sql_listed *item;

    if (hfi_link_alone(&listing->found))
        return NULL;
    item = hfi_container(listing->found.next, struct sql_listed, link);
    hfi_link_remove(&item->link);
    return item;
}

static void holders_row(struct sql_answer *answer, const struct sql_cell *cells,
                        int n)
{
    struct sql_listing *listing = answer->arg;
    struct sql_listed *item;

    if (n != SQL_HOLDER_COLUMNS || cells[SQL_LOOK_NAME].len > HF_KEY_MAX)
        return;
    item = listing_add(listing, &cells[SQL_LOOK_NAME]);
    if (item)
        seen_fill_holder(listing->conn, cells, &item->info);
}

/* Each of those who have the key, as found in the table of holders. */
static hf_status holders_find(struct sql_listing *ret, const char *key,
                              int32_t *count, int64_t deadline,
                              struct hf_error *err)
{
    struct sql_answer answer = {.row = holders_row, .arg = ret};
    struct sql_call call = {.key = key};
    hf_status st;

    hfi_link_init(&ret->found);
    st = sql_run(ret->conn, SQL_HOLDERS, &call, &answer, deadline, err);
    *count = (int32_t)answer.rows;
    return !st && ret->nomem ? hfi_nomem(err) : st;
}

hf_status sql_holders(struct hfi_conn *base, const char *key, hf_holders_fn *fn,
                      void *arg, int64_t deadline, struct hf_error *err)
{
    struct sql_listing listing = {.conn = (struct sql_conn *)base};
    struct sql_listed *item;
    struct sql_seen seen;
    bool more = true;
    int32_t count;
    hf_status st = sql_inspect_row(listing.conn, key, &seen, deadline, err);

    if (st)
        return st;
    if (!seen.held || seen.use < 0) {
        if (seen.held)
            fn(arg, &seen.info);
        return HF_OK;
    }
    st = holders_find(&listing, key, &count, deadline, err);
    while ((item = listing_take(&listing))) {
        item->info.holders = count;
        item->info.waiters = seen.info.waiters;
        more = more && !st && fn(arg, &item->info);
        hfi_free(item);
    }
    return st;
}

hf_status sql_inspect_holder(struct sql_conn *conn, const char *key,
                             uint64_t fence, struct hf_info *ret, bool *there,
                             int64_t deadline, struct hf_error *err)
{
    struct sql_listing listing = {.conn = conn};
    struct sql_listed *item;
    int32_t count;
    hf_status st = holders_find(&listing, key, &count, deadline, err);

    *there = false;
    while ((item = listing_take(&listing))) {
        if (!st && !*there && (!fence || item->info.fence == fence)) {
            *ret = item->info;
            ret->holders = count;
            *there = true;
        }
        hfi_free(item);
    }
    return st;
}

/* ---- for people -------------------------------------------------------- */

hf_status sql_inspect(struct hfi_conn *base, const char *key,
                      struct hf_info *ret, int64_t deadline,
                      struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_seen seen;
    uint64_t newest;
    int32_t waiters;
    bool there = false;
    hf_status st = sql_inspect_row(conn, key, &seen, deadline, err);

    newest = seen.info.fence;
    waiters = seen.info.waiters;
    if (!st && seen.held && seen.use >= 0) {
        seen.info = (struct hf_info){
            .left_ms = -1, .since_ms = -1, .waiters = -1, .slot = -1};
        st =
            sql_inspect_holder(conn, key, 0, &seen.info, &there, deadline, err);
        if (!there)
            seen.info.fence = newest;
    }
    if (st)
        return st;
    seen.info.size = ret->size;
    seen.info.waiters = waiters;
    ret->waiters = conn->fair ? 0 : -1;
    if (seen.there)
        *ret = seen.info;
    return HF_OK;
}

static void list_row(struct sql_answer *answer, const struct sql_cell *cells,
                     int n)
{
    struct sql_listing *listing = answer->arg;
    struct sql_seen seen = {.info = {.size = sizeof(seen.info)}};
    struct sql_listed *item;

    if (n != SQL_LOOK_COLUMNS || cells[SQL_LOOK_NAME].len > HF_KEY_MAX)
        return;
    seen_fill(listing->conn, cells, &seen);
    listing->shared = listing->shared || (seen.held && seen.use >= 0);
    if (seen.held ? seen.use >= 0 : !listing->freed)
        return;
    item = listing_add(listing, &cells[SQL_LOOK_NAME]);
    if (item)
        item->info = seen.info;
}

/* Those of one key follow each other. */
static void list_holder(struct sql_answer *answer, const struct sql_cell *cells,
                        int n)
{
    struct sql_listing *listing = answer->arg;
    const struct sql_cell *name = &cells[SQL_LOOK_NAME];
    struct sql_listed *last;

    if (n != SQL_HOLDER_COLUMNS || name->len > HF_KEY_MAX)
        return;
    last = hfi_container(listing->found.prev, struct sql_listed, link);
    if (!hfi_link_alone(&listing->found) && strlen(last->key) == name->len &&
        !memcmp(last->key, name->data, name->len) && last->info.held) {
        last->info.holders++;
        return;
    }
    last = listing_add(listing, name);
    if (last)
        seen_fill_holder(listing->conn, cells, &last->info);
}

/* `since`: as the statement has it; INT64_MAX for nothing that is free. */
static hf_status list_from(struct hfi_conn *base, const char *prefix,
                           int64_t since, hf_list_fn *fn, void *arg,
                           int64_t deadline, struct hf_error *err)
{
    struct sql_listing listing = {.conn = (struct sql_conn *)base,
                                  .freed = since < INT64_MAX};
    struct sql_answer answer = {.row = list_row, .arg = &listing};
    struct sql_answer holders = {.row = list_holder, .arg = &listing};
    struct sql_call call = {.key = prefix, .number = since};
    struct sql_listed *item;
    bool more = true;
    hf_status st;

    hfi_link_init(&listing.found);
    st = sql_run(listing.conn, SQL_LIST, &call, &answer, deadline, err);
    if (!st && listing.shared)
        st = sql_run(listing.conn, SQL_HOLDERS_ALL, &call, &holders, deadline,
                     err);
    if (!st && listing.nomem)
        st = hfi_nomem(err);
    while ((item = listing_take(&listing))) {
        more = more && !st && fn(arg, item->key, &item->info);
        hfi_free(item);
    }
    return st;
}

hf_status sql_list_since(struct hfi_conn *base, const char *prefix,
                         uint64_t fence, hf_list_fn *fn, void *arg,
                         int64_t deadline, struct hf_error *err)
{
    int64_t since = fence < INT64_MAX ? (int64_t)fence : INT64_MAX - 1;

    return list_from(base, prefix, fence == UINT64_MAX ? -1 : since, fn, arg,
                     deadline, err);
}

hf_status sql_list(struct hfi_conn *base, const char *prefix, hf_list_fn *fn,
                   void *arg, int64_t deadline, struct hf_error *err)
{
    return list_from(base, prefix, INT64_MAX, fn, arg, deadline, err);
}
