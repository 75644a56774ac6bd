/* norm_linear from the variants of rms_norm and linear. */
#include "op/compose.h"
#include "op/norm_linear/norm_linear.h"
#include "op/table.h"

static const compose_norm norm_linear_norm = {.x = NORM_LINEAR_X,
                                              .norm_weight = NORM_LINEAR_NORM_WEIGHT,
                                              .eps = NORM_LINEAR_EPS,
                                              .weights = {NORM_LINEAR_WEIGHT},
                                              .biases = {NORM_LINEAR_BIAS},
                                              .n = 1};

static int64_t units(const op_call *call)
{
    return op_norm_linear.units(call);
}

static bool norm_linear_accepts(const op_call *call)
{
    return call->tensors[NORM_LINEAR_OUT].type == DTYPE_F32;
}

static size_t norm_linear_scratch(const op_call *call, uint32_t level)
{
    int64_t n_outputs = call->tensors[NORM_LINEAR_OUT].shape[0];
    return compose_scratch_bytes(call, &norm_linear_norm, n_outputs, level);
}

static void norm_linear_compute(const op_call *call, uint32_t level)
{
    const tensor *rows = &call->tensors[NORM_LINEAR_ROWS], *out = &call->tensors[NORM_LINEAR_OUT];
    compose_linear parts[COMPOSE_MOST];
    if (out->shape[0] == 0 || call->begin == call->end) return;
    compose_linears(call, &norm_linear_norm, level, parts);
    tensor normed = compose_rows(call, &norm_linear_norm, out->shape[0],
                                 rows->rank ? rows->data : NULL, level, call->scratch);
    compose_project(call, &parts[0], &normed, call->begin, call->end, out);
}

COMPOSE_VARIANTS(norm_linear, 32, compose_coarse_tolerances)
