/* SPDX-License-Identifier: MIT
 *
 * sql.c - bare SQL as a candidate: the statements of holdfast's own backend
 * through the bare client library, a connection for each thread (RAW_KIND says
 * which; see bench/sql/).  With the argument `advisory`, the lock function of
 * the server instead: no row, no lease, no fence, and a connection for each
 * lock, but the server itself makes others wait.
 */
#include "cand.h"

#include "../sql/sql.h"
#include "advisory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double raw_now_us(void)
{
    return (double)bench_now() / 1e3;
}

_Noreturn void raw_die(const char *what, const char *why)
{
    bench_die("%s: %s", what, why);
}

char *raw_text(const char *text, const char *table, const char *string)
{
    char *ret = bench_alloc(strlen(text) + 1024);
    size_t len = 0;

    for (; *text; text++) {
        if (text[0] == '@' && text[1] == 'T')
            len += (size_t)snprintf(ret + len, 64, "%s", table);
        else if (text[0] == '@' && text[1] == 'C')
            len += (size_t)snprintf(ret + len, 64, "'%s'", string);
        else
            ret[len++] = *text;
        if (text[0] == '@')
            text++;
    }
    return ret;
}

/* Where the bare library finds the service, in its own words. */
static const char *where(void)
{
    static char text[400];
    const char *port = getenv("HF_TEST_PORT"), *dir = getenv("HF_BENCH_DIR");

    if (!strcmp(RAW_KIND.scheme, "sqlite"))
        snprintf(text, sizeof(text), "%s/raw.db", dir ? dir : "/tmp");
    else if (!strcmp(RAW_KIND.scheme, "postgres"))
        snprintf(text, sizeof(text),
                 "host=127.0.0.1 port=%s user=holdfast dbname=postgres",
                 port ? port : "");
    else
        snprintf(text, sizeof(text), "%s", port ? port : "");
    return text;
}

static void *conn_open(void)
{
    return RAW_KIND.open(where());
}

static void conn_close(void *raw)
{
    RAW_KIND.close(raw);
}

static void take(void *raw, const char *key)
{
    if (!RAW_KIND.take(raw, key, "00000000000000000000000000001000"))
        bench_die("%s is not free", key);
}

static void give(void *raw, const char *key)
{
    if (!RAW_KIND.give(raw, key, "00000000000000000000000000001000"))
        bench_die("%s was not ours", key);
}

int main(int argc, char **argv)
{
    struct cand_kind kind = {
        .name = RAW_KIND.scheme,
        .open = conn_open,
        .close = conn_close,
        .take = take,
        .give = give,
    };

    if (argc > 1 && !strcmp(argv[1], "advisory"))
        advisory_become(&kind, where());
    return cand_main(&kind);
}
