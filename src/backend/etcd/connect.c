/* SPDX-License-Identifier: MIT
 *
 * connect.c - the connection that carries the watches (wait.c).
 *
 * A thread connects, and ends when that has succeeded or failed.  No renewal
 * and no try may do it: a server, or a proxy before it, that takes connections
 * and does not serve them would cost the locks that are kept, or granted, over
 * the connection of the calls.  Without a watch a waiter asks now and then, and
 * a holder learns from its renewal that its lock was broken; both ask for the
 * connection again, and a pause after each failure is kept here.  Nobody is
 * woken when there is a connection: a waiter finds it when it next asks, and
 * who lingers would have to take it for a gap in what was heard.  Only who
 * observes (observe.c) asks for nothing by itself: as long as there is such a
 * one, the thread goes on until it has a connection.
 *
 * INVARIANTS
 *  (1) While conn->watch_opening is set, one thread connects.  When it unsets
 *      it it holds watch_mu for the last time, so whoever holds watch_mu and
 *      finds it unset can join the thread.
 */
#include "etcd.h"

#include "base/alloc.h"

#include "base/banned.h"

/* How long one attempt may take.  Closing the client waits for it. */
#define CONNECT_MS 2000

/* For so many leases word of broken locks is asked for at once; the rest have
 * their next renewal do it. */
#define CONNECT_LEASES 16

/* With watch_mu held, which is let go meanwhile. */
static hf_status connect_open(struct etcd_conn *ec)
{
    int64_t deadline = hfi_now() + CONNECT_MS;
    struct h2_link *link = NULL;
    unsigned age = ec->watch_forget;
    char *token = NULL;
    hf_status st = HF_OK;

    pthread_mutex_unlock(&ec->watch_mu);
    if (ec->user)
        st = etcd_token(ec, age, &token, &age, deadline, NULL);
    if (!st)
        st = hfi_h2_open(&ec->h2, ETCD_WATCH, token, etcd_watch_message, ec,
                         deadline, &link, NULL);
    hfi_free(token);
    pthread_mutex_lock(&ec->watch_mu);
    if (st)
        return st;
    ec->watch = link;
    ec->watch_age = age;
    ec->watch_heard = hfi_now();
    atomic_store(&ec->watch_fd, hfi_h2_fd(link));
    hfi_poll_fd_changed(&ec->base);
    return HF_OK;
}

/* Hear of broken locks again.  Without watch_mu. */
static void connect_leases(struct etcd_conn *ec)
{
    struct etcd_lease *leases[CONNECT_LEASES];
    struct hfi_session *s = NULL;
    size_t n = 0;

    pthread_mutex_lock(&ec->mu);
    while (n < CONNECT_LEASES && (s = hfi_session_next(&ec->leases, s))) {
        s->users++;
        leases[n++] = (struct etcd_lease *)s;
    }
    pthread_mutex_unlock(&ec->mu);
    while (n) {
        etcd_watch_break_notice(ec, leases[--n]);
        etcd_lease_put(ec, leases[n]);
    }
}

/* One attempt, with watch_mu held. */
static void connect_once(struct etcd_conn *ec)
{
    if (connect_open(ec)) {
        hfi_backoff_failed(&ec->watch_backoff);
        return;
    }
    hfi_backoff_done(&ec->watch_backoff);
    hfi_cond_wake(&ec->watch_cond);
    etcd_observe_again(ec);
    pthread_mutex_unlock(&ec->watch_mu);
    connect_leases(ec);
    pthread_mutex_lock(&ec->watch_mu);
}

/* Is another attempt due?  The pause before it is kept. */
static bool connect_goes_on(struct etcd_conn *ec)
{
    while (!ec->watch && !ec->watch_closing && !hfi_link_alone(&ec->observed)) {
        if (!hfi_backoff_waits(&ec->watch_backoff))
            return true;
        hfi_cond_wait(&ec->watch_cond, &ec->watch_mu, ec->watch_backoff.until);
    }
    return false;
}

static void *connect_run(void *arg)
{
    struct etcd_conn *ec = arg;

    pthread_mutex_lock(&ec->watch_mu);
    do {
        connect_once(ec);
    } while (connect_goes_on(ec));
    ec->watch_opening = false; /* connect.c (1) */
    hfi_cond_wake(&ec->watch_cond);
    pthread_mutex_unlock(&ec->watch_mu);
    return NULL;
}

bool etcd_watch_is_up(struct etcd_conn *ec)
{
    if (!ec->watch && !ec->watch_opening && !ec->watch_closing &&
        !hfi_backoff_waits(&ec->watch_backoff)) {
        hfi_thread_join(&ec->watch_opener);
        ec->watch_opening =
            hfi_thread_start(&ec->watch_opener, connect_run, ec);
    }
    return ec->watch != NULL;
}

void etcd_watch_connect_close(struct etcd_conn *ec)
{
    pthread_mutex_lock(&ec->watch_mu);
    ec->watch_closing = true;
    hfi_cond_wake(&ec->watch_cond);
    pthread_mutex_unlock(&ec->watch_mu);
    hfi_thread_join(&ec->watch_opener);
}
