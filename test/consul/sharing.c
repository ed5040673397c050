/* SPDX-License-Identifier: MIT
 *
 * sharing.c - what is particular to a key on Consul that several hold: what it
 * looks like to others, requests that come late or are not answered, and what
 * the dead leave behind.
 */
#include "front.h"
#include "peer.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct hf_lock_opts share_opts(int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    opts.flags = HF_SHARED;
    return opts;
}

static hf_lock *share(hf_client *client, const char *key, int64_t ttl_ms)
{
    struct hf_lock_opts opts = share_opts(ttl_ms);
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    return lk;
}

/* ---- what others see ---------------------------------------------------- */

TEST(the_last_reader_leaves_a_free_lock_as_any_other)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    char plain[64];
    hf_lock *one, *two;

    CHECK_OK(hf_release(lock(a, "tidy", 20000, 0), &t_err));
    snprintf(plain, sizeof(plain), "%s", flags_of("tidy"));
    one = share(a, "tidy", 20000);
    two = share(b, "tidy", 20000);
    CHECK_EQ(count_holders("tidy"), 2);
    CHECK(strcmp(flags_of("tidy"), plain) != 0);
    CHECK_OK(hf_release(one, &t_err)); /* It came first: the key has changed. */
    CHECK(strcmp(flags_of("tidy"), plain) != 0);
    CHECK_OK(hf_release(two, &t_err));
    CHECK_STR(flags_of("tidy"), plain);
    CHECK_EQ(count_holders("tidy"), 0);
    one = share(a, "tidy", 20000);
    two = share(b, "tidy", 20000);
    CHECK_OK(hf_release(two, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_STR(flags_of("tidy"), plain);
    CHECK_EQ(count_holders("tidy"), 0);
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST(consul_lock_leaves_a_shared_key_alone)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk = share(client, "cli/shared", 20000);

    CHECK(sh("$HF_TEST_CONSUL lock -timeout=2s cli/shared true "
             ">/dev/null 2>&1") != 0);
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(sh("$HF_TEST_CONSUL lock -timeout=20s cli/shared true "
                ">/dev/null 2>&1"),
             0);
    hf_close(client);
}

TEST(what_looks_like_a_shared_key_and_is_none_is_left_alone)
{
    hf_client *client = open_url(url(""));
    struct hf_lock_opts opts = share_opts(0);
    hf_lock *none = NULL;

    CHECK_EQ(sh("curl -s -X PUT -d junk "
                "\"$C/v1/kv/hostile?flags=7525352680829580148\" >/dev/null"),
             0);
    CHECK_STATUS(hf_acquire(client, "hostile", 0, NULL, &none, &t_err),
                 HF_PROTOCOL);
    CHECK_STATUS(hf_acquire(client, "hostile", 0, &opts, &none, &t_err),
                 HF_PROTOCOL);
    CHECK_STR(out("curl -s \"$C/v1/kv/hostile?raw\""), "junk");
    hf_close(client);
}

/* ---- the real program, whose request comes late --------------------------- */

TEST_TIMEOUT(consul_lock_that_looked_before_a_reader_came_is_kept_out, 120)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk;

    CHECK_OK(hf_release(lock(client, "looked", 20000, 0), &t_err));
    program_looks("looked");
    lk = share(client, "looked", 20000);
    program_is_kept_out("looked/.lock");
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(program_ran(), 60000); /* Then it has its turn. */
    program_ends();
    hf_close(client);
}

TEST_TIMEOUT(consul_lock_is_kept_out_after_a_downgrade, 120)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk;

    program_looks("lowered");
    lk = lock(client, "lowered", 20000, 0);
    CHECK_OK(hf_downgrade(lk, &t_err));
    program_is_kept_out("lowered/.lock");
    CHECK_OK(hf_release(lk, &t_err));
    program_ends();
    hf_close(client);
}

