/* Products of many rows with their epilogues: see linear_wide_cuda.h and linear_wide.cuh. */
#include "op/linear/linear_wide_cuda.h"

#include "op/argmax/argmax.h"
#include "op/kv_append/kv_append.h"
#include "op/linear/linear.h"
#include "op/rope/rope.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/linear/linear_cuda.h"
#include "op/linear/linear_stream_cuda.h"
#include "op/rows_cuda.h"

#include <stdio.h>

/* A cluster's rows of x, and half of a tile's features. */
enum { CLUSTER_ROWS = LINEAR_WIDE_ROWS * LINEAR_WIDE_BLOCKS, HALF_TILE = LINEAR_WIDE_FEATURES / 2 };

/* Tiles of so many features. */
static int64_t tiles_of(int64_t rows, int64_t features, int tile)
{
    return (rows + CLUSTER_ROWS - 1) / CLUSTER_ROWS * ((features + tile - 1) / tile);
}

/* Features that each cluster multiplies by a cluster's rows, those that are not there too. */
static int64_t room_of(int64_t rows, int64_t features, int tile, int n_multiprocessors)
{
    int64_t clusters = n_multiprocessors / LINEAR_WIDE_BLOCKS;
    return (tiles_of(rows, features, tile) + clusters - 1) / clusters * tile;
}

bool cuda_linear_wide_fills(int64_t rows, int64_t features, int n_multiprocessors)
{
    int64_t clusters = n_multiprocessors / LINEAR_WIDE_BLOCKS;
    int64_t room = room_of(rows, features, LINEAR_WIDE_FEATURES, n_multiprocessors);
    return 10 * rows * features >= 7 * room * clusters * CLUSTER_ROWS;
}

bool cuda_linear_wide_accepts(const op_call *call)
{
    const tensor *t = call->tensors, *out = &t[LINEAR_OUT];
    return cuda_linear_stream_accepts(call) && call->begin == 0 &&
           call->end == t[LINEAR_WEIGHT].shape[0] && !t[LINEAR_BIAS].rank &&
           !t[LINEAR_RESIDUAL].rank && (uintptr_t)out->data % 16 == 0 &&
           out->stride[0] == out->shape[1] * 4;
}

bool cuda_linear_wide_pays(const cuda_ops *ops, const op_call *call)
{
    const tensor *out = &call->tensors[LINEAR_OUT];
    return cuda_linear_wide_fills(out->shape[0], out->shape[1], ops->device->n_multiprocessors);
}

/* Completes `run`, the first of the arguments, and launches it. `tile`: its features. */
static qp_status launch(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                        const char *name, int tile, linear_wide *run,
                        const cuda_argument *arguments, qp_error *error)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    cuda_address at;
    TRY(cuda_linear_narrowed_x(ops, call, forms, &at, error));
    TRY(cuda_stream_map_rows(ops, at, x->shape[0], x->shape[1], x->shape[1] * 2, LINEAR_WIDE_ROWS,
                             run->x_map, error));
    TRY(cuda_stream_map_rows(ops, cuda_device_form(weight->data), weight->shape[0],
                             weight->shape[1], weight->stride[0], tile / 2, run->weight_map,
                             error));
    run->n_rows = (int32_t)x->shape[0];
    run->n_steps = (int32_t)((x->shape[1] + LINEAR_WIDE_DEPTH - 1) / LINEAR_WIDE_DEPTH);
    run->row_tiles = (int32_t)((x->shape[0] + CLUSTER_ROWS - 1) / CLUSTER_ROWS);
    run->tiles = (int32_t)tiles_of(x->shape[0], weight->shape[0], tile);
    int clusters = ops->device->n_multiprocessors / LINEAR_WIDE_BLOCKS;
    if (clusters > run->tiles) clusters = run->tiles;
    cuda_start start = {.image = "linear_wide",
                        .shared_most = LINEAR_WIDE_SHARED,
                        .grid = {(unsigned)(clusters * LINEAR_WIDE_BLOCKS), 1, 1},
                        .threads = LINEAR_WIDE_THREADS,
                        .shared_bytes = LINEAR_WIDE_SHARED,
                        .cluster = LINEAR_WIDE_BLOCKS};
    snprintf(start.name, sizeof start.name, "%s", name);
    return cuda_ops_start(ops, &start, arguments, error);
}

