/* linear for batches by quipu's own kernel: see linear_stream_cuda.h and linear_stream.cuh. */
#include "op/linear/linear_stream_cuda.h"

#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"
#include "op/linear/linear_cuda.h"

#include <stdio.h>
#include <string.h>

/* ---- which kernel ------------------------------------------------------------------------- */

bool cuda_linear_stream_accepts(const op_call *call)
{
    const tensor *t = call->tensors, *weight = &t[LINEAR_WEIGHT];
    return op_call_has_no_f64(call) && weight->type == DTYPE_BF16 && weight->shape[0] > 0 &&
           weight->stride[0] % 16 == 0 && (uintptr_t)weight->data % 16 == 0 &&
           t[LINEAR_OUT].type == DTYPE_F32 &&
           (!t[LINEAR_RESIDUAL].rank || t[LINEAR_RESIDUAL].type == DTYPE_F32) &&
           t[LINEAR_X].shape[0] > 0 && t[LINEAR_X].shape[1] > 0 && t[LINEAR_X].shape[1] % 8 == 0;
}

bool cuda_linear_stream_pays(const cuda_ops *ops, const op_call *call)
{
    int64_t rows = call->tensors[LINEAR_X].shape[0];
    return rows > ops->few_rows && rows <= LINEAR_STREAM_MAX_X;
}

static size_t bytes_of(int64_t rows, int64_t columns)
{
    return round_up((size_t)(rows * columns) * 2, 2 * CUDA_ALIGNMENT);
}

/* x in BF16; twice where a product may store the next product's x while its own is read. */
size_t cuda_linear_stream_workspace(const op_call *call)
{
    int64_t rows = call->tensors[LINEAR_X].shape[0], columns = call->tensors[LINEAR_X].shape[1];
    int64_t twice = 2 * (rows < LINEAR_STREAM_MAX_X ? rows : LINEAR_STREAM_MAX_X);
    return bytes_of(rows > twice ? rows : twice, columns);
}

/* Whether all blocks are resident at once and no block has an empty part; low tiles need whole
 * stages of two steps. */
static bool is_possible(int64_t features, int64_t n_steps, int n_multiprocessors,
                        cuda_stream_cut cut)
{
    if ((features + cut.rows - 1) / cut.rows * cut.ranks > n_multiprocessors) return false;
    return cut.rows == LINEAR_STREAM_ROWS ? cut.ranks <= n_steps : n_steps % (2 * cut.ranks) == 0;
}

/* The most bytes that a multiprocessor moves: weights, and parts of LINEAR_STREAM_MAX_X rows,
 * written and read. x comes from the L2 cache, which is about eight times as fast. */
static int64_t bytes_moved(int64_t features, int64_t n_steps, int n_multiprocessors,
                           cuda_stream_cut cut)
{
    const int64_t steps = (n_steps + cut.ranks - 1) / cut.ranks;
    const int64_t parts = features * cut.ranks * LINEAR_STREAM_MAX_X * 4;
    return steps * (cut.rows + LINEAR_STREAM_MAX_X / 8) * LINEAR_STREAM_DEPTH * 2 +
           2 * parts / n_multiprocessors;
}

cuda_stream_cut cuda_stream_cut_of(int64_t features, int64_t n_steps, int n_multiprocessors)
{
    static const int rows[] = {LINEAR_STREAM_ROWS, LINEAR_STREAM_LOW_ROWS};
    static const int ranks[] = {1, 2, 3, 4, 5, 6, 8}; /* with 7 the sums have too little room */
    cuda_stream_cut best = {LINEAR_STREAM_ROWS, 1};
    int64_t least = INT64_MAX;
    if (2 * features > (int64_t)n_multiprocessors * LINEAR_STREAM_ROWS) return best;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof ranks / sizeof *ranks; j++) {
            cuda_stream_cut cut = {rows[i], ranks[j]};
            if (!is_possible(features, n_steps, n_multiprocessors, cut)) continue;
            int64_t bytes = bytes_moved(features, n_steps, n_multiprocessors, cut);
            if (bytes < least) least = bytes, best = cut;
        }
    return best;
}

/* ---- launching ----------------------------------------------------------------------------- */

qp_status cuda_stream_make_map(const cuda_ops *ops, char *at, uint32_t rank, cuda_address address,
                               const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                               qp_error *error)
{
    cuda_map map = {.address = address, .rank = rank};
    memcpy(map.sizes, sizes, rank * sizeof *sizes);
    memcpy(map.strides, strides, (rank - 1) * sizeof *strides);
    memcpy(map.box, box, rank * sizeof *box);
    return cuda_ops_map(ops, &map, at, error);
}

