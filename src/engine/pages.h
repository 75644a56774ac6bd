/* The pages of the KV cache: which pages are free, and how many sequences hold each page.
 *
 * A page holds `page_size` positions of every layer. Sequences take pages as they grow and give
 * them back when they shrink or end. Lists have their full capacity from the start, so nothing is
 * allocated later. A page that several sequences hold is read-only. Before a sequence writes into
 * such a page it takes a new one, and the caller copies the old page's contents (copy on write).
 * This can only be the last page of a sequence, because sequences only write at their end.
 *
 * The prefix tree (prefix_tree.h) keeps pages. A page that the tree keeps and no sequence holds is
 * idle. Idle pages count as available: if no page is free, the page that has been idle for longest
 * is taken.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct page_pool {
    int32_t *free; /* [n_pages], the first n_free entries are free pages; the last is taken next */
    int32_t *references; /* [n_pages]: number of lists that hold the page; 0: free or idle */
    int64_t n_free, n_pages, page_size;
    bool *kept;             /* [n_pages]: the prefix tree keeps the page, which is read-only */
    int32_t *newer, *older; /* [n_pages]: links of the list of idle pages; -1: end */
    int32_t newest, oldest; /* ends of that list; -1: no page is idle */
    int64_t n_idle;
    void (*on_taken)(void *context, int32_t page); /* an idle page was taken from the tree */
    void *context;
} page_pool;

/* Call page_pool_free() afterwards, also after a failure. */
qp_status page_pool_init(page_pool *pool, int64_t n_pages, int64_t page_size, qp_error *error);
void page_pool_free(page_pool *pool);

/* How many pages lists can take: free and idle ones. */
static inline int64_t page_pool_available(const page_pool *pool)
{
    return pool->n_free + pool->n_idle;
}

/* Marks a page, which a list holds, as kept by the tree. */
void page_pool_keep(page_pool *pool, int32_t page);

/* Takes a free page, marks it as kept and as the longest idle one, and returns it; -1: none is
 * free. For pages whose contents come from a file. */
int32_t page_pool_restore(page_pool *pool);

/* The pages of one sequence, in the order of its positions. */
typedef struct page_list {
    int32_t *pages; /* [capacity] */
    int64_t count, capacity;
} page_list;

qp_status page_list_init(page_list *list, int64_t capacity, qp_error *error);

/* A page to copy, in all layers, before anything is written to `to`. */
typedef struct page_copy {
    bool needed;
    int32_t from, to;
} page_copy;

/* How many pages page_list_grow() would take from the pool. */
int64_t page_list_need(const page_list *list, const page_pool *pool, int64_t held,
                       int64_t positions);

/* Prepares a list, whose first `held` positions are written, for positions [held, positions).
 * QP_NO_MEMORY if the pool has too few pages; then nothing has changed. */
qp_status page_list_grow(page_list *list, page_pool *pool, int64_t held, int64_t positions,
                         page_copy *copy, qp_error *error);

/* Gives back the pages that the first `positions` do not need. */
void page_list_shrink(page_list *list, page_pool *pool, int64_t positions);

/* Grows or shrinks a list that shares no page with another. */
qp_status page_list_resize(page_list *list, page_pool *pool, int64_t positions, qp_error *error);

/* Makes the empty `list` share the pages of the first `positions` of `from`. */
void page_list_share(page_list *list, const page_list *from, page_pool *pool, int64_t positions);

/* Appends a page that the tree keeps. */
void page_list_append(page_list *list, page_pool *pool, int32_t page);

/* Replaces the index-th page by a page with the same contents that the tree keeps. */
void page_list_replace(page_list *list, page_pool *pool, int64_t index, int32_t page);

/* Gives all pages back and frees the list. */
void page_list_free(page_list *list, page_pool *pool);
