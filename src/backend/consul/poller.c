/* SPDX-License-Identifier: MIT
 *
 * poller.c - blocking queries of all waiters, driven by the keeper.
 *
 * All queries are in one multi handle of curl.  Its sockets, a timer and a
 * descriptor that other threads ring are in one epoll set, which is the
 * descriptor that the keeper listens to.  The mutex guards the multi handle.
 * Only the keeper drives it; other threads put a query into `pending` and
 * ring, or set the timer if it is for later.
 *
 * A query waits at most WAIT_MS on the service.  An agent that answers nothing
 * at all is noticed by the short calls, which then choose another one; every
 * query is started again there.
 *
 * An index can go backwards (a restored snapshot, a new cluster); then it
 * starts from nothing.  A query that is under way when a snapshot is restored
 * is answered at once, but from the old state, as if nothing had changed; the
 * next one, with the old index, would wait for what may never come.  So an
 * answer that says nothing new before its time starts from nothing as well.
 */
#include "consul.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/lease.h"

#include "base/banned.h"

#define WAIT_MS 60000

/* An agent accepts 200 connections of one address, and we are not alone. */
#define CONNECTIONS_MAX 64

/* If there are more queries than that they take turns: each waits for so short a
 * time that every one has its turn within TURN_MS, but not so short that an
 * agent is asked more than CONNECTIONS_MAX times in WAIT_MIN_MS. */
#define TURN_MS     2000
#define WAIT_MIN_MS 100
#define WRITES_MAX  8 /* connections for writes, beside those */
#define ORPHANS_MAX 16

#define EARLY_MS  500 /* before its time, whose clock may run faster */
#define AGAIN_MS  250 /* after a failure */
#define ABSENT_MS 20  /* an entry that is not there is answered too often */

/* ---- from any thread, with the mutex held ------------------------------- */

static void hub_ring(struct consul_hub *hub)
{
    const uint64_t one = 1;

    if (hub->event_fd >= 0 && write(hub->event_fd, &one, sizeof(one)) < 0)
        return; /* Only a full counter fails: it is readable. */
}

