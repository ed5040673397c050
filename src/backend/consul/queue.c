/* SPDX-License-Identifier: MIT
 *
 * queue.c - queue=fair: first come, first served, one woken at a time.
 *
 * A waiter has a queue entry, K/.holdfast/TOKEN, locked by a session whose keys
 * are deleted with it, so that the entry of a dead waiter goes away.  Queue
 * entries are in the order of their CreateIndex.  The first in line takes the
 * lock and deletes its queue entry in one transaction; each other watches the
 * one before its own.  If that one is this client's too, no query is needed for
 * it: the client knows when it goes, and until then there is nothing to ask
 * either.  So a queue of hundreds in one client needs one connection, not
 * hundreds, and one of them reads the list, not all.
 *
 * A lock that nobody waits for costs no look at its queue: a release reads the
 * queue in the same transaction, and as long as the key is as the release left
 * it, this client takes it at once, or takes a place at once if there was a
 * queue.  Nor does the first in line look again when the key becomes free.
 *
 * DOUBT  A queue entry is written on the condition that there is none.  Where
 *   no answer came, that may happen after the waiter has left.  So it leaves
 *   its queue entry locked by the same session, but without a token: nobody
 *   counts that, the late write fails, and when the session ends, and with it
 *   the late write's chance, the service deletes the entry.
 *
 * LIMITS  Clients that say queue=barge, and `consul lock`, take the key
 *   when they find it free.  A lock-delay holds for the key, not for its queue.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

#define ENTRY_TTL_MIN INT64_C(10000)

/* A queue entry needs less than the lock: the core asks again within two thirds
 * of a ttl, and a session lasts for twice its own.  So a dead waiter is in
 * nobody's way for longer than the ttl.  Less than 10 s a server may not
 * accept. */
static int64_t queue_ttl(const struct hfi_claim *claim)
{
    if (claim->ttl_ms < ENTRY_TTL_MIN)
        return claim->ttl_ms;
    return claim->ttl_ms / 2 < ENTRY_TTL_MIN ? ENTRY_TTL_MIN
                                             : claim->ttl_ms / 2;
}

bool hfi_consul_queue_entry(const struct consul_options *options,
                            const char *key, const char *token, char *ret)
{
    return hfi_consul_part(options, key, ".holdfast", token, ret);
}

/* ---- the queue entries of this client ----------------------------------- */

struct queue_own {
    struct hfi_node node; /* in consul_conn.queue_entries */
    int32_t position;     /* in the queue, when it was last seen; 0 unknown */
    bool gone;            /* it is remembered for its doubt only */
    char session[CONSUL_ID_LEN + 1]; /* that has it, or "" */
    char doubt[CONSUL_ID_LEN + 1];   /* the session of an entry that may still
                                    * be written, or "" */
    char token[HFI_TOKEN_LEN + 1];
};

static struct queue_own *queue_own_find(struct consul_conn *cc,
                                        const char *token)
{
    struct hfi_node *node = hfi_map_find(&cc->queue_entries, token);
    struct queue_own *own =
        node ? hfi_container(node, struct queue_own, node) : NULL;

    return own && !own->gone ? own : NULL;
}

/* With the mutex held: is there a queue entry of ours with this token? */
bool hfi_consul_queue_is_own(struct consul_conn *cc, const char *token)
{
    return queue_own_find(cc, token);
}

/* May a queue entry of this claim be written late?  *session is the one. */
static bool queue_doubt(struct consul_conn *cc, const char *token,
                        char *session)
{
    struct hfi_node *node;

    session[0] = '\0';
    pthread_mutex_lock(&cc->mu);
    node = hfi_map_find(&cc->queue_entries, token);
    if (node)
        memcpy(session, hfi_container(node, struct queue_own, node)->doubt,
               CONSUL_ID_LEN + 1);
    pthread_mutex_unlock(&cc->mu);
    return session[0];
}

bool hfi_consul_queue_in_doubt(struct consul_conn *cc, const char *token)
{
    char session[CONSUL_ID_LEN + 1];

    return queue_doubt(cc, token, session);
}

static void queue_set_doubt(struct consul_conn *cc, const char *token,
                            const char *session)
{
    struct hfi_node *node;

    pthread_mutex_lock(&cc->mu);
    node = hfi_map_find(&cc->queue_entries, token);
    if (node)
        memcpy(hfi_container(node, struct queue_own, node)->doubt, session,
               strlen(session) + 1);
    pthread_mutex_unlock(&cc->mu);
}

