/* SPDX-License-Identifier: MIT
 *
 * wire.c - what the network, or whoever answers at the other end, can do.
 *
 * A reply that is lost, cut at any byte or late makes an outcome unknown; the
 * client resolves it, says so where it cannot, and leaves nothing behind.  What
 * comes from the other end is never trusted: no reply makes it crash, hang or
 * fill the memory.
 */
#include "proxy.h"

#include <poll.h>

#define SLACK 250

static hf_client *open_through(struct proxy *p, const char *more)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(rt_url(p->port, more), NULL, &client, &t_err));
    return client;
}

static bool is_gone(struct rt_server *s, const char *key)
{
    return rt_int(s, "EXISTS holdfast:%s", key) == 0;
}

/* The reply to an acquisition is some 35 bytes; one to a release is 4. */
#define REPLY_MAX 48

TEST(a_reply_cut_at_any_byte_is_asked_for_again)
{
    struct rt_server s = {0};
    struct proxy p;
    hf_client *client;
    hf_lock *lk;
    uint64_t fence;
    hf_status st;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_through(&p, "");
    for (i = 0; i < REPLY_MAX; i++) {
        proxy_set(&p, PROXY_CUT, i);
        lk = rt_lock(client, "k", 5000, 20000, 0);
        CHECK(hf_held(lk));
        fence = strtoull(rt_text(&s, "HGET {holdfast:k}:meta: g"), NULL, 10);
        CHECK_EQ(hf_fence(lk), fence);
        CHECK_STR(rt_text(&s, "GET holdfast:k"), hf_token(lk));
        proxy_set(&p, PROXY_PASS, 0);
        /* A cut right behind the reply may meet the release. */
        st = hf_release(lk, &t_err);
        CHECK(st == HF_OK || st == HF_UNCERTAIN);
        t_poll_until(is_gone(&s, "k"), 10000);
    }
    CHECK_GT(proxy_cuts(&p), 20); /* it did reach into the replies */
    hf_close(client);
    proxy_stop(&p);
    rt_end(&s);
}

TEST(a_try_whose_reply_is_cut_is_uncertain_and_taken_back)
{
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct proxy p;
    hf_client *client;
    hf_lock *lk = NULL;
    hf_status st;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    for (i = 0; i < 20; i++) {
        client = open_through(&p, ""); /* one that has nothing else to do */
        proxy_set(&p, PROXY_CUT, i);
        st = hf_acquire(client, "k", 0, &opts, &lk, &t_err);
        CHECK_EQ(st, HF_UNCERTAIN);
        t_poll_until(is_gone(&s, "k"), 5000);
        hf_close(client);
    }
    proxy_stop(&p);
    rt_end(&s);
}

TEST(a_release_whose_reply_is_cut_is_uncertain_and_carried_out)
{
    struct rt_server s = {0};
    struct proxy p;
    hf_client *client;
    hf_lock *lk;
    hf_status st;
    int i, uncertain = 0;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_through(&p, "");
    for (i = 0; i < 8; i++) {
        lk = rt_lock(client, "k", 5000, 60000, 0);
        proxy_set(&p, PROXY_CUT, i);
        st = hf_release(lk, &t_err);
        CHECK(st == HF_OK || st == HF_UNCERTAIN);
        uncertain += st == HF_UNCERTAIN;
        t_poll_until(is_gone(&s, "k"), 5000);
        proxy_set(&p, PROXY_PASS, 0);
    }
    /* As long as ":1\r\n" is not whole; and what was in doubt before may be
     * taken back late, over the same connection and before this one. */
    CHECK_GE(uncertain, 4);
    hf_close(client);
    proxy_stop(&p);
    rt_end(&s);
}

