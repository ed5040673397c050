/* SPDX-License-Identifier: MIT
 *
 * checker.c - the checker of histories is right: what is clean passes, and each
 * kind of violation is found in a history that has just that one.
 */
#include "check.h"
#include "t.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BEGIN                                                                  \
    "100 0.0.0 begin 0 0 0 ttl=10 turns=2 slack=5 processes=2 threads=1 "      \
    "keys=1 traits=fenced,queued,leased promise=exclusive\n"

static struct history last;

/* Judge a history made of these lines. */
static struct verdict judge(const char *text)
{
    char path[512], why[256] = "";
    struct verdict v;
    FILE *out;

    snprintf(path, sizeof(path), "%s/history", t_tmpdir());
    out = fopen(path, "w");
    CHECK(out != NULL);
    fputs(text, out);
    fclose(out);
    history_free(&last);
    if (!history_load(path, &last, why, sizeof(why)))
        t_fail(__FILE__, __LINE__, "%s", why);
    CHECK(check_history(&last, &v));
    return v;
}

/* Just one kind of violation, so often, and this line proves it. */
static void finds(const char *text, enum check_kind kind, int count,
                  const char *proof)
{
    struct verdict v = judge(text);
    bool seen = false;

    check_print(&v, stdout);
    for (int i = 0; i < K_COUNT; i++)
        if (v.findings[i].count != (i == (int)kind ? count : 0))
            t_fail(__FILE__, __LINE__, "%s: %lld times",
                   check_kind_name((enum check_kind)i),
                   (long long)v.findings[i].count);
    CHECK_EQ(v.violations, count);
    CHECK_EQ(check_exit(&v), 1);
    for (int k = 0; k < v.findings[kind].shown[0].count; k++)
        seen = seen || !strcmp(v.findings[kind].shown[0].lines[k], proof);
    CHECK(seen);
    history_free(&last);
}

static void passes(const char *text)
{
    struct verdict v = judge(text);

    check_print(&v, stdout);
    CHECK_EQ(v.violations, 0);
    history_free(&last);
}

TEST(two_that_follow_each_other_are_clean)
{
    passes(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                 "120 1.1.0 got 1 5 10000 -\n"
                 "125 2.1.0 ask 1 0 0 -\n"
                 "130 1.1.0 read 1 5 0 -\n"
                 "135 1.1.0 write 1 5 1 -\n"
                 "140 1.1.0 free 1 5 0 -\n"
                 "150 2.1.0 got 1 6 10000 -\n"
                 "155 1.1.0 freed 1 5 0 ok\n"
                 "160 2.1.0 read 1 6 1 -\n"
                 "170 2.1.0 write 1 6 2 -\n"
                 "180 2.1.0 free 1 6 0 -\n"
                 "190 2.1.0 freed 1 6 0 ok\n");
}

TEST(belief_that_outlasts_the_next_grant_is_an_overlap)
{
    finds(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                "120 1.1.0 got 1 5 10000 -\n"
                "125 2.1.0 ask 1 0 0 -\n"
                "9999 2.1.0 got 1 6 20000 -\n",
          K_overlap, 1, "9999 2.1.0 got 1 6 20000 -");
}

TEST(belief_that_ends_by_the_clock_the_loss_or_the_release_is_none)
{
    passes(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                 "120 1.1.0 got 1 5 10000 -\n"
                 "125 2.1.0 ask 1 0 0 -\n"
                 "10000 2.1.0 got 1 6 90000 -\n"
                 "10001 1.1.0 ask 1 0 0 -\n"
                 "12000 2.1.0 lost 1 6 0 stolen\n"
                 "12001 1.1.0 got 1 7 90000 -\n"
                 "12002 2.1.0 free 1 6 0 -\n"
                 "12003 2.1.0 freed 1 6 0 lost\n"
                 "12004 2.1.0 ask 1 0 0 -\n"
                 "12005 1.1.0 free 1 7 0 -\n"
                 "12006 2.1.0 got 1 8 90000 -\n");
}

TEST(a_renewal_prolongs_the_belief)
{
    finds(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                "120 1.1.0 got 1 5 10000 -\n"
                "9000 1.1.0 kept 1 5 18000 -\n"
                "9001 2.1.0 ask 1 0 0 -\n"
                "17000 2.1.0 got 1 6 30000 -\n",
          K_overlap, 1, "9000 1.1.0 kept 1 5 18000 -");
}

TEST(the_dead_believe_nothing)
{
    passes(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                 "120 1.1.0 got 1 5 -1 -\n"
                 "125 2.1.0 ask 1 0 0 -\n"
                 "130 0.0.0 kill 0 0 1 -\n"
                 "135 2.1.0 got 1 6 -1 -\n"
                 "140 0.0.0 killed 0 0 1 -\n");
}

