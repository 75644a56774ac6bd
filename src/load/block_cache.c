#include "load/block_cache.h"

#include <stdlib.h>

/* ---- The map: open addressing, at most half full --------------------------------------------- */

static size_t place_of(const block_map *m, uint64_t key)
{
    return (size_t)(key >> (64 - m->bits));
}

static size_t next_of(const block_map *m, size_t i)
{
    return (i + 1) & (((size_t)1 << m->bits) - 1);
}

uint32_t *block_map_find(const block_map *m, uint64_t key)
{
    if (!m->count) return NULL;
    for (size_t i = place_of(m, key); m->entries[i].key; i = next_of(m, i))
        if (m->entries[i].key == key) return &m->entries[i].value;
    return NULL;
}

static void put(block_map *m, uint64_t key, uint32_t value)
{
    size_t i = place_of(m, key);
    while (m->entries[i].key)
        i = next_of(m, i);
    m->entries[i] = (struct block_entry){key, value};
}

qp_status block_map_add(block_map *m, uint64_t key, uint32_t value, qp_error *error)
{
    if (!m->entries || 2 * m->count >= (size_t)1 << m->bits) {
        block_map grown = {.bits = m->entries ? m->bits + 1 : 6, .count = m->count};
        grown.entries = calloc((size_t)1 << grown.bits, sizeof *grown.entries);
        if (!grown.entries) return error_no_memory(error, "a cache", m->count);
        for (size_t i = 0; m->entries && i < (size_t)1 << m->bits; i++)
            if (m->entries[i].key) put(&grown, m->entries[i].key, m->entries[i].value);
        free(m->entries);
        *m = grown;
    }
    put(m, key, value);
    m->count++;
    return QP_OK;
}

/* Those that lie after it because their place was taken move up. */
void block_map_remove(block_map *m, uint64_t key)
{
    const size_t mask = ((size_t)1 << m->bits) - 1;
    size_t i = place_of(m, key);
    while (m->entries[i].key != key)
        i = next_of(m, i);
    for (size_t k = next_of(m, i); m->entries[k].key; k = next_of(m, k)) {
        const size_t from_home = (k - place_of(m, m->entries[k].key)) & mask;
        if (from_home < ((k - i) & mask)) continue;
        m->entries[i] = m->entries[k];
        i = k;
    }
    m->entries[i].key = 0;
    m->count--;
}

/* ---- The cache ------------------------------------------------------------------------------- */

static void unlink_node(block_cache *c, uint32_t at)
{
    const struct block_node *n = c->nodes + at;
    c->nodes[n->before].after = n->after;
    c->nodes[n->after].before = n->before;
    c->unused--;
}

/* A node without a block; 0: no memory. */
static uint32_t take_node(block_cache *c)
{
    uint32_t at = c->free;
    if (at) {
        c->free = c->nodes[at].after;
        return at;
    }
    if (c->made == c->capacity) {
        const uint32_t more = c->capacity ? 2 * c->capacity : 64;
        struct block_node *grown = realloc(c->nodes, more * sizeof *grown);
        if (!grown) return 0;
        if (!c->nodes) grown[0] = (struct block_node){0};
        c->nodes = grown;
        c->capacity = more;
        if (!c->made) c->made = 1;
    }
    return c->made++;
}

qp_status block_cache_pin(block_cache *c, uint64_t key, bool *added, qp_error *error)
{
    const uint32_t *found = block_map_find(&c->map, key);
    *added = !found;
    if (found) {
        if (c->nodes[*found].users++ == 0) unlink_node(c, *found);
        return QP_OK;
    }
    const uint32_t at = take_node(c);
    if (!at) return error_no_memory(error, "a cache", c->capacity);
    c->nodes[at] = (struct block_node){.key = key, .users = 1};
    return block_map_add(&c->map, key, at, error);
}

void block_cache_unpin(block_cache *c, uint64_t key)
{
    const uint32_t at = *block_map_find(&c->map, key);
    struct block_node *n = c->nodes + at;
    if (--n->users) return;
    n->before = c->nodes[0].before;
    n->after = 0;
    c->nodes[n->before].after = at;
    c->nodes[0].before = at;
    c->unused++;
}

void block_cache_evict(block_cache *c)
{
    const uint32_t at = c->nodes[0].after;
    unlink_node(c, at);
    block_map_remove(&c->map, c->nodes[at].key);
    c->nodes[at].after = c->free;
    c->free = at;
}

void block_cache_free(block_cache *c)
{
    free(c->map.entries);
    free(c->nodes);
    *c = (block_cache){0};
}
