/* The pages of the KV cache: see pages.h. */
#include "vm/pages.h"

#include <assert.h>
#include <stdlib.h>

qp_status page_pool_init(page_pool *pool, int64_t n_pages, int64_t page_size, qp_error *error)
{
    *pool = (page_pool){.n_free = n_pages, .n_pages = n_pages, .page_size = page_size};
    pool->free = malloc((size_t)n_pages * sizeof *pool->free);
    if (!pool->free)
        return error_no_memory(error, "the list of pages", (size_t)n_pages * sizeof *pool->free);
    for (int64_t i = 0; i < n_pages; i++)
        pool->free[i] = (int32_t)(n_pages - 1 - i); /* page 0 is taken first */
    return QP_OK;
}

void page_pool_free(page_pool *pool)
{
    free(pool->free);
    *pool = (page_pool){0};
}

qp_status page_list_init(page_list *list, int64_t capacity, qp_error *error)
{
    *list = (page_list){.capacity = capacity};
    list->pages = malloc((size_t)capacity * sizeof *list->pages);
    if (list->pages) return QP_OK;
    return error_no_memory(error, "a session's pages", (size_t)capacity * sizeof *list->pages);
}

qp_status page_list_resize(page_list *list, page_pool *pool, int64_t positions, qp_error *error)
{
    int64_t wanted = (positions + pool->page_size - 1) / pool->page_size;
    assert(wanted <= list->capacity);
    if (wanted - list->count > pool->n_free)
        return error_set(error, QP_NO_MEMORY,
                         "the KV cache has %lld of %lld pages left, but %lld more are needed; "
                         "close other sessions or open the engine with a larger context",
                         (long long)pool->n_free, (long long)pool->n_pages,
                         (long long)(wanted - list->count));
    while (list->count < wanted)
        list->pages[list->count++] = pool->free[--pool->n_free];
    while (list->count > wanted)
        pool->free[pool->n_free++] = list->pages[--list->count];
    return QP_OK;
}

void page_list_free(page_list *list, page_pool *pool)
{
    if (list->pages) page_list_resize(list, pool, 0, NULL);
    free(list->pages);
    *list = (page_list){0};
}
