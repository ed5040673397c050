/* SPDX-License-Identifier: MIT
 *
 * subscriber.c - the connections on which servers tell us things.
 *
 * A message is lost with the connection, and with the slot: the server ends a
 * subscription when the slot goes elsewhere.  Then everybody who waits is
 * woken, and the first to try subscribes anew before its try.  So it is when
 * commands had to be given a new connection: a server that hangs does not say
 * so to those who only listen, and the master may be another by now.
 *
 * With Sentinel there is one more, to the sentinel that tells when the master
 * is another (sentinel.c); it is connected, left and read as the others.
 *
 * INVARIANTS
 *  (1) The one who has `taken` a sub is alone on its connection, and the mutex
 *      is let go meanwhile: the keeper wants it.
 *  (2) heard[slot] names a node only while its connection is subscribed to the
 *      channel of that slot.
 *  (3) Nobody waits for a channel that was given up for want of waiters: who
 *      comes counts itself first and then looks at (2), who gives it up
 *      changes (2) first and then looks at the count.
 *  (4) Who puts a sub back has heard all that was read on it: nothing else
 *      tells the keeper of it.
 *  (5) A sub that is taken to be connected anew hears nothing, and nobody
 *      relies on it before it is put back.  If meanwhile the commands were
 *      given another connection, it may be to the server from before: those who
 *      wait are woken, and the first of them connects it once more.
 *  (6) Who has taken a sub believes no grant that comes on it once its server
 *      is known to be another.
 */
#include "redis.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/banned.h"

/* A connection with more channels gives up those that nobody waits for. */
#define CHANNELS_KEPT 128

/* How often a slot may have moved while we look for it. */
#define ATTEMPTS 4

/* ---- messages ---------------------------------------------------------- */

/* A message is an array: "message" or "smessage", the channel, the payload.
 * True if it says instead that a channel was taken from us. */
static bool sub_heard(struct redis_sub *sub, const redisReply *reply)
{
    struct redis_cluster *cl = sub->rc->cluster;
    const redisReply *const *item = (const redisReply *const *)reply->element;
    unsigned char self = (unsigned char)(sub->node + 1);

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        item[0]->type != REDIS_REPLY_STRING ||
        item[1]->type != REDIS_REPLY_STRING)
        return false;
    if (sub->node == REDIS_SENTINEL) {
        if (!strcmp(item[0]->str, "message"))
            redis_follow_heard(sub->rc, item[2]);
        return false;
    }
    if (strcmp(item[0]->str, "sunsubscribe") != 0) {
        if (!atomic_load(&sub->late)) /* subscriber.c (6) */
            redis_heard(sub->rc, item[2]);
        return false;
    }
    return cl && atomic_compare_exchange_strong(
                     &cl->heard[redis_slot(item[1]->str)], &self, 0);
}

/* Nothing is heard there any more. */
static void sub_deafen(struct redis_sub *sub)
{
    struct redis_cluster *cl = sub->rc->cluster;
    unsigned char self;
    int slot;

    for (slot = 0; cl && slot < REDIS_SLOTS; slot++) {
        self = (unsigned char)(sub->node + 1);
        atomic_compare_exchange_strong(&cl->heard[slot], &self, 0);
    }
    sub->channels = 0;
}

/* Say something and read on to the answer, which is no message.  *lost is set
 * if a channel was taken from us meanwhile. */
static hf_status sub_ask(struct redis_sub *sub, struct mux_link *link, int argc,
                         const char **argv, bool *lost, redisReply **ret,
                         int64_t deadline, struct hf_error *err)
{
    struct redis_batch batch = {0};
    const redisReply *kind;
    redisReply *reply;
    bool answer = false;
    hf_status st;

    redis_batch_add(&batch, argc, argv);
    st = batch.failed ? hfi_nomem(err)
                      : hfi_mux_exchange(link, batch.bytes, batch.len, &reply,
                                         deadline, err);
    redis_batch_free(&batch);
    while (!st) {
        kind = reply->type == REDIS_REPLY_ARRAY && reply->elements
                   ? reply->element[0]
                   : NULL;
        answer = !kind || kind->type != REDIS_REPLY_STRING ||
                 !strcasecmp(kind->str, argv[0]);
        /* What is taken away is told in the words that answer us. */
        if (kind && sub_heard(sub, reply)) {
            *lost = true;
            answer = false;
        }
        if (answer)
            break;
        freeReplyObject(reply);
        st = hfi_mux_exchange(link, "", 0, &reply, deadline, err);
    }
    if (!st)
        *ret = reply;
    return st;
}

