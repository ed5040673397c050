/* SPDX-License-Identifier: MIT
 *
 * connect.c - names that change, names that nobody resolves, servers that are
 * not there, and what a forked child inherits.
 *
 * The library's getaddrinfo() is the one below.
 */
#include "zkt.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where server.test is. */
static atomic_uint server_at;
static atomic_bool resolver_stopped;

int getaddrinfo(const char *node, const char *service,
                const struct addrinfo *hints, struct addrinfo **ret)
{
    struct {
        struct addrinfo info;
        struct sockaddr_in at;
    } *made = calloc(1, sizeof(*made));

    (void)hints;
    CHECK(made != NULL);
    while (!strcmp(node, "slow.test") && atomic_load(&resolver_stopped))
        t_sleep_ms(10);
    made->at.sin_family = AF_INET;
    if (!strcmp(node, "server.test")) {
        made->at.sin_addr.s_addr = htonl(atomic_load(&server_at));
    } else if (!inet_aton(node, &made->at.sin_addr)) {
        free(made);
        return EAI_NONAME;
    }
    if (service)
        made->at.sin_port = htons((uint16_t)strtol(service, NULL, 10));
    made->info.ai_family = AF_INET;
    made->info.ai_socktype = SOCK_STREAM;
    made->info.ai_addr = (struct sockaddr *)&made->at;
    made->info.ai_addrlen = sizeof(made->at);
    *ret = &made->info;
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    free(list);
}

TEST_TIMEOUT(a_server_that_moved_is_found_by_its_name, 60)
{
    struct hf_lock_opts opts = zkt_opts(20000);
    struct zkt_proxy proxy;
    hf_client *client;
    char url[128];
    hf_lock *lk, *next;

    zkt_proxy_start_beside(&proxy);
    atomic_store(&server_at, INADDR_LOOPBACK + 1);
    snprintf(url, sizeof(url), "zk://server.test:%d/hf-test", proxy.target);
    client = zkt_open(url);
    CHECK_OK(hf_acquire(client, zkt_key("a"), 0, &opts, &lk, &t_err));
    zkt_proxy_stop(&proxy);
    atomic_store(&server_at, INADDR_LOOPBACK);
    t_poll_until(hf_acquire(client, zkt_key("b"), 2000, &opts, &next, NULL) ==
                     HF_OK,
                 30000);
    CHECK(hf_held(lk)); /* The session went along. */
    CHECK_OK(hf_release(next, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST(a_resolver_that_does_not_answer_keeps_nobody)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;
    int fds = t_count_fds();

    opts.timeout_ms = 300;
    atomic_store(&resolver_stopped, true);
    CHECK_STATUS(hf_open("zk://slow.test/hf-test", &opts, &client, &t_err),
                 HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "resolve") != NULL);
    atomic_store(&resolver_stopped, false);
    t_poll_until(t_count_fds() == fds, 10000);
}

TEST(who_cannot_connect_is_told_where_and_why)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct zkt_proxy proxy;
    hf_client *client = NULL;
    char url[128], *text = t_err.text;

    zkt_proxy_start(&proxy);
    opts.timeout_ms = 1000;
    atomic_store(&proxy.frozen, 1);
    CHECK_STATUS(hf_open(zkt_proxy_url(&proxy, ""), &opts, &client, &t_err),
                 HF_UNAVAILABLE);
    CHECK(strstr(text, "no server has answered") != NULL);
    snprintf(url, sizeof(url), "127.0.0.1:%d", proxy.port);
    CHECK(strstr(text, url) != NULL);
    zkt_proxy_stop(&proxy);
    CHECK_STATUS(hf_open(zkt_proxy_url(&proxy, ""), &opts, &client, &t_err),
                 HF_UNAVAILABLE);
    CHECK(strstr(text, "Connection refused") != NULL);
    CHECK_STATUS(hf_open("zk://nowhere.test/x", &opts, &client, &t_err),
                 HF_UNAVAILABLE);
    CHECK(strstr(text, "'nowhere.test' does not resolve") != NULL);
}

/* What a child counts after hf_close(). */
static void close_and_count(struct t_peer *up, void *arg)
{
    hf_close(arg);
    t_tell(up, t_count_fds());
}

TEST(a_forked_child_that_closes_the_client_keeps_no_descriptor)
{
    struct hf_lock_opts opts = zkt_opts(12000);
    int before = t_count_fds();
    hf_client *client = zkt_open(zkt_url(""));
    struct t_peer peer;
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, zkt_key("k"), 0, &opts, &lk, &t_err));
    t_sleep_ms(50); /* so that the session of open() has ended */
    peer = t_fork(close_and_count, client);
    CHECK_LE(t_hear(&peer), before + 2); /* the pipes to its parent */
    t_join(&peer);
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST(a_frozen_server_does_not_hold_up_who_closes)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct zkt_proxy proxy;
    hf_client *client;
    int64_t began;
    hf_lock *lk;

    zkt_proxy_start(&proxy);
    opts.timeout_ms = 500;
    CHECK_OK(hf_open(zkt_proxy_url(&proxy, ""), &opts, &client, &t_err));
    CHECK_OK(hf_acquire(client, zkt_key("k"), 0, NULL, &lk, &t_err));
    atomic_store(&proxy.frozen, 1);
    began = t_now_ms();
    hf_close(client);
    /* Its own limit, a little for the server, and a busy machine.  The library
     * alone would wait for 1.5 s more than the first. */
    CHECK_LE(t_now_ms() - began, 500 + 200 + 1200);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    zkt_proxy_stop(&proxy);
}

T_MAIN
