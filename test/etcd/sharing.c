/* SPDX-License-Identifier: MIT
 *
 * sharing.c - readers, permits and locks that are kept, beside other programs,
 * dead waiters, late requests and data that makes no sense: run under
 * test/servers/etcd.
 *
 * As in late.c one client, `far`, is connected through a net, and its first
 * connection carries its calls.
 */
#include "t.h"

#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../torture/net.h"

static struct net *net;

static void tell(const char *command)
{
    char answer[128];

    CHECK(net_tell(net, command, answer, sizeof(answer)));
}

static hf_client *client_new(const char *url, int64_t timeout_ms)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;

    opts.timeout_ms = timeout_ms;
    CHECK_OK(hf_open(url, &opts, &client, &t_err));
    return client;
}

static hf_client *near_new(void)
{
    return client_new(getenv("HF_TEST_URL"), 0);
}

static hf_client *far_new(int64_t timeout_ms)
{
    const char *real = strstr(getenv("HF_TEST_URL"), "//") + 2;
    char url[128], host[64];
    char *port;

    net = net_new();
    CHECK(net != NULL);
    snprintf(host, sizeof(host), "%s", real);
    port = strchr(host, ':');
    *port++ = '\0';
    snprintf(url, sizeof(url), "etcd://127.0.0.1:%d",
             net_port(net, host, port));
    return client_new(url, timeout_ms);
}

static struct hf_lock_opts reader(void)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.flags = HF_SHARED;
    return opts;
}

static struct hf_lock_opts permits(int32_t n)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.permits = n;
    return opts;
}

static hf_lock *take(hf_client *client, const char *key,
                     const struct hf_lock_opts *opts)
{
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, key, 0, opts, &lk, &t_err));
    return lk;
}

static hf_status try(hf_client *client, const char *key,
                     const struct hf_lock_opts *opts)
{
    hf_lock *lk = NULL;
    hf_status st = hf_acquire(client, key, 0, opts, &lk, &t_err);

    if (!st)
        CHECK_OK(hf_release(lk, &t_err));
    return st;
}

static hf_request *queue_up(hf_client *client, const char *key,
                            const struct hf_lock_opts *opts)
{
    hf_request *rq = NULL;

    CHECK_OK(hf_acquire_start(client, key, -1, opts, NULL, &rq, &t_err));
    return rq;
}

static hf_lock *granted(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;

    while (hf_next_event(client, &event))
        if (event.type == HF_GRANTED)
            return event.lock;
    return NULL;
}

static struct hf_info look(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info;
}

static void pause_ms(int64_t ms)
{
    int64_t end = t_now_ms() + ms;

    t_poll_until(t_now_ms() > end, 60000);
}

/* What another program does. */
static void put(const char *name, const char *value)
{
    char command[256];

    snprintf(command, sizeof(command),
             "etcdctl put 'holdfast/%s' '%s' >/dev/null", name, value);
    CHECK_EQ(system(command), 0);
}

static void del(const char *name)
{
    char command[256];

    snprintf(command, sizeof(command), "etcdctl del 'holdfast/%s' >/dev/null",
             name);
    CHECK_EQ(system(command), 0);
}

/* ---- what is written --------------------------------------------------- */

/* The name and the value of the only key of a lock. */
static void stored(const char *key, char name[200], char value[200])
{
    char command[160];
    FILE *out;

    snprintf(command, sizeof(command), "etcdctl get --prefix holdfast/%s/",
             key);
    out = popen(command, "r");
    CHECK(out && fgets(name, 200, out) && fgets(value, 200, out));
    CHECK_EQ(pclose(out), 0);
    name[strcspn(name, "\n")] = value[strcspn(value, "\n")] = '\0';
}

static void check_stored(const char *key, const char *name, const char *value)
{
    char is_name[200], is_value[200];

    stored(key, is_name, is_value);
    if (fnmatch(name, is_name, 0) || fnmatch(value, is_value, 0))
        t_fail(__FILE__, __LINE__, "%s and %s, not %s and %s", is_name,
               is_value, name, value);
}

/* An older holdfast takes what is marked behind the token for a claim of
 * another program: it waits for it, and never joins it. */
