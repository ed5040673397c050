/* SPDX-License-Identifier: MIT
 *
 * hostile.c - something that speaks PostgreSQL's protocol and means no good: it
 * answers what was not asked for.  Nothing crashes, nothing is believed, and no
 * more memory is used than an honest server could make us use.
 */
#include "../t.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum trick { NO_COLUMNS, NO_ROWS, ENDLESS_ROWS, ENDLESS_NOTICES };

/* ---- the server --------------------------------------------------------- */

static bool put(int fd, const void *data, size_t len)
{
    return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static bool message(int fd, char type, const void *body, size_t len)
{
    uint32_t size = htonl((uint32_t)len + 4);

    return put(fd, &type, 1) && put(fd, &size, 4) && put(fd, body, len);
}

/* A row of columns, "a\0b\0", where "\1" is NULL; or their names. */
static bool row(int fd, char type, const char *cells, int n)
{
    static const char tail[18] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 20};
    char buf[512];
    size_t at = 2;

    buf[0] = 0;
    buf[1] = (char)n;
    for (int i = 0; i < n; i++, cells += strlen(cells) + 1) {
        bool null = type == 'D' && cells[0] == 1;
        uint32_t len = htonl(null ? UINT32_MAX : (uint32_t)strlen(cells));

        if (type == 'D') {
            memcpy(buf + at, &len, 4);
            at += 4;
        }
        if (null)
            continue;
        memcpy(buf + at, cells, strlen(cells) + 1);
        at += strlen(cells) + (type == 'T');
        if (type == 'T') {
            memcpy(buf + at, tail, sizeof(tail));
            at += sizeof(tail);
        }
    }
    return message(fd, type, buf, at);
}

static void done(int fd, const char *tag)
{
    message(fd, 'C', tag, strlen(tag) + 1);
}

/* What is played: the columns, and what follows them. */
static void play_columns(int fd, enum trick trick)
{
    row(fd, 'T', "a", trick != NO_COLUMNS);
}

/* The same message again and again, 1,006 bytes of body that begin so. */
static void flood(int fd, char type, const char *begin, size_t len)
{
    static char much[64 * 1011];

    for (char *at = much; at < much + sizeof(much); at += 1011) {
        memset(at, 0, 1011);
        at[0] = type;
        at[3] = (char)(1010 >> 8);
        at[4] = (char)(1010 & 255);
        memset(at + 5, 'x', 1004);
        memcpy(at + 5, begin, len);
    }
    while (put(fd, much, sizeof(much)))
        ;
}

static void play_rows(int fd, enum trick trick)
{
    switch (trick) {
    case NO_COLUMNS:
        row(fd, 'D', "", 0);
        break;
    case NO_ROWS:
        break;
    case ENDLESS_ROWS:
        flood(fd, 'D', "\0\1\0\0\3\xe8", 6);
        break;
    case ENDLESS_NOTICES:
        flood(fd, 'N', "M", 1);
        break;
    }
    done(fd, "SELECT 1");
}

/* When it plays, and what. */
struct plan {
    enum trick trick;
    const char *at; /* a question with these words in it */
};

/* What an honest server says, as far as it is listened to. */
struct honest {
    const char *words, *names, *values;
    int columns;
};

static const struct honest honest[] = {
    {"pg_is_in_recovery", "a\0b\0c\0d",
     "0\0"
     "4242\0"
     "77\0"
     "{public}",
     4},
    {"pg_namespace n ON", "a\0b", "'public'\0\"public\"", 2},
    {"indisunique", "hf_verify\0b\0c", "holdfast_lock\0\1\0\1", 3},
    {"", NULL, NULL, 0},
};

static const struct honest *honest_for(const char *question)
{
    const struct honest *at = honest;

    while (!strstr(question, at->words))
        at++;
    return at;
}

static void say_columns(int fd, const struct plan *plan, const char *question)
{
    const struct honest *say = honest_for(question);

    if (strstr(question, plan->at))
        play_columns(fd, plan->trick);
    else if (say->names)
        row(fd, 'T', say->names, say->columns);
    else
        message(fd, 'n', "", 0);
}

static void say_rows(int fd, const struct plan *plan, const char *question)
{
    const struct honest *say = honest_for(question);

    if (strstr(question, plan->at)) {
        play_rows(fd, plan->trick);
        return;
    }
    if (say->values)
        row(fd, 'D', say->values, say->columns);
    done(fd, "SELECT 1");
}

