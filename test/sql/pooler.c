/* SPDX-License-Identifier: MIT
 *
 * pooler.c - a pooler that hides itself breaks no promise.
 *
 * The pooler here tells each client the process of the server's session that it
 * came to first, and that session serves it alone, until the pooler is told to
 * mix: from then on each transaction goes to the session of the next client.
 */
#include "scene.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS     32
#define MESSAGE_MAX 65536
#define SSL_REQUEST 80877103
#define GSS_REQUEST 80877104

struct pooler {
    int clients[CLIENTS]; /* -1: gone */
    int servers[CLIENTS];
    int at[CLIENTS]; /* which session has its transaction; -1: none */
    int count;
    bool mixes;
};

static bool whole(int fd, char *buf, size_t size)
{
    return !size || recv(fd, buf, size, MSG_WAITALL) == (ssize_t)size;
}

static size_t number(const char *at)
{
    uint32_t n;

    memcpy(&n, at, sizeof(n));
    return ntohl(n);
}

/* Pass one message on and tell its type; with `typed` false the first one of a
 * client, which has none.  0: one of the two is gone. */
static char pass(int from, int to, bool typed, char *buf)
{
    size_t head = typed ? 5 : 4, len;

    if (!whole(from, buf, head))
        return 0;
    len = number(buf + head - 4);
    if (len < 4 || len > MESSAGE_MAX - 1 || !whole(from, buf + head, len - 4))
        return 0;
    len += typed;
    if (!typed && len == 8 &&
        (number(buf + 4) == SSL_REQUEST || number(buf + 4) == GSS_REQUEST))
        return send(from, "N", 1, MSG_NOSIGNAL) == 1 ? 'N' : 0;
    if (send(to, buf, len, MSG_NOSIGNAL) != (ssize_t)len)
        return 0;
    return typed ? buf[0] : 'S';
}

/* Everything up to where the server is ready: its state then, or 0. */
static char pass_answer(int from, int to)
{
    char buf[MESSAGE_MAX], type;

    do
        type = pass(from, to, true, buf);
    while (type && type != 'Z');
    return type ? buf[5] : 0;
}

