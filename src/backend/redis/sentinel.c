/* SPDX-License-Identifier: MIT
 *
 * sentinel.c - which server is the master, by the word of the sentinels.
 *
 * Each new connection asks the sentinels in turn, and is not used if the server
 * turns out to be a replica (handshake.c).  That alone finds the master, but a
 * connection to one that was deposed may go on working: it is cut off from the
 * sentinels and not from us, or has not been told yet.  So a client that is in
 * use also listens at one of the sentinels for
 *
 *   +switch-master   NAME OLD-ADDRESS OLD-PORT NEW-ADDRESS NEW-PORT
 *
 * and leaves a server that is not at the new address.  What is missed costs
 * what it would cost without: the old master says that it is a replica, or
 * closes its connections, or does not answer.
 *
 * CALLS THAT ARE UNDER WAY at the old master end at once, without an answer: see
 * (2).  Each is then in doubt about what that server has done, also where it
 * stepped down in good order and the new one knows of it, and asks there.
 *
 * INVARIANTS
 *  (1) A message is a reason to ask, and is not the answer.  The sentinel that
 *      sent it is asked first.  One that is known to be behind, by the number
 *      of its configuration (config-epoch), has its word only if nobody else is
 *      to be had; and a replica is refused, whoever names it.
 *  (2) From the message on nothing is sent to a master that was found before
 *      it: a connection that is just being made is made again (hfi_mux_move()).
 *      Nor is any answer of such a master believed: one that hung may thaw and
 *      grant, renew or release what its successor knows nothing of.
 *  (3) Who has subscribed asks after that, so that what happened while nobody
 *      was listened to is not missed.
 *  (4) The keeper reads, sends PINGs and never waits.  To connect is the
 *      seeker's, a thread that lives while no sentinel is listened to.  It goes
 *      from one to the next, with pauses that grow, and leaves the calls alone.
 *  (5) A sentinel that does not answer a PING by the next is left for another.
 */
#include "redis.h"
#include "tracker.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/banned.h"

/* How long the seeker waits for one sentinel. */
#define SEEK_MS 1000

/* Two addresses, two ports and the name of a master. */
#define SWITCH_MAX 1024

/* ---- asking ------------------------------------------------------------ */

/* What a sentinel says. */
struct sentinel_word {
    struct hfi_endpoint at;
    uint64_t epoch; /* of the configuration that says so */
};

/* One of them, while it is asked. */
struct sentinel_asked {
    struct redis_conn *rc;
    const struct hfi_endpoint *at;
};

static hf_status asked_find(void *arg, struct hfi_endpoint *ret,
                            int64_t deadline, struct hf_error *err)
{
    (void)deadline;
    (void)err;
    *ret = *((struct sentinel_asked *)arg)->at;
    return HF_OK;
}

static hf_status asked_handshake(void *arg, struct mux_link *link,
                                 int64_t deadline, struct hf_error *err)
{
    return redis_handshake_sentinel(((struct sentinel_asked *)arg)->rc, link,
                                    deadline, err);
}

static bool read_address(const struct redis_conn *rc, const char *host,
                         const char *port, struct hfi_endpoint *ret)
{
    char *end;
    long n = strtol(port, &end, 10);

    if (!*host || strlen(host) >= sizeof(ret->host) || end == port || *end ||
        n < 1 || n > UINT16_MAX)
        return false;
    *ret = rc->ends[0]; /* for what is not an address */
    snprintf(ret->host, sizeof(ret->host), "%s", host);
    ret->port = (int)n;
    return true;
}

/* The address, and what else is known of the master.  A user that may not ask
 * for that takes the word for the newest. */
static bool read_word(struct redis_conn *rc, redisReply *const *reply,
                      struct sentinel_word *ret)
{
    const redisReply *at = reply[0];

    ret->epoch =
        reply[1]->type == REDIS_REPLY_ARRAY
            ? strtoull(redis_setting(reply[1], "config-epoch"), NULL, 10)
            : atomic_load(&rc->follow.epoch);
    return at->type == REDIS_REPLY_ARRAY && at->elements == 2 &&
           at->element[0]->str && at->element[1]->str &&
           read_address(rc, at->element[0]->str, at->element[1]->str, &ret->at);
}

