/* SPDX-License-Identifier: MIT
 *
 * rights.c - who we are to a Redis server, and what we may do there.
 *
 * The rights that holdfast-redis(7) names are enough for everything, and with
 * fewer nothing is left half done.  A password may come from a file, and may
 * change.
 */
#include "ensemble.h"
#include "fleet.h"
#include "rt.h"

#include <unistd.h>

static const char secret[] = "s3cret";

/* ---- what the manual says ---------------------------------------------- */

/* The rules of the user "locks", word by word as the manual has them. */
static void manual_rules(char *ret, size_t size)
{
    static const char begin[] = "ACL SETUSER locks ";
    char line[512];
    FILE *page = fopen(HF_TEST_SOURCE "/../../doc/man/holdfast-redis.7", "r");
    size_t len = 0;

    CHECK(page != NULL);
    ret[0] = '\0';
    while (fgets(line, sizeof(line), page)) {
        if (!len && strncmp(line, begin, strlen(begin)) != 0)
            continue;
        line[strcspn(line, "\\\n")] = '\0';
        len += (size_t)snprintf(ret + len, size - len, "%s", line);
        if (strstr(line, "+role"))
            break;
    }
    fclose(page);
    CHECK(len > 0 && len < size);
    memmove(ret, ret + strlen(begin), len - strlen(begin) + 1);
}

/* Make the user, on one server, with `more` rights. */
static void make_locks(struct rt_server *s, const char *more)
{
    const char *argv[64] = {"ACL", "SETUSER", "locks"};
    char rules[2048], password[64], path[200], *at;
    redisContext *c;
    redisReply *reply;
    int argc = 3;

    manual_rules(rules, sizeof(rules));
    for (at = strtok(rules, " "); at; at = strtok(NULL, " "))
        argv[argc++] = *at == '>' ? password : at;
    snprintf(password, sizeof(password), ">%s", secret);
    if (*more)
        argv[argc++] = more;
    snprintf(path, sizeof(path), "%s/sock", s->dir);
    c = redisConnectUnix(path);
    CHECK(c && !c->err);
    reply = redisCommandArgv(c, argc, argv, NULL);
    CHECK(reply != NULL);
    CHECK_STR(reply->str, "OK");
    freeReplyObject(reply);
    redisFree(c);
}

static hf_client *open_as(struct rt_server *s, const char *user,
                          const char *more)
{
    hf_client *client = NULL;
    char url[256];

    snprintf(url, sizeof(url), "redis://%s:%s@127.0.0.1:%d%s", user, secret,
             s->port, more);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

static bool any(void *arg, const char *key, const struct hf_info *info)
{
    ++*(int *)arg;
    return strlen(key) > 0 && info->held;
}

/* Everything that can be done to a key. */
static void use_all(hf_client *a, hf_client *b, const char *key)
{
    static const char *const owners[] = {NULL, "order-7"};
    struct hf_lock_opts opts = rt_opts(5000, 0);
    struct hf_info info = HF_INFO_INIT;
    struct hf_service svc = {.size = sizeof(svc)};
    struct hf_handle handle = HF_HANDLE_INIT;
    struct rt_waiter w;
    hf_lock *lk = NULL;
    int i, n = 0;

    CHECK_OK(hf_describe(a, &svc, &t_err));
    CHECK_STR(svc.warning, "");
    for (i = 0; i < 2; i++) {
        opts.owner = owners[i];
        opts.linger_ms = i ? 0 : 10;
        CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_inspect(b, key, &info, &t_err));
        CHECK(info.held);
        w = rt_waiter(b, key, 20000, 30000, 0);
        rt_wait_start(&w);
        do {
            t_sleep_ms(5);
            CHECK_OK(hf_inspect(b, key, &info, &t_err));
        } while (!info.waiters);
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w); /* long before half its lease is over */
        opts.linger_ms = 0;
        CHECK_OK(hf_acquire(a, key, 5000, &opts, &lk, &t_err));
        CHECK_OK(hf_detach(lk, &handle, &t_err));
        CHECK_OK(hf_attach(b, key, &handle, &opts, &lk, &t_err));
        CHECK_OK(hf_list(a, NULL, any, &n, &t_err));
        CHECK_GT(n, i);
        CHECK_OK(hf_break(a, key, hf_fence(lk), &t_err));
        CHECK_OK(hf_break_force(a, key, hf_fence(lk), &t_err));
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    }
}

