/* SPDX-License-Identifier: MIT
 *
 * net.c - the backend: requests that are late, lost or doubled.
 *
 * A call sleeps until its answer is there or its deadline has come. Request
 * and answer travel on their own: a request whose caller has given up may
 * still arrive, long after, and is carried out then. That is what makes locks
 * hard, so most of the chances here go into it.
 *
 *   caller   |--request--> service |--answer-->| HF_OK, HF_BUSY, HF_LOST
 *            |--request--x         .           | deadline: HF_UNCERTAIN
 *            |--request--> service |--answer--x| deadline: HF_UNCERTAIN
 *            |-------------------- deadline ---| ...request--> service
 *            |x                                  HF_UNAVAILABLE
 *
 * Two rules of backend.h are checked here: that no mutex of the core is held
 * (5), and that a claim is used by one call at a time (7).
 *
 * One thing is spared: a renewal that shortens a lease never arrives twice.
 * Nothing a client can do would help against a shortening that is repeated
 * after a later lengthening.
 */
#include "sim.h"

#include <string.h>

#define CALLS_MAX 64

/* A message on its way, either way. */
struct net_message {
    struct sim_call *call;
    struct sim_answer *answers;
};

/* Something the service says by itself. */
struct net_news {
    int proc, key;
    bool has_token;
    bool changed; /* for observers */
    hf_loss gone;
    uint32_t nth;   /* with a fence: what was given, after this try */
    uint64_t fence; /* 0: nothing was */
    int slot;
    int64_t ms;
    char token[HFI_TOKEN_LEN + 1];
};

static const char *const key_names[SIM_KEYS] = {"alpha", "beta", "gamma"};

static struct hfi_conn *conns[SIM_PROCS];
static const struct hfi_claim *in_use[CALLS_MAX];

const char *sim_key_name(int key)
{
    return key_names[key];
}

int sim_key_of(const char *name)
{
    int i;

    for (i = 0; i < SIM_KEYS; i++)
        if (!strcmp(name, key_names[i]))
            return i;
    return 0;
}

/* ---- under way --------------------------------------------------------- */

static int64_t net_delay(int late)
{
    if (sim_chance(late))
        return sim_below(sim.life_us);
    if (sim_chance(sim.weather.slow))
        return sim_below(sim.ttl_ms * 500);
    return 20 + sim_below(sim.weather.delay_us);
}

static void net_answer(void *arg)
{
    struct net_message *message = arg;

    if (message->call->answers)
        return;
    message->call->answers = message->answers;
    sim_ring(message->call);
}

static const char *net_what(const struct sim_request *rq)
{
    static const char *const names[] = {
        [SIM_TRY] = "try",         [SIM_RENEW] = "renew",
        [SIM_RELEASE] = "release", [SIM_WATCH] = "watch",
        [SIM_KEEP] = "keep",       [SIM_UNWATCH] = "unwatch",
        [SIM_SHARE] = "share",     [SIM_CREATE] = "create",
        [SIM_READ] = "read",       [SIM_MOVE] = "move",
        [SIM_SWEEP] = "sweep",     [SIM_TAKE] = "take",
        [SIM_END] = "end",         [SIM_INSPECT] = "inspect",
        [SIM_OBSERVE] = "observe"};

    return names[rq->what];
}

/* The request is carried out, whether or not anybody still waits. */
static void net_arrive(void *arg)
{
    struct sim_call *call = arg;
    struct net_message *message;
    size_t i;

    if (call->proc->crashed && !(sim.family->traits & HF_TRAIT_LEASED))
        return; /* Its connection is gone, and so is what came over it. */
    message = sim_alloc(sizeof(*message));
    message->call = call;
    message->answers = sim_alloc(call->n * sizeof(*message->answers));
    for (i = 0; i < call->n; i++) {
        message->answers[i] = sim_service_do(&call->requests[i]);
        sim_trace(
            "service: p%d %s %s %.6s: %s fence %llu", call->proc->id,
            net_what(&call->requests[i]), sim_key_name(call->requests[i].key),
            call->requests[i].token, hf_status_name(message->answers[i].st),
            (unsigned long long)(message->answers[i].fence % 10000000000));
    }
    if (!sim_chance(sim.weather.lost))
        sim_at(sim.now + net_delay(sim.weather.late), net_answer, message);
}

/* In fine weather the requests of a process keep their order, as on one
 * connection; and always where a connection is all that the service knows. */
static int64_t net_in_order(struct sim_proc *proc, int64_t at)
{
    if (!sim.family->prompt && sim.family->traits & HF_TRAIT_LEASED)
        return at;
    if (at <= proc->arrival)
        at = proc->arrival + 1;
    return proc->arrival = at;
}

