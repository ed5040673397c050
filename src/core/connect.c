/* SPDX-License-Identifier: MIT
 *
 * connect.c - connecting in the background.
 *
 * With opts.connect_ms hf_open() starts a thread that opens the backend, again
 * and again, until that has worked, connect_ms are over or there is an error
 * that is final.  Until then the client is offline.  Everything else
 * works as it does with a service that does not answer: requests wait in their
 * queues, calls wait on a condition, each as long as its own limit lasts, and
 * hf_close() and cancelling end them.
 *
 * INVARIANTS
 *  (1) While the client is offline nobody but the connector calls the backend,
 *      and client->conn is a stand-in that never changes: it says what is known
 *      before anything is connected.
 *  (2) The connection takes its place with the mutex held, before `offline` says
 *      so.  Who reads `offline` without the mutex and finds HFI_ONLINE sees the
 *      connection; the client does not go offline again.
 *  (3) The connector has a reference to the client.  hf_close() does not wait
 *      for an attempt that lasts: that ends by its own deadline, and undoes
 *      itself.
 */
#include "log.h"

#include "base/alloc.h"

#include "base/banned.h"

/* Between two attempts: twice as long each time. */
#define CONNECT_PAUSE_MS     50
#define CONNECT_PAUSE_MAX_MS 1000

/* So long hf_close() waits for an attempt that is under way. */
#define CONNECT_CLOSE_MS 200

struct hfi_conn *hfi_conn_new(struct hf_client *c)
{
    struct hfi_conn *conn = hfi_alloc(c->be->conn_size);

    if (!conn)
        return NULL;
    conn->be = c->be;
    conn->client = c;
    conn->traits = c->be->traits;
    return conn;
}

/* One attempt. */
static hf_status connect_try(struct hf_client *c, struct hfi_conn **ret,
                             struct hf_error *err)
{
    struct hfi_conn *conn = hfi_conn_new(c);
    int64_t end = hfi_now() + c->timeout_ms;
    hf_status st;

    if (!conn)
        return hfi_nomem(err);
    if (end > c->connect_end)
        end = c->connect_end;
    st = c->be->open(conn, &c->url, end, err);
    if (!st) {
        *ret = conn;
        return HF_OK;
    }
    c->be->close(conn);
    hfi_free(conn);
    return st;
}

/* Those of a list waited for the connection, which is no failure of theirs. */
static void connect_wake(const struct hfi_link *list)
{
    struct hfi_link *at;
    struct hf_request *rq;

    for (at = list->next; at != list; at = at->next) {
        rq = hfi_container(at, struct hf_request, link);
        rq->woken = rq->state == HFI_CONTENDING;
        rq->failures = 0;
        hfi_request_schedule(rq);
    }
}

/* Let everybody look again who waits for the connection, or for its failure. */
static void connect_tell(struct hf_client *c, enum hfi_offline now)
{
    struct hfi_key_queue *queue = NULL;

    atomic_store(&c->offline, now);
    while ((queue = hfi_key_queue_next(c, queue))) {
        connect_wake(&queue->contending);
        connect_wake(&queue->waiting);
    }
    if (!hfi_link_alone(&c->jobs) || !hfi_link_alone(&c->observing))
        hfi_worker_call(c);
    hfi_cond_wake(&c->settle);
    hfi_notifier_notify(&c->notifier); /* The keeper may listen now. */
}

/* Is it worth another attempt?  backend.h (2) */
static bool connect_goes_on(const struct hf_client *c, hf_status st)
{
    return (st == HF_UNAVAILABLE || st == HF_UNCERTAIN) &&
           hfi_now() < c->connect_end;
}

static void connect_pause(struct hf_client *c, int failures)
{
    int64_t ms = (int64_t)CONNECT_PAUSE_MS << (failures < 5 ? failures : 5);
    int64_t until;

    if (ms > CONNECT_PAUSE_MAX_MS)
        ms = CONNECT_PAUSE_MAX_MS;
    until = hfi_now() + ms;
    if (until > c->connect_end)
        until = c->connect_end;
    while (!c->closing && hfi_now() < until)
        hfi_cond_wait(&c->settle, &c->mu, until);
}

/* What became of an attempt, with the mutex held; true: there is another. */
static bool connect_judge(struct hf_client *c, struct hfi_conn *conn,
                          hf_status st, const struct hf_error *err)
{
    if (!st) {
        c->conn = conn; /* connect.c (2) */
        hfi_log(c, HF_LOG_INFO, "%s: connected", conn->endpoint);
        connect_tell(c, HFI_ONLINE);
        return false;
    }
    c->connect_err = *err;
    if (st == HF_UNCERTAIN) /* Nothing was asked for that could be in doubt. */
        c->connect_err.status = HF_UNAVAILABLE;
    c->connect_failed = true;
    hfi_observed_offline(c);
    if (connect_goes_on(c, st)) {
        hfi_log(c, HF_LOG_INFO, "not connected: %s", err->text);
        return true;
    }
    hfi_log(c, HF_LOG_ERROR, "giving up to connect: %s", err->text);
    connect_tell(c, HFI_OFFLINE);
    return false;
}

