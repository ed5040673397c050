/* SPDX-License-Identifier: MIT
 *
 * queue.c - strategies lease and version: first come, first served.
 *
 * ON THE WIRE  Beside the table of locks there is one of tickets, a row for each
 *   claim that waits: its number, its kind (plain, shared, so many permits), its
 *   ttl, where it hears, the number of its last try, and until when it counts.
 *   A claim that finds the key taken takes a ticket in the same transaction.
 *   Who gives a lock back passes it to the first who waits in the same
 *   transaction, writes the grant for it and tells that one alone.
 *
 * INVARIANTS
 *  (1) Whatever reads or changes the tickets of a key locks the row of the key
 *      first, in one transaction: two who give back, or one who comes while
 *      another gives back, are served one after the other.  So a grant goes to
 *      one claim only, and nobody takes a ticket for a lock that was just
 *      passed by it.
 *  (2) A lock is never free while somebody waits who could have it, as far as
 *      clients know of the queue; one that has lapsed is given to the first
 *      who waits by whoever asks next.
 *  (3) A ticket has a lease of its own, SQL_PLACE_MS by the server's clock, and
 *      each try of the claim renews it.  One that is over is passed by and
 *      removed.  Nothing but the order depends on it.
 *  (4) Who is passed the lock has it for SQL_GIFT_MS at most, or its ttl, and
 *      makes a whole lease of it by the first renewal.  SQL_PLACE_MS is not
 *      more than SQL_GIFT_MS: when what a dead waiter was passed is over, the
 *      tickets of all who had died before it was passed are over as well.  So
 *      any number of dead waiters holds the others up once, for SQL_GIFT_MS.  A
 *      ttl shorter than that lets several of them have a turn, which end within
 *      SQL_PLACE_MS and one ttl.
 *  (5) The grant that is passed on counts for the waiter from before its last
 *      try was sent (core/acquire.c (4)): the message names that try, which had
 *      left the number in the ticket, and the server counts from later.  With
 *      strategy version the row gets another version and the shorter ttl, and
 *      others begin to watch it after that.
 *  (6) The message is a hint for all but the token: whoever can write the tokens
 *      of others into one can write to the table as well.  A message that is
 *      lost is replaced by the next try, which finds the grant.
 *  (7) What is not contended costs one statement, as without a queue: it takes
 *      and gives back only where no ticket is there.  Who has met others at a key
 *      does not try that first (`hot`).
 *  (8) A key that this client had lately has a row, which one UPDATE takes again
 *      if it is free: `known`.  That costs the server half of what it takes to
 *      insert the row or to say who has it.  If it does not take it, the client
 *      knows the key no longer, and asks as for any other.
 *  (9) A claim has a ticket or a grant, never both, and a grant that was broken
 *      (sql.c (6)) is still a grant.  Who asks and finds that what it was passed
 *      is broken gets no ticket behind itself: it is told that this claim is
 *      over (HF_LOST), the core gives the broken grant back by release(), which
 *      ends what was sent without an answer first, and asks under a fresh token.
 *      The statement does not free the grant itself: a try that arrives late
 *      would take it from a holder who may still be at work.
 *
 * OTHERS  A client without a queue (queue=barge, or of the version before) sees
 *   the row of the key only.  Both exclude each other; it takes what is free
 *   whoever waits, and what it gives back is free until one of those who wait
 *   asks, who hear of it as such clients do.
 *
 * LATE AND LOST  A try without an answer may have left a ticket or a grant; the
 *   next try finds either, and release() removes both, after the session was
 *   ended that may still bring one (doubt.c).  A ticket that comes later than
 *   that is passed a lock for nobody, for the time of (4).  A release without an
 *   answer is repeated, and finds that the token is gone.
 *
 * WAITING  Each waiter asks every QUEUE_ASK_MS to keep its place (3), whether it
 *   hears or not and however slowly it was told to poll; and when the lease ends
 *   that keeps it out, those behind the first a little later each.
 */
#include "sql.h"

#include "base/mutant.h"

#include "base/banned.h"

/* How long a ticket lasts after a try.  queue.c (4) */
#define SQL_PLACE_MS SQL_GIFT_MS

/* How often who waits asks: three times while its ticket lasts. */
#define QUEUE_ASK_MS (SQL_PLACE_MS / 3)

