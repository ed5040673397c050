/* SPDX-License-Identifier: MIT
 *
 * share.c - lock files with more than one holder: equals of one owner id,
 * readers, permits; and the way from alone to shared.  The rules are in file.c.
 *
 * All of them hold LOCK_SH and a place among the holders (holders.c), and are
 * let in under the gate, by what the record and the places of the others say.
 */
#include "file.h"

#include <errno.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

/* Who uses the lock, as those see it who have the gate. */
struct share_use {
    bool lives;   /* somebody holds it together with others */
    bool hidden;  /* that may be so: a stranger's lock is in front of it */
    int64_t kept; /* somebody is kept, for so long */
};

static hf_status share_busy(struct file_try *try, int64_t left_ms)
{
    if (left_ms)
        try->answer->left_ms = left_ms;
    return HF_BUSY;
}

/* Read the record of the lock and see who uses it, in a way that is not that of
 * the claim: HF_INVALID.  The gate is ours, or LOCK_EX. */
static hf_status share_look(struct file_try *try, struct share_use *ret,
                            struct hf_error *err)
{
    hf_status st = file_record_read(try->own->fd, &try->rec, err);
    const struct file_record *rec = &try->rec;
    struct file_tally tally;

    if (st)
        return st;
    tally = file_count_holders(try->own->fd, 1);
    *ret =
        (struct share_use){tally.count > 0, tally.hidden, file_kept_left(rec)};
    try->together = ret->lives;
    if ((ret->lives || ret->kept) && rec->permits != try->claim->permits &&
        file_holders_ended(try->own->fd, rec) <= 0)
        return hfi_fail_use(err, try->claim, rec->permits);
    if (!ret->kept)
        try->rec.kept_from = try->rec.kept_until = 0;
    return HF_OK;
}

hf_status file_check_idle(struct file_try *try, struct hf_error *err)
{
    struct share_use use;
    hf_status st = share_look(try, &use, err);

    if (!st && (use.lives || use.kept))
        st = share_busy(try, use.kept);
    return st;
}

/* Who waits asks often, and may be stopped at any moment: so it takes the gate
 * only if the answer may be more than HF_BUSY. */
hf_status file_refused(struct file_try *try, struct hf_error *err)
{
    struct share_use use;
    int fd = try->own->fd;
    hf_status st;

    try->together = file_count_holders(fd, 1).count > 0;
    if (!try->together || file_record_inspect(fd, 0, &try->rec, NULL) ||
        !try->rec.permits || !file_gate(fd))
        return HF_BUSY;
    st = share_look(try, &use, err);
    file_ungate(fd);
    return st ? st : HF_BUSY;
}

/* ---- owners ------------------------------------------------------------ */

struct share_owner {
    const char *owner;
    bool found;
};

static bool share_is_owners(void *arg, int32_t index,
                            const struct file_record *rec)
{
    struct share_owner *look = arg;

    (void)index;
    look->found = !rec->kept_until && rec->broken < rec->fence &&
                  !strcmp(rec->owner, look->owner);
    return !look->found;
}

/* Does the owner id of the claim hold it, and not only keep it?  A grant that
 * was broken is not joined. */
static bool share_owner_holds(struct file_try *try)
{
    struct share_owner look = {try->claim->owner, false};

    if (look.owner)
        file_holders_each(try->own->fd, &try->rec, share_is_owners, &look);
    return look.found;
}

/* Somebody has it: our equals, perhaps?  Between reading the record and taking
 * our place nobody else may sign.  file.c (5) */
static hf_status share_join(struct file_try *try, struct hf_error *err)
{
    hf_status st = file_flock(try->own->fd, LOCK_SH, err);
    struct file_record *rec = &try->rec;
    struct share_use use;

    if (st)
        return st;
    if (!file_gate(try->own->fd))
        return HF_BUSY;
    st = share_look(try, &use, err);
    if (!st && rec->mode == FILE_SHARED && share_owner_holds(try))
        st = hfi_fail_other_mode(err, try->claim);
    else if (!st && (rec->mode != FILE_OWNED || rec->broken == rec->fence ||
                     !share_owner_holds(try)))
        st = HF_BUSY;
    rec->pid = try->fc->pid;
    rec->pid_ns = try->fc->pid_ns;
    if (!st)
        st = file_holder_add(try->own, rec, rec, try->claim, err);
    file_ungate(try->own->fd);
    return st;
}

/* First alone, to sign; then shared, for equals to join.  The change from one
 * to the other is not atomic, so it may fail, and then somebody else has it;
 * nobody who is granted it has come and gone in between, since we have the
 * gate. */
