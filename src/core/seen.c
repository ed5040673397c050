/* SPDX-License-Identifier: MIT
 *
 * seen.c - what is known of the keys of an observation, and what of it is told.
 *
 * The service says what it sees at the moment, and answers may be old: a
 * follower may lag behind, a message may overtake another.  Here every answer is
 * compared with what was told before.
 *
 * INVARIANTS
 *  (1) Only a difference is told: another holder, mode, mark or number of
 *      holders, or that a free key has been held since.  Renewals and waiters
 *      are none.
 *  (2) The fence of what is told never goes back.  An exclusive grant with a
 *      smaller fence than one that was told is over: the answer is old, and the
 *      key is looked at again.  Of several holders any may be shown; then the
 *      fence is the greatest that was seen, which is that of the newest grant.
 *      A service that says so for SEEN_OLD_MS, whenever it is asked, has lost what
 *      it had, and is believed: the fence goes back with it.
 *      That a listing does not show a key says that nobody holds it, and not
 *      which grant was its last: the key itself is looked at for that.
 *  (3) A key stands once in `changes`, where its last change belongs.  So a
 *      caller who is slow misses states in between and never the last one, and
 *      a change needs no memory.
 *  (4) Every observer's place is a key in `changes`, or the head: all before it
 *      and itself have been taken.
 *  (5) What is free, and everybody was told so, is forgotten at times: the keys
 *      below a prefix may be without number.  The one key of an observation
 *      without a prefix stays.
 *  (6) Where the service keeps the fences of free keys and they rise from key to
 *      key (list_since()), those with a fence from `since` on are not forgotten.
 *      So a free key that is not known and has such a fence, and one that is newer
 *      than all of the first listing, has been held and was not told: it is.
 */
#include "core.h"

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

/* A lease that seems over, though its grant is still there, is looked at again
 * after this, and then after twice as long. */
#define PAUSE_MIN_MS 50
#define PAUSE_MAX_MS 5000

/* No answer is older than this; and those that tell of a loss together are no
 * farther apart.  seen.c (2) */
#define SEEN_OLD_MS       10000
#define SEEN_OLD_APART_MS 60000

/* An end that was told in whole milliseconds has come by then. */
#define LAPSE_MS 10

/* So many keys are known before those that are free are forgotten. */
#define CLEAR_LEAST 64

/* What is known of a key, made if need be; NULL: no memory. */
struct hfi_seen *hfi_seen_get(struct hfi_observed *o, const char *key)
{
    struct hfi_node *node = hfi_map_find(&o->keys, key);
    size_t size = strlen(key) + 1;
    struct hfi_seen *seen;

    if (node)
        return hfi_container(node, struct hfi_seen, node);
    seen = hfi_map_reserve(&o->keys)
               ? hfi_alloc(offsetof(struct hfi_seen, key) + size)
               : NULL;
    if (!seen)
        return NULL;
    seen->node.key = memcpy(seen->key, key, size);
    hfi_map_add(&o->keys, &seen->node);
    hfi_link_init(&seen->link);
    hfi_link_init(&seen->dirty);
    return seen;
}

/* seen.c (1) */
static bool seen_differs(const struct hf_info *a, const struct hf_info *b)
{
    if (a->held != b->held)
        return true;
    if (!a->held) /* It was held in between. */
        return b->fence > a->fence;
    return a->fence != b->fence || a->shared != b->shared ||
           a->holders != b->holders || a->permits != b->permits ||
           a->broken != b->broken || a->kept != b->kept ||
           strcmp(a->owner, b->owner) != 0 || strcmp(a->note, b->note) != 0;
}

/* seen.c (2).  That there is no fence says nothing of it. */
static bool seen_is_old(struct hfi_seen *seen, const struct hf_info *info)
{
    int64_t now = hfi_now();

    if (!info->fence || info->shared || info->permits ||
        HFI_MUTANT(observer_fence_goes_back))
        return false;
    if (info->fence >= seen->fence) {
        seen->old_since = 0;
        return false;
    }
    if (!seen->old_since || now - seen->old_at > SEEN_OLD_APART_MS)
        seen->old_since = now;
    seen->old_at = now;
    if (now - seen->old_since < SEEN_OLD_MS)
        return true;
    seen->fence = 0;
    return false;
}

/* Has a key that is free and not known been held since the observation began?
 * seen.c (6) */
bool hfi_seen_is_new(const struct hfi_observed *o, const struct hf_info *info)
{
    return o->since != UINT64_MAX && info->fence > o->first &&
           info->fence >= o->since;
}

/* The key changes: it goes to the end, and everybody hears of it. */
static void seen_tell(struct hf_client *c, struct hfi_observed *o,
                      struct hfi_seen *seen)
{
    struct hf_observer *ob;
    struct hfi_link *at;

    for (at = o->observers.next; at != &o->observers; at = at->next) {
        ob = hfi_container(at, struct hf_observer, link);
        if (ob->place == &seen->link)
            ob->place = seen->link.prev; /* seen.c (4) */
        if (!ob->from)
            hfi_notify(c, &ob->notice, HF_CHANGED);
    }
    hfi_link_remove(&seen->link);
    hfi_link_append(&o->changes, &seen->link);
    seen->change = ++o->change;
}

