/* SPDX-License-Identifier: MIT
 *
 * locks.c - what is particular to locks on Consul: sessions, how a loss is
 * told, what an operator may do, and that `consul lock` is excluded and
 * excludes.
 */
#include "peer.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- sessions ----------------------------------------------------------- */

TEST(locks_of_one_ttl_share_a_session_and_closing_destroys_it)
{
    hf_client *client = open_url(url(""));
    hf_lock *lk[6];
    char key[16];

    for (int i = 0; i < 6; i++) {
        snprintf(key, sizeof(key), "share/%d", i);
        lk[i] = lock(client, key, i % 2 ? 20000 : 30000, 0);
    }
    CHECK_EQ(count_sessions(), 2);
    CHECK_EQ(count_locked(), 6);
    for (int i = 0; i < 6; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    CHECK_EQ(count_locked(), 0);
    hf_close(client);
    check_clean();
}

TEST(a_session_has_a_ttl_no_lock_delay_and_no_health_checks)
{
    hf_client *client = open_url(url(""));
    hf_lock *lk = lock(client, "plain", 12345, 0);
    const char *list = out("curl -s $C/v1/session/list");

    CHECK(strstr(list, "\"TTL\":\"12345ms\"") != NULL);
    CHECK(strstr(list, "\"LockDelay\":0,") != NULL);
    CHECK(strstr(list, "\"Behavior\":\"release\"") != NULL);
    CHECK(strstr(list, "serfHealth") == NULL);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    client = open_url(url("?checks=serfHealth&lock_delay=3s"));
    lk = lock(client, "plain", 0, 0);
    list = out("curl -s $C/v1/session/list");
    CHECK(strstr(list, "\"NodeChecks\":[\"serfHealth\"]") != NULL);
    CHECK(strstr(list, "\"LockDelay\":3000000000,") != NULL);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    check_clean();
}

TEST(an_agent_that_is_as_it_should_be_is_not_warned_of)
{
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client = open_url(url(""));

    CHECK_OK(hf_release(lock(client, "plain", 0, 0), &t_err));
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK_STR(about.warning, "");
    hf_close(client);
}

TEST(locks_left_at_close_and_waits_given_up_leave_nothing)
{
    hf_client *a = open_url(url("")), *b = open_url(url("?queue=fair"));
    hf_lock *lk = lock(a, "left", 0, 0), *none = NULL;

    CHECK_STATUS(hf_acquire(b, "left", 300, NULL, &none, &t_err), HF_TIMEOUT);
    CHECK_STATUS(hf_acquire(b, "left", 0, NULL, &none, &t_err), HF_BUSY);
    hf_close(b);
    hf_close(a);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    check_clean();
}

TEST(a_lapsed_lock_is_not_kept_by_a_session_that_others_keep_alive)
{
    struct hf_lock_opts manual = HF_LOCK_OPTS_INIT;
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *kept = lock(a, "kept", 900, 0), *lapsed, *next;

    manual.ttl_ms = 900;
    manual.flags = HF_MANUAL;
    CHECK_OK(hf_acquire(a, "lapsed", 0, &manual, &lapsed, &t_err));
    next = lock(b, "lapsed", 0, 20000);
    CHECK(!hf_held(lapsed));
    CHECK(hf_held(kept));
    CHECK_GT(hf_fence(next), hf_fence(lapsed));
    CHECK_STATUS(hf_release(lapsed, &t_err), HF_LOST);
    CHECK_OK(hf_release(next, &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* ---- what an operator may do -------------------------------------------- */

TEST(a_session_destroyed_by_an_operator_loses_all_its_locks)
{
    hf_client *client = open_url(url(""));
    hf_lock *one = lock(client, "op/1", 6000, 0);
    hf_lock *two = lock(client, "op/2", 6000, 0), *again;
    uint64_t fence = hf_fence(one);

    CHECK_EQ(sh("id=$(curl -s $C/v1/session/list | tr -d ' \\n' | "
                "sed 's/.*\"ID\":\"//; s/\".*//'); "
                "curl -sf -X PUT $C/v1/session/destroy/$id >/dev/null"),
             0);
    check_lost(one, HF_LOSS_SESSION);
    check_lost(two, HF_LOSS_SESSION);
    again = lock(client, "op/1", 6000, 0);
    CHECK_GT(hf_fence(again), fence);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    CHECK(hf_held(again));
    CHECK_OK(hf_release(again, &t_err));
    hf_close(client);
    check_clean();
}

TEST(a_key_deleted_by_an_operator_is_told_and_its_fence_goes_on)
{
    hf_client *client = open_url(url(""));
    hf_lock *lk = lock(client, "op/del", 6000, 0), *next;
    uint64_t fence = hf_fence(lk);

    CHECK_EQ(sh("curl -sf -X DELETE $C/v1/kv/op/del >/dev/null"), 0);
    check_lost(lk, HF_LOSS_DELETED);
    next = lock(client, "op/del", 6000, 0);
    CHECK_GT(hf_fence(next), fence);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(client);
    check_clean();
}

TEST(a_lock_beyond_those_watched_is_told_of_its_loss_by_the_renewal)
{
    hf_client *client = open_url(url(""));
    hf_lock *lk[40];
    char key[16];

    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "many/%d", i);
        lk[i] = lock(client, key, 3000, 0);
    }
    CHECK_EQ(sh("curl -sf -X DELETE $C/v1/kv/many/39 >/dev/null"), 0);
    check_lost(lk[39], HF_LOSS_DELETED);
    for (int i = 0; i < 39; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    CHECK_STATUS(hf_release(lk[39], &t_err), HF_LOST);
    hf_close(client);
    check_clean();
}

TEST(a_value_overwritten_by_an_operator_does_not_take_the_lock_away)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = open_url(url(""));
    hf_lock *lk;

    opts.ttl_ms = 600;
    CHECK_OK(hf_acquire(client, "op/put", 0, &opts, &lk, &t_err));
    CHECK_EQ(sh("curl -sf -X PUT -d mine $C/v1/kv/op/put >/dev/null"), 0);
    t_sleep_ms(1500);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    check_clean();
}

TEST(data_that_is_no_lock_is_never_overwritten)
{
    hf_client *client = open_url(url(""));
    hf_lock *none = NULL;

    CHECK_EQ(sh("curl -sf -X PUT -d port=80 $C/v1/kv/app/config >/dev/null"),
             0);
    CHECK_STATUS(hf_acquire(client, "app/config", 0, NULL, &none, &t_err),
                 HF_PROTOCOL);
    CHECK_STATUS(hf_acquire(client, "app/config", 500, NULL, &none, &t_err),
                 HF_PROTOCOL);
    CHECK_STR(out("curl -s $C/v1/kv/app/config?raw"), "port=80");
    hf_close(client);
    check_clean();
}

TEST(flags_beyond_a_signed_number_do_not_confuse_the_list)
{
    hf_client *client = open_url(url(""));
    hf_lock *lk = lock(client, "sem/x", 0, 0);
    struct hf_info info = HF_INFO_INIT;

    CHECK_EQ(sh("curl -sf -X PUT -d v "
                "$C/v1/kv/sem/flags?flags=16210313421097356768 >/dev/null"),
             0);
    CHECK_OK(hf_inspect(client, "sem/flags", &info, &t_err));
    CHECK(!info.held);
    CHECK_OK(hf_inspect(client, "sem/x", &info, &t_err));
    CHECK(info.held);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST(a_lock_delay_keeps_the_key_closed_after_its_holder_died)
{
    hf_client *a = open_url(url("?lock_delay=2s")), *b = open_url(url(""));
    hf_lock *lk = lock(a, "delay", 6000, 0), *next;
    int64_t began;

    began = t_now_ms();
    CHECK_EQ(sh("id=$(curl -s $C/v1/session/list | tr -d ' \\n' | "
                "sed 's/.*\"ID\":\"//; s/\".*//'); "
                "curl -sf -X PUT $C/v1/session/destroy/$id >/dev/null"),
             0);
    CHECK_STATUS(hf_acquire(b, "delay", 0, NULL, &next, &t_err), HF_BUSY);
    next = lock(b, "delay", 0, 30000);
    CHECK_GE(t_now_ms() - began, 1900);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST(what_a_take_over_may_cost_is_shown)
{
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client = open_url(url("?lock_delay=7s"));
    hf_lock *lk = lock(client, "over", 90000, 0);
    struct hf_info info = HF_INFO_INIT;
    const char *text;

    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(about.traits & HF_TRAIT_TWICE);
    CHECK_OK(hf_inspect(client, "over", &info, &t_err));
    CHECK_EQ(info.takeover_ms, 2 * 90000 + 7000);
    text = out("$HF_TEST_HOLDFAST status -u %s over", url(""));
    CHECK(strstr(text, "passeson3m07safteradeath") != NULL);
    text = out("$HF_TEST_HOLDFAST status --json -u %s over", url(""));
    CHECK(strstr(text, "\"takeover_ms\":187000") != NULL);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_inspect(client, "over", &info, &t_err));
    CHECK_EQ(info.takeover_ms, 0);
    hf_close(client);
    check_clean();
}

TEST(what_a_take_over_from_consul_lock_may_cost_is_shown)
{
    hf_client *client = open_url(url("?layout=cli"));
    struct hf_info info = HF_INFO_INIT;

    CHECK_EQ(sh("($HF_TEST_CONSUL lock cli/o 'touch %s/in; while ! test -e "
                "%s/go; do sleep 0.05; done' >/dev/null 2>&1 &)",
                t_tmpdir(), t_tmpdir()),
             0);
    t_poll_until(sh("test -e %s/in", t_tmpdir()) == 0, 20000);
    CHECK_OK(hf_inspect(client, "cli/o", &info, &t_err));
    CHECK(info.held);
    CHECK_EQ(info.takeover_ms, 2 * 15000 + 15000); /* Its defaults. */
    CHECK_EQ(sh("touch %s/go", t_tmpdir()), 0);
    CHECK_OK(hf_release(lock(client, "cli/o", 0, 30000), &t_err));
    hf_close(client);
}

/* ---- other ways in ------------------------------------------------------ */

TEST(a_unix_socket_and_the_variable_lead_to_the_same_locks)
{
    hf_client *a = open_url(url("")), *b, *c;
    hf_lock *lk = lock(a, "ways", 0, 0), *none = NULL;
    char text[256];

    snprintf(text, sizeof(text), "consul+unix://%s/agent1.sock",
             getenv("HF_TEST_DIR"));
    b = open_url(text);
    CHECK_STATUS(hf_acquire(b, "ways", 0, NULL, &none, &t_err), HF_BUSY);
    setenv("CONSUL_HTTP_ADDR", out("echo $C"), 1);
    c = open_url("consul:");
    CHECK_STATUS(hf_acquire(c, "ways", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(lock(b, "ways", 0, 0), &t_err));
    CHECK_OK(hf_release(lock(c, "ways", 0, 0), &t_err));
    hf_close(a);
    hf_close(b);
    hf_close(c);
    check_clean();
}

TEST(a_path_stands_before_every_key)
{
    hf_client *a = open_url(url("/team/a/")), *b = open_url(url("/team/b/"));
    hf_lock *one = lock(a, "k", 0, 0), *two = lock(b, "k", 0, 0);
    struct hf_info info = HF_INFO_INIT;

    CHECK(strstr(out("curl -s $C/v1/kv/team?keys"), "team/a/k") != NULL);
    CHECK_OK(hf_inspect(a, "k", &info, &t_err));
    CHECK_EQ(info.fence, hf_fence(one));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST(wrong_options_and_addresses_are_refused)
{
    static const char *const wrong[] = {"?layout=x",       "?queue=x",
                                        "?lock_delay=61s", "?lock_delay=x",
                                        "/a//b",           "/a b"};
    hf_client *none = NULL;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_STATUS(hf_open(url(wrong[i]), NULL, &none, &t_err), HF_INVALID);
    CHECK_STATUS(hf_open("consul://127.0.0.1:1", NULL, &none, &t_err),
                 HF_UNAVAILABLE);
    CHECK(none == NULL);
}

/* ---- descriptors -------------------------------------------------------- */

struct program {
    atomic_bool stop;
    atomic_int made, spoilt;
};

/* A program that makes pairs of sockets which its children are to inherit, and
 * sends and receives on them. */
static void *make_pairs(void *arg)
{
    struct program *p = arg;
    int pair[2], i;

    while (!atomic_load(&p->stop)) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
            continue;
        for (i = 0; i < 7; i++) {
            CHECK_EQ(send(pair[0], "\1", 1, 0), 1);
            sched_yield();
        }
        if ((fcntl(pair[0], F_GETFD) | fcntl(pair[1], F_GETFD)) & FD_CLOEXEC)
            atomic_fetch_add(&p->spoilt, 1);
        atomic_fetch_add(&p->made, 1);
        close(pair[0]);
        close(pair[1]);
    }
    return NULL;
}

TEST(the_programs_own_sockets_are_left_as_they_are)
{
    struct program p = {.stop = false};
    pthread_t threads[4];

    url("");
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, make_pairs, &p), 0);
    for (int i = 0; i < 100; i++)
        hf_close(open_url(url("")));
    atomic_store(&p.stop, true);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_GT(atomic_load(&p.made), 0);
    CHECK_EQ(atomic_load(&p.spoilt), 0);
}

static int count_descriptors(void)
{
    return atoi(out("ls /proc/%d/fd | wc -l", (int)getpid()));
}

static void close_it(struct t_peer *up, void *arg)
{
    hf_client *client = *(hf_client **)arg;
    int before = count_descriptors();

    hf_close(client);
    t_tell(up, before - count_descriptors());
}

TEST(a_forked_child_that_closes_the_client_closes_its_descriptors)
{
    int before = count_descriptors(), more;
    hf_client *client = open_url(url(""));
    hf_lock *lk = lock(client, "fork", 20000, 0);
    struct t_peer child;

    t_sleep_ms(200); /* The lock is watched by now. */
    more = count_descriptors() - before;
    child = t_fork(close_it, &client);
    /* Two or three of them are the core's own. */
    CHECK_GE(t_hear(&child), more - 3);
    t_join(&child);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    check_clean();
}

/* ---- a silent service --------------------------------------------------- */

TEST(closing_does_not_wait_twice_for_a_service_that_is_silent)
{
    hf_client *client = open_url(url("?timeout=3s"));
    struct hf_info info = HF_INFO_INIT;
    hf_status looked;
    int64_t began;

    for (int i = 0; i < 4; i++) /* So there are four sessions. */
        CHECK_OK(hf_release(lock(client, "silent", 20000 + i, 0), &t_err));
    CHECK_EQ(sh("p=$(cat $HF_TEST_DIR/1.pid); kill -STOP $p; until grep -q "
                "'^State:.*[Tt] ' /proc/$p/status; do sleep 0.01; done"),
             0);
    looked = hf_inspect(client, "silent", &info, &t_err);
    began = t_now_ms();
    hf_close(client);
    began = t_now_ms() - began;
    CHECK_EQ(sh("kill -CONT $(cat $HF_TEST_DIR/1.pid)"), 0);
    CHECK(looked != HF_OK);
    CHECK_LT(began, 2500);
    CHECK_EQ(sh("for id in $(curl -s $C/v1/session/list | grep -o "
                "'\"ID\":\"[^\"]*' | cut -d'\"' -f4); do "
                "curl -s -X PUT $C/v1/session/destroy/$id >/dev/null; done"),
             0);
    check_clean();
}

/* ---- consul lock -------------------------------------------------------- */

TEST(consul_lock_is_excluded_by_us)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk = lock(client, "cli/a", 0, 0);

    CHECK_NE(sh("$HF_TEST_CONSUL lock -timeout=500ms cli/a 'touch %s/in' "
                ">/dev/null 2>&1",
                t_tmpdir()),
             0);
    CHECK_NE(sh("test -e %s/in", t_tmpdir()), 0);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(sh("$HF_TEST_CONSUL lock -timeout=20s cli/a 'touch %s/in' "
                ">/dev/null 2>&1",
                t_tmpdir()),
             0);
    CHECK_EQ(sh("test -e %s/in", t_tmpdir()), 0);
    hf_close(client);
}

TEST(consul_lock_excludes_us_and_wakes_us)
{
    hf_client *client = open_url(url("?layout=cli"));
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk = lock(client, "cli/b", 0, 0), *none = NULL;
    uint64_t fence = hf_fence(lk);

    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(sh("($HF_TEST_CONSUL lock cli/b 'touch %s/in; while ! test -e "
                "%s/go; do sleep 0.05; done; sleep 0.3; touch %s/out' "
                ">/dev/null 2>&1 &)",
                t_tmpdir(), t_tmpdir(), t_tmpdir()),
             0);
    t_poll_until(sh("test -e %s/in", t_tmpdir()) == 0, 20000);
    CHECK_STATUS(hf_acquire(client, "cli/b", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_inspect(client, "cli/b", &info, &t_err));
    CHECK(info.held);
    CHECK_EQ(sh("touch %s/go", t_tmpdir()), 0);
    lk = lock(client, "cli/b", 0, 30000);
    CHECK_EQ(sh("test -e %s/out", t_tmpdir()), 0);
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

struct counter {
    char path[128];
    int rounds;
};

/* Add one to the number in a file, the slow way. */
static void count_up(const char *path)
{
    FILE *file = fopen(path, "r+");
    int n = 0;

    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%d", &n), 1);
    t_sleep_ms(2);
    rewind(file);
    fprintf(file, "%d\n", n + 1);
    fclose(file);
}

static void *count_with_us(void *arg)
{
    struct counter *counter = arg;
    hf_client *client = open_url(url("?layout=cli"));

    for (int i = 0; i < counter->rounds; i++) {
        hf_lock *lk = lock(client, "cli/n", 0, 60000);

        count_up(counter->path);
        CHECK(hf_held(lk));
        CHECK_OK(hf_release(lk, &t_err));
        t_sleep_ms(20);
    }
    hf_close(client);
    return NULL;
}

TEST_TIMEOUT(a_counter_under_both_loses_no_step, 120)
{
    struct counter counter = {.rounds = 20};
    pthread_t threads[3];

    snprintf(counter.path, sizeof(counter.path), "%s/n", t_tmpdir());
    CHECK_EQ(sh("echo 0 >%s", counter.path), 0);
    url("");
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, count_with_us, &counter), 0);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(sh("$HF_TEST_CONSUL lock -timeout=60s cli/n 'n=$(cat %s); "
                    "sleep 0.02; echo $((n + 1)) >%s' >/dev/null 2>&1",
                    counter.path, counter.path),
                 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CHECK_STR(out("cat %s", counter.path), "65");
}

TEST(the_go_library_s_key_is_recognised_by_its_flags)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk = lock(client, "cli/f", 0, 0);

    CHECK(strstr(out("curl -s $C/v1/kv/cli/f/.lock"),
                 "\"Flags\":3304740253564472344") != NULL);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(strstr(out("curl -s $C/v1/kv/cli/f/.lock"),
                 "\"Flags\":3304740253564472344") != NULL);
    hf_close(client);
}

/* ---- queue=fair --------------------------------------------------------- */

static void wait_in_line(struct t_peer *up, void *arg)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = open_url(url("?queue=fair"));
    hf_lock *lk;

    opts.ttl_ms = 1000;
    t_tell(up, 0);
    CHECK_OK(hf_acquire(client, arg, -1, &opts, &lk, &t_err));
    t_tell(up, (int64_t)hf_fence(lk));
    t_hear(up);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

static int waiters(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info.waiters;
}

TEST_TIMEOUT(a_killed_waiter_s_place_is_passed_over, 120)
{
    char key[] = "line";
    struct t_peer peers[3];
    hf_client *client;
    hf_lock *lk;

    for (int i = 0; i < 3; i++)
        peers[i] = t_fork(wait_in_line, key);
    client = open_url(url("?queue=fair"));
    for (int i = 0; i < 3; i++)
        t_hear(&peers[i]);
    /* Whoever was first has it; the others stand in line. */
    t_poll_until(waiters(client, key) == 2, 20000);
    for (int i = 0; i < 3; i++) {
        int64_t fence;

        if (!t_try_hear(&peers[i], 100, &fence))
            continue;
        t_kill(&peers[(i + 1) % 3]);
        t_tell(&peers[i], 0);
        t_join(&peers[i]);
        t_hear(&peers[(i + 2) % 3]);
        t_tell(&peers[(i + 2) % 3], 0);
        t_join(&peers[(i + 2) % 3]);
        break;
    }
    t_poll_until(waiters(client, key) == 0, 20000);
    lk = lock(client, key, 0, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    t_poll_until(count_sessions() == 0, 20000);
    check_clean();
}

/* ---- what waiting costs the cluster ------------------------------------- */

enum { CONTENDERS = 24 };

struct contenders {
    const char *options;
    int64_t ttl_ms;
    atomic_int waiting, served;
};

static void *wait_among_contenders(void *arg)
{
    struct contenders *contenders = arg;
    hf_client *client = open_url(url(contenders->options));
    hf_lock *lk;

    atomic_fetch_add(&contenders->waiting, 1);
    lk = lock(client, "contenders", contenders->ttl_ms, 60000);
    t_sleep_ms(20);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    atomic_fetch_add(&contenders->served, 1);
    while (atomic_load(&contenders->served) < CONTENDERS)
        t_sleep_ms(10); /* The end of its session is not what is counted. */
    hf_close(client);
    return NULL;
}

/* How many entries the log of the cluster has. */
static int64_t log_length(void)
{
    return atoll(out("curl -s $C/v1/agent/self | tr ',' '\\n' | "
                     "grep applied_index | tr -dc 0-9"));
}

/* Begin to wait, all of them, while `lk` is held. */
static void start_contenders(struct contenders *contenders, pthread_t *threads)
{
    for (int i = 0; i < CONTENDERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, wait_among_contenders,
                                contenders),
                 0);
    t_poll_until(atomic_load(&contenders->waiting) == CONTENDERS, 20000);
}

/* Serve them all; how many entries that takes. */
static int64_t serve(struct contenders *contenders, pthread_t *threads,
                     hf_lock *lk)
{
    int64_t began = log_length(), entries;

    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(atomic_load(&contenders->served) == CONTENDERS, 40000);
    entries = log_length() - began;
    for (int i = 0; i < CONTENDERS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    return entries;
}

TEST(waiters_in_line_write_nothing_while_nothing_happens)
{
    struct contenders contenders = {.options = "?queue=fair", .ttl_ms = 1500};
    hf_client *client = open_url(url(contenders.options));
    hf_lock *lk = lock(client, "contenders", contenders.ttl_ms, 0);
    pthread_t threads[CONTENDERS];
    int64_t began;

    start_contenders(&contenders, threads);
    t_poll_until(waiters(client, "contenders") == CONTENDERS, 20000);
    /* Who was not first, after all, has no use for the session of its first
     * try. */
    t_poll_until(count_sessions() <= CONTENDERS + 2, 20000);
    began = log_length();
    t_sleep_ms(2000);
    CHECK_LT(log_length() - began, CONTENDERS / 2);
    /* Two entries each, and two sessions that begin or end. */
    CHECK_LE(serve(&contenders, threads, lk), 6 * CONTENDERS);
    hf_close(client);
    check_clean();
}

/* The first release is tried for by all; two entries are needed for each. */
TEST(not_all_who_wait_try_at_every_release)
{
    struct contenders contenders = {.options = "?queue=barge", .ttl_ms = 30000};
    hf_client *client = open_url(url(contenders.options));
    hf_lock *lk = lock(client, "contenders", contenders.ttl_ms, 0);
    pthread_t threads[CONTENDERS];

    start_contenders(&contenders, threads);
    t_poll_until(count_sessions() == CONTENDERS + 1, 20000);
    t_sleep_ms(200); /* They have tried, and listen now. */
    CHECK_LE(serve(&contenders, threads, lk), 7 * CONTENDERS);
    hf_close(client);
    check_clean();
}

T_MAIN
