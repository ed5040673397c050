/* SPDX-License-Identifier: MIT
 *
 * wait.c - who waits for which key, and what an answer means to him.
 *
 * One blocking query per name serves everybody in this client who is
 * interested in it: those who wait for the key, and the one who has it.  A
 * holder's watch begins only after a moment, because most locks are held for
 * less, and ends with the release, whose write is what answers the query.
 *
 * What a holder learns: that the key is not his any more (at once, not at the
 * next renewal); that an operator has broken it; that somebody wants it
 * while it lingers.  For the last two the entry's value is the mailbox: the
 * holder marks it as lingering, whoever waits marks it as wanted.
 *
 * INVARIANTS
 *  (1) An answer is judged by the index of its entry: what is older than the
 *      grant says nothing about it.
 *  (2) A first query has no index, so it is answered at once with what is: it
 *      cannot miss what happened before it.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

/* A lock that is held for longer is watched; at most so many at a time. */
#define MONITOR_AFTER_MS 50
#define MONITORS_MAX     32

/* How long those behind a queue entry that is gone have to look elsewhere. */
#define LEFT_MS 250

static struct consul_watcher *watcher_find(struct consul_conn *cc,
                                           const char *token)
{
    struct hfi_node *node = hfi_map_find(&cc->poller.watchers, token);

    return node ? hfi_container(node, struct consul_watcher, node) : NULL;
}

static struct consul_watch *watch_get(struct consul_conn *cc, const char *key,
                                      const char *name, int64_t at)
{
    struct hfi_node *node = hfi_map_find(&cc->poller.watches, name);
    size_t name_len = strlen(name) + 1, key_len = strlen(key) + 1;
    char entry[CONSUL_NAME_MAX];
    const char *slash = strrchr(name, '/');
    struct consul_watch *watch;

    if (node) {
        watch = hfi_container(node, struct consul_watch, node);
        if (!watch->running && !watch->own)
            hfi_consul_poller_add(cc, watch,
                                  at < watch->start_at ? at : watch->start_at);
        else if (hfi_link_alone(&watch->users))
            hfi_consul_poller_unused(cc, watch);
        return watch;
    }
    if (!hfi_map_reserve(&cc->poller.watches))
        return NULL;
    watch = hfi_alloc(sizeof(*watch) + name_len + key_len);
    if (!watch)
        return NULL;
    hfi_link_init(&watch->link);
    hfi_link_init(&watch->users);
    hfi_link_init(&watch->wake);
    watch->node.key = memcpy(watch->name, name, name_len);
    watch->key = memcpy(watch->name + name_len, key, key_len);
    watch->among = slash && !slash[1];
    watch->queue_entry =
        slash && slash[1] && /* .../TOKEN */
        hfi_consul_queue_entry(&cc->options, key, slash + 1, entry) &&
        !strcmp(entry, name);
    watch->own = watch->queue_entry && hfi_consul_queue_is_own(cc, slash + 1);
    hfi_map_add(&cc->poller.watches, &watch->node);
    if (!watch->own)
        hfi_consul_poller_add(cc, watch, at);
    return watch;
}

/* With the mutex held; it is not under way. */
void hfi_consul_watch_free(struct consul_conn *cc, struct consul_watch *watch)
{
    hfi_link_remove(&watch->link);
    hfi_link_remove(&watch->wake);
    hfi_map_remove(&cc->poller.watches, &watch->node);
    curl_easy_cleanup(watch->easy);
    hfi_consul_reply_fini(&watch->reply);
    hfi_free(watch);
}

/* Leave the watch; the last one leaves a query that nobody needs. */
static void watcher_leave(struct consul_conn *cc, struct consul_watcher *w)
{
    struct consul_watch *watch = w->watch;

    hfi_link_remove(&w->link);
    w->watch = NULL;
    if (!watch || !hfi_link_alone(&watch->users))
        return;
    if (watch->running)
        hfi_consul_poller_unused(cc, watch);
    else
        hfi_consul_watch_free(cc, watch);
}

static void watcher_end(struct consul_conn *cc, struct consul_watcher *w)
{
    watcher_leave(cc, w);
    if (w->holds)
        cc->poller.monitors--;
    hfi_map_remove(&cc->poller.watchers, &w->node);
    hfi_free(w);
}

