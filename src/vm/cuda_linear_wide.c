/* Products of many rows with what stands behind them: see cuda_linear_wide.h and linear_wide.cuh.
 */
#include "vm/cuda_linear_wide.h"

#include "op/kv_append/kv_append.h"
#include "op/linear/linear.h"
#include "op/rope/rope.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "vm/cuda_linear.h"
#include "vm/cuda_linear_stream.h"
#include "vm/cuda_rows.h"

/* A cluster's rows of x, and half of a tile's features. */
enum { CLUSTER_ROWS = LINEAR_WIDE_ROWS * LINEAR_WIDE_BLOCKS, HALF_TILE = LINEAR_WIDE_FEATURES / 2 };

static int64_t tiles_of(int64_t rows, int64_t features)
{
    return (rows + CLUSTER_ROWS - 1) / CLUSTER_ROWS *
           ((features + LINEAR_WIDE_FEATURES - 1) / LINEAR_WIDE_FEATURES);
}

bool cuda_linear_wide_fills(int64_t rows, int64_t features, int n_multiprocessors)
{
    int64_t clusters = n_multiprocessors / LINEAR_WIDE_BLOCKS;
    int64_t turns = (tiles_of(rows, features) + clusters - 1) / clusters;
    int64_t room = turns * clusters * CLUSTER_ROWS * LINEAR_WIDE_FEATURES;
    return 10 * rows * features >= 7 * room;
}

/* Whether the weight, whole and in BF16 as stored, has nothing added to its product. */
static bool multiplies(const cuda_ops *ops, const op_call *call)
{
    const tensor *t = call->tensors, *out = &t[LINEAR_OUT];
    return cuda_device_is_hopper(ops->device) && cuda_linear_stream_accepts(call) &&
           call->begin == 0 && call->end == t[LINEAR_WEIGHT].shape[0] && !t[LINEAR_BIAS].rank &&
           !t[LINEAR_RESIDUAL].rank && (uintptr_t)out->data % 16 == 0 &&
           out->stride[0] == out->shape[1] * 4 &&
           cuda_linear_wide_fills(out->shape[0], out->shape[1], ops->device->n_multiprocessors);
}

/* Puts a product into the stream, with whatever `arguments`, whose first is to be `run`, say. */
static qp_status launch(cuda_ops *ops, const op_call *call, int kind, const char *name,
                        linear_wide *run, void **arguments, qp_error *error)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    cuda_function function;
    cuda_address at;
    TRY(cuda_linear_narrow_x(ops, x, &at, error));
    TRY(cuda_stream_map_rows(ops, at, x->shape[0], x->shape[1], x->shape[1] * 2, LINEAR_WIDE_ROWS,
                             run->x_map, error));
    TRY(cuda_stream_map_rows(ops, (cuda_address)(uintptr_t)weight->data, weight->shape[0],
                             weight->shape[1], weight->stride[0], HALF_TILE, run->weight_map,
                             error));
    TRY(cuda_ops_find_helper_of(ops, CUDA_HELPER_WIDE + kind, "linear_wide", name,
                                LINEAR_WIDE_SHARED, &function, error));
    run->n_rows = (int32_t)x->shape[0];
    run->n_steps = (int32_t)((x->shape[1] + LINEAR_WIDE_DEPTH - 1) / LINEAR_WIDE_DEPTH);
    run->row_tiles = (int32_t)((x->shape[0] + CLUSTER_ROWS - 1) / CLUSTER_ROWS);
    run->tiles = (int32_t)tiles_of(x->shape[0], weight->shape[0]);
    int clusters = ops->device->n_multiprocessors / LINEAR_WIDE_BLOCKS;
    if (clusters > run->tiles) clusters = run->tiles;
    const cuda_launch how = {.grid = {(unsigned)(clusters * LINEAR_WIDE_BLOCKS), 1, 1},
                             .block = {LINEAR_WIDE_THREADS, 1, 1},
                             .shared_bytes = LINEAR_WIDE_SHARED};
    return cuda_ops_launch_with(ops, function, name, how, LINEAR_WIDE_BLOCKS, arguments, error);
}

/* ---- silu_and_mul -------------------------------------------------------------------------- */

bool cuda_linear_wide_activates(const cuda_ops *ops, const op_call *call, const op_call *silu)
{
    const tensor *to = &silu->tensors[SILU_AND_MUL_OUT];
    return multiplies(ops, call) && cuda_linear_is_activated(call, silu) &&
           to->data == call->tensors[LINEAR_OUT].data && to->shape[1] % 8 == 0;
}