TEST(one_who_lives_for_ever_is_overtaken_only_when_dead)
{
    finds(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                "120 1.1.0 got 1 5 -1 -\n"
                "125 2.1.0 ask 1 0 0 -\n"
                "135 2.1.0 got 1 6 -1 -\n",
          K_overlap, 1, "120 1.1.0 got 1 5 -1 -");
}

TEST(one_fence_for_two_clients_is_found)
{
    finds(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                "115 2.1.0 ask 1 0 0 -\n"
                "120 1.1.0 got 1 5 10000 -\n"
                "130 1.1.0 free 1 5 0 -\n"
                "140 2.1.0 got 1 5 10000 -\n",
          K_fence_unique, 1, "140 2.1.0 got 1 5 10000 -");
}

TEST(one_fence_for_two_lives_of_a_process_is_found)
{
    struct verdict v = judge(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                                   "120 1.1.0 got 1 5 10000 -\n"
                                   "125 0.0.0 kill 0 0 1 -\n"
                                   "130 0.0.0 killed 0 0 1 -\n"
                                   "135 1.2.0 ask 1 0 0 -\n"
                                   "140 1.2.0 got 1 5 10000 -\n");

    CHECK_EQ(v.findings[K_fence_unique].count, 1);
    CHECK_EQ(v.findings[K_fence_order].count, 1);
    CHECK_EQ(v.violations, 2);
    history_free(&last);
}

TEST(a_fence_that_falls_in_real_time_is_found)
{
    const char *text = BEGIN "110 1.1.0 ask 1 0 0 -\n"
                             "120 1.1.0 got 1 5 10000 -\n"
                             "130 1.1.0 free 1 5 0 -\n"
                             "135 2.1.0 ask 1 0 0 -\n"
                             "140 2.1.0 got 1 4 10000 -\n";
    struct verdict v = judge(text);

    CHECK_EQ(v.findings[K_fence_order].count, 1);
    CHECK_EQ(v.findings[K_grant_order].count, 1);
    CHECK_EQ(v.violations, 2);
    history_free(&last);
}

TEST(a_fence_that_was_taken_while_waiting_is_found)
{
    finds(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                "115 2.1.0 ask 1 0 0 -\n"
                "120 2.1.0 got 1 5 10000 -\n"
                "130 2.1.0 free 1 5 0 -\n"
                "140 1.1.0 got 1 4 10000 -\n",
          K_grant_order, 1, "140 1.1.0 got 1 4 10000 -");
}

TEST(a_grant_that_was_over_when_it_arrived_may_come_late)
{
    passes(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                 "115 2.1.0 ask 1 0 0 -\n"
                 "9000 2.1.0 got 1 5 10000 -\n"
                 "9001 1.1.0 got 1 4 0 -\n"
                 "9002 1.1.0 free 1 4 0 -\n"
                 "9003 1.1.0 freed 1 4 0 lost\n");
}

TEST(a_release_by_one_who_was_followed_is_found)
{
    finds(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                "120 1.1.0 got 1 5 200 -\n"
                "125 2.1.0 ask 1 0 0 -\n"
                "300 2.1.0 got 1 6 10000 -\n"
                "400 1.1.0 free 1 5 0 -\n"
                "410 1.1.0 freed 1 5 0 ok\n",
          K_stranger, 1, "300 2.1.0 got 1 6 10000 -");
}

TEST(a_release_that_was_refused_to_such_a_one_is_right)
{
    passes(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                 "120 1.1.0 got 1 5 200 -\n"
                 "125 2.1.0 ask 1 0 0 -\n"
                 "300 2.1.0 got 1 6 10000 -\n"
                 "400 1.1.0 free 1 5 0 -\n"
                 "410 1.1.0 freed 1 5 0 lost\n");
}

TEST(a_renewal_by_one_who_was_followed_is_found)
{
    struct verdict v = judge(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                                   "120 1.1.0 got 1 5 200 -\n"
                                   "125 2.1.0 ask 1 0 0 -\n"
                                   "300 2.1.0 got 1 6 400 -\n"
                                   "20000 1.1.0 kept 1 5 29000 -\n");

    CHECK_EQ(v.findings[K_stranger].count, 1);
    history_free(&last);
}