/* What came together with an answer was read with it, and poll(2) does not show
 * it.  subscriber.c (4).  False: the connection is broken. */
static bool sub_rest(struct redis_sub *sub, struct mux_link *link, bool *lost)
{
    redisReply *reply;

    while (!hfi_mux_hear(link, &reply)) {
        if (!reply)
            return true;
        *lost = sub_heard(sub, reply) || *lost;
        freeReplyObject(reply);
    }
    return false;
}

/* ---- subscribing ------------------------------------------------------- */

/* Be the only one on the connection. */
static hf_status sub_take(struct redis_sub *sub, int64_t deadline,
                          struct hf_error *err)
{
    while (sub->taken && hfi_left_ms(deadline))
        hfi_cond_wait(&sub->put, &sub->mu, deadline);
    if (sub->taken)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "still subscribing at the deadline");
    sub->taken = true;
    atomic_store(&sub->fd, -1); /* Let the keeper not hear it meanwhile. */
    if (sub->link && sub->rc->epoll >= 0)
        epoll_ctl(sub->rc->epoll, EPOLL_CTL_DEL, hfi_mux_fd(sub->link), NULL);
    return HF_OK;
}

/* Let the keeper, and others, have it; it may be another or none by now. */
static void sub_put(struct redis_sub *sub, struct mux_link *link)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = sub};

    sub->taken = sub->asked = false;
    atomic_store(&sub->late, false);
    sub->link = link;
    atomic_store(&sub->fd, link ? hfi_mux_fd(link) : -1);
    if (sub->node == REDIS_ALONE)
        atomic_store(&sub->rc->base.listening, link != NULL);
    if (!link)
        sub_deafen(sub);
    else if (sub->rc->epoll >= 0)
        epoll_ctl(sub->rc->epoll, EPOLL_CTL_ADD, hfi_mux_fd(link), &event);
    hfi_cond_wake(&sub->put);
}

/* Subscribe to the channel of a slot, of this server, or of a sentinel.
 * *broken is set if the connection can not be used any more. */
static hf_status sub_subscribe(struct redis_sub *sub, struct mux_link *link,
                               int slot, bool *lost, bool *broken,
                               int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = sub->rc;
    char channel[REDIS_CHANNEL_MAX];
    const char *argv[2] = {NULL, channel};
    bool sharded = sub->node != REDIS_SENTINEL && redis_is_sharded(rc), ask;
    redisReply *reply;
    hf_status st;

    argv[0] = sharded ? "SSUBSCRIBE" : "SUBSCRIBE";
    if (sub->node == REDIS_SENTINEL)
        argv[1] = "+switch-master";
    else
        redis_channel_name(rc, slot, sharded, channel);
    st = sub_ask(sub, link, 2, argv, lost, &reply, deadline, err);
    *broken = st != HF_OK;
    if (st)
        return st;
    if (reply->type == REDIS_REPLY_ERROR)
        st = redis_redirect(rc, reply, &ask)
                 ? hfi_fail(err, HF_UNAVAILABLE, "its slot has moved")
                 : redis_error_bare(rc, reply, err);
    freeReplyObject(reply);
    if (sharded &&
        (st == HF_UNSUPPORTED || (st == HF_DENIED && !rc->cluster))) {
        atomic_fetch_or(&rc->lacks, REDIS_SHARDED);
        return sub_subscribe(sub, link, slot, lost, broken, deadline, err);
    }
    return st;
}

