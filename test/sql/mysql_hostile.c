/* SPDX-License-Identifier: MIT
 *
 * mysql_hostile.c - a server that is not what it says: it wants the password
 * in the clear, or answers without end.  It speaks as much of the protocol as
 * a client needs to see before it is deceived.
 */
#include "../t.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum trick {
    ASK_CLEAR, /* switch to mysql_clear_password */
    ROWS,      /* rows without end */
    PACKET,    /* one row without end */
    COLUMNS    /* an answer of more columns than anybody asked for */
};

struct play {
    enum trick trick;
    const char *plugin;
};

/* ---- the server ---------------------------------------------------------- */

static bool put_raw(int fd, const void *data, size_t len)
{
    return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static bool put(int fd, unsigned char *seq, const void *data, size_t len)
{
    unsigned char head[4] = {(unsigned char)len, (unsigned char)(len >> 8),
                             (unsigned char)(len >> 16), (*seq)++};

    return put_raw(fd, head, 4) && put_raw(fd, data, len);
}

/* One packet; its length, or -1. */
static ssize_t get(int fd, unsigned char *seq, char *buf, size_t size)
{
    unsigned char head[4];
    size_t len;

    if (recv(fd, head, 4, MSG_WAITALL) != 4)
        return -1;
    len = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16;
    *seq = (unsigned char)(head[3] + 1);
    if (len >= size || recv(fd, buf, len, MSG_WAITALL) != (ssize_t)len)
        return -1;
    buf[len] = '\0';
    return (ssize_t)len;
}

static bool greet(int fd, unsigned char *seq)
{
    static const char hello[] = "\x0a"
                                "10.11.6-MariaDB\0"
                                "\7\0\0\0"
                                "abcdefgh\0"
                                "\x09\xa2"
                                "\x2d"
                                "\2\0"
                                "\x08\0"
                                "\x15"
                                "\0\0\0\0\0\0\0\0\0\0"
                                "ijklmnopqrst\0"
                                "mysql_native_password";
    char buf[1024];

    *seq = 0;
    return put(fd, seq, hello, sizeof(hello)) &&
           get(fd, seq, buf, sizeof(buf)) > 0;
}

static void put_columns(int fd, unsigned char *seq, unsigned char n)
{
    static const char column[] =
        "\3def\0\0\0\1a\0\x0c\x2d\0\0\1\0\0\xfd\0\0\0\0";

    put(fd, seq, &n, 1);
    for (int i = 0; i < n; i++)
        put(fd, seq, column, sizeof(column));
    put(fd, seq, "\xfe\0\0\2\0", 5);
}

static void deceive(int fd, unsigned char *seq, enum trick trick)
{
    static char block[1 << 16];
    unsigned char head[4] = {0xff, 0xff, 0xff, 0};

    if (trick == COLUMNS) {
        put_columns(fd, seq, 200);
        memset(block, 1, sizeof(block)); /* each is one byte long */
        put(fd, seq, block, 400);
        put(fd, seq, "\xfe\0\0\2\0", 5);
        return;
    }
    put_columns(fd, seq, 2);
    if (trick == ROWS) { /* many in one piece; each has its number */
        for (size_t i = 0; i < sizeof(block); i += 8)
            memcpy(block + i,
                   (char[8]){4, 0, 0, (char)((*seq)++), 1, 'a', 1, 'b'}, 8);
        while (put_raw(fd, block, sizeof(block)))
            ;
    }
    for (head[3] = *seq; put_raw(fd, head, 4); head[3]++)
        for (int i = 0; i < 256; i++) /* as long as a packet can be */
            put_raw(fd, block, sizeof(block) - (i == 255));
}

/* Serve one client; tell 1 if the password was shown. */
static void serve(struct t_peer *up, int fd, const struct play *play)
{
    unsigned char seq = 0;
    char buf[4096] = "";
    bool shown = false;

    if (!greet(fd, &seq))
        return;
    if (play->trick == ASK_CLEAR) {
        snprintf(buf, sizeof(buf), "\xfe%s", play->plugin);
        put(fd, &seq, buf, strlen(buf) + 2);
        memset(buf, 0, sizeof(buf));
        shown = get(fd, &seq, buf, sizeof(buf)) > 0 && strstr(buf, "secret");
        t_tell(up, shown);
        return;
    }
    put(fd, &seq, "\0\0\0\2\0\0\0", 7);
    while (get(fd, &seq, buf, sizeof(buf)) > 0 && buf[0] == 3)
        deceive(fd, &seq, play->trick);
}

static void server(struct t_peer *up, void *arg)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

    CHECK_EQ(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(listener, 8), 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    t_tell(up, ntohs(at.sin_port));
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        serve(up, fd, arg);
        close(fd);
    }
}

