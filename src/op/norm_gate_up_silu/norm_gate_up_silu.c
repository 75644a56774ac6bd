/* norm_gate_up_silu: the first half of the feed-forward network in one operator: out = silu(y
 * gate^T) * (y up^T) with y = rms_norm(x).
 *
 * A unit needs one row of each weight, so gate and up are never stored; every slice normalises the
 * rows again. Values in between are float64, so that the references of rms_norm, linear and
 * silu_and_mul do the work.
 */
#include "op/norm_gate_up_silu/norm_gate_up_silu.h"

#include "op/fused.h"
#include "op/silu_and_mul/silu_and_mul.h"

enum { TILE = 64 }; /* output features per tile */

static int64_t units(const op_call *call)
{
    return call->tensors[NORM_GATE_UP_SILU_GATE_WEIGHT].shape[0];
}

static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    if (t == NORM_GATE_UP_SILU_OUT) return (op_columns){begin, end};
    return (op_columns){0, call->tensors[NORM_GATE_UP_SILU_X].shape[1]};
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *x = &call->tensors[NORM_GATE_UP_SILU_X];
    TRY(fused_check_weight(x, &call->tensors[NORM_GATE_UP_SILU_GATE_WEIGHT], error));
    return fused_check_weight(x, &call->tensors[NORM_GATE_UP_SILU_UP_WEIGHT], error);
}

static size_t scratch_bytes(const op_call *call)
{
    return fused_norm_bytes(call->tensors[NORM_GATE_UP_SILU_X].shape[1]) +
           FUSED_ROWS * 2 * TILE * sizeof(double);
}

void norm_gate_up_silu_reference(const op_call *call)
{
    const tensor *x = &call->tensors[NORM_GATE_UP_SILU_X];     /* (n_tokens, hidden_size) */
    const tensor *out = &call->tensors[NORM_GATE_UP_SILU_OUT]; /* (n_tokens, intermediate_size) */
    fused_norm norm = fused_norm_make(x, &call->tensors[NORM_GATE_UP_SILU_NORM_WEIGHT],
                                      call->params[NORM_GATE_UP_SILU_EPS], call->scratch);
    double *sums = (double *)((char *)call->scratch + fused_norm_bytes(x->shape[1]));

    for (int64_t row = 0; row < out->shape[0]; row += FUSED_ROWS) {
        int64_t count = out->shape[0] - row < FUSED_ROWS ? out->shape[0] - row : FUSED_ROWS;
        fused_norm_rows(&norm, row, count, NULL);
        for (int64_t first = call->begin; first < call->end; first += TILE) {
            int64_t end = first + TILE < call->end ? first + TILE : call->end, n = end - first;
            tensor both = tensor_2d(sums, DTYPE_F64, count, 2 * n);
            fused_norm_project(&norm, count, &call->tensors[NORM_GATE_UP_SILU_GATE_WEIGHT],
                               &call->tensors[NORM_GATE_UP_SILU_GATE_BIAS], first, end,
                               tensor_slice(both, 1, 0, n));
            fused_norm_project(&norm, count, &call->tensors[NORM_GATE_UP_SILU_UP_WEIGHT],
                               &call->tensors[NORM_GATE_UP_SILU_UP_BIAS], first, end,
                               tensor_slice(both, 1, n, n));
            op_call silu = {.end = count * n, .params[SILU_AND_MUL_ALPHA] = 1};
            silu.tensors[SILU_AND_MUL_X] = both;
            silu.tensors[SILU_AND_MUL_OUT] =
                tensor_slice(tensor_slice(*out, 0, row, count), 1, first, n);
            silu_and_mul_reference(&silu);
        }
    }
}

