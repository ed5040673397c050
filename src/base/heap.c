/* SPDX-License-Identifier: MIT
 *
 * heap.c - things to do, ordered by time; see heap.h.
 *
 * INVARIANTS
 *  (1) timers[i]->slot == i + 1 for every i < len.
 *  (2) No timer is due before its parent, timers[(i - 1) / 2].
 *  (3) len <= reserved <= room, so hfi_heap_set() never needs memory.
 */
#include "heap.h"

#include <assert.h>

#include "alloc.h"

#include "banned.h"

bool hfi_heap_reserve(struct hfi_heap *heap)
{
    struct hfi_timer **grown;
    uint32_t room;

    if (heap->reserved == heap->room) {
        room = heap->room ? heap->room * 2 : 16;
        grown = hfi_realloc(heap->timers, room * sizeof(*grown));
        if (!grown)
            return false;
        heap->timers = grown;
        heap->room = room;
    }
    heap->reserved++;
    return true;
}

void hfi_heap_unreserve(struct hfi_heap *heap)
{
    assert(heap->reserved > heap->len);
    heap->reserved--;
}

static void heap_put(struct hfi_heap *heap, uint32_t i, struct hfi_timer *timer)
{
    heap->timers[i] = timer;
    timer->slot = i + 1;
}

static void heap_rise(struct hfi_heap *heap, uint32_t i)
{
    struct hfi_timer *timer = heap->timers[i];

    while (i > 0 && heap->timers[(i - 1) / 2]->due > timer->due) {
        heap_put(heap, i, heap->timers[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_put(heap, i, timer);
}

static void heap_sink(struct hfi_heap *heap, uint32_t i)
{
    struct hfi_timer *timer = heap->timers[i];
    uint32_t child;

    while ((child = 2 * i + 1) < heap->len) {
        if (child + 1 < heap->len &&
            heap->timers[child + 1]->due < heap->timers[child]->due)
            child++;
        if (heap->timers[child]->due >= timer->due)
            break;
        heap_put(heap, i, heap->timers[child]);
        i = child;
    }
    heap_put(heap, i, timer);
}

void hfi_heap_set(struct hfi_heap *heap, struct hfi_timer *timer, int64_t due)
{
    timer->due = due;
    if (!timer->slot) {
        assert(heap->len < heap->reserved); /* heap.c (3) */
        heap_put(heap, heap->len++, timer);
    }
    heap_rise(heap, timer->slot - 1);
    heap_sink(heap, timer->slot - 1);
}

void hfi_heap_remove(struct hfi_heap *heap, struct hfi_timer *timer)
{
    struct hfi_timer *last;
    uint32_t i = timer->slot;

    if (!i--)
        return;
    timer->slot = 0;
    last = heap->timers[--heap->len];
    if (last == timer)
        return;
    heap_put(heap, i, last);
    heap_rise(heap, i);
    heap_sink(heap, last->slot - 1);
}

struct hfi_timer *hfi_heap_first(const struct hfi_heap *heap)
{
    return heap->len ? heap->timers[0] : NULL;
}

void hfi_heap_fini(struct hfi_heap *heap)
{
    hfi_free(heap->timers);
    *heap = (struct hfi_heap){0};
}
