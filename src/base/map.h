/* SPDX-License-Identifier: MIT
 *
 * map.h - things found by their name.
 *
 * A hash table of nodes that live inside the things themselves.  Room is made
 * before a node is added, where failure can still be reported.
 */
#ifndef HFI_MAP_H
#define HFI_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hfi_node {
    struct hfi_node *next;
    const char *key; /* belongs to the thing */
    uint32_t hash;
};

struct hfi_map {
    struct hfi_node **buckets;
    size_t nbuckets; /* a power of two, or 0 */
    size_t len;
};

/* Make room for one more; false: no memory, and nothing was there before. */
bool hfi_map_reserve(struct hfi_map *);
void hfi_map_add(struct hfi_map *, struct hfi_node *); /* node->key is set */
void hfi_map_remove(struct hfi_map *, struct hfi_node *);
struct hfi_node *hfi_map_find(const struct hfi_map *, const char *key);

/* Walk over all nodes, in no order; take the next before removing one.
 * hfi_map_next(map, NULL) is the first. */
struct hfi_node *hfi_map_next(const struct hfi_map *, const struct hfi_node *);

void hfi_map_fini(struct hfi_map *);

#endif
