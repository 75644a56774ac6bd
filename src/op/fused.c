/* Norms and products of fused references: see fused.h. */
#include "op/fused.h"

#include "base/checked.h"
#include "op/fixed.h"
#include "op/linear/linear.h"
#include "op/rms_norm/rms_norm.h"
#include "op/table.h"

static size_t rows_bytes(int64_t hidden_size)
{
    return round_up((size_t)(FUSED_ROWS * hidden_size) * sizeof(double), 64);
}

size_t fused_norm_bytes(int64_t hidden_size)
{
    op_call linear = {0};
    linear.tensors[LINEAR_X] = tensor_2d(NULL, DTYPE_F64, FUSED_ROWS, hidden_size);
    return rows_bytes(hidden_size) + op_linear.scratch_bytes(&linear);
}

fused_norm fused_norm_make(const tensor *x, const tensor *weight, double eps, void *scratch)
{
    int64_t hidden_size = x->shape[1];
    return (fused_norm){.x = x,
                        .weight = weight,
                        .eps = eps,
                        .rows = tensor_2d(scratch, DTYPE_F64, FUSED_ROWS, hidden_size),
                        .scratch = (char *)scratch + rows_bytes(hidden_size)};
}

void fused_norm_rows(const fused_norm *norm, int64_t first, int64_t count, const int32_t *which)
{
    for (int64_t i = 0; i < count; i++) {
        op_call call = {.end = 1};
        call.tensors[RMS_NORM_X] =
            tensor_slice(*norm->x, 0, which ? which[first + i] : first + i, 1);
        call.tensors[RMS_NORM_WEIGHT] = *norm->weight;
        call.tensors[RMS_NORM_OUT] = tensor_slice(norm->rows, 0, i, 1);
        if (norm->x->type == DTYPE_I64) {
            fixed_load(call.tensors[RMS_NORM_X].data, norm->x->shape[1],
                       call.tensors[RMS_NORM_OUT].data);
            call.tensors[RMS_NORM_X] = call.tensors[RMS_NORM_OUT];
        }
        call.params[RMS_NORM_EPS] = norm->eps;
        rms_norm_reference(&call);
    }
}

void fused_norm_project(const fused_norm *norm, int64_t count, const tensor *weight,
                        const tensor *bias, int64_t begin, int64_t end, tensor out)
{
    op_call call = {.end = end - begin, .scratch = norm->scratch};
    call.tensors[LINEAR_X] = tensor_slice(norm->rows, 0, 0, count);
    call.tensors[LINEAR_WEIGHT] = tensor_slice(*weight, 0, begin, end - begin);
    if (bias->rank) call.tensors[LINEAR_BIAS] = tensor_slice(*bias, 0, begin, end - begin);
    call.tensors[LINEAR_OUT] = out;
    linear_reference(&call);
}

qp_status fused_check_weight(const tensor *x, const tensor *weight, qp_error *error)
{
    op_call call = {0};
    call.tensors[LINEAR_X] = *x;
    call.tensors[LINEAR_WEIGHT] = *weight;
    return op_linear.check(&call, error);
}
