/* SPDX-License-Identifier: MIT
 *
 * list.c - which locks there are: every key that a node of a majority has is looked
 * at, once, and told of if it is held or may be.
 *
 * A majority of the nodes has every such key: of n nodes, s of them silent, a grant
 * that may have a majority m is on m - s of those that answer, and n - m - s, which is
 * less, of these were not listed.
 *
 * The first page is asked of as many nodes at once as a majority needs, and of all
 * others if one of them is late, so silent nodes are waited for together; and one
 * that was silent is asked for no more pages.  The limit of a question is that of
 * all that are in vain, together: a page that follows gets half of what is left of
 * it, so that others can still stand in for a node that falls silent.
 */
#include "redlock.h"

#include "base/alloc.h"
#include "base/map.h"

#include "base/banned.h"

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
    const char *pattern;
    int64_t limit_ms;    /* of a question that is answered */
    int64_t patience_ms; /* what is left of it for those that are not */
    unsigned tried;      /* the nodes that were asked */
    int listed;          /* how many have shown all their keys */
    bool lost;           /* a majority does not say what it has */
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
            .size = sizeof(*infos), .left_ms = -1, .since_ms = -1, .slot = -1};
    if (!st)
        st = redlock_look(walk->rl, keys, n, infos, hfi_now() + walk->limit_ms,
                          err);
    walk->lost = st != HF_OK;
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

/* All pages of a node, of which the first is here. */
static hf_status list_node(struct list_walk *walk, int node,
                           const redisReply *first, struct hf_error *err)
{
    struct redis_conn *rc = &walk->rl->nodes[node].rc;
    struct redis_scan scan = {.pattern = walk->pattern, .type = "string"};
    hf_status st = redis_scan_take(rc, &scan, first, err);
    redisReply *reply = NULL;

    if (!st)
        st = list_page(walk, first->element[1], err);
    while (!st && walk->more && !scan.over) {
        int64_t begin = hfi_now();

        st = redis_scan(rc, &rc->mux, &scan, &reply,
                        begin + walk->patience_ms / 2, err);
        if (st) {
            walk->patience_ms -= hfi_now() - begin;
            break;
        }
        st = list_page(walk, reply->element[1], err);
        freeReplyObject(reply);
    }
    return st;
}

/* Ask so many nodes that were not asked yet for their first page. */
static void list_ask(struct list_walk *walk, struct redlock_round *round,
                     const struct redis_batch *batch, int most,
                     int64_t deadline)
{
    struct redlock_conn *rl = walk->rl;
    int64_t limit = redlock_limit(rl, REDLOCK_LOOK_TTL);
    int i;

    for (i = 0; i < rl->n && most > 0; i++) {
        if (walk->tried & 1U << i ||
            !redlock_node_is_ready(&rl->nodes[i], limit))
            continue;
        redlock_ask(round, i, batch, deadline);
        walk->tried |= 1U << i;
        most -= round->calls[i].asked;
    }
}

/* Have the first page of so many nodes as are lacking; false: they are fewer. */
static bool list_begin(struct list_walk *walk, struct redlock_round *round,
                       const struct redis_batch *batch, int64_t deadline,
                       struct hf_error *err)
{
    struct redlock_conn *rl = walk->rl;
    int need = rl->majority - walk->listed, have = 0, node;
    struct redlock_span span;

    redlock_await_majority(rl, deadline);
    list_ask(walk, round, batch, need, deadline);
    span = redlock_span(rl, REDLOCK_LOOK_TTL, deadline);
    while (have < need && (node = redlock_hear(round, span.end)) >= 0)
        have += round->calls[node].landed;
    if (have < need)
        list_ask(walk, round, batch, rl->n, deadline);
    while (have < need && (node = redlock_hear(round, deadline)) >= 0)
        have += round->calls[node].landed;
    if (have < need)
        hfi_fail(err, HF_UNAVAILABLE, "%s: only %d of %d nodes could be listed",
                 rl->base.endpoint, walk->listed + have, rl->n);
    return have >= need;
}

/* List nodes that were not asked before. */
static hf_status list_round(struct list_walk *walk, int64_t deadline,
                            struct hf_error *err)
{
    const struct redis_scan scan = {.pattern = walk->pattern, .type = "string"};
    const char *argv[REDIS_SCAN_ARGS];
    struct redlock_conn *rl = walk->rl;
    struct redis_batch batch = {0};
    struct redlock_round round;
    hf_status st;
    int i;

    redis_scan_ask(&scan, argv);
    redis_batch_add(&batch, REDIS_SCAN_ARGS, argv);
    redlock_round_init(&round, rl);
    st = list_begin(walk, &round, &batch, deadline, err) ? HF_OK
                                                         : HF_UNAVAILABLE;
    for (i = 0; i < rl->n && !st; i++) {
        const redisReply *first = redlock_reply(&round.calls[i], 0);

        if (!first || !walk->more || walk->listed >= rl->majority)
            continue;
        st = list_node(walk, i, first, err);
        walk->listed += !st;
        if (!walk->lost && (st == HF_UNAVAILABLE || st == HF_UNCERTAIN))
            st = HF_OK;
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
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
                             .patience_ms = hfi_left_ms(deadline),
                             .more = true};
    struct redlock_conn *rl = walk.rl;
    char pattern[2 * REDIS_NAME_MAX];
    hf_status st;

    list_pattern(rl, prefix, pattern, sizeof(pattern));
    walk.pattern = pattern;
    do {
        st = list_round(&walk, deadline, err);
        deadline = hfi_now() + walk.patience_ms;
    } while (!st && walk.more && walk.listed < rl->majority);
    list_forget(&walk);
    return st;
}
