/* SPDX-License-Identifier: MIT
 *
 * versions.c - older and newer servers than that of this Debian.
 *
 *   redis-6    6.0: no sharded channels, no SET NX GET, errors of a script in
 *              words of their own
 *   (ours)     7.0: both
 *   redis-8    8.6: DELEX
 *   valkey-8   8.1: SET IFEQ, which is not used (redis_bare.c)
 *   valkey-9   9:   DELIFEQ
 *
 * They are fetched by scripts/get-valkey, and skipped where they cannot be had.
 */
#include "fleet.h"

static const char *const versions[] = {"redis-6", NULL, "redis-8", "valkey-8",
                                       "valkey-9"};

enum { REDIS_6, REDIS_7, REDIS_8, VALKEY_8, VALKEY_9 };

/* The program of a version; NULL for redis-server itself. */
static const char *program_of(int version)
{
    static char path[512];
    char command[256];
    FILE *said;

    if (!versions[version])
        return NULL;
    snprintf(command, sizeof(command), "%s/../../scripts/get-valkey %s",
             HF_TEST_SOURCE, versions[version]);
    said = popen(command, "re");
    CHECK(said != NULL);
    if (!fgets(path, sizeof(path), said))
        path[0] = '\0';
    if (pclose(said) || !path[0])
        T_SKIP_HOST("this server cannot be had here");
    path[strcspn(path, "\n")] = '\0';
    return path;
}

static void start(struct rt_server *s, int version)
{
    *s = (struct rt_server){.run = program_of(version)};
    rt_start(s, NULL);
}

/* ---- wake-ups ---------------------------------------------------------- */

/* A release wakes the waiter, by the kind of message that the server has. */
static void check_wakes(hf_client *a, hf_client *b, struct rt_server *s,
                        const char *key, bool sharded)
{
    struct rt_waiter w = rt_waiter(b, key, 40000, 60000, 0);
    hf_lock *lk = rt_lock(a, key, 0, 60000, 0);
    int64_t released;
    long long told;

    rt_wait_start(&w);
    t_poll_until(rt_hears(s, key), 10000);
    told = rt_calls(s, "spublish"); /* as each client does when it is opened */
    released = t_now_ms();
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    CHECK_LT(w.got_at - released, 10000); /* A poll comes after 30 s. */
    CHECK_EQ(rt_calls(s, "publish"), !sharded);
    CHECK_EQ(rt_calls(s, "spublish") - told, sharded);
}

static void check_server(int version)
{
    struct rt_server s;
    hf_client *a, *b;

    start(&s, version);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    check_wakes(a, b, &s, "k", version != REDIS_6);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(redis_6_wakes_through_plain_channels)
{
    check_server(REDIS_6);
}

TEST(redis_7_wakes_through_sharded_channels)
{
    check_server(REDIS_7);
}

TEST(redis_8_wakes_through_sharded_channels)
{
    check_server(REDIS_8);
}

TEST(valkey_8_wakes_through_sharded_channels)
{
    check_server(VALKEY_8);
}

TEST(valkey_9_wakes_through_sharded_channels)
{
    check_server(VALKEY_9);
}

static void check_cluster(int version)
{
    const char *key = fleet_key(1, 0);
    struct fleet f;
    hf_client *a, *b;

    fleet_start(&f, program_of(version));
    a = fleet_open(&f, "");
    b = fleet_open(&f, "");
    check_wakes(a, b, &f.node[1], key, version != REDIS_6);
    hf_close(a);
    hf_close(b);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

TEST(a_cluster_of_redis_6_wakes_through_plain_channels)
{
    check_cluster(REDIS_6);
}

TEST(a_cluster_of_redis_8_wakes_through_sharded_channels)
{
    check_cluster(REDIS_8);
}

TEST(a_cluster_of_valkey_9_wakes_through_sharded_channels)
{
    check_cluster(VALKEY_9);
}

/* ---- bare locks -------------------------------------------------------- */

/* A lock that is a key and nothing else, whatever the server has for it. */
static void check_bare(int version)
{
    struct rt_server s;
    struct hf_lock_opts opts = rt_opts(2000, 0);
    hf_client *a, *b;
    hf_lock *lk, *none = NULL;

    start(&s, version);
    a = rt_open(&s, "?acquire=set");
    b = rt_open(&s, "?acquire=set");
    lk = rt_lock(a, "k", 0, 2000, 0);
    CHECK_STR(rt_text(&s, "GET holdfast:k"), hf_token(lk));
    CHECK_STATUS(hf_acquire(b, "k", 0, &opts, &none, &t_err), HF_BUSY);
    t_sleep_ms(3000);
    CHECK(hf_held(lk)); /* renewed */
    CHECK_OK(hf_extend(lk, 60000, &t_err));
    CHECK_GT(rt_int(&s, "PTTL holdfast:k"), 50000);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
    /* What is another's stays another's. */
    lk = rt_lock(a, "k", 0, 60000, 0);
    rt_do(&s, "SET holdfast:k stranger PX 60000");
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_STR(rt_text(&s, "GET holdfast:k"), "stranger");
    rt_do(&s, "DEL holdfast:k");
    CHECK_EQ(rt_calls(&s, "delifeq") > 0, version == VALKEY_9);
    CHECK_EQ(rt_calls(&s, "delex") > 0, version == REDIS_8);
    CHECK_EQ(rt_calls(&s, "setnx") > 0, version == REDIS_6);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(bare_locks_on_redis_6)
{
    check_bare(REDIS_6);
}

TEST(bare_locks_on_redis_7)
{
    check_bare(REDIS_7);
}

TEST(bare_locks_on_redis_8)
{
    check_bare(REDIS_8);
}

TEST(bare_locks_on_valkey_8)
{
    check_bare(VALKEY_8);
}

TEST(bare_locks_on_valkey_9)
{
    check_bare(VALKEY_9);
}

/* ---- errors ------------------------------------------------------------ */

/* What fails within a script is told by its name on every server. */
static void check_errors(int version)
{
    static const char *const modes[] = {"", "?acquire=script"};
    struct hf_lock_opts opts = rt_opts(5000, 0);
    struct rt_server s;
    hf_client *client;
    hf_lock *lk = NULL;
    int i;

    start(&s, version);
    for (i = 0; i < 2; i++) {
        client = rt_open(&s, modes[i]);
        rt_do(&s, "RPUSH holdfast:list precious");
        CHECK_STATUS(hf_acquire(client, "list", 0, &opts, &lk, &t_err),
                     HF_PROTOCOL);
        CHECK(strstr(t_err.text, "somebody else's data") != NULL);
        CHECK_STR(rt_text(&s, "LINDEX holdfast:list 0"), "precious");
        rt_do(&s, "DEL holdfast:list");
        rt_do(&s, "CONFIG SET maxmemory 1");
        CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &lk, &t_err),
                     HF_UNAVAILABLE);
        CHECK(strstr(t_err.text, "out of memory") != NULL);
        rt_do(&s, "CONFIG SET maxmemory 0");
        rt_do(&s, "REPLICAOF 127.0.0.1 1");
        CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &lk, &t_err),
                     HF_UNAVAILABLE);
        CHECK(strstr(t_err.text, "it is a replica") != NULL);
        rt_do(&s, "REPLICAOF NO ONE");
        hf_close(client);
    }
    rt_end(&s);
}

TEST(redis_6_names_its_errors)
{
    check_errors(REDIS_6);
}

TEST(redis_8_names_its_errors)
{
    check_errors(REDIS_8);
}

TEST(valkey_9_names_its_errors)
{
    check_errors(VALKEY_9);
}

T_MAIN
