/* SPDX-License-Identifier: MIT
 *
 * wait.c - wake-ups, over a connection of their own.
 *
 * One stream carries the watches of all waiters.
 * A waiter watches the one key before its own, so a release wakes one waiter.
 * What those watch who share or have permits is told in verdict.c: a key that
 * may also change, or all at once.
 * A lock that lingers watches what is put beside it, and each lease has one
 * watch for word of locks that were broken.
 *
 * A watch begins now, not at a revision of the past, which etcd would serve on
 * a slow tick; so when etcd has said that it has begun, the queue is read once
 * more (acquire.c), and what happened in between is seen there.
 *
 * That is two messages, a transaction, and now and then the slow tick after
 * all, when somebody writes while etcd is at it.  Those who take turns stand
 * behind the same one each time, under the same name; so a watch that has
 * served is parked, and whoever next stands behind that name takes it up and
 * need not look again, if it had begun before he asked who that is.  One that
 * etcd says something on while it is parked belongs to a queue that goes on
 * without us: it is ended.  One on all permits hears of every turn of others, so
 * it is ended only after many; whoever takes it up looks again if it has heard
 * of something that his look did not see.
 *
 * Of those who watch all permits each knows how many wait before it.  A permit
 * that becomes free is for the first of them, so the others do not look: each
 * counts itself one further to the front, and the next two look a little later,
 * since the first may be dead.
 *
 * INVARIANTS
 *  (1) A watch is in the table from before it is asked for until its owner
 *      gives it up or the connection breaks.
 *  (2) When the connection breaks the table is emptied and everybody is woken;
 *      a try that finds its watch gone asks for another.
 *  (3) Nothing here decides who holds: an event is a reason to look.
 *  (4) A parked watch has had no event since it was parked; one on permits, none
 *      of a revision after `heard`.
 *  (5) Who watches all permits looks at the first event after as many as there
 *      were claims before it in a look that was sent when the watch had begun,
 *      and at each event until there is such a look.  One that is before it and
 *      does not take its permit is followed by the next two, after
 *      WATCH_GRACE_MS.  To look too early does no harm.
 */
#include "etcd.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* When nothing was heard for so long, ask for a sign of life; etcd takes one
 * ping in five seconds. */
#define WATCH_QUIET_MS 6000

/* For so long one waits for another to read that a watch has begun. */
#define WATCH_AWAIT_MS 1

/* How long a waiter waits for the connection to be made. */
#define WATCH_PATIENCE_MS 200

/* How many may be parked. */
#define WATCH_PARKED_MAX 16

/* A parked watch on permits that heard so much is not used any more. */
#define WATCH_HEARD_MAX 200

/* A permit that those before us have not taken after so long may be ours: so many
 * look then, one after the other. */
#define WATCH_GRACE_MS 50
#define WATCH_NEXT     2

struct etcd_watch {
    struct hfi_node node;   /* in conn->watches, by `text` */
    struct hfi_link parked; /* in conn->parked, or alone */
    int64_t id;
    char text[24]; /* the same */
    int64_t begun; /* when etcd had said that it has; 0: it has not yet */
    int64_t heard; /* the revision of its last event, ... */
    int events;    /* ... and how many since it was parked */
    int32_t ahead; /* permits: as in struct etcd_predecessor, since then */
    bool spent;    /* parked, and had an event that ends it */
    enum watch_kind {
        WATCH_PREDECESSOR,  /* goes */
        WATCH_CHANGE,       /* goes, or lets others in */
        WATCH_PERMITS,      /* one of many goes */
        WATCH_BESIDE,       /* is put */
        WATCH_BREAK_NOTICE, /* is put */
        WATCH_OBSERVED      /* any change of many, for observe.c */
    } kind;
    struct hfi_observation *observation; /* of such a one */
    char token[HFI_TOKEN_LEN + 1];
    char *key;     /* the lock's */
    char target[]; /* what is watched */
};

/* ---- the table, with the mutex held ------------------------------------ */

static struct etcd_watch *watch_find(struct etcd_conn *ec, int64_t id)
{
    char text[24];
    struct hfi_node *node;

    snprintf(text, sizeof(text), "%" PRId64, id);
    node = id ? hfi_map_find(&ec->watches, text) : NULL;
    return node ? hfi_container(node, struct etcd_watch, node) : NULL;
}

