/* SPDX-License-Identifier: MIT
 *
 * wait.c - notifiers: one connection that LISTENs for all keys.
 *
 * It is made when somebody first waits.  A release rings only if somebody
 * waits, so what arrives here is about contended keys only.  The alternative,
 * a waiter blocked in pg_advisory_lock(), needs a connection for each waited
 * key on both sides; bench/notifiers.c shows both.
 *
 * INVARIANTS
 *  (1) A waiter that relies on the listener asks once more after there is one:
 *      when another has taken the place of one that was lost, or somebody came
 *      while it was made, every waiter is woken, since notifiers may have rung
 *      in between.
 *  (2) While there is none, waiters ask every WAKE_DEAF_MS, and each try makes
 *      another first.
 */
#include "postgres.h"

#include <poll.h>
#include <sys/socket.h>

#include "backend/sql/row.h"

#include "base/banned.h"

/* How often a waiter asks that cannot hear. */
#define WAKE_DEAF_MS 200

static hf_status wake_make(struct pg_conn *pc, PGconn **ret, int64_t deadline,
                           struct hf_error *err)
{
    struct pg_session ps = {.base = {.conn = &pc->sql}};
    const char *dot = strchr(pc->sql.table, '.');
    char text[SQL_TABLE_MAX + SQL_CHANNEL_MAX + 32];
    hf_status st = pg_dial(&ps, deadline, err);

    snprintf(text, sizeof(text), "LISTEN \"%s\";LISTEN \"%s\"",
             dot ? dot + 1 : pc->sql.table, pc->sql.channel);
    if (st == HF_BUSY)
        st = hfi_fail(err, HF_UNAVAILABLE, "connect: no answer in time");
    if (!st)
        st = pg_exec(&ps, text, NULL, deadline, err);
    if (!st)
        *ret = ps.pg;
    else if (ps.pg)
        PQfinish(ps.pg);
    return st;
}

/* Have a listener; HF_OK also if there was one.  The keeper asks for it at any
 * moment, so the mutex is not held while it is made; who comes meanwhile is
 * told that there is none yet, and polls until it asks again. */
hf_status pg_listen(struct pg_conn *pc, int64_t deadline, struct hf_error *err)
{
    bool mine, missed, again = atomic_load(&pc->listening);
    PGconn *made = NULL;
    hf_status st;

    pthread_mutex_lock(&pc->wake_mu);
    st = pc->listener ? HF_OK : HF_UNAVAILABLE;
    mine = st && !pc->making;
    pc->missed = st && !mine;
    pc->making = pc->making || mine;
    pthread_mutex_unlock(&pc->wake_mu);
    if (!mine)
        return st ? hfi_fail(err, st, "the listener is being made") : HF_OK;
    st = wake_make(pc, &made, deadline, err);
    pthread_mutex_lock(&pc->wake_mu);
    pc->listener = made;
    pc->heard = 0;
    pc->making = false;
    missed = pc->missed;
    if (!st) {
        atomic_fetch_add(&pc->listeners, 1);
        pc->listener_fd = PQsocket(made);
        sql_fds_add(&pc->sql, pc->listener_fd);
    }
    pthread_mutex_unlock(&pc->wake_mu);
    if (st)
        return st;
    atomic_store(&pc->listening, true);
    atomic_store(&pc->sql.base.listening, true);
    hfi_poll_fd_changed(&pc->sql.base);
    if (again || missed)
        hfi_wake_all(&pc->sql.base); /* wait.c (1) */
    return HF_OK;
}

void pg_unlisten(struct pg_conn *pc)
{
    if (!pc->listener)
        return;
    atomic_store(&pc->sql.base.listening, false);
    sql_fds_remove(&pc->sql, pc->listener_fd);
    PQfinish(pc->listener);
    pc->listener = NULL;
}

/* A session is silent.  So may be what the listener hears, and nothing is asked of
 * that which could tell: dispatch() finds it closed, and it is made anew. */
void pg_doubt_listener(struct pg_conn *pc)
{
    pthread_mutex_lock(&pc->wake_mu);
    if (pc->listener)
        shutdown(pc->listener_fd, SHUT_RDWR);
    pthread_mutex_unlock(&pc->wake_mu);
}

/* Before a try: a listener that was lost is replaced, but that must leave time
 * for the try.  After it: see wait.c (2). */
void pg_listen_again(struct pg_conn *pc, int64_t deadline)
{
    if (atomic_load(&pc->listening))
        pg_listen(pc, hfi_now() + hfi_left_ms(deadline) / 2, NULL);
}

