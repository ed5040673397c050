/* SPDX-License-Identifier: MIT
 *
 * file.h - what the parts of the file: backend share.
 *
 *   file.c     the rules; open, close
 *   acquire.c, renew.c, release.c, keep.c, wait.c, inspect.c, break.c
 *              the slots of the vtable
 *   share.c    those of acquire.c and release.c that let others in: owners,
 *              readers, permits, downgrade
 *   bytes.c    the bytes beyond the end of a lock file
 *   fds.c      what a forked child must close
 *   collect.c  collect
 *   observe.c  observe, unobserve
 *   holders.c  those who hold it together, a record each
 *   names.c    keys as file names
 *   record.c   what stands in a lock file
 *   taken.c    what /proc/locks says
 *   walk.c     all names below the directory
 */
#ifndef HFI_BACKEND_FILE_H
#define HFI_BACKEND_FILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "base/list.h"

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
    pthread_mutex_t mu; /* guards the rest of this part */
    struct file_watch *watches[64];
    struct hfi_link observed; /* of struct file_observation */
    int dir_wd;               /* the watch on the directory, or -1 */

    int64_t keep_ms;            /* collect.c: 0: not by itself */
    pthread_mutex_t collect_mu; /* guards the rest of this part */
    void *collecting;           /* a DIR, or NULL */

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

/* Have an inotify descriptor, with fc->mu; false and errno on failure. */
bool file_need_inotify(struct file_conn *);

hf_status file_downgrade(struct hfi_conn *, const struct hfi_claim *,
                         struct hfi_receipt *, int64_t deadline,
                         struct hf_error *);
hf_status file_keep(struct hfi_conn *, const struct hfi_claim *,
                    struct hfi_receipt *, int64_t ms, int64_t deadline,
                    struct hf_error *);

/* Does the key's name still lead to the file that we have? */
bool file_is_named(struct file_conn *, const char *key, int fd);

/* Close the file of a claim, and thus give up what it has of it. */
void file_let_go(struct file_conn *, struct hfi_receipt *);

/* What a claim that is `registered` has open: receipt->own. */
struct file_grant {
    int fd;          /* of the lock file */
    int wd;          /* its inotify watch, or -1 */
    int32_t index;   /* its place among those who hold together, or -1 */
    bool bytes;      /* may have locks on bytes of the file, too */
    bool waits;      /* shows that it waits */
    int64_t arrived; /* when it began to wait; 0: it does not */
    off_t door;      /* the byte that keeps new readers out, or 0 */
    int64_t door_ms; /* until when */
};

/* Was the holder asked to let go, or was its grant ended? */
bool file_is_broken(const struct file_grant *, uint64_t fence);

/* ---- bytes.c --------------------------------------------------------------- */

#define FILE_GATE_AT   (INT64_C(1) << 40)
#define FILE_LOOK_AT   (FILE_GATE_AT + 1)
#define FILE_HOLD_AT   (FILE_GATE_AT + 2)
#define FILE_SLOTS     (INT64_C(1) << 32)
#define FILE_WAIT_AT   (FILE_HOLD_AT + FILE_SLOTS)
#define FILE_TIMES     (INT64_C(1) << 52) /* ms of CLOCK_BOOTTIME, 256 each */
#define FILE_WRITER_AT (FILE_WAIT_AT + FILE_SLOTS)
#define FILE_DOOR_AT   (FILE_WRITER_AT + FILE_TIMES)

/* How often a try is made again while somebody looks. */
#define FILE_LOOKS_MAX 100

bool file_byte(int fd, off_t at, short type);

/* Show that the claim waits.  Who waits to be alone shows since when, and that
 * new readers must wait, for a while from now on. */
void file_show_waiting(struct file_grant *, const struct hfi_claim *);
void file_stop_waiting(struct file_grant *);

/* Must a reader that has waited since `arrived` (0: it comes just now) leave the
 * next turn to a writer? */
bool file_door_is_closed(int fd, int64_t arrived);

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

/* Does anybody of ours have that byte? */
bool file_is_taken(int fd, off_t at);

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

/* Open the directory `below`, which is "" or ends in '/', anew. */
int file_open_below(int dir_fd, const char *below);