/* While something is parked a try sees to its watch itself. */
static void watch_unpark(struct etcd_conn *ec, struct etcd_watch *w)
{
    if (hfi_link_alone(&w->parked))
        return;
    hfi_link_remove(&w->parked);
    ec->nparked--;
    atomic_store(&ec->base.listening, ec->nparked > 0);
}

static void watch_free(struct etcd_conn *ec, struct etcd_watch *w)
{
    watch_unpark(ec, w);
    hfi_map_remove(&ec->watches, &w->node);
    hfi_free(w->key);
    hfi_free(w);
}

static struct etcd_watch *watch_new(struct etcd_conn *ec, const char *key,
                                    const char *token, const char *target)
{
    size_t len = strlen(target) + 1;
    struct etcd_watch *w = hfi_alloc(sizeof(*w) + len);

    if (!w)
        return NULL;
    w->key = hfi_strdup(key);
    if (!w->key || !hfi_map_reserve(&ec->watches)) {
        hfi_free(w->key);
        hfi_free(w);
        return NULL;
    }
    memcpy(w->target, target, len);
    snprintf(w->token, sizeof(w->token), "%s", token);
    hfi_link_init(&w->parked);
    w->id = ++ec->watch_last;
    snprintf(w->text, sizeof(w->text), "%" PRId64, w->id);
    w->node.key = w->text;
    hfi_map_add(&ec->watches, &w->node);
    return w;
}

static hf_status watch_send(struct etcd_conn *ec, const Pb__WatchRequest *ask)
{
    unsigned char buf[2 * ETCD_NAME_MAX + 64];

    if (pb__watch_request__get_packed_size(ask) > sizeof(buf))
        return HF_INVALID;
    return hfi_h2_send(ec->watch, buf, pb__watch_request__pack(ask, buf));
}

/* Tell etcd, too.  If that fails the keeper will see. */
static void watch_cancel(struct etcd_conn *ec, struct etcd_watch *w)
{
    Pb__WatchRequest ask = PB__WATCH_REQUEST__INIT;
    Pb__WatchCancelRequest cancel = PB__WATCH_CANCEL_REQUEST__INIT;

    cancel.watch_id = w->id;
    ask.request_case = PB__WATCH_REQUEST__REQUEST_CANCEL;
    ask.cancel = &cancel;
    watch_free(ec, w);
    if (ec->watch)
        watch_send(ec, &ask);
}

/* Keep it for who stands behind that name next. */
static void watch_park(struct etcd_conn *ec, struct etcd_watch *w)
{
    if (ec->nparked == WATCH_PARKED_MAX)
        watch_cancel(ec,
                     hfi_container(ec->parked.next, struct etcd_watch, parked));
    w->events = 0;
    hfi_link_append(&ec->parked, &w->parked);
    ec->nparked++;
    atomic_store(&ec->base.listening, true);
}

/* One that is parked for this target and began before `sent`, or NULL.  After a
 * silence it is not to be trusted: to begin a new one proves that etcd is
 * there. */
static struct etcd_watch *watch_parked(struct etcd_conn *ec, const char *target,
                                       enum watch_kind kind, int64_t sent)
{
    struct hfi_link *at;

    if (hfi_now() >= ec->watch_heard + WATCH_QUIET_MS)
        return NULL;
    for (at = ec->parked.prev; at != &ec->parked; at = at->prev) {
        struct etcd_watch *w = hfi_container(at, struct etcd_watch, parked);

        if (!w->spent && w->begun < sent && w->kind == kind &&
            !strcmp(w->target, target))
            return w;
    }
    return NULL;
}

/* End those that were used up. */
static void watch_tidy(struct etcd_conn *ec)
{
    struct hfi_link *at, *next;

    for (at = ec->parked.next; at != &ec->parked; at = next) {
        struct etcd_watch *w = hfi_container(at, struct etcd_watch, parked);

        next = at->next;
        if (w->spent)
            watch_cancel(ec, w);
    }
    ec->watch_spent = false;
}

