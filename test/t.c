/* SPDX-License-Identifier: MIT
 *
 * t.c - the runner behind t.h.
 *
 * WHY NOTHING SURVIVES  A test's process leads a process group, and the runner
 * is a child subreaper: when the test is over, the group is killed, and what
 * had left the group has become the runner's own child, is found in /proc and
 * killed too.  Only then is the result printed and the next test begun.
 *
 * WHY THE OUTPUT IS WHOLE  What the test and its children print goes through
 * one pipe, which the runner empties while it waits; every line comes out
 * behind "# ", so that it cannot be mistaken for a result.
 */
#include "t.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A sanitizer makes everything slow, and one of them has a thread of its own,
 * which it starts together with our first. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define T_SLOWNESS 4
#elif __has_feature(thread_sanitizer)
#define T_SLOWNESS      4
#define T_EXTRA_THREADS 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define T_SLOWNESS 4
#elif defined(__SANITIZE_THREAD__)
#define T_SLOWNESS      4
#define T_EXTRA_THREADS 1
#endif
#ifndef T_SLOWNESS
#define T_SLOWNESS 1
#endif
#ifndef T_EXTRA_THREADS
#define T_EXTRA_THREADS 0
#endif

enum { T_FAILED = 1, T_SKIPPED = 77, T_OUTPUT_MAX = 1 << 16 };

/* What the running test tells the runner; a page they share. */
struct t_note {
    char tmpdir[128];
    char skip[256];
};

static volatile sig_atomic_t t_group; /* of the running test */
static struct t_case *t_first, **t_last = &t_first;
static struct t_note *t_note;

_Thread_local struct hf_error t_err;
const bool t_thread_sanitizer = T_EXTRA_THREADS;

void t_register(struct t_case *one)
{
    *t_last = one;
    t_last = &one->next;
}

/* ---- checks ------------------------------------------------------------ */

void t_fail(const char *file, int line, const char *fmt, ...)
{
    const char *base = strrchr(file, '/');
    char text[2048];
    va_list ap;
    int len;

    len = snprintf(text, sizeof(text), "%s:%d: ", base ? base + 1 : file, line);
    va_start(ap, fmt);
    vsnprintf(text + len, sizeof(text) - (size_t)len, fmt, ap);
    va_end(ap);
    dprintf(STDERR_FILENO, "%s\n", text);
    _exit(T_FAILED);
}

void t_check_int(const char *file, int line, const char *what, intmax_t a,
                 const char *op, intmax_t b, bool ok)
{
    if (!ok)
        t_fail(file, line, "%s: not %jd %s %jd", what, a, op, b);
}

void t_check_str(const char *file, int line, const char *what, const char *a,
                 const char *b)
{
    if (!a || !b || strcmp(a, b) != 0)
        t_fail(file, line, "%s: \"%s\" is not \"%s\"", what, a ? a : "(null)",
               b ? b : "(null)");
}

void t_check_status(const char *file, int line, const char *what, hf_status got,
                    hf_status want)
{
    if (got != want)
        t_fail(file, line, "%s: %s is not %s (%s)", what, hf_status_name(got),
               hf_status_name(want), t_err.text);
    if (got == HF_OK || !strstr(what, "&t_err"))
        return;
    if (!t_err.text[0] || strchr(t_err.text, '\n') || t_err.status != got)
        t_fail(file, line, "%s: %s comes with the error %s, \"%s\"", what,
               hf_status_name(got), hf_status_name(t_err.status), t_err.text);
}

void t_skip(const char *kind, const char *what)
{
    snprintf(t_note->skip, sizeof(t_note->skip), "%s: %s", kind, what);
    _exit(T_SKIPPED);
}

/* ---- helpers ----------------------------------------------------------- */

int64_t t_now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void t_sleep_ms(int64_t ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    while (nanosleep(&ts, &ts) && errno == EINTR)
        ;
}

const char *t_tmpdir(void)
{
    return t_note->tmpdir;
}

