/* SPDX-License-Identifier: MIT
 *
 * wait.c - wake-ups: empty files beside the database, and inotify.
 *
 * The database's own files change with every commit of every key, so they would
 * wake everybody for everything.  Instead there is a directory, FILE-bells,
 * with up to 256 empty files, where FILE is the database without symbolic
 * links, so that all its users share it.  A client that frees a lock for which
 * somebody waits, or that begins to wait, opens and closes the file named by a
 * hash of the key, and inotify tells the others which it was.
 *
 * With a queue each waiter has a file of its own there, in the directory `waiters`,
 * named by a hash of its client and its key, and watches that file alone: who
 * passes the lock on rings for the one that has it now.  Lingering holders hear
 * in the same way.  The files that are named by a key are for clients without a
 * queue, on either side.
 *
 * INVARIANTS
 *  (1) Ringing never blocks and never follows a link, whatever another user
 *      has put in place of a notifier.
 *  (2) The notifiers may be rung by everybody who can write the database: they
 *      get its group and its permissions, whatever the umask.
 *  (3) A waiter listens only where (2) holds and nobody but a user of the
 *      database owns the notifiers.  Elsewhere it polls.
 *
 * A notifier is a hint: a client that hears it asks the database, and a waiter
 * that hears nothing asks every LITE_NET_MS.
 */
#include "sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

/* Somebody of this client who wants to hear of a key. */
struct lite_watch {
    struct hfi_link link; /* in lite_conn.heard */
    char token[HFI_TOKEN_LEN + 1];
    char notifier[4];
    unsigned bell;
    int wd; /* of its file; -1: nobody rings it */
    bool holds;
    char key[];
};

static void notifier_name(char ret[4], const char *key)
{
    unsigned hash = 5381;

    for (; *key; key++)
        hash = hash * 33 + (unsigned char)*key;
    snprintf(ret, 4, "%02x", (hash ^ hash >> 16) & 255);
}

/* ---- the files --------------------------------------------------------- */

/* Of the kinds of users that have `all`, those that can write the database.
 * Others cannot take part. */
static mode_t notifier_mode(const struct stat *db, mode_t all)
{
    return (all & 0700) | (db->st_mode & 0020 ? all & 0070 : 0) |
           (db->st_mode & 0002 ? all & 0007 : 0);
}

/* wait.c (2); what is not ours to change stays. */
static void notifier_share(int fd, const struct stat *db, mode_t all)
{
    uid_t owner = geteuid() ? (uid_t)-1 : db->st_uid;

    if (fchown(fd, owner, db->st_gid))
        all &= (mode_t)~0070; /* another group has no part in it */
    fchmod(fd, notifier_mode(db, all));
}

/* wait.c (3) */
static bool notifier_serves(int dir_fd, const struct stat *db)
{
    mode_t need = notifier_mode(db, 0777);
    bool all = db->st_mode & 0002, group = db->st_mode & 0020;
    struct stat dir;

    if (fstat(dir_fd, &dir) || dir.st_dev != db->st_dev || !dir.st_nlink ||
        (dir.st_mode & need) != need)
        return false;
    if (group && !all && dir.st_gid != db->st_gid)
        return false;
    return dir.st_uid == db->st_uid || group || all;
}

/* Make the directory if it is not there, open it if it is not open; with the
 * mutex held.  False where that cannot be. */
static bool notifier_dir(struct lite_conn *lc, const struct stat *db)
{
    char path[LITE_PATH_MAX + 8];
    struct stat sb;
    bool made;

    if (lc->dir_fd >= 0 && !fstat(lc->dir_fd, &sb) && sb.st_nlink)
        return true;
    if (lc->dir_fd >= 0)
        close(lc->dir_fd); /* It was removed. */
    lc->listens = false;
    snprintf(path, sizeof(path), "%s-bells", lc->real);
    made = !mkdir(path, 0700);
    lc->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (lc->dir_fd >= 0 && (made || !notifier_serves(lc->dir_fd, db)))
        notifier_share(lc->dir_fd, db, 0777);
    return lc->dir_fd >= 0;
}

/* wait.c (1) */
static void notifier_touch(int dir_fd, const char *name, const struct stat *db)
{
    const int flags = O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(dir_fd, name, flags);

    if (fd < 0 && (errno == EACCES || errno == ENXIO || errno == ELOOP))
        unlinkat(dir_fd, name, 0); /* not ours to ring, a FIFO, a link */
    if (fd < 0) {
        fd = openat(dir_fd, name, flags | O_CREAT | O_EXCL, 0600);
        if (fd >= 0)
            notifier_share(fd, db, 0666);
    }
    if (fd >= 0)
        close(fd);
}

/* ---- bells of single waiters ------------------------------------------- */

static unsigned bell_of(const char *channel, const char *key)
{
    const char *both[] = {channel, key};
    unsigned hash = 5381;
    int i;

    for (i = 0; i < 2; i++)
        for (; *both[i]; both[i]++)
            hash = hash * 33 + (unsigned char)*both[i];
    return (hash ^ hash >> 13) % LITE_BELLS;
}

