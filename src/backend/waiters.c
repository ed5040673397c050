/* SPDX-License-Identifier: MIT
 *
 * waiters.c - those who wait, collected to be told of in their order.
 *
 * A service answers in its own order, and the caller's function may use the
 * client: so all are read first, sorted, and told of when no lock of a backend
 * is held and no session is in use.
 */
#include "waiters.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"

#include "base/banned.h"

struct hf_waiter *hfi_waiters_add(struct hfi_waiters *waiters, int64_t rank)
{
    size_t room = waiters->room ? 2 * waiters->room : 16;
    struct hfi_waiter *grown;

    if (waiters->n == waiters->room) {
        grown = hfi_realloc(waiters->items, room * sizeof(*grown));
        if (!grown) {
            waiters->nomem = true;
            return NULL;
        }
        waiters->items = grown;
        waiters->room = room;
    }
    grown = &waiters->items[waiters->n];
    *grown = (struct hfi_waiter){.rank = rank, .face = HF_WAITER_INIT};
    grown->face.place = (int32_t)waiters->n++;
    return &grown->face;
}

static int waiters_compare(const void *one, const void *two)
{
    const struct hfi_waiter *a = one, *b = two;

    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return a->face.place < b->face.place ? -1 : 1;
}

hf_status hfi_waiters_tell(struct hfi_waiters *waiters, hf_status st,
                           hf_waiters_fn *fn, void *arg, struct hf_error *err)
{
    bool more = true;
    size_t i;

    if (!st && waiters->nomem)
        st = hfi_nomem(err);
    if (waiters->n)
        qsort(waiters->items, waiters->n, sizeof(*waiters->items),
              waiters_compare);
    for (i = 0; i < waiters->n && !st && more; i++) {
        waiters->items[i].face.place = (int32_t)i + 1;
        more = fn(arg, &waiters->items[i].face);
    }
    hfi_free(waiters->items);
    *waiters = (struct hfi_waiters){.n = 0};
    return st;
}

void hfi_waiter_names(struct hf_waiter *waiter, const char *owner,
                      const char *token, const char *note)
{
    const char *who = owner && *owner ? owner : token;

    snprintf(waiter->owner, sizeof(waiter->owner), "%s", who ? who : "");
    snprintf(waiter->note, sizeof(waiter->note), "%s", note ? note : "");
}