void pg_unsubscribed(struct pg_conn *pc, const struct hfi_claim *claim)
{
    bool unsubscribed;

    pthread_mutex_lock(&pc->wake_mu);
    unsubscribed = !pc->listener || atomic_load(&pc->pooled);
    pthread_mutex_unlock(&pc->wake_mu);
    if (unsubscribed && atomic_load(&pc->listening))
        hfi_expect(&pc->sql.base, claim->key, claim->token, WAKE_DEAF_MS);
}

/* For a waiter: hear of releases.  For a holder that lingers: hear of waiters,
 * those included that came before. */
hf_status pg_watch(struct hfi_conn *base, const struct hfi_claim *claim,
                   struct hfi_receipt *receipt, int64_t deadline,
                   struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    hf_status st;
    bool wanted;

    if (pc->sql.strategy == SQL_ROW || atomic_load(&pc->pooled))
        return HF_UNSUPPORTED;
    st = pg_listen(pc, deadline, err);
    if (st || !sql_holds(receipt))
        return st;
    st = pc->sql.fair
             ? sql_queue_linger(&pc->sql, claim, &wanted, deadline, err)
             : sql_is_wanted(&pc->sql, claim->key, &wanted, deadline, err);
    if (!st && wanted)
        hfi_wanted(base, claim->key);
    return st;
}

void pg_unwatch(struct hfi_conn *base, const struct hfi_claim *claim,
                struct hfi_receipt *receipt)
{
    (void)base;
    (void)claim;
    (void)receipt;
}

int pg_poll_fd(struct hfi_conn *base)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    int fd;

    if (pc->sql.strategy == SQL_ROW)
        return sql_row_poll_fd(&pc->sql);
    pthread_mutex_lock(&pc->wake_mu);
    fd = pc->listener ? PQsocket(pc->listener) : -1;
    pthread_mutex_unlock(&pc->wake_mu);
    return fd;
}

static int wake_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void wake_key(const char *at, char ret[HF_KEY_MAX + 1])
{
    size_t len = 0;

    while (len < HF_KEY_MAX && at[0] && at[1] && wake_digit(at[0]) >= 0 &&
           wake_digit(at[1]) >= 0) {
        ret[len++] = (char)(wake_digit(at[0]) * 16 + wake_digit(at[1]));
        at += 2;
    }
    ret[len] = '\0';
}

/* "TOKEN NTH FENCE SLOT MS KEY"; backend/sql/queue.c (6) */
static void wake_granted(struct hfi_conn *base, const char *text)
{
    char key[HF_KEY_MAX + 1], token[HFI_TOKEN_LEN + 1];
    long long numbers[4];
    char *end;
    int i;

    if (strcspn(text, " ") != HFI_TOKEN_LEN)
        return;
    memcpy(token, text, HFI_TOKEN_LEN);
    token[HFI_TOKEN_LEN] = '\0';
    text += HFI_TOKEN_LEN;
    for (i = 0; i < 4; i++, text = end) {
        numbers[i] = strtoll(text, &end, 10);
        if (end == text || *end != ' ')
            return;
    }
    wake_key(text + 1, key);
    if (numbers[1] > 0 && numbers[3] > 0)
        hfi_granted(base, key, token, (uint32_t)numbers[0],
                    (uint64_t)numbers[1], (int32_t)numbers[2], numbers[3]);
}

/* Anybody may NOTIFY, so a payload is as good as it reads, and a hint. */
static void wake_heard(struct hfi_conn *base, const char *payload)
{
    char key[HF_KEY_MAX + 1];

    if (payload[0] == '+') {
        wake_granted(base, payload + 1);
        return;
    }
    wake_key(payload[0] ? payload + 1 : payload, key);
    if (payload[0] == 'f')
        hfi_wake(base, key, NULL);
    else if (payload[0] == 'w')
        hfi_wanted(base, key);
    if (payload[0] == 'f' || payload[0] == 'c')
        pg_observed((struct pg_conn *)base, key);
}

void pg_dispatch(struct hfi_conn *base)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    PGnotify *note;
    bool lost;

    if (pc->sql.strategy == SQL_ROW) {
        sql_row_dispatch(&pc->sql);
        return;
    }
    pthread_mutex_lock(&pc->wake_mu);
    lost = pc->listener &&
           (!pg_subscribed(pc->listener, &pc->heard, PG_ANSWER_MAX) ||
            !PQconsumeInput(pc->listener) ||
            PQstatus(pc->listener) != CONNECTION_OK);
    while (pc->listener && (note = PQnotifies(pc->listener))) {
        pc->heard = 0;
        wake_heard(base, note->extra);
        PQfreemem(note);
    }
    if (lost) {
        pg_unlisten(pc);
        pg_observed(pc, NULL);
    }
    pthread_mutex_unlock(&pc->wake_mu);
    if (lost)
        hfi_wake_all(base);
}
