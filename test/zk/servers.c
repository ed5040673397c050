/* SPDX-License-Identifier: MIT
 *
 * servers.c - the members of an ensemble, and what may happen to them; see
 * zkt.h and test/servers/zk.
 */
#include "zkt.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

long zkt_number_of(int id, const char *what)
{
    char path[512];
    FILE *f;
    long n = -1;

    snprintf(path, sizeof(path), "%s/%d/%s", getenv("HF_ZK_DIR"), id, what);
    f = fopen(path, "r");
    CHECK(f != NULL);
    CHECK_EQ(fscanf(f, "%ld", &n), 1);
    fclose(f);
    return n;
}

void zkt_signal_server(int id, int sig)
{
    CHECK_EQ(kill((pid_t)zkt_number_of(id, "pid"), sig), 0);
}

void zkt_start_server(int id)
{
    char command[600];

    snprintf(command, sizeof(command), "%s %d", getenv("HF_ZK_START"), id);
    CHECK_EQ(system(command), 0);
}

const char *zkt_says(int id, const char *word)
{
    static char text[16384];
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port =
                                 htons((uint16_t)zkt_number_of(id, "port")),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {.tv_sec = 1};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t len = 0;
    ssize_t n;

    memset(text, 0, sizeof(text));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
        send(fd, word, 4, MSG_NOSIGNAL) == 4)
        while ((n = recv(fd, text + len, sizeof(text) - 1 - len, 0)) > 0)
            len += (size_t)n;
    close(fd);
    return text;
}

/* What a server says of itself behind `label`; NULL if nothing. */
static const char *ask(int id, const char *label)
{
    const char *found = strstr(zkt_says(id, "srvr"), label);

    return found ? found + strlen(label) : NULL;
}

/* 'l'eader, 'f'ollower, or 0. */
char zkt_mode_of(int id)
{
    const char *mode = ask(id, "Mode: ");

    return mode ? *mode : 0;
}

/* The last transaction that a server knows of. */
long long zkt_zxid_of(int id)
{
    const char *zxid = ask(id, "Zxid: ");

    return zxid ? strtoll(zxid, NULL, 16) : -1;
}

int zkt_server(char mode)
{
    int64_t end = t_now_ms() + 60000;

    for (int id = 1;; id = id % ZKT_SERVERS + 1) {
        if (zkt_mode_of(id) == mode)
            return id;
        CHECK_LT(t_now_ms(), end);
        t_sleep_ms(20);
    }
}

void zkt_await_all(void)
{
    for (int id = 1; id <= ZKT_SERVERS; id++)
        t_poll_until(zkt_mode_of(id) != 0, 60000);
}

/* ---- the network between them ------------------------------------------ */

void zkt_heal(void)
{
    CHECK_EQ(truncate(getenv("HF_ZK_CUTS"), 0), 0);
}

/* Nothing arrives at `id` any more, or nothing that it sends, or neither. */
void zkt_cut(int id, bool in, bool out)
{
    FILE *f = fopen(getenv("HF_ZK_CUTS"), "w");

    CHECK(f != NULL);
    for (int other = 1; other <= ZKT_SERVERS; other++) {
        if (other != id && in)
            fprintf(f, "%d %d\n", other, id);
        if (other != id && out)
            fprintf(f, "%d %d\n", id, other);
    }
    CHECK_EQ(fclose(f), 0);
}

/* A lock that is held and one that is waited for, through `harm`. */
void zkt_outlast(void (*harm)(void), int64_t ttl_ms)
{
    struct hf_lock_opts opts = zkt_opts(ttl_ms);
    const char *key = zkt_key("k");
    hf_client *a, *b;
    struct zkt_waiter w;
    hf_lock *lk;

    zkt_await_all();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 20000, &opts, &lk, &t_err));
    zkt_wait_start(&w, b, key, 120000, ttl_ms);
    t_sleep_ms(200);
    harm();
    CHECK(hf_held(lk));
    CHECK(!atomic_load(&w.done));
    t_poll_until(hf_extend(lk, 0, NULL) == HF_OK, ttl_ms);
    t_poll_until(hf_check(b, key, hf_fence(lk), NULL) == HF_OK, 20000);
    CHECK(!atomic_load(&w.done));
    CHECK_OK(hf_release(lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK_OK(hf_release(w.lk, &t_err));
    zkt_begin();
    t_poll_until(zkt_children(zkt_path(key)) == 0, 20000);
    zkt_end();
    hf_close(a);
    hf_close(b);
}
