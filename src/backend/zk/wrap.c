/* SPDX-License-Identifier: MIT
 *
 * wrap.c - some of what the library calls, and its descriptors.
 *
 * The library is linked with these calls going here.
 *
 * socket, close      Its sockets are to be close-on-exec from the start, and a
 *                    forked child must be able to close them without looking at
 *                    anything that a thread of its parent may have been
 *                    changing. So each is in a table before it can be used and
 *                    out of it before it is closed.
 * send               It sends the length of a request, four bytes, before the
 *                    request: they shall travel together.  And when it cannot
 *                    send it closes the socket but forgets to answer what was
 *                    sent before, and takes the next connection's answers for
 *                    theirs.  So it is told that there is no room: it will find
 *                    out when it reads, and that it does well.
 * connect,           It tells nobody but its log why it could not connect.
 * getsockopt
 * poll               When a handle is closed it waits for a server's last word,
 *                    which a frozen one never says: not longer than it is told.
 * get_xid            Its numbers for requests come from a counter that is not
 *                    safe for threads, in which several handles would disturb
 *                    each other; negative ones have meanings of their own.
 */
#include "zk.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/banned.h"

/* For whom this thread is in the library, or NULL. */
static _Thread_local struct zk_conn *wrap_conn;
static _Thread_local int wrap_errno;
static _Thread_local int wrap_poll_ms = -1; /* -1: as long as it likes */

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __real_close(int fd);
int __wrap_close(int fd);
ssize_t __real_send(int fd, const void *buf, size_t len, int flags);
ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags);
int __real_connect(int fd, const struct sockaddr *to, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len);
int __real_getsockopt(int fd, int level, int name, void *ret, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *ret, socklen_t *len);
int __real_poll(struct pollfd *fds, nfds_t n, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms);
int32_t __wrap_get_xid(void);

void zk_library_close(struct zk_conn *zc, zhandle_t *zh, int ms)
{
    wrap_conn = zc;
    wrap_poll_ms = ms;
    zookeeper_close(zh);
    wrap_poll_ms = -1;
    wrap_conn = NULL;
}

void zk_library_entered(struct zk_conn *zc)
{
    wrap_conn = zc;
    wrap_errno = 0;
}

int zk_library_left(void)
{
    wrap_conn = NULL;
    return wrap_errno;
}

/* ---- descriptors ------------------------------------------------------- */

/* Change a slot that has `from`.  Where none is left the child keeps the
 * descriptor: a pity, not a danger. */
static void fds_swap(struct zk_conn *zc, int from, int to)
{
    int want, i;

    for (i = 0; i < ZK_FDS; i++) {
        want = from;
        if (atomic_compare_exchange_strong(&zc->fds[i], &want, to))
            return;
    }
}

void zk_fd_keep(struct zk_conn *zc, int fd)
{
    if (fd >= 0)
        fds_swap(zc, 0, fd + 1);
}

void zk_fd_drop(struct zk_conn *zc, int fd)
{
    if (fd >= 0)
        fds_swap(zc, fd + 1, 0);
}

void zk_forget(struct hfi_conn *conn)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    int i, fd;

    for (i = 0; i < ZK_FDS; i++) {
        fd = atomic_exchange(&zc->fds[i], 0) - 1;
        if (fd >= 0)
            __real_close(fd);
    }
}

/* ---- calls ------------------------------------------------------------- */

int __wrap_socket(int domain, int type, int protocol)
{
    int fd = __real_socket(domain, type | SOCK_CLOEXEC, protocol);

    if (wrap_conn)
        zk_fd_keep(wrap_conn, fd);
    return fd;
}

int __wrap_close(int fd)
{
    if (wrap_conn)
        zk_fd_drop(wrap_conn, fd);
    return __real_close(fd);
}

ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags)
{
    ssize_t n = __real_send(fd, buf, len, len == 4 ? flags | MSG_MORE : flags);

    if (n < 0)
        errno = EAGAIN;
    return n;
}

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len)
{
    int rc = __real_connect(fd, to, len);

    if (rc < 0 && errno != EINPROGRESS)
        wrap_errno = errno;
    return rc;
}

int __wrap_getsockopt(int fd, int level, int name, void *ret, socklen_t *len)
{
    int rc = __real_getsockopt(fd, level, name, ret, len);

    if (!rc && level == SOL_SOCKET && name == SO_ERROR && *(int *)ret)
        wrap_errno = *(int *)ret;
    return rc;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int ms)
{
    if (wrap_poll_ms >= 0 && (ms < 0 || ms > wrap_poll_ms))
        ms = wrap_poll_ms;
    return __real_poll(fds, n, ms);
}

int32_t __wrap_get_xid(void)
{
    static atomic_uint last;

    return (int32_t)((atomic_fetch_add(&last, 1) + 1) & INT32_MAX);
}
