/* linear: out = x weight^T + bias + residual; a weight row makes an output feature.
 *
 * The reference decodes a few weight rows at a time to float64 and multiplies them with every row
 * of x, which is converted once per tile. The order of additions in a dot product depends only on
 * in_features, so a row's result has the same bits whatever the other rows are and however the
 * features are cut.
 */
#include "op/linear/linear.h"

#include "base/checked.h"
#include "op/element.h"
#include "op/row.h"
#include "op/cuda_ops.h"

enum { TILE = 8 }; /* weight rows decoded at a time: in L2 for the widest models, x reused 8-fold */

static int64_t units(const op_call *call)
{
    return call->tensors[LINEAR_WEIGHT].shape[0];
}

static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    if (t == LINEAR_RESIDUAL || t == LINEAR_OUT) return (op_columns){begin, end};
    return (op_columns){0, call->tensors[LINEAR_X].shape[1]};
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT];
    if (weight->shape[1] % dtype_block_elements(weight->type) == 0) return QP_OK;
    return error_set(error, QP_INVALID, "linear: in_features %lld is not whole blocks of %s",
                     (long long)weight->shape[1], dtype_name(weight->type));
}

/* A tile of weight rows and a row of x in float64, and a weight row in float32 while it is
 * converted. */
static size_t scratch_bytes(const op_call *call)
{
    size_t in_features = (size_t)call->tensors[LINEAR_X].shape[1] + 1; /* never NULL */
    return round_up(in_features * ((TILE + 1) * sizeof(double) + sizeof(float)), 64);
}

static double optional_load(const tensor *view, const void *row, int64_t i)
{
    return view->rank ? element_load(view->type, row, i) : 0;
}

/* Output features [first, first + count) of every row; w (count, in_features), x_row scratch. */
static void meet_tile(const op_call *call, int64_t first, int64_t count, const double *w,
                      double *x_row)
{
    const tensor *x = &call->tensors[LINEAR_X];
    const tensor *bias = &call->tensors[LINEAR_BIAS];
    const tensor *residual = &call->tensors[LINEAR_RESIDUAL];
    const tensor *out = &call->tensors[LINEAR_OUT];
    int64_t n_rows = x->shape[0], in_features = x->shape[1];

    for (int64_t row = 0; row < n_rows; row++) {
        row_load(x->type, tensor_row(x, row), in_features, x_row);
        const void *from = residual->rank ? tensor_row(residual, row) : NULL;
        void *to = tensor_row(out, row);
        for (int64_t i = 0; i < count; i++) {
            double sum = row_dot(w + i * in_features, x_row, in_features);
            sum += optional_load(bias, bias->data, first + i);
            sum += optional_load(residual, from, first + i);
            element_store(out->type, to, first + i, sum);
        }
    }
}

void linear_reference(const op_call *call)
{
    const tensor *weight = &call->tensors[LINEAR_WEIGHT]; /* (out_features, in_features) */
    int64_t in_features = weight->shape[1];
    double *w = call->scratch;                       /* (TILE, in_features) */
    double *x_row = w + TILE * in_features;          /* (in_features) */
    float *decoded = (float *)(x_row + in_features); /* (in_features) */

    for (int64_t first = call->begin; first < call->end; first += TILE) {
        int64_t count = call->end - first < TILE ? call->end - first : TILE;
        for (int64_t i = 0; i < count; i++)
            row_decode(weight->type, tensor_row(weight, first + i), in_features, decoded,
                       w + i * in_features);
        meet_tile(call, first, count, w, x_row);
    }
}