TEST(the_rights_that_the_manual_names_are_enough)
{
    static const char *const keys[] = {"k", "x{tag}y", "{holdfast:k}", "a{b",
                                       "a}b"};
    struct rt_server s = {0};
    hf_client *a, *b;
    size_t i;

    rt_start(&s, NULL);
    make_locks(&s, "");
    a = open_as(&s, "locks", "");
    b = open_as(&s, "locks", "");
    for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        use_all(a, b, keys[i]);
    hf_close(a);
    hf_close(b);
    a = open_as(&s, "locks", "?acquire=set");
    CHECK_OK(hf_release(rt_lock(a, "x{tag}y", 0, 5000, 0), &t_err));
    hf_close(a);
    rt_end(&s);
}

TEST_TIMEOUT(the_rights_that_the_manual_names_are_enough_in_a_cluster, 120)
{
    hf_client *client[2] = {NULL, NULL};
    struct fleet f;
    char url[1100];
    int i;

    fleet_start(&f, NULL);
    for (i = 0; i < FLEET_NODES; i++)
        make_locks(&f.node[i], "+cluster|slots");
    snprintf(url, sizeof(url), "redis+cluster://locks:%s@127.0.0.1:%d", secret,
             f.node[0].port);
    for (i = 0; i < 2; i++)
        CHECK_OK(hf_open(url, NULL, &client[i], &t_err));
    for (i = 0; i < 3; i++)
        use_all(client[0], client[1], fleet_key(i, 0));
    hf_close(client[0]);
    hf_close(client[1]);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* ---- with fewer -------------------------------------------------------- */

TEST(whoever_lacks_one_right_is_denied_and_leaves_nothing)
{
    static const char *const lacks[] = {"-hset", "-hget",   "-set",
                                        "-time", "-exists", "-evalsha"};
    static const char *const owners[] = {NULL, "order-7"};
    struct hf_lock_opts opts = rt_opts(5000, 0);
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk = NULL;
    size_t i;
    int j;

    rt_start(&s, NULL);
    for (i = 0; i < sizeof(lacks) / sizeof(lacks[0]); i++) {
        make_locks(&s, lacks[i]);
        client = open_as(&s, "locks", "");
        for (j = 0; j < 2; j++) {
            opts.owner = owners[j];
            if (j && !strcmp(lacks[i], "-exists"))
                continue; /* It is not asked for then. */
            CHECK_STATUS(hf_acquire(client, "k", 1000, &opts, &lk, &t_err),
                         HF_DENIED);
            CHECK(strstr(t_err.text, "holdfast-url(7)") != NULL);
            CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
        }
        hf_close(client);
        rt_do(&s, "ACL DELUSER locks");
    }
    /* What keeps the time is part of it: nothing stays for ever. */
    make_locks(&s, "-pexpire");
    client = open_as(&s, "locks", "");
    CHECK_STATUS(hf_acquire(client, "new", 0, NULL, &lk, &t_err), HF_DENIED);
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:new {holdfast:new}:meta:"), 0);
    hf_close(client);
    rt_end(&s);
}

/* Those who wait for it could not be told, and know. */
TEST(whoever_may_not_publish_says_so_and_is_asked_often)
{
    struct hf_service svc = {.size = sizeof(svc)};
    struct rt_server s = {0};
    hf_client *holder, *client;
    struct rt_waiter w;
    hf_lock *lk;

    rt_start(&s, NULL);
    make_locks(&s, "");
    rt_do(&s, "ACL SETUSER silent on >%s ~* resetchannels +@all", secret);
    client = open_as(&s, "locks", "");
    holder = open_as(&s, "silent", "");
    CHECK_OK(hf_describe(holder, &svc, &t_err));
    CHECK(strstr(svc.warning, "publish") != NULL);
    lk = rt_lock(holder, "k", 0, 60000, 0);
    w = rt_waiter(client, "k", 20000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 1 && rt_hears(&s, "k"), 5000);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w); /* long before half its lease is over */
    hf_close(holder);
    /* The right is taken away later: it is told at the first release. */
    holder = open_as(&s, "locks", "");
    CHECK_OK(hf_describe(holder, &svc, &t_err));
    CHECK_STR(svc.warning, "");
    lk = rt_lock(holder, "k", 0, 60000, 0);
    w = rt_waiter(client, "k", 20000, 3000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 1 && rt_hears(&s, "k"), 5000);
    rt_do(&s, "ACL SETUSER locks -spublish -publish");
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_describe(holder, &svc, &t_err));
    CHECK(strstr(svc.warning, "publish") != NULL);
    rt_wait_join(&w);
    hf_close(holder);
    hf_close(client);
    rt_end(&s);
}

