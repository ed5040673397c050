/* SPDX-License-Identifier: MIT
 *
 * statements.c - the statements of postgres:, which stand in the files
 * NAME.sql. scripts/embed makes strings of them, in texts.h.
 */
#include "postgres.h"

#include "backend/sql/postgres/texts.h"
#include "backend/sql/slots.h"

#include "base/banned.h"

/* Verifying a table takes a longer text than C99 obliges a compiler to take. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

/* With both strategies. */
#define PG_BOTH                                                                \
    [SQL_VERIFY_HOLDERS] = (VERIFY_HOLDERS VERIFY_TABLE),                      \
    [SQL_MAKE_ALL] = SEVERAL_MAKE, [SQL_TAKE_ALL] = SEVERAL_TAKE

const char *const pg_lease_texts[SQL_STMTS] = {
    SQL_SLOTS(LEASE),
    [SQL_KILL] = LEASE_KILL,
    [SQL_VERIFY] = (VERIFY_LEASE VERIFY_TABLE),
    PG_BOTH,
};

const char *const pg_version_texts[SQL_STMTS] = {
    SQL_SLOTS(VERSION),
    [SQL_KILL] = VERSION_KILL,
    [SQL_VERIFY] = (VERIFY_VERSION VERIFY_TABLE),
    PG_BOTH,
};

/* In place of the others where there is a queue. */
const char *const pg_queue_texts[SQL_STMTS] = {
    SQL_SLOTS_QUEUE,
    [SQL_VERIFY_QUEUE] = (VERIFY_QUEUE VERIFY_TABLE),
    [SQL_RETAKE] = QUEUE_RETAKE,
    [SQL_BREAK] = OBSERVE_BREAK,
    [SQL_TAKE] = OBSERVE_TAKE,
    [SQL_OBSERVE] = OBSERVE_BEGIN,
    [SQL_UNOBSERVE] = OBSERVE_END,
    [SQL_TICKET] = QUEUE_TICKET,
    [SQL_HAND] = QUEUE_HAND,
    [SQL_LINGER] = QUEUE_LINGER,
};

const char *const pg_row_texts[SQL_STMTS] = {
    SQL_SLOTS_ROW,
    [SQL_FREE] = ROW_FREE,
    [SQL_STANDS] = ROW_STANDS,
    [SQL_VERIFY] = (VERIFY_ROW VERIFY_TABLE),
    [SQL_VERIFY_FENCE] = (VERIFY_FENCE VERIFY_TABLE),
};
