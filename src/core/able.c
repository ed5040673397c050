/* SPDX-License-Identifier: MIT
 *
 * able.c - can the service do what a caller asks for?  That is known once the
 * client is connected, and asked before the first request is sent.
 */
#include "core.h"

#include "base/banned.h"

/* `why` is what the backend says, if it says something. */
static hf_status able(const struct hf_client *c, unsigned trait,
                      const char *what, const char *why, struct hf_error *err)
{
    if (c->conn->traits & trait)
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED, "%s: has no %s%s%s", c->conn->endpoint,
                    what, why ? ": " : "", why ? why : "");
}

hf_status hfi_params_able(const struct hf_client *c,
                          const struct hfi_lock_params *params,
                          struct hf_error *err)
{
    hf_status st = HF_OK;

    if (params->flags & HF_SHARED)
        st = able(c, HF_TRAIT_SHARED, "shared locks", c->be->no_shared, err);
    if (!st && params->permits)
        st = able(c, HF_TRAIT_PERMITS, "permits", c->be->no_permits, err);
    if (!st && params->min_hold_ms)
        st =
            able(c, HF_TRAIT_MIN_HOLD, "minimum hold", c->be->no_min_hold, err);
    return st;
}
