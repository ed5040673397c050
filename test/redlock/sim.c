/* SPDX-License-Identifier: MIT
 *
 * sim.c - a simulation of Redlock and its fence; see sim.h.
 *
 * Each step is one of: a message arrives, a client begins or gives up or loses
 * patience, a connection breaks, a node stops, starts, forgets or has its clock
 * set, a key expires.  Messages between one client and one node keep their order
 * as long as their connection lives.
 *
 * WHAT IS CHECKED
 *  (1) A grant's fence is larger than that of every grant that was returned
 *      before its confirmation began, and no two are equal: always.
 *  (2) While clocks run well and nothing is forgotten: grants are returned in
 *      the order of their fences, and nobody relies on one while another does.
 */
#include "sim.h"

#include "rl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/redlock/rule.h"
#include "base/lease.h"

#define NODES   5
#define CLIENTS 4
#define QUEUE   16
#define STRAYS  64
#define TTL_MS  1000
#define HOUR_US INT64_C(3600000000)
#define GRANTS  4096

/* ---- a node ------------------------------------------------------------ */

static void node_confirm(struct sim_node *node, const struct sim_ask *ask)
{
    node->c = ask->fence;
    snprintf(node->k, sizeof(node->k), "%s", ask->token);
}

static void node_set(struct sim_node *node, const struct sim_ask *ask,
                     int64_t now_us)
{
    snprintf(node->token, sizeof(node->token), "%s", ask->token);
    node->expires = now_us + ask->ttl_ms * 1000;
}

static int node_renew(struct sim_node *node, const struct sim_ask *ask,
                      int64_t now_us)
{
    bool free = !node->token[0], ours = !strcmp(node->token, ask->token);

    if (!free && !ours)
        return 2;
    if (node->c > ask->fence)
        return 5;
    if (node->b == ask->fence)
        return 3;
    if (free && !ask->restore)
        return 0;
    if (free || node->expires < now_us + ask->ttl_ms * 1000)
        node_set(node, ask, now_us);
    if (node->c != ask->fence || strcmp(node->k, ask->token) != 0)
        node_confirm(node, ask);
    return free ? 4 : 1;
}

static int node_write(struct sim_node *node, const struct sim_ask *ask,
                      bool anything)
{
    if (strcmp(node->token, ask->token) != 0)
        return 0;
    if (!anything && node->c == ask->fence)
        return !strcmp(node->k, ask->token);
    if (!anything && node->c > ask->fence)
        return 0;
    node_confirm(node, ask);
    return 1;
}

/* The mark of that token, or one that is unused for "". */
static char *node_mark(struct sim_node *node, const char *token)
{
    size_t i;

    for (i = 0; i < sizeof(node->marks) / sizeof(node->marks[0]); i++)
        if (!strcmp(node->marks[i], token))
            return node->marks[i];
    return NULL;
}

static int node_break(struct sim_node *node, const struct sim_ask *ask)
{
    char *mark;

    if (!node->token[0] || node->c != ask->fence ||
        strcmp(node->k, node->token) != 0)
        return 0;
    node->b = ask->fence;
    mark = node_mark(node, node->token);
    if (!mark)
        mark = node_mark(node, "");
    if (mark)
        snprintf(mark, sizeof(node->marks[0]), "%s", node->token);
    return 1;
}

static int node_release(struct sim_node *node, const struct sim_ask *ask)
{
    char *mark = node_mark(node, ask->token);

    if (strcmp(node->token, ask->token) != 0)
        return 0;
    node->token[0] = '\0';
    if (!mark)
        return 1;
    mark[0] = '\0';
    return node->c && node->c == node->b && !strcmp(node->k, ask->token) ? 3
                                                                         : 1;
}

struct sim_answer sim_node_serve(struct sim_node *node,
                                 const struct sim_ask *ask, int64_t now_us,
                                 bool confirm_anything)
{
    bool ours = !strcmp(node->token, ask->token);
    struct sim_answer answer = {
        .c = node->c,
        .k_is_ours = !strcmp(node->k, ask->token),
        .clock = (uint64_t)(now_us + node->skew_us),
    };

    switch (ask->op) {
    case 'A':
        answer.value = !node->token[0] ? 0 : ours ? 1 : 2;
        if (!node->token[0] ||
            (ours && node->expires < now_us + ask->ttl_ms * 1000))
            node_set(node, ask, now_us);
        break;
    case 'W':
        answer.value = node_write(node, ask, confirm_anything);
        break;
    case 'R':
        answer.value = node_renew(node, ask, now_us);
        break;
    case 'B':
        answer.value = node_break(node, ask);
        break;
    default: /* L */
        answer.value = node_release(node, ask);
    }
    return answer;
}