static const char *const cases[] = {
    "n_tokens=1 hidden_size=64 intermediate_size=48 gate_bias:- up_bias:-",
    "n_tokens=7 hidden_size=111 intermediate_size=19 gate_bias:- up_bias:-",
    "n_tokens=19 hidden_size=96 intermediate_size=70 gate_weight:BF16 up_weight:BF16",
    "n_tokens=2 hidden_size=256 intermediate_size=33 x:F16 norm_weight:F16 gate_weight:F16 "
    "up_weight:F16 out:F16",
    "n_tokens=3 hidden_size=160 intermediate_size=40 gate_weight:Q8_0 up_weight:Q4_0 gate_bias:- "
    "up_bias:- x+16 out+8",
    "n_tokens=1 hidden_size=512 intermediate_size=24 gate_weight:Q4_K up_weight:Q6_K gate_bias:- "
    "up_bias:-",
    "n_tokens=1 hidden_size=192 intermediate_size=80 gate_weight:Q4_1 up_weight:Q4_1 gate_bias:- "
    "up_bias:- eps=0.25",
    "n_tokens=0 hidden_size=64 intermediate_size=8 gate_bias:- up_bias:-",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=1 hidden_size=4096 intermediate_size=14336 gate_weight:BF16 "
    "up_weight:BF16 gate_bias:- up_bias:-",
    "llama-3.2-1b: n_tokens=1 hidden_size=2048 intermediate_size=8192 gate_weight:BF16 "
    "up_weight:BF16 gate_bias:- up_bias:-",
    "internlm2-1.8b: n_tokens=8 hidden_size=2048 intermediate_size=8192 gate_weight:BF16 "
    "up_weight:BF16 gate_bias:- up_bias:-",
    "smollm2-135m: n_tokens=1 hidden_size=576 intermediate_size=1536 gate_weight:Q4_1 "
    "up_weight:Q4_1 gate_bias:- up_bias:-",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_norm_gate_up_silu = {
    .name = "norm_gate_up_silu",
    .summary = "norm, gate and up projections and their activation in one",
    .place = "ffn_up of the fused plan: ffn_norm, ffn_up and activation without a worker waiting "
             "for another in between.",
    .formula = "y[t, i] = x[t, i] / sqrt(sum_j x[t, j]^2 / hidden_size + eps) * norm_weight[i], g "
               "= sum_i y[t, i] * gate_weight[o, i] + gate_bias[o], u = sum_i y[t, i] * "
               "up_weight[o, i] + up_bias[o]: out[t, o] = g / (1 + exp(-g)) * u",
    .precision = "The normalised row, g and u are not rounded below float32; weights are decoded "
                 "exactly as their format defines; products are summed in float32 or wider, one "
                 "rounding to the type of out. The sum's order depends only on hidden_size.",
    .edge_cases = "Large gates, of either sign, must not overflow: the limits are g and 0. No "
                  "tokens: nothing is written.",
    .source = "rms_norm, linear and silu_and_mul, fused",
    .unit = "an output feature (a row of either weight), for all tokens",
    .flops = "n_tokens * (4 * hidden_size + intermediate_size * (4 * hidden_size + 5))",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows of x"},
             {"hidden_size", AXIS_CONSTANT, "elements of a row of x"},
             {"intermediate_size", AXIS_CONSTANT, "elements of a row of out"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_tokens, hidden_size", false, "rows may be strided"},
                {"norm_weight", OP_IN, OP_FLOATS, "hidden_size", false,
                 "scale of each element of a normalised row"},
                {"gate_weight", OP_IN, OP_WEIGHTS, "intermediate_size, hidden_size", false,
                 "row-major, a row is whole blocks of its type; rows may be strided"},
                {"up_weight", OP_IN, OP_WEIGHTS, "intermediate_size, hidden_size", false,
                 "as gate_weight, of the same type or another"},
                {"gate_bias", OP_IN, OP_FLOATS, "intermediate_size", true, "absent: zeros"},
                {"up_bias", OP_IN, OP_FLOATS, "intermediate_size", true, "absent: zeros"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, intermediate_size", false,
                 "rows may be strided; must not overlap x"}},
    .params = {{"eps", PARAM_FLOAT, 1e-5, "added to the mean square"}},
    .grain = 32,
    .units = units,
    .columns = columns,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .reference = norm_gate_up_silu_reference,
    .variants = norm_gate_up_silu_variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "hidden_size",
    .fills = OP_FILL_NAN,
};