/* The one that has locked the key for all leaves, or another. */
TEST_TIMEOUT(consul_lock_is_kept_out_whichever_reader_leaves_first, 120)
{
    hf_client *clients[2];
    hf_lock *lk[2];

    for (int leaves = 0; leaves < 2; leaves++) {
        program_looks("left");
        for (int i = 0; i < 2; i++) {
            clients[i] = open_url(url("?layout=cli"));
            lk[i] = share(clients[i], "left", 3000);
        }
        CHECK_OK(hf_release(lk[leaves], &t_err));
        hf_close(clients[leaves]);
        program_is_kept_out("left/.lock");
        CHECK_OK(hf_release(lk[1 - leaves], &t_err));
        program_ends();
        hf_close(clients[1 - leaves]);
    }
    /* Nobody destroys a session that others may count on. */
    t_poll_until(count_sessions() + count_common() == 0, 30000);
}

/* Each of two processes, one of which is killed, and its session ends. */
TEST_TIMEOUT(consul_lock_is_kept_out_when_a_reader_has_died, 120)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk;

    program_looks("died");
    lk = share(client, "died", 2000);
    CHECK_EQ(sh("cd %s; ($HF_TEST_HOLDFAST run --shared -u '%s' -t 2s died sh "
                "-c 'touch in; exec sleep 60' & echo $! >pid)",
                t_tmpdir(), url("?layout=cli")),
             0);
    t_poll_until(sh("test -e %s/in", t_tmpdir()) == 0, 20000);
    CHECK_EQ(sh("kill -KILL $(cat %s/pid)", t_tmpdir()), 0);
    t_poll_until(count_live_holders("died") == 1, 30000);
    t_sleep_ms(2 * 2000 + 1000); /* Until what it locked would have lapsed. */
    program_is_kept_out("died/.lock");
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    program_ends();
    hf_close(client);
    t_poll_until(count_sessions() + count_common() == 0, 30000);
}

/* An operator ends the session that has the key locked for all readers: one of
 * them locks it again, within a third of a lease. */
TEST_TIMEOUT(the_key_is_locked_again_when_its_session_was_ended, 120)
{
    hf_client *client = open_url(url("?layout=cli"));
    hf_lock *lk = share(client, "again", 3000);

    CHECK_EQ(count_locked_below("again/.lock"), 1);
    end_session_of("again/.lock");
    t_poll_until(count_locked_below("again/.lock") == 1, 20000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 9000, &t_err)); /* by one that lasts as long */
    CHECK_EQ(count_locked_below("again/.lock"), 1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(count_locked_below("again/.lock"), 0);
    hf_close(client);
    check_clean();
}

/* If another program gets it all the same, or an operator deletes the entry, all
 * who shared it are told. */
TEST_TIMEOUT(readers_are_told_when_the_key_is_taken_or_deleted, 120)
{
    hf_client *client = open_url(url(""));
    hf_lock *lk = share(client, "stolen", 3000);

    steal("stolen", "curl -s -X DELETE $C/v1/kv/stolen");
    check_lost(lk, HF_LOSS_STOLEN);
    hf_release(lk, NULL);
    end_session_of("stolen");
    lk = share(client, "removed", 3000);
    CHECK_EQ(sh("curl -s -X DELETE $C/v1/kv/removed >/dev/null"), 0);
    check_lost(lk, HF_LOSS_DELETED);
    hf_release(lk, NULL);
    hf_close(client);
}

/* ---- answers that do not come -------------------------------------------- */

TEST_TIMEOUT(a_reader_whose_answer_is_lost_is_in, 120)
{
    hf_client *client = open_url(front_url());
    struct peer_waiter w;

    CHECK_OK(hf_release(share(client, "lost", 20000), &t_err));
    front_catch("\"Verb\":\"lock\"", 1, FRONT_LOSE);
    waiter_start(&w, client, "lost", HF_SHARED);
    waiter_release(&w);
    CHECK_EQ(count_holders("lost"), 0);
    hf_close(client);
    front_end();
    check_clean();
}

