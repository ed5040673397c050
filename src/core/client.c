/* SPDX-License-Identifier: MIT
 *
 * client.c - opening and closing a client.
 *
 * Closing takes two steps.  First everything that moves is brought to rest:
 * calls return, threads end.  Then what is left is given back, by our thread
 * alone and, where the service is far away, by others beside it.  Both steps
 * have one common deadline, timeout_ms after the beginning.  A
 * client's memory stays until the last handle that points to it is released, so
 * that a handle of a closed client is lost, not dangling.  Its descriptors do not
 * stay, but one: as long as there is a canceler, that may write to it.
 */
#include "log.h"

#include <errno.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

#define TIMEOUT_DEFAULT INT64_C(5000)

/* What is left for the releases of hf_close() where calls that were under way
 * have used up its time. */
#define CLOSE_LEAST_MS 200

/* A release that takes so long has a long way: others go beside it. */
#define CLOSE_SLOW_MS 2

/* What every URL may say, whatever the service. */
static const char *const common_options[] = {"timeout", "ttl", "retry", "wait",
                                             NULL};

static hf_status client_options(struct hf_client *c, const struct hfi_url *url,
                                struct hf_error *err)
{
    static const char *const waits[] = {"notify", "poll", NULL};
    hf_status st = hfi_url_only(url, common_options, c->be->options, err);
    int wait = 0;

    c->defaults = (struct hfi_lock_params){.note = c->note,
                                           .ttl_ms = HFI_TTL_DEFAULT,
                                           .retry_ms = HFI_RETRY_DEFAULT,
                                           .max_tries = INT32_MAX,
                                           .local_turns = HFI_TURNS_DEFAULT};
    if (!st && url->users && !c->be->users)
        st = hfi_fail(err, HF_INVALID,
                      "url: %s: has one user and password for all hosts",
                      url->scheme);
    if (!st)
        st = hfi_url_duration(url, "timeout", &c->timeout_ms, err);
    if (!st)
        st = hfi_url_duration(url, "ttl", &c->defaults.ttl_ms, err);
    if (!st)
        st = hfi_url_duration(url, "retry", &c->defaults.retry_ms, err);
    if (!st &&
        (c->defaults.ttl_ms < HFI_TTL_MIN || c->defaults.ttl_ms > HFI_TTL_MAX))
        st = hfi_fail(err, HF_INVALID, "url: ttl= is out of range");
    if (!st)
        st = hfi_url_word(url, "wait", waits, &wait, err);
    c->defaults.flags = wait ? HF_POLL : 0;
    return st;
}

static void client_note(struct hf_client *c, const char *note)
{
    char host[65] = "?";

    if (note) {
        snprintf(c->note, sizeof(c->note), "%s", note);
        return;
    }
    gethostname(host, sizeof(host) - 1);
    host[sizeof(host) - 1] = '\0';
    snprintf(c->note, sizeof(c->note), "%s:%ld", host, (long)getpid());
}

/* All that cannot fail; the rest is undone by client_free(). */
static void client_init(struct hf_client *c)
{
    hfi_mutex_init(&c->mu);
    hfi_cond_init(&c->settle);
    hfi_renewers_init(c);
    hfi_workers_init(c);
    hfi_link_init(&c->lost);
    hfi_link_init(&c->notices);
    hfi_link_init(&c->observing);
    c->notifier.event_fd = c->notifier.timer_fd = c->events_fd = -1;
    c->listener.notifier.event_fd = c->listener.notifier.timer_fd = -1;
    c->keeper_until = HFI_NEVER;
    hfi_random(&c->jitter, sizeof(c->jitter));
    c->jitter |= 1;
    atomic_init(&c->refs, 1);
    atomic_init(&c->cancelers, 1);
}

static void client_free(struct hf_client *c)
{
    struct hfi_sleeper *sleeper;

    while ((sleeper = c->sleepers)) {
        c->sleepers = sleeper->next;
        hfi_cond_fini(&sleeper->cond);
        hfi_free(sleeper);
    }
    hfi_notifier_fini(&c->notifier);
    hfi_notifier_fini(&c->listener.notifier);
    if (c->events_fd >= 0)
        close(c->events_fd);
    hfi_cond_fini(&c->settle);
    hfi_renewers_fini(c);
    hfi_workers_fini(c);
    pthread_mutex_destroy(&c->mu);
    hfi_heap_fini(&c->timers);
    hfi_map_fini(&c->queues);
    hfi_map_fini(&c->observed);
    if (c->stand_in != c->conn)
        hfi_free(c->stand_in);
    hfi_free(c->conn);
    hfi_log_free(c);
    hfi_fork_mark_free(c->mark);
    hfi_free(c);
}

void hfi_client_put(struct hf_client *c)
{
    if (atomic_fetch_sub(&c->refs, 1) == 1)
        client_free(c);
}