/* Have the watcher look at `name` from `at` on; false: no memory. */
static bool watcher_aim(struct consul_conn *cc, struct consul_watcher *w,
                        const char *key, const char *name, int64_t at)
{
    struct consul_watch *watch;

    if (w->watch && !strcmp(w->watch->name, name))
        return true;
    watch = watch_get(cc, key, name, at);
    if (!watch)
        return false;
    watcher_leave(cc, w);
    w->watch = watch;
    hfi_link_append(&watch->users, &w->link);
    return true;
}

static struct consul_watcher *watcher_new(struct consul_conn *cc,
                                          const char *token)
{
    struct consul_watcher *w = NULL;

    if (hfi_map_reserve(&cc->poller.watchers))
        w = hfi_alloc(sizeof(*w));
    if (!w)
        return NULL;
    hfi_link_init(&w->link);
    memcpy(w->token, token, sizeof(w->token));
    w->node.key = w->token;
    hfi_map_add(&cc->poller.watchers, &w->node);
    return w;
}

/* The core does not want to be told any more; a holder is still watched. */
static void watch_end(struct consul_conn *cc, const char *token)
{
    struct consul_watcher *w;

    pthread_mutex_lock(&cc->mu);
    w = watcher_find(cc, token);
    if (w && w->holds)
        w->told = false;
    else if (w)
        watcher_end(cc, w);
    pthread_mutex_unlock(&cc->mu);
}

/* A waiter, if it is one, has something else to look at. */
void hfi_consul_retarget(struct consul_conn *cc, const char *key,
                         const char *name, const char *token)
{
    struct consul_watcher *w;

    pthread_mutex_lock(&cc->mu);
    w = watcher_find(cc, token);
    if (w)
        watcher_aim(cc, w, key, name, hfi_now());
    pthread_mutex_unlock(&cc->mu);
}

/* The claim has the key from now on. */
void hfi_consul_monitor(struct consul_conn *cc, const struct consul_key *k,
                        const char *token)
{
    struct consul_watcher *w;

    pthread_mutex_lock(&cc->mu);
    w = watcher_find(cc, token);
    if (!w && cc->poller.monitors < MONITORS_MAX)
        w = watcher_new(cc, token);
    if (w && !w->holds) {
        w->holds = true;
        cc->poller.monitors++;
    }
    if (w) {
        w->paused = false;
        w->since = k->index;
        w->fence = k->fence;
        if (!watcher_aim(cc, w, k->key, k->name, hfi_now() + MONITOR_AFTER_MS))
            watcher_end(cc, w);
    }
    pthread_mutex_unlock(&cc->mu);
}

/* The entry of the holder is about to be left for another: what becomes of it
 * says nothing, until the claim is monitored again. */
void hfi_consul_look_away(struct consul_conn *cc, const char *token, bool away)
{
    struct consul_watcher *w;

    pthread_mutex_lock(&cc->mu);
    w = watcher_find(cc, token);
    if (w)
        w->paused = away;
    pthread_mutex_unlock(&cc->mu);
}

void hfi_consul_forget(struct consul_conn *cc, const char *token)
{
    struct consul_watcher *w;

    pthread_mutex_lock(&cc->mu);
    w = watcher_find(cc, token);
    if (w)
        watcher_end(cc, w);
    pthread_mutex_unlock(&cc->mu);
}

/* ---- answers ------------------------------------------------------------ */

/* Write the entry as `kv` says; its lock stays. */
static void watch_write(struct consul_conn *cc,
                        const struct consul_watch *watch,
                        const struct consul_kv *kv)
{
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};

    hfi_consul_kv_value(value, kv);
    hfi_consul_expect_index(&ops, watch->name, kv->index);
    hfi_consul_op_as(&ops, kv, "set", watch->name, NULL, value);
    hfi_consul_poller_write(cc, &ops);
}

/* Why it is lost.  The entry of a permit goes with its session. */
static hf_loss watch_why(struct consul_conn *cc,
                         const struct consul_watch *watch,
                         const struct consul_watcher *w,
                         const struct consul_kv *kv)
{
    struct hfi_node *node = hfi_map_find(&cc->keys, watch->name);

    if (!kv->exists && node &&
        hfi_container(node, struct consul_key, node)->permit)
        return HF_LOSS_SESSION;
    return hfi_consul_why(kv, w->token, w->fence);
}

