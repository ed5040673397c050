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

/* Where the pending release is or would be, with those that have lapsed removed
 * on the way. */
static struct redlock_pending_release **pending_release_find(
    struct redlock_node *node, const struct hfi_claim *claim)
{
    struct redlock_pending_release *pending_release,
        **at = &node->pending_releases;
    int64_t now = hfi_now();

    while ((pending_release = *at)) {
        /* There is one for each thread that is releasing, so look at the first
         * bytes before the rest: tokens are random. */
        if (!memcmp(pending_release->token, claim->token, sizeof(int64_t)) &&
            !strcmp(pending_release->token, claim->token) &&
            !strcmp(pending_release->key, claim->key))
            return at;
        if (now < pending_release->until) {
            at = &pending_release->next;
        } else {
            *at = pending_release->next;
            hfi_free(pending_release);
        }
    }
    return at;
}

void redlock_pending_add(struct redlock_node *node,
                         const struct hfi_claim *claim, uint64_t limit,
                         unsigned how, bool lasting)
{
    size_t len = strlen(claim->key) + 1;
    struct redlock_pending_release *pending_release, **at;

    pthread_mutex_lock(&node->rl->mu);
    at = pending_release_find(node, claim);
    if (!*at) {
        pending_release = hfi_alloc(sizeof(*pending_release) + len);
        if (pending_release) { /* Without memory it is left to its expiry. */
            memcpy(pending_release->key, claim->key, len);
            memcpy(pending_release->token, claim->token,
                   sizeof(pending_release->token));
            *at = pending_release;
        }
    }
    if (*at) {
        (*at)->until = lasting ? HFI_NEVER : hfi_now() + claim->ttl_ms;
        if ((*at)->limit < limit)
            (*at)->limit = limit;
        (*at)->how |= how;
    }
    pthread_mutex_unlock(&node->rl->mu);
}

bool redlock_pending_drop(struct redlock_node *node,
                          const struct hfi_claim *claim)
{
    struct redlock_pending_release *pending_release = NULL, **at;

    pthread_mutex_lock(&node->rl->mu);
    if (node->pending_releases) {
        at = pending_release_find(node, claim);
        pending_release = *at;
        if (pending_release)
            *at = pending_release->next;
    }
    pthread_mutex_unlock(&node->rl->mu);
    hfi_free(pending_release);
    return pending_release != NULL;
}

static struct redlock_pending_release *pending_releases_take(
    struct redlock_node *node)
{
    struct redlock_pending_release *pending_releases;

    pthread_mutex_lock(&node->rl->mu);
    pending_releases = node->pending_releases;
    node->pending_releases = NULL;
    pthread_mutex_unlock(&node->rl->mu);
    return pending_releases;
}

static void pending_releases_put(
    struct redlock_node *node, struct redlock_pending_release *pending_releases)
{
    struct redlock_pending_release **at = &pending_releases;

    while (*at)
        at = &(*at)->next;
    pthread_mutex_lock(&node->rl->mu);
    *at = node->pending_releases;
    node->pending_releases = pending_releases;
    pthread_mutex_unlock(&node->rl->mu);
}

static void pending_releases_free(
    struct redlock_pending_release *pending_releases)
{
    struct redlock_pending_release *next;

    for (; pending_releases; pending_releases = next) {
        next = pending_releases->next;
        hfi_free(pending_releases);
    }
}

hf_status redlock_pending_send(struct redlock_node *node, struct mux_link *link,
                               int64_t deadline, struct hf_error *err)
{
    struct redlock_pending_release *pending_releases =
                                       pending_releases_take(node),
                                   *at;
    struct redis_batch batch = {0};
    struct redlock_leave leave;
    struct redis_names names;
    redisReply *reply;
    hf_status st = HF_OK;
    size_t n = 0;

    for (at = pending_releases; at; at = at->next) {
        const char *argv[9] = {"EVALSHA",
                               node->rl->script_id,
                               "2",
                               names.text[REDIS_MAIN],
                               names.text[REDIS_META],
                               "L"};

        if (hfi_now() >= at->until)
            continue;
        redis_name(&node->rc, at->key, &names);
        redlock_leave_say(&leave, at->token, at->how | REDLOCK_TELL, at->limit);
        memcpy(argv + 6, leave.argv, sizeof(leave.argv));
        redis_batch_add(&batch, 6 + leave.argc, argv);
        n++;
    }
    if (n)
        st = redis_handshake_batch(link, &batch, deadline, err);
    for (; n && !st; n--) {
        st = redis_handshake_reply(&node->rc, link, &reply, deadline, err);
        if (!st)
            freeReplyObject(reply);
    }
    if (st)
        pending_releases_put(node, pending_releases);
    else
        pending_releases_free(pending_releases);
    return st;
}

void redlock_pending_releases_free(struct redlock_node *node)
{
    pending_releases_free(pending_releases_take(node));
}
