/* SPDX-License-Identifier: MIT
 *
 * node_call.c - one question to all nodes at once.
 *
 * The caller's own thread sends to every node and then sleeps on all their
 * descriptors, so a question costs the time of the slowest node that is waited
 * for, and no other threads.  A node that does not answer in time is left
 * behind with hfi_mux_abandon(): its connection goes on, so that whatever is
 * said to it next is served after what it owes (redlock.c (3)).
 *
 * One slow node is not waited for longer than its limit: a small part of the
 * lease, and twice as long as it takes a majority to answer.  What lies in the
 * socket when the limit is over has come in time, since it may be this process
 * that was slow: it is taken in before anything is decided.  When so many are
 * slow that the others decide nothing, it is not they who are ill but the
 * network or this machine, and there is nothing to gain from giving up so
 * early: then all are waited for up to a quarter of the lease, and three
 * seconds at most, unless the limit was set in the URL.
 *
 * A node that has lost the script is given it again, along with the question.
 */
#include "redlock.h"

#include <inttypes.h>
#include <poll.h>

#include "base/alloc.h"

#include "base/banned.h"

#define LIMIT_MIN 5
#define LIMIT_MAX 50
#define LATE_MAX  3000

/* Another thread may have taken in our answer, and then poll() sees nothing. */
#define SLICE_MS   2
#define SLICE_TOOK 4
#define SLICE_PART 4

int64_t redlock_limit(const struct redlock_conn *rl, int64_t ttl_ms)
{
    int64_t far, ms = rl->node_ms ? rl->node_ms : ttl_ms / 50;

    if (rl->node_ms)
        return ms;
    ms = ms < LIMIT_MIN ? LIMIT_MIN : ms > LIMIT_MAX ? LIMIT_MAX : ms;
    far = 2 * atomic_load(&rl->took) / REDLOCK_TOOK_UNIT;
    far = far < ttl_ms / 4 ? far : ttl_ms / 4;
    return ms + far;
}

/* A node has answered: how long that takes, on the average; and within what
 * time a majority has. */
static void limit_learn(struct redlock_node *node, int64_t ms)
{
    struct redlock_conn *rl = node->rl;
    int64_t old = atomic_load(&node->took), all[REDLOCK_MAX];
    int64_t took = old + (ms * REDLOCK_TOOK_UNIT - old) / 4;
    int i, j;

    if (took == old)
        return;
    atomic_store(&node->took, took);
    for (i = 0; i < rl->n; i++) {
        took = atomic_load(&rl->nodes[i].took);
        for (j = i; j > 0 && all[j - 1] > took; j--)
            all[j] = all[j - 1];
        all[j] = took;
    }
    atomic_store(&rl->took, all[rl->majority - 1]);
}

struct redlock_span redlock_span(const struct redlock_conn *rl, int64_t ttl_ms,
                                 int64_t deadline)
{
    int64_t now = hfi_now(), limit = redlock_limit(rl, ttl_ms);
    int64_t late = ttl_ms / 4 < LATE_MAX ? ttl_ms / 4 : LATE_MAX;
    struct redlock_span span = {now + limit, now + late};

    if (rl->node_ms || late < limit)
        span.late = span.end;
    span.end = span.end < deadline ? span.end : deadline;
    span.late = span.late < deadline ? span.late : deadline;
    return span;
}

void redlock_name(const struct redlock_conn *rl, const char *key,
                  struct redis_names *ret)
{
    redis_name(&rl->nodes[0].rc, key, ret);
}

void redlock_step(struct redlock_conn *rl, struct redis_batch *batch, char op,
                  const char *key, int argc, const char **argv)
{
    char op_text[2] = {op, '\0'};
    struct redis_names names;
    const char *all[16];
    int i, n = 0;

    redlock_name(rl, key, &names);
    all[n++] = "EVALSHA";
    all[n++] = rl->script_id;
    all[n++] = "2";
    all[n++] = names.text[REDIS_MAIN];
    all[n++] = names.text[REDIS_META];
    all[n++] = op_text;
    for (i = 0; i < argc; i++)
        all[n++] = argv[i];
    redis_batch_add(batch, n, all);
}

