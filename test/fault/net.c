/* SPDX-License-Identifier: MIT
 *
 * net.c - the misbehaving network misbehaves as it says: each command of
 * torture/net.h, in front of the server of echo.h.
 */
#include "echo.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void begin(struct scene *s)
{
    char port[16];

    server_start(s, port, sizeof(port));
    s->net = net_new();
    CHECK(s->net != NULL);
    s->port = net_port(s->net, "127.0.0.1", port);
    CHECK_GT(s->port, 0);
}

static void end(struct scene *s)
{
    net_free(s->net);
    server_stop(s);
}

/* ---- the client -------------------------------------------------------- */

static void tell(struct scene *s, const char *command)
{
    char answer[128];

    if (!net_tell(s->net, command, answer, sizeof(answer)))
        t_fail(__FILE__, __LINE__, "%s: %s", command, answer);
}

static int64_t figure(struct scene *s, const char *name)
{
    char answer[256];
    const char *at;

    CHECK(net_tell(s->net, "stat", answer, sizeof(answer)));
    at = strstr(answer, name);
    CHECK(at != NULL);
    return strtoll(at + strlen(name), NULL, 10);
}

static int dial(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    CHECK_EQ(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static void ask(int fd, const char *line)
{
    CHECK_EQ(send(fd, line, strlen(line), MSG_NOSIGNAL), strlen(line));
}

/* Read `want` bytes of the letter; how many calls that took. */
static int hear(int fd, char letter, int want)
{
    char buf[4096];
    int calls = 0;

    while (want > 0) {
        ssize_t got = recv(fd, buf, sizeof(buf), 0);

        CHECK_GT(got, 0);
        for (ssize_t i = 0; i < got; i++)
            CHECK_EQ(buf[i], letter);
        want -= (int)got;
        calls++;
    }
    CHECK_EQ(want, 0);
    return calls;
}

static bool is_silent(int fd, int ms)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};

    return poll(&one, 1, ms) == 0;
}

/* ---- promises ---------------------------------------------------------- */

TEST(what_is_said_passes_unchanged_both_ways)
{
    struct scene s;
    int fd;

    begin(&s);
    fd = dial(s.port);
    ask(fd, "a60000\n");
    hear(fd, 'a', 60000);
    CHECK_EQ(figure(&s, "up "), 7);
    CHECK_EQ(figure(&s, "down "), 60000);
    close(fd);
    t_poll_until(figure(&s, "open ") == 0, 20000);
    end(&s);
}

TEST(a_delay_holds_answers_back_and_keeps_their_order)
{
    struct scene s;
    int64_t from;
    int fd;

    begin(&s);
    fd = dial(s.port);
    tell(&s, "all down delay 200 50");
    from = t_now_ms();
    ask(fd, "a10\n");
    hear(fd, 'a', 10);
    CHECK_GE(t_now_ms() - from, 199);
    tell(&s, "all pass");
    ask(fd, "b10\n");
    hear(fd, 'b', 10);
    close(fd);
    end(&s);
}

TEST(a_throttle_limits_the_bytes_per_second)
{
    struct scene s;
    int64_t from;
    int fd;

    begin(&s);
    fd = dial(s.port);
    tell(&s, "all down throttle 2000");
    from = t_now_ms();
    ask(fd, "a1000\n");
    CHECK_GT(hear(fd, 'a', 1000), 3);
    CHECK_GE(t_now_ms() - from, 400);
    close(fd);
    end(&s);
}

TEST(slices_arrive_byte_by_byte)
{
    struct scene s;
    int fd, one = 1;

    begin(&s);
    fd = dial(s.port);
    setsockopt(fd, IPPROTO_TCP, 1, &one, sizeof(one));
    tell(&s, "port 1 slice");
    ask(fd, "a300\n");
    /* A busy reader finds several at a time, but never all. */
    CHECK_GT(hear(fd, 'a', 300), 1);
    close(fd);
    end(&s);
}

