/* SPDX-License-Identifier: MIT
 *
 * fds.c - the descriptors of curl: closed by exec, and by a forked child.
 *
 * Its sockets are made and closed here.  But a multi handle also has a pair of
 * sockets for curl_multi_wakeup(), which curl makes itself, open across exec,
 * and does not show.  Which one it is, is found out by using it: what is
 * written into one end is there at the other end, and nowhere else.  So no
 * descriptor of the program is taken for one of ours, whatever its other
 * threads do meanwhile.
 */
#include "consul.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/banned.h"

/* How often curl is asked to write its byte, which is 1, into the pair; threads
 * that do this at the same time ask for different numbers. */
#define RINGS_MIN 8
#define RINGS_MAX 60

/* ---- which are ours ----------------------------------------------------- */

static void fd_add(struct consul_conn *cc, int fd)
{
    int i, none;

    for (i = 0; i < CONSUL_FDS_MAX; i++) {
        none = 0;
        if (atomic_compare_exchange_strong(&cc->fds[i], &none, fd + 1))
            return;
    }
}

/* Before it is closed: from then on the number may be somebody else's. */
static void fd_remove(struct consul_conn *cc, int fd)
{
    int i, mine;

    for (i = 0; i < CONSUL_FDS_MAX; i++) {
        mine = fd + 1;
        if (atomic_compare_exchange_strong(&cc->fds[i], &mine, 0))
            return;
    }
}

static curl_socket_t fd_open(void *arg, curlsocktype purpose,
                             struct curl_sockaddr *addr)
{
    int fd =
        socket(addr->family, addr->socktype | SOCK_CLOEXEC, addr->protocol);

    (void)purpose;
    if (fd >= 0)
        fd_add(arg, fd);
    return fd;
}

static int fd_close(void *arg, curl_socket_t fd)
{
    fd_remove(arg, fd);
    return close(fd);
}

void hfi_consul_fd_watch(struct consul_conn *cc, CURL *easy)
{
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, fd_open);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, cc);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, fd_close);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, cc);
}

/* All of them are about to be closed, the pairs too, of which nobody tells. */
void hfi_consul_fd_closing(struct consul_conn *cc)
{
    int i;

    for (i = 0; i < CONSUL_FDS_MAX; i++)
        atomic_store(&cc->fds[i], 0);
}

/* In a forked child, where nothing else may be done. */
void hfi_consul_fd_forget(struct consul_conn *cc)
{
    int i, fd;

    for (i = 0; i < CONSUL_FDS_MAX; i++) {
        fd = atomic_exchange(&cc->fds[i], 0) - 1;
        if (fd >= 0)
            close(fd);
    }
    if (cc->poller.epoll_fd >= 0)
        close(cc->poller.epoll_fd);
    if (cc->poller.event_fd >= 0)
        close(cc->poller.event_fd);
    if (cc->poller.timer_fd >= 0)
        close(cc->poller.timer_fd);
    cc->poller.epoll_fd = cc->poller.event_fd = cc->poller.timer_fd = -1;
}

/* ---- the pair of a multi handle ----------------------------------------- */

/* Is it one end of a nameless pair of sockets made by this process, which exec
 * would not close, and in which just these bytes can be read? */
static bool fd_has(int fd, const char *bytes, size_t len)
{
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);
    int flags = fcntl(fd, F_GETFD), there = 0;
    char buf[64];

    return flags >= 0 && !(flags & FD_CLOEXEC) && len < sizeof(buf) &&
           !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) &&
           peer.pid == getpid() && !ioctl(fd, FIONREAD, &there) &&
           (size_t)there == len &&
           recv(fd, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT) ==
               (ssize_t)len &&
           !memcmp(buf, bytes, len);
}

/* The one that has them, or -1. */
static int fd_find(const char *bytes, size_t len)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int fd, found = -1;

    while (dir && found < 0 && (entry = readdir(dir))) {
        fd = (int)strtol(entry->d_name, NULL, 10);
        if (entry->d_name[0] != '.' && fd != dirfd(dir) &&
            fd_has(fd, bytes, len))
            found = fd;
    }
    if (dir)
        closedir(dir);
    return found;
}

static int fd_readable(int fd)
{
    int n = 0;

    return ioctl(fd, FIONREAD, &n) ? -1 : n;
}

/* Have curl write into its pair, `n` times, find where it arrives, and have it
 * read again; the descriptor, or -1. */
static int fd_ring(CURLM *multi, unsigned n)
{
    char rings[RINGS_MAX];
    unsigned i;
    int fd;

    memset(rings, 1, sizeof(rings));
    for (i = 0; i < n; i++)
        curl_multi_wakeup(multi);
    fd = fd_find(rings, n);
    curl_multi_poll(multi, NULL, 0, 0, NULL);
    return fd >= 0 && fd_readable(fd) == 0 ? fd : -1;
}

/* The end that curl reads from, or -1.  Twice the same, with different numbers,
 * is no accident. */
static int fd_find_reader(CURLM *multi)
{
    static atomic_uint calls;
    int fd, i;

    for (i = 0; i < 3; i++) {
        unsigned n = 2 * (atomic_fetch_add(&calls, 1) % (RINGS_MAX / 2 - 4));

        fd = fd_ring(multi, RINGS_MIN + n);
        if (fd >= 0 && fd == fd_ring(multi, RINGS_MIN + n + 1))
            return fd;
    }
    return -1;
}

/* Find both ends of the pair, if there is one, and leave it empty. */
static bool fd_find_pair(CURLM *multi, int pair[2])
{
    char name[48];
    int len;

    pair[0] = fd_find_reader(multi);
    if (pair[0] < 0)
        return false;
    len = snprintf(name, sizeof(name), "holdfast %d %p", (int)getpid(),
                   (void *)multi);
    if (send(pair[0], name, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT) != len)
        return false;
    pair[1] = fd_find(name, (size_t)len);
    return pair[1] >= 0 &&
           recv(pair[1], name, sizeof(name), MSG_DONTWAIT) == len;
}

CURLM *hfi_consul_multi_new(struct consul_conn *cc)
{
    CURLM *multi = curl_multi_init();
    int pair[2], i;

    if (multi && fd_find_pair(multi, pair)) {
        for (i = 0; i < 2; i++) {
            fcntl(pair[i], F_SETFD, FD_CLOEXEC);
            fd_add(cc, pair[i]);
        }
    }
    return multi;
}
