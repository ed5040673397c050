/* SPDX-License-Identifier: MIT
 *
 * name.c - names of nodes: numbers that wrap, peers' names, hostile ones.
 */
#include "../t.h"
#include "backend/zk/zk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reads(const char *name, int32_t want)
{
    int32_t got = 0;

    return zk_number(name, &got) && got == want;
}

TEST(numbers_of_all_layouts_are_read_with_their_sign)
{
    CHECK(reads("_c_01234567-89ab-lock-0000000007", 7));
    CHECK(reads("_c_01234567-89ab-lock-2147483647", INT32_MAX));
    CHECK(reads("_c_01234567-89ab-lock--2147483648", INT32_MIN));
    CHECK(reads("_c_01234567-89ab-lock--000000001", -1));
    CHECK(reads("0123__lock__0000000007", 7));
    CHECK(reads("0123__lock__-2147483648", INT32_MIN));
    CHECK(reads("0123__rlock__0000000009", 9));
    CHECK(reads("_c_0123-__WRIT__0000000003", 3));
    CHECK(reads("lock-0000000012", 12));
}

TEST(what_has_no_number_is_no_contender)
{
    static const char *const names[] = {
        "",
        "a",
        "lock-",
        "lock-12",
        "notes",
        "__lock__",
        "x-lock-00000000zz",
        "9999999999",
        "_c_-lock-99999999999999999999",
        "something0000000012",
        "0000000000",
        "batch-0000000000",
        "block-0000000000",
        "queue__0000000000",
    };
    int32_t got;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (zk_number(names[i], &got))
            t_fail(__FILE__, __LINE__, "'%s' is read as %d", names[i], got);
}

static void rank_of(char **names, int n, const char *own, struct zk_rank *ret)
{
    struct String_vector v = {n, names};

    zk_rank(ret, &v, own);
}

TEST(the_queue_keeps_its_order_across_the_wrap)
{
    char *names[] = {
        (char *)"c-lock--2147483648",
        (char *)"a-lock-2147483646",
        (char *)"d-lock--2147483647",
        (char *)"b-lock-2147483647",
        (char *)"notes",
    };
    struct zk_rank rank;

    rank_of(names, 5, names[1], &rank);
    CHECK(rank.first);
    CHECK(rank.ahead == NULL);
    CHECK_EQ(rank.holders, 1);
    CHECK_EQ(rank.waiters, 3);
    rank_of(names, 5, names[0], &rank);
    CHECK(!rank.first);
    CHECK_STR(rank.head, "a-lock-2147483646");
    CHECK_STR(rank.ahead, "b-lock-2147483647");
    CHECK_EQ(rank.position, 2);
    rank_of(names, 5, names[2], &rank);
    CHECK_STR(rank.ahead, "c-lock--2147483648");
    CHECK(zk_rank_before(&rank, names[3])); /* although its number is greater */
    rank_of(names, 5, "e-lock-0000000000", &rank);
    CHECK(rank.own == NULL && !rank.first);
    rank_of(names, 0, "e-lock-0000000000", &rank);
    CHECK(rank.head == NULL);
}

TEST(who_joined_holds_too_and_is_waited_for)
{
    char *names[] = {(char *)"a-lock-0000000001", (char *)"b-lock-0000000001",
                     (char *)"c__lock__0000000003"};
    struct zk_rank rank;

    rank_of(names, 3, names[1], &rank);
    CHECK(rank.first);
    CHECK_EQ(rank.holders, 2);
    CHECK_EQ(rank.waiters, 1);
    rank_of(names, 3, names[2], &rank);
    CHECK(!rank.first);
    CHECK(rank.ahead != NULL);
}

TEST(who_bears_our_token_and_another_number_is_another)
{
    char *names[] = {(char *)"b-lock-0000000000", (char *)"a-lock-0000000002",
                     (char *)"b-lock-0000000003"};
    struct zk_rank rank;

    rank_of(names, 3, names[2], &rank);
    CHECK(rank.own == names[2]);
    CHECK(!rank.first);
    CHECK_STR(rank.ahead, "a-lock-0000000002");
    CHECK_EQ(rank.position, 2);
}

static bool shares(const char *name)
{
    bool shared = false;
    int32_t number;

    CHECK(zk_contender(name, &number, &shared));
    return shared;
}