static void net_send(struct sim_call *call)
{
    int late = sim.weather.late * (call->shortens ? 6 : 1);
    int64_t at = sim.now + net_delay(late);

    if (!sim_chance(sim.weather.lost))
        sim_at(net_in_order(call->proc, at), net_arrive, call);
    if (!call->shortens && sim_chance(sim.weather.twice))
        sim_at(sim.now + net_delay(300), net_arrive, call);
}

/* ---- calling ----------------------------------------------------------- */

static struct sim_proc *net_proc(struct hfi_conn *conn)
{
    struct sim_proc *proc = ((struct sim_conn *)conn)->proc;

    if (pthread_mutex_trylock(&conn->client->mu))
        sim_fail("S0: the backend is called with the client's mutex held");
    else
        pthread_mutex_unlock(&conn->client->mu);
    return proc;
}

void sim_claim_begin(const struct hfi_claim *claim)
{
    int i, slot = -1;

    for (i = 0; i < CALLS_MAX; i++) {
        if (in_use[i] == claim)
            sim_fail("S0: two calls use the claim %.6s at once", claim->token);
        if (!in_use[i])
            slot = i;
    }
    if (slot >= 0)
        in_use[slot] = claim;
}

void sim_claim_end(const struct hfi_claim *claim)
{
    int i;

    for (i = 0; i < CALLS_MAX; i++)
        if (in_use[i] == claim)
            in_use[i] = NULL;
}

static int64_t net_deadline_us(const struct sim_proc *proc, int64_t deadline)
{
    return deadline == HFI_NEVER ? SIM_NEVER : (deadline - proc->offset) * 1000;
}

/* Send and wait.  HF_OK: call->answers are there. */
hf_status sim_call_send(struct sim_call *call, int64_t deadline)
{
    int64_t until = net_deadline_us(call->proc, deadline);

    if (sim_chance(150))
        sim_sleep(sim_below(1500)); /* Between deciding and sending. */
    if (call->proc->cut_until > sim.now) {
        if (sim_chance(300) && until > sim.now)
            sim_sleep(sim_below(until - sim.now));
        return HF_UNAVAILABLE;
    }
    if (sim_chance(sim.weather.denied))
        return HF_DENIED;
    net_send(call);
    while (!call->answers && sim.now < until && !sim.failed)
        sim_wait_on(call, until);
    if (!call->answers)
        return HF_UNCERTAIN;
    /* It came while we were not looking, after the time was over. */
    return sim.now >= until && sim_chance(500) ? HF_UNCERTAIN : HF_OK;
}

struct sim_call *sim_call_new(struct hfi_conn *conn, size_t n)
{
    struct sim_call *call = sim_alloc(sizeof(*call));

    call->proc = net_proc(conn);
    call->n = n;
    call->requests = sim_alloc(n * sizeof(*call->requests));
    return call;
}

void sim_call_fill(struct sim_call *call, size_t i, int what,
                   const struct hfi_claim *claim)
{
    struct sim_request *rq = &call->requests[i];

    rq->what = what;
    rq->proc = call->proc->id;
    if (!claim) /* about a session */
        return;
    rq->key = sim_key_of(claim->key);
    rq->shared = claim->shared;
    rq->permits = claim->permits;
    rq->queue = claim->queue;
    rq->ttl_ms = claim->ttl_ms;
    rq->nth = claim->nth;
    memcpy(rq->token, claim->token, sizeof(rq->token));
    if (claim->owner)
        memcpy(rq->owner, claim->owner, strlen(claim->owner) + 1);
}

/* A call about one claim. */
static hf_status net_one(struct hfi_conn *conn, int what,
                         const struct hfi_claim *claim, int64_t deadline,
                         struct sim_answer *ret, struct hf_error *err)
{
    struct sim_call *call = sim_call_new(conn, 1);
    hf_status st;

    sim_claim_begin(claim);
    sim_call_fill(call, 0, what, claim);
    st = sim_call_send(call, deadline);
    if (!st) {
        *ret = call->answers[0];
        st = ret->st;
    }
    sim_claim_end(claim);
    sim_trace("%s %s %.6s: %s", net_what(&call->requests[0]), claim->key,
              claim->token, hf_status_name(st));
    return st ? hfi_fail(err, st, "sim: %s", hf_status_name(st)) : HF_OK;
}

