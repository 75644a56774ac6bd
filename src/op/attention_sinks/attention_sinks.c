/* attention_sinks: attention as if each head saw one more position, of a learned score and no
 * value.
 *
 * A sink is a term of the softmax's denominator, so attention's output is scaled by what it leaves
 * of the sum, which follows from the log-sum-exp of the scores. Every kernel of attention that
 * writes that can therefore have sinks.
 */
#include "op/attention_sinks/attention_sinks.h"

#include "op/cuda_ops.h"
#include "op/element.h"
#include "op/variants.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return tensor_elements(&call->tensors[ATTENTION_SINKS_LSE]);
}

void attention_sinks_reference(const op_call *call)
{
    const tensor *v = &call->tensors[ATTENTION_SINKS_V];         /* (n_tokens, n_heads, head_dim) */
    const tensor *lse = &call->tensors[ATTENTION_SINKS_LSE];     /* (n_tokens, n_heads) */
    const tensor *sinks = &call->tensors[ATTENTION_SINKS_SINKS]; /* (n_heads) */
    const double log2_e = 1.4426950408889634;
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        const int64_t t = unit / lse->shape[1], head = unit % lse->shape[1];
        const double sum = element_load(lse->type, tensor_row(lse, t), head);
        const double sink = element_load(sinks->type, sinks->data, head) * log2_e;
        const double kept = 1 / (1 + exp2(sink - sum));
        void *row = tensor_row2(v, t, head);
        for (int64_t i = 0; i < v->shape[2]; i++)
            element_store(v->type, row, i, element_load(v->type, row, i) * kept);
    }
}

/* Log-sum-exps and sinks of usual sizes. */
static void prepare(op_call *call, uint64_t seed)
{
    const tensor *lse = &call->tensors[ATTENTION_SINKS_LSE];
    for (int64_t t = 0; t < lse->shape[0]; t++)
        for (int64_t h = 0; h < lse->shape[1]; h++)
            element_store(lse->type, tensor_row(lse, t), h,
                          t % 5 == 4 ? -INFINITY
                                     : (double)((uint64_t)(t * 7 + h * 3) % 19 + seed % 5) - 9);
}

OP_SIMD_TABLE(attention_sinks, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 n_heads=4 head_dim=64",
    "n_tokens=19 n_heads=3 head_dim=111 v+16",
    "n_tokens=5 n_heads=8 head_dim=128 v:BF16 sinks:BF16",
    "n_tokens=2 n_heads=5 head_dim=24 v:F16 sinks:F16",
    "n_tokens=0 n_heads=8 head_dim=64",
    NULL,
};

static const char *const workloads[] = {
    "gpt-oss-20b decode: n_tokens=1 n_heads=64 head_dim=64",
    "gpt-oss-20b prefill: n_tokens=512 n_heads=64 head_dim=64",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 2e-6, 2e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_attention_sinks = {
    .name = "attention_sinks",
    .summary = "scales attention's output by what a sink leaves of the softmax's sum",
    .place = "After attention, in models whose heads have sinks: gpt-oss.",
    .formula = "v[t, h, :] = v[t, h, :] / (1 + exp(sinks[h]) / 2^lse[t, h]), in place",
    .precision = "float32 or wider throughout, one rounding to the type of v.",
    .edge_cases = "An lse of minus infinity gives 0.",
    .source =
        "Xiao et al.: Efficient Streaming Language Models with Attention Sinks, 2023; gpt-oss "
        "of transformers, which appends the sink to a row's scores and drops its column",
    .unit = "a head of a token",
    .flops = "n_tokens * n_heads * (head_dim + 4)",
    .axes = {{"n_tokens", AXIS_VARIABLE, "rows"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"}},
    .tensors = {{"v", OP_INOUT, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "attention's output; rows may be strided"},
                {"lse", OP_IN, OP_TYPE(F32) | OP_TYPE(F64), "n_tokens, n_heads", false,
                 "base-2 log-sum-exp of the scores"},
                {"sinks", OP_IN, OP_FLOATS, "n_heads", false, "scores in natural units"}},
    .units = units,
    .prepare = prepare,
    .reference = attention_sinks_reference,
    .variants = variants,
    .cuda = attention_sinks_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
};
