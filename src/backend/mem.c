/* SPDX-License-Identifier: MIT
 *
 * mem.c - locks between the threads of one process.
 *
 * ON THE WIRE  Nothing: the service is a table in this process.  `mem:` is a
 *   table of the client's own; `mem:NAME` is shared by all clients of the
 *   process that say the same name.
 *
 * INVARIANTS
 *  (1) A key has one holder, or several that are all shared or all have the
 *      same owner id.
 *  (2) The queue is served in order: a key that is free belongs to the first
 *      place in it, and nobody else is granted meanwhile.
 *  (3) The fence is one counter for the whole process, so it rises for each key
 *      also after the key, or the table, was forgotten.
 *  (4) The table's mutex is taken before that of a client, never after
 *      (backend.h (5)).
 *
 * LEASE  Grants lapse by the clock, as on a server, although the holder's
 *   process cannot die without the table: tests of everything that leases do
 *   need no server for it.
 *
 * LIMITS  One process.
 */
#include "../mem.h"
#include "../backend.h"
#include "../env.h"
#include "../list.h"
#include "../map.h"

#include <pthread.h>

#include "../banned.h"

/* A grant or a place in the queue. */
struct mem_entry {
    struct hfi_link link;  /* in mem_key.holders or .queue */
    struct hfi_conn *conn; /* NULL: detached */
    char token[HFI_TOKEN_LEN + 1];
    char *owner, *note;
    bool shared;
    bool watched; /* tell when somebody asks for it */
    uint64_t fence;
    int64_t since, expires;
};

struct mem_key {
    struct hfi_node node;
    struct hfi_link holders, queue;
    char name[];
};

struct mem_table {
    struct hfi_link link; /* in mem_named, or alone */
    char *name;           /* NULL: of one client */
    unsigned users;
    pthread_mutex_t mu;
    struct hfi_map keys;
};

struct mem_conn {
    struct hfi_conn base;
    struct mem_table *table;
};

static _Atomic uint64_t mem_fence; /* mem.c (3) */

/* The tables that have names; mem_named_mu also guards their `users`. */
static pthread_mutex_t mem_named_mu = PTHREAD_MUTEX_INITIALIZER;
static struct hfi_link mem_named = {&mem_named, &mem_named};

/* ---- tables ------------------------------------------------------------ */

static struct mem_table *mem_table_new(const char *name)
{
    struct mem_table *table = hfi_alloc(sizeof(*table));

    if (!table)
        return NULL;
    hfi_link_init(&table->link);
    if (*name) {
        table->name = hfi_strdup(name);
        if (!table->name) {
            hfi_free(table);
            return NULL;
        }
        hfi_link_append(&mem_named, &table->link);
    }
    pthread_mutex_init(&table->mu, NULL);
    return table;
}

static struct mem_table *mem_table_get(const char *name)
{
    struct mem_table *table = NULL;
    struct hfi_link *at;

    pthread_mutex_lock(&mem_named_mu);
    for (at = mem_named.next; *name && at != &mem_named; at = at->next) {
        table = hfi_container(at, struct mem_table, link);
        if (!strcmp(table->name, name))
            break;
        table = NULL;
    }
    if (!table)
        table = mem_table_new(name);
    if (table)
        table->users++;
    pthread_mutex_unlock(&mem_named_mu);
    return table;
}

static void mem_entry_free(struct mem_entry *entry)
{
    if (!entry)
        return;
    hfi_link_remove(&entry->link);
    hfi_free(entry->owner);
    hfi_free(entry->note);
    hfi_free(entry);
}

static void mem_key_free(struct mem_table *table, struct mem_key *key)
{
    while (!hfi_link_alone(&key->holders))
        mem_entry_free(
            hfi_container(key->holders.next, struct mem_entry, link));
    hfi_map_remove(&table->keys, &key->node);
    hfi_free(key);
}

static void mem_table_put(struct mem_table *table)
{
    struct hfi_node *node;

    pthread_mutex_lock(&mem_named_mu);
    if (--table->users) {
        table = NULL;
    } else {
        hfi_link_remove(&table->link);
    }
    pthread_mutex_unlock(&mem_named_mu);
    if (!table)
        return;
    while ((node = hfi_map_next(&table->keys, NULL)))
        mem_key_free(table, hfi_container(node, struct mem_key, node));
    hfi_map_fini(&table->keys);
    pthread_mutex_destroy(&table->mu);
    hfi_free(table->name);
    hfi_free(table);
}

