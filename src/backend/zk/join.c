/* SPDX-License-Identifier: MIT
 *
 * join.c - who comes with the owner id of a holder takes part in what that has.
 *
 * INVARIANTS
 *  (1) Who joins takes the number, or the slot, the mode and the fence of the
 *      holder in one transaction that fails if the holder has gone or was broken.  So
 *      everyone who waits finds it before himself, peers included.
 *  (2) The transaction writes the holder's data anew, as it is.  So a downgrade
 *      of that holder that has not seen who joined finds another version than
 *      it expects (downgrade.c (2)).
 *  (3) An owner id that holds in the other mode is refused: it would wait for
 *      itself.
 *  (4) In a queue a claim joins only a holder with a lower number than its own.
 *      Several readers of one owner id come to hold at the same moment when the
 *      writer before them leaves, each with its own number.  The lowest number
 *      stays and is granted, and every join of the others lowers theirs.  If they
 *      also joined higher ones, they would change places without end.  A claim
 *      with a lower number than a holder of its mode holds by itself (rank.c (2)).
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* Read a node that holds.  *ret is to be ended by the caller; NULL: it is
 * gone. */
static hf_status join_read(struct zk_session *ses, const char *path,
                           int64_t deadline, struct zk_batch **ret,
                           struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    hf_status st = HF_OK;

    *ret = NULL;
    if (!reqs)
        return hfi_nomem(err);
    zk_get(reqs, path, false);
    if (zk_batch_wait(reqs, deadline))
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: no answer",
                      ses->conn->base.endpoint);
    else if (reqs->ops[0].rc != ZNONODE)
        st = zk_status(ses->conn, reqs->ops[0].rc, "get", err);
    if (!st && !reqs->ops[0].rc)
        *ret = reqs;
    else
        zk_batch_end(reqs);
    return st;
}

/* The path that the claim has beside that holder; NULL: no memory. */
static char *join_path(const struct zk_conn *zc, const struct zk_node *node,
                       const struct hfi_claim *claim, const char *head)
{
    char prefix[ZK_NAME_MAX], name[ZK_NAME_MAX + 16];
    struct zk_lease lease = {0, 0};
    int32_t number = 0;

    if (node->leases) {
        zk_lease_parse(zc, head, &lease);
        zk_number(zk_name_of(node->path), &number);
        zk_lease_name(zc, name, claim, lease.slot, number);
        return zk_join(node->leases, name);
    }
    zk_number(head, &number);
    zk_node_prefix(zc, prefix, claim);
    snprintf(name, sizeof(name), "%s%010d", prefix, number);
    return zk_join(node->parent, name);
}

/* join.c (1), (2).  Whichever name it has now will be looked for. */
static hf_status join_send(struct zk_session *ses, struct zk_node *node,
                           const struct hfi_claim *claim, const char *head,
                           const struct zk_op *seen, int64_t deadline,
                           struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    uint64_t fence = (uint64_t)seen->stat.czxid;
    struct hf_info info = HF_INFO_INIT;
    char data[ZK_DATA_MAX], token[HFI_TOKEN_LEN + 1], *path;
    struct zk_batch *reqs;
    zoo_op_t ops[3];
    hf_status st;

    zk_data_read(seen->text, &info, &fence, token);
    zk_data_write(data, claim, ses->got_ms, fence,
                  zk_data_age(seen->text, fence));
    path = join_path(zc, node, claim, zk_name_of(head));
    reqs = path ? zk_batch_new(ses, 1) : NULL;
    if (!reqs) {
        hfi_free(path);
        return hfi_nomem(err);
    }
    zoo_set_op_init(&ops[0], head, seen->text, seen->len, seen->stat.version,
                    &reqs->changed);
    zoo_delete_op_init(&ops[1], node->path, -1);
    zoo_create_op_init(&ops[2], path, data, (int)strlen(data), zk_acl(zc),
                       ZOO_EPHEMERAL, reqs->made, sizeof(reqs->made));
    zk_multi(reqs, 3, ops);
    pthread_mutex_lock(&zc->mu);
    hfi_free(node->path);
    node->path = NULL;
    node->fence = 0;
    pthread_mutex_unlock(&zc->mu);
    st = zk_batch_wait(reqs, deadline) ? zk_no_answer(zc, err) : HF_OK;
    if (!st && reqs->ops[0].rc != ZNONODE && reqs->ops[0].rc != ZNODEEXISTS &&
        reqs->ops[0].rc != ZBADVERSION)
        st = zk_status(zc, reqs->ops[0].rc, "multi", err);
    zk_batch_end(reqs);
    hfi_free(path);
    return st;
}

/* The node with this name holds and has our tag: join it if it is our owner's,
 * and was not broken.  Sets *again whenever the queue must be looked at
 * anew. */
static hf_status join_one(struct zk_session *ses, struct zk_node *node,
                          const struct hfi_claim *claim, const char *name,
                          int64_t deadline, bool *again, struct hf_error *err)
{
    char *path = zk_join(node->leases ? node->leases : node->parent, name);
    char token[HFI_TOKEN_LEN + 1];
    struct hf_info info = HF_INFO_INIT;
    struct zk_batch *reqs = NULL;
    bool shared = claim->shared;
    uint64_t fence;
    int32_t number;
    hf_status st;

    st = path ? join_read(ses, path, deadline, &reqs, err) : hfi_nomem(err);
    *again = !st && !reqs;
    if (reqs)
        zk_data_read(reqs->ops[0].text, &info, &fence, token);
    if (reqs && !strcmp(info.owner, claim->owner) && !info.broken) {
        zk_contender(name, &number, &shared);
        if (shared != claim->shared) {
            st = hfi_fail_other_mode(err, claim); /* join.c (3) */
        } else {
            *again = true;
            st =
                join_send(ses, node, claim, path, &reqs->ops[0], deadline, err);
        }
    }
    zk_batch_end(reqs);
    hfi_free(path);
    return st;
}

hf_status zk_join_owner(struct zk_session *ses, struct zk_node *node,
                        const struct hfi_claim *claim,
                        const struct String_vector *names,
                        const struct zk_rank *rank, int64_t deadline,
                        bool *again, struct hf_error *err)
{
    char prefix[ZK_NAME_MAX];
    hf_status st = HF_OK;
    int i;

    zk_node_prefix(ses->conn, prefix, claim);
    for (i = 0; i < names->count && !st && !*again; i++)
        if (zk_rank_holds(rank, names->data[i]) &&
            zk_name_owned_alike(names->data[i], prefix) &&
            zk_rank_before(rank, names->data[i])) /* join.c (4) */
            st = join_one(ses, node, claim, names->data[i], deadline, again,
                          err);
    return st;
}

hf_status zk_join_lease(struct zk_session *ses, struct zk_node *node,
                        const struct hfi_claim *claim,
                        const struct String_vector *names, int64_t deadline,
                        bool *again, struct hf_error *err)
{
    char prefix[ZK_NAME_MAX];
    struct zk_lease lease;
    hf_status st = HF_OK;
    int i;

    zk_owner_prefix(ses->conn, prefix, claim);
    for (i = 0; i < names->count && !st && !*again; i++)
        if (zk_lease_parse(ses->conn, names->data[i], &lease) &&
            lease.slot >= 0 && zk_name_owned_alike(names->data[i], prefix))
            st = join_one(ses, node, claim, names->data[i], deadline, again,
                          err);
    return st;
}
