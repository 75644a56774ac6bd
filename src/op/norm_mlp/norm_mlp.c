/* norm_mlp: the feed-forward network in one operator: x_out += x + (silu(y gate^T) * (y up^T))
 * down^T with y = rms_norm(x).
 *
 * A unit is a feature between the projections: its rows of gate and up, and its column of down,
 * which adds to every element of x_out. So no worker waits between up and down. The contribution of
 * a feature is rounded to fixed point on its own, so the sums do not depend on how features are
 * cut. The slices also add the old residual in shares: of `n` features, [begin, end) add the
 * elements [hidden_size * begin / n, hidden_size * end / n).
 */
#include "op/norm_mlp/norm_mlp.h"

#include "base/checked.h"
#include "op/element.h"
#include "op/fixed.h"
#include "op/fused.h"
#include "op/norm_gate_up_silu/norm_gate_up_silu.h"
#include "op/row.h"
#include "op/table.h"

#include <string.h>

static int64_t units(const op_call *call)
{
    return call->tensors[NORM_MLP_GATE_WEIGHT].shape[0];
}

static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    (void)t, (void)begin, (void)end;
    return (op_columns){0, call->tensors[NORM_MLP_X].shape[1]};
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *x = &call->tensors[NORM_MLP_X], *down = &call->tensors[NORM_MLP_DOWN_WEIGHT];
    TRY(fused_check_weight(x, &call->tensors[NORM_MLP_GATE_WEIGHT], error));
    TRY(fused_check_weight(x, &call->tensors[NORM_MLP_UP_WEIGHT], error));
    if (down->shape[1] % dtype_block_elements(down->type) == 0) return QP_OK;
    return error_set(error, QP_INVALID,
                     "norm_mlp: intermediate_size %lld is not whole blocks of %s",
                     (long long)down->shape[1], dtype_name(down->type));
}

static void prepare(op_call *call, uint64_t seed)
{
    fixed_fill(&call->tensors[NORM_MLP_X], true, seed);
    fixed_fill(&call->tensors[NORM_MLP_X_OUT], false, seed + 1);
}

/* A slice of a matrix's rows and of its bias. */
static void slice_features(op_call *silu, int weight, int bias, const op_call *call, int from,
                           int from_bias)
{
    int64_t n = call->end - call->begin;
    const tensor *b = &call->tensors[from_bias];
    silu->tensors[weight] = tensor_slice(call->tensors[from], 0, call->begin, n);
    if (b->rank) silu->tensors[bias] = tensor_slice(*b, 0, call->begin, n);
}

/* Computes the slice's features as norm_gate_up_silu does: F64 (n_tokens, end - begin). */
static op_call silu_call(const op_call *call, void *features, void *scratch)
{
    int64_t n = call->end - call->begin;
    op_call silu = {.end = n, .scratch = scratch};
    silu.tensors[NORM_GATE_UP_SILU_X] = call->tensors[NORM_MLP_X];
    silu.tensors[NORM_GATE_UP_SILU_NORM_WEIGHT] = call->tensors[NORM_MLP_NORM_WEIGHT];
    slice_features(&silu, NORM_GATE_UP_SILU_GATE_WEIGHT, NORM_GATE_UP_SILU_GATE_BIAS, call,
                   NORM_MLP_GATE_WEIGHT, NORM_MLP_GATE_BIAS);
    slice_features(&silu, NORM_GATE_UP_SILU_UP_WEIGHT, NORM_GATE_UP_SILU_UP_BIAS, call,
                   NORM_MLP_UP_WEIGHT, NORM_MLP_UP_BIAS);
    silu.tensors[NORM_GATE_UP_SILU_OUT] =
        tensor_2d(features, DTYPE_F64, call->tensors[NORM_MLP_X].shape[0], n);
    silu.params[NORM_GATE_UP_SILU_EPS] = call->params[NORM_MLP_EPS];
    return silu;
}

/* Features of all tokens, and a row of down while it is converted to float64. */
static size_t features_bytes(const op_call *call)
{
    return round_up((size_t)(call->tensors[NORM_MLP_X].shape[0] * units(call)) * sizeof(double),
                    64);
}

