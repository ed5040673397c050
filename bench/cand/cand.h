/* SPDX-License-Identifier: MIT
 *
 * cand.h - a candidate of the benchmark, at the end of a pipe.
 *
 * bench/compare starts each candidate as a process of its own, whatever language it
 * is written in, and asks it for work, one line a question:
 *
 *   pairs N KEY       take and give KEY, N times    ok NS...  (each pair's time)
 *   many T MS         T threads, each on its own    ok COUNT NS
 *                     key, for MS milliseconds
 *   found KEY         make KEY ready for contend    ok
 *   contend AT MS KEY from the instant AT, for MS:  ok ASKED GOT LEFT...
 *                     wait for KEY, pass it on      (three instants a turn)
 *   take KEY          take it and keep it           ok
 *   wait KEY          the same, but wait for it     ok, once it has it
 *   give KEY          give back what take or wait   ok
 *                     took
 *   hold N TTL MS     take N locks of TTL ms and    ok GOT NS BYTES
 *                     keep them; stop after MS
 *   drop MS           give them back; stop after MS ok LOST GIVEN
 *   watch KEY TTL     take KEY and mind it          ok, later: lost NS
 *
 * Instants are nanoseconds of CLOCK_MONOTONIC, the same in all processes of the
 * machine.  `no WHY` answers what a candidate cannot do.  It begins with
 * `ready VERSION` and ends when its input does.
 *
 * In C, a candidate fills this table and calls cand_main().
 */
#ifndef CAND_H
#define CAND_H

#include "../bench.h"

struct cand_kind {
    const char *name;
    const char *(*version)(void);

    /* What one thread uses.  All end the program when they fail. */
    void *(*open)(void);
    void (*close)(void *conn);

    /* Nobody else wants the key. */
    void (*take)(void *conn, const char *key);
    void (*give)(void *conn, const char *key);

    /* Others want it, too.  NULL: this candidate cannot wait. */
    void (*found)(void *conn, const char *key);
    void (*await)(void *conn, const char *key);
    void (*pass)(void *conn, const char *key);

    /* Optional: another way to do `many`; returns how many pairs. */
    long (*many)(int threads, int64_t until);

    /* Optional: what else it can do.  False: it does not know the word. */
    bool (*other)(void *conn, char **words, int n);
};

int cand_main(const struct cand_kind *);

/* Answer in `other`; one call is one line. */
void cand_answer(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
