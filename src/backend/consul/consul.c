/* SPDX-License-Identifier: MIT
 *
 * consul.c - locks on Consul: sessions, the key-value store, blocking queries.
 *
 * ON THE WIRE  The lock K is the entry K of the store (K/.lock with layout=cli,
 *   as `consul lock K` has it), locked by a session.  Each step is one
 *   transaction that happens whole or not at all:
 *
 *   create    there is no K                         set K
 *   acquire   K unchanged since we saw it free      lock K
 *   release   K unchanged since we locked it        unlock K
 *   move      K unchanged, for another ttl, or      unlock K, lock K
 *             to take up or renew what was detached
 *   renew     PUT session/renew once per session, and a read-only transaction
 *             that checks up to 64 keys at a time
 *
 *   What several hold at once is written otherwise: many.c; what an owner id has
 *   in several processes: reenter.c; permits with layout=cli as `consul lock -n`
 *   does: semaphore.c.
 *
 * INVARIANTS
 *  (1) A claim owns the lock if and only if the entry is locked and its value
 *      names the claim's token.  Its fence tells two grants to one token apart.
 *  (2) Every write is conditional on the entry's ModifyIndex, so a request that
 *      comes late, after its answer was given up for lost, changes nothing.
 *      Nothing that is not a lock is ever overwritten.  "There is no entry" is
 *      no such condition: it is true again once somebody deletes the entry.  So
 *      a lock is never taken on it: the entry is made first, without a lock.
 *  (3) The fence is the ModifyIndex of the grant, an index of the Raft log: it
 *      rises over everything, also over a deletion of the entry, which resets
 *      its LockIndex.  Only collect.c deletes the entry of a lock.
 *  (4) A lock whose lease is over is not kept by the session that other locks
 *      keep alive: the core has it swept (core/sweep.c).
 *
 * SESSION  The service's clock ends it, after up to twice the ttl (see
 *   session.c).  So a dead holder's lock passes on after at most twice
 *   its ttl and the lock-delay.  The holder's own end comes after one ttl.
 *
 * LIMITS  What a leader that was deposed without noticing answers to a renewal
 *   is not believed if agents are servers: session.c (4).  An agent that is
 *   none chooses a server for each request.  A restored snapshot takes grants
 *   back and brings old ones again; the index of the next grant is beyond all
 *   of them, unless the cluster is new.
 */
#include "consul.h"

#include "base/lease.h"

#include "base/banned.h"

static void consul_describe(struct consul_conn *cc, const struct hfi_url *url)
{
    const struct consul_options *options = &cc->options;
    const char *at = strstr(options->agents[0], "://");
    size_t len, i;

    if (options->socket) {
        snprintf(cc->base.endpoint, sizeof(cc->base.endpoint), "%s://%s",
                 url->scheme, options->socket);
    } else {
        len = (size_t)snprintf(cc->base.endpoint, sizeof(cc->base.endpoint),
                               "%s%s", url->scheme, at);
        for (i = 1; i < options->nagents && len < sizeof(cc->base.endpoint);
             i++)
            len += (size_t)snprintf(cc->base.endpoint + len,
                                    sizeof(cc->base.endpoint) - len, ",%s",
                                    strstr(options->agents[i], "://") + 3);
    }
}

/* Is there a leader?  This also finds a wrong address. */
static hf_status consul_greet(struct consul_conn *cc, int64_t deadline,
                              struct hf_error *err)
{
    struct consul_request rq = {.method = "GET", .path = "/v1/status/leader"};
    struct consul_reply reply;
    hf_status st = hfi_consul_call(cc, &cc->calls, &rq, deadline, &reply, err);

    if (st)
        return st;
    if (reply.status != 200 || !reply.data || reply.data[0] != '"')
        st = hfi_fail(err, HF_PROTOCOL, "%s: that is not Consul",
                      cc->base.endpoint);
    hfi_consul_reply_fini(&reply);
    return st;
}

