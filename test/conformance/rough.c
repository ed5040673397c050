/* SPDX-License-Identifier: MIT
 *
 * rough.c - rough surroundings: no descriptors left, a hail of signals, many
 * threads on one handle.
 *
 * Nothing of this may end in anything but a status, and when the weather is
 * fine again everything works.
 */
#include "conf.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

/* Let this process open no more than `spare` descriptors from now on: the
 * limit is on their numbers, and the lowest that is free comes next. */
static struct rlimit starve(int spare)
{
    int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct rlimit old, tight;

    CHECK_GE(lowest, 0);
    close(lowest);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    tight = old;
    tight.rlim_cur = (rlim_t)(lowest + spare);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
    return old;
}

TEST(a_client_that_finds_no_descriptors_does_not_open_and_leaks_nothing)
{
    int fds = t_count_fds();

    for (int spare = 0; spare < 6; spare++) {
        struct rlimit old = starve(spare);
        hf_client *client = NULL;
        hf_status st = hf_open(conf_url(), NULL, &client, &t_err);

        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
        CHECK(spare > 0 || st != HF_OK);
        if (st == HF_OK) {
            hf_close(client);
        } else {
            CHECK(client == NULL);
            CHECK_EQ(t_err.status, st);
            CHECK(t_err.text[0]);
        }
        CHECK_EQ(t_count_fds(), fds);
    }
    hf_close(conf_open());
}

TEST(a_lock_that_finds_no_descriptors_is_refused_or_granted_but_never_half)
{
    const char *key = conf_key("k");

    for (int spare = 0; spare < 4; spare++) {
        hf_client *client = conf_open();
        struct rlimit old = starve(spare);
        hf_lock *lk = NULL;
        hf_status st = hf_acquire(client, key, 20, NULL, &lk, &t_err);
        int events = hf_events_fd(client);

        if (st == HF_OK) {
            CHECK_GE(hf_lost_fd(lk), -1);
            CHECK(hf_held(lk));
            conf_unlock(lk);
        } else {
            CHECK(lk == NULL);
            CHECK_EQ(t_err.status, st);
            CHECK(t_err.text[0]);
        }
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
        /* What failed for want of a descriptor works once there is one. */
        if (events < 0)
            CHECK_GE(hf_events_fd(client), 0);
        conf_unlock(conf_try(client, key, NULL));
        hf_close(client);
        conf_check_free(key);
    }
}

static atomic_int hail;

static void on_hail(int sig)
{
    (void)sig;
    atomic_fetch_add(&hail, 1);
}

TEST(a_hail_of_signals_makes_nothing_early_or_wrong)
{
    struct sigaction sa = {.sa_handler = on_hail};
    struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL), *none = NULL;

    sigaction(SIGALRM, &sa, NULL);
    CHECK_EQ(setitimer(ITIMER_REAL, &every, NULL), 0);
    for (int i = 0; i < 10; i++) {
        int64_t began = t_now_ms();

        CHECK_STATUS(hf_acquire(b, key, 60, NULL, &none, &t_err), HF_TIMEOUT);
        CHECK_GE(t_now_ms() - began, 59);
        CHECK_STATUS(hf_acquire(b, key, 0, NULL, &none, &t_err), HF_BUSY);
        CHECK(conf_look(b, key).held);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        conf_unlock(lk);
        lk = conf_lock(i % 2 ? a : b, key, NULL);
        conf_unlock(lk);
        lk = conf_lock(a, key, NULL);
    }
    CHECK_GE(atomic_load(&hail), 10);
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
    CHECK_EQ(setitimer(ITIMER_REAL, &never, NULL), 0);
    conf_check_free(key);
}

/* The signals that a thread of this process blocks, from /proc. */
static unsigned long long blocked_by(const char *task)
{
    unsigned long long mask = 0;
    char path[300], line[256];
    FILE *in;

    snprintf(path, sizeof(path), "/proc/self/task/%s/status", task);
    in = fopen(path, "re");
    CHECK(in != NULL);
    while (fgets(line, sizeof(line), in))
        if (sscanf(line, "SigBlk: %llx", &mask) == 1)
            break;
    fclose(in);
    return mask;
}

TEST(the_threads_of_a_client_block_every_signal)
{
    static const int signals[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGUSR1,
                                  SIGUSR2, SIGALRM, SIGTERM, SIGCHLD};
    struct hf_lock_opts brief = conf_opts(1500, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, &brief);
    hf_request *req;
    char self[32];
    DIR *dir;
    int n = 0;

    CHECK_OK(hf_acquire_start(b, key, -1, NULL, NULL, &req, &t_err));
    t_sleep_ms(800); /* Both have begun to work in the background. */
    snprintf(self, sizeof(self), "%d", (int)getpid());
    dir = opendir("/proc/self/task");
    CHECK(dir != NULL);
    for (struct dirent *de; (de = readdir(dir));) {
        if (de->d_name[0] == '.' || strcmp(de->d_name, self) == 0)
            continue;
        n++;
        for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
            CHECK(blocked_by(de->d_name) >> (signals[i] - 1) & 1);
    }
    closedir(dir);
    CHECK_GE(n, 2);
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
}

static void *use_handle(void *arg)
{
    hf_lock *lk = arg;

    for (int i = 0; i < conf_times(200, 50); i++) {
        CHECK(hf_held(lk));
        CHECK_GT(hf_remaining_ms(lk), 0);
        CHECK_EQ(hf_fence(lk) > 0, (conf_traits & HF_TRAIT_FENCED) != 0);
        CHECK_GE(hf_lost_fd(lk), 0);
        CHECK_EQ(hf_lost_reason(lk), HF_LOSS_NONE);
        if (i % 10 == 0)
            CHECK_OK(hf_extend(lk, 2000 + i, &t_err));
    }
    return NULL;
}

TEST(many_threads_may_use_one_handle)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL);
    pthread_t threads[8];

    for (int i = 0; i < 8; i++)
        threads[i] = conf_thread(use_handle, lk);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    conf_unlock(lk);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_lock_handed_over_inside_a_client_keeps_its_fence)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk;
    uint64_t fence;

    opts.local_turns = -1;
    lk = conf_try(client, key, &opts);
    fence = hf_fence(lk);
    for (int i = 0; i < 40; i++) {
        struct hf_event event = HF_EVENT_INIT;
        hf_request *req;

        CHECK_OK(hf_acquire_start(client, key, -1, &opts, NULL, &req, &t_err));
        conf_unlock(lk);
        event = conf_event(client);
        CHECK_EQ(event.type, HF_GRANTED);
        lk = event.lock;
        CHECK_EQ(hf_fence(lk), fence);
    }
    conf_check_stands(client, lk);
    conf_unlock(lk);
    hf_close(client);
    conf_check_free(key);
}
