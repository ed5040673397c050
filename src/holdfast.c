/* SPDX-License-Identifier: MIT
 *
 * holdfast.c - the entry points: check arguments, fill in defaults, call the
 * core.
 *
 * Nothing below this file sees a NULL, a struct of the wrong size, a key that
 * is too long or a handle of another process.
 */
#include "core/core.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "config.h"

#include "base/banned.h"

#define DURATION_MAX HFI_TTL_MAX

const char *hf_version(void)
{
    return HFI_VERSION;
}

/* ---- checks ------------------------------------------------------------ */

static hf_status check_size(size_t got, size_t want, const char *name,
                            struct hf_error *err)
{
    if (got == want)
        return HF_OK;
    return hfi_fail(err, HF_INVALID,
                    "%s.size is %zu, not %zu: set it with the header's macro",
                    name, got, want);
}

static hf_status check_client(const struct hf_client *c, struct hf_error *err)
{
    if (!c)
        return hfi_fail(err, HF_INVALID, "no client was given");
    if (!*c->mark)
        return hfi_fail(err, HF_INVALID,
                        "this client belongs to another process; open a new "
                        "one after fork");
    return HF_OK;
}

static hf_status check_lock(const struct hf_lock *lk, struct hf_error *err)
{
    return lk ? check_client(lk->client, err)
              : hfi_fail(err, HF_INVALID, "no lock was given");
}

static hf_status check_key(const char *key, struct hf_error *err)
{
    if (!key || !*key)
        return hfi_fail(err, HF_INVALID, "a key has at least one byte");
    if (strnlen(key, HF_KEY_MAX + 1) > HF_KEY_MAX)
        return hfi_fail(err, HF_INVALID, "the key is longer than %d bytes",
                        HF_KEY_MAX);
    return HF_OK;
}

static hf_status check_text(const char *text, size_t max, const char *name,
                            struct hf_error *err)
{
    if (text && strnlen(text, max + 1) > max)
        return hfi_fail(err, HF_INVALID, "the %s is longer than %zu bytes",
                        name, max);
    return HF_OK;
}

/* 0 for the default, or from `min` to about a year. */
static hf_status check_duration(int64_t ms, int64_t min, const char *name,
                                struct hf_error *err)
{
    if (ms == 0 || (ms >= min && ms <= DURATION_MAX))
        return HF_OK;
    return hfi_fail(err, HF_INVALID,
                    "%s is %lld; it must be 0 for the default, or from %lld "
                    "to %lld",
                    name, (long long)ms, (long long)min,
                    (long long)DURATION_MAX);
}

static hf_status check_durations(const struct hf_lock_opts *opts,
                                 struct hf_error *err)
{
    hf_status st = check_duration(opts->ttl_ms, HFI_TTL_MIN, "ttl_ms", err);

    if (!st)
        st = check_duration(opts->retry_ms, 1, "retry_ms", err);
    if (!st && opts->linger_ms > INT32_MAX)
        st = hfi_fail(err, HF_INVALID, "linger_ms is more than %d", INT32_MAX);
    if (!st)
        st = check_duration(opts->linger_ms, 1, "linger_ms", err);
    if (!st)
        st = check_duration(opts->max_hold_ms, 1, "max_hold_ms", err);
    if (!st)
        st = check_duration(opts->min_hold_ms, 1, "min_hold_ms", err);
    return st;
}

static hf_status check_flags(const struct hf_client *c,
                             const struct hf_lock_opts *opts,
                             struct hf_error *err)
{
    unsigned known = HF_MANUAL | HF_FAIR | HF_SHARED | HF_POLL;