void lite_rings_add(struct lite_rings *rings, const char *channel,
                    const char *key)
{
    unsigned bell;

    if (!channel) {
        rings->old = true;
        return;
    }
    if (!rings->any)
        memset(rings->bells, 0, sizeof(rings->bells));
    rings->any = true;
    bell = bell_of(channel, key);
    rings->bells[bell / 8] |= (unsigned char)(1 << bell % 8);
}

/* As notifier_dir(), for the directory of bells. */
static bool bells_dir(struct lite_conn *lc, const struct stat *db)
{
    struct stat sb;
    bool made;

    if (!notifier_dir(lc, db))
        return false;
    if (lc->bells_fd >= 0 && !fstat(lc->bells_fd, &sb) && sb.st_nlink)
        return true;
    if (lc->bells_fd >= 0)
        close(lc->bells_fd);
    made = !mkdirat(lc->dir_fd, "waiters", 0700);
    lc->bells_fd = openat(lc->dir_fd, "waiters",
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (lc->bells_fd >= 0 && (made || !notifier_serves(lc->bells_fd, db)))
        notifier_share(lc->bells_fd, db, 0777);
    return lc->bells_fd >= 0;
}

void lite_ring(struct lite_conn *lc, const struct lite_rings *rings,
               const char *key)
{
    struct stat db;
    char name[8];
    unsigned i;

    (void)key;
    if (stat(lc->real, &db))
        return;
    pthread_mutex_lock(&lc->notifier_mu);
    for (i = bells_dir(lc, &db) ? 0 : LITE_BELLS; i < LITE_BELLS; i++) {
        if (!rings->bells[i / 8])
            i |= 7;
        else if (rings->bells[i / 8] & 1 << i % 8) {
            snprintf(name, sizeof(name), "%03x", i);
            notifier_touch(lc->bells_fd, name, &db);
        }
    }
    pthread_mutex_unlock(&lc->notifier_mu);
}

/* With the mutex held; the file is there from now on. */
static bool bell_listen(struct lite_conn *lc, struct lite_watch *watch)
{
    char name[8], path[64];
    struct stat db;

    if (stat(lc->real, &db) || !bells_dir(lc, &db) ||
        !notifier_serves(lc->bells_fd, &db))
        return false;
    snprintf(name, sizeof(name), "%03x", watch->bell);
    if (faccessat(lc->bells_fd, name, W_OK, AT_SYMLINK_NOFOLLOW))
        notifier_touch(lc->bells_fd, name, &db);
    snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", lc->bells_fd, name);
    watch->wd = inotify_add_watch(lc->inotify_fd, path,
                                  IN_CLOSE_WRITE | IN_DONT_FOLLOW);
    return watch->wd >= 0;
}

/* ---- ringing and listening --------------------------------------------- */

void lite_notifier_open(struct lite_conn *lc)
{
    int i;

    pthread_mutex_init(&lc->notifier_mu, NULL);
    hfi_link_init(&lc->heard);
    hfi_link_init(&lc->observed);
    for (i = 0; i < LITE_OBSERVED; i++)
        lc->files[i].wd = lc->files[i].last_wd = -1;
    lc->inotify_fd = lc->dir_fd = lc->bells_fd = -1;
    atomic_store(&lc->sql.hears, true); /* or it polls, and it is no matter */
    lc->notifier_opened = true;
}

void lite_notifier_close(struct lite_conn *lc)
{
    if (!lc->notifier_opened)
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
    if (lc->bells_fd >= 0)
        close(lc->bells_fd);
    pthread_mutex_destroy(&lc->notifier_mu);
    lc->notifier_opened = false;
}

/* In a forked child; SQLite's own descriptors must stay as they are, since it
 * would use their numbers again. */
void lite_after_fork_child(struct hfi_conn *base)
{
    struct lite_conn *lc = (struct lite_conn *)base;

    if (lc->notifier_opened && lc->inotify_fd >= 0)
        close(lc->inotify_fd);
    if (lc->notifier_opened && lc->dir_fd >= 0)
        close(lc->dir_fd);
    if (lc->notifier_opened && lc->bells_fd >= 0)
        close(lc->bells_fd);
}

void lite_notify(struct lite_conn *lc, const char *key)
{
    struct stat db;
    char name[4];

    if (stat(lc->real, &db))
        return;
    notifier_name(name, key);
    pthread_mutex_lock(&lc->notifier_mu);
    if (notifier_dir(lc, &db))
        notifier_touch(lc->dir_fd, name, &db);
    pthread_mutex_unlock(&lc->notifier_mu);
}

bool lite_need_inotify(struct lite_conn *lc)
{
    if (lc->inotify_fd >= 0)
        return true;
    lc->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (lc->inotify_fd >= 0)
        hfi_poll_fd_changed(&lc->sql.base);
    return lc->inotify_fd >= 0;
}

/* With the mutex held. */
static hf_status notifier_listen(struct lite_conn *lc, struct hf_error *err)
{
    char path[64];
    struct stat db;

    if (stat(lc->real, &db) || !notifier_dir(lc, &db))
        return hfi_fail_errno(err, HF_SYSTEM, errno,
                              "the directory of the notifiers");
    if (!notifier_serves(lc->dir_fd, &db))
        return hfi_fail(err, HF_DENIED,
                        "the directory of the notifiers is not for everybody");
    if (lc->listens)
        return HF_OK;
    if (!lite_need_inotify(lc))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "inotify");
    snprintf(path, sizeof(path), "/proc/self/fd/%d", lc->dir_fd);
    lc->dir_wd = inotify_add_watch(lc->inotify_fd, path, IN_CLOSE_WRITE);
    if (lc->dir_wd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "inotify");
    lc->listens = true;
    return HF_OK;
}

