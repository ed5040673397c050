/* SPDX-License-Identifier: MIT
 *
 * sql.h - the raw client library beside holdfast: the same two statements.
 */
#ifndef BENCH_SQL_H
#define BENCH_SQL_H

#include <stdbool.h>
#include <stdint.h>

/* One connection of the bare library. */
struct raw;
struct raw_kind {
    const char *scheme;
    struct raw *(*open)(const char *where);
    bool (*take)(struct raw *, const char *key, const char *token);
    bool (*give)(struct raw *, const char *key, const char *token);
    void (*close)(struct raw *);
};

extern const struct raw_kind raw_postgres, raw_mysql, raw_sqlite;

/* Put a table's name into a text of a backend; the caller frees it. */
char *raw_text(const char *text, const char *table, const char *string);
double raw_now_us(void);
_Noreturn void raw_die(const char *what, const char *why);

#endif
