/* SPDX-License-Identifier: MIT
 *
 * mysql.c - GET_LOCK() through bare libmariadb.
 */
#include "advisory.h"

#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>

static const char *place;

static void *conn_open(void)
{
    MYSQL *my = mysql_init(NULL);

    if (!mysql_real_connect(my, "127.0.0.1", "holdfast", "secret", "test",
                            (unsigned)atoi(place), NULL, 0))
        bench_die("mysql: %s", mysql_error(my));
    return my;
}

static void conn_close(void *my)
{
    mysql_close(my);
}

static void run(MYSQL *my, const char *fmt, const char *key)
{
    char text[300];
    MYSQL_RES *result;
    MYSQL_ROW row;

    snprintf(text, sizeof(text), "SELECT %s('%s'%s", fmt, key,
             fmt[0] == 'G' ? ",60)" : ")");
    if (mysql_query(my, text) || !(result = mysql_store_result(my)))
        bench_die("mysql: %s", mysql_error(my));
    row = mysql_fetch_row(result);
    if (!row || !row[0] || row[0][0] != '1')
        bench_die("mysql: %s was not granted", text);
    mysql_free_result(result);
}

static void take(void *my, const char *key)
{
    run(my, "GET_LOCK", key);
}

static void give(void *my, const char *key)
{
    run(my, "RELEASE_LOCK", key);
}

void advisory_become(struct cand_kind *kind, const char *where)
{
    place = where;
    *kind = (struct cand_kind){
        .name = "mysql-advisory",
        .open = conn_open,
        .close = conn_close,
        .take = take,
        .give = give,
        .await = take,
        .pass = give,
    };
}
