/* SPDX-License-Identifier: MIT
 *
 * look.c - the entry points for looking at locks and for breaking them.
 */
#include "check.h"

#include "base/banned.h"

static hf_status look(struct hf_client *c, const char *key, struct hf_info *ret,
                      struct hf_error *err)
{
    *ret = (struct hf_info){.size = sizeof(*ret),
                            .left_ms = -1,
                            .since_ms = -1,
                            .waiters = -1,
                            .slot = -1};
    if (!c->be->inspect)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: cannot be looked into",
                        c->conn->endpoint);
    return c->be->inspect(c->conn, key, ret, hfi_now() + c->timeout_ms, err);
}

hf_status hf_inspect(hf_client *c, const char *key, struct hf_info *ret,
                     struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the answer was given");
    if (!st)
        st = hfi_check_size(ret->size, sizeof(*ret), "hf_info", err);
    if (!st)
        st = hfi_check_key(key, err);
    return st ? st : look(c, key, ret, err);
}

hf_status hf_holders(hf_client *c, const char *key, hf_holders_fn *fn,
                     void *arg, struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);
    struct hf_info info;

    if (!st && !fn)
        st = hfi_fail(err, HF_INVALID, "no function to call was given");
    if (!st)
        st = hfi_check_key(key, err);
    if (st)
        return st;
    if (c->be->holders)
        return c->be->holders(c->conn, key, fn, arg, hfi_now() + c->timeout_ms,
                              err);
    st = look(c, key, &info, err); /* There is one at most. */
    if (!st && info.held)
        fn(arg, &info);
    return st;
}

hf_status hf_list(hf_client *c, const char *prefix, hf_list_fn *fn, void *arg,
                  struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st && !fn)
        st = hfi_fail(err, HF_INVALID, "no function to call was given");
    if (!st && !c->be->list)
        st = hfi_fail(err, HF_UNSUPPORTED, "%s: cannot list locks",
                      c->conn->endpoint);
    /* No key is that long, and no backend has room for it. */
    if (st || (prefix && strlen(prefix) > HF_KEY_MAX))
        return st;
    return c->be->list(c->conn, prefix ? prefix : "", fn, arg,
                       hfi_now() + c->timeout_ms, err);
}

static hf_status check_break(struct hf_client *c, const char *key,
                             uint64_t fence, struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st)
        st = hfi_check_key(key, err);
    if (!st)
        st = hfi_check_trait(c, HF_TRAIT_BREAK, "cannot break locks", err);
    if (!st && !fence)
        st = hfi_fail(err, HF_INVALID,
                      "break needs the fence of the grant that was looked at");
    return st;
}

hf_status hf_break(hf_client *c, const char *key, uint64_t fence,
                   struct hf_error *err)
{
    hf_status st = check_break(c, key, fence, err);

    return st ? st
              : c->be->break_grant(c->conn, key, fence,
                                   hfi_now() + c->timeout_ms, err);
}

hf_status hf_break_force(hf_client *c, const char *key, uint64_t fence,
                         struct hf_error *err)
{
    hf_status st = check_break(c, key, fence, err);

    if (!st && !c->be->free_grant)
        st = hfi_fail(err, HF_UNSUPPORTED, "%s: cannot free a lock by force",
                      c->conn->endpoint);
    return st ? st
              : c->be->free_grant(c->conn, key, fence,
                                  hfi_now() + c->timeout_ms, err);
}

/* Of several holders, the one that hf_check() asks about. */
struct check_which {
    uint64_t fence;
    struct hf_info *info;
};

static bool check_holder(void *arg, const struct hf_info *holder)
{
    const struct check_which *which = arg;

    if (holder->fence != which->fence)
        return true;
    *which->info = *holder;
    return false;
}

hf_status hf_check(hf_client *c, const char *key, uint64_t fence,
                   struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];
    struct hf_info info;
    struct check_which which = {fence, &info};
    hf_status st = hfi_check_client(c, err);

    if (!st)
        st = hfi_check_key(key, err);
    if (!st)
        st = look(c, key, &info, err);
    if (!st && info.held && info.fence != fence && c->be->holders)
        st = c->be->holders(c->conn, key, check_holder, &which,
                            hfi_now() + c->timeout_ms, err);
    if (st)
        return st;
    if (info.held && fence && info.fence == fence && info.left_ms &&
        !info.broken)
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
