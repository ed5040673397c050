/* SPDX-License-Identifier: MIT
 *
 * inspect.c - who holds a lock, and which locks there are.
 *
 * A lock is held by the grant that a majority has: its token, with its fence or
 * with none that was confirmed yet.  Whether a grant would have a majority with
 * the nodes that do not answer is not known, and neither hf_inspect() nor
 * hf_check() may guess: a key may be left on a minority for long after its
 * grant is over, since clocks are set and releases get lost.  A listing tells
 * of such a lock.
 *   One thing is known beyond counting.  A fence is confirmed only after a
 * majority had the key for its token, so a grant is over when a node has
 * confirmed a larger one for another token.
 */
#include "redlock.h"

#include "base/alloc.h"
#include "base/map.h"

#include "base/banned.h"

/* {token, ms left, fence, its token, note, owner, since, broken, now}. */
enum {
    LOOK_TOKEN,
    LOOK_LEFT,
    LOOK_FENCE,
    LOOK_WHOSE,
    LOOK_NOTE,
    LOOK_OWNER,
    LOOK_SINCE,
    LOOK_BROKEN,
    LOOK_NOW,
    LOOK_PARTS
};

/* Looking has no lease to take its limit from. */
#define LOOK_TTL INT64_C(30000)

int redlock_inspect_ask(struct redlock_round *round,
                        const struct redis_batch *batch, int64_t deadline)
{
    struct redlock_conn *rl = round->rl;
    int64_t limit = redlock_limit(rl, LOOK_TTL);
    struct redlock_span span;
    int i, answered = 0;

    redlock_await_majority(rl, deadline);
    span = redlock_span(rl, LOOK_TTL, deadline);
    for (i = 0; i < rl->n; i++)
        if (redlock_node_is_ready(&rl->nodes[i], limit))
            redlock_ask(round, i, batch, span.end);
    span = redlock_span(rl, LOOK_TTL, deadline);
    while ((i = redlock_hear(round, answered < rl->majority ? span.late
                                                            : span.end)) >= 0) {
        struct redlock_node_call *node_call = &round->calls[i];
        const redisReply *reply = redlock_reply(node_call, 0);

        if (reply && reply->type == REDIS_REPLY_ERROR)
            node_call->st =
                redis_error(&rl->nodes[i].rc, reply, &node_call->err);
        answered += !node_call->st;
    }
    return answered;
}

/* What a node said of the key that was asked for as the `at`-th, or NULL. */
static const redisReply *inspect_reply(const struct redlock_round *round,
                                       int at, int node)
{
    const redisReply *reply = redlock_reply(&round->calls[node], at);

    return reply && reply->type == REDIS_REPLY_ARRAY &&
                   reply->elements == LOOK_PARTS
               ? reply
               : NULL;
}

static const char *inspect_text(const redisReply *reply, int part)
{
    reply = reply->element[part];
    return reply->type == REDIS_REPLY_STRING ? reply->str : "";
}

/* A grant as one node shows it. */
struct inspect_grant {
    const char *token; /* NULL: the node shows none */
    int64_t fence;     /* that it has confirmed for the token; 0: none */
};

static struct inspect_grant inspect_grant(const struct redlock_round *round,
                                          int at, int node)
{
    const redisReply *reply = inspect_reply(round, at, node);
    struct inspect_grant grant = {0};
    int64_t fence;

    if (!reply || reply->element[LOOK_TOKEN]->type != REDIS_REPLY_STRING)
        return grant;
    grant.token = reply->element[LOOK_TOKEN]->str;
    fence = redlock_item(reply, LOOK_FENCE);
    if (fence > 0 && !strcmp(inspect_text(reply, LOOK_WHOSE), grant.token))
        grant.fence = fence;
    return grant;
}

/* Does the node have that grant?  One that has its token and no fence for it
 * voted for it and was not heard. */
static bool inspect_has(const struct redlock_round *round, int at, int node,
                        const struct inspect_grant *grant)
{
    struct inspect_grant other = inspect_grant(round, at, node);

    return other.token && !strcmp(other.token, grant->token) &&
           (!other.fence || other.fence == grant->fence);
}

