/* SPDX-License-Identifier: MIT
 *
 * node.c - what we have in the service, and that nothing stays there.
 *
 * An ephemeral node lives as long as its session, and our sessions live as long
 * as the client.  So unlike a key with a time to live, a node that nobody takes
 * away stays.  Everything that may be there is therefore a place in our
 * books, from before its create is sent until its end is confirmed.
 *
 * INVARIANTS
 *  (1) A place is forgotten only when its node is known to be gone, or its
 *      session is.
 *  (2) A held place that is not renewed in time lapses: its node is removed by
 *      the keeper's clock, later than the holder has stopped to believe.
 *  (3) A place whose release had no answer, or was refused, is doomed: it is
 *      removed as soon as its session is connected again, or by the keeper's
 *      clock while it is, whether anybody asks or not.
 *  (4) What a callback may free or clear is not `busy`.
 */
#include "zk.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

/* So long must a lock be held to be worth a watch on its node.  The keeper is
 * woken once in this time, not for each lock that is held for less. */
#define GUARD_AFTER_MS 20

struct zk_place *zk_place_find(struct zk_conn *zc, const char *token)
{
    struct hfi_node *node = hfi_map_find(&zc->places, token);

    return node ? hfi_container(node, struct zk_place, node) : NULL;
}

/* With the mutex held; NULL: no memory. */
struct zk_place *zk_place_new(struct zk_conn *zc, const struct hfi_claim *claim)
{
    struct zk_place *place =
        hfi_map_reserve(&zc->places) ? hfi_alloc(sizeof(*place)) : NULL;

    if (!place)
        return NULL;
    place->key = hfi_strdup(claim->key);
    place->parent = zk_key_path(zc, claim->key);
    if (!place->key || !place->parent) {
        hfi_free(place->key);
        hfi_free(place->parent);
        hfi_free(place);
        return NULL;
    }
    memcpy(place->token, claim->token, sizeof(place->token));
    hfi_link_init(&place->link);
    hfi_link_init(&place->hears);
    hfi_link_init(&place->fresh);
    place->node.key = place->token;
    hfi_map_add(&zc->places, &place->node);
    return place;
}

void zk_place_clear(struct zk_place *place)
{
    hfi_free(place->path);
    hfi_free(place->ahead);
    hfi_free(place->tail);
    place->path = place->ahead = place->tail = NULL;
    place->alt = 0;
    place->fence = 0;
    place->version = 0;
    place->czxid = 0;
    place->marked = false;
    place->broken = false;
    place->told = place->counted = false;
    place->yield_at = 0;
    place->guard = 0;
    hfi_link_remove(&place->hears);
    hfi_link_remove(&place->fresh);
    place->sent = place->held = place->moving = place->listening = false;
}

void zk_place_drop(struct zk_conn *zc, struct zk_place *place)
{
    zk_place_clear(place);
    hfi_link_remove(&place->link);
    hfi_map_remove(&zc->places, &place->node);
    hfi_free(place->key);
    hfi_free(place->parent);
    hfi_free(place);
}

void zk_place_bind(struct zk_place *place, struct zk_session *ses)
{
    hfi_link_remove(&place->link);
    hfi_link_append(&ses->places, &place->link);
    place->ses = ses;
    place->guard = 0;
    ses->used = true;
    zk_place_hears(place);
}

/* Its node was moved to that session, or is gone. */
void zk_place_follow(struct zk_place *place, struct zk_session *ses)
{
    place->alt = 0;
    place->moving = false;
    zk_place_bind(place, ses);
}

/* It is in the list while it may want to hear something.  Who finds one there
 * that does not takes it out. */
void zk_place_hears(struct zk_place *place)
{
    hfi_link_remove(&place->hears);
    if (place->ses && (place->ahead || place->listening))
        hfi_link_append(&place->ses->hearers, &place->hears);
}

hf_status zk_place_session(struct zk_conn *zc, struct zk_place *place,
                           int64_t ttl_ms, int64_t deadline,
                           struct zk_session **ret, struct hf_error *err)
{
    struct zk_session *ses;
    hf_status st;

    pthread_mutex_lock(&zc->mu);
    ses = place->ses;
    if (ses) {
        ses->users++;
        st = zk_session_up(ses, deadline, err);
        if (st)
            zk_session_leave(ses);
        else
            *ret = ses;
        pthread_mutex_unlock(&zc->mu);
        return st;
    }
    zk_place_clear(place);
    pthread_mutex_unlock(&zc->mu);
    st = zk_session_for(zc, ttl_ms, deadline, &ses, err);
    if (st)
        return st;
    pthread_mutex_lock(&zc->mu);
    if (ses->state != ZK_DEAD)
        zk_place_bind(place, ses);
    pthread_mutex_unlock(&zc->mu);
    *ret = ses;
    return HF_OK;
}

