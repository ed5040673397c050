/* SPDX-License-Identifier: MIT
 *
 * observe.c - telling the core that the holder of a key may have changed: inotify
 * on the log of the database.
 *
 * Every commit, of every process and every program, writes the log with write(2)
 * while it holds SQLite's lock for writers: the log is never mapped into memory,
 * and a write back (checkpoint) changes no row.  So an observer hears of all
 * commits, and those who commit do nothing for it, not a system call.  It hears
 * of the commits of other keys and of renewals, too: the core looks for nothing
 * then, but seldom (LITE_OBSERVE_GAP_MS).  The watch is for one event, and made
 * again before a look; so however many commit, an observer wakes up once for
 * each look.
 *
 * INVARIANTS
 *  (1) Whoever writes the log has not committed yet, so a look that follows the
 *      event at once may come too early.  Therefore reobserve() first makes the
 *      watch again and then takes the lock for writers once, and gives it back.
 *      What was written before the watch was there has been committed by then, or
 *      is undone; what is written after it raises an event.
 *  (2) The database is watched as well, for being removed or replaced, and so is
 *      the log.  Before each look the names are compared with what is watched.
 *  (3) Each event, and each that may have been missed (an overflow), is told to
 *      the core as NULL, for all observations: they look, whatever it was.
 *  (4) The core is called with the mutex held, and unobserve() takes it: after
 *      that nothing is told of the observation.
 *
 * LIMITS  While another program has a write transaction open, nobody can take the
 *   lock for writers, and nobody's lock changes hands; after an event the core
 *   then looks every five seconds or more often.  It does the same where a watch
 *   cannot be made (fs.inotify.max_user_watches), and where the URL names a
 *   symbolic link that was changed.  A directory above the database that was
 *   renamed is found by the core's slow poll.
 */
#include "sqlite.h"

#include <errno.h>
#include <sys/inotify.h>

#include "base/banned.h"

/* No longer than this a look waits for those who write, since the client's only
 * session waits with it. */
#define OBSERVE_SETTLE_MS 250

#define OBSERVE_GONE (IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF | IN_ONESHOT)

static const struct {
    const char *suffix;
    uint32_t mask;
} observe_files[LITE_OBSERVED] = {{"", OBSERVE_GONE},
                                  {"-wal", OBSERVE_GONE | IN_MODIFY}};

static struct lite_observation *observe_own(struct hfi_observation *observation)
{
    return observation->own;
}

/* ---- the watches, with the mutex held ---------------------------------- */

static void observe_end(struct lite_conn *lc, int i)
{
    if (lc->files[i].wd >= 0)
        inotify_rm_watch(lc->inotify_fd, lc->files[i].wd);
    lc->files[i].last_wd = lc->files[i].wd;
    lc->files[i].wd = -1;
}

static void observe_end_all(struct lite_conn *lc)
{
    int i;

    for (i = 0; i < LITE_OBSERVED; i++)
        observe_end(lc, i);
}

/* Watch the file that has the name now.  If it is replaced meanwhile, what is
 * watched is the newer one, and `id` is compared again before the next look. */
static bool observe_file(struct lite_conn *lc, int i)
{
    const char *suffix = observe_files[i].suffix;
    struct lite_id id = lite_file_id(lc->real, suffix);
    char name[LITE_PATH_MAX + 8];

    if (lc->files[i].wd >= 0 && lite_file_is_same(id, lc->files[i].id))
        return true;
    observe_end(lc, i);
    snprintf(name, sizeof(name), "%s%s", lc->real, suffix);
    lc->files[i].wd =
        inotify_add_watch(lc->inotify_fd, name, observe_files[i].mask);
    lc->files[i].id = id;
    lc->events++; /* It may have been written until now. */
    return lc->files[i].wd >= 0;
}

/* Have all watches.  observe.c (2) */
static bool observe_watch(struct lite_conn *lc, uint64_t *events)
{
    bool ok =
        lite_need_inotify(lc) && lite_file_is_same(lite_file_id(lc->path, ""),
                                                   lite_file_id(lc->real, ""));
    int i;

    for (i = 0; ok && i < LITE_OBSERVED; i++)
        ok = observe_file(lc, i);
    *events = lc->events;
    return ok;
}

