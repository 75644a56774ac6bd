/* Operators on rows on the GPU: see cuda_rows.h. */
#include "vm/cuda_rows.h"

#include "op/add_rms_norm/add_rms_norm.h"
#include "op/device_rows.h"
#include "op/kv_append/kv_append.h"
#include "op/rms_norm/rms_norm.h"
#include "op/rope/rope.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"
#include "vm/cuda_linear.h"

enum {
    EIGHT = 8, /* elements of a vector */
    WARP = 32,
    ELEMENTS = 2048, /* of silu_and_mul a block, by elements */
    THREADS = 256,
    SMALL_ROWS = 4, /* a multiprocessor: so many that norms take small blocks */
};

/* Of a vector: that one row. */
static device_rows rows_of(const tensor *view)
{
    return (device_rows){view->data, view->rank > 1 ? view->stride[0] : 0, view->type};
}

/* Where a product looks for rows of n elements in BF16, if it is to find them there. */
static device_rows narrowed_rows(const cuda_ops *ops, int64_t n)
{
    char *at = (char *)(uintptr_t)cuda_linear_narrowed(ops);
    return ops->narrow_next ? (device_rows){at, n * 2, DTYPE_BF16} : (device_rows){0};
}

/* Whether eight elements from a multiple of 8 on lie on a multiple of 16 bytes. */
static bool on_vectors(const void *data, int64_t stride)
{
    return (((uintptr_t)data | (uintptr_t)stride) & 15) == 0;
}

static bool rows_on_vectors(device_rows rows)
{
    return on_vectors(rows.data, rows.stride);
}

/* Whole warps for so many threads, at most `most`. */
static unsigned warps_of(int64_t threads, unsigned most)
{
    threads = (threads + WARP - 1) / WARP * WARP;
    return threads < most ? (unsigned)threads : most;
}

/* ---- norms --------------------------------------------------------------------------------- */

bool cuda_norm_accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->params[RMS_NORM_ROUND_FIRST] == 0;
}

norm_rows cuda_norm_rows(const op_call *call)
{
    const tensor *t = call->tensors;
    return (norm_rows){.x = rows_of(&t[RMS_NORM_X]),
                       .weight = rows_of(&t[RMS_NORM_WEIGHT]),
                       .out = rows_of(&t[RMS_NORM_OUT]),
                       .begin = call->begin,
                       .n = (int32_t)t[RMS_NORM_X].shape[1],
                       .eps = (float)call->params[RMS_NORM_EPS]};
}

norm_rows cuda_add_norm_rows(const op_call *call)
{
    const tensor *t = call->tensors;
    return (norm_rows){.x = rows_of(&t[ADD_RMS_NORM_X]),
                       .residual = rows_of(&t[ADD_RMS_NORM_RESIDUAL]),
                       .weight = rows_of(&t[ADD_RMS_NORM_WEIGHT]),
                       .out = rows_of(&t[ADD_RMS_NORM_X]),
                       .begin = call->begin,
                       .n = (int32_t)t[ADD_RMS_NORM_X].shape[1],
                       .eps = (float)call->params[ADD_RMS_NORM_EPS]};
}

bool cuda_norm_by_eights(const norm_rows *rows)
{
    return rows->n % EIGHT == 0 && rows_on_vectors(rows->x) && rows_on_vectors(rows->residual) &&
           rows_on_vectors(rows->out) && rows_on_vectors(rows->weight);
}

bool cuda_norm_is_small(const norm_rows *rows, int64_t n_rows, int n_multiprocessors)
{
    return rows->n > EIGHT * NORM_SMALL_THREADS &&
           rows->n <= NORM_LONG_EIGHTS * EIGHT * NORM_SMALL_THREADS &&
           n_rows >= (int64_t)SMALL_ROWS * n_multiprocessors;
}

