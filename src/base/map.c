/* SPDX-License-Identifier: MIT
 *
 * map.c - things found by their name; see map.h.
 *
 * The table doubles when there are as many nodes as buckets.  If it cannot, it
 * becomes slower, not wrong, so only the first allocation must succeed.
 */
#include "map.h"

#include "alloc.h"

#include "banned.h"

static uint32_t map_hash(const char *key)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 16777619u;
    return hash;
}

static struct hfi_node **map_bucket(const struct hfi_map *map, uint32_t hash)
{
    return &map->buckets[hash & (map->nbuckets - 1)];
}

bool hfi_map_reserve(struct hfi_map *map)
{
    size_t i, n = map->nbuckets ? map->nbuckets * 2 : 16;
    struct hfi_node **grown, *node, *next;

    if (map->len < map->nbuckets)
        return true;
    grown = hfi_alloc(n * sizeof(struct hfi_node *));
    if (!grown)
        return map->nbuckets > 0;
    for (i = 0; i < map->nbuckets; i++) {
        for (node = map->buckets[i]; node; node = next) {
            next = node->next;
            node->next = grown[node->hash & (n - 1)];
            grown[node->hash & (n - 1)] = node;
        }
    }
    hfi_free(map->buckets);
    map->buckets = grown;
    map->nbuckets = n;
    return true;
}

void hfi_map_add(struct hfi_map *map, struct hfi_node *node)
{
    struct hfi_node **bucket;

    node->hash = map_hash(node->key);
    bucket = map_bucket(map, node->hash);
    node->next = *bucket;
    *bucket = node;
    map->len++;
}

void hfi_map_remove(struct hfi_map *map, struct hfi_node *node)
{
    struct hfi_node **at = map_bucket(map, node->hash);

    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    map->len--;
}

struct hfi_node *hfi_map_find(const struct hfi_map *map, const char *key)
{
    uint32_t hash = map_hash(key);
    struct hfi_node *node;

    if (!map->nbuckets)
        return NULL;
    for (node = *map_bucket(map, hash); node; node = node->next)
        if (node->hash == hash && !strcmp(node->key, key))
            return node;
    return NULL;
}

struct hfi_node *hfi_map_next(const struct hfi_map *map,
                              const struct hfi_node *node)
{
    size_t i = 0;

    if (node && node->next)
        return node->next;
    if (node)
        i = (node->hash & (map->nbuckets - 1)) + 1;
    for (; i < map->nbuckets; i++)
        if (map->buckets[i])
            return map->buckets[i];
    return NULL;
}

void hfi_map_fini(struct hfi_map *map)
{
    hfi_free(map->buckets);
    *map = (struct hfi_map){0};
}
