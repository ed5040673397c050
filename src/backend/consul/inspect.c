/* SPDX-License-Identifier: MIT
 *
 * inspect.c - inspect and list.
 *
 * How long a dead holder's lock stays closed is not known to the entry but to
 * its session, whoever made that: up to twice its ttl, and the lock-delay.
 */
#include "consul.h"

#include "base/banned.h"

/* One holder of a key, or the key itself. */
static void inspect_fill(const struct consul_kv *kv, struct hf_info *ret)
{
    ret->held = kv->session[0];
    ret->holders = ret->held;
    ret->slot = -1;
    ret->fence = hfi_consul_fence(kv);
    ret->left_ms = -1;
    ret->since_ms = -1;
    if (!ret->held)
        return;
    ret->broken = kv->broken && kv->broken == ret->fence;
    snprintf(ret->owner, sizeof(ret->owner), "%s",
             kv->owner[0]   ? kv->owner
             : kv->token[0] ? kv->token
                            : kv->session);
    snprintf(ret->note, sizeof(ret->note), "%s", kv->note);
}

/* The n-th of those who hold a key that says `kv` of itself. */
static void inspect_holder(const struct consul_many *many, size_t n,
                           const struct consul_kv *kv, struct hf_info *ret)
{
    struct consul_kv one;

    hfi_consul_kv_parse(&one, many->holders[n].entry);
    inspect_fill(&one, ret);
    ret->holders = (int32_t)many->live + (kv->session[0] != '\0');
    ret->shared = kv->shared;
    ret->permits = kv->permits;
    if (kv->permits)
        ret->slot = many->holders[n].slot;
}

/* All of them: the first holder is described, the newest grant has the fence. */
static void inspect_many(const struct consul_many *many,
                         const struct consul_kv *kv, struct hf_info *ret)
{
    uint64_t newest = 0;
    bool broken = false;
    size_t i;

    inspect_fill(kv, ret);
    for (i = many->n; i-- > 0;) {
        if (!many->holders[i].session[0])
            continue;
        inspect_holder(many, i, kv, ret);
        if (ret->fence > newest) {
            newest = ret->fence;
            broken = ret->broken;
        }
    }
    if (kv->session[0]) { /* They have joined it: reenter.c. */
        inspect_fill(kv, ret);
        ret->holders = (int32_t)many->live + 1;
        return;
    }
    if (!ret->held)
        return;
    ret->fence = newest;
    ret->broken = broken; /* so is that */
}

/* Milliseconds of a duration as the service writes it, "1m30s" or "12345ms"; 0
 * if it is none. */
int64_t hfi_consul_duration(const char *text)
{
    static const struct {
        const char *name;
        double ms;
    } units[] = {{"h", 3600000}, {"ms", 1},    {"m", 60000},
                 {"s", 1000},    {"us", 1e-3}, {"ns", 1e-6}};
    double sum = 0, number;
    size_t i;
    char *end;

    while (*text) {
        if (*text < '0' || *text > '9')
            return 0;
        number = strtod(text, &end);
        for (i = 0; i < sizeof(units) / sizeof(units[0]); i++)
            if (!strncmp(end, units[i].name, strlen(units[i].name)))
                break;
        if (i == sizeof(units) / sizeof(units[0]))
            return 0;
        sum += number * units[i].ms;
        text = end + strlen(units[i].name);
    }
    return sum > 0 && sum < 1e15 ? (int64_t)sum : 0;
}

/* If the session ends because its holder died: when, at the latest?  0 where
 * it may not be looked at, or never ends by itself. */
static int64_t inspect_takeover(struct consul_conn *cc, const char *session,
                                int64_t deadline)
{
    struct consul_about about;

    if (hfi_consul_session_inspect(cc, session, deadline, &about) ||
        !about.ttl_ms)
        return 0;
    return 2 * about.ttl_ms + (about.delay_ms > 0 ? about.delay_ms : 0);
}

/* Look at one that several hold; `session` becomes that of the first. */
static hf_status inspect_all(struct consul_conn *cc, const char *key,
                             const struct consul_kv *kv, struct hf_info *ret,
                             int64_t deadline, char *session,
                             struct hf_error *err)
{
    struct consul_many many;
    hf_status st =
        hfi_consul_many_read(cc, key, "", 0, NULL, deadline, &many, err);
    size_t i;

    if (st)
        return st;
    inspect_many(&many, kv, ret);
    for (i = kv->session[0] ? 0 : many.n; i-- > 0;)
        if (many.holders[i].session[0])
            memcpy(session, many.holders[i].session, CONSUL_ID_LEN + 1);
    hfi_consul_many_fini(&many);
    return HF_OK;
}

hf_status hfi_consul_inspect(struct hfi_conn *conn, const char *key,
                             struct hf_info *ret, int64_t deadline,
                             struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    char name[CONSUL_NAME_MAX];
    struct consul_kv kv;
    hf_status st;

    if (!hfi_consul_name(&cc->options, key, name))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        conn->endpoint);
    st = hfi_consul_read(cc, &cc->calls, name, false, deadline, &kv, err);
    if (st)
        return st;
    if (hfi_consul_is_many(cc, &kv))
        st = inspect_all(cc, key, &kv, ret, deadline, kv.session, err);
    else
        inspect_fill(&kv, ret);
    if (st)
        return st;
    if (ret->held)
        ret->takeover_ms = inspect_takeover(cc, kv.session, deadline);
    ret->waiters = -1;
    if (cc->options.fair)
        st = hfi_consul_queue_count(cc, key, deadline, &ret->waiters, err);
    return st;
}

