/* SPDX-License-Identifier: MIT
 *
 * silent.c - a service that stops answering, and answers again.
 *
 * The connections stay, nothing moves on them; later everything that was sent
 * arrives.  That is what a frozen server, a full network and a long collection
 * of garbage look like.  Run through test/servers/far, whose proxy is told what
 * to do through $HF_FAR.
 */
#include "conf.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* There is one proxy. */
int conf_jobs = 1;

/* How much the proxy has answered so far: beside its fifo `in` there is `out`. */
static off_t silent_answered(const char *in)
{
    char path[512];
    struct stat sb;

    snprintf(path, sizeof(path), "%.*sout", (int)(strlen(in) - 2), in);
    CHECK_EQ(stat(path, &sb), 0);
    return sb.st_size;
}

/* Tell the proxy, and wait until it has obeyed. */
static void silent_say(const char *command)
{
    const char *path = getenv("HF_FAR");
    off_t before;
    int fd;

    if (!path)
        T_SKIP_HOST("no proxy");
    before = silent_answered(path);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK_GE(fd, 0);
    CHECK_EQ(write(fd, command, strlen(command)), (ssize_t)strlen(command));
    close(fd);
    t_poll_until(silent_answered(path) > before, 20000);
}

static void silence(void)
{
    silent_say("all hold\n");
}

static void speak(void)
{
    silent_say("all pass\n");
}

/* A client with a limit of its own for one request. */
static hf_client *silent_open(int64_t timeout_ms)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client;

    opts.timeout_ms = timeout_ms;
    CHECK_OK(hf_open(conf_url(), &opts, &client, &t_err));
    return client;
}

/* Nothing is left behind: somebody else gets it before long. */
static void silent_check_free(const char *key)
{
    hf_client *client = conf_open();
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, key, 40000, NULL, &lk, &t_err));
    conf_unlock(lk);
    hf_close(client);
}

TEST_TIMEOUT(locks_are_lost_in_time_and_their_release_waits_for_nobody, 120)
{
    enum { N = 50 };
    struct hf_lock_opts opts = conf_exact_opts(3000, 0);
    hf_client *client = silent_open(20000);
    hf_lock *locks[N];
    char name[16];
    int64_t began;

    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "k%d", i);
        locks[i] = conf_lock(client, conf_key(name), &opts);
    }
    silence();
    for (int i = 0; i < N; i++)
        t_poll_until(!hf_held(locks[i]), 40000);
    began = t_now_ms();
    for (int i = 0; i < N; i++)
        CHECK_STATUS(hf_release(locks[i], &t_err), HF_LOST);
    /* Waiting for the service would take 20 s for the first of them. */
    CHECK_LT(t_now_ms() - began, 19000);
    speak();
    silent_check_free(conf_key("k0"));
    hf_close(client);
}

TEST_TIMEOUT(a_wait_ends_and_leaves_nothing_behind, 120)
{
    struct hf_lock_opts opts = conf_exact_opts(5000, 0);
    const char *key = conf_key("k");
    hf_client *client = silent_open(2000);
    hf_lock *lk = NULL;
    hf_status st;

    conf_unlock(conf_lock(client, conf_key("before"), &opts));
    silence();
    st = hf_acquire(client, key, 1000, &opts, &lk, &t_err);
    CHECK(st == HF_UNCERTAIN || st == HF_UNAVAILABLE || st == HF_TIMEOUT);
    CHECK(lk == NULL);
    speak(); /* and the try arrives */
    silent_check_free(key);
    hf_close(client);
}

TEST_TIMEOUT(closing_ends_while_locks_and_requests_are_under_way, 120)
{
    struct hf_lock_opts opts = conf_exact_opts(30000, 0);
    hf_client *client = silent_open(2000);
    hf_lock *locks[10];
    hf_request *rq;
    char name[16];

    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof(name), "k%d", i);
        locks[i] = conf_lock(client, conf_key(name), &opts);
        CHECK_OK(hf_acquire_start(client, conf_key("k0"), -1, &opts, NULL, &rq,
                                  &t_err));
    }
    silence();
    hf_close(client);
    for (int i = 0; i < 10; i++)
        CHECK_STATUS(hf_release(locks[i], &t_err), HF_LOST);
    speak();
}

TEST_TIMEOUT(a_long_lease_outlives_a_short_silence, 120)
{
    struct hf_lock_opts opts = conf_exact_opts(12000, 0);
    hf_client *client = silent_open(1000);
    hf_lock *lk = conf_lock(client, conf_key("k"), &opts);

    t_sleep_ms(3000);
    silence(); /* across its first renewal */
    t_sleep_ms(2000);
    speak();
    t_sleep_ms(8000); /* past the end of the first lease */
    CHECK(hf_held(lk));
    conf_unlock(lk);
    hf_close(client);
}