/* ---- keys, holders, places --------------------------------------------- */

static struct mem_key *mem_find(struct mem_table *table, const char *name)
{
    struct hfi_node *node = hfi_map_find(&table->keys, name);

    return node ? hfi_container(node, struct mem_key, node) : NULL;
}

static struct mem_key *mem_get(struct mem_table *table, const char *name)
{
    struct mem_key *key = mem_find(table, name);
    size_t size = strlen(name) + 1;

    if (key || !hfi_map_reserve(&table->keys))
        return key;
    key = hfi_alloc(sizeof(*key) + size);
    if (!key)
        return NULL;
    key->node.key = memcpy(key->name, name, size);
    hfi_link_init(&key->holders);
    hfi_link_init(&key->queue);
    hfi_map_add(&table->keys, &key->node);
    return key;
}

static void mem_forget_if_unused(struct mem_table *table, struct mem_key *key)
{
    if (hfi_link_alone(&key->holders) && hfi_link_alone(&key->queue))
        mem_key_free(table, key);
}

static struct mem_entry *mem_first(struct hfi_link *list)
{
    return hfi_link_alone(list)
               ? NULL
               : hfi_container(list->next, struct mem_entry, link);
}

static struct mem_entry *mem_by_token(struct hfi_link *list, const char *token)
{
    struct hfi_link *at;
    struct mem_entry *entry;

    for (at = list->next; at != list; at = at->next) {
        entry = hfi_container(at, struct mem_entry, link);
        if (!strcmp(entry->token, token))
            return entry;
    }
    return NULL;
}

static struct mem_entry *mem_entry_new(struct hfi_conn *conn,
                                       const struct hfi_claim *claim)
{
    struct mem_entry *entry = hfi_alloc(sizeof(*entry));

    if (!entry)
        return NULL;
    hfi_link_init(&entry->link);
    entry->conn = conn;
    memcpy(entry->token, claim->token, sizeof(entry->token));
    entry->shared = claim->shared;
    entry->owner = hfi_strdup(claim->owner);
    entry->note = hfi_strdup(claim->note);
    if ((claim->owner && !entry->owner) || (claim->note && !entry->note)) {
        mem_entry_free(entry);
        return NULL;
    }
    return entry;
}

/* Wake those whom the queue's order lets in: the first, and if that is shared
 * the shared ones right behind it. */
static void mem_wake_next(struct mem_key *key)
{
    struct mem_entry *holder = mem_first(&key->holders), *place;
    struct hfi_link *at;
    bool shared = true;

    if (holder && !holder->shared)
        return;

    for (at = key->queue.next; shared && at != &key->queue; at = at->next) {
        place = hfi_container(at, struct mem_entry, link);
        shared = place->shared;
        if (shared || at == key->queue.next)
            hfi_wake(place->conn, key->name, place->token);
    }
}

static void mem_expire(struct mem_key *key, int64_t now)
{
    struct hfi_link *at, *next;
    struct mem_entry *holder;
    bool any = false;

    for (at = key->holders.next; at != &key->holders; at = next) {
        next = at->next;
        holder = hfi_container(at, struct mem_entry, link);
        if (now >= holder->expires) {
            mem_entry_free(holder);
            any = true;
        }
    }
    if (any)
        mem_wake_next(key);
}

/* mem.c (1) */
static bool mem_may_join(const struct mem_entry *holder,
                         const struct hfi_claim *claim)
{
    if (!holder)
        return true;
    if (holder->owner && claim->owner && !strcmp(holder->owner, claim->owner))
        return holder->shared == claim->shared;
    return holder->shared && claim->shared;
}

/* mem.c (2): is everyone ahead of this place (NULL: the whole queue) somebody
 * who shares with us? */
