/* SPDX-License-Identifier: MIT
 *
 * detached.c - locks that leave the process: detach, attach, and what the
 * bearer of a handle may do without taking it up.
 *
 * INVARIANTS
 *  (1) A handle is taken up once: the service moves the grant to a fresh token
 *      in one step, and every copy of the handle is void from then on.
 *  (2) No request of an earlier call can change what a handle stands for.
 *      Where one had no answer and may still arrive (a shorter lease, a try),
 *      the grant is moved to a fresh token before it is handed out, and the old
 *      token is taken back like every doubtful claim.  A downgrade without an
 *      answer is asked for again: the handle stands for one mode.
 */
#include "core.h"

#include "base/mutant.h"

#include "base/banned.h"

/* Between two attempts to move a grant to another token. */
#define TAKE_OVER_MS 50

static void detached_use_token(struct hfi_grant *grant,
                               const struct hf_handle *handle)
{
    memcpy(grant->claim.token, handle->token, sizeof(grant->claim.token));
    grant->claim.token[HFI_TOKEN_LEN] = '\0';
}

/* A grant that another process got.  With the token of the handle,
 * unless it is about to be taken over. */
static struct hfi_grant *detached_adopt(struct hf_client *c, const char *key,
                                        const struct hf_handle *handle,
                                        const struct hfi_lock_params *params)
{
    struct hfi_key_queue *queue = hfi_key_queue_get(c, key);
    struct hfi_grant *grant = queue ? hfi_grant_new(c, queue, params) : NULL;

    if (grant) {
        grant->local_grant =
            false; /* It is not what the local queue asked for. */
        grant->receipt.fence = handle->fence;
        grant->receipt.registered = true;
        grant->most_ms = HFI_NEVER; /* whatever others have asked for */
        if (!c->be->take_over || HFI_MUTANT(handle_taken_twice))
            detached_use_token(grant, handle);
    }
    if (queue)
        hfi_key_queue_put(c, queue);
    return grant;
}

/* Begin a call about a handle: *ret is a grant that is in no list. */
static hf_status detached_begin(struct hf_client *c, const char *key,
                                const struct hf_handle *handle,
                                const struct hfi_lock_params *params,
                                struct hfi_grant **ret, struct hf_error *err)
{
    struct hfi_grant *grant;
    hf_status st;

    if (c->closed)
        return hfi_fail(err, HF_INVALID, "the client is closed");
    grant = detached_adopt(c, key, handle, params);
    if (!grant)
        return hfi_nomem(err);
    pthread_mutex_unlock(&c->mu);
    st = c->be->attach(c->conn, &grant->claim, handle, &grant->receipt, err);
    pthread_mutex_lock(&c->mu);
    if (st)
        hfi_grant_free(c, grant);
    else
        *ret = grant;
    return st;
}

static hf_status detached_no_grant(const char *key, struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];

    return hfi_fail(err, HF_LOST, "'%s' is not held under this handle any more",
                    hfi_quote(quoted, sizeof(quoted), key));
}

/* The same, with the reason where the service knows one that is for sure. */
static hf_status detached_gone(const char *key, hf_loss reason,
                               struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];

    if (reason != HF_LOSS_BROKEN)
        return detached_no_grant(key, err);
    return hfi_fail(err, HF_LOST, "'%s' was lost: %s",
                    hfi_quote(quoted, sizeof(quoted), key),
                    hf_loss_name(reason));
}

/* ---- in which way it is held ------------------------------------------- */

struct detached_look {
    const struct hf_handle *handle;
    struct hf_info info; /* of the holder that it is for */
};

/* Is the handle for this grant?  One who has taken it up has another token; where
 * there are no fences only the token tells. */
static bool detached_fits(const struct hf_handle *handle,
                          const struct hf_info *holder)
{
    bool named = strspn(holder->owner, "0123456789abcdef") == HFI_TOKEN_LEN &&
                 !holder->owner[HFI_TOKEN_LEN];
    bool same = !strcmp(holder->owner, handle->token);

    if (holder->broken || holder->kept)
        return false;
    return handle->fence ? holder->fence == handle->fence && (same || !named)
                         : same;
}

static bool detached_see(void *arg, const struct hf_info *holder)
{
    struct detached_look *look = arg;

    if (!detached_fits(look->handle, holder))
        return true;
    look->info = *holder;
    return false;
}

