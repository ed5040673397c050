/* SPDX-License-Identifier: MIT
 *
 * async.c - requests whose answers nobody waits for.
 *
 * They are sent with the mutex held, from callbacks and from the I/O thread,
 * and their answers are acted upon in the callback.  A request is in the list
 * of its session until it is answered or the handle is closed.
 *
 * INVARIANTS
 *  (1) What an answer concerns is looked up by the token in it: the node may
 *      be gone, or have changed sessions or its name, by the time of the
 *      answer.
 *  (2) A node is removed only if it is known to be ours: by its name, which has
 *      our token, or, where all nodes of a key have one name, by its data and
 *      its owner.  It counts as removed only if the server has said so, or said
 *      that it is not there; anything else leaves the node marked as
 *      `deleting`, and it is tried again after a while, or by the next
 *      connection.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* Between two attempts to remove a node, if the server refuses it: at first,
 * and at most. */
#define REMOVE_MIN_MS 250
#define REMOVE_MAX_MS 8000

/* So long does a lease linger that nobody can ask for. */
#define YIELD_AFTER_MS 1000

/* Of a request whose answer nobody waits for. */
struct zk_async {
    struct hfi_link link; /* in zk_session.async_reqs */
    struct zk_session *ses;
    int64_t sent_at;
    bool counts;    /* touch.c (2): it is an X */
    unsigned names; /* zk_node.names when it was sent */
    int left;       /* deletes that are not answered */
    bool failed;    /* one that was has failed */
    bool alone;     /* the node has no companion */
    zoo_op_result_t results[2];
    char token[HFI_TOKEN_LEN + 1];
    char other[HFI_TOKEN_LEN + 1]; /* what was read */
};

/* Of an answer; NULL if the handle is being closed, and nothing matters. */
static struct zk_async *async_of(const void *data)
{
    struct zk_async *async = (struct zk_async *)(uintptr_t)data;

    return async->ses->shut ? NULL : async;
}

/* With the mutex held; NULL: no memory, or no connection. */
static struct zk_async *async_new(struct zk_session *ses, const char *token)
{
    struct zk_async *async =
        ses->state == ZK_UP ? hfi_alloc(sizeof(*async)) : NULL;

    if (!async)
        return NULL;
    async->ses = ses;
    async->sent_at = hfi_now();
    snprintf(async->token, sizeof(async->token), "%s", token);
    hfi_link_init(&async->link);
    hfi_link_append(&ses->async_reqs, &async->link);
    return async;
}

static void async_free(struct zk_async *async)
{
    hfi_link_remove(&async->link);
    hfi_free(async);
}

/* What the data of a node says. */
static void async_read(const char *text, int len, struct hf_info *info,
                       char token[HFI_TOKEN_LEN + 1])
{
    char copy[ZK_DATA_MAX + 32];
    uint64_t fence;

    snprintf(copy, sizeof(copy), "%.*s", len > 0 ? len : 0, text ? text : "");
    zk_data_read(copy, info, &fence, token);
}

/* The handle is closed, and some were not answered. */
void zk_async_drop(struct zk_session *ses)
{
    while (!hfi_link_alone(&ses->async_reqs))
        async_free(hfi_container(ses->async_reqs.next, struct zk_async, link));
}

/* node.c (3): its removal was refused, and may be allowed later. */
static void delete_again(struct zk_node *node)
{
    node->remove_ms *= 2;
    if (node->remove_ms < REMOVE_MIN_MS)
        node->remove_ms = REMOVE_MIN_MS;
    if (node->remove_ms > REMOVE_MAX_MS)
        node->remove_ms = REMOVE_MAX_MS;
    node->remove_at = hfi_now() + node->remove_ms;
    zk_nodes_check_by(node->ses->conn, node->remove_at);
}

/* The node is gone, or its session is; else it is tried again. */
static void delete_end(struct zk_async *async, bool gone)
{
    struct zk_conn *zc = async->ses->conn;
    struct zk_node *node = zk_node_find(zc, async->token);

    if (node && node->ses != async->ses)
        node = NULL;
    if (gone && node && node->busy)
        zk_node_clear(node);
    else if (gone && node)
        zk_node_drop(zc, node); /* node.c (1) */
    else if (node && node->deleting)
        delete_again(node);
    async_free(async);
}

