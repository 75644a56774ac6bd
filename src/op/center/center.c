/* center: each row less its mean. rms_norm of that is layer_norm without a bias. */
#include "op/center/center.h"

#include "op/element.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    return call->tensors[CENTER_X].shape[0];
}

void center_reference(const op_call *call)
{
    const tensor *x = &call->tensors[CENTER_X];     /* (n_rows, n_columns) */
    const tensor *out = &call->tensors[CENTER_OUT]; /* (n_rows, n_columns) */
    const int64_t n = x->shape[1];
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += element_load(x->type, in, i);
        for (int64_t i = 0; i < n; i++)
            element_store(out->type, tensor_row(out, row), i,
                          element_load(x->type, in, i) - sum / (double)n);
    }
}

OP_SIMD8_TABLE(center, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_rows=1 n_columns=64",
    "n_rows=19 n_columns=111",
    "n_rows=3 n_columns=500 x:BF16 out:BF16",
    "n_rows=5 n_columns=1024 x:F16 out:F16 x+16 out+8",
    "n_rows=7 n_columns=33 out=x",
    "n_rows=34 n_columns=1",
    "n_rows=0 n_columns=64",
    NULL,
};

static const char *const workloads[] = {
    "command-r7b: n_rows=512 n_columns=4096",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 2e-6}, {DTYPE_F16, 1e-3, 2e-3}, {DTYPE_BF16, 8e-3, 1.6e-2}, {0}};

const op_info op_center = {
    .name = "center",
    .summary = "each row less its mean",
    .place = "Before rms_norm in families whose norms subtract means (layer norms): Command-R7B.",
    .formula = "out[r, i] = x[r, i] - mean_j x[r, j]",
    .precision = "float32 or wider, one rounding to the type of out.",
    .edge_cases = "out may be x. No rows: nothing is written.",
    .source = "Ba et al.: Layer Normalization, 2016; transformers Cohere2LayerNorm",
    .unit = "a row",
    .flops = "2 * n_rows * n_columns",
    .axes = {{"n_rows", AXIS_VARIABLE, "rows"}, {"n_columns", AXIS_CONSTANT, "elements in a row"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_rows, n_columns", false, "rows may be strided"},
                {"out", OP_OUT, OP_FLOATS, "n_rows, n_columns", false,
                 "rows may be strided; may be x"}},
    .units = units,
    .reference = center_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "n_columns",
};
