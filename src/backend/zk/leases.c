/* SPDX-License-Identifier: MIT
 *
 * leases.c - the names of permits: who has one, how many there are, and which
 * slot is free.  Pure functions.
 *
 *                layout=curator                          layout=kazoo
 *   waits        KEY/locks/_c_UUID-p3-lock-0000000007    KEY-__lock__/UUID-p3__lock__0...
 *   holds        KEY/leases/_c_UUID-p3-s0-lease-00...    KEY/UUID-p3-s0
 *
 * These are the places of Curator's InterProcessSemaphoreV2 and of kazoo's
 * Semaphore, which look at nothing but how many there are.  The number after
 * `p` is that of the permits, the one after `s` the slot.  A peer's names have
 * neither: it has a permit, and no slot.
 *
 * INVARIANTS
 *  (1) Nodes with one slot are one holder: those who joined by their owner id
 *      (permits.c (4)).
 *  (2) The lowest slot that nobody has is below the number of permits if fewer
 *      than that many hold.
 */
#include "zk.h"

#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"

#include "base/banned.h"

/* The number after `tag` in a name. */
static bool lease_tag(const char *name, const char *tag, int32_t *ret)
{
    const char *at = name;
    char *end;
    long value;

    while ((at = strstr(at, tag))) {
        at += strlen(tag);
        if (*at < '0' || *at > '9')
            continue;
        errno = 0;
        value = strtol(at, &end, 10);
        if (errno || value > INT32_MAX || !strchr("-_", *end))
            continue;
        *ret = (int32_t)value;
        return true;
    }
    return false;
}

/* "-o" and a hash, "-p3", "-s0", as far as they are there. */
static void lease_tags(char *ret, size_t size, const char *prefix,
                       int32_t permits, int32_t slot)
{
    if (slot < 0)
        snprintf(ret, size, "%s-p%d", prefix, permits);
    else
        snprintf(ret, size, "%s-p%d-s%d", prefix, permits, slot);
}

/* How many permits one that waits has asked for; 0: it is a plain lock's, or
 * another program's. */
int32_t zk_waiter_permits(const char *name)
{
    int32_t permits = 0;

    return lease_tag(name, "-p", &permits) ? permits : 0;
}

/* Is a child of the place for those who hold a holder's? */
bool zk_lease_parse(const struct zk_conn *zc, const char *name,
                    struct zk_lease *ret)
{
    size_t hex = strspn(name, "0123456789abcdef");
    const char *word;
    int32_t number;

    if (zc->kazoo) {
        word = hex == HFI_TOKEN_LEN ? name + hex : NULL;
        if (word && *word &&
            (!lease_tag(word, "-p", &number) ||
             !lease_tag(word, "-s", &number)))
            word = NULL;
    } else {
        word = strstr(name, "lease-");
        if (word && (strlen(word) < 16 || (word > name && word[-1] != '-')))
            word = NULL;
    }
    if (!word)
        return false;
    *ret = (struct zk_lease){0, -1};
    if (!lease_tag(name, "-p", &ret->permits) ||
        !lease_tag(name, "-s", &ret->slot))
        *ret = (struct zk_lease){0, -1};
    return true;
}

/* What the names of this claim begin with while it waits. */
void zk_waiter_prefix(const struct zk_conn *zc, char ret[ZK_NAME_MAX],
                      const struct hfi_claim *claim)
{
    char start[ZK_NAME_MAX], tags[ZK_NAME_MAX + 32];

    zk_owner_prefix(zc, start, claim);
    lease_tags(tags, sizeof(tags), start, claim->permits, -1);
    snprintf(ret, ZK_NAME_MAX, "%.100s%s", tags,
             zc->kazoo ? "__lock__" : "-lock-");
}

/* Its name when it holds; `number` is what it had while it waited. */
void zk_lease_name(const struct zk_conn *zc, char ret[ZK_NAME_MAX],
                   const struct hfi_claim *claim, int32_t slot, int32_t number)
{
    char start[ZK_NAME_MAX], tags[ZK_NAME_MAX + 32];

    zk_owner_prefix(zc, start, claim);
    lease_tags(tags, sizeof(tags), start, claim->permits, slot);
    if (zc->kazoo)
        snprintf(ret, ZK_NAME_MAX, "%.100s", tags);
    else
        snprintf(ret, ZK_NAME_MAX, "%.100s-lease-%010d", tags, number);
}

static int lease_compare(const void *a, const void *b)
{
    int32_t one = *(const int32_t *)a, two = *(const int32_t *)b;

    return (one > two) - (one < two);
}

/* How many hold, which slot is the lowest that is free, and how many permits
 * our own kind says there are (0: none of it is there).  False: no memory. */
bool zk_leases_count(const struct zk_conn *zc,
                     const struct String_vector *names, struct zk_leases *ret)
{
    int32_t *slots = hfi_alloc((size_t)(names->count > 0 ? names->count : 1) *
                               sizeof(*slots));
    struct zk_lease lease;
    size_t n = 0, at;
    int i;

    *ret = (struct zk_leases){0};
    if (!slots)
        return false;
    for (i = 0; i < names->count; i++) {
        if (!zk_lease_parse(zc, names->data[i], &lease))
            continue;
        ret->nodes++;
        if (lease.slot < 0)
            ret->foreign++;
        else
            slots[n++] = lease.slot;
        if (lease.permits && !ret->permits)
            ret->permits = lease.permits;
    }
    qsort(slots, n, sizeof(*slots), lease_compare);
    ret->holders = ret->foreign;
    for (at = 0; at < n; at++) {
        if (at && slots[at] == slots[at - 1])
            continue; /* leases.c (1) */
        ret->holders++;
        if (slots[at] == ret->slot)
            ret->slot++;
    }
    hfi_free(slots);
    return true;
}