/* One message of the client.  A statement's name tells nothing here: the client
 * runs what it has prepared last. */
static void hear(int fd, const struct plan *plan, char type, const char *body)
{
    static char question[65536];

    switch (type) {
    case 'Q':
        if (strstr(body, plan->at) || honest_for(body)->names)
            say_columns(fd, plan, body);
        say_rows(fd, plan, body);
        message(fd, 'Z', "I", 1);
        break;
    case 'P':
        snprintf(question, sizeof(question), "%s", body + strlen(body) + 1);
        message(fd, '1', "", 0);
        break;
    case 'B':
        message(fd, '2', "", 0);
        break;
    case 'D':
        say_columns(fd, plan, question);
        break;
    case 'E':
        say_rows(fd, plan, question);
        break;
    case 'S':
        message(fd, 'Z', "I", 1);
        break;
    default:
        break;
    }
}

static void serve(int fd, const struct plan *plan)
{
    static char buf[65536];
    static const uint32_t ok;
    uint32_t key[2] = {htonl(4242), htonl(1)}, size;
    char type;

    if (recv(fd, &size, 4, MSG_WAITALL) != 4 ||
        recv(fd, buf, ntohl(size) - 4, MSG_WAITALL) <= 0)
        return;
    message(fd, 'R', &ok, 4);
    message(fd, 'S',
            "server_version\0"
            "15.0",
            20);
    message(fd, 'S', "client_encoding\0UTF8", 21);
    message(fd, 'K', key, 8);
    message(fd, 'Z', "I", 1);
    while (
        recv(fd, &type, 1, 0) == 1 && recv(fd, &size, 4, MSG_WAITALL) == 4 &&
        ntohl(size) <= sizeof(buf) &&
        (size == htonl(4) || recv(fd, buf, ntohl(size) - 4, MSG_WAITALL) > 0))
        hear(fd, plan, type, buf);
}

static void run_server(struct t_peer *up, void *arg)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK_EQ(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(listener, 8), 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    t_tell(up, ntohs(at.sin_port));
    for (;;) {
        int fd = accept(listener, NULL, NULL);

        if (!fork()) {
            serve(fd, arg);
            _exit(0);
        }
        close(fd);
    }
}

/* ---- the client --------------------------------------------------------- */

static void against(enum trick trick, const char *at, const char *strategy)
{
    struct plan plan = {trick, at};
    struct t_peer peer = t_fork(run_server, &plan);
    struct rusage before, after;
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    char url[256];
    hf_status st;

    snprintf(url, sizeof(url),
             "postgres://u@127.0.0.1:%d/db?sslmode=disable&gssencmode=disable&"
             "timeout=1s&strategy=%s",
             (int)t_hear(&peer), strategy);
    getrusage(RUSAGE_SELF, &before);
    st = hf_open(url, NULL, &client, &t_err);
    if (!st)
        st = hf_acquire(client, "k", 0, NULL, &lk, &t_err);
    printf("# %s, trick %d at %s: %s: %s\n", strategy, trick, at,
           hf_status_name(st), t_err.text);
    CHECK(st != HF_OK);
    CHECK(!strchr(t_err.text, '\n'));
    hf_close(client);
    getrusage(RUSAGE_SELF, &after);
    CHECK_LE(after.ru_maxrss - before.ru_maxrss, 200 * 1024); /* KiB */
    t_kill(&peer);
}

static const char *const questions[] = {"pg_is_in_recovery",
                                        "pg_namespace n ON", "indisunique"};

TEST_TIMEOUT(nonsense_is_refused, 60)
{
    for (int i = 0; i < 3; i++) {
        against(NO_COLUMNS, questions[i], "lease");
        against(NO_ROWS, questions[i], "lease");
    }
    for (int i = 0; i < 2; i++) {
        against(i ? NO_COLUMNS : NO_ROWS, "WITH b AS", "lease");
        against(i ? NO_COLUMNS : NO_ROWS, "advisory", "row");
    }
}

TEST_TIMEOUT(what_never_ends_takes_little_memory, 60)
{
    for (int i = 0; i < 2; i++) {
        enum trick trick = i ? ENDLESS_NOTICES : ENDLESS_ROWS;

        against(trick, questions[0], "lease");
        against(trick, questions[2], "lease");
        against(trick, "WITH b AS", "lease");
        against(trick, "advisory", "row");
    }
}

T_MAIN