TEST(names_and_values_say_the_kind_of_claim)
{
    hf_client *client = near_new();
    struct hf_lock_opts read = reader(), three = permits(3);
    struct hf_lock_opts min = HF_LOCK_OPTS_INIT;
    hf_lock *lk;

    read.note = three.note = min.note = "n";
    lk = take(client, "wire", &read);
    check_stored("wire", "holdfast/wire/R[0-9a-f]*-[0-9a-f]*",
                 "hf1 [0-9a-f]*[0-9a-f]+  n");
    CHECK_OK(hf_release(lk, &t_err));
    lk = take(client, "wire", &three);
    check_stored("wire", "holdfast/wire/S3.[0-9a-f]*-[0-9a-f]*",
                 "hf1 [0-9a-f]*[0-9a-f][*]  n slot=0");
    CHECK_OK(hf_release(lk, &t_err));
    lk = take(client, "wire", &min);
    check_stored("wire", "holdfast/wire/[0-9a-f]*-[0-9a-f]*",
                 "hf1 [0-9a-f]*[0-9a-f]  n");
    CHECK_OK(hf_downgrade(lk, &t_err));
    check_stored("wire", "holdfast/wire/[0-9a-f]*-[0-9a-f]*",
                 "hf1 [0-9a-f]*[0-9a-f]+  n");
    CHECK_OK(hf_release(lk, &t_err));
    min.min_hold_ms = 60000;
    CHECK_OK(hf_release(take(client, "wire", &min), &t_err));
    check_stored("wire", "holdfast/wire/[0-9a-f]*-[0-9a-f]*",
                 "hf1 [0-9a-f]*[0-9a-f]-  n");
    CHECK_OK(
        hf_break_force(client, "wire", look(client, "wire").fence, &t_err));
    hf_close(client);
}

/* ---- other programs ---------------------------------------------------- */

