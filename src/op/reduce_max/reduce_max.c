/* reduce_max: the largest element of each row, the first of softmax's three parts. */
#include "op/reduce_max/reduce_max.h"

#include "op/element.h"
#include "op/variants.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return call->tensors[REDUCE_MAX_X].shape[0];
}

void reduce_max_reference(const op_call *call)
{
    const tensor *x = &call->tensors[REDUCE_MAX_X];     /* (n_rows, n_columns) */
    const tensor *max = &call->tensors[REDUCE_MAX_MAX]; /* (n_rows) */
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        double largest = -INFINITY;
        for (int64_t i = 0; i < x->shape[1]; i++) {
            double value = element_load(x->type, in, i);
            if (value > largest) largest = value;
        }
        element_store(max->type, max->data, row, largest);
    }
}

OP_SIMD_TABLE(reduce_max, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_rows=1 n_columns=64",
    "n_rows=19 n_columns=111",
    "n_rows=3 n_columns=500 x:BF16 max:BF16",
    "n_rows=5 n_columns=1024 x:F16 x+16",
    "n_rows=34 n_columns=1",
    "n_rows=4 n_columns=0",
    "n_rows=0 n_columns=64",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.2-1b: n_rows=32 n_columns=2048",
    "internlm2-1.8b: n_rows=16 n_columns=2048",
    NULL,
};

const op_info op_reduce_max = {
    .name = "reduce_max",
    .summary = "the largest element of each row",
    .place = "The first of softmax's three parts: the row's maximum is subtracted before the "
             "exponential, so that none overflows.",
    .formula = "max[r] = max_i x[r, i]",
    .precision = "Exact: a maximum does not round; one rounding to the type of max.",
    .edge_cases = "NaN counts as minus infinity. A row without elements gives minus infinity.",
    .source = "The ReduceMax slice of a traced Llama-3.2-1B",
    .unit = "a row",
    .flops = "n_rows * n_columns",
    .axes = {{"n_rows", AXIS_VARIABLE, "rows"}, {"n_columns", AXIS_VARIABLE, "elements in a row"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_rows, n_columns", false, "rows may be strided"},
                {"max", OP_OUT, OP_FLOATS, "n_rows", false, "a maximum a row"}},
    .units = units,
    .reference = reduce_max_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
