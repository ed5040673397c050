/* SPDX-License-Identifier: MIT
 *
 * statements.c - the statements of sqlite:, which stand in the files NAME.sql.
 * scripts/embed makes strings of them, in texts.h.
 */
#include "sqlite.h"

#include "backend/sql/sqlite/texts.h"

#include "base/banned.h"

/* Verifying a table takes a longer text than C99 obliges a compiler to take. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

/* The same with both strategies; what differs they choose. */
#define LITE_HOLDERS                                                           \
    [SQL_CREATE_HOLDERS] = HOLDERS_CREATE,                                     \
    [SQL_VERIFY_HOLDERS] = (VERIFY_HOLDERS VERIFY_TABLE),                      \
    [SQL_ENTER] = HOLDERS_ENTER, [SQL_DOOR] = HOLDERS_DOOR,                    \
    [SQL_DOOR_END] = HOLDERS_DOOR_END, [SQL_STAY] = HOLDERS_STAY,              \
    [SQL_LEAVE] = HOLDERS_LEAVE, [SQL_SPOIL] = HOLDERS_BREAK,                  \
    [SQL_TAKE_UP] = HOLDERS_TAKE, [SQL_DOWNGRADE] = HOLDERS_DOWNGRADE,         \
    [SQL_KEEP] = HOLDERS_KEEP, [SQL_HOLDERS] = HOLDERS_LOOK,                   \
    [SQL_HOLDERS_ALL] = HOLDERS_LIST

const char *const lite_lease_texts[SQL_STMTS] = {
    [SQL_CREATE] = LEASE_CREATE,
    [SQL_ACQUIRE] = LEASE_ACQUIRE,
    [SQL_RENEW] = LEASE_RENEW,
    [SQL_RENEW_MANY] = LEASE_RENEW_MANY,
    [SQL_RELEASE] = LEASE_RELEASE,
    [SQL_BREAK] = LEASE_BREAK,
    [SQL_FREE] = LEASE_FREE,
    [SQL_TAKE] = LEASE_TAKE,
    [SQL_LOOK] = LEASE_LOOK,
    [SQL_LIST] = LEASE_LIST,
    [SQL_WANT] = LEASE_WANT,
    [SQL_VERIFY] = (VERIFY_LEASE VERIFY_TABLE),
    LITE_HOLDERS,
};

const char *const lite_version_texts[SQL_STMTS] = {
    [SQL_CREATE] = VERSION_CREATE,
    [SQL_ACQUIRE] = VERSION_ACQUIRE,
    [SQL_RENEW] = VERSION_RENEW,
    [SQL_RENEW_MANY] = VERSION_RENEW_MANY,
    [SQL_RELEASE] = VERSION_RELEASE,
    [SQL_BREAK] = VERSION_BREAK,
    [SQL_FREE] = VERSION_FREE,
    [SQL_TAKE] = VERSION_TAKE,
    [SQL_LOOK] = VERSION_LOOK,
    [SQL_LIST] = VERSION_LIST,
    [SQL_WANT] = VERSION_WANT,
    [SQL_VERIFY] = (VERIFY_VERSION VERIFY_TABLE),
    LITE_HOLDERS,
};
