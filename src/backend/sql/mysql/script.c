/* SPDX-License-Identifier: MIT
 *
 * script.c - several statements in one message to MariaDB or MySQL, and their
 * answers; see backend/sql/script.c.
 *
 * The first that fails is the last that is run.  What the ones before it have
 * done is then undone, or the session is closed, which undoes it, too.
 *
 * SEVERAL NODES  Where others write to other nodes, a node ends a transaction
 *   that has locked what another's change needs.  When that happened in the
 *   midst of a message, MariaDB 10.11 with Galera let in more holders than there
 *   were permits, as if the statements that were left had been run outside any
 *   transaction.  So there each statement is a message of its own, and the next
 *   one is told that the transaction has failed.  The price is that a client which
 *   stops in between keeps the row locked until its connection ends, or another
 *   node needs it.
 */
#include "mysql.h"

#include "base/alloc.h"

#include "base/banned.h"

/* Rows of a script: others than those that say `hf` are of no interest. */
static void my_script_row(struct sql_answer *answer,
                          const struct sql_cell *cells, int n)
{
    struct sql_answer *whole = answer->arg;

    whole->rows++;
    if (whole->row)
        whole->row(whole, cells, n);
}

/* The next answer; HF_BUSY after the last.  A server that goes on for ever is
 * late. */
static hf_status my_script_next(struct my_session *ms, int64_t deadline,
                                struct hf_error *err)
{
    int code = 0, status;

    if (!mysql_more_results(ms->my))
        return HF_BUSY;
    if (!hfi_left_ms(deadline))
        return my_late(ms, err);
    status = mysql_next_result_start(&code, ms->my);
    while (status) {
        status = my_wait(ms->my, status, deadline);
        if (!status)
            return my_late(ms, err);
        status = mysql_next_result_cont(&code, ms->my, status);
    }
    return code > 0 ? my_error(ms, err) : HF_OK;
}

/* Is the answer that is about to be read the one that counts? */
static bool my_script_counts(const struct my_session *ms)
{
    MYSQL_FIELD *field = mysql_field_count(ms->my) ? ms->my->fields : NULL;

    return field && !strcmp(field->name, "hf");
}

/* One statement, whose rows count if they say so. */
static hf_status my_exec_named(struct my_session *ms, const char *text,
                               struct sql_answer *counts, int64_t deadline,
                               struct hf_error *err)
{
    struct sql_answer other = {0};

    /* What comes back is known by the words that ask for it. */
    return my_exec(ms, text, strstr(text, " hf") ? counts : &other, deadline,
                   err);
}

/* All in one message. */
static hf_status my_script_whole(struct my_session *ms, const char *text,
                                 struct sql_answer *counts, int64_t deadline,
                                 struct hf_error *err)
{
    hf_status st = my_exec(ms, text, NULL, deadline, err);

    while (!st && !(st = my_script_next(ms, deadline, err)))
        st = my_store(ms, my_script_counts(ms) ? counts : NULL, deadline, err);
    return st == HF_BUSY ? HF_OK : st;
}

/* One after the other; `text` is cut up.  No string in it has a semicolon. */
static hf_status my_script_steps(struct my_session *ms, char *text,
                                 struct sql_answer *counts, int64_t deadline,
                                 struct hf_error *err)
{
    hf_status st = HF_OK;
    char *end;

    for (; !st && text; text = end) {
        end = strchr(text, ';');
        if (end)
            *end++ = '\0';
        if (text[strspn(text, " ")])
            st = my_exec_named(ms, text, counts, deadline, err);
    }
    return st;
}

/* backend/sql/script.c.  What has failed halfway is undone. */
hf_status my_run_script(struct my_session *ms, enum sql_stmt stmt,
                        const struct sql_call *call, struct sql_answer *answer,
                        int64_t deadline, struct hf_error *err)
{
    struct sql_answer counts = {.row = my_script_row, .arg = answer};
    const struct my_conn *mc = (const struct my_conn *)ms->base.conn;
    char *text = sql_script(ms->base.conn, stmt, call);
    enum sql_why why;
    hf_status st;

    if (!text)
        return hfi_nomem(err);
    st = mc->several ? my_script_steps(ms, text, &counts, deadline, err)
                     : my_script_whole(ms, text, &counts, deadline, err);
    hfi_free(text);
    if (!st)
        return HF_OK;
    why = ms->base.why;
    if (!ms->base.broken && my_exec(ms, "ROLLBACK", NULL, deadline, NULL))
        ms->base.broken = true;
    ms->base.why = why;
    return st;
}
