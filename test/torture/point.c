/* SPDX-License-Identifier: MIT
 *
 * point.c - preloaded into a client, ends or stops it at a chosen point of its
 * code: just before or just after it speaks, hears or writes.
 *
 * Between two such calls nothing that a client does can be seen by anybody, so
 * these are all the points there are, as far as others can tell.  $HF_POINT_FILE
 * holds two numbers, as eight bytes each of the host's order: how many calls it
 * is until then, 0 for never, and the signal; negative: after the call.  It is
 * mapped, so it may be set at any time.  The calls go to the kernel directly, as
 * in clock.c.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct point {
    _Atomic int64_t left;
    int64_t signal;
};

static struct point *point_page(void)
{
    static struct point none, *page;

    if (!page) {
        const char *path = getenv("HF_POINT_FILE");
        int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        void *at = fd >= 0 ? mmap(NULL, sizeof(struct point),
                                  PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                           : MAP_FAILED;

        page = at == MAP_FAILED ? &none : at;
        if (fd >= 0)
            close(fd);
    }
    return page;
}

/* Count a call, and say with which signal this one is the one; 0: it is not. */
static int point_hit(void)
{
    struct point *page = point_page();

    if (atomic_load(&page->left) > 0 && atomic_fetch_sub(&page->left, 1) == 1)
        return (int)page->signal;
    return 0;
}

static void point_end(int signo)
{
    if (signo > 0)
        kill(getpid(), signo);
}

/* A call that is counted. */
#define POINT(type, number, ...)                                               \
    int hit = point_hit();                                                     \
    type ret;                                                                  \
                                                                               \
    point_end(hit);                                                            \
    ret = (type)syscall(number, __VA_ARGS__);                                  \
    point_end(-hit);                                                           \
    return ret

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
    POINT(ssize_t, SYS_sendto, fd, buf, len, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    POINT(ssize_t, SYS_sendmsg, fd, msg, flags);
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
    POINT(ssize_t, SYS_recvfrom, fd, buf, len, flags, NULL, NULL);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
    POINT(ssize_t, SYS_recvmsg, fd, msg, flags);
}

ssize_t write(int fd, const void *buf, size_t len)
{
    POINT(ssize_t, SYS_write, fd, buf, len);
}

ssize_t writev(int fd, const struct iovec *iov, int count)
{
    POINT(ssize_t, SYS_writev, fd, iov, count);
}

/* Both names of it, whichever the caller was compiled with. */
ssize_t point_pwrite(int fd, const void *buf, size_t len,
                     int64_t at) __asm__("pwrite");
ssize_t point_pwrite64(int fd, const void *buf, size_t len,
                       int64_t at) __asm__("pwrite64");

ssize_t point_pwrite(int fd, const void *buf, size_t len, int64_t at)
{
    POINT(ssize_t, SYS_pwrite64, fd, buf, len, at);
}

ssize_t point_pwrite64(int fd, const void *buf, size_t len, int64_t at)
{
    POINT(ssize_t, SYS_pwrite64, fd, buf, len, at);
}

int flock(int fd, int how)
{
    POINT(int, SYS_flock, fd, how);
}