/* Give up channels that nobody waits for.  subscriber.c (3) */
static bool sub_trim(struct redis_sub *sub, struct mux_link *link,
                     int64_t deadline)
{
    struct redis_cluster *cl = sub->rc->cluster;
    unsigned char self = (unsigned char)(sub->node + 1);
    char channel[REDIS_CHANNEL_MAX];
    const char *argv[2] = {
        redis_is_sharded(sub->rc) ? "SUNSUBSCRIBE" : "UNSUBSCRIBE", channel};
    bool lost = false;
    redisReply *reply;
    int slot;

    for (slot = 0; slot < REDIS_SLOTS && sub->channels > CHANNELS_KEPT / 2;
         slot++) {
        if (atomic_load(&cl->heard[slot]) != self ||
            atomic_load(&cl->waiters[slot]))
            continue;
        atomic_store(&cl->heard[slot], 0);
        if (atomic_load(&cl->waiters[slot])) {
            atomic_store(&cl->heard[slot], self);
            continue;
        }
        redis_channel_name(sub->rc, slot, redis_is_sharded(sub->rc), channel);
        if (sub_ask(sub, link, 2, argv, &lost, &reply, deadline, NULL))
            return false;
        freeReplyObject(reply);
        sub->channels--;
    }
    return true;
}

/* Have the commands to that server another connection by now? */
static bool sub_is_old(const struct redis_sub *sub)
{
    return sub->node == REDIS_ALONE &&
           sub->epoch != atomic_load(&sub->rc->epoch);
}

/* Connect if need be, and subscribe.  With the mutex held, let go meanwhile. */
static hf_status sub_add(struct redis_sub *sub, int slot, int64_t deadline,
                         struct hf_error *err)
{
    struct mux_link *link = sub->link;
    bool fresh = !link || slot < 0, broken = false, lost = false;
    /* The connection that is made here counts as one. */
    unsigned epoch = atomic_load(&sub->rc->epoch) + 1;
    hf_status st = HF_OK;

    if (fresh)
        sub->link = NULL;
    pthread_mutex_unlock(&sub->mu);
    if (fresh) {
        hfi_mux_close(link); /* It is to where the server was. */
        link = NULL;
        st = hfi_mux_open(sub->mux, deadline, &link, err);
    }
    if (!st)
        st = sub_subscribe(sub, link, slot, &lost, &broken, deadline, err);
    if (!st) {
        sub->channels++;
        if (slot >= 0)
            atomic_store(&sub->rc->cluster->heard[slot],
                         (unsigned char)(sub->node + 1));
        if (slot >= 0 && sub->channels > CHANNELS_KEPT)
            broken = !sub_trim(sub, link, deadline);
    }
    if (link && !broken)
        broken = !sub_rest(sub, link, &lost);
    pthread_mutex_lock(&sub->mu);
    broken = broken || atomic_load(&sub->late);
    if (broken || (st && fresh)) {
        hfi_mux_close(link);
        link = NULL;
    }
    if (fresh)
        sub->epoch = epoch;
    sub_put(sub, link);
    lost = lost || (link && sub_is_old(sub)); /* subscriber.c (5) */
    if (lost || (broken && !fresh))
        hfi_wake_all(&sub->rc->base);
    if (link && fresh)
        hfi_poll_fd_changed(&sub->rc->base);
    if (broken && !st)
        st = hfi_fail(err, HF_UNAVAILABLE, "no answer");
    return st ? hfi_wrap(err, st, "%s", sub->rc->base.endpoint) : HF_OK;
}

static bool sub_is_subscribed(const struct redis_sub *sub, int slot)
{
    if (slot >= 0)
        return atomic_load(&sub->rc->cluster->heard[slot]) == sub->node + 1;
    return sub->link && !sub_is_old(sub);
}

static hf_status sub_have(struct redis_sub *sub, int slot, int64_t deadline,
                          struct hf_error *err)
{
    hf_status st = HF_OK;

    pthread_mutex_lock(&sub->mu);
    if ((slot < 0 && sub->taken) || !sub_is_subscribed(sub, slot)) {
        st = sub_take(sub, deadline, err);
        if (!st && sub_is_subscribed(sub, slot))
            sub_put(sub, sub->link); /* Somebody was faster. */
        else if (!st)
            st = sub_add(sub, slot, deadline, err);
    }
    pthread_mutex_unlock(&sub->mu);
    return st;
}

hf_status redis_sub_open(struct redis_sub *sub, int64_t deadline,
                         struct hf_error *err)
{
    return sub_have(sub, -1, deadline, err);
}