/* ---- silu_and_mul -------------------------------------------------------------------------- */

bool cuda_linear_wide_activates(const cuda_ops *ops, const op_call *calls)
{
    const tensor *to = &calls[1].tensors[SILU_AND_MUL_OUT];
    (void)ops;
    return cuda_linear_is_activated(&calls[0], &calls[1]) &&
           to->data == calls[0].tensors[LINEAR_OUT].data && to->shape[1] % 8 == 0;
}

cuda_left cuda_linear_wide_silu_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x)
{
    (void)ops, (void)x;
    return (cuda_left){.narrowed = cuda_device_form(calls[0].tensors[LINEAR_OUT].data)};
}

qp_status cuda_linear_wide_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                qp_error *error)
{
    const tensor *to = &calls[1].tensors[SILU_AND_MUL_OUT];
    cuda_address out = cuda_device_form(calls[0].tensors[LINEAR_OUT].data);
    linear_wide run = {.feature_step = HALF_TILE, .half_step = (int32_t)to->shape[1]};
    TRY(cuda_stream_map_rows(ops, out, to->shape[0], to->shape[1], to->shape[1] * 2,
                             LINEAR_WIDE_ROWS / 2, run.out_map, error));
    return launch(ops, &calls[0], forms, "run_linear_wide_silu", LINEAR_WIDE_FEATURES, &run,
                  CUDA_ARGUMENTS(CUDA_ARGUMENT(run)), error);
}

/* ---- the likeliest feature ----------------------------------------------------------------- */

bool cuda_linear_wide_finds(const cuda_ops *ops, const op_call *calls)
{
    const op_call *call = &calls[0], *argmax = &calls[1];
    (void)ops;
    const tensor *logits = &argmax->tensors[ARGMAX_LOGITS], *out = &call->tensors[LINEAR_OUT];
    return logits->data == out->data && logits->type == DTYPE_F32 &&
           logits->shape[0] == out->shape[0] && logits->shape[1] == out->shape[1] &&
           argmax->tensors[ARGMAX_IDS].type == DTYPE_I32 && argmax->begin == 0 &&
           argmax->end == out->shape[0] && 2 * out->shape[0] < CUDA_COUNTERS;
}

qp_status cuda_linear_wide_likeliest(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                     qp_error *error)
{
    const op_call *call = &calls[0], *argmax = &calls[1];
    linear_wide run = {.feature_step = LINEAR_WIDE_FEATURES, .half_step = HALF_TILE};
    uint64_t *best = cuda_host_form(cuda_ops_counters(ops));
    const int64_t rows = call->tensors[LINEAR_OUT].shape[0];
    wide_likeliest to = {.best = best,
                         .ended = (uint32_t *)(best + rows),
                         .ids = argmax->tensors[ARGMAX_IDS].data,
                         .n_features = (int32_t)call->tensors[LINEAR_WEIGHT].shape[0]};
    return launch(ops, call, forms, "run_linear_wide_likeliest", LINEAR_WIDE_FEATURES, &run,
                  CUDA_ARGUMENTS(CUDA_ARGUMENT(run), CUDA_ARGUMENT(to)), error);
}

/* ---- rope and kv_append -------------------------------------------------------------------- */

static bool is_narrow(int64_t type)
{
    return type == DTYPE_F16 || type == DTYPE_BF16 || type == DTYPE_F8;
}

/* Whether the heads lie in a product's output, from feature `first` on. */
static bool are_heads_of(const tensor *out, const tensor *heads, int64_t first)
{
    return heads->data == (float *)out->data + first && heads->type == DTYPE_F32 &&
           heads->shape[0] == out->shape[0] && heads->stride[0] == out->stride[0] &&
           heads->stride[1] == heads->shape[2] * 4;
}

