/* SPDX-License-Identifier: MIT
 *
 * map.c - the table of names.
 *
 * CHECKED  for every two keys of one byte, in a table of one bucket that grows, or
 * cannot: what was added and not removed is found by its key, and nothing else
 * is; a walk meets each of them once; no memory beyond the table is touched.
 *
 * UNWIND 5
 * SLOW what_was_added_is_found
 * BUGS
 *   what_was_added_is_found s|^    map->nbuckets = n;||
 *   what_was_added_is_found s|hash & (map->nbuckets - 1)\]|hash \& map->nbuckets]|
 *   what_was_added_is_found s|^    \*at = node->next;|    *at = NULL;|
 *   what_was_added_is_found s|(map->nbuckets - 1)) + 1|(map->nbuckets - 1))|
 */
#include "cbmc.h"

#include <string.h>

#include "src/base/map.c"

#define THINGS 2

static struct hfi_node node[THINGS];
static char key[THINGS][2];
static bool there[THINGS];

/* The table grows once, or cannot. */
void *hfi_alloc(size_t size)
{
    static struct hfi_node *grown[2];

    check(size == sizeof(grown), "twice as large");
    return any_bool() ? NULL : grown;
}

void hfi_free(void *ptr)
{
    (void)ptr;
}

static void add(struct hfi_map *map, int i)
{
    check(hfi_map_reserve(map), "only the first allocation must succeed");
    hfi_map_add(map, &node[i]);
    there[i] = true;
}

static void remove_one(struct hfi_map *map, int i)
{
    hfi_map_remove(map, &node[i]);
    there[i] = false;
}

static void check_all(const struct hfi_map *map)
{
    const struct hfi_node *at = NULL;
    size_t met = 0, count = 0, i;

    for (i = 0; i < THINGS; i++) {
        check(hfi_map_find(map, key[i]) == (there[i] ? &node[i] : NULL),
              "what is there is found, and nothing else");
        count += there[i];
    }
    for (i = 0; i <= THINGS; i++) {
        at = hfi_map_next(map, at);
        if (!at)
            break;
        met++;
    }
    check(met == count && map->len == count, "a walk meets each once");
}

void what_was_added_is_found(void)
{
    static struct hfi_node *bucket[1];
    struct hfi_map map = {.nbuckets = 1, .buckets = bucket};

    key[0][0] = any_char();
    key[1][0] = any_char();
    assume(key[0][0] != key[1][0]);
    node[0].key = key[0];
    node[1].key = key[1];
    add(&map, 0);
    add(&map, 1);
    check_all(&map);
    if (any_bool())
        remove_one(&map, 0);
    else
        remove_one(&map, 1);
    check_all(&map);
}
