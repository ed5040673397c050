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
 *      and never changes.  It is given one in the order of ranks: when each
 *      claim of a lower rank has one, and these are fewer than the permits.  So
 *      no two ever choose a slot at the same time, slots differ, and fences of
 *      grants rise.
 *  (3) What another program has put there is an exclusive claim.
 */
#include "etcd.h"

#include "base/alloc.h"

#include "base/banned.h"

static void order_read(const Pb__KeyValue *kv, const char *owner,
                       struct etcd_place *ret)
{
    struct etcd_words words;
    enum etcd_kind kind = etcd_kind(kv->key, &ret->permits);

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

struct etcd_place *etcd_order(Pb__KeyValue *const *kvs, size_t n,
                              const char *owner)
{
    struct etcd_place *places = hfi_alloc((n + 1) * sizeof(*places));
    size_t i;

    for (i = 0; places && i < n; i++)
        order_read(kvs[i], owner, &places[i]);
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

int32_t etcd_permits_used(const struct etcd_place *places, size_t n,
                          uint64_t rank, bool *all, int32_t *slot)
{
    int32_t used = 0;
    size_t i;

    *all = true;
    for (i = 0; i < n; i++) {
        if (places[i].fence >= rank)
            continue;
        *all = *all && places[i].slot >= 0;
        used += order_counts(places, i);
    }
    for (*slot = 0; order_slot_is_used(places, n, rank, *slot); ++*slot)
        continue;
    return used;
}