static bool is_error(const redisReply *reply, const char *word)
{
    return reply->type == REDIS_REPLY_ERROR &&
           !strncmp(reply->str, word, strlen(word));
}

static hf_status read_answer(struct redis_conn *rc, redisReply *const *reply,
                             struct sentinel_word *ret, struct hf_error *err)
{
    if (read_word(rc, reply, ret))
        return HF_OK;
    if (is_error(reply[0], "NOAUTH"))
        return hfi_fail(err, HF_DENIED,
                        "it wants a password, give sentinel_password_file=: "
                        "NOAUTH");
    if (is_error(reply[0], "NOPERM"))
        return hfi_fail(err, HF_DENIED,
                        "the user of sentinel_user= lacks the right to "
                        "SENTINEL: NOPERM");
    return hfi_fail(err, HF_UNAVAILABLE, "it knows no master '%s'", rc->master);
}

/* Ask one sentinel where the master is. */
static hf_status sentinel_ask(struct redis_conn *rc, unsigned i,
                              struct sentinel_word *ret, int64_t deadline,
                              struct hf_error *err)
{
    const char *where[] = {"SENTINEL", "get-master-addr-by-name", rc->master};
    const char *more[] = {"SENTINEL", "MASTER", rc->master};
    struct sentinel_asked asked = {.rc = rc, .at = &rc->ends[i]};
    struct redis_batch batch = {0};
    struct hfi_mux mux;
    redisReply *reply[2] = {NULL, NULL};
    char name[300];
    hf_status st;

    hfi_mux_init(&mux, asked_find, asked_handshake, &asked);
    redis_batch_add(&batch, 3, where);
    redis_batch_add(&batch, 3, more);
    st = batch.failed ? hfi_nomem(err)
                      : hfi_mux_call(&mux, batch.bytes, batch.len, 2, reply,
                                     deadline, err);
    if (!st) {
        st = read_answer(rc, reply, ret, err);
        freeReplyObject(reply[0]);
        freeReplyObject(reply[1]);
    }
    redis_batch_free(&batch);
    hfi_mux_fini(&mux);
    hfi_endpoint_name(asked.at, name, sizeof(name));
    return st ? hfi_wrap(err, st, "sentinel %.100s", name) : HF_OK;
}

static bool is_behind(struct redis_conn *rc, const struct sentinel_word *word)
{
    return word->epoch < atomic_load(&rc->follow.epoch);
}

/* Nobody with less is believed as long as there are others. */
static void raise_epoch(struct redis_conn *rc, uint64_t epoch)
{
    uint64_t seen = atomic_load(&rc->follow.epoch);

    while (seen < epoch &&
           !atomic_compare_exchange_weak(&rc->follow.epoch, &seen, epoch))
        ;
}

/* All have spoken: nobody knows more than the best of them. */
static void settle_epoch(struct redis_conn *rc, uint64_t known, uint64_t best)
{
    atomic_compare_exchange_strong(&rc->follow.epoch, &known, best);
}

/* Each sentinel in turn, sharing the time, until one is not behind. */
hf_status redis_find(void *arg, struct hfi_endpoint *ret, int64_t deadline,
                     struct hf_error *err)
{
    struct redis_conn *rc = arg;
    struct sentinel_word word, best = {.epoch = 0};
    unsigned first = atomic_load(&rc->follow.first), found = 0;
    uint64_t known = atomic_load(&rc->follow.epoch);
    hf_status st = HF_UNAVAILABLE;
    int64_t now;
    size_t i;