/* wait.c (2) */
static void watch_break(struct etcd_conn *ec)
{
    struct hfi_node *node;

    atomic_store(&ec->watch_fd, -1);
    hfi_h2_close(ec->watch);
    ec->watch = NULL;
    if (ec->watch_refused)
        ec->watch_forget = ec->watch_age;
    ec->watch_refused = ec->watch_spent = false;
    while ((node = hfi_map_next(&ec->watches, NULL)))
        watch_free(ec, hfi_container(node, struct etcd_watch, node));
    hfi_cond_wake(&ec->watch_cond);
    hfi_wake_all(&ec->base);
    etcd_observe_broken(ec);
    if (!hfi_link_alone(&ec->observed))
        etcd_watch_is_up(ec); /* observe.c (2) */
}

/* ---- hearing ----------------------------------------------------------- */

/* Word that a lock was broken: the token ends the name, the key is the
 * value. */
static void watch_broken(struct etcd_conn *ec, const Pb__KeyValue *kv)
{
    char token[HFI_TOKEN_LEN + 1], key[HF_KEY_MAX + 1];

    if (kv->key.len < HFI_TOKEN_LEN || kv->value.len > HF_KEY_MAX)
        return;
    memcpy(token, kv->key.data + kv->key.len - HFI_TOKEN_LEN, HFI_TOKEN_LEN);
    token[HFI_TOKEN_LEN] = '\0';
    memcpy(key, kv->value.data, kv->value.len);
    key[kv->value.len] = '\0';
    hfi_gone(&ec->base, key, token, HF_LOSS_BROKEN);
}

/* Does what was put there let others in?  It was downgraded, or has a slot. */
static bool watch_lets_in(const Pb__KeyValue *kv)
{
    struct etcd_words words;

    etcd_read_value(kv->value, &words);
    return words.shared || words.slot >= 0;
}

/* Did the claim of this watch put it? */
static bool watch_own(const struct etcd_watch *w, const Pb__KeyValue *kv)
{
    struct etcd_words words;

    etcd_read_value(kv->value, &words);
    return !strcmp(words.token, w->token);
}

static void watch_parked_event(struct etcd_conn *ec, struct etcd_watch *w)
{
    if (w->kind != WATCH_PERMITS || ++w->events > WATCH_HEARD_MAX)
        w->spent = ec->watch_spent = true;
}

/* One of those who have a permit, or wait for one, has gone.  (5) */
static void watch_permit(struct etcd_conn *ec, struct etcd_watch *w)
{
    if (w->ahead <= 0) {
        hfi_wake(&ec->base, w->key, w->token);
        return;
    }
    if (w->ahead-- <= WATCH_NEXT)
        hfi_expect(&ec->base, w->key, w->token,
                   WATCH_GRACE_MS * (w->ahead + 1));
}

static void watch_event(struct etcd_conn *ec, struct etcd_watch *w,
                        const Pb__Event *event)
{
    const Pb__KeyValue *kv = event->kv;

    if (kv && kv->mod_revision > w->heard)
        w->heard = kv->mod_revision;
    if (!hfi_link_alone(&w->parked)) /* wait.c (4) */
        watch_parked_event(ec, w);
    else if (w->kind == WATCH_OBSERVED && kv)
        etcd_observed(ec, w->observation, kv->key);
    else if (w->kind == WATCH_PERMITS && event->type == 1)
        watch_permit(ec, w);
    else if (w->kind < WATCH_PERMITS && event->type == 1)
        hfi_wake(&ec->base, w->key, w->token);
    else if (w->kind == WATCH_CHANGE && event->type == 0 && kv &&
             watch_lets_in(kv))
        hfi_wake(&ec->base, w->key, w->token);
    else if (w->kind == WATCH_BREAK_NOTICE && event->type == 0 && kv)
        watch_broken(ec, kv);
    else if (w->kind == WATCH_BESIDE && event->type == 0 && kv &&
             !watch_own(w, kv))
        hfi_wanted(&ec->base, w->key);
}

void etcd_watch_message(void *arg, const void *bytes, size_t len)
{
    struct etcd_conn *ec = arg;
    Pb__WatchResponse *said = pb__watch_response__unpack(NULL, len, bytes);
    struct etcd_watch *w = said ? watch_find(ec, said->watch_id) : NULL;
    size_t i;

    ec->watch_heard = hfi_now();
    if (!said || (said->canceled && (said->created || w))) {
        ec->watch_refused = true;
        goto out;
    }
    if (!w)
        goto out;
    if (said->created) {
        w->begun = hfi_now();
        hfi_cond_wake(&ec->watch_cond);
        if (w->kind == WATCH_OBSERVED)
            etcd_observe_begun(ec, w->observation);
    }
    for (i = 0; i < said->n_events; i++)
        watch_event(ec, w, said->events[i]);
out:
    if (said)
        pb__watch_response__free_unpacked(said, NULL);
}