qp_status cuda_stream_map_weight(const cuda_ops *ops, const tensor *weight, bool pairs, int rows,
                                 char *map, int32_t *dimension, int32_t *step, qp_error *error)
{
    const uint64_t pitch = (uint64_t)weight->stride[0], k = (uint64_t)weight->shape[1];
    const uint64_t n = (uint64_t)weight->shape[0];
    const cuda_address at = (cuda_address)(uintptr_t)weight->data;
    *dimension = pairs ? 3 : 1;
    *step = pairs ? rows / 16 : rows;
    if (pairs)
        return cuda_stream_make_map(ops, map, 5, at, (uint64_t[]){k, 8, 2, n / 16, 1},
                                    (uint64_t[]){pitch, n / 2 * pitch, 8 * pitch, 8 * pitch},
                                    (uint32_t[]){LINEAR_STREAM_DEPTH, 8, 2, (unsigned)rows / 16, 1},
                                    error);
    return cuda_stream_make_map(ops, map, 5, at, (uint64_t[]){k, n, 1, 1, 1},
                                (uint64_t[]){pitch, pitch, pitch, pitch},
                                (uint32_t[]){LINEAR_STREAM_DEPTH, (unsigned)rows, 1, 1, 1}, error);
}

qp_status cuda_stream_map_rows(const cuda_ops *ops, cuda_address at, int64_t rows, int64_t columns,
                               int64_t pitch, int tile_rows, char *map, qp_error *error)
{
    return cuda_stream_make_map(ops, map, 2, at, (uint64_t[]){(uint64_t)columns, (uint64_t)rows},
                                (uint64_t[]){(uint64_t)pitch},
                                (uint32_t[]){LINEAR_STREAM_DEPTH, (unsigned)tile_rows}, error);
}

qp_status cuda_stream_map_x(const cuda_ops *ops, const tensor *x, cuda_address at, int columns,
                            char *map, qp_error *error)
{
    return cuda_stream_map_rows(ops, at, x->shape[0], x->shape[1], 2 * x->shape[1], columns, map,
                                error);
}

qp_status cuda_stream_map_deep(const cuda_ops *ops, cuda_address at, int64_t rows, int64_t columns,
                               int64_t pitch, int tile_rows, int depths, char *map, qp_error *error)
{
    const uint64_t n = (uint64_t)rows, n_steps = (uint64_t)columns / LINEAR_STREAM_DEPTH;
    return cuda_stream_make_map(
        ops, map, 3, at, (uint64_t[]){LINEAR_STREAM_DEPTH, n, n_steps},
        (uint64_t[]){(uint64_t)pitch, LINEAR_STREAM_DEPTH * 2},
        (uint32_t[]){LINEAR_STREAM_DEPTH, (unsigned)tile_rows, (unsigned)depths}, error);
}

qp_status cuda_stream_map_cache(const cuda_ops *ops, const tensor *cache, char *map,
                                qp_error *error)
{
    const int64_t *shape = cache->shape, *stride = cache->stride;
    const int64_t words = shape[3] / (cache->type == DTYPE_F8 ? 2 : 1); /* of 16 bits */
    return cuda_stream_make_map(
        ops, map, 4, (cuda_address)(uintptr_t)cache->data,
        (uint64_t[]){(uint64_t)words, (uint64_t)shape[2], (uint64_t)shape[1], (uint64_t)shape[0]},
        (uint64_t[]){(uint64_t)stride[2], (uint64_t)stride[1], (uint64_t)stride[0]},
        (uint32_t[]){words < LINEAR_STREAM_DEPTH ? (uint32_t)words : LINEAR_STREAM_DEPTH, 1, 16, 1},
        error);
}

linear_stream cuda_stream_arguments(const op_call *call, const op_call *silu, cuda_stream_cut cut,
                                    int depth, int stages)
{
    const tensor *t = call->tensors, *residual = &t[LINEAR_RESIDUAL], *bias = &t[LINEAR_BIAS];
    return (linear_stream){
        .out = t[LINEAR_OUT].data,
        .residual = residual->rank ? residual->data : NULL,
        .bias = bias->rank ? bias->data : NULL,
        .out_pitch = t[LINEAR_OUT].stride[0] / 4,
        .residual_pitch = residual->rank ? residual->stride[0] / 4 : 0,
        .begin = call->begin,
        .end = silu ? silu->tensors[SILU_AND_MUL_OUT].shape[1] : call->end,
        .n_rows = (int32_t)t[LINEAR_X].shape[0],
        .n_steps = (int32_t)((t[LINEAR_X].shape[1] + depth - 1) / depth),
        .ranks = cut.ranks,
        .tile_rows = cut.rows,
        .stages = stages,
        .end_kind = silu ? LINEAR_STREAM_SILU : LINEAR_STREAM_PLAIN,
        .bias_type = (int32_t)bias->type,
        .vectors = call->begin % 4 == 0 && cuda_linear_on_vectors(&t[LINEAR_OUT]) &&
                   cuda_linear_on_vectors(residual),
    };
}