TEST(a_renewal_whose_reply_is_cut_is_sent_again)
{
    struct rt_server s = {0};
    struct proxy p;
    hf_client *client;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_through(&p, "");
    lk = rt_lock(client, "k", 0, 900, 0);
    for (i = 0; i < 4; i++) {
        proxy_set(&p, PROXY_CUT, i);
        t_poll_until(proxy_cuts(&p) > i, 3000);
    }
    t_sleep_ms(1000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    proxy_stop(&p);
    rt_end(&s);
}

TEST(replies_that_never_come_leave_nothing_once_the_network_is_back)
{
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct proxy p;
    hf_client *client;
    hf_lock *lk = NULL;
    int64_t begun;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_through(&p, "?timeout=300ms");
    proxy_set(&p, PROXY_DROP, 0);
    begun = t_now_ms();
    CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &lk, &t_err), HF_UNCERTAIN);
    CHECK_LE(t_now_ms() - begun, 300 + 2 * SLACK);
    CHECK_STATUS(hf_acquire(client, "l", 700, &opts, &lk, &t_err),
                 HF_UNCERTAIN);
    proxy_set(&p, PROXY_PASS, 0);
    t_poll_until(is_gone(&s, "k") && is_gone(&s, "l"), 10000);
    hf_close(client);
    proxy_stop(&p);
    rt_end(&s);
}

/* The grant counts from the try that was answered, so its expiry must, too. */
TEST(a_try_that_is_repeated_lasts_as_long_as_it_says_in_every_mode)
{
    static const char *const modes[] = {"fenced", "set", "script"};
    struct rt_server s = {0};
    struct rt_waiter w;
    struct proxy p;
    hf_client *client;
    char more[64];
    int i;

    rt_start(&s, NULL);
    for (i = 0; i < 3; i++) {
        proxy_start(&p, &s);
        snprintf(more, sizeof(more), "?timeout=700ms&acquire=%s", modes[i]);
        client = open_through(&p, more);
        /* so that the server has the script */
        CHECK_OK(hf_release(rt_lock(client, "l", 0, 5000, 0), &t_err));
        proxy_set(&p, PROXY_DROP, 0);
        w = rt_waiter(client, "k", 20000, 20000, HF_MANUAL);
        w.hold_ms = 400;
        rt_wait_start(&w);
        t_poll_until(!is_gone(&s, "k"), 5000);
        t_sleep_ms(500);
        proxy_set(&p, PROXY_PASS, 0);
        t_poll_until(__atomic_load_n(&w.got_at, __ATOMIC_ACQUIRE), 10000);
        /* By the first try alone there would be half a second less. */
        CHECK_GE(rt_int(&s, "PTTL holdfast:k") + t_now_ms() - w.got_at,
                 20000 - 300);
        rt_wait_join(&w);
        hf_close(client);
        proxy_stop(&p);
    }
    rt_end(&s);
}

/* The text of the last try that the server has served: "evalsha" and its
 * arguments, each between quotes. */
static void last_try(redisContext *monitor, char *ret, size_t size)
{
    redisReply *line;

    for (ret[0] = '\0';; freeReplyObject(line)) {
        CHECK_EQ(redisGetReply(monitor, (void **)&line), REDIS_OK);
        if (strstr(line->str, "\"the end\""))
            break;
        if (strstr(line->str, " \"EVALSHA\" ") && strstr(line->str, "\"A1"))
            snprintf(ret, size, "%s", strstr(line->str, "\"EVALSHA\""));
    }
    freeReplyObject(line);
}

/* Send it again, as if the network had kept a copy. */
static void try_late(struct rt_server *s, char *text)
{
    const char *argv[16];
    char *at, path[200];
    int argc = 0;
    redisContext *c;
    redisReply *reply;

    for (at = strtok(text, "\""); at && argc < 16; at = strtok(NULL, "\""))
        if (strcmp(at, " ") != 0)
            argv[argc++] = at;
    CHECK_GE(argc, 11);
    snprintf(path, sizeof(path), "%s/sock", s->dir);
    c = redisConnectUnix(path);
    CHECK(c && !c->err);
    reply = redisCommandArgv(c, argc, argv, NULL);
    CHECK(reply && reply->type != REDIS_REPLY_ERROR);
    freeReplyObject(reply);
    redisFree(c);
}