/* ---- the world --------------------------------------------------------- */

/* A question on its way, or its answer on the way back. */
struct message {
    struct sim_ask ask;
    struct sim_answer answer;
    int round; /* of its client: older ones are not waited for */
};

struct pipe { /* one direction of a connection */
    struct message all[QUEUE];
    int len;
};

enum phase { IDLE, ASKING, CONFIRMING, HOLDING, RENEWING };

struct client {
    enum phase phase;
    int round;
    char token[33];
    struct redlock_votes votes;
    struct redlock_tally tally;
    unsigned asked;
    int waiting, confirmed;
    uint64_t fence;
    uint64_t floor;        /* the largest fence told when confirming began */
    int64_t sent, renewed; /* in ms */
    int64_t deadline;      /* of what it holds */
    bool was_granted;      /* and the claim has had its turn */
    struct pipe out[NODES], in[NODES];
};

struct world {
    const struct sim_rules *rules;
    uint64_t random;
    int64_t now_us;
    struct sim_node nodes[NODES];
    struct client clients[CLIENTS];
    struct {
        struct sim_ask ask;
        int node;
    } strays[STRAYS];
    int nstrays, tokens;
    uint64_t told[GRANTS]; /* the fences that were returned */
    int ntold;
    uint64_t largest;
    char wrong[200];
};

static int roll(struct world *w, int sides)
{
    return (int)(rl_random(&w->random) % (uint64_t)sides);
}

static int64_t now_ms(const struct world *w)
{
    return w->now_us / 1000;
}

__attribute__((format(printf, 2, 3))) static void wrong(struct world *w,
                                                        const char *fmt, ...)
{
    va_list ap;

    if (w->wrong[0])
        return;
    va_start(ap, fmt);
    vsnprintf(w->wrong, sizeof(w->wrong), fmt, ap);
    va_end(ap);
}

/* ---- a client ---------------------------------------------------------- */

static void say(struct world *w, struct client *c, int node, char op,
                bool restore)
{
    struct pipe *out = &c->out[node];
    struct message *m;

    if (out->len == QUEUE || w->nodes[node].down)
        return; /* not connected, or given up */
    m = &out->all[out->len++];
    *m = (struct message){
        .round = c->round,
        .ask = {
            .op = op, .fence = c->fence, .ttl_ms = TTL_MS, .restore = restore}};
    memcpy(m->ask.token, c->token, sizeof(c->token));
    c->waiting++;
    if (op == 'A')
        c->asked |= 1U << node;
}

static void say_all(struct world *w, struct client *c, char op, unsigned nodes)
{
    c->round++;
    c->waiting = c->confirmed = 0;
    for (int i = 0; i < w->rules->n; i++)
        if (nodes & 1U << i)
            say(w, c, i, op, false);
}

static void client_end(struct world *w, struct client *c)
{
    say_all(w, c, 'L', c->asked);
    c->phase = IDLE;
}

/* Another attempt; with the token of the one before, which came to nothing, as
 * the core has it (acquire.c (1)), or as somebody new. */
static void client_begin(struct world *w, struct client *c)
{
    if (!c->token[0] || c->was_granted || !roll(w, 3))
        snprintf(c->token, sizeof(c->token), "%032x", ++w->tokens);
    c->was_granted = false;
    c->votes = (struct redlock_votes){.n = w->rules->n};
    c->fence = 0;
    c->asked = 0;
    c->sent = now_ms(w);
    c->phase = ASKING;
    say_all(w, c, 'A', 0xff);
}

static bool relies(const struct world *w, const struct client *c)
{
    return (c->phase == HOLDING || c->phase == RENEWING) &&
           now_ms(w) < c->deadline;
}

static void check_grant(struct world *w, const struct client *c)
{
    bool calm =
        !w->rules->leaps && !w->rules->after_fork_child && !w->rules->strays;

    if (c->fence <= c->floor)
        wrong(w, "a fence of %llu after one of %llu had been told",
              (unsigned long long)c->fence, (unsigned long long)c->floor);
    for (int i = 0; i < w->ntold; i++)
        if (w->told[i] == c->fence)
            wrong(w, "the fence %llu was given twice",
                  (unsigned long long)c->fence);
    if (calm && c->fence <= w->largest)
        wrong(w, "fences out of order: %llu", (unsigned long long)c->fence);
    for (int i = 0; calm && i < CLIENTS; i++)
        if (&w->clients[i] != c && relies(w, &w->clients[i]))
            wrong(w, "two holders");
}

