/* SPDX-License-Identifier: MIT
 *
 * lockfile.c - what can happen to one lock file of `file:` while it is in use:
 * its name leads elsewhere, strangers lock bytes of it, it is replaced by
 * force, it cannot be written.
 */
#include "../t.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where the bytes of holders begin (src/backend/file/acquire.c). */
#define HOLD_AT (((off_t)1 << 40) + 2)

/* A path in this test's directory; good for the next seven calls. */
static const char *path(const char *name)
{
    static char paths[8][512];
    static int next;
    char *ret = paths[next++ % 8];

    snprintf(ret, sizeof(paths[0]), "%s/%s", t_tmpdir(), name);
    return ret;
}

/* A client on a directory of locks that is there. */
static hf_client *open_locks(void)
{
    hf_client *client = NULL;
    char url[600];

    mkdir(path("locks"), 0700);
    snprintf(url, sizeof(url), "file:%s", path("locks"));
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

static struct hf_info look(hf_client *client)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    return info;
}

/* ---- names ------------------------------------------------------------- */

static void move_it(hf_client *client, const hf_lock *lk)
{
    (void)client, (void)lk;
    CHECK_EQ(rename(path("locks/job.lock"), path("locks/old")), 0);
}

static void link_and_remove_it(hf_client *client, const hf_lock *lk)
{
    (void)client, (void)lk;
    CHECK_EQ(link(path("locks/job.lock"), path("locks/old")), 0);
    CHECK_EQ(unlink(path("locks/job.lock")), 0);
}

static void link_and_force_it(hf_client *client, const hf_lock *lk)
{
    CHECK_EQ(link(path("locks/job.lock"), path("locks/old")), 0);
    CHECK_OK(hf_break_force(client, "job", hf_fence(lk), &t_err));
}

/* Whoever waits gets the lock of the name, and not one that others, who open
 * the name, do not see. */
static void check_waiter(void (*take_name)(hf_client *, const hf_lock *))
{
    hf_client *client = open_locks(), *other = open_locks();
    struct hf_event event = {0};
    hf_lock *lk, *none = NULL;
    hf_request *request;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_acquire_start(other, "job", -1, NULL, NULL, &request, &t_err));
    t_poll_until(look(client).waiters == 1, 20000);
    take_name(client, lk);
    t_poll_until(hf_next_event(other, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_STATUS(hf_acquire(client, "job", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK(hf_held(event.lock));
    CHECK_EQ(look(client).fence, hf_fence(event.lock));
    hf_release(lk, NULL);
    CHECK(hf_held(event.lock));
    CHECK_OK(hf_release(event.lock, &t_err));
    hf_close(client);
    hf_close(other);
}

TEST(a_waiter_of_a_file_that_is_renamed_gets_the_lock_of_the_name)
{
    check_waiter(move_it);
}

TEST(a_waiter_of_a_file_with_two_names_gets_the_lock_of_the_keys_name)
{
    check_waiter(link_and_remove_it);
}

TEST(a_waiter_gets_the_file_that_a_break_by_force_made)
{
    check_waiter(link_and_force_it);
}

T_MAIN
