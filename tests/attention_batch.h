/* What the suites of attention share: batches of sequences, the cache that holds them, and calls.
 */
#pragma once

#include "op/kv_append/kv_append.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/ragged_prefill/ragged_prefill.h"
#include "op_test.h"

enum { MAX_SEQUENCES = 8 };

/* A batch of sequences: queries and ragged keys and values, from which pages are laid out. */
typedef struct batch {
    int n_sequences, n_heads, n_kv_heads, head_dim;
    int qo_len[MAX_SEQUENCES], kv_len[MAX_SEQUENCES];
    tensor q, k, v, qo_indptr, kv_indptr;
} batch;

static inline tensor borders(int n, const int *lengths)
{
    tensor indptr = zeros(DTYPE_I32, SHAPE(n + 1));
    int32_t *border = indptr.data;
    for (int b = 0; b < n; b++)
        border[b + 1] = border[b] + lengths[b];
    return indptr;
}

/* Fills in the tensors of a batch whose sizes are set. */
static inline void make_batch(batch *batch, dtype type, uint64_t seed)
{
    batch->qo_indptr = borders(batch->n_sequences, batch->qo_len);
    batch->kv_indptr = borders(batch->n_sequences, batch->kv_len);
    int64_t n = ((int32_t *)batch->qo_indptr.data)[batch->n_sequences];
    int64_t n_kv = ((int32_t *)batch->kv_indptr.data)[batch->n_sequences];
    batch->q = random_tensor(type, seed, SHAPE(n, batch->n_heads, batch->head_dim));
    batch->k = random_tensor(type, seed + 1, SHAPE(n_kv, batch->n_kv_heads, batch->head_dim));
    batch->v = random_tensor(type, seed + 2, SHAPE(n_kv, batch->n_kv_heads, batch->head_dim));
}

static inline batch common_batch(void)
{
    batch batch = {.n_sequences = 5,
                   .n_heads = 6,
                   .n_kv_heads = 2,
                   .head_dim = 20,
                   .qo_len = {3, 0, 17, 1, 5},
                   .kv_len = {3, 9, 97, 54, 2}};
    make_batch(&batch, DTYPE_F32, 100);
    return batch;
}

static inline op_call ragged_call(const batch *batch)
{
    int64_t n = batch->q.shape[0];
    op_call call = {.tensors = {batch->q, batch->k, batch->v, batch->qo_indptr, batch->kv_indptr}};
    call.tensors[RAGGED_PREFILL_OUT] = zeros(DTYPE_F32, SHAPE(n, batch->n_heads, batch->head_dim));
    call.tensors[RAGGED_PREFILL_LSE] = zeros(DTYPE_F32, SHAPE(n, batch->n_heads));
    call.params[RAGGED_PREFILL_CAUSAL] = 1;
    return call;
}

/* A cache whose pages stand in shuffled order, with NaN where no position is. */
typedef struct cache {
    tensor k, v, indptr, indices, last;
} cache;

/* HND: positions inside heads, as a view of the one shape. */
static inline tensor empty_pages(const batch *batch, int64_t n_pages, int64_t page_size, bool hnd)
{
    int64_t heads = batch->n_kv_heads, dim = batch->head_dim;
    tensor pages = hnd ? zeros(batch->k.type, SHAPE(n_pages, heads, page_size, dim))
                       : zeros(batch->k.type, SHAPE(n_pages, page_size, heads, dim));
    for (int64_t i = 0; i < tensor_elements(&pages); i++)
        element_store(pages.type, pages.data, i, NAN);
    if (!hnd) return pages;
    tensor view = pages;
    view.shape[1] = page_size;
    view.shape[2] = heads;
    view.stride[1] = pages.stride[2];
    view.stride[2] = pages.stride[1];
    return view;
}

static inline cache make_cache(const batch *batch, int page_size, bool hnd)
{
    int pages[MAX_SEQUENCES], last[MAX_SEQUENCES], total = 0;
    for (int b = 0; b < batch->n_sequences; b++) {
        pages[b] = (batch->kv_len[b] + page_size - 1) / page_size;
        last[b] = pages[b] ? batch->kv_len[b] - (pages[b] - 1) * page_size : 0;
        total += pages[b];
    }
    cache cache = {.k = empty_pages(batch, total + 3, page_size, hnd),
                   .v = empty_pages(batch, total + 3, page_size, hnd),
                   .indptr = borders(batch->n_sequences, pages),
                   .indices = zeros(DTYPE_I32, SHAPE(total)),
                   .last = indices(batch->n_sequences, last)};
    int32_t *order = cache.indices.data;
    for (int i = 0; i < total; i++)
        order[i] = i + 2;
    for (int i = total - 1; i > 0; i--) {
        int j = (int)(hash_random(7, 0, (uint64_t)i) % (uint64_t)(i + 1)), other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
    return cache;
}

static inline op_call append_call(const cache *cache)
{
    op_call call = {0};
    call.tensors[KV_APPEND_KV_INDPTR] = cache->indptr;
    call.tensors[KV_APPEND_KV_INDICES] = cache->indices;
    call.tensors[KV_APPEND_KV_LAST_PAGE_LEN] = cache->last;
    call.tensors[KV_APPEND_K_CACHE] = cache->k;
    call.tensors[KV_APPEND_V_CACHE] = cache->v;
    return call;
}

/* Puts all keys and values of the batch into the cache with kv_append. */
static inline void fill_cache(const batch *batch, const cache *cache)
{
    op_call call = append_call(cache);
    call.tensors[KV_APPEND_K] = batch->k;
    call.tensors[KV_APPEND_V] = batch->v;
    call.tensors[KV_APPEND_QO_INDPTR] = batch->kv_indptr;
    tensor positions = zeros(DTYPE_I32, SHAPE(batch->k.shape[0]));
    int32_t *position = positions.data;
    for (int b = 0; b < batch->n_sequences; b++) {
        for (int i = 0; i < batch->kv_len[b]; i++)
            *position++ = i;
    }
    call.tensors[KV_APPEND_POSITIONS] = positions;
    run_cut(&op_kv_append, &call, 8);
}

static inline op_call paged_call(const batch *batch, const cache *cache)
{
    op_call call = ragged_call(batch);
    tensor out = call.tensors[RAGGED_PREFILL_OUT], lse = call.tensors[RAGGED_PREFILL_LSE];
    call = (op_call){.tensors = {batch->q, cache->k, cache->v, batch->qo_indptr, cache->indptr,
                                 cache->indices, cache->last, out, lse}};
    call.params[PAGED_PREFILL_CAUSAL] = 1;
    return call;
}
