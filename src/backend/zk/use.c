/* SPDX-License-Identifier: MIT
 *
 * use.c - a key is a plain lock or has permits, and not both.
 *
 * Those who contend for a plain lock and those who have a permit stand in
 * different places.  Each makes its node first and looks at the other place
 * after that, so of two who come at once the later one finds the other.
 *
 * The age of a node is its fence: the transaction that made it, and every one has
 * another.  A node may take the age of an older one of its use, in a transaction
 * that fails if that is gone (`used` in its data, which moves along with it).
 *
 * INVARIANTS
 *  (1) A claim is granted only if, after its node was made, no node of the other
 *      use was older, of those that hold or may.  Of two that are granted at
 *      once and use the key in different ways, the younger would have seen the
 *      older one, or the one whose age that has taken.
 *  (2) A node of the other use that is older may be of one who is about to leave,
 *      or has died.  If a third that is older still, and of the right use, stands
 *      against it, the claim takes its age, and by (1) that is the end of the other's
 *      chance.  That the third is there would not do: it may leave, and the other
 *      would find none that is older.
 *  (3) So the key is used as its oldest node says, as soon as anybody holds it.
 *      The smallest age of a use never falls, but by a node that is new.
 *  (4) Who finds that the key is used in the other way leaves.
 *  (5) A node that goes while they are read may have left its age to one that
 *      was not there yet: then all of its place are read again.
 *
 * A plain lock looks at the other place only if the children of the key show
 * that there is one, so where permits were never used it costs nothing.  Nor is
 * it missed where the children are not read (predict.c): the place would have
 * been a child that was made meanwhile, and the number had not told.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* How often a place is read that changes meanwhile. */
#define USE_TURNS 16

/* What was read of the nodes of one use. */
struct use_side {
    uint64_t age; /* of the oldest; UINT64_MAX: there is none */
    char *oldest; /* its path, to be freed */
    uint64_t own; /* the age of our own; UINT64_MAX: it was not there */
    int32_t version;
    bool broken;
    struct zk_leases all;
};

static void side_fini(struct use_side *side)
{
    hfi_free(side->oldest);
    *side = (struct use_side){UINT64_MAX, NULL, UINT64_MAX, 0, false, {0}};
}

/* Ask for the nodes of all who have a permit, or else of those who hold the
 * plain lock.  NULL: no memory. */
static struct zk_batch *side_ask(struct zk_session *ses, const char *dir,
                                 const struct String_vector *names,
                                 bool permits)
{
    struct zk_batch *reqs = zk_batch_new(ses, (size_t)names->count);
    struct zk_lease lease;
    struct zk_rank rank;
    char *path;
    int i;

    zk_rank(&rank, names, NULL);
    for (i = 0; reqs && i < names->count; i++) {
        if (permits ? !zk_lease_parse(ses->conn, names->data[i], &lease)
                    : !zk_rank_holds(&rank, names->data[i]))
            continue;
        path = zk_join(dir, names->data[i]);
        if (!path) {
            zk_batch_end(reqs);
            return NULL;
        }
        zk_get(reqs, path, false);
        reqs->ops[reqs->n - 1].path = path;
    }
    return reqs;
}

/* Take in one node.  One that is not ephemeral is nobody's. */
static void side_add(struct use_side *ret, struct zk_op *op, const char *own)
{
    uint64_t age = zk_data_age(op->text, (uint64_t)op->stat.czxid);
    struct hf_info info = HF_INFO_INIT;

    if (!op->stat.ephemeralOwner)
        return;
    if (own && !strcmp(op->path, own)) {
        zk_inspect_describe(&info, op);
        ret->own = age;
        ret->version = op->stat.version;
        ret->broken = info.broken;
    }
    if (age >= ret->age)
        return;
    ret->age = age;
    hfi_free(ret->oldest);
    ret->oldest = op->path;
    op->path = NULL;
}

/* Read them once; *gone if one has gone since the names were read. */
static hf_status side_read(struct zk_session *ses, const char *dir,
                           const struct String_vector *names, bool permits,
                           const char *own, int64_t deadline,
                           struct use_side *ret, bool *gone,
                           struct hf_error *err)
{
    struct zk_batch *reqs = side_ask(ses, dir, names, permits);
    hf_status st = HF_OK;
    size_t i;

    if (!reqs || !zk_leases_count(ses->conn, names, &ret->all)) {
        zk_batch_end(reqs);
        return hfi_nomem(err);
    }
    if (zk_batch_wait(reqs, deadline))
        st = zk_inspect_none(ses->conn, err);
    for (i = 0; i < reqs->n && !st; i++) {
        if (reqs->ops[i].rc == ZNONODE)
            *gone = true;
        else if (reqs->ops[i].rc)
            st = zk_inspect_status(ses->conn, reqs->ops[i].rc, err);
        else
            side_add(ret, &reqs->ops[i], own);
    }
    zk_batch_end(reqs);
    return st;
}

/* The nodes of one use: `names` are the children of `dir`, NULL if they were not
 * read.  *ret is to be ended by the caller.  use.c (5) */
static hf_status side_look(struct zk_session *ses, const char *dir,
                           const struct String_vector *names, bool permits,
                           const char *own, int64_t deadline,
                           struct use_side *ret, struct hf_error *err)
{
    struct zk_batch *reqs = NULL;
    hf_status st = HF_OK;
    bool gone = true;
    int turn;

    *ret = (struct use_side){.oldest = NULL};
    for (turn = 0; gone && !st && turn < USE_TURNS; turn++) {
        side_fini(ret);
        gone = false;
        if (!names || turn)
            st = zk_inspect_children(ses, dir, deadline, &reqs, err);
        if (!st)
            st = side_read(ses, dir, reqs ? &reqs->ops[1].names : names,
                           permits, own, deadline, ret, &gone, err);
        zk_batch_end(reqs);
        reqs = NULL;
    }
    return !st && gone ? hfi_fail(err, HF_UNAVAILABLE,
                                  "%s: who holds the key changes too fast",
                                  ses->conn->base.endpoint)
                       : st;
}