    if (!rc->master[0]) {
        *ret = rc->ends[0];
        return HF_OK;
    }
    for (i = 0; i < rc->nends && !(found && !is_behind(rc, &best)); i++) {
        now = hfi_now();
        st = sentinel_ask(rc, (unsigned)((first + i) % rc->nends), &word,
                          now + (deadline - now) / (int64_t)(rc->nends - i),
                          err);
        if (st)
            continue;
        if (!found++ || word.epoch > best.epoch)
            best = word;
    }
    if (!found)
        return st;
    if (found == rc->nends)
        settle_epoch(rc, known, best.epoch);
    raise_epoch(rc, best.epoch);
    *ret = best.at;
    return HF_OK;
}

/* ---- following --------------------------------------------------------- */

/* The master is there now: nothing goes elsewhere from now on. */
static void follow_to(struct redis_conn *rc, const struct hfi_endpoint *to)
{
    bool moved = hfi_mux_move(&rc->mux, to);

    moved = hfi_mux_move(&rc->replica_link.mux, to) || moved;
    moved = redis_sub_leave(&rc->sub, to) || moved;
    if (moved) {
        atomic_fetch_add(&rc->moves, 1);
        tracker_stir(atomic_load(&rc->tracker));
    }
    if (moved) /* Those who wait look again, and listen there. */
        hfi_wake_all(&rc->base);
}

/* "main 127.0.0.1 6379 127.0.0.1 6380".  Whoever still has the configuration
 * before it is behind.  sentinel.c (1) */
void redis_follow_heard(struct redis_conn *rc, const redisReply *payload)
{
    struct redis_follow *fo = &rc->follow;
    char text[SWITCH_MAX], *word[6], *rest = NULL, *at;
    struct hfi_endpoint to;
    int n = 0;

    if (payload->type != REDIS_REPLY_STRING || payload->len >= sizeof(text) ||
        strlen(payload->str) != payload->len)
        return;
    memcpy(text, payload->str, payload->len + 1);
    for (at = strtok_r(text, " ", &rest); at && n < 6;
         at = strtok_r(NULL, " ", &rest))
        word[n++] = at;
    if (n != 5 || strcmp(word[0], rc->master) != 0 ||
        !read_address(rc, word[3], word[4], &to))
        return;
    if (!hfi_mux_is_at(&rc->mux, &to)) {
        atomic_store(&fo->first, atomic_load(&fo->at));
        raise_epoch(rc, atomic_load(&fo->epoch) + 1);
    }
    follow_to(rc, &to);
}

/* ---- a sentinel to listen to ------------------------------------------- */

static hf_status seek_find(void *arg, struct hfi_endpoint *ret,
                           int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = arg;

    (void)deadline;
    (void)err;
    *ret = rc->ends[atomic_load(&rc->follow.at)];
    return HF_OK;
}

/* Twice within the time after which a silent peer has vanished. */
static void seek_set_timer(struct redis_conn *rc)
{
    int64_t ms = rc->ends[0].alive_ms / 2;
    struct timespec every = {.tv_sec = ms / 1000,
                             .tv_nsec = ms % 1000 * 1000000};
    struct itimerspec when = {.it_interval = every, .it_value = every};

    timerfd_settime(rc->follow.timer, 0, &when, NULL);
}

/* Listen at one of them, and hear what happened before.
 * sentinel.c (3) */
static hf_status seek_at(struct redis_conn *rc, unsigned i)
{
    struct redis_follow *fo = &rc->follow;
    int64_t deadline = hfi_now() + SEEK_MS;
    struct sentinel_word word;
    hf_status st;

    atomic_store(&fo->at, i);
    st = redis_sub_open(&fo->sub, deadline, NULL);
    if (!st)
        st = sentinel_ask(rc, i, &word, deadline, NULL);
    if (st) {
        redis_sub_leave(&fo->sub, NULL);
        return st;
    }
    atomic_store(&fo->first, i);
    seek_set_timer(rc);
    if (!is_behind(rc, &word)) {
        raise_epoch(rc, word.epoch);
        follow_to(rc, &word.at);
    }
    return HF_OK;
}

/* Until there is one, or until all have said that we may not.  The mutex is let
 * go meanwhile. */
