/* SPDX-License-Identifier: MIT
 *
 * check.h - the entry points of the library check their arguments with these.
 *
 *   client.c   opening, closing, describing a service
 *   lock.c     taking, keeping and leaving a lock
 *   look.c     looking at locks and breaking them
 *
 * Nothing below this folder sees a NULL, a struct of the wrong size, a key that
 * is too long or a handle of another process.
 */
#ifndef HFI_API_CHECK_H
#define HFI_API_CHECK_H

#include "core/core.h"

/* Each is HF_OK, or HF_INVALID or HF_UNSUPPORTED and says why. */
hf_status hfi_check_size(size_t got, size_t want, const char *name,
                         struct hf_error *err);
hf_status hfi_check_client(const struct hf_client *c, struct hf_error *err);
hf_status hfi_check_lock(const struct hf_lock *lk, struct hf_error *err);
hf_status hfi_check_key(const char *key, struct hf_error *err);
hf_status hfi_check_text(const char *text, size_t max, const char *name,
                         struct hf_error *err);
hf_status hfi_check_duration(int64_t ms, int64_t min, const char *name,
                             struct hf_error *err);
hf_status hfi_check_trait(const struct hf_client *c, unsigned trait,
                          const char *what, struct hf_error *err);

/* Options over the client's defaults. */
hf_status hfi_params_make(struct hf_client *c, const struct hf_lock_opts *opts,
                          struct hfi_lock_params *ret, struct hf_error *err);

#endif