/* ---- the client ---------------------------------------------------------- */

static const char *url_of(int64_t port, const char *more)
{
    static char url[256];

    snprintf(url, sizeof(url),
             "mysql://app:secret@127.0.0.1:%lld/db?timeout=2s%s",
             (long long)port, more);
    return url;
}

TEST(no_server_is_shown_the_password_because_it_asks)
{
    static const char *const plugins[] = {"mysql_clear_password", "dialog",
                                          "mysql_old_password"};
    for (int i = 0; i < 3; i++) {
        struct play play = {ASK_CLEAR, plugins[i]};
        struct t_peer peer = t_fork(server, &play);
        hf_client *client = NULL;

        CHECK_STATUS(hf_open(url_of(t_hear(&peer), ""), NULL, &client, &t_err),
                     HF_DENIED);
        CHECK(strstr(t_err.text, "TLS") != NULL);
        CHECK(!strstr(t_err.text, "secret"));
        CHECK_EQ(t_hear(&peer), 0);
        t_kill(&peer);
    }
}

/* A server that cannot do TLS is not spoken to where it is asked for. */
TEST(tls_is_asked_for_in_any_words)
{
    static const char *const words[] = {"&ssl=yes",
                                        "&ssl=on",
                                        "&ssl=true",
                                        "&ssl=1",
                                        "&ssl=required",
                                        "&ssl_ca=/dev/null",
                                        "&ssl_cert=/x&ssl_key=/y"};
    struct play play = {ASK_CLEAR, "mysql_native_password"};
    struct t_peer peer = t_fork(server, &play);
    int64_t port = t_hear(&peer), said;
    hf_client *client = NULL;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        hf_status st = hf_open(url_of(port, words[i]), NULL, &client, &t_err);

        if (st != HF_DENIED)
            t_fail(__FILE__, __LINE__, "%s: %s (%s)", words[i],
                   hf_status_name(st), t_err.text);
    }
    CHECK(!t_try_hear(&peer, 100, &said)); /* nothing was answered */
    t_kill(&peer);
}

TEST(a_word_that_tls_does_not_know_is_refused)
{
    static const char *const words[] = {"&ssl=maybe", "&ssl=", "&ssl_verify=x",
                                        "&ssl=no&ssl_ca=/dev/null",
                                        "&ssl=REQUIRE"};
    hf_client *client = NULL;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        CHECK_STATUS(hf_open(url_of(1, words[i]), NULL, &client, &t_err),
                     HF_INVALID);
        CHECK(strstr(t_err.text, "ssl") != NULL);
    }
}

/* By its deadline, and with no more memory than there is. */
static void survived(enum trick trick)
{
    struct play play = {trick, ""};
    struct t_peer peer = t_fork(server, &play);
    hf_client *client = NULL;
    struct rusage usage;

    CHECK_NE(hf_open(url_of(t_hear(&peer), ""), NULL, &client, &t_err), HF_OK);
    CHECK(client == NULL);
    CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    CHECK_LT(usage.ru_maxrss, 150000);
    t_kill(&peer);
}

TEST(rows_without_end_are_not_kept)
{
    survived(ROWS);
}

TEST(a_packet_without_end_is_not_kept)
{
    survived(PACKET);
}

TEST(an_answer_with_other_columns_is_not_read)
{
    survived(COLUMNS);
}

T_MAIN
