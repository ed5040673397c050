/* SPDX-License-Identifier: MIT
 *
 * use.c - the public header, alone, in the C and C++ of other people.
 *
 * Compiled, not run, once for each language and compiler: the header must need
 * nothing included before it, and its macros must be good initialisers in all
 * of them.
 */
#include "holdfast.h"

#include "holdfast.h"

extern int use(int argc);

static const int versions[] = {HF_VERSION_MAJOR, HF_VERSION_MINOR,
                               HF_VERSION_PATCH};

HF_CHECK static int checked(int value)
{
    return value;
}

static bool each(void *arg, const char *key, const struct hf_info *info)
{
    return arg && key && info->held;
}

static bool kind(void *arg, const struct hf_service_kind *one)
{
    return arg && one->missing[0] == '\0' && one->traits & ~one->varies;
}

static bool holder(void *arg, const struct hf_info *one)
{
    return arg && one->kept && one->permits > one->slot;
}

static bool waiter(void *arg, const struct hf_waiter *one)
{
    return arg && one->shared && one->since_ms > one->left_ms;
}

static hf_status look(hf_client *client, hf_lock *lk, struct hf_error *err)
{
    struct hf_collected gone = HF_COLLECTED_INIT;
    struct hf_info info = HF_INFO_INIT;
    struct hf_service about;
    hf_status st;

    about.size = sizeof(about);
    st = hf_describe(client, &about, err);
    if (st || !(about.traits & (HF_TRAIT_FENCED | HF_TRAIT_MACHINES)))
        return st;
    st = hf_services(kind, &about, err);
    if (!st)
        st = hf_inspect(client, hf_key(lk), &info, err);
    if (!st)
        st = hf_list(client, hf_token(lk), each, &info, err);
    if (!st)
        st = hf_holders(client, "k", holder, &info, err);
    if (!st)
        st = hf_waiters(client, "k", waiter, &info, err);
    if (!st)
        st = hf_check(client, "k", info.fence, err);
    if (!st)
        st = hf_break(client, "k", info.fence, err);
    if (!st)
        st = hf_collect(client, 0, true, &gone, err);
    return st;
}

static hf_status pass_on(hf_client *client, hf_lock *lk, hf_lock **ret,
                         struct hf_error *err)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_status st = hf_detach(lk, &handle, err);

    opts.flags = HF_MANUAL | HF_FAIR | HF_SHARED | HF_POLL;
    opts.permits = hf_slot(lk);
    opts.min_hold_ms = 0;
    if (!st)
        st = hf_downgrade(lk, err);
    if (!st)
        st = hf_transfer(lk, "heir", err);
    return st ? st : hf_attach(client, "k", &handle, &opts, ret, err);
}

static int loop(hf_client *client, struct hf_error *err)
{
    const char *keys[] = {"k"};
    hf_lock *locks[1];
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req;

    if (hf_acquire_start(client, "k", -1, NULL, client, &req, err))
        return hf_request_place(req);
    if (hf_acquire_all(client, keys, 1, 0, NULL, locks, err) ||
        hf_acquire_all_start(client, keys, 1, 0, NULL, locks, NULL, &req, err))
        return 1;
    hf_request_cancel(req);
    while (hf_events_fd(client) >= 0 && hf_next_event(client, &event))
        if (event.type == HF_GRANTED || event.type == HF_GONE)
            return hf_release(event.lock, NULL) == HF_OK;
    return event.type == HF_FAILED || event.type == HF_AT_RISK;
}

static int watch(hf_client *client, struct hf_error *err)
{
    struct hf_change change = HF_CHANGE_INIT;
    hf_observer *observer;
    int held = 0;

    if (hf_observe_start(client, "jobs/", HF_PREFIX, &held, &observer, err))
        return 0;
    while (hf_observer_next(observer, &change))
        held += change.info.held && change.key[0];
    hf_observe_stop(observer);
    return held;
}

int use(int argc)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    char key[HF_KEY_MAX + HF_OWNER_MAX + HF_NOTE_MAX];
    struct hf_error err;
    hf_client *client;
    hf_lock *lk;

    key[0] = 0;
    if (hf_open(hf_version(), &opts, &client, &err) ||
        hf_acquire(client, key, 0, NULL, &lk, &err))
        return hf_status_name(err.status)[0] + checked(versions[argc % 3]);
    if (hf_held(lk) && hf_remaining_ms(lk) && hf_fence(lk) && !hf_lost_fd(lk))
        argc += look(client, lk, &err) + pass_on(client, lk, &lk, &err);
    hf_cancel(client);
    argc += hf_loss_name(hf_lost_reason(lk))[0] + hf_extend(lk, 0, &err);
    hf_release(lk, NULL);
    argc += loop(client, &err) + watch(client, &err);
    hf_close(client);
    return argc;
}
