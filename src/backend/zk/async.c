/* SPDX-License-Identifier: MIT
 *
 * async.c - requests whose answers nobody waits for.
 *
 * They are sent with the mutex held, from callbacks and from the driver too,
 * and their answers are acted upon in the callback.  An errand is in the list
 * of its session until it is answered or the handle is closed.
 *
 * INVARIANTS
 *  (1) What an answer concerns is looked up by the token in it: the place may
 *      be gone, or have changed sessions, by the time of the answer.
 *  (2) A node is removed only if it is known to be ours: by its name, which has
 *      our token, or, where all nodes of a key have one name, by its data and
 *      its owner.  It counts as removed only if the server has said so, or said
 *      that it is not there; anything else leaves the place doomed, and it is
 *      tried again after a while, or by the next connection.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* Between two attempts to remove a node, if the server refuses it: at first, and
 * at most. */
#define REMOVE_MIN_MS 250
#define REMOVE_MAX_MS 8000

/* So long does a lease linger that nobody can ask for. */
#define YIELD_AFTER_MS 1000

/* Of a request whose answer nobody waits for. */
struct zk_errand {
    struct hfi_link link; /* in zk_session.errands */
    struct zk_session *ses;
    int64_t sent_at;
    bool counts; /* touch.c (2): it is an X */
    int left;    /* deletes that are not answered */
    bool failed; /* one that was has failed */
    char token[HFI_TOKEN_LEN + 1];
    char other[HFI_TOKEN_LEN + 1]; /* what was read */
};

/* Of an answer; NULL if the handle is being closed, and nothing matters. */
static struct zk_errand *errand_of(const void *data)
{
    struct zk_errand *errand = (struct zk_errand *)(uintptr_t)data;

    return errand->ses->shut ? NULL : errand;
}

/* With the mutex held; NULL: no memory, or no connection. */
static struct zk_errand *errand_new(struct zk_session *ses, const char *token)
{
    struct zk_errand *errand =
        ses->state == ZK_UP ? hfi_alloc(sizeof(*errand)) : NULL;

    if (!errand)
        return NULL;
    errand->ses = ses;
    errand->sent_at = hfi_now();
    snprintf(errand->token, sizeof(errand->token), "%s", token);
    hfi_link_init(&errand->link);
    hfi_link_append(&ses->errands, &errand->link);
    return errand;
}

static void errand_free(struct zk_errand *errand)
{
    hfi_link_remove(&errand->link);
    hfi_free(errand);
}

/* What the data of a node says. */
static void errand_read(const char *text, int len, struct hf_info *info,
                        char token[HFI_TOKEN_LEN + 1])
{
    char copy[ZK_DATA_MAX + 32];
    uint64_t fence;

    snprintf(copy, sizeof(copy), "%.*s", len > 0 ? len : 0, text ? text : "");
    zk_data_read(copy, info, &fence, token);
}

/* The handle is closed, and some were not answered. */
void zk_errands_drop(struct zk_session *ses)
{
    while (!hfi_link_alone(&ses->errands))
        errand_free(hfi_container(ses->errands.next, struct zk_errand, link));
}

/* node.c (3): its removal was refused, and may be allowed later. */
static void burial_again(struct zk_place *place)
{
    place->remove_ms *= 2;
    if (place->remove_ms < REMOVE_MIN_MS)
        place->remove_ms = REMOVE_MIN_MS;
    if (place->remove_ms > REMOVE_MAX_MS)
        place->remove_ms = REMOVE_MAX_MS;
    place->remove_at = hfi_now() + place->remove_ms;
    zk_places_look_by(place->ses->conn, place->remove_at);
}

/* The node is gone, or its session is; else it is tried again. */
static void burial_end(struct zk_errand *burial, bool gone)
{
    struct zk_conn *zc = burial->ses->conn;
    struct zk_place *place = zk_place_find(zc, burial->token);

    if (place && place->ses != burial->ses)
        place = NULL;
    if (gone && place && place->busy)
        zk_place_clear(place);
    else if (gone && place)
        zk_place_drop(zc, place); /* node.c (1) */
    else if (place && place->doomed)
        burial_again(place);
    errand_free(burial);
}

static void burial_deleted(int rc, const void *data)
{
    struct zk_errand *burial = errand_of(data);

    if (!burial)
        return;
    burial->failed = burial->failed || (rc != ZOK && rc != ZNONODE);
    if (!--burial->left)
        burial_end(burial, !burial->failed);
}

/* False if it could not be sent. */
static bool burial_delete(struct zk_errand *burial, const char *path)
{
    if (!path ||
        zoo_adelete(burial->ses->zh, path, -1, burial_deleted, burial) != ZOK) {
        burial->failed = true;
        return false;
    }
    burial->left++;
    return true;
}

