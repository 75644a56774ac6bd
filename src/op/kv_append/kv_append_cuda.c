/* kv_append on the GPU: see rows_cuda.h. */
#include "op/kv_append/kv_append.h"
#include "op/rows_cuda.h"
#include "op/variants.h"

append_rows cuda_append_rows(const op_call *call)
{
    const tensor *t = call->tensors, *v = &t[KV_APPEND_V];
    const tensor *k_cache = &t[KV_APPEND_K_CACHE], *v_cache = &t[KV_APPEND_V_CACHE];
    return (append_rows){.v = cuda_rows_of(v),
                         .v_head = v->stride[1],
                         .k_cache = cuda_rows_of(k_cache),
                         .v_cache = cuda_rows_of(v_cache),
                         .k_slot = k_cache->stride[1],
                         .v_slot = v_cache->stride[1],
                         .k_cache_head = k_cache->stride[2],
                         .v_cache_head = v_cache->stride[2],
                         .qo_indptr = t[KV_APPEND_QO_INDPTR].data,
                         .positions = t[KV_APPEND_POSITIONS].data,
                         .kv_indptr = t[KV_APPEND_KV_INDPTR].data,
                         .kv_indices = t[KV_APPEND_KV_INDICES].data,
                         .n_sequences = (int32_t)(t[KV_APPEND_QO_INDPTR].shape[0] - 1),
                         .page_size = (int32_t)k_cache->shape[1],
                         .head_dim = (int32_t)v->shape[2]};
}

bool cuda_caches_on_vectors(const append_rows *append)
{
    int64_t strides = append->k_slot | append->v_slot | append->k_cache_head | append->v_cache_head;
    return cuda_rows_on_vectors(append->k_cache) && cuda_rows_on_vectors(append->v_cache) &&
           strides % 16 == 0;
}

const cuda_kernel kv_append_cuda[] = {
    {CUDA_UNITS(KV_APPEND, "cuda_ops", kv_append, 256, 1, op_call_has_no_f64), .early = true},
    {0},
};