/* Another lock keeps the session alive that the late write names. */
TEST_TIMEOUT(a_reader_that_comes_after_it_was_given_up_is_none, 120)
{
    struct hf_lock_opts opts = share_opts(30000);
    hf_lock *kept, *none = NULL;
    unsigned long long index;
    char address[128];
    hf_client *client;

    snprintf(address, sizeof(address), "%s?timeout=1s", front_url());
    client = open_url(address);
    kept = lock(client, "late/kept", 30000, 0);
    CHECK_OK(hf_release(share(client, "late", 30000), &t_err));
    for (int i = 0; i < 2; i++) {
        index = index_of("late");
        front_catch("\"Verb\":\"lock\"", 1, FRONT_HOLD);
        CHECK(hf_acquire(client, "late", 0, &opts, &none, &t_err) != HF_OK);
        CHECK_EQ(front_held(), 1);
        t_poll_until(index_of("late") != index, 10000);
        front_let_go();
        CHECK_EQ(count_holders("late"), 0);
    }
    CHECK(none == NULL);
    CHECK_OK(hf_release(lock(client, "late", 30000, 0), &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(client);
    front_end();
    check_clean();
}

TEST_TIMEOUT(a_downgrade_whose_answer_is_lost_is_one, 120)
{
    hf_client *client = open_url(front_url()), *other = open_url(url(""));
    hf_lock *lk = lock(client, "down", 20000, 0), *reader;

    front_catch("holdfast-holders", 1, FRONT_LOSE);
    CHECK_OK(hf_downgrade(lk, &t_err));
    reader = share(other, "down", 20000);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(count_holders("down"), 2);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(reader, &t_err));
    hf_close(client);
    hf_close(other);
    front_end();
    check_clean();
}

TEST_TIMEOUT(a_downgrade_that_comes_after_the_release_changes_nothing, 120)
{
    hf_lock *lk, *kept;
    char address[128];
    hf_client *client;

    snprintf(address, sizeof(address), "%s?timeout=1s", front_url());
    client = open_url(address);
    kept = lock(client, "down/kept", 8000, 0);
    lk = lock(client, "down/late", 8000, 0);
    front_catch("Verb\":\"unlock", 1000, FRONT_HOLD);
    CHECK(hf_downgrade(lk, &t_err) != HF_OK);
    CHECK_GT(front_held(), 0);
    front_catch("", 0, FRONT_HOLD);
    hf_release(lk, NULL); /* It may be lost meanwhile. */
    t_poll_until(count_locked() == 1, 20000);
    front_let_go();
    CHECK_EQ(count_holders("down/late"), 0);
    CHECK_OK(hf_release(lock(client, "down/late", 8000, 0), &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(client);
    front_end();
    check_clean();
}

TEST_TIMEOUT(a_reader_is_taken_up_though_the_answer_is_lost, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(front_url());
    struct hf_lock_opts opts = share_opts(20000);
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *lk, *none = NULL;

    CHECK_OK(hf_detach(share(a, "up", 5000), &handle, &t_err));
    front_catch("\"Verb\":\"delete\"", 1, FRONT_LOSE);
    CHECK_OK(hf_attach(b, "up", &handle, &opts, &lk, &t_err));
    CHECK_EQ(hf_fence(lk), handle.fence);
    CHECK_EQ(count_holders("up"), 1);
    CHECK_STATUS(hf_attach(a, "up", &handle, &opts, &none, &t_err), HF_LOST);
    CHECK_OK(hf_extend(lk, 9000, &t_err)); /* in another session */
    CHECK_EQ(hf_fence(lk), handle.fence);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(count_holders("up"), 0);
    hf_close(a);
    hf_close(b);
    front_end();
    /* Nobody destroys a session from which something was detached. */
    t_poll_until(count_sessions() + count_common() == 0, 30000);
    check_clean();
}

TEST_TIMEOUT(a_permit_keeps_its_slot_in_another_session, 120)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = open_url(front_url());
    hf_lock *lk[3];

    opts.ttl_ms = 20000;
    opts.permits = 3;
    for (int i = 0; i < 3; i++)
        CHECK_OK(hf_acquire(client, "slots", 0, &opts, &lk[i], &t_err));
    front_catch("\"Verb\":\"unlock\"", 1, FRONT_LOSE);
    CHECK_OK(hf_extend(lk[1], 9000, &t_err));
    CHECK_OK(hf_release(lk[0], &t_err));
    CHECK_OK(hf_acquire(client, "slots", 0, &opts, &lk[0], &t_err));
    for (int i = 0; i < 3; i++)
        CHECK_EQ(hf_slot(lk[i]), i);
    for (int i = 0; i < 3; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    CHECK_EQ(count_holders("slots"), 0);
    hf_close(client);
    front_end();
    check_clean();
}

/* ---- the dead ------------------------------------------------------------ */

TEST_TIMEOUT(a_reader_whose_session_has_ended_is_told_and_in_nobodys_way, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *dead = share(a, "dead", 20000), *alive;
    struct peer_waiter w;

    waiter_start(&w, b, "dead", 0);
    end_session_of("dead/.holdfast-holders/");
    waiter_release(&w);
    t_poll_until(!hf_held(dead), 20000);
    CHECK_STATUS(hf_release(dead, &t_err), HF_LOST);
    CHECK_EQ(count_holders("dead"), 0);
    dead = share(a, "dead", 20000);
    end_session_of("dead/.holdfast-holders/");
    check_lost(dead, HF_LOSS_SESSION);
    alive = share(b, "dead", 20000);
    CHECK_EQ(count_holders("dead"), 1);
    CHECK_STATUS(hf_release(dead, &t_err), HF_LOST);
    CHECK_OK(hf_release(alive, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* They do not fit into one transaction. */
TEST_TIMEOUT(many_dead_readers_are_removed_by_the_next_writer, 120)
{
    enum { READERS = 70 };
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *lk[READERS];

    for (int i = 0; i < READERS; i++)
        lk[i] = share(a, "contenders", 20000);
    CHECK_EQ(count_holders("contenders"), READERS);
    end_session_of("contenders/.holdfast-holders/");
    CHECK_OK(hf_release(lock(b, "contenders", 20000, 30000), &t_err));
    CHECK_EQ(count_holders("contenders"), 0);
    for (int i = 0; i < READERS; i++)
        CHECK_STATUS(hf_release(lk[i], &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* The service closes what a session held that it ended, for so long. */
TEST_TIMEOUT(a_lock_delay_holds_for_readers_too, 120)
{
    hf_client *a = open_url(url("?lock_delay=4s")), *b = open_url(url(""));
    hf_lock *dead = share(a, "delay", 20000), *other, *none = NULL;

    end_session_of("delay/.holdfast-holders/");
    check_lost(dead, HF_LOSS_SESSION);
    CHECK_STATUS(hf_acquire(b, "delay", 0, NULL, &none, &t_err), HF_BUSY);
    other = share(a, "delay", 20000); /* shares with one that may be at work */
    CHECK_OK(hf_release(other, &t_err));
    CHECK_STATUS(hf_acquire(b, "delay", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_release(lock(b, "delay", 20000, 30000), &t_err));
    CHECK_STATUS(hf_release(dead, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST_TIMEOUT(a_writer_that_dies_waiting_lets_readers_in_again, 120)
{
    struct hf_lock_opts opts = share_opts(20000);
    hf_client *client = open_url(url(""));
    hf_lock *lk = share(client, "door", 20000), *none = NULL, *other = NULL;

    CHECK_EQ(sh("$HF_TEST_HOLDFAST run -u %s -t 500ms -w 60s door true & "
                "echo $! >\"$HF_TEST_DIR/writer\"",
                url("")),
             0);
    t_poll_until(atoi(out("curl -s $C/v1/kv/door/.holdfast/?keys | "
                          "grep -c door")) == 1,
                 20000);
    CHECK_STATUS(hf_acquire(client, "door", 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_EQ(sh("kill -KILL $(cat \"$HF_TEST_DIR/writer\")"), 0);
    CHECK_OK(hf_acquire(client, "door", 30000, &opts, &other, &t_err));
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(other, &t_err));
    hf_close(client);
    check_clean();
}

T_MAIN