static void watch_holder(struct consul_conn *cc, struct consul_watch *watch,
                         struct consul_watcher *w, struct consul_kv *kv)
{
    bool ours = kv->session[0] &&
                (!strcmp(kv->token, w->token) ||
                 (!kv->token[0] && hfi_consul_session_find(cc, kv->session)));

    if (w->paused || kv->index < w->since) /* wait.c (1) */
        return;
    if (!ours) {
        hfi_gone(&cc->base, watch->key, w->token, watch_why(cc, watch, w, kv));
        watcher_end(cc, w);
    } else if (kv->broken && kv->broken == w->fence) {
        /* The entry stays locked until the holder has stopped its work. */
        hfi_gone(&cc->base, watch->key, w->token, HF_LOSS_BROKEN);
        watcher_end(cc, w);
    } else if (kv->wanted) {
        hfi_wanted(&cc->base, watch->key);
    } else if (w->told && !kv->linger) {
        kv->linger = true;
        kv->fence = w->fence;
        watch_write(cc, watch, kv);
    }
}

/* Wake those who wait. */
static void watch_wake(struct consul_conn *cc, struct consul_watch *watch)
{
    struct consul_watcher *w;
    struct hfi_link *at;

    hfi_link_remove(&watch->wake);
    for (at = watch->users.next; at != &watch->users; at = at->next) {
        w = hfi_container(at, struct consul_watcher, link);
        if (!w->holds) {
            watch->herd.tried = true;
            hfi_wake(&cc->base, watch->key, w->token);
        }
    }
}

/* With the mutex held: wake whoever has let others go first for long enough;
 * when to come again. */
int64_t hfi_consul_watch_wake(struct consul_conn *cc, int64_t now)
{
    struct consul_watch *watch;
    struct hfi_link *at, *next;
    int64_t then = HFI_NEVER;

    for (at = cc->poller.waking.next; at != &cc->poller.waking; at = next) {
        next = at->next;
        watch = hfi_container(at, struct consul_watch, wake);
        if (watch->wake_at <= now)
            watch_wake(cc, watch);
        else if (watch->wake_at < then)
            then = watch->wake_at;
    }
    return then;
}

/* There is somebody who waits, of whom `w` is the first; true if the one who
 * has the key is to be asked for it. */
static bool watch_waiters(struct consul_conn *cc, struct consul_watch *watch,
                          const struct consul_watcher *w,
                          const struct consul_kv *kv)
{
    int64_t ms;

    hfi_link_remove(&watch->wake);
    if (watch->among) { /* One of them has changed: which, a try finds out. */
        watch_wake(cc, watch);
        return false;
    }
    if (watch->queue_entry ? hfi_consul_is_queue_entry(kv)
                           : kv->session[0] != '\0') {
        hfi_consul_herd_taken(&watch->herd, kv->session,
                              hfi_consul_session_find(cc, kv->session));
        return kv->linger && !kv->wanted && !watch->queue_entry;
    }
    ms = watch->queue_entry || cc->options.fair /* Only one is told. */
             ? 0
             : hfi_consul_herd_delay(&watch->herd, w->token, kv->index);
    if (!ms) {
        watch_wake(cc, watch);
    } else {
        watch->wake_at = hfi_now() + ms;
        hfi_link_append(&cc->poller.waking, &watch->wake);
    }
    return false;
}

bool hfi_consul_watch_waits(struct consul_conn *cc, const char *token)
{
    const struct consul_watcher *w = watcher_find(cc, token);
    const struct consul_watch *watch = w && !w->holds ? w->watch : NULL;

    return watch && watch->running && watch->answered && !watch->among &&
           (watch->queue_entry ? hfi_consul_is_queue_entry(&watch->last)
                               : watch->last.session[0] != '\0');
}