TEST(a_lost_update_of_the_register_is_found)
{
    finds(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                "120 1.1.0 got 1 5 10000 -\n"
                "130 1.1.0 write 1 5 1 -\n"
                "140 1.1.0 free 1 5 0 -\n"
                "145 2.1.0 ask 1 0 0 -\n"
                "150 2.1.0 got 1 6 10000 -\n"
                "160 2.1.0 write 1 6 1 -\n",
          K_register_lost, 1, "160 2.1.0 write 1 6 1 -");
}

TEST(a_register_whose_fence_goes_back_is_found)
{
    finds(BEGIN "130 1.1.0 write 1 6 1 -\n"
                "160 2.1.0 write 1 5 2 -\n",
          K_register_back, 1, "160 2.1.0 write 1 5 2 -");
}

TEST(a_value_that_a_killed_writer_never_told_is_no_loss)
{
    passes(BEGIN "130 1.1.0 write 1 5 1 -\n"
                 "160 2.1.0 write 1 6 3 -\n");
}

TEST(a_believer_who_is_refused_is_found)
{
    finds(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                "120 1.1.0 got 1 5 10000 -\n"
                "130 1.1.0 refuse 1 5 9 -\n",
          K_refused, 1, "130 1.1.0 refuse 1 5 9 -");
    passes(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                 "120 1.1.0 got 1 5 1000 -\n"
                 "1300 1.1.0 refuse 1 5 9 -\n");
}

TEST(too_many_turns_inside_a_client_are_found)
{
    char text[4096] = BEGIN, *at = text + strlen(text);

    for (int i = 0; i < 4; i++)
        at += snprintf(at, 256,
                       "%d 1.1.0 ask 1 0 0 -\n%d 1.1.0 got 1 5 10000 -\n"
                       "%d 1.1.0 free 1 5 0 -\n%d 1.1.0 freed 1 5 0 ok\n",
                       110 + 10 * i, 112 + 10 * i, 114 + 10 * i, 116 + 10 * i);
    finds(text, K_turns, 1, "112 1.1.0 got 1 5 10000 -");
    *strstr(text, "140 1.1.0") = '\0'; /* three of them are allowed */
    passes(text);
}

TEST(one_who_is_not_granted_after_the_faults_is_found)
{
    const char *text = BEGIN "110 1.1.0 ask 1 0 0 -\n"
                             "200 0.0.0 calm 0 0 0 -\n"
                             "300 2.1.0 ask 1 0 0 -\n"
                             "400 2.1.0 got 1 5 500 -\n"
                             "30000 0.0.0 end 0 0 0 -\n";

    finds(text, K_late, 1, "110 1.1.0 ask 1 0 0 -");
}

TEST(one_who_fails_again_and_again_after_the_faults_is_found)
{
    finds(BEGIN "200 0.0.0 calm 0 0 0 -\n"
                "300 1.1.0 ask 1 0 0 -\n"
                "20000 1.1.0 no 1 0 0 timeout\n"
                "20001 1.1.0 ask 1 0 0 -\n"
                "29000 1.1.0 got 1 5 90000 -\n",
          K_late, 1, "29000 1.1.0 got 1 5 90000 -");
}

TEST(twice_the_time_is_allowed_where_the_service_says_so)
{
    passes("100 0.0.0 begin 0 0 0 ttl=10 slack=5 traits=fenced,twice,leased\n"
           "110 1.1.0 ask 1 0 0 -\n"
           "200 0.0.0 calm 0 0 0 -\n"
           "40000 1.1.0 got 1 5 90000 -\n"
           "45000 0.0.0 end 0 0 0 -\n");
}

TEST(what_is_left_is_found)
{
    finds(BEGIN "110 0.0.0 left 1 0 2 places\n", K_left, 1,
          "110 0.0.0 left 1 0 2 places");
    finds(BEGIN "105 0.0.0 killed 0 0 1 -\n"
                "110 0.0.0 left 1 0 2 holders\n",
          K_left, 1, "110 0.0.0 left 1 0 2 holders");
    passes(BEGIN "105 0.0.0 killed 0 0 1 -\n"
                 "110 0.0.0 left 1 0 2 places\n");
}

TEST(by_the_fence_an_overlap_is_counted_and_no_violation)
{
    struct verdict v =
        judge("100 0.0.0 begin 0 0 0 ttl=10 traits=fenced promise=fence\n"
              "110 1.1.0 ask 1 0 0 -\n"
              "120 1.1.0 got 1 5 10000 -\n"
              "125 2.1.0 ask 1 0 0 -\n"
              "130 2.1.0 got 1 6 20000 -\n"
              "140 1.1.0 refuse 1 5 6 -\n");

    CHECK_EQ(v.findings[K_overlap].count, 1);
    CHECK_EQ(v.findings[K_refused].count, 1);
    CHECK_EQ(v.violations, 0);
    history_free(&last);
}