hf_status lite_watch(struct hfi_conn *base, const struct hfi_claim *claim,
                     struct hfi_receipt *receipt, int64_t deadline,
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
    notifier_name(watch->notifier, claim->key);
    watch->holds = sql_holds(receipt);
    hfi_link_init(&watch->link);
    lite_unwatch(base, claim, receipt);
    pthread_mutex_lock(&lc->notifier_mu);
    watch->bell = bell_of(lc->sql.channel, claim->key);
    watch->wd = -1;
    st = notifier_listen(lc, err);
    if (!st && lc->sql.fair && !bell_listen(lc, watch))
        st = hfi_fail(err, HF_DENIED,
                      "the directory of the notifiers is not for everybody");
    if (!st) {
        atomic_store(&base->listening, lc->sql.fair);
        hfi_link_append(&lc->heard, &watch->link);
    } else {
        hfi_free(watch);
    }
    pthread_mutex_unlock(&lc->notifier_mu);
    if (!st && sql_holds(receipt))
        st = lc->sql.fair
                 ? sql_queue_linger(&lc->sql, claim, &wanted, deadline, err)
                 : sql_is_wanted(&lc->sql, claim->key, &wanted, deadline, err);
    if (wanted)
        hfi_wanted(base, claim->key);
    return st;
}

void lite_unwatch(struct hfi_conn *base, const struct hfi_claim *claim,
                  struct hfi_receipt *receipt)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    struct hfi_link *at, *next;

    (void)receipt;
    pthread_mutex_lock(&lc->notifier_mu);
    for (at = lc->heard.next; at != &lc->heard; at = next) {
        struct lite_watch *watch = hfi_container(at, struct lite_watch, link);

        next = at->next;
        if (strcmp(watch->token, claim->token) != 0)
            continue;
        hfi_link_remove(&watch->link);
        hfi_free(watch);
    }
    pthread_mutex_unlock(&lc->notifier_mu);
}

int lite_poll_fd(struct hfi_conn *base)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    int fd;

    pthread_mutex_lock(&lc->notifier_mu);
    fd = lc->inotify_fd;
    pthread_mutex_unlock(&lc->notifier_mu);
    return fd;
}

/* With the mutex held; `name` NULL: any may have rung.  A holder that was
 * granted while it was watched is told too: hfi_wanted() is harmless to those
 * who do not linger. */
static void notifier_heard(struct lite_conn *lc, const char *name, int wd)
{
    struct hfi_link *at;

    for (at = lc->heard.next; at != &lc->heard; at = at->next) {
        struct lite_watch *watch = hfi_container(at, struct lite_watch, link);

        if (watch->wd != wd && name && strcmp(watch->notifier, name) != 0)
            continue;
        if (watch->wd != wd && !name && wd >= 0)
            continue;
        hfi_wanted(&lc->sql.base, watch->key);
        if (!watch->holds)
            hfi_wake(&lc->sql.base, watch->key, NULL);
    }
}

/* With the mutex held: something that was watched is gone.  If that was all of it,
 * those who wait listen to new files; who still removes it is left alone. */
static void notifier_removed(struct lite_conn *lc, int wd)
{
    struct hfi_link *at;

    if (wd != lc->dir_wd)
        return;
    lc->listens = false;
    if (hfi_link_alone(&lc->heard) || notifier_listen(lc, NULL))
        return;
    for (at = lc->heard.next; lc->sql.fair && at != &lc->heard; at = at->next)
        bell_listen(lc, hfi_container(at, struct lite_watch, link));
}

void lite_dispatch(struct hfi_conn *base)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    _Alignas(struct inotify_event) char buf[4096];
    const struct inotify_event *event;
    ssize_t len, at;

    pthread_mutex_lock(&lc->notifier_mu);
    len = read(lc->inotify_fd, buf, sizeof(buf)); /* It does not block. */
    for (at = 0; at < len; at += (ssize_t)(sizeof(*event) + event->len)) {
        event = (const void *)(buf + at);
        if (lite_observed(lc, event))
            continue;
        if (event->mask & IN_IGNORED) {
            notifier_removed(lc, event->wd);
            notifier_heard(lc, NULL, -1);
        } else {
            notifier_heard(lc, event->len ? event->name : NULL, event->wd);
        }
    }
    pthread_mutex_unlock(&lc->notifier_mu);
}
