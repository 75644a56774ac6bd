/* linear for up to eight rows: see linear_eight_cuda.h. */
#include "op/linear/linear_eight_cuda.h"

#include "op/linear/linear.h"
#include "op/linear/linear_eight.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"
#include "op/linear/linear_cuda.h"

#include <stdio.h>

/* Shared memory of a type's kernel; 0: there is none. */
static unsigned shared_bytes_of(dtype type)
{
    switch (type) {
#define FORMAT(T, pitch, stages, tiles)                                                            \
    case DTYPE_##T:                                                                                \
        return LINEAR_EIGHT_SHARED(pitch, stages, tiles);
        LINEAR_EIGHT_FORMATS(FORMAT)
#undef FORMAT
    default:
        return 0;
    }
}

bool cuda_linear_eight_in_words(dtype type)
{
    return type != DTYPE_F16 && type != DTYPE_BF16 && type != DTYPE_Q4_K;
}

static bool float_rows(const tensor *view)
{
    return !view->rank || view->type == DTYPE_F32;
}

bool cuda_linear_eight_accepts(const op_call *call)
{
    const tensor *t = call->tensors, *x = &t[LINEAR_X], *weight = &t[LINEAR_WEIGHT];
    bool on_vectors = weight->stride[0] % 16 == 0 && (uintptr_t)weight->data % 16 == 0;
    bool in_words = weight->stride[0] % 4 == 0 && (uintptr_t)weight->data % 2 == 0;
    return op_call_has_no_f64(call) && shared_bytes_of(weight->type) &&
           (cuda_linear_eight_in_words(weight->type) ? in_words : on_vectors) &&
           weight->shape[0] >= LINEAR_EIGHT_FEATURES && x->type == DTYPE_F32 && x->shape[0] > 0 &&
           x->shape[1] > 0 && x->shape[1] % LINEAR_EIGHT_BLOCK == 0 && x->stride[0] % 16 == 0 &&
           (uintptr_t)x->data % 16 == 0 && weight->shape[0] < INT32_MAX / 2 &&
           weight->stride[0] < INT32_MAX && x->shape[1] < INT32_MAX / 2 &&
           float_rows(&t[LINEAR_OUT]) && float_rows(&t[LINEAR_RESIDUAL]);
}

bool cuda_linear_eight_pays(const cuda_ops *ops, const op_call *call)
{
    bool stored = call->tensors[LINEAR_WEIGHT].type == DTYPE_BF16;
    int64_t rows = call->tensors[LINEAR_X].shape[0];
    return rows < CUDA_LINEAR_MANY_ROWS && (!stored || rows <= ops->few_rows);
}

static linear_eight arguments_of(const op_call *call)
{
    const tensor *t = call->tensors, *x = &t[LINEAR_X], *weight = &t[LINEAR_WEIGHT];
    const tensor *residual = &t[LINEAR_RESIDUAL], *bias = &t[LINEAR_BIAS];
    return (linear_eight){
        .weight = weight->data,
        .x = x->data,
        .residual = residual->rank ? residual->data : NULL,
        .bias = bias->rank ? bias->data : NULL,
        .out = t[LINEAR_OUT].data,
        .weight_pitch = weight->stride[0],
        .row_bytes = (int64_t)dtype_row_bytes(weight->type, weight->shape[1]),
        .x_pitch = x->stride[0] / 4,
        .residual_pitch = residual->rank ? residual->stride[0] / 4 : 0,
        .out_pitch = t[LINEAR_OUT].stride[0] / 4,
        .n_rows = (int32_t)x->shape[0],
        .n_columns = (int32_t)x->shape[1],
        .begin = (int32_t)call->begin,
        .first = (int32_t)call->begin,
        .end = (int32_t)call->end,
        .bias_type = (int32_t)bias->type,
        .below = LINEAR_EIGHT_FEATURES / 2 * weight->stride[0],
        .tile_pitch = LINEAR_EIGHT_FEATURES * weight->stride[0],
        .number_base = 0x43004300,
    };
}

static qp_status launch(cuda_ops *ops, const linear_eight *run, dtype type, qp_error *error)
{
    linear_eight own = *run;
    int most = ops->device->n_multiprocessors;
    cuda_start start = {
        .image = "linear_eight",
        .shared_most = ops->device->shared_bytes,
        .grid = {(unsigned)(run->tiles < most ? run->tiles : most),
                 (unsigned)((own.n_rows + LINEAR_EIGHT_ROWS - 1) / LINEAR_EIGHT_ROWS), 1},
        .threads = LINEAR_EIGHT_WARPS * 32,
        .shared_bytes = shared_bytes_of(type),
        .cluster = 1};
    snprintf(start.name, sizeof start.name, "run_linear_eight_%s", dtype_name(type));
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(own)), error);
}

qp_status cuda_linear_eight(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error)
{
    const dtype type = call->tensors[LINEAR_WEIGHT].type;
    linear_eight run = arguments_of(call);
    int rest = (run.end - run.begin) % LINEAR_EIGHT_FEATURES;
    (void)kernel, (void)forms;
    run.tiles = (run.end - run.begin) / LINEAR_EIGHT_FEATURES;
    TRY(launch(ops, &run, type, error));
    if (rest == 0) return QP_OK;
    run.first = run.end - rest; /* a tile of rows before them too */
    run.begin = run.end > LINEAR_EIGHT_FEATURES ? run.end - LINEAR_EIGHT_FEATURES : 0;
    run.tiles = 1;
    return launch(ops, &run, type, error);
}

bool cuda_linear_eight_activates(const cuda_ops *ops, const op_call *calls)
{
    (void)ops;
    return cuda_linear_is_activated(&calls[0], &calls[1]) &&
           calls[0].tensors[LINEAR_OUT].shape[1] % LINEAR_EIGHT_FEATURES == 0;
}

qp_status cuda_linear_eight_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                 qp_error *error)
{
    const tensor *to = &calls[1].tensors[SILU_AND_MUL_OUT];
    linear_eight run = arguments_of(&calls[0]);
    (void)forms;
    run.activates = 1;
    run.out = to->data;
    run.out_pitch = to->stride[0] / 4;
    run.end = (int32_t)to->shape[1];
    run.tiles = run.end / (LINEAR_EIGHT_FEATURES / 2);
    run.below = to->shape[1] * run.weight_pitch;
    run.tile_pitch /= 2;
    return launch(ops, &run, calls[0].tensors[LINEAR_WEIGHT].type, error);
}