static void queue_set_session(struct consul_conn *cc, const char *token,
                              const char *session)
{
    struct queue_own *own;

    pthread_mutex_lock(&cc->mu);
    own = queue_own_find(cc, token);
    if (own)
        memcpy(own->session, session, strlen(session) + 1);
    pthread_mutex_unlock(&cc->mu);
}

/* Before the queue entry is written, so that whoever sees it finds it here. */
static bool queue_own_add(struct consul_conn *cc, const char *token)
{
    struct hfi_node *node;
    struct queue_own *own = NULL;

    pthread_mutex_lock(&cc->mu);
    node = hfi_map_find(&cc->queue_entries, token);
    if (node) {
        own = hfi_container(node, struct queue_own, node);
        own->gone = false;
    } else if (hfi_map_reserve(&cc->queue_entries)) {
        own = hfi_alloc(sizeof(*own));
        if (own) {
            memcpy(own->token, token, sizeof(own->token));
            own->node.key = own->token;
            hfi_map_add(&cc->queue_entries, &own->node);
        }
    }
    pthread_mutex_unlock(&cc->mu);
    return own;
}

static void queue_own_free(struct consul_conn *cc, struct hfi_node *node)
{
    hfi_map_remove(&cc->queue_entries, node);
    hfi_free(hfi_container(node, struct queue_own, node));
}

/* The queue entry is gone, or (not `sure`) may be: tell who stands behind
 * it. */
void hfi_consul_queue_left(struct consul_conn *cc, const char *key,
                           const char *token, bool sure)
{
    char name[CONSUL_NAME_MAX];
    struct hfi_node *node;
    struct queue_own *own;
    bool told = true;

    pthread_mutex_lock(&cc->mu);
    node = hfi_map_find(&cc->queue_entries, token);
    if (node) {
        own = hfi_container(node, struct queue_own, node);
        told = own->gone;
        own->gone = true;
        if (!own->doubt[0])
            queue_own_free(cc, node);
    }
    if (!told) {
        if (hfi_consul_queue_entry(&cc->options, key, token, name))
            hfi_consul_watch_left(cc, name, sure);
    }
    pthread_mutex_unlock(&cc->mu);
}

/* Nobody else uses the conn any more. */
void hfi_consul_queue_fini(struct consul_conn *cc)
{
    struct hfi_node *node;

    while ((node = hfi_map_next(&cc->queue_entries, NULL)))
        queue_own_free(cc, node);
    hfi_map_fini(&cc->queue_entries);
}

/* ---- the queue ---------------------------------------------------------- */

/* What a look at the queue finds. */
struct queue_view {
    int32_t entries, before; /* all, and those before ours */
    bool alone;              /* one of these does not want to share */
    int32_t permits;         /* in use by those before ours */
    bool mine;
    char previous[HFI_TOKEN_LEN + 1]; /* the one just before ours */
    uint64_t create, previous_create; /* of ours (or "last"), of that */
};

static void queue_count(struct queue_view *view, const char *token,
                        const struct consul_kv *kv)
{
    view->entries++;
    if (kv->create >= view->create)
        return;
    view->before++;
    view->permits = kv->permits;
    if (!kv->shared)
        view->alone = true;
    if (kv->create > view->previous_create) {
        view->previous_create = kv->create;
        memcpy(view->previous, token, HFI_TOKEN_LEN + 1);
    }
}

static void queue_read(struct queue_view *view, const json_t *list,
                       const char *token)
{
    const json_t *entry;
    struct consul_kv kv;
    const char *at;
    size_t i;

    view->create = UINT64_MAX;
    for (i = 0; i < json_array_size(list); i++) {
        entry = json_array_get(list, i);
        at = hfi_consul_queue_token(entry);
        if (!at || strcmp(at, token) != 0)
            continue;
        hfi_consul_kv_parse(&kv, entry);
        if (!hfi_consul_is_queue_entry(&kv))
            continue;
        view->create = kv.create;
        view->mine = true;
    }
    for (i = 0; i < json_array_size(list); i++) {
        entry = json_array_get(list, i);
        at = hfi_consul_queue_token(entry);
        hfi_consul_kv_parse(&kv, entry);
        if (at && hfi_consul_is_queue_entry(&kv))
            queue_count(view, at, &kv);
    }
}

static hf_status queue_inspect(struct consul_conn *cc, const char *key,
                               const char *token, int64_t deadline,
                               struct queue_view *view, struct hf_error *err)
{
    struct consul_reply reply;
    hf_status st = hfi_consul_queue_fetch(cc, key, deadline, &reply, err);