/* What was read saves the try that follows a question. */
static void watch_learn(struct consul_conn *cc, struct consul_watch *watch,
                        const struct consul_kv *kv)
{
    struct hfi_node *node = hfi_map_find(&cc->keys, watch->name);
    struct consul_key *k;

    if (!node || watch->queue_entry || watch->among)
        return;
    k = hfi_container(node, struct consul_key, node);
    if (k->busy || k->holder[0] || kv->foreign)
        return;
    k->seen = hfi_consul_kv_is_free(kv) ? CONSUL_FREE : CONSUL_UNKNOWN;
    k->line = CONSUL_LINE_UNKNOWN;
    k->index = kv->exists ? kv->index : 0;
}

/* With the mutex held: a query was answered. */
void hfi_consul_watch_answer(struct consul_conn *cc, struct consul_watch *watch,
                             struct consul_kv *kv)
{
    struct consul_watcher *w, *first = NULL;
    struct hfi_link *at, *next;

    watch_learn(cc, watch, kv);
    watch->last = *kv;
    watch->answered = true;
    for (at = watch->users.next; at != &watch->users; at = next) {
        next = at->next;
        w = hfi_container(at, struct consul_watcher, link);
        if (w->holds)
            watch_holder(cc, watch, w, kv);
        else if (!first)
            first = w;
    }
    if (first && watch_waiters(cc, watch, first, kv)) {
        kv->wanted = true;
        kv->fence = hfi_consul_fence(kv);
        watch_write(cc, watch, kv);
    }
}

/* With the mutex held: a queue entry of this client is gone, or may be.  Those
 * behind it look for another one now; the query is for those who could not. */
void hfi_consul_watch_left(struct consul_conn *cc, const char *name, bool sure)
{
    struct hfi_node *node = hfi_map_find(&cc->poller.watches, name);
    struct consul_watch *watch;
    struct hfi_link *at;

    if (!node)
        return;
    watch = hfi_container(node, struct consul_watch, node);
    if (!watch->own)
        return;
    watch->own = false;
    for (at = watch->users.next; sure && at != &watch->users; at = at->next)
        hfi_wake(&cc->base, watch->key,
                 hfi_container(at, struct consul_watcher, link)->token);
    hfi_consul_poller_add(cc, watch, hfi_now() + (sure ? LEFT_MS : 0));
}

/* ---- the core asks ------------------------------------------------------ */

/* A watch that began for another reason has answered already, or would answer
 * too late. */
static void watch_remind(struct consul_conn *cc, struct consul_watcher *w)
{
    struct consul_watch *watch = w->watch;
    struct consul_kv kv;

    if (!watch->running && !watch->own) {
        hfi_consul_poller_add(cc, watch, hfi_now());
    } else if (w->holds && watch->answered) {
        kv = watch->last;
        watch_holder(cc, watch, w, &kv);
    }
}

/* The core wants to be told of this claim: that it may have the key, or, if it
 * has it already, that somebody else wants it. */
static hf_status watch_begin(struct consul_conn *cc, const char *key,
                             const char *name, const char *token,
                             struct hf_error *err)
{
    struct consul_watcher *w;
    bool ok = false;

    pthread_mutex_lock(&cc->mu);
    w = watcher_find(cc, token);
    if (!w)
        w = watcher_new(cc, token);
    if (w) {
        w->told = true;
        ok = watcher_aim(cc, w, key, name, hfi_now());
        if (ok)
            watch_remind(cc, w);
        else
            watcher_end(cc, w);
    }
    pthread_mutex_unlock(&cc->mu);
    return ok ? HF_OK : hfi_nomem(err);
}

hf_status hfi_consul_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, int64_t deadline,
                           struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    const struct consul_grant *own = receipt->own;
    char name[CONSUL_NAME_MAX];

    (void)deadline;
    if (!receipt->fence && own->predecessor[0]) {
        if (!hfi_consul_queue_entry(&cc->options, claim->key, own->predecessor,
                                    name))
            return HF_INVALID;
    } else if (!receipt->fence && own->among) {
        if (!hfi_consul_among_name(cc, claim, name))
            return HF_INVALID;
    } else if (receipt->fence
                   ? !hfi_consul_claim_name(cc, claim, name)
                   : !hfi_consul_name(&cc->options, claim->key, name)) {
        return HF_INVALID;
    }
    return watch_begin(cc, claim->key, name, claim->token, err);
}

void hfi_consul_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt)
{
    (void)receipt;
    watch_end((struct consul_conn *)conn, claim->token);
}
