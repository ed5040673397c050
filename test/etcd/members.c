/* SPDX-License-Identifier: MIT
 *
 * members.c - members that cannot serve, beside a real one that can: run under
 * test/servers/etcd.
 */
#include "h2peer.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t.h"

static pid_t real_pid(void)
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

static char state_of(pid_t pid)
{
    char path[64], state = '?';
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%*d %*s %c", &state), 1);
    fclose(file);
    return state;
}

/* On a busy machine a signal takes its time. */
static void stop(pid_t pid)
{
    CHECK_EQ(kill(pid, SIGSTOP), 0);
    t_poll_until(state_of(pid) == 'T', 20000);
}

/* A client of both, in this order. */
static hf_client *open_both(const struct h2peer *peer, bool peer_first)
{
    const char *real = strstr(getenv("HF_TEST_URL"), "//") + 2;
    hf_client *client = NULL;
    char url[512];

    if (peer_first)
        snprintf(url, sizeof(url), "etcd://127.0.0.1:%d,%s?order=given",
                 peer->port, real);
    else
        snprintf(url, sizeof(url), "etcd://%s,127.0.0.1:%d?order=given", real,
                 peer->port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

static hf_lock *take(hf_client *client, int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.ttl_ms = ttl_ms;
    CHECK_OK(hf_acquire(client, "members", 20000, &opts, &lk, &t_err));
    return lk;
}

TEST(a_member_without_a_leader_is_left)
{
    struct h2peer peer;
    hf_client *client;
    hf_lock *lk;

    h2peer_start(&peer, H2_NO_LEADER);
    client = open_both(&peer, true);
    CHECK_GE(atomic_load(&peer.asked), 1);
    lk = take(client, 30000);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_LE(atomic_load(&peer.asked), 4);
    hf_close(client);
    h2peer_stop(&peer);
}

/* The real one falls silent, and the other answers out of the past. */
TEST(a_member_behind_in_its_term_is_not_believed)
{
    struct h2peer peer;
    hf_client *client;
    hf_lock *lk;
    pid_t real = real_pid();

    h2peer_start(&peer, H2_BEHIND);
    client = open_both(&peer, false);
    lk = take(client, 12000);
    stop(real);
    t_poll_until(atomic_load(&peer.asked) > 0, 15000);
    CHECK_EQ(kill(real, SIGCONT), 0);
    t_poll_until(!hf_held(lk) || hf_remaining_ms(lk) > 9500, 15000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    h2peer_stop(&peer);
}

/* How long the calls about a lock take at most. */
static int64_t slowest(hf_client *client, hf_lock *lk)
{
    struct hf_info info = HF_INFO_INIT;
    hf_lock *none = NULL;
    int64_t at[7], most = 0;
    int i = 0;

    at[i++] = t_now_ms();
    CHECK_NE(hf_acquire(client, "stopped", 0, NULL, &none, &t_err), HF_OK);
    at[i++] = t_now_ms();
    CHECK_NE(hf_inspect(client, "members", &info, &t_err), HF_OK);
    at[i++] = t_now_ms();
    CHECK_NE(hf_break(client, "members", hf_fence(lk), &t_err), HF_OK);
    at[i++] = t_now_ms();
    CHECK_NE(hf_extend(lk, 0, &t_err), HF_OK);
    at[i++] = t_now_ms();
    CHECK_NE(hf_release(lk, &t_err), HF_OK);
    at[i++] = t_now_ms();
    hf_close(client);
    at[i++] = t_now_ms();
    while (--i > 0) {
        printf("# call %d: %lld ms\n", i, (long long)(at[i] - at[i - 1]));
        if (at[i] - at[i - 1] > most)
            most = at[i] - at[i - 1];
    }
    return most;
}

TEST(no_call_outlasts_its_time_on_a_server_that_is_stopped)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;
    pid_t real = real_pid();
    int64_t most;
    hf_lock *lk;

    opts.timeout_ms = 500;
    CHECK_OK(hf_open(getenv("HF_TEST_URL"), &opts, &client, &t_err));
    lk = take(client, 30000);
    stop(real);
    most = slowest(client, lk);
    CHECK_EQ(kill(real, SIGCONT), 0);
    CHECK_LE(most, 2500);
}

/* Whichever of its attempts is the last that there is time for: what is told is
 * how a member failed, and that nothing was asked for where nothing was. */
TEST(the_error_of_silent_members_says_what_they_did)
{
    const char *real = strstr(getenv("HF_TEST_URL"), "//") + 2;
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    pid_t pid = real_pid();
    char url[512];
    int i;

    snprintf(url, sizeof(url), "etcd://%s,%s,localhost%s?order=given", real,
             real, strchr(real, ':'));
    opts.timeout_ms = 400;
    CHECK_OK(hf_open(url, &opts, &client, &t_err));
    stop(pid);
    for (i = 0; i < 30; i++) {
        hf_status st =
            hf_acquire(client, "members", i % 10 * 90, NULL, &lk, &t_err);

        CHECK(st == HF_UNAVAILABLE || st == HF_UNCERTAIN);
        CHECK(strstr(t_err.text, "no greeting") ||
              strstr(t_err.text, "no answer"));
    }
    CHECK_EQ(kill(pid, SIGCONT), 0);
    CHECK_OK(hf_acquire(client, "members", 40000, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

T_MAIN
