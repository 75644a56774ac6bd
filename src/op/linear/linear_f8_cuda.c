/* linear with matrices in FP8: see linear_f8_cuda.h. A matrix that is not in panels, as single
 * calls have it, is arranged in the workspace first.
 */
#include "op/linear/linear_f8_cuda.h"

#include "base/checked.h"
#include "op/linear/linear.h"
#include "op/linear/linear_cuda.h"
#include "op/linear/linear_stream_cuda.h"
#include "op/linear/linear_wide_cuda.h"
#include "op/rows_cuda.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"

#include <stdio.h>

enum {
    ARRANGE_THREADS = 256,
    ARRANGE_BLOCKS = 2048,
    QUANTISE_ROWS = 8, /* F8_QUANTISE_ROWS and F8_QUANTISE_STEPS of linear_f8.cuh */
    QUANTISE_STEPS = 4,
    CLUSTER_ROWS = F8_WIDE_ROWS * F8_WIDE_BLOCKS,
};

/* ---- panels -------------------------------------------------------------------------------- */

static int64_t panels_of(int64_t rows)
{
    return (rows + F8_ROWS - 1) / F8_ROWS;
}

size_t cuda_f8_bytes(int64_t rows, int64_t columns)
{
    return (size_t)(panels_of(rows) * F8_PANEL(columns));
}

cuda_start cuda_f8_start(const char *image, const char *name, int64_t blocks, int64_t rows,
                         int64_t threads)
{
    cuda_start start = {.image = image,
                        .grid = {(unsigned)blocks, (unsigned)rows, 1},
                        .threads = (unsigned)threads,
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "%s", name);
    return start;
}

static cuda_start start_of(const char *name, int64_t blocks, int64_t rows, int threads)
{
    return cuda_f8_start("linear_f8", name, blocks, rows, threads);
}

qp_status cuda_f8_arrange(cuda_ops *ops, const tensor *from, cuda_address to, qp_error *error)
{
    const cuda_start start = start_of("run_f8_arrange", ARRANGE_BLOCKS, 1, ARRANGE_THREADS);
    tensor own = *from;
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own), CUDA_ARGUMENT(to)),
                          error);
}

/* The panels of a call's weight, of which those of F8_128 are made at `room`. */
static qp_status find_panels(cuda_ops *ops, const tensor *weight, cuda_address room,
                             cuda_address *out, qp_error *error)
{
    *out = weight->type == DTYPE_F8 ? cuda_device_form(weight->data) : room;
    return weight->type == DTYPE_F8 ? QP_OK : cuda_f8_arrange(ops, weight, room, error);
}

static size_t panels_room(const tensor *weight)
{
    return weight->type == DTYPE_F8 ? 0 : cuda_f8_bytes(weight->shape[0], weight->shape[1]);
}

/* What both kernels need. A view in panels has the type F8. */
static bool accepts(const op_call *call)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    return cuda_linear_is_f32(call) && (weight->type == DTYPE_F8 || weight->type == DTYPE_F8_128) &&
           weight->shape[0] > 0 && weight->shape[1] > 0 && weight->shape[1] % F8_COLUMNS == 0 &&
           weight->shape[0] < INT32_MAX / 2;
}

/* ---- x in FP8 ------------------------------------------------------------------------------ */

/* x in BF16, then in FP8. */
static size_t x_room(int64_t rows, int64_t columns)
{
    return cuda_linear_bf16_bytes(rows, columns) +
           round_up((size_t)F8_X_BYTES(rows, columns), CUDA_ALIGNMENT);
}

/* Twice, since a product may store the next one's x while its own is read; then panels. */
size_t cuda_f8_workspace(const op_call *call)
{
    const tensor *x = &call->tensors[LINEAR_X];
    const int64_t rows = x->shape[0], few = rows < F8_FEW ? rows : F8_FEW;
    const size_t most = x_room(rows, x->shape[1]), of_few = x_room(few, x->shape[1]);
    return round_up(2 * (most > of_few ? most : of_few), 2 * CUDA_ALIGNMENT) +
           panels_room(&call->tensors[LINEAR_WEIGHT]);
}

static cuda_address room_of_panels(const cuda_ops *ops, const op_call *call)
{
    return cuda_narrow_place(ops) + cuda_f8_workspace(call) -
           panels_room(&call->tensors[LINEAR_WEIGHT]);
}

qp_status cuda_f8_place_x(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                          cuda_address *narrowed, cuda_address *at, qp_error *error)
{
    const int64_t *shape = call->tensors[LINEAR_X].shape;
    *narrowed = 0;
    *at = forms->x;
    if (forms->x_in_f8) return QP_OK;
    *at = cuda_narrow_place(ops) + cuda_linear_bf16_bytes(shape[0], shape[1]);
    return cuda_linear_narrowed_x(ops, call, forms, narrowed, error);
}