/* Its first try had no answer, so a copy of it may be on its way for long. */
TEST(a_try_that_arrives_after_the_release_takes_nothing)
{
    struct rt_server s = {0};
    struct rt_waiter w;
    struct proxy p;
    redisContext *monitor;
    hf_client *client, *other;
    char path[200], text[2][2048];
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_through(&p, "?timeout=300ms");
    other = rt_open(&s, "");
    CHECK_OK(hf_release(rt_lock(client, "l", 0, 5000, 0), &t_err));
    snprintf(path, sizeof(path), "%s/sock", s.dir);
    monitor = redisConnectUnix(path);
    CHECK(monitor && !monitor->err);
    freeReplyObject(redisCommand(monitor, "MONITOR"));
    proxy_set(&p, PROXY_DROP, 0);
    w = rt_waiter(client, "k", 20000, 20000, 0);
    w.hold_ms = 100;
    rt_wait_start(&w);
    t_poll_until(!is_gone(&s, "k"), 5000);
    t_sleep_ms(350); /* longer than its answer is waited for */
    proxy_set(&p, PROXY_PASS, 0);
    rt_wait_join(&w);
    rt_do(&s, "ECHO %s", "the end");
    last_try(monitor, text[0], sizeof(text[0]));
    snprintf(text[1], sizeof(text[1]), "%s", text[0]);
    redisFree(monitor);
    for (i = 0; i < 2; i++) {
        lk = i ? rt_lock(other, "k", 0, 20000, 0) : NULL;
        try_late(&s, text[i]); /* to a free lock, then to one that is taken */
        CHECK_EQ(rt_waiters(&s, "k"), 0);
        CHECK_EQ(is_gone(&s, "k"), !lk);
        if (lk)
            CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    hf_close(other);
    proxy_stop(&p);
    rt_end(&s);
}

TEST(a_waiter_whose_replies_are_lost_leaves_its_place)
{
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct proxy p;
    hf_client *holder, *client;
    hf_lock *lk, *other = NULL;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    holder = rt_open(&s, "");
    client = open_through(&p, "?timeout=300ms");
    lk = rt_lock(holder, "k", 0, 60000, 0);
    proxy_set(&p, PROXY_DROP, 0);
    CHECK_STATUS(hf_acquire(client, "k", 500, &opts, &other, &t_err),
                 HF_UNCERTAIN);
    CHECK_GT(rt_calls(&s, "zadd"), 0); /* It may have left already. */
    proxy_set(&p, PROXY_PASS, 0);
    t_poll_until(rt_waiters(&s, "k") == 0, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    hf_close(holder);
    proxy_stop(&p);
    rt_end(&s);
}

/* What a release says to the next in line, some 120 bytes. */
#define MESSAGE_MAX 132

TEST(a_wake_up_cut_at_any_byte_keeps_nobody_waiting)
{
    struct rt_server s = {0};
    struct rt_waiter w;
    struct proxy p;
    hf_client *holder, *client;
    int64_t freed;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    holder = rt_open(&s, "");
    client = open_through(&p, "");
    for (i = 0; i < MESSAGE_MAX; i += 4) {
        lk = rt_lock(holder, "k", 5000, 60000, 0);
        w = rt_waiter(client, "k", 30000, 60000, 0);
        w.cut = true;
        rt_wait_start(&w);
        t_poll_until(rt_hears(&s, "k"), 5000);
        proxy_set(&p, PROXY_CUT, i);
        freed = t_now_ms();
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w);
        CHECK_LE(w.got_at - freed, 5000); /* A poll comes after 30 s. */
        proxy_set(&p, PROXY_PASS, 0);
    }
    CHECK_GT(proxy_cuts(&p), 20);
    hf_close(client);
    hf_close(holder);
    proxy_stop(&p);
    rt_end(&s);
}

TEST(slow_replies_are_waited_for)
{
    struct rt_server s = {0};
    struct proxy p;
    hf_client *client;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_through(&p, "");
    proxy_delay(&p, 120);
    for (i = 0; i < 2; i++) {
        lk = rt_lock(client, "k", 0, 3000, 0);
        CHECK_LE(hf_remaining_ms(lk), 3000 - 120); /* from before it was sent */
        t_sleep_ms(3300);
        CHECK(hf_held(lk));
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    proxy_stop(&p);
    rt_end(&s);
}

static bool count_all(void *arg, const char *key, const struct hf_info *info)
{
    CHECK(key && info->held);
    (*(int *)arg)++;
    return true;
}

/* One by one, either would take ten seconds and more: longer than a call may
 * take, and longer than the leases last. */
TEST(many_locks_are_kept_and_listed_over_a_slow_line)
{
    enum { LOCKS = 400, DELAY_MS = 30, TTL = 6000 };
    static hf_lock *lk[LOCKS];
    struct rt_server s = {0};
    struct proxy p;
    hf_client *client;
    char key[16];
    int64_t end;
    int i, n = 0;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_through(&p, "");
    for (i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        lk[i] = rt_lock(client, key, 0, TTL, 0);
    }
    proxy_delay(&p, DELAY_MS);
    /* Each renewal finds that the server has forgotten the script. */
    for (end = t_now_ms() + TTL + 1000; t_now_ms() < end; t_sleep_ms(200))
        rt_do(&s, "SCRIPT FLUSH");
    for (i = 0; i < LOCKS; i++)
        if (!hf_held(lk[i]))
            t_fail(__FILE__, __LINE__, "lock %d is lost: %s", i,
                   hf_loss_name(hf_lost_reason(lk[i])));
    CHECK_OK(hf_list(client, NULL, count_all, &n, &t_err));
    CHECK_EQ(n, LOCKS);
    proxy_delay(&p, 0);
    for (i = 0; i < LOCKS; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
    proxy_stop(&p);
    rt_end(&s);
}

/* Somebody waits, so there is a subscriber; its new connection hangs. */
static bool count_one(void *arg, const char *key, const struct hf_info *info)
{
    ++*(int *)arg;
    return strlen(key) > 0 && info->held;
}

/* The limit is that of one request, and a listing is many. */
TEST(a_listing_may_take_longer_than_a_request)
{
    struct rt_server s = {0};
    struct proxy p;
    hf_client *client;
    hf_lock *lk;
    int n = 0;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_through(&p, "?timeout=500ms");
    lk = rt_lock(client, "k", 5000, 60000, 0);
    rt_do(&s, "EVAL %s 0",
          "for i=1,50000 do redis.call('SET','foreign:'..i,'x') end");
    proxy_delay(&p, 10);
    CHECK_OK(hf_list(client, NULL, count_one, &n, &t_err));
    CHECK_EQ(n, 1);
    proxy_delay(&p, 0);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    proxy_stop(&p);
    rt_do(&s, "FLUSHALL");
    rt_end(&s);
}

TEST(a_loss_is_told_in_time_though_the_subscriber_cannot_connect)
{
    struct rt_server s = {0};
    struct proxy p;
    struct pollfd one = {.events = POLLIN};
    hf_client *holder, *client;
    struct rt_waiter w;
    hf_lock *lk, *other;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    holder = rt_open(&s, "");
    client = open_through(&p, "?timeout=4s");
    other = rt_lock(holder, "other", 0, 60000, 0);
    w = rt_waiter(client, "other", 30000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "other") == 1, 5000);
    t_sleep_ms(50);
    lk = rt_lock(client, "k", 0, 1500, 0);
    one.fd = hf_lost_fd(lk);
    proxy_break(&p, PROXY_FREEZE);
    CHECK_EQ(poll(&one, 1, 1500 + SLACK), 1);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_EXPIRED);
    proxy_break(&p, PROXY_PASS);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_release(other, &t_err));
    rt_wait_join(&w);
    hf_close(client);
    hf_close(holder);
    proxy_stop(&p);
    rt_end(&s);
}

