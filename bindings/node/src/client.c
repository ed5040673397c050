/* SPDX-License-Identifier: MIT
 *
 * client.c - a client, its events, and its end.
 *
 * A thread of our own waits for the descriptor of the events, which the library
 * writes to when the first event arrives, and wakes a thread-safe function, which
 * takes the events in the thread of JavaScript (addon.h (2)).  The thread hears
 * of every first event and need not be told when the events were taken; `told`
 * keeps it from waking the function twice.
 *
 * What takes an event may run a program's own code, which may close the client:
 * nothing of a claim is used once that was called.
 *
 * The function does not keep the process alive unless a request waits: a
 * program that only holds locks may end, and its end releases them.
 *
 * An environment that ends without close(), as that of a worker that is
 * terminated, closes its clients in a clean-up hook.
 */
#include "addon.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CLIENT_BATCH = 1024 }; /* events before others have their turn */

void hfn_client_put(struct hfn_client *c)
{
    if (--c->refs > 0)
        return;
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->idle);
    free(c->chains);
    free(c);
}

void hfn_busy(struct hfn_client *c, int change)
{
    int before = c->busy;

    c->busy += change;
    if (atomic_load(&c->stop))
        return;
    if (before == 0 && c->busy > 0)
        napi_ref_threadsafe_function(c->env, c->wake);
    else if (before > 0 && c->busy == 0)
        napi_unref_threadsafe_function(c->env, c->wake);
}

/* ---- events ------------------------------------------------------------- */

static void client_poke(struct hfn_client *c)
{
    uint64_t one = 1;
    ssize_t done = write(c->wake_fd, &one, sizeof(one));

    (void)done; /* It is readable already. */
}

static void *client_thread(void *arg)
{
    struct hfn_client *c = arg;
    struct epoll_event event;

    while (!atomic_load(&c->stop))
        if (epoll_wait(c->epoll_fd, &event, 1, -1) > 0 &&
            !atomic_exchange(&c->told, true))
            napi_call_threadsafe_function(c->wake, NULL, napi_tsfn_nonblocking);
    return NULL;
}

/* Watch the events by their edges, and what ends the thread. */
static bool client_watch(struct hfn_client *c)
{
    struct epoll_event edge = {.events = EPOLLIN | EPOLLET};
    struct epoll_event level = {.events = EPOLLIN};
    int fd = hf_events_fd(c->client);

    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return c->epoll_fd >= 0 && c->wake_fd >= 0 && fd >= 0 &&
           !epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &edge) &&
           !epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->wake_fd, &level);
}

static void client_unwatch(struct hfn_client *c)
{
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    if (c->epoll_fd >= 0)
        close(c->epoll_fd);
}

/* deliver(type, id, error or reason, answer) */
static void client_deliver(struct hfn_client *c, napi_value deliver,
                           const struct hf_event *event)
{
    napi_value args[4], global, error = NULL;
    napi_handle_scope scope;
    struct hfn_claim *claim;
    uint64_t id;

    claim = hfn_claim_event(c, event, &id);
    if (!claim || napi_open_handle_scope(c->env, &scope) != napi_ok)
        return;
    args[0] = hfn_number(c->env, event->type);
    args[1] = hfn_number(c->env, (double)id);
    napi_get_undefined(c->env, &args[2]);
    args[3] = args[2];
    if (event->type == HF_GONE)
        args[2] = hfn_text(c->env, hf_loss_name(event->reason));
    else if ((event->type == HF_FAILED || event->type == HF_ANSWERED) &&
             event->error.status)
        args[2] = hfn_error(c->env, &event->error);
    else if (event->type == HF_ANSWERED)
        args[3] = hfn_claim_answer(c->env, claim, event);
    if (event->type == HF_FAILED || event->type == HF_ANSWERED)
        hfn_claim_free(claim);
    napi_get_global(c->env, &global);
    if (napi_call_function(c->env, global, deliver, 4, args, NULL) ==
            napi_pending_exception &&
        napi_get_and_clear_last_exception(c->env, &error) == napi_ok)
        napi_fatal_exception(c->env, error);
    napi_close_handle_scope(c->env, scope);
}

static void client_dispatch(napi_env env, napi_value unused, void *arg,
                            void *data)
{
    struct hfn_client *c = arg;
    struct hf_event event = HF_EVENT_INIT;
    napi_value deliver = NULL;
    int n = CLIENT_BATCH;

    (void)unused;
    (void)data;
    if (!env || atomic_load(&c->stop))
        return;
    c->refs++;
    napi_get_reference_value(env, c->deliver, &deliver);
    atomic_store(&c->told, false);
    while (n-- && !atomic_load(&c->stop) && hf_next_event(c->client, &event))
        client_deliver(c, deliver, &event);
    if (n < 0 && !atomic_load(&c->stop) && !atomic_exchange(&c->told, true))
        napi_call_threadsafe_function(c->wake, NULL, napi_tsfn_nonblocking);
    hfn_client_put(c);
}

