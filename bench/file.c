/* SPDX-License-Identifier: MIT
 *
 * file.c - what file: costs beyond the system calls that it cannot do without.
 *
 * QUESTION  acquire+release on file: is at most 1.3 times the bare
 *   open+flock+pread+pwrite+close on a file in the same directory, which read
 *   and write a record of the same size.
 *
 * The answer depends on the file system: on tmpfs the bare calls are cheap and
 * the rest shows, on a disk's file system a write costs more than all else.
 * So it is asked where file: keeps its locks by default, and on /dev/shm.
 */
#include "peer.h"
#include "trace.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define ROUNDS 401
#define KEY    "nightly-backup"

struct bare {
    char dir[300];
    int dir_fd;
    char record[1024];
    size_t len;
};

/* Begin with the record that holdfast itself left, so that both read and write
 * the same. */
static void bare_open(void *arg)
{
    struct bare *bare = arg;
    int fd;

    bare->dir_fd = open(bare->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fd = openat(bare->dir_fd, KEY ".lock", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        bench_die_errno(bare->dir);
    bare->len = (size_t)read(fd, bare->record, sizeof(bare->record));
    close(fd);
    fd = openat(bare->dir_fd, "bare.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || pwrite(fd, bare->record, bare->len, 0) < 0)
        bench_die_errno(bare->dir);
    close(fd);
}

static void bare_cycle(void *arg, long n)
{
    struct bare *bare = arg;
    char text[2048];
    int fd;

    while (n-- > 0) {
        fd = openat(bare->dir_fd, "bare.lock", O_RDWR | O_CLOEXEC);
        if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) ||
            pread(fd, text, sizeof(text), 0) < 0 ||
            pwrite(fd, bare->record, bare->len, 0) < 0 || close(fd))
            bench_die_errno(bare->dir);
    }
}

static double bare_run(struct bench_case *one)
{
    int64_t begin = bench_now();

    bare_cycle(one->arg, one->ops);
    return (double)(bench_now() - begin) / (double)one->ops;
}

static void ask(const char *base)
{
    static const struct bench_goal goal = {BENCH_AT_MOST, 1.3};
    static struct bare bare;
    const char *dir = bench_scratch(base), *fs = bench_fs_name(dir);
    struct bench_case cases[2] = {
        {.run = bare_run, .alone = true, .arg = &bare, .ops = 150},
        {.run = peer_run, .alone = true, .ops = 150},
    };
    char heading[120], names[2][64], url[300];
    struct peer *peer;

    snprintf(heading, sizeof(heading), "file: against the bare calls, on %s",
             fs);
    snprintf(names[0], sizeof(names[0]), "bare calls, %s", fs);
    snprintf(names[1], sizeof(names[1]), "file:, %s", fs);
    cases[0].name = names[0];
    cases[1].name = names[1];
    snprintf(url, sizeof(url), "file:%s", dir);
    snprintf(bare.dir, sizeof(bare.dir), "%s", dir);
    cases[1].arg = peer = peer_new(url, KEY);
    bench_begin("file", heading);
    peer_open(peer);
    peer_cycle(peer, 1);
    bare_open(&bare);
    trace_calls(names[0],
                &(struct trace_work){bare_open, bare_cycle, &bare, 500});
    trace_calls(names[1],
                &(struct trace_work){peer_open, peer_cycle, peer, 500});
    bench_run(cases, 2, bench_rounds(ROUNDS), "ns");
    bench_ratio(&cases[1], &cases[0], &goal);
    peer_close(peer);
    close(bare.dir_fd);
}

int main(void)
{
    struct statfs fs;

    ask(NULL);
    if (!statfs("/dev/shm", &fs) && !access("/dev/shm", W_OK))
        ask("/dev/shm");
    return 0;
}
