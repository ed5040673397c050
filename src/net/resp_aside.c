/* SPDX-License-Identifier: MIT
 *
 * resp_aside.c - a second connection for what must not wait behind others.
 *
 * A renewal that stands behind many acquisitions, or behind a call that
 * the server is slow to answer, may cost a lock.  On one connection requests
 * are served in order, so only what is ahead of it can delay it: where nothing
 * is, the shared connection is as good as one of its own.  The other one is
 * made when a renewal first finds the shared one in use or being connected, and
 * has an attempt to connect, and a back-off, of its own.  Where that fails, or the
 * connection was made and never answered, as by a server that has no more to give,
 * the shared one serves for a while: behind others is better than not at all.
 */
#include "resp_wire.h"

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

void hfi_mux_set_aside(struct hfi_mux *mux, hfi_mux_handshake *handshake)
{
    mux->aside_handshake = handshake;
}

/* Would a call that begins now be the first to be served, and be connected by
 * nobody else? */
static bool mux_is_calm(struct hfi_mux *mux)
{
    struct hfi_shared *shared = &mux->shared;
    bool calm;

    pthread_mutex_lock(&shared->mu);
    calm = shared->link ? hfi_link_alone(&shared->link->calls)
                        : !shared->connecting && !shared->backoff.ms;
    pthread_mutex_unlock(&shared->mu);
    return calm;
}

/* Where to begin what must not wait. */
static struct hfi_mux *mux_first(struct hfi_mux *mux)
{
    struct hfi_mux *aside = atomic_load(&mux->aside), *made;

    if (!mux->aside_handshake || mux_is_calm(mux))
        return mux;
    if (aside)
        return hfi_left_ms(atomic_load(&aside->unheard_until)) &&
                       hfi_mux_is_up(mux)
                   ? mux
                   : aside;
    made = hfi_alloc(sizeof(*made));
    if (!made)
        return mux;
    hfi_mux_init(made, mux->find, mux->aside_handshake, mux->arg);
    if (atomic_compare_exchange_strong(&mux->aside, &aside, made))
        return made;
    hfi_mux_fini(made); /* Somebody was faster. */
    hfi_free(made);
    return aside;
}

hf_status hfi_mux_begin_first(struct hfi_mux *mux, struct hfi_mux_call *call,
                              const char *bytes, size_t len, int n,
                              redisReply **replies, int64_t deadline,
                              struct hf_error *err)
{
    struct hfi_mux *first = mux_first(mux);
    hf_status st =
        hfi_mux_begin(first, call, bytes, len, n, replies, deadline, err);

    if (st == HF_UNAVAILABLE && first != mux && hfi_left_ms(deadline) &&
        hfi_mux_is_up(mux))
        st = hfi_mux_begin(mux, call, bytes, len, n, replies, deadline, err);
    return st;
}
