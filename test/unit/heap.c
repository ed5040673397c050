/* SPDX-License-Identifier: MIT
 *
 * The keeper's heap and the map of key queues, against the obvious slow way to do
 * the same.
 */
#include "t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"

#define N 500

static uint32_t seed = 12345;

static uint32_t next_random(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static void check_first(const struct hfi_heap *heap, struct hfi_timer *timers)
{
    struct hfi_timer *first = hfi_heap_first(heap);
    int64_t least = INT64_MAX;
    bool any = false;

    for (int i = 0; i < N; i++) {
        if (!timers[i].slot)
            continue;
        any = true;
        if (timers[i].due < least)
            least = timers[i].due;
        CHECK(heap->timers[timers[i].slot - 1] == &timers[i]);
    }
    CHECK_EQ(first != NULL, any);
    if (first)
        CHECK_EQ(first->due, least);
}

TEST(the_first_timer_is_always_the_earliest)
{
    static struct hfi_timer timers[N];
    struct hfi_heap heap = {0};

    for (int i = 0; i < N; i++)
        CHECK(hfi_heap_reserve(&heap));
    for (int round = 0; round < 5000; round++) {
        struct hfi_timer *timer = &timers[next_random() % N];

        if (next_random() % 3)
            hfi_heap_set(&heap, timer, next_random() % 1000);
        else
            hfi_heap_remove(&heap, timer);
        check_first(&heap, timers);
    }
    hfi_heap_fini(&heap);
}

TEST(a_timer_that_is_not_there_can_be_removed)
{
    struct hfi_heap heap = {0};
    struct hfi_timer timer = {0};

    hfi_heap_remove(&heap, &timer);
    CHECK(!hfi_heap_first(&heap));
    hfi_heap_fini(&heap);
}

struct thing {
    struct hfi_node node;
    char name[16];
    bool in;
};

TEST(the_map_finds_what_is_in_it_and_nothing_else)
{
    static struct thing things[N];
    struct hfi_map map = {0};
    struct hfi_node *node;
    size_t in = 0, seen = 0;

    for (int i = 0; i < N; i++) {
        snprintf(things[i].name, sizeof(things[i].name), "k%d", i);
        things[i].node.key = things[i].name;
    }
    for (int round = 0; round < 20000; round++) {
        struct thing *one = &things[next_random() % N];

        node = hfi_map_find(&map, one->name);
        CHECK(node == (one->in ? &one->node : NULL));
        if (one->in) {
            hfi_map_remove(&map, &one->node);
            in--;
        } else {
            CHECK(hfi_map_reserve(&map));
            hfi_map_add(&map, &one->node);
            in++;
        }
        one->in = !one->in;
        CHECK_EQ(map.len, in);
    }
    for (node = hfi_map_next(&map, NULL); node; node = hfi_map_next(&map, node))
        seen++;
    CHECK_EQ(seen, in);
    hfi_map_fini(&map);
}

T_MAIN
