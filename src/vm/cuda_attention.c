/* Attention on the tensor cores: see cuda_attention.h. */
#include "vm/cuda_attention.h"

#include "base/checked.h"
#include "op/paged_decode/paged_decode.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/ragged_prefill/ragged_prefill.h"
#include "vm/cuda_linear.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    FEW_TOKENS = 8,      /* of which each head takes a block of its own */
    GROUP_THREADS = 128, /* warps that wgmma needs */
    EARLY_BLOCKS = 2,    /* a multiprocessor, at least, to be launched early: blocks that come so go
                          * where there is room, which is no even deal of a few, unless each needs
                          * a multiprocessor for itself */
};

/* Mostly from rounding F32 queries to the cache's type; lse in the same units as out. */
const op_tolerance cuda_prefill_tolerances[] = {
    {DTYPE_F32, 1e-2, 5e-2}, {DTYPE_F16, 1e-2, 5e-2}, {DTYPE_BF16, 1e-2, 5e-2}, {0}};
const op_tolerance cuda_decode_tolerances[] = {
    {DTYPE_F32, 1e-2, 5e-2}, {DTYPE_F16, 1e-2, 5e-2}, {DTYPE_BF16, 1e-2, 5e-2}, {0}};

static bool rows_are_aligned(const tensor *view, int64_t bytes)
{
    bool aligned = (uintptr_t)view->data % (uintptr_t)bytes == 0;
    for (int d = 0; d < view->rank - 1; d++)
        aligned = aligned && view->stride[d] % bytes == 0;
    return aligned;
}

static bool is_cache(const tensor *cache)
{
    int64_t page_bytes = cache->shape[1] * cache->stride[1]; /* 32 bits in the kernels */
    return (cache->type == DTYPE_F16 || cache->type == DTYPE_BF16) && cache->shape[1] > 0 &&
           cache->shape[1] % 16 == 0 && cache->stride[1] >= 0 && page_bytes <= UINT32_MAX &&
           rows_are_aligned(cache, 16);
}

static bool accepts(const tensor *q, const tensor *k, const tensor *v, const tensor *out,
                    const tensor *lse)
{
    bool types = (q->type == DTYPE_F32 || q->type == k->type) && v->type == k->type &&
                 (out->type == DTYPE_F32 || out->type == DTYPE_F16 || out->type == DTYPE_BF16) &&
                 (!lse->rank || lse->type == DTYPE_F32);
    bool near = q->stride[0] == (int32_t)q->stride[0] && q->stride[1] == (int32_t)q->stride[1];
    return types && near && (q->shape[2] == 64 || q->shape[2] == 128) && is_cache(k) &&
           is_cache(v) && rows_are_aligned(q, 16) && rows_are_aligned(out, 8);
}

bool cuda_prefill_accepts(const op_call *call)
{
    const tensor *t = call->tensors;
    return accepts(&t[PAGED_PREFILL_Q], &t[PAGED_PREFILL_K_CACHE], &t[PAGED_PREFILL_V_CACHE],
                   &t[PAGED_PREFILL_OUT], &t[PAGED_PREFILL_LSE]);
}

bool cuda_prefill_pays(const op_call *call)
{
    return call->tensors[PAGED_PREFILL_Q].shape[0] > FEW_TOKENS;
}

bool cuda_prefill_mma_pays(const op_call *call)
{
    (void)call;
    return false;
}

static paged_strides strides_of_cache(const tensor *cache)
{
    return (paged_strides){cache->stride[0], cache->stride[1], cache->stride[2]};
}

static row_strides strides_of_rows(const tensor *view)
{
    return (row_strides){view->stride[0], view->stride[1]};
}

/* Tensors that both kinds of attention have, and the usual scale where `scale` is 0. */
typedef struct paged_tensors {
    const tensor *q, *k, *v, *out, *lse, *kv_indptr, *kv_indices, *kv_last_page_len;
} paged_tensors;

static paged_attention arguments_of(const op_call *call, paged_tensors t, double scale)
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

