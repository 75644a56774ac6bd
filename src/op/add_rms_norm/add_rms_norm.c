/* add_rms_norm: residual += x, x = rms_norm(residual), both in place, in one pass over memory.
 *
 * As in FlashInfer, the norm uses the sum before it is rounded to the residual's type. The row in
 * between is float64, so that the references of add and rms_norm do the work.
 */
#include "op/add_rms_norm/add_rms_norm.h"

#include "base/checked.h"
#include "op/add/add.h"
#include "op/rms_norm/rms_norm.h"
#include "op/row.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

static int64_t units(const op_call *call)
{
    return call->tensors[ADD_RMS_NORM_X].shape[0];
}

static size_t scratch_bytes(const op_call *call)
{
    return round_up((size_t)call->tensors[ADD_RMS_NORM_X].shape[1] * sizeof(double), 64);
}

void add_rms_norm_reference(const op_call *call)
{
    const tensor *x = &call->tensors[ADD_RMS_NORM_X];               /* (n_tokens, hidden_size) */
    const tensor *residual = &call->tensors[ADD_RMS_NORM_RESIDUAL]; /* (n_tokens, hidden_size) */
    int64_t hidden_size = x->shape[1];
    tensor sum = tensor_2d(call->scratch, DTYPE_F64, 1, hidden_size);

    for (int64_t row = call->begin; row < call->end; row++) {
        tensor x_row = tensor_slice(*x, 0, row, 1);
        tensor residual_row = tensor_slice(*residual, 0, row, 1);
        op_call add = {.end = hidden_size};
        add.tensors[ADD_A] = x_row;
        add.tensors[ADD_B] = residual_row;
        add.tensors[ADD_OUT] = sum;
        add_reference(&add);
        row_store(residual->type, residual_row.data, hidden_size, sum.data);

        op_call norm = {.end = 1};
        norm.tensors[RMS_NORM_X] = sum;
        norm.tensors[RMS_NORM_WEIGHT] = call->tensors[ADD_RMS_NORM_WEIGHT];
        norm.tensors[RMS_NORM_OUT] = x_row;
        norm.params[RMS_NORM_EPS] = call->params[ADD_RMS_NORM_EPS];
        rms_norm_reference(&norm);
    }
}

OP_SIMD_TABLE(add_rms_norm, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 hidden_size=64",
    "n_tokens=19 hidden_size=111",
    "n_tokens=3 hidden_size=500 x:BF16 residual:BF16 weight:BF16",
    "n_tokens=5 hidden_size=1024 x:F16 residual:F16 weight:F16 x+16 residual+8",
    "n_tokens=2 hidden_size=3072 x:BF16",
    "n_tokens=3 hidden_size=64 eps=0.25",
    "n_tokens=2 hidden_size=10240 x:BF16 weight:BF16",
    "n_tokens=528 hidden_size=2056 x:BF16 weight:F16",
    "n_tokens=0 hidden_size=64",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=1 hidden_size=4096 x:BF16 residual:BF16 weight:BF16",
    "llama-3.2-1b: n_tokens=1 hidden_size=2048 x:BF16 residual:BF16 weight:BF16",
    "internlm2-1.8b: n_tokens=512 hidden_size=2048 x:BF16 residual:BF16 weight:BF16",
    "smollm2-135m: n_tokens=512 hidden_size=576",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_add_rms_norm = {
    .name = "add_rms_norm",
    .summary = "residual sum and its root-mean-square normalisation, both in place",
    .place = "Every norm except a model's first: it adds the output of the previous half layer, "
             "keeps the sum as the new residual and passes its norm to the next linear.",
    .formula = "s[t, i] = x[t, i] + residual[t, i]; residual[t, i] <- s[t, i]; x[t, i] <- s[t, i] "
               "/ sqrt(sum_j s[t, j]^2 / hidden_size + eps) * weight[i]",
    .precision = "float32 or wider; s is rounded once into residual, and the norm, rounded once "
                 "into x, is that of s before rounding.",
    .edge_cases = "A row whose sum is zeros gives zeros. No rows: nothing is written.",
    .source = "FlashInfer fused_add_rmsnorm",
    .unit = "a row",
    .flops = "5 * n_tokens * hidden_size",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows"},
             {"hidden_size", AXIS_CONSTANT, "elements in a row"}},
    .tensors = {{"x", OP_INOUT, OP_FLOATS, "n_tokens, hidden_size", false,
                 "in: what to add; out: the norm; rows may be strided"},
                {"residual", OP_INOUT, OP_FLOATS, "n_tokens, hidden_size", false,
                 "becomes the sum; rows may be strided; must not overlap x"},
                {"weight", OP_IN, OP_FLOATS, "hidden_size", false, "scale of each element"}},
    .params = {{"eps", PARAM_FLOAT, 1e-5, "added to the mean square"}},
    .units = units,
    .scratch_bytes = scratch_bytes,
    .reference = add_rms_norm_reference,
    .variants = variants,
    .cuda = add_rms_norm_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "hidden_size",
    .fills = OP_FILL_HUGE | OP_FILL_NAN,
};
