/* The prefix cache of a simulated server: blocks of prompts by their keys. A block that requests
 * use is pinned; of the others the one that was used longest ago goes first. And a map of blocks to
 * servers, for the router.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Keys, which are random bits and not 0, to numbers. */
typedef struct block_map {
    struct block_entry {
        uint64_t key;
        uint32_t value;
    } * entries; /* [1 << bits]; key 0: free */
    int bits;
    size_t count;
} block_map;

/* NULL: it is not there. */
uint32_t *block_map_find(const block_map *map, uint64_t key);
/* The key must not be there. */
qp_status block_map_add(block_map *map, uint64_t key, uint32_t value, qp_error *error);
void block_map_remove(block_map *map, uint64_t key);

typedef struct block_cache {
    block_map map; /* to nodes */
    struct block_node {
        uint64_t key;
        uint32_t users, before, after; /* in the order of last use, if nobody uses it; or free */
    } * nodes;                         /* [capacity]; 0: the ends of that order */
    uint32_t capacity, made, unused;   /* nodes; blocks that nobody uses */
    uint32_t free;                     /* the first free node; 0: none */
} block_cache;

/* Pins a block; adds it if it is not there, which `added` then says. */
qp_status block_cache_pin(block_cache *cache, uint64_t key, bool *added, qp_error *error);
void block_cache_unpin(block_cache *cache, uint64_t key);
/* Removes the block that was used longest ago of those that nobody uses. */
void block_cache_evict(block_cache *cache);
void block_cache_free(block_cache *cache);
