/* SPDX-License-Identifier: MIT
 *
 * sqlite_file.c - a database is a file, which people remove, replace, link and
 * restore, and whose name may mean no file at all.
 */
#include "../t.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static const char *path_of(const char *name)
{
    static char path[256];

    snprintf(path, sizeof(path), "%s/%s", t_tmpdir(), name);
    return path;
}

static const char *url_of(const char *name)
{
    static char url[300];

    snprintf(url, sizeof(url), "sqlite:%s", path_of(name));
    return url;
}

static hf_client *open_url(const char *url)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

static hf_lock *take(hf_client *client, const char *key, int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.ttl_ms = ttl_ms;
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    return lk;
}

/* Run a command of the shell in the directory of the databases. */
static void shell(const char *command)
{
    char text[512];

    snprintf(text, sizeof(text), "cd %s && { %s; }", t_tmpdir(), command);
    CHECK_EQ(system(text), 0);
}

static void run_sql(const char *sql)
{
    sqlite3 *db;

    CHECK_EQ(sqlite3_open(path_of("x.db"), &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    CHECK_EQ(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void refused(const char *url, hf_status want, const char *word)
{
    hf_client *client = NULL;

    CHECK_STATUS(hf_open(url, NULL, &client, &t_err), want);
    if (!strstr(t_err.text, word))
        t_fail(__FILE__, __LINE__, "'%s' does not say '%s'", t_err.text, word);
}

/* ---- removed and replaced ------------------------------------------------ */

/* Another process, which takes the lock in the file that is there now; it tells
 * its fence and releases when it is told to. */
static void take_next(struct t_peer *up, void *arg)
{
    hf_client *client;
    hf_lock *lk;

    (void)arg;
    t_hear(up);
    client = open_url(url_of("x.db"));
    lk = take(client, "k", 3000);
    t_tell(up, (int64_t)hf_fence(lk));
    t_hear(up);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* Somebody does that to the files of a holder: it is told by its next renewal,
 * and the other process has a higher fence. */
static void told(const char *command)
{
    struct t_peer peer = t_fork(take_next, NULL);
    hf_client *client = open_url(url_of("x.db"));
    hf_lock *lk;

    hf_release(take(client, "other", 3000), NULL);
    shell("[ -h x.db ] || cp x.db backup");
    lk = take(client, "k", 3000);
    shell(command);
    t_tell(&peer, 0);
    CHECK_GT(t_hear(&peer), hf_fence(lk));
    t_poll_until(!hf_held(lk), 2500);
    CHECK(hf_lost_reason(lk) == HF_LOSS_STOLEN ||
          hf_lost_reason(lk) == HF_LOSS_DELETED);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    t_tell(&peer, 0);
    t_join(&peer);
    hf_close(client);
}

TEST(a_holder_is_told_that_the_database_was_removed)
{
    told("rm -f x.db x.db-wal x.db-shm");
}

TEST(a_holder_is_told_that_a_backup_took_the_place_of_the_database)
{
    told("rm -f x.db-wal x.db-shm && mv backup x.db");
}

TEST(a_holder_is_told_that_a_backup_was_written_over_the_database)
{
    told("cat backup >x.db && rm -f x.db-wal x.db-shm");
}

TEST(a_holder_is_told_that_a_symbolic_link_leads_elsewhere)
{
    shell("ln -s one.db x.db");
    told("ln -sfn two.db x.db");
}

TEST(nothing_is_granted_in_a_file_that_is_gone)
{
    hf_client *a = open_url(url_of("x.db")), *b;
    hf_lock *lk, *none = NULL;

    hf_release(take(a, "k", 3000), NULL);
    shell("rm -f x.db x.db-wal x.db-shm");
    lk = take(a, "k", 3000);
    b = open_url(url_of("x.db"));
    CHECK_STATUS(hf_acquire(b, "k", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST(a_client_is_never_granted_a_lower_fence_by_an_older_file)
{
    hf_client *client = open_url(url_of("x.db"));
    hf_lock *lk = take(client, "k", 3000);
    uint64_t fence;

    CHECK_OK(hf_release(lk, &t_err));
    run_sql("UPDATE holdfast_lock SET fence=fence+3600000000");
    lk = take(client, "k", 3000);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    shell("rm -f x.db x.db-wal x.db-shm");
    lk = take(client, "k", 3000);
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST(nor_are_several_in_an_older_file_or_in_one_that_is_gone)
{
    const char *keys[] = {"a", "b", "c"};
    hf_client *client = open_url(url_of("x.db")), *other;
    hf_lock *locks[3], *none = NULL;
    uint64_t fence = 0;

    for (int turn = 0; turn < 3; turn++) {
        CHECK_OK(hf_acquire_all(client, keys, 3, 0, NULL, locks, &t_err));
        other = open_url(url_of("x.db"));
        for (int i = 0; i < 3; i++) {
            CHECK_GT(hf_fence(locks[i]), fence);
            CHECK_STATUS(hf_acquire(other, keys[i], 0, NULL, &none, &t_err),
                         HF_BUSY);
            CHECK_OK(hf_check(client, keys[i], hf_fence(locks[i]), &t_err));
        }
        fence = hf_fence(locks[2]);
        for (int i = 0; i < 3; i++)
            CHECK_OK(hf_release(locks[i], &t_err));
        hf_close(other);
        if (!turn)
            run_sql("UPDATE holdfast_lock SET fence=fence+3600000000");
        else
            shell("rm -f x.db x.db-wal x.db-shm");
    }
    hf_close(client);
}

struct waiter {
    hf_client *client;
    struct hf_lock_opts opts;
    hf_lock *lk;
};

static void *await(void *arg)
{
    struct waiter *w = arg;

    CHECK_OK(hf_acquire(w->client, "k", 20000, &w->opts, &w->lk, &t_err));
    return NULL;
}

/* The next holder of a new file, who knows nothing of that, passes it on. */
static void passed_on(unsigned flags)
{
    struct t_peer peer = t_fork(take_next, NULL);
    struct waiter w = {open_url(url_of("x.db")), HF_LOCK_OPTS_INIT, NULL};
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk = take(w.client, "k", 3000);
    pthread_t thread;
    uint64_t fence;

    CHECK_OK(hf_release(lk, &t_err));
    run_sql("UPDATE holdfast_lock SET fence=fence+3600000000");
    lk = take(w.client, "k", 3000);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    shell("rm -f x.db x.db-wal x.db-shm");
    t_tell(&peer, 0);
    CHECK_LT(t_hear(&peer), fence);
    w.opts.flags = flags;
    CHECK_EQ(pthread_create(&thread, NULL, await, &w), 0);
    do
        CHECK_OK(hf_inspect(w.client, "k", &info, &t_err));
    while (!info.waiters);
    t_tell(&peer, 0);
    pthread_join(thread, NULL);
    CHECK_GT(hf_fence(w.lk), fence);
    CHECK_OK(hf_extend(w.lk, 0, &t_err));
    CHECK_OK(hf_release(w.lk, &t_err));
    t_join(&peer);
    lk = take(w.client, "k", 3000);
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(w.client);
}

TEST(a_client_is_never_passed_a_lower_fence_by_an_older_file)
{
    passed_on(0);
}

TEST(a_reader_is_never_passed_a_lower_fence_by_an_older_file)
{
    passed_on(HF_SHARED);
}

TEST(a_relative_path_means_the_same_file_after_a_chdir)
{
    hf_client *client;
    hf_lock *lk;

    CHECK_EQ(chdir(t_tmpdir()), 0);
    client = open_url("sqlite:x.db");
    lk = take(client, "k", 3000);
    CHECK_EQ(chdir("/"), 0);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    CHECK_EQ(access(path_of("x.db"), F_OK), 0);
}

/* ---- forks ---------------------------------------------------------------- */

static void open_in_a_child(struct t_peer *up, void *arg)
{
    (void)up;
    (void)arg;
    refused(url_of("x.db"), HF_UNSUPPORTED, "fork");
    hf_close(open_url(url_of("other.db")));
    hf_close(open_url(url_of("closed.db")));
}

/* SQLite would take the parent's locks for those of the child. */
TEST(a_forked_child_cannot_open_what_its_parent_has_open)
{
    hf_client *client = open_url(url_of("x.db"));
    struct t_peer child;
    hf_lock *lk;

    hf_close(open_url(url_of("closed.db")));
    child = t_fork(open_in_a_child, NULL);
    t_join(&child);
    lk = take(client, "k", 3000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    child = t_fork(take_next, NULL);
    t_tell(&child, 0);
    t_hear(&child);
    t_tell(&child, 0);
    t_join(&child);
}

/* ---- names --------------------------------------------------------------- */

TEST(a_name_that_means_a_database_in_memory_is_refused)
{
    refused("sqlite:", HF_INVALID, "takes a file");
    refused("sqlite::memory:", HF_INVALID, "mem:");
    refused("sqlite:%3Amemory:", HF_INVALID, "mem:");
    refused("sqlite:file::memory:", HF_INVALID, "mem:");
    refused("sqlite:file:x%3Fmode=memory", HF_INVALID, "mem:");
}

TEST(a_database_with_two_names_is_refused)
{
    hf_close(open_url(url_of("x.db")));
    shell("ln x.db y.db");
    refused(url_of("y.db"), HF_UNSUPPORTED, "hard links");
    shell("rm y.db");
    hf_close(open_url(url_of("x.db")));
}

/* In a mount namespace of its own. */
static void open_mounted(struct t_peer *up, void *arg)
{
    char first[256];

    (void)arg;
    snprintf(first, sizeof(first), "%s", path_of("x.db"));
    if (unshare(CLONE_NEWNS) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, 0) ||
        mount(first, path_of("box/x.db"), NULL, MS_BIND, NULL)) {
        t_tell(up, false);
        return;
    }
    t_tell(up, true);
    refused(url_of("box/x.db"), HF_UNSUPPORTED, "mount the directory");
    CHECK_NE(access(path_of("box/x.db-wal"), F_OK), 0);
    hf_close(open_url(url_of("x.db")));
}

TEST(a_database_that_is_mounted_as_a_single_file_is_refused)
{
    struct t_peer child;
    bool mounted;

    hf_close(open_url(url_of("x.db")));
    shell("mkdir box && touch box/x.db");
    child = t_fork(open_mounted, NULL);
    mounted = t_hear(&child);
    t_join(&child);
    if (!mounted)
        T_SKIP_HOST("mounts");
}

/* ---- containers with another clock --------------------------------------- */

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static bool other_boot_id(void)
{
    shell("cat /proc/sys/kernel/random/uuid >boot_id");
    return !unshare(CLONE_NEWNS) &&
           !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, 0) &&
           !mount(path_of("boot_id"), "/proc/sys/kernel/random/boot_id", NULL,
                  MS_BIND, NULL);
}

static bool other_clock(void)
{
    static const char shift[] = "boottime 100000 0\n";
    bool ok = !unshare(CLONE_NEWTIME);
    int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);

    ok = ok && fd >= 0 &&
         write(fd, shift, strlen(shift)) == (ssize_t)strlen(shift);
    close(fd);
    fd = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
    ok = ok && fd >= 0 && !setns(fd, CLONE_NEWTIME);
    close(fd);
    return ok;
}

/* Leases of others would be over by that clock or that boot id.  Versions need
 * neither. */
static void open_contained(struct t_peer *up, void *arg)
{
    bool ok = (*(bool (**)(void))arg)();

    t_tell(up, ok);
    if (!ok)
        return;
    refused(url_of("x.db"), HF_UNSUPPORTED, "strategy=version");
    hf_close(open_url(url_of("x.db?strategy=version&table=v")));
}

static void contained(bool (*how)(void))
{
    struct t_peer child;
    bool ok;

    hf_close(open_url(url_of("x.db")));
    child = t_fork(open_contained, &how);
    ok = t_hear(&child);
    t_join(&child);
    if (!ok)
        T_SKIP_HOST("namespaces");
}

TEST(a_container_with_a_boot_id_of_its_own_is_refused)
{
    contained(other_boot_id);
}

TEST(a_container_with_a_clock_of_its_own_is_refused)
{
    contained(other_clock);
}

T_MAIN
