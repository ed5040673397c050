/* SPDX-License-Identifier: MIT
 *
 * row.c - sessions of strategy row on MariaDB and MySQL; see backend/sql/row.c.
 *
 * The server ends a session that was idle for wait_timeout, in a transaction
 * or not, which counts whole seconds: at least the ttl.  A heartbeat sets it
 * anew.  A statement in the queue waits for WAIT_SECONDS at most, so that one
 * whose client died does not stay there for ever; who still wants the lock
 * then queues up again.
 *
 * What only MariaDB has stands in comments that only MariaDB reads.
 */
#include "mysql.h"

#include "base/banned.h"

#define WAIT_SECONDS 60

/* Whatever completion_type is. */
#define MY_COMMIT "COMMIT AND NO CHAIN NO RELEASE"

/* For how long the server shall keep silent sessions, and wait for rows. */
static void row_timeout(struct my_session *ms, int64_t ttl_ms, int seconds)
{
    snprintf(ms->text, sizeof(ms->text),
             "SET SESSION wait_timeout=%lld,innodb_lock_wait_timeout=%d",
             (long long)((ttl_ms + 999) / 1000), seconds);
}

/* Send what stands in `text`, and do not wait for the answer. */
static hf_status row_start(struct my_session *ms, struct hf_error *err)
{
    int code = 0;

    ms->sent = true;
    ms->wait =
        mysql_real_query_start(&code, ms->my, ms->text, strlen(ms->text));
    return !ms->wait && code ? my_error(ms, err) : HF_OK;
}

/* Begin a transaction, then send the SELECT and do not wait for its answer. */
hf_status my_row_send(struct sql_session *session, const char *key, bool wait,
                      int64_t ttl_ms, int64_t deadline, struct hf_error *err)
{
    struct my_session *ms = (struct my_session *)session;
    struct sql_call call = {.key = key, .number = WAIT_SECONDS};
    char text[256 + 2 * SQL_TABLE_MAX];
    hf_status st;

    row_timeout(ms, ttl_ms, wait ? WAIT_SECONDS : 1);
    st = my_exec(ms, ms->text, NULL, deadline, err);
    snprintf(text, sizeof(text), "%s%s", session->conn->texts[SQL_LOCK],
             wait ? " /*M! WAIT $7 */" : " NOWAIT");
    if (!st)
        st = my_exec(ms, "START TRANSACTION", NULL, deadline, err);
    if (st || !my_paste(ms, text, &call))
        return st ? st : HF_INVALID;
    st = row_start(ms, err);
    return wait ? st : HF_OK; /* row_done() tells what NOWAIT has brought. */
}

static void row_found(struct sql_answer *answer, const struct sql_cell *cells,
                      int n)
{
    (void)cells;
    (void)n;
    *(bool *)answer->arg = true;
}

hf_status my_row_done(struct sql_session *session, bool *found,
                      int64_t deadline, struct hf_error *err)
{
    struct my_session *ms = (struct my_session *)session;
    struct sql_answer answer = {.row = row_found, .arg = found};
    int code = 0, status;

    session->why = SQL_WHY_OTHER;
    while (ms->wait) {
        if (!deadline && my_is_quiet(ms->my))
            return HF_BUSY;
        status = my_wait(ms->my, ms->wait,
                         deadline ? deadline
                                  : hfi_now() + session->conn->timeout_ms);
        if (!status)
            return my_late(ms, err);
        ms->wait = mysql_real_query_cont(&code, ms->my, status);
    }
    if (code || mysql_errno(ms->my)) {
        hf_status st = my_error(ms, err);

        if (mysql_errno(ms->my) == 1205 || mysql_errno(ms->my) == 3572)
            session->why = SQL_WHY_BLOCKED;
        return st;
    }
    return my_store(ms, &answer,
                    deadline ? deadline : hfi_now() + session->conn->timeout_ms,
                    err);
}

hf_status my_row_beat(struct sql_session *session, int64_t ttl_ms,
                      struct hf_error *err)
{
    struct my_session *ms = (struct my_session *)session;

    session->why = SQL_WHY_OTHER;
    row_timeout(ms, ttl_ms, 1);
    return row_start(ms, err);
}

/* A KILL QUERY that came too late may hit this instead, once. */
hf_status my_row_end(struct sql_session *session, int64_t deadline,
                     struct hf_error *err)
{
    struct my_session *ms = (struct my_session *)session;
    hf_status st = my_exec(ms, MY_COMMIT, NULL, deadline, err);

    if (st && session->why == SQL_WHY_RETRY && !session->broken)
        st = my_exec(ms, MY_COMMIT, NULL, deadline, err);
    return st;
}

int my_fd(struct sql_session *session)
{
    return mysql_get_socket(((struct my_session *)session)->my);
}

/* connect.c (1) */
int64_t my_id(struct sql_session *session)
{
    const struct my_conn *mc = (const struct my_conn *)session->conn;

    return mc->galera ? 0 : ((struct my_session *)session)->number;
}
