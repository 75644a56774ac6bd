/* rms_norm: out = x / sqrt(mean(x^2) + eps) * weight, row by row.
 *
 * Two roundings exist in the field: FlashInfer multiplies by the weight in float32 and rounds once;
 * Hugging Face rounds the normalised value to the activation type first. `round_first` chooses.
 */
#include "op/rms_norm/rms_norm.h"

#include "op/element.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return call->tensors[RMS_NORM_X].shape[0];
}

void rms_norm_reference(const op_call *call)
{
    const tensor *x = &call->tensors[RMS_NORM_X];      /* (n_tokens, hidden_size) */
    const tensor *w = &call->tensors[RMS_NORM_WEIGHT]; /* (hidden_size) */
    const tensor *out = &call->tensors[RMS_NORM_OUT];  /* (n_tokens, hidden_size) */
    int64_t hidden_size = x->shape[1];
    bool round_first = call->params[RMS_NORM_ROUND_FIRST] != 0;

    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(x, row);
        double sum = 0;
        for (int64_t i = 0; i < hidden_size; i++) {
            double value = element_load(x->type, in, i);
            sum += value * value;
        }
        double scale = 1 / sqrt(sum / (double)hidden_size + call->params[RMS_NORM_EPS]);
        void *to = tensor_row(out, row);
        for (int64_t i = 0; i < hidden_size; i++) {
            double value = element_load(x->type, in, i) * scale;
            if (round_first) value = element_round(x->type, value);
            element_store(out->type, to, i, value * element_load(w->type, w->data, i));
        }
    }
}

/* Only the reference rounds before the weight, for comparisons. */
static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && call->params[RMS_NORM_ROUND_FIRST] == 0;
}

OP_SIMD_TABLE(rms_norm, .accepts = accepts)

static const char *const cases[] = {
    "n_tokens=1 hidden_size=64",
    "n_tokens=19 hidden_size=111",
    "n_tokens=3 hidden_size=500 x:BF16 weight:BF16 out:BF16",
    "n_tokens=5 hidden_size=1024 x:F16 weight:F16 out:F16 x+16 out+8",
    "n_tokens=2 hidden_size=576 x:BF16 out:BF16 round_first=1",
    "n_tokens=3 hidden_size=64 eps=0.25",
    "n_tokens=2 hidden_size=10240 x:BF16 weight:BF16",
    "n_tokens=528 hidden_size=1032 weight:BF16",
    "n_tokens=0 hidden_size=64",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=1 hidden_size=4096",
    "llama-3.2-1b: n_tokens=1 hidden_size=2048",
    "internlm2-1.8b: n_tokens=512 hidden_size=2048 x:BF16 weight:BF16 out:BF16",
    "smollm2-135m: n_tokens=512 hidden_size=576",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_rms_norm = {
    .name = "rms_norm",
    .summary = "root-mean-square normalisation of each row, scaled by a weight",
    .place = "Before attention in the first layer and before a model's final projection; "
             "elsewhere its fused form add_rms_norm serves.",
    .formula = "out[t, i] = x[t, i] / sqrt(sum_j x[t, j]^2 / hidden_size + eps) * weight[i]",
    .precision = "float32 arithmetic, one rounding to the type of out; with round_first the "
                 "normalised value is rounded to the type of x before the product with weight.",
    .edge_cases = "A row of zeros gives zeros. out may be x. No rows: nothing is written.",
    .source = "Zhang, Sennrich: Root Mean Square Layer Normalization, 2019; FlashInfer rmsnorm",
    .unit = "a row",
    .flops = "4 * n_tokens * hidden_size",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows"},
             {"hidden_size", AXIS_CONSTANT, "elements in a row"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_tokens, hidden_size", false, "rows may be strided"},
                {"weight", OP_IN, OP_FLOATS, "hidden_size", false, "scale of each element"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, hidden_size", false, "may be x"}},
    .params = {{"eps", PARAM_FLOAT, 1e-5, "added to the mean square"},
               {"round_first", PARAM_BOOL, 0, "round to the type of x before the weight"}},
    .units = units,
    .reference = rms_norm_reference,
    .variants = variants,
    .cuda = rms_norm_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "hidden_size",
    .fills = OP_FILL_HUGE,
};