    *view = (struct queue_view){.entries = 0};
    if (st)
        return st;
    if (reply.json)
        queue_read(view, reply.json, token);
    hfi_consul_reply_fini(&reply);
    return HF_OK;
}

/* Not our turn: watch the queue entry before ours from now on. */
static hf_status queue_behind(struct consul_conn *cc,
                              const struct hfi_claim *claim,
                              struct hfi_receipt *receipt,
                              struct hfi_answer *busy,
                              const struct queue_view *view)
{
    char name[CONSUL_NAME_MAX];
    struct queue_own *own;

    pthread_mutex_lock(&cc->mu);
    own = queue_own_find(cc, claim->token);
    if (own)
        own->position = view->before + 1;
    pthread_mutex_unlock(&cc->mu);
    busy->position = view->before + 1;
    consul_own(receipt)->looked = true;
    memcpy(consul_own(receipt)->predecessor, view->previous,
           sizeof(view->previous));
    if (view->before ? hfi_consul_queue_entry(&cc->options, claim->key,
                                              view->previous, name)
        : consul_own(receipt)->among
            ? hfi_consul_among_name(cc, claim, name)
            : hfi_consul_name(&cc->options, claim->key, name))
        hfi_consul_retarget(cc, claim->key, name, claim->token);
    return HF_BUSY;
}

/* Keep the queue entry alive as long as we ask for it; *same: it is on that
 * session, as far as is known. */
static hf_status queue_keep_same(struct consul_conn *cc,
                                 const struct hfi_claim *claim, bool *same,
                                 int64_t deadline, struct hf_error *err)
{
    const struct queue_own *own;
    struct consul_session *s;
    hf_status st =
        hfi_consul_session_get(cc, queue_ttl(claim), true, deadline, &s, err);

    if (st)
        return st;
    pthread_mutex_lock(&cc->mu);
    own = queue_own_find(cc, claim->token);
    *same = own && !strcmp(own->session, s->id);
    pthread_mutex_unlock(&cc->mu);
    hfi_consul_session_put(cc, s);
    return HF_OK;
}

static hf_status queue_keep(struct consul_conn *cc,
                            const struct hfi_claim *claim, int64_t deadline,
                            struct hf_error *err)
{
    bool same;

    return queue_keep_same(cc, claim, &same, deadline, err);
}

/* Does a query say already that our turn has not come?  Then there is nothing
 * to ask: what it waits for wakes us. */
static bool queue_is_told(struct consul_conn *cc, const struct hfi_claim *claim,
                          const struct hfi_receipt *receipt,
                          struct hfi_answer *busy)
{
    const struct consul_grant *own = receipt->own;
    const struct queue_own *entry;
    bool told = false;

    pthread_mutex_lock(&cc->mu);
    entry = queue_own_find(cc, claim->token);
    if (entry && receipt->registered && !receipt->fence && own->looked &&
        !own->among && !consul_is_joint(claim) && !entry->doubt[0])
        told = hfi_consul_watch_waits(cc, claim->token);
    if (told)
        busy->position = entry->position;
    pthread_mutex_unlock(&cc->mu);
    return told;
}

/* Does the queue entry before ours belong to this client, and is it still
 * there? Then it is not our turn.  If it has vanished without our doing,
 * whoever stands there finds out, and leaves it. */
static bool queue_is_behind_own(struct consul_conn *cc,
                                const struct hfi_claim *claim,
                                const struct hfi_receipt *receipt,
                                struct hfi_answer *busy)
{
    const struct consul_grant *own = receipt->own;
    struct queue_own *before = NULL;

    pthread_mutex_lock(&cc->mu);
    if (receipt->registered && !receipt->fence && own->predecessor[0] &&
        queue_own_find(cc, claim->token))
        before = queue_own_find(cc, own->predecessor);
    if (before && before->position)
        busy->position = before->position + 1;
    pthread_mutex_unlock(&cc->mu);
    return before;
}

/* With the mutex held: what is known of the key, or NULL. */
static const struct consul_key *queue_key(struct consul_conn *cc,
                                          const struct hfi_claim *claim)
{
    char name[CONSUL_NAME_MAX];
    struct hfi_node *node = NULL;

    if (hfi_consul_name(&cc->options, claim->key, name))
        node = hfi_map_find(&cc->keys, name);
    return node ? hfi_container(node, struct consul_key, node) : NULL;
}

/* What a claim without a place need not ask, since the last release of this
 * client has seen it.  Who takes a place later finds the key free, or taken
 * after that, and has not been passed by. */