static void seek(struct redis_conn *rc)
{
    struct redis_follow *fo = &rc->follow;
    unsigned i = atomic_load(&fo->first), refused = 0;
    struct hfi_backoff backoff = {0};
    hf_status st;

    while (!fo->closing && fo->stale && refused < rc->nends) {
        fo->stale = false;
        pthread_mutex_unlock(&fo->mu);
        st = seek_at(rc, i++ % (unsigned)rc->nends);
        pthread_mutex_lock(&fo->mu);
        if (!st) {
            hfi_backoff_done(&backoff);
            continue;
        }
        refused = st == HF_DENIED || st == HF_UNSUPPORTED ? refused + 1 : 0;
        fo->stale = true;
        hfi_backoff_failed(&backoff);
        while (!fo->closing && hfi_backoff_waits(&backoff))
            hfi_cond_wait(&fo->closed, &fo->mu, backoff.until);
    }
}

static void *seek_run(void *arg)
{
    struct redis_conn *rc = arg;
    struct redis_follow *fo = &rc->follow;

    pthread_mutex_lock(&fo->mu);
    seek(rc);
    fo->seeking = false;
    pthread_mutex_unlock(&fo->mu);
    return NULL;
}

/* Without a thread for it the next who uses the client will ask again. */
static void follow_again(struct redis_conn *rc)
{
    struct redis_follow *fo = &rc->follow;

    pthread_mutex_lock(&fo->mu);
    fo->stale = true;
    if (!fo->closing && !fo->seeking) {
        hfi_thread_join(&fo->seeker); /* It is at its very end. */
        fo->seeking = hfi_thread_start(&fo->seeker, seek_run, rc);
    }
    atomic_store(&fo->on, fo->seeking);
    pthread_mutex_unlock(&fo->mu);
}

void redis_follow(struct redis_conn *rc)
{
    if (rc->master[0] && !atomic_load(&rc->follow.on))
        follow_again(rc);
}

void redis_follow_lost(struct redis_conn *rc)
{
    atomic_fetch_add(&rc->follow.first, 1);
    follow_again(rc);
}

/* sentinel.c (5) */
void redis_follow_tick(struct redis_conn *rc)
{
    uint64_t count;

    if (read(rc->follow.timer, &count, sizeof(count)) > 0)
        redis_sub_ping(&rc->follow.sub);
}

/* ---- beginning and end ------------------------------------------------- */

static hf_status follow_timer(struct redis_conn *rc, struct hf_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    int fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);

    rc->follow.timer = fd;
    if (fd < 0 || epoll_ctl(rc->epoll, EPOLL_CTL_ADD, fd, &event))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "timerfd");
    return HF_OK;
}

hf_status redis_follow_open(struct redis_conn *rc, struct hf_error *err)
{
    struct redis_follow *fo = &rc->follow;
    hf_status st;

    hfi_mux_init(&fo->mux, seek_find, redis_handshake_sentinel, rc);
    redis_sub_init(&fo->sub, rc, &fo->mux, REDIS_SENTINEL);
    pthread_mutex_init(&fo->mu, NULL);
    hfi_cond_init(&fo->closed);
    fo->opened = true;
    st = redis_sub_connect_all(rc, err);
    return st ? st : follow_timer(rc, err);
}

void redis_follow_close(struct redis_conn *rc)
{
    struct redis_follow *fo = &rc->follow;

    if (!fo->opened)
        return;
    pthread_mutex_lock(&fo->mu);
    fo->closing = true;
    hfi_cond_wake(&fo->closed);
    pthread_mutex_unlock(&fo->mu);
    hfi_thread_join(&fo->seeker);
    redis_sub_fini(&fo->sub);
    hfi_mux_fini(&fo->mux);
    if (fo->timer >= 0)
        close(fo->timer);
    hfi_cond_fini(&fo->closed);
    pthread_mutex_destroy(&fo->mu);
    fo->opened = false;
}

void redis_follow_after_fork_child(struct redis_conn *rc)
{
    if (!rc->follow.opened)
        return;
    redis_sub_after_fork_child(&rc->follow.sub);
    close(rc->follow.timer);
}