hf_status hfi_consul_holders(struct hfi_conn *conn, const char *key,
                             hf_holders_fn *fn, void *arg, int64_t deadline,
                             struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct hf_info info = {.size = sizeof(info), .waiters = -1};
    char name[CONSUL_NAME_MAX];
    struct consul_many many;
    struct consul_kv kv;
    bool more = true;
    hf_status st;
    size_t i;

    if (!hfi_consul_name(&cc->options, key, name))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        conn->endpoint);
    st = hfi_consul_read(cc, &cc->calls, name, false, deadline, &kv, err);
    if (st)
        return st;
    if (!hfi_consul_is_many(cc, &kv)) {
        inspect_fill(&kv, &info);
        if (info.held)
            fn(arg, &info);
        return HF_OK;
    }
    st = hfi_consul_many_read(cc, key, name, 0, NULL, deadline, &many, err);
    if (st)
        return st;
    if (kv.session[0]) {
        inspect_many(&many, &kv, &info);
        more = fn(arg, &info);
    }
    for (i = 0; more && i < many.n; i++) {
        if (!many.holders[i].session[0])
            continue;
        info = (struct hf_info){.size = sizeof(info), .waiters = -1};
        inspect_holder(&many, i, &kv, &info);
        more = fn(arg, &info);
    }
    hfi_consul_many_fini(&many);
    return HF_OK;
}

/* What a listing finds of a key that several hold; false: no memory. */
static bool list_many(struct consul_conn *cc, const json_t *list,
                      const char *key, const struct consul_kv *kv,
                      struct hf_info *ret)
{
    struct consul_many many = {.n = 0};
    char folder[CONSUL_NAME_MAX], base[CONSUL_NAME_MAX];
    bool ok = hfi_consul_holder_name(&cc->options, key, "", folder) &&
              hfi_consul_below(&cc->options, key, "", base) &&
              hfi_consul_many_collect(&many, list, folder);

    if (ok && kv->semaphore)
        hfi_consul_semaphore_collect(&many, list, base);
    if (ok)
        inspect_many(&many, kv, ret);
    hfi_consul_many_fini(&many);
    return ok;
}

/* The free key with the newest fence. */
struct list_newest {
    char key[HF_KEY_MAX + 1];
    struct hf_info info;
};

/* The entry of a free key stays until it is collected, and is read anyway: those
 * from the fence on are shown, and the *newest is kept, unless `fn` wants no
 * more. */
static hf_status list_from(struct hfi_conn *conn, const char *prefix,
                           uint64_t fence, struct list_newest *newest,
                           hf_list_fn *fn, void *arg, int64_t deadline,
                           struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    char name[CONSUL_NAME_MAX], path[3 * CONSUL_NAME_MAX];
    struct consul_request rq = {.method = "GET", .path = path};
    char key[HF_KEY_MAX + 1];
    struct consul_reply reply;
    struct consul_kv kv;
    const char *text;
    size_t i;
    hf_status st;

    hfi_consul_list_prefix(&cc->options, prefix, name);
    hfi_consul_path(path, sizeof(path), name, "?recurse");
    st = hfi_consul_call(cc, &cc->calls, &rq, deadline, &reply, err);
    if (st)
        return st;
    if (reply.status == 404 ? !reply.index : !hfi_consul_reply_parse(&reply))
        st = hfi_fail(err, HF_PROTOCOL, "%s: an answer that is no list",
                      conn->endpoint);
    for (i = 0; !st && i < json_array_size(reply.json); i++) {
        struct hf_info info = {.size = sizeof(info), .waiters = -1};
        const json_t *entry = json_array_get(reply.json, i);

        text = json_string_value(json_object_get(entry, "Key"));
        hfi_consul_kv_parse(&kv, entry);
        if (!text ||
            (!kv.session[0] && !hfi_consul_is_many(cc, &kv) &&
             hfi_consul_fence(&kv) < fence &&
             hfi_consul_fence(&kv) <= newest->info.fence) ||
            !hfi_consul_key_of(&cc->options, text, key) ||
            strncmp(key, prefix, strlen(prefix)) != 0)
            continue;
        if (!hfi_consul_is_many(cc, &kv))
            inspect_fill(&kv, &info);
        else if (!list_many(cc, reply.json, key, &kv, &info))
            st = hfi_nomem(err);
        if (!st && !info.held && info.fence > newest->info.fence) {
            memcpy(newest->key, key, sizeof(key));
            newest->info = info;
        }
        if (!st && (info.held || info.fence >= fence) && !fn(arg, key, &info)) {
            newest->key[0] = '\0';
            break;
        }
    }
    hfi_consul_reply_fini(&reply);
    return st;
}

hf_status hfi_consul_list_since(struct hfi_conn *conn, const char *prefix,
                                uint64_t fence, hf_list_fn *fn, void *arg,
                                int64_t deadline, struct hf_error *err)
{
    struct list_newest newest = {.info.fence = fence < UINT64_MAX ? fence : 0};
    hf_status st =
        list_from(conn, prefix, fence, &newest, fn, arg, deadline, err);

    if (!st && newest.key[0] && newest.info.fence < fence)
        fn(arg, newest.key, &newest.info);
    return st;
}

hf_status hfi_consul_list(struct hfi_conn *conn, const char *prefix,
                          hf_list_fn *fn, void *arg, int64_t deadline,
                          struct hf_error *err)
{
    struct list_newest newest = {.info.fence = UINT64_MAX};

    return list_from(conn, prefix, UINT64_MAX, &newest, fn, arg, deadline, err);
}
