/* SPDX-License-Identifier: MIT
 *
 * sqlite_observe.c - an observer of a database file hears of what other processes
 * commit, whoever they are and however slow, asks nothing while they do not, and
 * goes on when the file is replaced.  The core looks by itself after 15 seconds, so
 * who is told before has heard it.
 */
#include "../t.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TOLD_MS = 10000 };

static const char *path_of(const char *suffix)
{
    static char path[256];

    snprintf(path, sizeof(path), "%s/x.db%s", t_tmpdir(), suffix);
    return path;
}

static hf_client *open_client(void)
{
    hf_client *client = NULL;
    char url[300];

    snprintf(url, sizeof(url), "sqlite:%s", path_of(""));
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

static uint64_t requests(hf_client *client)
{
    struct hf_stats stats = HF_STATS_INIT;

    CHECK_OK(hf_stats(client, &stats, &t_err));
    return stats.requests;
}

static hf_lock *take(hf_client *client)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk;

    opts.ttl_ms = 600000;
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    return lk;
}

/* Is this what it was told last? */
static bool says(hf_observer *observer, bool held)
{
    static struct hf_change last;
    static hf_observer *of;

    if (of != observer)
        last = (struct hf_change)HF_CHANGE_INIT;
    of = observer;
    while (hf_observer_next(observer, &last))
        continue;
    return last.key[0] && last.info.held == held;
}

static hf_observer *observe(hf_client *client, bool held)
{
    hf_observer *observer;

    CHECK_OK(hf_observe_start(client, "k", 0, NULL, &observer, &t_err));
    t_poll_until(says(observer, held), TOLD_MS);
    return observer;
}

static void take_turns(struct t_peer *up, void *arg)
{
    hf_client *client = open_client();
    hf_lock *lk;

    (void)arg;
    while (t_hear(up) == 1) {
        lk = take(client);
        t_tell(up, 1);
        t_hear(up);
        CHECK_OK(hf_release(lk, &t_err));
        t_tell(up, 1);
    }
    hf_close(client);
}

TEST_TIMEOUT(another_process_is_heard_and_nothing_is_asked_before, 90)
{
    struct t_peer peer = t_fork(take_turns, NULL);
    hf_client *client = open_client();
    hf_observer *observer = observe(client, false);
    uint64_t before;

    for (int i = 0; i < 5; i++) {
        t_tell(&peer, 1);
        t_poll_until(says(observer, true), TOLD_MS);
        t_hear(&peer);
        t_tell(&peer, 1);
        t_poll_until(says(observer, false), TOLD_MS);
        t_hear(&peer);
        t_sleep_ms(300); /* looks that are still due */
        before = requests(client);
        t_sleep_ms(i < 2 ? 3000 : 0);
        CHECK_LE(requests(client) - before, 3); /* 12 looks, if it polled */
    }
    t_tell(&peer, 2);
    hf_observe_stop(observer);
    hf_close(client);
    t_join(&peer);
}