TEST(names_tell_the_mode)
{
    CHECK(!shares("_c_0123-lock-0000000007"));
    CHECK(shares("_c_0123-shared-lock-0000000007"));
    CHECK(shares("_c_0123-o0123456789abcdef-shared-lock-0000000007"));
    CHECK(!shares("_c_0123-shared-x-lock-0000000007"));
    CHECK(!shares("shared-lock-0000000007"));
    CHECK(shares("_c_0123-__READ__0000000007"));
    CHECK(!shares("_c_0123-__WRIT__0000000007"));
    CHECK(shares("0123__rlock__0000000007"));
    CHECK(shares("0123-shared__lock__0000000007"));
    CHECK(!shares("0123__lock__0000000007"));
    CHECK(!shares("_c_0123-latch-0000000007"));
    CHECK(shares("_c_0123-shared-latch-0000000007"));
}

TEST(those_who_share_hold_together_up_to_the_first_who_does_not)
{
    char *names[] = {
        (char *)"d-lock-0000000004", (char *)"a-shared-lock-0000000001",
        (char *)"e-__READ__0000000005", (char *)"b__rlock__0000000002",
        (char *)"c-shared-lock-0000000003"};
    struct zk_rank rank;

    rank_of(names, 5, NULL, &rank);
    CHECK(rank.shared);
    CHECK_STR(rank.head, "a-shared-lock-0000000001");
    CHECK_EQ(rank.holders, 3);
    CHECK_EQ(rank.waiters, 2);
    CHECK(zk_rank_holds(&rank, names[4]));
    CHECK(!zk_rank_holds(&rank, names[0]) && !zk_rank_holds(&rank, names[2]));
    rank_of(names, 5, names[4], &rank);
    CHECK(rank.first);
    CHECK_EQ(rank.position, 2);
    CHECK(zk_rank_before(&rank, names[3]));
    CHECK(!zk_rank_before(&rank, names[4]) && !zk_rank_before(&rank, names[0]));
    rank_of(names, 5, names[0], &rank);
    CHECK(!rank.first);
    CHECK_STR(rank.ahead, "c-shared-lock-0000000003");
    rank_of(names, 5, names[2], &rank);
    CHECK(!rank.first);
    CHECK_STR(rank.ahead, "d-lock-0000000004"); /* not a reader */
    CHECK_EQ(rank.holders, 3);
    names[1] = (char *)"a-lock-0000000001";
    rank_of(names, 5, names[3], &rank);
    CHECK(!rank.shared && !rank.first);
    CHECK_EQ(rank.holders, 1);
    CHECK_STR(rank.ahead, "a-lock-0000000001");
}

/* Numbers that are far apart are before each other in a circle. */
TEST(no_made_up_numbers_make_two_of_us_the_first)
{
    char *names[] = {(char *)"x-lock-0000000000",  (char *)"y-lock-1500000000",
                     (char *)"z-lock--1500000000", (char *)"w-lock--2147483643",
                     (char *)"a-lock-0000000005",  (char *)"b-lock-0000000006"};
    struct zk_rank rank;

    for (int turn = 0; turn < 6; turn++) {
        char *first = names[0];
        int holders = 0;

        for (int i = 0; i < 6; i++)
            if (names[i][0] == 'a' || names[i][0] == 'b') {
                rank_of(names, 6, names[i], &rank);
                holders += rank.first;
                CHECK(names[i][0] == 'a' || rank.position > 0);
                CHECK(rank.first || (rank.ahead && rank.position > 0));
            }
        CHECK_LE(holders, 1);
        memmove(names, names + 1, 5 * sizeof(names[0]));
        names[5] = first;
    }
}

TEST(keys_become_one_level_of_a_path_and_come_back)
{
    static const char *const keys[] = {
        "job",  "a/b", ".",    "..", "zookeeper", "%2F",
        "\xff", "a b", "\x01", "/",  "\xc3\xa4",  "%",
    };
    struct zk_conn zc = {.root = (char *)""};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char *path = zk_key_path(&zc, keys[i]);

        CHECK(path && path[0] == '/' && !strchr(path + 1, '/'));
        CHECK(strcmp(path, "/zookeeper") != 0);
        CHECK(strcmp(path, "/.") != 0 && strcmp(path, "/..") != 0);
        CHECK(zk_key_of_name(path + 1));
        CHECK_STR(path + 1, keys[i]);
        free(path);
    }
}

