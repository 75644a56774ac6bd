/* add_residual_rms_norm: residual += x + bias, out = norm(residual) * weight.
 *
 * A fusion of padded-batch engines, used after the output projection. add_rms_norm normalises in
 * place; this operator also adds the projection's bias, and leaves x as it is.
 */
#include "op/add_residual_rms_norm/add_residual_rms_norm.h"

#include "op/element.h"
#include "op/rms_norm/rms_norm.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    return call->tensors[ADD_RESIDUAL_RMS_NORM_X].shape[0];
}

/* A row of sums, not yet rounded. */
static size_t scratch_bytes(const op_call *call)
{
    return (size_t)call->tensors[ADD_RESIDUAL_RMS_NORM_X].shape[1] * sizeof(double);
}

void add_residual_rms_norm_reference(const op_call *call)
{
    const tensor *x = &call->tensors[ADD_RESIDUAL_RMS_NORM_X];       /* (n_tokens, hidden_size) */
    const tensor *bias = &call->tensors[ADD_RESIDUAL_RMS_NORM_BIAS]; /* (hidden_size) */
    const tensor *residual = &call->tensors[ADD_RESIDUAL_RMS_NORM_RESIDUAL]; /* as x */
    int64_t hidden_size = x->shape[1];
    double *sum = call->scratch;
    op_call norm = {.end = 1, .params = {[RMS_NORM_EPS] = call->params[ADD_RESIDUAL_RMS_NORM_EPS]}};
    norm.tensors[RMS_NORM_X] = tensor_2d(sum, DTYPE_F64, 1, hidden_size);
    norm.tensors[RMS_NORM_WEIGHT] = call->tensors[ADD_RESIDUAL_RMS_NORM_WEIGHT];

    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        void *kept = tensor_row(residual, row);
        for (int64_t i = 0; i < hidden_size; i++) {
            sum[i] = element_load(x->type, in, i) + element_load(residual->type, kept, i);
            if (bias->rank) sum[i] += element_load(bias->type, bias->data, i);
            element_store(residual->type, kept, i, sum[i]);
        }
        norm.tensors[RMS_NORM_OUT] =
            tensor_slice(call->tensors[ADD_RESIDUAL_RMS_NORM_OUT], 0, row, 1);
        rms_norm_reference(&norm);
    }
}

OP_SIMD_TABLE(add_residual_rms_norm, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 hidden_size=64",
    "n_tokens=19 hidden_size=111 bias:-",
    "n_tokens=3 hidden_size=500 x:BF16 bias:BF16 residual:BF16 weight:BF16 out:BF16",
    "n_tokens=5 hidden_size=1024 x:F16 residual:F16 weight:F16 out:F16 x+16 residual+8 out+24",
    "n_tokens=4 hidden_size=96 out=x eps=1e-6",
    "n_tokens=6 hidden_size=576 x:BF16 weight:BF16 out:BF16 bias:-",
    "n_tokens=3 hidden_size=64 eps=0.25",
    "n_tokens=0 hidden_size=64",
    NULL,
};

static const char *const workloads[] = {
    "internlm2-1.8b: n_tokens=512 hidden_size=2048 x:BF16 bias:BF16 residual:BF16 weight:BF16 "
    "out:BF16",
    "internlm2-1.8b decode: n_tokens=1 hidden_size=2048",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_add_residual_rms_norm = {
    .name = "add_residual_rms_norm",
    .summary = "adds a projection and its bias to the residual and normalises the sum",
    .place = "A padded-batch engine's step between attention's output projection and the "
             "feed-forward part, and between layers.",
    .formula = "s[t, i] = residual[t, i] + x[t, i] + bias[i]; residual = s; "
               "out[t, i] = s[t, i] / sqrt(sum_j s[t, j]^2 / hidden_size + eps) * weight[i]",
    .precision = "float32 arithmetic; s is normalised before it is rounded to the type of residual "
                 "(as FlashInfer's fused_add_rmsnorm does), out is rounded once.",
    .edge_cases = "Without bias nothing is added in its place. A row of zeros gives zeros. out may "
                  "be x, not residual.",
    .source = "AddResidualAndRMSNorm of a teaching engine for Llama; FlashInfer fused_add_rmsnorm",
    .unit = "a row",
    .flops = "6 * n_tokens * hidden_size",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows"},
             {"hidden_size", AXIS_CONSTANT, "elements in a row"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_tokens, hidden_size", false, "the projection"},
                {"bias", OP_IN, OP_FLOATS, "hidden_size", true,
                 "of the projection, where it has one"},
                {"residual", OP_INOUT, OP_FLOATS, "n_tokens, hidden_size", false,
                 "the stream through the layers; the sum replaces it"},
                {"weight", OP_IN, OP_FLOATS, "hidden_size", false, "scale of each element"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, hidden_size", false, "may be x"}},
    .params = {{"eps", PARAM_FLOAT, 1e-5, "added to the mean square"}},
    .units = units,
    .scratch_bytes = scratch_bytes,
    .reference = add_residual_rms_norm_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "hidden_size",
    .fills = OP_FILL_HUGE,
};
