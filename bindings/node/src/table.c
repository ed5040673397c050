/* SPDX-License-Identifier: MIT
 *
 * table.c - the claims of a client, by their numbers.
 *
 * JavaScript, and the events of the library, know a claim by its number only
 * (addon.h (5)).  The numbers rise by a few at a time, so the lowest bits of
 * them spread well over the chains.
 */
#include "addon.h"

#include <stdlib.h>

enum { TABLE_FIRST = 64 }; /* chains; a power of two */

static struct hfn_claim **table_chain(struct hfn_client *c, uint64_t id)
{
    return &c->chains[id & (c->n_chains - 1)];
}

/* As many chains as claims.  The chains only get longer without memory, unless
 * there are none. */
static bool table_grow(struct hfn_client *c)
{
    size_t i, old = c->n_chains, n = old ? 2 * old : TABLE_FIRST;
    struct hfn_claim **chains = calloc(n, sizeof(*chains)), *claim;
    struct hfn_claim **before = c->chains;

    if (!chains)
        return old > 0;
    c->chains = chains;
    c->n_chains = n;
    for (i = 0; i < old; i++)
        while ((claim = before[i])) {
            before[i] = claim->next;
            claim->next = *table_chain(c, claim->id);
            *table_chain(c, claim->id) = claim;
        }
    free(before);
    return true;
}

struct hfn_claim *hfn_claim_new(struct hfn_client *c, size_t n, uint64_t id)
{
    struct hfn_claim *claim;

    if (!id || hfn_claim_find(c, id) ||
        (c->n_claims >= c->n_chains && !table_grow(c)))
        return NULL;
    claim = calloc(1, sizeof(*claim) + n * sizeof(claim->locks[0]));
    if (!claim)
        return NULL;
    claim->client = c;
    claim->n = n;
    claim->id = id;
    claim->next = *table_chain(c, id);
    *table_chain(c, id) = claim;
    c->n_claims++;
    return claim;
}

void hfn_claim_free(struct hfn_claim *claim)
{
    struct hfn_claim **at;

    if (!claim)
        return;
    at = table_chain(claim->client, claim->id);
    while (*at != claim)
        at = &(*at)->next;
    *at = claim->next;
    claim->client->n_claims--;
    free(claim->key);
    free(claim);
}

struct hfn_claim *hfn_claim_find(struct hfn_client *c, uint64_t id)
{
    struct hfn_claim *claim = NULL;

    if (c->n_chains)
        claim = *table_chain(c, id);
    while (claim && claim->id != id)
        claim = claim->next;
    return claim;
}

static bool table_index(const struct hfn_claim *claim, const hf_lock *lock,
                        size_t *ret)
{
    for (*ret = 0; *ret < claim->n; ++*ret)
        if (claim->locks[*ret] == lock)
            return true;
    return false;
}

struct hfn_claim *hfn_claim_of(struct hfn_client *c, uint64_t id,
                               const hf_lock *lock, size_t *index)
{
    struct hfn_claim *claim = hfn_claim_find(c, id);
    size_t i;

    if (id)
        return claim && table_index(claim, lock, index) ? claim : NULL;
    for (i = 0; i < c->n_chains; i++)
        for (claim = c->chains[i]; claim; claim = claim->next)
            if (table_index(claim, lock, index))
                return claim;
    return NULL;
}

struct hfn_claim *hfn_claim_any(struct hfn_client *c)
{
    size_t i;

    for (i = 0; i < c->n_chains && c->n_claims; i++)
        if (c->chains[i])
            return c->chains[i];
    return NULL;
}