/* use.c (2): take the age of the oldest of our use, if that is still there. */
static hf_status use_inherit(struct zk_session *ses, struct zk_node *node,
                             const struct hfi_claim *claim,
                             const struct use_side *ours, int64_t deadline,
                             bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    char data[ZK_DATA_MAX];
    zoo_op_t ops[2];
    hf_status st;
    int rc;

    if (!reqs)
        return hfi_nomem(err);
    zk_data_write(data, claim, ses->got_ms, node->fence, ours->age);
    zoo_check_op_init(&ops[0], ours->oldest, -1);
    zoo_set_op_init(&ops[1], node->path, data, (int)strlen(data), ours->version,
                    &reqs->changed);
    zk_multi(reqs, 2, ops);
    st = zk_batch_wait(reqs, deadline) ? zk_no_answer(zc, err) : HF_OK;
    rc = st ? ZOK : reqs->ops[0].rc;
    *again = rc == ZNONODE || rc == ZBADVERSION;
    if (!st && !*again)
        st = zk_status(zc, rc, "multi", err);
    if (!st && !*again) {
        pthread_mutex_lock(&zc->mu);
        node->used = ours->age;
        node->version = reqs->changed.version;
        pthread_mutex_unlock(&zc->mu);
    }
    zk_batch_end(reqs);
    return st;
}

/* What the ages mean for a claim whose node is there.  HF_BUSY: the key is used
 * in the other way.  `granted`: or else it holds. */
static hf_status use_judge(struct zk_session *ses, struct zk_node *node,
                           const struct hfi_claim *claim,
                           const struct use_side *ours, uint64_t others,
                           bool granted, int64_t deadline, bool *again,
                           struct hf_error *err)
{
    uint64_t own = ours->own < node->fence ? ours->own : node->fence;

    if (ours->own != UINT64_MAX)
        node->used = own < node->fence ? own : 0;
    if (others > own || (others > ours->age && !granted))
        return HF_OK;
    if (others < ours->age)
        return HF_BUSY;
    if (ours->own == UINT64_MAX || ours->broken) {
        *again = true; /* It is looked for, and judged. */
        return HF_OK;
    }
    return use_inherit(ses, node, claim, ours, deadline, again, err);
}

/* The claim has its permit by now; `names` are the children of the key. */
hf_status zk_use_as_permits(struct zk_session *ses, struct zk_node *node,
                            const struct hfi_claim *claim,
                            const struct String_vector *names, int64_t deadline,
                            bool *again, struct hf_error *err)
{
    struct use_side plain, ours = {.oldest = NULL};
    hf_status st =
        side_look(ses, node->keydir, names, false, NULL, deadline, &plain, err);

    if (!st && plain.age < node->fence) {
        st = side_look(ses, node->leases, NULL, true, node->path, deadline,
                       &ours, err);
        if (!st)
            st = use_judge(ses, node, claim, &ours, plain.age, true, deadline,
                           again, err);
    }
    side_fini(&plain);
    side_fini(&ours);
    if (st != HF_BUSY)
        return st;
    zk_withdraw(ses, node, deadline, NULL);
    return hfi_fail_use(err, claim, 0);
}

/* The claim contends for a plain lock by now; `granted`: its turn has come. */
hf_status zk_use_as_plain(struct zk_session *ses, struct zk_node *node,
                          const struct hfi_claim *claim,
                          const struct String_vector *names, bool granted,
                          int64_t deadline, bool *seen, bool *again,
                          struct hf_error *err)
{
    struct use_side permits = {.oldest = NULL}, ours = {.oldest = NULL};
    hf_status st;
    char *dir;

    *seen = zk_view_permits(ses->conn, names);
    if (!*seen)
        return HF_OK;
    dir = zk_leases_path(ses->conn, node->parent);
    st = dir ? side_look(ses, dir, NULL, true, NULL, deadline, &permits, err)
             : hfi_nomem(err);
    hfi_free(dir);
    if (!st && permits.age < node->fence) {
        st = side_look(ses, node->parent, names, false, node->path, deadline,
                       &ours, err);
        if (!st)
            st = use_judge(ses, node, claim, &ours, permits.age, granted,
                           deadline, again, err);
    }
    if (st == HF_BUSY)
        st = hfi_fail_use(err, claim,
                          permits.all.permits ? permits.all.permits
                                              : permits.all.holders);
    side_fini(&permits);
    side_fini(&ours);
    return st;
}

/* Of a key with contenders for a plain lock: does it have permits all the same?
 * use.c (3) */
hf_status zk_use_is_permits(struct zk_session *ses, const char *key_path,
                            const struct String_vector *names, int64_t deadline,
                            bool *ret, struct hf_error *err)
{
    struct use_side permits = {.oldest = NULL}, plain = {.oldest = NULL};
    hf_status st;
    char *dir;

    *ret = false;
    if (!zk_view_permits(ses->conn, names))
        return HF_OK;
    dir = zk_leases_path(ses->conn, key_path);
    st = dir ? side_look(ses, dir, NULL, true, NULL, deadline, &permits, err)
             : hfi_nomem(err);
    hfi_free(dir);
    if (!st && permits.age != UINT64_MAX)
        st =
            side_look(ses, key_path, names, false, NULL, deadline, &plain, err);
    *ret = !st && permits.age != UINT64_MAX && permits.age < plain.age;
    side_fini(&permits);
    side_fini(&plain);
    return st;
}
