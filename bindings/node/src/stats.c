/* SPDX-License-Identifier: MIT
 *
 * stats.c - what a client has counted.
 *
 * Counters are JavaScript numbers: they are exact up to 2^53.  Nothing here asks
 * the service, so these functions return their value, not a promise.
 */
#include "addon.h"

#include <stdlib.h>

static void stats_set(napi_env env, napi_value object, const char *name,
                      uint64_t n)
{
    hfn_set(env, object, name, hfn_number(env, (double)n));
}

/* {count, sum, buckets}; the sum is in milliseconds, as all times are. */
static napi_value stats_histogram(napi_env env, const struct hf_histogram *h)
{
    size_t i, n = sizeof(h->buckets) / sizeof(h->buckets[0]);
    napi_value ret = NULL, buckets = NULL;

    napi_create_array_with_length(env, n, &buckets);
    for (i = 0; i < n; i++)
        napi_set_element(env, buckets, (uint32_t)i,
                         hfn_number(env, (double)h->buckets[i]));
    napi_create_object(env, &ret);
    stats_set(env, ret, "count", h->count);
    hfn_set(env, ret, "sum", hfn_number(env, (double)h->sum_us / 1000));
    hfn_set(env, ret, "buckets", buckets);
    return ret;
}

/* {reason: number}, without those that are 0. */
static napi_value stats_lost(napi_env env, const struct hf_stats *s)
{
    size_t i, n = sizeof(s->lost) / sizeof(s->lost[0]);
    napi_value ret = NULL;

    napi_create_object(env, &ret);
    for (i = 0; i < n; i++)
        if (s->lost[i])
            stats_set(env, ret, hf_loss_name((hf_loss)i), s->lost[i]);
    return ret;
}

static napi_value stats_object(napi_env env, const struct hf_stats *s)
{
    const struct {
        const char *name;
        uint64_t n;
    } counters[] = {
        {"granted", s->granted},
        {"busy", s->busy},
        {"timeout", s->timeout},
        {"canceled", s->canceled},
        {"unavailable", s->unavailable},
        {"uncertain", s->uncertain},
        {"failed", s->failed},
        {"renewed", s->renewed},
        {"renewalsFailed", s->renewals_failed},
        {"renewalsLate", s->renewals_late},
        {"atRisk", s->at_risk},
        {"takenBack", s->taken_back},
        {"reconnects", s->reconnects},
        {"requests", s->requests},
        {"bytesSent", s->bytes_sent},
        {"bytesReceived", s->bytes_received},
        {"held", s->held},
        {"waiting", s->waiting},
    };
    napi_value ret = NULL;
    size_t i;

    napi_create_object(env, &ret);
    for (i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
        stats_set(env, ret, counters[i].name, counters[i].n);
    hfn_set(env, ret, "wait", stats_histogram(env, &s->wait));
    hfn_set(env, ret, "hold", stats_histogram(env, &s->hold));
    hfn_set(env, ret, "margin", stats_histogram(env, &s->margin));
    hfn_set(env, ret, "lost", stats_lost(env, s));
    return ret;
}

/* stats(client) */
napi_value hfn_stats(napi_env env, napi_callback_info info)
{
    struct hf_stats stats = HF_STATS_INIT;
    napi_value args[HFN_ARGS];
    struct hfn_client *c;
    struct hf_error err;

    hfn_args(env, info, args);
    c = hfn_client_get(env, args[0]);
    if (!c)
        return NULL;
    if (hf_stats(c->client, &stats, &err))
        return hfn_throw(env, &err);
    return stats_object(env, &stats);
}

/* Numbers may become longer between the two calls. */
enum { STATS_SLACK = 1024 };

/* statsText(client) */
napi_value hfn_stats_text(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS], ret = NULL;
    struct hf_error err = {HF_NOMEM, 0, "out of memory"};
    struct hfn_client *c;
    size_t need = 0;
    char *buf = NULL;

    hfn_args(env, info, args);
    c = hfn_client_get(env, args[0]);
    if (!c)
        return NULL;
    if (!hf_stats_text(c->client, NULL, 0, &need, &err) &&
        (buf = malloc(need + STATS_SLACK)) &&
        !hf_stats_text(c->client, buf, need + STATS_SLACK, &need, &err))
        ret = hfn_text(env, buf);
    free(buf);
    return ret ? ret : hfn_throw(env, &err);
}
