/* SPDX-License-Identifier: MIT
 *
 * observe.c - the entry points for observers.
 */
#include "check.h"

#include "base/banned.h"

static hf_status check_observe(struct hf_client *c, const char *key,
                               unsigned flags, const void *ret,
                               struct hf_error *err)
{
    bool prefix = flags & HF_PREFIX;
    hf_status st = hfi_check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the observer was given");
    if (!st && flags & ~(unsigned)HF_PREFIX)
        st = hfi_fail(err, HF_INVALID, "unknown flags 0x%x",
                      flags & ~(unsigned)HF_PREFIX);
    if (!st && (!prefix || (key && *key))) /* "" is every key */
        st = hfi_check_key(key, err);
    if (!st && (!c->be->inspect || (prefix && !c->be->list)))
        st = hfi_fail(err, HF_UNSUPPORTED, "%s: cannot be observed",
                      c->conn->endpoint);
    return st;
}

hf_status hf_observe_start(hf_client *c, const char *key, unsigned flags,
                           void *user, hf_observer **ret, struct hf_error *err)
{
    hf_status st = check_observe(c, key, flags, ret, err);

    return st ? st
              : hfi_observe_start(c, key ? key : "", flags & HF_PREFIX, user,
                                  ret, err);
}

bool hf_observer_next(hf_observer *ob, struct hf_change *ret)
{
    struct hf_change full;

    if (!ob || hfi_check_client(ob->client, NULL) || !ret ||
        hfi_check_size(ret, "hf_change", NULL) || !hfi_observer_next(ob, &full))
        return false;
    hfi_struct_write(ret, &full, sizeof(full));
    return true;
}

void hf_observe_stop(hf_observer *ob)
{
    if (ob && !hfi_check_client(ob->client, NULL))
        hfi_observe_stop(ob);
}