/* It could not be taken up.  A lock that stands and is held in another way than
 * the caller says is not lost: say what is to be said. */
static hf_status detached_refused(struct hf_client *c, const char *key,
                                  const struct hf_handle *handle,
                                  const struct hfi_lock_params *params,
                                  struct hf_error *err)
{
    struct detached_look look = {.handle = handle};
    const struct hf_info *info = &look.info;
    char quoted[HFI_QUOTE_MAX];

    if (c->be->holders) {
        pthread_mutex_unlock(&c->mu);
        c->be->holders(c->conn, key, detached_see, &look,
                       hfi_now() + c->timeout_ms, NULL);
        pthread_mutex_lock(&c->mu);
    }
    if (!info->held || (info->shared == ((params->flags & HF_SHARED) != 0) &&
                        info->permits == params->permits))
        return detached_no_grant(key, err);
    hfi_quote(quoted, sizeof(quoted), key);
    if (info->permits)
        return hfi_fail(err, HF_INVALID,
                        "'%s' has %d permits: take it up with that number",
                        quoted, (int)info->permits);
    return hfi_fail(err, HF_INVALID, "'%s' is %s: take it up %s", quoted,
                    info->shared ? "shared" : "exclusive",
                    info->shared ? "with HF_SHARED"
                                 : "without HF_SHARED and permits");
}

/* Make the grant ours alone.  Asked again until `end`: the second time it may
 * be ours already, which is why a try without an answer is remembered.  An
 * answer without sense says no more than none, but it is not asked again.  An
 * attempt has half of the time that is left, so that one connection that hangs
 * does not take all of it. */
static hf_status detached_take_over(struct hf_client *c,
                                    struct hfi_grant *grant,
                                    const struct hf_handle *handle, int64_t end,
                                    struct hf_error *err)
{
    int64_t now = hfi_now(), least = c->timeout_ms / 8 + 1, limit;
    unsigned cancels = atomic_load(&c->cancels);
    hf_status st = HF_OK;

    while (c->be->take_over && !HFI_MUTANT(handle_taken_twice)) {
        limit = end - now > 2 * least ? now + (end - now) / 2 : end;
        pthread_mutex_unlock(&c->mu);
        st = c->be->take_over(c->conn, &grant->claim, handle->token,
                              &grant->receipt, limit, err);
        pthread_mutex_lock(&c->mu);
        grant->claim.doubt =
            grant->claim.doubt || st == HF_UNCERTAIN || st == HF_PROTOCOL;
        now = hfi_now();
        if ((st != HF_UNCERTAIN && st != HF_UNAVAILABLE) || now >= end)
            break;
        if (!hfi_handle_pause(c, now + TAKE_OVER_MS, cancels))
            break;
    }
    return st;
}

/* The attach failed.  What may be ours in the service is taken back, also after
 * HF_LOST: one that was broken since we took it over is still there. */
static hf_status detached_unadopt(struct hf_client *c, struct hfi_grant *grant,
                                  hf_status st, bool ours, struct hf_error *err)
{
    ours = ours || grant->claim.doubt;
    if (!ours || !c->be->take_over) {
        hfi_grant_free(c, grant);
        return st;
    }
    if (st != HF_LOST)
        st = hfi_restate(err, HF_UNCERTAIN);
    grant->claim.doubt = grant->claim.doubt || st == HF_UNCERTAIN;
    hfi_grant_reap(c, grant);
    return st;
}

/* ---- detach ------------------------------------------------------------ */

static struct hf_handle detached_handle(const struct hf_client *c,
                                        const struct hfi_grant *grant)
{
    struct hf_handle handle = {.size = sizeof(handle),
                               .fence = grant->receipt.fence};

    memcpy(handle.token, grant->claim.token, sizeof(grant->claim.token));
    if (c->be->detach)
        c->be->detach(&grant->receipt, &handle);
    return handle;
}

static void detached_unwatch(struct hf_client *c, struct hfi_grant *grant)
{
    if (!grant->watched)
        return;
    grant->watched = false;
    pthread_mutex_unlock(&c->mu);
    c->be->unwatch(c->conn, &grant->claim, &grant->receipt);
    pthread_mutex_lock(&c->mu);
}

static void detached_swap_bytes(void *one, void *other, size_t len)
{
    unsigned char *a = one, *b = other, byte;

    while (len--) {
        byte = *a;
        *a++ = *b;
        *b++ = byte;
    }
}

