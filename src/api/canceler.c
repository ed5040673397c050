/* SPDX-License-Identifier: MIT
 *
 * canceler.c - the entry points about cancelers.
 */
#include "check.h"

#include "base/banned.h"

hf_status hf_canceler_new(hf_client *c, hf_canceler **ret, struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the canceler was given");
    if (st)
        return st;
    *ret = hfi_canceler_new(c);
    return *ret ? HF_OK : hfi_nomem(err);
}

static bool canceler_is_ours(const struct hf_canceler *canceler)
{
    return canceler && *hfi_canceler_client(canceler)->mark;
}

void hf_canceler_cancel(hf_canceler *canceler)
{
    if (canceler_is_ours(canceler))
        hfi_canceler_set(canceler, true);
}

void hf_canceler_reset(hf_canceler *canceler)
{
    if (canceler_is_ours(canceler))
        hfi_canceler_set(canceler, false);
}

void hf_canceler_free(hf_canceler *canceler)
{
    if (canceler_is_ours(canceler))
        hfi_canceler_put(canceler);
}
