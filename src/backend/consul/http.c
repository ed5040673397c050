/* SPDX-License-Identifier: MIT
 *
 * http.c - one request, on one agent after the other.
 *
 * OUTCOMES  An agent that cannot be reached, or that knows no leader, has done
 *   nothing: the next one is asked, as long as there is time, and
 *   HF_UNAVAILABLE is the answer when none is left.  A write that was sent and
 *   not answered, or that failed half-way between agent and leader, is
 *   HF_UNCERTAIN and is not repeated here; but the next call begins with the
 *   next agent, because this one may be cut off.  Nor does libcurl repeat it,
 *   as it would where a connection that was used before breaks.
 *   A request for a short lease that runs out of its own time is no evidence
 *   against an agent that has answered others just before.
 *
 * CONNECTIONS  A request has a handle of its own from a pool, with a connection
 *   that stays open.  Each handle sits in a multi handle of its own, which is
 *   what curl_easy_perform() does too, but here its descriptors are known
 *   (fds.c).
 */
#include "consul.h"

#include "base/alloc.h"
#include "base/lease.h"

#include "base/banned.h"

/* An agent is silent when nothing was heard of it for so long, or for a third
 * of the client's timeout. */
#define SILENT_MS 1000

/* Handles of one pool that are open at once; an agent accepts 200. */
#define POOL_MAX 32

struct http_slot {
    struct hfi_link link; /* in consul_pool.idle */
    CURL *easy;
    CURLM *multi;
    struct consul_reply reply;
    CURLcode rc; /* of the last request */
};

static pthread_once_t http_once = PTHREAD_ONCE_INIT;
static bool http_ready;

static void http_init(void)
{
    http_ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

bool hfi_consul_global_init(void)
{
    pthread_once(&http_once, http_init);
    return http_ready;
}

/* ---- handles ------------------------------------------------------------ */

CURL *hfi_consul_easy_new(struct consul_conn *cc, struct consul_reply *reply)
{
    CURL *easy = curl_easy_init();

    if (!easy)
        return NULL;
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, 10L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, 5L);
    hfi_consul_fd_watch(cc, easy);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, hfi_consul_reply_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, reply);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, hfi_consul_reply_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, reply);
    return easy;
}

/* libcurl is about to send; for a write that it has sent before, on a
 * connection that broke, the first one may have been done. */
static int easy_sends(void *arg, char *to_ip, char *from_ip, int to, int from)
{
    long sent = 0;

    (void)to_ip;
    (void)from_ip;
    (void)to;
    (void)from;
    if (curl_easy_getinfo((CURL *)arg, CURLINFO_REQUEST_SIZE, &sent) || sent)
        return CURL_PREREQFUNC_ABORT;
    return CURL_PREREQFUNC_OK;
}

/* Set a handle up for a request to one of the agents. */
bool hfi_consul_easy_aim(struct consul_conn *cc, CURL *easy, size_t agent,
                         const struct consul_request *rq, int64_t timeout_ms)
{
    struct consul_options *options = &cc->options;
    char url[3 * CONSUL_NAME_MAX + 512];
    int len =
        snprintf(url, sizeof(url), "%s%s", options->agents[agent], rq->path);

    if (len < 0 || (size_t)len >= sizeof(url) ||
        !hfi_consul_options_apply(options, easy, agent) ||
        curl_easy_setopt(easy, CURLOPT_URL, url) ||
        curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION,
                         rq->write ? easy_sends : NULL) ||
        curl_easy_setopt(easy, CURLOPT_PREREQDATA, easy) ||
        curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms))
        return false;
    if (!strcmp(rq->method, "GET"))
        return !curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L) &&
               !curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, NULL);
    return !curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE,
                             rq->body ? (long)strlen(rq->body) : 0L) &&
           !curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS,
                             rq->body ? rq->body : "") &&
           !curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, rq->method);
}

static void slot_free(struct http_slot *slot)
{
    if (slot->multi && slot->easy)
        curl_multi_remove_handle(slot->multi, slot->easy);
    curl_easy_cleanup(slot->easy);
    curl_multi_cleanup(slot->multi);
    hfi_consul_reply_fini(&slot->reply);
    hfi_free(slot);
}

static struct http_slot *slot_new(struct consul_conn *cc)
{
    struct http_slot *slot = hfi_alloc(sizeof(*slot));

    if (!slot)
        return NULL;
    hfi_link_init(&slot->link);
    slot->easy = hfi_consul_easy_new(cc, &slot->reply);
    if (slot->easy)
        slot->multi = hfi_consul_multi_new(cc);
    if (slot->multi)
        return slot;
    slot_free(slot);
    return NULL;
}

/* A handle that nobody else uses, or NULL when there is none in time. */
static struct http_slot *slot_get(struct consul_conn *cc,
                                  struct consul_pool *pool, int64_t deadline)
{
    struct http_slot *slot = NULL;