/* ---- lapsing ----------------------------------------------------------- */

static void places_set_timer(struct zk_conn *zc, int64_t due)
{
    struct itimerspec at = {.it_value = {due / 1000, due % 1000 * 1000000}};

    zc->timer_due = due;
    timerfd_settime(zc->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Have zk_places_lapse() look at all places then. */
void zk_places_look_by(struct zk_conn *zc, int64_t due)
{
    if (due < zc->lapse_at)
        zc->lapse_at = due;
    if (due < zc->timer_due)
        places_set_timer(zc, due);
}

/* It holds, from now on for `ttl_ms` at least; with the mutex held. */
void zk_place_hold(struct zk_conn *zc, struct zk_place *place, int64_t ttl_ms)
{
    int64_t now = hfi_now();

    if (!place->held) {
        place->guard_at = now + GUARD_AFTER_MS;
        hfi_link_append(&zc->fresh, &place->fresh);
        if (place->guard_at < zc->timer_due)
            places_set_timer(zc, place->guard_at);
    }
    place->held = true;
    place->expires = hfi_after(now, ttl_ms);
    zk_places_look_by(zc, place->expires);
}

/* What is held for a while is guarded, and listens if it may linger; what is
 * given back at once is not worth the requests. */
static int64_t places_guard(struct zk_conn *zc, int64_t now)
{
    struct zk_place *place;

    while (!hfi_link_alone(&zc->fresh)) {
        place = hfi_container(zc->fresh.next, struct zk_place, fresh);
        if (place->guard_at > now)
            return place->guard_at;
        hfi_link_remove(&place->fresh);
        zk_place_guard(place);
        if (place->watched)
            zk_place_listen(place);
    }
    return HFI_NEVER;
}

/* node.c (3): its removal was refused, and is tried again when it is time. */
static void places_remove(struct zk_conn *zc, struct zk_place *place,
                          int64_t now)
{
    int64_t due = place->busy ? now + 100 : place->remove_at;

    if (!place->remove_at)
        return;
    if (due <= now)
        zk_place_bury(place);
    else if (due < zc->lapse_at)
        zc->lapse_at = due;
}

/* node.c (2): what was not renewed goes; with the mutex held. */
void zk_places_lapse(struct zk_conn *zc)
{
    int64_t now = hfi_now(), next = places_guard(zc, now);
    struct hfi_node *node, *after;
    struct zk_place *place;

    if (now < zc->lapse_at) {
        places_set_timer(zc, next < zc->lapse_at ? next : zc->lapse_at);
        return;
    }
    zc->lapse_at = HFI_NEVER;
    for (node = hfi_map_next(&zc->places, NULL); node; node = after) {
        after = hfi_map_next(&zc->places, node);
        place = hfi_container(node, struct zk_place, node);
        if (place->doomed)
            places_remove(zc, place, now);
        if (!place->held || place->doomed)
            continue;
        if (place->yield_at && now >= place->yield_at) {
            place->yield_at = 0;
            hfi_wanted(&zc->base, place->key);
        }
        if (place->expires > now || place->busy) {
            int64_t due = place->busy ? now + 100 : place->expires;

            if (place->yield_at && place->yield_at < due)
                due = place->yield_at;

            zc->lapse_at = due < zc->lapse_at ? due : zc->lapse_at;
            continue;
        }
        place->doomed = true;
        zk_place_bury(place);
    }
    if (zc->lapse_at < next)
        next = zc->lapse_at;
    zc->timer_due = HFI_NEVER;
    if (next != HFI_NEVER)
        places_set_timer(zc, next);
}

/* ---- finding out ------------------------------------------------------- */

/* Those of the children that bear the name of the claim: read them.  NULL: no
 * memory. */
static struct zk_flight *resolve_read(struct zk_session *ses,
                                      const struct zk_place *place,
                                      const struct hfi_claim *claim,
                                      const struct String_vector *names)
{
    struct zk_flight *fl = zk_flight_new(ses, (size_t)names->count);
    char prefix[ZK_NAME_MAX], *path;
    int i;

    zk_node_prefix(ses->conn, prefix, claim->token, claim->owner);
    for (i = 0; fl && i < names->count; i++) {
        if (!zk_name_is(names->data[i], prefix))
            continue;
        path = zk_join(place->parent, names->data[i]);
        if (!path) {
            zk_flight_end(fl);
            return NULL;
        }
        zk_get(fl, path, false);
        fl->ops[fl->n - 1].path = path;
    }
    return fl;
}

/* names.c (4): ours is the one that belongs to our session. */
static hf_status resolve_own(struct zk_session *ses, struct zk_place *place,
                             struct zk_flight *fl, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct hf_info info = HF_INFO_INIT;
    char token[HFI_TOKEN_LEN + 1];
    struct zk_op *own = NULL;
    hf_status st = HF_OK;
    size_t i;

    for (i = 0; i < fl->n && !st; i++) {
        if (fl->ops[i].rc != ZNONODE)
            st = zk_status(zc, fl->ops[i].rc, "get", err);
        if (!fl->ops[i].rc && fl->ops[i].stat.ephemeralOwner == ses->id)
            own = &fl->ops[i];
    }
    if (st)
        return st;
    pthread_mutex_lock(&zc->mu);
    place->sent = own != NULL;
    if (own) {
        hfi_free(place->path);
        place->path = own->path;
        own->path = NULL;
        place->fence = (uint64_t)own->stat.czxid;
        zk_data_read(own->text, &info, &place->fence, token);
    }
    pthread_mutex_unlock(&zc->mu);
    return HF_OK;
}

hf_status zk_place_resolve(struct zk_session *ses, struct zk_place *place,
                           const struct hfi_claim *claim, int64_t deadline,
                           struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_flight *fl = zk_flight_new(ses, 2), *nodes = NULL;
    hf_status st;

    if (!fl)
        return hfi_nomem(err);
    zk_sync(fl, place->parent);
    zk_children(fl, place->parent, false);
    st = zk_flight_wait(fl, deadline)
             ? zk_no_answer(zc, err)
             : zk_status(zc, fl->ops[0].rc, "sync", err);
    if (!st && fl->ops[1].rc != ZNONODE)
        st = zk_status(zc, fl->ops[1].rc, "children", err);
    if (!st) {
        nodes = resolve_read(ses, place, claim, &fl->ops[1].names);
        if (!nodes)
            st = hfi_nomem(err);
        else if (zk_flight_wait(nodes, deadline))
            st = zk_no_answer(zc, err);
        else
            st = resolve_own(ses, place, nodes, err);
    }
    zk_flight_end(nodes);
    zk_flight_end(fl);
    return st;
}

static int parent_create(struct zk_session *ses, const char *path,
                         int64_t deadline)
{
    struct zk_conn *zc = ses->conn;
    struct zk_flight *fl = zk_flight_new(ses, 1);
    int rc;

    if (!fl)
        return ZMARSHALLINGERROR;
    zk_create(fl, path, "", zc->plain ? ZOO_PERSISTENT : ZOO_CONTAINER);
    zk_flight_wait(fl, deadline);
    pthread_mutex_lock(&zc->mu);
    rc = fl->pending ? ZOPERATIONTIMEOUT : fl->ops[0].rc;
    pthread_mutex_unlock(&zc->mu);
    zk_flight_end(fl);
    return rc;
}

/* From the bottom up until something is there, and down again.  A parent whose
 * outcome is not known does no harm: containers vanish when they are empty. */
hf_status zk_make_parents(struct zk_session *ses, const char *path,
                          int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    size_t len = strlen(path), at = len;
    char *part = hfi_strdup(path);
    int rc = ZOK, turns;

    if (!part)
        return hfi_nomem(err);
    for (turns = 0; turns < 1000; turns++) {
        rc = parent_create(ses, part, deadline);
        if (rc == ZUNIMPLEMENTED && !zc->plain) {
            zc->plain = true;
        } else if (rc == ZNONODE && strrchr(part, '/') > part) {
            at = (size_t)(strrchr(part, '/') - part);
            part[at] = '\0';
        } else if (rc == ZOK || rc == ZNODEEXISTS) {
            rc = ZOK;
            if (at == len)
                break;
            part[at] = '/';
            at = strlen(part);
        } else {
            break;
        }
    }
    hfi_free(part);
    /* Nothing that matters was sent. */
    if (rc == ZOPERATIONTIMEOUT || rc == ZCONNECTIONLOSS)
        return hfi_fail(err, HF_UNAVAILABLE, "%s: no answer",
                        zc->base.endpoint);
    return zk_status(zc, rc, "create parent", err);
}