hf_status file_take_owned(struct file_try *try, struct hf_error *err)
{
    int fd = try->own->fd;
    hf_status st = file_flock(fd, LOCK_EX, err);

    if (st == HF_BUSY)
        return share_join(try, err);
    if (st)
        return st;
    if (!file_gate(fd))
        return HF_BUSY;
    st = file_check_idle(try, err);
    if (!st)
        st = file_sign(try, FILE_OWNED, err);
    if (!st)
        st = file_holder_add(try->own, &try->rec, &try->rec, try->claim, err);
    if (!st)
        st = file_flock(fd, LOCK_SH, err);
    file_ungate(fd);
    return st;
}

/* ---- readers ----------------------------------------------------------- */

/* Does an owner have it, or may it?  What is hidden may be its byte; one whose
 * grant was ended by force has only that. */
static bool share_is_owned(struct file_try *try, const struct share_use *use)
{
    return try->rec.mode == FILE_OWNED &&
           (use->hidden || use->kept ||
            (use->lives && file_holders_ended(try->own->fd, &try->rec) <= 0));
}

/* May a reader come in? */
static hf_status share_may_read(struct file_try *try, struct hf_error *err)
{
    const struct file_record *rec = &try->rec;
    struct share_use use;
    hf_status st = share_look(try, &use, err);

    if (st)
        return st;
    if (rec->mode == FILE_KEPT && use.kept)
        return share_busy(try, use.kept);
    if (share_is_owned(try, &use))
        return share_owner_holds(try) ? hfi_fail_other_mode(err, try->claim)
                                      : share_busy(try, use.kept);
    return file_door_is_closed(try->own->fd, try->own->arrived) ? HF_BUSY
                                                                : HF_OK;
}

/* Several may hold LOCK_SH, so the gate makes one of them sign at a time. */
hf_status file_take_shared(struct file_try *try, struct hf_error *err)
{
    int fd = try->own->fd;
    hf_status st = file_flock(fd, LOCK_SH, err);

    if (st)
        return st;
    if (!file_gate(fd))
        return HF_BUSY;
    st = share_may_read(try, err);
    if (!st)
        st = file_sign(try, FILE_SHARED, err);
    if (!st)
        st = file_holder_add(try->own, &try->rec, &try->rec, try->claim, err);
    file_ungate(fd);
    return st;
}

/* ---- permits ----------------------------------------------------------- */

/* The slots of those who hold: a bit each. */
struct share_slots {
    const char *owner; /* whose equal is looked for, or NULL */
    uint8_t *taken;
    int32_t room;
    int64_t left_ms;           /* the first that is kept is free by then */
    struct file_record *equal; /* out, if it was found */
    bool found;
};

static bool share_note_slot(void *arg, int32_t index,
                            const struct file_record *rec)
{
    struct share_slots *slots = arg;
    int64_t left = rec->kept_until ? file_kept_left(rec) : 0;

    (void)index;
    if (rec->slot < slots->room)
        slots->taken[rec->slot / 8] |= (uint8_t)(1 << rec->slot % 8);
    if (left && (!slots->left_ms || left < slots->left_ms))
        slots->left_ms = left;
    /* Asked once: what is no more kept since is still nobody's to join. */
    if (slots->owner && !rec->kept_until && rec->broken < rec->fence &&
        !strcmp(rec->owner, slots->owner)) {
        *slots->equal = *rec;
        slots->found = true;
    }
    return !slots->found;
}

static bool share_count_one(void *arg, int32_t index,
                            const struct file_record *rec)
{
    (void)index;
    (void)rec;
    ++*(int32_t *)arg;
    return true;
}

/* The lowest slot that nobody has, or that of our equals, whose fence is ours
 * then; HF_BUSY if there is none. */
static hf_status share_find_slot(struct file_try *try, bool *joined,
                                 struct file_record *equal,
                                 struct hf_error *err)
{
    struct share_slots slots = {.owner = try->claim->owner, .equal = equal};
    int32_t slot = 0, holders = 0;

    file_holders_each(try->own->fd, &try->rec, share_count_one, &holders);
    slots.room = holders + 1;
    slots.taken = hfi_alloc((size_t)slots.room / 8 + 1);
    if (!slots.taken)
        return hfi_nomem(err);
    file_holders_each(try->own->fd, &try->rec, share_note_slot, &slots);
    while (slots.taken[slot / 8] >> slot % 8 & 1)
        slot++;
    hfi_free(slots.taken);
    *joined = slots.found;
    if (slots.found)
        return HF_OK;
    try->rec.slot = slot;
    return slot < try->claim->permits ? HF_OK : share_busy(try, slots.left_ms);
}

/* The gate is ours. */
static hf_status share_take_slot(struct file_try *try, struct hf_error *err)
{
    struct file_record equal, lock;
    struct share_use use;
    bool joined = false;
    hf_status st = share_look(try, &use, err);

    if (!st && use.hidden)
        st = HF_BUSY;
    if (!st)
        st = share_find_slot(try, &joined, &equal, err);
    if (st)
        return st;
    if (joined) {
        lock = try->rec;
        try->rec = equal;
        try->rec.pid = try->fc->pid;
        try->rec.pid_ns = try->fc->pid_ns;
        return file_holder_add(try->own, &lock, &try->rec, try->claim, err);
    }
    st = file_sign(try, FILE_PERMITS, err);
    return st ? st
              : file_holder_add(try->own, &try->rec, &try->rec, try->claim,
                                err);
}

