/* SPDX-License-Identifier: MIT
 *
 * wait.c - hearing that a lock file was closed, opened or read: inotify, one
 * watch for all claims of a client on one file.
 */
#include "file.h"

#include <errno.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

/* An inotify watch, shared by all claims on one file. */
struct file_watch {
    struct file_watch *next;
    int wd;
    unsigned users;
    char key[];
};

static struct file_watch **file_watch_at(struct file_conn *fc, int wd)
{
    size_t n = sizeof(fc->watches) / sizeof(fc->watches[0]);
    struct file_watch **at = &fc->watches[(unsigned)wd % n];

    while (*at && (*at)->wd != wd)
        at = &(*at)->next;
    return at;
}

bool file_need_inotify(struct file_conn *fc)
{
    if (fc->inotify_fd >= 0)
        return true;
    fc->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fc->inotify_fd < 0)
        return false;
    hfi_poll_fd_changed(&fc->base);
    return true;
}

/* Watch the file itself, whatever it is called by now. */
static int file_inotify(struct file_conn *fc, int fd)
{
    char path[64];

    if (!file_need_inotify(fc))
        return -1;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return inotify_add_watch(fc->inotify_fd, path,
                             IN_CLOSE | IN_OPEN | IN_ACCESS | IN_ATTRIB |
                                 IN_MOVE_SELF);
}

hf_status file_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                     struct hfi_receipt *receipt, int64_t deadline,
                     struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_grant *own = receipt->own;
    struct file_watch **at, *watch;
    size_t size = strlen(claim->key) + 1;
    hf_status st = HF_OK;
    int wd;

    (void)deadline;
    pthread_mutex_lock(&fc->mu);
    wd = file_inotify(fc, own->fd);
    if (wd < 0) {
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "inotify");
        goto out;
    }
    at = file_watch_at(fc, wd);
    watch = *at;
    if (!watch) {
        watch = hfi_alloc(sizeof(*watch) + size);
        if (!watch) {
            inotify_rm_watch(fc->inotify_fd, wd);
            st = hfi_nomem(err);
            goto out;
        }
        watch->wd = wd;
        memcpy(watch->key, claim->key, size);
        *at = watch;
    }
    watch->users++;
    own->wd = wd;
    /* A client that waited before we listened is not heard. */
    if (receipt->fence && file_count_waiters(own->fd, 1))
        hfi_wanted(conn, claim->key);
out:
    pthread_mutex_unlock(&fc->mu);
    return st;
}

void file_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                  struct hfi_receipt *receipt)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_grant *own = receipt->own;
    struct file_watch **at, *watch;
    int wd = own->wd;

    (void)claim;
    if (wd < 0)
        return;
    own->wd = -1;
    pthread_mutex_lock(&fc->mu);
    at = file_watch_at(fc, wd);
    watch = *at;
    if (watch && !--watch->users) {
        inotify_rm_watch(fc->inotify_fd, wd);
        *at = watch->next;
        hfi_free(watch);
    }
    pthread_mutex_unlock(&fc->mu);
}

int file_poll_fd(struct hfi_conn *conn)
{
    struct file_conn *fc = (struct file_conn *)conn;
    int fd;

    pthread_mutex_lock(&fc->mu);
    fd = fc->inotify_fd;
    pthread_mutex_unlock(&fc->mu);
    return fd;
}

/* Somebody opened the file or read it: perhaps it wants the lock.  Somebody
 * closed it: perhaps it let go, or died.  Its name changed: it may be gone. */
static void file_heard(struct file_conn *fc, const struct inotify_event *event)
{
    struct file_watch *watch;

    if (event->mask & IN_Q_OVERFLOW)
        hfi_wake_all(&fc->base);
    pthread_mutex_lock(&fc->mu);
    if (event->mask & IN_Q_OVERFLOW || event->wd == fc->dir_wd)
        file_observed(fc, event);
    watch = event->mask & IN_Q_OVERFLOW ? NULL : *file_watch_at(fc, event->wd);
    if (watch && event->mask & (IN_OPEN | IN_ACCESS))
        hfi_wanted(&fc->base, watch->key);
    if (watch && event->mask & ~(uint32_t)(IN_OPEN | IN_ACCESS))
        hfi_wake(&fc->base, watch->key, NULL);
    pthread_mutex_unlock(&fc->mu);
}

void file_dispatch(struct hfi_conn *conn)
{
    struct file_conn *fc = (struct file_conn *)conn;
    _Alignas(struct inotify_event) char buf[4096];
    const struct inotify_event *event;
    ssize_t len, at;

    len = read(fc->inotify_fd, buf, sizeof(buf));
    for (at = 0; at < len; at += (ssize_t)(sizeof(*event) + event->len)) {
        event = (const void *)(buf + at);
        file_heard(fc, event);
    }
}
