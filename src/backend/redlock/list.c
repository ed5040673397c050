/* SPDX-License-Identifier: MIT
 *
 * list.c - which locks there are: every key that a node of a majority has is looked
 * at, once, and told of if it is held or may be.
 *
 * A majority of the nodes has every such key: of n nodes, s of them silent, a grant
 * that may have a majority m is on m - s of those that answer, and n - m - s, which is
 * less, of these were not listed.
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
            .size = sizeof(*infos), .left_ms = -1, .since_ms = -1, .slot = -1};
    if (!st)
        st = redlock_look(walk->rl, keys, n, infos, hfi_now() + walk->limit_ms,
                          err);
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
    struct redis_scan scan = {.pattern = pattern, .type = "string"};
    redisReply *reply = NULL;
    hf_status st = HF_OK;

    while (!st && walk->more && !scan.over) {
        st = redis_scan(rc, &rc->mux, &scan, &reply, hfi_now() + walk->limit_ms,
                        err);
        if (st)
            break;
        st = list_page(walk, reply->element[1], err);
        freeReplyObject(reply);
    }
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
    int64_t limit = redlock_limit(rl, REDLOCK_LOOK_TTL);
    char pattern[2 * REDIS_NAME_MAX];
    hf_status st = HF_OK;
    int i, asked = 0;

    list_pattern(rl, prefix, pattern, sizeof(pattern));
    redlock_await_majority(rl, deadline);
    for (i = 0; i < rl->n && walk.more && asked < rl->majority; i++) {
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