/* The address of x in FP8, followed by its scales; converts x if that was not done yet. */
static qp_status find_x(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                        cuda_address *at, qp_error *error)
{
    const int64_t rows = call->tensors[LINEAR_X].shape[0], n = call->tensors[LINEAR_X].shape[1];
    cuda_address narrowed;
    TRY(cuda_f8_place_x(ops, call, forms, &narrowed, at, error));
    if (!narrowed) return QP_OK;
    const tensor from = tensor_2d(cuda_host_form(narrowed), DTYPE_BF16, rows, n);
    const cuda_address scales = *at + (cuda_address)F8_X_NUMBERS(rows, n);
    const int64_t pitch = F8_X_PITCH(rows), steps = n / F8_COLUMNS;
    const cuda_start start =
        start_of(rows <= F8_FEW ? "run_f8_quantise_64" : "run_f8_quantise_128",
                 (rows + QUANTISE_ROWS - 1) / QUANTISE_ROWS,
                 (steps + QUANTISE_STEPS - 1) / QUANTISE_STEPS, QUANTISE_ROWS * 32);
    return cuda_ops_start(ops, &start,
                          CUDA_ARGUMENTS(CUDA_ARGUMENT(from), CUDA_ARGUMENT(*at),
                                         CUDA_ARGUMENT(scales), CUDA_ARGUMENT(pitch)),
                          error);
}

static float *scales_of(cuda_address at, int64_t rows, int64_t columns)
{
    return cuda_host_form(at + (cuda_address)F8_X_NUMBERS(rows, columns));
}

const op_tolerance cuda_f8_tolerances[] = {
    {DTYPE_F32, 1e-1, 2e-1}, {DTYPE_F16, 1e-1, 2e-1}, {DTYPE_BF16, 1e-1, 2e-1}, {0}};

/* Rows in FP8 in boxes of `box` rows. */
static qp_status map_rows(const cuda_ops *ops, cuda_address at, int64_t rows, int64_t columns,
                          int box, char *map, qp_error *error)
{
    return cuda_stream_make_map(
        ops, map, 2, at, (uint64_t[]){(uint64_t)columns / 2, (uint64_t)rows},
        (uint64_t[]){(uint64_t)columns}, (uint32_t[]){F8_COLUMNS / 2, (unsigned)box}, error);
}

/* ---- few rows ------------------------------------------------------------------------------ */

bool cuda_f8_stream_accepts(const op_call *call)
{
    return accepts(call) && call->tensors[LINEAR_X].shape[0] <= F8_FEW;
}

bool cuda_f8_pays(const cuda_ops *ops, const op_call *call)
{
    (void)ops;
    return call->tensors[LINEAR_WEIGHT].type == DTYPE_F8;
}

/* Eights of a panel's rows; with `pairs` those of gates and of their ups alternate. */
static qp_status map_stream(const cuda_ops *ops, const tensor *weight, cuda_address at, bool pairs,
                            int rows, char *map, qp_error *error)
{
    const uint64_t columns = (uint64_t)weight->shape[1], bytes = F8_PANEL(columns);
    const uint64_t panels = (uint64_t)panels_of(weight->shape[0]) / (pairs ? 2 : 1);
    const uint32_t each = pairs ? 2 : 1;
    return cuda_stream_make_map(
        ops, map, 5, at, (uint64_t[]){columns / 2, 8, each, F8_ROWS / 8, panels},
        (uint64_t[]){columns, pairs ? panels * bytes : columns, 8 * columns, bytes},
        (uint32_t[]){F8_COLUMNS / 2, 8, each, (unsigned)rows / 8 / each, 1}, error);
}

static qp_status launch_stream(cuda_ops *ops, const linear_f8_stream *run, int64_t tiles,
                               int columns, qp_error *error)
{
    linear_f8_stream own = *run;
    char name[CUDA_KERNEL_NAME];
    snprintf(name, sizeof name, "run_f8_stream_%d", columns);
    cuda_start start = start_of(name, tiles * run->run.ranks,
                                (run->run.n_rows + columns - 1) / columns, LINEAR_STREAM_THREADS);
    start.shared_most = ops->device->shared_bytes;
    start.shared_bytes = (unsigned)F8_STREAM_SHARED(columns, run->run.stages);
    start.cluster = (unsigned)run->run.ranks;
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own)), error);
}

