/* linear_experts for few tokens: see linear_experts_cuda.h. */
#include "op/linear_experts/linear_experts_cuda.h"

#include "op/linear/linear_eight_cuda.h"
#include "op/linear_experts/experts_few.h"
#include "op/linear_experts/linear_experts.h"
#include "op/rows_cuda.h"

#include <math.h>
#include <stdio.h>

/* The rings of a type's kernel; 0: there is none. */
static int ring_bytes_of(dtype type)
{
    switch (type) {
#define FORMAT(T, pitch, stages)                                                                   \
    case DTYPE_##T:                                                                                \
        return EXPERTS_SHARED(pitch, stages, 0);
        EXPERTS_FORMATS(FORMAT)
#undef FORMAT
    default:
        return 0;
    }
}

static int64_t steps_of(const op_call *call)
{
    return (call->tensors[LINEAR_EXPERTS_WEIGHT].shape[2] + LINEAR_EIGHT_COLUMNS - 1) /
           LINEAR_EIGHT_COLUMNS;
}

/* Rows of x in shared memory. */
static int64_t x_rows(const op_call *call)
{
    const tensor *t = call->tensors;
    return t[LINEAR_EXPERTS_SHARES].rank ? t[LINEAR_EXPERTS_IDS].shape[1]
                                         : t[LINEAR_EXPERTS_X].shape[1];
}

static int64_t shared_bytes(const op_call *call)
{
    return ring_bytes_of(call->tensors[LINEAR_EXPERTS_WEIGHT].type) +
           x_rows(call) * steps_of(call) * (EXPERTS_STEP_BYTES + EXPERTS_SUM_BYTES);
}

/* Whether a matrix lies as the format's copies need it. */
static bool lies_well(const tensor *weight, const tensor *like)
{
    if (!weight->rank) return true;
    const int64_t mask = cuda_linear_eight_in_words(like->type) ? 1 : 15;
    const bool even =
        like->type == DTYPE_MXFP4 || /* bytes */
        (((int64_t)(uintptr_t)weight->data | weight->stride[0] | weight->stride[1]) & mask) == 0;
    return weight->type == like->type && even && weight->stride[1] < INT32_MAX &&
           weight->shape[0] * weight->stride[0] < UINT32_MAX;
}

bool cuda_experts_few_accepts(const op_call *call)
{
    enum { SHARED_MOST = 224 << 10 }; /* of compute capability 9.0 */
    const tensor *t = call->tensors, *x = &t[LINEAR_EXPERTS_X];
    const tensor *weight = &t[LINEAR_EXPERTS_WEIGHT], *ids = &t[LINEAR_EXPERTS_IDS];
    const int64_t outputs = weight->shape[1] * ids->shape[1];
    const bool half = t[LINEAR_EXPERTS_UP_WEIGHT].rank || t[LINEAR_EXPERTS_SHARES].rank;
    return half && cuda_experts_in_f32(call) && ring_bytes_of(weight->type) &&
           lies_well(weight, weight) && lies_well(&t[LINEAR_EXPERTS_UP_WEIGHT], weight) &&
           weight->shape[2] > 0 && weight->shape[2] % LINEAR_EIGHT_BLOCK == 0 &&
           weight->shape[2] < INT32_MAX / 8 && outputs < INT32_MAX / 2 &&

           cuda_on_vectors(x->data, x->stride[0] | x->stride[1]) && x->shape[0] < 65536 &&
           ids->shape[1] <= EXPERTS_MOST_CHOICES && shared_bytes(call) <= SHARED_MOST;
}

bool cuda_experts_few_pays(const cuda_ops *ops, const op_call *call)
{
    (void)ops;
    return call->tensors[LINEAR_EXPERTS_X].shape[0] <= CUDA_FEW_ROWS;
}

static void add_matrix(experts_few *run, int m, const tensor *weight, const tensor *bias)
{
    run->weight[m] = weight->data;
    run->expert_pitch[m] = (uint32_t)weight->stride[0];
    run->row_pitch[m] = (uint32_t)weight->stride[1];
    if (!bias->rank) return;
    run->bias[m] = bias->data;
    run->bias_pitch[m] = bias->stride[0];
    run->bias_type[m] = (int32_t)bias->type;
}

