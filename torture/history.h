/* SPDX-License-Identifier: MIT
 *
 * history.h - what happened, one line per event.
 *
 *     TIME WHO WHAT KEY FENCE NUMBER TEXT
 *
 *   TIME    microseconds on CLOCK_BOOTTIME, of one machine
 *   WHO     PROCESS.LIFE.THREAD; a process that is started again has another
 *           life; 0.0.0 is the nemesis
 *   WHAT    see enum what
 *   KEY     from 1 on; 0: none
 *   FENCE   of the grant; 0: none
 *   NUMBER  depends on WHAT; 0: none
 *   TEXT    one word, or NAME=VALUE words for begin; -: none
 *
 * Each process appends to a file of its own, one write(2) per line, so a killed
 * one has lost nothing that it had said.  history_merge() sorts the files into
 * one; lines that begin with # are for people.
 */
#ifndef HISTORY_H
#define HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* X(name, meaning): the words of a history. */
#define HISTORY_WORDS(X)                                                       \
    X(begin, "the run begins; TEXT tells how it is set up")                    \
    X(ask, "an acquisition begins; NUMBER is a set of enum ask bits")          \
    X(no, "it ends without the lock; TEXT is the status")                      \
    X(got, "it ends with the lock, believed until NUMBER (-1: for ever)")      \
    X(kept, "the lease was renewed, believed until NUMBER")                    \
    X(extend, "a renewal by hand begins, to NUMBER ms; 0: as it is")           \
    X(extended, "it ends; believed until NUMBER; TEXT is the status")          \
    X(read, "the register showed NUMBER to this fence")                        \
    X(write, "the register took NUMBER from this fence")                       \
    X(refuse, "the register refused: it has seen the fence NUMBER")            \
    X(plain, "NUMBER was written to the register that asks for no fence")      \
    X(detach, "the holder leaves it in the service")                           \
    X(detached, "that ends; TEXT is the status")                               \
    X(lost, "the holder knows that it is lost; TEXT is the reason")            \
    X(free, "a release begins")                                                \
    X(freed, "it ends; TEXT is the status")                                    \
    X(fault, "TEXT happens, to the process or server NUMBER")                  \
    X(heal, "and is over")                                                     \
    X(broke, "an operator broke the grant with fence NUMBER of KEY")           \
    X(kill, "process NUMBER is about to be killed")                            \
    X(killed, "and is dead")                                                   \
    X(calm, "there will be no more faults")                                    \
    X(left, "NUMBER of KEY are left; TEXT is holders or places")               \
    X(end, "the run is over; the machine was busy for NUMBER ms of the calm")

enum what {
#define X(name, meaning) W_##name,
    HISTORY_WORDS(X)
#undef X
        W_COUNT
};

/* Bits of the NUMBER of ask. */
enum ask {
    ASK_FAIR = 1,
    ASK_LINGER = 2,
    ASK_MANUAL = 4,
    ASK_LENGTHS = 8, /* leases of other lengths */
    ASK_HANDLE = 16, /* it will be left to others */
    ASK_ATTACH = 32, /* it was left by another, with this fence */
    ASK_RUN = 64     /* a command under `holdfast run' or `elect' */
};

/* The owner id is a number from 1 to 6; 0: none.  Those who share are a group
 * as those of one owner are, with a fence each. */
#define ASK_OWNER(n)      ((n) << 8)
#define ASK_OWNER_OF(ask) (((ask) >> 8) & 7)
#define ASK_SHARED        ASK_OWNER(7u)

/* A command under `holdfast run' counts as a process of its own, and so does
 * one under `holdfast elect', where each term has a life of its own. */
enum { RUN_PROCESS = 100, ELECT_PROCESS = 200 };

struct who {
    int process, life, thread;
};

struct event {
    int64_t time;
    struct who who;
    enum what what;
    int key;
    uint64_t fence;
    int64_t number;
    const char *text; /* in the history's own memory */
    const char *line; /* the whole line, for evidence */
};

/* ---- writing ----------------------------------------------------------- */

int64_t history_now(void); /* us on CLOCK_BOOTTIME, whatever is preloaded */

/* The file of one process in `dir`; -1: errno says why. */
int history_open(const char *dir, int process, int life);
void history_log(int fd, struct who who, enum what what, int key,
                 uint64_t fence, int64_t number, const char *text);

/* ---- reading ----------------------------------------------------------- */

struct history {
    struct event *events; /* by time */
    size_t count;
    char *text;   /* what was read, with lines cut in place */
    char *copies; /* the lines as they were */
};

/* Sort all files of `dir` into `path`.  False: errno says why. */
bool history_merge(const char *dir, const char *path);

/* Read a history.  False if it cannot be read or a line makes no sense; then
 * `why` says which. */
bool history_load(const char *path, struct history *ret, char *why,
                  size_t size);
void history_free(struct history *history);

#endif