static void hub_set_timer(struct consul_hub *hub, int64_t at)
{
    struct itimerspec when = {.it_value = {0, 0}};

    if (at == hub->timer_at || hub->timer_fd < 0)
        return;
    hub->timer_at = at;
    if (at != HFI_NEVER) {
        when.it_value.tv_sec = at / 1000;
        when.it_value.tv_nsec = at % 1000 * 1000000 + 1;
    }
    timerfd_settime(hub->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Have the query started at `at`. */
void hfi_consul_hub_add(struct consul_conn *cc, struct consul_watch *watch,
                        int64_t at)
{
    struct consul_hub *hub = &cc->hub;

    if (!hfi_link_alone(&watch->link) && watch->start_at <= at)
        return; /* It keeps its turn. */
    watch->start_at = at;
    hfi_link_remove(&watch->link);
    hfi_link_append(&hub->pending, &watch->link);
    if (at <= hfi_now())
        hub_ring(hub);
    else if (at < hub->timer_at)
        hub_set_timer(hub, at);
}

/* Nobody waits for this query any more, or somebody does again. */
void hfi_consul_hub_orphan(struct consul_conn *cc, struct consul_watch *watch)
{
    struct consul_hub *hub = &cc->hub;

    if (!hfi_link_alone(&watch->link)) {
        hfi_link_remove(&watch->link);
        hub->norphans--;
        return;
    }
    hfi_link_append(&hub->orphans, &watch->link);
    if (++hub->norphans > ORPHANS_MAX)
        hub_ring(hub);
}

void hfi_consul_hub_moved(struct consul_conn *cc)
{
    pthread_mutex_lock(&cc->mu);
    cc->hub.moved = true;
    hub_ring(&cc->hub);
    pthread_mutex_unlock(&cc->mu);
}

/* ---- the keeper's ------------------------------------------------------- */

static int hub_on_socket(CURL *easy, curl_socket_t fd, int what, void *arg,
                         void *mine)
{
    struct consul_hub *hub = arg;
    struct epoll_event event = {.data.fd = fd};

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(hub->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    if (what & CURL_POLL_IN)
        event.events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        event.events |= EPOLLOUT;
    epoll_ctl(hub->epoll_fd, mine ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
    curl_multi_assign(hub->multi, fd, hub);
    return 0;
}

static int hub_on_timer(CURLM *multi, long ms, void *arg)
{
    struct consul_hub *hub = arg;

    (void)multi;
    hub->curl_at = ms < 0 ? HFI_NEVER : hfi_now() + ms;
    return 0;
}

/* Send a write; with the mutex held.  Finishes `ops`. */
void hfi_consul_hub_shoot(struct consul_conn *cc, struct consul_ops *ops)
{
    struct consul_request rq = {.method = "PUT",
                                .path = "/v1/txn",
                                .body = hfi_consul_ops_text(ops),
                                .write = true};
    struct consul_shot *shot = hfi_alloc(sizeof(*shot));

    if (shot && rq.body) {
        shot->shot = true;
        hfi_link_init(&shot->link);
        shot->easy = hfi_consul_easy_new(cc, &shot->reply);
        if (shot->easy &&
            hfi_consul_easy_aim(cc, shot->easy, atomic_load(&cc->agent), &rq,
                                cc->timeout_ms) &&
            !curl_easy_setopt(shot->easy, CURLOPT_PRIVATE, shot) &&
            !curl_multi_add_handle(cc->hub.multi, shot->easy)) {
            hfi_link_append(&cc->hub.shots, &shot->link);
            shot = NULL;
            hub_ring(&cc->hub);
        }
    }
    if (shot)
        curl_easy_cleanup(shot->easy);
    hfi_free(shot);
    hfi_consul_ops_fini(ops);
}

static void shot_end(struct consul_conn *cc, struct consul_shot *shot)
{
    curl_multi_remove_handle(cc->hub.multi, shot->easy);
    curl_easy_cleanup(shot->easy);
    hfi_consul_reply_fini(&shot->reply);
    hfi_link_remove(&shot->link);
    hfi_free(shot);
}

/* How long a query waits for a change. */
static int64_t hub_wait_ms(const struct consul_hub *hub)
{
    int64_t n = (int64_t)hub->watches.len, ms = TURN_MS * CONNECTIONS_MAX / n;

    if (n <= CONNECTIONS_MAX)
        return WAIT_MS;
    return ms < WAIT_MIN_MS ? WAIT_MIN_MS : ms;
}

/* Send the query of a watch that is pending. */
static bool hub_send(struct consul_conn *cc, struct consul_watch *watch)
{
    char path[3 * CONSUL_NAME_MAX], query[64];
    struct consul_request rq = {.method = "GET", .path = path};
    int64_t wait_ms = hub_wait_ms(&cc->hub);

    if (!watch->easy)
        watch->easy = hfi_consul_easy_new(cc, &watch->reply);
    snprintf(query, sizeof(query), "?wait=%lldms&index=%llu",
             (long long)wait_ms, (unsigned long long)watch->index);
    hfi_consul_path(path, sizeof(path), watch->name, query);
    hfi_consul_reply_fini(&watch->reply);
    watch->due = hfi_now() + wait_ms - EARLY_MS;
    return watch->easy &&
           hfi_consul_easy_aim(cc, watch->easy, atomic_load(&cc->agent), &rq,
                               wait_ms + wait_ms / 16 + 5000) &&
           !curl_easy_setopt(watch->easy, CURLOPT_CONNECTTIMEOUT_MS, 3000L) &&
           !curl_easy_setopt(watch->easy, CURLOPT_PRIVATE, watch) &&
           !curl_multi_add_handle(cc->hub.multi, watch->easy);
}

static void hub_start_due(struct consul_conn *cc, int64_t now)
{
    struct hfi_link *at, *next;
    struct consul_watch *watch;

    for (at = cc->hub.pending.next; at != &cc->hub.pending; at = next) {
        next = at->next;
        watch = hfi_container(at, struct consul_watch, link);
        if (watch->start_at > now)
            continue;
        if (cc->hub.running >= CONNECTIONS_MAX)
            break;
        hfi_link_remove(&watch->link);
        watch->running = hub_send(cc, watch);
        if (watch->running)
            cc->hub.running++;
        else
            hfi_consul_hub_add(cc, watch, now + AGAIN_MS);
    }
}

/* Read an answer; false if it is none. */
static bool hub_read(struct consul_watch *watch, CURLcode rc,
                     struct consul_kv *kv)
{
    curl_easy_getinfo(watch->easy, CURLINFO_RESPONSE_CODE,
                      &watch->reply.status);
    if (rc || (watch->reply.status != 200 && watch->reply.status != 404) ||
        !hfi_consul_kv_read(kv, &watch->reply))
        return false;
    if (!kv->exists)
        kv->index = watch->reply.index;
    return true;
}

/* The agent did not answer as it should: ask another one, if there is. */
static void hub_turn_away(struct consul_conn *cc)
{
    size_t agent = atomic_load(&cc->agent);

    if (cc->conf.nagents > 1)
        atomic_compare_exchange_strong(&cc->agent, &agent,
                                       (agent + 1) % cc->conf.nagents);
}

/* From where to go on after an answer with this index. */
static uint64_t hub_next_index(const struct consul_watch *watch, uint64_t index,
                               int64_t now)
{
    if (index < watch->index || (index == watch->index && now < watch->due))
        return 0;
    return index;
}

/* With the mutex held: a query is done. */
static void hub_done(struct consul_conn *cc, struct consul_watch *watch,
                     CURLcode rc)
{
    uint64_t index = watch->reply.index;
    int64_t now = hfi_now(), at = now;
    struct consul_kv kv;

    curl_multi_remove_handle(cc->hub.multi, watch->easy);
    if (!hfi_link_alone(&watch->link))
        hfi_consul_hub_orphan(cc, watch);
    if (hub_read(watch, rc, &kv)) {
        watch->index = hub_next_index(watch, index, now);
        hfi_consul_watch_answer(cc, watch, &kv);
        if (!kv.exists || !index)
            at = now + ABSENT_MS;
    } else {
        watch->index = 0;
        hub_turn_away(cc);
        at = now + AGAIN_MS;
    }
    if (!hfi_link_alone(&watch->link)) /* The last one left meanwhile. */
        hfi_consul_hub_orphan(cc, watch);
    watch->running = false;
    cc->hub.running--;
    if (hfi_link_alone(&watch->users))
        hfi_consul_watch_free(cc, watch);
    else
        hfi_consul_hub_add(cc, watch, at);
}

static void hub_collect(struct consul_conn *cc)
{
    char *job;
    CURLMsg *msg;
    CURLcode rc;
    int left;

    while ((msg = curl_multi_info_read(cc->hub.multi, &left))) {
        if (msg->msg != CURLMSG_DONE)
            continue;
        rc = msg->data.result;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &job);
        if (*(bool *)job)
            shot_end(cc, (struct consul_shot *)(void *)job);
        else
            hub_done(cc, (struct consul_watch *)(void *)job, rc);
    }
}

/* Take a query back. */
static void hub_stop(struct consul_conn *cc, struct consul_watch *watch)
{
    curl_multi_remove_handle(cc->hub.multi, watch->easy);
    if (!hfi_link_alone(&watch->link))
        hfi_consul_hub_orphan(cc, watch);
    watch->running = false;
    cc->hub.running--;
}

/* Start queries again: all of them with another agent (`moved`), or those that
 * would keep their connections for long while others wait for one. */
static void hub_restart(struct consul_conn *cc, bool moved)
{
    struct consul_hub *hub = &cc->hub;
    int64_t now = hfi_now();
    struct hfi_node *node, *next;
    struct consul_watch *watch;

    for (node = hfi_map_next(&hub->watches, NULL); node; node = next) {
        next = hfi_map_next(&hub->watches, node);
        watch = hfi_container(node, struct consul_watch, node);
        if (!watch->running || (!moved && watch->due < now + TURN_MS))
            continue;
        hub_stop(cc, watch);
        if (moved)
            watch->index = 0;
        if (hfi_link_alone(&watch->users))
            hfi_consul_watch_free(cc, watch);
        else
            hfi_consul_hub_add(cc, watch, now);
    }
}

static void hub_tidy(struct consul_conn *cc)
{
    struct consul_hub *hub = &cc->hub;
    bool many = hub->watches.len > CONNECTIONS_MAX;
    struct consul_watch *watch;

    while (hub->norphans > ORPHANS_MAX) {
        watch = hfi_container(hub->orphans.next, struct consul_watch, link);
        hub_stop(cc, watch);
        hfi_consul_watch_free(cc, watch);
    }
    if (hub->moved || (many && !hub->many))
        hub_restart(cc, hub->moved);
    hub->moved = false;
    hub->many = many;
}

static void hub_listen(struct consul_hub *hub)
{
    struct epoll_event events[64];
    int i, n, mask, running;
    uint64_t count;

    n = epoll_wait(hub->epoll_fd, events, 64, 0);
    for (i = 0; i < n; i++) {
        if (events[i].data.fd == hub->event_fd ||
            events[i].data.fd == hub->timer_fd) {
            if (read(events[i].data.fd, &count, sizeof(count)) > 0 &&
                events[i].data.fd == hub->timer_fd)
                hub->timer_at = HFI_NEVER;
            continue;
        }
        mask =
            (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
            (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
            (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(hub->multi, events[i].data.fd, mask, &running);
    }
}

int hfi_consul_poll_fd(struct hfi_conn *conn)
{
    return ((struct consul_conn *)conn)->hub.epoll_fd;
}

void hfi_consul_dispatch(struct hfi_conn *conn)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct consul_hub *hub = &cc->hub;
    struct hfi_link *at;
    int64_t now, next;
    int i, running;

    pthread_mutex_lock(&cc->mu);
    hub_listen(hub);
    for (i = 0, now = hfi_now(); i < 8; i++) {
        hub_collect(cc);
        hub_tidy(cc);
        hub_start_due(cc, now);
        if (hub->curl_at > now)
            break;
        hub->curl_at = HFI_NEVER;
        curl_multi_socket_action(hub->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    hub_collect(cc);
    next = hfi_consul_watch_wake(cc, now);
    if (hub->curl_at < next)
        next = hub->curl_at;
    /* A query that ends makes room for those that are due. */
    for (at = hub->pending.next;
         hub->running < CONNECTIONS_MAX && at != &hub->pending; at = at->next)
        if (hfi_container(at, struct consul_watch, link)->start_at < next)
            next = hfi_container(at, struct consul_watch, link)->start_at;
    hub_set_timer(hub, next);
    pthread_mutex_unlock(&cc->mu);
}

/* ---- beginning and end -------------------------------------------------- */

static bool hub_listen_to(struct consul_hub *hub, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return fd >= 0 && !epoll_ctl(hub->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

hf_status hfi_consul_hub_init(struct consul_conn *cc, struct hf_error *err)
{
    struct consul_hub *hub = &cc->hub;

    hfi_link_init(&hub->pending);
    hfi_link_init(&hub->orphans);
    hfi_link_init(&hub->waking);
    hfi_link_init(&hub->shots);
    hub->timer_at = hub->curl_at = HFI_NEVER;
    hub->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    hub->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    hub->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (hub->epoll_fd < 0 || !hub_listen_to(hub, hub->event_fd) ||
        !hub_listen_to(hub, hub->timer_fd))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "no descriptor left");
    hub->multi = hfi_consul_multi_new(cc);
    if (!hub->multi)
        return hfi_nomem(err);
    curl_multi_setopt(hub->multi, CURLMOPT_SOCKETFUNCTION, hub_on_socket);
    curl_multi_setopt(hub->multi, CURLMOPT_SOCKETDATA, hub);
    curl_multi_setopt(hub->multi, CURLMOPT_TIMERFUNCTION, hub_on_timer);
    curl_multi_setopt(hub->multi, CURLMOPT_TIMERDATA, hub);
    curl_multi_setopt(hub->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS,
                      (long)CONNECTIONS_MAX + WRITES_MAX);
    return HF_OK;
}

static void hub_fini_watches(struct consul_conn *cc)
{
    struct consul_hub *hub = &cc->hub;
    struct hfi_node *node;
    struct consul_watch *watch;

    while ((node = hfi_map_next(&hub->watchers, NULL)))
        hfi_consul_forget(
            cc, hfi_container(node, struct consul_watcher, node)->token);
    while ((node = hfi_map_next(&hub->watches, NULL))) {
        watch = hfi_container(node, struct consul_watch, node);
        if (watch->running)
            hub_stop(cc, watch);
        hfi_consul_watch_free(cc, watch);
    }
    while (!hfi_link_alone(&hub->shots))
        shot_end(cc, hfi_container(hub->shots.next, struct consul_shot, link));
}

/* Nobody else uses the conn any more. */
void hfi_consul_hub_fini(struct consul_conn *cc)
{
    struct consul_hub *hub = &cc->hub;

    if (hub->multi) {
        hub_fini_watches(cc);
        curl_multi_cleanup(hub->multi);
    }
    hfi_map_fini(&hub->watches);
    hfi_map_fini(&hub->watchers);
    if (hub->epoll_fd >= 0)
        close(hub->epoll_fd);
    if (hub->event_fd >= 0)
        close(hub->event_fd);
    if (hub->timer_fd >= 0)
        close(hub->timer_fd);
    hub->multi = NULL;
    hub->epoll_fd = hub->event_fd = hub->timer_fd = -1;
}
