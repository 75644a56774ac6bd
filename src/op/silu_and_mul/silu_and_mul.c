/* silu_and_mul: the gated activation of the feed-forward network, silu(gate) * up.
 *
 * Gate and up are the halves of a row, as one fused linear stores them.
 */
#include "op/silu_and_mul/silu_and_mul.h"

#include "op/element.h"
#include "op/row.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return tensor_elements(&call->tensors[SILU_AND_MUL_OUT]);
}

void silu_and_mul_reference(const op_call *call)
{
    const tensor *x = &call->tensors[SILU_AND_MUL_X];     /* (n_tokens, 2 * intermediate_size) */
    const tensor *out = &call->tensors[SILU_AND_MUL_OUT]; /* (n_tokens, intermediate_size) */
    const double alpha = call->params[SILU_AND_MUL_ALPHA], added = call->params[SILU_AND_MUL_ADDED];
    const double limit = silu_and_mul_limit(call);
    int64_t intermediate_size = out->shape[1];

    for (int64_t unit = call->begin; unit < call->end;) {
        row_span span = row_span_at(unit, call->end, intermediate_size);
        const void *in = tensor_row(x, span.row);
        void *to = tensor_row(out, span.row);
        for (int64_t i = span.first; i < span.first + span.count; i++) {
            double gate = element_load(x->type, in, i);
            double up = element_load(x->type, in, intermediate_size + i);
            if (gate > limit) gate = limit;
            if (fabs(up) > limit) up = copysign(limit, up);
            element_store(out->type, to, i, gate / (1 + exp(-alpha * gate)) * (up + added));
        }
        unit += span.count;
    }
}

OP_SIMD_TABLE(silu_and_mul, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 intermediate_size=64",
    "n_tokens=19 intermediate_size=111",
    "n_tokens=3 intermediate_size=500 x:BF16 out:BF16",
    "n_tokens=5 intermediate_size=172 x:F16 out:F16 x+16 out+8",
    "n_tokens=2 intermediate_size=1536 x:BF16",
    "n_tokens=3 intermediate_size=90 alpha=1.702 limit=0.75 added=1",
    "n_tokens=0 intermediate_size=64",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=512 intermediate_size=14336 x:BF16 out:BF16",
    "llama-3.2-1b: n_tokens=1 intermediate_size=8192 x:BF16 out:BF16",
    "internlm2-1.8b: n_tokens=512 intermediate_size=8192 x:BF16 out:BF16",
    "smollm2-135m: n_tokens=512 intermediate_size=1536",
    "gpt-oss-20b: n_tokens=4 intermediate_size=2880 alpha=1.702 limit=7 added=1",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_silu_and_mul = {
    .name = "silu_and_mul",
    .summary = "SiLU of the first half of each row times the second half",
    .place = "The activation between ffn_up, whose weight is gate over up, and ffn_down.",
    .formula =
        "out[t, i] = g / (1 + exp(-alpha * g)) * (u + added), g = x[t, i], u = x[t, "
        "intermediate_size + i]; with a limit above 0, g is at most limit, and u from -limit "
        "to limit",
    .precision = "float32 or wider throughout, one rounding to the type of out (torch rounds the "
                 "SiLU before the product).",
    .edge_cases = "Large gates, of either sign, must not overflow: the limits are g and 0. A gate "
                  "of minus infinity gives NaN. out may be the first half of x.",
    .source = "Shazeer: GLU Variants Improve Transformer, 2020; FlashInfer silu_and_mul; the "
              "parameters: gpt-oss of transformers",
    .unit = "an element of out: token * intermediate_size + i",
    .flops = "5 * n_tokens * intermediate_size",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows"},
             {"intermediate_size", AXIS_CONSTANT, "elements in a row of out"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "n_tokens, 2 * intermediate_size", false,
                 "gate, then up; rows may be strided"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, intermediate_size", false,
                 "rows may be strided; may be the first half of x"}},
    .params = {{"alpha", PARAM_FLOAT, 1, "factor of the gate in the exponential"},
               {"limit", PARAM_FLOAT, 0, "greatest gate, and magnitude of up; 0: none"},
               {"added", PARAM_FLOAT, 0, "to up"}},
    .grain = 4096,
    .units = units,
    .reference = silu_and_mul_reference,
    .variants = variants,
    .cuda = silu_and_mul_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .fills = OP_FILL_NAN,
};
