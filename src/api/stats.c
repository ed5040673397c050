/* SPDX-License-Identifier: MIT
 *
 * stats.c - the entry points for counters, as numbers and as text.
 */
#include "check.h"

#include <inttypes.h>
#include <stdarg.h>

#include "base/banned.h"

hf_status hf_stats(hf_client *c, struct hf_stats *ret, struct hf_error *err)
{
    struct hf_stats full;
    hf_status st = hfi_check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the answer was given");
    if (!st)
        st = hfi_check_size(ret, "hf_stats", err);
    if (st)
        return st;
    hfi_stats(c, &full);
    hfi_struct_write(ret, &full, sizeof(full));
    return HF_OK;
}

/* ---- text ---------------------------------------------------------------- */

/* Text that grows, whether there is room for it or not. */
struct stats_text {
    char *buf;
    size_t size, len;
    const char *service;
};

__attribute__((format(printf, 2, 3))) static void stats_add(
    struct stats_text *t, const char *fmt, ...)
{
    size_t room = t->len < t->size ? t->size - t->len : 0;
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(room ? t->buf + t->len : NULL, room, fmt, args);
    va_end(args);
    if (n > 0)
        t->len += (size_t)n;
}

static void stats_head(struct stats_text *t, const char *name, const char *type,
                       const char *help)
{
    stats_add(t, "# TYPE holdfast_%s %s\n# HELP holdfast_%s %s\n", name, type,
              name, help);
}

static void stats_sample(struct stats_text *t, const char *name,
                         const char *label, const char *value, uint64_t n)
{
    stats_add(t, "holdfast_%s{service=\"%s\"", name, t->service);
    if (label)
        stats_add(t, ",%s=\"%s\"", label, value);
    stats_add(t, "} %" PRIu64 "\n", n);
}

static void stats_counter(struct stats_text *t, const char *name,
                          const char *help, uint64_t n)
{
    char total[64];

    snprintf(total, sizeof(total), "%s_total", name);
    stats_head(t, name, "counter", help);
    stats_sample(t, total, NULL, NULL, n);
}

static void stats_gauge(struct stats_text *t, const char *name,
                        const char *help, uint64_t n)
{
    stats_head(t, name, "gauge", help);
    stats_sample(t, name, NULL, NULL, n);
}

static void stats_histogram(struct stats_text *t, const char *name,
                            const char *help, const struct hf_histogram *h)
{
    uint64_t below = 0;
    int i;

    stats_head(t, name, "histogram", help);
    for (i = 0; i < 31; i++) {
        below += h->buckets[i];
        stats_add(
            t,
            "holdfast_%s_bucket{service=\"%s\",le=\"%u.%06u\"} %" PRIu64 "\n",
            name, t->service, (1u << i) / 1000000, (1u << i) % 1000000, below);
    }
    stats_add(t, "holdfast_%s_bucket{service=\"%s\",le=\"+Inf\"} %" PRIu64 "\n",
              name, t->service, h->count);
    stats_add(t, "holdfast_%s_count{service=\"%s\"} %" PRIu64 "\n", name,
              t->service, h->count);
    stats_add(t, "holdfast_%s_sum{service=\"%s\"} %" PRIu64 ".%06u\n", name,
              t->service, h->sum_us / 1000000, (unsigned)(h->sum_us % 1000000));
}

static void stats_acquisitions(struct stats_text *t, const struct hf_stats *s)
{
    const struct {
        const char *result;
        uint64_t n;
    } all[] = {{"granted", s->granted},
               {"busy", s->busy},
               {"timeout", s->timeout},
               {"canceled", s->canceled},
               {"unavailable", s->unavailable},
               {"uncertain", s->uncertain},
               {"failed", s->failed}};
    size_t i;

    stats_head(t, "acquisitions", "counter", "Acquisitions that have ended.");
    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        stats_sample(t, "acquisitions_total", "result", all[i].result,
                     all[i].n);
    stats_histogram(t, "wait_seconds", "How long acquisitions have waited.",
                    &s->wait);
}

static void stats_leases(struct stats_text *t, const struct hf_stats *s)
{
    int i;

    stats_head(t, "renewals", "counter", "Renewals of leases.");
    stats_sample(t, "renewals_total", "result", "ok", s->renewed);
    stats_sample(t, "renewals_total", "result", "failed", s->renewals_failed);
    stats_sample(t, "renewals_total", "result", "late", s->renewals_late);
    stats_histogram(t, "renewal_margin_seconds",
                    "What was left of the lease when a renewal was answered.",
                    &s->margin);
    stats_head(t, "lost", "counter", "Locks that were lost.");
    for (i = HF_LOSS_EXPIRED; i <= HF_LOSS_CLOSED; i++)
        stats_sample(t, "lost_total", "reason", hf_loss_name((hf_loss)i),
                     s->lost[i]);
    stats_counter(t, "at_risk", "Warnings that a lock may be lost.",
                  s->at_risk);
    stats_counter(t, "taken_back", "Claims that were taken back.",
                  s->taken_back);
}

static void stats_rest(struct stats_text *t, const struct hf_stats *s)
{
    stats_histogram(t, "hold_seconds", "How long locks were held.", &s->hold);
    stats_counter(t, "reconnects",
                  "Times that events of the service may have been missed.",
                  s->reconnects);
    stats_counter(t, "requests", "Requests to the service.", s->requests);
    stats_counter(t, "sent_bytes", "Bytes to the service.", s->bytes_sent);
    stats_counter(t, "received_bytes", "Bytes from the service.",
                  s->bytes_received);
    stats_gauge(t, "held", "Locks that are held.", s->held);
    stats_gauge(t, "waiting", "Acquisitions under way.", s->waiting);
    stats_add(t, "# EOF\n");
}

hf_status hf_stats_text(hf_client *c, char *buf, size_t size, size_t *need,
                        struct hf_error *err)
{
    struct stats_text text = {.size = size};
    struct hf_stats stats;
    hf_status st = hfi_check_client(c, err);

    if (!st && size && !buf)
        st = hfi_fail(err, HF_INVALID, "no place for the text was given");
    if (st)
        return st;
    text.buf = buf;
    text.service = c->be->schemes[0];
    hfi_stats(c, &stats);
    stats_acquisitions(&text, &stats);
    stats_leases(&text, &stats);
    stats_rest(&text, &stats);
    if (need)
        *need = text.len + 1;
    if (size && text.len >= size)
        return hfi_fail(err, HF_INVALID,
                        "the text has %zu bytes, and there is room for %zu",
                        text.len + 1, size);
    return HF_OK;
}
