/* SPDX-License-Identifier: MIT
 *
 * fence.c - the argument of redlock.c (4), checked by simulation; that the nodes
 * of the simulation do what the script does; and which fences and whose late
 * requests the script refuses where readers are, redlock.c (9).
 *
 * A failure names its seed: SEED=n runs that one alone and tells each grant;
 * SEEDS=n tries the first n.
 */
#include "rl.h"

#include "backend/redlock/redlock.h"
#include "sim.h"

#define STEPS 1500

static int seeds(void)
{
    const char *text = getenv("SEEDS");

    return text ? atoi(text) : t_scaled(3000, 300);
}

/* The first seed that goes wrong, and how; 0 if none does up to `last`. */
static uint64_t find_wrong(const struct sim_rules *rules, uint64_t last,
                           char *how, size_t size, long *grants)
{
    const char *only = getenv("SEED"), *why;
    uint64_t seed;

    *grants = 0;
    seed = only ? strtoull(only, NULL, 10) : 1;
    if (only)
        last = seed;
    for (; seed <= last; seed++) {
        why = sim_run(rules, seed, STEPS, grants);
        if (*why) {
            snprintf(how, size, "%s", why);
            return seed;
        }
    }
    return 0;
}

/* With these rules nothing ever goes wrong, and locks are granted. */
static void check_safe(const struct sim_rules *rules)
{
    char how[200];
    long grants;
    uint64_t seed =
        find_wrong(rules, (uint64_t)seeds(), how, sizeof(how), &grants);

    if (seed)
        t_fail(__FILE__, __LINE__, "SEED=%llu: %s", (unsigned long long)seed,
               how);
    if (!getenv("SEED"))
        CHECK_GT(grants, 2 * seeds());
}

/* With these it does, within the first few thousand. */
static void check_unsafe(const struct sim_rules *rules)
{
    char how[200] = "";
    long grants;
    uint64_t seed = find_wrong(rules, 20000, how, sizeof(how), &grants);

    printf("SEED=%llu: %s\n", (unsigned long long)seed, how);
    CHECK(seed || getenv("SEED"));
}

TEST_TIMEOUT(one_holder_and_rising_fences_while_nothing_is_forgotten, 3600)
{
    for (int n = 3; n <= 5; n++) {
        struct sim_rules rules = {.n = n, .apart = true};

        check_safe(&rules);
    }
}

TEST_TIMEOUT(fences_rise_whatever_clocks_do_and_however_late_messages_arrive,
             3600)
{
    for (int n = 3; n <= 5; n++) {
        struct sim_rules rules = {
            .n = n, .leaps = true, .apart = true, .strays = true};

        check_safe(&rules);
    }
}

TEST_TIMEOUT(fences_rise_while_clocks_agree_whatever_is_forgotten, 3600)
{
    for (int n = 3; n <= 5; n++) {
        struct sim_rules rules = {
            .n = n, .leaps = true, .after_fork_child = true, .strays = true};

        check_safe(&rules);
    }
}

/* What is left open, and said to be so in doc/guarantees.md. */
TEST(forgetting_with_clocks_apart_is_the_gap_that_is_left)
{
    struct sim_rules rules = {.n = 5, .apart = true, .after_fork_child = true};

    check_unsafe(&rules);
}

TEST(without_the_write_back_the_simulation_finds_it)
{
    struct sim_rules rules = {.n = 5, .apart = true, .no_write_back = true};

    check_unsafe(&rules);
}

TEST(with_a_write_back_to_a_minority_the_simulation_finds_it)
{
    struct sim_rules rules = {.n = 5, .apart = true, .confirm_quorum = 2};

    check_unsafe(&rules);
}

TEST(with_nodes_that_confirm_anything_the_simulation_finds_it)
{
    struct sim_rules rules = {.n = 5,
                              .leaps = true,
                              .apart = true,
                              .strays = true,
                              .confirm_anything = true};

    check_unsafe(&rules);
}

/* ---- the model and the script ------------------------------------------ */

#define NAMES "holdfast:k {holdfast:k}:meta:"

