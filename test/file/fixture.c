/* SPDX-License-Identifier: MIT
 *
 * fixture.c - see fixture.h.
 */
#include "fixture.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

const char *fixture_path(const char *fmt, ...)
{
    static _Thread_local char paths[8][512];
    static _Thread_local int next;
    char *ret = paths[next++ % 8];
    size_t len = (size_t)snprintf(ret, 256, "%s/", t_tmpdir());
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(ret + len, 256, fmt, ap);
    va_end(ap);
    return ret;
}

const char *fixture_file(void)
{
    return fixture_path("locks/job.lock");
}

hf_status fixture_open_at(const char *dir, hf_client **ret)
{
    char url[600];

    snprintf(url, sizeof(url), "file:%s", dir);
    return hf_open(url, NULL, ret, &t_err);
}

hf_client *fixture_open_with(const char *options)
{
    hf_client *client = NULL;

    mkdir(fixture_path("locks"), 0700);
    t_check_status(__FILE__, __LINE__, "hf_open(&t_err)",
                   fixture_open_at(fixture_path("locks%s", options), &client),
                   HF_OK);
    return client;
}

hf_client *fixture_open(void)
{
    return fixture_open_with("");
}

struct hf_info fixture_inspect(hf_client *client)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    return info;
}

struct hf_lock_opts fixture_opts(unsigned flags, int32_t permits)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.flags = flags;
    opts.permits = permits;
    return opts;
}

hf_lock *fixture_acquire(hf_client *client, struct hf_lock_opts opts)
{
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "job", 0, &opts, &lk, &t_err));
    return lk;
}

hf_status fixture_try(hf_client *client, struct hf_lock_opts opts)
{
    hf_lock *lk = NULL;
    hf_status st = hf_acquire(client, "job", 0, &opts, &lk, &t_err);

    if (!st)
        CHECK_OK(hf_release(lk, &t_err));
    return st;
}

hf_status fixture_try_flock(int mode)
{
    int fd = open(fixture_file(), O_RDWR | O_CLOEXEC), st;

    CHECK_GE(fd, 0);
    st = flock(fd, mode | LOCK_NB);
    close(fd);
    return st ? HF_BUSY : HF_OK;
}

void fixture_wait_for_it(struct t_peer *up, void *arg)
{
    const struct hf_lock_opts *opts = arg;
    hf_client *client = fixture_open();
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, "job", -1, opts, &lk, &t_err));
    t_tell(up, hf_slot(lk));
    t_hear(up);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

static bool fixture_add_holder(void *arg, const struct hf_info *holder)
{
    struct fixture_holders *ret = arg;

    CHECK_LT(ret->n, 8);
    ret->holder[ret->n++] = *holder;
    return true;
}

struct fixture_holders fixture_holders(hf_client *client)
{
    struct fixture_holders ret = {.n = 0};

    CHECK_OK(hf_holders(client, "job", fixture_add_holder, &ret, &t_err));
    return ret;
}

static void fixture_flock_until_told(struct t_peer *up, int mode)
{
    int fd = open(fixture_file(), O_RDWR | O_CLOEXEC);

    CHECK_EQ(flock(fd, mode), 0);
    t_tell(up, 0);
    t_hear(up);
    close(fd);
}

void fixture_flock(struct t_peer *up, void *arg)
{
    (void)arg;
    fixture_flock_until_told(up, LOCK_EX);
}

void fixture_flock_shared(struct t_peer *up, void *arg)
{
    (void)arg;
    fixture_flock_until_told(up, LOCK_SH);
}

void fixture_write(const char *name, const char *text)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    CHECK_GE(fd, 0);
    CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

int fixture_shell(const char *fmt, ...)
{
    char cmd[1200];
    va_list ap;
    int status;

    va_start(ap, fmt);
    vsnprintf(cmd, sizeof(cmd), fmt, ap);
    va_end(ap);
    status = system(cmd);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

void fixture_mount(const char *dir)
{
    CHECK_EQ(mkdir(dir, 0700), 0);
    if (unshare(CLONE_NEWNS) ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", dir, "tmpfs", 0, "size=64k,mode=0700"))
        T_SKIP_HOST("no mount namespace can be made");
}

struct rlimit fixture_limit_descriptors(int more)
{
    struct rlimit old, now;
    int fd;

    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    fd = dup(0);
    CHECK_GE(fd, 0);
    close(fd);
    now = old;
    now.rlim_cur = (rlim_t)fd + (rlim_t)more;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
    return old;
}