    if (opts->flags & ~known)
        return hfi_fail(err, HF_INVALID, "unknown flags 0x%x",
                        opts->flags & ~known);
    if (opts->flags & HF_SHARED && !(c->conn->traits & HF_TRAIT_SHARED))
        return hfi_fail(err, HF_UNSUPPORTED, "%s: has no shared locks",
                        c->conn->endpoint);
    if (opts->flags & HF_SHARED && opts->permits)
        return hfi_fail(err, HF_INVALID,
                        "a lock is shared or has permits, not both");
    if (opts->max_tries < 0)
        return hfi_fail(err, HF_INVALID, "max_tries is negative");
    if (opts->local_turns < -1)
        return hfi_fail(err, HF_INVALID, "local_turns is less than -1");
    return HF_OK;
}

/* Can the service do what is asked for?  `why` is what it says if not. */
static hf_status check_able(const struct hf_client *c, unsigned trait,
                            const char *what, const char *why,
                            struct hf_error *err)
{
    if (c->conn->traits & trait)
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED, "%s: has no %s%s%s", c->conn->endpoint,
                    what, why ? ": " : "", why ? why : "");
}

static hf_status check_sharing(const struct hf_client *c,
                               const struct hf_lock_opts *opts,
                               struct hf_error *err)
{
    hf_status st = HF_OK;

    if (opts->permits < 0)
        return hfi_fail(
            err, HF_INVALID,
            "permits is %d; it must be 0 for a plain lock, or 1 and "
            "more",
            (int)opts->permits);
    if (opts->permits)
        st = check_able(c, HF_TRAIT_PERMITS, "permits", c->be->no_permits, err);
    if (!st && opts->min_hold_ms)
        st = check_able(c, HF_TRAIT_MIN_HOLD, "minimum hold",
                        c->be->no_min_hold, err);
    return st;
}

static hf_status check_opts(const struct hf_client *c,
                            const struct hf_lock_opts *opts,
                            struct hf_error *err)
{
    hf_status st = check_size(opts->size, sizeof(*opts), "hf_lock_opts", err);

    if (!st)
        st = check_durations(opts, err);
    if (!st)
        st = check_flags(c, opts, err);
    if (!st)
        st = check_sharing(c, opts, err);
    if (!st)
        st = check_text(opts->owner, HF_OWNER_MAX, "owner id", err);
    if (!st)
        st = check_text(opts->note, HF_NOTE_MAX, "note", err);
    if (!st && opts->owner && !*opts->owner)
        st = hfi_fail(err, HF_INVALID, "the owner id is empty");
    return st;
}

/* Options over the client's defaults. */
static hf_status params_make(struct hf_client *c,
                             const struct hf_lock_opts *opts,
                             struct hfi_lock_params *ret, struct hf_error *err)
{
    hf_status st;

    *ret = c->defaults;
    if (!opts)
        return HF_OK;
    st = check_opts(c, opts, err);
    if (st)
        return st;
    ret->owner = opts->owner;
    ret->flags |= opts->flags;
    ret->linger_ms = opts->linger_ms;
    ret->max_hold_ms = opts->max_hold_ms;
    ret->min_hold_ms = opts->min_hold_ms;
    ret->permits = opts->permits;
    if (opts->note)
        ret->note = opts->note;
    if (opts->ttl_ms)
        ret->ttl_ms = opts->ttl_ms;
    if (opts->retry_ms)
        ret->retry_ms = opts->retry_ms;
    if (opts->max_tries)
        ret->max_tries = opts->max_tries;
    if (opts->local_turns)
        ret->local_turns =
            opts->local_turns < 0 ? INT32_MAX : opts->local_turns;
    return HF_OK;
}

/* ---- client ------------------------------------------------------------ */

hf_status hf_open(const char *text, const struct hf_client_opts *opts,
                  hf_client **ret, struct hf_error *err)
{
    const struct hfi_backend *be;
    struct hfi_url url;
    hf_status st = HF_OK;

    if (!ret)
        return hfi_fail(err, HF_INVALID, "no place for the client was given");
    if (opts) {
        st = check_size(opts->size, sizeof(*opts), "hf_client_opts", err);
        if (!st)
            st = check_duration(opts->timeout_ms, 1, "timeout_ms", err);
        if (!st)
            st = check_text(opts->note, HF_NOTE_MAX, "note", err);
    }
    if (!st && text && !*text)
        st = hfi_fail(err, HF_INVALID,
                      "the url is empty: name a service, such as "
                      "redis://host, or file: for this machine");
    if (!st)
        st = hfi_url_parse(&url, text ? text : "file:", err);
    if (st)
        return st;
    st = hfi_backend_find(url.scheme, &be, err);
    if (!st)
        st = hfi_open_with(be, &url, opts, ret, err);
    hfi_url_fini(&url);
    return st;
}