    pthread_mutex_lock(&cc->mu);
    while (hfi_link_alone(&pool->idle) && pool->open >= POOL_MAX &&
           hfi_left_ms(deadline))
        hfi_cond_wait(&cc->turn, &cc->mu, deadline);
    if (!hfi_link_alone(&pool->idle)) {
        slot = hfi_container(pool->idle.prev, struct http_slot, link);
        hfi_link_remove(&slot->link);
    } else if (pool->open < POOL_MAX) {
        pool->open++;
    } else {
        pthread_mutex_unlock(&cc->mu);
        return NULL;
    }
    pthread_mutex_unlock(&cc->mu);
    if (!slot && !(slot = slot_new(cc))) {
        pthread_mutex_lock(&cc->mu);
        pool->open--;
        pthread_mutex_unlock(&cc->mu);
    }
    return slot;
}

static void slot_put(struct consul_conn *cc, struct consul_pool *pool,
                     struct http_slot *slot)
{
    pthread_mutex_lock(&cc->mu);
    hfi_link_append(&pool->idle, &slot->link);
    if (pool->open >= POOL_MAX)
        hfi_cond_wake(&cc->turn);
    pthread_mutex_unlock(&cc->mu);
}

void hfi_consul_pool_fini(struct consul_pool *pool)
{
    struct http_slot *slot;

    while (pool->idle.next && !hfi_link_alone(&pool->idle)) {
        slot = hfi_container(pool->idle.next, struct http_slot, link);
        hfi_link_remove(&slot->link);
        slot_free(slot);
    }
}

/* ---- one request -------------------------------------------------------- */

/* Why curl got no answer. */
static hf_status http_failed(const struct consul_conn *cc, CURL *easy,
                             const struct consul_request *rq, CURLcode rc,
                             struct hf_error *err)
{
    long sent = 0;
    hf_status st = HF_UNAVAILABLE;

    curl_easy_getinfo(easy, CURLINFO_REQUEST_SIZE, &sent);
    if (rc == CURLE_OUT_OF_MEMORY)
        st = sent && rq->write ? HF_UNCERTAIN : HF_NOMEM;
    else if (rc == CURLE_PEER_FAILED_VERIFICATION ||
             rc == CURLE_SSL_CERTPROBLEM || rc == CURLE_SSL_CACERT_BADFILE)
        st = HF_DENIED;
    else if (sent > 0 && rq->write)
        st = HF_UNCERTAIN;
    return hfi_fail(err, st, "%s: %s", cc->base.endpoint,
                    rc == CURLE_ABORTED_BY_CALLBACK
                        ? "the connection broke before an answer came"
                        : curl_easy_strerror(rc));
}

/* Do the requests of all slots at once, in the multi handle of the first. */
static void slots_perform(struct http_slot *const *slots, size_t n)
{
    CURLM *multi = slots[0]->multi;
    CURLMcode mc = CURLM_OK;
    CURLMsg *msg;
    int running = 1, left;
    size_t i;

    for (i = 0; i < n; i++) {
        slots[i]->rc = CURLE_FAILED_INIT;
        if (!mc)
            mc = curl_multi_add_handle(multi, slots[i]->easy);
    }
    while (!mc && running) {
        mc = curl_multi_perform(multi, &running);
        if (!mc && running)
            mc = curl_multi_poll(multi, NULL, 0, 1000, NULL);
    }
    while ((msg = curl_multi_info_read(multi, &left)))
        for (i = 0; i < n; i++)
            if (msg->msg == CURLMSG_DONE && msg->easy_handle == slots[i]->easy)
                slots[i]->rc = msg->data.result;
    for (i = 0; i < n; i++)
        curl_multi_remove_handle(multi, slots[i]->easy);
}

/* Have a slot ask one agent, which has at most its share of the time to accept
 * us. */
static hf_status http_begin(struct consul_conn *cc, struct http_slot *slot,
                            size_t agent, size_t agents_left,
                            const struct consul_request *rq, int64_t deadline,
                            struct hf_error *err)
{
    int64_t left = hfi_left_ms(deadline);

    hfi_consul_reply_fini(&slot->reply);
    if (!left)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: the answers before this request took all of its "
                        "time: give it more with timeout=",
                        cc->base.endpoint);
    if (!hfi_consul_easy_aim(cc, slot->easy, agent, rq, left))
        return hfi_nomem(err);
    curl_easy_setopt(slot->easy, CURLOPT_CONNECTTIMEOUT_MS,
                     (long)(left / (int64_t)agents_left + 1));
    return HF_OK;
}

/* What the slot's request came to. */
static hf_status http_end(struct consul_conn *cc, struct http_slot *slot,
                          const struct consul_request *rq, struct hf_error *err)
{
    if (!slot->rc && !slot->reply.headed)
        slot->rc = CURLE_PARTIAL_FILE;
    if (slot->rc)
        return http_failed(cc, slot->easy, rq, slot->rc, err);
    curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &slot->reply.status);
    return hfi_consul_status(cc, rq, &slot->reply, err);
}

static hf_status http_ask(struct consul_conn *cc, struct http_slot *slot,
                          size_t agent, size_t agents_left,
                          const struct consul_request *rq, int64_t deadline,
                          struct hf_error *err)
{
    hf_status st = http_begin(cc, slot, agent, agents_left, rq, deadline, err);