/* Open the lock file of a key; with O_CREAT also the directories of a long
 * one.  -1 and errno on failure. */
int file_open_key(int dir_fd, const char *key, int flags);

/* ---- record.c ----------------------------------------------------- */

enum file_mode {
    FILE_EXCLUSIVE = 'x',
    FILE_OWNED = 'o',
    FILE_SHARED = 's',
    FILE_PERMITS = 'p',
    FILE_KEPT = 'k' /* was exclusive */
};

#define FILE_RECORD_MAX 2048

struct file_record {
    uint64_t fence;  /* of the last grant; 0: none yet */
    uint64_t broken; /* the fence whose holder was asked to let go */
    bool marked;     /* the record that was signed over had such a mark */
    ssize_t size;    /* how long the text was that was read */
    char mode;       /* enum file_mode */
    int64_t since_us;
    long pid;
    uint64_t pid_ns; /* the namespace that it counts in; 0: unknown */
    int32_t permits; /* 0: a plain lock */
    int32_t slot;
    int64_t kept_from, kept_until; /* in ms since that boot; 0: not kept */
    char boot[40];
    char owner[HF_OWNER_MAX + 1];
    char note[HF_NOTE_MAX + 1];
};

/* The record of the lock.  HF_PROTOCOL if something else stands there.  For
 * those who keep others from signing. */
hf_status file_record_read(int fd, struct file_record *ret,
                           struct hf_error *err);
/* One that is `at` that place, while others may sign: one record or the
 * other. */
hf_status file_record_inspect(int fd, off_t at, struct file_record *ret,
                              struct hf_error *err);
/* The same, but only fence, broken, mode and size, and looked at once. */
hf_status file_record_read_fence(int fd, off_t at, struct file_record *ret,
                                 struct hf_error *err);
/* Write the record with the claim's owner and note in place of its own, unless
 * that is NULL. */
void file_record_learn_limit(void);
hf_status file_record_write(int fd, off_t at, const struct file_record *,
                            const struct hfi_claim *, struct hf_error *err);
hf_status file_record_break(int fd, off_t at, uint64_t fence,
                            struct hf_error *err);
hf_status file_record_void(int fd, off_t at, struct hf_error *err);

/* The fence for the next grant; 0 if there is none left. */
uint64_t file_next_fence(const struct file_record *, int64_t wall_us);

/* ---- holders.c ----------------------------------------------------- */

/* Where the record of a holder is. */
off_t file_holder_at(int32_t index);

/* Take a place among those who hold together, and write the record there.  The
 * gate is ours; `lock` is the record of the lock.  HF_BUSY if a stranger's lock
 * is in the way. */
hf_status file_holder_add(struct file_grant *, const struct file_record *lock,
                          const struct file_record *, const struct hfi_claim *,
                          struct hf_error *err);

/* Call `fn` for each of them, also for those who are only kept; false from it
 * ends that.  What it sees belongs together for who has the gate.  `kept_until`
 * is 0 for those who live. */
typedef bool file_holder_fn(void *arg, int32_t index,
                            const struct file_record *);
void file_holders_each(int fd, const struct file_record *lock,
                       file_holder_fn *fn, void *arg);

/* How many have a place whose grants were ended by force; -1 if there are
 * others, or some are kept. */
int32_t file_holders_ended(int fd, const struct file_record *lock);

/* ---- keep.c ------------------------------------------------------------ */

/* Find out which boot of the machine it is, while that can be read. */
void file_learn_boot(void);

/* How long it is yet kept; 0: it is not, or no more. */
int64_t file_kept_left(const struct file_record *);

/* ---- acquire.c and share.c ------------------------------------------------ */

/* What the parts of a try have in common. */
struct file_try {
    struct file_conn *fc;
    const struct hfi_claim *claim;
    struct file_grant *own;
    struct hfi_answer *answer;
    bool together;          /* out: it is busy because some hold it together */
    struct file_record rec; /* of the lock; then that of the grant */
};

hf_status file_flock(int fd, int how, struct hf_error *err);
hf_status file_sign(struct file_try *, char mode, struct hf_error *err);

/* LOCK_EX is ours: is nobody left who holds it together, and is it not kept?
 * HF_BUSY; HF_INVALID if it is in use with permits.  file.c (6) */
