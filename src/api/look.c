/* SPDX-License-Identifier: MIT
 *
 * look.c - the entry points for looking at locks and for breaking them.
 */
#include "check.h"

#include "base/banned.h"

hf_status hf_inspect(hf_client *c, const char *key, struct hf_info *ret,
                     struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);
    struct hf_info full;

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the answer was given");
    if (!st)
        st = hfi_check_size(ret, "hf_info", err);
    if (!st)
        st = hfi_check_key(key, err);
    if (!st)
        st = hfi_inspect(c, key, &full, err);
    if (!st)
        hfi_struct_write(ret, &full, sizeof(full));
    return st;
}

hf_status hf_holders(hf_client *c, const char *key, hf_holders_fn *fn,
                     void *arg, struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st && !fn)
        st = hfi_fail(err, HF_INVALID, "no function to call was given");
    if (!st)
        st = hfi_check_key(key, err);
    return st ? st : hfi_holders(c, key, fn, arg, err);
}

hf_status hf_waiters(hf_client *c, const char *key, hf_waiters_fn *fn,
                     void *arg, struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st && !fn)
        st = hfi_fail(err, HF_INVALID, "no function to call was given");
    if (!st)
        st = hfi_check_key(key, err);
    return st ? st : hfi_waiters(c, key, fn, arg, err);
}

hf_status hf_list(hf_client *c, const char *prefix, hf_list_fn *fn, void *arg,
                  struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st && !fn)
        st = hfi_fail(err, HF_INVALID, "no function to call was given");
    return st ? st : hfi_list(c, prefix ? prefix : "", fn, arg, err);
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

hf_status hf_collect(hf_client *c, int64_t older_ms, bool dry_run,
                     struct hf_collected *ret, struct hf_error *err)
{
    struct hf_collected full = HF_COLLECTED_INIT;
    hf_status st = hfi_check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the answer was given");
    if (!st)
        st = hfi_check_size(ret, "hf_collected", err);
    if (!st && (older_ms < 0 || older_ms > INT64_MAX / 1000000))
        st = hfi_fail(err, HF_INVALID, "older_ms is out of range");
    if (!st)
        st = hfi_connect_await(c, err);
    if (!st && !c->be->collect)
        st = hfi_fail(err, HF_UNSUPPORTED, "%s: free keys leave nothing behind",
                      c->conn->endpoint);
    if (!st)
        st = c->be->collect(c->conn, older_ms, dry_run, &full,
                            hfi_now() + c->timeout_ms, err);
    if (!st)
        hfi_struct_write(ret, &full, sizeof(full));
    return st;
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

hf_status hf_check(hf_client *c, const char *key, uint64_t fence,
                   struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st)
        st = hfi_check_key(key, err);
    return st ? st : hfi_check(c, key, fence, err);
}