/* How much later each in line asks whether a lease is over, and the last. */
#define QUEUE_APART_MS     20
#define QUEUE_APART_MS_MAX (QUEUE_ASK_MS / 2)

/* What must be left of a lock that was passed on, to be taken as it is. */
#define QUEUE_LEFT_MS (SQL_GIFT_MS / 2)

/* How often a group is let in, one by one, at most. */
#define QUEUE_ADMIT_MAX 1000

/* ---- keys that others want --------------------------------------------- */

static unsigned queue_hash(const char *key)
{
    unsigned hash = 5381;

    for (; *key; key++)
        hash = hash * 33 + (unsigned char)*key;
    return hash ^ hash >> 16;
}

static atomic_uchar *queue_hot(struct sql_conn *conn, const char *key)
{
    return &conn->hot[queue_hash(key) % SQL_HOT];
}

bool sql_queue_is_hot(struct sql_conn *conn, const char *key)
{
    return atomic_load(queue_hot(conn, key));
}

/* Keys of equal hash cost a statement that changes nothing. */
bool sql_queue_knows(struct sql_conn *conn, const char *key)
{
    unsigned hash = queue_hash(key);

    return atomic_load(&conn->known[hash % SQL_KNOWN]) == hash;
}

void sql_queue_know(struct sql_conn *conn, const char *key, bool known)
{
    unsigned hash = queue_hash(key);

    atomic_store(&conn->known[hash % SQL_KNOWN], known ? hash : ~hash);
}

/* ---- waiting in line --------------------------------------------------- */

int64_t sql_queue_left(int64_t left_ms, int32_t place)
{
    int64_t apart = QUEUE_APART_MS * ((int64_t)place - 1);

    if (!place)
        return left_ms;
    if (left_ms > 0)
        left_ms += apart < QUEUE_APART_MS_MAX ? apart : QUEUE_APART_MS_MAX;
    return left_ms > 0 && left_ms < QUEUE_ASK_MS ? left_ms : QUEUE_ASK_MS;
}

void sql_queue_expect(struct sql_conn *conn, const struct hfi_claim *claim)
{
    if (conn->fair && claim->queue && claim->poll_ms > QUEUE_ASK_MS)
        hfi_expect(&conn->base, claim->key, claim->token, QUEUE_ASK_MS);
}

static hf_status queue_ask(struct sql_conn *conn, enum sql_stmt stmt,
                           const struct sql_call *call, struct sql_tried *ret,
                           int64_t deadline, struct hf_error *err)
{
    struct sql_answer answer = {.row = sql_share_row, .arg = ret};
    hf_status st;

    *ret = (struct sql_tried){.use = -1};
    st = sql_run(conn, stmt, call, &answer, deadline, err);
    if (!st && !answer.rows) /* The row of the key was deleted meanwhile. */
        ret->again = true;
    return st;
}

/* Of any kind.  Where several permits are free who waits is let in first. */
static hf_status queue_enter(struct sql_conn *conn, const struct sql_call *call,
                             struct sql_tried *ret, int64_t deadline,
                             struct hf_error *err)
{
    hf_status st = queue_ask(conn, SQL_ENTER, call, ret, deadline, err);

    if (st || !ret->again || ret->left_ms < 0)
        return st;
    st = sql_queue_admit(conn, call->key, deadline, err);
    ret->again = !ret->fence;
    return ret->fence ? HF_OK : st;
}

/* A plain claim: where others wait already, mostly a ticket is enough. */
static hf_status queue_join(struct sql_conn *conn, const struct sql_call *call,
                            struct sql_tried *ret, int64_t deadline,
                            struct hf_error *err)
{
    hf_status st = HF_OK;

    ret->again = true;
    if (conn->texts[SQL_TICKET] && call->queue)
        st = queue_ask(conn, SQL_TICKET, call, ret, deadline, err);
    if (!st && ret->again)
        st = queue_ask(conn, SQL_JOIN, call, ret, deadline, err);
    return st;
}

/* A look that changes nothing, where the claim has a ticket and does not hear, or
 * hears only that there is something to hear: true if that was enough.  What it
 * was passed is the core's to take, as if it had been told (5), for what is left
 * of it; if that does not take it, the next try makes a whole lease of it.  With
 * strategy version nobody knows what is left, and others may have watched the row
 * for longer than we: there it is always a try that takes it. */
