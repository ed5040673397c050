/* SPDX-License-Identifier: MIT
 *
 * postgres_wake.c - bells: one connection that LISTENs for all keys.
 *
 * It is made when somebody first waits.  A release rings only if somebody
 * waits, so what arrives here is about contended keys only.  The alternative,
 * a waiter blocked in pg_advisory_lock(), needs a connection for each waited
 * key on both sides; bench/bells.c shows both.
 *
 * When the connection is lost, every waiter is woken, and its next try makes
 * another before it asks, so that nothing is missed in between.
 */
#include "postgres.h"

#include <poll.h>

#include "sql_row.h"

#include "../banned.h"

static hf_status wake_make(struct pg_conn *pc, PGconn **ret, int64_t deadline,
                           struct hf_error *err)
{
    struct pg_session ps = {.base = {.conn = &pc->sql}};
    char text[SQL_TABLE_MAX + 16];
    hf_status st = pg_connect(pc, &ps.pg, deadline, err);

    snprintf(text, sizeof(text), "LISTEN \"%s\"", pc->sql.table);
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
    PGconn *made = NULL;
    bool mine;
    hf_status st;

    pthread_mutex_lock(&pc->wake_mu);
    st = pc->listener ? HF_OK : HF_UNAVAILABLE;
    mine = st && !pc->making;
    pc->making = pc->making || mine;
    pthread_mutex_unlock(&pc->wake_mu);
    if (!mine)
        return st ? hfi_fail(err, st, "the listener is being made") : HF_OK;
    st = wake_make(pc, &made, deadline, err);
    pthread_mutex_lock(&pc->wake_mu);
    pc->listener = made;
    pc->making = false;
    pthread_mutex_unlock(&pc->wake_mu);
    if (!st) {
        atomic_store(&pc->listening, true);
        hfi_pump_changed(&pc->sql.base);
    }
    return st;
}

void pg_unlisten(struct pg_conn *pc)
{
    if (pc->listener)
        PQfinish(pc->listener);
    pc->listener = NULL;
}

/* For a waiter: hear of releases.  For a holder that lingers: hear of waiters,
 * those included that came before. */
hf_status pg_watch(struct hfi_conn *base, const struct hfi_claim *claim,
                   struct hfi_grant *grant, int64_t deadline,
                   struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    hf_status st;
    bool wanted;

    if (pc->sql.strategy == SQL_ROW)
        return HF_UNSUPPORTED;
    st = pg_listen(pc, deadline, err);
    if (st || !grant->placed)
        return st;
    st = sql_is_wanted(&pc->sql, claim->key, &wanted, deadline, err);
    if (!st && wanted)
        hfi_wanted(base, claim->key);
    return st;
}

void pg_unwatch(struct hfi_conn *base, const struct hfi_claim *claim,
                struct hfi_grant *grant)
{
    (void)base;
    (void)claim;
    (void)grant;
}

int pg_pump_fd(struct hfi_conn *base)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    int fd;

    if (pc->sql.strategy == SQL_ROW)
        return sql_row_pump_fd(&pc->sql);
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

/* Anybody may NOTIFY, so a payload is as good as it reads, and a hint. */
static void wake_heard(struct hfi_conn *base, const char *payload)
{
    char key[HF_KEY_MAX + 1];
    const char *at = payload + 1;
    size_t len = 0;

    while (payload[0] && len < HF_KEY_MAX && at[0] && at[1] &&
           wake_digit(at[0]) >= 0 && wake_digit(at[1]) >= 0) {
        key[len++] = (char)(wake_digit(at[0]) * 16 + wake_digit(at[1]));
        at += 2;
    }
    key[len] = '\0';
    if (payload[0] == 'f')
        hfi_wake(base, key, NULL);
    else if (payload[0] == 'w')
        hfi_wanted(base, key);
}

void pg_pump(struct hfi_conn *base)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    PGnotify *note;
    bool lost;

    if (pc->sql.strategy == SQL_ROW) {
        sql_row_pump(&pc->sql);
        return;
    }
    pthread_mutex_lock(&pc->wake_mu);
    lost = pc->listener && (!PQconsumeInput(pc->listener) ||
                            PQstatus(pc->listener) != CONNECTION_OK);
    while (pc->listener && (note = PQnotifies(pc->listener))) {
        wake_heard(base, note->extra);
        PQfreemem(note);
    }
    if (lost)
        pg_unlisten(pc);
    pthread_mutex_unlock(&pc->wake_mu);
    if (lost)
        hfi_wake_all(base);
}
