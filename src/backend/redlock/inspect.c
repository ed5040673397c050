/* SPDX-License-Identifier: MIT
 *
 * inspect.c - who holds a lock, which locks there are, and taking one away.
 *
 * A lock is held by the token that has a majority, or would have one if the
 * nodes that do not answer agreed.
 */
#include "redlock.h"

#include <inttypes.h>

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

/* Ask all that are there and wait for them; how many have answered. */
static int inspect_ask(struct redlock_round *round,
                       const struct redis_batch *batch, int64_t deadline)
{
    struct redlock_conn *rl = round->rl;
    int64_t limit = redlock_limit(rl, LOOK_TTL);
    struct redlock_span span;
    int i, answered = 0;

    redlock_gather(rl, deadline);
    span = redlock_span(rl, LOOK_TTL, deadline);
    for (i = 0; i < rl->n; i++)
        if (redlock_node_is_ready(&rl->nodes[i], limit))
            redlock_ask(round, i, batch, span.end);
    span = redlock_span(rl, LOOK_TTL, deadline);
    while ((i = redlock_hear(round, answered < rl->majority ? span.late
                                                            : span.end)) >= 0) {
        struct redlock_node_call *flight = &round->flights[i];
        const redisReply *reply = redlock_reply(flight, 0);

        if (reply && reply->type == REDIS_REPLY_ERROR)
            flight->st = redis_error(&rl->nodes[i].rc, reply, &flight->err);
        answered += !flight->st;
    }
    return answered;
}

/* The token that a node has for the key that was asked for as the `at`-th, or
 * NULL. */
static const char *inspect_token(const struct redlock_round *round, int at,
                                 int node)
{
    const redisReply *reply = redlock_reply(&round->flights[node], at);

    if (!reply || reply->type != REDIS_REPLY_ARRAY ||
        reply->elements != LOOK_PARTS ||
        reply->element[0]->type != REDIS_REPLY_STRING)
        return NULL;
    return reply->element[0]->str;
}

static int inspect_count(const struct redlock_round *round, int at,
                         const char *token)
{
    const char *other;
    int i, n = 0;

    for (i = 0; i < round->rl->n; i++) {
        other = inspect_token(round, at, i);
        n += other && !strcmp(other, token);
    }
    return n;
}

/* The first node that has the token which holds the lock; -1 if none does. */
static int inspect_holder(const struct redlock_round *round, int at,
                          int answered)
{
    const struct redlock_conn *rl = round->rl;
    const char *token;
    int i, n, best = -1, most = 0;

    for (i = 0; i < rl->n; i++) {
        token = inspect_token(round, at, i);
        n = token ? inspect_count(round, at, token) : 0;
        if (n > most && n + rl->n - answered >= rl->majority) {
            most = n;
            best = i;
        }
    }
    return best;
}

static const char *inspect_text(const redisReply *reply, int part)
{
    reply = reply->element[part];
    return reply->type == REDIS_REPLY_STRING ? reply->str : "";
}

/* What a node that has the holder's token knows of it. */
static void inspect_add(const redisReply *reply, struct hf_info *ret)
{
    int64_t fence = redlock_item(reply, LOOK_FENCE);
    int64_t since = redlock_item(reply, LOOK_SINCE);
    int64_t left = redlock_item(reply, LOOK_LEFT);
    const char *token = inspect_text(reply, LOOK_TOKEN);

    if (ret->left_ms < 0 || left < ret->left_ms)
        ret->left_ms = left;
    if (strcmp(inspect_text(reply, LOOK_WHOSE), token) != 0)
        return; /* It was never told of the grant. */
    ret->fence = (uint64_t)fence;
    if (redlock_item(reply, LOOK_BROKEN) == fence)
        ret->broken = true;
    since = (redlock_item(reply, LOOK_NOW) - since) / 1000;
    if (since > ret->since_ms)
        ret->since_ms = since;
    if (*inspect_text(reply, LOOK_OWNER))
        snprintf(ret->owner, sizeof(ret->owner), "%s",
                 inspect_text(reply, LOOK_OWNER));
    snprintf(ret->note, sizeof(ret->note), "%s",
             inspect_text(reply, LOOK_NOTE));
}

