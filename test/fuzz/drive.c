/* SPDX-License-Identifier: MIT
 *
 * drive.c - all that the core asks of a backend; see drive.h.
 */
#include "drive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/env.h"

struct fuzz_input fuzz_input;

uint8_t fuzz_byte(void)
{
    if (!fuzz_input.left)
        return 0;
    fuzz_input.left--;
    return *fuzz_input.at++;
}

struct fuzz_input fuzz_until(uint8_t end)
{
    struct fuzz_input part = {fuzz_input.at, 0};

    while (fuzz_input.left && *fuzz_input.at != end) {
        fuzz_byte();
        part.left++;
    }
    fuzz_byte();
    return part;
}

void fuzz_wrong(const char *what)
{
    fprintf(stderr, "the backend breaks a rule: %s\n", what);
    abort();
}

/* ---- a world in which time passes by looking at it ----------------------- */

static int64_t clock_ms;

static int64_t world_now(void)
{
    return clock_ms += 5;
}

static void world_random(void *buf, size_t len)
{
    memset(buf, 0x5a, len);
}

static void world_wait(struct hfi_cond *cond, pthread_mutex_t *mu,
                       int64_t until)
{
    (void)cond;
    (void)mu;
    if (until > clock_ms && until < INT64_MAX / 2)
        clock_ms = until;
}

static void world_wake(struct hfi_cond *cond)
{
    (void)cond;
}

/* No thread is to be had. */
static bool world_start(struct hfi_thread *thread, void *(*run)(void *),
                        void *arg)
{
    (void)thread;
    (void)run;
    (void)arg;
    return false;
}

static const struct hfi_env world = {.now = world_now,
                                     .start = world_start,
                                     .random = world_random,
                                     .wait = world_wait,
                                     .wake = world_wake};

/* What a backend tells the core: nobody listens here. */
void hfi_wake(struct hfi_conn *conn, const char *key, const char *token)
{
    (void)conn;
    (void)token;
    if (!strlen(key))
        fuzz_wrong("woke a key without a name");
}

void hfi_granted(struct hfi_conn *conn, const char *key, const char *token,
                 uint32_t nth, uint64_t fence, int32_t slot, int64_t ms)
{
    (void)nth;
    (void)slot;
    (void)ms;
    hfi_wake(conn, key, token);
    if (!fence)
        fuzz_wrong("told of a grant without a fence");
}

void hfi_wake_all(struct hfi_conn *conn)
{
    (void)conn;
}

void hfi_warn(struct hfi_conn *conn, const char *text)
{
    (void)conn;
    if (!strlen(text))
        fuzz_wrong("a warning without a text");
}

void hfi_expect(struct hfi_conn *conn, const char *key, const char *token,
                int64_t ms)
{
    (void)ms;
    hfi_wake(conn, key, token);
}

void hfi_wanted(struct hfi_conn *conn, const char *key)
{
    hfi_wake(conn, key, NULL);
}

void hfi_gone(struct hfi_conn *conn, const char *key, const char *token,
              hf_loss reason)
{
    hfi_wake(conn, key, token);
    if (reason == HF_LOSS_NONE)
        fuzz_wrong("a loss without a reason");
}

void hfi_changed(struct hfi_conn *conn, struct hfi_observation *observation,
                 const char *key)
{
    (void)conn, (void)observation, (void)key;
}

void hfi_poll_fd_changed(struct hfi_conn *conn)
{
    (void)conn;
}

/* ---- the questions ------------------------------------------------------ */

struct drive {
    const struct hfi_backend *be;
    struct hfi_conn *conn;
    struct hfi_claim claim;
    struct hfi_receipt receipt;
    struct hf_error err;
};

static int64_t soon(void)
{
    return hfi_now() + 1000;
}

/* A message is one line. */
static void check_status(const struct drive *d, hf_status st)
{
    if ((int)st < HF_OK || st > HF_SYSTEM)
        fuzz_wrong("a status that does not exist");
    if (!memchr(d->err.text, '\0', sizeof(d->err.text)) ||
        strpbrk(d->err.text, "\n\r"))
        fuzz_wrong("a message of more than one line");
}

