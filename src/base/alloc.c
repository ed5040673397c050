/* SPDX-License-Identifier: MIT
 *
 * alloc.c - allocation, with a switch that makes the n-th one fail.
 *
 * The switch is always compiled in: it costs one relaxed load beside a malloc,
 * and the library that is tested is then the library that ships.
 */
#include "alloc.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "banned.h"

static atomic_bool mem_counting;
static atomic_long mem_seen;
static atomic_long mem_fail_at;

void hfi_mem_fail_at(long n)
{
    atomic_store(&mem_seen, 0);
    atomic_store(&mem_fail_at, n);
    atomic_store(&mem_counting, n != 0);
}

long hfi_mem_count(void)
{
    return atomic_load(&mem_seen);
}

static bool mem_must_fail(void)
{
    if (!atomic_load_explicit(&mem_counting, memory_order_relaxed))
        return false;
    return atomic_fetch_add(&mem_seen, 1) + 1 == atomic_load(&mem_fail_at);
}

/* malloc() and memset(): the C library of Debian has a cache of small blocks for
 * malloc() that calloc() does not use, and a lock is several small blocks.  The
 * empty statement keeps compilers from making it a calloc() again. */
void *hfi_alloc(size_t size)
{
    void *block = mem_must_fail() ? NULL : malloc(size);

    __asm__("" : "+r"(block));
    return block ? memset(block, 0, size) : NULL;
}

void *hfi_realloc(void *old, size_t size)
{
    return mem_must_fail() ? NULL : realloc(old, size);
}

char *hfi_strdup(const char *text)
{
    size_t size;
    char *copy;

    if (!text)
        return NULL;
    size = strlen(text) + 1;
    copy = mem_must_fail() ? NULL : malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

void hfi_free(void *ptr)
{
    free(ptr);
}
