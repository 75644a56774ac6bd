/* merge_state: attention over two sets of positions, from the attention over each.
 *
 * A state is an output and the base-2 log-sum-exp of its scores. Merging lets several workers share
 * one long context, and lets a common prefix be computed once for many sequences.
 */
#include "op/merge_state/merge_state.h"

#include "op/element.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return tensor_elements(&call->tensors[MERGE_STATE_S]);
}

double merge_state_weigh(double a, double b, double *weight_a, double *weight_b)
{
    double top = a < b ? b : a;
    *weight_a = *weight_b = 0;
    if (a == -INFINITY && b == -INFINITY) return -INFINITY;
    *weight_a = exp2(a - top);
    *weight_b = exp2(b - top);
    return top + log2(*weight_a + *weight_b);
}

void merge_state_reference(const op_call *call)
{
    const tensor *v_a = &call->tensors[MERGE_STATE_V_A]; /* (n_tokens, n_heads, head_dim) */
    const tensor *s_a = &call->tensors[MERGE_STATE_S_A]; /* (n_tokens, n_heads) */
    const tensor *v_b = &call->tensors[MERGE_STATE_V_B]; /* (n_tokens, n_heads, head_dim) */
    const tensor *s_b = &call->tensors[MERGE_STATE_S_B]; /* (n_tokens, n_heads) */
    const tensor *v = &call->tensors[MERGE_STATE_V];     /* (n_tokens, n_heads, head_dim) */
    const tensor *s = &call->tensors[MERGE_STATE_S];     /* (n_tokens, n_heads) */

    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t t = unit / s->shape[1], head = unit % s->shape[1];
        double a = element_load(s_a->type, tensor_row(s_a, t), head);
        double b = element_load(s_b->type, tensor_row(s_b, t), head);
        double weight_a, weight_b, merged = merge_state_weigh(a, b, &weight_a, &weight_b);
        double sum = weight_a + weight_b;
        const void *from_a = tensor_row2(v_a, t, head), *from_b = tensor_row2(v_b, t, head);
        void *to = tensor_row2(v, t, head);
        for (int64_t i = 0; i < v->shape[2]; i++) {
            double value = weight_a * element_load(v_a->type, from_a, i) +
                           weight_b * element_load(v_b->type, from_b, i);
            element_store(v->type, to, i, sum == 0 ? 0 : value / sum);
        }
        element_store(s->type, tensor_row(s, t), head, merged);
    }
}

OP_SIMD_TABLE(merge_state, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 n_heads=4 head_dim=64",
    "n_tokens=19 n_heads=3 head_dim=111 v=v_a s=s_a",
    "n_tokens=5 n_heads=8 head_dim=128 v_a:BF16 v_b:BF16 v:BF16",
    "n_tokens=7 n_heads=2 head_dim=48 v_a:F16 v_b:F16 v:F16 v_a+8 v_b+16 v+24",
    "n_tokens=0 n_heads=2 head_dim=16",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=16 n_heads=32 head_dim=128 v_a:BF16 v_b:BF16 v:BF16",
    "llama-3.2-1b: n_tokens=1 n_heads=32 head_dim=64 v_a:BF16 v_b:BF16 v:BF16",
    "internlm2-1.8b: n_tokens=128 n_heads=16 head_dim=128 v_a:BF16 v_b:BF16 v:BF16",
    "smollm2-135m: n_tokens=1 n_heads=9 head_dim=64",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 2e-6, 2e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

enum { STATE_SUM = OP_TYPE(F32) | OP_TYPE(F64) };

const op_info op_merge_state = {
    .name = "merge_state",
    .summary = "two attention states over disjoint positions, merged into one",
    .place = "After attention that was split over the context: each part gives an output and a "
             "log-sum-exp. A prefix that sequences share is such a part: ragged_prefill without "
             "causal computes it once for the tokens of all of them, paged_prefill or paged_decode "
             "the pages that follow in each.",
    .formula = "a = 2^s_a[t, h], b = 2^s_b[t, h]: v[t, h] = (a * v_a[t, h] + b * v_b[t, h]) / (a + "
               "b), s[t, h] = log2(a + b)",
    .precision = "float32 or wider, weights relative to the larger of the two sums; one rounding "
                 "to the types of v and s.",
    .edge_cases = "A state with a sum of -inf is empty and leaves the other as it is; two empty "
                  "ones give 0 and -inf. v and s may be v_a and s_a, or v_b and s_b.",
    .source = "FlashInfer merge_state",
    .unit = "one head of one token: token * n_heads + head",
    .flops = "3 * n_tokens * n_heads * (head_dim + 2)",
    .axes = {{"n_tokens", AXIS_VARIABLE, "tokens"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"}},
    .tensors = {{"v_a", OP_IN, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "first output; any strides of tokens and heads"},
                {"s_a", OP_IN, STATE_SUM, "n_tokens, n_heads", false,
                 "its log-sum-exp, base 2; rows may be strided"},
                {"v_b", OP_IN, OP_FLOATS, "n_tokens, n_heads, head_dim", false, "second output"},
                {"s_b", OP_IN, STATE_SUM, "n_tokens, n_heads", false, "its log-sum-exp, base 2"},
                {"v", OP_OUT, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "merged output; may be v_a or v_b"},
                {"s", OP_OUT, STATE_SUM, "n_tokens, n_heads", false,
                 "merged log-sum-exp, base 2; may be s_a or s_b"}},
    .units = units,
    .reference = merge_state_reference,
    .variants = variants,
    .cuda = merge_state_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
};