static const char *const cases[] = {
    "n_rows=1 in_features=64 out_features=48 bias:- residual:-",
    "n_rows=1 in_features=111 out_features=19 weight:F32 residual:-",
    "n_rows=7 in_features=500 out_features=33 weight:F16 bias:- x:F16 out:F16 residual:F16",
    "n_rows=3 in_features=576 out_features=40 weight:BF16 x:BF16 out:BF16 bias:- residual:-",
    "n_rows=19 in_features=256 out_features=64 weight:Q8_0 bias:- residual:- x+16 out+8",
    "n_rows=1 in_features=576 out_features=96 weight:Q4_1 bias:- residual:-",
    "n_rows=5 in_features=1536 out_features=24 weight:Q4_1 bias:-",
    "n_rows=2 in_features=160 out_features=30 weight:Q4_0 bias:- residual:-",
    "n_rows=2 in_features=160 out_features=30 weight:Q5_0 bias:- residual:-",
    "n_rows=2 in_features=160 out_features=30 weight:Q5_1 bias:- residual:-",
    "n_rows=2 in_features=512 out_features=17 weight:Q2_K bias:- residual:-",
    "n_rows=2 in_features=512 out_features=17 weight:Q3_K bias:- residual:-",
    "n_rows=2 in_features=512 out_features=17 weight:Q4_K bias:- residual:-",
    "n_rows=2 in_features=512 out_features=17 weight:Q5_K bias:- residual:-",
    "n_rows=2 in_features=512 out_features=17 weight:Q6_K",
    "n_rows=1 in_features=512 out_features=17 weight:IQ4_NL bias:- residual:-",
    "n_rows=2 in_features=512 out_features=17 weight:IQ4_XS bias:- residual:-",
    "n_rows=3 in_features=512 out_features=17 weight:NVFP4 bias:- residual:-",
    "n_rows=1 in_features=96 out_features=40 weight:MXFP4 residual:-",
    "n_rows=18 in_features=288 out_features=33 weight:MXFP4 bias:- residual:-",
    "n_rows=1 in_features=512 out_features=17 weight:TQ1_0 bias:- residual:-",
    "n_rows=2 in_features=512 out_features=17 weight:TQ2_0 bias:- residual:-",
    "n_rows=3 in_features=512 out_features=17 weight:IQ3_XXS bias:- residual:-",
    "n_rows=1 in_features=512 out_features=17 weight:IQ3_S bias:- residual:-",
    "n_rows=2 in_features=512 out_features=17 weight:IQ2_XXS bias:- residual:-",
    "n_rows=3 in_features=512 out_features=17 weight:IQ2_XS bias:- residual:-",
    "n_rows=1 in_features=512 out_features=17 weight:IQ2_S bias:- residual:-",
    "n_rows=2 in_features=512 out_features=17 weight:IQ1_S bias:- residual:-",
    "n_rows=3 in_features=512 out_features=17 weight:IQ1_M bias:- residual:-",
    "n_rows=20 in_features=544 out_features=70 weight:IQ4_NL",
    "n_rows=20 in_features=512 out_features=70 weight:IQ4_XS x:BF16 residual:BF16 bias:-",
    "n_rows=40 in_features=512 out_features=33 weight:IQ3_S",
    "n_rows=2 in_features=512 out_features=17 weight:F8_128 bias:- residual:-",
    "n_rows=1 in_features=640 out_features=97 weight:F8_128 bias:-",
    "n_rows=1 in_features=1152 out_features=30 weight:F8_128 residual:- x:BF16 out:BF16",
    "n_rows=11 in_features=384 out_features=70 weight:F8_128 bias:- residual:-",
    "n_rows=90 in_features=640 out_features=45 weight:F8_128",
    "n_rows=19 in_features=384 out_features=80 weight:F8_128 bias:-",
    "n_rows=70 in_features=512 out_features=144 weight:F8_128",
    "n_rows=6 in_features=96 out_features=33 weight:F16 bias:-",
    "n_rows=3 in_features=2112 out_features=41 weight:Q8_0 residual:-",
    "n_rows=8 in_features=2560 out_features=72 weight:Q4_K bias:- residual:-",
    "n_rows=11 in_features=2560 out_features=20 weight:Q6_K bias:- residual:-",
    "n_rows=64 in_features=288 out_features=50 weight:Q5_1",
    "n_rows=1 in_features=2048 out_features=48 weight:F32",
    "n_rows=1 in_features=832 out_features=16 weight:BF16 bias:-",
    "n_rows=5 in_features=1344 out_features=13 weight:F16 residual:-",
    "n_rows=30 in_features=544 out_features=40 weight:BF16 bias:- residual:-",
    "n_rows=300 in_features=288 out_features=8 weight:F32 bias:-",
    "n_rows=3 in_features=16 out_features=150 weight:BF16 residual:-",
    "n_rows=17 in_features=9 out_features=45 weight:BF16",
    "n_rows=9 in_features=520 out_features=127 weight:BF16 bias:-",
    "n_rows=64 in_features=1024 out_features=300 weight:BF16",
    "n_rows=200 in_features=64 out_features=140 weight:BF16 residual:-",
    "n_rows=130 in_features=136 out_features=260 weight:BF16 bias:- residual:-",
    "n_rows=1 in_features=544 out_features=70 weight:BF16 x:BF16 out:BF16 residual:BF16 bias:-",
    "n_rows=2 in_features=544 out_features=70 weight:F32 x:BF16 out:BF16 residual:BF16",
    "n_rows=1 in_features=512 out_features=33 weight:Q4_K x:BF16 out:BF16 bias:- residual:-",
    "n_rows=20 in_features=576 out_features=70 weight:Q4_0 x:BF16 out:BF16 residual:BF16 x+16",
    "n_rows=20 in_features=544 out_features=70 weight:F16 x:BF16 residual:BF16 bias:-",
    "n_rows=150 in_features=136 out_features=140 weight:BF16 x:BF16 out:BF16 residual:BF16 bias:-",
    "n_rows=0 in_features=64 out_features=8 bias:- residual:-",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b attn_qkv: n_rows=1 in_features=4096 out_features=6144 weight:BF16 bias:- "
    "residual:-",
    "llama-3.1-8b ffn_up: n_rows=1 in_features=4096 out_features=28672 weight:Q4_K bias:- "
    "residual:-",
    "llama-3.1-8b ffn_down: n_rows=512 in_features=14336 out_features=4096 weight:BF16 bias:-",
    "llama-3.2-1b ffn_up: n_rows=1 in_features=2048 out_features=16384 weight:BF16 bias:- "
    "residual:-",
    "llama-3.2-1b ffn_up: n_rows=1 in_features=2048 out_features=16384 weight:F8_128 bias:- "
    "residual:-",
    "llama-3.2-1b lm_head: n_rows=1 in_features=2048 out_features=128256 weight:BF16 bias:- "
    "residual:-",
    "internlm2-1.8b attn_output: n_rows=512 in_features=2048 out_features=2048 weight:BF16",
    "smollm2-135m attn_qkv: n_rows=1 in_features=576 out_features=960 weight:Q4_1 bias:- "
    "residual:-",
    "smollm2-135m ffn_down: n_rows=1 in_features=1536 out_features=576 weight:Q4_1 bias:-",
    "smollm2-135m lm_head: n_rows=1 in_features=576 out_features=49152 weight:Q8_0 bias:- "
    "residual:-",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_linear = {
    .name = "linear",
    .summary = "matrix product with a weight, plus optional bias and residual",
    .place = "attn_qkv, attn_output, ffn_up, ffn_down and lm_head: nearly all of a model's bytes "
             "and FLOPs. With few rows it is bound by reading the weight, with many by arithmetic.",
    .formula = "out[r, o] = sum_i x[r, i] * weight[o, i] + bias[o] + residual[r, o]",
    .precision = "Weights are decoded exactly as their format defines; products are summed in "
                 "float32 or wider, bias and residual are added before the one rounding to the "
                 "type of out. The sum's order depends only on in_features: a row's result does "
                 "not depend on n_rows.",
    .edge_cases = "out may be residual. No rows: nothing is written; no in_features: bias plus "
                  "residual.",
    .source = "torch.nn.functional.linear",
    .unit = "an output feature (a weight row), for all rows of x",
    .flops = "2 * n_rows * in_features * out_features",
    .axes = {{"n_rows", AXIS_VARIABLE, "rows of x"},
             {"in_features", AXIS_CONSTANT, "elements of a row of x"},
             {"out_features", AXIS_CONSTANT, "rows of the weight, elements of a row of out"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_rows, in_features", false, "rows may be strided"},
                {"weight", OP_IN, OP_WEIGHTS, "out_features, in_features", false,
                 "row-major, a row is whole blocks of its type; rows may be strided"},
                {"bias", OP_IN, OP_FLOATS, "out_features", true, "absent: zeros"},
                {"residual", OP_IN, OP_FLOATS, "n_rows, out_features", true,
                 "absent: zeros; rows may be strided"},
                {"out", OP_OUT, OP_FLOATS, "n_rows, out_features", false,
                 "rows may be strided; may be residual, must not overlap x"}},
    .grain = 32,
    .units = units,
    .columns = columns,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .reference = linear_reference,
    .variants = linear_variants,
    .cuda = linear_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "in_features",
    .fills = OP_FILL_NAN,
};
