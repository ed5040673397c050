/* SPDX-License-Identifier: MIT
 *
 * waiters.c - the queue as it is: how many wait, and who.  The rules are in
 * queue.c.
 */
#include "consul.h"

#include "backend/waiters.h"

#include "base/banned.h"

/* Does somebody stand there? */
bool hfi_consul_is_queue_entry(const struct consul_kv *kv)
{
    return kv->session[0] && kv->token[0];
}

const char *hfi_consul_queue_token(const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "Key"));
    const char *slash = name ? strrchr(name, '/') : NULL;

    return slash && strlen(slash + 1) == HFI_TOKEN_LEN ? slash + 1 : NULL;
}

hf_status hfi_consul_queue_fetch(struct consul_conn *cc, const char *key,
                                 int64_t deadline, struct consul_reply *ret,
                                 struct hf_error *err)
{
    char name[CONSUL_NAME_MAX], path[3 * CONSUL_NAME_MAX];
    struct consul_request rq = {.method = "GET", .path = path};
    hf_status st;

    if (!hfi_consul_queue_entry(&cc->options, key, "", name))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        cc->base.endpoint);
    hfi_consul_path(path, sizeof(path), name, "?recurse");
    st = hfi_consul_call(cc, &cc->calls, &rq, deadline, ret, err);
    if (st || (ret->status == 404 && ret->index)) /* It is empty. */
        return st;
    if (hfi_consul_reply_parse(ret) && json_is_array(ret->json))
        return HF_OK;
    hfi_consul_reply_fini(ret);
    return hfi_fail(err, HF_PROTOCOL, "%s: an answer that is no list",
                    cc->base.endpoint);
}

/* Whoever waits according to an entry of the queue; false: nobody does. */
static bool waiters_read(const json_t *entry, struct consul_kv *ret)
{
    hfi_consul_kv_parse(ret, entry);
    return hfi_consul_queue_token(entry) && hfi_consul_is_queue_entry(ret);
}

hf_status hfi_consul_queue_count(struct consul_conn *cc, const char *key,
                                 int64_t deadline, int32_t *ret,
                                 struct hf_error *err)
{
    struct consul_reply reply;
    struct consul_kv kv;
    hf_status st = hfi_consul_queue_fetch(cc, key, deadline, &reply, err);
    size_t i;

    if (st)
        return st;
    *ret = 0;
    for (i = 0; i < json_array_size(reply.json); i++)
        *ret += waiters_read(json_array_get(reply.json, i), &kv);
    hfi_consul_reply_fini(&reply);
    return HF_OK;
}

hf_status hfi_consul_waiters(struct hfi_conn *conn, const char *key,
                             hf_waiters_fn *fn, void *arg, int64_t deadline,
                             struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct hfi_waiters found = {.n = 0};
    struct consul_reply reply;
    struct hf_waiter *waiter;
    struct consul_kv kv;
    hf_status st;
    size_t i;

    if (!cc->options.fair)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "%s: queue=barge keeps no queue of those who wait",
                        conn->endpoint);
    st = hfi_consul_queue_fetch(cc, key, deadline, &reply, err);
    if (st)
        return st;
    for (i = 0; i < json_array_size(reply.json); i++) {
        if (!waiters_read(json_array_get(reply.json, i), &kv))
            continue;
        waiter = hfi_waiters_add(&found, (int64_t)kv.create);
        if (!waiter)
            break;
        waiter->shared = kv.shared;
        waiter->permits = kv.permits;
        hfi_waiter_names(waiter, kv.owner, kv.token, kv.note);
    }
    hfi_consul_reply_fini(&reply);
    return hfi_waiters_tell(&found, HF_OK, fn, arg, err);
}
