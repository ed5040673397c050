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

/* If there are more queries than that they take turns: each waits for so short
 * a time that every one has its turn within TURN_MS, but not so short that an
 * agent is asked more than CONNECTIONS_MAX times in WAIT_MIN_MS. */
#define TURN_MS     2000
#define WAIT_MIN_MS 100
#define WRITES_MAX  8 /* connections for writes, beside those */
#define UNUSED_MAX  16

#define EARLY_MS  500 /* before its time, whose clock may run faster */
#define AGAIN_MS  250 /* after a failure */
#define ABSENT_MS 20  /* an entry that is not there is answered too often */

/* ---- from any thread, with the mutex held ------------------------------- */

static void poller_ring(struct consul_poller *poller)
{
    const uint64_t one = 1;

    if (poller->event_fd >= 0 && write(poller->event_fd, &one, sizeof(one)) < 0)
        return; /* Only a full counter fails: it is readable. */
}

static void poller_set_timer(struct consul_poller *poller, int64_t at)
{
    struct itimerspec when = {.it_value = {0, 0}};

    if (at == poller->timer_at || poller->timer_fd < 0)
        return;
    poller->timer_at = at;
    if (at != HFI_NEVER) {
        when.it_value.tv_sec = at / 1000;
        when.it_value.tv_nsec = at % 1000 * 1000000 + 1;
    }
    timerfd_settime(poller->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Have the query started at `at`. */
void hfi_consul_poller_add(struct consul_conn *cc, struct consul_watch *watch,
                           int64_t at)
{
    struct consul_poller *poller = &cc->poller;

    if (!hfi_link_alone(&watch->link) && watch->start_at <= at)
        return; /* It keeps its turn. */
    watch->start_at = at;
    hfi_link_remove(&watch->link);
    hfi_link_append(&poller->pending, &watch->link);
    if (at <= hfi_now())
        poller_ring(poller);
    else if (at < poller->timer_at)
        poller_set_timer(poller, at);
}

/* Nobody waits for this query any more, or somebody does again. */
void hfi_consul_poller_unused(struct consul_conn *cc,
                              struct consul_watch *watch)
{
    struct consul_poller *poller = &cc->poller;

    if (!hfi_link_alone(&watch->link)) {
        hfi_link_remove(&watch->link);
        poller->nunused--;
        return;
    }
    hfi_link_append(&poller->unused, &watch->link);
    if (++poller->nunused > UNUSED_MAX)
        poller_ring(poller);
}

void hfi_consul_poller_moved(struct consul_conn *cc)
{
    pthread_mutex_lock(&cc->mu);
    cc->poller.moved = true;
    poller_ring(&cc->poller);
    pthread_mutex_unlock(&cc->mu);
}

/* ---- the keeper's ------------------------------------------------------- */

static int poller_on_socket(CURL *easy, curl_socket_t fd, int what, void *arg,
                            void *mine)
{
    struct consul_poller *poller = arg;
    struct epoll_event event = {.data.fd = fd};

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(poller->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    if (what & CURL_POLL_IN)
        event.events |= EPOLLIN;
    if (what & CURL_POLL_OUT)
        event.events |= EPOLLOUT;
    epoll_ctl(poller->epoll_fd, mine ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd,
              &event);
    curl_multi_assign(poller->multi, fd, poller);
    return 0;
}

static int poller_on_timer(CURLM *multi, long ms, void *arg)
{
    struct consul_poller *poller = arg;

    (void)multi;
    poller->curl_at = ms < 0 ? HFI_NEVER : hfi_now() + ms;
    return 0;
}

/* Send a write; with the mutex held.  Finishes `ops`. */
void hfi_consul_poller_write(struct consul_conn *cc, struct consul_ops *ops)
{
    struct consul_request rq = {.method = "PUT",
                                .path = "/v1/txn",
                                .body = hfi_consul_ops_text(ops),
                                .write = true};
    struct consul_async_write *w = hfi_alloc(sizeof(*w));

    if (w && rq.body) {
        w->is_write = true;
        hfi_link_init(&w->link);
        w->easy = hfi_consul_easy_new(cc, &w->reply);
        if (w->easy &&
            hfi_consul_easy_aim(cc, w->easy, atomic_load(&cc->agent), &rq,
                                cc->timeout_ms) &&
            !curl_easy_setopt(w->easy, CURLOPT_PRIVATE, w) &&
            !curl_multi_add_handle(cc->poller.multi, w->easy)) {
            hfi_link_append(&cc->poller.writes, &w->link);
            w = NULL;
            poller_ring(&cc->poller);
        }
    }
    if (w)
        curl_easy_cleanup(w->easy);
    hfi_free(w);
    hfi_consul_ops_fini(ops);
}

static void async_write_end(struct consul_conn *cc,
                            struct consul_async_write *w)
{
    curl_multi_remove_handle(cc->poller.multi, w->easy);
    curl_easy_cleanup(w->easy);
    hfi_consul_reply_fini(&w->reply);
    hfi_link_remove(&w->link);
    hfi_free(w);
}

/* How long a query waits for a change. */
static int64_t poller_wait_ms(const struct consul_poller *poller)
{
    int64_t n = (int64_t)poller->watches.len,
            ms = TURN_MS * CONNECTIONS_MAX / n;

    if (n <= CONNECTIONS_MAX)
        return WAIT_MS;
    return ms < WAIT_MIN_MS ? WAIT_MIN_MS : ms;
}

/* Send the query of a watch that is pending. */
static bool poller_send(struct consul_conn *cc, struct consul_watch *watch)
{
    char path[3 * CONSUL_NAME_MAX], query[80];
    struct consul_request rq = {.method = "GET", .path = path};
    int64_t wait_ms = poller_wait_ms(&cc->poller);

    if (!watch->easy)
        watch->easy = hfi_consul_easy_new(cc, &watch->reply);
    snprintf(query, sizeof(query), "?%swait=%lldms&index=%llu",
             watch->names   ? "keys&separator=/&"
             : watch->among ? "recurse&"
                            : "",
             (long long)wait_ms, (unsigned long long)watch->index);
    hfi_consul_path(path, sizeof(path), watch->name, query);
    hfi_consul_reply_fini(&watch->reply);
    watch->due = hfi_now() + wait_ms - EARLY_MS;
    return watch->easy &&
           hfi_consul_easy_aim(cc, watch->easy, atomic_load(&cc->agent), &rq,
                               wait_ms + wait_ms / 16 + 5000) &&
           !curl_easy_setopt(watch->easy, CURLOPT_CONNECTTIMEOUT_MS, 3000L) &&
           !curl_easy_setopt(watch->easy, CURLOPT_PRIVATE, watch) &&
           !curl_multi_add_handle(cc->poller.multi, watch->easy);
}

static void poller_start_due(struct consul_conn *cc, int64_t now)
{
    struct hfi_link *at, *next;
    struct consul_watch *watch;

    for (at = cc->poller.pending.next; at != &cc->poller.pending; at = next) {
        next = at->next;
        watch = hfi_container(at, struct consul_watch, link);
        if (watch->start_at > now)
            continue;
        if (cc->poller.running >= CONNECTIONS_MAX)
            break;
        hfi_link_remove(&watch->link);
        watch->running = poller_send(cc, watch);
        if (watch->running)
            cc->poller.running++;
        else
            hfi_consul_poller_add(cc, watch, now + AGAIN_MS);
    }
}

/* Read an answer; false if it is none. */
static bool poller_read(struct consul_watch *watch, CURLcode rc,
                        struct consul_kv *kv)
{
    curl_easy_getinfo(watch->easy, CURLINFO_RESPONSE_CODE,
                      &watch->reply.status);
    if (!watch->reply.headed)
        return false;
    if (watch->names) {
        *kv = (struct consul_kv){.exists = watch->reply.status == 200};
        return !rc && (kv->exists || watch->reply.status == 404) &&
               watch->reply.index;
    }
    if (rc || (watch->reply.status != 200 && watch->reply.status != 404) ||
        !hfi_consul_kv_read(kv, &watch->reply))
        return false;
    if (!kv->exists)
        kv->index = watch->reply.index;
    return true;
}

/* The agent did not answer as it should: ask another one, if there is. */
static void poller_turn_away(struct consul_conn *cc)
{
    size_t agent = atomic_load(&cc->agent);

    if (cc->options.nagents > 1)
        atomic_compare_exchange_strong(&cc->agent, &agent,
                                       (agent + 1) % cc->options.nagents);
}

/* From where to go on after an answer with this index. */
static uint64_t poller_next_index(const struct consul_watch *watch,
                                  uint64_t index, int64_t now)
{
    if (index < watch->index || (index == watch->index && now < watch->due))
        return 0;
    return index;
}

/* With the mutex held: a query is done. */
static void poller_done(struct consul_conn *cc, struct consul_watch *watch,
                        CURLcode rc)
{
    uint64_t index = watch->reply.index;
    int64_t now = hfi_now(), at = now;
    struct consul_kv kv;

    curl_multi_remove_handle(cc->poller.multi, watch->easy);
    if (!hfi_link_alone(&watch->link))
        hfi_consul_poller_unused(cc, watch);
    if (poller_read(watch, rc, &kv)) {
        watch->index = poller_next_index(watch, index, now);
        if (watch->names)
            hfi_consul_observed(cc, watch, index);
        else
            hfi_consul_watch_answer(cc, watch, &kv);
        if (!kv.exists || !index)
            at = now + ABSENT_MS;
    } else {
        watch->index = 0;
        poller_turn_away(cc);
        at = now +
             (watch->names ? hfi_consul_observe_failed(cc, watch) : AGAIN_MS);
    }
    if (!hfi_link_alone(&watch->link)) /* The last one left meanwhile. */
        hfi_consul_poller_unused(cc, watch);
    watch->running = false;
    cc->poller.running--;
    if (hfi_link_alone(&watch->users))
        hfi_consul_watch_free(cc, watch);
    else
        hfi_consul_poller_add(cc, watch, at);
}

static void poller_collect(struct consul_conn *cc)
{
    char *job;
    CURLMsg *msg;
    CURLcode rc;
    int left;

    while ((msg = curl_multi_info_read(cc->poller.multi, &left))) {
        if (msg->msg != CURLMSG_DONE)
            continue;
        rc = msg->data.result;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &job);
        if (*(bool *)job)
            async_write_end(cc, (struct consul_async_write *)(void *)job);
        else
            poller_done(cc, (struct consul_watch *)(void *)job, rc);
    }
}

/* Take a query back. */
static void poller_stop(struct consul_conn *cc, struct consul_watch *watch)
{
    curl_multi_remove_handle(cc->poller.multi, watch->easy);
    if (!hfi_link_alone(&watch->link))
        hfi_consul_poller_unused(cc, watch);
    watch->running = false;
    cc->poller.running--;
}

/* Start queries again: all of them with another agent (`moved`), or those that
 * would keep their connections for long while others wait for one. */
static void poller_restart(struct consul_conn *cc, bool moved)
{
    struct consul_poller *poller = &cc->poller;
    int64_t now = hfi_now();
    struct hfi_node *node, *next;
    struct consul_watch *watch;

    for (node = hfi_map_next(&poller->watches, NULL); node; node = next) {
        next = hfi_map_next(&poller->watches, node);
        watch = hfi_container(node, struct consul_watch, node);
        if (!watch->running || (!moved && watch->due < now + TURN_MS))
            continue;
        poller_stop(cc, watch);
        if (moved)
            watch->index = 0;
        if (hfi_link_alone(&watch->users))
            hfi_consul_watch_free(cc, watch);
        else
            hfi_consul_poller_add(cc, watch, now);
    }
}

static void poller_tidy(struct consul_conn *cc)
{
    struct consul_poller *poller = &cc->poller;
    bool many = poller->watches.len > CONNECTIONS_MAX;
    struct consul_watch *watch;

    while (poller->nunused > UNUSED_MAX) {
        watch = hfi_container(poller->unused.next, struct consul_watch, link);
        poller_stop(cc, watch);
        hfi_consul_watch_free(cc, watch);
    }
    if (poller->moved || (many && !poller->many))
        poller_restart(cc, poller->moved);
    poller->moved = false;
    poller->many = many;
}

static void poller_listen(struct consul_poller *poller)
{
    struct epoll_event events[64];
    int i, n, mask, running;
    uint64_t count;

    n = epoll_wait(poller->epoll_fd, events, 64, 0);
    for (i = 0; i < n; i++) {
        if (events[i].data.fd == poller->event_fd ||
            events[i].data.fd == poller->timer_fd) {
            if (read(events[i].data.fd, &count, sizeof(count)) > 0 &&
                events[i].data.fd == poller->timer_fd)
                poller->timer_at = HFI_NEVER;
            continue;
        }
        mask =
            (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
            (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
            (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(poller->multi, events[i].data.fd, mask,
                                 &running);
    }
}

int hfi_consul_poll_fd(struct hfi_conn *conn)
{
    return ((struct consul_conn *)conn)->poller.epoll_fd;
}

void hfi_consul_dispatch(struct hfi_conn *conn)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct consul_poller *poller = &cc->poller;
    struct hfi_link *at;
    int64_t now, next;
    int i, running;

    pthread_mutex_lock(&cc->mu);
    poller_listen(poller);
    for (i = 0, now = hfi_now(); i < 8; i++) {
        poller_collect(cc);
        poller_tidy(cc);
        poller_start_due(cc, now);
        if (poller->curl_at > now)
            break;
        poller->curl_at = HFI_NEVER;
        curl_multi_socket_action(poller->multi, CURL_SOCKET_TIMEOUT, 0,
                                 &running);
    }
    poller_collect(cc);
    next = hfi_consul_watch_wake(cc, now);
    if (poller->curl_at < next)
        next = poller->curl_at;
    /* A query that ends makes room for those that are due. */
    for (at = poller->pending.next;
         poller->running < CONNECTIONS_MAX && at != &poller->pending;
         at = at->next)
        if (hfi_container(at, struct consul_watch, link)->start_at < next)
            next = hfi_container(at, struct consul_watch, link)->start_at;
    poller_set_timer(poller, next);
    pthread_mutex_unlock(&cc->mu);
}

/* ---- beginning and end -------------------------------------------------- */

static bool poller_listen_to(struct consul_poller *poller, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return fd >= 0 && !epoll_ctl(poller->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

hf_status hfi_consul_poller_init(struct consul_conn *cc, struct hf_error *err)
{
    struct consul_poller *poller = &cc->poller;

    hfi_link_init(&poller->pending);
    hfi_link_init(&poller->unused);
    hfi_link_init(&poller->waking);
    hfi_link_init(&poller->writes);
    poller->timer_at = poller->curl_at = HFI_NEVER;
    poller->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    poller->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    poller->timer_fd =
        timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (poller->epoll_fd < 0 || !poller_listen_to(poller, poller->event_fd) ||
        !poller_listen_to(poller, poller->timer_fd))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "no descriptor left");
    poller->multi = hfi_consul_multi_new(cc);
    if (!poller->multi)
        return hfi_nomem(err);
    curl_multi_setopt(poller->multi, CURLMOPT_SOCKETFUNCTION, poller_on_socket);
    curl_multi_setopt(poller->multi, CURLMOPT_SOCKETDATA, poller);
    curl_multi_setopt(poller->multi, CURLMOPT_TIMERFUNCTION, poller_on_timer);
    curl_multi_setopt(poller->multi, CURLMOPT_TIMERDATA, poller);
    curl_multi_setopt(poller->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS,
                      (long)CONNECTIONS_MAX + WRITES_MAX);
    return HF_OK;
}

static void poller_fini_watches(struct consul_conn *cc)
{
    struct consul_poller *poller = &cc->poller;
    struct hfi_node *node;
    struct consul_watch *watch;

    while ((node = hfi_map_next(&poller->watchers, NULL)))
        hfi_consul_forget(
            cc, hfi_container(node, struct consul_watcher, node)->token);
    while ((node = hfi_map_next(&poller->watches, NULL))) {
        watch = hfi_container(node, struct consul_watch, node);
        if (watch->running)
            poller_stop(cc, watch);
        hfi_consul_watch_free(cc, watch);
    }
    while (!hfi_link_alone(&poller->writes))
        async_write_end(cc, hfi_container(poller->writes.next,
                                          struct consul_async_write, link));
}

/* Nobody else uses the conn any more. */
void hfi_consul_poller_fini(struct consul_conn *cc)
{
    struct consul_poller *poller = &cc->poller;

    if (poller->multi) {
        poller_fini_watches(cc);
        curl_multi_cleanup(poller->multi);
    }
    hfi_map_fini(&poller->watches);
    hfi_map_fini(&poller->watchers);
    if (poller->epoll_fd >= 0)
        close(poller->epoll_fd);
    if (poller->event_fd >= 0)
        close(poller->event_fd);
    if (poller->timer_fd >= 0)
        close(poller->timer_fd);
    poller->multi = NULL;
    poller->epoll_fd = poller->event_fd = poller->timer_fd = -1;
}
