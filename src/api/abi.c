/* SPDX-License-Identifier: MIT
 *
 * abi.c - structs of callers that were built with another version.
 *
 * A public struct starts with its size.  From then on the library has a struct
 * of its own, with every field that it knows: what the caller's has is copied
 * in, and what it does not have is zero, which is the default.  Answers are
 * copied out as far as the caller's struct goes, and no further.
 *
 * INVARIANTS
 *  (1) No byte beyond the size that the caller says is read or written.
 *  (2) A field that this version does not know is refused unless it is zero:
 *      it asks for something.
 *  (3) No public struct ends with padding.  A field that is added there would
 *      be taken for one that older callers have.
 */
#include "check.h"

#include "base/banned.h"

/* Larger than every struct will ever be: it catches a size that is not set. */
#define SIZE_LIMIT 8192

#define ABI_FULL(type, last)                                                   \
    _Static_assert(offsetof(struct type, last) +                               \
                           sizeof(((struct type *)0)->last) ==                 \
                       sizeof(struct type),                                    \
                   #type " ends with padding: abi.c (3)")

ABI_FULL(hf_client_opts, reserved);
ABI_FULL(hf_service, ttl_ms);
ABI_FULL(hf_service_kind, varies);
ABI_FULL(hf_lock_opts, canceler);
ABI_FULL(hf_handle, fence);
ABI_FULL(hf_info, reserved);
ABI_FULL(hf_waiter, reserved);
ABI_FULL(hf_change, info);
ABI_FULL(hf_event, observer);
ABI_FULL(hf_collected, kept);
ABI_FULL(hf_stats, waiting);

static size_t abi_size(const void *given)
{
    size_t size;

    memcpy(&size, given, sizeof(size));
    return size;
}

static size_t abi_common(const void *given, size_t known)
{
    size_t size = abi_size(given);

    return size < known ? size : known;
}

/* Every version of every struct has a size like that. */
hf_status hfi_check_size(const void *given, const char *name,
                         struct hf_error *err)
{
    size_t size = abi_size(given);

    if (size > sizeof(size) && size < SIZE_LIMIT && size % sizeof(size) == 0)
        return HF_OK;
    return hfi_fail(err, HF_INVALID,
                    "%s.size is %zu: set it with the header's macro", name,
                    size);
}

hf_status hfi_struct_read(void *ret, size_t known, const void *given,
                          const char *name, struct hf_error *err)
{
    const unsigned char *bytes = given;
    hf_status st = hfi_check_size(given, name, err);
    size_t i;

    if (st)
        return st;
    memset(ret, 0, known);
    memcpy(ret, given, abi_common(given, known));
    memcpy(ret, &known, sizeof(known));
    for (i = known; i < abi_size(given); i++)
        if (bytes[i]) /* abi.c (2) */
            return hfi_fail(err, HF_INVALID,
                            "%s has fields that holdfast %s does not know",
                            name, hf_version());
    return HF_OK;
}

void hfi_struct_write(void *given, const void *from, size_t known)
{
    size_t size = abi_common(given, known);

    memcpy((char *)given + sizeof(size), (const char *)from + sizeof(size),
           size - sizeof(size));
}
