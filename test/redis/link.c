/* SPDX-License-Identifier: MIT
 *
 * link.c - a reply goes to the call that asked for it, or to nobody.
 *
 * A server of a few lines stands at the other end of net/resp_link.c and says
 * what no Redis server would.
 */
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/env.h"
#include "net/resp.h"
#include "net/resp_link.h"
#include "t.h"

/* The first request on a connection is answered with `first`, those that follow
 * with `then`. */
struct peer {
    const char *first, *then;
    void *(*serve)(void *); /* instead, if set */
    int fd, port;
    pthread_t thread;
};

static void peer_serve(const struct peer *p, int fd)
{
    const char *answer = p->first;
    char buf[256];

    while (recv(fd, buf, sizeof(buf), 0) > 0) {
        CHECK_EQ(send(fd, answer, strlen(answer), MSG_NOSIGNAL),
                 strlen(answer));
        answer = p->then;
    }
    close(fd);
}

/* One connection at a time is enough here. */
static void *peer_run(void *arg)
{
    struct peer *p = arg;
    int fd;

    while ((fd = accept(p->fd, NULL, NULL)) >= 0)
        peer_serve(p, fd);
    return NULL;
}

static void peer_start(struct peer *p)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);

    p->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(p->fd, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(p->fd, 8), 0);
    CHECK_EQ(getsockname(p->fd, (struct sockaddr *)&at, &len), 0);
    p->port = ntohs(at.sin_port);
    CHECK_EQ(
        pthread_create(&p->thread, NULL, p->serve ? p->serve : peer_run, p), 0);
}

static void peer_stop(struct peer *p)
{
    shutdown(p->fd, SHUT_RDWR);
    pthread_join(p->thread, NULL);
    close(p->fd);
}

static hf_status find(void *arg, struct hfi_endpoint *ret, int64_t deadline,
                      struct hf_error *err)
{
    const struct peer *p = arg;

    (void)deadline;
    (void)err;
    *ret = (struct hfi_endpoint){
        .host = "127.0.0.1", .port = p->port, .alive_ms = 15000};
    return HF_OK;
}

static hf_status handshake(void *arg, struct mux_link *link, int64_t deadline,
                           struct hf_error *err)
{
    (void)arg;
    (void)link;
    (void)deadline;
    (void)err;
    return HF_OK;
}

/* What the server says to the next request. */
static void ask(struct hfi_mux *mux, const char *want)
{
    redisReply *reply = NULL;
    hf_status st =
        hfi_mux_call(mux, "PING\r\n", 6, 1, &reply, hfi_now() + 10000, &t_err);

    CHECK_OK(st);
    CHECK_STR(reply->str, want);
    freeReplyObject(reply);
}

static void check_part(const char *first, const char *then)
{
    struct peer p = {.first = first, .then = then};
    struct hfi_mux mux;

    peer_start(&p);
    hfi_mux_init(&mux, find, handshake, &p);
    ask(&mux, "mine");
    ask(&mux, "mine"); /* and not what nobody asked for */
    hfi_mux_fini(&mux);
    peer_stop(&p);
}

TEST(a_part_of_a_reply_that_nobody_asked_for_is_no_answer)
{
    check_part("+mine\r\n+not", " mine\r\n+mine\r\n");
    check_part("+mine\r\n+", "not mine\r\n+mine\r\n");
    check_part("+mine\r\n$8\r\nnot", " mine\r\n+mine\r\n");
    check_part("+mine\r\n*1\r\n", "+not mine\r\n+mine\r\n");
}

TEST(a_reply_that_nobody_asked_for_is_no_answer)
{
    check_part("+mine\r\n+not mine\r\n", "+mine\r\n");
}

enum { CALLERS = 4 };

/* Read what all callers ask, and close. */
static void *peer_hang_up(void *arg)
{
    struct peer *p = arg;
    int fd = accept(p->fd, NULL, NULL);
    size_t left = CALLERS * strlen("PING\r\n");
    char buf[256];
    ssize_t got;

    while (left > 0 && (got = recv(fd, buf, sizeof(buf), 0)) > 0)
        left -= (size_t)got;
    CHECK_EQ(left, 0);
    close(fd);
    return NULL;
}

static void *caller(void *mux)
{
    redisReply *reply = NULL;
    int64_t deadline = hfi_now() + 50000;

    CHECK_STATUS(hfi_mux_call(mux, "PING\r\n", 6, 1, &reply, deadline, &t_err),
                 HF_UNCERTAIN);
    CHECK_LT(hfi_now(), deadline - 10000); /* It did not wait for that. */
    return NULL;
}

TEST(all_who_wait_for_an_answer_are_told_that_the_server_closed)
{
    struct peer p = {.serve = peer_hang_up};
    pthread_t threads[CALLERS];
    struct hfi_mux mux;
    int i;

    peer_start(&p);
    hfi_mux_init(&mux, find, handshake, &p);
    for (i = 0; i < CALLERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, caller, &mux), 0);
    for (i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    hfi_mux_fini(&mux);
    peer_stop(&p);
}

/* Never answer on the first connection, and at once on the second. */
static void *peer_fall_silent(void *arg)
{
    struct peer *p = arg;
    int silent = accept(p->fd, NULL, NULL);
    int fd = accept(p->fd, NULL, NULL);

    if (fd >= 0)
        peer_serve(p, fd);
    close(silent);
    return NULL;
}

/* resp_link.c (2) */
TEST(a_connection_that_fell_silent_is_not_used_again)
{
    struct peer p = {
        .first = "+mine\r\n", .then = "+mine\r\n", .serve = peer_fall_silent};
    redisReply *reply = NULL;
    struct hfi_mux mux;

    peer_start(&p);
    hfi_mux_init(&mux, find, handshake, &p);
    CHECK_STATUS(
        hfi_mux_call(&mux, "PING\r\n", 6, 1, &reply, hfi_now() + 2000, &t_err),
        HF_UNCERTAIN);
    ask(&mux, "mine");
    hfi_mux_fini(&mux);
    peer_stop(&p);
}

T_MAIN
