/* SPDX-License-Identifier: MIT
 *
 * file.c - the database as a file: its name, its file system, and
 * whether it is still the file that other processes open by that name.
 *
 * SQLite keeps the files open.  If one of them is removed, or another one is
 * put in its place, a session goes on in a file that nobody else can see: two
 * clients hold one lock and neither is told.
 *
 * INVARIANTS
 *  (1) A session remembers which files it has opened: the database, its
 *      write-ahead log and the index of that, which carries the locks.  An
 *      open file keeps its inode number, so what bears the same device and
 *      number by name is the same file.
 *  (2) The answer of a statement is believed only if the names still lead to
 *      those files afterwards.  If not, the session is closed and the statement
 *      is run again in the file that is there now.  A grant that is not in that
 *      file is lost, and its next renewal says so.
 *  (3) No file is opened here: closing it would drop SQLite's POSIX locks.
 *  (4) A database is opened by one name only, since SQLite keeps the log beside
 *      the name: one with hard links, and one that is mounted as a single file,
 *      are refused.  A file that is mounted elsewhere looks ordinary under its
 *      first name, and everybody who comes by another is refused.
 *  (5) A process whose parent had the database open when it forked does not
 *      open it: SQLite keeps one record of a file's locks for all sessions of a
 *      process, and does not notice that the child has none of them.
 *  (6) All who use strategy lease have the clock and the boot id of the machine.
 *      A container may have others: systemd-nspawn and LXC mount a boot id of
 *      their own over that of the kernel, and a time namespace shifts the time
 *      since boot.  By those every lease from outside is over, so a process that
 *      has them is refused.  Strategy version needs neither.
 */
#include "sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

static const char *const file_suffixes[LITE_FILES] = {"", "-wal", "-shm"};

struct lite_id lite_file_id(const char *path, const char *suffix)
{
    char name[LITE_PATH_MAX + 8];
    struct stat sb;

    snprintf(name, sizeof(name), "%s%s", path, suffix);
    if (stat(name, &sb))
        return (struct lite_id){0, 0};
    return (struct lite_id){sb.st_dev, sb.st_ino};
}

bool lite_file_is_same(struct lite_id a, struct lite_id b)
{
    return a.dev == b.dev && a.ino == b.ino;
}

bool lite_has_moved(const struct lite_session *ls)
{
    const struct lite_conn *lc = (const struct lite_conn *)ls->base.conn;
    const char *real = sqlite3_db_filename(ls->db, "main");
    int i;

    for (i = 0; i < LITE_FILES && !HFI_MUTANT(database_moves_unseen); i++)
        if (!lite_file_is_same(ls->ids[i], lite_file_id(i ? real : lc->path,
                                                        file_suffixes[i])))
            return true;
    return false;
}

/* Is something mounted at this very name?  Kernels before 5.8 do not tell. */
static bool file_is_mount(const char *path)
{
    struct statx sx;

    return !statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, 0, &sx) &&
           (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

/* Two names of one file have two logs, and two who hold the same lock.
 * file.c (4) */
static hf_status file_names(const char *path, struct hf_error *err)
{
    struct stat sb;

    if (file_is_mount(path))
        return hfi_fail(err, HF_UNSUPPORTED,
                        "the database is mounted as a single file, and SQLite "
                        "keeps a log for each of its names: mount the "
                        "directory that it is in");
    if (stat(path, &sb) || sb.st_nlink < 2)
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED,
                    "the database has more than one name (hard links), and "
                    "SQLite keeps a log for each of them: remove all but one");
}

