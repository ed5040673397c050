/* SPDX-License-Identifier: MIT
 *
 * stream.c - net/stream.c in the clear, with this test at the other end: what a
 * read or a write that cannot go on says, and when.
 */
#include "t.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/env.h"
#include "net/stream.h"

static int listener, peer = -1;
static struct hfi_stream s;

static int listen_at(struct hfi_endpoint *ret)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK_EQ(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(fd, 8), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    *ret = (struct hfi_endpoint){
        .host = "127.0.0.1", .port = ntohs(at.sin_port), .alive_ms = 15000};
    return fd;
}

static void begin(void)
{
    struct hfi_endpoint to;

    listener = listen_at(&to);
    CHECK_OK(hfi_stream_open(&s, &to, hfi_now() + 20000, &t_err));
    peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK_GE(peer, 0);
}

static void end(void)
{
    hfi_stream_close(&s);
    CHECK_EQ(s.fd, -1);
    close(peer);
    close(listener);
}

static int option(int level, int name)
{
    int value = -1;
    socklen_t len = sizeof(value);

    CHECK_EQ(getsockopt(s.fd, level, name, &value, &len), 0);
    return value;
}

TEST(a_peer_that_vanished_is_noticed_within_the_time_asked_for)
{
    begin();
    CHECK(option(IPPROTO_TCP, TCP_NODELAY));
    CHECK(option(SOL_SOCKET, SO_KEEPALIVE));
    CHECK_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 5);
    CHECK_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), 5);
    CHECK_EQ(option(IPPROTO_TCP, TCP_KEEPCNT), 2);
    CHECK_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 15000);
    end();
}

TEST(a_read_ends_with_data_its_deadline_or_the_peer)
{
    int64_t deadline;
    char buf[8];

    begin();
    CHECK_EQ(hfi_stream_read(&s, buf, sizeof(buf), 0), -1);
    CHECK_EQ(errno, EAGAIN);
    deadline = hfi_now() + 50;
    CHECK_EQ(hfi_stream_read(&s, buf, sizeof(buf), deadline), -1);
    CHECK_EQ(errno, ETIMEDOUT);
    CHECK_GE(hfi_now(), deadline);
    CHECK_EQ(send(peer, "abc", 3, 0), 3);
    CHECK_EQ(hfi_stream_read(&s, buf, sizeof(buf), hfi_now() + 20000), 3);
    CHECK(!memcmp(buf, "abc", 3));
    CHECK_EQ(shutdown(peer, SHUT_WR), 0);
    CHECK_EQ(hfi_stream_read(&s, buf, sizeof(buf), hfi_now() + 20000), 0);
    end();
}

TEST(a_connection_with_something_unread_is_stale)
{
    begin();
    CHECK(!hfi_stream_is_stale(&s));
    CHECK(!hfi_stream_is_unheard(&s));
    CHECK_EQ(send(peer, "a", 1, 0), 1);
    t_poll_until(hfi_stream_is_stale(&s), 20000);
    end();
    begin();
    CHECK_EQ(shutdown(peer, SHUT_WR), 0);
    /* Its end is no error, so whatever errno was says nothing. */
    t_poll_until((errno = EAGAIN, hfi_stream_is_stale(&s)), 20000);
    end();
}

enum { LARGE = 8 << 20 };

static void *drain(void *arg)
{
    static char buf[65536];
    ssize_t got, all = 0;

    (void)arg;
    while (all < LARGE && (got = recv(peer, buf, sizeof(buf), 0)) > 0)
        all += got;
    CHECK_EQ(all, LARGE);
    return NULL;
}

TEST(a_write_waits_for_room_until_its_deadline)
{
    static char large[LARGE];
    pthread_t reader;

    begin();
    CHECK_EQ(pthread_create(&reader, NULL, drain, NULL), 0);
    CHECK(hfi_stream_write(&s, large, sizeof(large), hfi_now() + 20000));
    pthread_join(reader, NULL);
    CHECK(!hfi_stream_write(&s, large, sizeof(large), hfi_now() + 50));
    CHECK_EQ(errno, ETIMEDOUT);
    end();
}

TEST(what_cannot_be_reached_is_unavailable)
{
    struct hfi_endpoint to;

    close(listen_at(&to));
    CHECK_STATUS(hfi_stream_open(&s, &to, hfi_now() + 20000, &t_err),
                 HF_UNAVAILABLE);
    CHECK_EQ(t_err.sys_errno, ECONNREFUSED);
    to = (struct hfi_endpoint){.port = 0};
    memset(to.host, 'x', 200);
    CHECK_STATUS(hfi_stream_open(&s, &to, hfi_now() + 20000, &t_err),
                 HF_UNAVAILABLE);
    CHECK_EQ(t_err.sys_errno, ENAMETOOLONG);
    to = (struct hfi_endpoint){.host = "/nowhere/at-all"};
    CHECK_STATUS(hfi_stream_open(&s, &to, hfi_now() + 20000, &t_err),
                 HF_UNAVAILABLE);
    CHECK_EQ(t_err.sys_errno, ENOENT);
}

T_MAIN