int cuda_stream_stages(int columns, bool at_once)
{
    return columns <= 16 ? 6 : columns <= 32 ? 5 : 4 + at_once;
}

static qp_status launch(cuda_ops *ops, const linear_stream *run, int64_t tiles, int columns,
                        qp_error *error)
{
    linear_stream own = *run;
    cuda_start start = {.image = "linear_stream",
                        .shared_most = ops->device->shared_bytes,
                        .grid = {(unsigned)(tiles * run->ranks),
                                 (unsigned)((run->n_rows + columns - 1) / columns), 1},
                        .threads = LINEAR_STREAM_THREADS,
                        .shared_bytes = (unsigned)LINEAR_STREAM_SHARED(columns, run->stages),
                        .cluster = (unsigned)run->ranks};
    snprintf(start.name, sizeof start.name, "run_linear_stream_%d", columns);
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own)), error);
}

/* With `silu` the output is that of silu_and_mul, instead of the product. */
static qp_status multiply(cuda_ops *ops, const op_call *call, const op_call *silu,
                          const cuda_forms *forms, qp_error *error)
{
    const tensor *x = &call->tensors[LINEAR_X];
    const int n_multiprocessors = ops->device->n_multiprocessors;
    int64_t features = call->end - call->begin, rows = x->shape[0];
    int64_t n_steps = (x->shape[1] + LINEAR_STREAM_DEPTH - 1) / LINEAR_STREAM_DEPTH;
    cuda_stream_cut cut = cuda_stream_cut_of(features, n_steps, n_multiprocessors);
    if (silu) cut.rows = LINEAR_STREAM_ROWS;
    int64_t tiles = (features + cut.rows - 1) / cut.rows;
    int columns = LINEAR_STREAM_COLUMNS(rows);
    bool at_once = cut.ranks == 1 && tiles <= n_multiprocessors;
    linear_stream run = cuda_stream_arguments(call, silu, cut, LINEAR_STREAM_DEPTH,
                                              cuda_stream_stages(columns, at_once));
    cuda_address at;
    TRY(cuda_linear_narrowed_x(ops, call, forms, &at, error));
    TRY(cuda_stream_map_weight(ops, &call->tensors[LINEAR_WEIGHT], silu != NULL, cut.rows,
                               run.weight_map, &run.weight_dimension, &run.weight_step, error));
    TRY(cuda_stream_map_x(ops, x, at, columns, run.x_map, error));
    if (silu) run.narrowed = cuda_host_form(cuda_other_narrow_place(ops, at));
    return launch(ops, &run, tiles, columns, error);
}

qp_status cuda_linear_stream(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                             const cuda_forms *forms, qp_error *error)
{
    if (!cuda_device_has(ops->device, CUDA_STREAM_NEEDS))
        return cuda_linear_tiles(ops, kernel, call, forms, error);
    return multiply(ops, call, NULL, forms, error);
}

bool cuda_linear_stream_activates(const cuda_ops *ops, const op_call *calls)
{
    const tensor *to = &calls[1].tensors[SILU_AND_MUL_OUT];
    int64_t k = calls[0].tensors[LINEAR_X].shape[1];
    size_t need = 2 * bytes_of(to->shape[0], to->shape[1] > k ? to->shape[1] : k);
    return cuda_device_has(ops->device, CUDA_STREAM_NEEDS) &&
           cuda_linear_is_activated(&calls[0], &calls[1]) &&
           calls[0].tensors[LINEAR_OUT].shape[1] % 16 == 0 &&
           need <= ops->workspace.bytes - CUDA_OWN_WORKSPACE;
}

cuda_left cuda_linear_stream_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x)
{
    (void)calls;
    return (cuda_left){.narrowed = cuda_other_narrow_place(ops, x)};
}

qp_status cuda_linear_stream_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                  qp_error *error)
{
    return multiply(ops, &calls[0], &calls[1], forms, error);
}