bool cuda_linear_wide_turns(const cuda_ops *ops, const op_call *calls)
{
    (void)ops;
    const op_call *call = &calls[0], *rope = &calls[1], *append = &calls[2];
    const tensor *out = &call->tensors[LINEAR_OUT], *q = &rope->tensors[ROPE_Q];
    const tensor *k = &rope->tensors[ROPE_K], *v = &append->tensors[KV_APPEND_V];
    const tensor *table = &rope->tensors[ROPE_COS_SIN];
    const append_rows rows = cuda_append_rows(append);
    int64_t head_dim = q->shape[2], n_q = q->shape[1] * head_dim, n_kv = k->shape[1] * head_dim;
    return !call->tensors[LINEAR_BIAS].rank && !call->tensors[LINEAR_RESIDUAL].rank &&
           call->begin == 0 && call->end == out->shape[1] && (head_dim == 64 || head_dim == 128) &&
           k->shape[2] == head_dim && v->shape[1] == k->shape[1] && v->shape[2] == head_dim &&
           out->shape[1] == n_q + 2 * n_kv && are_heads_of(out, q, 0) &&
           are_heads_of(out, k, n_q) && are_heads_of(out, v, n_q + n_kv) &&
           append->tensors[KV_APPEND_K].data == k->data && table->shape[1] == head_dim &&
           (uintptr_t)table->data % 8 == 0 && table->stride[0] % 8 == 0 &&
           is_narrow(rows.k_cache.type) && rows.v_cache.type == rows.k_cache.type &&
           cuda_caches_on_vectors(&rows) && rope->begin == 0 && rope->end == out->shape[0] &&
           append->begin == 0 && append->end == out->shape[0];
}

cuda_left cuda_linear_wide_rope_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x)
{
    const tensor *q = &calls[1].tensors[ROPE_Q];
    const dtype cache = calls[2].tensors[KV_APPEND_K_CACHE].type;
    cuda_left left = {.q = *q};
    (void)ops, (void)x;
    left.q.type = cache == DTYPE_F8 ? DTYPE_F16 : cache; /* what attention's products take */
    left.q.stride[2] = 2;
    left.q.stride[1] = q->shape[2] * 2;
    left.q.stride[0] = q->shape[1] * left.q.stride[1];
    return left;
}

/* Features of a tile of whole heads. */
static int heads_tile(const op_call *call, int64_t head_dim, int n_multiprocessors)
{
    const int64_t rows = call->tensors[LINEAR_OUT].shape[0];
    const int64_t features = call->tensors[LINEAR_OUT].shape[1];
    const bool narrow =
        head_dim == 64 && room_of(rows, features, LINEAR_WIDE_NARROW, n_multiprocessors) <
                              room_of(rows, features, LINEAR_WIDE_FEATURES, n_multiprocessors);
    return narrow ? LINEAR_WIDE_NARROW : LINEAR_WIDE_FEATURES;
}

qp_status cuda_linear_wide_rope(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                qp_error *error)
{
    rope_rows turning = cuda_rope_rows(&calls[1]);
    append_rows appending = cuda_append_rows(&calls[2]);
    const tensor q = cuda_linear_wide_rope_leaves(ops, calls, 0).q;
    const int tile = heads_tile(&calls[0], q.shape[2], ops->device->n_multiprocessors);
    linear_wide run = {.feature_step = tile, .half_step = tile / 2};
    turning.q = (device_rows){q.data, q.stride[0], q.type};
    turning.q_head = q.stride[1];
    return launch(
        ops, &calls[0], forms,
        q.shape[2] == 128            ? "run_linear_wide_rope_128"
        : tile == LINEAR_WIDE_NARROW ? "run_linear_narrow_rope_64"
                                     : "run_linear_wide_rope_64",
        tile, &run,
        CUDA_ARGUMENTS(CUDA_ARGUMENT(run), CUDA_ARGUMENT(turning), CUDA_ARGUMENT(appending)),
        error);
}