TEST(a_claim_of_another_program_keeps_readers_and_permits_out)
{
    struct hf_lock_opts read = reader(), two = permits(2);
    hf_client *a = near_new(), *b = near_new();
    hf_lock *one, *waiter = NULL;

    one = take(a, "other", &read);
    put("other/5ab", "");
    CHECK_STATUS(try(b, "other", &read), HF_BUSY);
    CHECK_STATUS(try(b, "other", &two), HF_INVALID);
    CHECK_EQ(look(b, "other").holders, 1);
    CHECK_EQ(look(b, "other").waiters, 1);
    CHECK_OK(hf_release(one, &t_err));
    CHECK(look(b, "other").held && !look(b, "other").shared);
    queue_up(b, "other", &read);
    t_poll_until(look(a, "other").waiters == 1, 20000);
    CHECK(!granted(b));
    del("other/5ab");
    t_poll_until((waiter = granted(b)) != NULL, 20000);
    CHECK_OK(try(a, "other", &read));
    CHECK_OK(hf_release(waiter, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST(a_program_that_waits_for_permits_keeps_new_ones_out_and_no_earlier_one)
{
    struct hf_lock_opts two = permits(2);
    hf_client *a = near_new(), *b = near_new();
    hf_lock *one = take(a, "late", &two), *other = take(a, "late", &two);
    hf_lock *waiter = NULL;

    queue_up(b, "late", &two);
    t_poll_until(look(a, "late").waiters == 1, 20000);
    put("late/5ab", "");
    CHECK_STATUS(try(a, "late", &two), HF_INVALID);
    CHECK(strstr(t_err.text, "as a plain lock"));
    CHECK_OK(hf_release(other, &t_err));
    t_poll_until((waiter = granted(b)) != NULL, 20000);
    CHECK_EQ(hf_slot(waiter), 1);
    CHECK_OK(hf_extend(one, 0, &t_err));
    CHECK_EQ(look(a, "late").waiters, 1);
    del("late/5ab");
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(waiter, &t_err));
    hf_close(a);
    hf_close(b);
}

/* What no holdfast writes is refused or passed by, and never granted beside. */
TEST(data_that_makes_no_sense_is_no_grant)
{
    static const char *const names[] = {"S",       "Sx.1-0",           "S0.1-0",
                                        "S-3.1-0", "S99999999999.1-0", "S3",
                                        "S02.1-0"};
    struct hf_lock_opts read = reader(), two = permits(2);
    hf_client *client = near_new();
    struct hf_info info = HF_INFO_INIT;
    char name[64];
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(name, sizeof(name), "bad/%s", names[i]);
        put(name, "hf1 a* o n slot=0");
        CHECK_STATUS(try(client, "bad", NULL), HF_INVALID);
        CHECK(strstr(t_err.text, "looks like a permit"));
        CHECK_STATUS(try(client, "bad", &read), HF_INVALID);
        CHECK_STATUS(try(client, "bad", &two), HF_INVALID);
        CHECK_OK(hf_inspect(client, "bad", &info, &t_err));
        del(name);
    }
    /* A permit whose slot is none has not been granted; the next gives it
     * one. */
    put("bad/S2.1-0", "hf1 a* o n slot=-1");
    CHECK(!look(client, "bad").held);
    CHECK_OK(try(client, "bad", &two));
    CHECK(look(client, "bad").held && look(client, "bad").slot == 0);
    put("bad/S2.1-0", "hf1 a* o n slot=99999999999");
    CHECK(!look(client, "bad").held);
    put("bad/S2.1-0", "hf1 a* o n slot=0");
    CHECK_EQ(look(client, "bad").holders, 1);
    CHECK_OK(try(client, "bad", &two));
    del("bad/S2.1-0");
    /* What lies deeper is no claim of ours, whatever it looks like. */
    put("bad/a/R1-0", "");
    CHECK(look(client, "bad").held && !look(client, "bad").shared);
    CHECK_STATUS(try(client, "bad", &read), HF_BUSY);
    CHECK_STATUS(try(client, "bad", &two), HF_INVALID);
    put("bad/a/S2.1-0", "");
    CHECK_STATUS(try(client, "bad", NULL), HF_BUSY);
    CHECK_STATUS(try(client, "bad", &two), HF_INVALID);
    del("bad/a/R1-0");
    del("bad/a/S2.1-0");
    /* A mark that is not known: it is another program's claim, and alone. */
    put("bad/1-0", "hf1 a+? o n");
    CHECK_STATUS(try(client, "bad", &read), HF_BUSY);
    del("bad/1-0");
    CHECK_OK(try(client, "bad", NULL));
    hf_close(client);
}

/* ---- owner ids of several clients -------------------------------------- */

TEST(an_owner_id_has_one_permit_in_all_clients_together)
{
    struct hf_lock_opts two = permits(2), waits = permits(2);
    hf_client *a = near_new(), *b = near_new(), *c = near_new();
    hf_lock *one, *same, *other, *again = NULL;

    two.owner = "X";
    one = take(a, "owned", &two);
    other = take(c, "owned", &waits);
    same = take(b, "owned", &two);
    CHECK_EQ(hf_slot(same), hf_slot(one));
    CHECK_EQ(hf_fence(same), hf_fence(one));
    CHECK_EQ(hf_slot(other), 1);
    CHECK_EQ(look(c, "owned").holders, 3);
    CHECK_STATUS(try(c, "owned", &waits), HF_BUSY);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_STATUS(try(c, "owned", &waits), HF_BUSY); /* The other has it. */
    /* Who would queue joins. */
    CHECK_OK(hf_acquire(a, "owned", 20000, &two, &again, &t_err));
    CHECK_EQ(hf_slot(again), hf_slot(same));
    CHECK_OK(hf_extend(again, 0, &t_err));
    CHECK_OK(hf_release(same, &t_err));
    CHECK_OK(hf_release(again, &t_err));
    CHECK_OK(try(c, "owned", &waits));
    CHECK_OK(hf_release(other, &t_err));
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

TEST(an_owner_id_is_refused_the_other_mode_in_every_client)
{
    struct hf_lock_opts read = reader(), write = HF_LOCK_OPTS_INIT;
    hf_client *a = near_new(), *b = near_new();
    hf_lock *lk, *none = NULL;

    read.owner = write.owner = "X";
    lk = take(a, "mode", &read);
    CHECK_STATUS(hf_acquire(b, "mode", -1, &write, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "release the shared lock first"));
    t_poll_until(look(a, "mode").waiters == 0, 20000); /* It left its place. */
    CHECK_OK(hf_release(lk, &t_err));
    lk = take(a, "mode", &write);
    CHECK_STATUS(hf_acquire(b, "mode", -1, &read, &none, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire(b, "mode", 0, &read, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "hf_downgrade()"));
    t_poll_until(look(a, "mode").waiters == 0, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(none == NULL);
    hf_close(a);
    hf_close(b);
}

TEST(what_another_client_joined_is_not_downgraded)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT, read = reader();
    hf_client *a = near_new(), *b = near_new(), *c = near_new();
    hf_lock *one, *two;

    opts.owner = "X";
    one = take(a, "joined", &opts);
    two = take(b, "joined", &opts);
    CHECK_STATUS(hf_downgrade(one, &t_err), HF_INVALID);
    CHECK_STATUS(hf_downgrade(two, &t_err), HF_INVALID);
    CHECK_STATUS(try(c, "joined", &read), HF_BUSY);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_downgrade(two, &t_err)); /* It is the only one, and joined. */
    CHECK_OK(try(c, "joined", &read));
    CHECK_STATUS(try(c, "joined", NULL), HF_BUSY);
    CHECK_OK(hf_extend(two, 0, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_OK(try(c, "joined", NULL));
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

/* ---- waiting ----------------------------------------------------------- */

/* The leases are so long that nobody asks again who is not woken. */
TEST(waiters_are_woken_by_what_lets_them_in)
{
    enum { WAITERS = 6 };
    static const int order[WAITERS] = {1, 0, 2, 3, 5, 4};
    struct hf_lock_opts two = permits(2), read = reader(),
                        opts = HF_LOCK_OPTS_INIT;
    hf_client *a = near_new(), *b = near_new();
    hf_lock *held[WAITERS + 2] = {NULL};
    int i;

    two.ttl_ms = read.ttl_ms = opts.ttl_ms = 600000;
    held[0] = take(a, "woken", &two);
    held[1] = take(a, "woken", &two);
    for (i = 0; i < WAITERS; i++) {
        queue_up(b, "woken", &two);
        t_poll_until(look(a, "woken").waiters == i + 1, 20000);
    }
    for (i = 0; i < WAITERS; i++) {
        CHECK_OK(hf_release(held[order[i]], &t_err));
        t_poll_until((held[i + 2] = granted(b)) != NULL, 30000);
        CHECK_LT(hf_slot(held[i + 2]), 2);
        if (i % 2 == 1) /* Both that were given back are in use again. */
            CHECK_NE(hf_slot(held[i + 1]), hf_slot(held[i + 2]));
    }
    CHECK_OK(hf_release(held[WAITERS], &t_err));
    CHECK_OK(hf_release(held[WAITERS + 1], &t_err));

    held[0] = take(a, "woken", &opts);
    for (i = 0; i < 3; i++)
        queue_up(b, "woken", &read);
    t_poll_until(look(a, "woken").waiters == 3, 20000);
    CHECK_OK(hf_downgrade(held[0], &t_err));
    for (i = 0; i < 3; i++)
        t_poll_until((held[i + 1] = granted(b)) != NULL, 30000);
    for (i = 0; i < 4; i++)
        CHECK_OK(hf_release(held[i], &t_err));
    hf_close(a);
    hf_close(b);
}

/* It was next, and is dead: it has a permit as long as its lease lasts, and the
 * next does not wait for that.  Nor does it have to ask again by itself: its
 * lease is too long for that. */
TEST(a_dead_waiter_at_the_head_keeps_its_own_permit_only)
{
    struct hf_lock_opts two = permits(2);
    hf_client *a, *b;
    hf_lock *one, *other, *next = NULL, *none = NULL;
    pid_t child = fork();

    two.ttl_ms = 600000;
    CHECK(child >= 0);
    if (!child) {
        a = near_new();
        one = take(a, "dead", &two); /* so that it is not granted itself */
        other = take(a, "dead", &two);
        (void)one;
        (void)other;
        queue_up(a, "dead", &two);
        t_poll_until(look(a, "dead").waiters == 1, 20000);
        raise(SIGSTOP);
        _exit(0);
    }
    t_poll_until(waitpid(child, NULL, WUNTRACED | WNOHANG) == child, 30000);
    a = near_new();
    b = near_new();
    CHECK_EQ(look(a, "dead").holders, 2);
    queue_up(b, "dead", &two);
    t_poll_until(look(a, "dead").waiters == 2, 20000);
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    CHECK_STATUS(hf_acquire(a, "dead", 0, &two, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_break_force(a, "dead", look(a, "dead").fence, &t_err));
    CHECK_OK(hf_break_force(a, "dead", look(a, "dead").fence, &t_err));
    t_poll_until((next = granted(b)) != NULL, 20000);
    CHECK_EQ(hf_slot(next), 1);
    CHECK_EQ(look(a, "dead").holders, 2);
    CHECK_EQ(look(a, "dead").slot, 0);
    CHECK_LT(look(a, "dead").fence, hf_fence(next));
    CHECK_STATUS(hf_acquire(a, "dead", 0, &two, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_break_force(a, "dead", look(a, "dead").fence, &t_err));
    CHECK_OK(hf_acquire(a, "dead", 0, &two, &one, &t_err));
    CHECK_EQ(hf_slot(one), 0);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
}

/* ---- late requests ----------------------------------------------------- */

struct slots {
    int n;
    unsigned used;
};

static bool see_slot(void *arg, const struct hf_info *holder)
{
    struct slots *slots = arg;

    CHECK(!(slots->used & 1u << holder->slot));
    slots->used |= 1u << holder->slot;
    slots->n++;
    return true;
}

/* A waiter was told its slot, and what wrote it arrives again, or much later
 * than another that came to its place. */
TEST(a_slot_that_is_written_late_changes_nothing)
{
    struct hf_lock_opts two = permits(2);
    hf_client *far = far_new(15000), *near = near_new();
    hf_lock *one, *other, *mine = NULL, *next;
    struct slots slots = {.n = 0};
    int32_t slot;

    hf_release(take(far, "warm", NULL), NULL);
    one = take(near, "slots", &two);
    other = take(near, "slots", &two);
    queue_up(far, "slots", &two);
    t_poll_until(look(near, "slots").waiters == 1, 20000);
    tell("conn 1 up delay 1500");
    CHECK_OK(hf_release(other, &t_err)); /* It is to have slot 1, ... */
    pause_ms(2000);
    CHECK_OK(hf_release(one, &t_err)); /* ... and now would have slot 0. */
    tell("conn 1 down half");
    t_poll_until((mine = granted(far)) != NULL, 20000);
    slot = hf_slot(mine);
    next = take(near, "slots", &two);
    CHECK_NE(hf_slot(next), slot);
    pause_ms(2500); /* All has arrived. */
    CHECK_OK(hf_holders(near, "slots", see_slot, &slots, &t_err));
    CHECK_EQ(slots.n, 2);
    CHECK_OK(hf_extend(mine, 0, &t_err));
    CHECK_EQ(hf_slot(mine), slot);
    CHECK_OK(hf_release(next, &t_err));
    next = take(near, "slots", &two);
    CHECK_NE(hf_slot(next), slot);
    CHECK_OK(hf_release(next, &t_err));
    CHECK_OK(hf_release(mine, &t_err));
    hf_close(far);
    hf_close(near);
    net_free(net);
}

/* The revision in which a key was last written. */
static long written(const char *name)
{
    char command[160];
    long revision = 0;
    FILE *out;

    snprintf(command, sizeof(command),
             "etcdctl get 'holdfast/%s' -w fields | sed -n 's/.*ModRev.* //p'",
             name);
    out = popen(command, "r");
    CHECK(out && fscanf(out, "%ld", &revision) == 1);
    CHECK_EQ(pclose(out), 0);
    return revision;
}

/* What a claim does that has chosen its slot: it writes it if its place was not
 * written since. */
static bool put_if(const char *name, long revision, const char *value)
{
    char command[400];

    snprintf(command, sizeof(command),
             "printf 'mod(\"holdfast/%s\") = \"%ld\"\n\nput holdfast/%s "
             "\"%s\"\n\n\n' | etcdctl txn | grep -q SUCCESS",
             name, revision, name, value);
    return system(command) == 0;
}

/* `far` has read that a claim before it has no slot, and writes one for it when
 * it has chosen one itself. */
TEST(the_slot_that_a_claim_chose_itself_stays)
{
    struct hf_lock_opts three = permits(3);
    hf_client *far = far_new(15000), *near = near_new();
    hf_lock *held[3], *mine = NULL;
    struct slots slots = {.n = 0};
    char name[200], value[200];
    bool chosen;
    long revision;
    int i;

    hf_release(take(far, "warm", NULL), NULL);
    for (i = 0; i < 3; i++)
        held[i] = take(near, "chosen", &three);
    put("chosen/S3.c-0", "hf1 c* o n");
    revision = written("chosen/S3.c-0");
    queue_up(far, "chosen", &three);
    t_poll_until(look(near, "chosen").waiters == 2, 20000);
    tell("conn 1 up delay 1500");
    for (i = 0; i < 3; i++)
        CHECK_OK(hf_release(held[i], &t_err));
    pause_ms(2200); /* It has looked, and what it writes is on its way. */
    chosen = put_if("chosen/S3.c-0", revision, "hf1 c* o n slot=1");
    t_poll_until((mine = granted(far)) != NULL, 20000);
    tell("conn 1 up delay 0");
    CHECK_OK(hf_holders(near, "chosen", see_slot, &slots, &t_err));
    CHECK_EQ(slots.n, 2);
    CHECK_OK(hf_release(mine, &t_err));
    stored("chosen", name, value);
    CHECK(!strcmp(value, chosen ? "hf1 c* o n slot=1" : "hf1 c* o n slot=0"));
    del("chosen/S3.c-0");
    hf_close(far);
    hf_close(near);
    net_free(net);
}

TEST(a_downgrade_that_arrives_late_lets_nobody_in_beside_the_next)
{
    struct hf_lock_opts read = reader();
    hf_client *far = far_new(1000), *near = near_new();
    hf_lock *lk = take(far, "down", NULL), *next = NULL;

    tell("conn 1 up delay 700"); /* The queue is read, the change is sent. */
    CHECK(hf_downgrade(lk, &t_err) != HF_OK);
    tell("conn 1 down half");
    hf_release(lk, NULL);
    CHECK_OK(hf_acquire(near, "down", 20000, NULL, &next, &t_err));
    pause_ms(1500);
    CHECK(!look(near, "down").shared);
    CHECK_STATUS(try(near, "down", &read), HF_BUSY);
    CHECK_OK(hf_extend(next, 0, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    hf_close(far);
    hf_close(near);
    net_free(net);
}

/* The client releases early, hears nothing, and asks again. */
TEST(a_lock_is_kept_once_although_no_answer_comes)
{
    struct hf_lock_opts min = HF_LOCK_OPTS_INIT;
    hf_client *far = far_new(1000), *near = near_new();
    hf_lock *lk, *next = NULL;
    uint64_t fence;
    int64_t end;

    min.min_hold_ms = 12000;
    end = t_now_ms() + min.min_hold_ms;
    lk = take(far, "min", &min);
    fence = hf_fence(lk);
    tell("conn 1 up delay 700");
    hf_release(lk, NULL);
    tell("conn 1 down half");
    t_poll_until(look(near, "min").kept, 11000);
    CHECK_EQ(look(near, "min").fence, fence);
    hf_close(far);
    CHECK_OK(hf_acquire(near, "min", 30000, NULL, &next, &t_err));
    CHECK_GE(t_now_ms(), end);
    CHECK_GT(hf_fence(next), fence);
    pause_ms(1500);
    CHECK_OK(hf_extend(next, 0, &t_err));
    CHECK(!look(near, "min").kept);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(near);
    net_free(net);
}

/* ---- what is kept ------------------------------------------------------ */

TEST(readers_and_permits_are_kept_as_what_they_are)
{
    struct hf_lock_opts read = reader(), two = permits(2);
    hf_client *a = near_new(), *b = near_new();
    struct hf_info info;

    read.min_hold_ms = two.min_hold_ms = 600000;
    CHECK_OK(hf_release(take(a, "kept", &read), &t_err));
    read.min_hold_ms = 0;
    info = look(b, "kept");
    CHECK(info.held && info.kept && info.shared);
    CHECK_OK(try(b, "kept", &read));
    CHECK_STATUS(try(b, "kept", NULL), HF_BUSY);
    CHECK_OK(hf_break_force(b, "kept", info.fence, &t_err));
    CHECK_OK(hf_release(take(a, "kept", &two), &t_err));
    two.min_hold_ms = 0;
    info = look(b, "kept");
    CHECK(info.held && info.kept && info.permits == 2 && info.slot == 0);
    hf_close(a);
    CHECK_OK(try(b, "kept", &two));
    CHECK(look(b, "kept").kept);
    CHECK_OK(hf_break_force(b, "kept", info.fence, &t_err));
    CHECK_OK(try(b, "kept", NULL));
    hf_close(b);
}

T_MAIN