#define PAGED_TENSORS(call, OP)                                                                    \
    ((paged_tensors){&(call)->tensors[OP##_Q], &(call)->tensors[OP##_K_CACHE],                     \
                     &(call)->tensors[OP##_V_CACHE], &(call)->tensors[OP##_OUT],                   \
                     &(call)->tensors[OP##_LSE], &(call)->tensors[OP##_KV_INDPTR],                 \
                     &(call)->tensors[OP##_KV_INDICES], &(call)->tensors[OP##_KV_LAST_PAGE_LEN]})

paged_attention cuda_prefill_arguments(const op_call *call)
{
    paged_attention a = arguments_of(call, PAGED_TENSORS(call, PAGED_PREFILL),
                                     call->params[PAGED_PREFILL_SM_SCALE]);
    const tensor *qo_indptr = &call->tensors[PAGED_PREFILL_QO_INDPTR];
    a.qo_indptr = qo_indptr->data;
    a.n_sequences = (int32_t)(qo_indptr->shape[0] - 1);
    a.causal = call->params[PAGED_PREFILL_CAUSAL] != 0;
    return a;
}

/* Blocks that hold the tiles of any cut of the tokens into sequences. */
static int64_t blocks_of(const op_call *call, int rows)
{
    int64_t n_tokens = call->tensors[PAGED_PREFILL_Q].shape[0],
            n_heads = call->tensors[PAGED_PREFILL_Q].shape[1],
            n_kv_heads = call->tensors[PAGED_PREFILL_K_CACHE].shape[2],
            n_sequences = call->tensors[PAGED_PREFILL_QO_INDPTR].shape[0] - 1;
    if (n_sequences > n_tokens) n_sequences = n_tokens; /* the others have no tile */
    return n_kv_heads * (n_tokens * (n_heads / n_kv_heads) / rows + n_sequences);
}

cuda_prefill_launch cuda_prefill_plan(const op_call *call, bool has_wgmma, int n_multiprocessors)
{
    bool bf16 = call->tensors[PAGED_PREFILL_K_CACHE].type == DTYPE_BF16;
    int head_dim = (int)call->tensors[PAGED_PREFILL_Q].shape[2], groups = 2;
    /* Three groups of rows do more with what has come; two fill the GPU with less. */
    if (head_dim == 128 && blocks_of(call, 192) >= 2 * n_multiprocessors) groups = 3;
    int copying = head_dim == 128 ? GROUP_THREADS : 0;
    cuda_prefill_launch launch = {.rows = has_wgmma ? groups * 64 : PAGED_PREFILL_MMA_ROWS,
                                  .threads = has_wgmma ? groups * GROUP_THREADS + copying
                                                       : PAGED_PREFILL_MMA_THREADS,
                                  .helper = CUDA_HELPER_PREFILL + (has_wgmma ? groups - 1 : 0) * 4 +
                                            (head_dim == 128) * 2 + bf16};
    launch.shared_bytes = has_wgmma && head_dim == 128
                              ? PAGED_PREFILL_SPLIT_SHARED(launch.rows, head_dim)
                              : PAGED_PREFILL_SHARED(launch.rows, head_dim);
    launch.blocks = (unsigned)blocks_of(call, launch.rows);
    char number[2] = {has_wgmma ? (char)('0' + groups) : 0};
    snprintf(launch.function, sizeof launch.function, "run_paged_prefill_%s%s_%s_%d",
             has_wgmma ? "wgmma" : "mma", number, bf16 ? "BF16" : "F16", head_dim);
    return launch;
}

/* The output goes to where the product behind it looks for it, in BF16, and nowhere else: nobody
 * but that product reads it. */
static void leave_narrowed(const cuda_ops *ops, const op_call *call, paged_attention *arguments)
{
    const int64_t *shape = call->tensors[PAGED_PREFILL_Q].shape;
    arguments->out = (void *)(uintptr_t)cuda_linear_narrowed(ops);
    arguments->out_type = DTYPE_BF16;
    arguments->out_strides = (row_strides){shape[1] * shape[2] * 2, shape[2] * 2};
}

static qp_status launch_prefill(cuda_ops *ops, const op_call *call, bool has_wgmma, qp_error *error)
{
    paged_attention arguments = cuda_prefill_arguments(call);
    if (ops->narrow_next) leave_narrowed(ops, call, &arguments);
    cuda_prefill_launch launch = cuda_prefill_plan(call, has_wgmma, ops->device->n_multiprocessors);
    cuda_function function;
    TRY(cuda_ops_find_helper_of(ops, launch.helper, "attention_paged", launch.function,
                                launch.shared_bytes, &function, error));
    if (launch.blocks == 0) return QP_OK;
    const cuda_launch how = {.grid = {launch.blocks, 1, 1},
                             .block = {(unsigned)launch.threads, 1, 1},
                             .shared_bytes = (unsigned)launch.shared_bytes};
    bool alone = has_wgmma && call->tensors[PAGED_PREFILL_Q].shape[2] == 128;
    bool early = alone || launch.blocks >= EARLY_BLOCKS * (unsigned)ops->device->n_multiprocessors;
    return cuda_ops_launch_with(ops, function, launch.function, how, early ? 1 : 0,
                                (void *[]){&arguments}, error);
}

qp_status cuda_prefill(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                       qp_error *error)
{
    (void)kernel;
    return launch_prefill(ops, call, cuda_device_is_hopper(ops->device), error);
}

qp_status cuda_prefill_mma(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                           qp_error *error)
{
    (void)kernel;
    return launch_prefill(ops, call, false, error);
}

/* ---- ragged keys and values ---------------------------------------------------------------- */

/* (n, heads, head_dim) as (1, n, heads, head_dim), n a multiple of 16, where the next page begins a
 * position further. */
static tensor ragged_as_cache(const tensor *view)
{
    tensor cache = *view;
    cache.rank = 4;
    cache.shape[0] = 1;
    cache.shape[1] = (int64_t)round_up((size_t)view->shape[0], 16);
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
    call.params[PAGED_PREFILL_SM_SCALE] = ragged->params[RAGGED_PREFILL_SM_SCALE];
    call.params[PAGED_PREFILL_CAUSAL] = ragged->params[RAGGED_PREFILL_CAUSAL];
    return call;
}

bool cuda_ragged_accepts(const op_call *call)
{
    op_call paged = cuda_prefill_of_ragged(call);
    return cuda_prefill_accepts(&paged);
}

bool cuda_ragged_pays(const op_call *call)
{
    op_call paged = cuda_prefill_of_ragged(call);
    return cuda_prefill_pays(&paged);
}

qp_status cuda_ragged(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                      qp_error *error)
{
    op_call paged = cuda_prefill_of_ragged(call);
    return cuda_prefill(ops, kernel, &paged, error);
}

/* ---- decoding many sequences --------------------------------------------------------------- */

bool cuda_decode_accepts(const op_call *call)
{
    const tensor *t = call->tensors, *q = &t[PAGED_DECODE_Q], *k = &t[PAGED_DECODE_K_CACHE];
    return accepts(q, k, &t[PAGED_DECODE_V_CACHE], &t[PAGED_DECODE_OUT], &t[PAGED_DECODE_LSE]) &&
           q->shape[1] / k->shape[2] <= PAGED_DECODE_MAX_GROUP &&
           q->shape[0] * k->shape[2] <= CUDA_COUNTERS && q->shape[0] < 65536;
}

bool cuda_decode_pays(const op_call *call)
{
    return call->tensors[PAGED_DECODE_Q].shape[0] > FEW_TOKENS;
}

bool cuda_decode_few_pays(const op_call *call)
{
    return !cuda_decode_pays(call);
}

op_call cuda_decode_of_prefill(const op_call *prefill)
{
    static const int from[] = {
        [PAGED_DECODE_Q] = PAGED_PREFILL_Q,
        [PAGED_DECODE_K_CACHE] = PAGED_PREFILL_K_CACHE,
        [PAGED_DECODE_V_CACHE] = PAGED_PREFILL_V_CACHE,
        [PAGED_DECODE_KV_INDPTR] = PAGED_PREFILL_KV_INDPTR,
        [PAGED_DECODE_KV_INDICES] = PAGED_PREFILL_KV_INDICES,
        [PAGED_DECODE_KV_LAST_PAGE_LEN] = PAGED_PREFILL_KV_LAST_PAGE_LEN,
        [PAGED_DECODE_OUT] = PAGED_PREFILL_OUT,
        [PAGED_DECODE_LSE] = PAGED_PREFILL_LSE,
    };
    op_call call = {.begin = prefill->begin, .end = prefill->end};
    for (int i = 0; i <= PAGED_DECODE_LSE; i++)
        call.tensors[i] = prefill->tensors[from[i]];
    call.params[PAGED_DECODE_SM_SCALE] = prefill->params[PAGED_PREFILL_SM_SCALE];
    return call;
}

/* Bytes of the output in BF16, where a product may look for it; the parts lie behind. */
static size_t narrowed_bytes(const op_call *call)
{
    const int64_t *shape = call->tensors[PAGED_DECODE_Q].shape;
    return round_up((size_t)(shape[0] * shape[1] * shape[2]) * 2, CUDA_ALIGNMENT);
}

int64_t cuda_decode_chunks(int64_t longest)
{
    return PAGED_DECODE_CHUNKS(longest, PAGED_CHUNK);
}

static size_t workspace_of(const op_call *call, int64_t parts)
{
    const int64_t *shape = call->tensors[PAGED_DECODE_Q].shape;
    return narrowed_bytes(call) + (size_t)(parts * shape[1] * (shape[2] + 2)) * sizeof(float);
}

size_t cuda_decode_workspace_of(const op_call *call, int64_t longest)
{
    int64_t chunks = cuda_decode_chunks(longest);
    return workspace_of(call, chunks > 1 ? call->tensors[PAGED_DECODE_Q].shape[0] * chunks : 0);
}

/* At least as many parts as sequences of any lengths have that share the pages: a sequence's last
 * part is the only one that is smaller than the others, and alone where it is less than half. */
static int64_t most_parts(const op_call *call, bool fine)
{
    int64_t n = call->tensors[PAGED_DECODE_Q].shape[0],
            positions = call->tensors[PAGED_DECODE_KV_INDICES].shape[0] *
                        call->tensors[PAGED_DECODE_K_CACHE].shape[1],
            parts = n + positions / PAGED_CHUNK;
    return fine ? parts + n * PAGED_FINE_PARTS : parts;
}

size_t cuda_decode_workspace(const op_call *call)
{
    return workspace_of(call, most_parts(call, false));
}

size_t cuda_decode_few_workspace(const op_call *call)
{
    return workspace_of(call, most_parts(call, true));
}

static paged_attention decode_arguments(const cuda_ops *ops, const op_call *call)
{
    paged_attention a =
        arguments_of(call, PAGED_TENSORS(call, PAGED_DECODE), call->params[PAGED_DECODE_SM_SCALE]);
    cuda_address narrowed = cuda_linear_narrowed(ops);
    a.n_sequences = (int32_t)call->tensors[PAGED_DECODE_Q].shape[0];
    a.narrowed = ops->narrow_next ? (void *)(uintptr_t)narrowed : NULL;
    a.partial = (void *)(uintptr_t)(narrowed + narrowed_bytes(call));
    a.arrived = (void *)(uintptr_t)cuda_ops_counters(ops);
    return a;
}

/* `parts`: of a sequence, or where blocks search of all. */
static qp_status launch_decode(cuda_ops *ops, const op_call *call, paged_attention arguments,
                               int64_t parts, qp_error *error)
{
    const tensor *k = &call->tensors[PAGED_DECODE_K_CACHE];
    bool bf16 = k->type == DTYPE_BF16, wide = k->shape[3] == 128;
    cuda_function function;
    char name[48];
    snprintf(name, sizeof name, "run_paged_decode_batch_%s_%d", bf16 ? "BF16" : "F16",
             wide ? 128 : 64);
    TRY(cuda_ops_find_helper_of(ops, CUDA_HELPER_DECODE + wide * 2 + bf16, "attention_paged", name,
                                0, &function, error));
    if (arguments.n_sequences == 0) return QP_OK;
    cuda_launch how = {
        .grid = {(unsigned)arguments.n_kv_heads, (unsigned)arguments.n_sequences, (unsigned)parts},
        .block = {PAGED_DECODE_WARPS * 32, 1, 1}};
    if (arguments.search) how.grid[1] = (unsigned)parts, how.grid[2] = 1;
    int64_t blocks = (int64_t)how.grid[0] * how.grid[1] * how.grid[2];
    bool early = blocks >= EARLY_BLOCKS * (int64_t)ops->device->n_multiprocessors;
    return cuda_ops_launch_with(ops, function, name, how, early ? 1 : 0, (void *[]){&arguments},
                                error);
}

qp_status cuda_decode(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                      qp_error *error)
{
    (void)kernel;
    paged_attention arguments = decode_arguments(ops, call);
    arguments.search = ops->longest == 0;
    int64_t parts = ops->longest ? cuda_decode_chunks(ops->longest) : most_parts(call, false);
    return launch_decode(ops, call, arguments, parts, error);
}

qp_status cuda_decode_few(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error)
{
    (void)kernel;
    paged_attention arguments = decode_arguments(ops, call);
    arguments.search = 1;
    arguments.fine = PAGED_FINE_PARTS;
    return launch_decode(ops, call, arguments, most_parts(call, true), error);
}