static size_t row_bytes(const op_call *call)
{
    return round_up((size_t)units(call) * (sizeof(double) + sizeof(float)), 64);
}

static size_t scratch_bytes(const op_call *call)
{
    op_call all = *call;
    all.begin = 0;
    all.end = units(call);
    op_call silu = silu_call(&all, NULL, NULL);
    return features_bytes(call) + row_bytes(call) + op_norm_gate_up_silu.scratch_bytes(&silu);
}

/* The slice's columns of a row of down, with the whole blocks around them; returns where they
 * begin. */
static const double *load_columns(const op_call *call, int64_t row, double *to)
{
    const tensor *down = &call->tensors[NORM_MLP_DOWN_WEIGHT];
    int64_t block = dtype_block_elements(down->type), first = call->begin / block * block;
    int64_t last = (call->end + block - 1) / block * block;
    tensor part = tensor_slice(tensor_slice(*down, 0, row, 1), 1, first, last - first);
    row_decode(down->type, part.data, last - first, (float *)(to + units(call)), to);
    return to + call->begin - first;
}

/* What the slice adds to element `at` of a token's row. */
static int64_t contribution(const op_call *call, int64_t token, int64_t at, const double *down,
                            const double *features)
{
    const tensor *x = &call->tensors[NORM_MLP_X], *bias = &call->tensors[NORM_MLP_DOWN_BIAS];
    int64_t all = units(call), hidden_size = x->shape[1], sum = 0;
    for (int64_t i = 0; i < call->end - call->begin; i++)
        sum += fixed_from(down[i] * features[i]);
    if (at < hidden_size * call->begin / all || at >= hidden_size * call->end / all) return sum;
    if (bias->rank) sum += fixed_from(element_load(bias->type, bias->data, at));
    return sum + fixed_value(((const int64_t *)tensor_row(x, token))[at]);
}

void norm_mlp_reference(const op_call *call)
{
    const tensor *out = &call->tensors[NORM_MLP_X_OUT]; /* (n_tokens, hidden_size) */
    char *row = (char *)call->scratch + features_bytes(call);
    if (call->begin == call->end || out->shape[0] == 0) return;
    op_call silu = silu_call(call, call->scratch, row + row_bytes(call));
    norm_gate_up_silu_reference(&silu);
    const tensor *features = &silu.tensors[NORM_GATE_UP_SILU_OUT];

    for (int64_t at = 0; at < out->shape[1]; at++) {
        const double *down = load_columns(call, at, (double *)(void *)row);
        for (int64_t t = 0; t < out->shape[0]; t++)
            fixed_add((int64_t *)tensor_row(out, t) + at,
                      contribution(call, t, at, down, tensor_row(features, t)));
    }
}

static const char *const cases[] = {
    "n_tokens=1 hidden_size=64 intermediate_size=48 gate_bias:- up_bias:- down_bias:-",
    "n_tokens=7 hidden_size=111 intermediate_size=19 gate_bias:- up_bias:- down_bias:-",
    "n_tokens=19 hidden_size=96 intermediate_size=70 gate_weight:BF16 up_weight:BF16 "
    "down_weight:BF16",
    "n_tokens=2 hidden_size=256 intermediate_size=33 norm_weight:F16 gate_weight:F16 "
    "up_weight:F16 down_weight:F16 up_bias:-",
    "n_tokens=3 hidden_size=160 intermediate_size=64 gate_weight:Q8_0 up_weight:Q4_0 "
    "down_weight:Q8_0 gate_bias:- up_bias:- x+16 x_out+8",
    "n_tokens=1 hidden_size=256 intermediate_size=256 gate_weight:Q4_K up_weight:Q6_K "
    "down_weight:Q6_K gate_bias:- up_bias:- down_bias:-",
    "n_tokens=1 hidden_size=5 intermediate_size=80 gate_bias:- up_bias:- eps=0.25",
    "n_tokens=0 hidden_size=64 intermediate_size=8 gate_bias:- up_bias:- down_bias:-",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=1 hidden_size=4096 intermediate_size=14336 gate_weight:BF16 "
    "up_weight:BF16 down_weight:BF16 gate_bias:- up_bias:- down_bias:-",
    "llama-3.2-1b: n_tokens=1 hidden_size=2048 intermediate_size=8192 gate_weight:BF16 "
    "up_weight:BF16 down_weight:BF16 gate_bias:- up_bias:- down_bias:-",
    "smollm2-135m: n_tokens=1 hidden_size=576 intermediate_size=1536 gate_weight:Q8_0 "
    "up_weight:Q8_0 down_weight:Q8_0 gate_bias:- up_bias:- down_bias:-",
    NULL,
};