static void check_info(const struct hf_info *info)
{
    if (!memchr(info->owner, '\0', sizeof(info->owner)) ||
        !memchr(info->note, '\0', sizeof(info->note)))
        fuzz_wrong("a text without an end");
}

static bool each(void *arg, const char *key, const struct hf_info *info)
{
    (void)arg;
    if (!*key || strlen(key) > HF_KEY_MAX)
        fuzz_wrong("listed what cannot be a key");
    check_info(info);
    return true;
}

static void drive_acquire(struct drive *d)
{
    struct hfi_answer busy = {0};
    hf_status st = d->be->try_acquire(d->conn, &d->claim, &d->receipt, &busy,
                                      soon(), &d->err);

    check_status(d, st);
    if (st == HF_OK && !d->receipt.registered)
        fuzz_wrong("a grant of which nothing is kept");
    if (st == HF_OK && d->conn->traits & HF_TRAIT_FENCED && !d->receipt.fence)
        fuzz_wrong("a grant without a fence");
    if (st == HF_LOST && !strstr(d->err.text, "given back"))
        fuzz_wrong("a try cannot be lost unless its claim was given back");
    st = d->be->watch(d->conn, &d->claim, &d->receipt, soon(), &d->err);
    check_status(d, st);
    if (d->be->dispatch)
        d->be->dispatch(d->conn);
}

static void drive_renew(struct drive *d)
{
    struct hfi_renewal item = {
        .claim = &d->claim, .receipt = &d->receipt, .ttl_ms = d->claim.ttl_ms};

    if (!d->receipt.registered)
        return;
    d->be->renew(d->conn, &item, 1, soon(), &d->err);
    check_status(d, item.st);
    if (item.st == HF_LOST && item.reason == HF_LOSS_NONE)
        fuzz_wrong("lost without a reason");
}

static void drive_look(struct drive *d)
{
    struct hf_info info = {.size = sizeof(info)};

    check_status(d,
                 d->be->inspect(d->conn, d->claim.key, &info, soon(), &d->err));
    check_info(&info);
    check_status(d, d->be->list(d->conn, "", each, NULL, soon(), &d->err));
    check_status(d, d->be->break_grant(d->conn, d->claim.key, d->receipt.fence,
                                       soon(), &d->err));
}

static void drive_release(struct drive *d)
{
    d->be->unwatch(d->conn, &d->claim, &d->receipt);
    for (int i = 0; d->receipt.registered && i < 3; i++)
        check_status(d, d->be->release(d->conn, &d->claim, &d->receipt, soon(),
                                       &d->err));
}

static void drive_all(struct drive *d)
{
    drive_acquire(d);
    drive_look(d);
    drive_renew(d);
    drive_acquire(d);
    drive_release(d);
}

void fuzz_drive(const struct hfi_backend *be, const char *const *urls,
                const uint8_t *bytes, size_t len)
{
    struct drive d = {.be = be,
                      .claim = {.key = "key",
                                .note = "note",
                                .ttl_ms = 30000,
                                .queue = true,
                                .token = "0123456789abcdef0123456789abcdef"}};
    struct hfi_url url;
    size_t count = 0;
    uint8_t first;
    hf_status st;

    while (urls[count])
        count++;
    fuzz_input = (struct fuzz_input){bytes, len};
    first = fuzz_byte();
    hfi_env = &world;
    clock_ms = 1000000;
    d.conn = hfi_alloc(be->conn_size);
    d.receipt.own = hfi_alloc(be->grant_size + 1);
    if (!d.conn || !d.receipt.own ||
        hfi_url_parse(&url, urls[first % count], NULL))
        abort();
    d.conn->be = be;
    d.conn->traits = be->traits;
    hfi_mem_fail_at(first / (long)count % 32);
    st = be->open(d.conn, &url, soon(), &d.err);
    check_status(&d, st);
    if (!st)
        drive_all(&d);
    hfi_mem_fail_at(0);
    be->close(d.conn);
    hfi_url_fini(&url);
    hfi_free(d.receipt.own);
    hfi_free(d.conn);
    hfi_env = NULL;
}
