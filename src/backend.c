/* SPDX-License-Identifier: MIT
 *
 * backend.c - the table of schemes, made by the build from what it found.
 */
#include "backend.h"

#include "config.h"

#include "banned.h"

#define X(name) extern const struct hfi_backend hfi_backend_##name;
HFI_BACKENDS
#undef X

static const struct hfi_backend *const backend_table[] = {
#define X(name) &hfi_backend_##name,
    HFI_BACKENDS
#undef X
};

#define BACKENDS (sizeof(backend_table) / sizeof(backend_table[0]))

const struct hfi_backend *hfi_backend_find(const char *scheme)
{
    const char *const *name;
    size_t i;

    for (i = 0; i < BACKENDS; i++)
        for (name = backend_table[i]->schemes; *name; name++)
            if (!strcmp(*name, scheme))
                return backend_table[i];
    return NULL;
}

void hfi_backend_names(char *buf, size_t size)
{
    const char *const *name;
    size_t i, len = 0;

    buf[0] = '\0';
    for (i = 0; i < BACKENDS; i++)
        for (name = backend_table[i]->schemes; *name && len < size; name++)
            len += (size_t)snprintf(buf + len, size - len,
                                    "%s%s:", len ? ", " : "", *name);
}
