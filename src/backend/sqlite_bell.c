/* SPDX-License-Identifier: MIT
 *
 * sqlite_bell.c - wake-ups: empty files beside the database, and inotify.
 *
 * The database's own files change with every commit of every key, so they
 * would wake everybody for everything.  Instead there is a directory,
 * PATH-bells, with up to 256 empty files.  Who frees a lock that somebody
 * waits for, or begins to wait, opens and closes the file named by a hash of
 * the key, and inotify tells the others which it was.
 *
 * A bell is a hint: who hears it asks the database.  Where it cannot be made,
 * waiters poll.
 */
#include "sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../mem.h"

#include "../banned.h"

/* Somebody of this client who wants to hear of a key. */
struct lite_watch {
    struct hfi_link link; /* in lite_conn.heard */
    char token[HFI_TOKEN_LEN + 1];
    char bell[4];
    bool holds;
    char key[];
};

static void bell_name(char ret[4], const char *key)
{
    unsigned hash = 5381;

    for (; *key; key++)
        hash = hash * 33 + (unsigned char)*key;
    snprintf(ret, 4, "%02x", (hash ^ hash >> 16) & 255);
}

/* Make or find the directory; -1 where that cannot be. */
static int bell_dir(const struct lite_conn *lc)
{
    char path[LITE_PATH_MAX + 8];

    snprintf(path, sizeof(path), "%s-bells", lc->path);
    if (mkdir(path, 0777) && errno != EEXIST)
        return -1;
    return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

void lite_bell_open(struct lite_conn *lc)
{
    pthread_mutex_init(&lc->bell_mu, NULL);
    hfi_link_init(&lc->heard);
    lc->inotify_fd = lc->dir_fd = -1;
    lc->bell_opened = true;
}

void lite_bell_close(struct lite_conn *lc)
{
    if (!lc->bell_opened)
        return;
    while (!hfi_link_alone(&lc->heard)) {
        struct lite_watch *watch =
            hfi_container(lc->heard.next, struct lite_watch, link);

        hfi_link_remove(&watch->link);
        hfi_free(watch);
    }
    if (lc->inotify_fd >= 0)
        close(lc->inotify_fd);
    if (lc->dir_fd >= 0)
        close(lc->dir_fd);
    pthread_mutex_destroy(&lc->bell_mu);
    lc->bell_opened = false;
}

void lite_ring(struct lite_conn *lc, const char *key)
{
    char name[4];
    int fd, dir_fd;

    pthread_mutex_lock(&lc->bell_mu);
    if (lc->dir_fd < 0)
        lc->dir_fd = bell_dir(lc);
    dir_fd = lc->dir_fd;
    pthread_mutex_unlock(&lc->bell_mu);
    bell_name(name, key);
    fd =
        openat(dir_fd, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0)
        close(fd);
}

/* With the mutex held. */
static hf_status bell_listen(struct lite_conn *lc, struct hf_error *err)
{
    char path[LITE_PATH_MAX + 8];

    if (lc->inotify_fd >= 0)
        return HF_OK;
    if (lc->dir_fd < 0)
        lc->dir_fd = bell_dir(lc);
    if (lc->dir_fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "the bells");
    lc->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (lc->inotify_fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "inotify");
    snprintf(path, sizeof(path), "/proc/self/fd/%d", lc->dir_fd);
    if (inotify_add_watch(lc->inotify_fd, path, IN_CLOSE_WRITE) < 0) {
        close(lc->inotify_fd);
        lc->inotify_fd = -1;
        return hfi_fail_errno(err, HF_SYSTEM, errno, "inotify");
    }
    hfi_pump_changed(&lc->sql.base);
    return HF_OK;
}

hf_status lite_watch(struct hfi_conn *base, const struct hfi_claim *claim,
                     struct hfi_grant *grant, int64_t deadline,
                     struct hf_error *err)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    size_t size = strlen(claim->key) + 1;
    struct lite_watch *watch = hfi_alloc(sizeof(*watch) + size);
    bool wanted = false;
    hf_status st;

    if (!watch)
        return hfi_nomem(err);
    memcpy(watch->key, claim->key, size);
    memcpy(watch->token, claim->token, sizeof(watch->token));
    bell_name(watch->bell, claim->key);
    watch->holds = grant->placed;
    hfi_link_init(&watch->link);
    lite_unwatch(base, claim, grant);
    pthread_mutex_lock(&lc->bell_mu);
    st = bell_listen(lc, err);
    if (!st)
        hfi_link_append(&lc->heard, &watch->link);
    else
        hfi_free(watch);
    pthread_mutex_unlock(&lc->bell_mu);
    if (!st && grant->placed)
        st = sql_is_wanted(&lc->sql, claim->key, &wanted, deadline, err);
    if (wanted)
        hfi_wanted(base, claim->key);
    return st;
}

void lite_unwatch(struct hfi_conn *base, const struct hfi_claim *claim,
                  struct hfi_grant *grant)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    struct hfi_link *at, *next;

    (void)grant;
    pthread_mutex_lock(&lc->bell_mu);
    for (at = lc->heard.next; at != &lc->heard; at = next) {
        struct lite_watch *watch = hfi_container(at, struct lite_watch, link);

        next = at->next;
        if (strcmp(watch->token, claim->token) != 0)
            continue;
        hfi_link_remove(&watch->link);
        hfi_free(watch);
    }
    pthread_mutex_unlock(&lc->bell_mu);
}

int lite_pump_fd(struct hfi_conn *base)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    int fd;

    pthread_mutex_lock(&lc->bell_mu);
    fd = lc->inotify_fd;
    pthread_mutex_unlock(&lc->bell_mu);
    return fd;
}

/* With the mutex held; `name` NULL: any may have rung.  A holder that was
 * granted while it was watched is told too: hfi_wanted() is harmless to those
 * who do not linger. */
static void bell_heard(struct lite_conn *lc, const char *name)
{
    struct hfi_link *at;

    for (at = lc->heard.next; at != &lc->heard; at = at->next) {
        struct lite_watch *watch = hfi_container(at, struct lite_watch, link);

        if (name && strcmp(watch->bell, name) != 0)
            continue;
        hfi_wanted(&lc->sql.base, watch->key);
        if (!watch->holds)
            hfi_wake(&lc->sql.base, watch->key, NULL);
    }
}

void lite_pump(struct hfi_conn *base)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    _Alignas(struct inotify_event) char buf[4096];
    const struct inotify_event *event;
    ssize_t len, at;

    pthread_mutex_lock(&lc->bell_mu);
    len = read(lc->inotify_fd, buf, sizeof(buf)); /* It does not block. */
    for (at = 0; at < len; at += (ssize_t)(sizeof(*event) + event->len)) {
        event = (const void *)(buf + at);
        bell_heard(lc, event->len ? event->name : NULL);
    }
    pthread_mutex_unlock(&lc->bell_mu);
}
