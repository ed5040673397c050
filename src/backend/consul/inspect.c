/* SPDX-License-Identifier: MIT
 *
 * inspect.c - inspect and list.
 *
 * How long a dead holder's lock stays closed is not known to the entry but to
 * its session, whoever made that: up to twice its ttl, and the lock-delay.
 */
#include "consul.h"

#include "base/banned.h"

static void inspect_fill(const struct consul_kv *kv, struct hf_info *ret)
{
    ret->held = kv->session[0];
    ret->holders = ret->held;
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
    inspect_fill(&kv, ret);
    if (ret->held)
        ret->takeover_ms = inspect_takeover(cc, kv.session, deadline);
    ret->waiters = -1;
    if (cc->options.fair)
        st = hfi_consul_queue_count(cc, key, deadline, &ret->waiters, err);
    return st;
}

hf_status hfi_consul_list(struct hfi_conn *conn, const char *prefix,
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
        if (!text || !kv.session[0] ||
            !hfi_consul_key_of(&cc->options, text, key) ||
            strncmp(key, prefix, strlen(prefix)) != 0)
            continue;
        inspect_fill(&kv, &info);
        if (!fn(arg, key, &info))
            break;
    }
    hfi_consul_reply_fini(&reply);
    return st;
}
