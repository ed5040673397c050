/* SPDX-License-Identifier: MIT
 *
 * check.c - judge a history: the set-up, the findings, the verdict; see check.h.
 */
#include "check_grant.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Fewer grants than this prove nothing. */
#define ENOUGH 10

static const struct {
    const char *name, *text;
} check_kinds[] = {
#define X(name, word, text) {word, text},
    CHECK_KINDS(X)
#undef X
};

const char *check_kind_name(enum check_kind kind)
{
    return check_kinds[kind].name;
}

/* Is it a violation of what was promised? */
bool check_counts(const struct setup *setup, enum check_kind kind)
{
    return !setup->by_fence ||
           (kind != K_overlap && kind != K_grant_order && kind != K_refused);
}

void check_found(struct verdict *v, enum check_kind kind,
                 const struct event *const *events, int count, const char *fmt,
                 ...)
{
    struct finding *f = &v->findings[kind];
    struct evidence *e;
    va_list ap;

    if (check_counts(&v->setup, kind))
        v->violations++;
    if (f->count++ >= CHECK_SHOWN)
        return;
    e = &f->shown[f->count - 1];
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    for (int i = 0; i < count && e->count < CHECK_LINES; i++)
        if (events[i] &&
            (!e->count || e->lines[e->count - 1] != events[i]->line))
            e->lines[e->count++] = events[i]->line;
}

/* NAME=VALUE in the text of `begin`; NULL if it is not there. */
static const char *setup_word(const char *text, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = text; (at = strstr(at, name)); at += len)
        if ((at == text || at[-1] == ' ') && at[len] == '=')
            return at + len + 1;
    return NULL;
}

static int64_t setup_number(const char *text, const char *name, int64_t none)
{
    const char *word = setup_word(text, name);

    return word ? strtoll(word, NULL, 10) : none;
}

/* Is `name` one of the words of traits=a,b,c ? */
static bool setup_trait(const char *text, const char *name)
{
    const char *at = setup_word(text, "traits");
    size_t len = strlen(name), end = at ? strcspn(at, " ") : 0;

    for (size_t i = 0; i + len <= end; i++)
        if (!strncmp(at + i, name, len) && (i == 0 || at[i - 1] == ',') &&
            (i + len == end || at[i + len] == ','))
            return true;
    return false;
}

static bool setup_read(const struct history *h, struct setup *ret)
{
    const char *text = NULL, *promise;

    for (size_t i = 0; i < h->count && !text; i++)
        if (h->events[i].what == W_begin)
            text = h->events[i].text;
    if (!text)
        return false;
    promise = setup_word(text, "promise");
    *ret = (struct setup){
        .ttl_ms = setup_number(text, "ttl", 30000),
        .turns = setup_number(text, "turns", 0),
        .slack_ms = setup_number(text, "slack", 1000),
        .fenced = setup_trait(text, "fenced"),
        .queued = setup_trait(text, "queued"),
        .twice = setup_trait(text, "twice"),
        .by_fence = promise && !strncmp(promise, "fence", 5),
        .processes = (int)setup_number(text, "processes", 0),
        .threads = (int)setup_number(text, "threads", 0),
        .keys = (int)setup_number(text, "keys", 0),
    };
    return true;
}

static int by_key(const void *a, const void *b)
{
    const struct grant *x = a, *y = b;

    return x->key < y->key ? -1 : x->key > y->key;
}

static bool check_grants(struct verdict *v, struct grants *grants)
{
    size_t from = 0, to;
    bool ok = true;

    if (grants->count)
        qsort(grants->all, grants->count, sizeof(*grants->all), by_key);
    for (; ok && from < grants->count; from = to) {
        to = from;
        while (to < grants->count &&
               grants->all[to].key == grants->all[from].key)
            to++;
        ok = check_key(v, grants->all + from, to - from);
    }
    return ok;
}

bool check_history(const struct history *h, struct verdict *ret)
{
    struct grants grants = {0};
    bool ok;

    *ret = (struct verdict){0};
    if (!setup_read(h, &ret->setup) || !grants_build(h, ret, &grants))
        return false;
    ok = check_grants(ret, &grants) && check_register(ret, h) &&
         check_live(ret, h);
    check_left(ret, h);
    free(grants.all);
    ret->figures.span_us = h->events[h->count - 1].time - h->events[0].time;
    ret->enough = ret->figures.granted >= ENOUGH;
    return ok;
}

int check_exit(const struct verdict *v)
{
    if (v->violations)
        return 1;
    return v->enough ? 0 : 3;
}

/* ---- for people -------------------------------------------------------- */

static void print_finding(const struct verdict *v, enum check_kind kind,
                          FILE *out)
{
    const struct finding *f = &v->findings[kind];

    fprintf(out, "\n%s: %s, %" PRId64 " times%s\n", check_kinds[kind].name,
            check_kinds[kind].text, f->count,
            check_counts(&v->setup, kind)
                ? ""
                : " (the fence decides, no violation)");
    for (int i = 0; i < CHECK_SHOWN && i < f->count; i++) {
        fprintf(out, "  %s\n", f->shown[i].text);
        for (int k = 0; k < f->shown[i].count; k++)
            fprintf(out, "    %s\n", f->shown[i].lines[k]);
    }
}

static void print_figures(const struct verdict *v, FILE *out)
{
    const struct figures *f = &v->figures;

    fprintf(out,
            "clients     %d processes x %d threads on %d keys, ttl %" PRId64
            " ms, %.1f s\n"
            "operations  %" PRId64 ": %" PRId64 " granted, %" PRId64
            " not, %" PRId64 " renewed, %" PRId64 " released, %" PRId64
            " told of a loss\n"
            "register    %" PRId64 " writes, %" PRId64
            " refused by the fence; without a fence %" PRId64
            " writes, %" PRId64 " lost\n"
            "faults      %" PRId64 ", processes killed %" PRId64 "\n"
            "afterwards  slowest grant %" PRId64 " ms",
            v->setup.processes, v->setup.threads, v->setup.keys,
            v->setup.ttl_ms, (double)f->span_us / 1e6, f->operations,
            f->granted, f->failed, f->kept, f->released, f->lost, f->writes,
            f->refused, f->plain, f->damaged, f->faults, f->kills,
            f->slowest_us / 1000);
    if (v->setup.queued)
        fprintf(out, "; overtaken in the queue %" PRId64, f->inversions);
    fprintf(out, "\n");
}

void check_print(const struct verdict *v, FILE *out)
{
    const struct figures *f = &v->figures;

    print_figures(v, out);
    for (int kind = 0; kind < K_COUNT; kind++)
        if (v->findings[kind].count)
            print_finding(v, (enum check_kind)kind, out);
    fprintf(
        out,
        "figures: operations=%" PRId64 " faults=%" PRId64 " violations=%" PRId64
        " overlaps=%" PRId64 " damaged=%" PRId64 " refused=%" PRId64
        " inversions=%" PRId64 " slowest_ms=%" PRId64 "\n",
        f->operations, f->faults, v->violations, v->findings[K_overlap].count,
        f->damaged, f->refused, f->inversions, f->slowest_us / 1000);
    if (v->violations)
        fprintf(out, "verdict: %" PRId64 " violations\n", v->violations);
    else if (!v->enough)
        fprintf(out, "verdict: too little happened to judge\n");
    else
        fprintf(out, "verdict: clean (%s)\n",
                v->setup.by_fence ? "by the fence" : "exclusive");
}
