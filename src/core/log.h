/* SPDX-License-Identifier: MIT
 *
 * log.h - what opts.log is told; see log.c.
 */
#ifndef HFI_LOG_H
#define HFI_LOG_H

#include "core.h"

/* Does anybody listen at this level? */
static inline bool hfi_logs(const struct hf_client *c, hf_log_level level)
{
    return c->log && level <= c->log_level;
}

/* With the client's mutex held or not. */
void hfi_log(struct hf_client *, hf_log_level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same about a key, which is put before it in quotes. */
void hfi_log_key(struct hf_client *, hf_log_level, const char *key,
                 const char *fmt, ...) __attribute__((format(printf, 4, 5)));

hf_status hfi_log_start(struct hf_client *, const struct hf_client_opts *,
                        struct hf_error *);
void hfi_log_stop(struct hf_client *);
void hfi_log_free(struct hf_client *);

#endif
