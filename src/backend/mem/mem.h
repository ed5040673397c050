/* SPDX-License-Identifier: MIT
 *
 * mem.h - what the parts of the mem: backend share.
 *
 *   mem.c        the rules; open, close
 *   acquire.c, renew.c, release.c, wait.c, handle.c, inspect.c, break.c,
 *   observe.c, queue.c
 *                the slots of the vtable
 *   table.c      the tables: keys, their holders and their queues
 */
#ifndef HFI_BACKEND_MEM_H
#define HFI_BACKEND_MEM_H

#include <pthread.h>

#include "backend/backend.h"
#include "base/list.h"
#include "base/map.h"

/* A grant or a place in the queue. */
struct mem_entry {
    struct hfi_link link;  /* in mem_key.holders or .queue */
    struct hfi_conn *conn; /* NULL: detached */
    char token[HFI_TOKEN_LEN + 1];
    char *owner, *note;
    bool shared;
    bool watched; /* tell when somebody asks for it */
    bool broken;  /* not renewed any more */
    bool kept;    /* until it lapses */
    int32_t permits, slot;
    uint64_t fence;
    int64_t since, expires; /* `since`: granted, or in the queue */
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
    struct hfi_link observations; /* of struct mem_observation */
};

/* What the core observes: observation->own. */
struct mem_observation {
    struct hfi_link link; /* in mem_table.observations */
    struct hfi_conn *conn;
    struct hfi_observation *observation;
};

struct mem_conn {
    struct hfi_conn base;
    struct mem_table *table;
};

/* ---- table.c; all but the first two with the table's mutex held ----- */

struct mem_table *mem_table_get(const char *name);
void mem_table_put(struct mem_table *table);
struct mem_key *mem_find(struct mem_table *table, const char *name);
struct mem_key *mem_get(struct mem_table *table, const char *name);
void mem_forget_if_unused(struct mem_table *table, struct mem_key *key);
struct mem_entry *mem_entry_new(struct hfi_conn *conn,
                                const struct hfi_claim *claim);
void mem_entry_free(struct mem_entry *entry);
struct mem_entry *mem_first(struct hfi_link *list);
struct mem_entry *mem_by_token(struct hfi_link *list, const char *token);
int32_t mem_free_slot(const struct mem_key *key, int32_t permits);
struct mem_entry *mem_equal(struct mem_key *key, const struct hfi_claim *claim);
bool mem_other_mode(struct mem_key *key, const struct hfi_claim *claim);
int32_t mem_count(const struct hfi_link *list);
bool mem_is_turn(struct mem_key *key, const struct mem_entry *mine,
                 const struct hfi_claim *claim);
int32_t mem_position_of(struct mem_key *key, const struct mem_entry *mine);
void mem_wake_next(struct mem_key *key);
void mem_expire(struct mem_key *key, int64_t now);

/* ---- release.c --------------------------------------------------------- */

hf_status mem_not_ours(const struct hfi_conn *conn, struct hf_error *err);
struct mem_key *mem_held(struct mem_conn *mc, const struct hfi_claim *claim,
                         struct mem_entry **mine); /* with the mutex held */

/* ---- observe.c, with the table's mutex held --------------------------- */

void mem_changed(struct mem_table *table, const char *name);

/* ---- the slots of the vtable, each in the file of its name ---------------- */

hf_status mem_try_acquire(struct hfi_conn *conn, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, struct hfi_answer *busy,
                          int64_t deadline, struct hf_error *err);
hf_status mem_try_acquire_all(struct hfi_conn *conn, struct hfi_attempt *items,
                              size_t n, int64_t deadline, struct hf_error *err);
void mem_renew(struct hfi_conn *conn, struct hfi_renewal *items, size_t n,
               int64_t deadline, struct hf_error *err);
hf_status mem_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                      struct hfi_receipt *receipt, int64_t deadline,
                      struct hf_error *err);
hf_status mem_downgrade(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt, int64_t deadline,
                        struct hf_error *err);
hf_status mem_keep(struct hfi_conn *conn, const struct hfi_claim *claim,
                   struct hfi_receipt *receipt, int64_t ms, int64_t deadline,
                   struct hf_error *err);
hf_status mem_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                    struct hfi_receipt *receipt, int64_t deadline,
                    struct hf_error *err);
void mem_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                 struct hfi_receipt *receipt);
hf_status mem_attach(struct hfi_conn *conn, const struct hfi_claim *claim,
                     const struct hf_handle *handle,
                     struct hfi_receipt *receipt, struct hf_error *err);
hf_status mem_take_over(struct hfi_conn *conn, const struct hfi_claim *claim,
                        const char *token, struct hfi_receipt *receipt,
                        int64_t deadline, struct hf_error *err);
hf_status mem_inspect(struct hfi_conn *conn, const char *name,
                      struct hf_info *ret, int64_t deadline,
                      struct hf_error *err);
hf_status mem_holders(struct hfi_conn *conn, const char *name,
                      hf_holders_fn *fn, void *arg, int64_t deadline,
                      struct hf_error *err);
hf_status mem_waiters(struct hfi_conn *conn, const char *key, hf_waiters_fn *fn,
                      void *arg, int64_t deadline, struct hf_error *err);
hf_status mem_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                   void *arg, int64_t deadline, struct hf_error *err);
hf_status mem_break(struct hfi_conn *conn, const char *name, uint64_t fence,
                    int64_t deadline, struct hf_error *err);
hf_status mem_free_grant(struct hfi_conn *conn, const char *name,
                         uint64_t fence, int64_t deadline,
                         struct hf_error *err);
hf_status mem_observe(struct hfi_conn *conn, struct hfi_observation *obs,
                      int64_t deadline, struct hf_error *err);
void mem_unobserve(struct hfi_conn *conn, struct hfi_observation *obs);
hf_status mem_promote(struct hfi_conn *conn, const struct hfi_claim *claim,
                      struct hfi_receipt *receipt, const char *heir,
                      int64_t deadline, struct hf_error *err);
hf_status mem_collect_keys(struct hfi_conn *conn, int64_t older_ms,
                           bool dry_run, struct hf_collected *ret,
                           int64_t deadline, struct hf_error *err);

#endif