/* ---- who we are -------------------------------------------------------- */

TEST(a_user_without_a_password_is_that_user_and_not_another)
{
    struct rt_server s = {0};
    hf_client *client = NULL;
    char url[128];

    rt_start(&s, NULL);
    rt_do(&s, "ACL SETUSER open on nopass ~* &* +@all");
    rt_do(&s, "ACL SETUSER shut on >%s ~* &* +@all", secret);
    snprintf(url, sizeof(url), "redis://open@127.0.0.1:%d", s.port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK(strstr(rt_text(&s, "CLIENT LIST"), "user=open") != NULL);
    hf_close(client);
    snprintf(url, sizeof(url), "redis://shut@127.0.0.1:%d", s.port);
    rt_check_refused(url, HF_DENIED, "no password");
    rt_end(&s);
}

static const char *write_password(const char *text)
{
    static char path[200];
    FILE *file;

    snprintf(path, sizeof(path), "%s/password", t_tmpdir());
    file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "%s\n", text);
    CHECK_EQ(fclose(file), 0);
    return path;
}

TEST(a_password_in_a_file_may_change_while_a_lock_is_held)
{
    struct rt_server s = {.password = "s3cret-1"};
    hf_client *client = NULL;
    const char *path = write_password("s3cret-1");
    char url[300];
    hf_lock *lk;

    rt_start(&s, "--requirepass", "s3cret-1", NULL);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%d?password_file=%s", s.port,
             path);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    lk = rt_lock(client, "k", 0, 2000, 0);
    rt_do(&s, "CONFIG SET requirepass s3cret-2");
    s.password = "s3cret-2";
    write_password("s3cret-2");
    rt_do(&s, "CLIENT KILL TYPE normal SKIPME yes");
    t_poll_until(hf_extend(lk, 0, &t_err) == HF_OK, 2000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    write_password("s3cret-wrong");
    rt_check_refused(url, HF_DENIED, "WRONGPASS");
    write_password("");
    rt_check_refused(url, HF_INVALID, "password_file=");
    CHECK_EQ(unlink(path), 0);
    rt_check_refused(url, HF_SYSTEM, "password_file=");
    snprintf(url, sizeof(url), "redis://:s3cret@127.0.0.1:%d?password_file=%s",
             s.port, path);
    rt_check_refused(url, HF_INVALID, "password_file=");
    rt_end(&s);
}

/* The password in the URL is not good any more, and every connection is cut:
 * nobody gets the lock early.  The holder is told in time; or goes on, if the
 * password is good again in time. */
TEST(a_password_that_is_changed_under_a_holder_gives_its_lock_to_nobody)
{
    struct hf_lock_opts opts = rt_opts(3000, 0);
    struct rt_server s = {0};
    hf_client *client, *other;
    hf_lock *lk, *next = NULL;
    hf_status st;
    int i;

    rt_start(&s, NULL);
    other = rt_open(&s, "");
    for (i = 0; i < 2; i++) {
        rt_do(&s, "ACL SETUSER locker reset on >%s ~* &* +@all", secret);
        client = open_as(&s, "locker", "");
        lk = rt_lock(client, "k", 0, 3000, 0);
        rt_do(&s, "ACL SETUSER locker resetpass >another");
        rt_do(&s, "CLIENT KILL USER locker");
        if (i) {
            t_poll_until(rt_int(&s, "PTTL holdfast:k") < 1700, 5000);
            rt_do(&s, "ACL SETUSER locker >%s", secret);
            t_poll_until(rt_int(&s, "PTTL holdfast:k") > 2000, 5000);
            CHECK(hf_held(lk));
            CHECK_OK(hf_release(lk, &t_err));
        } else {
            while ((st = hf_acquire(other, "k", 0, &opts, &next, &t_err))) {
                CHECK_STATUS(st, HF_BUSY);
                t_sleep_ms(20);
            }
            CHECK(!hf_held(lk));
            CHECK_EQ(hf_lost_reason(lk), HF_LOSS_EXPIRED);
            CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
            CHECK_OK(hf_release(next, &t_err));
        }
        hf_close(client);
    }
    hf_close(other);
    rt_end(&s);
}

T_MAIN
