/* SPDX-License-Identifier: MIT
 *
 * check.c - what callers pass in: checked, and with all defaults filled in.
 */
#include "check.h"

#include "base/banned.h"

#define DURATION_MAX HFI_TTL_MAX

hf_status hfi_check_client(const struct hf_client *c, struct hf_error *err)
{
    if (!c)
        return hfi_fail(err, HF_INVALID, "no client was given");
    if (!*c->mark)
        return hfi_fail(err, HF_INVALID,
                        "this client belongs to another process; open a new "
                        "one after fork");
    return HF_OK;
}

hf_status hfi_check_lock(const struct hf_lock *lk, struct hf_error *err)
{
    return lk ? hfi_check_client(lk->client, err)
              : hfi_fail(err, HF_INVALID, "no lock was given");
}

hf_status hfi_check_key(const char *key, struct hf_error *err)
{
    if (!key || !*key)
        return hfi_fail(err, HF_INVALID, "a key has at least one byte");
    if (strnlen(key, HF_KEY_MAX + 1) > HF_KEY_MAX)
        return hfi_fail(err, HF_INVALID, "the key is longer than %d bytes",
                        HF_KEY_MAX);
    return HF_OK;
}

hf_status hfi_check_text(const char *text, size_t max, const char *name,
                         struct hf_error *err)
{
    if (text && strnlen(text, max + 1) > max)
        return hfi_fail(err, HF_INVALID, "the %s is longer than %zu bytes",
                        name, max);
    return HF_OK;
}

/* 0 for the default, or from `min` to about a year. */
hf_status hfi_check_duration(int64_t ms, int64_t min, const char *name,
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

static inline bool check_is_duration(int64_t ms, int64_t min)
{
    return !ms || (ms >= min && ms <= DURATION_MAX);
}

/* All are good, as nearly always. */
static inline bool check_are_durations(const struct hf_lock_opts *opts)
{
    return check_is_duration(opts->ttl_ms, HFI_TTL_MIN) &&
           check_is_duration(opts->retry_ms, 1) &&
           check_is_duration(opts->linger_ms, 1) &&
           opts->linger_ms <= INT32_MAX &&
           check_is_duration(opts->max_hold_ms, 1) &&
           check_is_duration(opts->min_hold_ms, 1);
}

/* Which one is wrong? */
static hf_status check_durations(const struct hf_lock_opts *opts,
                                 struct hf_error *err)
{
    hf_status st = hfi_check_duration(opts->ttl_ms, HFI_TTL_MIN, "ttl_ms", err);

    if (!st)
        st = hfi_check_duration(opts->retry_ms, 1, "retry_ms", err);
    if (!st && opts->linger_ms > INT32_MAX)
        st = hfi_fail(err, HF_INVALID, "linger_ms is more than %d", INT32_MAX);
    if (!st)
        st = hfi_check_duration(opts->linger_ms, 1, "linger_ms", err);
    if (!st)
        st = hfi_check_duration(opts->max_hold_ms, 1, "max_hold_ms", err);
    if (!st)
        st = hfi_check_duration(opts->min_hold_ms, 1, "min_hold_ms", err);
    return st;
}

static hf_status check_flags(const struct hf_lock_opts *opts,
                             struct hf_error *err)
{
    unsigned known = HF_MANUAL | HF_FAIR | HF_SHARED | HF_POLL;

    if (opts->flags & ~known)
        return hfi_fail(err, HF_INVALID, "unknown flags 0x%x",
                        opts->flags & ~known);
    if (opts->flags & HF_SHARED && opts->permits)
        return hfi_fail(err, HF_INVALID,
                        "a lock is shared or has permits, not both");
    if (opts->max_tries < 0)
        return hfi_fail(err, HF_INVALID, "max_tries is negative");
    if (opts->local_turns < -1)
        return hfi_fail(err, HF_INVALID, "local_turns is less than -1");
    if (opts->permits < 0)
        return hfi_fail(
            err, HF_INVALID,
            "permits is %d; it must be 0 for a plain lock, or 1 and "
            "more",
            (int)opts->permits);
    return HF_OK;
}

static hf_status check_opts(const struct hf_client *c,
                            const struct hf_lock_opts *opts,
                            struct hf_error *err)
{
    hf_status st = HF_OK;

    if (!check_are_durations(opts))
        st = check_durations(opts, err);
    if (!st)
        st = check_flags(opts, err);
    if (!st)
        st = hfi_check_text(opts->owner, HF_OWNER_MAX, "owner id", err);
    if (!st)
        st = hfi_check_text(opts->note, HF_NOTE_MAX, "note", err);
    if (!st && opts->owner && !*opts->owner)
        st = hfi_fail(err, HF_INVALID, "the owner id is empty");
    if (!st && opts->canceler && hfi_canceler_client(opts->canceler) != c)
        st = hfi_fail(err, HF_INVALID, "the canceler is of another client");
    return st;
}

hf_status hfi_params_read(struct hf_client *c, const struct hf_lock_opts *given,
                          struct hfi_lock_params *ret, struct hf_error *err)
{
    struct hf_lock_opts full;
    const struct hf_lock_opts *opts = given;
    hf_status st = HF_OK;

    *ret = c->defaults;
    ret->unchecked = atomic_load(&c->offline) != HFI_ONLINE;
    if (!given)
        return HF_OK;
    if (given->size != sizeof(full)) { /* of another version: rarely */
        st = hfi_struct_read(&full, sizeof(full), given, "hf_lock_opts", err);
        opts = &full;
    }
    if (!st)
        st = check_opts(c, opts, err);
    if (st)
        return st;
    ret->owner = opts->owner;
    ret->canceler = opts->canceler;
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

hf_status hfi_params_make(struct hf_client *c, const struct hf_lock_opts *given,
                          struct hfi_lock_params *ret, struct hf_error *err)
{
    hf_status st = hfi_params_read(c, given, ret, err);

    if (st || ret->unchecked ||
        !(ret->flags & HF_SHARED || ret->permits || ret->min_hold_ms))
        return st;
    return hfi_params_able(c, ret, err);
}

hf_status hfi_check_trait(struct hf_client *c, unsigned trait, const char *what,
                          struct hf_error *err)
{
    hf_status st = hfi_connect_await(c, err);

    if (st || c->conn->traits & trait)
        return st;
    return hfi_fail(err, HF_UNSUPPORTED, "%s: %s", c->conn->endpoint, what);
}
