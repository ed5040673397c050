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
