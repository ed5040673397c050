/* SPDX-License-Identifier: MIT
 *
 * unasked.c - a reply that nobody asked for ends the connection.
 *
 * Replies have no number: each belongs to the first request that has none.  So
 * one that is too many would be taken for the answer to the next request, and
 * all that follow would be shifted by one.
 */
#include "rt.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUSY "*2\r\n:60000\r\n:0\r\n"

/* The beginning of an unasked reply comes with one answer, the rest with the
 * next: cut inside a string, after the head of an array, and before the end of
 * a line; or all of it comes at once. */
static const struct {
    const char *begin, *rest;
} extras[] = {
    {"$3\r\nab", "c\r\n"},    {"*2\r\n", ":1\r\n:1\r\n"}, {"$", "1\r\n1\r\n"},
    {"-ERR no", " more\r\n"}, {"+PUSH\r\n", ""},
};
#define EXTRAS (int)(sizeof(extras) / sizeof(extras[0]))

/* A server that finds every lock busy.  It says the extra with the answer to
 * AUTH or to the first try on its first connection, and is right on others. */
struct extra_server {
    int listener, port, kind;
    bool at_auth;
    atomic_int links;
    atomic_bool stop;
    pthread_t thread;
};

static void extra_say(int fd, const char *text)
{
    CHECK_EQ(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static void extra_serve(struct extra_server *s, int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    bool first = atomic_fetch_add(&s->links, 1) == 0, begun = false;
    char buf[32768], text[200];
    ssize_t n;

    while (!atomic_load(&s->stop)) {
        if (poll(&one, 1, 20) <= 0)
            continue;
        n = recv(fd, buf, sizeof(buf) - 1, 0);
        if (n <= 0)
            return;
        buf[n] = '\0';
        snprintf(text, sizeof(text), "%s%s",
                 first && begun ? extras[s->kind].rest : "",
                 strstr(buf, "PING")   ? "+PONG\r\n*0\r\n:0\r\n"
                 : strstr(buf, "AUTH") ? "+OK\r\n"
                                       : BUSY);
        if (first && !begun && !strstr(buf, s->at_auth ? "PING" : "AUTH") &&
            !strstr(buf, "PING")) {
            begun = true;
            strcat(text, extras[s->kind].begin);
        } else if (first) {
            first = !begun;
        }
        extra_say(fd, text);
    }
}

static void *extra_run(void *arg)
{
    struct extra_server *s = arg;
    struct pollfd one = {.fd = s->listener, .events = POLLIN};
    int fd;

    while (!atomic_load(&s->stop)) {
        if (poll(&one, 1, 20) <= 0)
            continue;
        fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
        extra_serve(s, fd);
        close(fd);
    }
    return NULL;
}

static void extra_start(struct extra_server *s, int kind, bool at_auth)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);

    *s = (struct extra_server){.kind = kind, .at_auth = at_auth};
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(s->listener, (struct sockaddr *)&at, len), 0);
    CHECK_EQ(listen(s->listener, 64), 0);
    CHECK_EQ(getsockname(s->listener, (struct sockaddr *)&at, &len), 0);
    s->port = ntohs(at.sin_port);
    CHECK_EQ(pthread_create(&s->thread, NULL, extra_run, s), 0);
}

static void extra_stop(struct extra_server *s)
{
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    close(s->listener);
}

TEST(a_reply_whose_beginning_comes_with_an_answer_shifts_no_other)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct extra_server s;
    hf_client *client;
    hf_lock *lk;
    int kind, i;

    for (kind = 0; kind < EXTRAS; kind++) {
        extra_start(&s, kind, false);
        CHECK_OK(hf_open(rt_url(s.port, ""), NULL, &client, &t_err));
        for (i = 0; i < 4; i++)
            CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &lk, &t_err),
                         HF_BUSY);
        CHECK_EQ(atomic_load(&s.links), 2);
        hf_close(client);
        extra_stop(&s);
    }
}

TEST(a_reply_too_many_before_the_first_request_is_noticed)
{
    struct extra_server s;
    hf_client *client;
    char url[100];
    int kind;

    for (kind = 0; kind < EXTRAS; kind++) {
        extra_start(&s, kind, true);
        snprintf(url, sizeof(url), "redis://:pw@127.0.0.1:%d", s.port);
        CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_PROTOCOL);
        CHECK(strstr(t_err.text, "nobody asked") != NULL);
        extra_stop(&s);
    }
}

T_MAIN
