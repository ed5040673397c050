/* SPDX-License-Identifier: MIT
 *
 * register.c - the resource that the lock protects.
 *
 * Each key has a register in a page file that all processes map.  One copy is
 * what a store with fences is: whoever reads or writes shows its fence, and one
 * that is smaller than the greatest shown before is refused.  The read has to
 * show it too, else a write could slip in between the read and the write of the
 * next holder.  The other copy asks nothing, as most stores do.
 *
 * A mutex makes each step whole.  It is robust: a process that is killed inside
 * leaves a register that is right before and after each single store.
 */
#include "torture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static struct shared *shared_map(const char *dir, int flags)
{
    char path[512];
    void *at = MAP_FAILED;
    int fd;

    snprintf(path, sizeof(path), "%s/shared", dir);
    fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
    if (fd < 0)
        return NULL;
    if (!(flags & O_CREAT) || ftruncate(fd, sizeof(struct shared)) == 0)
        at = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
                  MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

struct shared *shared_new(const char *dir, const struct plan *plan)
{
    struct shared *shared = shared_map(dir, O_CREAT | O_EXCL);
    pthread_mutexattr_t attr;

    if (!shared)
        return NULL;
    shared->plan = *plan;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i <= CELLS; i++)
        pthread_mutex_init(&shared->cells[i].mu, &attr);
    pthread_mutexattr_destroy(&attr);
    return shared;
}

struct shared *shared_open(const char *dir)
{
    return shared_map(dir, 0);
}

static void cell_lock(struct cell *cell)
{
    if (pthread_mutex_lock(&cell->mu) == EOWNERDEAD)
        pthread_mutex_consistent(&cell->mu);
}

/* Show a fence; false if a greater one has been seen. */
static bool cell_admits(struct cell *cell, uint64_t fence, uint64_t *seen)
{
    *seen = cell->fence;
    if (fence < cell->fence)
        return false;
    cell->fence = fence;
    return true;
}

bool register_read(struct cell *cell, uint64_t fence, int64_t *value,
                   uint64_t *seen)
{
    bool ok;

    cell_lock(cell);
    ok = cell_admits(cell, fence, seen);
    *value = cell->value;
    pthread_mutex_unlock(&cell->mu);
    return ok;
}

/* Leave a handle for whoever comes. */
void register_box(struct cell *cell, const struct hf_handle *handle)
{
    cell_lock(cell);
    cell->box = *handle;
    cell->boxed = true;
    pthread_mutex_unlock(&cell->mu);
}

/* Take it, or a copy. */
bool register_unbox(struct cell *cell, struct hf_handle *ret, bool keep)
{
    bool boxed;

    cell_lock(cell);
    boxed = cell->boxed;
    *ret = cell->box;
    cell->boxed = boxed && keep;
    pthread_mutex_unlock(&cell->mu);
    return boxed;
}

bool register_write(struct cell *cell, uint64_t fence, int64_t value,
                    uint64_t *seen)
{
    bool ok;

    cell_lock(cell);
    ok = cell_admits(cell, fence, seen);
    if (ok)
        cell->value = value;
    pthread_mutex_unlock(&cell->mu);
    return ok;
}
