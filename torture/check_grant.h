/* SPDX-License-Identifier: MIT
 *
 * check_grant.h - a history as grants; shared by the parts of the checker.
 */
#ifndef CHECK_GRANT_H
#define CHECK_GRANT_H

#include "check.h"

/* One acquisition that ended with the lock. */
struct grant {
    int key, process, life, thread;
    unsigned asked; /* enum ask */
    int64_t ask, got;
    int64_t until; /* believed to hold until here; INT64_MAX: no end */
    int64_t renew; /* the last renewal was sent after this; 0: none was */
    int64_t free;  /* the release began; 0: never */
    bool freed_ok;
    uint64_t fence;
    const struct event *ask_event, *got_event, *end_event, *renew_event;
};

struct grants {
    struct grant *all;
    size_t count;
};

/* Also counts the figures, and those who were refused while they believed.
 * False: no memory. */
bool grants_build(const struct history *history, struct verdict *v,
                  struct grants *ret);

/* Of one client, one owner, or the second has taken up what the first left. */
bool grants_may_share(const struct grant *a, const struct grant *b);

/* One more violation; NULL lines are left out. */
void check_found(struct verdict *v, enum check_kind kind,
                 const struct event *const *events, int count, const char *fmt,
                 ...) __attribute__((format(printf, 5, 6)));

/* check_key.c: the grants of one key */
bool check_key(struct verdict *v, struct grant *grants, size_t count);

/* check_rest.c: the register, and what follows the faults */
bool check_register(struct verdict *v, const struct history *history);
bool check_live(struct verdict *v, const struct history *history);
void check_left(struct verdict *v, const struct history *history);

#endif
