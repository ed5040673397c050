/* SPDX-License-Identifier: MIT
 *
 * statements.c - the statements of sqlite:, which stand in the files NAME.sql.
 * scripts/embed makes strings of them, in texts.h.
 */
#include "sqlite.h"

#include "backend/sql/slots.h"
#include "backend/sql/sqlite/texts.h"

#include "base/banned.h"

/* Verifying a table takes a longer text than C99 obliges a compiler to take. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

/* With both strategies. */
#define LITE_BOTH                                                              \
    [SQL_VERIFY_HOLDERS] = (VERIFY_HOLDERS VERIFY_TABLE),                      \
    [SQL_OBSERVE] = OBSERVE_SETTLE, [SQL_TAKE_ALL] = SEVERAL_TAKE

const char *const lite_lease_texts[SQL_STMTS] = {
    SQL_SLOTS(LEASE),
    [SQL_WANT] = LEASE_WANT,
    [SQL_VERIFY] = (VERIFY_LEASE VERIFY_TABLE),
    LITE_BOTH,
};

const char *const lite_version_texts[SQL_STMTS] = {
    SQL_SLOTS(VERSION),
    [SQL_WANT] = VERSION_WANT,
    [SQL_VERIFY] = (VERIFY_VERSION VERIFY_TABLE),
    LITE_BOTH,
};

/* In place of the others where there is a queue. */
const char *const lite_queue_texts[SQL_STMTS] = {
    SQL_SLOTS_QUEUE,         [SQL_VERIFY_QUEUE] = (VERIFY_QUEUE VERIFY_TABLE),
    [SQL_PEEK] = QUEUE_PEEK, [SQL_TICKET] = QUEUE_TICKET,
    [SQL_HAND] = QUEUE_HAND, [SQL_LINGER] = QUEUE_LINGER,
};