    if (st)
        return st;
    slots_perform(&slot, 1);
    return http_end(cc, slot, rq, err);
}

/* Has the agent only been slower than this request could wait? */
static bool http_is_slow(struct consul_conn *cc, int64_t deadline)
{
    int64_t silent_ms =
        cc->timeout_ms / 3 < SILENT_MS ? cc->timeout_ms / 3 : SILENT_MS;

    return !hfi_left_ms(deadline) &&
           hfi_now() - atomic_load(&cc->heard) < silent_ms;
}

/* This agent is no good: begin with the next one. */
static void http_turn_away(struct consul_conn *cc, size_t agent)
{
    size_t next = (agent + 1) % cc->options.nagents;

    if (cc->options.nagents < 2)
        return;
    if (atomic_compare_exchange_strong(&cc->agent, &agent, next)) {
        atomic_store(&cc->heard, hfi_now());
        hfi_consul_poller_moved(cc);
    }
}

/* Did the agent answer?  If it has not, another one is asked from now on. */
static void http_judge(struct consul_conn *cc, size_t agent, hf_status st,
                       int64_t deadline)
{
    if (st != HF_UNAVAILABLE && st != HF_UNCERTAIN)
        atomic_store(&cc->heard, hfi_now());
    else if (!http_is_slow(cc, deadline))
        http_turn_away(cc, agent);
}

static void slot_take_reply(struct http_slot *slot, size_t agent,
                            struct consul_reply *ret)
{
    *ret = slot->reply;
    ret->agent = agent;
    slot->reply = (struct consul_reply){0};
}

/* On HF_OK the reply is the caller's to finish; its status is 200, 404 or
 * 409. */
hf_status hfi_consul_call(struct consul_conn *cc, struct consul_pool *pool,
                          const struct consul_request *rq, int64_t deadline,
                          struct consul_reply *ret, struct hf_error *err)
{
    struct http_slot *slot = slot_get(cc, pool, deadline);
    size_t agent, left = cc->options.nagents;
    int64_t sent = hfi_now();
    bool again = true;
    hf_status st;

    if (!slot)
        return hfi_fail(err, HF_UNAVAILABLE, "%s: no connection is free",
                        cc->base.endpoint);
    do {
        agent = rq->to && left == cc->options.nagents ? rq->agent
                                                      : atomic_load(&cc->agent);
        st = http_ask(cc, slot, agent, left, rq, deadline, err);
        if (st == HF_DENIED && again &&
            hfi_consul_options_reread(&cc->options, &cc->mu)) {
            again = false;
            st = http_ask(cc, slot, agent, left, rq, deadline, err);
        }
        http_judge(cc, agent, st, deadline);
    } while (st == HF_UNAVAILABLE && --left && hfi_left_ms(deadline));
    atomic_store(&cc->silent, st == HF_UNAVAILABLE || st == HF_UNCERTAIN);
    if (!st)
        slot_take_reply(slot, agent, ret);
    if (!st)
        ret->sent = sent;
    slot_put(cc, pool, slot);
    return st;
}

/* Begin as many of the calls as there are slots; how many.  If it is none, the
 * first one has failed. */
static size_t calls_begin(struct consul_conn *cc, struct consul_pool *pool,
                          struct consul_call *calls, size_t n,
                          struct http_slot **slots, int64_t deadline,
                          struct hf_error *err)
{
    size_t i, agent = atomic_load(&cc->agent);

    for (i = 0; i < n; i++) {
        slots[i] = slot_get(cc, pool, i ? hfi_now() : deadline);
        if (!slots[i]) {
            calls[i].st =
                hfi_fail(err, HF_UNAVAILABLE, "%s: no connection is free",
                         cc->base.endpoint);
            break;
        }
        calls[i].reply.agent = calls[i].rq.to ? calls[i].rq.agent : agent;
        calls[i].st = http_begin(cc, slots[i], calls[i].reply.agent, 1,
                                 &calls[i].rq, deadline, err);
        if (calls[i].st) {
            slot_put(cc, pool, slots[i]);
            break;
        }
    }
    return i;
}

/* Make up to CONSUL_CALLS_MAX calls side by side, each of one agent; those that
 * found none that answers may be made again. */
void hfi_consul_calls(struct consul_conn *cc, struct consul_pool *pool,
                      struct consul_call *calls, size_t n, int64_t deadline,
                      struct hf_error *err)
{
    struct http_slot *slots[CONSUL_CALLS_MAX];
    size_t i, begun;

    for (; n; calls += begun, n -= begun) {
        begun = calls_begin(cc, pool, calls, n, slots, deadline, err);
        if (!begun) {
            begun = 1;
            continue;
        }
        slots_perform(slots, begun);
        for (i = 0; i < begun; i++) {
            calls[i].st = http_end(cc, slots[i], &calls[i].rq, err);
            http_judge(cc, calls[i].reply.agent, calls[i].st, deadline);
            if (!calls[i].st)
                slot_take_reply(slots[i], calls[i].reply.agent,
                                &calls[i].reply);
            slot_put(cc, pool, slots[i]);
        }
    }
}
