/* SPDX-License-Identifier: MIT
 *
 * look.c - looking at locks, in the thread of a caller or of a worker.
 *
 * Nothing here changes anything, so an answer that is late or lost costs
 * nothing, and nobody asks again.
 */
#include "core.h"

#include "base/banned.h"

hf_status hfi_inspect(struct hf_client *c, const char *key, struct hf_info *ret,
                      struct hf_error *err)
{
    hf_status st;

    *ret = (struct hf_info){.size = sizeof(*ret),
                            .left_ms = -1,
                            .since_ms = -1,
                            .waiters = -1,
                            .slot = -1};
    st = hfi_connect_await(c, err);
    if (st)
        return st;
    if (!c->be->inspect)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: cannot be looked into",
                        c->conn->endpoint);
    return c->be->inspect(c->conn, key, ret, hfi_now() + c->timeout_ms, err);
}

hf_status hfi_holders(struct hf_client *c, const char *key, hf_holders_fn *fn,
                      void *arg, struct hf_error *err)
{
    struct hf_info info;
    hf_status st = hfi_connect_await(c, err);

    if (st)
        return st;
    if (c->be->holders)
        return c->be->holders(c->conn, key, fn, arg, hfi_now() + c->timeout_ms,
                              err);
    st = hfi_inspect(c, key, &info, err); /* There is one at most. */
    if (!st && info.held)
        fn(arg, &info);
    return st;
}

hf_status hfi_waiters(struct hf_client *c, const char *key, hf_waiters_fn *fn,
                      void *arg, struct hf_error *err)
{
    hf_status st = hfi_connect_await(c, err);

    if (st)
        return st;
    if (!c->be->waiters)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "%s: this service keeps no list of waiters",
                        c->conn->endpoint);
    return c->be->waiters(c->conn, key, fn, arg, hfi_now() + c->timeout_ms,
                          err);
}

/* Of several holders, those that are asked about: who has joined by an owner id
 * has the fence of whom it joined. */
struct look_which {
    uint64_t fence;
    struct hf_info *info;
};

static bool look_at_holder(void *arg, const struct hf_info *holder)
{
    const struct look_which *which = arg;
    bool broken = which->info->broken && which->info->fence == which->fence;

    if (holder->fence != which->fence)
        return true;
    *which->info = *holder;
    which->info->broken = broken || holder->broken;
    return true;
}

/* A grant stands if the service says that it is held.  What is left of its lease
 * says nothing of that: it may be rounded down, or be that of another who has
 * joined. */
hf_status hfi_check(struct hf_client *c, const char *key, uint64_t fence,
                    struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];
    struct hf_info info;
    struct look_which which = {fence, &info};
    hf_status st = hfi_inspect(c, key, &info, err);

    if (!st && info.held && info.fence != fence && c->be->holders)
        st = c->be->holders(c->conn, key, look_at_holder, &which,
                            hfi_now() + c->timeout_ms, err);
    if (st)
        return st;
    if (info.held && fence && info.fence == fence && !info.broken)
        return HF_OK;
    if (info.held && info.fence == fence && info.broken)
        return hfi_fail(
            err, HF_LOST, "'%s': the grant with fence %llu was broken",
            hfi_quote(quoted, sizeof(quoted), key), (unsigned long long)fence);
    return hfi_fail(err, HF_LOST, "'%s' is %s%s, no longer under fence %llu",
                    hfi_quote(quoted, sizeof(quoted), key),
                    info.held ? "held by " : "free", info.owner,
                    (unsigned long long)fence);
}
