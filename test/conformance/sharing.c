/* SPDX-License-Identifier: MIT
 *
 * sharing.c - HF_SHARED: readers together, a writer alone; and what detaches
 * from one client and is taken up by another.
 */
#include "conf.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

TEST(readers_hold_together_and_keep_a_writer_out)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    hf_client *a, *b, *c;
    hf_lock *one, *two, *three, *none = NULL;

    conf_needs(HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    c = conf_open();
    one = conf_try(a, key, &read);
    two = conf_try(b, key, &read);
    three = conf_try(a, key, &read);
    CHECK(hf_held(one) && hf_held(two) && hf_held(three));
    CHECK(conf_look(c, key).held);
    CHECK(conf_look(c, key).shared);
    conf_check_busy(key);
    conf_unlock(one);
    conf_check_busy(key);
    conf_unlock(three);
    conf_check_busy(key);
    CHECK_STATUS(hf_acquire(c, key, 50, NULL, &none, &t_err), HF_TIMEOUT);
    conf_unlock(two);
    conf_check_free(key);
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

TEST(a_writer_keeps_readers_out)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk, *none = NULL;
    struct conf_waiter w[2];

    conf_needs(HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, NULL);
    CHECK(!conf_look(b, key).shared);
    CHECK_STATUS(hf_acquire(b, key, 0, &read, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(a, key, 0, &read, &none, &t_err), HF_BUSY);
    conf_waiter_start(&w[0], a, key, -1, &read);
    conf_waiter_start(&w[1], b, key, -1, &read);
    t_sleep_ms(50);
    CHECK(!atomic_load(&w[0].done) && !atomic_load(&w[1].done));
    conf_unlock(lk);
    conf_waiter_join(&w[0], HF_OK);
    conf_waiter_join(&w[1], HF_OK);
    CHECK(hf_held(w[0].lk) && hf_held(w[1].lk));
    conf_unlock(w[0].lk);
    conf_unlock(w[1].lk);
    conf_check_free(key);
    hf_close(a);
    hf_close(b);
}

TEST(readers_and_writers_exclude_each_other_where_shared_is_unknown)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    hf_client *client = conf_open();
    hf_lock *lk = NULL;

    if (!(conf_traits & HF_TRAIT_SHARED)) {
        CHECK_STATUS(hf_acquire(client, conf_key("k"), 0, &read, &lk, &t_err),
                     HF_UNSUPPORTED);
        CHECK(lk == NULL);
    } else {
        lk = conf_try(client, conf_key("k"), &read);
        conf_check_busy(conf_key("k"));
        conf_unlock(lk);
    }
    hf_close(client);
}

struct library {
    hf_client *client;
    const char *key;
    unsigned seed;
    atomic_int *readers, *writers;
};

static void *visit(void *arg)
{
    struct library *lib = arg;

    for (int i = 0; i < conf_times(60, 10); i++) {
        bool write = rand_r(&lib->seed) % 4 == 0;
        struct hf_lock_opts opts = conf_opts(0, write ? 0 : HF_SHARED);
        hf_lock *lk = conf_lock(lib->client, lib->key, &opts);

        if (write) {
            CHECK_EQ(atomic_fetch_add(lib->writers, 1), 0);
            CHECK_EQ(atomic_load(lib->readers), 0);
            sched_yield();
            CHECK_EQ(atomic_load(lib->readers), 0);
            CHECK_EQ(atomic_fetch_sub(lib->writers, 1), 1);
        } else {
            atomic_fetch_add(lib->readers, 1);
            CHECK_EQ(atomic_load(lib->writers), 0);
            sched_yield();
            CHECK_EQ(atomic_load(lib->writers), 0);
            atomic_fetch_sub(lib->readers, 1);
        }
        CHECK(hf_held(lk));
        conf_unlock(lk);
    }
    return NULL;
}

TEST_TIMEOUT(writers_are_alone_among_many_readers, 120)
{
    atomic_int readers = 0, writers = 0;
    struct library lib[12];
    pthread_t threads[12];
    hf_client *clients[3];
    const char *key = conf_key("k");

    conf_needs(HF_TRAIT_SHARED);
    for (int i = 0; i < 3; i++)
        clients[i] = conf_open();
    for (int i = 0; i < 12; i++) {
        lib[i] = (struct library){clients[i % 3], key, (unsigned)i, &readers,
                                  &writers};
        threads[i] = conf_thread(visit, &lib[i]);
    }
    for (int i = 0; i < 12; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++)
        hf_close(clients[i]);
    conf_check_free(key);
}

