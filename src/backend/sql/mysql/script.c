/* SPDX-License-Identifier: MIT
 *
 * script.c - several statements in one message to MariaDB or MySQL, and their
 * answers; see backend/sql/script.c.
 *
 * The first that fails is the last that is run.  What the ones before it have
 * done is then undone, or the session is closed, which undoes it, too.
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

/* backend/sql/script.c.  What has failed halfway is undone. */
hf_status my_run_script(struct my_session *ms, enum sql_stmt stmt,
                        const struct sql_call *call, struct sql_answer *answer,
                        int64_t deadline, struct hf_error *err)
{
    struct sql_answer counts = {.row = my_script_row, .arg = answer};
    char *text = sql_script(ms->base.conn, stmt, call);
    enum sql_why why;
    hf_status st;

    if (!text)
        return hfi_nomem(err);
    st = my_exec(ms, text, NULL, deadline, err);
    while (!st && !(st = my_script_next(ms, deadline, err)))
        st = my_store(ms, my_script_counts(ms) ? &counts : NULL, deadline, err);
    hfi_free(text);
    if (st == HF_BUSY)
        return HF_OK;
    why = ms->base.why;
    if (!ms->base.broken && my_exec(ms, "ROLLBACK", NULL, deadline, NULL))
        ms->base.broken = true;
    ms->base.why = why;
    return st;
}
