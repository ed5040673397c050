/* SPDX-License-Identifier: MIT
 *
 * semaphore.c - permits with layout=cli beside the real `consul lock -n`: each
 * side counts the other's holders, and what the dead, the lost answers and the
 * broken leave is counted no more.
 */
#include "front.h"
#include "peer.h"
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PERMITS = 3 };

static struct hf_lock_opts permit_opts(int64_t ttl_ms, int32_t n)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    opts.permits = n;
    return opts;
}

static hf_lock *permit(hf_client *client, const char *key, int64_t ttl_ms,
                       int64_t wait_ms)
{
    struct hf_lock_opts opts = permit_opts(ttl_ms, PERMITS);
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, key, wait_ms, &opts, &lk, &t_err));
    return lk;
}

/* Is there no permit for us? */
static void check_busy(hf_client *client, const char *key)
{
    struct hf_lock_opts opts = permit_opts(0, PERMITS);
    hf_lock *none = NULL;

    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &none, &t_err), HF_BUSY);
}

/* Does the program get one within so long? */
static bool program_gets(const char *key, int n, const char *limit)
{
    return sh("$HF_TEST_CONSUL lock -n %d -timeout=%s %s true >/dev/null 2>&1",
              n, limit, key) == 0;
}

/* Have the program hold a permit until a file `go` is there; `in` says that it
 * does, `pid` has its process id. */
static void program_holds(const char *key, int which)
{
    CHECK_EQ(sh("cd %s; ($HF_TEST_CONSUL lock -n %d %s 'touch in%d; while ! "
                "test -e go%d; do sleep 0.05; done' >/dev/null 2>&1 & "
                "echo $! >pid%d)",
                t_tmpdir(), PERMITS, key, which, which, which),
             0);
    t_poll_until(sh("test -e %s/in%d", t_tmpdir(), which) == 0, 20000);
}

static void program_leaves(int which)
{
    CHECK_EQ(sh("touch %s/go%d", t_tmpdir(), which), 0);
}

static struct hf_info inspect(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info;
}

/* Nothing of ours is left below the key.  A program that gave up leaves its
 * contender until its session has ended. */
static void check_nothing_below(const char *key)
{
    t_poll_until(
        !*out("curl -s $C/v1/kv/%s/?keys | tr ',' '\n' | grep '/[.]'", key),
        20000);
}

/* ---- both ways ------------------------------------------------------------ */

TEST(consul_lock_n_counts_our_holders)
{
    hf_client *a = open_url(url("?layout=cli")),
              *b = open_url(url("?layout=cli&queue=barge"));
    hf_lock *lk[PERMITS];
    unsigned slots = 0;

    for (int i = 0; i < PERMITS; i++) {
        CHECK(program_gets("sem/a", PERMITS, "20s"));
        lk[i] = permit(i % 2 ? a : b, "sem/a", 20000, 0);
        slots |= 1u << hf_slot(lk[i]);
    }
    CHECK_EQ(slots, (1u << PERMITS) - 1);
    CHECK(!program_gets("sem/a", PERMITS, "500ms"));
    check_busy(a, "sem/a");
    CHECK_EQ(inspect(a, "sem/a").holders, PERMITS);
    CHECK_OK(hf_release(lk[1], &t_err));
    CHECK(program_gets("sem/a", PERMITS, "20s"));
    for (int i = 0; i < PERMITS; i++) {
        CHECK(i == 1 || hf_held(lk[i]));
        if (i != 1)
            CHECK_OK(hf_release(lk[i], &t_err));
    }
    hf_close(a);
    hf_close(b);
    CHECK_EQ(count_sessions(), 0);
    check_nothing_below("sem/a");
}

TEST_TIMEOUT(we_count_the_holders_of_consul_lock_n_and_are_woken, 120)
{
    hf_client *a = open_url(url("?layout=cli"));
    hf_lock *one, *two;

    program_holds("sem/b", 0);
    program_holds("sem/b", 1);
    one = permit(a, "sem/b", 20000, 0);
    CHECK_EQ(hf_slot(one), 0);
    check_busy(a, "sem/b");
    CHECK_EQ(inspect(a, "sem/b").holders, PERMITS);
    CHECK_EQ(inspect(a, "sem/b").permits, PERMITS);
    program_leaves(0);
    two = permit(a, "sem/b", 20000, 30000);
    CHECK_EQ(hf_slot(two), 1);
    CHECK_GT(hf_fence(two), hf_fence(one));
    check_busy(a, "sem/b");
    program_leaves(1);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    hf_close(a);
    check_nothing_below("sem/b");
}