enum consul_line hfi_consul_queue_known(struct consul_conn *cc,
                                        const struct hfi_claim *claim,
                                        const struct hfi_receipt *receipt)
{
    enum consul_line line = CONSUL_LINE_UNKNOWN;
    const struct consul_key *k;

    if (receipt->registered || consul_is_joint(claim) ||
        hfi_consul_queue_stands(cc, claim->token) ||
        hfi_consul_queue_in_doubt(cc, claim->token))
        return line;
    pthread_mutex_lock(&cc->mu);
    k = queue_key(cc, claim);
    if (k && !k->busy && !k->holder[0] && k->seen == CONSUL_FREE && k->index)
        line = k->line;
    pthread_mutex_unlock(&cc->mu);
    return line;
}

/* Were we the first when we last looked, and is the key free since?  Nobody can
 * come to stand before us. */
static bool queue_is_next(struct consul_conn *cc, const struct hfi_claim *claim,
                          const struct hfi_receipt *receipt)
{
    const struct consul_grant *own = receipt->own;
    const struct consul_key *k;
    bool next;

    pthread_mutex_lock(&cc->mu);
    k = queue_key(cc, claim);
    next = receipt->registered && !receipt->fence && own->looked &&
           !own->predecessor[0] && !own->among && !consul_is_joint(claim) &&
           queue_own_find(cc, claim->token) && k && !k->busy && !k->holder[0] &&
           k->seen == CONSUL_FREE && k->index;
    pthread_mutex_unlock(&cc->mu);
    return next;
}

/* Is it the turn of those before us? */
static bool queue_goes_first(const struct queue_view *view,
                             const struct hfi_claim *claim)
{
    return view->before && (!claim->shared || view->alone);
}

hf_status hfi_consul_queue_judge(const struct hfi_claim *claim,
                                 const json_t *list, struct hf_error *err)
{
    struct queue_view view = {.entries = 0};

    queue_read(&view, list, claim->token);
    if (!view.mine && view.before && view.permits != claim->permits)
        return hfi_fail_use(err, claim, view.permits);
    return queue_goes_first(&view, claim) ? HF_BUSY : HF_OK;
}

hf_status hfi_consul_queue_turn(struct consul_conn *cc,
                                const struct hfi_claim *claim,
                                struct hfi_receipt *receipt,
                                struct hfi_answer *busy, int64_t deadline,
                                char *queue_entry, bool *stands,
                                struct hf_error *err)
{
    struct queue_view view;
    hf_status st;

    *stands = true;
    if (queue_is_behind_own(cc, claim, receipt, busy)) {
        st = queue_keep(cc, claim, deadline, err);
        return st ? st : HF_BUSY;
    }
    if (queue_is_told(cc, claim, receipt, busy)) {
        bool same = false;

        st = queue_keep_same(cc, claim, &same, deadline, err);
        if (st || same)
            return st ? st : HF_BUSY;
    }
    if (queue_is_next(cc, claim, receipt)) {
        st = queue_keep(cc, claim, deadline, err);
        if (!st && !hfi_consul_queue_in_doubt(cc, claim->token))
            hfi_consul_queue_entry(&cc->options, claim->key, claim->token,
                                   queue_entry);
        return st;
    }
    st = queue_inspect(cc, claim->key, claim->token, deadline, &view, err);
    if (!st && view.mine)
        st = queue_keep(cc, claim, deadline, err);
    if (st)
        return st;
    *stands = view.mine;
    if (!view.mine)
        hfi_consul_queue_left(cc, claim->key, claim->token, true);
    if (!view.mine && view.before && view.permits != claim->permits)
        return hfi_fail_use(err, claim, view.permits);
    if (queue_goes_first(&view, claim))
        return view.mine ? queue_behind(cc, claim, receipt, busy, &view)
                         : HF_BUSY;
    if (view.mine) {
        queue_behind(cc, claim, receipt, busy, &view);
        if (!hfi_consul_queue_in_doubt(cc, claim->token))
            hfi_consul_queue_entry(&cc->options, claim->key, claim->token,
                                   queue_entry);
    }
    return HF_OK;
}

/* The queue, in the answer to a transaction that ends with a look at it. */
static void queue_see(struct queue_view *view, struct consul_reply *reply,
                      const char *token)
{
    json_t *list = json_array(), *entry;
    size_t i;

    hfi_consul_reply_parse(reply);
    for (i = 1;; i++) { /* behind what was written */
        entry = json_array_get(json_object_get(reply->json, "Results"), i);
        if (!entry)
            break;
        json_array_append(list, json_object_get(entry, "KV"));
    }
    if (list)
        queue_read(view, list, token);
    json_decref(list);
}