hf_status lite_remember(struct lite_session *ls, struct hf_error *err)
{
    const struct lite_conn *lc = (const struct lite_conn *)ls->base.conn;
    const char *real = sqlite3_db_filename(ls->db, "main");
    int i, moved = 0;

    for (i = 0; i < LITE_FILES; i++)
        ls->ids[i] = lite_file_id(real, file_suffixes[i]);
    /* SQLite compares what it has opened with what the name leads to now. */
    sqlite3_file_control(ls->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (moved || lite_has_moved(ls)) {
        ls->base.why = SQL_WHY_RETRY;
        return hfi_fail(err, HF_UNAVAILABLE,
                        "the database file is being replaced");
    }
    return file_names(lc->path, err);
}

/* ---- after a fork ------------------------------------------------------ */

/* A database that sessions of a process have had open.  None is ever removed,
 * so that a child finds the list whole whatever its parent's threads were
 * doing. */
struct lite_use {
    struct lite_use *next;
    struct lite_id id;
    pid_t pid;
    atomic_int sessions;
};

static _Atomic(struct lite_use *) file_uses;

hf_status lite_may_open(const struct lite_conn *lc, struct hf_error *err)
{
    struct lite_id id = lite_file_id(lc->path, "");
    const struct lite_use *use;
    pid_t pid = getpid();

    for (use = atomic_load(&file_uses); use; use = use->next)
        if (use->pid != pid && use->sessions && lite_file_is_same(use->id, id))
            return hfi_fail(err, HF_UNSUPPORTED,
                            "the parent of this process had the database open "
                            "when it forked, which SQLite does not survive: "
                            "fork before opening it, or exec");
    return file_names(lc->path, err);
}

hf_status lite_use(struct lite_session *ls, struct hf_error *err)
{
    struct lite_use *use;
    pid_t pid = getpid();

    for (use = atomic_load(&file_uses); use; use = use->next)
        if (use->pid == pid && lite_file_is_same(use->id, ls->ids[0]))
            break;
    if (!use) { /* Two entries of one file do no harm. */
        use = hfi_alloc(sizeof(*use));
        if (!use)
            return hfi_nomem(err);
        use->id = ls->ids[0];
        use->pid = pid;
        use->next = atomic_load(&file_uses);
        while (!atomic_compare_exchange_weak(&file_uses, &use->next, use))
            ;
    }
    atomic_fetch_add(&use->sessions, 1);
    ls->use = use;
    return HF_OK;
}

void lite_unuse(struct lite_session *ls)
{
    if (ls->use)
        atomic_fetch_sub(&ls->use->sessions, 1);
}

/* ---- what is refused --------------------------------------------------- */

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

/* Of the file system proc, and of the first time namespace of a machine. */
#define BOOT_PROC_MAGIC 0x9fa0
#define BOOT_TIME_FIRST 0xeffffffaU

hf_status lite_boot_judge(struct hf_error *err)
{
    struct statfs fs;
    struct stat sb;
    const char *what = NULL;

    if (statfs(BOOT_ID, &fs) || fs.f_type != BOOT_PROC_MAGIC)
        what = "a boot id";
    else if (!stat("/proc/self/ns/time", &sb) && sb.st_ino != BOOT_TIME_FIRST)
        what = "a clock (time namespace)";
    if (!what)
        return HF_OK;
    return hfi_fail(err, HF_UNSUPPORTED,
                    "sqlite: this container has %s of its own, by which leases "
                    "from outside are over: use strategy=version, with another "
                    "table=",
                    what);
}

hf_status lite_boot(struct lite_conn *lc, struct hf_error *err)
{
    int fd = open(BOOT_ID, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd >= 0 ? read(fd, lc->boot, 36) : -1;

    if (fd >= 0)
        close(fd);
    if (len != 36)
        return hfi_fail(err, HF_SYSTEM, "sqlite: the boot id cannot be read");
    lc->boot[len] = '\0';
    return HF_OK;
}

/* The name as it is even after a chdir().  SQLite has databases without a file
 * under names of its own, and each session would have another. */
static hf_status file_name(struct lite_conn *lc, const char *path,
                           struct hf_error *err)
{
    size_t len = 0;

    if (path[0] == ':' || !strncmp(path, "file:", 5))
        return hfi_fail(err, HF_INVALID,
                        "url: sqlite: takes a file, and a database in memory "
                        "excludes nobody; for threads of one process use mem:");
    if (path[0] != '/') {
        if (!getcwd(lc->path, sizeof(lc->path)))
            return hfi_fail_errno(err, HF_SYSTEM, errno,
                                  "sqlite: the working directory");
        len = strlen(lc->path);
    }
    if (len + strlen(path) >= sizeof(lc->path) - 16)
        return hfi_fail(err, HF_INVALID, "url: sqlite: the path is too long");
    snprintf(lc->path + len, sizeof(lc->path) - len, "%s%s", len ? "/" : "",
             path);
    return HF_OK;
}

/* The file itself, or the directory where it will be made. */
static hf_status file_system(const char *path, struct statfs *ret)
{
    char dir[LITE_PATH_MAX];
    char *slash;

    if (!statfs(path, ret))
        return HF_OK;
    snprintf(dir, sizeof(dir), "%s", path);
    slash = strrchr(dir, '/');
    slash[slash == dir] = '\0';
    return statfs(dir, ret) ? HF_SYSTEM : HF_OK;
}

static hf_status file_judge(const char *path, struct hf_error *err)
{
    static const struct {
        unsigned long magic;
        const char *name;
    } remote[] = {
        {0x6969, "NFS"},      {0x517b, "SMB"},           {0xff534d42, "CIFS"},
        {0xfe534d42, "SMB2"}, {0x65735546, "FUSE"},      {0x5346414f, "AFS"},
        {0x01021997, "9P"},   {0x00c36400, "CephFS"},    {0x73757245, "Coda"},
        {0x47504653, "GPFS"}, {0x0bd00bd0, "Lustre"},    {0x7461636f, "OCFS2"},
        {0x01161970, "GFS2"}, {0x786f4256, "VirtualBox"}};
    struct statfs fs;
    size_t i;

    if (file_system(path, &fs))
        return hfi_fail_errno(err, HF_SYSTEM, errno,
                              "sqlite: the directory of the database");
    for (i = 0; i < sizeof(remote) / sizeof(remote[0]); i++)
        if ((unsigned long)fs.f_type == remote[i].magic)
            return hfi_fail(err, HF_UNSUPPORTED,
                            "sqlite: the database is on a network file system "
                            "or one like it (%s), where its locks cannot be "
                            "trusted: use a local disk",
                            remote[i].name);
    return HF_OK;
}

hf_status lite_find(struct lite_conn *lc, const char *path,
                    struct hf_error *err)
{
    hf_status st = file_name(lc, path, err);

    return st ? st : file_judge(lc->path, err);
}