/* Has a node confirmed a larger fence for another token? */
static bool inspect_is_over(const struct redlock_round *round, int at,
                            const struct inspect_grant *grant)
{
    const redisReply *reply;
    int i;

    for (i = 0; grant->fence && i < round->rl->n; i++) {
        reply = inspect_reply(round, at, i);
        if (reply && redlock_item(reply, LOOK_FENCE) > grant->fence &&
            strcmp(inspect_text(reply, LOOK_WHOSE), grant->token) != 0)
            return true;
    }
    return false;
}

/* The grant that most nodes have, if it can have a majority; of two the newer
 * one.  How many have it. */
static int inspect_holder(const struct redlock_round *round, int at,
                          int answered, struct inspect_grant *ret)
{
    const struct redlock_conn *rl = round->rl;
    int i, j, n, most = 0;

    *ret = (struct inspect_grant){0};
    for (i = 0; i < rl->n; i++) {
        struct inspect_grant grant = inspect_grant(round, at, i);

        if (!grant.token || inspect_is_over(round, at, &grant))
            continue;
        for (j = n = 0; j < rl->n; j++)
            n += inspect_has(round, at, j, &grant);
        if (n + rl->n - answered >= rl->majority &&
            (n > most || (n == most && grant.fence > ret->fence))) {
            most = n;
            *ret = grant;
        }
    }
    return most;
}

/* How long a majority has it, or as many as are known to have it. */
static int64_t inspect_left(const struct redlock_round *round, int at,
                            const struct inspect_grant *grant)
{
    int64_t left[REDLOCK_MAX], one;
    int i, j, n = 0;

    for (i = 0; i < round->rl->n; i++) {
        if (!inspect_has(round, at, i, grant))
            continue;
        one = redlock_item(inspect_reply(round, at, i), LOOK_LEFT);
        for (j = n++; j > 0 && left[j - 1] < one; j--)
            left[j] = left[j - 1];
        left[j] = one;
    }
    return left[(n < round->rl->majority ? n : round->rl->majority) - 1];
}

/* What a node that has confirmed the grant knows of it. */
static void inspect_add(const redisReply *reply, struct hf_info *ret)
{
    int64_t since =
        (redlock_item(reply, LOOK_NOW) - redlock_item(reply, LOOK_SINCE)) /
        1000;

    if (redlock_item(reply, LOOK_BROKEN) == (int64_t)ret->fence)
        ret->broken = true;
    if (since > ret->since_ms)
        ret->since_ms = since;
    if (*inspect_text(reply, LOOK_OWNER))
        snprintf(ret->owner, sizeof(ret->owner), "%s",
                 inspect_text(reply, LOOK_OWNER));
    snprintf(ret->note, sizeof(ret->note), "%s",
             inspect_text(reply, LOOK_NOTE));
}

/* The largest fence that any node has confirmed, for whomever. */
static uint64_t inspect_newest(const struct redlock_round *round, int at)
{
    const redisReply *reply;
    int64_t newest = 0, fence;
    int i;

    for (i = 0; i < round->rl->n; i++) {
        reply = inspect_reply(round, at, i);
        fence = reply ? redlock_item(reply, LOOK_FENCE) : 0;
        newest = fence > newest ? fence : newest;
    }
    return (uint64_t)newest;
}

/* False: it is not known whether there is a holder, *ret tells of a likely
 * one. */
static bool inspect_read(const struct redlock_round *round, int at,
                         int answered, struct hf_info *ret)
{
    struct inspect_grant grant;
    int i, n = inspect_holder(round, at, answered, &grant);

    ret->waiters = -1;
    ret->held = n > 0;
    ret->fence = n ? (uint64_t)grant.fence : inspect_newest(round, at);
    if (!n)
        return true;
    ret->holders = 1;
    ret->since_ms = -1;
    ret->left_ms = inspect_left(round, at, &grant);
    snprintf(ret->owner, sizeof(ret->owner), "%s", grant.token);
    for (i = 0; grant.fence && i < round->rl->n; i++)
        if (inspect_has(round, at, i, &grant) &&
            inspect_grant(round, at, i).fence)
            inspect_add(inspect_reply(round, at, i), ret);
    return n >= round->rl->majority;
}