hf_status redis_sub_ensure(struct redis_conn *rc, const char *key,
                           int64_t deadline, struct hf_error *err)
{
    struct redis_cluster *cl = rc->cluster;
    unsigned node, slot;
    hf_status st = HF_OK;
    int i;

    if (!cl)
        return redis_sub_open(&rc->sub, deadline, err);
    slot = redis_key_slot(rc, key);
    for (i = 0; i < ATTEMPTS; i++) {
        node = atomic_load(&cl->slots[slot]);
        if (atomic_load(&cl->heard[slot]) == node + 1)
            return HF_OK;
        st = sub_have(&cl->nodes[node]->sub, (int)slot, deadline, err);
        if (st && atomic_load(&cl->slots[slot]) == node)
            return st; /* It has not moved: that is how it is. */
    }
    return st;
}

void redis_sub_want(struct redis_conn *rc, const char *key, int more)
{
    if (rc->cluster)
        atomic_fetch_add(&rc->cluster->waiters[redis_key_slot(rc, key)],
                         (unsigned short)more);
}

/* ---- hearing ----------------------------------------------------------- */

/* Closing it takes it out of the epoll set, too.  With the mutex held. */
static void sub_close(struct redis_sub *sub)
{
    hfi_mux_close(sub->link);
    sub_put(sub, NULL);
}

/* Something may have been missed. */
static void sub_lost(struct redis_sub *sub)
{
    if (sub->node == REDIS_SENTINEL)
        redis_follow_lost(sub->rc);
    else
        hfi_wake_all(&sub->rc->base);
}

void redis_sub_dispatch(struct redis_sub *sub)
{
    redisReply *reply;
    bool broken = false, lost = false;

    pthread_mutex_lock(&sub->mu);
    while (sub->link && !sub->taken && !broken) {
        broken = hfi_mux_hear(sub->link, &reply) != HF_OK;
        if (broken || !reply)
            break;
        sub->asked = false;
        lost = sub_heard(sub, reply) || lost;
        freeReplyObject(reply);
    }
    if (broken)
        sub_close(sub);
    pthread_mutex_unlock(&sub->mu);
    if (broken || lost)
        sub_lost(sub);
}

/* What would block is silence, too. */
static bool sub_say_ping(struct redis_sub *sub)
{
    const char *argv[] = {"PING"};
    struct redis_batch batch = {0};
    bool said;

    redis_batch_add(&batch, 1, argv);
    said = !batch.failed &&
           hfi_mux_say(sub->link, batch.bytes, batch.len, hfi_now());
    redis_batch_free(&batch);
    return said;
}

void redis_sub_ping(struct redis_sub *sub)
{
    bool silent = false;

    pthread_mutex_lock(&sub->mu);
    if (sub->link && !sub->taken) {
        silent = sub->asked || !sub_say_ping(sub);
        sub->asked = true;
        if (silent)
            sub_close(sub);
    }
    pthread_mutex_unlock(&sub->mu);
    if (silent)
        sub_lost(sub);
}

bool redis_sub_leave(struct redis_sub *sub, const struct hfi_endpoint *to)
{
    bool away;

    pthread_mutex_lock(&sub->mu);
    away = sub->link && !sub->taken && !(to && hfi_mux_is_to(sub->link, to));
    if (away)
        sub_close(sub);
    atomic_store(&sub->late, sub->taken); /* It may be to anywhere. */
    pthread_mutex_unlock(&sub->mu);
    return away;
}

/* ---- beginning and end ------------------------------------------------- */

void redis_sub_init(struct redis_sub *sub, struct redis_conn *rc,
                    struct hfi_mux *mux, int node)
{
    *sub = (struct redis_sub){.rc = rc, .mux = mux, .node = node};
    atomic_init(&sub->fd, -1);
    atomic_init(&sub->late, false);
    pthread_mutex_init(&sub->mu, NULL);
    hfi_cond_init(&sub->put);
}

hf_status redis_sub_connect_all(struct redis_conn *rc, struct hf_error *err)
{
    rc->epoll = epoll_create1(EPOLL_CLOEXEC);
    return rc->epoll >= 0
               ? HF_OK
               : hfi_fail_errno(err, HF_SYSTEM, errno, "epoll_create1");
}

void redis_sub_fini(struct redis_sub *sub)
{
    hfi_mux_close(sub->link);
    hfi_cond_fini(&sub->put);
    pthread_mutex_destroy(&sub->mu);
}

void redis_sub_after_fork_child(struct redis_sub *sub)
{
    int fd = atomic_exchange(&sub->fd, -1);

    if (fd >= 0)
        close(fd);
}