struct pool {
    char dir[128];
    atomic_int slots[PERMITS];
    int rounds;
};

/* How many are in, together with `me`? */
static int contender_enters(const char *dir, int me)
{
    return atoi(out("touch %s/in/%d; ls %s/in | wc -l", dir, me, dir));
}

static void *contend_with_us(void *arg)
{
    struct pool *pool = arg;
    hf_client *client = open_url(url("?layout=cli"));
    static atomic_int next;
    int me = atomic_fetch_add(&next, 1);

    for (int i = 0; i < pool->rounds; i++) {
        hf_lock *lk = permit(client, "sem/pool", 20000, 60000);

        CHECK_EQ(atomic_fetch_add(&pool->slots[hf_slot(lk)], 1), 0);
        CHECK_LE(contender_enters(pool->dir, me), PERMITS);
        t_sleep_ms(10);
        CHECK_EQ(sh("rm %s/in/%d", pool->dir, me), 0);
        CHECK(hf_held(lk));
        atomic_fetch_sub(&pool->slots[hf_slot(lk)], 1);
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    return NULL;
}

TEST_TIMEOUT(there_are_never_more_than_the_permits_of_both, 300)
{
    struct pool pool = {.rounds = 10};
    pthread_t threads[4];

    snprintf(pool.dir, sizeof(pool.dir), "%s", t_tmpdir());
    CHECK_EQ(sh("mkdir %s/in", pool.dir), 0);
    url("");
    /* A status other than 0 of any program or any command is a file `bad`. */
    CHECK_EQ(sh("cd %s; for p in a b c; do (for i in 1 2 3 4 5; do "
                "$HF_TEST_CONSUL lock -n %d -timeout=60s sem/pool "
                "'touch in/'$p'; test $(ls in | wc -l) -le %d || touch bad; "
                "sleep 0.05; rm in/'$p >/dev/null 2>&1 || touch bad; done; "
                "touch done$p) & done",
                pool.dir, PERMITS, PERMITS),
             0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, contend_with_us, &pool), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    t_poll_until(sh("cd %s; test -e donea -a -e doneb -a -e donec", pool.dir) ==
                     0,
                 200000);
    CHECK_NE(sh("test -e %s/bad", pool.dir), 0);
    check_nothing_below("sem/pool");
}

/* ---- the dead -------------------------------------------------------------- */

static void hold_and_die(struct t_peer *up, void *arg)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk = permit(client, arg, 1000, 0);

    t_tell(up, (int64_t)hf_fence(lk));
    t_hear(up);
    CHECK_OK(hf_release(lk, &t_err));
}

TEST_TIMEOUT(a_permit_of_ours_comes_back_after_a_death, 120)
{
    char key[] = "sem/dead";
    struct t_peer peers[PERMITS];
    hf_client *client;

    for (int i = 0; i < PERMITS; i++) {
        peers[i] = t_fork(hold_and_die, key);
        t_hear(&peers[i]);
    }
    CHECK(!program_gets(key, PERMITS, "200ms"));
    t_kill(&peers[0]);
    CHECK(program_gets(key, PERMITS, "60s"));
    t_kill(&peers[1]);
    client = open_url(url("?layout=cli"));
    program_holds(key, 0);
    CHECK_OK(hf_release(permit(client, key, 1000, 60000), &t_err));
    program_leaves(0);
    t_tell(&peers[2], 0);
    t_join(&peers[2]);
    hf_close(client);
    check_nothing_below(key);
}

