/* rope on the GPU, by itself and with the kv_append of the k that it rotated: by eights where heads
 * are aligned for it, else by pairs. See rows_cuda.h. */
#include "op/kv_append/kv_append.h"
#include "op/rope/rope.h"
#include "op/rows_cuda.h"
#include "op/variants.h"

enum {
    WARP = 32,
    THREADS = 256,
    FEW_TOKENS = 1,        /* per multiprocessor, up to which a thread has one head, */
    MANY_TOKENS = 8,       /* and in BF16 from which it has two */
    MOST_TOKENS = 1 << 16, /* whose threads have numbers of 32 bits */
};

rope_rows cuda_rope_rows(const op_call *call)
{
    const tensor *q = &call->tensors[ROPE_Q], *k = &call->tensors[ROPE_K];
    const tensor *table = &call->tensors[ROPE_COS_SIN];
    return (rope_rows){.q = cuda_rows_of(q),
                       .k = cuda_rows_of(k),
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

/* Threads that rotate a token by eights, `heads` heads each; 0 where rows are not aligned. */
static int64_t rope_threads(const rope_rows *rows, int heads)
{
    int per_head =
        rows->half / CUDA_ROWS_EIGHT; /* threads; a power of two divides any number of warps */
    bool vectors = cuda_rows_on_vectors(rows->q) && cuda_rows_on_vectors(rows->k) &&
                   (rows->q_head | rows->k_head) % 16 == 0 &&
                   cuda_on_vectors(rows->table, rows->table_stride);
    if (!vectors || rows->half % CUDA_ROWS_EIGHT != 0 || per_head == 0 || per_head > WARP ||
        WARP % per_head != 0)
        return 0;
    return cuda_warps_of((int64_t)(rows->n_heads + heads - 1) / heads * per_head,
                         heads == 1 ? ROPE_FEW_THREADS : ROPE_THREADS);
}

/* More tokens than `few`, in BF16: with one head a thread, or two if there are many. */
static qp_status launch_bf16(cuda_ops *ops, const rope_rows *rows, int64_t n_tokens,
                             qp_error *error)
{
    rope_rows own = *rows;
    uint32_t tokens = (uint32_t)n_tokens;
    int64_t heads = n_tokens >= MANY_TOKENS * (int64_t)ops->device->n_multiprocessors ? 2 : 1;
    int64_t threads =
        n_tokens * ((rows->n_heads + heads - 1) / heads) * (rows->half / CUDA_ROWS_EIGHT);
    return cuda_ops_start_early(ops, heads == 1 ? "run_rope_bf16_1" : "run_rope_bf16_2",
                                (threads + ROPE_THREADS - 1) / ROPE_THREADS, 1, ROPE_THREADS,
                                CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(tokens)), error);
}

static qp_status launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                        const cuda_forms *forms, qp_error *error)
{
    rope_rows rows = cuda_rope_rows(call);
    int64_t n_tokens = call->end - call->begin;
    bool few = n_tokens <= FEW_TOKENS * (int64_t)ops->device->n_multiprocessors;
    bool bf16 = rows.q.type == DTYPE_BF16 && rows.k.type == DTYPE_BF16;
    int64_t threads = rope_threads(&rows, few ? 1 : ROPE_HEADS);
    (void)kernel, (void)forms;
    if (threads == 0) return cuda_launch_plainly(ops, "run_rope", call, 1, error);
    if (!few && bf16 && n_tokens < MOST_TOKENS) return launch_bf16(ops, &rows, n_tokens, error);
    return cuda_ops_start_early(ops, few ? "run_rope_few" : "run_rope_vectors", n_tokens, 1,
                                threads, CUDA_ARGUMENTS(CUDA_ARGUMENT(rows)), error);
}

/* ---- with kv_append ------------------------------------------------------------------------ */

/* Whether the whole of k is rotated, in float32, and everything is aligned to vectors. */
static bool appends_by_eights(const rope_rows *rope, const append_rows *append)
{
    return rope->k.type == DTYPE_F32 && 2 * rope->half == append->head_dim &&
           cuda_rows_on_vectors(append->v) && append->v_head % 16 == 0 &&
           cuda_caches_on_vectors(append);
}

bool cuda_rope_is_appended(const cuda_ops *ops, const op_call *calls)
{
    const op_call *rope = &calls[0], *append = &calls[1];
    (void)ops;
    return append->tensors[KV_APPEND_K].data == rope->tensors[ROPE_K].data &&
           append->end == rope->end && op_call_has_no_f64(rope) && op_call_has_no_f64(append);
}

static qp_status launch_with_append(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                    qp_error *error)
{
    rope_rows rope = cuda_rope_rows(&calls[0]);
    append_rows append = cuda_append_rows(&calls[1]);
    int64_t threads = rope_threads(&rope, ROPE_HEADS), blocks = calls[0].end - calls[0].begin;
    (void)forms;
    if (threads > 0 && appends_by_eights(&rope, &append))
        return cuda_ops_start_early(ops, "run_rope_kv_append_vectors", blocks, 1, threads,
                                    CUDA_ARGUMENTS(CUDA_ARGUMENT(rope), CUDA_ARGUMENT(append)),
                                    error);
    op_call first = calls[0], second = calls[1];
    return cuda_ops_start_early(ops, "run_rope_kv_append", blocks, 1, THREADS,
                                CUDA_ARGUMENTS(CUDA_ARGUMENT(first), CUDA_ARGUMENT(second)), error);
}

static const cuda_fusion fusions[] = {
    {.name = "kv_append",
     .with = {OP_KV_APPEND},
     .n_with = 1,
     .accepts = cuda_rope_is_appended,
     .launch = launch_with_append},
    {0},
};

const cuda_kernel rope_cuda[] = {
    {CUDA_ROW(ROPE, "cuda"), .accepts = op_call_has_no_f64, .launch = launch, .fusions = fusions},
    {0},
};