void redlock_channel(const struct redlock_conn *rl, const char *key, char *buf,
                     size_t size)
{
    snprintf(buf, size, "wake:%s%s", rl->nodes[0].rc.prefix, key);
}

const char *redlock_channel_key(const struct redlock_conn *rl,
                                const char *channel)
{
    size_t skip = 5 + strlen(rl->nodes[0].rc.prefix);

    return strlen(channel) > skip ? channel + skip : NULL;
}

/* ---- asking ------------------------------------------------------------ */

void redlock_round_init(struct redlock_round *round, struct redlock_conn *rl)
{
    memset(round, 0, sizeof(*round));
    round->rl = rl;
}

static void node_call_drop_replies(struct redlock_node_call *node_call)
{
    int i, n = node_call->batch->count + node_call->loaded;

    for (i = 0; i < n; i++)
        freeReplyObject(node_call->replies[i]);
}

void redlock_round_fini(struct redlock_round *round)
{
    int i;

    for (i = 0; i < round->rl->n; i++) {
        struct redlock_node_call *node_call = &round->calls[i];

        if (node_call->waiting)
            hfi_mux_abandon(&node_call->call);
        else if (node_call->landed)
            node_call_drop_replies(node_call);
        hfi_free(node_call->replies);
    }
}

unsigned redlock_silent(const struct redlock_round *round)
{
    unsigned silent = 0;
    int i;

    for (i = 0; i < round->rl->n; i++)
        if (round->calls[i].asked && !round->calls[i].landed)
            silent |= 1U << i;
    return silent;
}

/* Send the script first, on a node that has lost it. */
static hf_status ask_loaded(const struct redlock_round *round,
                            struct hfi_mux *mux,
                            struct redlock_node_call *node_call,
                            int64_t deadline)
{
    const char *load[] = {"SCRIPT", "LOAD", round->rl->script};
    const struct redis_batch *batch = node_call->batch;
    struct redis_batch whole = {0};
    char *grown;
    hf_status st;

    redis_batch_add(&whole, 3, load);
    grown =
        whole.failed ? NULL : hfi_realloc(whole.bytes, whole.len + batch->len);
    if (!grown) {
        redis_batch_free(&whole);
        return hfi_nomem(&node_call->err);
    }
    memcpy(grown + whole.len, batch->bytes, batch->len);
    whole.bytes = grown;
    st = hfi_mux_begin(mux, &node_call->call, whole.bytes,
                       whole.len + batch->len, 1 + batch->count,
                       node_call->replies, deadline, &node_call->err);
    redis_batch_free(&whole);
    return st;
}

void redlock_ask(struct redlock_round *round, int node,
                 const struct redis_batch *batch, int64_t deadline)
{
    struct redlock_node_call *node_call = &round->calls[node];
    struct redlock_node *to = &round->rl->nodes[node];

    hfi_free(node_call->replies); /* of an attempt that was not sent */
    node_call->batch = batch;
    node_call->replies =
        batch->failed
            ? NULL
            : hfi_alloc((size_t)(batch->count + 1) * sizeof(redisReply *));
    if (!node_call->replies)
        node_call->st = hfi_nomem(&node_call->err);
    else if (!hfi_mux_is_up(&to->rc.mux))
        node_call->st =
            hfi_fail(&node_call->err, HF_UNAVAILABLE, "not connected");
    else
        node_call->st = hfi_mux_begin(
            &to->rc.mux, &node_call->call, batch->bytes, batch->len,
            batch->count, node_call->replies, deadline, &node_call->err);
    node_call->asked = node_call->waiting = !node_call->st;
    round->waiting += node_call->waiting;
    if (node_call->st == HF_UNAVAILABLE)
        redlock_node_tend(to);
}

void redlock_ask_again(struct redlock_round *round, int node,
                       const struct redis_batch *batch, int64_t deadline)
{
    struct redlock_node_call *node_call = &round->calls[node];

    node_call_drop_replies(node_call);
    node_call->landed = node_call->loaded = false;
    redlock_ask(round, node, batch, deadline);
}

