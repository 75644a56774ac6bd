/* norm_linear: normalises the wanted rows of x and multiplies them by a weight: the LM head in one
 * operator.
 *
 * Every slice normalises the rows again, which costs less than waiting for another worker to do it.
 * Rows in between are float64, so that the references of rms_norm and linear do the work.
 */
#include "op/norm_linear/norm_linear.h"

#include "base/hash.h"
#include "op/fixed.h"
#include "op/fused.h"
#include "op/row.h"

enum { TILE = 64 }; /* output features per tile */

static int64_t units(const op_call *call)
{
    return call->tensors[NORM_LINEAR_WEIGHT].shape[0];
}

static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    if (t == NORM_LINEAR_OUT) return (op_columns){begin, end};
    return (op_columns){0, t == NORM_LINEAR_ROWS ? 1 : call->tensors[NORM_LINEAR_X].shape[1]};
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *x = &call->tensors[NORM_LINEAR_X], *rows = &call->tensors[NORM_LINEAR_ROWS];
    int64_t n_outputs = call->tensors[NORM_LINEAR_OUT].shape[0];
    TRY(fused_check_weight(x, &call->tensors[NORM_LINEAR_WEIGHT], error));
    if (!rows->rank && x->shape[0] != n_outputs)
        return error_set(error, QP_INVALID,
                         "norm_linear: without rows there must be as many rows of out as of x, "
                         "found %lld and %lld",
                         (long long)n_outputs, (long long)x->shape[0]);
    const int32_t *row = rows->rank ? rows->data : NULL;
    for (int64_t i = 0; row && i < n_outputs; i++) {
        if (row[i] < 0 || row[i] >= x->shape[0])
            return error_set(error, QP_INVALID,
                             "norm_linear: rows[%lld] = %d is outside the %lld rows of x",
                             (long long)i, row[i], (long long)x->shape[0]);
    }
    return QP_OK;
}

static void prepare(op_call *call, uint64_t seed)
{
    const tensor *rows = &call->tensors[NORM_LINEAR_ROWS], *x = &call->tensors[NORM_LINEAR_X];
    if (x->type == DTYPE_I64) fixed_fill(x, true, seed);
    if (!rows->rank) return;
    uint64_t n_rows = (uint64_t)call->tensors[NORM_LINEAR_X].shape[0];
    int32_t *row = rows->data;
    for (int64_t i = 0; i < rows->shape[0]; i++)
        row[i] = n_rows ? (int32_t)(hash_random(seed, 0, (uint64_t)i) % n_rows) : 0;
}

static size_t scratch_bytes(const op_call *call)
{
    return fused_norm_bytes(call->tensors[NORM_LINEAR_X].shape[1]) +
           FUSED_ROWS * TILE * sizeof(double);
}

void norm_linear_reference(const op_call *call)
{
    const tensor *x = &call->tensors[NORM_LINEAR_X];       /* (n_rows, hidden_size) */
    const tensor *rows = &call->tensors[NORM_LINEAR_ROWS]; /* (n_outputs) */
    const tensor *out = &call->tensors[NORM_LINEAR_OUT];   /* (n_outputs, out_features) */
    fused_norm norm = fused_norm_make(x, &call->tensors[NORM_LINEAR_NORM_WEIGHT],
                                      call->params[NORM_LINEAR_EPS], call->scratch);
    double *sums = (double *)((char *)call->scratch + fused_norm_bytes(x->shape[1]));

    for (int64_t row = 0; row < out->shape[0]; row += FUSED_ROWS) {
        int64_t count = out->shape[0] - row < FUSED_ROWS ? out->shape[0] - row : FUSED_ROWS;
        fused_norm_rows(&norm, row, count, rows->rank ? rows->data : NULL);
        for (int64_t first = call->begin; first < call->end; first += TILE) {
            int64_t end = first + TILE < call->end ? first + TILE : call->end;
            tensor tile = tensor_2d(sums, DTYPE_F64, count, end - first);
            fused_norm_project(&norm, count, &call->tensors[NORM_LINEAR_WEIGHT],
                               &call->tensors[NORM_LINEAR_BIAS], first, end, tile);
            for (int64_t i = 0; i < count; i++) {
                tensor to = tensor_slice(tensor_slice(*out, 0, row + i, 1), 1, first, end - first);
                row_store(to.type, to.data, end - first, tensor_row(&tile, i));
            }
        }
    }
}

