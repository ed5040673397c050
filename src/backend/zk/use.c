/* SPDX-License-Identifier: MIT
 *
 * use.c - a key is a plain lock or has permits, and not both.
 *
 * Those who contend for a plain lock and those who have a permit stand in
 * different places.  Each makes its node first and looks at the other place
 * after that, so of two who come at once the later one finds the other.
 *
 * INVARIANTS
 *  (1) The key is used as its oldest node says.  How old a node is, is its
 *      fence: the transaction that made it, and every one has another.
 *  (2) Who finds that the key is used in the other way leaves.  It counts with
 *      nobody meanwhile: an older node of the right use stands against it.
 *
 * A plain lock looks at the other place only if the children of the key show
 * that there is one, so where permits were never used it costs nothing.  Nor is
 * it missed where the children are not read (predict.c): the place would have
 * been a child that was made meanwhile, and the number had not told.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* Which names of a place count. */
typedef bool use_wants(const struct zk_conn *, const char *name,
                       const void *arg);

static bool use_wants_lease(const struct zk_conn *zc, const char *name,
                            const void *arg)
{
    struct zk_lease lease;

    (void)arg;
    return zk_lease_parse(zc, name, &lease);
}

static bool use_wants_this(const struct zk_conn *zc, const char *name,
                           const void *arg)
{
    (void)zc;
    return !strcmp(name, arg);
}

/* Ask for the nodes of all that count.  NULL: no memory. */
static struct zk_batch *use_ask(struct zk_session *ses, const char *dir,
                                const struct String_vector *names,
                                use_wants *wants, const void *arg)
{
    struct zk_batch *reqs = zk_batch_new(ses, (size_t)names->count);
    char *path;
    int i;

    for (i = 0; reqs && i < names->count; i++) {
        if (!wants(ses->conn, names->data[i], arg))
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

/* The fence of the oldest; UINT64_MAX: there is none.  A node that is not
 * ephemeral is nobody's. */
static hf_status use_oldest(struct zk_session *ses, const char *dir,
                            const struct String_vector *names, use_wants *wants,
                            const void *arg, int64_t deadline, uint64_t *ret,
                            struct hf_error *err)
{
    struct zk_batch *reqs = use_ask(ses, dir, names, wants, arg);
    char token[HFI_TOKEN_LEN + 1];
    hf_status st = HF_OK;
    size_t i;

    *ret = UINT64_MAX;
    if (!reqs)
        return hfi_nomem(err);
    if (zk_batch_wait(reqs, deadline))
        st = zk_inspect_none(ses->conn, err);
    for (i = 0; i < reqs->n && !st; i++) {
        const struct zk_op *op = &reqs->ops[i];
        uint64_t fence = (uint64_t)op->stat.czxid;
        struct hf_info info = HF_INFO_INIT;

        if (op->rc != ZNONODE)
            st = zk_inspect_status(ses->conn, op->rc, err);
        if (op->rc || !op->stat.ephemeralOwner)
            continue;
        zk_data_read(op->text, &info, &fence, token);
        if (fence < *ret)
            *ret = fence;
    }
    zk_batch_end(reqs);
    return st;
}

/* The same of those who contend for a plain lock, which stand in order. */
static hf_status use_oldest_plain(struct zk_session *ses, const char *dir,
                                  const struct String_vector *names,
                                  int64_t deadline, uint64_t *ret,
                                  struct hf_error *err)
{
    struct zk_rank rank;

    *ret = UINT64_MAX;
    zk_rank(&rank, names, NULL);
    return rank.head ? use_oldest(ses, dir, names, use_wants_this, rank.head,
                                  deadline, ret, err)
                     : HF_OK;
}

/* Those who have a permit, and the fence of the oldest. */
static hf_status use_leases(struct zk_session *ses, const char *dir,
                            int64_t deadline, struct zk_leases *all,
                            uint64_t *oldest, struct hf_error *err)
{
    struct zk_batch *reqs;
    hf_status st = zk_inspect_children(ses, dir, deadline, &reqs, err);

    if (st)
        return st;
    if (!zk_leases_count(ses->conn, &reqs->ops[1].names, all))
        st = hfi_nomem(err);
    if (!st)
        st = use_oldest(ses, dir, &reqs->ops[1].names, use_wants_lease, NULL,
                        deadline, oldest, err);
    zk_batch_end(reqs);
    return st;
}

/* The claim has its permit by now; `names` are the children of the key. */
hf_status zk_use_as_permits(struct zk_session *ses, struct zk_node *node,
                            const struct hfi_claim *claim,
                            const struct String_vector *names, int64_t deadline,
                            struct hf_error *err)
{
    uint64_t plain, oldest = UINT64_MAX;
    struct zk_leases all;
    hf_status st =
        use_oldest_plain(ses, node->keydir, names, deadline, &plain, err);

    if (st || plain > node->fence)
        return st;
    st = use_leases(ses, node->leases, deadline, &all, &oldest, err);
    if (st || oldest < plain)
        return st;
    zk_withdraw(ses, node, deadline, NULL);
    return hfi_fail_use(err, claim, 0);
}

/* The claim contends for a plain lock by now. */
hf_status zk_use_as_plain(struct zk_session *ses, const struct zk_node *node,
                          const struct hfi_claim *claim,
                          const struct String_vector *names, int64_t deadline,
                          bool *seen, struct hf_error *err)
{
    uint64_t plain, oldest = UINT64_MAX;
    struct zk_leases all = {0};
    hf_status st;
    char *dir;

    *seen = zk_view_permits(ses->conn, names);
    if (!*seen)
        return HF_OK;
    dir = zk_leases_path(ses->conn, node->parent);
    if (!dir)
        return hfi_nomem(err);
    st = use_leases(ses, dir, deadline, &all, &oldest, err);
    hfi_free(dir);
    if (st || oldest > node->fence)
        return st;
    st = use_oldest_plain(ses, node->parent, names, deadline, &plain, err);
    if (st || plain < oldest)
        return st;
    return hfi_fail_use(err, claim, all.permits ? all.permits : all.holders);
}