static int dial(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port =
                                 htons((uint16_t)atoi(getenv("HF_TEST_PORT"))),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK_EQ(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

static void pooler_accept(struct pooler *pooler, int listener)
{
    int i = pooler->count, fd = accept(listener, NULL, NULL);
    char buf[MESSAGE_MAX], type;

    CHECK_LT(i, CLIENTS);
    pooler->servers[i] = dial();
    do
        type = pass(fd, pooler->servers[i], false, buf);
    while (type == 'N');
    if (!type || !pass_answer(pooler->servers[i], fd)) {
        close(fd);
        close(pooler->servers[i]);
        return;
    }
    pooler->clients[i] = fd;
    pooler->at[i] = -1;
    pooler->count++;
}

/* One message of a client, and where it is a question its answer. */
static void pooler_serve(struct pooler *pooler, int i)
{
    char buf[MESSAGE_MAX], type = 0, state = 0;
    int next = pooler->mixes ? (i + 1) % pooler->count : i;

    if (pooler->at[i] >= 0)
        next = pooler->at[i];
    pooler->at[i] = next;
    if (recv(pooler->clients[i], buf, 1, MSG_PEEK) == 1 && buf[0] != 'X')
        type = pass(pooler->clients[i], pooler->servers[next], true, buf);
    if (type == 'Q' || type == 'S') {
        state = pass_answer(pooler->servers[next], pooler->clients[i]);
        pooler->at[i] = state == 'I' ? -1 : next;
    }
    if (type && (state || (type != 'Q' && type != 'S')))
        return;
    close(pooler->clients[i]); /* Its session stays for the others. */
    pooler->clients[i] = -1;
}

static void pooler_run(struct t_peer *up, void *arg)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    struct pooler pooler = {.count = 0};
    struct pollfd pfds[2 + CLIENTS];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)arg;
    CHECK_EQ(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(listener, 64), 0);
    CHECK_EQ(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    t_tell(up, ntohs(at.sin_port));
    for (;;) {
        int count = pooler.count;

        pfds[0] = (struct pollfd){.fd = up->fd, .events = POLLIN};
        pfds[1] = (struct pollfd){.fd = listener, .events = POLLIN};
        for (int i = 0; i < count; i++)
            pfds[2 + i] =
                (struct pollfd){.fd = pooler.clients[i], .events = POLLIN};
        poll(pfds, (nfds_t)(2 + count), -1);
        for (int i = 0; i < count; i++)
            if (pfds[2 + i].revents)
                pooler_serve(&pooler, i);
        if (pfds[1].revents)
            pooler_accept(&pooler, listener);
        if (pfds[0].revents && t_hear(up) < 0)
            _exit(0);
        if (pfds[0].revents) {
            pooler.mixes = true;
            t_tell(up, 0);
        }
    }
}

static hf_client *open_table(int port, const char *table)
{
    hf_client *client = NULL;
    char url[256];

    snprintf(url, sizeof(url),
             "postgres://holdfast@127.0.0.1:%d/postgres?table=%s&pool=1", port,
             table);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

/* Take the lock and release it, so that what it needs has been prepared. */
static void use(hf_client *client)
{
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "used", 10000, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
}

/* In the session of the client of another table. */
TEST(no_statement_of_another_table_is_run_behind_a_pooler_that_hides)
{
    struct t_peer pooler = t_fork(pooler_run, NULL);
    int port = (int)t_hear(&pooler);
    hf_client *holder = open_table(port, "mixed");
    hf_client *rival = open_table(port, "mixed");
    hf_client *other = open_table(port, "unmixed");
    struct hf_service service = {.size = sizeof(service)};
    hf_lock *held = NULL, *none = NULL;

    use(rival);
    use(other);
    CHECK_OK(hf_acquire(holder, "k", 0, NULL, &held, &t_err));
    t_tell(&pooler, 1);
    t_hear(&pooler);
    CHECK_STATUS(hf_acquire(rival, "k", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_extend(held, 0, &t_err));
    CHECK(hf_held(held));
    CHECK_OK(hf_release(held, &t_err));
    use(rival);
    use(other);
    use(holder);
    CHECK_OK(hf_describe(rival, &service, &t_err));
    CHECK(strstr(service.warning, "pooler") != NULL);
    hf_close(holder);
    hf_close(rival);
    hf_close(other);
    t_tell(&pooler, -1);
    t_join(&pooler);
}

static void *let_go(void *arg)
{
    hf_release(arg, NULL);
    return NULL;
}

/* A waiter that has no pooler is told how long it has what it is given, and
 * counts from its last try.  That may have come while the request that gives
 * waited for the row: so it is given from then on, not from when the request
 * arrived. */
TEST(what_is_passed_on_late_behind_a_pooler_lasts_as_long)
{
    struct t_peer pooler = t_fork(pooler_run, NULL);
    int port = (int)t_hear(&pooler);
    hf_client *client = open_table(port, "late"), *more;
    struct hf_lock_opts one = HF_LOCK_OPTS_INIT;
    pthread_t thread;
    FILE *other;
    hf_lock *lk;

    use(client);
    more = open_table(port, "late");
    use(more);
    t_tell(&pooler, 1);
    t_hear(&pooler);
    use(client);
    one.ttl_ms = 30000;
    one.permits = 1;
    CHECK_OK(hf_acquire(client, "k", 0, &one, &lk, &t_err));
    scene_sql("INSERT INTO late_queue VALUES ('k','%032d',1,1,1,5000,"
              "clock_timestamp()+interval '1 h',NULL,NULL,NULL)",
              1);
    other =
        scene_operator("BEGIN; SELECT 1 FROM late WHERE name='k' FOR UPDATE;");
    t_poll_until(scene_sql("SELECT count(*) FROM pg_stat_activity WHERE "
                           "state='idle in transaction'") == 1,
                 20000);
    CHECK_EQ(pthread_create(&thread, NULL, let_go, lk), 0);
    t_poll_until(scene_sql("SELECT count(*) FROM pg_locks WHERE NOT granted"),
                 20000);
    scene_operator_runs(other, "CREATE TABLE moment AS SELECT "
                               "clock_timestamp() AS was; COMMIT;");
    pclose(other);
    pthread_join(thread, NULL);
    CHECK_EQ(scene_sql("SELECT count(*) FROM late_holders,moment WHERE "
                       "expires_at-ttl_ms*interval '1 ms'>=was"),
             1);
    hf_close(client);
    hf_close(more);
    t_tell(&pooler, -1);
    t_join(&pooler);
}

T_MAIN