static hf_status client_start(struct hf_client *c, struct hfi_url *url,
                              int64_t connect_ms, struct hf_error *err)
{
    hf_status st;

    c->mark = hfi_fork_mark_new();
    c->conn = hfi_conn_new(c);
    if (!c->mark || !c->conn)
        return hfi_nomem(err);
    if (!hfi_notifier_init(&c->notifier))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "no descriptor left");
    st = client_options(c, url, err);
    if (st)
        return st;
    if (connect_ms)
        return hfi_connect_start(c, url, connect_ms, err);
    st = c->be->open(c->conn, url, hfi_now() + c->timeout_ms, err);
    if (!st && !hfi_thread_start(&c->keeper, hfi_keeper_run, c))
        st = hfi_fail(err, HF_SYSTEM, "no thread could be started");
    if (st)
        c->be->close(c->conn);
    /* Nothing was asked for that could be in doubt. */
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

/* Open `url` with a backend that need not be in the table.  In the background
 * the URL is kept, and *url is empty. */
hf_status hfi_open_with(const struct hfi_backend *be, struct hfi_url *url,
                        const struct hf_client_opts *opts, hf_client **ret,
                        struct hf_error *err)
{
    struct hf_client *c = hfi_alloc(sizeof(*c));
    hf_status st;

    if (!c)
        return hfi_nomem(err);
    c->be = be;
    client_init(c);
    client_note(c, opts ? opts->note : NULL);
    c->timeout_ms =
        opts && opts->timeout_ms ? opts->timeout_ms : TIMEOUT_DEFAULT;
    st = hfi_log_start(c, opts, err);
    if (!st)
        st = client_start(c, url, opts ? opts->connect_ms : 0, err);
    if (st)
        client_free(c);
    else
        *ret = c;
    return st;
}

/* Nobody is left but us: give back one grant, as long as there is time. */
static void close_grant(struct hf_client *c, struct hfi_grant *grant,
                        int64_t deadline)
{
    hfi_grant_lose(c, grant, HF_LOSS_CLOSED);
    hfi_heap_remove(&c->timers, &grant->timer);
    hfi_link_remove(&grant->link);
    if (grant->state == HFI_LEFT) { /* sweep.c (4) */
        hfi_grant_free(c, grant);
        return;
    }
    grant->state = HFI_RELEASING;
    if (grant->receipt.registered || grant->uncertain || grant->claim.doubt ||
        grant->watched)
        hfi_grant_send_release(c, grant, deadline, NULL);
    grant->state = HFI_LOST;
    if (hfi_link_alone(&grant->handles))
        hfi_grant_free(c, grant);
}

/* A handle that the caller never got.  If it was granted, the grant goes too. */
static void close_handle(struct hf_client *c, struct hf_lock *lk)
{
    hfi_link_remove(&lk->link);
    hfi_notice_drop(c, &lk->notice);
    atomic_fetch_sub(&c->refs, 1); /* never the last: hf_close() has one */
    if (lk->lost_fd >= 0)
        close(lk->lost_fd);
    hfi_free(lk);
}

static void close_handles(struct hf_client *c, struct hf_request *rq)
{
    struct hfi_several *several = rq->several;
    size_t i;

    if (!several) {
        close_handle(c, rq->lock);
        return;
    }
    for (i = 0; i < several->n; i++) {
        struct hfi_grant *grant = several->parts[i].lock->grant;

        close_handle(c, several->parts[i].lock);
        several->parts[i].lock = NULL;
        if (grant && hfi_link_alone(&grant->handles))
            grant->min_end = 0; /* several.c (4) */
    }
    hfi_several_free(several);
}

/* A request that is still under way, or whose outcome nobody has taken. */
static void close_request(struct hf_client *c, struct hf_request *rq,
                          int64_t deadline)
{
    struct hfi_grant *grant = rq->grant, *before = rq->return_first;

    close_handles(c, rq);
    rq->grant = rq->return_first = NULL;
    if (rq->queue && rq->queue->leader == rq)
        rq->queue->leader = NULL;
    hfi_request_free(rq);
    if (grant)
        close_grant(c, grant, deadline);
    if (before)
        close_grant(c, before, deadline);
}

static void close_drop_notices(struct hf_client *c, const struct hf_request *rq)
{
    size_t i;

    if (!rq->several)
        hfi_notice_drop(c, &rq->lock->notice);
    for (i = 0; rq->several && i < rq->several->n; i++)
        hfi_notice_drop(c, &rq->several->parts[i].lock->notice);
}

/* Requests whose outcome nobody has taken.  The notice of the lock that came
 * with one goes first: it may be the next in the list. */
static void close_noticed(struct hf_client *c, int64_t deadline)
{
    struct hfi_notice *notice;
    struct hf_request *rq;
    struct hfi_link *at, *next;

    for (at = c->notices.next; at != &c->notices; at = next) {
        notice = hfi_container(at, struct hfi_notice, link);
        rq = NULL;
        if (notice->pending & (1u << HF_GRANTED | 1u << HF_FAILED)) {
            rq = hfi_container(notice, struct hf_request, notice);
            close_drop_notices(c, rq);
        }
        next = at->next;
        if (rq)
            close_request(c, rq, deadline);
    }
}