static bool queue_peek(struct sql_conn *conn, const struct hfi_claim *claim,
                       const struct sql_call *call, struct sql_note *note,
                       struct sql_tried *ret, hf_status *st, int64_t deadline,
                       struct hf_error *err)
{
    *st = queue_ask(conn, SQL_PEEK, call, ret, deadline, err);
    if (*st || (!ret->fence && !ret->again))
        return true;
    if (!ret->fence || note->given || conn->strategy == SQL_VERSION ||
        ret->left_ms < QUEUE_LEFT_MS)
        return false;
    note->given = true;
    hfi_granted(&conn->base, claim->key, claim->token, claim->nth,
                (uint64_t)ret->fence, -1, ret->left_ms);
    ret->fence = 0;
    ret->again = false;
    return true;
}

/* queue.c (8) */
static hf_status queue_retake(struct sql_conn *conn,
                              const struct sql_call *call,
                              struct sql_tried *ret, int64_t deadline,
                              struct hf_error *err)
{
    struct sql_answer answer = {.row = sql_said_row, .arg = &ret->fence};
    hf_status st = sql_run(conn, SQL_RETAKE, call, &answer, deadline, err);

    if (!answer.rows && answer.affected)
        ret->fence = answer.id;
    if (st || !ret->fence)
        sql_queue_know(conn, call->key, false);
    return st;
}

/* By the row of the key alone: true if that was enough. */
static bool queue_at_once(struct sql_conn *conn, const struct hfi_claim *claim,
                          const struct sql_call *call, struct sql_tried *ret,
                          hf_status *st, int64_t deadline, struct hf_error *err)
{
    *ret = (struct sql_tried){.use = -1};
    if (conn->texts[SQL_RETAKE] && sql_queue_knows(conn, call->key)) {
        *st = queue_retake(conn, call, ret, deadline, err);
        if (*st || ret->fence)
            return true;
    }
    *st = sql_try_free(conn, call, ret, deadline, err);
    if (ret->fence)
        sql_queue_know(conn, call->key, true);
    return *st || ret->fence || (!claim->queue && !ret->again && ret->use < 0);
}

hf_status sql_queue_try(struct sql_conn *conn, const struct hfi_claim *claim,
                        struct sql_call *call, struct sql_note *note,
                        struct sql_tried *ret, int64_t deadline,
                        struct hf_error *err)
{
    bool plain = !sql_share_is(claim);
    atomic_uchar *hot = queue_hot(conn, claim->key);
    hf_status st = HF_OK;

    call->permits = plain ? -1 : claim->permits;
    call->nth = claim->nth;
    call->place_ms = SQL_PLACE_MS;
    if (HFI_MUTANT(dead_waiter_blocks_queue))
        call->place_ms += claim->ttl_ms;
    call->channel = atomic_load(&conn->hears) ? conn->channel : NULL;
    if (plain && !note->shared && !note->in_line && call->number < 0 &&
        !(claim->queue && atomic_load(hot)) &&
        queue_at_once(conn, claim, call, ret, &st, deadline, err))
        return st;
    if (plain && !note->shared && note->in_line && call->number < 0 &&
        conn->texts[SQL_PEEK] &&
        queue_peek(conn, claim, call, note, ret, &st, deadline, err))
        return st;
    note->in_line = note->in_line || claim->queue;
    if (plain && !note->shared) {
        st = queue_join(conn, call, ret, deadline, err);
        note->shared = !st && !ret->fence && (ret->again || ret->use >= 0);
    }
    if (!st && (!plain || note->shared))
        st = queue_enter(conn, call, ret, deadline, err);
    if (!st && !ret->fence)
        atomic_store(hot, 1);
    return st;
}

/* ---- passing on -------------------------------------------------------- */

hf_status sql_queue_admit(struct sql_conn *conn, const char *key,
                          int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {
        .key = key, .token = "", .number = -1, .queue = true};
    struct sql_answer answer = {0};
    hf_status st;
    int i = 0;

    do
        st = sql_run(conn, SQL_ADMIT, &call, &answer, deadline, err);
    while (!st && answer.rows && ++i < QUEUE_ADMIT_MAX);
    return st;
}