static bool mem_is_turn(struct mem_key *key, const struct mem_entry *mine,
                        const struct hfi_claim *claim)
{
    struct hfi_link *at;

    for (at = key->queue.next; at != &key->queue; at = at->next) {
        const struct mem_entry *place =
            hfi_container(at, struct mem_entry, link);

        if (place == mine)
            return true;
        if (!place->shared || !claim->shared)
            return false;
    }
    return true;
}

static int32_t mem_place_of(struct mem_key *key, const struct mem_entry *mine)
{
    struct hfi_link *at = key->queue.next;
    int32_t place = 1;

    for (; at != &key->queue && at != &mine->link; at = at->next)
        place++;
    return place;
}

/* ---- operations -------------------------------------------------------- */

static hf_status mem_open(struct hfi_conn *conn, const struct hfi_url *url,
                          int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;

    (void)deadline;
    if (url->nhosts || url->user || strlen(url->path) > 128)
        return hfi_fail(err, HF_INVALID,
                        "mem: a short name may follow, as in mem:jobs");
    mc->table = mem_table_get(url->path);
    if (!mc->table)
        return hfi_nomem(err);
    snprintf(conn->endpoint, sizeof(conn->endpoint), "mem:%s", url->path);
    return HF_OK;
}

static void mem_close(struct hfi_conn *conn)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct hfi_node *node = NULL;
    struct mem_key *key;
    struct hfi_link *at;

    if (!mc->table)
        return;
    /* What was detached stays for others, but can no longer be told. */
    pthread_mutex_lock(&mc->table->mu);
    while ((node = hfi_map_next(&mc->table->keys, node))) {
        key = hfi_container(node, struct mem_key, node);
        for (at = key->holders.next; at != &key->holders; at = at->next) {
            struct mem_entry *holder =
                hfi_container(at, struct mem_entry, link);

            if (holder->conn == conn)
                holder->conn = NULL;
        }
    }
    pthread_mutex_unlock(&mc->table->mu);
    mem_table_put(mc->table);
    mc->table = NULL;
}

/* Busy: queue up if that was asked for, and ask lingering holders to go. */
static hf_status mem_busy(struct hfi_conn *conn, struct mem_key *key,
                          struct mem_entry *mine, const struct hfi_claim *claim,
                          struct hfi_grant *grant, struct hfi_busy *busy)
{
    struct mem_entry *holder = mem_first(&key->holders);

    if (!mine && claim->queue) {
        mine = mem_entry_new(conn, claim);
        if (!mine)
            return HF_NOMEM;
        hfi_link_append(&key->queue, &mine->link);
        grant->placed = true;
    }
    if (mine)
        busy->place = mem_place_of(key, mine);
    if (holder) {
        busy->left_ms = hfi_left_ms(holder->expires);
        if (holder->watched && holder->conn)
            hfi_wanted(holder->conn, key->name);
    }
    return HF_BUSY;
}

static void mem_grant(struct mem_key *key, struct mem_entry *entry,
                      int64_t ttl_ms)
{
    struct mem_entry *holder = mem_first(&key->holders);

    entry->since = hfi_now();
    entry->expires = entry->since + ttl_ms;
    entry->watched = false;
    entry->fence = holder && !holder->shared ? holder->fence : ++mem_fence;
    hfi_link_remove(&entry->link);
    hfi_link_append(&key->holders, &entry->link);
}

/* With the table's mutex held. */
static hf_status mem_try(struct mem_conn *mc, struct mem_key *key,
                         const struct hfi_claim *claim, struct hfi_grant *grant,
                         struct hfi_busy *busy)
{
    struct mem_entry *mine = mem_by_token(&key->holders, claim->token);
    struct mem_entry *first;
    bool join;

    if (mine) {
        mine->expires = hfi_now() + claim->ttl_ms;
        grant->fence = mine->fence;
        return HF_OK;
    }
    mine = mem_by_token(&key->queue, claim->token);
    first = mem_first(&key->holders);
    /* Reentrancy does not queue: it would wait for itself. */
    join = first && !first->shared && mem_may_join(first, claim);
    if (!mem_may_join(first, claim) ||
        (!join && !mem_is_turn(key, mine, claim)))
        return mem_busy(&mc->base, key, mine, claim, grant, busy);
    if (!mine)
        mine = mem_entry_new(&mc->base, claim);
    if (!mine)
        return HF_NOMEM;
    mem_grant(key, mine, claim->ttl_ms);
    grant->fence = mine->fence;
    grant->placed = true;
    return HF_OK;
}