void hf_close(hf_client *c)
{
    if (c && *c->mark)
        hfi_close(c);
    else if (c)
        hfi_after_fork_child(c);
}

void hf_cancel(hf_client *c)
{
    if (!c || !*c->mark)
        return;
    atomic_fetch_add(&c->cancels, 1);
    hfi_notifier_notify(&c->notifier);
}

hf_status hf_describe(hf_client *c, struct hf_service *ret,
                      struct hf_error *err)
{
    const char *const *scheme;
    hf_status st = check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the answer was given");
    if (!st)
        st = check_size(ret->size, sizeof(*ret), "hf_service", err);
    if (st)
        return st;
    scheme = c->be->schemes;
    ret->traits = c->conn->traits & HFI_TRAITS_PUBLIC;
    ret->ttl_ms = c->defaults.ttl_ms;
    snprintf(ret->scheme, sizeof(ret->scheme), "%s", *scheme);
    snprintf(ret->endpoint, sizeof(ret->endpoint), "%s", c->conn->endpoint);
    pthread_mutex_lock(&c->mu);
    snprintf(ret->warning, sizeof(ret->warning), "%s", c->conn->warning);
    pthread_mutex_unlock(&c->mu);
    return HF_OK;
}

hf_status hf_services(hf_services_fn *fn, void *arg, struct hf_error *err)
{
    if (!fn)
        return hfi_fail(err, HF_INVALID, "no function was given");
    hfi_backend_each(fn, arg);
    return HF_OK;
}

/* ---- locks ------------------------------------------------------------- */

static hf_status acquire_check(struct hf_client *c, const char *key,
                               int64_t wait_ms, const struct hf_lock_opts *opts,
                               const void *ret, struct hfi_lock_params *params,
                               struct hf_error *err)
{
    hf_status st = check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the lock was given");
    if (!st)
        st = check_key(key, err);
    if (!st && wait_ms < -1)
        st = hfi_fail(err, HF_INVALID,
                      "wait_ms is %lld; -1 waits for ever, 0 does not wait",
                      (long long)wait_ms);
    if (!st)
        st = params_make(c, opts, params, err);
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
    hf_status st = check_lock(lk, err);

    return st ? st : hfi_release(lk, err);
}

hf_status hf_extend(hf_lock *lk, int64_t ttl_ms, struct hf_error *err)
{
    hf_status st = check_lock(lk, err);

    if (!st)
        st = check_duration(ttl_ms, HFI_TTL_MIN, "ttl_ms", err);
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
    hf_status st = check_lock(lk, err);

    if (!st && !lk->client->be->downgrade)
        st = hfi_fail(err, HF_UNSUPPORTED, "%s: cannot downgrade a lock",
                      lk->client->conn->endpoint);
    return st ? st : hfi_downgrade(lk, err);
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

    if (check_lock(lk, NULL))
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

static hf_status check_trait(const struct hf_client *c, unsigned trait,
                             const char *what, struct hf_error *err)
{
    if (c->conn->traits & trait)
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED, "%s: %s", c->conn->endpoint, what);
}

static const char no_detach[] =
    "a lock here cannot outlive the process that took it";

hf_status hf_detach(hf_lock *lk, struct hf_handle *ret, struct hf_error *err)
{
    hf_status st = check_lock(lk, err);

    if (st)
        return st;
    if (!ret)
        st = hfi_fail(err, HF_INVALID, "no place for the handle was given");
    else
        st = check_trait(lk->client, HF_TRAIT_DETACH, no_detach, err);
    if (!st)
        return hfi_detach(lk, ret, err);
    hfi_release(lk, NULL);
    return st;
}

