/* SPDX-License-Identifier: MIT
 *
 * pipeline.c - several prepared statements in one message, as one transaction.
 *
 * A script (backend/sql/script.c) that is sent as one text is parsed and planned
 * anew each time, which takes longer than to run it.  So its statements are
 * prepared once in a session, and then sent one behind the other with a single
 * Sync at the end.  Until that the server is in one implicit transaction: what
 * fails undoes all, and each statement has a snapshot of its own, as in a text.
 *
 * INVARIANTS
 *  (1) The script is done when the answer to the Sync has come without an error
 *      before it: then it is committed.
 *  (2) A session that has not been heard to the end is broken: wire.c.
 *
 * LIMITS  A client that is cut off in the midst of sending keeps the row of the
 *   key locked until the server notices that.  All that is sent fits into one or
 *   two packets, so this takes a network that loses one of them for good.
 *   Behind a pooler the text is sent: nothing is left in a session there.
 */
#include "postgres.h"

#include "base/alloc.h"

#include "base/banned.h"

#define PIPELINE_PARAMS 11
#define PIPELINE_NAME   (PG_NAME_MAX + 12)

/* The parameters of a script; their kinds in the catalog. */
static const Oid pipeline_types[PIPELINE_PARAMS] = {17, 25, 20, 17, 17, 20,
                                                    20, 20, 25, 20, 20};

static void pipeline_name(const struct pg_session *ps, enum sql_stmt stmt,
                          int part, char ret[PIPELINE_NAME])
{
    char name[PG_NAME_MAX];

    pg_name(ps, stmt, name);
    snprintf(ret, PIPELINE_NAME, "%s_%d", name, part);
}

/* The next statement of the text, with the numbers of its parameters as the
 * server knows them; the caller frees it.  *text moves on, to NULL after the
 * last.  No string in a script has a semicolon. */
static char *pipeline_part(const char **text)
{
    const char *at = *text, *end = strchr(at, ';');
    size_t len = end ? (size_t)(end - at) : strlen(at), n = 0;
    char *ret = hfi_alloc(2 * len + 1);

    for (; ret && len; at++, len--) {
        int param = sql_script_param(at);

        if (!param) {
            ret[n++] = *at;
            continue;
        }
        n += (size_t)snprintf(ret + n, 4, "$%d", param);
        at++;
        len--;
    }
    *text = end ? end + 1 : NULL;
    return ret;
}

/* Hear all of what was sent; `count` NULL: nothing of it counts. */
static hf_status pipeline_hear(struct pg_session *ps, struct sql_answer *answer,
                               int64_t deadline, struct hf_error *err)
{
    hf_status st = HF_OK, lost;
    PGresult *result = NULL;
    bool synced = false;

    do {
        lost = pg_next(ps, &result, deadline, st ? NULL : err);
        if (lost || !result)
            continue;
        switch (PQresultStatus(result)) {
        case PGRES_PIPELINE_SYNC:
            synced = true;
            break;
        case PGRES_TUPLES_OK:
            if (!st && answer)
                pg_script_rows(result, answer);
            break;
        case PGRES_COMMAND_OK:
        case PGRES_PIPELINE_ABORTED:
            break;
        default:
            if (!st)
                st = pg_error(ps, result, err);
        }
        PQclear(result);
    } while (!lost && !synced && PQstatus(ps->pg) == CONNECTION_OK);
    if (!lost && !synced)
        lost = pg_cut(ps, NULL, st ? NULL : err);
    if (!lost && !PQexitPipelineMode(ps->pg))
        ps->base.broken = true;
    return st ? st : lost;
}

static hf_status pipeline_prepare(struct pg_session *ps, enum sql_stmt stmt,
                                  int64_t deadline, struct hf_error *err)
{
    const char *at = ps->base.conn->texts[stmt];
    char name[PIPELINE_NAME];
    bool sent = PQenterPipelineMode(ps->pg), nomem = false;
    hf_status st;
    int i;

    for (i = 0; sent && at; i++) {
        char *part = pipeline_part(&at);

        pipeline_name(ps, stmt, i, name);
        nomem = nomem || !part;
        sent = part && PQsendPrepare(ps->pg, name, part, PIPELINE_PARAMS,
                                     pipeline_types);
        hfi_free(part);
    }
    if (!sent || !PQpipelineSync(ps->pg)) {
        st = pg_unsent(ps, err);
        return nomem ? hfi_nomem(err) : st;
    }
    st = pipeline_hear(ps, NULL, deadline, err);
    /* Nothing was changed yet, so nothing can be in doubt. */
    if (st == HF_UNCERTAIN)
        st = hfi_wrap(err, HF_UNAVAILABLE, "prepare");
    ps->base.prepared[stmt] = !st;
    return st;
}

static bool pipeline_send(struct pg_session *ps, enum sql_stmt stmt,
                          const struct sql_call *call)
{
    static const int formats[PIPELINE_PARAMS] = {1, 1, 0, 1, 1, 0, 0, 0, 1};
    const int64_t numbers[PIPELINE_PARAMS] = {
        [2] = call->ttl_ms,  [5] = call->queue, [6] = call->number,
        [7] = call->permits, [9] = call->nth,   [10] = call->place_ms};
    const char *values[PIPELINE_PARAMS] = {[0] = call->key,
                                           [1] = call->token,
                                           [3] = call->owner,
                                           [4] = call->note,
                                           [8] = call->channel};
    const char *at = ps->base.conn->texts[stmt];
    char texts[PIPELINE_PARAMS][24], name[PIPELINE_NAME];
    int lengths[PIPELINE_PARAMS], i;
    bool sent = true;

    for (i = 0; i < PIPELINE_PARAMS; i++) {
        snprintf(texts[i], sizeof(texts[i]), "%lld", (long long)numbers[i]);
        if (!formats[i])
            values[i] = texts[i];
        lengths[i] = values[i] ? (int)strlen(values[i]) : 0;
    }
    for (i = 0; sent && at; i++, at = strchr(at, ';'), at = at ? at + 1 : at) {
        pipeline_name(ps, stmt, i, name);
        sent = PQsendQueryPrepared(ps->pg, name, PIPELINE_PARAMS, values,
                                   lengths, formats, 0);
    }
    return sent && PQpipelineSync(ps->pg);
}

hf_status pg_pipeline(struct pg_session *ps, enum sql_stmt stmt,
                      const struct sql_call *call, struct sql_answer *answer,
                      int64_t deadline, struct hf_error *err)
{
    hf_status st = HF_OK;

    ps->heard = 0;
    ps->most = PG_ANSWER_MAX;
    if (!ps->base.prepared[stmt])
        st = pipeline_prepare(ps, stmt, deadline, err);
    if (st)
        return st;
    ps->heard = 0;
    if (!hfi_left_ms(deadline) || !PQenterPipelineMode(ps->pg) ||
        !pipeline_send(ps, stmt, call))
        return pg_unsent(ps, err);
    return pipeline_hear(ps, answer, deadline, err);
}
