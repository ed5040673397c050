/* SPDX-License-Identifier: MIT
 *
 * file.h - what the parts of the file: backend share.
 *
 *   file.c     the rules; open, close
 *   acquire.c, renew.c, release.c, wait.c, inspect.c, break.c
 *              the slots of the vtable
 *   bytes.c    the bytes beyond the end of a lock file
 *   fds.c      what a forked child must close
 *   names.c    keys as file names
 *   record.c   what stands in a lock file
 */
#ifndef HFI_BACKEND_FILE_H
#define HFI_BACKEND_FILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "backend/backend.h"

struct file_watch;

/* Which descriptors are lock files: a bit for each, in pieces that are made
 * when they are first needed and stay, so that a forked child can read them
 * whatever the parent's threads were doing. */
#define FILE_FDS_PIECE  4096
#define FILE_FDS_PIECES 256

struct file_fds {
    _Atomic(atomic_ulong *) pieces[FILE_FDS_PIECES];
};

struct file_conn {
    struct hfi_conn base;
    bool opened; /* the descriptors below are ours */
    long pid;
    uint64_t pid_ns;
    bool standard;     /* the directory was not named */
    char *dir;         /* its path, for messages */
    const char *name;  /* in `dir`: its last piece, if parent_fd is there */
    int parent_fd;     /* where it will be made; -1 if it was there */
    atomic_int dir_fd; /* -1 while it is not there; set once, with `mu`, and
                        * the number stays */
    int inotify_fd;
    pthread_mutex_t mu; /* guards `watches` */
    struct file_watch *watches[64];
    struct file_fds fds;
};

/* ---- file.c ------------------------------------------------------------ */

/* Open the directory if that is not done; where it is not there, make it, or
 * leave dir_fd at -1. */
hf_status file_need_dir(struct file_conn *, bool make, struct hf_error *);

/* The same if something was not found there: the directory may have been
 * removed, and made again. */
hf_status file_find_dir(struct file_conn *, bool make, struct hf_error *);

/* The number of our pid namespace; 0 if it is not known. */
uint64_t file_pid_ns(void);

/* ---- fds.c -------------------------------------------------------- */

void file_fds_set(struct file_fds *, int fd, bool on);
void file_fds_fini(struct file_fds *);
void file_after_fork_child(struct hfi_conn *);

/* ---- acquire.c, renew.c, release.c, wait.c -------------------------------- */

hf_status file_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                           struct hfi_receipt *, struct hfi_answer *,
                           int64_t deadline, struct hf_error *);
void file_renew(struct hfi_conn *, struct hfi_renewal *, size_t n,
                int64_t deadline, struct hf_error *);
hf_status file_release(struct hfi_conn *, const struct hfi_claim *,
                       struct hfi_receipt *, int64_t deadline,
                       struct hf_error *);
hf_status file_watch(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_receipt *, int64_t deadline, struct hf_error *);
void file_unwatch(struct hfi_conn *, const struct hfi_claim *,
                  struct hfi_receipt *);
int file_poll_fd(struct hfi_conn *);
void file_dispatch(struct hfi_conn *);

/* Does the key's name still lead to the file that we have? */
bool file_is_named(struct file_conn *, const char *key, int fd);

/* Close the file of a claim, and thus give up what it has of it. */
void file_let_go(struct file_conn *, struct hfi_receipt *);

/* What a claim that is `registered` has open: receipt->own. */
struct file_grant {
    int fd;     /* of the lock file */
    int wd;     /* its inotify watch, or -1 */
    bool bytes; /* may have locks on bytes of the file, too */
    bool waits; /* shows that it waits */
};

/* ---- bytes.c --------------------------------------------------------------- */

#define FILE_GATE_AT (INT64_C(1) << 40)
#define FILE_LOOK_AT (FILE_GATE_AT + 1)
#define FILE_HOLD_AT (FILE_GATE_AT + 2)
#define FILE_SLOTS   (INT64_C(1) << 32)
#define FILE_WAIT_AT (FILE_HOLD_AT + FILE_SLOTS)