static void client_granted(struct world *w, struct client *c)
{
    c->deadline = hfi_lease_deadline(c->sent, TTL_MS);
    if (now_ms(w) >= c->deadline) { /* acquire.c (3) */
        client_end(w, c);
        return;
    }
    check_grant(w, c);
    c->was_granted = true;
    if (w->ntold < GRANTS)
        w->told[w->ntold++] = c->fence;
    if (c->fence > w->largest)
        w->largest = c->fence;
    c->phase = HOLDING;
}

static void client_won(struct world *w, struct client *c)
{
    bool confirm = redlock_fence(&c->votes, &c->fence);

    c->floor = w->largest;
    if (w->rules->no_write_back || !confirm) {
        client_granted(w, c);
        return;
    }
    c->phase = CONFIRMING;
    say_all(w, c, 'W', c->asked);
}

static void client_voted(struct world *w, struct client *c, int node,
                         const struct sim_answer *a)
{
    if (a->value == 2)
        redlock_vote_no(&c->votes, node);
    else
        redlock_vote_yes(&c->votes, node, redlock_proposal(a->c, a->clock),
                         a->value == 1 && a->k_is_ours ? a->c : 0);
    if (a->value == 2)
        c->asked &= ~(1U << node);
    switch (redlock_verdict(&c->votes, c->waiting)) {
    case REDLOCK_OPEN:
    case REDLOCK_BEATEN:
        return;
    case REDLOCK_WON:
        client_won(w, c);
        return;
    default:
        client_end(w, c);
    }
}

static void client_confirmed(struct world *w, struct client *c, int value)
{
    int quorum = w->rules->confirm_quorum;

    c->confirmed += value == 1;
    if (quorum ? c->confirmed >= quorum
               : redlock_is_confirmed(w->rules->n, c->confirmed))
        client_granted(w, c);
    else if (!redlock_may_be_confirmed(w->rules->n, c->confirmed, c->waiting))
        client_end(w, c);
}

static void client_renewed(struct world *w, struct client *c)
{
    switch (redlock_standing(w->rules->n, &c->tally)) {
    case REDLOCK_STANDS:
        if (now_ms(w) < c->deadline)
            c->deadline = hfi_lease_deadline(c->renewed, TTL_MS);
        break;
    case REDLOCK_FALLEN:
        client_end(w, c);
        return;
    default:
        break;
    }
    if (redlock_may_restore(w->rules->n, &c->tally) && now_ms(w) < c->deadline)
        for (int i = 0; i < w->rules->n; i++)
            if (c->tally.gone & 1U << i) {
                c->asked |= 1U << i;
                say(w, c, i, 'R', true);
            }
    c->phase = HOLDING;
}

static void client_counted(struct world *w, struct client *c, int node,
                           int value)
{
    c->tally.confirmed += value == 1;
    c->tally.stolen += value == 2 || value == 5;
    c->tally.broken += value == 3;
    if (value == 0)
        c->tally.gone |= 1U << node;
    if (!c->waiting)
        client_renewed(w, c);
}

static void client_hears(struct world *w, struct client *c, int node)
{
    struct pipe *in = &c->in[node];
    struct message m = in->all[0];

    memmove(in->all, in->all + 1, (size_t)--in->len * sizeof(m));
    if (m.round != c->round)
        return;
    c->waiting--;
    if (c->phase == ASKING)
        client_voted(w, c, node, &m.answer);
    else if (c->phase == CONFIRMING)
        client_confirmed(w, c, m.answer.value);
    else if (c->phase == RENEWING)
        client_counted(w, c, node, m.answer.value);
}

/* It begins, loses patience, renews or gives back. */
static void client_acts(struct world *w, struct client *c)
{
    switch (c->phase) {
    case IDLE:
        client_begin(w, c);
        break;
    case ASKING:
    case CONFIRMING:
        if (!roll(w, 60))
            client_end(w, c);
        break;
    case HOLDING:
        if (!roll(w, 3) || now_ms(w) >= c->deadline) {
            client_end(w, c);
            break;
        }
        c->tally = (struct redlock_tally){0};
        c->renewed = now_ms(w);
        c->phase = RENEWING;
        say_all(w, c, 'R', 0xff);
        break;
    default:
        if (now_ms(w) >= c->deadline)
            client_end(w, c);
        else if (!roll(w, 4))
            client_renewed(w, c);
    }
}