/* `other` has taken the grant over from `grant`, which goes on under its token.
 * What may still arrive for the old token is taken back.  detached.c (2) */
static void detached_swap(struct hf_client *c, struct hfi_grant *grant,
                          struct hfi_grant *other)
{
    struct hfi_receipt receipt = grant->receipt;
    bool doubt = grant->claim.doubt;

    detached_swap_bytes(grant->claim.token, other->claim.token,
                        sizeof(grant->claim.token));
    detached_swap_bytes(grant->own, other->own, c->be->grant_size);
    grant->receipt = other->receipt;
    grant->receipt.own = grant->own;
    other->receipt = receipt;
    other->receipt.own = other->own;
    other->most_ms = grant->most_ms;
    grant->claim.doubt = false;
    grant->short_ms = 0;
    other->claim.doubt = doubt;
    if (doubt)
        hfi_grant_reap(c, other);
    else
        hfi_grant_free(c, other);
}

/* Give the grant a fresh token, with which no request was ever sent. */
static hf_status detached_renew_token(struct hf_client *c,
                                      struct hfi_grant *grant,
                                      struct hf_error *err)
{
    struct hfi_lock_params params = hfi_grant_params(&grant->claim);
    int64_t end = hfi_now() + c->timeout_ms;
    struct hfi_grant *other = NULL;
    struct hf_handle handle;
    hf_status st;

    if (end > atomic_load(&grant->deadline))
        end = atomic_load(&grant->deadline);
    grant->busy = true; /* grant.c (4) */
    detached_unwatch(c, grant);
    handle = detached_handle(c, grant);
    st = detached_begin(c, grant->claim.key, &handle, &params, &other, err);
    if (!st) {
        st = detached_take_over(c, other, &handle, end, err);
        if (!st) {
            detached_swap(c, grant, other);
        } else {
            if (other->claim.doubt) /* Either token may have it. */
                hfi_grant_lose(c, grant, HF_LOSS_EXPIRED);
            st = detached_unadopt(c, other, st, false, err);
        }
    }
    grant->busy = false;
    hfi_cond_wake(&c->settle);
    return st;
}

/* Let go of a grant here without a word to the service.  It is the bearer's;
 * sweep.c sees to it that it does not outlast its lease. */
static void detached_forget(struct hf_client *c, struct hfi_grant *grant)
{
    struct hfi_key_queue *queue = grant->queue;

    grant->state = HFI_RELEASING;
    hfi_heap_remove(&c->timers, &grant->timer);
    hfi_link_remove(&grant->due);
    detached_unwatch(c, grant);
    queue->users++;
    if (queue->local_grant == grant)
        queue->local_grant = NULL;
    if (hfi_sweeps(c))
        hfi_sweep_later(c, grant, hfi_sweep_due(grant));
    else
        hfi_grant_free(c, grant);
    hfi_key_queue_promote(c, queue);
    hfi_key_queue_put(c, queue);
}

static hf_status detached_is_shared(struct hf_error *err)
{
    return hfi_fail(err, HF_INVALID,
                    "a lock that was acquired more than once cannot be "
                    "detached");
}

/* See to it that a handle of the grant stands for all of the lease, whatever
 * was sent before. */
static hf_status detached_prepare(struct hf_client *c, struct hfi_grant *grant,
                                  struct hf_error *err)
{
    bool doubt = grant->claim.doubt || grant->short_ms;
    hf_status st = HF_OK;

    if (grant->downgrading)
        st = hfi_handle_share(c, grant, err);
    if (st)
        return st;
    if (doubt && c->be->take_over) {
        st = detached_renew_token(c, grant, err);
        if (st)
            return st;
    }
    if (!hfi_handle_still_held(c, grant))
        return hfi_handle_lost(grant, err);
    /* What was passed on to us may have less than its ttl. */
    if ((doubt || grant->lease_ms < grant->claim.ttl_ms) &&
        hfi_handle_renew(c, grant, grant->claim.ttl_ms, err) == HF_LOST)
        return HF_LOST;
    if (grant->handles.next != grant->handles.prev)
        return detached_is_shared(err); /* meanwhile */
    return HF_OK;
}

hf_status hfi_detach(struct hf_lock *lk, struct hf_handle *ret,
                     struct hf_error *err)
{
    struct hf_client *c = lk->client;
    struct hfi_grant *grant = lk->grant;
    hf_status st;

