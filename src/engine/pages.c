/* The pages of the KV cache: see pages.h. */
#include "engine/pages.h"

#include <assert.h>
#include <stdlib.h>

qp_status page_pool_init(page_pool *pool, int64_t n_pages, int64_t page_size, qp_error *error)
{
    const size_t n = (size_t)n_pages;
    *pool = (page_pool){
        .n_free = n_pages, .n_pages = n_pages, .page_size = page_size, .newest = -1, .oldest = -1};
    pool->free = malloc(n * sizeof *pool->free);
    pool->references = calloc(n, sizeof *pool->references);
    pool->kept = calloc(n, sizeof *pool->kept);
    pool->newer = malloc(n * sizeof *pool->newer);
    pool->older = malloc(n * sizeof *pool->older);
    if (!pool->free || !pool->references || !pool->kept || !pool->newer || !pool->older)
        return error_no_memory(error, "the list of pages", n * 4 * sizeof(int32_t));
    for (int64_t i = 0; i < n_pages; i++)
        pool->free[i] = (int32_t)(n_pages - 1 - i); /* page 0 is taken first */
    return QP_OK;
}

void page_pool_free(page_pool *pool)
{
    free(pool->free);
    free(pool->references);
    free(pool->kept);
    free(pool->newer);
    free(pool->older);
    *pool = (page_pool){0};
}

/* ---- idle pages ---------------------------------------------------------------------------- */

static void add_idle(page_pool *pool, int32_t page)
{
    pool->newer[page] = -1;
    pool->older[page] = pool->newest;
    if (pool->newest >= 0)
        pool->newer[pool->newest] = page;
    else
        pool->oldest = page;
    pool->newest = page;
    pool->n_idle++;
}

static void remove_idle(page_pool *pool, int32_t page)
{
    const int32_t newer = pool->newer[page], older = pool->older[page];
    if (newer >= 0)
        pool->older[newer] = older;
    else
        pool->newest = older;
    if (older >= 0)
        pool->newer[older] = newer;
    else
        pool->oldest = newer;
    pool->n_idle--;
}

void page_pool_keep(page_pool *pool, int32_t page)
{
    assert(pool->references[page] > 0);
    pool->kept[page] = true;
}

int32_t page_pool_restore(page_pool *pool)
{
    if (pool->n_free == 0) return -1;
    const int32_t page = pool->free[--pool->n_free];
    pool->kept[page] = true;
    pool->newer[page] = pool->oldest;
    pool->older[page] = -1;
    if (pool->oldest >= 0)
        pool->older[pool->oldest] = page;
    else
        pool->newest = page;
    pool->oldest = page;
    pool->n_idle++;
    return page;
}

/* ---- pages of lists ------------------------------------------------------------------------ */

/* The tree gives up the page, which has no children left. */
static void forget(page_pool *pool, int32_t page)
{
    pool->kept[page] = false;
    pool->on_taken(pool->context, page);
}

static int32_t take(page_pool *pool)
{
    int32_t page = pool->oldest;
    if (pool->n_free > 0) {
        page = pool->free[--pool->n_free];
    } else {
        remove_idle(pool, page);
        forget(pool, page);
    }
    pool->references[page] = 1;
    return page;
}

static void hold(page_pool *pool, int32_t page)
{
    if (pool->references[page]++ == 0) remove_idle(pool, page);
}

static void release(page_pool *pool, int32_t page)
{
    assert(pool->references[page] > 0);
    if (--pool->references[page] > 0) return;
    if (pool->kept[page])
        add_idle(pool, page);
    else
        pool->free[pool->n_free++] = page;
}

static int64_t pages_of(const page_pool *pool, int64_t positions)
{
    return (positions + pool->page_size - 1) / pool->page_size;
}

qp_status page_list_init(page_list *list, int64_t capacity, qp_error *error)
{
    *list = (page_list){.capacity = capacity};
    list->pages = malloc((size_t)capacity * sizeof *list->pages);
    if (list->pages) return QP_OK;
    return error_no_memory(error, "a session's pages", (size_t)capacity * sizeof *list->pages);
}

/* The index of the list's page that contains position `held`, if another list or the tree has it
 * too, so that it must not be written; else -1. */
static int64_t shared_page(const page_list *list, const page_pool *pool, int64_t held,
                           int64_t positions)
{
    int64_t index = held / pool->page_size;
    if (held >= positions || index >= list->count) return -1;
    const int32_t page = list->pages[index];
    return pool->references[page] > 1 || pool->kept[page] ? index : -1;
}

int64_t page_list_need(const page_list *list, const page_pool *pool, int64_t held,
                       int64_t positions)
{
    int64_t more = pages_of(pool, positions) - list->count;
    return (more > 0 ? more : 0) + (shared_page(list, pool, held, positions) >= 0);
}

qp_status page_list_grow(page_list *list, page_pool *pool, int64_t held, int64_t positions,
                         page_copy *copy, qp_error *error)
{
    const int64_t wanted = pages_of(pool, positions);
    const int64_t need = page_list_need(list, pool, held, positions);
    const int64_t shared = shared_page(list, pool, held, positions);
    assert(wanted <= list->capacity);
    *copy = (page_copy){0};
    /* No page is available for a copy: the tree gives up this one instead. */
    const bool alone = shared >= 0 && pool->references[list->pages[shared]] == 1;
    if (alone && need == page_pool_available(pool) + 1) {
        while (list->count < wanted)
            list->pages[list->count++] = take(pool);
        forget(pool, list->pages[shared]);
        return QP_OK;
    }
    if (need > page_pool_available(pool))
        return error_set(error, QP_NO_MEMORY,
                         "the KV cache has %lld of %lld pages left, but %lld more are needed; "
                         "close other sessions or open the engine with a larger context",
                         (long long)page_pool_available(pool), (long long)pool->n_pages,
                         (long long)need);
    if (shared >= 0) {
        *copy = (page_copy){.needed = true, .from = list->pages[shared], .to = take(pool)};
        release(pool, copy->from);
        list->pages[shared] = copy->to;
    }
    while (list->count < wanted)
        list->pages[list->count++] = take(pool);
    return QP_OK;
}

void page_list_shrink(page_list *list, page_pool *pool, int64_t positions)
{
    while (list->count > pages_of(pool, positions))
        release(pool, list->pages[--list->count]);
}

qp_status page_list_resize(page_list *list, page_pool *pool, int64_t positions, qp_error *error)
{
    page_copy copy;
    page_list_shrink(list, pool, positions);
    return page_list_grow(list, pool, positions, positions, &copy, error);
}

void page_list_share(page_list *list, const page_list *from, page_pool *pool, int64_t positions)
{
    const int64_t count = pages_of(pool, positions);
    assert(list->count == 0 && count <= from->count && count <= list->capacity);
    for (; list->count < count; list->count++) {
        list->pages[list->count] = from->pages[list->count];
        hold(pool, list->pages[list->count]);
    }
}

void page_list_append(page_list *list, page_pool *pool, int32_t page)
{
    assert(pool->kept[page] && list->count < list->capacity);
    hold(pool, page);
    list->pages[list->count++] = page;
}

void page_list_replace(page_list *list, page_pool *pool, int64_t index, int32_t page)
{
    assert(pool->kept[page] && index < list->count);
    hold(pool, page);
    release(pool, list->pages[index]);
    list->pages[index] = page;
}

void page_list_free(page_list *list, page_pool *pool)
{
    if (list->pages) page_list_shrink(list, pool, 0);
    free(list->pages);
    *list = (page_list){0};
}
