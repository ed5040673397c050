/* SPDX-License-Identifier: MIT
 *
 * collect.c - lock files of `file:` that nobody uses are removed, and none that
 * somebody does; fences go on, whatever the clock says.
 */
#include "fixture.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The wall clock of this program is off by so many seconds. */
static atomic_long off_by;

int clock_gettime(clockid_t clock, struct timespec *ret)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, ret);

    if (!rc && clock == CLOCK_REALTIME)
        ret->tv_sec += atomic_load(&off_by);
    return rc;
}

static struct hf_collected collect(hf_client *client, int64_t older_ms,
                                   bool dry_run)
{
    struct hf_collected ret = HF_COLLECTED_INIT;

    CHECK_OK(hf_collect(client, older_ms, dry_run, &ret, &t_err));
    CHECK_EQ(ret.looked_at, ret.removed + ret.kept);
    return ret;
}

static hf_lock *take(hf_client *client, const char *key)
{
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, key, 20000, NULL, &lk, &t_err));
    return lk;
}

static uint64_t use(hf_client *client, const char *key)
{
    hf_lock *lk = take(client, key);
    uint64_t fence = hf_fence(lk);

    CHECK_OK(hf_release(lk, &t_err));
    return fence;
}

static int count_files(void)
{
    DIR *dir = opendir(fixture_path("locks/"));
    const struct dirent *entry;
    int n = 0;

    while ((entry = readdir(dir)))
        n += strstr(entry->d_name, ".lock") != NULL;
    closedir(dir);
    return n;
}

TEST(what_nobody_uses_is_removed_and_can_be_used_again)
{
    hf_client *client = fixture_open();
    char long_key[600], key[32];
    uint64_t fence, last;

    memset(long_key, 'k', sizeof(long_key) - 1);
    long_key[sizeof(long_key) - 1] = '\0';
    last = use(client, long_key);
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "order/%d", i);
        last = use(client, key);
    }
    CHECK_EQ(count_files(), 100);
    CHECK_EQ(collect(client, 3600 * 1000, false).removed, 0);
    CHECK_EQ(collect(client, 0, true).removed, 101);
    CHECK_EQ(count_files(), 100);
    CHECK_EQ(collect(client, 0, false).removed, 101);
    CHECK_EQ(count_files(), 0);
    CHECK_EQ(collect(client, 0, false).looked_at, 0);
    fence = use(client, "order/7");
    CHECK_GT(fence, last);
    CHECK_GT(use(client, long_key), fence);
    hf_close(client);
}

TEST(fences_rise_although_the_clock_was_set_back)
{
    hf_client *client = fixture_open();
    uint64_t fence = use(client, "job"), next;

    atomic_store(&off_by, -3600);
    next = use(client, "job");
    CHECK_GT(next, fence);
    CHECK_EQ(collect(client, 1000, false).removed, 0); /* written "later" */
    atomic_store(&off_by, 0);
    CHECK_EQ(collect(client, 0, false).removed, 1);
    atomic_store(&off_by, -3600);
    fence = use(client, "job");
    CHECK_GT(fence, next);
    CHECK_GT(use(client, "never used before"), next);
    hf_close(client);
}

TEST(what_is_in_use_stays)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT, shared = HF_LOCK_OPTS_INIT;
    hf_client *a = fixture_open(), *b = fixture_open();
    hf_lock *held = take(a, "held"), *kept = NULL, *reader = NULL;
    hf_request *rq = NULL;
    int fd, strange;

    opts.min_hold_ms = 60000;
    CHECK_OK(hf_acquire(a, "kept", 0, &opts, &kept, &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    shared.flags = HF_SHARED;
    CHECK_OK(hf_acquire(a, "shared", 0, &shared, &reader, &t_err));
    use(a, "open");
    fd = open(fixture_path("locks/open.lock"), O_RDONLY | O_CLOEXEC);
    CHECK_GE(fd, 0);
    strange = open(fixture_path("locks/strange.lock"),
                   O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK_EQ(write(strange, "mine\n", 5), 5);
    close(strange);
    close(open(fixture_path("locks/empty.lock"), O_WRONLY | O_CREAT | O_CLOEXEC,
               0600));
    CHECK_EQ(collect(b, 0, false).kept, 6);
    CHECK_EQ(count_files(), 6);
    CHECK(hf_held(held) && hf_held(reader));
    CHECK_OK(hf_acquire_start(b, "held", -1, NULL, NULL, &rq, &t_err));
    close(fd);
    CHECK_EQ(collect(b, 0, false).removed, 1); /* "open" */
    CHECK_OK(hf_release(held, &t_err));
    CHECK_OK(hf_release(reader, &t_err));
    hf_close(a);
    hf_close(b);
}

/* flock(1) opens the file and does not look at it again. */
TEST(a_file_that_flock_waits_for_stays)
{
    hf_client *client = fixture_open();
    hf_lock *lk = take(client, "job");
    char command[700];
    FILE *out;

    snprintf(command, sizeof(command), "flock %s echo done",
             fixture_path("locks/job.lock"));
    out = popen(command, "r");
    t_sleep_ms(300); /* It waits, or will come: both are fine. */
    CHECK_EQ(collect(client, 0, false).removed, 0);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(fgets(command, sizeof(command), out) != NULL);
    CHECK_STR(command, "done\n");
    pclose(out);
    CHECK_EQ(collect(client, 0, false).removed, 1);
    hf_close(client);
}

/* ---- all at once -------------------------------------------------------- */

enum { WORKERS = 4, TURNS = 3000 };

static atomic_int inside[2];
static atomic_bool over;
static atomic_ullong highest[2];

static void *work(void *arg)
{
    hf_client *client = fixture_open();

    (void)arg;
    for (int i = 0; i < TURNS; i++) {
        int key = i % 2;
        hf_lock *lk = take(client, key ? "one" : "two");
        unsigned long long fence = hf_fence(lk);

        CHECK_EQ(atomic_fetch_add(&inside[key], 1), 0);
        CHECK_GT(fence, atomic_exchange(&highest[key], fence));
        CHECK_EQ(atomic_fetch_sub(&inside[key], 1), 1);
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    return NULL;
}

static void *remove_all(void *arg)
{
    hf_client *client = fixture_open();
    uint64_t *removed = arg;

    while (!atomic_load(&over))
        *removed += collect(client, 0, false).removed;
    hf_close(client);
    return NULL;
}

TEST_TIMEOUT(no_two_hold_one_key_while_its_file_is_removed, 120)
{
    pthread_t workers[WORKERS], collectors[2];
    uint64_t removed[2] = {0, 0};

    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&collectors[i], NULL, remove_all, &removed[i]));
    for (int i = 0; i < WORKERS; i++)
        CHECK(!pthread_create(&workers[i], NULL, work, NULL));
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(collectors[i], NULL);
    CHECK_GT(removed[0] + removed[1], 0);
}

/* Who makes files removes others that are old enough. */
TEST(one_off_keys_do_not_stay_for_ever)
{
    hf_client *never = fixture_open_with("?keep=off"), *client;
    char key[32];

    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "old/%d", i);
        use(never, key);
    }
    client = fixture_open_with("?keep=1ms");
    t_sleep_ms(10);
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof(key), "new/%d", i);
        use(client, key);
    }
    CHECK_LT(count_files(), 250);
    hf_close(never);
    hf_close(client);
}

T_MAIN
