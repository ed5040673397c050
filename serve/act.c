/* SPDX-License-Identifier: MIT
 *
 * act.c - details and hf_break(), in threads of their own.
 *
 * They ask a service, which may take seconds.  Meanwhile the connection of the
 * browser is suspended, so that nobody else waits for it.
 *
 * INVARIANT  When the listener ends no connection is suspended: serve_act_stop()
 * has waited for the acts that are under way, and none begins after it.
 */
#include "serve.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#include "../cli/cli.h"

struct serve_act {
    struct MHD_Connection *connection;
    int service;
    uint64_t fence;
    bool breaks;
    hf_status st;
    char *text;
    size_t len;
    char key[HF_KEY_MAX + 1];
};

/* More than anybody reads. */
#define ACT_WAITERS 1000

/* Of each service, so that one that is silent costs the others nothing. */
static atomic_int act_count[SERVE_SERVICES];

static pthread_mutex_t act_mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t act_cond = PTHREAD_COND_INITIALIZER;
static int act_running; /* those that ask a service now */
static bool act_ends;

/* May one begin? */
static bool act_enter(void)
{
    bool ret;

    pthread_mutex_lock(&act_mu);
    ret = !act_ends;
    act_running += ret;
    pthread_mutex_unlock(&act_mu);
    return ret;
}

static void act_leave(void)
{
    pthread_mutex_lock(&act_mu);
    act_running--;
    pthread_cond_signal(&act_cond);
    pthread_mutex_unlock(&act_mu);
}

struct act_list {
    FILE *out;
    const struct serve_act *act;
    bool more;
    int count;
};

static bool act_holder(void *arg, const struct hf_info *info)
{
    struct act_list *list = arg;
    const char *key = list->act->key;
    struct serve_lock *lock = calloc(1, sizeof(*lock) + strlen(key) + 1);

    if (!lock)
        return false;
    memcpy(lock->key, key, strlen(key) + 1);
    lock->service = list->act->service;
    lock->info = *info;
    lock->seen = serve_now();
    lock->waited = -1;
    fputs(list->more ? "," : "", list->out);
    pthread_mutex_lock(&serve_table.mu);
    lock->id = serve_table_id(lock->service, key);
    serve_lease_begin(lock, info, lock->seen);
    serve_json_lock(list->out, lock, lock->seen);
    pthread_mutex_unlock(&serve_table.mu);
    list->more = true;
    free(lock);
    return true;
}

/* Those that are not told are counted. */
static bool act_waiter(void *arg, const struct hf_waiter *waiter)
{
    struct act_list *list = arg;

    if (list->count++ >= ACT_WAITERS)
        return true;
    fputs(list->more ? "," : "", list->out);
    serve_json_waiter(list->out, waiter);
    list->more = true;
    return true;
}

/* Who waits, in order, and how many more; null where nobody knows. */
static void act_queue(FILE *out, hf_client *client, const char *key)
{
    char *text = NULL;
    size_t len = 0;
    struct act_list list = {.out = open_memstream(&text, &len)};
    hf_status st = HF_UNAVAILABLE;

    if (client && list.out)
        st = hf_waiters(client, key, act_waiter, &list, NULL);
    if (list.out)
        fclose(list.out);
    fputs("],\"queue\":", out);
    if (st)
        fputs("null", out);
    else
        fprintf(out, "[%s],\"queue_not_shown\":%d", text,
                list.count > ACT_WAITERS ? list.count - ACT_WAITERS : 0);
    free(text);
}

static void *act_run(void *arg)
{
    struct serve_act *act = arg;
    hf_client *client = serve_client(act->service);
    FILE *out = open_memstream(&act->text, &act->len);
    struct act_list list = {.out = out, .act = act};
    struct hf_error err = {.text = "the service cannot be reached"};

    act->st = HF_UNAVAILABLE;
    if (out) {
        fputs("{\"holders\":[", out);
        if (client && !act->breaks)
            act->st = hf_holders(client, act->key, act_holder, &list, &err);
        else if (client)
            act->st = hf_break(client, act->key, act->fence, &err);
        act_queue(out, act->breaks ? NULL : client, act->key);
        cli_mask(err.text, false);
        fprintf(out, ",\"status\":\"%s\",\"text\":", hf_status_name(act->st));
        cli_json_text(out, act->st ? err.text : "");
        fputs("}\n", out);
        fclose(out);
    }
    MHD_resume_connection(act->connection);
    act_leave();
    return NULL;
}

struct serve_act *serve_act_new(struct MHD_Connection *connection, int service,
                                const char *key, uint64_t fence, bool breaks)
{
    struct serve_act *act = NULL;
    pthread_t thread;

    if (atomic_fetch_add(&act_count[service], 1) < SERVE_ACTS)
        act = calloc(1, sizeof(*act));
    if (!act || !act_enter()) {
        atomic_fetch_sub(&act_count[service], 1);
        free(act);
        return NULL;
    }
    *act = (struct serve_act){.connection = connection,
                              .service = service,
                              .fence = fence,
                              .breaks = breaks};
    snprintf(act->key, sizeof(act->key), "%s", key);
    MHD_suspend_connection(connection);
    if (pthread_create(&thread, NULL, act_run, act)) {
        MHD_resume_connection(connection);
        act_leave();
        serve_act_free(act);
        return NULL;
    }
    pthread_detach(thread);
    return act;
}

/* A service that does not answer is the same whether it cannot be reached or is
 * silent.  Of a break that it was told of nobody knows whether it is done. */
static unsigned act_status(hf_status st, bool breaks)
{
    switch (st) {
    case HF_OK:
        return MHD_HTTP_OK;
    case HF_LOST:
        return MHD_HTTP_CONFLICT;
    case HF_UNAVAILABLE:
    case HF_TIMEOUT:
        return MHD_HTTP_SERVICE_UNAVAILABLE;
    case HF_UNCERTAIN:
        return breaks ? MHD_HTTP_GATEWAY_TIMEOUT : MHD_HTTP_SERVICE_UNAVAILABLE;
    default:
        return MHD_HTTP_BAD_GATEWAY;
    }
}

struct MHD_Response *serve_act_answer(struct serve_act *act, unsigned *status)
{
    struct MHD_Response *ret;

    *status = act_status(act->st, act->breaks);
    ret = MHD_create_response_from_buffer(act->len, act->text,
                                          MHD_RESPMEM_MUST_COPY);
    if (ret)
        MHD_add_response_header(ret, "Content-Type", "application/json");
    return ret;
}

void serve_act_free(struct serve_act *act)
{
    if (!act)
        return;
    atomic_fetch_sub(&act_count[act->service], 1);
    free(act->text);
    free(act);
}

/* Those that are under way end by their own limits of time. */
void serve_act_stop(void)
{
    pthread_mutex_lock(&act_mu);
    act_ends = true;
    while (act_running)
        pthread_cond_wait(&act_cond, &act_mu);
    pthread_mutex_unlock(&act_mu);
}
