/* The prefix tree: see prefix_tree.h. */
#include "engine/prefix_tree.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static size_t page_bytes(const prefix_tree *t)
{
    return (size_t)t->pool->page_size * sizeof *t->tokens;
}

static int32_t *tokens_of(const prefix_tree *t, int32_t page)
{
    return t->tokens + page * t->pool->page_size;
}

static uint64_t hash_of(const prefix_tree *t, uint64_t key, int32_t parent, const int32_t *tokens)
{
    const uint64_t path = parent >= 0 ? t->hashes[parent] : keyed_hash_number(t->secret, key);
    return hash_mix(path ^ keyed_hash(t->secret, tokens, page_bytes(t)));
}

/* ---- open and close ------------------------------------------------------------------------ */

/* Removes the node of an idle page that the pool takes. */
static void on_taken(void *context, int32_t page)
{
    prefix_tree *t = context;
    if (t->on_change) t->on_change(t->change_context, page, false);
    int32_t *at = &t->buckets[t->hashes[page] & t->mask];
    while (*at != page)
        at = &t->next[*at];
    *at = t->next[page];
    t->n_nodes--;
    t->n_taken++;
}

qp_status prefix_tree_open(prefix_tree *t, page_pool *pool, qp_error *error)
{
    const size_t n = (size_t)pool->n_pages;
    size_t n_buckets = 1;
    while (n_buckets < n)
        n_buckets *= 2;
    *t = (prefix_tree){.pool = pool, .mask = n_buckets - 1, .secret = hash_key_get()};
    t->tokens = malloc(n * page_bytes(t));
    t->parents = malloc(n * sizeof *t->parents);
    t->keys = malloc(n * sizeof *t->keys);
    t->hashes = malloc(n * sizeof *t->hashes);
    t->next = malloc(n * sizeof *t->next);
    t->buckets = malloc(n_buckets * sizeof *t->buckets);
    if (!t->tokens || !t->parents || !t->keys || !t->hashes || !t->next || !t->buckets) {
        const qp_status status = error_no_memory(error, "the prefix tree", n * page_bytes(t));
        prefix_tree_close(t);
        return status;
    }
    for (size_t i = 0; i < n_buckets; i++)
        t->buckets[i] = -1;
    pool->on_taken = on_taken;
    pool->context = t;
    return QP_OK;
}

void prefix_tree_close(prefix_tree *t)
{
    free(t->tokens);
    free(t->parents);
    free(t->keys);
    free(t->hashes);
    free(t->next);
    free(t->buckets);
    *t = (prefix_tree){0};
}

/* ---- nodes --------------------------------------------------------------------------------- */

/* The child of `parent` with these tokens; -1: there is none. */
static int32_t find_child(const prefix_tree *t, uint64_t key, int32_t parent, const int32_t *tokens,
                          uint64_t hash)
{
    for (int32_t page = t->buckets[hash & t->mask]; page >= 0; page = t->next[page])
        if (t->hashes[page] == hash && t->parents[page] == parent && t->keys[page] == key &&
            memcmp(tokens_of(t, page), tokens, page_bytes(t)) == 0)
            return page;
    return -1;
}

static void add_node(prefix_tree *t, uint64_t key, int32_t parent, const int32_t *tokens,
                     uint64_t hash, int32_t page)
{
    memcpy(tokens_of(t, page), tokens, page_bytes(t));
    t->parents[page] = parent;
    t->keys[page] = key;
    t->hashes[page] = hash;
    t->next[page] = t->buckets[hash & t->mask];
    t->buckets[hash & t->mask] = page;
    t->n_nodes++;
    if (t->on_change) t->on_change(t->change_context, page, true);
}

void prefix_tree_find(const prefix_tree *t, uint64_t key, const int32_t *tokens, size_t count,
                      prefix_walk *walk)
{
    if (!t->pool) return;
    if (walk->n_pages == 0 || walk->n_taken != t->n_taken)
        *walk = (prefix_walk){.last = -1, .n_taken = t->n_taken};
    const int64_t size = t->pool->page_size, most = (int64_t)count / size;
    while (walk->n_pages < most) {
        const int32_t *next = tokens + walk->n_pages * size;
        const uint64_t hash = hash_of(t, key, walk->last, next);
        const int32_t page = find_child(t, key, walk->last, next, hash);
        if (page < 0) return;
        walk->last = page;
        walk->n_pages++;
    }
}

int64_t prefix_tree_count_idle(const prefix_tree *t, int32_t last)
{
    int64_t n = 0;
    for (; last >= 0 && t->pool->references[last] == 0; last = t->parents[last])
        n++; /* if a list holds a page, it also holds the page's ancestors */
    return n;
}

void prefix_tree_take(prefix_tree *t, uint64_t key, const int32_t *tokens, int64_t positions,
                      page_list *list)
{
    const int64_t size = t->pool->page_size;
    int32_t parent = -1;
    for (int64_t at = 0; at < positions; at += size) {
        const uint64_t hash = hash_of(t, key, parent, tokens + at);
        parent = find_child(t, key, parent, tokens + at, hash);
        assert(parent >= 0);
        page_list_append(list, t->pool, parent);
    }
}

int64_t prefix_tree_keep(prefix_tree *t, uint64_t key, const int32_t *tokens, size_t count,
                         int64_t from, page_list *list)
{
    if (!t->pool) return 0;
    const int64_t size = t->pool->page_size, full = (int64_t)count / size;
    for (int64_t i = from; i < full; i++) {
        const int32_t parent = i ? list->pages[i - 1] : -1, *next = tokens + i * size;
        const uint64_t hash = hash_of(t, key, parent, next);
        const int32_t page = find_child(t, key, parent, next, hash);
        if (page >= 0 && page != list->pages[i]) {
            page_list_replace(list, t->pool, i, page);
        } else if (page < 0) {
            add_node(t, key, parent, next, hash, list->pages[i]);
            page_pool_keep(t->pool, list->pages[i]);
        }
    }
    return full;
}

int32_t prefix_tree_restore(prefix_tree *t, uint64_t key, int32_t parent, const int32_t *tokens)
{
    const uint64_t hash = hash_of(t, key, parent, tokens);
    if (find_child(t, key, parent, tokens, hash) >= 0) return -1;
    const int32_t page = page_pool_restore(t->pool);
    if (page >= 0) add_node(t, key, parent, tokens, hash, page);
    return page;
}
