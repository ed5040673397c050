/* SPDX-License-Identifier: MIT
 *
 * lock.c - the entry points about locks: take them, keep them, give them back,
 * leave them to others; as a call, and for an event loop.
 */
#include "check.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/banned.h"

static hf_status lock_check(struct hf_client *c, const char *key,
                            const void *ret, struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the lock was given");
    return st ? st : hfi_check_key(key, err);
}

static hf_status acquire_check(struct hf_client *c, const char *key,
                               int64_t wait_ms, const struct hf_lock_opts *opts,
                               const void *ret, struct hfi_lock_params *params,
                               struct hf_error *err)
{
    hf_status st = lock_check(c, key, ret, err);

    if (!st && wait_ms < -1)
        st = hfi_fail(err, HF_INVALID,
                      "wait_ms is %lld; -1 waits for ever, 0 does not wait",
                      (long long)wait_ms);
    if (!st)
        st = hfi_params_make(c, opts, params, err);
    return st;
}

hf_status hf_acquire(hf_client *c, const char *key, int64_t wait_ms,
                     const struct hf_lock_opts *opts, hf_lock **ret,
                     struct hf_error *err)
{
    struct hfi_lock_params params;
    hf_status st = acquire_check(c, key, wait_ms, opts, ret, &params, err);

    return st ? st : hfi_acquire(c, key, wait_ms, &params, ret, err);
}

hf_status hf_acquire_start(hf_client *c, const char *key, int64_t wait_ms,
                           const struct hf_lock_opts *opts, void *user,
                           hf_request **ret, struct hf_error *err)
{
    struct hfi_lock_params params;
    hf_status st = acquire_check(c, key, wait_ms, opts, ret, &params, err);

    return st ? st
              : hfi_acquire_start(c, key, wait_ms, &params, user, ret, err);
}

static hf_status several_check(struct hf_client *c, const char *const *keys,
                               size_t n, int64_t wait_ms,
                               const struct hf_lock_opts *opts,
                               struct hf_lock **locks, struct hfi_several **ret,
                               struct hf_error *err)
{
    struct hfi_lock_params params;
    hf_status st = HF_OK;
    size_t i;

    if (!keys || !n)
        return hfi_fail(err, HF_INVALID, "no key was given");
    for (i = 0; i < n && !st; i++)
        st = acquire_check(c, keys[i], wait_ms, opts, locks, &params, err);
    return st ? st : hfi_several_new(c, keys, n, &params, locks, ret, err);
}

hf_status hf_acquire_all(hf_client *c, const char *const *keys, size_t n,
                         int64_t wait_ms, const struct hf_lock_opts *opts,
                         hf_lock **locks, struct hf_error *err)
{
    struct hfi_several *several;
    hf_status st =
        several_check(c, keys, n, wait_ms, opts, locks, &several, err);

    return st ? st : hfi_acquire_all(c, several, wait_ms, err);
}

hf_status hf_acquire_all_start(hf_client *c, const char *const *keys, size_t n,
                               int64_t wait_ms, const struct hf_lock_opts *opts,
                               hf_lock **locks, void *user, hf_request **ret,
                               struct hf_error *err)
{
    struct hfi_several *several;
    hf_status st =
        ret ? several_check(c, keys, n, wait_ms, opts, locks, &several, err)
            : hfi_fail(err, HF_INVALID, "no place for the request was given");

    return st ? st : hfi_acquire_all_start(c, several, wait_ms, user, ret, err);
}

hf_status hf_release(hf_lock *lk, struct hf_error *err)
{
    hf_status st = hfi_check_lock(lk, err);

    return st ? st : hfi_release(lk, err);
}

hf_status hf_extend(hf_lock *lk, int64_t ttl_ms, struct hf_error *err)
{
    hf_status st = hfi_check_lock(lk, err);

    if (!st)
        st = hfi_check_duration(ttl_ms, HFI_TTL_MIN, "ttl_ms", err);
    return st ? st : hfi_extend(lk, ttl_ms, err);
}

bool hf_held(const hf_lock *lk)
{
    return lk && *lk->client->mark && hfi_held(lk->grant);
}