    hfi_handle_enter(c);
    hfi_grant_quiet(c, grant);
    if (!hfi_handle_still_held(c, grant))
        st = hfi_handle_lost(grant, err);
    else if (grant->handles.next != grant->handles.prev)
        st = detached_is_shared(err);
    else
        st = detached_prepare(c, grant, err);
    if (!st) {
        *ret = detached_handle(c, grant);
        hfi_notice_drop(c, &lk->notice);
        hfi_link_remove(&lk->link);
        detached_forget(c, grant);
    }
    hfi_handle_leave(c);
    if (st)
        hfi_release(lk, NULL);
    else
        hfi_lock_free(lk);
    return st;
}

/* ---- attach ------------------------------------------------------------ */

/* The grant is in no list, and nobody knows of it, before its renewal has been
 * answered: until then nothing is proven. */
hf_status hfi_attach(struct hf_client *c, const char *key,
                     const struct hf_handle *handle,
                     const struct hfi_lock_params *params, struct hf_lock **ret,
                     struct hf_error *err)
{
    struct hfi_renewal item = {.ttl_ms = params->ttl_ms};
    struct hf_lock *lk = hfi_lock_new(c);
    struct hfi_grant *grant = NULL;
    bool ours = false;
    int64_t sent;
    hf_status st;

    hfi_handle_enter(c);
    st = lk ? detached_begin(c, key, handle, params, &grant, err)
            : hfi_nomem(err);
    if (st)
        goto out;
    st = detached_take_over(c, grant, handle, hfi_now() + c->timeout_ms, err);
    if (!st) {
        ours = true;
        if (c->be->take_over)
            hfi_sweep_drop(c, key, handle->token, st);
        hfi_handle_ask(c, grant, &item, hfi_now() + c->timeout_ms, &sent, err);
        st = item.st;
    }
    if (!st && hfi_now() >= hfi_grant_proven(c, grant, &item.proof, sent,
                                             params->ttl_ms))
        st = hfi_fail(err, HF_UNCERTAIN, "the answer came too late");
    if (st) {
        st = detached_unadopt(c, grant, st, ours, err);
        if (st == HF_LOST)
            st = ours ? detached_no_grant(key, err)
                      : detached_refused(c, key, handle, params, err);
        goto out;
    }
    hfi_grant_begin(c, grant, params, &item.proof, sent, params->ttl_ms);
    hfi_grant_give(c, grant, lk);
    *ret = lk;
    lk = NULL;
out:
    hfi_handle_leave(c);
    hfi_lock_free(lk);
    return st;
}

/* The bearer of a handle renews, and no more: nothing here believes in it. */
hf_status hfi_handle_extend(struct hf_client *c, const char *key,
                            const struct hf_handle *handle,
                            const struct hfi_lock_params *params,
                            struct hf_error *err)
{
    struct hfi_renewal item = {.ttl_ms = params->ttl_ms};
    struct hfi_grant *grant = NULL;
    int64_t sent;
    hf_status st;

    hfi_handle_enter(c);
    st = detached_begin(c, key, handle, params, &grant, err);
    if (!st) {
        detached_use_token(grant, handle);
        grant->claim.bearer = true;
        hfi_sweep_hold(c, grant);
        hfi_handle_ask(c, grant, &item, hfi_now() + c->timeout_ms, &sent, err);
        st = item.st;
        if (st == HF_LOST)
            st = detached_gone(key, item.reason, err);
        hfi_sweep_renewed(c, grant, item.st, sent);
    }
    hfi_handle_leave(c);
    return st;
}

hf_status hfi_handle_release(struct hf_client *c, const char *key,
                             const struct hf_handle *handle,
                             const struct hfi_lock_params *params,
                             struct hf_error *err)
{
    struct hfi_grant *grant = NULL;
    hf_status st;

    hfi_handle_enter(c);
    st = detached_begin(c, key, handle, params, &grant, err);
    if (!st) {
        detached_use_token(grant, handle);
        st = hfi_grant_send_release(c, grant, hfi_now() + c->timeout_ms, err);
        if (st == HF_UNCERTAIN || st == HF_UNAVAILABLE) {
            hfi_grant_reap(c, grant);
            st = HF_UNCERTAIN;
        } else {
            if (st == HF_LOST)
                st = detached_no_grant(key, err);
            hfi_sweep_drop(c, key, handle->token, st);
            hfi_grant_free(c, grant);
        }
    }
    hfi_handle_leave(c);
    return st;
}
