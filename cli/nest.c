/* SPDX-License-Identifier: MIT
 *
 * nest.c - a `run` inside the command of another.
 *
 * The inner command has a process group of its own, which the signals of the
 * outer run do not reach.  Nevertheless it must be dead before the outer lock
 * is granted to another.  So the outer run hands its page (guard.c) down, in
 * $HOLDFAST_WITHIN and a descriptor, and the inner run and its guard obey two
 * deadlines: their own and that of the page.
 *
 *  (1) The page is a memfd that is sealed: whoever gets the descriptor can read
 *      it and can neither write it nor cut it short.  So a command that runs as
 *      another user gains nothing by it.
 *  (2) The inner run and its guard keep a lock on the page, through a file
 *      description of their own, for as long as one of them lives.  The outer
 *      run and its guard do not end while there is such a lock.  The inner
 *      guard dies after the inner group, so the outer lock is released after
 *      all of them are dead.
 *  (3) A page without a group is that of a run that is over.  It binds nobody.
 *  (4) A program in between may have closed the descriptor.  Then the page is
 *      opened through /proc, from the outer holdfast.
 *
 * LIMITS  Without /proc the deadline is obeyed, but the outer run does not
 * wait.  Before Linux 5.1, or without memfd_create(2), nothing is handed down.
 * Children that the inner command leaves in the background when it ends have
 * left the outer group.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEST_MAGIC  UINT64_C(0x32656761702d6668)
#define NEST_NUMBER 10 /* shells use the numbers below this one */

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Memory with a descriptor that shells do not use; -1 if there is none.  Some
 * systems want it to be said that it is never executed, older ones do not know
 * the flag. */
static int nest_memory(size_t size)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int low = memfd_create("holdfast", flags | MFD_NOEXEC_SEAL), fd;

    if (low < 0)
        low = memfd_create("holdfast", flags);
    if (low < 0)
        return -1;
    fd = fcntl(low, F_DUPFD_CLOEXEC, NEST_NUMBER);
    close(low);
    if (fd >= 0 && ftruncate(fd, (off_t)size)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

struct guard_page *nest_make(int *fd)
{
    const int seals =
        F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct guard_page *page;

    *fd = nest_memory(sizeof(*page));
    page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
                *fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, *fd, 0);
    if (page == MAP_FAILED)
        return NULL;
    page->magic = NEST_MAGIC;
    if (*fd >= 0 && fcntl(*fd, F_ADD_SEALS, seals)) {
        close(*fd);
        *fd = -1;
    }
    return page;
}

const char *nest_name(int fd, char ret[NEST_NAME])
{
    struct stat sb;

    if (fd < 0 || fstat(fd, &sb))
        return NULL;
    snprintf(ret, NEST_NAME, "%d.%d.%ju", fd, (int)getpid(),
             (uintmax_t)sb.st_ino);
    return ret;
}

/* Whether this is a page of ours, the one that is meant. */
static bool nest_is_page(int fd, uintmax_t inode)
{
    struct stat sb;
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && seals & F_SEAL_SHRINK && !fstat(fd, &sb) &&
           (uintmax_t)sb.st_ino == inode &&
           sb.st_size == (off_t)sizeof(struct guard_page);
}

/* Open the page anew through a name in /proc; -1 if it is not there. */
static int nest_reopen(const char *process, int number, uintmax_t inode)
{
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/%s/fd/%d", process, number);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && !nest_is_page(fd, inode)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static bool nest_lock(int fd, short type, int how)
{
    struct flock byte = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

    return fcntl(fd, how, &byte) == 0 && byte.l_type == type;
}

/* Map the page at `fd`; false if it is none. */
static bool nest_map(struct nest *nest, int fd)
{
    struct guard_page *page =
        mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, fd, 0);

    if (page == MAP_FAILED)
        return false;
    if (page->magic == NEST_MAGIC) {
        nest->page = page;
        return true;
    }
    munmap(page, sizeof(*page));
    return false;
}

void nest_open(struct nest *nest)
{
    const char *text = getenv("HOLDFAST_WITHIN");
    char process[16];
    uintmax_t inode;
    int number, pid, fd;

    if (!text || sscanf(text, "%d.%d.%ju", &number, &pid, &inode) != 3 ||
        number < 0 || pid <= 0)
        return;
    snprintf(process, sizeof(process), "%d", pid);
    fd = nest_reopen("self", number, inode);
    if (fd < 0)
        fd = nest_reopen(process, number, inode);
    if (fd >= 0)
        nest_lock(fd, F_RDLCK, F_OFD_SETLK);
    else if (nest_is_page(number, inode))
        fd = fcntl(number, F_DUPFD_CLOEXEC, NEST_NUMBER);
    if (fd >= 0 && !nest_map(nest, fd))
        close(fd);
}

bool nest_binds(const struct nest *nest)
{
    return nest->page && atomic_load(&nest->page->pgid);
}

int64_t nest_term_at(const struct nest *nest)
{
    int64_t deadline, hook;

    if (!nest_binds(nest))
        return INT64_MAX;
    if (atomic_load(&nest->page->ending))
        return 0;
    deadline = atomic_load(&nest->page->deadline);
    hook = atomic_load(&nest->page->term_at);
    if (deadline == INT64_MAX)
        return INT64_MAX;
    return deadline - nest->page->lead > hook ? deadline - nest->page->lead
                                              : hook;
}

int64_t nest_kill_at(const struct nest *nest)
{
    int64_t deadline =
        nest_binds(nest) ? atomic_load(&nest->page->deadline) : INT64_MAX;

    return deadline == INT64_MAX ? deadline : deadline - nest->page->margin;
}

bool nest_busy(int fd)
{
    struct flock byte = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

    return fd >= 0 && fcntl(fd, F_OFD_GETLK, &byte) == 0 &&
           byte.l_type != F_UNLCK;
}
