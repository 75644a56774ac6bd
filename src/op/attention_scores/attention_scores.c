/* attention_scores: the first product of unfused attention, every query with every key of its head.
 *
 * It fills the whole rectangle, padding and masked pairs too: masked_softmax removes them.
 */
#include "op/attention_scores/attention_scores.h"

#include "op/element.h"
#include "op/row.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    const tensor *q = &call->tensors[ATTENTION_SCORES_Q];
    return q->shape[0] * q->shape[1] * q->shape[2];
}

/* A query and a key. */
static size_t scratch_bytes(const op_call *call)
{
    return 2 * (size_t)call->tensors[ATTENTION_SCORES_Q].shape[3] * sizeof(double);
}

void attention_scores_reference(const op_call *call)
{
    const tensor *q = &call->tensors[ATTENTION_SCORES_Q]; /* (bs, n_heads, max_q_len, head_size) */
    const tensor *k = &call->tensors[ATTENTION_SCORES_K]; /* (bs, n_heads, max_kv_len, head_size) */
    const tensor *scores =
        &call->tensors[ATTENTION_SCORES_SCORES]; /* (.., max_q_len, max_kv_len) */
    int64_t n_heads = q->shape[1], q_len = q->shape[2], n = q->shape[3];
    double *query = call->scratch, *key = query + n;
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t i = unit % q_len, head = unit / q_len % n_heads, b = unit / q_len / n_heads;
        const char *keys = tensor_row2(k, b, head);
        char *to = (char *)tensor_row2(scores, b, head) + i * scores->stride[2];
        row_load(q->type, (const char *)tensor_row2(q, b, head) + i * q->stride[2], n, query);
        for (int64_t j = 0; j < k->shape[2]; j++) {
            row_load(k->type, keys + j * k->stride[2], n, key);
            element_store(scores->type, to, j, row_dot(query, key, n));
        }
    }
}

OP_SIMD_TABLE(attention_scores, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "bs=1 n_heads=1 max_q_len=1 max_kv_len=1 head_size=8",
    "bs=3 n_heads=2 max_q_len=7 max_kv_len=19 head_size=64",
    "bs=2 n_heads=3 max_q_len=5 max_kv_len=30 head_size=13 q:BF16 k:BF16 scores:BF16",
    "bs=2 n_heads=3 max_q_len=4 max_kv_len=33 head_size=128 k:F16 scores:F16 scores+8 k+16",
    "bs=2 n_heads=4 max_q_len=6 max_kv_len=9 head_size=20 q@0213 k@2013",
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

const op_info op_attention_scores = {
    .name = "attention_scores",
    .summary = "the products of all queries with all keys of a padded batch",
    .place = "Attention of a padded-batch engine, between repeat_kv and masked_softmax.",
    .formula = "scores[b, h, i, j] = sum_d q[b, h, i, d] * k[b, h, j, d]",
    .precision = "float32 or wider sums; one rounding to the type of scores.",
    .edge_cases = "Padding is multiplied like anything else. No sequences: nothing is written.",
    .source = "The first batched product of attention in transformers' modeling_llama (eager)",
    .unit = "a row of scores (a query of a head of a sequence)",
    .flops = "2 * bs * n_heads * max_q_len * max_kv_len * head_size",
    .axes = {{"bs", AXIS_VARIABLE, "sequences in the batch"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"max_q_len", AXIS_VARIABLE, "new tokens of the longest sequence"},
             {"max_kv_len", AXIS_VARIABLE, "cached and new tokens of the longest sequence"},
             {"head_size", AXIS_CONSTANT, "elements in a head"}},
    .tensors = {{"q", OP_IN, OP_FLOATS, "bs, n_heads, max_q_len, head_size", false, "any strides"},
                {"k", OP_IN, OP_FLOATS, "bs, n_heads, max_kv_len, head_size", false,
                 "any strides; one head for each query head"},
                {"scores", OP_OUT, OP_FLOATS, "bs, n_heads, max_q_len, max_kv_len", false,
                 "not scaled; any strides"}},
    .units = units,
    .scratch_bytes = scratch_bytes,
    .reference = attention_scores_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "head_size",
};