int etcd_watch_fd(struct hfi_conn *conn)
{
    return atomic_load(&((struct etcd_conn *)conn)->watch_fd);
}

/* Read what has come, with the mutex held. */
static void watch_hear(struct etcd_conn *ec)
{
    if (!ec->watch)
        return;
    if (hfi_h2_hear(ec->watch) || ec->watch_refused)
        watch_break(ec);
    else if (ec->watch_spent)
        watch_tidy(ec);
}

void etcd_watch_dispatch(struct hfi_conn *conn)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;

    pthread_mutex_lock(&ec->watch_mu);
    ec->watch_heard = hfi_now();
    watch_hear(ec);
    pthread_mutex_unlock(&ec->watch_mu);
}

void etcd_watch_close(struct etcd_conn *ec)
{
    etcd_watch_connect_close(ec);
    pthread_mutex_lock(&ec->watch_mu);
    if (ec->watch)
        watch_break(ec);
    hfi_map_fini(&ec->watches);
    pthread_mutex_unlock(&ec->watch_mu);
}

/* ---- asking ------------------------------------------------------------ */

/* Be connected.  The first attempt is waited for a little; see connect.c. */
hf_status etcd_watch_ensure(struct etcd_conn *ec, int64_t deadline,
                            struct hf_error *err)
{
    int64_t limit = hfi_now() + (ec->watch_backoff.ms ? 0 : WATCH_PATIENCE_MS);

    if (limit > deadline)
        limit = deadline;
    while (!etcd_watch_is_up(ec)) {
        if (!ec->watch_opening || !hfi_left_ms(limit))
            return hfi_fail(err, HF_UNAVAILABLE,
                            "%s: there is no connection for watches now",
                            ec->base.endpoint);
        hfi_cond_wait(&ec->watch_cond, &ec->watch_mu, limit);
    }
    return HF_OK;
}

/* Ask for a watch of the target, or of all that begins with it. */
static hf_status watch_ask(struct etcd_conn *ec, const struct etcd_watch *w,
                           int64_t id)
{
    Pb__WatchRequest ask = PB__WATCH_REQUEST__INIT;
    Pb__WatchCreateRequest create = PB__WATCH_CREATE_REQUEST__INIT;
    int32_t filter = w->kind >= WATCH_BESIDE; /* no deletion, or no put */
    char end[ETCD_NAME_MAX];

    ask.request_case = PB__WATCH_REQUEST__REQUEST_CREATE;
    ask.create = &create;
    create.key = etcd_text(w->target);
    if (w->kind >= WATCH_PERMITS) {
        snprintf(end, sizeof(end), "%s", w->target);
        create.range_end = etcd_end(end);
    }
    create.n_filters = w->kind != WATCH_CHANGE && w->kind != WATCH_OBSERVED;
    create.filters = &filter;
    create.watch_id = id;
    return watch_send(ec, &ask);
}

/* Wait until it has begun.  The reading thread may stand back for us
 * (core/listener.c), so look oneself now and then.  The table may lose it
 * meanwhile. */
static hf_status watch_await(struct etcd_conn *ec, int64_t id, int64_t deadline,
                             struct hf_error *err)
{
    struct etcd_watch *w;
    int64_t look;

    while ((w = watch_find(ec, id)) && !w->begun) {
        if (!hfi_left_ms(deadline))
            return hfi_fail(err, HF_UNAVAILABLE, "%s: no watch in time",
                            ec->base.endpoint);
        look = hfi_now() + WATCH_AWAIT_MS;
        hfi_cond_wait(&ec->watch_cond, &ec->watch_mu, look);
        if (!hfi_left_ms(look))
            watch_hear(ec);
    }
    return w ? HF_OK
             : hfi_fail(err, HF_UNAVAILABLE, "%s: the watch broke",
                        ec->base.endpoint);
}

