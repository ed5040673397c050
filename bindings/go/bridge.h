/* SPDX-License-Identifier: MIT
 *
 * bridge.h - the library in a shape that cgo can use.
 *
 * cgo can neither make a pointer of a number nor pass a function of Go without
 * more ado.  So events are told apart by numbers here, and lists are collected
 * before Go reads them.
 */
#ifndef HFG_BRIDGE_H
#define HFG_BRIDGE_H

#include <holdfast.h>
#include <stdlib.h>

/* hf_open(); what it logs goes to the Go function hfgLog() with this number, if
 * that is not 0. */
hf_status hfg_open(const char *url, struct hf_client_opts *opts, uintptr_t log,
                   hf_client **ret, struct hf_error *err);

/* With `lend`, hf_work() follows. */
hf_status hfg_start(hf_client *client, const char *key, int64_t wait_ms,
                    const struct hf_lock_opts *opts, uintptr_t id, bool lend,
                    hf_request **ret, struct hf_error *err);
hf_status hfg_start_all(hf_client *client, char **keys, size_t n,
                        int64_t wait_ms, const struct hf_lock_opts *opts,
                        hf_lock **locks, uintptr_t id, hf_request **ret,
                        struct hf_error *err);
void hfg_release_start(hf_client *client, hf_lock *lock, uintptr_t id,
                       bool lend, hf_request **ret);
hf_status hfg_observe(hf_client *client, const char *key, unsigned flags,
                      uintptr_t id, hf_observer **ret, struct hf_error *err);

/* What Go wants to know of a lock that was granted. */
struct hfg_lock {
    hf_lock *lock;
    uint64_t fence;
    const char *token; /* the lock's */
    int32_t slot;
    hf_loss reason; /* it may be lost already */
};

void hfg_look(hf_lock *lock, struct hfg_lock *ret);

/* What Go wants to know of an event. */
struct hfg_event {
    enum hf_event_type type;
    hf_loss reason;
    uintptr_t id;          /* of the request, lock or observer */
    struct hfg_lock lock;  /* all of it: HF_GRANTED */
    struct hf_error error; /* HF_FAILED, HF_ANSWERED */
};

enum { HFG_EVENTS = 32 };

/* hf_next_event(), up to HFG_EVENTS times: a call from Go to C costs more than
 * an event.  The number of events. */
int hfg_next(hf_client *client, struct hfg_event *ret);

struct hfg_row {
    char *key;
    struct hf_info info;
};

struct hfg_rows {
    struct hfg_row *row;
    size_t n;
};

/* What is held below a prefix, and who holds a key.  Free them with
 * hfg_rows_free(), also after a failure. */
hf_status hfg_list(hf_client *client, const char *prefix, struct hfg_rows *ret,
                   struct hf_error *err);
hf_status hfg_holders(hf_client *client, const char *key, struct hfg_rows *ret,
                      struct hf_error *err);
void hfg_rows_free(struct hfg_rows *rows);

struct hfg_waiters {
    struct hf_waiter *waiter;
    size_t n;
};

/* Who waits for a key; free() the array, also after a failure. */
hf_status hfg_waiters(hf_client *client, const char *key,
                      struct hfg_waiters *ret, struct hf_error *err);

/* What hf_services() shows, copied: its strings live only during the call. */
struct hfg_kind {
    char *name, *schemes, *options, *page, *tested, *module, *missing;
    unsigned traits, varies;
};

struct hfg_kinds {
    struct hfg_kind *kind;
    size_t n;
};

hf_status hfg_services(struct hfg_kinds *ret, struct hf_error *err);
void hfg_kinds_free(struct hfg_kinds *kinds);

#endif
