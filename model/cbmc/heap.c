/* SPDX-License-Identifier: MIT
 *
 * heap.c - the heap of timers, one step from any state.
 *
 * CHECKED  for every heap of up to TIMERS timers that satisfies heap.c (1) to
 * (3), and every order of times (it compares times and does nothing else with
 * them, so eight bits are enough): a step keeps these invariants, touches no memory beyond
 * what is allocated, changes the timer that it was asked to change and no
 * other, and the first timer is due no later than any other.  The empty heap
 * satisfies them, so by induction every sequence of steps does that does not
 * exceed the size.
 *
 * UNWIND 6
 * SLOW setting_keeps_the_order removing_keeps_the_order
 * BUGS
 *   a_reserve_makes_room s|heap->room \* 2 : 16|heap->room + 1 : 0|
 *   setting_keeps_the_order s|timers\[(i - 1) / 2\]->due > timer->due|timers[(i - 1) / 2]->due < timer->due|
 *   setting_keeps_the_order s|heap_sink(heap, timer->slot - 1);||
 *   removing_keeps_the_order s|    heap_sink(heap, last->slot - 1);||
 *   removing_keeps_the_order s|if (last == timer)|if (0)|
 *   setting_keeps_the_order s|child + 1 < heap->len|child + 1 <= heap->len|
 */
#include "cbmc.h"

#include <stdlib.h>

#include "src/base/heap.c"

#define TIMERS 4

static struct hfi_timer timer[TIMERS + 1];
static struct hfi_timer *places[TIMERS + 1];

void *hfi_realloc(void *old, size_t size)
{
    (void)old;
    return any_bool() ? NULL : malloc(size);
}

void hfi_free(void *ptr)
{
    (void)ptr;
}

static void check_heap(const struct hfi_heap *heap)
{
    uint32_t i;

    check(heap->len <= heap->reserved && heap->reserved <= heap->room, "(3)");
    for (i = 0; i < TIMERS + 1; i++) {
        if (i >= heap->len)
            break;
        check(heap->timers[i]->slot == i + 1, "heap.c (1)");
        check(heap->timers[(i ? i - 1 : 0) / 2]->due <= heap->timers[i]->due,
              "heap.c (2)");
        check(hfi_heap_first(heap)->due <= heap->timers[i]->due, "first");
    }
}

/* Any heap that satisfies the invariants: timer i is at place i, which is no
 * restriction, since timers differ in nothing but their place and time. */
static struct hfi_heap any_heap(void)
{
    struct hfi_heap heap = {.timers = places, .room = TIMERS + 1};
    uint32_t i;

    heap.len = (uint32_t)any_upto(TIMERS);
    heap.reserved = (uint32_t)any_upto(TIMERS + 1);
    assume(heap.len <= heap.reserved);
    for (i = 0; i < TIMERS + 1; i++) {
        timer[i].due = any_upto(255);
        timer[i].slot = i < heap.len ? i + 1 : 0;
        places[i] = i < heap.len ? &timer[i] : NULL;
        if (i > 0 && i < heap.len)
            assume(timer[(i - 1) / 2].due <= timer[i].due);
    }
    return heap;
}

static void check_others(const int64_t *due, uint32_t changed, uint32_t len)
{
    uint32_t i;

    for (i = 0; i < TIMERS + 1; i++)
        if (i != changed && i < len)
            check(timer[i].due == due[i] && timer[i].slot, "another timer");
}

void setting_keeps_the_order(void)
{
    struct hfi_heap heap = any_heap();
    uint32_t which = (uint32_t)any_upto(TIMERS), i, len = heap.len;
    int64_t due[TIMERS + 1], when = any_upto(255);

    assume(which < len || (which == len && len < heap.reserved));
    for (i = 0; i < TIMERS + 1; i++)
        due[i] = timer[i].due;
    hfi_heap_set(&heap, &timer[which], when);
    check(timer[which].due == when && timer[which].slot, "it is set");
    check(heap.len == (which < len ? len : len + 1), "it is there once");
    check_others(due, which, len);
    check_heap(&heap);
}

void removing_keeps_the_order(void)
{
    struct hfi_heap heap = any_heap();
    uint32_t which = (uint32_t)any_upto(TIMERS), i, len = heap.len;
    int64_t due[TIMERS + 1];

    for (i = 0; i < TIMERS + 1; i++)
        due[i] = timer[i].due;
    hfi_heap_remove(&heap, &timer[which]);
    check(!timer[which].slot, "it is removed");
    check(heap.len == (which < len ? len - 1 : len), "it was there once");
    check_others(due, which, len);
    check_heap(&heap);
}

/* What hfi_heap_set() needs: room for one more than there are. */
void a_reserve_makes_room(void)
{
    struct hfi_heap heap = {0};

    heap.room = (uint32_t)any_upto(INT32_MAX / 16);
    heap.reserved = (uint32_t)any_upto(INT32_MAX / 16);
    assume(heap.reserved <= heap.room);
    if (hfi_heap_reserve(&heap)) {
        check(heap.reserved <= heap.room, "heap.c (3)");
        hfi_heap_unreserve(&heap);
    }
    check(heap.reserved <= heap.room, "heap.c (3)");
}