static void prefix_of(const struct zk_conn *zc, char ret[ZK_NAME_MAX],
                      const char *token, const char *owner, bool shared)
{
    struct hfi_claim claim = {.key = "k", .owner = owner, .shared = shared};

    memcpy(claim.token, token, sizeof(claim.token));
    zk_node_prefix(zc, ret, &claim);
}

TEST(names_have_the_peers_form)
{
    const char *token = "0123456789abcdef0123456789abcdef";
    struct zk_conn zc = {.kazoo = false};
    char name[ZK_NAME_MAX], other[ZK_NAME_MAX];

    prefix_of(&zc, name, token, NULL, false);
    CHECK_STR(name, "_c_01234567-89ab-cdef-0123-456789abcdef-lock-");
    prefix_of(&zc, name, token, NULL, true);
    CHECK_STR(name, "_c_01234567-89ab-cdef-0123-456789abcdef-shared-lock-");
    prefix_of(&zc, name, token, "me", false);
    prefix_of(&zc, other, "f123456789abcdef0123456789abcdef", "me", true);
    CHECK(zk_name_owned_alike(name, other));
    CHECK(strstr(name, "-o") && !strstr(other, "-o")); /* names.c */
    prefix_of(&zc, other, token, "you", false);
    CHECK(!zk_name_owned_alike(name, other));
    prefix_of(&zc, other, token, NULL, false);
    CHECK(!zk_name_owned_alike(name, other));
    zc.readwrite = true;
    prefix_of(&zc, name, token, NULL, false);
    CHECK_STR(name, "_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__");
    prefix_of(&zc, name, token, NULL, true);
    CHECK_STR(name, "_c_01234567-89ab-cdef-0123-456789abcdef-__READ__");
    zc.kazoo = true;
    prefix_of(&zc, name, token, NULL, true);
    CHECK_STR(name, "0123456789abcdef0123456789abcdef__rlock__");
    prefix_of(&zc, name, token, NULL, false);
    CHECK_STR(name, "0123456789abcdef0123456789abcdef__lock__");
    zc.readwrite = false;
    prefix_of(&zc, name, token, NULL, true);
    CHECK_STR(name, "0123456789abcdef0123456789abcdef-shared__lock__");
    zk_name_start(&zc, other, token);
    CHECK(zk_name_is(name, other));
}

static bool lease_is(bool kazoo, const char *name, int32_t permits,
                     int32_t slot)
{
    struct zk_conn zc = {.kazoo = kazoo};
    struct zk_lease lease;

    return zk_lease_parse(&zc, name, &lease) && lease.permits == permits &&
           lease.slot == slot;
}

TEST(names_of_permits_come_back_and_those_of_peers_have_no_slot)
{
    const char *token = "0123456789abcdef0123456789abcdef";
    struct hfi_claim claim = {.key = "k", .owner = "me", .permits = INT32_MAX};
    struct zk_conn zc = {.kazoo = false};
    struct zk_lease lease;
    char name[ZK_NAME_MAX];
    int32_t number;

    memcpy(claim.token, token, sizeof(claim.token));
    for (int i = 0; i < 2; i++) {
        zc.kazoo = i;
        zk_lease_name(&zc, name, &claim, INT32_MAX - 1, INT32_MIN);
        CHECK(lease_is(i, name, INT32_MAX, INT32_MAX - 1));
        CHECK(!zk_number(name, &number));
        zk_waiter_prefix(&zc, name, &claim);
        strcat(name, "0000000012");
        CHECK(reads(name, 12));
        CHECK_EQ(zk_waiter_permits(name), INT32_MAX);
        CHECK(!zk_lease_parse(&zc, name, &lease));
    }
    CHECK(lease_is(false, "_c_0123-lease-0000000001", 0, -1));
    CHECK(lease_is(false, "_c_0123-p3-lease-0000000001", 0, -1));
    CHECK(lease_is(true, token, 0, -1));
    zc.kazoo = false;
    CHECK(!zk_lease_parse(&zc, "release-0000000001", &lease));
    CHECK(!zk_lease_parse(&zc, "_c_0123-lease-1", &lease));
    zc.kazoo = true;
    CHECK(!zk_lease_parse(&zc, "0123", &lease));
    CHECK(!zk_lease_parse(&zc, "0123456789abcdef0123456789abcdef-p99999999999",
                          &lease));
    CHECK_EQ(zk_waiter_permits("_c_0123-lock-0000000001"), 0);
}