hf_status sim_net_open(struct hfi_conn *conn, const struct hfi_url *url,
                       int64_t deadline, struct hf_error *err)
{
    (void)url;
    (void)deadline;
    ((struct sim_conn *)conn)->proc = sim.proc;
    if (conn->client->stand_in && !sim.family->prompt &&
        sim.proc->refused < 3 && sim_chance(400) && ++sim.proc->refused)
        return hfi_fail(err, HF_UNAVAILABLE, "sim: not there yet");
    conns[sim.proc->id] = conn;
    memcpy(conn->endpoint, "sim:", 5);
    return HF_OK;
}

void sim_net_close(struct hfi_conn *conn)
{
    conns[net_proc(conn)->id] = NULL;
}

static hf_status net_try_acquire(struct hfi_conn *conn,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt,
                                 struct hfi_answer *busy, int64_t deadline,
                                 struct hf_error *err)
{
    struct sim_answer answer = {0};
    hf_status st = net_one(conn, SIM_TRY, claim, deadline, &answer, err);

    if (answer.registered)
        receipt->registered = true;
    if (st == HF_OK) {
        receipt->fence = answer.fence;
        receipt->slot = answer.slot;
    }
    busy->left_ms = answer.busy.left_ms;
    busy->position = answer.busy.position;
    return st;
}

static void net_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                      size_t n, int64_t deadline, struct hf_error *err)
{
    struct sim_call *call = sim_call_new(conn, n);
    hf_status st;
    size_t i;

    for (i = 0; i < n; i++) {
        sim_claim_begin(items[i].claim);
        sim_call_fill(call, i, SIM_RENEW, items[i].claim);
        call->requests[i].ttl_ms = items[i].ttl_ms;
        call->requests[i].fence = items[i].receipt->fence;
        call->requests[i].shorten = items[i].ttl_ms < items[i].claim->ttl_ms;
        if (call->requests[i].shorten)
            call->shortens = true;
    }
    st = sim_call_send(call, deadline);
    for (i = 0; i < n; i++) {
        items[i].st = st ? st : call->answers[i].st;
        items[i].reason = st ? HF_LOSS_NONE : call->answers[i].reason;
        sim_claim_end(items[i].claim);
        sim_trace("renew %s %.6s: %s", items[i].claim->key,
                  items[i].claim->token, hf_status_name(items[i].st));
    }
    if (st)
        hfi_fail(err, st, "sim: %s", hf_status_name(st));
}

static hf_status net_release(struct hfi_conn *conn,
                             const struct hfi_claim *claim,
                             struct hfi_receipt *receipt, int64_t deadline,
                             struct hf_error *err)
{
    struct sim_answer answer = {0};
    hf_status st = net_one(conn, SIM_RELEASE, claim, deadline, &answer, err);

    if (st == HF_OK || st == HF_LOST)
        receipt->registered = false;
    return st;
}

static hf_status net_keep(struct hfi_conn *conn, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, int64_t ms,
                          int64_t deadline, struct hf_error *err)
{
    struct sim_call *call = sim_call_new(conn, 1);
    hf_status st;

    sim_claim_begin(claim);
    sim_call_fill(call, 0, SIM_KEEP, claim);
    call->requests[0].fence = receipt->fence;
    call->requests[0].ttl_ms = ms;
    st = sim_call_send(call, deadline);
    if (!st)
        st = call->answers[0].st;
    sim_claim_end(claim);
    sim_trace("keep %s %.6s for %lld: %s", claim->key, claim->token,
              (long long)ms, hf_status_name(st));
    if (st == HF_OK || st == HF_LOST)
        receipt->registered = false;
    return st ? hfi_fail(err, st, "sim: %s", hf_status_name(st)) : HF_OK;
}

static hf_status net_downgrade(struct hfi_conn *conn,
                               const struct hfi_claim *claim,
                               struct hfi_receipt *receipt, int64_t deadline,
                               struct hf_error *err)
{
    struct sim_call *call = sim_call_new(conn, 1);
    hf_status st;

    sim_claim_begin(claim);
    sim_call_fill(call, 0, SIM_SHARE, claim);
    call->requests[0].fence = receipt->fence;
    st = sim_call_send(call, deadline);
    if (!st)
        st = call->answers[0].st;
    sim_claim_end(claim);
    sim_trace("share %s %.6s: %s", claim->key, claim->token,
              hf_status_name(st));
    return st ? hfi_fail(err, st, "sim: %s", hf_status_name(st)) : HF_OK;
}

hf_status sim_net_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt, int64_t deadline,
                        struct hf_error *err)
{
    struct sim_answer answer = {0};

    (void)receipt;
    return net_one(conn, SIM_WATCH, claim, deadline, &answer, err);
}

