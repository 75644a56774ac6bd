/* scale: a matrix times a number; its values may then be bounded smoothly.
 *
 * Some families multiply embeddings, attention's output or logits by a number of their own, and
 * Gemma 2 bounds its logits.
 */
#include "op/scale/scale.h"

#include "op/cuda_ops.h"
#include "op/element.h"
#include "op/row.h"
#include "op/variants.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return tensor_elements(&call->tensors[SCALE_OUT]);
}

static qp_status check(const op_call *call, qp_error *error)
{
    const double factor = call->params[SCALE_FACTOR], cap = call->params[SCALE_SOFT_CAP];
    if (isfinite(factor) && cap >= 0 && isfinite(cap)) return QP_OK;
    return error_set(error, QP_INVALID,
                     "scale: factor must be finite and soft_cap positive, or 0 for none, found %g "
                     "and %g",
                     factor, cap);
}

void scale_reference(const op_call *call)
{
    const tensor *x = &call->tensors[SCALE_X];     /* (n_rows, n_columns) */
    const tensor *out = &call->tensors[SCALE_OUT]; /* (n_rows, n_columns) */
    const double factor = call->params[SCALE_FACTOR], cap = call->params[SCALE_SOFT_CAP];

    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, out->shape[1]);
        const void *from = tensor_row(x, span.row);
        void *to = tensor_row(out, span.row);
        for (int64_t i = span.first; i < span.first + span.count; i++) {
            double value = element_load(x->type, from, i) * factor;
            element_store(out->type, to, i, cap > 0 ? cap * tanh(value / cap) : value);
        }
        unit += span.count;
    }
}

OP_SIMD_TABLE(scale, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_rows=1 n_columns=64 factor=12",
    "n_rows=19 n_columns=111 out=x factor=-0.22",
    "n_rows=3 n_columns=500 x:BF16 out:BF16 factor=33.94",
    "n_rows=5 n_columns=576 x:F16 out:F16 x+16 out+8 soft_cap=3",
    "n_rows=4 n_columns=33 out=x soft_cap=30 factor=0.5",
    "n_rows=0 n_columns=64",
    NULL,
};

static const char *const workloads[] = {
    "gemma3-1b: n_rows=1 n_columns=1152 factor=33.94",
    "gemma2-2b-logits: n_rows=1 n_columns=256000 soft_cap=30",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_scale = {
    .name = "scale",
    .summary = "a matrix times a number, then bounded by a soft cap",
    .place = "After embedding, before attn_output and ffn_down, and after lm_head in families with "
             "multipliers or a cap of their own: Gemma, Granite, Command-R.",
    .formula = "out[r, i] = v, or soft_cap * tanh(v / soft_cap) where soft_cap > 0; v = factor * "
               "x[r, i]",
    .precision = "float32 or wider, one rounding to the type of out.",
    .edge_cases = "out may be x. No rows: nothing is written.",
    .source = "Gemma Team: Gemma 2, 2024; transformers GraniteModel",
    .unit = "an element of out: row * n_columns + column",
    .flops = "n_rows * n_columns",
    .axes = {{"n_rows", AXIS_VARIABLE, "rows"}, {"n_columns", AXIS_CONSTANT, "elements in a row"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_rows, n_columns", false, "rows may be strided"},
                {"out", OP_OUT, OP_FLOATS, "n_rows, n_columns", false,
                 "rows may be strided; may be x"}},
    .params = {{"factor", PARAM_FLOAT, 1, "what every element is multiplied by"},
               {"soft_cap", PARAM_FLOAT, 0, "the bound of the results; 0: none"}},
    .grain = 4096,
    .units = units,
    .check = check,
    .reference = scale_reference,
    .variants = variants,
    .cuda = scale_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .fills = OP_FILL_HUGE | OP_FILL_NAN,
};
