/* exp: out = exp(scale * (x - max)), max per row: the second of softmax's three parts.
 *
 * The scale is applied to the difference, so the scores need not be scaled before their maximum is
 * taken. It must be positive, so that the maximum stays the maximum.
 */
#include "op/exp/exp.h"

#include "op/element.h"
#include "op/reduce_max/reduce_max.h"
#include "op/variants.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return call->tensors[EXP_X].shape[0];
}

static qp_status check(const op_call *call, qp_error *error)
{
    double scale = call->params[EXP_SCALE];
    if (scale > 0 && isfinite(scale)) return QP_OK;
    return error_set(error, QP_INVALID, "exp: scale must be positive, found %g", scale);
}

void exp_reference(const op_call *call)
{
    const tensor *x = &call->tensors[EXP_X];     /* (n_rows, n_columns) */
    const tensor *max = &call->tensors[EXP_MAX]; /* (n_rows) */
    const tensor *out = &call->tensors[EXP_OUT]; /* (n_rows, n_columns) */
    double scale = call->params[EXP_SCALE];
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        void *to = tensor_row(out, row);
        double largest = element_load(max->type, max->data, row);
        for (int64_t i = 0; i < x->shape[1]; i++) {
            double value = element_load(x->type, in, i);
            double power = value == -INFINITY ? 0 : exp(scale * (value - largest));
            element_store(out->type, to, i, power);
        }
    }
}

/* The row's own maximum: with another value the result could overflow. */
static void prepare(op_call *call, uint64_t seed)
{
    (void)seed;
    op_call reduce = {.end = units(call)};
    reduce.tensors[REDUCE_MAX_X] = call->tensors[EXP_X];
    reduce.tensors[REDUCE_MAX_MAX] = call->tensors[EXP_MAX];
    reduce_max_reference(&reduce);
}

OP_SIMD_TABLE(exp, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_rows=1 n_columns=64",
    "n_rows=19 n_columns=111 scale=0.125",
    "n_rows=3 n_columns=500 x:BF16 max:BF16 out:BF16",
    "n_rows=5 n_columns=1024 x:F16 out:F16 x+16 out+8",
    "n_rows=7 n_columns=33 out=x",
    "n_rows=34 n_columns=1",
    "n_rows=0 n_columns=64",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.2-1b: n_rows=32 n_columns=2048 scale=0.125",
    "internlm2-1.8b: n_rows=16 n_columns=2048 scale=0.08838834764831845",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_exp = {
    .name = "exp",
    .summary = "exponential of each element's scaled distance from its row's maximum",
    .place = "The second of softmax's three parts, between reduce_max and normalize.",
    .formula = "out[r, i] = exp(scale * (x[r, i] - max[r]))",
    .precision = "float32 arithmetic, one rounding to the type of out. The difference is taken "
                 "before the scale: it is exact where it matters, near the maximum.",
    .edge_cases = "An element of minus infinity gives 0, also where the maximum is minus infinity "
                  "(a row that is masked everywhere). out may be x.",
    .source = "The ElementwiseExp slice of a traced Llama-3.2-1B",
    .unit = "a row",
    .flops = "3 * n_rows * n_columns",
    .axes = {{"n_rows", AXIS_VARIABLE, "rows"}, {"n_columns", AXIS_VARIABLE, "elements in a row"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_rows, n_columns", false, "scores; may be strided"},
                {"max", OP_IN, OP_FLOATS, "n_rows", false, "the maximum of each row of x"},
                {"out", OP_OUT, OP_FLOATS, "n_rows, n_columns", false, "may be x"}},
    .params = {{"scale", PARAM_FLOAT, 1, "positive factor of the difference: 1 / sqrt(head_dim)"}},
    .units = units,
    .check = check,
    .prepare = prepare,
    .reference = exp_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY,
};
