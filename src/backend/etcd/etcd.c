/* SPDX-License-Identifier: MIT
 *
 * etcd.c - etcd, version 3.4 or newer, one member or a cluster.
 *
 * ON THE WIRE  Each claim has a key of its own, PREFIX KEY/LEASE-NUMBER, bound
 *   to a lease.  The key with the lowest create revision below PREFIX KEY/ has
 *   the lock, which is the recipe of etcd's own clients: `etcdctl lock` and
 *   Go's concurrency.Mutex exclude and queue with holdfast on the same name.
 *   The server's lock service is not used.  Shared claims and permits stand in
 *   the same queue; who of them holds is in order.c.
 *
 * INVARIANTS
 *  (1) A grant is only ever read from a transaction that has seen our own key.
 *  (2) No key is removed or changed without comparing the token that it bears,
 *      and the revision in which it was made where that is known.
 *  (3) Every read that decides something is linearizable.
 *
 * LEASE  One for all locks of about the same ttl, longer than it by one to two
 *   seconds (lease.c), revoked when the client is closed.  What has lapsed on
 *   one that other locks keep alive is removed by the core (release.c).
 *
 * DECISIONS
 *   A lease is kept by calls, not by a LeaseKeepAlive stream.  A stream saves
 *   little (doc/bench.md).  etcd serves its messages one after the other, and
 *   an answer names the lease but not the message: when the leader falls
 *   silent the stream hangs, and an answer to a message that was given up
 *   could be taken for that of the next and prove a lease for too long.  A
 *   call is given up and repeated on its own, and goes out in one write with
 *   the transaction that proves the keys, to the same member.
 *   Names of keys are used again (key.c).  etcd's index keeps a deleted name
 *   until the next compaction, and each look at a queue passes by all of them.
 *   A watch that has served is parked for the next waiter at the same place
 *   (wait.c).  To begin one takes two messages and another look, and etcd 3.4
 *   serves a watch late if somebody writes while it begins.
 *   A slot is not a key of its own, taken by whoever comes first: it is given in
 *   the order of the queue and stands in the holder's key.  So there is one key
 *   to renew, move, break and remove, and the fences of grants rise.
 *   Shared claims have names of their own kind, so that one that tries once
 *   can be put on the condition that no other kind is there.  The mode itself
 *   is in the value: a downgrade must keep the name, with the revision.
 *   Requests of many threads go in one transaction (combine.c), but never two
 *   for the same lock: keys of one transaction have one revision, and the
 *   queue is in the order of revisions.
 *
 * LIMITS  A new leader gives every lease its full time again, so a dead
 *   holder's lock may take twice the lease to lapse.  A key that was made by
 *   another program and has no lease never lapses.
 */
#include "etcd.h"

#include <openssl/ssl.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

#define ETCD_PORT 2379

/* What closing may take to tell the server of it: leases lapse by
 * themselves. */
#define CLOSE_MS 1000

/* Which member comes first: if all clients began with the same one, it would
 * have all the work. */
static hf_status open_order(struct etcd_conn *ec, const struct hfi_url *url,
                            struct hf_error *err)
{
    const char *order = hfi_url_param(url, "order", "random");
    uint32_t chance;

    hfi_random(&chance, sizeof(chance));
    if (!strcmp(order, "random"))
        ec->first = chance % ec->nends;
    else if (strcmp(order, "given") != 0)
        return hfi_fail(err, HF_INVALID, "url: order= is random or given");
    return HF_OK;
}

static hf_status open_where(struct etcd_conn *ec, const struct hfi_url *url,
                            struct hf_error *err)
{
    const char *prefix = hfi_url_param(url, "prefix", "holdfast/");
    char where[300];
    hf_status st;
    size_t i;

    if (!url->nhosts || (*url->path && strcmp(url->path, "/") != 0))
        return hfi_fail(err, HF_INVALID,
                        "url: etcd: takes hosts and no path, as in "
                        "etcd://a:2379,b:2379");
    if (strlen(prefix) >= sizeof(ec->prefix))
        return hfi_fail(err, HF_INVALID, "url: prefix= is too long");
    snprintf(ec->prefix, sizeof(ec->prefix), "%s", prefix);
    for (i = 0; i < url->nhosts; i++) {
        snprintf(ec->ends[i].host, sizeof(ec->ends[i].host), "%s",
                 url->hosts[i].name);
        ec->ends[i].port = url->hosts[i].port ? url->hosts[i].port : ETCD_PORT;
        ec->ends[i].tls = ec->tls;
        ec->ends[i].alive_ms = 15000;
        ec->ends[i].traffic = &ec->base.traffic;
    }
    ec->nends = url->nhosts;
    st = open_order(ec, url, err);
    if (st)
        return st;
    hfi_endpoint_name(&ec->ends[0], where, sizeof(where));
    snprintf(ec->base.endpoint, sizeof(ec->base.endpoint), "%s:%.200s%s",
             url->scheme, where, ec->nends > 1 ? ",..." : "");
    return HF_OK;
}

static hf_status open_secrets(struct etcd_conn *ec, const struct hfi_url *url,
                              struct hf_error *err)
{
    const char *file = hfi_url_param(url, "password_file", NULL);

    if (file && (url->password || !url->user || !*url->user))
        return hfi_fail(err, HF_INVALID,
                        "url: password_file= needs a user without a password, "
                        "as in etcd://user@host");
    if (!url->user || !*url->user)
        return HF_OK;
    ec->user = hfi_strdup(url->user);
    ec->password = hfi_strdup(url->password ? url->password : "");
    if (file)
        ec->password_file = hfi_strdup(file);
    return ec->user && ec->password && (!file || ec->password_file)
               ? HF_OK
               : hfi_nomem(err);
}

