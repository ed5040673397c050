/* SPDX-License-Identifier: MIT
 *
 * json.c - a lock, an event and the figures as JSON.
 *
 * Fences are strings: they use all 64 bits, and a number in JavaScript has 53.
 * Texts of others go through cli_json_str(), which makes valid JSON of any bytes, and
 * no two the same (cli/out.c (3), (4)).  The caller has the mutex of the table.
 */
#include "serve.h"

#include <inttypes.h>

#include "../cli/cli.h"

static void json_fence(struct cli_json *json, uint64_t fence)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, fence);
    cli_json_str(json, "fence", text);
}

void serve_json_lock(FILE *out, const struct serve_lock *lock, int64_t now)
{
    const struct hf_info *info = &lock->info;
    struct cli_json json;

    cli_json_open(&json, out);
    cli_json_num(&json, "id", (int64_t)lock->id);
    cli_json_num(&json, "service", lock->service);
    cli_json_str(&json, "key", lock->key);
    cli_json_bool(&json, "held", info->held);
    if (info->held) {
        json_fence(&json, info->fence);
        cli_json_bool(&json, "shared", info->shared);
        cli_json_bool(&json, "broken", info->broken);
        cli_json_bool(&json, "kept", info->kept);
        cli_json_opt(&json, "permits", info->permits > 0 ? info->permits : -1);
        cli_json_num(&json, "holders", info->holders);
        cli_json_opt(&json, "waiters", info->waiters);
        cli_json_opt(&json, "since_ms", serve_since(lock, now));
        cli_json_opt(&json, "left_ms", serve_left(lock, now));
        cli_json_opt(&json, "lease_ms",
                     info->left_ms < 0 ? -1 : serve_lease(lock));
        cli_json_num(&json, "seen_ms", now - lock->seen);
        cli_json_opt(&json, "waited_ms",
                     lock->waited < 0 ? -1 : now - lock->waited);
        cli_json_str(&json, "owner", info->owner);
        cli_json_str(&json, "note", info->note);
    }
    cli_json_close(&json);
}

void serve_json_waiter(FILE *out, const struct hf_waiter *waiter)
{
    struct cli_json json;

    cli_json_open(&json, out);
    cli_json_num(&json, "place", waiter->place);
    cli_json_bool(&json, "shared", waiter->shared);
    cli_json_opt(&json, "permits", waiter->permits > 0 ? waiter->permits : -1);
    cli_json_opt(&json, "since_ms", waiter->since_ms);
    cli_json_opt(&json, "left_ms", waiter->left_ms);
    cli_json_str(&json, "owner", waiter->owner);
    cli_json_str(&json, "note", waiter->note);
    cli_json_close(&json);
}

void serve_json_event(FILE *out, const struct serve_event *event)
{
    static const char *const kinds[] = {"grant",  "free", "broken",
                                        "lapsed", "down", "up"};
    struct cli_json json;

    cli_json_open(&json, out);
    cli_json_num(&json, "at", event->wall);
    cli_json_str(&json, "what", kinds[event->kind]);
    cli_json_num(&json, "service", event->service);
    cli_json_str(&json, "key", event->key);
    cli_json_str(&json, "note", event->note);
    json_fence(&json, event->fence);
    cli_json_close(&json);
}

static void json_histogram(FILE *out, const char *name,
                           const struct serve_histogram *histogram)
{
    fprintf(out, ",\"%s\":[", name);
    for (int i = 0; i < SERVE_BUCKETS; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", histogram->buckets[i]);
    fputc(']', out);
}

void serve_json_services(FILE *out)
{
    fputc('[', out);
    for (int i = 0; i < serve_table.nservices; i++) {
        const struct serve_service *s = &serve_table.services[i];

        fprintf(out, "%s{\"endpoint\":", i ? "," : "");
        cli_json_text(out, s->endpoint);
        fputs(",\"error\":", out);
        cli_json_text(out, s->error);
        fprintf(out,
                ",\"up\":%s,\"listed\":%s,\"lasts\":%s,\"lease_ms\":%" PRId64
                ",\"trip_us\":%" PRId64 ",\"held\":%" PRId64
                ",\"holders\":%" PRId64 ",\"waiters\":",
                s->up ? "true" : "false", s->listed ? "true" : "false",
                s->lasts ? "true" : "false", s->lease_ms, s->trip_us, s->held,
                s->holders);
        if (s->unknown)
            fputs("null", out);
        else
            fprintf(out, "%" PRId64, s->waiters);
        fprintf(out, ",\"handovers\":%" PRIu64 ",\"grants\":%" PRIu64,
                s->handovers, s->grants);
        json_histogram(out, "hold", &s->hold);
        json_histogram(out, "wait", &s->wait);
        fputc('}', out);
    }
    fputc(']', out);
}