/* When its holder's lease is over, unless it is renewed. */
static void seen_lapses(struct hfi_observed *o, struct hfi_seen *seen,
                        bool changed)
{
    const struct hf_info *info = &seen->info;
    int64_t end;

    if (!info->held || info->left_ms < 0)
        return;
    if (changed || info->left_ms > 0)
        seen->pause_ms = 0;
    if (info->left_ms > 0) {
        end = hfi_after(seen->at, info->left_ms + LAPSE_MS);
    } else {
        seen->pause_ms *= 2;
        if (seen->pause_ms < PAUSE_MIN_MS)
            seen->pause_ms = PAUSE_MIN_MS;
        if (seen->pause_ms > PAUSE_MAX_MS)
            seen->pause_ms = PAUSE_MAX_MS;
        end = seen->at + seen->pause_ms;
    }
    if (end < o->lapses)
        o->lapses = end;
}

/* The service says this of the key.  False if that is older than what was
 * told. */
bool hfi_seen_read(struct hf_client *c, struct hfi_observed *o,
                   struct hfi_seen *seen, const struct hf_info *info)
{
    bool changed, first = !seen->known;
    struct hf_info told = *info;

    if (seen_is_old(seen, info))
        return false;
    if (told.fence < seen->fence && !HFI_MUTANT(observer_fence_goes_back))
        told.fence = seen->fence;
    if (!info->held && seen->info.held && HFI_MUTANT(observer_misses_nobody))
        return true;
    changed = first ? info->held || hfi_seen_is_new(o, info)
                    : seen_differs(&seen->info, &told);
    seen->info = told;
    seen->known = true;
    seen->at = hfi_now();
    seen->fence = seen->info.fence;
    seen_lapses(o, seen, changed || first);
    if (changed || (first && !o->base.prefix))
        seen_tell(c, o, seen);
    return true;
}

/* A listing is over.  Nobody has the keys that it has not shown. */
void hfi_seen_missing(struct hf_client *c, struct hfi_observed *o)
{
    const struct hf_info nobody = {.size = sizeof(nobody),
                                   .left_ms = -1,
                                   .since_ms = -1,
                                   .waiters = -1,
                                   .slot = -1};
    struct hfi_node *node = NULL;
    struct hfi_seen *seen;

    while ((node = hfi_map_next(&o->keys, node))) {
        seen = hfi_container(node, struct hfi_seen, node);
        if (seen->round == o->round || !seen->info.held)
            continue;
        hfi_seen_read(c, o, seen, &nobody);
        if (hfi_link_alone(&seen->dirty))
            hfi_link_append(&o->dirty, &seen->dirty); /* seen.c (2) */
    }
}

/* Is the key free, and has everybody been told?  `behind`: some observer's
 * place is before it. */
static bool seen_is_over(const struct hfi_observed *o,
                         const struct hfi_seen *seen, bool behind)
{
    return !seen->info.held && hfi_link_alone(&seen->dirty) &&
           (!seen->fence || seen->fence < o->since) && /* seen.c (6) */
           seen->pinned != o->clearance &&
           (!behind || hfi_link_alone(&seen->link));
}

static void seen_free(struct hfi_observed *o, struct hfi_seen *seen)
{
    hfi_map_remove(&o->keys, &seen->node);
    hfi_link_remove(&seen->link);
    hfi_free(seen);
}

/* Mark the places of all observers.  True if one is the head: nothing in
 * `changes` may go. */
static bool seen_pin(struct hfi_observed *o)
{
    struct hfi_link *at, *place;
    bool head = false;

    o->clearance++;
    for (at = o->observers.next; at != &o->observers; at = at->next) {
        place = hfi_container(at, struct hf_observer, link)->place;
        if (place == &o->changes)
            head = true;
        else
            hfi_container(place, struct hfi_seen, link)->pinned = o->clearance;
    }
    return head;
}

/* Forget what is over, now that it is much.  seen.c (5) */
void hfi_seen_clear(struct hfi_observed *o)
{
    struct hfi_node *node, *next;
    struct hfi_link *at, *after;
    struct hfi_seen *seen;
    bool behind;

    if (!o->base.prefix || o->keys.len < o->clear_at)
        return;
    behind = seen_pin(o);
    for (at = o->changes.next; at != &o->changes && !behind; at = after) {
        after = at->next;
        seen = hfi_container(at, struct hfi_seen, link);
        behind = seen->pinned == o->clearance;
        if (seen_is_over(o, seen, behind))
            seen_free(o, seen);
    }
    for (node = hfi_map_next(&o->keys, NULL); node; node = next) {
        next = hfi_map_next(&o->keys, node);
        seen = hfi_container(node, struct hfi_seen, node);
        if (hfi_link_alone(&seen->link) && seen_is_over(o, seen, true))
            seen_free(o, seen); /* It never was held. */
    }
    o->clear_at = 2 * o->keys.len + CLEAR_LEAST;
}