static hf_status open_tls(struct etcd_conn *ec, const struct hfi_url *url,
                          struct hf_error *err)
{
    static const unsigned char protocols[] = {2, 'h', '2'};
    hf_status st;

    if (strcmp(url->scheme, "etcds") != 0)
        return HF_OK;
    st = hfi_tls_new(&ec->tls, url, err);
    if (!st && SSL_CTX_set_alpn_protos(ec->tls, protocols, sizeof(protocols)))
        st = hfi_nomem(err);
    return st;
}

/* See that it is there and takes our credentials. */
static hf_status open_greet(struct etcd_conn *ec, int64_t deadline,
                            struct hf_error *err)
{
    Pb__RangeRequest ask = PB__RANGE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    char name[ETCD_PREFIX_MAX + 1];
    hf_status st;

    snprintf(name, sizeof(name), "%s/", ec->prefix);
    ask.key = etcd_text(name);
    st = etcd_call(ec, ETCD_RANGE, &ask.base, &pb__range_response__descriptor,
                   &answer, deadline, err);
    etcd_free(answer);
    return st;
}

static hf_status etcd_open(struct hfi_conn *conn, const struct hfi_url *url,
                           int64_t deadline, struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    hf_status st;

    pthread_mutex_init(&ec->mu, NULL);
    hfi_cond_init(&ec->settled);
    pthread_mutex_init(&ec->combine_mu, NULL);
    pthread_mutex_init(&ec->watch_mu, NULL);
    hfi_cond_init(&ec->watch_cond);
    hfi_sessions_init(&ec->leases, &etcd_lease_service, ec, &ec->mu);
    hfi_link_init(&ec->requests);
    hfi_link_init(&ec->parked);
    hfi_link_init(&ec->observed);
    atomic_init(&ec->watch_fd, -1);
    atomic_init(&ec->cluster, 0);
    atomic_init(&ec->term, 0);
    atomic_init(&ec->revision, 0);
    atomic_init(&ec->doubted, false);
    atomic_init(&ec->troubled, false);
    ec->opened = true;
    st = open_tls(ec, url, err);
    if (!st)
        st = open_where(ec, url, err);
    hfi_h2_init(&ec->h2, ec->ends, ec->nends);
    ec->h2.next = ec->first;
    if (!st)
        st = open_secrets(ec, url, err);
    if (!st && ec->user)
        hfi_warn_passwords(conn->warning, sizeof(conn->warning), url,
                           hfi_tls_is_verified(ec->tls));
    if (!st)
        st = open_greet(ec, deadline, err);
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

static void etcd_close(struct hfi_conn *conn)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;

    if (!ec->opened)
        return;
    etcd_watch_close(ec);
    hfi_sessions_close(&ec->leases,
                       hfi_now() + (hfi_h2_is_up(&ec->h2) ? CLOSE_MS : 0));
    hfi_free(ec->numbers);
    hfi_h2_fini(&ec->h2);
    if (ec->tls)
        hfi_tls_free(ec->tls);
    if (ec->password)
        explicit_bzero(ec->password, strlen(ec->password));
    hfi_free(ec->password);
    hfi_free(ec->password_file);
    hfi_free(ec->user);
    hfi_free(ec->token);
    hfi_cond_fini(&ec->watch_cond);
    pthread_mutex_destroy(&ec->watch_mu);
    etcd_combine_close(ec);
    pthread_mutex_destroy(&ec->combine_mu);
    hfi_cond_fini(&ec->settled);
    pthread_mutex_destroy(&ec->mu);
    ec->opened = false;
}

static void etcd_forget(struct hfi_conn *conn)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    int fd = atomic_exchange(&ec->watch_fd, -1);

    hfi_h2_after_fork_child(&ec->h2);
    if (fd >= 0)
        close(fd);
}

static const char *const etcd_schemes[] = {"etcd", "etcds", NULL};
static const char *const etcd_options[] = {
    "prefix", "order", "password_file", "ca", "cert", "key", "verify", NULL};

const struct hfi_backend hfi_backend_etcd = {
    .schemes = etcd_schemes,
    .options = etcd_options,
    .conn_size = sizeof(struct etcd_conn),
    .grant_size = sizeof(struct etcd_grant),
    .observation_size = sizeof(struct etcd_observation),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_QUEUED |
              HF_TRAIT_NOTIFY | HF_TRAIT_REENTRANT | HF_TRAIT_DETACH |
              HF_TRAIT_BREAK | HF_TRAIT_PROCESSES | HF_TRAIT_MACHINES |
              HF_TRAIT_NOTED | HF_TRAIT_SHARED | HF_TRAIT_PERMITS |
              HF_TRAIT_MIN_HOLD | HFI_TRAIT_BOUND,
    .page = "etcd",
    .tested = "etcd 3.4, 3.5",
    .open = etcd_open,
    .close = etcd_close,
    .after_fork_child = etcd_forget,
    .try_acquire = etcd_try_acquire,
    .try_acquire_all = etcd_try_acquire_all,
    .renew = etcd_renew,
    .release = etcd_release,
    .sweep = etcd_sweep,
    .downgrade = etcd_downgrade,
    .keep = etcd_keep,
    .watch = etcd_watch,
    .unwatch = etcd_unwatch,
    .poll_fd = etcd_watch_fd,
    .dispatch = etcd_watch_dispatch,
    .detach = etcd_detach,
    .attach = etcd_attach,
    .take_over = etcd_take_over,
    .inspect = etcd_inspect,
    .list = etcd_list,
    .holders = etcd_holders,
    .waiters = etcd_waiters,
    .break_grant = etcd_break,
    .free_grant = etcd_free_grant,
    .observe = etcd_observe,
    .unobserve = etcd_unobserve,
};