/* What a claim wants to know of its target. */
static enum watch_kind watch_kind(const struct hfi_claim *claim,
                                  const struct etcd_grant *own,
                                  const char *target)
{
    if (own->held)
        return WATCH_BESIDE;
    if (claim->permits && target[strlen(target) - 1] == '.')
        return WATCH_PERMITS;
    return claim->shared || claim->permits ? WATCH_CHANGE : WATCH_PREDECESSOR;
}

static hf_status watch_begin(struct etcd_conn *ec,
                             const struct hfi_claim *claim,
                             struct hfi_receipt *receipt, const char *target,
                             int64_t deadline, struct hf_error *err)
{
    struct etcd_grant *own = etcd_own(receipt);
    struct etcd_watch *w;
    hf_status st = etcd_watch_ensure(ec, deadline, err);

    if (st)
        return st;
    w = watch_new(ec, claim->key, claim->token, target);
    if (!w)
        return hfi_nomem(err);
    w->kind = watch_kind(claim, own, target);
    own->watch = ec->watch_last;
    if (watch_ask(ec, w, own->watch)) {
        watch_break(ec);
        return hfi_fail(err, HF_UNAVAILABLE, "%s: the watch broke",
                        ec->base.endpoint);
    }
    return watch_await(ec, own->watch, deadline, err);
}

/* Give up the watch of a claim, or park it. */
static void watch_drop(struct etcd_conn *ec, struct hfi_receipt *receipt,
                       bool park)
{
    struct etcd_grant *own = etcd_own(receipt);
    struct etcd_watch *w = watch_find(ec, own->watch);

    own->watch = 0;
    if (w && park && w->begun &&
        (w->kind == WATCH_PREDECESSOR || w->kind == WATCH_PERMITS))
        watch_park(ec, w);
    else if (w)
        watch_cancel(ec, w);
}

/* A connection that has been quiet must answer before it is trusted again. */
static void watch_doubt(struct etcd_conn *ec)
{
    int64_t now = hfi_now();

    if (!ec->watch || now < ec->watch_heard + WATCH_QUIET_MS)
        return;
    if (hfi_h2_ping(ec->watch))
        ec->watch_heard = now; /* The next doubt is as far away again. */
    else
        watch_break(ec);
}

/* A look of the revision `seen` (0: unknown) has found so many before us.  What
 * was heard of later may concern any of them.  (5) */
static void watch_count(struct etcd_conn *ec, const struct hfi_receipt *receipt,
                        int32_t ahead, int64_t seen)
{
    struct etcd_watch *w = watch_find(ec, etcd_own(receipt)->watch);

    if (w && w->kind == WATCH_PERMITS)
        w->ahead = w->heard > seen ? 0 : ahead;
}

/* Watch who was before us when we asked, at `sent`, unless that is so already.
 * *fresh: look again, since the watch is new, or has heard of something after the
 * revision `seen`, in which the answer was made. */
hf_status etcd_watch_predecessor(struct etcd_conn *ec,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt,
                                 const struct etcd_predecessor *before,
                                 int64_t sent, int64_t seen, bool *fresh,
                                 int64_t deadline, struct hf_error *err)
{
    const char *predecessor = before->name;
    struct etcd_watch *w;
    hf_status st = HF_OK;

    *fresh = false;
    if (!*predecessor)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: another program's key cannot be watched",
                        ec->base.endpoint);
    pthread_mutex_lock(&ec->watch_mu);
    watch_doubt(ec);
    w = watch_find(ec, etcd_own(receipt)->watch);
    if (!w || strcmp(w->target, predecessor) != 0) {
        watch_drop(ec, receipt, false);
        w = watch_parked(ec, predecessor,
                         watch_kind(claim, etcd_own(receipt), predecessor),
                         sent);
        if (w) {
            watch_unpark(ec, w);
            memcpy(w->token, claim->token, sizeof(w->token));
            etcd_own(receipt)->watch = w->id;
            *fresh = w->heard > seen; /* wait.c (4) */
        } else {
            st = watch_begin(ec, claim, receipt, predecessor, deadline, err);
            *fresh = !st;
        }
    }
    /* What became free before it began is counted by the next look. */
    watch_count(ec, receipt, *fresh ? 0 : before->ahead, seen);
    pthread_mutex_unlock(&ec->watch_mu);
    return st;
}