static void delete_answered(int rc, const void *data)
{
    struct zk_async *async = async_of(data);

    if (!async)
        return;
    async->failed = async->failed || (rc != ZOK && rc != ZNONODE);
    if (!--async->left)
        delete_end(async, !async->failed);
}

/* False if it could not be sent. */
static bool delete_send(struct zk_async *async, const char *path)
{
    if (!path ||
        zoo_adelete(async->ses->zh, path, -1, delete_answered, async) != ZOK) {
        async->failed = true;
        return false;
    }
    async->left++;
    return true;
}

/* Where an unanswered create may have left a node.  All that bear our token go:
 * those that are not ours are imitations. */
static void delete_those(struct zk_async *async, const char *dir, int rc,
                         const struct String_vector *names)
{
    char prefix[ZK_NAME_MAX], *path;
    int i;

    zk_name_start(async->ses->conn, prefix, async->token);
    async->failed = async->failed || (rc != ZOK && rc != ZNONODE);
    for (i = 0; !rc && dir && names && i < names->count; i++) {
        if (!zk_name_is(names->data[i], prefix))
            continue;
        path = zk_join(dir, names->data[i]);
        delete_send(async, path);
        hfi_free(path);
    }
    if (!--async->left)
        delete_end(async, !async->failed);
}

static void delete_found(int rc, const struct String_vector *names,
                         const void *data)
{
    struct zk_async *async = async_of(data);
    struct zk_node *node;

    if (!async)
        return;
    node = zk_node_find(async->ses->conn, async->token);
    delete_those(async, node ? node->parent : NULL, rc, names);
}

/* With permits there is a second place. */
static void delete_found_lease(int rc, const struct String_vector *names,
                               const void *data)
{
    struct zk_async *async = async_of(data);
    struct zk_node *node;

    if (!async)
        return;
    node = zk_node_find(async->ses->conn, async->token);
    delete_those(async, node ? node->leases : NULL, rc, names);
}

static bool delete_ask(struct zk_async *, const struct zk_node *);

/* ephemeral.c (4) */
static void delete_pair_answered(int rc, const void *data)
{
    struct zk_async *async = async_of(data);
    struct zk_node *node;

    if (!async)
        return;
    node = zk_node_find(async->ses->conn, async->token);
    if (node && rc == ZOK)
        node->paired = false;
    if (node && rc == ZNONODE) {
        async->alone = true;
        if (delete_ask(async, node))
            return;
        rc = ZINVALIDSTATE;
    }
    delete_end(async, rc == ZOK || rc == ZNONODE);
}

/* Remove the node with its companion; false if it could not be sent. */
static bool delete_pair(struct zk_async *async, const char *path)
{
    char *companion = zk_companion_path(async->ses->conn, async->token);
    bool sent = false;
    zoo_op_t ops[2];

    if (companion) {
        zoo_delete_op_init(&ops[0], companion, -1);
        zoo_delete_op_init(&ops[1], path, -1);
        sent = zoo_amulti(async->ses->zh, 2, ops, async->results,
                          delete_pair_answered, async) == ZOK;
    }
    hfi_free(companion);
    return sent;
}

/* recipe=ephemeral: is the node ours at all? */
static void delete_got(int rc, const char *text, int len,
                       const struct Stat *stat, const void *data)
{
    struct zk_async *async = async_of(data);
    struct zk_session *ses;
    struct hf_info info = HF_INFO_INIT;
    struct zk_node *node;
    bool ours, sent = false;

    if (!async)
        return;
    ses = async->ses;
    if (!rc)
        async_read(text, len, &info, async->other);
    node = zk_node_find(ses->conn, async->token);
    ours = !rc && !strcmp(async->other, async->token) &&
           (stat->ephemeralOwner == ses->id ||
            (node && node->alt && stat->ephemeralOwner == node->alt));
    if (ours && node)
        sent = async->alone ? delete_send(async, node->parent)
                            : delete_pair(async, node->parent);
    if (!sent)
        delete_end(async, !ours && (rc == ZOK || rc == ZNONODE));
}