/* ---- steps ------------------------------------------------------------- */

static void node_hears(struct world *w, struct client *c, int node)
{
    struct pipe *out = &c->out[node], *in = &c->in[node];
    struct message m = out->all[0];

    memmove(out->all, out->all + 1, (size_t)--out->len * sizeof(m));
    m.answer = sim_node_serve(&w->nodes[node], &m.ask, w->now_us,
                              w->rules->confirm_anything);
    in->all[in->len++] = m;
}

/* What was on its way is lost; or, if nobody sees to it, arrives some day. */
static void connection_breaks(struct world *w, struct client *c, int node)
{
    struct pipe *out = &c->out[node];

    for (int i = 0; i < out->len && w->rules->strays; i++)
        if (w->nstrays < STRAYS && roll(w, 2)) {
            w->strays[w->nstrays].ask = out->all[i].ask;
            w->strays[w->nstrays++].node = node;
        }
    out->len = c->in[node].len = 0;
}

static void stray_arrives(struct world *w)
{
    int i = w->nstrays ? roll(w, w->nstrays) : -1;

    if (i < 0 || w->nodes[w->strays[i].node].down)
        return;
    sim_node_serve(&w->nodes[w->strays[i].node], &w->strays[i].ask, w->now_us,
                   w->rules->confirm_anything);
    w->strays[i] = w->strays[--w->nstrays];
}

static void node_suffers(struct world *w, int node)
{
    struct sim_node *at = &w->nodes[node];

    switch (roll(w, 4)) {
    case 0:
        at->down = !at->down && !roll(w, 3);
        for (int i = 0; i < CLIENTS; i++)
            connection_breaks(w, &w->clients[i], node);
        break;
    case 1:
        if (w->rules->after_fork_child)
            *at = (struct sim_node){.skew_us = at->skew_us};
        break;
    case 2:
        if (w->rules->apart)
            at->skew_us =
                (int64_t)(rl_random(&w->random) % (2 * HOUR_US)) - HOUR_US;
        break;
    default:
        if (w->rules->leaps)
            at->token[0] = '\0';
    }
}

static void time_passes(struct world *w)
{
    w->now_us += 1 + roll(w, roll(w, 300) ? 2000 : TTL_MS * 1000);
    for (int i = 0; i < w->rules->n; i++)
        if (w->nodes[i].token[0] && w->now_us >= w->nodes[i].expires)
            w->nodes[i].token[0] = '\0';
}

/* Some message arrives; false if there is none. */
static bool message_arrives(struct world *w)
{
    int pipes = 2 * CLIENTS * w->rules->n, first = roll(w, pipes);

    for (int i = 0; i < pipes; i++) {
        int at = (first + i) % pipes, node = at / 2 / CLIENTS;
        struct client *c = &w->clients[at / 2 % CLIENTS];

        if (at % 2 && c->in[node].len) {
            client_hears(w, c, node);
            return true;
        }
        if (at % 2 == 0 && c->out[node].len && !w->nodes[node].down &&
            c->in[node].len < QUEUE) {
            node_hears(w, c, node);
            return true;
        }
    }
    return false;
}

static void step(struct world *w)
{
    struct client *c = &w->clients[roll(w, CLIENTS)];
    int node = roll(w, w->rules->n), what = roll(w, 100);

    time_passes(w);
    if (what < 85 && message_arrives(w))
        return;
    if (what < 95)
        client_acts(w, c);
    else if (what < 96)
        connection_breaks(w, c, node);
    else if (what < 98)
        stray_arrives(w);
    else
        node_suffers(w, node);
}

const char *sim_run(const struct sim_rules *rules, uint64_t seed, int steps,
                    long *grants)
{
    static struct world w;
    bool trace = getenv("SEED") != NULL;

    memset(&w, 0, sizeof(w));
    w.rules = rules;
    w.random = seed;
    w.now_us = INT64_C(1700000000000000);
    for (int i = 0; i < rules->n && rules->apart; i++)
        w.nodes[i].skew_us =
            (int64_t)(rl_random(&w.random) % (2 * HOUR_US)) - HOUR_US;
    for (int i = 0; i < steps && !w.wrong[0]; i++) {
        int before = w.ntold;

        step(&w);
        if (trace && w.ntold > before)
            fprintf(stderr, "# step %d: fence %llu\n", i,
                    (unsigned long long)w.told[before]);
    }
    *grants += w.ntold;
    return w.wrong;
}