TEST_TIMEOUT(a_permit_of_the_program_comes_back_with_its_session, 120)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk[2];

    program_holds("sem/killed", 0);
    for (int i = 0; i < 2; i++)
        lk[i] = permit(client, "sem/killed", 20000, 0);
    CHECK_EQ(sh("kill -KILL $(cat %s/pid0)", t_tmpdir()), 0);
    check_busy(client, "sem/killed"); /* Its session goes on for a while. */
    CHECK_EQ(sh("s=$(curl -s $C/v1/session/list | tr '{' '\\n' | "
                "grep 'Consul API Semaphore\\|Consul lock' | "
                "sed 's/.*\"ID\":\"//; s/\".*//'); test -n \"$s\" && "
                "for i in $s; do curl -sf -X PUT $C/v1/session/destroy/$i; "
                "done >/dev/null"),
             0);
    CHECK_OK(hf_release(permit(client, "sem/killed", 20000, 20000), &t_err));
    program_leaves(0);
    for (int i = 0; i < 2; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
    check_nothing_below("sem/killed");
}

TEST(the_holder_of_a_permit_learns_that_its_session_has_ended)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk = permit(client, "sem/ended", 20000, 0);

    CHECK_EQ(count_sessions(), 1);
    CHECK_EQ(sh("s=$(curl -s $C/v1/session/list | tr '{' '\\n' | "
                "grep '\"Name\":\"holdfast\"' | "
                "sed 's/.*\"ID\":\"//; s/\".*//'); "
                "curl -sf -X PUT $C/v1/session/destroy/$s >/dev/null"),
             0);
    check_lost(lk, HF_LOSS_SESSION);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_release(permit(client, "sem/ended", 20000, 0), &t_err));
    hf_close(client);
    CHECK_EQ(count_sessions(), 0);
    check_nothing_below("sem/ended");
}

/* ---- another number ---------------------------------------------------------- */

TEST(another_number_or_a_plain_lock_is_refused_and_says_what_is_in_use)
{
    struct hf_lock_opts four = permit_opts(0, 4);
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk, *none = NULL;

    program_holds("sem/use", 0);
    CHECK_STATUS(hf_acquire(client, "sem/use", 0, &four, &none, &t_err),
                 HF_INVALID);
    CHECK(strstr(t_err.text, "3 permits") != NULL);
    CHECK_STATUS(hf_acquire(client, "sem/use", 0, NULL, &none, &t_err),
                 HF_INVALID);
    CHECK(strstr(t_err.text, "3 permits") != NULL);
    lk = permit(client, "sem/use", 20000, 0);
    program_leaves(0);
    t_poll_until(inspect(client, "sem/use").holders == 1, 20000);
    CHECK(!program_gets("sem/use", 4, "5s"));
    CHECK(!program_gets("sem/use", 1, "5s"));
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(client, "sem/use", 0, &four, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(lock(client, "sem/use", 0, 0), &t_err));
    lk = permit(client, "sem/use", 20000, 0); /* after a plain lock */
    CHECK(program_gets("sem/use", PERMITS, "20s"));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    CHECK_EQ(count_sessions(), 0);
    check_nothing_below("sem/use");
}

/* ---- other sessions, other hands ---------------------------------------------- */

TEST_TIMEOUT(a_permit_stays_one_in_another_session, 120)
{
    struct hf_lock_opts opts = permit_opts(15000, PERMITS);
    hf_client *a = open_url(url("?layout=cli")),
              *b = open_url(url("?layout=cli"));
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *lk[PERMITS];

    for (int i = 0; i < PERMITS; i++)
        lk[i] = permit(a, "sem/move", i == 1 ? 5000 : 20000, 0);
    CHECK_OK(hf_extend(lk[0], 12000, &t_err));
    CHECK_OK(hf_detach(lk[1], &handle, &t_err));
    CHECK_OK(hf_handle_extend(b, "sem/move", &handle, &opts, &t_err));
    CHECK_OK(hf_attach(b, "sem/move", &handle, &opts, &lk[1], &t_err));
    CHECK(!program_gets("sem/move", PERMITS, "300ms"));
    check_busy(b, "sem/move");
    for (int i = 0; i < PERMITS; i++) {
        CHECK_EQ(hf_slot(lk[i]), i);
        CHECK_OK(hf_release(lk[i], &t_err));
        CHECK(program_gets("sem/move", PERMITS, "20s"));
    }
    hf_close(a);
    hf_close(b);
    check_nothing_below("sem/move");
    /* Nobody destroys a session from which something was detached. */
    t_poll_until(count_sessions() == 0, 30000);
}