/* In the runner: the test's threads and children must find it made. */
static void t_make_tmpdir(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(t_note->tmpdir, sizeof(t_note->tmpdir), "%s/hf-test.XXXXXX",
             base ? base : "/tmp");
    if (!mkdtemp(t_note->tmpdir))
        t_fail(__FILE__, __LINE__, "mkdtemp %s: %s", t_note->tmpdir,
               strerror(errno));
}

int t_scaled(int n, int least)
{
    const char *scale = getenv("HF_TEST_SCALE");
    long percent = scale ? strtol(scale, NULL, 10) : 100;
    int m = (int)(n * percent / 100);

    return m < least ? least : m;
}

static int t_count_dir(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;

    if (!dir)
        t_fail(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
    for (struct dirent *de; (de = readdir(dir));)
        n += de->d_name[0] != '.';
    closedir(dir);
    return n;
}

int t_count_fds(void)
{
    return t_count_dir("/proc/self/fd") - 1;
}

int t_count_threads(void)
{
    return t_count_dir("/proc/self/task");
}

void *t_shared(size_t size)
{
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(page != MAP_FAILED);
    return page;
}

struct t_peer t_fork(void (*fn)(struct t_peer *up, void *arg), void *arg)
{
    struct t_peer peer;
    int pair[2];

    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    peer.pid = fork();
    CHECK_GE(peer.pid, 0);
    if (peer.pid == 0) {
        struct t_peer up = {.pid = getppid(), .fd = pair[1]};

        close(pair[0]);
        fn(&up, arg);
        _exit(0);
    }
    close(pair[1]);
    peer.fd = pair[0];
    return peer;
}

void t_tell(struct t_peer *peer, int64_t word)
{
    CHECK_EQ(send(peer->fd, &word, sizeof(word), MSG_NOSIGNAL), sizeof(word));
}

bool t_try_hear(struct t_peer *peer, int64_t ms, int64_t *ret)
{
    struct pollfd pfd = {.fd = peer->fd, .events = POLLIN};
    int64_t end = t_now_ms() + ms;
    int n;

    do {
        int64_t left = end - t_now_ms();

        n = poll(&pfd, 1, left > 0 ? (int)left : 0);
    } while (n < 0 && errno == EINTR);
    if (n == 0)
        return false;
    return recv(peer->fd, ret, sizeof(*ret), 0) == sizeof(*ret);
}

int64_t t_hear(struct t_peer *peer)
{
    int64_t word = 0;

    if (!t_try_hear(peer, 60000, &word))
        t_fail(__FILE__, __LINE__, "process %d says nothing", (int)peer->pid);
    return word;
}

void t_join(struct t_peer *peer)
{
    int status;

    while (waitpid(peer->pid, &status, 0) < 0)
        CHECK_EQ(errno, EINTR);
    close(peer->fd);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        t_fail(__FILE__, __LINE__, "process %d ended with status 0x%x",
               (int)peer->pid, (unsigned)status);
}

void t_kill(struct t_peer *peer)
{
    kill(peer->pid, SIGKILL);
    CHECK_EQ(waitpid(peer->pid, NULL, 0), peer->pid);
    close(peer->fd);
}

static bool t_is_stopped(pid_t pid)
{
    char path[64], line[256] = "";
    const char *state;
    FILE *stat;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    stat = fopen(path, "re");
    CHECK(stat != NULL);
    CHECK(fgets(line, sizeof(line), stat) != NULL);
    fclose(stat);
    state = strrchr(line, ')');
    return state && (state[2] == 'T' || state[2] == 't' || state[2] == 'Z');
}

void t_stop(pid_t pid)
{
    CHECK_EQ(kill(pid, SIGSTOP), 0);
    t_poll_until(t_is_stopped(pid), 20000);
}

/* ---- running ----------------------------------------------------------- */

/* In the test's process.  A joined thread leaves /proc a moment later. */
static _Noreturn void t_run(const struct t_case *one)
{
    int fds = t_count_fds(), threads = t_count_threads();

    one->fn();
    if (t_count_fds() != fds) {
        char cmd[64];

        snprintf(cmd, sizeof(cmd), "ls -l /proc/%d/fd >&2", (int)getpid());
        if (system(cmd))
            dprintf(STDERR_FILENO, "(no list)\n");
        t_fail(one->name, 0, "%d descriptors became %d", fds, t_count_fds());
    }
    t_poll_until(t_count_threads() <= threads + T_EXTRA_THREADS, 5000);
    exit(0);
}

static int t_remove_one(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path) && errno != ENOENT;
}

