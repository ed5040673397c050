/* SPDX-License-Identifier: MIT
 *
 * order.c - who holds, given all claims.
 *
 * A claim's rank is the revision in which its key was made; one that joined the
 * holder of its owner id has the rank of that one.  The rank is the fence.
 *
 * INVARIANTS
 *  (1) An exclusive claim holds if no claim has a lower rank; a shared one if no
 *      exclusive one has.  So it is first come, first served among modes, and
 *      shared claims next to each other hold together.
 *  (2) A claim with permits holds once it has a slot, which stands in its value
 *      and never changes.  It is given one in the order of ranks: together with
 *      each claim of a lower rank that has none yet, and only if all of these
 *      are fewer than the permits.  So no claim has a slot
 *      before one of a lower rank: what is free when a slot is written was free
 *      when it was chosen, slots differ, and fences of grants rise.
 *  (3) What another program has put there is an exclusive claim.
 */
#include "etcd.h"

#include "base/alloc.h"

#include "base/banned.h"

static void order_read(const Pb__KeyValue *kv, size_t dir, const char *owner,
                       struct etcd_place *ret)
{
    struct etcd_words words;
    enum etcd_kind kind = etcd_kind(kv->key, dir, &ret->permits);

    etcd_read_value(kv->value, &words);
    ret->fence = (uint64_t)kv->create_revision;
    if (kind == ETCD_JOINED && words.fence && words.fence < ret->fence)
        ret->fence = words.fence;
    ret->shared = kind == ETCD_SHARED || (!ret->permits && words.shared);
    ret->slot = ret->permits > 0 && words.permit ? words.slot : -1;
    ret->broken = words.broken;
    ret->kept = words.kept;
    ret->joined = kind == ETCD_JOINED;
    ret->knows = words.token[0] != '\0';
    ret->equal = owner && !strcmp(owner, words.owner);
}

/* order.c (1), (2) */
static void order_holds(struct etcd_place *places, size_t n)
{
    uint64_t first = UINT64_MAX, alone = UINT64_MAX;
    size_t i;

    for (i = 0; i < n; i++) {
        if (places[i].fence < first)
            first = places[i].fence;
        if (!places[i].shared && places[i].fence < alone)
            alone = places[i].fence;
    }
    for (i = 0; i < n; i++) {
        struct etcd_place *p = &places[i];

        p->holds = p->shared ? p->fence < alone : p->fence == first;
        if (p->permits > 0)
            p->holds = p->slot >= 0;
    }
}

struct etcd_place *etcd_order(Pb__KeyValue *const *kvs, size_t n, size_t dir,
                              const char *owner)
{
    struct etcd_place *places = hfi_alloc((n + 1) * sizeof(*places));
    size_t i;

    for (i = 0; places && i < n; i++)
        order_read(kvs[i], dir, owner, &places[i]);
    if (places)
        order_holds(places, n);
    return places;
}

/* Is it the first with its rank?  Equal owner ids have one permit together, and
 * who joined comes later. */
static bool order_counts(const struct etcd_place *places, size_t i)
{
    size_t k;

    for (k = 0; k < i && places[i].joined; k++)
        if (places[k].fence == places[i].fence)
            return false;
    return true;
}

static bool order_slot_is_used(const struct etcd_place *places, size_t n,
                               uint64_t rank, int32_t slot)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (places[i].fence < rank && places[i].slot == slot)
            return true;
    return false;
}

/* The lowest slot from there on that none before `rank` has. */
static int32_t order_free_slot(const struct etcd_place *places, size_t n,
                               uint64_t rank, int32_t from)
{
    while (order_slot_is_used(places, n, rank, from))
        from++;
    return from;
}

bool etcd_slots(const struct etcd_place *places, size_t n, uint64_t rank,
                int32_t permits, struct etcd_slots *ret)
{
    int32_t used = 0;
    size_t i;

    ret->n = 0;
    ret->slot = order_free_slot(places, n, rank, 0);
    for (i = 0; i < n && ret->slot < permits; i++) {
        if (places[i].fence >= rank)
            continue;
        used += order_counts(places, i);
        if (places[i].slot >= 0)
            continue;
        if (places[i].permits != permits || places[i].joined ||
            !places[i].knows || ret->n == ETCD_HELP_MAX)
            return false;
        ret->of[ret->n] = i;
        ret->slots[ret->n++] = ret->slot;
        ret->slot = order_free_slot(places, n, rank, ret->slot + 1);
    }
    return used < permits && ret->slot < permits;
}
