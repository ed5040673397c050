/* SPDX-License-Identifier: MIT
 *
 * full.c - an etcd whose database is full: run under test/servers/etcd -f.
 */
#include "t.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../torture/net.h"

static pid_t server(void)
{
    char path[512];
    FILE *file;
    int pid = 0;

    snprintf(path, sizeof(path), "%s/1/pid", getenv("HF_TEST_MEMBERS"));
    file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%d", &pid), 1);
    fclose(file);
    return pid;
}

static void fill(void)
{
    CHECK_EQ(system("for i in 1 2 3 4 5 6 7 8; do"
                    "    head -c 1000000 /dev/zero | tr '\\0' x |"
                    "        etcdctl put full$i >/dev/null 2>&1 || break;"
                    " done;"
                    " etcdctl alarm list | grep -q NOSPACE"),
             0);
}

/* A renewal that has no answer is repeated through the log. */
TEST(a_full_database_keeps_what_is_held_and_takes_it_back)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = NULL;
    hf_lock *lk = NULL, *none = NULL;
    pid_t pid = server();

    CHECK_OK(hf_open(getenv("HF_TEST_URL"), NULL, &client, &t_err));
    opts.ttl_ms = 6000;
    CHECK_OK(hf_acquire(client, "full", 0, &opts, &lk, &t_err));
    fill();
    /* The write that fills it is carried out, with the same answer. */
    CHECK_STATUS(hf_acquire(client, "other", 0, &opts, &none, &t_err),
                 HF_UNCERTAIN);
    CHECK_EQ(kill(pid, SIGSTOP), 0);
    t_poll_until(hf_remaining_ms(lk) < 2500, 20000);
    CHECK_EQ(kill(pid, SIGCONT), 0);
    t_poll_until(!hf_held(lk) || hf_remaining_ms(lk) > 5000, 20000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(system("test -z \"$(etcdctl get holdfast/full/ --prefix)\""), 0);
    hf_close(client);
}

/* What no member can do is no reason to go to another. */
TEST(who_waits_for_a_full_database_stays_connected)
{
    const char *real = strstr(getenv("HF_TEST_URL"), "//") + 2;
    struct net *net = net_new();
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    char url[128], host[64], stat[128];
    char *port;
    long links = 0;

    CHECK(net != NULL);
    snprintf(host, sizeof(host), "%s", real);
    port = strchr(host, ':');
    *port++ = '\0';
    snprintf(url, sizeof(url), "etcd://127.0.0.1:%d",
             net_port(net, host, port));
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    fill();
    CHECK_STATUS(hf_acquire(client, "full", 1500, NULL, &lk, &t_err),
                 HF_UNAVAILABLE);
    CHECK(net_tell(net, "stat", stat, sizeof(stat)));
    CHECK_EQ(sscanf(stat, "connections %ld", &links), 1);
    CHECK_LE(links, 2);
    hf_close(client);
    net_free(net);
}

T_MAIN