struct queue_passed {
    bool admit, wanted;
    char nobody[HFI_TOKEN_LEN + 1]; /* "" */
};

static void queue_row(struct sql_answer *answer, const struct sql_cell *cells,
                      int n)
{
    const struct sql_cell *nobody = &cells[SQL_PASS_NOBODY];
    struct queue_passed *passed = answer->arg;

    if (n < SQL_PASS_COLUMNS)
        return;
    if (nobody->data && nobody->len == HFI_TOKEN_LEN)
        memcpy(passed->nobody, nobody->data, HFI_TOKEN_LEN);
    passed->admit = passed->admit || cells[SQL_PASS_ADMIT].num;
    passed->wanted = passed->wanted || cells[SQL_PASS_WANTED].num;
}

/* A deliberate bug: who was just passed the lock believes that it has it, and the
 * next is passed it as well. */
static void queue_pass_twice(struct sql_conn *conn, const char *key,
                             int64_t deadline)
{
    struct sql_call call = {.key = key};
    struct sql_answer answer = {0};
    struct sql_seen seen;

    call.token = seen.token;
    if (!sql_inspect_row(conn, key, &seen, deadline, NULL) && seen.held)
        sql_run(conn, SQL_PASS, &call, &answer, deadline, NULL);
}

/* The lock was passed to a claim that had just given its ticket back: it goes to
 * the next, also if an operator was quick enough to break it. */
static void queue_pass_by(struct sql_conn *conn, const char *key,
                          const char *nobody, int64_t deadline)
{
    char spoiled[HFI_TOKEN_LEN + 2];
    struct sql_call call = {.key = key, .token = nobody};
    struct sql_answer answer = {0};
    hf_status st = sql_run(conn, SQL_PASS, &call, &answer, deadline, NULL);

    if (st || answer.rows)
        return;
    sql_spoil(spoiled, nobody);
    call.token = spoiled;
    sql_run(conn, SQL_PASS, &call, &answer, deadline, NULL);
}

/* What is released is released, also if those who may share it are let in only
 * by their own next try. */
static hf_status queue_pass(struct sql_conn *conn, const struct sql_call *call,
                            bool *ours, int64_t deadline, struct hf_error *err)
{
    struct queue_passed passed = {.nobody = ""};
    struct sql_answer answer = {.row = queue_row, .arg = &passed};
    hf_status st = HF_OK;

    if (conn->texts[SQL_HAND] && !call->number)
        st = sql_run(conn, SQL_HAND, call, &answer, deadline, err);
    if (!st && !answer.rows)
        st = sql_run(conn, SQL_PASS, call, &answer, deadline, err);
    if (st)
        return st;
    *ours = *ours || answer.rows;
    if (HFI_MUTANT(handover_to_two) && passed.wanted)
        queue_pass_twice(conn, call->key, deadline);
    atomic_store(queue_hot(conn, call->key), passed.wanted);
    if (passed.nobody[0])
        queue_pass_by(conn, call->key, passed.nobody, deadline);
    if (passed.admit || passed.nobody[0])
        sql_queue_admit(conn, call->key, deadline, NULL);
    return HF_OK;
}

hf_status sql_queue_release(struct sql_conn *conn, const char *key,
                            const char *token, uint64_t fence, bool *ours,
                            int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {
        .key = key, .token = token, .number = (int64_t)fence};
    struct sql_answer answer = {0};
    hf_status st;

    if (!fence && !atomic_load(queue_hot(conn, key))) {
        st = sql_run(conn, SQL_RELEASE, &call, &answer, deadline, err);
        if (st || answer.affected || answer.rows) {
            *ours = *ours || !st;
            return st;
        }
    }
    return queue_pass(conn, &call, ours, deadline, err);
}

hf_status sql_queue_linger(struct sql_conn *conn, const struct hfi_claim *claim,
                           bool *wanted, int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {
        .key = claim->key, .token = claim->token, .channel = conn->channel};
    struct sql_answer answer = {0};
    hf_status st = sql_run(conn, SQL_LINGER, &call, &answer, deadline, err);

    *wanted = !st && answer.rows;
    return st;
}