/* Watch what is put beside a lock that we hold, and see who is there. */
static hf_status watch_wanted(struct etcd_conn *ec,
                              const struct hfi_claim *claim,
                              struct hfi_receipt *receipt, int64_t deadline,
                              struct hf_error *err)
{
    struct hf_info info = {.size = sizeof(info)};
    char dir[ETCD_NAME_MAX];
    hf_status st;

    etcd_dir(ec, claim->key, dir, sizeof(dir));
    pthread_mutex_lock(&ec->watch_mu);
    watch_drop(ec, receipt, false);
    st = watch_begin(ec, claim, receipt, dir, deadline, err);
    pthread_mutex_unlock(&ec->watch_mu);
    if (!st)
        st = etcd_inspect(&ec->base, claim->key, &info, deadline, err);
    if (!st && info.waiters > 0)
        hfi_wanted(&ec->base, claim->key);
    return st;
}

void etcd_watch_break_notice(struct etcd_conn *ec, struct etcd_lease *lease)
{
    char target[ETCD_NOTICE_MAX];
    struct etcd_watch *w;

    pthread_mutex_lock(&ec->watch_mu);
    if (!watch_find(ec, lease->break_notice) && etcd_watch_is_up(ec)) {
        etcd_break_notice(ec, lease->id, "", target, sizeof(target));
        w = watch_new(ec, "", "", target);
        if (w) {
            w->kind = WATCH_BREAK_NOTICE;
            lease->break_notice = ec->watch_last;
            if (watch_ask(ec, w, lease->break_notice))
                watch_break(ec);
        }
    }
    pthread_mutex_unlock(&ec->watch_mu);
}

void etcd_unwatch_break_notice(struct etcd_conn *ec, struct etcd_lease *lease)
{
    struct etcd_watch *w;

    pthread_mutex_lock(&ec->watch_mu);
    w = watch_find(ec, lease->break_notice);
    lease->break_notice = 0;
    if (w)
        watch_cancel(ec, w);
    pthread_mutex_unlock(&ec->watch_mu);
}

/* ---- for observe.c, with the mutex held -------------------------------- */

int64_t etcd_watch_observed(struct etcd_conn *ec, const char *target,
                            struct hfi_observation *observation)
{
    struct etcd_watch *w = watch_new(ec, "", "", target);
    int64_t id = ec->watch_last;

    if (!w)
        return 0;
    w->kind = WATCH_OBSERVED;
    w->observation = observation;
    if (!watch_ask(ec, w, id))
        return id;
    watch_break(ec);
    return 0;
}

hf_status etcd_watch_await(struct etcd_conn *ec, int64_t id, int64_t deadline,
                           struct hf_error *err)
{
    return watch_await(ec, id, deadline, err);
}

void etcd_watch_end(struct etcd_conn *ec, int64_t id)
{
    struct etcd_watch *w = watch_find(ec, id);

    if (w)
        watch_cancel(ec, w);
}

void etcd_watch_doubt(struct etcd_conn *ec)
{
    pthread_mutex_lock(&ec->watch_mu);
    if (!hfi_link_alone(&ec->observed))
        watch_doubt(ec);
    pthread_mutex_unlock(&ec->watch_mu);
}

/* ---- the slots --------------------------------------------------------- */

hf_status etcd_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                     struct hfi_receipt *receipt, int64_t deadline,
                     struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    struct etcd_predecessor predecessor;
    bool fresh;
    hf_status st;

    if (etcd_own(receipt)->held)
        return watch_wanted(ec, claim, receipt, deadline, err);
    if (!receipt->fence) { /* The try that gives it a place sees to it. */
        etcd_own(receipt)->watched = true;
        return HF_OK;
    }
    etcd_key_get_predecessor(ec, claim->token, &predecessor);
    st = etcd_watch_predecessor(ec, claim, receipt, &predecessor, 0, 0, &fresh,
                                deadline, err);
    if (!st)
        etcd_own(receipt)->watched = true;
    return st;
}

void etcd_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                  struct hfi_receipt *receipt)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;

    (void)claim;
    etcd_own(receipt)->watched = false;
    if (!etcd_own(receipt)->watch)
        return;
    pthread_mutex_lock(&ec->watch_mu);
    watch_drop(ec, receipt, true);
    pthread_mutex_unlock(&ec->watch_mu);
}
