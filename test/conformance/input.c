/* SPDX-License-Identifier: MIT
 *
 * input.c - wrong arguments: each is refused with HF_INVALID and a line that
 * says what is wrong, and nothing happens.
 */
#include "conf.h"

TEST(null_arguments_are_refused)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct hf_info info = HF_INFO_INIT;
    struct hf_service about = {.size = sizeof(about)};
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_request *req = NULL;
    hf_lock *lk = NULL;
    int n = 0;

    CHECK_STATUS(hf_open(conf_url(), NULL, NULL, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire(NULL, key, 0, NULL, &lk, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire(client, NULL, 0, NULL, &lk, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire(client, key, 0, NULL, NULL, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire_start(NULL, key, 0, NULL, NULL, &req, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_acquire_start(client, NULL, 0, NULL, NULL, &req, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_extend(NULL, 0, &t_err), HF_INVALID);
    CHECK_STATUS(hf_detach(NULL, &handle, &t_err), HF_INVALID);
    CHECK_STATUS(hf_attach(NULL, key, &handle, NULL, &lk, &t_err), HF_INVALID);
    if (conf_traits & HF_TRAIT_DETACH)
        CHECK_STATUS(hf_attach(client, key, NULL, NULL, &lk, &t_err),
                     HF_INVALID);
    CHECK_STATUS(hf_describe(NULL, &about, &t_err), HF_INVALID);
    CHECK_STATUS(hf_describe(client, NULL, &t_err), HF_INVALID);
    CHECK_STATUS(hf_inspect(NULL, key, &info, &t_err), HF_INVALID);
    CHECK_STATUS(hf_inspect(client, NULL, &info, &t_err), HF_INVALID);
    CHECK_STATUS(hf_inspect(client, key, NULL, &t_err), HF_INVALID);
    CHECK_STATUS(hf_list(NULL, NULL, NULL, &n, &t_err), HF_INVALID);
    CHECK_STATUS(hf_list(client, NULL, NULL, &n, &t_err), HF_INVALID);
    CHECK_STATUS(hf_break(NULL, key, 1, &t_err), HF_INVALID);
    CHECK_STATUS(hf_break(client, NULL, 1, &t_err), HF_INVALID);
    CHECK_STATUS(hf_check(NULL, key, 1, &t_err), HF_INVALID);
    CHECK_STATUS(hf_check(client, NULL, 1, &t_err), HF_INVALID);
    CHECK(lk == NULL && req == NULL);
    hf_close(client);
    conf_check_free(key);
}

TEST(null_handles_do_no_harm)
{
    struct hf_event event = HF_EVENT_INIT;

    CHECK(!hf_held(NULL));
    CHECK_EQ(hf_remaining_ms(NULL), 0);
    CHECK_EQ(hf_lost_fd(NULL), -1);
    CHECK_EQ(hf_events_fd(NULL), -1);
    CHECK(!hf_next_event(NULL, &event));
    CHECK_NE(hf_release(NULL, NULL), HF_LOST);
    hf_request_cancel(NULL);
    hf_cancel(NULL);
    hf_close(NULL);
}

TEST(no_error_struct_is_needed)
{
    hf_client *client = conf_open(), *none = NULL;
    hf_lock *lk = NULL, *other = NULL;

    CHECK_EQ(hf_open("nonsense:", NULL, &none, NULL), HF_INVALID);
    CHECK_EQ(hf_acquire(client, "", 0, NULL, &lk, NULL), HF_INVALID);
    CHECK_EQ(hf_acquire(client, conf_key("k"), 0, NULL, &lk, NULL), HF_OK);
    CHECK_EQ(hf_acquire(client, hf_key(lk), 0, NULL, &other, NULL), HF_BUSY);
    CHECK_EQ(hf_extend(lk, 0, NULL), HF_OK);
    CHECK_EQ(hf_release(lk, NULL), HF_OK);
    CHECK(none == NULL && other == NULL);
    hf_close(client);
}

/* Each of these makes one field wrong. */
static void spoil(struct hf_lock_opts *opts, int i)
{
    switch (i) {
    case 0:
        opts->size = 0;
        break;
    case 1:
        opts->size = 4;
        break;
    case 2:
        opts->size = sizeof(*opts) - 1;
        break;
    case 3:
        opts->size = (size_t)-1;
        break;
    case 4:
        opts->ttl_ms = -1;
        break;
    case 5:
        opts->ttl_ms = 9;
        break;
    case 6:
        opts->ttl_ms = INT64_MIN;
        break;
    case 7:
        opts->ttl_ms = INT64_MAX;
        break;
    case 8:
        opts->flags = 1u << 31;
        break;
    case 9:
        opts->flags = 1u << 4;
        break;
    case 10:
        opts->max_tries = -1;
        break;
    case 11:
        opts->retry_ms = -1;
        break;
    case 12:
        opts->linger_ms = -1;
        break;
    case 13:
        opts->max_hold_ms = -1;
        break;
    case 14:
        opts->local_turns = -2;
        break;
    }
}

TEST(wrong_lock_options_are_refused)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();

    for (int i = 0; i < 15; i++) {
        struct hf_lock_opts opts = conf_opts(0, 0);
        hf_request *req = NULL;
        hf_lock *lk = NULL;
        hf_status st;

        spoil(&opts, i);
        st = hf_acquire(client, key, 0, &opts, &lk, &t_err);
        if (st != HF_INVALID || !t_err.text[0] || lk)
            t_fail(__FILE__, __LINE__, "case %d: %s (%s)", i,
                   hf_status_name(st), t_err.text);
        st = hf_acquire_start(client, key, 0, &opts, NULL, &req, &t_err);
        if (st != HF_INVALID || !t_err.text[0] || req)
            t_fail(__FILE__, __LINE__, "start, case %d: %s (%s)", i,
                   hf_status_name(st), t_err.text);
    }
    conf_no_event(client);
    hf_close(client);
    conf_check_free(key);
}

TEST(wrong_waits_and_leases_are_refused)
{
    static const int64_t waits[] = {-2, INT64_MIN};
    static const int64_t ttls[] = {-1, 9, INT64_MIN, INT64_MAX};
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = NULL;
    hf_request *req = NULL;

    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(hf_acquire(client, key, waits[i], NULL, &lk, &t_err),
                     HF_INVALID);
        CHECK_STATUS(
            hf_acquire_start(client, key, waits[i], NULL, NULL, &req, &t_err),
            HF_INVALID);
    }
    CHECK(lk == NULL && req == NULL);
    lk = conf_try(client, key, NULL);
    for (int i = 0; i < 4; i++) {
        CHECK_STATUS(hf_extend(lk, ttls[i], &t_err), HF_INVALID);
        CHECK(hf_held(lk));
    }
    conf_unlock(lk);
    hf_close(client);
}

TEST(the_longest_wait_is_good)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    struct conf_waiter w[2];
    int first;

    conf_waiter_start(&w[0], b, key, INT64_MAX, NULL);
    conf_waiter_start(&w[1], b, key, INT64_MAX / 2, NULL);
    t_sleep_ms(100);
    CHECK(!atomic_load(&w[0].done) && !atomic_load(&w[1].done));
    conf_unlock(lk);
    t_poll_until(atomic_load(&w[0].done) || atomic_load(&w[1].done), 20000);
    first = atomic_load(&w[0].done) ? 0 : 1;
    conf_waiter_join(&w[first], HF_OK);
    conf_unlock(w[first].lk);
    conf_waiter_join(&w[1 - first], HF_OK);
    conf_unlock(w[1 - first].lk);
    hf_close(a);
    hf_close(b);
}

TEST(wrong_sizes_of_other_structs_are_refused)
{
    static const size_t sizes[] = {0, 1, sizeof(size_t), (size_t)-1};
    hf_client *client = conf_open(), *none = NULL;

    for (int i = 0; i < 4; i++) {
        struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
        struct hf_info info = HF_INFO_INIT;
        struct hf_service about = {.size = sizes[i]};

        opts.size = sizes[i];
        info.size = sizes[i];
        CHECK_STATUS(hf_open(conf_url(), &opts, &none, &t_err), HF_INVALID);
        CHECK_STATUS(hf_inspect(client, conf_key("k"), &info, &t_err),
                     HF_INVALID);
        CHECK_STATUS(hf_describe(client, &about, &t_err), HF_INVALID);
    }
    CHECK(none == NULL);
    hf_close(client);
}

/* A program that was built with an older header has shorter structs: nothing
 * behind their ends is written. */
TEST(shorter_structs_are_filled_as_far_as_they_go)
{
    struct hf_service about = HF_SERVICE_INIT;
    struct hf_info info = HF_INFO_INIT;
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL);

    info.size = offsetof(struct hf_info, note) / sizeof(size_t) *
                sizeof(size_t); /* as short as that, and aligned */
    memset(info.note, '?', sizeof(info.note));
    info.permits = 77;
    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    CHECK(info.held && info.note[8] == '?' && info.permits == 77);
    CHECK_LT(info.size, sizeof(info));
    about.size = offsetof(struct hf_service, ttl_ms);
    about.ttl_ms = 77;
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK_EQ(about.traits, conf_traits);
    CHECK_EQ(about.ttl_ms, 77);
    conf_unlock(lk);
    hf_close(client);
}

TEST(an_event_is_written_as_far_as_its_struct_goes)
{
    struct hf_event event = {.size = offsetof(struct hf_event, user),
                             .user = &event};
    hf_client *client = conf_open();
    hf_request *request;

    CHECK_OK(hf_acquire_start(client, conf_key("k"), 0, NULL, client, &request,
                              &t_err));
    t_poll_until(hf_next_event(client, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK(event.request == request && event.user == &event);
    conf_unlock(event.lock);
    event.size = 0; /* never set: nothing is taken */
    CHECK(!hf_next_event(client, &event));
    hf_close(client);
}

TEST(shorter_options_mean_the_default_for_the_rest)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = conf_open();
    hf_lock *lk;

    opts.size = offsetof(struct hf_lock_opts, owner);
    opts.ttl_ms = 20000;
    opts.owner = opts.note = (const char *)1; /* not there */
    opts.permits = -1;
    lk = conf_try(client, conf_key("k"), &opts);
    CHECK_EQ(hf_slot(lk), -1);
    conf_unlock(lk);
    hf_close(client);
}

/* A newer header: its fields may be there as long as they ask for nothing. */
TEST(longer_options_are_refused_unless_the_rest_is_zero)
{
    struct {
        struct hf_lock_opts opts;
        int64_t newer[2];
    } longer = {.opts = HF_LOCK_OPTS_INIT};
    hf_client *client = conf_open();
    hf_lock *lk = NULL;

    longer.opts.size = sizeof(longer);
    longer.newer[1] = 1;
    CHECK_STATUS(
        hf_acquire(client, conf_key("k"), 0, &longer.opts, &lk, &t_err),
        HF_INVALID);
    longer.newer[1] = 0;
    lk = conf_try(client, conf_key("k"), &longer.opts);
    conf_unlock(lk);
    hf_close(client);
}

TEST(wrong_client_options_are_refused)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *none = NULL;
    char note[HF_NOTE_MAX + 2];

    opts.timeout_ms = -1;
    CHECK_STATUS(hf_open(conf_url(), &opts, &none, &t_err), HF_INVALID);
    opts.timeout_ms = 0;
    opts.connect_ms = -2;
    CHECK_STATUS(hf_open(conf_url(), &opts, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "connect_ms is -2") && strstr(t_err.text, "-1 "));
    opts.connect_ms = 0;
    opts.reserved = 1;
    CHECK_STATUS(hf_open(conf_url(), &opts, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "reserved"));
    opts.reserved = 0;
    opts.log_level = (hf_log_level)(HF_LOG_DEBUG + 1);
    CHECK_STATUS(hf_open(conf_url(), &opts, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "log_level"));
    opts.log_level = HF_LOG_DEBUG;
    memset(note, 'n', sizeof(note));
    note[HF_NOTE_MAX + 1] = 0;
    opts.note = note;
    CHECK_STATUS(hf_open(conf_url(), &opts, &none, &t_err), HF_INVALID);
    CHECK(none == NULL);
}

TEST(strings_are_copied)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    char key[128], owner[] = "owner", note[] = "note";
    hf_client *client = conf_open();
    hf_lock *lk;

    strcpy(key, conf_key("k"));
    opts.owner = owner;
    opts.note = note;
    lk = conf_try(client, key, &opts);
    memset(key, '#', strlen(key));
    memset(owner, '#', strlen(owner));
    memset(note, '#', strlen(note));
    CHECK_STR(hf_key(lk), conf_key("k"));
    if (conf_traits & HF_TRAIT_NOTED) {
        CHECK_STR(hf_token(lk), "owner");
        CHECK_STR(conf_look(client, conf_key("k")).note, "note");
    }
    conf_unlock(lk);
    hf_close(client);
}

