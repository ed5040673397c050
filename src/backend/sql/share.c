/* SPDX-License-Identifier: MIT
 *
 * share.c - strategies lease and version: shared locks, permits and locks that
 * are kept.  Here is what they promise, and how one is taken.
 *
 * ON THE WIRE  Beside the table of locks there is another, of holders, with a
 *   row for each who shares a key or has one of its permits, made when it is
 *   first needed.  The row of the key then has the token `*N`, where N is the
 *   number of permits, 0 without: a plain claim, also one of an earlier version
 *   of this library, sees that the key is taken.
 *
 * INVARIANTS
 *  (1) Whatever changes the holders of a key locks the row of the key first, and
 *      is one transaction in one message (script.c): the row and the holders
 *      agree whenever somebody else sees them.
 *  (2) A row of a holder counts while the row of the key has `*N`.  Who takes
 *      the key otherwise need not know the table of holders: what is left there
 *      is removed before the key is next shared.
 *  (3) Lease: the row of the key lasts as long as the longest of its holders,
 *      never longer.  Each holder lapses by itself.  Whoever comes next removes
 *      those that have lapsed, in the same transaction; until then one that the
 *      server's clock has ended too early may still be renewed.
 *  (4) Version: every change and every renewal gives the row of the key the next
 *      version, and the holder as well.  So the row of the key stands still when
 *      all its holders do, and the holder with the least version is the one that
 *      has been silent for the longest: a claim for a permit watches that one,
 *      sql.c (4).
 *  (5) A plain claim that waits while others share the key leaves a mark among
 *      the holders.  Nobody joins them as long as the mark is there: also not
 *      when they are gone and the claim has not asked yet.  The mark lapses after
 *      SHARE_DOOR_MS by the clock of the server, and each try renews it.
 *  (6) A fence is the next of the row of the key, also for a holder, so the
 *      fences of a key rise whatever it is used for.
 *  (7) A lock that is kept is a holder that nobody renews: its time is over by
 *      the clock of the server, also with strategy version, since nobody works
 *      under it any more.
 *
 * DECISIONS  Each step is decided in the server, by one message.  Rejected: to
 *   read the holders, decide here and write if nothing has changed, since many
 *   who leave at once would all but one have to begin again; and a list of
 *   holders in the row of the key, since a renewal would write all of it.
 *
 * LIMITS  Without a queue (queue.c) readers may have to wait as long as writers
 *   keep coming, and a permit that is given back goes to whoever asks first.
 */
#include "sql.h"

#include "base/banned.h"

/* The mark of a claim that waits, and how often it is renewed.  share.c (5) */
#define SHARE_DOOR_MS 3000
#define SHARE_ASK_MS  SQL_DOOR_MS

/* How soon to ask again while the key is free and kept for one who waits. */
#define SHARE_FREE_MS 50

int32_t sql_share_use(const char *token, size_t len)
{
    int64_t n = 0;
    size_t i;

    if (!token || len < 2 || token[0] != '*')
        return -1;
    for (i = 1; i < len; i++) {
        if (token[i] < '0' || token[i] > '9' || n > INT32_MAX)
            return -1;
        n = n * 10 + (token[i] - '0');
    }
    return n <= INT32_MAX ? (int32_t)n : -1;
}

/* ---- entering ---------------------------------------------------------- */

void sql_share_row(struct sql_answer *answer, const struct sql_cell *cells,
                   int n)
{
    const struct sql_cell *token = &cells[SQL_TRY_TOKEN];
    struct sql_tried *tried = answer->arg;

    if (n < SQL_TRY_COLUMNS)
        return;
    tried->fence = cells[SQL_TRY_FENCE].num;
    tried->left_ms = cells[SQL_TRY_LEFT].num;
    tried->version = cells[SQL_TRY_VERSION].num;
    tried->ttl_ms = cells[SQL_TRY_TTL].num;
    tried->slot = (int32_t)cells[SQL_TRY_SLOT].num;
    tried->place = n > SQL_TRY_PLACE ? (int32_t)cells[SQL_TRY_PLACE].num : 0;
    tried->again = cells[SQL_TRY_AGAIN].num != 0;
    tried->use = -1;
    if (token->data && token->len && token->data[0] == '*')
        tried->use = sql_share_use(token->data, token->len);
    else if (token->data)
        tried->use = 0;
    if (n == SQL_TRY_COLUMNS && /* share.c (5) */
        (!token->data || tried->left_ms < 0))
        tried->left_ms = SHARE_FREE_MS;
}

hf_status sql_share_enter(struct sql_conn *conn, struct sql_call *call,
                          struct sql_tried *ret, int64_t deadline,
                          struct hf_error *err)
{
    struct sql_answer answer = {.row = sql_share_row, .arg = ret};
    hf_status st = sql_run(conn, SQL_ENTER, call, &answer, deadline, err);

    if (!st && !answer.rows) /* The row of the key was deleted meanwhile. */
        ret->again = true;
    return st;
}

/* ---- keeping others from entering -------------------------------------- */

struct door {
    bool open;
    int64_t left_ms;
};

static void door_row(struct sql_answer *answer, const struct sql_cell *cells,
                     int n)
{
    struct door *door = answer->arg;

    door->open = n > 1 && cells[0].num;
    door->left_ms = n > 1 ? cells[1].num : 0;
}

/* Leave the mark or renew it.  It is nothing to be relied on: where it lapses,
 * readers come between.  If there is no table of holders the row of the key is
 * all there is. */
hf_status sql_share_door(struct sql_conn *conn, const struct hfi_claim *claim,
                         struct sql_note *note, struct sql_tried *tried,
                         int64_t deadline, struct hf_error *err)
{
    struct door door = {.open = false};
    struct sql_answer answer = {.row = door_row, .arg = &door};
    struct sql_call call = {.key = claim->key,
                            .token = claim->token,
                            .queue = claim->queue,
                            .ttl_ms = SHARE_DOOR_MS + 2 * claim->poll_ms};
    hf_status st = sql_run(conn, SQL_DOOR, &call, &answer, deadline, err);

    if (st)
        return st;
    note->marked = note->marked || claim->queue;
    tried->again = door.open;
    if (door.left_ms > 0)
        tried->left_ms = door.left_ms;
    if (claim->queue && (tried->left_ms <= 0 || tried->left_ms > SHARE_ASK_MS))
        tried->left_ms = SHARE_ASK_MS;
    return HF_OK;
}

/* The claim has the key now, and what does not go away lapses. */
void sql_share_door_end(struct sql_conn *conn, const struct hfi_claim *claim,
                        int64_t deadline)
{
    struct sql_call call = {.key = claim->key, .token = claim->token};
    struct sql_answer answer = {0};

    sql_run(conn, SQL_DOOR_END, &call, &answer, deadline, NULL);
}
