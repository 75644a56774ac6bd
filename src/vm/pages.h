/* The pages of the KV cache: which are free, which belong to a sequence.
 *
 * A page holds `page_size` positions of every layer. Sequences take pages as they grow and give
 * them back; the lists have their full size from the start, so nothing is allocated later.
 */
#ifndef QUIPU_VM_PAGES_H
#define QUIPU_VM_PAGES_H

#include "base/status.h"

#include <stdint.h>

typedef struct page_pool {
    int32_t *free; /* [n_pages], the first n_free are free; the last of them is taken next */
    int64_t n_free, n_pages, page_size;
} page_pool;

qp_status page_pool_init(page_pool *pool, int64_t n_pages, int64_t page_size, qp_error *error);
void page_pool_free(page_pool *pool);

/* The pages of one sequence, in the order of its positions. */
typedef struct page_list {
    int32_t *pages; /* [capacity] */
    int64_t count, capacity;
} page_list;

qp_status page_list_init(page_list *list, int64_t capacity, qp_error *error);

/* Grows or shrinks the list to hold `positions`. Growth past the pool is QP_NO_MEMORY and changes
 * nothing. */
qp_status page_list_resize(page_list *list, page_pool *pool, int64_t positions, qp_error *error);

/* Gives all pages back and frees the list. */
void page_list_free(page_list *list, page_pool *pool);

#endif