static experts_few arguments_of(const op_call *call)
{
    const tensor *t = call->tensors, *weight = &t[LINEAR_EXPERTS_WEIGHT];
    const tensor *residual = &t[LINEAR_EXPERTS_RESIDUAL], *x = &t[LINEAR_EXPERTS_X];
    const bool up = t[LINEAR_EXPERTS_UP_WEIGHT].rank;
    const int outputs = up ? EXPERTS_FEATURES / 2 : EXPERTS_FEATURES;
    const float limit = (float)call->params[LINEAR_EXPERTS_LIMIT];
    experts_few run = {
        .x = x->data,
        .ids = t[LINEAR_EXPERTS_IDS].data,
        .out = t[LINEAR_EXPERTS_OUT].data,
        .x_token = x->stride[0] / 4,
        .x_choice = x->stride[1] / 4,
        .ids_pitch = t[LINEAR_EXPERTS_IDS].stride[0] / 4,
        .out_token = t[LINEAR_EXPERTS_OUT].stride[0] / 4,
        .out_choice = t[LINEAR_EXPERTS_OUT].stride[1] / 4,
        .top_k = (int32_t)t[LINEAR_EXPERTS_IDS].shape[1],
        .x_rows = (int32_t)x->shape[1],
        .n_columns = (int32_t)weight->shape[2],
        .row_bytes = (int32_t)dtype_row_bytes(weight->type, weight->shape[2]),
        .n_features = (int32_t)weight->shape[1],
        .begin = (int32_t)call->begin,
        .end = (int32_t)call->end,
        .tiles = (int32_t)((call->end - call->begin + outputs - 1) / outputs),
        .n_steps = (int32_t)steps_of(call),
        .number_base = 0x43004300,
        .alpha = (float)call->params[LINEAR_EXPERTS_ALPHA],
        .limit = limit > 0 ? limit : INFINITY,
        .added = (float)call->params[LINEAR_EXPERTS_ADDED],
    };
    add_matrix(&run, 0, weight, &t[LINEAR_EXPERTS_BIAS]);
    if (up) {
        add_matrix(&run, 1, &t[LINEAR_EXPERTS_UP_WEIGHT], &t[LINEAR_EXPERTS_UP_BIAS]);
        return run;
    }
    run.shares = t[LINEAR_EXPERTS_SHARES].data;
    run.shares_pitch = t[LINEAR_EXPERTS_SHARES].stride[0] / 4;
    run.residual = residual->rank ? residual->data : NULL;
    run.residual_pitch = residual->rank ? residual->stride[0] / 4 : 0;
    return run;
}

/* `early`: after a launch that makes it so, see experts_few. */
static qp_status launch(cuda_ops *ops, const op_call *call, bool early, qp_error *error)
{
    experts_few run = arguments_of(call);
    const int64_t all = (int64_t)run.tiles * (run.weight[1] ? run.top_k : 1);
    const int most = ops->device->n_multiprocessors;
    run.early = early;
    cuda_start start = {.image = "experts_few",
                        .shared_most = ops->device->shared_bytes - CUDA_EXPERTS_STATIC,
                        .grid = {(unsigned)(all < most ? all : most),
                                 (unsigned)call->tensors[LINEAR_EXPERTS_X].shape[0], 1},
                        .threads = EXPERTS_WARPS * 32,
                        .shared_bytes = (unsigned)shared_bytes(call),
                        .cluster = 1};
    snprintf(start.name, sizeof start.name, "run_experts_%s_%s", run.weight[1] ? "up" : "down",
             dtype_name(call->tensors[LINEAR_EXPERTS_WEIGHT].type));
    return cuda_ops_start(ops, &start, CUDA_ARGUMENTS(CUDA_ARGUMENT(run)), error);
}

qp_status cuda_experts_few(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                           const cuda_forms *forms, qp_error *error)
{
    (void)kernel, (void)forms;
    return launch(ops, call, false, error);
}

bool cuda_experts_few_both_accepts(const cuda_ops *ops, const op_call *calls)
{
    return cuda_experts_are_both(calls) && cuda_experts_few_accepts(&calls[1]) &&
           cuda_experts_few_pays(ops, &calls[1]);
}

qp_status cuda_experts_few_both(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                qp_error *error)
{
    (void)forms;
    TRY(launch(ops, &calls[0], false, error));
    return launch(ops, &calls[1], true, error);
}