qp_status cuda_linear_wide_silu(cuda_ops *ops, const op_call *call, const op_call *silu,
                                qp_error *error)
{
    const tensor *to = &silu->tensors[SILU_AND_MUL_OUT];
    cuda_address out = (cuda_address)(uintptr_t)call->tensors[LINEAR_OUT].data;
    linear_wide run = {.feature_step = HALF_TILE, .half_step = (int32_t)to->shape[1]};
    TRY(cuda_stream_map_rows(ops, out, to->shape[0], to->shape[1], to->shape[1] * 2,
                             LINEAR_WIDE_ROWS / 2, run.out_map, error));
    TRY(launch(ops, call, 0, "run_linear_wide_silu", &run, (void *[]){&run}, error));
    ops->narrowed = *to;
    ops->narrowed_at = out;
    return QP_OK;
}

/* ---- rope and kv_append -------------------------------------------------------------------- */

static bool is_half_precision(int64_t type)
{
    return type == DTYPE_F16 || type == DTYPE_BF16;
}

/* Whether heads stand in a product's output from feature `first` on. */
static bool are_heads_of(const tensor *out, const tensor *heads, int64_t first)
{
    return heads->data == (float *)out->data + first && heads->type == DTYPE_F32 &&
           heads->shape[0] == out->shape[0] && heads->stride[0] == out->stride[0] &&
           heads->stride[1] == heads->shape[2] * 4;
}

bool cuda_linear_wide_turns(const cuda_ops *ops, const op_call *call, const op_call *rope,
                            const op_call *append)
{
    const tensor *out = &call->tensors[LINEAR_OUT], *q = &rope->tensors[ROPE_Q];
    const tensor *k = &rope->tensors[ROPE_K], *v = &append->tensors[KV_APPEND_V];
    const tensor *table = &rope->tensors[ROPE_COS_SIN];
    const append_rows rows = cuda_append_rows(append);
    int64_t head_dim = q->shape[2], n_q = q->shape[1] * head_dim, n_kv = k->shape[1] * head_dim;
    return multiplies(ops, call) && (head_dim == 64 || head_dim == 128) &&
           k->shape[2] == head_dim && v->shape[1] == k->shape[1] && v->shape[2] == head_dim &&
           out->shape[1] == n_q + 2 * n_kv && are_heads_of(out, q, 0) &&
           are_heads_of(out, k, n_q) && are_heads_of(out, v, n_q + n_kv) &&
           append->tensors[KV_APPEND_K].data == k->data && table->shape[1] == head_dim &&
           (uintptr_t)table->data % 8 == 0 && table->stride[0] % 8 == 0 &&
           is_half_precision(rows.k_cache.type) && rows.v_cache.type == rows.k_cache.type &&
           cuda_caches_on_vectors(&rows) && rope->begin == 0 && rope->end == out->shape[0] &&
           append->begin == 0 && append->end == out->shape[0];
}

qp_status cuda_linear_wide_rope(cuda_ops *ops, const op_call *call, const op_call *rope,
                                const op_call *append, qp_error *error)
{
    const tensor *q = &rope->tensors[ROPE_Q];
    linear_wide run = {.feature_step = LINEAR_WIDE_FEATURES, .half_step = HALF_TILE};
    rope_rows turning = cuda_rope_rows(rope);
    append_rows appending = cuda_append_rows(append);
    bool wide = q->shape[2] == 128;
    tensor to = *q;
    to.type = (dtype)appending.k_cache.type;
    to.stride[2] = 2;
    to.stride[1] = q->shape[2] * 2;
    to.stride[0] = q->shape[1] * to.stride[1];
    turning.q = (device_rows){to.data, to.stride[0], to.type};
    turning.q_head = to.stride[1];
    TRY(launch(ops, call, 1 + wide, wide ? "run_linear_wide_rope_128" : "run_linear_wide_rope_64",
               &run, (void *[]){&run, &turning, &appending}, error));
    ops->turned = *q;
    ops->turned_at = to;
    ops->narrowed.rank = 0;
    return QP_OK;
}

void cuda_linear_wide_take_q(const cuda_ops *ops, tensor *q)
{
    const tensor *turned = &ops->turned;
    if (turned->rank == q->rank && turned->data == q->data && turned->type == q->type &&
        turned->shape[0] == q->shape[0] && turned->shape[1] == q->shape[1])
        *q = ops->turned_at;
}