/* Somebody has LOCK_EX.  If it is one of ours the lock is plain; a stranger's
 * flock(1) only makes it busy. */
static hf_status share_refuse_permit(struct file_try *try, struct hf_error *err)
{
    const struct file_taken *taken;
    struct file_taken_list list;
    hf_status st = HF_BUSY;
    struct stat sb;
    size_t n;

    if (file_record_inspect(try->own->fd, 0, &try->rec, NULL) ||
        try->rec.mode != FILE_EXCLUSIVE || fstat(try->own->fd, &sb) ||
        file_taken_read(&list, NULL))
        return st;
    if (!file_taken_find(&list, try->own->fd, sb.st_ino, &taken, &n, NULL) &&
        taken && !taken->shared && file_taken_by(&list, taken, &try->rec))
        st = hfi_fail_use(err, try->claim, 0);
    hfi_free(list.items);
    return st;
}

hf_status file_take_permit(struct file_try *try, struct hf_error *err)
{
    int fd = try->own->fd;
    hf_status st = file_flock(fd, LOCK_SH, err);

    if (st == HF_BUSY)
        return share_refuse_permit(try, err);
    if (st)
        return st;
    if (!file_gate(fd))
        return HF_BUSY;
    st = share_take_slot(try, err);
    file_ungate(fd);
    return st;
}

/* ---- downgrade --------------------------------------------------------- */

/* LOCK_SH in place of LOCK_EX.  Where the kernel lets others in between, those of
 * ours see our place and let go again; a stranger may stay.  file.c (6) */
static hf_status share_convert(int fd, struct hf_error *err)
{
    int tries;

    for (tries = 0; tries < FILE_LOOKS_MAX; tries++) {
        if (!flock(fd, LOCK_SH | LOCK_NB))
            return HF_OK;
        if (errno != EINTR && errno != EWOULDBLOCK)
            return hfi_fail_errno(err, HF_LOST, errno, "flock");
        sched_yield();
    }
    return hfi_fail(err, HF_LOST,
                    "another program took the lock while it was downgraded");
}

/* The gate is ours.  Fence and everything else stay as they are. */
static hf_status share_downgrade(struct file_grant *own,
                                 const struct hfi_claim *claim, uint64_t fence,
                                 struct hf_error *err)
{
    off_t at = own->index < 0 ? 0 : file_holder_at(own->index);
    struct file_record rec;
    hf_status st = file_record_inspect(own->fd, at, &rec, err);

    if (!st && (rec.fence != fence || rec.broken >= fence))
        return hfi_fail(err, HF_LOST, "the lock was not ours any more");
    if (st || (at && rec.mode == FILE_SHARED))
        return st; /* That was done before. */
    if (at)
        st = file_record_read(own->fd, &rec, err);
    if (at && !st &&
        (file_count_holders(own->fd, 1).count || file_kept_left(&rec)))
        return hfi_fail_joined(err, claim);
    rec.mode = FILE_SHARED;
    if (!st && !at)
        st = file_holder_add(own, &rec, &rec, claim, err);
    else if (!st)
        st = file_record_write(own->fd, at, &rec, claim, err);
    if (!st)
        st = file_record_write(own->fd, 0, &rec, claim, err);
    return st;
}

hf_status file_downgrade(struct hfi_conn *conn, const struct hfi_claim *claim,
                         struct hfi_receipt *receipt, int64_t deadline,
                         struct hf_error *err)
{
    struct file_grant *own = receipt->own;
    bool alone = own->index < 0;
    hf_status st;

    (void)deadline;
    if (!receipt->registered ||
        !file_is_named((struct file_conn *)conn, claim->key, own->fd))
        return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                        conn->endpoint);
    if (!file_gate(own->fd))
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: another process is writing into the lock file: "
                        "try again",
                        conn->endpoint);
    st = share_downgrade(own, claim, receipt->fence, err);
    if (st == HF_BUSY)
        st = hfi_fail(err, HF_UNAVAILABLE,
                      "another program has locked parts of the lock file");
    if (!st && alone)
        st = share_convert(own->fd, err);
    else if (st && st != HF_LOST && alone && own->index >= 0) {
        file_byte(own->fd, FILE_HOLD_AT + own->index, F_UNLCK);
        own->index = -1;
    }
    file_ungate(own->fd);
    if (!st)
        futimens(own->fd, NULL); /* Readers that wait hear it. */
    return st && st != HF_INVALID ? hfi_wrap(err, st, "%s", conn->endpoint)
                                  : st;
}