hf_status file_check_idle(struct file_try *, struct hf_error *err);

/* LOCK_EX cannot be had: HF_BUSY, or HF_INVALID as above. */
hf_status file_refused(struct file_try *, struct hf_error *err);

hf_status file_take_owned(struct file_try *, struct hf_error *err);
hf_status file_take_shared(struct file_try *, struct hf_error *err);
hf_status file_take_permit(struct file_try *, struct hf_error *err);

/* ---- taken.c ----------------------------------------------------------- */

/* One flock(2) lock of the machine. */
struct file_taken {
    dev_t device;
    uint64_t inode;
    long pid;
    bool shared;
};

struct file_taken_list {
    struct file_taken *items; /* free it */
    size_t len, room;
    uint64_t pid_ns; /* in which the processes are counted */
};

/* Has the system call that set errno failed because there is no descriptor or
 * memory left?  Then nothing is known of what it was to open. */
bool file_ran_out(void);

/* Open a file of /proc.  HF_OK and NULL if the system does not show it to us;
 * an error if there is no descriptor or memory left to open it. */
hf_status file_proc_open(const char *path, FILE **ret, struct hf_error *err);

/* All of them, ordered by file. */
hf_status file_taken_read(struct file_taken_list *ret, struct hf_error *err);

/* *ret: the first of the `*n` locks on the file, or NULL. */
hf_status file_taken_find(const struct file_taken_list *, int fd,
                          uint64_t inode, const struct file_taken **ret,
                          size_t *n, struct hf_error *err);

/* Can the process that has the lock be the one of the record? */
bool file_taken_by(const struct file_taken_list *, const struct file_taken *,
                   const struct file_record *);

/* ---- walk.c ------------------------------------------------------------ */

/* One name, other than that of a directory of long keys, in the directory
 * `below` the one of the locks; false ends the walk. */
typedef bool file_walk_fn(void *arg, int dir_fd, const char *below,
                          const char *name);

/* All names.  What cannot be read does not end the walk: it goes on, and its
 * status is the first failure. */
hf_status file_walk(const struct file_conn *, file_walk_fn *, void *arg,
                    struct hf_error *err);

/* ---- inspect.c ------------------------------------------------------- */

hf_status file_inspect(struct hfi_conn *, const char *key, struct hf_info *,
                       int64_t deadline, struct hf_error *);
hf_status file_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                    void *arg, int64_t deadline, struct hf_error *);
hf_status file_waiters(struct hfi_conn *, const char *key, hf_waiters_fn *,
                       void *arg, int64_t deadline, struct hf_error *);
hf_status file_holders(struct hfi_conn *, const char *key, hf_holders_fn *,
                       void *arg, int64_t deadline, struct hf_error *);

/* ---- collect.c --------------------------------------------------------- */

hf_status file_collect(struct hfi_conn *, int64_t older_ms, bool dry_run,
                       struct hf_collected *ret, int64_t deadline,
                       struct hf_error *);

/* No fence of a file that was removed is above this. */
hf_status file_floor(const struct file_conn *, uint64_t *ret,
                     struct hf_error *);
void file_collect_some(struct file_conn *);
void file_collect_close(struct file_conn *);

/* ---- observe.c --------------------------------------------------------- */

struct inotify_event;

struct file_observation {
    struct hfi_link link; /* in file_conn.observed */
    struct hfi_observation *observation;
};

hf_status file_observe(struct hfi_conn *, struct hfi_observation *,
                       int64_t deadline, struct hf_error *);
void file_unobserve(struct hfi_conn *, struct hfi_observation *);

/* Something has happened in the directory, or events were lost; with fc->mu. */
void file_observed(struct file_conn *, const struct inotify_event *);

/* Watch the directory again if it has changed.  observe.c (1) */
void file_observe_again(struct file_conn *);

/* ---- break.c ---------------------------------------------------------- */

hf_status file_break(struct hfi_conn *, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *);
hf_status file_free(struct hfi_conn *, const char *key, uint64_t fence,
                    int64_t deadline, struct hf_error *);

/* LOCK_EX cannot be had: if only those are in the way whose grants were ended by
 * force, put another file in the place of this one.  True if that was done. */
bool file_replace_deserted(struct file_conn *, const char *key, int fd);

#endif
