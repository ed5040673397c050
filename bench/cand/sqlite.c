/* SPDX-License-Identifier: MIT
 *
 * sqlite.c - SQLite has no lock functions.
 */
#include "advisory.h"

void advisory_become(struct cand_kind *kind, const char *where)
{
    bench_die("%s: %s has no advisory locks", where, kind->name);
}
