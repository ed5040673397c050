/* SPDX-License-Identifier: MIT
 *
 * statements.c - the statements of mysql:, which stand in the files NAME.sql.
 * scripts/embed makes strings of them, in texts.h.
 */
#include "mysql.h"

#include "backend/sql/mysql/texts.h"
#include "backend/sql/slots.h"

#include "base/banned.h"

/* Verifying a table takes a longer text than C99 obliges a compiler to take. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

/* What a table must be, by its columns and those that it must not have. */
#define MY_VERIFY(columns, others)                                             \
    (VERIFY_FIRST columns VERIFY_MIDDLE others VERIFY_LAST                     \
     " " VERIFY_KEY VERIFY_KEYLESS " " VERIFY_OTHERS VERIFY_KEY VERIFY_END)
#define MY_VERIFY_HOLDERS                                                      \
    (VERIFY_FIRST VERIFY_HOLDERS VERIFY_MIDDLE VERIFY_HOLDERS_NOT VERIFY_LAST  \
     " " VERIFY_KEY_HOLDERS VERIFY_KEYLESS_HOLDERS                             \
     " " VERIFY_OTHERS VERIFY_KEY_HOLDERS VERIFY_END)

#define MY_VERIFY_QUEUE                                                        \
    (VERIFY_FIRST VERIFY_QUEUE VERIFY_MIDDLE VERIFY_HOLDERS_NOT VERIFY_LAST    \
     " " VERIFY_KEY_HOLDERS VERIFY_KEYLESS_HOLDERS                             \
     " " VERIFY_OTHERS VERIFY_KEY_HOLDERS VERIFY_END)

/* With both strategies. */
#define MY_BOTH                                                                \
    [SQL_VERIFY_HOLDERS] = MY_VERIFY_HOLDERS,                                  \
    [SQL_SHOW_HOLDERS] = VERIFY_SHOW_HOLDERS, [SQL_SHOW] = VERIFY_SHOW

const char *const my_lease_texts[SQL_STMTS] = {
    SQL_SLOTS(LEASE),
    [SQL_RENEW_SKIP] = LEASE_RENEW_SKIP,
    [SQL_KILL] = LEASE_KILL,
    [SQL_VERIFY] = MY_VERIFY(VERIFY_LEASE, VERIFY_LEASE_NOT),
    MY_BOTH,
};

const char *const my_version_texts[SQL_STMTS] = {
    SQL_SLOTS(VERSION),
    [SQL_RENEW_SKIP] = VERSION_RENEW_SKIP,
    [SQL_KILL] = VERSION_KILL,
    [SQL_VERIFY] = MY_VERIFY(VERIFY_VERSION, VERIFY_VERSION_NOT),
    MY_BOTH,
};

const char *const my_row_texts[SQL_STMTS] = {
    SQL_SLOTS_ROW,
    [SQL_VERIFY] = MY_VERIFY(VERIFY_ROW, VERIFY_ROW_NOT),
    [SQL_VERIFY_FENCE] = MY_VERIFY(VERIFY_FENCE, VERIFY_FENCE_NOT),
    [SQL_SHOW] = VERIFY_SHOW,
    [SQL_SHOW_FENCE] = VERIFY_SHOW_FENCE,
};

/* In place of the others where there is a queue. */
const char *const my_queue_texts[SQL_STMTS] = {
    SQL_SLOTS_QUEUE,
    [SQL_VERIFY_QUEUE] = MY_VERIFY_QUEUE,
    [SQL_SHOW_QUEUE] = VERIFY_SHOW_QUEUE,
    [SQL_RETAKE] = QUEUE_RETAKE,
    [SQL_PEEK] = QUEUE_PEEK,
    [SQL_TICKET] = QUEUE_TICKET,
};