TEST(a_cut_lets_just_so_many_bytes_pass_and_happens_once)
{
    struct scene s;
    char c;
    int fd;

    begin(&s);
    for (int n = 0; n < 20; n++) {
        char command[32];

        snprintf(command, sizeof(command), "all down cut %d", n);
        tell(&s, command);
        fd = dial(s.port);
        ask(fd, "a20\n");
        hear(fd, 'a', n);
        CHECK_LE(recv(fd, &c, 1, 0), 0);
        close(fd);
        CHECK_EQ(figure(&s, "cuts "), n + 1);
    }
    fd = dial(s.port);
    ask(fd, "a20\n");
    hear(fd, 'a', 20);
    close(fd);
    end(&s);
}

TEST(one_direction_can_vanish_and_nobody_is_told)
{
    struct scene s;
    int fd;

    begin(&s);
    fd = dial(s.port);
    tell(&s, "all down drop");
    ask(fd, "a10\n");
    t_poll_until(figure(&s, "down ") == 10, 20000); /* it was answered */
    CHECK(is_silent(fd, 100));
    close(fd);
    tell(&s, "all pass");
    tell(&s, "all up drop");
    fd = dial(s.port);
    ask(fd, "c10\n");
    t_poll_until(figure(&s, "up ") == 8, 20000);
    CHECK(is_silent(fd, 100));
    CHECK_EQ(figure(&s, "down "), 10); /* it was never asked */
    close(fd);
    end(&s);
}

/* What comes later never takes the place of what vanished. */
TEST(who_lost_something_is_reset_when_it_would_pass_again)
{
    static const char *const words[][2] = {
        {"all down drop", "all down pass"}, {"all up drop", "all up pass"},
        {"all drop", "port 1 pass"},        {"conn 4 down drop", "conn 4 pass"},
        {"conn 5 up drop", "all delay 1"}, /* the port's word counts again */
    };
    struct scene s;
    int64_t up, down;
    char c;
    int fd;

    begin(&s);
    for (int i = 0; i < 5; i++) {
        fd = dial(s.port);
        ask(fd, "a10\n");
        hear(fd, 'a', 10);
        tell(&s, words[i][0]);
        up = figure(&s, "up ");
        down = figure(&s, "down ");
        ask(fd, "b10\n");
        t_poll_until(figure(&s, "up ") == up + 4, 20000);
        if (strstr(words[i][0], "down"))
            t_poll_until(figure(&s, "down ") == down + 10, 20000);
        CHECK(is_silent(fd, 50));
        tell(&s, words[i][1]);
        CHECK_EQ(recv(fd, &c, 1, 0), -1);
        CHECK_EQ(errno, ECONNRESET);
        close(fd);
    }
    end(&s);
}

TEST(who_lost_nothing_goes_on_when_it_may)
{
    struct scene s;
    int fd;

    begin(&s);
    fd = dial(s.port);
    ask(fd, "a10\n");
    hear(fd, 'a', 10);
    tell(&s, "all drop");
    tell(&s, "all pass");
    ask(fd, "b10\n");
    hear(fd, 'b', 10);
    tell(&s, "all down drop");
    ask(fd, "c10\n");
    t_poll_until(figure(&s, "down ") == 30, 20000);
    tell(&s, "all up pass"); /* answers still vanish */
    CHECK(is_silent(fd, 100));
    close(fd);
    end(&s);
}

TEST(the_kth_answer_vanishes_and_nothing_comes_after_it)
{
    struct scene s;
    int fd;
    char c;

    begin(&s);
    for (int k = 1; k <= 3; k++) {
        char command[40];

        fd = dial(s.port);
        snprintf(command, sizeof(command), "all down drop-reply %d", k);
        tell(&s, command);
        for (int i = 1; i < k; i++) {
            ask(fd, "a10\n");
            hear(fd, 'a', 10);
        }
        ask(fd, "a10\n");
        t_poll_until(figure(&s, "dropped ") == k, 20000);
        CHECK(is_silent(fd, 50));
        ask(fd, "a10\n");
        CHECK_EQ(recv(fd, &c, 1, 0), -1);
        CHECK_EQ(errno, ECONNRESET);
        close(fd);
    }
    end(&s);
}