/* Where is it, and is it ours? */
static bool delete_ask(struct zk_async *async, const struct zk_node *node)
{
    struct zk_session *ses = async->ses;

    if (ses->conn->single)
        return zoo_awget(ses->zh, node->parent, NULL, NULL, delete_got,
                         async) == ZOK;
    if (zoo_awget_children(ses->zh, node->parent, NULL, NULL, delete_found,
                           async) != ZOK)
        return false;
    async->left++;
    if (!node->leases)
        return true;
    if (zoo_awget_children(ses->zh, node->leases, NULL, NULL,
                           delete_found_lease, async) == ZOK)
        async->left++;
    else
        async->failed = true;
    return true;
}

static void delete_synced(int rc, const char *path, const void *data)
{
    struct zk_async *async = async_of(data);
    struct zk_node *node;

    (void)path;
    if (!async)
        return;
    node = zk_node_find(async->ses->conn, async->token);
    if (rc || !node || !delete_ask(async, node))
        delete_end(async, false);
}

/* Remove its node without waiting for it; with the mutex held.  Where it must
 * be looked for the server asks the leader first: one that lags behind would
 * not find what another has made. */
void zk_node_delete_async(struct zk_node *node)
{
    struct zk_session *ses = node->ses;
    struct zk_async *async = ses ? async_new(ses, node->token) : NULL;
    bool sent;

    node->held = false;
    node->remove_at = 0;
    if (!async)
        return;
    zk_node_unmark(node);
    if (node->path && !ses->conn->single)
        sent = delete_send(async, node->path);
    else if (ses->standalone)
        sent = delete_ask(async, node);
    else
        sent = zoo_async(ses->zh, node->parent, delete_synced, async) == ZOK;
    if (!sent)
        delete_end(async, false);
}

static void unmarked(int rc, const void *data)
{
    struct zk_async *async = async_of(data);

    (void)rc;
    if (async)
        async_free(async);
}

/* Nobody waits for the answer: a mark that stays ends with its session, and
 * prevents nothing but a move of the same node. */
void zk_node_unmark(struct zk_node *node)
{
    struct zk_session *ses = node->ses;
    char *path =
        ses && node->marked ? zk_mark_path(ses->conn, node->czxid) : NULL;
    struct zk_async *async = path ? async_new(ses, node->token) : NULL;

    if (async && zoo_adelete(ses->zh, path, -1, unmarked, async) != ZOK)
        async_free(async);
    node->marked = node->marked && !async;
    hfi_free(path);
}

/* The same for the companion of a node that somebody has removed by hand. */
void zk_node_unpair(struct zk_node *node)
{
    struct zk_session *ses = node->ses;
    char *path =
        ses && node->paired ? zk_companion_path(ses->conn, node->token) : NULL;
    struct zk_async *async = path ? async_new(ses, node->token) : NULL;

    if (async && zoo_adelete(ses->zh, path, -1, unmarked, async) != ZOK)
        async_free(async);
    node->paired = false;
    hfi_free(path);
}

/* ---- hearing of it ----------------------------------------------------- */

static void node_watch_answer(int rc, const char *text, int len,
                              const struct Stat *stat, const void *data)
{
    struct zk_async *who = async_of(data);
    struct hf_info info = HF_INFO_INIT;
    struct zk_node *node;

    (void)stat;
    if (!who)
        return;
    node = zk_node_find(who->ses->conn, who->token);
    if (node && (node->ses != who->ses || node->names != who->names))
        node = NULL;
    if (!rc)
        async_read(text, len, &info, who->other);
    if (rc == ZNONODE && node)
        zk_node_gone(node, HF_LOSS_DELETED);
    else if (!rc && node && who->ses->conn->single &&
             strcmp(who->other, who->token) != 0)
        zk_node_gone(node, HF_LOSS_STOLEN); /* The name is another's now. */
    else if (!rc && info.broken && node)
        zk_node_broken(node);
    async_free(who);
}

/* An operator has asked for what we hold: the holder is told, and the node
 * stays until it is done, or until its lease is over. */