static void *connect_run(void *client)
{
    struct hf_client *c = client;
    struct hfi_conn *conn = NULL;
    struct hf_error err = {0};
    int failures = 0;
    hf_status st;

    pthread_mutex_lock(&c->mu);
    while (!c->closing) {
        pthread_mutex_unlock(&c->mu);
        st = connect_try(c, &conn, &err);
        pthread_mutex_lock(&c->mu);
        if (c->closing && !st) {
            pthread_mutex_unlock(&c->mu);
            c->be->close(conn);
            hfi_free(conn);
            pthread_mutex_lock(&c->mu);
        } else if (!connect_judge(c, conn, st, &err)) {
            break;
        } else {
            connect_pause(c, failures++);
        }
    }
    hfi_url_fini(&c->url);
    c->connector_done = true;
    hfi_cond_wake(&c->settle);
    pthread_mutex_unlock(&c->mu);
    hfi_client_put(c);
    return NULL;
}

/* Begin.  The URL is ours from now on, if this works. */
hf_status hfi_connect_start(struct hf_client *c, struct hfi_url *url,
                            int64_t connect_ms, struct hf_error *err)
{
    c->conn->traits |= c->be->usual;
    hfi_url_name(url, c->conn->endpoint, sizeof(c->conn->endpoint));
    c->stand_in = c->conn;
    c->connect_end =
        connect_ms < 0 ? HFI_NEVER : hfi_after(hfi_now(), connect_ms);
    hfi_fail(&c->connect_err, HF_UNAVAILABLE, "%s: no attempt has ended",
             c->conn->endpoint);
    atomic_store(&c->offline, HFI_CONNECTING);
    if (!hfi_thread_start(&c->keeper, hfi_keeper_run, c))
        return hfi_fail(err, HF_SYSTEM, "no thread could be started");
    c->url = *url;
    atomic_fetch_add(&c->refs, 1);
    if (hfi_thread_start(&c->connector, connect_run, c)) {
        *url = (struct hfi_url){0};
        return HF_OK;
    }
    atomic_fetch_sub(&c->refs, 1);
    c->url = (struct hfi_url){0};
    c->stopping = true; /* Nobody else knows the client. */
    hfi_notifier_notify(&c->notifier);
    hfi_thread_join(&c->keeper);
    return hfi_fail(err, HF_SYSTEM, "no thread could be started");
}

/* With the mutex held: why nothing can be asked.  HF_OK: something can. */
hf_status hfi_connect_error(const struct hf_client *c, struct hf_error *err)
{
    int offline = atomic_load(&c->offline);

    if (offline == HFI_ONLINE)
        return HF_OK;
    if (offline == HFI_CONNECTING)
        return hfi_fail(err, HF_UNAVAILABLE, "not connected yet: %s",
                        c->connect_err.text);
    if (err)
        *err = c->connect_err;
    return c->connect_err.status;
}

/* Wait in a call, for as long as a request to the service may take. */
hf_status hfi_connect_await(struct hf_client *c, struct hf_error *err)
{
    unsigned cancels = atomic_load(&c->cancels);
    int64_t end;
    hf_status st;

    if (atomic_load(&c->offline) == HFI_ONLINE)
        return HF_OK; /* connect.c (2) */
    end = hfi_now() + c->timeout_ms;
    pthread_mutex_lock(&c->mu);
    c->calls++;
    while (atomic_load(&c->offline) == HFI_CONNECTING && !c->closing &&
           atomic_load(&c->cancels) == cancels && hfi_now() < end)
        hfi_cond_wait(&c->settle, &c->mu, end);
    if (c->closing || atomic_load(&c->cancels) != cancels)
        st = hfi_fail(err, HF_CANCELED, "canceled");
    else
        st = hfi_connect_error(c, err);
    c->calls--;
    if (c->closing)
        hfi_cond_wake(&c->settle);
    pthread_mutex_unlock(&c->mu);
    return st;
}

/* For hf_close(), which has said that it closes: end the connector, or leave it
 * to itself.  connect.c (3) */
void hfi_connect_close(struct hf_client *c)
{
    int64_t end = hfi_now() + CONNECT_CLOSE_MS;
    bool done;

    if (!c->connector.running)
        return;
    pthread_mutex_lock(&c->mu);
    while (!c->connector_done && hfi_now() < end)
        hfi_cond_wait(&c->settle, &c->mu, end);
    done = c->connector_done;
    pthread_mutex_unlock(&c->mu);
    if (done)
        hfi_thread_join(&c->connector);
    else
        hfi_thread_detach(&c->connector);
}