static hf_status inspect_unknown(struct redlock_round *round, int answered,
                                 struct hf_error *err)
{
    redlock_too_few(round, answered, 0, err);
    return hfi_wrap(err, HF_UNAVAILABLE, "too few nodes agree on the holder");
}

/* Several keys with one question.  `sure`: of each it must be known whether it
 * is held. */
static hf_status look_at(struct redlock_conn *rl, const char *const *keys,
                         int n, bool sure, struct hf_info *ret,
                         int64_t deadline, struct hf_error *err)
{
    const char *argv[] = {""};
    struct redlock_round round;
    struct redis_batch batch = {0};
    hf_status st = HF_OK;
    int i, answered;

    redlock_round_init(&round, rl);
    for (i = 0; i < n; i++)
        redlock_step(rl, &batch, 'I', keys[i], 1, argv);
    answered = redlock_inspect_ask(&round, &batch, deadline);
    if (answered < rl->majority)
        st = redlock_too_few(&round, answered, 0, err);
    for (i = 0; !st && i < n; i++)
        if (!inspect_read(&round, i, answered, &ret[i]) && sure)
            st = inspect_unknown(&round, answered, err);
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return st;
}

hf_status redlock_inspect(struct hfi_conn *conn, const char *key,
                          struct hf_info *ret, int64_t deadline,
                          struct hf_error *err)
{
    return look_at((struct redlock_conn *)conn, &key, 1, true, ret, deadline,
                   err);
}

/* ---- listing ----------------------------------------------------------- */

/* A pattern that matches the prefix and nothing else. */
static void list_pattern(const struct redlock_conn *rl, const char *prefix,
                         char *ret, size_t size)
{
    const char *parts[] = {rl->nodes[0].rc.prefix, prefix};
    size_t len = 0;
    int i;

    for (i = 0; i < 2; i++) {
        const char *at;

        for (at = parts[i]; *at && len + 4 < size; at++) {
            if (strchr("*?[]\\^-", *at))
                ret[len++] = '\\';
            ret[len++] = *at;
        }
    }
    ret[len++] = '*';
    ret[len] = '\0';
}

/* What a listing goes through. */
struct list_walk {
    struct redlock_conn *rl;
    hf_list_fn *fn;
    void *arg;
    int64_t limit_ms;    /* of one question */
    bool more;           /* the caller wants more */
    struct hfi_map told; /* of struct list_told: each is told of once */
};

struct list_told {
    struct hfi_node node;
    char key[];
};

/* Remember a key; false: no memory. */
static bool list_note(struct list_walk *walk, const char *key)
{
    size_t len = strlen(key);
    struct list_told *told = hfi_alloc(sizeof(*told) + len + 1);

    if (!told || !hfi_map_reserve(&walk->told)) {
        hfi_free(told);
        return false;
    }
    memcpy(told->key, key, len + 1);
    told->node.key = told->key;
    hfi_map_add(&walk->told, &told->node);
    return true;
}

static void list_forget(struct list_walk *walk)
{
    struct hfi_node *node = hfi_map_next(&walk->told, NULL), *next;

    for (; node; node = next) {
        next = hfi_map_next(&walk->told, node);
        hfi_map_remove(&walk->told, node);
        hfi_free(hfi_container(node, struct list_told, node));
    }
    hfi_map_fini(&walk->told);
}

/* So many keys are asked for at once. */
#define LIST_MAX 128