/* An observer of nothing that happens is busy at most as its gaps say. */
TEST_TIMEOUT(commits_of_other_keys_bring_few_looks, 60)
{
    hf_client *a = open_client(), *b = open_client();
    hf_observer *observer = observe(b, false);
    uint64_t before = requests(b);
    int64_t begin = t_now_ms();
    hf_lock *lk;

    for (int i = 0; i < 2000; i++) {
        CHECK_OK(hf_acquire(a, "other", 0, NULL, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    /* A look is up to three requests. */
    CHECK_LE(requests(b) - before,
             3 * (uint64_t)((t_now_ms() - begin) / 20 + 2));
    hf_observe_stop(observer);
    hf_close(a);
    hf_close(b);
}

/* ---- a writer that is slow between its last write and its commit -------- */

static const sqlite3_io_methods *slow_real;

static int slow_write(sqlite3_file *file, const void *data, int len,
                      sqlite3_int64 at)
{
    int code = slow_real->xWrite(file, data, len, at);

    t_sleep_ms(500);
    return code;
}

/* Remove the row of the lock, as an operator may. */
static void free_it_slowly(struct t_peer *up, void *arg)
{
    static sqlite3_io_methods slow;
    sqlite3_file *file;
    sqlite3 *db;

    (void)arg;
    t_hear(up);
    CHECK_EQ(sqlite3_open(path_of(""), &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 20000);
    CHECK_EQ(sqlite3_exec(db, "SELECT 1 FROM holdfast_lock", 0, 0, 0),
             SQLITE_OK);
    CHECK_EQ(
        sqlite3_file_control(db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &file),
        SQLITE_OK);
    slow_real = file->pMethods;
    slow = *slow_real;
    slow.xWrite = slow_write;
    file->pMethods = &slow;
    CHECK_EQ(sqlite3_exec(db, "DELETE FROM holdfast_lock", 0, 0, 0), SQLITE_OK);
    file->pMethods = slow_real;
    t_tell(up, 1);
    t_hear(up); /* A last one who closes would write, too. */
    sqlite3_close(db);
}

TEST_TIMEOUT(a_look_does_not_come_before_the_commit, 90)
{
    struct t_peer peer = t_fork(free_it_slowly, NULL);
    hf_client *a = open_client(), *b = open_client();
    hf_lock *lk = take(a);
    hf_observer *observer = observe(b, true);

    t_tell(&peer, 1);
    t_hear(&peer);
    t_poll_until(says(observer, false), TOLD_MS);
    t_tell(&peer, 1);
    t_join(&peer);
    hf_observe_stop(observer);
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(a_database_that_is_replaced_is_heard_of, 90)
{
    hf_client *a = open_client(), *b = open_client(), *c;
    hf_lock *lk = take(a), *next;
    hf_observer *observer = observe(b, true);

    CHECK_EQ(unlink(path_of("")), 0);
    CHECK_EQ(unlink(path_of("-wal")), 0);
    CHECK_EQ(unlink(path_of("-shm")), 0);
    t_poll_until(says(observer, false), TOLD_MS);
    c = open_client();
    next = take(c);
    t_poll_until(says(observer, true), TOLD_MS);
    CHECK_OK(hf_release(next, &t_err));
    t_poll_until(says(observer, false), TOLD_MS);
    hf_observe_stop(observer);
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

/* While a program holds the lock for writers open, a look is not kept waiting. */
TEST_TIMEOUT(a_long_transaction_keeps_no_look_waiting, 60)
{
    hf_client *a = open_client(), *b = open_client();
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk = take(a);
    hf_observer *observer = observe(b, true), *second;
    sqlite3 *db;

    CHECK_EQ(sqlite3_open(path_of(""), &db), SQLITE_OK);
    CHECK_EQ(sqlite3_exec(db, "BEGIN IMMEDIATE", 0, 0, 0), SQLITE_OK);
    CHECK_OK(hf_inspect(b, "k", &info, &t_err));
    CHECK_EQ(info.fence, hf_fence(lk));
    CHECK_OK(hf_observe_start(b, "", HF_PREFIX, NULL, &second, &t_err));
    t_poll_until(says(second, true), TOLD_MS);
    CHECK_EQ(sqlite3_exec(db, "COMMIT", 0, 0, 0), SQLITE_OK);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(says(second, false), TOLD_MS);
    t_poll_until(says(observer, false), TOLD_MS);
    hf_observe_stop(second);
    hf_observe_stop(observer);
    sqlite3_close(db);
    hf_close(a);
    hf_close(b);
}

/* Take the key and give it back.  Returns its fence. */
static uint64_t use(hf_client *client, const char *key)
{
    uint64_t fence;
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    return fence;
}

/* Has it been told of a key that is free after this grant?  Never of an old one. */
static bool says_free(hf_observer *observer, const char *key, uint64_t fence)
{
    struct hf_change change = HF_CHANGE_INIT;

    while (hf_observer_next(observer, &change)) {
        CHECK(strncmp(change.key, "old", 3) != 0);
        if (!strcmp(change.key, key) && !change.info.held &&
            change.info.fence == fence)
            return true;
    }
    return false;
}

/* Below a prefix a key that was free at the last look and is so at this one. */
TEST_TIMEOUT(a_term_between_two_looks_at_a_prefix_is_told, 90)
{
    hf_client *a = open_client(), *b = open_client();
    hf_lock *lk = take(a);
    hf_observer *observer;
    uint64_t fence;
    char key[16];

    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof(key), "old%d", i);
        use(a, key);
    }
    CHECK_OK(hf_observe_start(b, "", HF_PREFIX, NULL, &observer, &t_err));
    t_poll_until(says(observer, true), TOLD_MS);
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        fence = use(a, key);
        t_poll_until(says_free(observer, key, fence), TOLD_MS);
    }
    hf_observe_stop(observer);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

T_MAIN