/* Write a queue entry at the end, and look who stands before it. */
static hf_status queue_write(struct consul_conn *cc,
                             const struct hfi_claim *claim,
                             struct hfi_receipt *receipt, int64_t deadline,
                             struct queue_view *view, struct hf_error *err)
{
    char name[CONSUL_NAME_MAX], value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_session *s;
    struct consul_reply reply;
    struct consul_done done;
    hf_status st;

    *view = (struct queue_view){.entries = 0};
    if (!hfi_consul_queue_entry(&cc->options, claim->key, claim->token, name))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        cc->base.endpoint);
    if (!queue_own_add(cc, claim->token))
        return hfi_nomem(err);
    hfi_consul_value(value, claim, 0, 0);
    st = hfi_consul_session_get(cc, queue_ttl(claim), true, deadline, &s, err);
    if (st)
        return st;
    hfi_consul_expect_index(&ops, name, 0);
    hfi_consul_op(&ops, "lock", name, s->id, value, 0);
    if (hfi_consul_queue_entry(&cc->options, claim->key, "", name))
        hfi_consul_op(&ops, "get-tree", name, NULL, NULL, 0);
    st = hfi_consul_txn_keep(cc, &cc->calls, &ops, true, deadline, &done,
                             &reply, err);
    if (!st && done.ok)
        queue_see(view, &reply, claim->token);
    if (!st)
        hfi_consul_reply_fini(&reply);
    if (!st && done.bad_session)
        hfi_consul_session_dead(cc, s);
    if (st == HF_UNCERTAIN || st == HF_PROTOCOL)
        queue_set_doubt(cc, claim->token, s->id);
    queue_set_session(cc, claim->token, !st && done.ok ? s->id : "");
    hfi_consul_session_put(cc, s);
    if (!st || st == HF_UNCERTAIN || st == HF_PROTOCOL)
        receipt->registered = true;
    return st;
}

/* Take a queue entry at the end. */
hf_status hfi_consul_queue_join(struct consul_conn *cc,
                                const struct hfi_claim *claim,
                                struct hfi_receipt *receipt,
                                struct hfi_answer *busy, int64_t deadline,
                                struct hf_error *err)
{
    struct queue_view view;
    hf_status st = queue_write(cc, claim, receipt, deadline, &view, err);

    if (!st && !view.mine) /* It was there already. */
        st = queue_inspect(cc, claim->key, claim->token, deadline, &view, err);
    return st ? st : queue_behind(cc, claim, receipt, busy, &view);
}

/* Does the claim have a queue entry, as far as we know? */
bool hfi_consul_queue_stands(struct consul_conn *cc, const char *token)
{
    bool stands;

    pthread_mutex_lock(&cc->mu);
    stands = queue_own_find(cc, token);
    pthread_mutex_unlock(&cc->mu);
    return stands;
}

/* Without queue=fair: keep those out who want to share.  `stands`: the queue
 * entry was seen.  join.c */
hf_status hfi_consul_queue_door(struct consul_conn *cc,
                                const struct hfi_claim *claim,
                                struct hfi_receipt *receipt, bool stands,
                                int64_t deadline, struct hf_error *err)
{
    struct queue_view view;

    if (stands && hfi_consul_queue_stands(cc, claim->token))
        return queue_keep(cc, claim, deadline, err);
    return queue_write(cc, claim, receipt, deadline, &view, err);
}

/* Give the queue entry up.  HF_LOST: there was none. */
hf_status hfi_consul_queue_leave(struct consul_conn *cc,
                                 const struct hfi_claim *claim,
                                 int64_t deadline, struct hf_error *err)
{
    char name[CONSUL_NAME_MAX], session[CONSUL_ID_LEN + 1];
    struct consul_ops ops = {.len = 0}, bar = {.len = 0};
    struct consul_done done = {.ok = false};
    hf_status st = HF_OK;

    if (!hfi_consul_queue_entry(&cc->options, claim->key, claim->token, name))
        return HF_LOST;
    if (queue_doubt(cc, claim->token, session)) {
        hfi_consul_op(&bar, "lock", name, session, "", 0);
        st = hfi_consul_txn(cc, &cc->calls, &bar, true, deadline, &done, err);
    }
    if (!st && !done.ok) { /* no doubt, or its session has ended */
        queue_set_doubt(cc, claim->token, "");
        hfi_consul_op(&ops, "delete", name, NULL, NULL, 0);
        st = hfi_consul_txn(cc, &cc->calls, &ops, true, deadline, &done, err);
    }
    hfi_consul_queue_left(cc, claim->key, claim->token, !st);
    return st;
}
