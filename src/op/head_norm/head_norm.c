/* head_norm: divides each query and key head by its root mean square and scales it.
 *
 * Families such as Qwen 3 do so between the projection and RoPE, so that no head's scores grow
 * without bound. It is rms_norm over head_dim, for heads that lie in rows of q, k and v.
 */
#include "op/head_norm/head_norm.h"

#include "op/element.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    return call->tensors[HEAD_NORM_Q].shape[0];
}

/* Head x (n), in place, by its weight (n). */
static void norm_head(dtype type, void *x, const tensor *weight, int64_t n, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double value = element_load(type, x, i);
        sum += value * value;
    }
    double scale = 1 / sqrt(sum / (double)n + eps);
    for (int64_t i = 0; i < n; i++)
        element_store(type, x, i,
                      element_load(type, x, i) * scale *
                          element_load(weight->type, weight->data, i));
}

void head_norm_reference(const op_call *call)
{
    for (int64_t t = call->begin; t < call->end; t++) {
        for (int which = 0; which < 2; which++) {
            const tensor *x = &call->tensors[HEAD_NORM_Q + which]; /* (n_tokens, heads, head_dim) */
            const tensor *weight = &call->tensors[HEAD_NORM_Q_WEIGHT + which]; /* (head_dim) */
            for (int64_t head = 0; head < x->shape[1]; head++)
                norm_head(x->type, tensor_row2(x, t, head), weight, x->shape[2],
                          call->params[HEAD_NORM_EPS]);
        }
    }
}

OP_SIMD_TABLE(head_norm, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 n_heads=16 n_kv_heads=8 head_dim=128",
    "n_tokens=19 n_heads=3 n_kv_heads=3 head_dim=11",
    "n_tokens=7 n_heads=4 n_kv_heads=2 head_dim=80 q+64 k+64 eps=0.25",
    "n_tokens=5 n_heads=6 n_kv_heads=1 head_dim=64 q:BF16 k:BF16 q_weight:BF16 k_weight:BF16 q+16",
    "n_tokens=3 n_heads=2 n_kv_heads=2 head_dim=256 q:F16 k:F16 q_weight:F16",
    "n_tokens=0 n_heads=2 n_kv_heads=1 head_dim=64",
    NULL,
};

static const char *const workloads[] = {
    "qwen3-0.6b: n_tokens=1 n_heads=16 n_kv_heads=8 head_dim=128",
    "qwen3-0.6b-prompt: n_tokens=512 n_heads=16 n_kv_heads=8 head_dim=128",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_head_norm = {
    .name = "head_norm",
    .summary = "root-mean-square normalisation of each query and key head, in place",
    .place = "Between attn_qkv and rope in families with norms of q and k, such as Qwen 3.",
    .formula = "for every head x of q[t] and k[t], with the weight of its kind: x[i] <- x[i] / "
               "sqrt(sum_j x[j]^2 / head_dim + eps) * weight[i]",
    .precision = "float32 arithmetic, one rounding to the type of q or k",
    .edge_cases = "A head of zeros gives zeros. No tokens: nothing is written.",
    .source = "transformers Qwen3Attention: q_norm and k_norm",
    .unit = "a token, all of its heads",
    .flops = "4 * n_tokens * (n_heads + n_kv_heads) * head_dim",
    .axes = {{"n_tokens", AXIS_VARIABLE, "tokens"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"n_kv_heads", AXIS_CONSTANT, "key heads"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"}},
    .tensors = {{"q", OP_INOUT, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "normalised in place; any strides of tokens and heads, such as a view into fused "
                 "qkv rows"},
                {"k", OP_INOUT, OP_FLOATS, "n_tokens, n_kv_heads, head_dim", false,
                 "normalised in place, as q; must not overlap q"},
                {"q_weight", OP_IN, OP_FLOATS, "head_dim", false,
                 "scale of each element of a query head"},
                {"k_weight", OP_IN, OP_FLOATS, "head_dim", false,
                 "scale of each element of a key head"}},
    .params = {{"eps", PARAM_FLOAT, 1e-5, "added to the mean square"}},
    .units = units,
    .reference = head_norm_reference,
    .variants = variants,
    .cuda = head_norm_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "head_dim",
    .fills = OP_FILL_HUGE,
};
