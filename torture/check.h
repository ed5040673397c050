/* SPDX-License-Identifier: MIT
 *
 * check.h - judge a history.
 *
 * Every grant has a fence, so nothing has to be guessed about the order in which
 * things happened, and each promise is one sorted sweep, O(n log n):
 *
 *   fence-unique    no two clients were given the same fence of a key
 *   fence-order     who asked after another had got has the greater fence
 *   grant-order     grants that follow each other have rising fences
 *   overlap         no two believe at once: from got until the release begins,
 *                   or the believed end, or the loss is told, or death
 *   stranger        no release or renewal succeeded that began after another
 *                   had been granted the key
 *   register-back   the register's fences never fall
 *   register-lost   no two writes to the register made the same value
 *   refused         the register never refused one who believed
 *   turns           a client handed a grant on inside itself at most so often
 *   late            after the faults, everyone gets within twice the lease
 *                   (twice that where HF_TRAIT_TWICE says so), `slack`, and
 *                   what a busy machine has kept from the run
 *   left            nothing is left in the service but places of the killed
 *
 * Where a fault may cost exclusion (promise=fence: a fail-over of asynchronous
 * replication, lost data, a server's clock that jumps), grant-order, overlap
 * and refused are counted but are no violations: the fence decides.
 *
 * Orders that were not kept by a service that promises a queue are counted, no
 * more: a waiter whose place was lost to a fault goes to the end of it.
 */
#ifndef CHECK_H
#define CHECK_H

#include "history.h"

#define CHECK_KINDS(X)                                                         \
    X(fence_unique, "fence-unique", "two clients were given one fence")        \
    X(fence_order, "fence-order", "a later grant has a smaller fence")         \
    X(grant_order, "grant-order", "grants in a row, fences that do not rise")  \
    X(overlap, "overlap", "two believed to hold at once")                      \
    X(stranger, "stranger", "who had been followed could release or renew")    \
    X(register_back, "register-back", "the register's fence went back")        \
    X(register_lost, "register-lost", "the register lost an update")           \
    X(refused, "refused", "the register refused one who believed")             \
    X(turns, "turns", "handed on too often inside one client")                 \
    X(late, "late", "not granted in time after the faults were over")          \
    X(left, "left", "something was left in the service")

enum check_kind {
#define X(name, word, text) K_##name,
    CHECK_KINDS(X)
#undef X
        K_COUNT
};

/* How many violations of a kind are shown with their lines. */
enum { CHECK_SHOWN = 3, CHECK_LINES = 6 };

struct evidence {
    char text[200];
    const char *lines[CHECK_LINES];
    int count;
};

struct finding {
    int64_t count;
    struct evidence shown[CHECK_SHOWN];
};

/* What the line `begin` says. */
struct setup {
    int64_t ttl_ms, turns, slack_ms;
    bool fenced, queued, twice;
    bool by_fence; /* promise=fence */
    int processes, threads, keys;
};

struct figures {
    int64_t operations; /* acquisitions, renewals, releases, register */
    int64_t asked, granted, failed, kept, released, lost;
    int64_t writes, refused, plain, damaged;
    int64_t faults, kills;
    int64_t inversions;
    int64_t slowest_us; /* to be granted after the faults */
    int64_t span_us;
};

struct verdict {
    struct setup setup;
    struct figures figures;
    struct finding findings[K_COUNT];
    int64_t violations; /* of the promise that was made */
    bool enough;        /* something happened that could have gone wrong */
};

/* False: no memory, or the history has no beginning. */
bool check_history(const struct history *history, struct verdict *ret);

const char *check_kind_name(enum check_kind kind);
bool check_counts(const struct setup *setup, enum check_kind kind);

/* Figures, evidence and the verdict, for people. */
void check_print(const struct verdict *verdict, FILE *out);

/* 0 clean, 1 violated, 3 too little happened. */
int check_exit(const struct verdict *verdict);

#endif