/* ---- the end ------------------------------------------------------------ */

bool hfn_enter(struct hfn_client *c)
{
    bool ok;

    pthread_mutex_lock(&c->mutex);
    ok = !c->closing;
    c->users += ok;
    pthread_mutex_unlock(&c->mutex);
    return ok;
}

void hfn_leave(struct hfn_client *c)
{
    pthread_mutex_lock(&c->mutex);
    if (--c->users == 0)
        pthread_cond_broadcast(&c->idle);
    pthread_mutex_unlock(&c->mutex);
}

static void client_cleanup(void *arg)
{
    struct hfn_client *c = arg;

    hfn_close_begin(c);
    hfn_close_wait(c);
    hfn_close_end(c);
}

void hfn_close_begin(struct hfn_client *c)
{
    napi_remove_env_cleanup_hook(c->env, client_cleanup, c);
    atomic_store(&c->stop, true);
    client_poke(c);
    pthread_join(c->thread, NULL);
    napi_release_threadsafe_function(c->wake, napi_tsfn_abort);
    napi_delete_reference(c->env, c->deliver);
    client_unwatch(c);
}

void hfn_close_wait(struct hfn_client *c)
{
    pthread_mutex_lock(&c->mutex);
    c->closing = true;
    hf_cancel(c->client);
    while (c->users > 0)
        pthread_cond_wait(&c->idle, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
    hf_close(c->client);
}

/* The handles of the locks outlive their client; now nobody uses them. */
void hfn_close_end(struct hfn_client *c)
{
    struct hfn_claim *claim;
    size_t i;

    while ((claim = hfn_claim_any(c))) {
        for (i = 0; i < claim->n; i++)
            if (claim->locks[i])
                hf_release(claim->locks[i], NULL);
        if (claim->observer)
            hf_observe_stop(claim->observer);
        hfn_claim_free(claim);
    }
    hfn_log_free(c->log);
    hfn_client_put(c);
}

/* ---- the beginning ------------------------------------------------------ */

static void client_finalize(napi_env env, void *arg, void *hint)
{
    (void)env;
    (void)hint;
    hfn_client_put(arg);
}

/* The thread takes no signals: they are the main thread's. */
static int client_start(struct hfn_client *c)
{
    sigset_t all, old;
    int e;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    e = pthread_create(&c->thread, NULL, client_thread, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return e;
}

struct hfn_client *hfn_client_open(napi_env env, napi_value value)
{
    void *c = NULL;

    napi_get_value_external(env, value, &c);
    return c && !atomic_load(&((struct hfn_client *)c)->stop) ? c : NULL;
}

struct hfn_client *hfn_client_get(napi_env env, napi_value value)
{
    static const struct hf_error closed = {HF_INVALID, 0,
                                           "the client was closed"};
    struct hfn_client *c = hfn_client_open(env, value);

    if (!c)
        hfn_throw(env, &closed);
    return c;
}

napi_value hfn_client_new(napi_env env, hf_client *client, napi_value deliver,
                          napi_threadsafe_function log)
{
    struct hfn_client *c = calloc(1, sizeof(*c));
    napi_value ret = NULL;

    if (!c)
        return NULL;
    c->client = client;
    c->log = log;
    c->env = env;
    c->refs = 1;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->idle, NULL);
    if (!client_watch(c) ||
        napi_create_threadsafe_function(
            env, NULL, NULL, hfn_text(env, "holdfast"), 0, 1, c,
            client_finalize, c, client_dispatch, &c->wake) != napi_ok)
        goto out;
    c->refs++; /* that of the function */
    napi_unref_threadsafe_function(env, c->wake);
    if (napi_create_external(env, c, client_finalize, NULL, &ret) == napi_ok)
        c->refs++; /* JavaScript's */
    if (ret && !client_start(c)) {
        napi_create_reference(env, deliver, 1, &c->deliver);
        napi_add_env_cleanup_hook(env, client_cleanup, c);
        return ret;
    }
    atomic_store(&c->stop, true);
    napi_release_threadsafe_function(c->wake, napi_tsfn_abort);
out:
    client_unwatch(c);
    hfn_client_put(c);
    return NULL;
}