/* Ask for some keys, and tell of those that are held. */
static hf_status list_some(struct list_walk *walk, const char *const *keys,
                           int n, struct hf_error *err)
{
    struct hf_info *infos = hfi_alloc((size_t)n * sizeof(*infos));
    hf_status st = infos ? HF_OK : hfi_nomem(err);
    int i;

    for (i = 0; !st && i < n; i++)
        infos[i] = (struct hf_info){
            .size = sizeof(*infos), .left_ms = -1, .since_ms = -1};
    if (!st)
        st = look_at(walk->rl, keys, n, false, infos,
                     hfi_now() + walk->limit_ms, err);
    for (i = 0; !st && i < n && walk->more; i++) {
        if (!infos[i].held)
            continue;
        if (!list_note(walk, keys[i]))
            st = hfi_nomem(err);
        else
            walk->more = walk->fn(walk->arg, keys[i], &infos[i]);
    }
    hfi_free(infos);
    return st;
}

/* One page of a node's keys. */
static hf_status list_page(struct list_walk *walk, const redisReply *keys,
                           struct hf_error *err)
{
    size_t i, skip = strlen(walk->rl->nodes[0].rc.prefix);
    const char *some[LIST_MAX];
    hf_status st = HF_OK;
    int n = 0;

    for (i = 0; i < keys->elements && walk->more && !st; i++) {
        const redisReply *key = keys->element[i];

        if (key->type != REDIS_REPLY_STRING || (size_t)key->len <= skip ||
            key->len > skip + HF_KEY_MAX || strlen(key->str) != key->len ||
            hfi_map_find(&walk->told, key->str + skip))
            continue;
        some[n++] = key->str + skip;
        if (n < LIST_MAX)
            continue;
        st = list_some(walk, some, n, err);
        n = 0;
    }
    return n && walk->more && !st ? list_some(walk, some, n, err) : st;
}

static hf_status list_node(struct list_walk *walk, int node,
                           const char *pattern, struct hf_error *err)
{
    struct redis_conn *rc = &walk->rl->nodes[node].rc;
    char cursor[32] = "0";
    const char *argv[] = {"SCAN",  cursor, "MATCH", pattern,
                          "COUNT", "500",  "TYPE",  "string"};
    redisReply *reply;
    hf_status st;

    do {
        st = redis_command(rc, &rc->mux, 8, argv, &reply,
                           hfi_now() + walk->limit_ms, err);
        if (st)
            return st;
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
            reply->element[0]->type != REDIS_REPLY_STRING ||
            reply->element[1]->type != REDIS_REPLY_ARRAY) {
            freeReplyObject(reply);
            return redis_bad_reply(rc, err);
        }
        snprintf(cursor, sizeof(cursor), "%s", reply->element[0]->str);
        st = list_page(walk, reply->element[1], err);
        freeReplyObject(reply);
    } while (!st && walk->more && strcmp(cursor, "0") != 0);
    return st;
}

hf_status redlock_list(struct hfi_conn *conn, const char *prefix,
                       hf_list_fn *fn, void *arg, int64_t deadline,
                       struct hf_error *err)
{
    struct list_walk walk = {.rl = (struct redlock_conn *)conn,
                             .fn = fn,
                             .arg = arg,
                             .limit_ms = hfi_left_ms(deadline),
                             .more = true};
    struct redlock_conn *rl = walk.rl;
    int64_t limit = redlock_limit(rl, LOOK_TTL);
    char pattern[2 * REDIS_NAME_MAX];
    hf_status st = HF_OK;
    int i, asked = 0;

    list_pattern(rl, prefix, pattern, sizeof(pattern));
    redlock_await_majority(rl, deadline);
    for (i = 0; i < rl->n && walk.more; i++) {
        if (!redlock_node_is_ready(&rl->nodes[i], limit))
            continue;
        st = list_node(&walk, i, pattern, err);
        asked += !st;
        if (st && st != HF_UNAVAILABLE && st != HF_UNCERTAIN)
            break;
        st = HF_OK;
    }
    list_forget(&walk);
    if (st)
        return st;
    if (walk.more && asked < rl->majority)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: only %d of %d nodes could be listed",
                        conn->endpoint, asked, rl->n);
    return HF_OK;
}