/* How often a try is made again while somebody looks. */
#define FILE_LOOKS_MAX 100

bool file_byte(int fd, off_t at, short type);

/* Lock or unlock a byte of our own, as far as chance will have it; who meets
 * another's is busy. */
bool file_mark(int fd, off_t range, short type, const struct hfi_claim *);

/* Give up all bytes and the lock. */
void file_unlock(int fd);

/* How many there are, and whether a stranger's lock may hide more. */
struct file_tally {
    int32_t count;
    bool hidden;
};

/* Seen through a descriptor of the lock file that belongs to nobody: how many
 * of ours hold it with LOCK_SH, how many wait, and whether it is held alone.
 * Not more than `most` are counted, at most FILE_COUNT_MAX. */
#define FILE_COUNT_MAX 1000
struct file_tally file_count_holders(int fd, int most);
int32_t file_count_waiters(int fd, int most);
bool file_is_exclusive(int fd);

/* Be the only one of those with LOCK_SH who signs; false if it cannot be
 * had. */
bool file_gate(int fd);
void file_ungate(int fd);

/* ---- names.c ------------------------------------------------------- */

#define FILE_SUFFIX ".lock"

/* The longest path of a key below the directory: each byte may become three,
 * and each piece of FILE_PIECE brings two more. */
#define FILE_PIECE    240
#define FILE_PATH_MAX (HF_KEY_MAX * 3 + HF_KEY_MAX * 3 / FILE_PIECE * 2 + 16)

void file_path(char *ret, const char *key);

/* The key of a path below the directory, in place; false if it has none. */
bool file_key(char *path);

/* Open the directory that the key's file is in; `dir_fd` itself for all but
 * long keys.  *name, in `path`, is the last piece.  -1 and errno on failure. */
int file_open_lock_dir(int dir_fd, const char *key, char *path, char **name);

/* Open the lock file of a key; with O_CREAT also the directories of a long
 * one.  -1 and errno on failure. */
int file_open_key(int dir_fd, const char *key, int flags);

/* ---- record.c ----------------------------------------------------- */

enum file_mode { FILE_EXCLUSIVE = 'x', FILE_OWNED = 'o', FILE_SHARED = 's' };

struct file_record {
    uint64_t fence;  /* of the last grant; 0: none yet */
    uint64_t broken; /* the fence whose holder was asked to let go */
    bool marked;     /* the record that was signed over had such a mark */
    ssize_t size;    /* how long the text was that was read */
    char mode;       /* enum file_mode */
    int64_t since_us;
    long pid;
    uint64_t pid_ns; /* the namespace that it counts in; 0: unknown */
    char owner[HF_OWNER_MAX + 1];
    char note[HF_NOTE_MAX + 1];
};

/* HF_PROTOCOL if something else stands there.  For those who keep others from
 * signing. */
hf_status file_record_read(int fd, struct file_record *ret,
                           struct hf_error *err);
/* The same while others may sign: one record or the other. */
hf_status file_record_inspect(int fd, struct file_record *ret,
                              struct hf_error *err);
/* The same, but only fence, broken and size. */
hf_status file_record_read_fence(int fd, struct file_record *ret,
                                 struct hf_error *err);
/* Write the record with the claim's owner and note in place of its own. */
void file_record_learn_limit(void);
hf_status file_record_write(int fd, const struct file_record *,
                            const struct hfi_claim *, struct hf_error *err);
hf_status file_record_break(int fd, uint64_t fence, struct hf_error *err);

/* The fence for the next grant; 0 if there is none left. */
uint64_t file_next_fence(const struct file_record *, int64_t wall_us);

/* ---- inspect.c ------------------------------------------------------- */

hf_status file_inspect(struct hfi_conn *, const char *key, struct hf_info *,
                       int64_t deadline, struct hf_error *);
hf_status file_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                    void *arg, int64_t deadline, struct hf_error *);
/* ---- break.c ---------------------------------------------------------- */

hf_status file_break(struct hfi_conn *, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *);
hf_status file_free(struct hfi_conn *, const char *key, uint64_t fence,
                    int64_t deadline, struct hf_error *);

#endif
