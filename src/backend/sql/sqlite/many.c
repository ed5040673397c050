/* SPDX-License-Identifier: MIT
 *
 * many.c - many keys in one transaction: there is no way to a server that could
 * be saved, but a commit.
 *
 * INVARIANTS
 *  (1) All of them, or none.  Nobody else writes meanwhile, so a key that is not
 *      free ends it before anybody could see the others.
 *  (2) A key is taken by the statement that takes it alone, so it is granted if
 *      that would be, and to nobody else.
 *  (3) Nothing is told of what was run in a file that is gone: file.c (2).
 */
#include "sqlite.h"

#include "base/alloc.h"

#include "base/banned.h"

hf_status lite_renew_many(struct lite_session *ls, const struct sql_call *call,
                          struct sql_answer *answer, struct hf_error *err)
{
    struct sql_call one = *call;
    int64_t affected = 0;
    hf_status st = lite_exec(ls, ls->base.conn->texts[SQL_RENEW_MANY], err);
    size_t i;

    if (st)
        return st;
    for (i = 0; !st && i < call->count; i++) {
        one.key = call->items[i]->claim->key;
        one.token = call->items[i]->claim->token;
        one.number = (int64_t)call->items[i]->receipt->fence;
        st = lite_step(ls, SQL_RENEW, &one, answer, err);
        affected += answer->affected;
    }
    st = lite_end(ls, st, err);
    answer->affected = affected;
    return st;
}

/* The transaction has begun. */
static hf_status many_take(struct lite_session *ls, const struct sql_call *call,
                           int64_t *fences, struct hf_error *err)
{
    struct sql_call one = *call;
    hf_status st = HF_OK;
    size_t i;

    one.owner = NULL;
    for (i = 0; !st && i < call->count; i++) {
        struct sql_answer answer = {0};

        one.key = call->attempts[i].claim->key;
        one.token = call->attempts[i].claim->token;
        st = lite_step(ls, SQL_ACQUIRE, &one, &answer, err);
        fences[i] = answer.id;
        if (!st && !answer.id)
            st = HF_BUSY;
    }
    return st;
}

hf_status lite_take_all(struct lite_session *ls, const struct sql_call *call,
                        int64_t **ret, struct hf_error *err)
{
    int64_t *fences = hfi_alloc(call->count * sizeof(*fences));
    hf_status st = fences
                       ? lite_exec(ls, ls->base.conn->texts[SQL_TAKE_ALL], err)
                       : hfi_nomem(err);

    if (!st)
        st = lite_end(ls, many_take(ls, call, fences, err), err);
    if (!st)
        *ret = fences;
    else
        hfi_free(fences);
    return st == HF_BUSY ? HF_OK : st;
}

void lite_taken(struct lite_conn *lc, const struct sql_call *call,
                int64_t *fences, struct sql_answer *answer)
{
    struct sql_cell cells[2] = {{0}};
    size_t i;

    for (i = 0; i < call->count; i++) {
        cells[0].data = call->attempts[i].claim->key;
        cells[0].len = strlen(cells[0].data);
        cells[1].num = fences[i];
        lite_fenced(lc, fences[i]);
        answer->rows++;
        answer->row(answer, cells, 2);
    }
    hfi_free(fences);
}
