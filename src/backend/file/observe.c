/* SPDX-License-Identifier: MIT
 *
 * observe.c - hearing that the holder of a lock file has changed: one inotify
 * watch on the directory, for all observations of a client.
 *
 * A grant writes the record, and whoever lets go or dies closes a file that was
 * open for writing.  Who only looks, as the core does after each event, opens
 * the file for reading; that is not listened for, or observers would wake each
 * other for ever.  A foreign flock(1) may open its file for reading, too: what
 * it does is found by the core's slow poll.
 *
 * The directory is watched and not the file, which may not be there yet, or be
 * replaced (file.c (3)).  Long keys are in directories below: a key that is long
 * is not observed, and with a prefix the poll finds them.
 *
 * INVARIANTS
 *  (1) While fc->dir_wd is not -1 the directory that fc->dir_fd is open on is
 *      watched.  If it is removed or renamed, the next inspect() or list() begins
 *      anew with the one that has its name then; the core is told that events
 *      may have been missed.
 *  (2) The core is called with the mutex held, and unobserve() takes it.
 */
#include "file.h"

#include <errno.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/banned.h"

#define OBSERVED                                                               \
    (IN_MODIFY | IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM |      \
     IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR)

/* What says that the directory is not the one of that name any more. */
#define GONE (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT)

static struct file_observation *observe_own(struct hfi_observation *observation)
{
    return observation->own;
}

/* Watch the directory; false: it cannot be.  With the mutex held, as all of
 * these. */
static bool observe_dir(struct file_conn *fc)
{
    char path[64];

    if (fc->dir_wd >= 0)
        return true;
    if (fc->dir_fd < 0 || !file_need_inotify(fc))
        return false;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fc->dir_fd);
    fc->dir_wd = inotify_add_watch(fc->inotify_fd, path, OBSERVED);
    return fc->dir_wd >= 0;
}

static void observe_end(struct file_conn *fc)
{
    if (fc->dir_wd >= 0)
        inotify_rm_watch(fc->inotify_fd, fc->dir_wd);
    fc->dir_wd = -1;
}

static void observe_tell_all(struct file_conn *fc)
{
    struct hfi_link *at;

    for (at = fc->observed.next; at != &fc->observed; at = at->next)
        hfi_changed(
            &fc->base,
            hfi_container(at, struct file_observation, link)->observation,
            NULL);
}

/* The key has changed: who observes it? */
static void observe_tell(struct file_conn *fc, const char *key)
{
    struct hfi_observation *seen;
    struct hfi_link *at;

    for (at = fc->observed.next; at != &fc->observed; at = at->next) {
        seen = hfi_container(at, struct file_observation, link)->observation;
        if (seen->prefix ? !strncmp(key, seen->key, strlen(seen->key))
                         : !strcmp(key, seen->key))
            hfi_changed(&fc->base, seen, key);
    }
}

void file_observed(struct file_conn *fc, const struct inotify_event *event)
{
    char path[FILE_PATH_MAX];

    if (event->mask & (IN_Q_OVERFLOW | GONE)) {
        if (event->mask & GONE)
            observe_end(fc); /* observe.c (1) */
        observe_tell_all(fc);
    } else if (event->len && strlen(event->name) < sizeof(path)) {
        snprintf(path, sizeof(path), "%s", event->name);
        if (file_key(path))
            observe_tell(fc, path);
    }
}

void file_observe_again(struct file_conn *fc)
{
    pthread_mutex_lock(&fc->mu);
    if (fc->dir_wd < 0 && !hfi_link_alone(&fc->observed) && observe_dir(fc))
        observe_tell_all(fc);
    pthread_mutex_unlock(&fc->mu);
}

hf_status file_observe(struct hfi_conn *conn,
                       struct hfi_observation *observation, int64_t deadline,
                       struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_observation *own = observe_own(observation);
    char path[FILE_PATH_MAX];
    hf_status st = HF_OK;

    (void)deadline;
    file_path(path, observation->key);
    if (!(conn->traits & HF_TRAIT_NOTIFY) ||
        (!observation->prefix && strchr(path, '/')))
        return HF_UNSUPPORTED;
    st = file_find_dir(fc, false, err);
    if (st)
        return hfi_wrap(err, st, "%s", conn->endpoint);
    own->observation = observation;
    pthread_mutex_lock(&fc->mu);
    if (!observe_dir(fc))
        st = hfi_fail(err, HF_UNAVAILABLE,
                      "%s: the directory is not there, or cannot be watched",
                      conn->endpoint);
    else
        hfi_link_append(&fc->observed, &own->link);
    pthread_mutex_unlock(&fc->mu);
    return st;
}

void file_unobserve(struct hfi_conn *conn, struct hfi_observation *observation)
{
    struct file_conn *fc = (struct file_conn *)conn;

    pthread_mutex_lock(&fc->mu);
    hfi_link_remove(&observe_own(observation)->link);
    if (hfi_link_alone(&fc->observed))
        observe_end(fc);
    pthread_mutex_unlock(&fc->mu);
}
