/* SPDX-License-Identifier: MIT
 *
 * alloc.h - the one door to the allocator.
 */
#ifndef HFI_MEM_H
#define HFI_MEM_H

#include <stddef.h>

void *hfi_alloc(size_t size); /* zeroed, or NULL */
void *hfi_realloc(void *old, size_t size);
char *hfi_strdup(const char *text); /* NULL stays NULL */
void hfi_free(void *);

/* For tests: the n-th allocation from now on fails, once; 0 turns it off.
 * hfi_mem_count() is how many there were since. */
void hfi_mem_fail_at(long n);
long hfi_mem_count(void);

#endif