/* With `silu` the output is that of silu_and_mul, instead of the product. */
static qp_status multiply_stream(cuda_ops *ops, const op_call *call, const op_call *silu,
                                 const cuda_forms *forms, qp_error *error)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    const int64_t features = call->end, n_steps = x->shape[1] / F8_COLUMNS;
    const int columns = LINEAR_STREAM_COLUMNS(x->shape[0]);
    cuda_stream_cut cut = cuda_stream_cut_of(features, n_steps, ops->device->n_multiprocessors);
    cuda_address at, panels;
    if (silu) cut = (cuda_stream_cut){LINEAR_STREAM_ROWS, 1};
    const int64_t tiles = (features + cut.rows - 1) / cut.rows;
    linear_f8_stream run = {.run = cuda_stream_arguments(call, silu, cut, F8_COLUMNS,
                                                         cuda_stream_stages(columns, false)),
                            .panel_bytes = F8_PANEL(x->shape[1]),
                            .up_panels = (int32_t)(panels_of(features) / 2)};
    TRY(find_x(ops, call, forms, &at, error));
    TRY(find_panels(ops, weight, room_of_panels(ops, call), &panels, error));
    run.weight = cuda_host_form(panels);
    run.x_scales = scales_of(at, x->shape[0], x->shape[1]);
    TRY(map_stream(ops, weight, panels, silu != NULL, cut.rows, run.run.weight_map, error));
    TRY(map_rows(ops, at, x->shape[0], x->shape[1], columns, run.run.x_map, error));
    if (silu) {
        const cuda_address to = cuda_other_narrow_place(ops, at);
        run.run.narrowed = cuda_host_form(to);
        run.out_scales = scales_of(to, x->shape[0], run.run.end);
    }
    return launch_stream(ops, &run, tiles, columns, error);
}

qp_status cuda_f8_stream(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                         const cuda_forms *forms, qp_error *error)
{
    (void)kernel;
    return multiply_stream(ops, call, NULL, forms, error);
}

/* A tile has gates of half a panel and their ups. */
bool cuda_f8_stream_activates(const cuda_ops *ops, const op_call *calls)
{
    const tensor *to = &calls[1].tensors[SILU_AND_MUL_OUT];
    const int64_t k = calls[0].tensors[LINEAR_X].shape[1];
    const size_t need = 2 * x_room(to->shape[0], to->shape[1] > k ? to->shape[1] : k);
    return cuda_linear_is_activated(&calls[0], &calls[1]) && to->shape[1] % F8_ROWS == 0 &&
           need + 2 * CUDA_ALIGNMENT <= ops->workspace.bytes - CUDA_OWN_WORKSPACE;
}

cuda_left cuda_f8_stream_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x)
{
    (void)calls;
    return (cuda_left){.narrowed = cuda_other_narrow_place(ops, x), .in_f8 = true};
}

qp_status cuda_f8_stream_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                              qp_error *error)
{
    return multiply_stream(ops, &calls[0], &calls[1], forms, error);
}

/* ---- many rows ----------------------------------------------------------------------------- */

bool cuda_f8_wide_accepts(const op_call *call)
{
    const tensor *t = call->tensors;
    return accepts(call) && t[LINEAR_X].shape[0] > F8_FEW && t[LINEAR_WEIGHT].shape[0] % 4 == 0 &&
           cuda_linear_on_vectors(&t[LINEAR_OUT]) && cuda_linear_on_vectors(&t[LINEAR_RESIDUAL]);
}

static linear_f8_wide wide_of(const op_call *call)
{
    const tensor *t = call->tensors, *x = &t[LINEAR_X], *out = &t[LINEAR_OUT];
    const tensor *residual = &t[LINEAR_RESIDUAL], *bias = &t[LINEAR_BIAS];
    return (linear_f8_wide){
        .out = out->data,
        .residual = residual->rank ? residual->data : NULL,
        .bias = bias->rank ? bias->data : NULL,
        .x_pitch = F8_X_PITCH(x->shape[0]),
        .out_pitch = out->stride[0] / 4,
        .residual_pitch = residual->rank ? residual->stride[0] / 4 : 0,
        .panel_bytes = F8_PANEL(x->shape[1]),
        .n_rows = (int32_t)x->shape[0],
        .n_steps = (int32_t)(x->shape[1] / F8_COLUMNS),
        .features = (int32_t)call->end,
        .row_tiles = (int32_t)((x->shape[0] + CLUSTER_ROWS - 1) / CLUSTER_ROWS),
        .second = 1,
        .n_panels = (int32_t)panels_of(call->end),
        .bias_type = (int32_t)bias->type,
    };
}

/* Two panels in a tile, unless tiles of one are needed to fill the GPU. */
static int panels_of_tile(const cuda_ops *ops, const op_call *call)
{
    const linear_f8_wide run = wide_of(call);
    const int64_t clusters = ops->device->n_multiprocessors / F8_WIDE_BLOCKS;
    const int64_t one = (int64_t)run.row_tiles * run.n_panels, two = (one + 1) / 2;
    return 2 * ((two + clusters - 1) / clusters) <= (one + clusters - 1) / clusters ? 2 : 1;
}