/* What the script answers; of A, as the model tells it. */
static struct sim_answer ask_script(struct rt_server *s, const char *id,
                                    const struct sim_ask *ask, bool plain)
{
    struct sim_answer answer = {0};
    redisReply *r, *meta, *now;
    unsigned long long fence = ask->fence;
    const char *k;

    if (ask->op != 'A') {
        const char *f = ask->op == 'R'   ? "%s 2 " NAMES " R %s 600000 0 "
                                           "%llu %d n o"
                        : ask->op == 'W' ? "%s 2 " NAMES " W %s %llu n o"
                        : ask->op == 'B' ? "%s 2 " NAMES " B %s %llu"
                                         : "%s 2 " NAMES " L %s t";
        char text[160];

        snprintf(text, sizeof(text), "EVALSHA %s", f);
        answer.value =
            (int)rt_int(s, text, id, ask->token, fence, ask->restore);
        return answer;
    }
    /* A, by the script or by plain commands: the meaning is the same. */
    if (plain) {
        r = rt_ask(s, "SET holdfast:k %s NX PX 600000 GET", ask->token);
        meta = rt_ask(s, "HMGET {holdfast:k}:meta: c k");
        now = rt_ask(s, "TIME");
    } else {
        now = rt_ask(s, "EVALSHA %s 2 " NAMES " A %s 600000", id, ask->token);
        CHECK_EQ(now->elements, 4);
        r = now->element[0];
        meta = now->element[1];
    }
    answer.value = r->type == REDIS_REPLY_NIL    ? 0
                   : !strcmp(r->str, ask->token) ? 1
                                                 : 2;
    if (meta->element[0]->str)
        answer.c = strtoull(meta->element[0]->str, NULL, 10);
    k = meta->element[1]->str;
    answer.k_is_ours = k && !strcmp(k, ask->token);
    freeReplyObject(now);
    if (plain) {
        freeReplyObject(r);
        freeReplyObject(meta);
    }
    return answer;
}

static void compare_state(struct rt_server *s, const struct sim_node *node)
{
    CHECK_STR(rt_text(s, "GET holdfast:k"), node->token);
    CHECK_EQ(strtoll(rt_text(s, "HGET {holdfast:k}:meta: c"), NULL, 10),
             node->c);
    CHECK_STR(rt_text(s, "HGET {holdfast:k}:meta: k"), node->k);
    CHECK_EQ(strtoll(rt_text(s, "HGET {holdfast:k}:meta: b"), NULL, 10),
             node->b);
}

static const char *node_script(void)
{
    static char *script;

    if (!script)
        script = redlock_script_make(HFI_KEEP_MS);
    CHECK(script != NULL);
    return script;
}

TEST(the_nodes_of_the_simulation_do_what_the_script_does)
{
    struct rt_server s = {0};
    struct sim_node node = {0};
    uint64_t random = 1;
    char id[48];

    rt_start(&s, NULL);
    snprintf(id, sizeof(id), "%s",
             rt_text(&s, "SCRIPT LOAD %s", node_script()));
    for (int i = 0; i < t_scaled(4000, 800); i++) {
        struct sim_ask ask = {.op = "AAWWWRRRLBF"[rl_random(&random) % 11],
                              .fence = 1 + rl_random(&random) % 6,
                              .ttl_ms = 600000,
                              .restore = rl_random(&random) % 2};
        struct sim_answer model, script;

        snprintf(ask.token, sizeof(ask.token), "%032d",
                 (int)(rl_random(&random) % 3));
        if (ask.op == 'F') { /* It forgets, or the key lapses. */
            if (rl_random(&random) % 4 == 0) {
                rt_do(&s, "DEL {holdfast:k}:meta:");
                node.c = node.b = 0;
                node.k[0] = '\0';
            }
            rt_do(&s, "DEL holdfast:k");
            node.token[0] = '\0';
            continue;
        }
        script = ask_script(&s, id, &ask, rl_random(&random) % 2);
        model = sim_node_serve(&node, &ask, i, false);
        if (script.value != model.value)
            t_fail(__FILE__, __LINE__,
                   "step %d, %c: the script says %d, not %d", i, ask.op,
                   script.value, model.value);
        if (ask.op == 'A') {
            CHECK_EQ(script.c, model.c);
            CHECK_EQ(script.k_is_ours, model.k_is_ours);
        }
        compare_state(&s, &node);
    }
    rt_do(&s, "DEL holdfast:k");
    for (int i = 0; i < 3; i++) /* They would last as long as the lock. */
        rt_do(&s, "DEL {holdfast:k}:broken::%032d", i);
    rt_end(&s);
}

/* ---- readers ----------------------------------------------------------- */

static struct rt_server lone;
static char lone_id[48];

/* What the node says to a step, of one whose token is `who`; of a list,
 * its first item.  -1: nil, -2: something else. */
static long long step(char op, int who, const char *rest)
{
    redisReply *r, *first;
    long long said = -2;
    char text[320];

    snprintf(text, sizeof(text), "EVALSHA %s 2 " NAMES " %c %032d %s", lone_id,
             op, who, rest);
    r = rt_ask(&lone, text);
    first = r->type == REDIS_REPLY_ARRAY ? r->element[0] : r;
    if (first->type == REDIS_REPLY_INTEGER)
        said = first->integer;
    else if (first->type == REDIS_REPLY_NIL)
        said = -1;
    freeReplyObject(r);
    return said;
}

static void lone_start(void)
{
    rt_start(&lone, NULL);
    snprintf(lone_id, sizeof(lone_id), "%s",
             rt_text(&lone, "SCRIPT LOAD %s", node_script()));
}

