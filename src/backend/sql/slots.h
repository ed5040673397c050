/* SPDX-License-Identifier: MIT
 *
 * slots.h - which statements every database has, by the names that they have in
 * its files NAME.sql.  Each adds its own; enum sql_stmt says what they do.
 */
#ifndef HFI_BACKEND_SQL_SLOTS_H
#define HFI_BACKEND_SQL_SLOTS_H

/* Of a strategy, LEASE or VERSION. */
#define SQL_SLOTS(STRATEGY)                                                    \
    [SQL_CREATE] = STRATEGY##_CREATE, [SQL_ACQUIRE] = STRATEGY##_ACQUIRE,      \
    [SQL_RENEW] = STRATEGY##_RENEW, [SQL_RENEW_MANY] = STRATEGY##_RENEW_MANY,  \
    [SQL_RELEASE] = STRATEGY##_RELEASE, [SQL_BREAK] = STRATEGY##_BREAK,        \
    [SQL_FREE] = STRATEGY##_FREE, [SQL_TAKE] = STRATEGY##_TAKE,                \
    [SQL_LOOK] = STRATEGY##_LOOK, [SQL_LIST] = STRATEGY##_LIST,                \
    [SQL_COLLECT_LOOK] = COLLECT_LOOK, [SQL_COLLECT] = COLLECT_REMOVE,         \
    SQL_SLOTS_HOLDERS

/* The same with both strategies; what differs they choose. */
#define SQL_SLOTS_HOLDERS                                                      \
    [SQL_COLLECT_HOLDERS] = COLLECT_HOLDERS,                                   \
    [SQL_CREATE_HOLDERS] = HOLDERS_CREATE, [SQL_ENTER] = HOLDERS_ENTER,        \
    [SQL_REENTER] = REENTER_JOIN, [SQL_DOOR] = HOLDERS_DOOR,                   \
    [SQL_DOOR_END] = HOLDERS_DOOR_END, [SQL_STAY] = HOLDERS_STAY,              \
    [SQL_LEAVE] = HOLDERS_LEAVE, [SQL_SPOIL] = HOLDERS_BREAK,                  \
    [SQL_TAKE_UP] = HOLDERS_TAKE, [SQL_DOWNGRADE] = HOLDERS_DOWNGRADE,         \
    [SQL_KEEP] = HOLDERS_KEEP, [SQL_HOLDERS] = HOLDERS_LOOK,                   \
    [SQL_HOLDERS_ALL] = HOLDERS_LIST

/* In place of the others where there is a queue. */
#define SQL_SLOTS_QUEUE                                                        \
    [SQL_CREATE_QUEUE] = QUEUE_CREATE, [SQL_COLLECT_QUEUE] = COLLECT_QUEUE,    \
    [SQL_ACQUIRE] = QUEUE_ACQUIRE, [SQL_RELEASE] = QUEUE_RELEASE,              \
    [SQL_JOIN] = QUEUE_JOIN, [SQL_PASS] = QUEUE_PASS,                          \
    [SQL_PROMOTE] = PROMOTE_PLAIN, [SQL_PROMOTE_HOLDER] = PROMOTE_HOLDER,      \
    [SQL_ENTER] = QUEUE_ENTER, [SQL_LEAVE] = QUEUE_LEAVE,                      \
    [SQL_ADMIT] = QUEUE_ADMIT, [SQL_LOOK] = QUEUE_LOOK,                        \
    [SQL_LIST] = QUEUE_LIST, [SQL_WAITERS] = QUEUE_WAITERS

/* Of strategy row, which SQLite has not. */
#define SQL_SLOTS_ROW                                                          \
    [SQL_CREATE] = ROW_CREATE, [SQL_CREATE_FENCE] = ROW_CREATE_FENCE,          \
    [SQL_RENEW] = ROW_RENEW, [SQL_RENEW_MANY] = ROW_RENEW_MANY,                \
    [SQL_BREAK] = ROW_BREAK, [SQL_KILL] = ROW_KILL, [SQL_LOOK] = ROW_LOOK,     \
    [SQL_LIST] = ROW_LIST, [SQL_LOCK] = ROW_LOCK, [SQL_MAKE] = ROW_MAKE,       \
    [SQL_SIGN] = ROW_SIGN, [SQL_UNSIGN] = ROW_UNSIGN, [SQL_END] = ROW_END

#endif
