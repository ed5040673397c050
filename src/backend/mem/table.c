/* SPDX-License-Identifier: MIT
 *
 * table.c - the tables of mem: keys, their holders and their queues; the
 * rules are in mem.c.
 *
 * A table without a name belongs to one client; one with a name to all clients
 * of the process that say it, and goes with the last of them.  A key is there
 * while somebody holds it or waits for it.
 */
#include "mem.h"

#include "base/alloc.h"
#include "base/env.h"
#include "base/mutant.h"

#include "base/banned.h"

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
    hfi_link_init(&table->observations);
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

struct mem_table *mem_table_get(const char *name)
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

void mem_entry_free(struct mem_entry *entry)
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

void mem_table_put(struct mem_table *table)
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

struct mem_key *mem_find(struct mem_table *table, const char *name)
{
    struct hfi_node *node = hfi_map_find(&table->keys, name);

    return node ? hfi_container(node, struct mem_key, node) : NULL;
}

struct mem_key *mem_get(struct mem_table *table, const char *name)
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

void mem_forget_if_unused(struct mem_table *table, struct mem_key *key)
{
    if (hfi_link_alone(&key->holders) && hfi_link_alone(&key->queue))
        mem_key_free(table, key);
}

struct mem_entry *mem_first(struct hfi_link *list)
{
    return hfi_link_alone(list)
               ? NULL
               : hfi_container(list->next, struct mem_entry, link);
}

/* A token is one claim's alone. */
struct mem_entry *mem_by_token(struct hfi_link *list, const char *token)
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

struct mem_entry *mem_entry_new(struct hfi_conn *conn,
                                const struct hfi_claim *claim)
{
    struct mem_entry *entry = hfi_alloc(sizeof(*entry));

    if (!entry)
        return NULL;
    hfi_link_init(&entry->link);
    entry->conn = conn;
    memcpy(entry->token, claim->token, sizeof(entry->token));
    entry->shared = claim->shared;
    entry->permits = claim->permits;
    entry->owner = hfi_strdup(claim->owner);
    entry->note = hfi_strdup(claim->note);
    if ((claim->owner && !entry->owner) || (claim->note && !entry->note)) {
        mem_entry_free(entry);
        return NULL;
    }
    return entry;
}

/* How many more may hold a key with permits. */
static int32_t mem_permits_left(const struct mem_key *key, int32_t permits)
{
    const struct hfi_link *at, *before;
    int32_t left = permits;

    for (at = key->holders.next; at != &key->holders; at = at->next) {
        const struct mem_entry *entry =
            hfi_container(at, struct mem_entry, link);

        for (before = key->holders.next; before != at; before = before->next)
            if (hfi_container(before, struct mem_entry, link)->slot ==
                entry->slot)
                break; /* Equal owner ids have one slot together. */
        if (before == at)
            left--;
    }
    return left;
}

/* The lowest slot that nobody has; -1 if there is none. */
int32_t mem_free_slot(const struct mem_key *key, int32_t permits)
{
    const struct hfi_link *at;
    int32_t slot;

    if (permits && HFI_MUTANT(slot_given_twice))
        return 0;
    for (slot = 0; slot < permits; slot++) {
        for (at = key->holders.next; at != &key->holders; at = at->next)
            if (hfi_container(at, struct mem_entry, link)->slot == slot)
                break;
        if (at == &key->holders)
            return slot;
    }
    return -1;
}

/* May this one hold beside those who do?  mem.c (1) */
static bool mem_has_room(const struct mem_key *key,
                         const struct mem_entry *holder, bool shared,
                         int32_t permits)
{
    if (permits)
        return mem_permits_left(key, permits) > 0;
    return !holder || (holder->shared && shared);
}

/* How many of those at the head of the queue the order lets in together: the
 * first and, if it is shared, the shared ones right behind it; or as many as
 * there are permits. */
static int32_t mem_turns(struct mem_key *key)
{
    const struct mem_entry *holder = mem_first(&key->holders);
    const struct mem_entry *first = mem_first(&key->queue);
    const struct hfi_link *at;
    int32_t n = 0;

    if (!first || !mem_has_room(key, holder, first->shared, first->permits))
        return 0;
    if (first->permits)
        return mem_permits_left(key, first->permits);
    if (!first->shared)
        return 1;
    for (at = key->queue.next; at != &key->queue; at = at->next, n++)
        if (!hfi_container(at, struct mem_entry, link)->shared)
            break;
    return n;
}

/* Wake those whom the queue's order lets in. */
void mem_wake_next(struct mem_key *key)
{
    int32_t turns = mem_turns(key);
    struct mem_entry *place;
    struct hfi_link *at;

    for (at = key->queue.next; turns > 0 && at != &key->queue;
         at = at->next, turns--) {
        place = hfi_container(at, struct mem_entry, link);
        hfi_wake(place->conn, key->name, place->token);
    }
}

void mem_expire(struct mem_key *key, int64_t now)
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

/* mem.c (1).  Equal owner ids have one grant together: one that is broken, or
 * that was released, takes in nobody.  Those who share have a grant each. */
struct mem_entry *mem_equal(struct mem_key *key, const struct hfi_claim *claim)
{
    struct mem_entry *holder;
    struct hfi_link *at;

    if (!claim->owner || claim->shared)
        return NULL;
    for (at = key->holders.next; at != &key->holders; at = at->next) {
        holder = hfi_container(at, struct mem_entry, link);
        if (holder->owner && !strcmp(holder->owner, claim->owner) &&
            !holder->shared && !holder->broken && !holder->kept)
            return holder;
    }
    return NULL;
}

/* Does the owner of the claim hold the key in the other mode?  mem.c (1) */
bool mem_other_mode(struct mem_key *key, const struct hfi_claim *claim)
{
    const struct mem_entry *holder;
    const struct hfi_link *at;

    for (at = key->holders.next; claim->owner && at != &key->holders;
         at = at->next) {
        holder = hfi_container(at, struct mem_entry, link);
        if (holder->owner && !strcmp(holder->owner, claim->owner) &&
            holder->shared != claim->shared && !holder->broken && !holder->kept)
            return true;
    }
    return false;
}

/* mem.c (2): may the one in this place (NULL: who has none) be granted now? */
bool mem_is_turn(struct mem_key *key, const struct mem_entry *mine,
                 const struct hfi_claim *claim)
{
    const struct mem_entry *first = mem_first(&key->queue);

    if (!mem_has_room(key, mem_first(&key->holders), claim->shared,
                      claim->permits))
        return false;
    if (claim->shared && HFI_MUTANT(reader_passes_waiting_writer))
        return true;
    if (mine)
        return mem_position_of(key, mine) <= mem_turns(key);
    if (claim->permits) /* Some may be left when all who wait have theirs. */
        return mem_permits_left(key, claim->permits) > mem_count(&key->queue);
    return !first || (claim->shared && first->shared &&
                      mem_turns(key) == mem_count(&key->queue));
}

int32_t mem_count(const struct hfi_link *list)
{
    const struct hfi_link *at;
    int32_t n = 0;

    for (at = list->next; at != list; at = at->next)
        n++;
    return n;
}

int32_t mem_position_of(struct mem_key *key, const struct mem_entry *mine)
{
    struct hfi_link *at = key->queue.next;
    int32_t place = 1;

    for (; at != &key->queue && at != &mine->link; at = at->next)
        place++;
    return place;
}