TEST(names_of_statuses_and_losses_are_words)
{
    CHECK_STR(hf_status_name(HF_OK), "ok");
    CHECK_STR(hf_status_name(HF_BUSY), "busy");
    CHECK_STR(hf_loss_name(HF_LOSS_EXPIRED), "expired");
    for (int i = HF_OK; i <= HF_SYSTEM; i++)
        for (int j = HF_OK; j < i; j++)
            CHECK(strcmp(hf_status_name((hf_status)i),
                         hf_status_name((hf_status)j)) != 0);
    for (int i = HF_LOSS_NONE; i <= HF_LOSS_CLOSED; i++)
        CHECK(hf_loss_name((hf_loss)i)[0]);
    CHECK(hf_status_name((hf_status)999) != NULL);
    CHECK(hf_loss_name((hf_loss)999) != NULL);
    CHECK_STR(hf_version(), "0.2.0");
}

struct kind {
    struct hf_service about;
    unsigned traits, varies;
    bool found;
};

static bool find_kind(void *arg, const struct hf_service_kind *kind)
{
    struct kind *ret = arg;

    CHECK(kind->schemes[0] && kind->missing);
    if (strcmp(kind->name, ret->about.scheme) != 0)
        return true;
    CHECK_STR(kind->missing, "");
    CHECK(!strncmp(kind->page, "holdfast-", 9));
    ret->found = true;
    ret->traits = kind->traits;
    ret->varies = kind->varies;
    return false;
}

/* The table of services is made from what a service says without a client. */
TEST(a_client_has_the_traits_that_its_service_declares)
{
    struct kind kind = {.about.size = sizeof(kind.about)};
    hf_client *client = conf_open();

    CHECK_STATUS(hf_services(NULL, NULL, &t_err), HF_INVALID);
    CHECK_OK(hf_describe(client, &kind.about, &t_err));
    CHECK_OK(hf_services(find_kind, &kind, &t_err));
    CHECK(kind.found);
    CHECK_EQ((kind.about.traits ^ kind.traits) & ~kind.varies, 0u);
    hf_close(client);
}