static hf_status check_handle(struct hf_client *c, const char *key,
                              const struct hf_handle *handle,
                              const struct hf_lock_opts *opts, const void *ret,
                              struct hfi_lock_params *params,
                              struct hf_error *err)
{
    hf_status st = acquire_check(c, key, 0, opts, ret, params, err);

    if (!st && !handle)
        st = hfi_fail(err, HF_INVALID, "no handle was given");
    if (!st)
        st = check_trait(c, HF_TRAIT_DETACH, no_detach, err);
    if (!st && (strnlen(handle->token, sizeof(handle->token)) != HFI_TOKEN_LEN))
        st = hfi_fail(err, HF_INVALID, "the handle has no valid token");
    return st;
}

hf_status hf_attach(hf_client *c, const char *key,
                    const struct hf_handle *handle,
                    const struct hf_lock_opts *opts, hf_lock **ret,
                    struct hf_error *err)
{
    struct hfi_lock_params params;
    hf_status st = check_handle(c, key, handle, opts, ret, &params, err);

    return st ? st : hfi_attach(c, key, handle, &params, ret, err);
}

hf_status hf_handle_extend(hf_client *c, const char *key,
                           const struct hf_handle *handle,
                           const struct hf_lock_opts *opts,
                           struct hf_error *err)
{
    struct hfi_lock_params params;
    hf_status st = check_handle(c, key, handle, opts, c, &params, err);

    return st ? st : hfi_handle_extend(c, key, handle, &params, err);
}

hf_status hf_handle_release(hf_client *c, const char *key,
                            const struct hf_handle *handle,
                            const struct hf_lock_opts *opts,
                            struct hf_error *err)
{
    struct hfi_lock_params params;
    hf_status st = check_handle(c, key, handle, opts, c, &params, err);

    return st ? st : hfi_handle_release(c, key, handle, &params, err);
}

/* ---- looking and mending ------------------------------------------------ */

static hf_status look(struct hf_client *c, const char *key, struct hf_info *ret,
                      struct hf_error *err)
{
    *ret = (struct hf_info){.size = sizeof(*ret),
                            .left_ms = -1,
                            .since_ms = -1,
                            .waiters = -1,
                            .slot = -1};
    if (!c->be->inspect)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: cannot be looked into",
                        c->conn->endpoint);
    return c->be->inspect(c->conn, key, ret, hfi_now() + c->timeout_ms, err);
}

hf_status hf_inspect(hf_client *c, const char *key, struct hf_info *ret,
                     struct hf_error *err)
{
    hf_status st = check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the answer was given");
    if (!st)
        st = check_size(ret->size, sizeof(*ret), "hf_info", err);
    if (!st)
        st = check_key(key, err);
    return st ? st : look(c, key, ret, err);
}

hf_status hf_holders(hf_client *c, const char *key, hf_holders_fn *fn,
                     void *arg, struct hf_error *err)
{
    hf_status st = check_client(c, err);
    struct hf_info info;

    if (!st && !fn)
        st = hfi_fail(err, HF_INVALID, "no function to call was given");
    if (!st)
        st = check_key(key, err);
    if (st)
        return st;
    if (c->be->holders)
        return c->be->holders(c->conn, key, fn, arg, hfi_now() + c->timeout_ms,
                              err);
    st = look(c, key, &info, err); /* There is one at most. */
    if (!st && info.held)
        fn(arg, &info);
    return st;
}

hf_status hf_list(hf_client *c, const char *prefix, hf_list_fn *fn, void *arg,
                  struct hf_error *err)
{
    hf_status st = check_client(c, err);

