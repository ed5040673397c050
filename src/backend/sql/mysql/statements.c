/* SPDX-License-Identifier: MIT
 *
 * statements.c - the statements of mysql:, which stand in the files NAME.sql.
 * scripts/embed makes strings of them, in texts.h.
 */
#include "mysql.h"

#include "backend/sql/mysql/texts.h"

#include "base/banned.h"

const char *const my_lease_texts[SQL_STMTS] = {
    [SQL_CREATE] = LEASE_CREATE,
    [SQL_ACQUIRE] = LEASE_ACQUIRE,
    [SQL_RENEW] = LEASE_RENEW,
    [SQL_RENEW_MANY] = LEASE_RENEW_MANY,
    [SQL_RENEW_SKIP] = LEASE_RENEW_SKIP,
    [SQL_RELEASE] = LEASE_RELEASE,
    [SQL_BREAK] = LEASE_BREAK,
    [SQL_FREE] = LEASE_FREE,
    [SQL_TAKE] = LEASE_TAKE,
    [SQL_KILL] = LEASE_KILL,
    [SQL_LOOK] = LEASE_LOOK,
    [SQL_LIST] = LEASE_LIST,
    [SQL_VERIFY] = VERIFY_FIRST VERIFY_LEASE VERIFY_LAST,
    [SQL_SHOW] = VERIFY_SHOW,
};

const char *const my_version_texts[SQL_STMTS] = {
    [SQL_CREATE] = VERSION_CREATE,
    [SQL_ACQUIRE] = VERSION_ACQUIRE,
    [SQL_RENEW] = VERSION_RENEW,
    [SQL_RENEW_MANY] = VERSION_RENEW_MANY,
    [SQL_RENEW_SKIP] = VERSION_RENEW_SKIP,
    [SQL_RELEASE] = VERSION_RELEASE,
    [SQL_BREAK] = VERSION_BREAK,
    [SQL_FREE] = VERSION_FREE,
    [SQL_TAKE] = VERSION_TAKE,
    [SQL_KILL] = VERSION_KILL,
    [SQL_LOOK] = VERSION_LOOK,
    [SQL_LIST] = VERSION_LIST,
    [SQL_VERIFY] = VERIFY_FIRST VERIFY_VERSION VERIFY_LAST,
    [SQL_SHOW] = VERIFY_SHOW,
};

const char *const my_row_texts[SQL_STMTS] = {
    [SQL_CREATE] = ROW_CREATE,
    [SQL_CREATE_FENCE] = ROW_CREATE_FENCE,
    [SQL_RENEW] = ROW_RENEW,
    [SQL_RENEW_MANY] = ROW_RENEW_MANY,
    [SQL_BREAK] = ROW_BREAK,
    [SQL_KILL] = ROW_KILL,
    [SQL_LOOK] = ROW_LOOK,
    [SQL_LIST] = ROW_LIST,
    [SQL_LOCK] = ROW_LOCK,
    [SQL_MAKE] = ROW_MAKE,
    [SQL_SIGN] = ROW_SIGN,
    [SQL_UNSIGN] = ROW_UNSIGN,
    [SQL_END] = ROW_END,
    [SQL_VERIFY] = VERIFY_FIRST VERIFY_ROW VERIFY_LAST,
    [SQL_VERIFY_FENCE] = VERIFY_FIRST VERIFY_FENCE VERIFY_LAST,
    [SQL_SHOW] = VERIFY_SHOW,
    [SQL_SHOW_FENCE] = VERIFY_SHOW_FENCE,
};
