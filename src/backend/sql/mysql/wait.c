/* SPDX-License-Identifier: MIT
 *
 * wait.c - hearing from the server: only sessions of strategy row are listened to.
 * With the other strategies waiters poll; DECISIONS in mysql.c says why.
 */
#include "mysql.h"

#include "backend/sql/row.h"

#include "base/banned.h"

int my_poll_fd(struct hfi_conn *base)
{
    struct sql_conn *conn = (struct sql_conn *)base;

    return conn->strategy == SQL_ROW ? sql_row_poll_fd(conn) : -1;
}

void my_dispatch(struct hfi_conn *base)
{
    sql_row_dispatch((struct sql_conn *)base);
}