TEST(the_lowest_free_slot_is_found_and_who_joined_counts_once)
{
    char *names[] = {(char *)"a-p4-s2-lease-0000000003",
                     (char *)"b-p4-s0-lease-0000000001",
                     (char *)"c-p4-s0-lease-0000000009",
                     (char *)"_c_d-lease-0000000004", (char *)"notes"};
    struct String_vector v = {5, names}, none = {0, NULL};
    struct zk_conn zc = {.kazoo = false};
    struct zk_leases all;

    CHECK(zk_leases_count(&zc, &v, &all));
    CHECK_EQ(all.nodes, 4);
    CHECK_EQ(all.holders, 3);
    CHECK_EQ(all.foreign, 1);
    CHECK_EQ(all.slot, 1);
    CHECK_EQ(all.permits, 4);
    CHECK(zk_leases_count(&zc, &none, &all));
    CHECK_EQ(all.holders, 0);
    CHECK_EQ(all.slot, 0);
}

TEST(the_age_of_a_node_is_its_fence_or_what_it_has_taken)
{
    struct hfi_claim claim = {.key = "k", .token = "t0"};
    char data[ZK_DATA_MAX];

    zk_data_write(data, &claim, 45000, 0, 0);
    CHECK_EQ(zk_data_age(data, 99), 99);
    zk_data_write(data, &claim, 45000, 77, 0);
    CHECK_EQ(zk_data_age(data, 99), 77);
    zk_data_write(data, &claim, 45000, 77, 12);
    CHECK_EQ(zk_data_age(data, 99), 12);
    zk_data_write(data, &claim, 45000, 77, 78);
    CHECK_EQ(zk_data_age(data, 99), 77);
    CHECK_EQ(zk_data_age("holdfast\nused=x\n", 99), 99);
    CHECK_EQ(zk_data_age("used=3\n", 99), 99);
    CHECK_EQ(zk_data_age(NULL, 99), 99);
}

TEST(data_comes_back_and_hostile_data_does_no_harm)
{
    static const char *const hostile[] = {
        "",
        "holdfast\n",
        "holdfast\nowner=",
        "holdfast\nowner=%\nnote=%0\nfence=x\n",
        "holdfast\nfence=99999999999999999999999999999999\n",
        "holdfast\ntoken=0123456789abcdef0123456789abcdef0\n",
        "10.0.0.1",
        "\x01\x02",
    };
    struct hfi_claim claim = {
        .key = "k", .owner = "a\nb=%", .note = "n\xff\n", .token = "t0"};
    struct hf_info info = HF_INFO_INIT;
    char data[ZK_DATA_MAX], token[HFI_TOKEN_LEN + 1], *big;
    char marked[ZK_DATA_MAX + 32];
    uint64_t fence = 3;

    zk_data_write(data, &claim, 45000, 77, 0);
    zk_data_read(data, &info, &fence, token);
    CHECK_STR(info.owner, "a\nb=%");
    CHECK_STR(info.note, "n\xff\n");
    CHECK_STR(token, "t0");
    CHECK_EQ(fence, 77);
    CHECK_EQ(info.takeover_ms, 45000);
    CHECK(!info.broken);
    zk_data_mark(marked, data, 77);
    zk_data_read(marked, &info, &fence, token);
    CHECK(info.broken);
    CHECK_STR(token, "t0");
    zk_data_mark(marked, "10.0.0.1", 77);
    zk_data_read(marked, &info, &fence, token);
    CHECK(info.broken);
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++)
        zk_data_read(hostile[i], &info, &fence, token);
    zk_data_read(NULL, &info, &fence, token);
    big = malloc(100000);
    CHECK(big != NULL);
    memset(big, 'x', 99999);
    big[99999] = 0;
    zk_data_read(big, &info, &fence, token);
    memcpy(big, "holdfast\nnote=", 14);
    big[99998] = '\n';
    zk_data_read(big, &info, &fence, token);
    CHECK_STR(info.note, "");
    free(big);
}

T_MAIN