hf_loss hf_lost_reason(const hf_lock *lk)
{
    hf_loss reason;

    if (!lk || hf_held(lk))
        return HF_LOSS_NONE;
    reason = (hf_loss)atomic_load(&lk->grant->loss);
    if (reason)
        return reason;
    /* Past its deadline, and the keeper has not come to say so yet. */
    return hfi_now() >= atomic_load(&lk->grant->hold_end) ? HF_LOSS_MAX_HOLD
                                                          : HF_LOSS_EXPIRED;
}

int64_t hf_remaining_ms(const hf_lock *lk)
{
    int64_t deadline;

    if (!hf_held(lk))
        return 0;
    deadline = atomic_load(&lk->grant->deadline);
    return deadline == HFI_NEVER ? INT64_MAX : hfi_left_ms(deadline);
}

uint64_t hf_fence(const hf_lock *lk)
{
    return lk ? lk->grant->receipt.fence : 0;
}

int32_t hf_slot(const hf_lock *lk)
{
    return lk && lk->grant->claim.permits ? lk->grant->receipt.slot : -1;
}

hf_status hf_downgrade(hf_lock *lk, struct hf_error *err)
{
    hf_status st = hfi_check_lock(lk, err);

    if (!st && !lk->client->be->downgrade)
        st = hfi_fail(err, HF_UNSUPPORTED, "%s: cannot downgrade a lock",
                      lk->client->conn->endpoint);
    return st ? st : hfi_downgrade(lk, err);
}

hf_status hf_transfer(hf_lock *lk, const char *heir, struct hf_error *err)
{
    hf_status st = hfi_check_lock(lk, err);

    if (!st && (!heir || !*heir))
        st = hfi_fail(err, HF_INVALID, "no name of the heir was given");
    if (!st)
        st = hfi_check_text(heir, HF_NOTE_MAX, "name of the heir", err);
    if (!st && !lk->client->be->promote)
        st = hfi_fail(err, HF_UNSUPPORTED,
                      "%s: has no queue that could be changed",
                      lk->client->conn->endpoint);
    return st ? st : hfi_transfer(lk, heir, err);
}

const char *hf_token(const hf_lock *lk)
{
    const struct hfi_claim *claim;

    if (!lk)
        return "";
    claim = &lk->grant->claim;
    return claim->owner && lk->client->conn->traits & HF_TRAIT_NOTED
               ? claim->owner
               : claim->token;
}

const char *hf_key(const hf_lock *lk)
{
    return lk ? lk->grant->claim.key : "";
}

int hf_lost_fd(hf_lock *lk)
{
    const uint64_t one = 1;
    struct hf_client *c;
    int fd;

    if (hfi_check_lock(lk, NULL))
        return -1;
    c = lk->client;
    pthread_mutex_lock(&c->mu);
    if (lk->lost_fd < 0) {
        lk->lost_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (lk->lost_fd >= 0 && atomic_load(&lk->grant->loss) &&
            write(lk->lost_fd, &one, sizeof(one)) < 0) {
            close(lk->lost_fd);
            lk->lost_fd = -1;
        }
    }
    fd = lk->lost_fd;
    pthread_mutex_unlock(&c->mu);
    return fd;
}

static const char no_detach[] =
    "a lock here cannot outlive the process that took it";

hf_status hf_detach(hf_lock *lk, struct hf_handle *ret, struct hf_error *err)
{
    struct hf_handle full = HF_HANDLE_INIT;
    hf_status st = hfi_check_lock(lk, err);

    if (st)
        return st;
    if (!ret)
        st = hfi_fail(err, HF_INVALID, "no place for the handle was given");
    else
        st = hfi_check_size(ret, "hf_handle", err);
    if (!st)
        st = hfi_check_trait(lk->client, HF_TRAIT_DETACH, no_detach, err);
    if (st) {
        hfi_release(lk, NULL);
        return st;
    }
    st = hfi_detach(lk, &full, err);
    if (!st)
        hfi_struct_write(ret, &full, sizeof(full));
    return st;
}

static hf_status check_handle(struct hf_client *c, const char *key,
                              const struct hf_handle *given,
                              const struct hf_lock_opts *opts, const void *ret,
                              struct hf_handle *handle,
                              struct hfi_lock_params *params,
                              struct hf_error *err)
{
    hf_status st = lock_check(c, key, ret, err);