TEST(by_the_fence_a_fence_that_falls_is_still_a_violation)
{
    struct verdict v =
        judge("100 0.0.0 begin 0 0 0 ttl=10 traits=fenced promise=fence\n"
              "110 1.1.0 ask 1 0 0 -\n"
              "120 1.1.0 got 1 5 10000 -\n"
              "125 2.1.0 ask 1 0 0 -\n"
              "130 2.1.0 got 1 4 20000 -\n");

    CHECK_EQ(v.findings[K_fence_order].count, 1);
    CHECK_EQ(v.violations, 1);
    history_free(&last);
}

TEST(who_was_overtaken_in_the_queue_is_counted)
{
    struct verdict v = judge(BEGIN "110 1.1.0 ask 1 0 1 -\n"
                                   "500000 2.1.0 ask 1 0 1 -\n"
                                   "500010 2.1.0 got 1 5 500090 -\n"
                                   "500100 1.1.0 got 1 6 600000 -\n");

    CHECK_EQ(v.figures.inversions, 1);
    CHECK_EQ(v.violations, 0);
    history_free(&last);
}

TEST(keys_have_nothing_to_do_with_each_other)
{
    passes(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                 "120 1.1.0 got 1 5 10000 -\n"
                 "125 2.1.0 ask 2 0 0 -\n"
                 "130 2.1.0 got 2 5 10000 -\n"
                 "140 1.1.0 write 1 5 1 -\n"
                 "150 2.1.0 write 2 5 1 -\n");
}

TEST(too_little_is_called_so)
{
    struct verdict v = judge(BEGIN "110 1.1.0 ask 1 0 0 -\n"
                                   "120 1.1.0 got 1 5 10000 -\n");

    CHECK_EQ(check_exit(&v), 3);
    history_free(&last);
}

TEST(nonsense_is_no_history)
{
    static const char *const bad[] = {
        "text\n", "1 2.3 got 1 2 3 -\n", "1 1.1.1 gut 1 2 3 -\n",
        "1 1.1.1 got 1 x 3 -\n", "1 1.1.1 got 1 2 3\n"};
    char path[512], why[256];
    struct history h;
    FILE *out;

    snprintf(path, sizeof(path), "%s/bad", t_tmpdir());
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        out = fopen(path, "w");
        fputs(bad[i], out);
        fclose(out);
        CHECK(!history_load(path, &h, why, sizeof(why)));
    }
    CHECK(!history_load(t_tmpdir(), &h, why, sizeof(why)));
    unlink(path);
    CHECK(!history_load(path, &h, why, sizeof(why)));
}

/* ---- other ways to get and to keep a lock ------------------------------ */

TEST(a_lock_that_was_left_and_taken_up_keeps_its_fence)
{
    passes(BEGIN "110 1.1.0 ask 1 0 16 -\n"
                 "120 1.1.0 got 1 5 10000 -\n"
                 "130 1.1.0 detach 1 5 0 -\n"
                 "140 1.1.0 detached 1 5 0 ok\n"
                 "150 2.1.0 ask 1 5 48 -\n"
                 "160 2.1.0 got 1 5 10000 -\n"
                 "170 2.1.0 free 1 5 0 -\n"
                 "180 2.1.0 freed 1 5 0 ok\n");
}

TEST(a_handle_that_two_have_taken_up_is_an_overlap)
{
    finds(BEGIN "110 1.1.0 ask 1 0 16 -\n"
                "120 1.1.0 got 1 5 10000 -\n"
                "130 1.1.0 detach 1 5 0 -\n"
                "140 1.1.0 detached 1 5 0 ok\n"
                "150 2.1.0 ask 1 5 48 -\n"
                "151 3.1.0 ask 1 5 48 -\n"
                "160 2.1.0 got 1 5 10000 -\n"
                "165 3.1.0 got 1 5 10000 -\n"
                "170 2.1.0 free 1 5 0 -\n"
                "175 3.1.0 free 1 5 0 -\n",
          K_overlap, 1, "165 3.1.0 got 1 5 10000 -");
}

TEST(who_takes_up_a_lock_after_another_was_granted_it_is_found)
{
    finds(BEGIN "110 1.1.0 ask 1 0 16 -\n"
                "120 1.1.0 got 1 5 10000 -\n"
                "130 1.1.0 detach 1 5 0 -\n"
                "140 1.1.0 detached 1 5 0 ok\n"
                "142 3.1.0 ask 1 0 0 -\n"
                "143 3.1.0 got 1 6 10000 -\n"
                "144 3.1.0 free 1 6 0 -\n"
                "145 3.1.0 freed 1 6 0 ok\n"
                "150 2.1.0 ask 1 5 48 -\n"
                "160 2.1.0 got 1 5 159 -\n"
                "170 2.1.0 free 1 5 0 -\n",
          K_fence_order, 1, "160 2.1.0 got 1 5 159 -");
}