/* Completes `run`, the first of the arguments, for tiles of `panels` panels, and launches it. */
static qp_status launch_wide(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                             int panels, const char *name, linear_f8_wide *run,
                             const cuda_argument *arguments, qp_error *error)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    const uint64_t columns = (uint64_t)x->shape[1];
    cuda_address at, from;
    TRY(find_x(ops, call, forms, &at, error));
    TRY(find_panels(ops, weight, room_of_panels(ops, call), &from, error));
    run->x_scales = scales_of(at, x->shape[0], x->shape[1]);
    run->weight = cuda_host_form(from);
    if (!run->panel_step) run->panel_step = panels;
    run->tiles = run->row_tiles * ((run->n_panels + panels - 1) / panels);
    TRY(map_rows(ops, at, x->shape[0], x->shape[1], F8_WIDE_ROWS, run->x_map, error));
    TRY(cuda_stream_make_map(
        ops, run->weight_map, 3, from, (uint64_t[]){columns / 2, F8_ROWS, (uint64_t)run->n_panels},
        (uint64_t[]){columns, (uint64_t)run->panel_bytes},
        (uint32_t[]){F8_COLUMNS / 2, F8_ROWS / F8_WIDE_BLOCKS * (unsigned)panels, 1}, error));
    int clusters = ops->device->n_multiprocessors / F8_WIDE_BLOCKS;
    if (clusters > run->tiles) clusters = run->tiles;
    cuda_start start = start_of(name, clusters * F8_WIDE_BLOCKS, 1, F8_WIDE_THREADS);
    start.shared_most = panels == 2 ? F8_WIDE_SHARED(2) : F8_WIDE_SHARED(1);
    start.shared_bytes = (unsigned)start.shared_most;
    start.cluster = F8_WIDE_BLOCKS;
    return cuda_ops_start(ops, &start, arguments, error);
}

qp_status cuda_f8_wide(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                       const cuda_forms *forms, qp_error *error)
{
    linear_f8_wide run = wide_of(call);
    const int panels = panels_of_tile(ops, call);
    (void)kernel;
    return launch_wide(ops, call, forms, panels, panels == 2 ? "run_f8_wide_2" : "run_f8_wide_1",
                       &run, CUDA_ARGUMENTS(CUDA_ARGUMENT(run)), error);
}

bool cuda_f8_wide_activates(const cuda_ops *ops, const op_call *calls)
{
    const tensor *to = &calls[1].tensors[SILU_AND_MUL_OUT];
    (void)ops;
    return cuda_linear_is_activated(&calls[0], &calls[1]) && to->shape[1] % F8_ROWS == 0 &&
           to->data == calls[0].tensors[LINEAR_OUT].data;
}

cuda_left cuda_f8_wide_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x)
{
    (void)ops, (void)x;
    return (cuda_left){.narrowed = cuda_device_form(calls[0].tensors[LINEAR_OUT].data),
                       .in_f8 = true};
}

qp_status cuda_f8_wide_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                            qp_error *error)
{
    const tensor *to = &calls[1].tensors[SILU_AND_MUL_OUT];
    const cuda_address out = cuda_device_form(calls[0].tensors[LINEAR_OUT].data);
    linear_f8_wide run = wide_of(&calls[0]);
    run.panel_step = 1;
    run.second = (int32_t)(to->shape[1] / F8_ROWS);
    run.out_scales = scales_of(out, to->shape[0], to->shape[1]);
    TRY(map_rows(ops, out, to->shape[0], to->shape[1], F8_WIDE_ROWS / 2, run.out_map, error));
    return launch_wide(ops, &calls[0], forms, 2, "run_f8_wide_silu", &run,
                       CUDA_ARGUMENTS(CUDA_ARGUMENT(run)), error);
}

qp_status cuda_f8_wide_rope(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                            qp_error *error)
{
    linear_f8_wide run = wide_of(&calls[0]);
    rope_rows turning = cuda_rope_rows(&calls[1]);
    append_rows appending = cuda_append_rows(&calls[2]);
    const tensor q = cuda_linear_wide_rope_leaves(ops, calls, 0).q;
    turning.q = (device_rows){q.data, q.stride[0], q.type};
    turning.q_head = q.stride[1];
    const int panels = panels_of_tile(ops, &calls[0]);
    char name[CUDA_KERNEL_NAME];
    snprintf(name, sizeof name, "run_f8_wide_rope_%d_%d", panels, q.shape[2] == 128 ? 128 : 64);
    return launch_wide(
        ops, &calls[0], forms, panels, name, &run,
        CUDA_ARGUMENTS(CUDA_ARGUMENT(run), CUDA_ARGUMENT(turning), CUDA_ARGUMENT(appending)),
        error);
}