    if (!st)
        st = hfi_params_read(c, opts, params, err);
    if (!st && !given)
        st = hfi_fail(err, HF_INVALID, "no handle was given");
    if (!st)
        st = hfi_struct_read(handle, sizeof(*handle), given, "hf_handle", err);
    if (!st)
        st = hfi_check_trait(c, HF_TRAIT_DETACH, no_detach, err);
    if (!st && (strnlen(handle->token, sizeof(handle->token)) != HFI_TOKEN_LEN))
        st = hfi_fail(err, HF_INVALID, "the handle has no valid token");
    return st;
}

/* The same for what is done without taking the lock up.  Which lock it is, the
 * handle says; what the options say of it is a hint where to look first, and none
 * about locks that the service does not have. */
static hf_status check_bearer(struct hf_client *c, const char *key,
                              const struct hf_handle *given,
                              const struct hf_lock_opts *opts,
                              struct hf_handle *handle,
                              struct hfi_lock_params *params,
                              struct hf_error *err)
{
    hf_status st = check_handle(c, key, given, opts, c, handle, params, err);

    if (st)
        return st;
    params->min_hold_ms = 0;
    if (!(c->conn->traits & HF_TRAIT_SHARED))
        params->flags &= ~(unsigned)HF_SHARED;
    if (!(c->conn->traits & HF_TRAIT_PERMITS))
        params->permits = 0;
    return HF_OK;
}

hf_status hf_attach(hf_client *c, const char *key,
                    const struct hf_handle *given,
                    const struct hf_lock_opts *opts, hf_lock **ret,
                    struct hf_error *err)
{
    struct hfi_lock_params params;
    struct hf_handle handle;
    hf_status st =
        check_handle(c, key, given, opts, ret, &handle, &params, err);

    if (!st)
        st = hfi_params_able(c, &params, err);
    return st ? st : hfi_attach(c, key, &handle, &params, ret, err);
}

hf_status hf_handle_extend(hf_client *c, const char *key,
                           const struct hf_handle *given,
                           const struct hf_lock_opts *opts,
                           struct hf_error *err)
{
    struct hfi_lock_params params;
    struct hf_handle handle;
    hf_status st = check_bearer(c, key, given, opts, &handle, &params, err);

    return st ? st : hfi_handle_extend(c, key, &handle, &params, err);
}

hf_status hf_handle_release(hf_client *c, const char *key,
                            const struct hf_handle *given,
                            const struct hf_lock_opts *opts,
                            struct hf_error *err)
{
    struct hfi_lock_params params;
    struct hf_handle handle;
    hf_status st = check_bearer(c, key, given, opts, &handle, &params, err);

    return st ? st : hfi_handle_release(c, key, &handle, &params, err);
}

/* ---- for event loops --------------------------------------------------- */

void hf_request_cancel(hf_request *rq)
{
    struct hf_client *c;

    if (!rq || hfi_check_client(rq->client, NULL))
        return;
    c = rq->client;
    pthread_mutex_lock(&c->mu);
    rq->canceled = true;
    if (rq->job)
        hfi_job_cancel(rq);
    else if (rq->state == HFI_WAITING || rq->state == HFI_CONTENDING)
        hfi_request_inspect(rq);
    pthread_mutex_unlock(&c->mu);
}

int32_t hf_request_place(const hf_request *rq)
{
    return rq ? atomic_load(&rq->position) : 0;
}

int hf_events_fd(hf_client *c)
{
    return hfi_check_client(c, NULL) ? -1 : hfi_notice_fd(c);
}

void hf_lend(hf_client *c)
{
    if (!hfi_check_client(c, NULL))
        hfi_lend(c);
}

bool hf_work(hf_client *c)
{
    return !hfi_check_client(c, NULL) && hfi_work(c);
}

bool hf_next_event(hf_client *c, struct hf_event *ret)
{
    struct hf_event full;

    if (hfi_check_client(c, NULL) || !ret ||
        hfi_check_size(ret, "hf_event", NULL) || !hfi_notice_take(c, &full))
        return false;
    hfi_struct_write(ret, &full, sizeof(full));
    return true;
}
