/* SPDX-License-Identifier: MIT
 *
 * check.h - the entry points of the library check their arguments with these.
 *
 *   abi.c      structs of callers that were built with another version
 *   canceler.c cancelling what may not have begun
 *   client.c   opening, closing, describing a service
 *   lock.c     taking, keeping and leaving a lock
 *   look.c     looking at locks and breaking them
 *   stats.c    counters
 *   start.c    what event loops ask for that is no lock
 *   observe.c  hearing of their changes
 *
 * Nothing below this folder sees a NULL, a struct of the wrong size, a key that
 * is too long or a handle of another process.
 */
#ifndef HFI_API_CHECK_H
#define HFI_API_CHECK_H

#include "core/core.h"

/* Each is HF_OK, or HF_INVALID or HF_UNSUPPORTED and says why. */
hf_status hfi_check_size(const void *given, const char *name,
                         struct hf_error *err);
hf_status hfi_check_client(const struct hf_client *c, struct hf_error *err);
hf_status hfi_check_lock(const struct hf_lock *lk, struct hf_error *err);
hf_status hfi_check_key(const char *key, struct hf_error *err);
hf_status hfi_check_text(const char *text, size_t max, const char *name,
                         struct hf_error *err);
hf_status hfi_check_duration(int64_t ms, int64_t min, const char *name,
                             struct hf_error *err);

/* Wait for the connection, if need be, and ask whether it has the trait. */
hf_status hfi_check_trait(struct hf_client *c, unsigned trait, const char *what,
                          struct hf_error *err);

/* What the caller's struct has, in one that has every field; and back.  Both
 * start with a size, and hfi_struct_write() leaves that of `given` alone; it
 * has been checked. */
hf_status hfi_struct_read(void *ret, size_t known, const void *given,
                          const char *name, struct hf_error *err);
void hfi_struct_write(void *given, const void *from, size_t known);

/* Options over the client's defaults; and, unless it is not known yet, whether
 * the service can do that. */
hf_status hfi_params_read(struct hf_client *c, const struct hf_lock_opts *opts,
                          struct hfi_lock_params *ret, struct hf_error *err);
hf_status hfi_params_make(struct hf_client *c, const struct hf_lock_opts *opts,
                          struct hfi_lock_params *ret, struct hf_error *err);

#endif