TEST(an_acquire_and_release_costs_few_bytes_and_two_commands)
{
    struct rt_server s = {0};
    struct proxy p;
    hf_client *client;
    long long calls;
    int64_t bytes;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_through(&p, "");
    CHECK_OK(hf_release(rt_lock(client, "k", 0, 30000, 0), &t_err));
    calls = rt_calls(&s, "evalsha");
    bytes = proxy_bytes(&p);
    for (i = 0; i < 50; i++)
        CHECK_OK(hf_release(rt_lock(client, "k", 0, 30000, 0), &t_err));
    CHECK_EQ(rt_calls(&s, "evalsha") - calls, 100);
    printf("%lld bytes\n", (long long)(proxy_bytes(&p) - bytes) / 50);
    CHECK_LE((proxy_bytes(&p) - bytes) / 50, 1000);
    hf_close(client);
    proxy_stop(&p);
    rt_end(&s);
}

/* ---- a server that is none --------------------------------------------- */

/* The most memory that this process ever used, in MB. */
static long peak_mb(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long kb = 0;

    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "VmHWM: %ld kB", &kb) == 1)
            break;
    if (file)
        fclose(file);
    return kb / 1024;
}

static void check_failed(hf_status st, int64_t begun, long before)
{
    printf("%s: %s (%ld MB)\n", hf_status_name(st), t_err.text,
           peak_mb() - before);
    CHECK(st == HF_UNAVAILABLE || st == HF_PROTOCOL || st == HF_UNCERTAIN);
    CHECK(t_err.text[0]);
    CHECK_LE(t_now_ms() - begun, 1000 + 4 * SLACK);
    CHECK_LE(peak_mb() - before, 150);
}

