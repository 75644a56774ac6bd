/* The prefix tree: which pages of the KV cache hold which beginnings of texts.
 *
 * A radix tree whose edges are pages: a node is one full page, and its path from the root spells
 * page_size tokens for each node. Nodes are numbered as their pages, and found by a hash of the
 * parent and the tokens; the tokens are compared, so a hash never decides alone. Texts of different
 * keys share nothing.
 *
 *     key 7: [a b c d] -- [e f g h] -- [i j k l]
 *                      \- [e f x y]
 *
 * A list that holds a node's page holds those of its ancestors too: lists get pages from the tree
 * from the root on, and a list's own page is replaced by the tree's where the tree has one of equal
 * contents. So a page becomes idle before its ancestors do, and the page that has been idle for
 * longest, which the pool takes when none is free, is always a leaf.
 */
#ifndef QUIPU_ENGINE_PREFIX_TREE_H
#define QUIPU_ENGINE_PREFIX_TREE_H

#include "base/keyed_hash.h"
#include "engine/pages.h"

typedef struct prefix_tree {
    page_pool *pool;  /* NULL: the tree is not open, and empty */
    int32_t *tokens;  /* [n_pages][page_size] */
    int32_t *parents; /* [n_pages]; -1: the root */
    uint64_t *keys;   /* [n_pages] */
    uint64_t *hashes; /* [n_pages]: of the path */
    int32_t *next;    /* [n_pages]: in the same bucket; -1: the last */
    int32_t *buckets; /* [mask + 1], a power of two; -1: empty */
    uint64_t mask;
    hash_key secret;
    int64_t n_nodes;
    uint64_t n_taken; /* nodes that were taken away; counts on */
} prefix_tree;

qp_status prefix_tree_open(prefix_tree *tree, page_pool *pool, qp_error *error);
void prefix_tree_close(prefix_tree *tree);

/* How far a text was found in the tree. Zero-initialise; a walk may go on when the tree has grown,
 * and starts again when nodes were taken away. */
typedef struct prefix_walk {
    int64_t n_pages;  /* found */
    int32_t last;     /* of them; -1: none */
    uint64_t n_taken; /* of the tree, then */
} prefix_walk;

/* Finds the pages of as many of the `count` tokens as the tree has, as far as they fill pages. */
void prefix_tree_find(const prefix_tree *tree, uint64_t key, const int32_t *tokens, size_t count,
                      prefix_walk *walk);

/* How many pages of the path that ends at page `last` are idle. */
int64_t prefix_tree_count_idle(const prefix_tree *tree, int32_t last);

/* Gives an empty list the pages that `positions` of the tokens need, all of which the tree has. */
void prefix_tree_take(prefix_tree *tree, uint64_t key, const int32_t *tokens, int64_t positions,
                      page_list *list);

/* Keeps the pages [from, count / page_size) of a list that holds `count` tokens; those before
 * `from` are the tree's already. Where the tree has an equal page the list gets that one. Returns
 * the number of the list's pages that are the tree's now. */
int64_t prefix_tree_keep(prefix_tree *tree, uint64_t key, const int32_t *tokens, size_t count,
                         int64_t from, page_list *list);

/* A node whose page comes from a file: below `parent` (-1: the root). -1: no page is free, or the
 * tree has the node. */
int32_t prefix_tree_restore(prefix_tree *tree, uint64_t key, int32_t parent, const int32_t *tokens);

#endif