void sim_net_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                     struct hfi_receipt *receipt)
{
    struct sim_call *call = sim_call_new(conn, 1);

    (void)receipt;
    sim_claim_begin(claim);
    sim_call_fill(call, 0, SIM_UNWATCH, claim);
    sim_at(net_in_order(call->proc, sim.now + net_delay(0)), net_arrive, call);
    if (sim_chance(300))
        sim_sleep(sim_below(500));
    sim_claim_end(claim);
}

static hf_status net_attach(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            const struct hf_handle *handle,
                            struct hfi_receipt *receipt, struct hf_error *err)
{
    (void)net_proc(conn);
    (void)err;
    if (strcmp(claim->token, handle->token) != 0)
        sim_fail("S3: a handle was attached under another token");
    receipt->fence = handle->fence;
    return HF_OK;
}

/* ---- wake-ups ---------------------------------------------------------- */

static void news_arrive(void *arg)
{
    const struct net_news *news = arg;
    struct sim_proc *proc = &sim.procs[news->proc];
    struct hfi_conn *conn = conns[news->proc];

    if (proc->crashed || !conn)
        return;
    if (proc->paused) {
        sim_at(sim.now + 1000 + sim_below(5000), news_arrive, arg);
        return;
    }
    sim.proc = proc;
    if (news->key < 0 || news->changed)
        sim_observe_news(conn, news->key);
    if (news->key < 0)
        hfi_wake_all(conn);
    else if (news->changed)
        ;
    else if (news->gone)
        hfi_gone(conn, sim_key_name(news->key), news->token, news->gone);
    else if (news->fence)
        hfi_granted(conn, sim_key_name(news->key), news->token, news->nth,
                    news->fence, news->slot, news->ms);
    else if (news->has_token)
        hfi_wake(conn, sim_key_name(news->key),
                 sim_chance(100) ? NULL : news->token);
    else
        hfi_wanted(conn, sim_key_name(news->key));
    sim.proc = NULL;
}

static void news_send(const struct net_news *what, const char *token)
{
    struct net_news *news = sim_alloc(sizeof(*news));

    *news = *what;
    news->has_token = token != NULL;
    if (token)
        memcpy(news->token, token, sizeof(news->token));
    if (!sim_chance(sim.weather.wake_lost))
        sim_at(sim.now + net_delay(sim.weather.wake_late), news_arrive, news);
    if (sim_chance(sim.weather.wake_twice))
        sim_at(sim.now + net_delay(500), news_arrive, news);
}

void sim_net_tell(int proc, int key, const char *token, hf_loss gone)
{
    news_send(&(struct net_news){.proc = proc, .key = key, .gone = gone},
              token);
}

void sim_net_give(int proc, int key, const char *token, uint32_t nth,
                  uint64_t fence, int slot, int64_t ms)
{
    struct net_news news = {.proc = proc, .key = key};

    news.nth = nth;
    news.fence = fence;
    news.slot = slot;
    news.ms = ms;
    news_send(&news, token);
}

void sim_net_changed(int proc, int key)
{
    news_send(&(struct net_news){.proc = proc, .key = key, .changed = true},
              NULL);
}

static const char *const net_schemes[] = {"sim", NULL};

struct hfi_backend sim_backend = {
    .schemes = net_schemes,
    .conn_size = sizeof(struct sim_conn),
    .open = sim_net_open,
    .close = sim_net_close,
    .try_acquire = net_try_acquire,
    .renew = net_renew,
    .release = net_release,
    .keep = net_keep,
    .downgrade = net_downgrade,
    .unwatch = sim_net_unwatch,
    .attach = net_attach,
};

/* Where the service notifies, observers are told; else they poll. */
static void net_observed(struct hfi_backend *be)
{
    bool told = sim.family->traits & HF_TRAIT_NOTIFY;

    be->observation_size = sim_observation_size;
    be->inspect = sim_net_inspect;
    be->list = sim_net_list;
    be->observe = told ? sim_net_observe : NULL;
    be->unobserve = told ? sim_net_unobserve : NULL;
}

void sim_net_begin(void)
{
    memset(conns, 0, sizeof(conns));
    memset(in_use, 0, sizeof(in_use));
    sim_backend.traits = sim.family->traits;
    sim_backend.watch =
        sim.family->traits & HF_TRAIT_NOTIFY ? sim_net_watch : NULL;
    sim_session_backend.traits = sim_backend.traits;
    sim_session_backend.watch = sim_backend.watch;
    net_observed(&sim_backend);
    net_observed(&sim_session_backend);
    sim_observe_begin();
}
