/* SPDX-License-Identifier: MIT
 *
 * pending_release.c - what must still be given back on a node.
 *
 * A release is written down before it is sent and struck off when it is
 * answered.  What a connection leaves unanswered is paid when the next one
 * begins, before anybody else can use that.  Written down later it could be too
 * late: the next connection may have begun already, and nobody would pay.
 *
 * One that was answered after nobody waited any longer is paid twice, or not at
 * all if its lease is over by then: a release that finds nothing does nothing.
 *
 * LASTING  A lease that the node has granted is over at a time that is known
 *   here.  A try that had no answer may lie with a node that hangs, and its
 *   lease begins when the node goes on.  What is owed for such a one lasts
 *   until it is paid.
 */
#include "redlock.h"

#include "base/alloc.h"

#include "base/banned.h"

/* Where the debt is or would be, with those that have lapsed removed on the
 * way. */
static struct redlock_debt **debt_find(struct redlock_node *node,
                                       const struct hfi_claim *claim)
{
    struct redlock_debt *debt, **at = &node->debts;
    int64_t now = hfi_now();

    while ((debt = *at)) {
        if (!strcmp(debt->token, claim->token) &&
            !strcmp(debt->key, claim->key))
            return at;
        if (now < debt->until) {
            at = &debt->next;
        } else {
            *at = debt->next;
            hfi_free(debt);
        }
    }
    return at;
}

void redlock_owe(struct redlock_node *node, const struct hfi_claim *claim,
                 uint64_t limit, bool lasting)
{
    size_t len = strlen(claim->key) + 1;
    struct redlock_debt *debt, **at;

    pthread_mutex_lock(&node->rl->mu);
    at = debt_find(node, claim);
    if (!*at) {
        debt = hfi_alloc(sizeof(*debt) + len);
        if (debt) { /* Without memory it is left to its expiry. */
            memcpy(debt->key, claim->key, len);
            memcpy(debt->token, claim->token, sizeof(debt->token));
            *at = debt;
        }
    }
    if (*at) {
        (*at)->until = lasting ? HFI_NEVER : hfi_now() + claim->ttl_ms;
        if ((*at)->limit < limit)
            (*at)->limit = limit;
    }
    pthread_mutex_unlock(&node->rl->mu);
}

bool redlock_owe_not(struct redlock_node *node, const struct hfi_claim *claim)
{
    struct redlock_debt *debt = NULL, **at;

    pthread_mutex_lock(&node->rl->mu);
    if (node->debts) {
        at = debt_find(node, claim);
        debt = *at;
        if (debt)
            *at = debt->next;
    }
    pthread_mutex_unlock(&node->rl->mu);
    hfi_free(debt);
    return debt != NULL;
}

static struct redlock_debt *debts_take(struct redlock_node *node)
{
    struct redlock_debt *debts;

    pthread_mutex_lock(&node->rl->mu);
    debts = node->debts;
    node->debts = NULL;
    pthread_mutex_unlock(&node->rl->mu);
    return debts;
}

static void debts_put(struct redlock_node *node, struct redlock_debt *debts)
{
    struct redlock_debt **at = &debts;

    while (*at)
        at = &(*at)->next;
    pthread_mutex_lock(&node->rl->mu);
    *at = node->debts;
    node->debts = debts;
    pthread_mutex_unlock(&node->rl->mu);
}

static void debts_free(struct redlock_debt *debts)
{
    struct redlock_debt *next;

    for (; debts; debts = next) {
        next = debts->next;
        hfi_free(debts);
    }
}

hf_status redlock_pay(struct redlock_node *node, struct mux_link *link,
                      int64_t deadline, struct hf_error *err)
{
    struct redlock_debt *debts = debts_take(node), *at;
    struct redlock_leave leave;
    struct redis_names names;
    redisReply *reply;
    hf_status st = HF_OK;

    for (at = debts; at && !st; at = at->next) {
        const char *argv[9] = {"EVALSHA",
                               node->rl->script_id,
                               "2",
                               names.text[REDIS_MAIN],
                               names.text[REDIS_META],
                               "L"};

        if (hfi_now() >= at->until)
            continue;
        redis_name(&node->rc, at->key, &names);
        redlock_leave_say(&leave, at->token, true, at->limit);
        memcpy(argv + 6, leave.argv, sizeof(leave.argv));
        st = redis_hello_send(&node->rc, link, 6 + leave.argc, argv, &reply,
                              deadline, err);
        if (!st)
            freeReplyObject(reply);
    }
    if (st)
        debts_put(node, debts);
    else
        debts_free(debts);
    return st;
}

void redlock_debts_free(struct redlock_node *node)
{
    debts_free(debts_take(node));
}
