/* SPDX-License-Identifier: MIT
 *
 * log.c - what opts.log is told, and that it keeps nobody waiting.
 */
#include "far.h"

#define KEPT 4000

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static char texts[KEPT][320];
static hf_log_level levels[KEPT];
static int told;
static atomic_bool stuck; /* the callback does not return */

static void on_log(void *arg, hf_log_level level, const char *text)
{
    CHECK(arg == texts);
    while (atomic_load(&stuck))
        t_sleep_ms(1);
    pthread_mutex_lock(&mu);
    CHECK_LT(told, KEPT);
    levels[told] = level;
    snprintf(texts[told++], sizeof(texts[0]), "%s", text);
    pthread_mutex_unlock(&mu);
}

static bool said(hf_log_level level, const char *text)
{
    bool found = false;
    int i;

    pthread_mutex_lock(&mu);
    for (i = 0; i < told; i++)
        found = found || (levels[i] == level && strstr(texts[i], text));
    pthread_mutex_unlock(&mu);
    return found;
}

static hf_client *logging(hf_log_level level, int64_t timeout_ms)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct hfi_url url;
    hf_client *client;

    opts.timeout_ms = timeout_ms;
    opts.log = on_log;
    opts.log_arg = texts;
    opts.log_level = level;
    CHECK_OK(hfi_url_parse(&url, "mem:far", &t_err));
    CHECK_OK(hfi_open_with(&far_backend, &url, &opts, &client, &t_err));
    hfi_url_fini(&url);
    return client;
}

TEST(a_lock_that_is_lost_is_told_step_by_step)
{
    hf_client *client = logging(HF_LOG_DEBUG, 100);
    hf_lock *lk = far_lock(client, "k", 400), *other;

    t_poll_until(said(HF_LOG_DEBUG, "'k': granted"), 20000);
    atomic_store(&far_silent, true);
    t_poll_until(said(HF_LOG_WARNING, "'k': not renewed"), 20000);
    t_poll_until(said(HF_LOG_WARNING, "'k': at risk"), 20000);
    t_poll_until(said(HF_LOG_ERROR, "'k': lost: expired"), 20000);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_STATUS(hf_acquire(client, "other", 200, NULL, &other, &t_err),
                 HF_UNCERTAIN);
    CHECK(said(HF_LOG_INFO, "'other': no answer, next try in"));
    t_poll_until(said(HF_LOG_INFO, "'other': being taken back"), 20000);
    atomic_store(&far_silent, false);
    t_poll_until(said(HF_LOG_INFO, "'other': taken back: "), 20000);
    far_end(client);
}

TEST(only_what_was_asked_for_is_told)
{
    hf_client *client = logging((hf_log_level)0, 100), *quiet = far_client(100);
    hf_lock *lk = far_lock(client, "k", 300);

    hfi_warn(client->conn, "the moon is full");
    t_poll_until(said(HF_LOG_WARNING, "the moon is full"), 20000);
    CHECK_OK(hf_release(lk, &t_err));
    lk = far_lock(quiet, "k", 300);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(quiet);
    far_end(client);
    CHECK_EQ(told, 1);
}

static atomic_int renewals;

static void count_renewals(struct hfi_conn *conn, struct hfi_renewal *items,
                           size_t n, int64_t deadline, struct hf_error *err)
{
    atomic_fetch_add(&renewals, 1);
    far_renew(conn, items, n, deadline, err);
}

TEST(a_callback_that_does_not_return_delays_no_renewal)
{
    static struct hfi_backend be;
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct hfi_url url;
    hf_client *client;
    hf_lock *lk;

    be = far_backend;
    be.renew = count_renewals;
    opts.log = on_log;
    opts.log_arg = texts;
    opts.log_level = HF_LOG_DEBUG;
    atomic_store(&stuck, true);
    CHECK_OK(hfi_url_parse(&url, "mem:far", &t_err));
    CHECK_OK(hfi_open_with(&be, &url, &opts, &client, &t_err));
    hfi_url_fini(&url);
    lk = far_lock(client, "k", 150);
    t_poll_until(atomic_load(&renewals) >= 10, 30000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    atomic_store(&stuck, false);
    far_end(client);
    CHECK(said(HF_LOG_DEBUG, "'k': released: ok"));
}

TEST(messages_are_bounded_and_what_is_left_out_is_counted)
{
    hf_client *client = logging(HF_LOG_DEBUG, 1000);
    int i;

    atomic_store(&stuck, true);
    for (i = 0; i < 500; i++)
        CHECK_OK(hf_release(far_lock(client, "k", 30000), &t_err));
    atomic_store(&stuck, false);
    far_end(client);
    CHECK_LE(told, 200);
    CHECK(said(HF_LOG_WARNING, "messages were left out"));
}

T_MAIN
