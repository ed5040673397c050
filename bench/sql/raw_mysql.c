/* SPDX-License-Identifier: MIT
 *
 * raw_mysql.c - bare libmariadb, blocking: the statements of the backend.
 */
#include "sql.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/sql/mysql/mysql.h"

struct raw {
    MYSQL *my;
    char *take, *again, *give;
};

static struct raw *raw_my_open(const char *where)
{
    struct raw *raw = calloc(1, sizeof(*raw));
    char *make = raw_text(my_lease_texts[SQL_CREATE], "raw_lock", "raw_lock");
    char *queue =
        raw_text(my_queue_texts[SQL_CREATE_QUEUE], "raw_lock", "raw_lock");

    raw->my = mysql_init(NULL);
    if (!mysql_real_connect(raw->my, "127.0.0.1", "holdfast", "secret", "test",
                            (unsigned)atoi(where), NULL, CLIENT_FOUND_ROWS) ||
        mysql_query(raw->my, make) || mysql_query(raw->my, queue) ||
        mysql_query(raw->my, "SET time_zone='+00:00'"))
        raw_die("mysql", mysql_error(raw->my));
    free(make);
    free(queue);
    raw->take = raw_text(my_queue_texts[SQL_ACQUIRE], "raw_lock", "raw_lock");
    raw->again = raw_text(my_queue_texts[SQL_RETAKE], "raw_lock", "raw_lock");
    raw->give = raw_text(my_queue_texts[SQL_RELEASE], "raw_lock", "raw_lock");
    return raw;
}

/* Plain quotes do: neither key nor token has anything to quote. */
static bool raw_run(struct raw *raw, const char *text, const char *key,
                    const char *token)
{
    char buf[8192];
    size_t len = 0;

    for (; *text; text++) {
        if (*text != '$') {
            buf[len++] = *text;
            continue;
        }
        text++;
        len += (size_t)snprintf(buf + len, sizeof(buf) - len, "%s%s%s",
                                *text <= '2' ? "'" : "",
                                *text == '1'   ? key
                                : *text == '2' ? token
                                : *text == '3' ? "30000"
                                               : "NULL",
                                *text <= '2' ? "'" : "");
    }
    if (mysql_real_query(raw->my, buf, len))
        raw_die("mysql", mysql_error(raw->my));
    return mysql_affected_rows(raw->my) > 0;
}

static bool raw_my_take(struct raw *raw, const char *key, const char *token)
{
    return raw_run(raw, raw->again, key, token) ||
           raw_run(raw, raw->take, key, token);
}

static bool raw_my_give(struct raw *raw, const char *key, const char *token)
{
    return raw_run(raw, raw->give, key, token);
}

static void raw_my_close(struct raw *raw)
{
    mysql_close(raw->my);
    free(raw->take);
    free(raw->again);
    free(raw->give);
    free(raw);
}

const struct raw_kind raw_mysql = {"mysql", raw_my_open, raw_my_take,
                                   raw_my_give, raw_my_close};