/* ---- hearing ----------------------------------------------------------- */

/* The answer is there.  False if the question has been sent again. */
static bool node_call_end(struct redlock_round *round, int node,
                          int64_t deadline)
{
    struct redlock_node_call *node_call = &round->calls[node];
    struct redlock_node *from = &round->rl->nodes[node];
    int i;

    node_call->st = hfi_mux_finish(&node_call->call, deadline, &node_call->err);
    for (i = 0;
         !node_call->st && !node_call->loaded && i < node_call->batch->count;
         i++)
        if (redis_is_noscript(node_call->replies[i])) {
            node_call_drop_replies(node_call);
            node_call->loaded = true;
            node_call->st =
                ask_loaded(round, &from->rc.mux, node_call, deadline);
            if (!node_call->st)
                return false;
        }
    node_call->waiting = false;
    round->waiting--;
    node_call->landed = !node_call->st;
    if (node_call->landed) {
        atomic_store(&from->heard, hfi_now());
        limit_learn(from, hfi_now() - node_call->call.begun_at);
    } else {
        redlock_node_tend(from);
    }
    return true;
}

/* Sleep until one of the nodes has said something. */
static void hear_poll(struct redlock_round *round, int64_t left)
{
    struct pollfd fds[REDLOCK_MAX];
    int i;

    for (i = 0; i < round->rl->n; i++) {
        struct redlock_node_call *node_call = &round->calls[i];

        fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
        if (node_call->waiting)
            fds[i].fd = hfi_mux_call_fd(&node_call->call);
    }
    poll(fds, (nfds_t)round->rl->n, (int)(left < SLICE_MS ? left : SLICE_MS));
    for (i = 0; i < round->rl->n; i++)
        if (fds[i].fd >= 0 && fds[i].revents)
            round->readable |= 1U << i;
}

/* The node that is likely to be the next: it was heard last, and not waited for
 * in vain.  -1 if there is none. */
static int hear_whom(struct redlock_round *round)
{
    const struct redlock_node *nodes = round->rl->nodes;
    int i, best = -1;

    for (i = 0; i < round->rl->n; i++)
        if (round->calls[i].waiting && !(round->silent & 1U << i) &&
            (best < 0 ||
             atomic_load(&nodes[i].heard) > atomic_load(&nodes[best].heard)))
            best = i;
    return best;
}

/* How long to wait for one node before another: some times as long as a majority
 * takes to answer now, and a part of what is left.  If it were a fixed time, the
 * threads of a busy client, whose answers take longer, would wake in vain, and
 * make it busier. */
static int64_t hear_slice(const struct redlock_conn *rl, int64_t left)
{
    int64_t ms = SLICE_TOOK * atomic_load(&rl->took) / REDLOCK_TOOK_UNIT;

    if (ms > left / SLICE_PART)
        ms = left / SLICE_PART;
    if (ms < SLICE_MS)
        ms = SLICE_MS;
    return ms < left ? ms : left;
}

/* Sleep until something can be taken in.  With other threads there, one of them
 * will take in ours: poll(2) would not tell, but they do. */
static void hear_wait(struct redlock_round *round, int64_t left)
{
    int64_t end = hfi_now() + hear_slice(round->rl, left);
    int i = hear_whom(round);

    if (i < 0) { /* All in vain: begin again. */
        round->silent = 0;
        i = hear_whom(round);
    }
    if (!hfi_mux_is_shared(&round->calls[i].call))
        hear_poll(round, left);
    else if (!hfi_mux_await(&round->calls[i].call, end))
        round->silent |= 1U << i;
}

int redlock_hear(struct redlock_round *round, int64_t deadline)
{
    bool last = false;
    int64_t left;
    int i;

    while (round->waiting) {
        for (i = 0; i < round->rl->n; i++) {
            struct redlock_node_call *node_call = &round->calls[i];
            bool readable = round->readable & 1U << i;

            if (!node_call->waiting)
                continue;
            round->readable &= ~(1U << i);
            if (hfi_mux_advance(&node_call->call, readable) &&
                node_call_end(round, i, deadline))
                return i;
        }
        left = hfi_left_ms(deadline);
        if (last)
            return -1;
        last = !left;
        if (last) /* A thread that had no processor finds late answers. */
            hear_poll(round, 0);
        else
            hear_wait(round, left);
    }
    return -1;
}