/* Of slices that are rounded together, and features in float32. */
static const op_tolerance tolerances[] = {{DTYPE_I64, 1e-5, 1e-5}, {0}};

const op_info op_norm_mlp = {
    .name = "norm_mlp",
    .summary = "norm and the whole feed-forward network, added to x",
    .place = "ffn of the plan of sums: ffn_norm, ffn_up, activation and ffn_down without a worker "
             "waiting for another in between.",
    .formula = "y[t, i] = x[t, i] / sqrt(sum_j x[t, j]^2 / hidden_size + eps) * norm_weight[i], g "
               "= sum_i y[t, i] * gate_weight[m, i] + gate_bias[m], u = sum_i y[t, i] * "
               "up_weight[m, i] + up_bias[m], h[m] = g / (1 + exp(-g)) * u: x_out[t, f] += x[t, f] "
               "+ round(2^32 * down_bias[f]) + sum_m round(2^32 * h[m] * down_weight[f, m])",
    .precision = "h is not rounded below float32. What a feature adds is rounded by itself, or "
                 "that of a slice of features together, to fixed point with 32 bits after the "
                 "point (op/fixed.h). Sums of integers are the same in any order. Counts on top of "
                 "x are not handed on.",
    .edge_cases = "What is NaN adds 0. No tokens: nothing is written.",
    .source = "norm_gate_up_silu and linear, fused by features in between",
    .unit = "a feature between up and down, for all tokens; of n units, [begin, end) bring the "
            "elements [hidden_size * begin / n, hidden_size * end / n) of x and down_bias along",
    .flops = "n_tokens * (4 * hidden_size + intermediate_size * (6 * hidden_size + 5))",
    .bytes = "intermediate_size * hidden_size * (sizeof_gate_weight + sizeof_up_weight + "
             "sizeof_down_weight) + n_tokens * hidden_size * 24",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows of x"},
             {"hidden_size", AXIS_CONSTANT, "elements of a row of x"},
             {"intermediate_size", AXIS_CONSTANT, "features between up and down"}},
    .tensors = {{"x", OP_IN, OP_TYPE(I64), "n_tokens, hidden_size", false,
                 "the residual, fixed point; rows may be strided"},
                {"norm_weight", OP_IN, OP_FLOATS, "hidden_size", false,
                 "scale of each element of a normalised row"},
                {"gate_weight", OP_IN, OP_WEIGHTS, "intermediate_size, hidden_size", false,
                 "row-major, a row is whole blocks of its type; rows may be strided"},
                {"up_weight", OP_IN, OP_WEIGHTS, "intermediate_size, hidden_size", false,
                 "as gate_weight, of the same type or another"},
                {"down_weight", OP_IN, OP_WEIGHTS, "hidden_size, intermediate_size", false,
                 "as gate_weight; a unit is a column of it"},
                {"gate_bias", OP_IN, OP_FLOATS, "intermediate_size", true, "absent: zeros"},
                {"up_bias", OP_IN, OP_FLOATS, "intermediate_size", true, "absent: zeros"},
                {"down_bias", OP_IN, OP_FLOATS, "hidden_size", true, "absent: zeros"},
                {"x_out", OP_ACCUMULATE, OP_TYPE(I64), "n_tokens, hidden_size", false,
                 "sums in fixed point; must not overlap x"}},
    .params = {{"eps", PARAM_FLOAT, 1e-5, "added to the mean square"}},
    .units = units,
    .columns = columns,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = norm_mlp_reference,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
};
