/* attention_values: the second product of unfused attention, probabilities with the values. */
#include "op/attention_values/attention_values.h"

#include "op/element.h"
#include "op/row.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    const tensor *out = &call->tensors[ATTENTION_VALUES_OUT];
    return out->shape[0] * out->shape[1] * out->shape[2];
}

/* A row of out, and a value. */
static size_t scratch_bytes(const op_call *call)
{
    return 2 * (size_t)call->tensors[ATTENTION_VALUES_OUT].shape[3] * sizeof(double);
}

void attention_values_reference(const op_call *call)
{
    const tensor *p = &call->tensors[ATTENTION_VALUES_PROBABILITIES]; /* (.., max_q_len, kv) */
    const tensor *v = &call->tensors[ATTENTION_VALUES_V];     /* (bs, n_heads, kv, head_size) */
    const tensor *out = &call->tensors[ATTENTION_VALUES_OUT]; /* (.., max_q_len, head_size) */
    int64_t n_heads = out->shape[1], q_len = out->shape[2], n = out->shape[3];
    double *sum = call->scratch, *value = sum + n;
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t i = unit % q_len, head = unit / q_len % n_heads, b = unit / q_len / n_heads;
        const char *weights = (const char *)tensor_row2(p, b, head) + i * p->stride[2];
        const char *values = tensor_row2(v, b, head);
        for (int64_t d = 0; d < n; d++)
            sum[d] = 0;
        for (int64_t j = 0; j < v->shape[2]; j++) {
            double weight = element_load(p->type, weights, j);
            row_load(v->type, values + j * v->stride[2], n, value);
            for (int64_t d = 0; d < n; d++)
                sum[d] += weight * value[d];
        }
        row_store(out->type, (char *)tensor_row2(out, b, head) + i * out->stride[2], n, sum);
    }
}

OP_SIMD_TABLE(attention_values, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "bs=1 n_heads=1 max_q_len=1 max_kv_len=1 head_size=8",
    "bs=3 n_heads=2 max_q_len=7 max_kv_len=19 head_size=64",
    "bs=2 n_heads=3 max_q_len=5 max_kv_len=30 head_size=13 probabilities:BF16 v:BF16 out:BF16",
    "bs=2 n_heads=3 max_q_len=4 max_kv_len=33 head_size=128 v:F16 out:F16 probabilities+8 v+16",
    "bs=2 n_heads=4 max_q_len=6 max_kv_len=9 head_size=200 out@0213 v@2013",
    "bs=0 n_heads=4 max_q_len=6 max_kv_len=9 head_size=20",
    NULL,
};

static const char *const workloads[] = {
    "internlm2-1.8b: bs=4 n_heads=16 max_q_len=128 max_kv_len=512 head_size=128",
    "internlm2-1.8b decode: bs=4 n_heads=16 max_q_len=1 max_kv_len=2048 head_size=128",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_attention_values = {
    .name = "attention_values",
    .summary = "the products of attention's probabilities with the values of a padded batch",
    .place = "Attention of a padded-batch engine, between masked_softmax and unpad.",
    .formula = "out[b, h, i, d] = sum_j probabilities[b, h, i, j] * v[b, h, j, d]",
    .precision = "float32 or wider sums, in the order of j; one rounding to the type of out.",
    .edge_cases =
        "A probability of zero times a value that is not finite is NaN: padding of v must "
        "be finite, as repeat_kv leaves it. No sequences: nothing is written.",
    .source = "The second batched product of attention in transformers' modeling_llama (eager)",
    .unit = "a row of out (a query of a head of a sequence)",
    .flops = "2 * bs * n_heads * max_q_len * max_kv_len * head_size",
    .axes = {{"bs", AXIS_VARIABLE, "sequences in the batch"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"max_q_len", AXIS_VARIABLE, "new tokens of the longest sequence"},
             {"max_kv_len", AXIS_VARIABLE, "cached and new tokens of the longest sequence"},
             {"head_size", AXIS_CONSTANT, "elements in a head"}},
    .tensors = {{"probabilities", OP_IN, OP_FLOATS, "bs, n_heads, max_q_len, max_kv_len", false,
                 "any strides"},
                {"v", OP_IN, OP_FLOATS, "bs, n_heads, max_kv_len, head_size", false,
                 "any strides; one head for each query head"},
                {"out", OP_OUT, OP_FLOATS, "bs, n_heads, max_q_len, head_size", false,
                 "any strides"}},
    .units = units,
    .scratch_bytes = scratch_bytes,
    .reference = attention_values_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "max_kv_len",
};
