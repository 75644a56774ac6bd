/* The prefix tree: finds the pages of the KV cache that hold a given beginning of a text.
 *
 * A radix tree whose edges are pages: a node is one full page, and its path from the root spells
 * page_size tokens for each node. A node has the number of its page. It is found by a hash of its
 * parent and its tokens; the tokens are compared as well, so a collision of hashes cannot give a
 * wrong page. Texts with different keys share nothing.
 *
 *     key 7: [a b c d] -- [e f g h] -- [i j k l]
 *                      \- [e f x y]
 *
 * A list that holds a node's page also holds the pages of its ancestors, because lists get pages
 * from the root downwards, and a list's own page is replaced by the tree's if the tree has one with
 * equal contents. So a page becomes idle before its ancestors, and the longest idle page, which the
 * pool takes when none is free, is always a leaf.
 */
#pragma once

#include "base/keyed_hash.h"
#include "engine/pages.h"

typedef struct prefix_tree {
    page_pool *pool;  /* NULL: the tree is not open, and empty */
    int32_t *tokens;  /* [n_pages][page_size] */
    int32_t *parents; /* [n_pages]; -1: the root */
    uint64_t *keys;   /* [n_pages] */
    uint64_t *hashes; /* [n_pages]: of the path */
    int32_t *next;    /* [n_pages]: next node of the same bucket; -1: the last */
    int32_t *buckets; /* [mask + 1], a power of two; -1: empty */
    uint64_t mask;
    hash_key secret;
    int64_t n_nodes;
    uint64_t n_taken; /* number of nodes removed so far */
    /* NULL, or called after a node was added, and before one is removed. */
    void (*on_change)(void *context, int32_t page, bool added);
    void *change_context;
} prefix_tree;

qp_status prefix_tree_open(prefix_tree *tree, page_pool *pool, qp_error *error);
void prefix_tree_close(prefix_tree *tree);

/* How much of a text was found in the tree. Zero-initialise. A later call continues the walk; if
 * nodes were removed in between, it starts again at the root. */
typedef struct prefix_walk {
    int64_t n_pages;  /* number of pages found */
    int32_t last;     /* the last page found; -1: none */
    uint64_t n_taken; /* the tree's n_taken at that time */
} prefix_walk;

/* Finds the full pages of the longest beginning of the `count` tokens that the tree has. */
void prefix_tree_find(const prefix_tree *tree, uint64_t key, const int32_t *tokens, size_t count,
                      prefix_walk *walk);

/* How many pages of the path that ends at page `last` are idle. */
int64_t prefix_tree_count_idle(const prefix_tree *tree, int32_t last);

/* Gives an empty list the pages of the first `positions` tokens, all of which the tree has. */
void prefix_tree_take(prefix_tree *tree, uint64_t key, const int32_t *tokens, int64_t positions,
                      page_list *list);

/* Adds the pages [from, count / page_size) of a list that holds `count` tokens; the tree has those
 * before `from` already. If the tree has an equal page, the list gets that one. Returns how many of
 * the list's pages the tree has now. */
int64_t prefix_tree_keep(prefix_tree *tree, uint64_t key, const int32_t *tokens, size_t count,
                         int64_t from, page_list *list);

/* Adds a node below `parent` (-1: the root) whose page comes from a file, and returns it. -1: no
 * page is free, or the tree has the node already. */
int32_t prefix_tree_restore(prefix_tree *tree, uint64_t key, int32_t parent, const int32_t *tokens);
