/* SPDX-License-Identifier: MIT
 *
 * t.h - a small test runner.
 *
 *     TEST(a_second_try_is_busy)
 *     {
 *         CHECK_STATUS(hf_acquire(client, "k", 0, NULL, &lk, &t_err), HF_BUSY);
 *     }
 *
 * A test's name is a promise in words.  Each test runs in a process and a
 * process group of its own, with a time limit; when it is over the group is
 * killed, its temporary directory is removed, and nothing of it survives.  The
 * result is TAP on stdout; what a test prints is shown when it fails.  With
 * HF_TEST_JOBS=N in the environment N tests run at a time: only where they do
 * not mind each other, as those of the conformance suite, whose keys differ.
 *
 * A failed check ends the process that made it, at once and from any thread:
 * there is nothing to unwind in a process that is thrown away.  So checks may
 * stand in threads and in children made by t_fork(), whose failure t_join()
 * hands on.
 *
 * A test that returns must have put everything back: a descriptor or a thread
 * more than at its start is a failure, and under a sanitizer so is a leak.
 */
#ifndef T_H
#define T_H

#include "holdfast.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct t_case {
    const char *name;
    void (*fn)(void);
    int limit_s;
    struct t_case *next;
};

void t_register(struct t_case *one);

#define TEST_TIMEOUT(name, seconds)                                            \
    static void name(void);                                                    \
    static struct t_case t_case_##name = {#name, name, seconds, NULL};         \
    __attribute__((constructor)) static void t_register_##name(void)           \
    {                                                                          \
        t_register(&t_case_##name);                                            \
    }                                                                          \
    static void name(void)

#define TEST(name) TEST_TIMEOUT(name, 60)

/* Run the tests whose names contain one of the arguments (all without any):
 * `-l` lists them, `-v` shows what they print also when they succeed, and
 * `-pK/N` runs part K, from 0 on, of N parts that have all tests together. */
int t_main(int argc, char **argv);

#define T_MAIN                                                                 \
    int main(int argc, char **argv)                                            \
    {                                                                          \
        return t_main(argc, argv);                                             \
    }

/* ---- checks ------------------------------------------------------------ */

/* The error of the last call, for CHECK_STATUS() to print: pass &t_err. */
extern _Thread_local struct hf_error t_err;

_Noreturn void t_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void t_check_int(const char *file, int line, const char *what, intmax_t a,
                 const char *op, intmax_t b, bool ok);
void t_check_str(const char *file, int line, const char *what, const char *a,
                 const char *b);
void t_check_status(const char *file, int line, const char *what, hf_status got,
                    hf_status want);

#define CHECK(cond)                                                            \
    do {                                                                       \
        if (!(cond))                                                           \
            t_fail(__FILE__, __LINE__, "%s", #cond);                           \
    } while (0)

#define T_CHECK_OP(a, op, b)                                                   \
    do {                                                                       \
        intmax_t t_a = (intmax_t)(a), t_b = (intmax_t)(b);                     \
                                                                               \
        t_check_int(__FILE__, __LINE__, #a " " #op " " #b, t_a, #op, t_b,      \
                    t_a op t_b);                                               \
    } while (0)

#define CHECK_EQ(a, b) T_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) T_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) T_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) T_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) T_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) T_CHECK_OP(a, >=, b)

#define CHECK_STR(a, b) t_check_str(__FILE__, __LINE__, #a " is " #b, a, b)

/* Also: any other status than HF_OK comes with one line of text in t_err, if
 * the call was given &t_err. */
#define CHECK_STATUS(expr, want)                                               \
    do {                                                                       \
        t_err = (struct hf_error){HF_OK, 0, ""};                               \
        t_check_status(__FILE__, __LINE__, #expr, (expr), (want));             \
    } while (0)

#define CHECK_OK(expr) CHECK_STATUS(expr, HF_OK)

/* Fail unless `cond` comes true within `ms`; sleeps a little in between. */
#define t_poll_until(cond, ms)                                                 \
    do {                                                                       \
        int64_t t_end = t_now_ms() + (ms);                                     \
                                                                               \
        while (!(cond)) {                                                      \
            if (t_now_ms() > t_end)                                            \
                t_fail(__FILE__, __LINE__, "not within %lld ms: %s",           \
                       (long long)(ms), #cond);                                \
            t_sleep_ms(2);                                                     \
        }                                                                      \
    } while (0)

/* End the test as skipped.  There are two honest reasons: the service does not
 * promise it, or this host does not let the test set its scene. */
_Noreturn void t_skip(const char *kind, const char *what);

#define T_SKIP_TRAIT(what) t_skip("no trait", what)
#define T_SKIP_HOST(what)  t_skip("this host", what)

/* ---- helpers ----------------------------------------------------------- */

extern const bool t_thread_sanitizer; /* this is a build with it */

int64_t t_now_ms(void); /* CLOCK_BOOTTIME */
void t_sleep_ms(int64_t ms);

/* This test's own directory, removed at the end. */
const char *t_tmpdir(void);

/* n, made smaller by $HF_TEST_SCALE (in percent) but at least `least`. */
int t_scaled(int n, int least);

/* How many descriptors and threads this process has. */
int t_count_fds(void);
int t_count_threads(void);

/* A page that this process and its later children share, zeroed. */
void *t_shared(size_t size);

/* Another process, and the line to it: each message is one number. */
struct t_peer {
    pid_t pid;
    int fd;
};

/* Run fn(up, arg) in a child, which then exits with 0.  Fork before you open
 * a client: handles are dead in a child. */
struct t_peer t_fork(void (*fn)(struct t_peer *up, void *arg), void *arg);
void t_tell(struct t_peer *peer, int64_t word);
int64_t t_hear(struct t_peer *peer); /* fails after 60 s or at its end */
bool t_try_hear(struct t_peer *peer, int64_t ms, int64_t *ret);
void t_join(struct t_peer *peer); /* fails unless it exits with 0 */
void t_kill(struct t_peer *peer); /* SIGKILL, and wait until it is gone */

/* SIGSTOP, and wait until it stands still: on a busy machine a process goes on
 * for a moment after the signal was sent. */
void t_stop(pid_t pid);

#endif
