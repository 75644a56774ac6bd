/* normalize: each row divided by its sum, the last of softmax's three parts. */
#include "op/normalize/normalize.h"

#include "op/element.h"
#include "op/variants.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return call->tensors[NORMALIZE_X].shape[0];
}

void normalize_reference(const op_call *call)
{
    const tensor *x = &call->tensors[NORMALIZE_X];     /* (n_rows, n_columns) */
    const tensor *out = &call->tensors[NORMALIZE_OUT]; /* (n_rows, n_columns) */
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        void *to = tensor_row(out, row);
        double sum = 0;
        for (int64_t i = 0; i < x->shape[1]; i++)
            sum += element_load(x->type, in, i);
        for (int64_t i = 0; i < x->shape[1]; i++)
            element_store(out->type, to, i, sum > 0 ? element_load(x->type, in, i) / sum : 0);
    }
}

/* Exponentials are not negative. */
static void prepare(op_call *call, uint64_t seed)
{
    (void)seed;
    const tensor *x = &call->tensors[NORMALIZE_X];
    for (int64_t row = 0; row < x->shape[0]; row++) {
        void *in = tensor_row(x, row);
        for (int64_t i = 0; i < x->shape[1]; i++)
            element_store(x->type, in, i, fabs(element_load(x->type, in, i)));
    }
}

OP_SIMD8_TABLE(normalize, .accepts = op_call_has_no_f64)

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
    "llama-3.2-1b: n_rows=32 n_columns=2048",
    "internlm2-1.8b: n_rows=16 n_columns=2048",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_normalize = {
    .name = "normalize",
    .summary = "each row divided by its sum",
    .place = "The last of softmax's three parts: exponentials become probabilities.",
    .formula = "out[r, i] = x[r, i] / sum_j x[r, j]",
    .precision = "float32 arithmetic, one rounding to the type of out.",
    .edge_cases = "Elements are not negative. A row whose sum is 0 (masked everywhere) gives "
                  "zeros. out may be x.",
    .source = "The Normalize slice of a traced Llama-3.2-1B",
    .unit = "a row",
    .flops = "2 * n_rows * n_columns",
    .axes = {{"n_rows", AXIS_VARIABLE, "rows"}, {"n_columns", AXIS_VARIABLE, "elements in a row"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_rows, n_columns", false, "not negative"},
                {"out", OP_OUT, OP_FLOATS, "n_rows, n_columns", false, "may be x"}},
    .units = units,
    .prepare = prepare,
    .reference = normalize_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "n_columns",
    .fills = OP_FILL_HUGE,
};
