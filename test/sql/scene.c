/* SPDX-License-Identifier: MIT
 *
 * scene.c - see scene.h.
 */
#include "scene.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *scene_env(const char *name)
{
    const char *value = getenv(name);

    if (!value)
        t_fail(__FILE__, __LINE__, "$%s is not set: run by test/servers/NAME",
               name);
    return value;
}

bool scene_is_postgres(void)
{
    return strncmp(scene_env("HF_TEST_URL"), "postgres", 8) == 0;
}

bool scene_is_mysql(void)
{
    const char *kind = getenv("HF_SERVER_KIND");

    return kind && strcmp(kind, "mysql") == 0;
}

bool scene_is_sqlite(void)
{
    return !getenv("HF_TEST_URL");
}

bool scene_is(const char *strategy)
{
    const char *set = getenv("HF_SQL_STRATEGY");

    return strcmp(set ? set : "lease", strategy) == 0;
}

const char *scene_url(int port, const char *more)
{
    static _Thread_local char url[512];
    const char *strategy = getenv("HF_SQL_STRATEGY");
    const char *base, *colon, *slash;

    if (scene_is_sqlite()) {
        snprintf(url, sizeof(url), "sqlite:%s/x.db?strategy=%s%s", t_tmpdir(),
                 strategy, more);
        return url;
    }
    base = scene_env("HF_TEST_URL");
    colon = strrchr(base, ':');
    slash = strrchr(base, '/');

    snprintf(url, sizeof(url), "%.*s:%d%s?strategy=%s%s", (int)(colon - base),
             base, port ? port : atoi(colon + 1), slash,
             strategy ? strategy : "lease", more);
    return url;
}

const char *scene_url_of(const char *strategy, const char *table)
{
    static char url[512];
    const char *base = scene_url(0, "");

    snprintf(url, sizeof(url), "%.*sstrategy=%s&table=%s",
             (int)(strcspn(base, "?") + 1), base, strategy, table);
    return url;
}

hf_client *scene_open(int port, const char *more)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(scene_url(port, more), NULL, &client, &t_err));
    return client;
}

const char *scene_key(const char *suffix)
{
    static _Thread_local char key[128];

    snprintf(key, sizeof(key), "sql.%x.%s", (unsigned)getpgrp(), suffix);
    return key;
}

const char *scene_hex(const char *key)
{
    static char hex[512];
    size_t i;

    for (i = 0; key[i] && i < 200; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)key[i]);
    return hex;
}

int64_t scene_sql(const char *fmt, ...)
{
    char text[2048], command[4096], line[256] = "", *tab;
    va_list args;
    FILE *pipe;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (scene_is_postgres())
        snprintf(command, sizeof(command),
                 "psql -X -q -A -t -h 127.0.0.1 -p %s -U holdfast -v "
                 "ON_ERROR_STOP=1 -c \"%s\" postgres",
                 scene_env("HF_TEST_PORT"), text);
    else
        snprintf(command, sizeof(command),
                 "mariadb --no-defaults -N -B -u root -S %s/socket %s -e "
                 "\"%s\" test",
                 scene_env("HF_TEST_DIR"),
                 strstr(text, " BEGIN ") ? "--delimiter=//" : "", text);
    pipe = popen(command, "r");
    CHECK(pipe != NULL);
    if (!fgets(line, sizeof(line), pipe))
        line[0] = '\0';
    while (fgetc(pipe) != EOF)
        ;
    if (pclose(pipe))
        t_fail(__FILE__, __LINE__, "failed: %s", command);
    tab = strrchr(line, '\t');
    return strtoll(tab ? tab + 1 : line, NULL, 10);
}

void scene_server(const char *command)
{
    char text[512];

    snprintf(text, sizeof(text), "%s %s", scene_env("HF_TEST_SERVER"), command);
    if (system(text))
        t_fail(__FILE__, __LINE__, "failed: %s", text);
}

void scene_options(const char *options)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof(path), "%s/options", scene_env("HF_TEST_DIR"));
    file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(options, file);
    fclose(file);
}

void scene_end_sessions(void)
{
    if (scene_is_postgres())
        scene_sql("SELECT count(pg_terminate_backend(pid)) FROM "
                  "pg_stat_activity WHERE application_name='holdfast'");
    else if (!scene_is_mysql())
        scene_sql("KILL USER holdfast");
    else /* One that has ended meanwhile is no failure. */
        CHECK_EQ(
            system("mariadb --no-defaults -N -B -u root -S "
                   "$HF_TEST_DIR/socket -e \"SELECT CONCAT('KILL ',id,';') "
                   "FROM information_schema.processlist WHERE "
                   "user='holdfast'\" | mariadb --no-defaults -f -u root "
                   "-S $HF_TEST_DIR/socket 2>/dev/null; true"),
            0);
}

FILE *scene_operator(const char *text)
{
    char command[1024];
    FILE *pipe;

    if (scene_is_postgres())
        snprintf(command, sizeof(command),
                 "psql -X -q -h 127.0.0.1 -p %s -U holdfast postgres "
                 ">/dev/null",
                 getenv("HF_TEST_PORT"));
    else
        snprintf(command, sizeof(command),
                 "mariadb --no-defaults -u root -S %s/socket -n test "
                 ">/dev/null",
                 getenv("HF_TEST_DIR"));
    pipe = popen(command, "w");
    CHECK(pipe != NULL);
    scene_operator_runs(pipe, text);
    return pipe;
}