static int t_open_one(const char *path, const struct stat *st, int type,
                      struct FTW *ftw)
{
    (void)ftw;
    if ((type == FTW_D || type == FTW_DNR) && (st->st_mode & 0700) != 0700)
        return chmod(path, 0700);
    return 0;
}

static void t_remove_tmpdir(void)
{
    nftw(t_note->tmpdir, t_open_one, 16, FTW_PHYS | FTW_MOUNT);
    nftw(t_note->tmpdir, t_remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* Kill the test's group and then all that the runner has inherited. */
static void t_sweep(pid_t group)
{
    char path[64];
    int pid;

    kill(-group, SIGKILL);
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    do {
        FILE *list = fopen(path, "re");

        while (list && fscanf(list, "%d", &pid) == 1)
            kill(pid, SIGKILL);
        if (list)
            fclose(list);
    } while (waitpid(-1, NULL, 0) > 0 || errno == EINTR);
}

/* Somebody ends the runner: the test must not live on. */
static void t_interrupted(int sig)
{
    if (t_group > 0)
        kill(-t_group, SIGKILL);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Gather what the test prints until it has ended, or kill it at its limit.
 * Returns its wait status, or -1 if it was too slow. */
static int t_watch(pid_t pid, int fd, int limit_s, char *out, size_t *len)
{
    int64_t end = t_now_ms() + (int64_t)limit_s * 1000;
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd pfds[] = {{fd, POLLIN, 0}, {pidfd, POLLIN, 0}};
    char drop[4096];
    int status = 0;

    for (;;) {
        int64_t left = end - t_now_ms();
        bool full = *len == T_OUTPUT_MAX;
        ssize_t n;

        if (left <= 0) {
            status = -1;
            break;
        }
        poll(pfds, 2, pidfd >= 0 ? (int)left : 20);
        n = read(fd, full ? drop : out + *len,
                 full ? sizeof(drop) : T_OUTPUT_MAX - *len);
        if (n > 0 && !full)
            *len += (size_t)n;
        if (n <= 0 && waitpid(pid, &status, WNOHANG) == pid)
            break;
        if (n == 0)
            pfds[0].fd = -1;
    }
    if (pidfd >= 0)
        close(pidfd);
    return status;
}

static void t_print_output(const char *out, size_t len)
{
    while (len > 0) {
        const char *nl = memchr(out, '\n', len);
        size_t n = nl ? (size_t)(nl - out) : len;

        printf("# %.*s\n", (int)n, out);
        n += nl != NULL;
        out += n;
        len -= n;
    }
}

/* What the runners of one program share. */
static struct t_runners {
    pthread_mutex_t mu; /* guards what follows and stdout */
    int next;           /* the test to be run next */
    int number;         /* tests that are over */
    int failed;
} * t_runners;

/* Print what became of a test, the lines of one together. */
static void t_report(const struct t_case *one, int status, bool skipped,
                     int limit_s, bool verbose, int64_t ms, const char *out,
                     size_t len)
{
    bool ok = status == 0 || skipped;

    pthread_mutex_lock(&t_runners->mu);
    if (verbose || !ok)
        t_print_output(out, len);
    if (status == -1)
        printf("# not over after %d s\n", limit_s);
    else if (!ok && WIFSIGNALED(status))
        printf("# killed by signal %d\n", WTERMSIG(status));
    else if (!ok)
        printf("# exit status %d\n", WEXITSTATUS(status));
    if (verbose)
        printf("# %lld ms\n", (long long)ms);
    printf("%s %d - %s%s%s\n", ok ? "ok" : "not ok", ++t_runners->number,
           one->name, skipped ? " # SKIP " : "", skipped ? t_note->skip : "");
    fflush(stdout);
    t_runners->failed += !ok;
    pthread_mutex_unlock(&t_runners->mu);
}

/* Run one test and report it. */
static void t_one(const struct t_case *one, bool verbose)
{
    static char out[T_OUTPUT_MAX];
    int limit_s = one->limit_s * T_SLOWNESS;
    int64_t began = t_now_ms();
    bool skipped;
    size_t len = 0;
    int fds[2], status;
    pid_t pid;

    memset(t_note, 0, sizeof(*t_note));
    t_make_tmpdir();
    CHECK_EQ(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    pid = fork();
    CHECK_GE(pid, 0);
    if (pid == 0) {
        setpgid(0, 0);
        signal(SIGTERM, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        fcntl(fds[1], F_SETFL, 0);
        dup2(fds[1], STDOUT_FILENO);
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        close(fds[1]);
        t_run(one);
    }
    setpgid(pid, pid);
    t_group = pid;
    close(fds[1]);
    status = t_watch(pid, fds[0], limit_s, out, &len);
    t_sweep(pid);
    t_group = 0;
    close(fds[0]);
    t_remove_tmpdir();

    skipped = status > 0 && WIFEXITED(status) &&
              WEXITSTATUS(status) == T_SKIPPED && t_note->skip[0];
    t_report(one, status, skipped, limit_s, verbose, t_now_ms() - began, out,
             len);
}

/* `nth` counts the tests.  Of -pK/N, every N-th test from K on is wanted. */
static bool t_wanted(const struct t_case *one, int nth, int argc, char **argv)
{
    bool any = false;
    int part, parts;

    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "-p%d/%d", &part, &parts) == 2 && parts > 0 &&
            nth % parts != part)
            return false;
        if (argv[i][0] == '-')
            continue;
        any = true;
        if (strstr(one->name, argv[i]))
            return true;
    }
    return !any;
}

/* Run tests until there is none left.  Whatever a test leaves running becomes
 * the runner's child. */
static void t_runner(int argc, char **argv, bool verbose)
{
    int mine, nth;

    t_note = t_shared(sizeof(*t_note));
    signal(SIGTERM, t_interrupted);
    signal(SIGINT, t_interrupted);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    for (;;) {
        const struct t_case *one = t_first;

        pthread_mutex_lock(&t_runners->mu);
        mine = t_runners->next++;
        pthread_mutex_unlock(&t_runners->mu);
        for (nth = 0; one; one = one->next)
            if (t_wanted(one, nth++, argc, argv) && mine-- == 0)
                break;
        if (!one)
            return;
        t_one(one, verbose);
    }
}

/* Several runners, each a process: false if one of them did not come to its
 * end. */
static bool t_run_beside(int jobs, int argc, char **argv, bool verbose)
{
    bool ended = true;
    int status;

    for (int i = 0; i < jobs; i++) {
        pid_t pid = fork();

        CHECK_GE(pid, 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            t_runner(argc, argv, verbose);
            _exit(0);
        }
    }
    while (wait(&status) > 0 || errno == EINTR)
        ended = ended && status == 0;
    return ended;
}

static void t_runners_init(void)
{
    pthread_mutexattr_t attr;

    t_runners = t_shared(sizeof(*t_runners));
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&t_runners->mu, &attr);
    pthread_mutexattr_destroy(&attr);
}

int t_main(int argc, char **argv)
{
    const char *beside = getenv("HF_TEST_JOBS");
    int jobs = beside ? (int)strtol(beside, NULL, 10) : 1, wanted = 0, nth = 0;
    bool list = false, verbose = false, ended = true;

    for (int i = 1; i < argc; i++) {
        list = list || strcmp(argv[i], "-l") == 0;
        verbose = verbose || strcmp(argv[i], "-v") == 0;
    }
    for (struct t_case *one = t_first; one; one = one->next) {
        if (list)
            printf("%s\n", one->name);
        wanted += t_wanted(one, nth++, argc, argv);
    }
    if (list)
        return 0;

    t_runners_init();
    printf("1..%d\n", wanted);
    fflush(stdout);
    if (jobs > 1)
        ended = t_run_beside(jobs, argc, argv, verbose);
    else
        t_runner(argc, argv, verbose);
    return !ended || t_runners->failed > 0;
}