static qp_status launch_norm(cuda_ops *ops, const cuda_kernel *kernel, norm_rows rows,
                             int64_t n_rows, qp_error *error)
{
    static const char *const small[] = {"run_rms_norm_short", "run_rms_norm_long",
                                        "run_add_rms_norm_short", "run_add_rms_norm_long"};
    cuda_function function = ops->functions[kernel - cuda_kernels];
    const char *name = kernel->function;
    unsigned threads = warps_of((rows.n + EIGHT - 1) / EIGHT, NORM_THREADS);
    bool add = rows.residual.data;
    rows.narrowed = narrowed_rows(ops, rows.n);
    if (!cuda_norm_by_eights(&rows)) {
        name = add ? "run_add_rms_norm" : "run_rms_norm";
        TRY(cuda_ops_find_helper(ops, add ? CUDA_HELPER_ADD_NORM : CUDA_HELPER_NORM, name,
                                 &function, error));
    } else if (cuda_norm_is_small(&rows, n_rows, ops->device->n_multiprocessors)) {
        int kind = 2 * add + (rows.n > NORM_SHORT_EIGHTS * EIGHT * NORM_SMALL_THREADS);
        threads = NORM_SMALL_THREADS;
        name = small[kind];
        TRY(cuda_ops_find_helper(ops, CUDA_HELPER_SMALL_NORM + kind, name, &function, error));
    }
    if (ops->narrow_next && ops->narrow_alone) rows.out.data = NULL;
    return cuda_ops_launch_early(ops, function, name, (unsigned)n_rows, 1, threads,
                                 (void *[]){&rows}, error);
}

qp_status cuda_norm(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call, qp_error *error)
{
    return launch_norm(ops, kernel, cuda_norm_rows(call), call->end - call->begin, error);
}

qp_status cuda_add_norm(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        qp_error *error)
{
    return launch_norm(ops, kernel, cuda_add_norm_rows(call), call->end - call->begin, error);
}

/* ---- by eights or one by one --------------------------------------------------------------- */

/* A kernel that takes the call as it is. */
static qp_status launch_plainly(cuda_ops *ops, int helper, const char *name, const op_call *call,
                                int64_t units, qp_error *error)
{
    op_call own = *call;
    cuda_function function;
    int64_t blocks = (call->end - call->begin + units - 1) / units;
    TRY(cuda_ops_find_helper(ops, helper, name, &function, error));
    return cuda_ops_launch_early(ops, function, name, (unsigned)blocks, 1, THREADS,
                                 (void *[]){&own, &units}, error);
}

qp_status cuda_silu(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call, qp_error *error)
{
    const tensor *x = &call->tensors[SILU_AND_MUL_X], *out = &call->tensors[SILU_AND_MUL_OUT];
    int64_t n = out->shape[1], units = (int64_t)SILU_THREADS * SILU_VECTORS * EIGHT;
    silu_rows rows = {.x = rows_of(x),
                      .out = rows_of(out),
                      .narrowed = narrowed_rows(ops, n),
                      .begin = call->begin,
                      .end = call->end,
                      .n = (int32_t)n};
    bool narrows = rows.narrowed.data;
    if ((n | call->begin | call->end) % EIGHT != 0 || !rows_on_vectors(rows.x) ||
        !rows_on_vectors(rows.out)) {
        ops->narrowed.rank = 0; /* the product narrows it itself */
        return launch_plainly(ops, CUDA_HELPER_SILU, "run_silu_and_mul", call, ELEMENTS, error);
    }
    if (narrows) rows.out.data = NULL;
    return cuda_ops_launch_early(ops, ops->functions[kernel - cuda_kernels], kernel->function,
                                 (unsigned)((call->end - call->begin + units - 1) / units), 1,
                                 SILU_THREADS, (void *[]){&rows}, error);
}