/* Requests that are still under way, key queue by key queue. */
static void close_requests(struct hf_client *c, int64_t deadline)
{
    struct hfi_key_queue *queue = hfi_key_queue_next(c, NULL), *next;
    struct hfi_link *at;

    for (; queue; queue = next) {
        queue->users++;
        for (;;) {
            at = !hfi_link_alone(&queue->waiting) ? &queue->waiting
                                                  : &queue->contending;
            if (hfi_link_alone(at))
                break;
            close_request(c, hfi_container(at->next, struct hf_request, link),
                          deadline);
        }
        next = hfi_key_queue_next(c, queue);
        hfi_key_queue_put(c, queue);
    }
}

/* Timers are grants by now, except that a grant on its way to the reaper or
 * already lost has none. */
static struct hfi_grant *close_find_grant(struct hf_client *c)
{
    if (!hfi_link_alone(&c->reap))
        return hfi_container(c->reap.next, struct hfi_grant, link);
    if (!hfi_link_alone(&c->lost))
        return hfi_container(c->lost.next, struct hfi_grant, link);
    if (hfi_heap_first(&c->timers))
        return hfi_container(hfi_heap_first(&c->timers), struct hfi_grant,
                             timer);
    return NULL;
}

/* Give back grants until there are none.  With the mutex held, which is let go
 * for each of them; several threads may be at it.  True: a release took so long
 * that they should be. */
static bool close_grants(struct hf_client *c, bool until_slow)
{
    struct hfi_grant *grant;
    int64_t began;

    while ((grant = close_find_grant(c))) {
        began = hfi_now();
        close_grant(c, grant, c->close_end);
        if (until_slow && hfi_now() - began >= CLOSE_SLOW_MS)
            return true;
    }
    return false;
}

static void *close_run(void *client)
{
    struct hf_client *c = client;

    pthread_mutex_lock(&c->mu);
    close_grants(c, false);
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

/* With the mutex held: give back every grant, with the threads of the workers,
 * which have ended, if one by one would take too long. */
static void close_all_grants(struct hf_client *c)
{
    int i, n = 0;

    if (!close_grants(c, true))
        return;
    while (n < HFI_WORKERS &&
           hfi_thread_start(&c->workers[n].thread, close_run, c))
        n++;
    close_grants(c, false);
    pthread_mutex_unlock(&c->mu);
    for (i = 0; i < n; i++)
        hfi_thread_join(&c->workers[i].thread);
    pthread_mutex_lock(&c->mu);
}

/* Let every call return and end the threads. */
static void close_quiesce(struct hf_client *c)
{
    pthread_mutex_lock(&c->mu);
    c->closing = true;
    hfi_key_queue_schedule_all(c);
    hfi_cond_wake(&c->settle);
    while (c->calls)
        hfi_cond_wait(&c->settle, &c->mu, HFI_NEVER);
    c->stopping = true;
    hfi_renewers_wake(c);
    hfi_workers_wake(c);
    pthread_mutex_unlock(&c->mu);
    hfi_notifier_notify(&c->notifier);
    hfi_connect_close(c);
    hfi_thread_join(&c->keeper); /* first: it starts the others */
    hfi_workers_join(c);
    hfi_renewers_join(c);
}

/* With the mutex held, which a connector that is left to itself takes before it
 * rings the keeper. */
static void close_descriptors(struct hf_client *c)
{
    if (c->notifier.timer_fd >= 0)
        close(c->notifier.timer_fd);
    c->notifier.timer_fd = -1;
    if (atomic_fetch_sub(&c->cancelers, 1) == 1) /* canceler.c (2) */
        hfi_notifier_fini(&c->notifier);
    hfi_notifier_fini(&c->listener.notifier);
    if (c->events_fd >= 0)
        close(c->events_fd);
    c->events_fd = -1;
}

void hfi_close(struct hf_client *c)
{
    int64_t deadline = hfi_now() + c->timeout_ms, least;

    close_quiesce(c);
    least = hfi_now() +
            (c->timeout_ms < CLOSE_LEAST_MS ? c->timeout_ms : CLOSE_LEAST_MS);
    if (deadline < least)
        deadline = least;
    pthread_mutex_lock(&c->mu);
    c->close_end = deadline;
    hfi_jobs_close(c);
    hfi_release_close(c);
    hfi_observers_close(c);
    close_noticed(c, deadline);
    close_requests(c, deadline);
    close_all_grants(c);
    pthread_mutex_unlock(&c->mu);
    if (!atomic_load(&c->offline))
        c->be->close(c->conn);
    pthread_mutex_lock(&c->mu);
    c->closed = true;
    close_descriptors(c);
    hfi_cond_wake(&c->settle);
    pthread_mutex_unlock(&c->mu);
    hfi_log_stop(c);
    hfi_client_put(c);
}

/* In a forked child.  The memory is a picture of a moment at which another
 * thread may have been changing it: only descriptors are looked at. */
void hfi_after_fork_child(struct hf_client *c)
{
    if (c->be->after_fork_child && !atomic_load(&c->offline))
        c->be->after_fork_child(c->conn);
    hfi_notifier_fini(&c->notifier);
    hfi_notifier_fini(&c->listener.notifier);
    if (c->events_fd >= 0)
        close(c->events_fd);
    c->events_fd = -1;
}