TEST(nothing_that_a_server_says_to_a_greeting_does_harm)
{
    struct hostile h;
    hf_client *client = NULL;
    long before = peak_mb();
    int64_t begun;
    hf_status st;
    int kind;

    for (kind = 0; kind < HOSTILE_KINDS; kind++) {
        if (kind == HOSTILE_WRONG_TYPE || kind == HOSTILE_EMPTY_ARRAY ||
            kind == HOSTILE_NIL || kind == HOSTILE_TWO_FOR_ONE)
            continue; /* to PING any well-formed answer will do */
        hostile_start(&h, kind, 0);
        begun = t_now_ms();
        t_err = (struct hf_error){HF_OK, 0, ""};
        st = hf_open(rt_url(h.port, "?timeout=1s"), NULL, &client, &t_err);
        check_failed(st, begun, before);
        hostile_stop(&h);
    }
}

TEST(nothing_that_a_server_says_to_a_try_does_harm)
{
    struct hf_info info = HF_INFO_INIT;
    struct hostile h;
    hf_client *client;
    hf_lock *lk = NULL;
    long before = peak_mb();
    int64_t begun;
    hf_status st;
    int kind;

    for (kind = 0; kind < HOSTILE_KINDS; kind++) {
        hostile_start(&h, kind, 1);
        CHECK_OK(hf_open(rt_url(h.port, "?timeout=1s"), NULL, &client, &t_err));
        begun = t_now_ms();
        t_err = (struct hf_error){HF_OK, 0, ""};
        st = hf_acquire(client, "k", 0, NULL, &lk, &t_err);
        if (kind == HOSTILE_TWO_FOR_ONE && st == HF_OK)
            hf_release(lk, &t_err); /* the first of the two was a grant */
        else
            check_failed(st, begun, before);
        begun = t_now_ms();
        t_err = (struct hf_error){HF_OK, 0, ""};
        st = hf_inspect(client, "k", &info, &t_err);
        check_failed(st, begun, before);
        hf_close(client);
        hostile_stop(&h);
    }
}

T_MAIN