/* Where an unanswered create may have left a node.  All that bear our token go:
 * those that are not ours are imitations. */
static void burial_found(int rc, const struct String_vector *names,
                         const void *data)
{
    struct zk_errand *burial = errand_of(data);
    char prefix[ZK_NAME_MAX], *path;
    struct zk_place *place;
    struct zk_conn *zc;
    int i;

    if (!burial)
        return;
    zc = burial->ses->conn;
    place = zk_place_find(zc, burial->token);
    zk_node_prefix(zc, prefix, burial->token, NULL);
    /* Without the word at its end it also matches names with a tag. */
    prefix[zc->kazoo ? 32 : 39] = '\0';
    burial->failed = rc != ZOK && rc != ZNONODE;
    for (i = 0; !rc && place && names && i < names->count; i++) {
        if (!zk_name_is(names->data[i], prefix))
            continue;
        path = zk_join(place->parent, names->data[i]);
        burial_delete(burial, path);
        hfi_free(path);
    }
    if (!burial->left)
        burial_end(burial, !burial->failed);
}

/* recipe=ephemeral: is the node ours at all? */
static void burial_got(int rc, const char *text, int len,
                       const struct Stat *stat, const void *data)
{
    struct zk_errand *burial = errand_of(data);
    struct zk_session *ses;
    struct hf_info info = HF_INFO_INIT;
    struct zk_place *place;
    bool ours, sent = false;

    if (!burial)
        return;
    ses = burial->ses;
    if (!rc)
        errand_read(text, len, &info, burial->other);
    place = zk_place_find(ses->conn, burial->token);
    ours = !rc && !strcmp(burial->other, burial->token) &&
           (stat->ephemeralOwner == ses->id ||
            (place && place->alt && stat->ephemeralOwner == place->alt));
    if (ours && place)
        sent = burial_delete(burial, place->parent);
    if (!sent)
        burial_end(burial, !ours && (rc == ZOK || rc == ZNONODE));
}

/* Where is it, and is it ours? */
static bool burial_ask(struct zk_errand *burial, const char *parent)
{
    struct zk_session *ses = burial->ses;

    if (ses->conn->single)
        return zoo_awget(ses->zh, parent, NULL, NULL, burial_got, burial) ==
               ZOK;
    return zoo_awget_children(ses->zh, parent, NULL, NULL, burial_found,
                              burial) == ZOK;
}

static void burial_synced(int rc, const char *path, const void *data)
{
    struct zk_errand *burial = errand_of(data);
    struct zk_place *place;

    (void)path;
    if (!burial)
        return;
    place = zk_place_find(burial->ses->conn, burial->token);
    if (rc || !place || !burial_ask(burial, place->parent))
        burial_end(burial, false);
}

/* Remove its node without waiting for it; with the mutex held.  Where it must
 * be looked for the server asks the leader first: one that lags behind would
 * not find what another has made. */
void zk_place_bury(struct zk_place *place)
{
    struct zk_session *ses = place->ses;
    struct zk_errand *burial = ses ? errand_new(ses, place->token) : NULL;
    bool sent;

    place->held = false;
    place->remove_at = 0;
    if (!burial)
        return;
    zk_place_unmark(place);
    if (place->path && !ses->conn->single)
        sent = burial_delete(burial, place->path);
    else if (ses->sole)
        sent = burial_ask(burial, place->parent);
    else
        sent = zoo_async(ses->zh, place->parent, burial_synced, burial) == ZOK;
    if (!sent)
        burial_end(burial, false);
}

static void unmarked(int rc, const void *data)
{
    struct zk_errand *errand = errand_of(data);

    (void)rc;
    if (errand)
        errand_free(errand);
}

/* Nobody waits for the answer: a mark that stays ends with its session, and
 * prevents nothing but a move of the same node. */
void zk_place_unmark(struct zk_place *place)
{
    struct zk_session *ses = place->ses;
    char *path =
        ses && place->marked ? zk_mark_path(ses->conn, place->czxid) : NULL;
    struct zk_errand *errand = path ? errand_new(ses, place->token) : NULL;

    if (errand && zoo_adelete(ses->zh, path, -1, unmarked, errand) != ZOK)
        errand_free(errand);
    place->marked = place->marked && !errand;
    hfi_free(path);
}

/* ---- hearing of it ----------------------------------------------------- */