rope_rows cuda_rope_rows(const op_call *call)
{
    const tensor *q = &call->tensors[ROPE_Q], *k = &call->tensors[ROPE_K];
    const tensor *table = &call->tensors[ROPE_COS_SIN];
    return (rope_rows){.q = rows_of(q),
                       .k = rows_of(k),
                       .q_head = q->stride[1],
                       .k_head = k->stride[1],
                       .positions = call->tensors[ROPE_POSITIONS].data,
                       .table = table->data,
                       .table_stride = table->stride[0],
                       .begin = call->begin,
                       .half = (int32_t)(table->shape[1] / 2),
                       .n_q_heads = (int32_t)q->shape[1],
                       .n_heads = (int32_t)(q->shape[1] + k->shape[1]),
                       .interleaved = call->params[ROPE_INTERLEAVED] != 0};
}

/* Threads that turn a token by eights, 0 where rows do not lie so. */
static unsigned rope_threads(const rope_rows *rows)
{
    int per_head = rows->half / EIGHT; /* threads; a power of two divides any number of warps */
    bool vectors = rows_on_vectors(rows->q) && rows_on_vectors(rows->k) &&
                   (rows->q_head | rows->k_head) % 16 == 0 &&
                   on_vectors(rows->table, rows->table_stride);
    if (!vectors || rows->half % EIGHT != 0 || per_head == 0 || per_head > WARP ||
        WARP % per_head != 0)
        return 0;
    return warps_of((int64_t)(rows->n_heads + ROPE_HEADS - 1) / ROPE_HEADS * per_head,
                    ROPE_THREADS);
}

qp_status cuda_rope(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call, qp_error *error)
{
    rope_rows rows = cuda_rope_rows(call);
    unsigned threads = rope_threads(&rows);
    if (threads == 0) return launch_plainly(ops, CUDA_HELPER_ROPE, "run_rope", call, 1, error);
    return cuda_ops_launch_early(ops, ops->functions[kernel - cuda_kernels], kernel->function,
                                 (unsigned)(call->end - call->begin), 1, threads, (void *[]){&rows},
                                 error);
}

append_rows cuda_append_rows(const op_call *call)
{
    const tensor *t = call->tensors, *v = &t[KV_APPEND_V];
    const tensor *k_cache = &t[KV_APPEND_K_CACHE], *v_cache = &t[KV_APPEND_V_CACHE];
    return (append_rows){.v = rows_of(v),
                         .v_head = v->stride[1],
                         .k_cache = rows_of(k_cache),
                         .v_cache = rows_of(v_cache),
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
    return rows_on_vectors(append->k_cache) && rows_on_vectors(append->v_cache) &&
           strides % 16 == 0;
}

/* Whether the whole of k turns, in float32, and everything lies on vectors. */
static bool appends_by_eights(const rope_rows *rope, const append_rows *append)
{
    return rope->k.type == DTYPE_F32 && 2 * rope->half == append->head_dim &&
           rows_on_vectors(append->v) && append->v_head % 16 == 0 && cuda_caches_on_vectors(append);
}

qp_status cuda_rope_append(cuda_ops *ops, const op_call *rope, const op_call *append,
                           qp_error *error)
{
    rope_rows rows = cuda_rope_rows(rope);
    append_rows behind = cuda_append_rows(append);
    op_call first = *rope, second = *append;
    unsigned threads = rope_threads(&rows), blocks = (unsigned)(rope->end - rope->begin);
    bool vectors = threads > 0 && appends_by_eights(&rows, &behind);
    const char *name = vectors ? "run_rope_kv_append_vectors" : "run_rope_kv_append";
    void *of_vectors[] = {&rows, &behind}, *of_pairs[] = {&first, &second};
    cuda_function function;
    TRY(cuda_ops_find_helper(ops,
                             vectors ? CUDA_HELPER_ROPE_APPEND_VECTORS : CUDA_HELPER_ROPE_APPEND,
                             name, &function, error));
    ops->narrowed.rank = 0;
    return cuda_ops_launch_early(ops, function, name, blocks, 1, vectors ? threads : THREADS,
                                 vectors ? of_vectors : of_pairs, error);
}