static hf_status consul_open(struct hfi_conn *conn, const struct hfi_url *url,
                             int64_t deadline, struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    uint64_t random;
    hf_status st;

    hfi_random(&random, sizeof(random));
    snprintf(cc->id, sizeof(cc->id), "%016llx", (unsigned long long)random);
    cc->timeout_ms = hfi_left_ms(deadline);
    pthread_mutex_init(&cc->mu, NULL);
    hfi_cond_init(&cc->turn);
    hfi_sessions_init(&cc->sessions, &hfi_consul_session_service, cc, &cc->mu);
    hfi_link_init(&cc->idle);
    hfi_link_init(&cc->calls.idle);
    hfi_link_init(&cc->renewals.idle);
    atomic_init(&cc->fresh, true);
    cc->ready = true;
    cc->poller.epoll_fd = cc->poller.event_fd = cc->poller.timer_fd = -1;
    if (!hfi_consul_global_init())
        return hfi_fail(err, HF_SYSTEM, "consul: libcurl does not start");
    st = hfi_consul_options_init(&cc->options, url, err);
    if (st)
        return st;
    consul_describe(cc, url);
    hfi_consul_options_warn(&cc->options, conn->warning, sizeof(conn->warning));
    if (cc->options.fair)
        conn->traits |= HF_TRAIT_QUEUED;
    hfi_consul_collect_init(cc);
    st = hfi_consul_poller_init(cc, err);
    return st ? st : consul_greet(cc, deadline, err);
}

static void consul_close(struct hfi_conn *conn)
{
    struct consul_conn *cc = (struct consul_conn *)conn;

    if (!cc->ready)
        return;
    hfi_consul_collect_fini(cc);
    hfi_consul_fd_closing(cc);
    hfi_consul_poller_fini(cc);
    hfi_consul_sessions_end(cc);
    hfi_consul_keys_fini(cc);
    hfi_consul_queue_fini(cc);
    hfi_consul_pool_fini(&cc->calls);
    hfi_consul_pool_fini(&cc->renewals);
    hfi_consul_options_fini(&cc->options);
    hfi_cond_fini(&cc->turn);
    pthread_mutex_destroy(&cc->mu);
    cc->ready = false;
}

/* In a forked child. */
static void consul_forget(struct hfi_conn *conn)
{
    hfi_consul_fd_forget((struct consul_conn *)conn);
}

static const char *const consul_schemes[] = {"consul", "consuls", "consul+unix",
                                             NULL};

const struct hfi_backend hfi_backend_consul = {
    .schemes = consul_schemes,
    .options = hfi_consul_options,
    .conn_size = sizeof(struct consul_conn),
    .grant_size = sizeof(struct consul_grant),
    .observation_size = sizeof(struct consul_observation),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_NOTIFY |
              HF_TRAIT_DETACH | HF_TRAIT_BREAK | HF_TRAIT_PROCESSES |
              HF_TRAIT_MACHINES | HF_TRAIT_TWICE | HF_TRAIT_NOTED |
              HF_TRAIT_SHARED | HF_TRAIT_PERMITS | HF_TRAIT_REENTRANT |
              HFI_TRAIT_BOUND,
    .usual = HF_TRAIT_QUEUED,
    .no_min_hold = "a session of Consul does not end at a time that is known",
    .page = "consul",
    .tested = "Consul 1.8",
    .open = consul_open,
    .close = consul_close,
    .after_fork_child = consul_forget,
    .try_acquire = hfi_consul_try_acquire,
    .try_acquire_all = hfi_consul_try_acquire_all,
    .renew = hfi_consul_renew,
    .release = hfi_consul_release,
    .sweep = hfi_consul_sweep,
    .watch = hfi_consul_watch,
    .unwatch = hfi_consul_unwatch,
    .poll_fd = hfi_consul_poll_fd,
    .dispatch = hfi_consul_dispatch,
    .attach = hfi_consul_attach,
    .take_over = hfi_consul_take_over,
    .downgrade = hfi_consul_downgrade,
    .inspect = hfi_consul_inspect,
    .holders = hfi_consul_holders,
    .waiters = hfi_consul_waiters,
    .list = hfi_consul_list,
    .list_since = hfi_consul_list_since,
    .break_grant = hfi_consul_break,
    .free_grant = hfi_consul_free,
    .collect = hfi_consul_collect,
    .observe = hfi_consul_observe,
    .unobserve = hfi_consul_unobserve,
};
