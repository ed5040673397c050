/* SPDX-License-Identifier: MIT
 *
 * left.c - etcd and ZooKeeper keep nothing of a lock that is free: run beside a
 * server of one of them (test/servers).
 *
 * Everything that is there at first, and everything that is there afterwards,
 * is counted: keys and leases of etcd, nodes of ZooKeeper.
 */
#include "t.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 60 };

static int count(void)
{
    const char *command =
        getenv("HF_ZK_HOSTS")
            ? "python3 -c \"import os, socket; "
              "host = os.environ['HF_ZK_HOSTS'].split(',')[0].split(':'); "
              "s = socket.create_connection((host[0], int(host[1]))); "
              "s.sendall(b'srvr'); t = b''\n"
              "while True:\n"
              "    more = s.recv(4096)\n"
              "    if not more: break\n"
              "    t += more\n"
              "print(t.decode().split('Node count: ')[1].split()[0])\""
            : "(etcdctl get '' --prefix --keys-only; etcdctl lease list | "
              "grep -v found) | grep -c .";
    FILE *in = popen(command, "r");
    char text[64] = "";

    CHECK(fgets(text, sizeof(text), in) != NULL);
    pclose(in);
    return atoi(text);
}

static hf_client *client_new(void)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(getenv("HF_TEST_URL"), NULL, &client, &t_err));
    return client;
}

static hf_lock *take(hf_client *client, const char *key, unsigned flags,
                     int32_t permits)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.ttl_ms = 2000;
    opts.flags = flags;
    opts.permits = permits;
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    return lk;
}

/* Use many keys, in every way. */
static void use(hf_client *client, hf_client *other)
{
    char key[32];

    for (int i = 0; i < KEYS; i++) {
        hf_lock *lk, *none = NULL;

        snprintf(key, sizeof(key), "order/%d", i);
        lk = take(client, key, i % 3 == 1 ? HF_SHARED : 0, i % 3 == 2 ? 2 : 0);
        if (i % 3 == 0) {
            CHECK_STATUS(hf_acquire(other, key, 0, NULL, &none, &t_err),
                         HF_BUSY);
            CHECK_STATUS(hf_acquire(other, key, 20, NULL, &none, &t_err),
                         HF_TIMEOUT);
        }
        CHECK_OK(hf_release(lk, &t_err));
    }
}

TEST_TIMEOUT(nothing_is_left_of_locks_that_are_free, 120)
{
    int before = count();
    hf_client *a = client_new(), *b = client_new();
    struct hf_collected none = HF_COLLECTED_INIT;

    use(a, b);
    CHECK_STATUS(hf_collect(a, 0, false, &none, &t_err), HF_UNSUPPORTED);
    hf_close(a);
    hf_close(b);
    /* A server that makes containers removes them after a while. */
    t_poll_until(count() <= before + (before ? 1 : 0), 60000);
}

static void hold_and_wait(struct t_peer *up, void *arg)
{
    hf_client *client = client_new();
    hf_request *rq = NULL;

    take(client, "dead/held", 0, 0);
    take(client, "dead/permit", 0, 3);
    CHECK_OK(hf_acquire_start(client, arg, -1, NULL, NULL, &rq, &t_err));
    t_poll_until(hf_request_place(rq) == 1, 20000);
    t_tell(up, 0);
    t_hear(up);
}

TEST_TIMEOUT(nothing_is_left_of_who_was_killed, 120)
{
    int before = count();
    hf_client *client = client_new();
    hf_lock *lk = take(client, "dead/waited", 0, 0);
    char key[] = "dead/waited";
    struct t_peer peer = t_fork(hold_and_wait, key);

    t_hear(&peer);
    t_kill(&peer);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    t_poll_until(count() <= before + (before ? 1 : 0), 60000);
}

T_MAIN