TEST(a_permit_that_is_broken_by_force_goes_to_the_other_side)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk[PERMITS];
    uint64_t fence;

    for (int i = 0; i < PERMITS; i++)
        lk[i] = permit(client, "sem/force", 20000, 0);
    CHECK_OK(hf_break_force(client, "sem/force", hf_fence(lk[1]), &t_err));
    check_lost(lk[1], HF_LOSS_BROKEN);
    program_holds("sem/force", 0);
    check_busy(client, "sem/force");
    CHECK_STATUS(hf_release(lk[1], &t_err), HF_LOST);
    CHECK_OK(hf_release(lk[0], &t_err));
    CHECK_OK(hf_release(lk[2], &t_err));
    fence = inspect(client, "sem/force").fence; /* the program's */
    CHECK_STATUS(hf_break(client, "sem/force", fence, &t_err), HF_PROTOCOL);
    CHECK_OK(hf_break_force(client, "sem/force", fence, &t_err));
    CHECK(!inspect(client, "sem/force").held);
    for (int i = 0; i < PERMITS; i++)
        lk[i] = permit(client, "sem/force", 20000, 0);
    for (int i = 0; i < PERMITS; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    program_leaves(0);
    hf_close(client);
}

/* ---- answers that do not come -------------------------------------------------- */

TEST_TIMEOUT(a_permit_whose_answer_is_lost_is_one, 120)
{
    char address[160];
    hf_client *client;
    hf_lock *lk;

    snprintf(address, sizeof(address), "%s?layout=cli", front_url());
    client = open_url(address);
    front_catch("\"Verb\":\"lock\"", 1, FRONT_LOSE);
    lk = permit(client, "sem/lost", 20000, 30000);
    CHECK_EQ(inspect(client, "sem/lost").holders, 1);
    front_catch("\"Verb\":\"unlock\"", 1, FRONT_LOSE);
    CHECK_STATUS(hf_release(lk, &t_err), HF_UNCERTAIN); /* taken back later */
    check_nothing_below("sem/lost");
    hf_close(client);
    front_end();
    CHECK_EQ(count_sessions(), 0);
}

TEST_TIMEOUT(a_permit_that_comes_after_it_was_given_up_is_none, 120)
{
    struct hf_lock_opts opts = permit_opts(30000, PERMITS);
    hf_lock *none = NULL;
    char address[160];
    hf_client *client;

    snprintf(address, sizeof(address), "%s?layout=cli&timeout=1s", front_url());
    client = open_url(address);
    front_catch("\"Verb\":\"lock\"", 1, FRONT_HOLD);
    CHECK(hf_acquire(client, "sem/late", 0, &opts, &none, &t_err) != HF_OK);
    CHECK_EQ(front_held(), 1);
    t_poll_until(count_sessions() == 0, 20000);
    front_let_go();
    CHECK_EQ(inspect(client, "sem/late").holders, 0);
    CHECK_OK(hf_release(permit(client, "sem/late", 20000, 0), &t_err));
    hf_close(client);
    front_end();
    CHECK_EQ(count_sessions(), 0);
}

/* Without -n it is a plain lock, which looks and locks in two requests. */
TEST_TIMEOUT(consul_lock_that_looked_before_a_permit_came_is_kept_out, 120)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *one, *two;

    program_looks("before");
    one = permit(client, "before", 3000, 0);
    CHECK(program_gets("before", PERMITS, "20s"));
    two = permit(client, "before", 3000, 0);
    CHECK_OK(hf_release(one, &t_err));
    end_session_of("before/.lock"); /* Another one locks it. */
    t_poll_until(count_locked_below("before/.lock") == 1, 20000);
    program_is_kept_out("before/.lock");
    CHECK(program_gets("before", PERMITS, "20s"));
    CHECK(hf_held(two));
    CHECK_OK(hf_release(two, &t_err));
    program_ends();
    hf_close(client);
}

T_MAIN