static const char *const cases[] = {
    "n_rows=1 n_outputs=1 hidden_size=64 out_features=48 rows:- bias:-",
    "n_rows=7 n_outputs=3 hidden_size=111 out_features=19 bias:-",
    "n_rows=3 n_outputs=20 hidden_size=96 out_features=70 weight:BF16",
    "n_rows=5 n_outputs=2 hidden_size=256 out_features=33 weight:F16 norm_weight:F16 x:F16 out:F16",
    "n_rows=4 n_outputs=1 hidden_size=160 out_features=40 weight:Q8_0 bias:- x+16 out+8",
    "n_rows=2 n_outputs=2 hidden_size=512 out_features=17 weight:Q6_K bias:-",
    "n_rows=2 n_outputs=1 hidden_size=192 out_features=24 weight:Q4_1 bias:- eps=0.25",
    "n_rows=5 n_outputs=3 hidden_size=96 out_features=40 x:I64 weight:BF16 bias:- x+8",
    "n_rows=1 n_outputs=1 hidden_size=64 out_features=33 x:I64 rows:- weight:Q8_0",
    "n_rows=4 n_outputs=0 hidden_size=64 out_features=8 bias:-",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_rows=1 n_outputs=1 hidden_size=4096 out_features=128256 weight:BF16 bias:-",
    "llama-3.2-1b: n_rows=1 n_outputs=1 hidden_size=2048 out_features=128256 weight:BF16 bias:-",
    "internlm2-1.8b: n_rows=8 n_outputs=8 hidden_size=2048 out_features=92544 weight:BF16 bias:-",
    "smollm2-135m: n_rows=1 n_outputs=1 hidden_size=576 out_features=49152 weight:Q8_0 bias:-",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_norm_linear = {
    .name = "norm_linear",
    .summary = "chosen rows normalised and projected: final norm and LM head in one",
    .place = "lm_head of the fused plan: the rows whose logits are wanted are gathered, normalised "
             "and multiplied by the vocabulary's weight; no worker waits for another's norm.",
    .formula = "h = x[rows[r]] (x[r] without rows), y[i] = h[i] / sqrt(sum_j h[j]^2 / hidden_size "
               "+ eps) * norm_weight[i]: out[r, o] = sum_i y[i] * weight[o, i] + bias[o]",
    .precision = "The normalised row is not rounded below float32; weights are decoded exactly as "
                 "their format defines; products are summed in float32 or wider, one rounding to "
                 "the type of out. The sum's order depends only on hidden_size.",
    .edge_cases = "rows may repeat, in any order. No rows of out: nothing is written.",
    .source = "rms_norm and linear, fused",
    .unit = "an output feature (a weight row), for all rows of out",
    .flops = "n_outputs * hidden_size * (4 + 2 * out_features)",
    .bytes = "n_outputs * (hidden_size * sizeof_x + out_features * sizeof_out) + hidden_size * "
             "out_features * sizeof_weight",
    .axes = {{"n_rows", AXIS_VARIABLE, "rows of x"},
             {"hidden_size", AXIS_CONSTANT, "elements of a row of x"},
             {"n_outputs", AXIS_VARIABLE, "rows of out"},
             {"out_features", AXIS_CONSTANT, "rows of the weight, elements of a row of out"}},
    .tensors = {{"x", OP_IN, OP_FLOATS | OP_TYPE(I64), "n_rows, hidden_size", false,
                 "rows may be strided; I64: in fixed point (op/fixed.h)"},
                {"rows", OP_IN, OP_TYPE(I32), "n_outputs", true,
                 "which row of x makes each row of out; absent: its own"},
                {"norm_weight", OP_IN, OP_FLOATS, "hidden_size", false,
                 "scale of each element of a normalised row"},
                {"weight", OP_IN, OP_WEIGHTS, "out_features, hidden_size", false,
                 "row-major, a row is whole blocks of its type; rows may be strided"},
                {"bias", OP_IN, OP_FLOATS, "out_features", true, "absent: zeros"},
                {"out", OP_OUT, OP_FLOATS, "n_outputs, out_features", false,
                 "rows may be strided; must not overlap x"}},
    .params = {{"eps", PARAM_FLOAT, 1e-5, "added to the mean square"}},
    .grain = 32,
    .units = units,
    .columns = columns,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = norm_linear_reference,
    .variants = norm_linear_variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "hidden_size",
    .fills = OP_FILL_NAN,
};
