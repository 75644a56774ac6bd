/* The pages of the KV cache: which are free, and how many sequences hold each.
 *
 * A page holds `page_size` positions of every layer. Sequences take pages as they grow and give
 * them back; the lists have their full size from the start, so nothing is allocated later. A page
 * that several sequences hold is only read. A sequence that is about to write into such a page
 * takes another in its place, and the caller copies what the old one holds (copy on write). Only
 * the page in which a sequence ends can be in that state, because sequences write at their end
 * alone.
 *
 * The prefix tree (prefix_tree.h) keeps pages. A page that it keeps and no sequence holds is idle:
 * it counts as available, and the page that has been idle for longest is taken when none is free.
 */
#ifndef QUIPU_ENGINE_PAGES_H
#define QUIPU_ENGINE_PAGES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct page_pool {
    int32_t *free;       /* [n_pages], the first n_free are free; the last of them is taken next */
    int32_t *references; /* [n_pages]: lists that hold the page; 0: it is free or idle */
    int64_t n_free, n_pages, page_size;
    bool *kept;             /* [n_pages]: by the prefix tree; nobody writes to such a page */
    int32_t *newer, *older; /* [n_pages]: the list of idle pages; -1: none */
    int32_t newest, oldest; /* idle pages; -1: there is none */
    int64_t n_idle;
    void (*on_taken)(void *context, int32_t page); /* a page is taken from the tree */
    void *context;
} page_pool;

/* page_pool_free() it, also after a failure. */
qp_status page_pool_init(page_pool *pool, int64_t n_pages, int64_t page_size, qp_error *error);
void page_pool_free(page_pool *pool);

/* Pages that lists can take. */
static inline int64_t page_pool_available(const page_pool *pool)
{
    return pool->n_free + pool->n_idle;
}

/* Keeps a page, which a list holds. */
void page_pool_keep(page_pool *pool, int32_t page);

/* Makes a free page one that is kept and has been idle for longer than all others, and returns it;
 * -1: none is free. For pages whose contents come from a file. */
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

/* Pages that page_list_grow() would take from the pool. */
int64_t page_list_need(const page_list *list, const page_pool *pool, int64_t held,
                       int64_t positions);

/* Prepares the list, whose first `held` positions are written, for positions [held, positions).
 * Growth past the pool is QP_NO_MEMORY and changes nothing. */
qp_status page_list_grow(page_list *list, page_pool *pool, int64_t held, int64_t positions,
                         page_copy *copy, qp_error *error);

/* Gives back the pages that the first `positions` do not need. */
void page_list_shrink(page_list *list, page_pool *pool, int64_t positions);

/* Grows or shrinks a list that shares no page with another. */
qp_status page_list_resize(page_list *list, page_pool *pool, int64_t positions, qp_error *error);

/* Makes `list`, which is empty, hold the pages of the first `positions` of `from` too. */
void page_list_share(page_list *list, const page_list *from, page_pool *pool, int64_t positions);

/* Appends a page that the pool keeps. */
void page_list_append(page_list *list, page_pool *pool, int32_t page);

/* Puts a page that the pool keeps, of the same contents, in the place of the index-th. */
void page_list_replace(page_list *list, page_pool *pool, int64_t index, int32_t page);

/* Gives all pages back and frees the list. */
void page_list_free(page_list *list, page_pool *pool);

#endif
