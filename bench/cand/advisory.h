/* SPDX-License-Identifier: MIT
 *
 * advisory.h - the lock functions of SQL servers.
 */
#ifndef ADVISORY_H
#define ADVISORY_H

#include "cand.h"

/* Take and give, contended or not, by the server's own lock function. */
void advisory_become(struct cand_kind *, const char *where);

#endif