static hf_status mem_try_acquire(struct hfi_conn *conn,
                                 const struct hfi_claim *claim,
                                 struct hfi_grant *grant, struct hfi_busy *busy,
                                 int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_key *key;
    hf_status st;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_get(mc->table, claim->key);
    if (key) {
        mem_expire(key, hfi_now());
        st = mem_try(mc, key, claim, grant, busy);
        mem_forget_if_unused(mc->table, key);
    } else {
        st = HF_NOMEM;
    }
    pthread_mutex_unlock(&mc->table->mu);
    return st == HF_NOMEM ? hfi_nomem(err) : st;
}

static void mem_renew_one(struct mem_table *table, struct hfi_renewal *item)
{
    struct mem_key *key = mem_find(table, item->claim->key);
    struct mem_entry *mine = NULL;

    if (key) {
        mem_expire(key, hfi_now());
        mine = mem_by_token(&key->holders, item->claim->token);
    }
    item->st = mine ? HF_OK : HF_LOST;
    if (mine)
        mine->expires = hfi_now() + item->ttl_ms;
    else if (key && mem_first(&key->holders))
        item->reason = HF_LOSS_STOLEN;
    else
        item->reason = HF_LOSS_DELETED;
}

static void mem_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                      size_t n, int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    size_t i;

    (void)deadline;
    (void)err;
    pthread_mutex_lock(&mc->table->mu);
    for (i = 0; i < n; i++)
        mem_renew_one(mc->table, &items[i]);
    pthread_mutex_unlock(&mc->table->mu);
}

static hf_status mem_release(struct hfi_conn *conn,
                             const struct hfi_claim *claim,
                             struct hfi_grant *grant, int64_t deadline,
                             struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine = NULL;
    struct mem_key *key;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, claim->key);
    if (key) {
        mem_expire(key, hfi_now());
        mine = mem_by_token(&key->holders, claim->token);
        if (!mine)
            mine = mem_by_token(&key->queue, claim->token);
        mem_entry_free(mine);
        if (mine)
            mem_wake_next(key);
        mem_forget_if_unused(mc->table, key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    grant->placed = false;
    if (mine)
        return HF_OK;
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    conn->endpoint);
}

/* Places are always woken; a holder wants to hear of others from now on. */
static hf_status mem_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_grant *grant, int64_t deadline,
                           struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine = NULL;
    struct mem_key *key;

    (void)grant;
    (void)deadline;
    (void)err;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, claim->key);
    if (key)
        mine = mem_by_token(&key->holders, claim->token);
    if (mine) {
        mine->watched = true;
        if (!hfi_link_alone(&key->queue))
            hfi_wanted(conn, key->name);
    }
    pthread_mutex_unlock(&mc->table->mu);
    return HF_OK;
}

static void mem_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_grant *grant)
{
    (void)conn;
    (void)claim;
    (void)grant;
}

static hf_status mem_attach(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            const struct hf_handle *handle,
                            struct hfi_grant *grant, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine = NULL;
    struct mem_key *key;

    (void)handle;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, claim->key);
    if (key)
        mine = mem_by_token(&key->holders, claim->token);
    if (mine) {
        mine->conn = conn;
        grant->fence = mine->fence;
    }
    pthread_mutex_unlock(&mc->table->mu);
    return mine ? HF_OK
                : hfi_fail(err, HF_LOST, "%s: there is no such grant",
                           conn->endpoint);
}

/* ---- looking and mending ----------------------------------------------- */

static int32_t mem_count(const struct hfi_link *list)
{
    const struct hfi_link *at;
    int32_t n = 0;

    for (at = list->next; at != list; at = at->next)
        n++;
    return n;
}