static void observe_tell(struct lite_conn *lc)
{
    struct hfi_link *at;

    lc->events++;
    for (at = lc->observed.next; at != &lc->observed; at = at->next)
        hfi_changed(
            &lc->sql.base,
            hfi_container(at, struct lite_observation, link)->observation,
            NULL);
}

bool lite_observed(struct lite_conn *lc, const struct inotify_event *event)
{
    int i;

    if (event->mask & IN_Q_OVERFLOW) { /* Others have missed some as well. */
        observe_end_all(lc);
        observe_tell(lc);
    }
    for (i = 0; event->wd >= 0 && i < LITE_OBSERVED; i++) {
        if (event->wd == lc->files[i].last_wd && event->mask & IN_IGNORED)
            return true;
        if (event->wd != lc->files[i].wd)
            continue;
        lc->files[i].last_wd = lc->files[i].wd; /* It was for one event. */
        lc->files[i].wd = -1;
        observe_tell(lc);
        return true;
    }
    return false;
}

/* ---- operations -------------------------------------------------------- */

static bool observe_try_watch(struct lite_conn *lc, uint64_t *events,
                              bool *settled)
{
    bool watched;

    pthread_mutex_lock(&lc->notifier_mu);
    watched = observe_watch(lc, events);
    *settled = watched && lc->settled == *events;
    pthread_mutex_unlock(&lc->notifier_mu);
    return watched;
}

/* Let those who write come to an end.  The files are there then. */
static hf_status observe_settle(struct lite_conn *lc, int64_t deadline,
                                struct hf_error *err)
{
    int64_t soon = hfi_now() + OBSERVE_SETTLE_MS;
    struct sql_answer answer = {0};

    return sql_run(&lc->sql, SQL_OBSERVE, NULL, &answer,
                   soon < deadline ? soon : deadline, err);
}

/* observe.c (1) */
hf_status lite_reobserve(struct hfi_conn *base,
                         struct hfi_observation *observation, int64_t deadline,
                         struct hf_error *err)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    bool settled, watched;
    uint64_t events;
    hf_status st;

    (void)observation;
    watched = observe_try_watch(lc, &events, &settled);
    if (settled)
        return HF_OK;
    st = observe_settle(lc, deadline, err);
    if (!st && !watched) { /* The log was not there, perhaps. */
        if (!observe_try_watch(lc, &events, &settled))
            return hfi_fail(err, HF_UNAVAILABLE,
                            "%s: the database cannot be watched",
                            base->endpoint);
        st = observe_settle(lc, deadline, err);
    }
    if (st)
        return st;
    pthread_mutex_lock(&lc->notifier_mu);
    if (lc->settled < events)
        lc->settled = events;
    pthread_mutex_unlock(&lc->notifier_mu);
    return HF_OK;
}

/* It is told from the first watch on, so it is known before. */
hf_status lite_observe(struct hfi_conn *base,
                       struct hfi_observation *observation, int64_t deadline,
                       struct hf_error *err)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    struct lite_observation *own = observe_own(observation);
    hf_status st;

    own->observation = observation;
    hfi_link_init(&own->link);
    pthread_mutex_lock(&lc->notifier_mu);
    hfi_link_append(&lc->observed, &own->link);
    pthread_mutex_unlock(&lc->notifier_mu);
    st = lite_reobserve(base, observation, deadline, err);
    if (st)
        lite_unobserve(base, observation);
    return st;
}

void lite_unobserve(struct hfi_conn *base, struct hfi_observation *observation)
{
    struct lite_conn *lc = (struct lite_conn *)base;

    pthread_mutex_lock(&lc->notifier_mu);
    hfi_link_remove(&observe_own(observation)->link);
    if (hfi_link_alone(&lc->observed))
        observe_end_all(lc);
    pthread_mutex_unlock(&lc->notifier_mu);
}