/* 256 and 512 are owner ids. */
TEST(one_owner_may_hold_twice_and_two_may_not)
{
    passes(BEGIN "110 1.1.0 ask 1 0 256 -\n"
                 "111 2.1.0 ask 1 0 256 -\n"
                 "120 1.1.0 got 1 5 10000 -\n"
                 "130 2.1.0 got 1 5 10000 -\n"
                 "140 1.1.0 free 1 5 0 -\n"
                 "150 2.1.0 free 1 5 0 -\n");
    finds(BEGIN "110 1.1.0 ask 1 0 256 -\n"
                "111 2.1.0 ask 1 0 256 -\n"
                "112 3.1.0 ask 1 0 512 -\n"
                "120 1.1.0 got 1 5 10000 -\n"
                "130 2.1.0 got 1 5 10000 -\n"
                "140 1.1.0 free 1 5 0 -\n"
                "145 3.1.0 got 1 6 10000 -\n"
                "150 2.1.0 free 1 5 0 -\n"
                "160 3.1.0 free 1 6 0 -\n",
          K_overlap, 1, "145 3.1.0 got 1 6 10000 -");
}

TEST(a_shorter_lease_counts_from_the_call_and_a_longer_one_from_the_answer)
{
    /* 3 ms from 200: the belief ends at 3200, whether it was heard or not. */
    passes(BEGIN "110 1.1.0 ask 1 0 8 -\n"
                 "120 1.1.0 got 1 5 10000 -\n"
                 "200 1.1.0 extend 1 5 3 -\n"
                 "300 2.1.0 ask 1 0 0 -\n"
                 "3300 2.1.0 got 1 6 13000 -\n"
                 "3400 2.1.0 free 1 6 0 -\n");
    finds(BEGIN "110 1.1.0 ask 1 0 8 -\n"
                "120 1.1.0 got 1 5 3000 -\n"
                "200 1.1.0 extend 1 5 9 -\n"
                "210 1.1.0 extended 1 5 9100 ok\n"
                "300 2.1.0 ask 1 0 0 -\n"
                "3300 2.1.0 got 1 6 13000 -\n"
                "3400 2.1.0 free 1 6 0 -\n",
          K_overlap, 1, "3300 2.1.0 got 1 6 13000 -");
}

/* A command under `holdfast run' believes as long as it lives: 101 is that of
 * process 1, which was killed before. */
TEST(a_command_that_lives_when_the_next_is_let_in_is_found)
{
    finds(BEGIN "110 101.1.0 ask 1 0 64 -\n"
                "120 101.1.0 got 1 5 120 -\n"
                "130 101.1.0 kept 1 5 130 -\n"
                "140 0.0.0 kill 0 0 1 -\n"
                "141 0.0.0 killed 0 0 1 -\n"
                "150 2.1.0 ask 1 0 0 -\n"
                "160 2.1.0 got 1 6 10000 -\n"
                "170 101.1.0 kept 1 5 170 -\n"
                "180 2.1.0 free 1 6 0 -\n",
          K_overlap, 1, "170 101.1.0 kept 1 5 170 -");
}

/* A square number of steps would take more than the minute that a test has. */
TEST(half_a_million_events_are_judged_in_no_time)
{
    size_t room = 64u << 20;
    char *text = malloc(room), *at = text;
    struct verdict v;

    at += snprintf(at, 1000, "%s", BEGIN);
    for (int i = 0; i < t_scaled(125000, 20000); i++)
        at += snprintf(at, 400,
                       "%d %d.1.0 ask 1 0 1 -\n%d %d.1.0 got 1 %d %d -\n"
                       "%d %d.1.0 write 1 %d %d -\n%d %d.1.0 free 1 %d 0 -\n",
                       1000 + i * 10, 1 + i % 7, 1002 + i * 10, 1 + i % 7,
                       i + 1, 1100 + i * 10, 1003 + i * 10, 1 + i % 7, i + 1,
                       i + 1, 1004 + i * 10, 1 + i % 7, i + 1);
    v = judge(text);
    CHECK_EQ(v.violations, 0);
    CHECK_EQ(v.figures.granted, t_scaled(125000, 20000));
    history_free(&last);
    free(text);
}

T_MAIN