static void inspect_read(const struct redlock_round *round, int at,
                         int answered, struct hf_info *ret)
{
    int i, holder = inspect_holder(round, at, answered);
    const char *token, *whose;
    const redisReply *reply;
    int64_t fence;

    ret->waiters = -1;
    ret->held = holder >= 0;
    for (i = 0; i < round->rl->n; i++) {
        reply = redlock_reply(&round->flights[i], at);
        fence = reply ? redlock_item(reply, LOOK_FENCE) : -1;
        if (fence > 0 && (uint64_t)fence > ret->fence)
            ret->fence = (uint64_t)fence;
    }
    if (!ret->held)
        return;
    ret->holders = 1;
    ret->left_ms = ret->since_ms = -1;
    whose = inspect_token(round, at, holder);
    snprintf(ret->owner, sizeof(ret->owner), "%s", whose);
    for (i = 0; i < round->rl->n; i++) {
        token = inspect_token(round, at, i);
        if (token && !strcmp(token, whose))
            inspect_add(redlock_reply(&round->flights[i], at), ret);
    }
}

/* Several keys with one question. */
static hf_status look_at(struct redlock_conn *rl, const char *const *keys,
                         int n, struct hf_info *ret, int64_t deadline,
                         struct hf_error *err)
{
    const char *argv[] = {""};
    struct redlock_round round;
    struct redis_batch batch = {0};
    hf_status st = HF_OK;
    int i, answered;

    redlock_round_init(&round, rl);
    for (i = 0; i < n; i++)
        redlock_step(rl, &batch, 'I', keys[i], 1, argv);
    answered = inspect_ask(&round, &batch, deadline);
    if (answered < rl->majority)
        st = redlock_too_few(&round, answered, 0, err);
    for (i = 0; !st && i < n; i++)
        inspect_read(&round, i, answered, &ret[i]);
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return st;
}

hf_status redlock_inspect(struct hfi_conn *conn, const char *key,
                          struct hf_info *ret, int64_t deadline,
                          struct hf_error *err)
{
    return look_at((struct redlock_conn *)conn, &key, 1, ret, deadline, err);
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
        st = look_at(walk->rl, keys, n, infos, hfi_now() + walk->limit_ms, err);
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
    redlock_gather(rl, deadline);
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

/* What the nodes said to `op`, which ends the grant with this fence: how many
 * did it, and how many have no lock at all. */
static hf_status end_ask(struct redlock_conn *rl, char op, const char *key,
                         uint64_t fence, int64_t deadline, int *done, int *none,
                         struct hf_error *err)
{
    char number[24];
    const char *argv[] = {"", number};
    struct redlock_round round;
    struct redis_batch batch = {0};
    const redisReply *reply;
    hf_status st = HF_OK;
    int i, answered;

    *done = *none = 0;
    snprintf(number, sizeof(number), "%" PRIu64, fence);
    redlock_round_init(&round, rl);
    redlock_step(rl, &batch, op, key, 2, argv);
    answered = inspect_ask(&round, &batch, deadline);
    for (i = 0; i < rl->n; i++) {
        reply = redlock_reply(&round.flights[i], 0);
        if (!reply || reply->type != REDIS_REPLY_INTEGER)
            continue;
        *done += reply->integer == 1;
        *none += reply->integer == 2;
    }
    if (answered < rl->majority)
        st = redlock_too_few(&round, answered, 0, err);
    else if (!*done)
        st =
            hfi_fail(err, HF_LOST, "%s: that grant is over", rl->base.endpoint);
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return st;
}

hf_status redlock_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                        int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    int done, none;
    hf_status st = end_ask(rl, 'B', key, fence, deadline, &done, &none, err);

    if (!st && rl->n - done >= rl->majority)
        st = hfi_fail(err, HF_UNAVAILABLE,
                      "%s: only %d of %d nodes could be told", conn->endpoint,
                      done, rl->n);
    return st;
}

hf_status redlock_free(struct hfi_conn *conn, const char *key, uint64_t fence,
                       int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    int done, none;
    hf_status st = end_ask(rl, 'F', key, fence, deadline, &done, &none, err);

    if (!st && done + none < rl->majority)
        st = hfi_fail(err, HF_UNAVAILABLE,
                      "%s: only %d of %d nodes have given the lock up",
                      conn->endpoint, done + none, rl->n);
    return st;
}
