/* SPDX-License-Identifier: MIT
 *
 * json.c - whatever an agent of Consul answers, the backend neither crashes nor
 * leaks nor takes nonsense for a grant.
 *
 * Stands in for consul_http.c.  An answer in the input is a byte for its status
 * and a body up to a byte 0xff.  What a blocking query brings is judged by the
 * same functions; here it comes whenever something is asked.
 */
#include "backend/consul/consul.h"
#include "drive.h"

extern const struct hfi_backend hfi_backend_consul;

bool hfi_consul_global_init(void)
{
    return true;
}

CURL *hfi_consul_easy_new(struct consul_conn *cc, struct consul_reply *reply)
{
    (void)cc;
    (void)reply;
    return curl_easy_init();
}

bool hfi_consul_easy_aim(struct consul_conn *cc, CURL *easy, size_t agent,
                         const struct consul_request *rq, int64_t timeout_ms)
{
    (void)cc;
    (void)easy;
    (void)agent;
    (void)rq;
    (void)timeout_ms;
    return false; /* Nothing is sent. */
}

void hfi_consul_pool_fini(struct consul_pool *pool)
{
    (void)pool;
}

/* The next answer; HF_UNAVAILABLE if there is none. */
static hf_status next(struct consul_conn *cc, const struct consul_request *rq,
                      struct consul_reply *ret, struct hf_error *err)
{
    static const long statuses[] = {200, 404, 409, 500, 503, 403, 400, 429};
    char line[] = "X-Consul-Index: 77\r\n";
    struct fuzz_input part;
    uint8_t kind = fuzz_byte();
    hf_status st;

    *ret = (struct consul_reply){.status = statuses[kind % 8]};
    part = fuzz_until(0xff);
    if (!fuzz_input.left && !part.left)
        return hfi_fail(err, rq->write ? HF_UNCERTAIN : HF_UNAVAILABLE,
                        "no answer");
    hfi_consul_reply_header(line, 1, sizeof(line) - 1, ret);
    if (hfi_consul_reply_body((char *)(uintptr_t)part.at, 1, part.left, ret) !=
        part.left)
        st = hfi_nomem(err);
    else
        st = hfi_consul_status(cc, rq, ret, err);
    if (st)
        hfi_consul_reply_fini(ret);
    return st;
}

/* A blocking query is answered, for each watch. */
static void answer_watches(struct consul_conn *cc)
{
    struct consul_request rq = {.method = "GET"};
    struct consul_reply reply;
    struct consul_kv kv;
    struct hfi_node *node;

    node = hfi_map_next(&cc->poller.watches, NULL);
    if (!node || next(cc, &rq, &reply, NULL))
        return;
    if (hfi_consul_kv_read(&kv, &reply)) {
        pthread_mutex_lock(&cc->mu);
        hfi_consul_watch_answer(
            cc, hfi_container(node, struct consul_watch, node), &kv);
        pthread_mutex_unlock(&cc->mu);
    }
    hfi_consul_reply_fini(&reply);
}

hf_status hfi_consul_call(struct consul_conn *cc, struct consul_pool *pool,
                          const struct consul_request *rq, int64_t deadline,
                          struct consul_reply *ret, struct hf_error *err)
{
    (void)pool;
    (void)deadline;
    if (cc->poller.watches.len && fuzz_byte() % 4 == 3)
        answer_watches(cc);
    return next(cc, rq, ret, err);
}

void hfi_consul_calls(struct consul_conn *cc, struct consul_pool *pool,
                      struct consul_call *calls, size_t n, int64_t deadline,
                      struct hf_error *err)
{
    for (size_t i = 0; i < n; i++)
        calls[i].st = hfi_consul_call(cc, pool, &calls[i].rq, deadline,
                                      &calls[i].reply, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char *const urls[] = {
        "consul://a,b", "consul://a?queue=fair", "consul://a/p/?layout=cli",
        "consul://a?lock_delay=3s&checks=one,two", NULL};

    fuzz_drive(&hfi_backend_consul, urls, bytes, len);
    return 0;
}
