/* SPDX-License-Identifier: MIT
 *
 * sqlite_bell.c - a release wakes those who wait for the lock in a database
 * file, whoever releases it, by whatever name, and whatever others have put
 * beside the file.  The lease is so long that nobody is woken by its end.
 */
#include "../t.h"

#include <dirent.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEASE_MS = 120000, WOKEN_MS = 20000, NOBODY = 65534 };

static const char *path_of(const char *name)
{
    static char path[256];

    snprintf(path, sizeof(path), "%s/%s", t_tmpdir(), name);
    return path;
}

static hf_client *open_db(const char *name)
{
    hf_client *client = NULL;
    char url[300];

    snprintf(url, sizeof(url), "sqlite:%s", path_of(name));
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

static void need_root(void)
{
    if (geteuid())
        T_SKIP_HOST("only root can be two users");
}

static void become_nobody(void)
{
    CHECK_EQ(setgroups(0, NULL), 0);
    CHECK_EQ(setresgid(NOBODY, NOBODY, NOBODY), 0);
    CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
}

/* Take the lock, and release it when told to. */
static void hold(struct t_peer *up, bool as_nobody)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client;
    hf_lock *lk;

    if (as_nobody)
        become_nobody();
    client = open_db("x.db");
    opts.ttl_ms = LEASE_MS;
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    t_tell(up, 1);
    t_hear(up);
    CHECK_OK(hf_release(lk, &t_err));
    t_tell(up, 2);
    hf_close(client);
}

static void hold_as_nobody(struct t_peer *up, void *arg)
{
    (void)arg;
    hold(up, true);
}

static void hold_as_we_are(struct t_peer *up, void *arg)
{
    (void)arg;
    hold(up, false);
}

/* Wait for what the peer holds; `meanwhile` is a command of the shell. */
static void woken(struct t_peer *peer, const char *name, const char *meanwhile)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_event event = HF_EVENT_INIT;
    char command[512];
    hf_client *client;
    hf_request *req;

    opts.ttl_ms = LEASE_MS;
    CHECK_EQ(t_hear(peer), 1);
    client = open_db(name);
    CHECK_OK(hf_acquire_start(client, "k", 60000, &opts, NULL, &req, &t_err));
    t_poll_until(access(path_of("x.db-bells"), F_OK) == 0, WOKEN_MS);
    t_sleep_ms(300); /* It cannot be asked whether the waiter sleeps. */
    snprintf(command, sizeof(command), "cd %s && { %s; }", t_tmpdir(),
             meanwhile);
    CHECK_EQ(system(command), 0);
    t_tell(peer, 0);
    CHECK_EQ(t_hear(peer), 2);
    t_poll_until(hf_next_event(client, &event), WOKEN_MS);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_OK(hf_release(event.lock, &t_err));
    hf_close(client);
    t_join(peer);
}

TEST(a_release_by_another_user_wakes_a_waiter)
{
    struct t_peer peer;
    struct stat sb;

    need_root();
    CHECK_EQ(chmod(t_tmpdir(), 0777), 0);
    umask(0);
    hf_close(open_db("x.db"));
    CHECK_EQ(chmod(path_of("x.db"), 0666), 0);
    peer = t_fork(hold_as_nobody, NULL);
    umask(077); /* This is not for the bells, which go by the database. */
    woken(&peer, "x.db", "true");
    CHECK_EQ(stat(path_of("x.db-bells"), &sb), 0);
    CHECK_EQ(sb.st_mode & 0777, 0777);
}

TEST(a_release_wakes_a_waiter_that_came_by_a_symbolic_link)
{
    struct t_peer peer = t_fork(hold_as_we_are, NULL);

    CHECK_EQ(symlink("x.db", path_of("link.db")), 0);
    woken(&peer, "link.db", "true");
    CHECK_NE(access(path_of("link.db-bells"), F_OK), 0);
}

/* How many bells there are that all who wait for a key hear. */
static int bells_of_keys(void)
{
    DIR *dir = opendir(path_of("x.db-bells"));
    struct dirent *entry;
    int n = 0;

    CHECK(dir);
    while ((entry = readdir(dir)))
        n += entry->d_name[0] != '.' && strcmp(entry->d_name, "waiters") != 0;
    closedir(dir);
    return n;
}

TEST(a_release_wakes_the_one_who_gets_the_lock)
{
    struct t_peer peer = t_fork(hold_as_we_are, NULL);

    woken(&peer, "x.db", "true");
    CHECK_EQ(bells_of_keys(), 0);
}

TEST(a_release_wakes_a_waiter_after_the_bells_were_removed)
{
    struct t_peer peer = t_fork(hold_as_we_are, NULL);

    woken(&peer, "x.db", "rm -rf x.db-bells");
}

static void plant(struct t_peer *up, void *arg)
{
    char name[32];

    (void)arg;
    become_nobody();
    CHECK_EQ(mkdir(path_of("x.db-bells"), 0777), 0);
    for (int i = 0; i < 256; i++) {
        snprintf(name, sizeof(name), "x.db-bells/%02x", (unsigned)i);
        CHECK_EQ(mkfifo(path_of(name), 0666), 0);
    }
    t_tell(up, 1);
}

TEST(bells_that_a_stranger_has_planted_hold_up_nobody)
{
    struct t_peer peer;

    need_root();
    CHECK_EQ(chmod(t_tmpdir(), 01777), 0);
    umask(0);
    peer = t_fork(plant, NULL);
    CHECK_EQ(t_hear(&peer), 1);
    t_join(&peer);
    umask(077);
    peer = t_fork(hold_as_we_are, NULL);
    woken(&peer, "x.db", "true");
}

/* ---- after a fork -------------------------------------------------------- */

/* How many descriptors of this process lead to a name with that in it. */
static int leads_to(const char *text)
{
    DIR *dir = opendir("/proc/self/fd");
    char target[512];
    struct dirent *entry;
    int count = 0;

    CHECK(dir != NULL);
    while ((entry = readdir(dir))) {
        ssize_t len =
            readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

        target[len > 0 ? len : 0] = '\0';
        count += strstr(target, text) != NULL;
    }
    closedir(dir);
    return count;
}

static void close_in_the_child(struct t_peer *up, void *arg)
{
    (void)up;
    CHECK_GT(leads_to("-bells"), 0);
    hf_close(arg);
    CHECK_EQ(leads_to("-bells"), 0);
    CHECK_EQ(leads_to("inotify"), 0);
}

TEST(a_forked_child_closes_the_bells)
{
    struct t_peer holder = t_fork(hold_as_we_are, NULL), child;
    hf_client *client = NULL;
    hf_lock *lk = NULL;

    CHECK_EQ(t_hear(&holder), 1);
    client = open_db("x.db");
    CHECK_STATUS(hf_acquire(client, "k", 100, NULL, &lk, &t_err), HF_TIMEOUT);
    child = t_fork(close_in_the_child, client);
    t_join(&child);
    hf_close(client);
    t_tell(&holder, 0);
    CHECK_EQ(t_hear(&holder), 2);
    t_join(&holder);
}

T_MAIN