/* Read to the end; how many bytes, or -1 after a reset. */
static int hear_end(int fd, char *buf, size_t size)
{
    size_t have = 0;
    ssize_t got;

    while ((got = recv(fd, buf + have, size - have - 1, 0)) > 0)
        have += (size_t)got;
    buf[have] = '\0';
    return got < 0 ? -1 : (int)have;
}

TEST(a_lie_takes_the_place_of_an_answer_that_the_server_has_given)
{
    /* What a client of HTTP/2 says first, and two requests. */
    static const char two[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                              "\0\0\0\1\4\0\0\0\1\0\0\0\1\5\0\0\0\3\na9\n";
    struct scene s;
    char buf[512];
    int fd;

    begin(&s);
    tell(&s, "all down lie-reset 100");
    fd = dial(s.port);
    ask(fd, "a10\n");
    CHECK_EQ(hear_end(fd, buf, sizeof(buf)), -1);
    close(fd);
    CHECK_EQ(figure(&s, "down "), 10); /* it had been done */

    tell(&s, "all pass");
    tell(&s, "all down lie-http 100");
    fd = dial(s.port);
    ask(fd, "a10\n");
    CHECK_GT(hear_end(fd, buf, sizeof(buf)), 0);
    CHECK(!strncmp(buf, "HTTP/1.1 503 ", 13));
    close(fd);
    CHECK_EQ(figure(&s, "down "), 20);

    tell(&s, "all pass");
    tell(&s, "all down lie-grpc 100");
    fd = dial(s.port);
    CHECK_EQ(send(fd, two, sizeof(two) - 1, MSG_NOSIGNAL), sizeof(two) - 1);
    /* Two frames of headers that end their streams: UNAVAILABLE each. */
    CHECK_EQ(hear_end(fd, buf, sizeof(buf)), 2 * (9 + 36));
    for (int i = 0; i < 2; i++) {
        const char *frame = buf + i * (9 + 36);

        CHECK_EQ(frame[2], 36);
        CHECK_EQ(frame[3], 1);
        CHECK_EQ(frame[4], 5);
        CHECK(frame[8] == 1 || frame[8] == 3);
        CHECK(!memcmp(frame + 9 + 34, "14", 2));
    }
    close(fd);

    tell(&s, "all pass");
    tell(&s, "all down lie-reset 0");
    fd = dial(s.port);
    ask(fd, "a10\n");
    hear(fd, 'a', 10);
    close(fd);
    end(&s);
}

TEST(what_is_held_goes_on_later)
{
    struct scene s;
    int fd;

    begin(&s);
    fd = dial(s.port);
    tell(&s, "all hold");
    ask(fd, "a10\n");
    CHECK(is_silent(fd, 100));
    CHECK_EQ(figure(&s, "up "), 0);
    tell(&s, "all pass");
    hear(fd, 'a', 10);
    close(fd);
    end(&s);
}

TEST(a_reset_is_told_as_such_and_a_close_as_an_end)
{
    struct scene s;
    char c;
    int fd;

    begin(&s);
    fd = dial(s.port);
    ask(fd, "a1\n");
    hear(fd, 'a', 1);
    tell(&s, "all reset");
    CHECK_EQ(recv(fd, &c, 1, 0), -1);
    CHECK_EQ(errno, ECONNRESET);
    close(fd);
    fd = dial(s.port);
    ask(fd, "a1\n");
    hear(fd, 'a', 1);
    tell(&s, "all close");
    CHECK_EQ(recv(fd, &c, 1, 0), 0);
    close(fd);
    end(&s);
}

TEST(half_a_connection_can_end_and_the_other_half_goes_on)
{
    struct scene s;
    char c;
    int fd;

    begin(&s);
    fd = dial(s.port);
    ask(fd, "a1\n");
    hear(fd, 'a', 1);
    tell(&s, "all down half");
    CHECK_EQ(recv(fd, &c, 1, 0), 0);
    ask(fd, "b5\n");
    t_poll_until(figure(&s, "up ") == 6, 20000); /* still carried */
    CHECK_EQ(figure(&s, "open "), 1);
    close(fd);
    fd = dial(s.port);
    ask(fd, "a1\n");
    hear(fd, 'a', 1);
    shutdown(fd, SHUT_WR); /* the client's own end passes through, too */
    CHECK_EQ(recv(fd, &c, 1, 0), 0);
    close(fd);
    end(&s);
}

TEST(each_connection_can_have_a_script_of_its_own_even_beforehand)
{
    struct scene s;
    int first, second, third;

    begin(&s);
    tell(&s, "conn 2 down drop");
    first = dial(s.port);
    ask(first, "a5\n");
    hear(first, 'a', 5);
    second = dial(s.port);
    ask(second, "b5\n");
    t_poll_until(figure(&s, "down ") == 10, 20000);
    third = dial(s.port);
    ask(third, "c5\n");
    hear(third, 'c', 5);
    CHECK(is_silent(second, 50));
    close(first);
    close(second);
    close(third);
    end(&s);
}

TEST(a_port_that_refuses_resets_new_connections_only)
{
    struct scene s;
    char c;
    int old, fresh;

    begin(&s);
    old = dial(s.port);
    ask(old, "a5\n");
    hear(old, 'a', 5);
    tell(&s, "port 1 refuse");
    fresh = dial(s.port);
    CHECK_EQ(recv(fresh, &c, 1, 0), -1);
    CHECK_EQ(errno, ECONNRESET);
    ask(old, "b5\n");
    hear(old, 'b', 5);
    tell(&s, "port 1 accept");
    close(fresh);
    fresh = dial(s.port);
    ask(fresh, "c5\n");
    hear(fresh, 'c', 5);
    close(old);
    close(fresh);
    end(&s);
}

TEST(nonsense_is_refused_and_changes_nothing)
{
    static const char *const bad[] = {
        "",        "down drop",     "all",         "all sideways drop",
        "all cut", "all cut -1",    "all cut 1 2", "port 0 drop",
        "port",    "port 2 drop",   "conn x drop", "all drop 3",
        "stat 5",  "conn 99 reset", "all delay",   "all down down drop"};
    char answer[128];
    struct scene s;
    int fd;

    begin(&s);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (net_tell(s.net, bad[i], answer, sizeof(answer)))
            t_fail(__FILE__, __LINE__, "'%s' was taken: %s", bad[i], answer);
        CHECK_EQ(strncmp(answer, "error: ", 7), 0);
    }
    fd = dial(s.port);
    ask(fd, "a10\n");
    hear(fd, 'a', 10);
    close(fd);
    end(&s);
}

