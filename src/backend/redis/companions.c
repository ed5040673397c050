/* SPDX-License-Identifier: MIT
 *
 * companions.c - what a server keeps beside the locks: for how long, and of
 * which keys.
 */
#include "redis.h"

#include "base/banned.h"

#define KEEP_MS_MIN (INT64_C(60) * 1000)
#define KEEP_MS_MAX (INT64_C(366) * 24 * 3600 * 1000)

hf_status redis_url_keep(const struct hfi_url *url, int64_t *ret,
                         struct hf_error *err)
{
    int64_t ms = HFI_KEEP_MS;
    hf_status st = hfi_url_duration(url, "keep", &ms, err);

    if (!st && (ms < KEEP_MS_MIN || ms > KEEP_MS_MAX))
        st = hfi_fail(err, HF_INVALID, "url: keep= is from 1m to 8784h");
    if (!st)
        *ret = ms;
    return st;
}

void redis_scan_ask(const struct redis_scan *scan, const char **argv)
{
    const char *all[REDIS_SCAN_ARGS] = {
        "SCAN",  scan->cursor[0] ? scan->cursor : "0",
        "MATCH", scan->pattern,
        "COUNT", "500",
        "TYPE",  scan->type};

    memcpy(argv, all, sizeof(all));
}

hf_status redis_scan_take(struct redis_conn *rc, struct redis_scan *scan,
                          const redisReply *reply, struct hf_error *err)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return redis_error(rc, reply, err);
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_ARRAY)
        return redis_bad_reply(rc, err);
    snprintf(scan->cursor, sizeof(scan->cursor), "%s", reply->element[0]->str);
    scan->over = !strcmp(scan->cursor, "0");
    return HF_OK;
}

hf_status redis_scan(struct redis_conn *rc, struct hfi_mux *mux,
                     struct redis_scan *scan, redisReply **ret,
                     int64_t deadline, struct hf_error *err)
{
    const char *argv[REDIS_SCAN_ARGS];
    hf_status st;

    redis_scan_ask(scan, argv);
    st = redis_command(rc, mux, REDIS_SCAN_ARGS, argv, ret, deadline, err);
    if (st)
        return st;
    st = redis_scan_take(rc, scan, *ret, err);
    if (st)
        freeReplyObject(*ret);
    return st;
}

/* "{TAG}:meta:REST" is of the lock REST, or TAG if that is empty: the key below
 * the prefix, or NULL. */
static const char *companions_key(const struct redis_conn *rc, const char *name,
                                  char *buf, size_t size)
{
    static const char meta[] = "}:meta:";
    const char *end = strstr(name, meta), *rest;
    size_t len = strlen(rc->prefix);
    struct redis_names names;

    if (*name != '{' || !end)
        return NULL;
    rest = end + strlen(meta);
    if (*rest)
        snprintf(buf, size, "%s", rest);
    else
        snprintf(buf, size, "%.*s", (int)(end - name - 1), name + 1);
    if (strncmp(buf, rc->prefix, len) != 0 || !buf[len] ||
        strlen(buf + len) > HF_KEY_MAX)
        return NULL;
    redis_name(rc, buf + len, &names);
    return strcmp(names.text[REDIS_META], name) ? NULL : buf + len;
}

void redis_collected(struct hf_collected *ret, const redisReply *reply)
{
    ret->looked_at++;
    if (redis_number(reply) == 1)
        ret->removed++;
    else
        ret->kept++;
}

static hf_status companions_page(const struct redis_conn *rc,
                                 const struct redis_companions *walk,
                                 const redisReply *page, struct hf_error *err)
{
    char buf[REDIS_NAME_MAX];
    hf_status st = HF_OK;
    size_t i;
    int n = 0;

    for (i = 0; i < page->elements && !st; i++) {
        const char *key =
            page->element[i]->type == REDIS_REPLY_STRING
                ? companions_key(rc, page->element[i]->str, buf, sizeof(buf))
                : NULL;

        if (!key)
            continue;
        walk->add(walk->arg, key);
        if (++n % REDIS_COMPANIONS_AT_ONCE == 0)
            st = walk->send(walk->arg, err);
    }
    return n % REDIS_COMPANIONS_AT_ONCE && !st ? walk->send(walk->arg, err)
                                               : st;
}

hf_status redis_companions(struct redis_conn *rc, struct hfi_mux *mux,
                           const struct redis_companions *walk,
                           int64_t limit_ms, struct hf_error *err)
{
    struct redis_scan scan = {.pattern = "{*}:meta:*", .type = "hash"};
    redisReply *reply = NULL;
    hf_status st = HF_OK;

    while (!st && !scan.over) {
        st = redis_scan(rc, mux, &scan, &reply, hfi_now() + limit_ms, err);
        if (st)
            break;
        st = companions_page(rc, walk, reply->element[1], err);
        freeReplyObject(reply);
    }
    return st;
}