TEST(a_node_confirms_fences_above_those_of_writers_and_each_once)
{
    lone_start();
    CHECK_EQ(step('S', 1, "60000"), -1);
    CHECK_EQ(step('W', 1, "100 n o"), 1);
    CHECK_EQ(step('S', 2, "60000"), -1);
    CHECK_EQ(step('W', 2, "90 n o"), 1); /* Readers come in any order, */
    CHECK_EQ(step('W', 2, "90 n o"), 1);
    CHECK_EQ(step('S', 3, "60000"), -1);
    CHECK_EQ(step('W', 3, "100 n o"), 0); /* and no two are equal. */
    CHECK_EQ(step('W', 3, "95 n o"), 1);
    CHECK_EQ(step('W', 4, "500 n o"), 0); /* It did not vote for that one. */
    for (int who = 1; who <= 3; who++)
        CHECK_EQ(step('L', who, "t"), 1);
    /* A writer that knows no readers. */
    rt_do(&lone, "HSET {holdfast:k}:meta: c 200 k somebody");
    CHECK_EQ(step('S', 4, "60000"), -1);
    CHECK_EQ(step('W', 4, "150 n o"), 0);
    CHECK_EQ(step('W', 4, "200 n o"), 0);
    CHECK_EQ(step('W', 4, "201 n o"), 1);
    CHECK_EQ(step('L', 4, "t"), 1);
    CHECK_EQ(step('A', 5, "60000"), -1);
    CHECK_EQ(step('W', 5, "201 n o"), 0); /* A writer's is above all. */
    CHECK_EQ(step('W', 5, "300 n o"), 1);
    CHECK_EQ(step('S', 6, "60000"), -2);
    CHECK_EQ(step('G', 5, "300"), 1); /* It was a writer's nevertheless. */
    CHECK_EQ(step('S', 6, "60000"), -1);
    CHECK_EQ(step('W', 6, "250 n o"), 0);
    CHECK_EQ(step('W', 6, "300 n o"), 0);
    CHECK_EQ(step('W', 6, "301 n o"), 1);
    CHECK_EQ(step('R', 5, "60000 0 300 0 n o 0 1"), 1);
    CHECK_EQ(step('L', 5, "t"), 1);
    CHECK_EQ(step('L', 6, "t"), 1);
    CHECK_EQ(rt_int(&lone, "EXISTS holdfast:k {holdfast:k}:readers:"), 0);
    rt_end(&lone);
}

TEST(a_node_refuses_what_arrives_late_for_a_reader)
{
    char taken[96];

    lone_start();
    CHECK_EQ(step('S', 1, "60000"), -1);
    CHECK_EQ(step('W', 1, "100 n o"), 1);
    snprintf(taken, sizeof(taken), "%032d 100 1 %032d", 1, 1);
    CHECK_EQ(step('T', 2, taken), 1);
    CHECK_EQ(step('T', 2, taken), 1);
    CHECK_EQ(step('T', 3, taken), 2);
    /* The token that was replaced is not put back. */
    CHECK_EQ(step('R', 1, "60000 0 100 0 n o 0 1"), 0);
    CHECK_EQ(step('R', 1, "60000 0 100 1 n o 0 1"), 2);
    CHECK_EQ(step('L', 1, "t"), 0);
    /* What takes an earlier try back, and an earlier grant of the token. */
    CHECK_EQ(step('L', 2, "0 99"), 0);
    CHECK_EQ(step('R', 2, "60000 0 99 0 n o 0 1"), 5);
    /* One that was broken stays so, and is there until it leaves. */
    CHECK_EQ(step('S', 4, "60000"), -1);
    CHECK_EQ(step('W', 4, "101 n o"), 1);
    CHECK_EQ(step('B', 0, "100"), 1);
    CHECK_EQ(step('R', 2, "60000 0 100 0 n o 0 1"), 3);
    CHECK_EQ(step('R', 4, "60000 0 101 0 n o 0 1"), 1);
    CHECK_EQ(step('F', 0, "101"), 1);
    CHECK_EQ(step('R', 4, "60000 0 101 1 n o 0 1"), 3);
    CHECK_EQ(step('L', 2, "t"), 3);
    /* A later writer was here. */
    CHECK_EQ(step('A', 5, "60000"), -1);
    CHECK_EQ(step('W', 5, "200 n o"), 1);
    CHECK_EQ(step('G', 2, "100"), 2);
    CHECK_EQ(step('R', 2, "60000 0 100 1 n o 0 1"), 2);
    CHECK_EQ(step('L', 5, "t"), 1);
    CHECK_EQ(step('R', 2, "60000 0 100 1 n o 0 1"), 5);
    CHECK_EQ(step('G', 5, "200"), 0);
    CHECK_EQ(rt_int(&lone, "EXISTS holdfast:k {holdfast:k}:readers:"), 0);
    rt_end(&lone);
}

T_MAIN