/* ---- answers ----------------------------------------------------------- */

const redisReply *redlock_reply(const struct redlock_node_call *node_call,
                                int i)
{
    return node_call->landed ? node_call->replies[i + node_call->loaded] : NULL;
}

int64_t redlock_item(const redisReply *reply, size_t i)
{
    if (reply->type != REDIS_REPLY_ARRAY || i >= reply->elements)
        return -1;
    reply = reply->element[i];
    if (reply->type == REDIS_REPLY_INTEGER)
        return reply->integer;
    return reply->type == REDIS_REPLY_STRING ? strtoll(reply->str, NULL, 10)
                                             : -1;
}

const char *redlock_names(const struct redlock_conn *rl, unsigned nodes,
                          char *buf, size_t size)
{
    size_t len = 0;
    int i;

    buf[0] = '\0';
    for (i = 0; i < rl->n && len < size; i++)
        if (nodes & 1U << i)
            len +=
                (size_t)snprintf(buf + len, size - len, "%s%s", len ? ", " : "",
                                 rl->nodes[i].rc.base.endpoint);
    return buf;
}

/* Why a node is no help; NULL if it is. */
static const char *few_why(struct redlock_round *round, int i, int64_t ttl_ms,
                           char *buf, size_t size)
{
    struct redlock_node_call *node_call = &round->calls[i];
    struct redlock_node *node = &round->rl->nodes[i];
    int64_t left = ttl_ms ? redlock_quarantine_left(node) : 0;

    if (node_call->waiting)
        return "no answer in time";
    if (node_call->st && (node_call->landed || node_call->st != HF_UNAVAILABLE))
        return node_call->err.text;
    if (node_call->asked && !node_call->st)
        return NULL;
    pthread_mutex_lock(&node->rl->mu);
    if (!hfi_mux_is_up(&node->rc.mux))
        snprintf(buf, size, "%s",
                 node->why.text[0] ? node->why.text : "not connected");
    else if (left)
        snprintf(buf, size,
                 "restarted, or first seen %" PRId64
                 " ms ago: votes in %" PRId64 " ms",
                 hfi_now() - node->born, left);
    else
        snprintf(buf, size, "it still owes an answer");
    pthread_mutex_unlock(&node->rl->mu);
    return buf;
}

/* A refusal of so many nodes that no majority is left is final. */
static hf_status few_status(struct redlock_round *round)
{
    struct redlock_conn *rl = round->rl;
    hf_status st = HF_UNAVAILABLE;
    int i, final = 0;

    for (i = 0; i < rl->n; i++) {
        hf_status one = round->calls[i].st;

        if (!one || one == HF_UNAVAILABLE || one == HF_UNCERTAIN)
            continue;
        st = one;
        final++;
    }
    return rl->n - final < rl->majority ? st : HF_UNAVAILABLE;
}

hf_status redlock_too_few(struct redlock_round *round, int answered,
                          int64_t ttl_ms, struct hf_error *err)
{
    struct redlock_conn *rl = round->rl;
    char text[sizeof(err->text)], buf[sizeof(err->text)];
    const char *why, *name;
    size_t len = 0;
    int i;

    text[0] = '\0';
    for (i = 0; i < rl->n && len < sizeof(text); i++) {
        name = rl->nodes[i].rc.base.endpoint;
        why = few_why(round, i, ttl_ms, buf, sizeof(buf));
        if (why && !strncmp(why, name, strlen(name)))
            name = ""; /* It says so itself. */
        if (why)
            len +=
                (size_t)snprintf(text + len, sizeof(text) - len, "%s%s%s%.80s",
                                 len ? "; " : "", name, *name ? ": " : "", why);
    }
    return hfi_fail(err, few_status(round),
                    "only %d of %d nodes can be counted on, %d are needed: %s",
                    answered, rl->n, rl->majority, text);
}
