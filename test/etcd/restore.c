/* SPDX-License-Identifier: MIT
 *
 * restore.c - a client outlives its etcd, which is restored from a snapshot and
 * begins with a lower raft term, or only with a lower revision: run under
 * test/servers/etcd.
 */
#include "t.h"

#include <stdlib.h>
#include <string.h>

/* A server that was started while the port was still another's has ended, and is
 * started again. */
#define UP                                                                     \
    "until etcdctl --command-timeout 1s get x >/dev/null 2>&1; do"             \
    "    sleep 0.1;"                                                           \
    "    grep -q '^State:.[RSD]' /proc/$(cat 1/pid)/status 2>/dev/null ||"     \
    "        1/run;"                                                           \
    " done;"

static void shell(const char *text)
{
    CHECK_EQ(system(text), 0);
}

/* Each start is another term. */
static void restart(void)
{
    shell("cd $HF_TEST_MEMBERS && kill -KILL $(cat 1/pid) && 1/run && " UP);
}

/* What an earlier test has started went with it. */
static void start(void)
{
    shell("cd $HF_TEST_MEMBERS && " UP);
}

static void restore(void)
{
    shell("cd $HF_TEST_MEMBERS && kill -KILL $(cat 1/pid) && rm -r 1/data &&"
          " peer=$(grep -o 'm1=http[^ ]*' 1/run) &&"
          " etcdctl snapshot restore snap --name m1 --initial-cluster $peer"
          "     --initial-advertise-peer-urls ${peer#m1=} --data-dir 1/data"
          "     >/dev/null 2>&1 &&"
          " 1/run && " UP);
}

/* Its ids and its term are the same as before; only its revision is lower.  The
 * first test, since each start of the server is another term. */
TEST(a_cluster_that_was_restored_in_the_same_term_is_noticed)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client = NULL;
    hf_lock *lk = NULL, *next = NULL;
    uint64_t fence;
    int i;

    opts.ttl_ms = 2000;
    shell("etcdctl snapshot save $HF_TEST_MEMBERS/snap >/dev/null 2>&1");
    CHECK_OK(hf_open(getenv("HF_TEST_URL"), NULL, &client, &t_err));
    for (i = 0; i < 20; i++) {
        CHECK_OK(hf_acquire(client, "old", 0, &opts, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    CHECK_OK(hf_acquire(client, "old", 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    restore();
    t_poll_until(hf_acquire(client, "old", 0, &opts, &next, &t_err) == HF_OK,
                 30000);
    CHECK(!hf_held(lk));
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(hf_fence(next) > fence || strstr(about.warning, "restored"));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
}

TEST(a_client_works_again_after_its_cluster_was_restored)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = NULL;
    hf_lock *lk = NULL, *next = NULL;

    opts.ttl_ms = 2000;
    start();
    shell("etcdctl snapshot save $HF_TEST_MEMBERS/snap >/dev/null 2>&1");
    restart();
    restart();
    CHECK_OK(hf_open(getenv("HF_TEST_URL"), NULL, &client, &t_err));
    CHECK_OK(hf_acquire(client, "old", 0, &opts, &lk, &t_err));
    restore();
    t_poll_until(!hf_held(lk), 20000);
    t_poll_until(hf_acquire(client, "new", 0, &opts, &next, &t_err) == HF_OK,
                 30000);
    CHECK_OK(hf_extend(next, 0, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
}

T_MAIN