void zk_node_broken(struct zk_node *node)
{
    if (!node->held || node->busy || node->deleting || node->broken)
        return;
    node->broken = true;
    hfi_gone(&node->ses->conn->base, node->key, node->token, HF_LOSS_BROKEN);
}

/* A node that we hold was removed by somebody; with the mutex held.  While
 * a call is at it, that will find out. */
void zk_node_gone(struct zk_node *node, hf_loss reason)
{
    struct zk_conn *zc = node->ses->conn;

    if (!node->held || node->busy || node->deleting || node->moving)
        return;
    zk_node_clear(node);
    node->lost = true;
    hfi_gone(&zc->base, node->key, node->token, reason);
}

/* Hear at once when the node of what we hold is removed or marked; with the
 * mutex held.
 * Nobody waits for the answer: the heartbeat would tell as well. */
void zk_node_watch(struct zk_node *node)
{
    struct zk_session *ses = node->ses;
    struct zk_async *who =
        ses && node->path ? async_new(ses, node->token) : NULL;

    if (who)
        who->names = node->names;
    if (who && zoo_awget(ses->zh, node->path, zk_watcher, ses,
                         node_watch_answer, who) != ZOK)
        async_free(who);
}

static void listen_answer(int rc, const struct String_vector *names,
                          const void *data)
{
    struct zk_async *who = async_of(data);
    struct zk_rank rank = {0};
    struct zk_node *node;

    if (!who)
        return;
    node = zk_node_find(who->ses->conn, who->token);
    if (!rc && names)
        zk_rank(&rank, names, NULL);
    if (node && node->held &&
        (rank.waiters || (rank.holders > 1 && !rank.shared)))
        hfi_wanted(&who->ses->conn->base, node->key);
    async_free(who);
}

/* Hear of others who come for what we hold; with the mutex held. */
void zk_node_listen(struct zk_node *node)
{
    struct zk_session *ses = node->ses;
    struct zk_async *who;

    if (!ses || node->listening)
        return;
    /* ephemeral.c (6); with permits the queue may have no node to watch. */
    if (ses->conn->single || node->leases) {
        node->listening = true;
        zk_node_subscribe(node);
        node->yield_at = hfi_now() + YIELD_AFTER_MS;
        zk_nodes_check_by(ses->conn, node->yield_at);
        return;
    }
    who = async_new(ses, node->token);
    if (!who)
        return;
    node->listening = true;
    zk_node_subscribe(node);
    if (zoo_awget_children(ses->zh, node->parent, zk_watcher, ses,
                           listen_answer, who) != ZOK)
        async_free(who);
}

/* ---- the server -------------------------------------------------------- */

static void standalone_answer(int rc, const char *text, int len,
                              const struct Stat *stat, const void *data)
{
    struct zk_async *async = async_of(data);

    (void)text;
    (void)stat;
    if (!async)
        return;
    async->ses->standalone = rc == ZOK && len <= 0;
    async_free(async);
}

/* The members of an ensemble are listed in this node; where it is empty there
 * are none.  Where it cannot be read we go on asking the leader. */
void zk_ask_standalone(struct zk_session *ses)
{
    struct zk_async *async = async_new(ses, "");

    ses->standalone = false;
    if (async && zoo_awget(ses->zh, "/zookeeper/config", NULL, NULL,
                           standalone_answer, async) != ZOK)
        async_free(async);
}

static void touch_answer(int rc, const char *path, const void *data)
{
    struct zk_async *async = async_of(data);

    (void)path;
    if (!async)
        return;
    if (rc == ZOK)
        zk_touch_passed(async->ses, async->sent_at);
    if (rc == ZOK && async->counts)
        zk_touched(async->ses, async->sent_at);
    async_free(async);
}

/* touch.c (2): any question will do that the leader has to answer. */
void zk_touch(struct zk_session *ses)
{
    struct zk_async *async = async_new(ses, "");
    bool counts = zk_touch_sent(ses);

    if (!async)
        return;
    async->counts = counts;
    if (zoo_async(ses->zh, "/", touch_answer, async) != ZOK)
        async_free(async);
}
