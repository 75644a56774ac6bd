/* ragged_prefill on the GPU: see attention_cuda.h. */
#include "op/attention/attention_cuda.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/ragged_prefill/ragged_prefill.h"

#include <string.h>

/* (n, heads, head_dim) as (1, n, heads, head_dim), where the next page begins one position later.
 */
static tensor ragged_as_cache(const tensor *view)
{
    tensor cache = *view;
    cache.rank = 4;
    cache.shape[0] = 1;
    cache.shape[1] = view->shape[0];
    cache.stride[1] = view->stride[0];
    for (int d = 1; d < 3; d++) {
        cache.shape[d + 1] = view->shape[d];
        cache.stride[d + 1] = view->stride[d];
    }
    return cache;
}

op_call cuda_prefill_of_ragged(const op_call *ragged)
{
    const tensor *t = ragged->tensors;
    op_call call = *ragged;
    memset(call.tensors, 0, sizeof call.tensors);
    call.tensors[PAGED_PREFILL_Q] = t[RAGGED_PREFILL_Q];
    call.tensors[PAGED_PREFILL_K_CACHE] = ragged_as_cache(&t[RAGGED_PREFILL_K]);
    call.tensors[PAGED_PREFILL_V_CACHE] = ragged_as_cache(&t[RAGGED_PREFILL_V]);
    call.tensors[PAGED_PREFILL_QO_INDPTR] = t[RAGGED_PREFILL_QO_INDPTR];
    call.tensors[PAGED_PREFILL_KV_INDPTR] = t[RAGGED_PREFILL_KV_INDPTR];
    call.tensors[PAGED_PREFILL_KV_INDICES] = t[RAGGED_PREFILL_KV_INDPTR];
    call.tensors[PAGED_PREFILL_OUT] = t[RAGGED_PREFILL_OUT];
    call.tensors[PAGED_PREFILL_LSE] = t[RAGGED_PREFILL_LSE];
    call.tensors[PAGED_PREFILL_MASK] = t[RAGGED_PREFILL_MASK];
    call.params[PAGED_PREFILL_SM_SCALE] = ragged->params[RAGGED_PREFILL_SM_SCALE];
    call.params[PAGED_PREFILL_CAUSAL] = ragged->params[RAGGED_PREFILL_CAUSAL];
    call.params[PAGED_PREFILL_WINDOW] = ragged->params[RAGGED_PREFILL_WINDOW];
    call.params[PAGED_PREFILL_SOFT_CAP] = ragged->params[RAGGED_PREFILL_SOFT_CAP];
    return call;
}

static bool by_heads_accepts(const op_call *call)
{
    attention_limits limits = CUDA_PREFILL_LIMITS(call, RAGGED_PREFILL);
    return !cuda_is_limited(&limits) && cuda_attention_by_heads_accepts(call);
}

static bool limited_accepts(const op_call *call)
{
    attention_limits limits = CUDA_PREFILL_LIMITS(call, RAGGED_PREFILL);
    return cuda_is_limited(&limits) && cuda_attention_by_heads_accepts(call);
}

static qp_status launch_limited(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                                const cuda_forms *forms, qp_error *error)
{
    attention_limits limits = CUDA_PREFILL_LIMITS(call, RAGGED_PREFILL);
    (void)forms;
    return cuda_launch_limited(ops, kernel, call, &limits, error);
}

static bool accepts(const op_call *call)
{
    op_call paged = cuda_prefill_of_ragged(call);
    return cuda_prefill_accepts(&paged);
}

static bool pays(const cuda_ops *ops, const op_call *call)
{
    op_call paged = cuda_prefill_of_ragged(call);
    return cuda_prefill_pays(ops, &paged);
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    op_call paged = cuda_prefill_of_ragged(call);
    return cuda_prefill(ops, kernel, &paged, forms, error);
}

const cuda_kernel ragged_prefill_cuda[] = {
    {CUDA_UNITS(RAGGED_PREFILL, "cuda_ops", ragged_prefill, CUDA_ATTENTION_THREADS, 1,
                by_heads_accepts),
     .early = true},
    {CUDA_LIMITED_UNITS(RAGGED_PREFILL, ragged_prefill, limited_accepts, launch_limited)},
    {CUDA_ROW(RAGGED_PREFILL, "cuda_tiles"), .accepts = accepts, .pays = pays, .launch = launch,
     .aligned = true, .tolerances = cuda_attention_tolerances},
    {0},
};