TEST(a_writer_gets_in_among_readers_that_come_and_go)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk, *next;
    struct conf_waiter w;
    hf_status st;

    conf_needs(HF_TRAIT_SHARED | HF_TRAIT_QUEUED);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &read);
    conf_waiter_start(&w, b, key, -1, NULL);
    conf_await_waiters(a, key, 1);
    /* Readers who come after the writer overlap, so that without a queue the
     * lock would never be free. */
    for (int i = 0; i < 200 && !atomic_load(&w.done); i++) {
        st = hf_acquire(a, key, 10, &read, &next, &t_err);
        if (st == HF_OK) {
            if (lk)
                conf_unlock(lk);
            lk = next;
            continue;
        }
        if (lk)
            conf_unlock(lk);
        lk = NULL;
    }
    t_poll_until(atomic_load(&w.done), 20000);
    conf_waiter_join(&w, HF_OK);
    conf_unlock(w.lk);
    if (lk)
        conf_unlock(lk);
    hf_close(a);
    hf_close(b);
}

/* When told, wait for the lock alone, and release it. */
static void wait_alone(struct t_peer *up, void *arg)
{
    hf_client *client = conf_open();
    hf_lock *lk = NULL;

    t_hear(up);
    CHECK_OK(hf_acquire(client, arg, -1, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* Stop it, but not amid a write: a service of files would serve nobody. */
static void stop_between_writes(struct t_peer *peer, hf_client *client)
{
    const char *key = conf_key("other");
    hf_lock *lk = NULL;

    for (;;) {
        CHECK_EQ(kill(peer->pid, SIGSTOP), 0);
        waitpid(peer->pid, NULL, WUNTRACED);
        if (!hf_acquire(client, key, 0, NULL, &lk, &t_err))
            break;
        CHECK_EQ(kill(peer->pid, SIGCONT), 0);
        t_sleep_ms(50);
    }
    conf_unlock(lk);
}

TEST(a_reader_does_not_pass_a_writer_that_is_stopped)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    struct t_peer writer;
    hf_client *client;
    hf_lock *lk, *next = NULL;

    conf_needs(HF_TRAIT_SHARED | HF_TRAIT_QUEUED | HF_TRAIT_PROCESSES);
    writer = t_fork(wait_alone, (void *)(uintptr_t)key);
    client = conf_open();
    lk = conf_try(client, key, &read);
    t_tell(&writer, 0);
    conf_await_waiters(client, key, 1);
    stop_between_writes(&writer, client);
    conf_unlock(lk);
    CHECK_STATUS(hf_acquire(client, key, 0, &read, &next, &t_err), HF_BUSY);
    CHECK_EQ(kill(writer.pid, SIGCONT), 0);
    t_join(&writer);
    hf_close(client);
}

TEST(readers_behind_a_writer_that_gave_up_get_in)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    struct conf_waiter writer, reader;
    hf_client *a, *b, *c;
    hf_lock *lk;

    conf_needs(HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    c = conf_open();
    lk = conf_try(a, key, &read);
    conf_waiter_start(&writer, b, key, conf_ms(300), NULL);
    conf_await_waiters(a, key, 1);
    conf_waiter_start(&reader, c, key, -1, &read);
    conf_waiter_join(&writer, HF_TIMEOUT);
    t_poll_until(atomic_load(&reader.done), 8000);
    conf_waiter_join(&reader, HF_OK);
    CHECK(hf_held(lk) && hf_held(reader.lk));
    conf_unlock(lk);
    conf_unlock(reader.lk);
    hf_close(a);
    hf_close(b);
    hf_close(c);
    conf_check_free(key);
}

/* Each of those who share has a grant of its own. */
TEST(a_check_of_a_shared_grant_is_about_that_grant)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *one, *two;
    uint64_t gone;

    conf_needs(HF_TRAIT_SHARED | HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    one = conf_try(a, key, &read);
    two = conf_try(b, key, &read);
    gone = hf_fence(two);
    CHECK_OK(hf_check(a, key, hf_fence(one), &t_err));
    CHECK_OK(hf_check(a, key, gone, &t_err));
    conf_unlock(two);
    CHECK_OK(hf_check(a, key, hf_fence(one), &t_err));
    CHECK_STATUS(hf_check(a, key, gone, &t_err), HF_LOST);
    conf_unlock(one);
    CHECK_STATUS(hf_check(a, key, gone, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
}

/* ---- detach and attach ------------------------------------------------- */

TEST(a_detached_lock_is_taken_up_by_another_client)
{
    struct hf_lock_opts opts = conf_opts(30000, 0);
    const char *key = conf_key("k");
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *lk;
    uint64_t fence;

    conf_needs(HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    conf_look(b, key); /* It is connected: mem: lives as long as a client. */
    lk = conf_try(a, key, &opts);
    fence = hf_fence(lk);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_EQ(handle.fence, fence);
    hf_close(a);
    conf_check_busy(key);
    if (conf_traits & HF_TRAIT_FENCED)
        CHECK_OK(hf_check(b, key, fence, &t_err));
    CHECK_OK(hf_attach(b, key, &handle, &opts, &lk, &t_err));
    CHECK(hf_held(lk));
    CHECK_EQ(hf_fence(lk), fence);
    conf_check_busy(key);
    conf_unlock(lk);
    conf_check_free(key);
    CHECK_STATUS(hf_attach(b, key, &handle, &opts, &lk, &t_err), HF_LOST);
    hf_close(b);
}

TEST(a_lock_that_was_passed_on_is_detached_with_its_whole_lease)
{
    struct hf_lock_opts opts = conf_opts(60000, 0);
    const char *key = conf_key("k");
    struct hf_handle handle = HF_HANDLE_INIT;
    struct hf_info info;
    struct conf_waiter w;
    hf_client *a, *b;
    hf_lock *lk;

    conf_needs(HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &opts);
    conf_waiter_start(&w, b, key, -1, &opts);
    conf_await_waiters(a, key, 1);
    conf_unlock(lk);
    conf_waiter_join(&w, HF_OK);
    CHECK_OK(hf_detach(w.lk, &handle, &t_err));
    info = conf_look(a, key);
    CHECK(info.held);
    if (info.left_ms >= 0) /* unknown on some */
        CHECK_GT(info.left_ms, 20000);
    CHECK_OK(hf_handle_release(a, key, &handle, &opts, &t_err));
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_handle_is_taken_up_once)
{
    struct hf_lock_opts opts = conf_opts(30000, 0);
    const char *key = conf_key("k");
    struct hf_handle handle = HF_HANDLE_INIT, second = HF_HANDLE_INIT;
    hf_client *a, *b, *c;
    hf_lock *lk, *none = NULL;

    conf_needs(HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    c = conf_open();
    CHECK_OK(hf_detach(conf_try(a, key, &opts), &handle, &t_err));
    CHECK_OK(hf_attach(b, key, &handle, &opts, &lk, &t_err));
    CHECK_STATUS(hf_attach(c, key, &handle, &opts, &none, &t_err), HF_LOST);
    CHECK_STATUS(hf_attach(b, key, &handle, &opts, &none, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_extend(c, key, &handle, &opts, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_release(c, key, &handle, &opts, &t_err), HF_LOST);
    CHECK(none == NULL);
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_detach(lk, &second, &t_err));
    CHECK_STATUS(hf_attach(c, key, &handle, &opts, &none, &t_err), HF_LOST);
    CHECK_OK(hf_attach(c, key, &second, &opts, &lk, &t_err));
    conf_check_busy(key);
    conf_unlock(lk);
    conf_check_free(key);
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

TEST(a_handle_that_is_renewed_stays_good_for_the_next_process)
{
    struct hf_lock_opts opts = conf_opts(30000, 0);
    const char *key = conf_key("k");
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *client, *other;

    conf_needs(HF_TRAIT_DETACH);
    other = conf_open(); /* A service in memory is there while it is used. */
    client = conf_open();
    CHECK_OK(hf_detach(conf_try(client, key, &opts), &handle, &t_err));
    hf_close(client);
    for (int i = 0; i < 3; i++) {
        client = conf_open();
        CHECK_OK(hf_handle_extend(client, key, &handle, &opts, &t_err));
        hf_close(client);
        conf_check_busy(key);
    }
    client = conf_open();
    CHECK_OK(hf_handle_release(client, key, &handle, &opts, &t_err));
    conf_check_free(key);
    CHECK_STATUS(hf_handle_release(client, key, &handle, &opts, &t_err),
                 HF_LOST);
    hf_close(client);
    hf_close(other);
}

TEST(a_strangers_token_takes_up_nothing)
{
    struct hf_lock_opts opts = conf_opts(1000, 0);
    const char *key = conf_key("k");
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *lk, *none = NULL;

    conf_needs(HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &opts);
    handle = (struct hf_handle)HF_HANDLE_INIT;
    handle.fence = hf_fence(lk);
    snprintf(handle.token, sizeof(handle.token), "%032x", 17);
    CHECK_STATUS(hf_attach(b, key, &handle, &opts, &none, &t_err), HF_LOST);
    CHECK(none == NULL);
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    conf_check_busy(key);
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
}

/* The service knows in which mode a lock was granted; what a handle's bearer
 * says about it changes nothing. */
TEST(a_shared_lock_is_attached_as_a_shared_one_only)
{
    struct hf_lock_opts read = conf_opts(30000, HF_SHARED);
    struct hf_lock_opts write = conf_opts(30000, 0);
    const char *key = conf_key("k");
    struct hf_handle shared = HF_HANDLE_INIT, alone = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *lk, *second, *none = NULL;

    conf_needs(HF_TRAIT_DETACH | HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    CHECK_OK(hf_detach(conf_try(a, key, &read), &shared, &t_err));
    CHECK_STATUS(hf_attach(b, key, &shared, &write, &none, &t_err), HF_INVALID);
    CHECK(none == NULL);
    CHECK_OK(hf_handle_extend(b, key, &shared, &read, &t_err));
    second = conf_try(b, key, &read);
    CHECK_OK(hf_attach(b, key, &shared, &read, &lk, &t_err));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    conf_check_busy(key);
    conf_unlock(lk);
    conf_unlock(second);
    CHECK_OK(hf_detach(conf_try(a, key, &write), &alone, &t_err));
    CHECK_STATUS(hf_attach(b, key, &alone, &read, &none, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire(b, key, 0, &read, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_handle_release(b, key, &alone, &write, &t_err));
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_stale_handle_leaves_the_next_holder_alone)
{
    struct hf_lock_opts opts = conf_opts(30000, 0);
    const char *key = conf_key("k");
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *lk, *next, *none = NULL;

    conf_needs(HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    CHECK_OK(hf_detach(conf_try(a, key, &opts), &handle, &t_err));
    CHECK_OK(hf_attach(a, key, &handle, &opts, &lk, &t_err));
    conf_unlock(lk);
    next = conf_try(b, key, NULL);
    CHECK_STATUS(hf_attach(a, key, &handle, &opts, &none, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_extend(next, 0, &t_err));
    conf_check_busy(key);
    conf_unlock(next);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_detached_lock_lapses_at_the_end_of_its_lease)
{
    struct hf_lock_opts opts = conf_opts(300, 0);
    const char *key = conf_key("k");
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *none = NULL;

    conf_needs(HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    CHECK_OK(hf_detach(conf_try(a, key, &opts), &handle, &t_err));
    conf_unlock(conf_lock(b, key, NULL));
    CHECK_STATUS(hf_attach(b, key, &handle, &opts, &none, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(what_cannot_be_detached_says_so)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL), *none = NULL;
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_status st = hf_detach(lk, &handle, &t_err);

    if (conf_traits & HF_TRAIT_DETACH) {
        t_check_status(__FILE__, __LINE__, "hf_detach", st, HF_OK);
        CHECK_OK(hf_attach(client, key, &handle, NULL, &lk, &t_err));
        conf_unlock(lk);
    } else {
        t_check_status(__FILE__, __LINE__, "hf_detach(&t_err)", st,
                       HF_UNSUPPORTED);
        handle = (struct hf_handle)HF_HANDLE_INIT;
        snprintf(handle.token, sizeof(handle.token), "%032x", 17);
        CHECK_STATUS(hf_attach(client, key, &handle, NULL, &none, &t_err),
                     HF_UNSUPPORTED);
    }
    hf_close(client);
    conf_check_free(key);
}