void scene_operator_runs(FILE *pipe, const char *text)
{
    fprintf(pipe, "%s\n", text);
    fflush(pipe);
    t_sleep_ms(500); /* It cannot be asked whether it has got there. */
}

struct hf_info scene_inspected(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info;
}

uint64_t scene_requests(hf_client *client)
{
    struct hf_stats stats = {.size = sizeof(stats)};

    CHECK_OK(hf_stats(client, &stats, &t_err));
    return stats.requests;
}

void scene_refused(const char *url, hf_status want, const char *word)
{
    hf_client *client = NULL;
    hf_status st = hf_open(url, NULL, &client, &t_err);

    if (st != want)
        t_fail(__FILE__, __LINE__, "%s: %s is not %s (%s)", url,
               hf_status_name(st), hf_status_name(want), t_err.text);
    CHECK(client == NULL);
    CHECK(!strchr(t_err.text, '\n'));
    CHECK(!strstr(t_err.text, "secret"));
    if (!strstr(t_err.text, word))
        t_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", t_err.text,
               word);
}

/* ---- the proxy --------------------------------------------------------- */

enum { PAIRS = 64 };

struct relay {
    int fds[PAIRS][2]; /* to the client, to the server */
    int pairs;
    int64_t left; /* pieces until the cut; 0: none is due */
};

static int proxy_dial(void)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)atoi(scene_env("HF_TEST_PORT"))),
        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void proxy_drop(struct relay *relay, int i, bool reset)
{
    struct linger hard = {.l_onoff = 1, .l_linger = 0};

    for (int side = 0; side < 2; side++) {
        if (reset)
            setsockopt(relay->fds[i][side], SOL_SOCKET, SO_LINGER, &hard,
                       sizeof(hard));
        close(relay->fds[i][side]);
    }
    memcpy(relay->fds[i], relay->fds[--relay->pairs], sizeof(relay->fds[i]));
}

static void proxy_accept(struct relay *relay, int listener)
{
    int fd = accept(listener, NULL, NULL), up = fd >= 0 ? proxy_dial() : -1;

    if (up < 0 || relay->pairs == PAIRS) {
        if (fd >= 0)
            close(fd);
        if (up >= 0)
            close(up);
        return;
    }
    relay->fds[relay->pairs][0] = fd;
    relay->fds[relay->pairs++][1] = up;
}

/* One piece from one side to the other; false if the pair is gone. */
static bool proxy_pass(struct relay *relay, int i, int side)
{
    char buf[65536];
    ssize_t len = recv(relay->fds[i][side], buf, sizeof(buf), 0);

    if (len <= 0) {
        proxy_drop(relay, i, false);
        return false;
    }
    if (relay->left && --relay->left == 0) {
        proxy_drop(relay, i, true);
        return false;
    }
    return send(relay->fds[i][!side], buf, (size_t)len, MSG_NOSIGNAL) == len ||
           (proxy_drop(relay, i, false), false);
}

static void proxy_turn(struct relay *relay, struct t_peer *up, int listener)
{
    struct pollfd pfds[2 + 2 * PAIRS] = {{.fd = up->fd, .events = POLLIN},
                                         {.fd = listener, .events = POLLIN}};
    int pairs = relay->pairs;

    for (int i = 0; i < pairs; i++)
        for (int side = 0; side < 2; side++)
            pfds[2 + 2 * i + side] =
                (struct pollfd){.fd = relay->fds[i][side], .events = POLLIN};
    poll(pfds, (nfds_t)(2 + 2 * pairs), -1);
    for (int i = pairs - 1; i >= 0; i--)
        for (int side = 0; side < 2; side++)
            if (pfds[2 + 2 * i + side].revents && !proxy_pass(relay, i, side))
                break;
    if (pfds[1].revents)
        proxy_accept(relay, listener);
    if (pfds[0].revents) {
        relay->left = t_hear(up);
        if (relay->left < 0)
            _exit(0);
        t_tell(up, 0);
    }
}

static void proxy_run(struct t_peer *up, void *arg)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    struct relay relay = {.pairs = 0};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)arg;
    CHECK_EQ(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(listener, 64), 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    t_tell(up, ntohs(at.sin_port));
    for (;;)
        proxy_turn(&relay, up, listener);
}

struct scene_proxy scene_proxy(void)
{
    struct scene_proxy proxy = {.peer = t_fork(proxy_run, NULL)};

    proxy.port = (int)t_hear(&proxy.peer);
    return proxy;
}

void scene_cut(struct scene_proxy *proxy, int64_t n)
{
    t_tell(&proxy->peer, n);
    t_hear(&proxy->peer);
}

void scene_proxy_end(struct scene_proxy *proxy)
{
    t_tell(&proxy->peer, -1);
    t_join(&proxy->peer);
}

void scene_set_clock_ns(int64_t seconds, int64_t ns)
{
    const char *path = getenv("HF_CLOCK_FILE");
    const int64_t offset[2] = {seconds, ns};
    int fd;

    if (!path)
        T_SKIP_HOST("the server's clock cannot be moved without the shim");
    fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK_EQ(pwrite(fd, offset, sizeof(offset), 0), sizeof(offset));
    close(fd);
}

void scene_set_clock(int64_t seconds)
{
    scene_set_clock_ns(seconds, 0);
}