static void guard_answer(int rc, const char *text, int len,
                         const struct Stat *stat, const void *data)
{
    struct zk_errand *who = errand_of(data);
    struct hf_info info = HF_INFO_INIT;
    struct zk_place *place;

    (void)stat;
    if (!who)
        return;
    place = zk_place_find(who->ses->conn, who->token);
    if (place && place->ses != who->ses)
        place = NULL;
    if (!rc)
        errand_read(text, len, &info, who->other);
    if (rc == ZNONODE && place)
        zk_place_gone(place, HF_LOSS_DELETED);
    else if (!rc && place && who->ses->conn->single &&
             strcmp(who->other, who->token) != 0)
        zk_place_gone(place, HF_LOSS_STOLEN); /* The name is another's now. */
    else if (!rc && info.broken && place)
        zk_place_broken(place);
    errand_free(who);
}

/* An operator has asked for what we hold: the holder is told, and the node
 * stays until it is done, or until its lease is over. */
void zk_place_broken(struct zk_place *place)
{
    if (!place->held || place->busy || place->doomed || place->broken)
        return;
    place->broken = true;
    hfi_gone(&place->ses->conn->base, place->key, place->token, HF_LOSS_BROKEN);
}

/* The node of a held place was removed by somebody; with the mutex held.  While
 * a call is at it, that will find out. */
void zk_place_gone(struct zk_place *place, hf_loss reason)
{
    struct zk_conn *zc = place->ses->conn;

    if (!place->held || place->busy || place->doomed || place->moving)
        return;
    zk_place_clear(place);
    place->lost = true;
    hfi_gone(&zc->base, place->key, place->token, reason);
}

/* Hear at once when the node of what we hold is removed or marked; with the
 * mutex held.
 * Nobody waits for the answer: the heartbeat would tell as well. */
void zk_place_guard(struct zk_place *place)
{
    struct zk_session *ses = place->ses;
    struct zk_errand *who =
        ses && place->path ? errand_new(ses, place->token) : NULL;

    if (who && zoo_awget(ses->zh, place->path, zk_watcher, ses, guard_answer,
                         who) != ZOK)
        errand_free(who);
}

static void listen_answer(int rc, const struct String_vector *names,
                          const void *data)
{
    struct zk_errand *who = errand_of(data);
    struct zk_rank rank = {0};
    struct zk_place *place;

    if (!who)
        return;
    place = zk_place_find(who->ses->conn, who->token);
    if (!rc && names)
        zk_rank(&rank, names, NULL);
    if (place && place->held && rank.holders + rank.waiters > 1)
        hfi_wanted(&who->ses->conn->base, place->key);
    errand_free(who);
}

/* Hear of others who come for what we hold; with the mutex held. */
void zk_place_listen(struct zk_place *place)
{
    struct zk_session *ses = place->ses;
    struct zk_errand *who;

    if (!ses || place->listening)
        return;
    if (ses->conn->single) { /* ephemeral.c (5) */
        place->listening = true;
        zk_place_hears(place);
        place->yield_at = hfi_now() + YIELD_AFTER_MS;
        zk_places_look_by(ses->conn, place->yield_at);
        return;
    }
    who = errand_new(ses, place->token);
    if (!who)
        return;
    place->listening = true;
    zk_place_hears(place);
    if (zoo_awget_children(ses->zh, place->parent, zk_watcher, ses,
                           listen_answer, who) != ZOK)
        errand_free(who);
}

/* ---- the server -------------------------------------------------------- */

static void alone_answer(int rc, const char *text, int len,
                         const struct Stat *stat, const void *data)
{
    struct zk_errand *errand = errand_of(data);

    (void)text;
    (void)stat;
    if (!errand)
        return;
    errand->ses->sole = rc == ZOK && len <= 0;
    errand_free(errand);
}

/* The members of an ensemble are listed in this node; where it is empty there
 * are none.  Where it cannot be read we go on asking the leader. */
void zk_ask_alone(struct zk_session *ses)
{
    struct zk_errand *errand = errand_new(ses, "");

    ses->sole = false;
    if (errand && zoo_awget(ses->zh, "/zookeeper/config", NULL, NULL,
                            alone_answer, errand) != ZOK)
        errand_free(errand);
}

static void touch_answer(int rc, const char *path, const void *data)
{
    struct zk_errand *errand = errand_of(data);

    (void)path;
    if (!errand)
        return;
    if (rc == ZOK)
        zk_touch_passed(errand->ses, errand->sent_at);
    if (rc == ZOK && errand->counts)
        zk_touched(errand->ses, errand->sent_at);
    errand_free(errand);
}

/* touch.c (2): any question will do that the leader has to answer. */
void zk_touch(struct zk_session *ses)
{
    struct zk_errand *errand = errand_new(ses, "");
    bool counts = zk_touch_sent(ses);

    if (!errand)
        return;
    errand->counts = counts;
    if (zoo_async(ses->zh, "/", touch_answer, errand) != ZOK)
        errand_free(errand);
}
