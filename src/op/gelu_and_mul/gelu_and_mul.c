/* gelu_and_mul: the gated activation of Gemma's feed-forward network, gelu(gate) * up, with the
 * approximation of GELU by tanh.
 *
 * Gate and up are the halves of a row, as in silu_and_mul.
 */
#include "op/gelu_and_mul/gelu_and_mul.h"

#include "op/element.h"
#include "op/row.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <math.h>

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(GELU_ROOT * (x + GELU_CUBE * x * x * x)));
}

static int64_t units(const op_call *call)
{
    return tensor_elements(&call->tensors[GELU_AND_MUL_OUT]);
}

void gelu_and_mul_reference(const op_call *call)
{
    const tensor *x = &call->tensors[GELU_AND_MUL_X];     /* (n_tokens, 2 * intermediate_size) */
    const tensor *out = &call->tensors[GELU_AND_MUL_OUT]; /* (n_tokens, intermediate_size) */
    int64_t intermediate_size = out->shape[1];

    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, intermediate_size);
        const void *in = tensor_row(x, span.row);
        void *to = tensor_row(out, span.row);
        for (int64_t i = span.first; i < span.first + span.count; i++) {
            double gate = element_load(x->type, in, i);
            double up = element_load(x->type, in, intermediate_size + i);
            element_store(out->type, to, i, gelu_tanh(gate) * up);
        }
        unit += span.count;
    }
}

OP_SIMD_TABLE(gelu_and_mul, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 intermediate_size=64",
    "n_tokens=19 intermediate_size=111",
    "n_tokens=3 intermediate_size=500 x:BF16 out:BF16",
    "n_tokens=5 intermediate_size=172 x:F16 out:F16 x+16 out+8",
    "n_tokens=2 intermediate_size=1536 x:BF16",
    "n_tokens=0 intermediate_size=64",
    NULL,
};

static const char *const workloads[] = {
    "gemma3-1b: n_tokens=1 intermediate_size=6912",
    "gemma3-4b: n_tokens=512 intermediate_size=10240 x:BF16 out:BF16",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_gelu_and_mul = {
    .name = "gelu_and_mul",
    .summary = "GELU (by tanh) of the first half of each row times the second half",
    .place = "The activation between ffn_up and ffn_down of Gemma.",
    .formula = "out[t, i] = 0.5 * g * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g^3))) * x[t, "
               "intermediate_size + i], g = x[t, i]",
    .precision = "float32 or wider throughout, one rounding to the type of out.",
    .edge_cases = "Large gates, of either sign, must not overflow: the limits are g and 0. A gate "
                  "of minus infinity gives NaN. out may be the first half of x.",
    .source = "Hendrycks, Gimpel: Gaussian Error Linear Units, 2016; FlashInfer gelu_tanh_and_mul",
    .unit = "an element of out: token * intermediate_size + i",
    .flops = "12 * n_tokens * intermediate_size",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows"},
             {"intermediate_size", AXIS_CONSTANT, "elements in a row of out"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_tokens, 2 * intermediate_size", false,
                 "gate, then up; rows may be strided"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, intermediate_size", false,
                 "rows may be strided; may be the first half of x"}},
    .grain = 4096,
    .units = units,
    .reference = gelu_and_mul_reference,
    .variants = variants,
    .cuda = gelu_and_mul_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .fills = OP_FILL_NAN,
};
