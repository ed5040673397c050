/* SPDX-License-Identifier: MIT
 *
 * spread.c - clients of three members, and a client in a hurry beside one that
 * is not: run under test/servers/etcd -3.
 */
#include "t.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../torture/net.h"

enum { MEMBERS = 3, CLIENTS = 40 };

/* A net before each member, and a URL of all of them. */
struct scene {
    struct net *nets[MEMBERS];
    char url[256];
};

static void scene_begin(struct scene *s, int members)
{
    char hosts[256], *at, *port, *rest = NULL;
    size_t len;
    int i;

    snprintf(hosts, sizeof(hosts), "%s",
             strstr(getenv("HF_TEST_URL"), "//") + 2);
    len = (size_t)snprintf(s->url, sizeof(s->url), "etcd://");
    at = strtok_r(hosts, ",", &rest);
    for (i = 0; i < members; i++) {
        CHECK(at != NULL);
        port = strchr(at, ':');
        *port++ = '\0';
        s->nets[i] = net_new();
        CHECK(s->nets[i] != NULL);
        len += (size_t)snprintf(s->url + len, sizeof(s->url) - len,
                                "%s127.0.0.1:%d", i ? "," : "",
                                net_port(s->nets[i], at, port));
        at = strtok_r(NULL, ",", &rest);
    }
}

static long tell(struct net *net, const char *command)
{
    char answer[128];
    long n = 0;

    if (!net_tell(net, command, answer, sizeof(answer)))
        t_fail(__FILE__, __LINE__, "%s: %s", command, answer);
    sscanf(answer, "connections %ld", &n);
    return n;
}

static hf_client *client_of(const char *url)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

TEST(clients_begin_with_different_members)
{
    struct scene s;
    int i;

    scene_begin(&s, MEMBERS);
    for (i = 0; i < CLIENTS; i++)
        hf_close(client_of(s.url));
    for (i = 0; i < MEMBERS; i++) {
        CHECK_GE(tell(s.nets[i], "stat"), 1);
        net_free(s.nets[i]);
    }
}

/* The server is farther away than the short lease allows for. */
TEST(a_lock_in_a_hurry_costs_another_nothing)
{
    struct hf_lock_opts slow = HF_LOCK_OPTS_INIT, quick = HF_LOCK_OPTS_INIT;
    struct scene s;
    hf_client *client;
    hf_lock *kept, *lk;
    int64_t end;

    scene_begin(&s, 1);
    client = client_of(s.url);
    slow.ttl_ms = 3000;
    quick.ttl_ms = 300;
    CHECK_OK(hf_acquire(client, "slow", 0, &slow, &kept, &t_err));
    CHECK_OK(hf_acquire(client, "quick", 0, &quick, &lk, &t_err));
    tell(s.nets[0], "all delay 60");
    end = t_now_ms() + 5000;
    while (t_now_ms() < end) {
        if (!hf_held(lk)) {
            hf_release(lk, NULL);
            t_poll_until(!hf_acquire(client, "quick", 0, &quick, &lk, &t_err),
                         20000);
        }
        CHECK(hf_held(kept));
        t_sleep_ms(5);
    }
    CHECK_LE(tell(s.nets[0], "stat"), 4);
    CHECK_OK(hf_release(kept, &t_err));
    hf_release(lk, NULL);
    hf_close(client);
    net_free(s.nets[0]);
}

T_MAIN
