/* SPDX-License-Identifier: MIT
 *
 * waiters.c - who waits for a lock file, as far as the system tells.
 *
 * A waiter keeps a byte of the file locked (bytes.c).  Such a lock belongs to an
 * open file description, and /proc/locks names no process for it; but the
 * system lists it with the descriptors of a process, in /proc/PID/fdinfo, for
 * those whom we may look at: our own, or all if we are root.  A process that
 * waits in flock(2), as flock(1) does, stands in /proc/locks.
 *
 * Bytes of writers are in the order of their arrival.  It is not the order in
 * which they are served, since they race (file.c, LIMITS): so it is a display.
 */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/waiters.h"
#include "base/env.h"

#include "base/banned.h"

#define MOMENTS (FILE_TIMES / 256)

/* Who comes without a moment, behind those who have one. */
#define RANK_LAST (INT64_MAX / 2)

static void waiters_name(struct hf_waiter *waiter, long pid)
{
    char path[64], comm[32] = "";
    FILE *in;

    snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
    in = fopen(path, "re");
    if (in && !fgets(comm, sizeof(comm), in))
        comm[0] = '\0';
    if (in)
        fclose(in);
    comm[strcspn(comm, "\n")] = '\0';
    snprintf(waiter->owner, sizeof(waiter->owner), "pid %ld", pid);
    snprintf(waiter->note, sizeof(waiter->note), "pid %ld%s%s%s", pid,
             comm[0] ? " (" : "", comm, comm[0] ? ")" : "");
}

/* The byte says which kind it is and, of a writer, when it came. */
static void waiters_byte(struct hfi_waiters *found, long pid, off_t at)
{
    bool writer = at >= FILE_WRITER_AT;
    int64_t came = (at - FILE_WRITER_AT) / 256, now = hfi_now() % MOMENTS;
    int64_t waited = (now - came + MOMENTS) % MOMENTS;
    struct hf_waiter *waiter =
        hfi_waiters_add(found, writer ? -waited : RANK_LAST);

    if (!waiter)
        return;
    waiter->shared = !writer; /* or for a permit: the byte is the same */
    if (writer)
        waiter->since_ms = waited;
    waiters_name(waiter, pid);
}

/* "lock:	1: OFDLCK  ADVISORY  WRITE -1 08:01:131077 1099511627778 1099511627778" */
static hf_status waiters_fdinfo(struct hfi_waiters *found, long pid,
                                const char *fd, struct hf_error *err)
{
    char path[64], line[256], type[8];
    int64_t first, last;
    hf_status st;
    FILE *in;

    snprintf(path, sizeof(path), "/proc/%ld/fdinfo/%.10s", pid, fd);
    st = file_proc_open(path, &in, err);
    while (in && fgets(line, sizeof(line), in))
        if (sscanf(line,
                   "lock: %*d: OFDLCK ADVISORY %7s %*d %*s %" SCNd64
                   " %" SCNd64,
                   type, &first, &last) == 3 &&
            !strcmp(type, "WRITE") && first == last && first >= FILE_WAIT_AT &&
            first < FILE_DOOR_AT)
            waiters_byte(found, pid, (off_t)first);
    if (in)
        fclose(in);
    return st;
}

/* The descriptors of one process that lead to the file.  One that has ended, or
 * whom we may not look at, has none. */
static hf_status waiters_process(struct hfi_waiters *found, const char *pid,
                                 const struct stat *file, struct hf_error *err)
{
    const struct dirent *entry;
    hf_status st = HF_OK;
    struct stat sb;
    char path[64];
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%.10s/fd", pid);
    dir = opendir(path);
    if (!dir && file_ran_out())
        return hfi_fail_errno(err, HF_SYSTEM, errno, "open %s", path);
    while (dir && !st && (entry = readdir(dir)))
        if (entry->d_name[0] != '.' &&
            !fstatat(dirfd(dir), entry->d_name, &sb, 0) &&
            sb.st_dev == file->st_dev && sb.st_ino == file->st_ino)
            st = waiters_fdinfo(found, strtol(pid, NULL, 10), entry->d_name,
                                err);
    if (dir)
        closedir(dir);
    return st;
}

/* Those who wait in flock(2): "12: -> FLOCK  ADVISORY  WRITE 4121 ...". */
static hf_status waiters_blocked(struct hfi_waiters *found,
                                 const struct stat *file, struct hf_error *err)
{
    char line[256], mode[8];
    struct hf_waiter *waiter;
    unsigned long inode;
    FILE *in;
    hf_status st = file_proc_open("/proc/locks", &in, err);
    long pid;

    while (in && fgets(line, sizeof(line), in)) {
        if (sscanf(line, "%*d: -> FLOCK ADVISORY %7s %ld %*x:%*x:%lu", mode,
                   &pid, &inode) != 3 ||
            inode != file->st_ino || pid <= 0)
            continue;
        waiter = hfi_waiters_add(found, RANK_LAST);
        if (!waiter)
            break;
        waiter->shared = !strcmp(mode, "READ");
        waiters_name(waiter, pid);
    }
    if (in)
        fclose(in);
    return st;
}

/* All of the machine, as far as we may look. */
static hf_status waiters_look(struct hfi_waiters *found,
                              const struct stat *file, struct hf_error *err)
{
    const struct dirent *entry;
    DIR *proc = opendir("/proc");
    hf_status st = HF_OK;

    if (!proc)
        return hfi_fail_errno(err, file_ran_out() ? HF_SYSTEM : HF_UNSUPPORTED,
                              errno, "/proc tells who waits");
    while (!st && (entry = readdir(proc)))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            st = waiters_process(found, entry->d_name, file, err);
    closedir(proc);
    return st ? st : waiters_blocked(found, file, err);
}

hf_status file_waiters(struct hfi_conn *conn, const char *key,
                       hf_waiters_fn *fn, void *arg, int64_t deadline,
                       struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct hfi_waiters found = {.n = 0};
    hf_status st = file_find_dir(fc, false, err);
    struct stat sb;
    int fd;

    (void)deadline;
    if (st)
        return hfi_wrap(err, st, "%s", conn->endpoint);
    if (fc->dir_fd < 0)
        return HF_OK;
    fd = file_open_key(fc->dir_fd, key, O_RDONLY | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == EWOULDBLOCK))
        return HF_OK; /* It was never used, or is just being removed. */
    if (fd < 0 || fstat(fd, &sb))
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "open the lock file");
    if (fd >= 0)
        close(fd);
    if (!st)
        st = waiters_look(&found, &sb, err);
    if (st)
        hfi_wrap(err, st, "%s", conn->endpoint);
    return hfi_waiters_tell(&found, st, fn, arg, err);
}
