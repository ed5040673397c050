/* SPDX-License-Identifier: MIT
 *
 * statements.c - the statements of sqlite:, which stand in the files NAME.sql.
 * scripts/embed makes strings of them, in texts.h.
 */
#include "sqlite.h"

#include "backend/sql/sqlite/texts.h"

#include "base/banned.h"

const char *const lite_lease_texts[SQL_STMTS] = {
    [SQL_CREATE] = LEASE_CREATE,   [SQL_ACQUIRE] = LEASE_ACQUIRE,
    [SQL_RENEW] = LEASE_RENEW,     [SQL_RENEW_MANY] = LEASE_RENEW_MANY,
    [SQL_RELEASE] = LEASE_RELEASE, [SQL_BREAK] = LEASE_BREAK,
    [SQL_FREE] = LEASE_FREE,       [SQL_TAKE] = LEASE_TAKE,
    [SQL_LOOK] = LEASE_LOOK,       [SQL_LIST] = LEASE_LIST,
    [SQL_WANT] = LEASE_WANT,       [SQL_VERIFY] = (VERIFY_LEASE VERIFY_TABLE),
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
};