    if (!st && !fn)
        st = hfi_fail(err, HF_INVALID, "no function to call was given");
    if (!st && !c->be->list)
        st = hfi_fail(err, HF_UNSUPPORTED, "%s: cannot list locks",
                      c->conn->endpoint);
    /* No key is that long, and no backend has room for it. */
    if (st || (prefix && strlen(prefix) > HF_KEY_MAX))
        return st;
    return c->be->list(c->conn, prefix ? prefix : "", fn, arg,
                       hfi_now() + c->timeout_ms, err);
}

static hf_status check_break(struct hf_client *c, const char *key,
                             uint64_t fence, struct hf_error *err)
{
    hf_status st = check_client(c, err);

    if (!st)
        st = check_key(key, err);
    if (!st)
        st = check_trait(c, HF_TRAIT_BREAK, "cannot break locks", err);
    if (!st && !fence)
        st = hfi_fail(err, HF_INVALID,
                      "break needs the fence of the grant that was looked at");
    return st;
}

hf_status hf_break(hf_client *c, const char *key, uint64_t fence,
                   struct hf_error *err)
{
    hf_status st = check_break(c, key, fence, err);

    return st ? st
              : c->be->break_grant(c->conn, key, fence,
                                   hfi_now() + c->timeout_ms, err);
}

hf_status hf_break_force(hf_client *c, const char *key, uint64_t fence,
                         struct hf_error *err)
{
    hf_status st = check_break(c, key, fence, err);

    if (!st && !c->be->free_grant)
        st = hfi_fail(err, HF_UNSUPPORTED, "%s: cannot free a lock by force",
                      c->conn->endpoint);
    return st ? st
              : c->be->free_grant(c->conn, key, fence,
                                  hfi_now() + c->timeout_ms, err);
}

/* Of several holders, the one that hf_check() asks about. */
struct check_which {
    uint64_t fence;
    struct hf_info *info;
};

static bool check_holder(void *arg, const struct hf_info *holder)
{
    const struct check_which *which = arg;

    if (holder->fence != which->fence)
        return true;
    *which->info = *holder;
    return false;
}

hf_status hf_check(hf_client *c, const char *key, uint64_t fence,
                   struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];
    struct hf_info info;
    struct check_which which = {fence, &info};
    hf_status st = check_client(c, err);

    if (!st)
        st = check_key(key, err);
    if (!st)
        st = look(c, key, &info, err);
    if (!st && info.held && info.fence != fence && c->be->holders)
        st = c->be->holders(c->conn, key, check_holder, &which,
                            hfi_now() + c->timeout_ms, err);
    if (st)
        return st;
    if (info.held && fence && info.fence == fence && info.left_ms &&
        !info.broken)
        return HF_OK;
    if (info.held && info.fence == fence && info.broken)
        return hfi_fail(
            err, HF_LOST, "'%s': the grant with fence %llu was broken",
            hfi_quote(quoted, sizeof(quoted), key), (unsigned long long)fence);
    return hfi_fail(err, HF_LOST, "'%s' is %s%s, no longer under fence %llu",
                    hfi_quote(quoted, sizeof(quoted), key),
                    info.held ? "held by " : "free", info.owner,
                    (unsigned long long)fence);
}

/* ---- for event loops --------------------------------------------------- */

void hf_request_cancel(hf_request *rq)
{
    struct hf_client *c;

    if (!rq || check_client(rq->client, NULL))
        return;
    c = rq->client;
    pthread_mutex_lock(&c->mu);
    rq->canceled = true;
    if (rq->state == HFI_WAITING || rq->state == HFI_CONTENDING)
        hfi_request_inspect(rq);
    pthread_mutex_unlock(&c->mu);
}

int32_t hf_request_place(const hf_request *rq)
{
    return rq ? atomic_load(&rq->position) : 0;
}

int hf_events_fd(hf_client *c)
{
    return check_client(c, NULL) ? -1 : hfi_notice_fd(c);
}

bool hf_next_event(hf_client *c, struct hf_event *ret)
{
    return !check_client(c, NULL) && ret && hfi_notice_take(c, ret);
}
