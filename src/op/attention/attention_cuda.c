/* Attention on the tensor cores: what the operators' launchers share. See attention_cuda.h. */
#include "op/attention/attention_cuda.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The error comes mostly from rounding F32 queries to the cache's type; lse has the same units as
 * out. */
const op_tolerance cuda_attention_tolerances[] = {
    {DTYPE_F32, 1e-2, 5e-2}, {DTYPE_F16, 1e-2, 5e-2}, {DTYPE_BF16, 1e-2, 5e-2}, {0}};

bool cuda_attention_by_heads_accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->tensors[0].shape[2] <= CUDA_ATTENTION_MAX_HEAD_DIM;
}

/* ---- limits -------------------------------------------------------------------------------- */

attention_limits cuda_attention_limits(double window, double cap, const tensor *mask)
{
    return (attention_limits){.mask = mask && mask->rank ? mask->data : NULL,
                              .window = (int32_t)fmin(window, INT32_MAX),
                              .cap = (float)cap};
}

bool cuda_is_limited(const attention_limits *limits)
{
    return limits->mask || limits->window || limits->cap != 0;
}

void cuda_attention_limit(cuda_start *start)
{
    size_t length = strlen(start->name);
    snprintf(start->name + length, sizeof start->name - length, "_limited");
    start->image = "attention_limited";
}

qp_status cuda_attention_start(cuda_ops *ops, cuda_start *start, const paged_attention *arguments,
                               const attention_limits *limits, qp_error *error)
{
    paged_attention own = *arguments;
    attention_limits of_call = *limits;
    if (!cuda_is_limited(limits))
        return cuda_ops_start(ops, start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own)), error);
    cuda_attention_limit(start);
    return cuda_ops_start(ops, start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(of_call)),
                          error);
}

qp_status cuda_launch_limited(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                              const attention_limits *limits, qp_error *error)
{
    op_call own = *call;
    attention_limits of_call = *limits;
    int64_t units = kernel->units;
    cuda_start start = {.image = kernel->image,
                        .grid = {(unsigned)((call->end - call->begin + units - 1) / units), 1, 1},
                        .threads = (unsigned)kernel->threads,
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "%s", kernel->function);
    return cuda_ops_start(
        ops, &start,
        CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(units), CUDA_ARGUMENT(of_call)), error);
}

/* ---- on the tensor cores -------------------------------------------------------------------- */

static bool rows_are_aligned(const tensor *view, int64_t bytes)
{
    bool aligned = (uintptr_t)view->data % (uintptr_t)bytes == 0;
    for (int d = 0; d < view->rank - 1; d++)
        aligned = aligned && view->stride[d] % bytes == 0;
    return aligned;
}

static bool is_cache(const tensor *cache)
{
    int64_t page_bytes = cache->shape[1] * cache->stride[1]; /* the kernels use 32 bits */
    return (cache->type == DTYPE_F16 || cache->type == DTYPE_BF16 || cache->type == DTYPE_F8) &&
           cache->shape[1] > 0 && cache->shape[1] % 16 == 0 && cache->stride[1] >= 0 &&
           page_bytes <= UINT32_MAX && rows_are_aligned(cache, 16);
}

bool cuda_paged_accepts(const tensor *q, const tensor *k, const tensor *v, const tensor *out,
                        const tensor *lse)
{
    bool floats = q->type == DTYPE_F16 || q->type == DTYPE_BF16;
    bool types = (q->type == DTYPE_F32 || (k->type == DTYPE_F8 ? floats : q->type == k->type)) &&
                 v->type == k->type &&
                 (out->type == DTYPE_F32 || out->type == DTYPE_F16 || out->type == DTYPE_BF16) &&
                 (!lse->rank || lse->type == DTYPE_F32);
    bool near = q->stride[0] == (int32_t)q->stride[0] && q->stride[1] == (int32_t)q->stride[1];
    return types && near && (q->shape[2] == 64 || q->shape[2] == 128) && is_cache(k) &&
           is_cache(v) && rows_are_aligned(q, 16) && rows_are_aligned(out, 8);
}

static paged_strides strides_of_cache(const tensor *cache)
{
    return (paged_strides){cache->stride[0], cache->stride[1], cache->stride[2]};
}

static row_strides strides_of_rows(const tensor *view)
{
    return (row_strides){view->stride[0], view->stride[1]};
}

paged_attention cuda_paged_arguments(const op_call *call, paged_tensors t, double scale)
{
    return (paged_attention){
        .q = t.q->data,
        .k = t.k->data,
        .v = t.v->data,
        .out = t.out->data,
        .lse = t.lse->rank ? t.lse->data : NULL,
        .q_strides = strides_of_rows(t.q),
        .out_strides = strides_of_rows(t.out),
        .lse_strides = t.lse->rank ? strides_of_rows(t.lse) : (row_strides){0},
        .k_strides = strides_of_cache(t.k),
        .v_strides = strides_of_cache(t.v),
        .kv_indptr = t.kv_indptr->data,
        .kv_indices = t.kv_indices->data,
        .kv_last_page_len = t.kv_last_page_len->data,
        .begin = call->begin,
        .end = call->end,
        .sm_scale = (float)(scale != 0 ? scale : 1 / sqrt((double)t.q->shape[2])),
        .n_kv_heads = (int32_t)t.k->shape[2],
        .group = (int32_t)(t.q->shape[1] / t.k->shape[2]),
        .group_inverse = UINT32_MAX / (uint32_t)(t.q->shape[1] / t.k->shape[2]) + 1,
        .page_size = (int32_t)t.k->shape[1],
        .q_type = (int32_t)t.q->type,
        .out_type = (int32_t)t.out->type,
    };
}
