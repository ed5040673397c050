/* SPDX-License-Identifier: MIT
 *
 * turns.c - what two who take turns ask of the server: run under
 * test/servers/etcd, whose own counters are read.
 */
#include "t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 30 };

/* The sum of all counters whose line begins with `name` and has `with` in it. */
static long counter(const char *name, const char *with)
{
    char command[256], line[1024];
    double sum = 0;
    FILE *pipe;

    snprintf(command, sizeof(command), "curl -s %s/metrics",
             getenv("ETCDCTL_ENDPOINTS"));
    pipe = popen(command, "r");
    CHECK(pipe != NULL);
    while (fgets(line, sizeof(line), pipe))
        if (!strncmp(line, name, strlen(name)) && strstr(line, with))
            sum += atof(strrchr(line, ' '));
    CHECK_EQ(pclose(pipe), 0);
    return (long)sum;
}

static long asked(const char *method)
{
    return counter("grpc_server_msg_received_total", method);
}

static long watchers(void)
{
    return counter("etcd_debugging_mvcc_watcher_total", "");
}

static hf_client *client_new(void)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(getenv("HF_TEST_URL"), NULL, &client, &t_err));
    return client;
}

static hf_lock *take(hf_client *client)
{
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "turns", 0, NULL, &lk, &t_err));
    return lk;
}

/* Pass the lock to the other client, who waits for it when it is released. */
static hf_lock *pass(hf_lock *lk, hf_client *to)
{
    struct hf_event event;
    hf_request *rq = NULL;

    CHECK_OK(hf_acquire_start(to, "turns", -1, NULL, NULL, &rq, &t_err));
    t_poll_until(hf_request_place(rq) == 1, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(hf_next_event(to, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    return event.lock;
}

TEST(a_turn_is_three_transactions_and_one_event)
{
    hf_client *a = client_new(), *b = client_new();
    hf_lock *lk = take(a);
    long txns, watches;
    int i;

    lk = pass(pass(lk, b), a);
    txns = asked("\"Txn\"");
    watches = asked("\"Watch\"");
    for (i = 0; i < TURNS; i++)
        lk = pass(lk, i % 2 ? a : b);
    txns = asked("\"Txn\"") - txns;
    watches = asked("\"Watch\"") - watches;
    printf("# %d turns: %ld transactions, %ld of watches\n", TURNS, txns,
           watches);
    CHECK_GE(txns, 3 * TURNS);
    CHECK_LE(txns, 3 * TURNS + TURNS / 3);
    CHECK_LE(watches, TURNS / 3);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* Each has watched the other's key and keeps that for the next time.  When the
 * other goes on alone, word of it comes once and not again. */
TEST(nobody_listens_to_a_queue_that_he_has_left)
{
    hf_client *a = client_new(), *b = client_new();
    long before = watchers();
    hf_lock *lk = take(a);
    int i;

    for (i = 0; i < 4; i++)
        lk = pass(lk, i % 2 ? a : b);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_GE(watchers(), before + 2); /* word of broken locks, for each */
    for (i = 0; i < 2; i++)
        CHECK_OK(hf_release(take(i % 2 ? a : b), &t_err));
    t_poll_until(watchers() == before + 2, 20000);
    hf_close(a);
    hf_close(b);
}

T_MAIN
