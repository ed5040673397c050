/* SPDX-License-Identifier: MIT
 *
 * fence.c - a file that refuses a writer who has lost the lock.
 *
 *     fence URL FILE
 *
 * A lock tells a program that it may write.  Between the question and the
 * write the program can be stopped for any time: by a debugger, by swapping,
 * by the hypervisor.  If its lease ends meanwhile, somebody else is granted
 * the lock, and the late write would destroy the new holder's work.
 *
 * The remedy is on the other side.  The resource keeps the greatest fence that
 * it has seen and refuses a smaller one.  Comparing and writing must be one
 * atomic step; here a POSIX lock on the file itself sees to that, in a
 * database it would be `UPDATE ... WHERE fence <= $1`.
 *
 * The program plays both writers.  The first takes the lock without a keeper
 * and sleeps past its lease; the second takes over and writes; then the first
 * wakes up and is refused.
 */
#include <holdfast.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the resource ------------------------------------------------------ */

/* The file is one line: the fence of the last write, a space, the text.
 * Replace it unless a later grant has written already.  Returns 0, ESTALE, or
 * another errno. */
static int store_write(const char *path, uint64_t fence, const char *text)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char old[64] = "", line[256];
    uint64_t last = 0;
    int fd, len, ret = 0;

    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return errno;
    errno = 0;
    len = snprintf(line, sizeof(line), "%" PRIu64 " %s\n", fence, text);

    if (fcntl(fd, F_OFD_SETLKW, &whole) < 0 ||
        pread(fd, old, sizeof(old) - 1, 0) < 0)
        ret = errno;
    else if (sscanf(old, "%" SCNu64, &last) == 1 && fence < last)
        ret = ESTALE;
    else if (ftruncate(fd, 0) < 0 || pwrite(fd, line, (size_t)len, 0) != len)
        ret = errno ? errno : EIO;

    if (close(fd) < 0 && !ret)
        ret = errno;
    return ret;
}

/* ---- the two writers --------------------------------------------------- */

static hf_lock *take(hf_client *client, const struct hf_lock_opts *opts)
{
    struct hf_error err;
    hf_lock *lock;

    if (hf_acquire(client, "store", 10000, opts, &lock, &err)) {
        fprintf(stderr, "fence: %s\n", err.text);
        exit(EXIT_FAILURE);
    }
    return lock;
}

static int put(const char *who, const hf_lock *lock, const char *path)
{
    int e = store_write(path, hf_fence(lock), who);

    printf("%s writes under fence %" PRIu64 ": %s\n", who, hf_fence(lock),
           !e            ? "done"
           : e == ESTALE ? "refused, a later holder has written"
                         : strerror(e));
    return e;
}

int main(int argc, char **argv)
{
    struct hf_lock_opts brief = HF_LOCK_OPTS_INIT;
    struct pollfd lost = {.events = POLLIN};
    hf_client *slow_client, *quick_client;
    hf_lock *slow, *quick;
    struct hf_error err;
    int first, second, late;

    if (argc != 3) {
        fprintf(stderr, "usage: fence URL FILE\n");
        return 64;
    }
    if (hf_open(argv[1], NULL, &slow_client, &err) ||
        hf_open(argv[1], NULL, &quick_client, &err)) {
        fprintf(stderr, "fence: %s\n", err.text);
        return EXIT_FAILURE;
    }

    brief.flags = HF_MANUAL;
    brief.ttl_ms = 100;
    slow = take(slow_client, &brief);
    first = put("slow", slow, argv[2]);

    /* The long pause.  The descriptor becomes readable when the lease ends. */
    lost.fd = hf_lost_fd(slow);
    poll(&lost, 1, 10000);
    printf("slow lost the lock: %s\n", hf_loss_name(hf_lost_reason(slow)));

    quick = take(quick_client, NULL);
    second = put("quick", quick, argv[2]);
    late = put("slow", slow, argv[2]);

    hf_release(quick, NULL);
    hf_release(slow, NULL);
    hf_close(quick_client);
    hf_close(slow_client);
    return !first && !second && late == ESTALE ? EXIT_SUCCESS : EXIT_FAILURE;
}