static void mem_describe(struct mem_key *key, struct hf_info *ret)
{
    struct mem_entry *holder = mem_first(&key->holders);
    int64_t now = hfi_now();

    ret->holders = mem_count(&key->holders);
    ret->waiters = mem_count(&key->queue);
    ret->held = holder != NULL;
    if (!holder)
        return;
    ret->shared = holder->shared;
    ret->fence = holder->fence;
    ret->left_ms = holder->expires - now;
    ret->since_ms = now - holder->since;
    snprintf(ret->owner, sizeof(ret->owner), "%s",
             holder->owner ? holder->owner : holder->token);
    snprintf(ret->note, sizeof(ret->note), "%s",
             holder->note ? holder->note : "");
}

static hf_status mem_inspect(struct hfi_conn *conn, const char *name,
                             struct hf_info *ret, int64_t deadline,
                             struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_key *key;

    (void)deadline;
    (void)err;
    ret->waiters = 0;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, name);
    if (key) {
        mem_expire(key, hfi_now());
        mem_describe(key, ret);
        mem_forget_if_unused(mc->table, key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    return HF_OK;
}

/* What mem_list() copies while it has the mutex, to call out without it. */
struct mem_found {
    struct hfi_link link;
    struct hf_info info;
    char name[];
};

static bool mem_collect(struct mem_key *key, struct hfi_link *found)
{
    size_t size = strlen(key->name) + 1;
    struct mem_found *item = hfi_alloc(sizeof(*item) + size);

    if (!item)
        return false;
    memcpy(item->name, key->name, size);
    item->info = (struct hf_info){.size = sizeof(item->info)};
    mem_describe(key, &item->info);
    hfi_link_append(found, &item->link);
    return true;
}

static hf_status mem_list(struct hfi_conn *conn, const char *prefix,
                          hf_list_fn *fn, void *arg, int64_t deadline,
                          struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct hfi_link found = {&found, &found};
    struct hfi_node *node = NULL;
    bool ok = true, more = true;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    while (ok && (node = hfi_map_next(&mc->table->keys, node))) {
        struct mem_key *key = hfi_container(node, struct mem_key, node);

        mem_expire(key, hfi_now());
        if (!hfi_link_alone(&key->holders) &&
            !strncmp(key->name, prefix, strlen(prefix)))
            ok = mem_collect(key, &found);
    }
    pthread_mutex_unlock(&mc->table->mu);
    while (!hfi_link_alone(&found)) {
        struct mem_found *item =
            hfi_container(found.next, struct mem_found, link);

        more = more && ok && fn(arg, item->name, &item->info);
        hfi_link_remove(&item->link);
        hfi_free(item);
    }
    return ok ? HF_OK : hfi_nomem(err);
}

static hf_status mem_break(struct hfi_conn *conn, const char *name,
                           uint64_t fence, int64_t deadline,
                           struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct hfi_link *at, *next;
    struct mem_key *key;
    bool any = false;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, name);
    for (at = key ? key->holders.next : NULL; at && at != &key->holders;
         at = next) {
        struct mem_entry *holder = hfi_container(at, struct mem_entry, link);

        next = at->next;
        if (holder->fence != fence)
            continue;
        if (holder->conn)
            hfi_gone(holder->conn, name, holder->token, HF_LOSS_BROKEN);
        mem_entry_free(holder);
        any = true;
    }
    if (any)
        mem_wake_next(key);
    if (key)
        mem_forget_if_unused(mc->table, key);
    pthread_mutex_unlock(&mc->table->mu);
    if (any)
        return HF_OK;
    return hfi_fail(err, HF_LOST, "%s: that grant is over", conn->endpoint);
}

static const char *const mem_schemes[] = {"mem", NULL};

const struct hfi_backend hfi_backend_mem = {
    .schemes = mem_schemes,
    .conn_size = sizeof(struct mem_conn),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_QUEUED |
              HF_TRAIT_NOTIFY | HF_TRAIT_SHARED | HF_TRAIT_REENTRANT |
              HF_TRAIT_DETACH | HF_TRAIT_BREAK,
    .open = mem_open,
    .close = mem_close,
    .try_acquire = mem_try_acquire,
    .renew = mem_renew,
    .release = mem_release,
    .watch = mem_watch,
    .unwatch = mem_unwatch,
    .attach = mem_attach,
    .inspect = mem_inspect,
    .list = mem_list,
    .break_grant = mem_break,
};
