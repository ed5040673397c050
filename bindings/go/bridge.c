/* SPDX-License-Identifier: MIT
 *
 * bridge.c - see bridge.h.
 */
#include "bridge.h"

#include "_cgo_export.h"

#include <string.h>

static void bridge_log(void *arg, hf_log_level level, const char *text)
{
    hfgLog((uintptr_t)arg, (int)level, (char *)text);
}

hf_status hfg_open(const char *url, struct hf_client_opts *opts, uintptr_t log,
                   hf_client **ret, struct hf_error *err)
{
    opts->log = log ? bridge_log : NULL;
    opts->log_arg = (void *)log;
    return hf_open(url, opts, ret, err);
}

hf_status hfg_start(hf_client *client, const char *key, int64_t wait_ms,
                    const struct hf_lock_opts *opts, uintptr_t id, bool lend,
                    hf_request **ret, struct hf_error *err)
{
    if (lend)
        hf_lend(client);
    return hf_acquire_start(client, key, wait_ms, opts, (void *)id, ret, err);
}

hf_status hfg_start_all(hf_client *client, char **keys, size_t n,
                        int64_t wait_ms, const struct hf_lock_opts *opts,
                        hf_lock **locks, uintptr_t id, hf_request **ret,
                        struct hf_error *err)
{
    return hf_acquire_all_start(client, (const char *const *)keys, n, wait_ms,
                                opts, locks, (void *)id, ret, err);
}

void hfg_release_start(hf_client *client, hf_lock *lock, uintptr_t id,
                       bool lend, hf_request **ret)
{
    if (lend)
        hf_lend(client);
    hf_release_start(lock, (void *)id, ret);
}

hf_status hfg_observe(hf_client *client, const char *key, unsigned flags,
                      uintptr_t id, hf_observer **ret, struct hf_error *err)
{
    return hf_observe_start(client, key, flags, (void *)id, ret, err);
}

void hfg_look(hf_lock *lock, struct hfg_lock *ret)
{
    ret->lock = lock;
    ret->fence = hf_fence(lock);
    ret->token = hf_token(lock);
    ret->slot = hf_slot(lock);
    ret->reason = hf_lost_reason(lock);
}

int hfg_next(hf_client *client, struct hfg_event *ret)
{
    struct hf_event event = HF_EVENT_INIT;
    int n = 0;

    while (n < HFG_EVENTS && hf_next_event(client, &event)) {
        ret[n].type = event.type;
        ret[n].reason = event.reason;
        ret[n].id = (uintptr_t)event.user;
        ret[n].lock.lock = event.lock;
        if (event.type == HF_GRANTED)
            hfg_look(event.lock, &ret[n].lock);
        else
            ret[n].error = event.error;
        n++;
    }
    return n;
}

/* ---- lists -------------------------------------------------------------- */

static bool bridge_listed(void *arg, const char *key,
                          const struct hf_info *info)
{
    struct hfg_rows *rows = arg;
    struct hfg_row *row = rows->row;
    size_t n = rows->n;

    if ((n & (n - 1)) == 0)
        row = realloc(row, (n ? 2 * n : 1) * sizeof(*row));
    if (!row)
        return false;
    rows->row = row;
    row[n].info = *info;
    row[n].key = strdup(key);
    rows->n += row[n].key != NULL;
    return row[n].key != NULL;
}

static bool bridge_holder(void *arg, const struct hf_info *info)
{
    return bridge_listed(arg, "", info);
}

hf_status hfg_list(hf_client *client, const char *prefix, struct hfg_rows *ret,
                   struct hf_error *err)
{
    return hf_list(client, prefix, bridge_listed, ret, err);
}

hf_status hfg_holders(hf_client *client, const char *key, struct hfg_rows *ret,
                      struct hf_error *err)
{
    return hf_holders(client, key, bridge_holder, ret, err);
}

void hfg_rows_free(struct hfg_rows *rows)
{
    while (rows->n > 0)
        free(rows->row[--rows->n].key);
    free(rows->row);
}

static bool bridge_waiter(void *arg, const struct hf_waiter *waiter)
{
    struct hfg_waiters *all = arg;
    struct hf_waiter *more = realloc(all->waiter, (all->n + 1) * sizeof(*more));

    if (!more)
        return false;
    all->waiter = more;
    more[all->n++] = *waiter;
    return true;
}

hf_status hfg_waiters(hf_client *client, const char *key,
                      struct hfg_waiters *ret, struct hf_error *err)
{
    return hf_waiters(client, key, bridge_waiter, ret, err);
}

/* ---- kinds of services -------------------------------------------------- */

static char *bridge_copy(const char *s)
{
    return strdup(s ? s : "");
}

static bool bridge_kind(void *arg, const struct hf_service_kind *from)
{
    struct hfg_kinds *kinds = arg;
    struct hfg_kind *more =
                        realloc(kinds->kind, (kinds->n + 1) * sizeof(*more)),
                    *to;

    if (!more)
        return false;
    kinds->kind = more;
    to = &more[kinds->n++];
    to->name = bridge_copy(from->name);
    to->schemes = bridge_copy(from->schemes);
    to->options = bridge_copy(from->options);
    to->page = bridge_copy(from->page);
    to->tested = bridge_copy(from->tested);
    to->module = bridge_copy(from->module);
    to->missing = bridge_copy(from->missing);
    to->traits = from->traits;
    to->varies = from->varies;
    return true;
}

hf_status hfg_services(struct hfg_kinds *ret, struct hf_error *err)
{
    return hf_services(bridge_kind, ret, err);
}

void hfg_kinds_free(struct hfg_kinds *kinds)
{
    struct hfg_kind *kind;

    while (kinds->n > 0) {
        kind = &kinds->kind[--kinds->n];
        free(kind->name);
        free(kind->schemes);
        free(kind->options);
        free(kind->page);
        free(kind->tested);
        free(kind->module);
        free(kind->missing);
    }
    free(kinds->kind);
}
