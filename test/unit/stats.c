/* SPDX-License-Identifier: MIT
 *
 * stats.c - what hf_stats() counts, and the text that is made of it.
 */
#include "far.h"

static struct hf_stats stats_of(hf_client *client)
{
    struct hf_stats stats = HF_STATS_INIT;

    CHECK_OK(hf_stats(client, &stats, &t_err));
    return stats;
}

static uint64_t sum(const struct hf_histogram *h)
{
    uint64_t n = 0;
    int i;

    for (i = 0; i < 32; i++)
        n += h->buckets[i];
    return n;
}

TEST(acquisitions_are_counted_by_their_end)
{
    hf_client *client = far_client(200), *other = far_client(200);
    struct hf_lock_opts opts = far_opts(30000, 0);
    hf_lock *lk = far_lock(client, "k", 30000), *none;
    struct hf_event event = HF_EVENT_INIT;
    struct hf_stats stats;
    hf_request *req;

    CHECK_STATUS(hf_acquire(other, "k", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(other, "k", 20, NULL, &none, &t_err), HF_TIMEOUT);
    CHECK_OK(hf_acquire_start(other, "k", -1, NULL, NULL, &req, &t_err));
    t_poll_until(stats_of(other).waiting == 1, 20000);
    hf_request_cancel(req);
    t_poll_until(hf_next_event(other, &event), 20000);
    CHECK_OK(hf_canceler_new(other, &opts.canceler, &t_err));
    hf_canceler_cancel(opts.canceler);
    CHECK_STATUS(hf_acquire(other, "k", 0, &opts, &none, &t_err), HF_CANCELED);
    hf_canceler_free(opts.canceler);
    stats = stats_of(other);
    CHECK_EQ(stats.busy, 1);
    CHECK_EQ(stats.timeout, 1);
    CHECK_EQ(stats.canceled, 2);
    CHECK_EQ(stats.granted, 0);
    CHECK_EQ(stats.wait.count, 4);
    CHECK_EQ(sum(&stats.wait), 4);
    CHECK_GE(stats.wait.sum_us, 19000);
    CHECK_EQ(stats.waiting, 0);
    atomic_store(&far_silent, true);
    opts = far_opts(500, 0);
    CHECK_STATUS(hf_acquire(other, "u", 0, &opts, &none, &t_err), HF_UNCERTAIN);
    atomic_store(&far_silent, false);
    CHECK_EQ(stats_of(other).uncertain, 1);
    t_poll_until(stats_of(other).taken_back >= 1, 40000);
    stats = stats_of(client);
    CHECK_EQ(stats.granted, 1);
    CHECK_EQ(stats.held, 1);
    CHECK_EQ(stats.hold.count, 0);
    CHECK_OK(hf_release(lk, &t_err));
    stats = stats_of(client);
    CHECK_EQ(stats.held, 0);
    CHECK_EQ(stats.hold.count, 1);
    CHECK_EQ(stats.hold.sum_us % 1000, 0);
    hf_close(other);
    far_end(client);
}

TEST(renewals_and_losses_are_counted)
{
    hf_client *client = far_client(100);
    hf_lock *lk = far_lock(client, "k", 400);
    struct hf_stats stats;

    t_poll_until(stats_of(client).renewed >= 2, 20000);
    stats = stats_of(client);
    CHECK_EQ(stats.margin.count, stats.renewed);
    CHECK_GT(stats.margin.sum_us, 0);
    CHECK_EQ(stats.margin.sum_us % 1000, 0);
    CHECK_EQ(sum(&stats.margin), stats.margin.count);
    atomic_store(&far_silent, true);
    t_poll_until(!hf_held(lk), 20000);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    stats = stats_of(client);
    CHECK_GE(stats.renewals_failed, 1);
    CHECK_GE(stats.at_risk, 1); /* more if a renewal was late before */
    CHECK_EQ(stats.lost[HF_LOSS_EXPIRED], 1);
    CHECK_EQ(stats.hold.count, 1);
    far_end(client);
}

/* Times fall into the bucket of the next power of two. */
TEST(a_histogram_has_powers_of_two)
{
    hf_client *client = far_client(5000);
    struct hf_stats stats;
    int i;

    atomic_store(&far_trip_ms, 3);
    for (i = 0; i < 5; i++)
        CHECK_OK(hf_release(far_lock(client, "k", 30000), &t_err));
    stats = stats_of(client);
    CHECK_EQ(stats.wait.count, 5);
    for (i = 0; i < 12; i++)
        CHECK_EQ(stats.wait.buckets[i] > 0 && 1 << i <= 2000, 0);
    CHECK_GE(stats.wait.sum_us, 5 * 2000);
    far_end(client);
}

TEST(the_text_says_its_size_and_fits_no_smaller_buffer)
{
    hf_client *client = far_client(200);
    static char buf[65536];
    size_t need, again;

    CHECK_OK(hf_release(far_lock(client, "k", 30000), &t_err));
    CHECK_OK(hf_stats_text(client, NULL, 0, &need, &t_err));
    CHECK_LT(need, sizeof(buf));
    CHECK_STATUS(hf_stats_text(client, buf, need - 1, &again, &t_err),
                 HF_INVALID);
    CHECK_EQ(need, again);
    CHECK_OK(hf_stats_text(client, buf, need, &again, &t_err));
    CHECK_EQ(strlen(buf) + 1, need);
    CHECK(strstr(buf, "holdfast_acquisitions_total{service=\"mem\","
                      "result=\"granted\"} 1\n") != NULL);
    CHECK(strstr(buf, "holdfast_wait_seconds_bucket{service=\"mem\","
                      "le=\"+Inf\"} 1\n") != NULL);
    CHECK_STR(buf + need - 7, "# EOF\n");
    far_end(client);
}

/* What Prometheus' own program thinks of it: first of each line, in the older
 * format, where counters have their whole name; then of the text as OpenMetrics,
 * which it reads only with times. */
TEST(promtool_accepts_the_text)
{
    hf_client *client = far_client(200);
    static char buf[65536];
    char path[128], command[768];
    FILE *out;

    if (system("command -v promtool >/dev/null"))
        T_SKIP_HOST("promtool");
    CHECK_OK(hf_release(far_lock(client, "k", 30000), &t_err));
    CHECK_OK(hf_stats_text(client, buf, sizeof(buf), NULL, &t_err));
    snprintf(path, sizeof(path), "%s/metrics", t_tmpdir());
    out = fopen(path, "w");
    CHECK(out != NULL);
    CHECK(fputs(buf, out) >= 0);
    CHECK_EQ(fclose(out), 0);
    snprintf(command, sizeof(command),
             "awk '/^# TYPE/ && $4 == \"counter\" { c[$3] = 1 }"
             " /^# (TYPE|HELP)/ && c[$3] { $3 = $3 \"_total\" }"
             " !/^# EOF/' %s | promtool check metrics",
             path);
    CHECK_EQ(system(command), 0);
    snprintf(command, sizeof(command),
             "awk '/^#/ { print; next } { print $0, 1700000000 }' %s >%s.om &&"
             " promtool tsdb create-blocks-from openmetrics %s.om %s.out",
             path, path, path, path);
    CHECK_EQ(system(command), 0);
    far_end(client);
}

T_MAIN