/* Read one line of the program. */
static void program_says(FILE *from, char *line, size_t size)
{
    CHECK(fgets(line, (int)size, from) != NULL);
}

TEST(the_program_takes_its_commands_from_stdin)
{
    int in[2], out[2], fd, status;
    char target[32], port[16], line[256];
    struct scene s;
    FILE *from;
    pid_t pid;

    server_start(&s, port, sizeof(port));
    snprintf(target, sizeof(target), "127.0.0.1:%s", port);
    CHECK_EQ(pipe(in), 0);
    CHECK_EQ(pipe(out), 0);
    pid = fork();
    if (pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        execl(getenv("HF_PROXY"), "proxy", target, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    from = fdopen(out[0], "r");
    program_says(from, line, sizeof(line));
    CHECK_EQ(strncmp(line, "listening ", 10), 0);
    fd = dial((int)strtol(line + 10, NULL, 10));
    CHECK_EQ(write(in[1], "all down cut 3\n", 15), 15);
    program_says(from, line, sizeof(line));
    CHECK_STR(line, "ok\n");
    ask(fd, "a9\n");
    hear(fd, 'a', 3);
    CHECK_LE(recv(fd, line, 1, 0), 0);
    CHECK_EQ(write(in[1], "all dance\n", 10), 10);
    program_says(from, line, sizeof(line));
    CHECK_EQ(strncmp(line, "error: ", 7), 0);
    close(in[1]);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    fclose(from);
    close(fd);
    server_stop(&s);
}

T_MAIN
