/* ragged_prefill: attention of each sequence's tokens over contiguous keys and values.
 *
 * The sequences lie one after the other without padding; there is no cache and there are no pages.
 * Prompts without history are computed this way, directly from the output of attn_qkv.
 */
#include "op/ragged_prefill/ragged_prefill.h"

#include "op/attention/attention.h"
#include "op/attention/mask.h"
#include "op/attention/ragged.h"
#include "op/attention/tile.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <string.h>

static int64_t units(const op_call *call)
{
    const tensor *q = &call->tensors[RAGGED_PREFILL_Q];
    return q->shape[0] * q->shape[1];
}

static int64_t kv_length(const op_call *call, int64_t b)
{
    return indptr_count(&call->tensors[RAGGED_PREFILL_KV_INDPTR], b);
}

static attention_masks masks_of(const op_call *call)
{
    return (attention_masks){.mask = &call->tensors[RAGGED_PREFILL_MASK],
                             .qo_indptr = &call->tensors[RAGGED_PREFILL_QO_INDPTR],
                             .call = call,
                             .kv_length = kv_length};
}

static attention_rule rule_of(const op_call *call, int64_t b)
{
    attention_masks masks = masks_of(call);
    return (attention_rule){.causal = call->params[RAGGED_PREFILL_CAUSAL] != 0,
                            .window = (int64_t)call->params[RAGGED_PREFILL_WINDOW],
                            .mask = attention_mask_of(&masks, b)};
}

static qp_status check(const op_call *call, qp_error *error)
{
    attention_masks masks = masks_of(call);
    const tensor *q = &call->tensors[RAGGED_PREFILL_Q], *k = &call->tensors[RAGGED_PREFILL_K];
    TRY(attention_check_limits("ragged_prefill", call->params[RAGGED_PREFILL_WINDOW],
                               call->params[RAGGED_PREFILL_SOFT_CAP], error));
    TRY(attention_check_heads("ragged_prefill", q->shape[1], k->shape[1], error));
    TRY(indptr_check("ragged_prefill", "qo_indptr", &call->tensors[RAGGED_PREFILL_QO_INDPTR],
                     q->shape[0], error));
    TRY(indptr_check("ragged_prefill", "kv_indptr", &call->tensors[RAGGED_PREFILL_KV_INDPTR],
                     k->shape[0], error));
    return attention_masks_check("ragged_prefill", &masks, error);
}

static double derive(const op_call *call, const char *axis)
{
    const tensor *qo_indptr = &call->tensors[RAGGED_PREFILL_QO_INDPTR];
    const tensor *kv_indptr = &call->tensors[RAGGED_PREFILL_KV_INDPTR];
    if (strcmp(axis, "attended_pairs") != 0 || !qo_indptr->data || !kv_indptr->data) return 0;
    double pairs = 0;
    for (int64_t b = 0; b < indptr_sequences(qo_indptr); b++) {
        attention_rule rule = rule_of(call, b);
        pairs += attention_pairs(&rule, indptr_count(qo_indptr, b), kv_length(call, b));
    }
    return pairs;
}

static size_t scratch_bytes(const op_call *call)
{
    return attention_tile_scratch(call->tensors[RAGGED_PREFILL_Q].shape[2]);
}

static void prepare(op_call *call, uint64_t seed)
{
    int64_t n_tokens = call->tensors[RAGGED_PREFILL_Q].shape[0];
    int64_t n_kv_tokens = call->tensors[RAGGED_PREFILL_K].shape[0];
    indptr_fill(&call->tensors[RAGGED_PREFILL_QO_INDPTR], n_tokens, seed);
    /* With as many keys as queries, prompts attend to themselves. */
    indptr_fill(&call->tensors[RAGGED_PREFILL_KV_INDPTR], n_kv_tokens,
                n_kv_tokens == n_tokens ? seed : seed + 1);
    attention_masks masks = masks_of(call);
    attention_masks_fill(&masks, seed + 2);
}

/* Keys or values of one sequence as a cache of one page. */
static tensor single_page(tensor view, int64_t first, int64_t count)
{
    return tensor_split(tensor_slice(view, 0, first, count), 0, 1);
}

void ragged_prefill_reference(const op_call *call)
{
    static const int32_t only_page = 0;
    const tensor *q = &call->tensors[RAGGED_PREFILL_Q];
    const tensor *qo_indptr = &call->tensors[RAGGED_PREFILL_QO_INDPTR];
    const tensor *kv_indptr = &call->tensors[RAGGED_PREFILL_KV_INDPTR];
    attention_source source = {.pages = &only_page};
    attention_row row = {.q = q,
                         .out = &call->tensors[RAGGED_PREFILL_OUT],
                         .lse = &call->tensors[RAGGED_PREFILL_LSE],
                         .sm_scale = call->params[RAGGED_PREFILL_SM_SCALE],
                         .soft_cap = call->params[RAGGED_PREFILL_SOFT_CAP]};

    for (int64_t unit = call->begin; unit < call->end; unit++) {
        row.token = unit / q->shape[1];
        row.head = unit % q->shape[1];
        int64_t b = indptr_find(qo_indptr, row.token);
        int64_t i = row.token - ((const int32_t *)qo_indptr->data)[b];
        int64_t kv_first = ((const int32_t *)kv_indptr->data)[b];
        int64_t length = kv_length(call, b);
        attention_rule rule = rule_of(call, b);
        row.range = attention_range_of(&rule, i, indptr_count(qo_indptr, b), length);
        source.k = single_page(call->tensors[RAGGED_PREFILL_K], kv_first, length);
        source.v = single_page(call->tensors[RAGGED_PREFILL_V], kv_first, length);
        attention_compute(&source, &row, call->scratch);
    }
}

static void run_tiles(const op_call *call, attention_kernel *kernel)
{
    static const int32_t only_page = 0;
    const tensor *qo_indptr = &call->tensors[RAGGED_PREFILL_QO_INDPTR];
    const tensor *kv_indptr = &call->tensors[RAGGED_PREFILL_KV_INDPTR];
    const int32_t *border = qo_indptr->data, *kv_border = kv_indptr->data;
    int64_t n_heads = call->tensors[RAGGED_PREFILL_Q].shape[1];
    attention_source source = {.pages = &only_page};
    attention_slice slice = {.q = &call->tensors[RAGGED_PREFILL_Q],
                             .out = &call->tensors[RAGGED_PREFILL_OUT],
                             .lse = &call->tensors[RAGGED_PREFILL_LSE],
                             .sm_scale = call->params[RAGGED_PREFILL_SM_SCALE],
                             .soft_cap = call->params[RAGGED_PREFILL_SOFT_CAP],
                             .begin = call->begin,
                             .end = call->end,
                             .kernel = kernel,
                             .scratch = call->scratch};

    if (call->begin == call->end) return;
    int64_t first = indptr_find(qo_indptr, call->begin / n_heads);
    int64_t last = indptr_find(qo_indptr, (call->end - 1) / n_heads);
    for (int64_t b = first; b <= last; b++) {
        int64_t length = kv_length(call, b);
        attention_rule rule = rule_of(call, b);
        source.k = single_page(call->tensors[RAGGED_PREFILL_K], kv_border[b], length);
        source.v = single_page(call->tensors[RAGGED_PREFILL_V], kv_border[b], length);
        attention_sequence(&slice, &source, border[b], indptr_count(qo_indptr, b), length, &rule);
    }
}

static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) &&
           call->tensors[RAGGED_PREFILL_Q].shape[2] <= ATTENTION_MAX_HEAD_DIM;
}

ATTENTION_KERNELS(ragged_prefill)

static const char *const cases[] = {
    "n_tokens=1 n_kv_tokens=54 n_sequences=1 n_heads=4 n_kv_heads=4 head_dim=64",
    "n_tokens=37 n_kv_tokens=37 n_sequences=3 n_heads=4 n_kv_heads=1 head_dim=64",
    "n_tokens=34 n_kv_tokens=1 n_sequences=1 n_heads=3 n_kv_heads=3 head_dim=32",
    "n_tokens=9 n_kv_tokens=9 n_sequences=2 n_heads=8 n_kv_heads=2 head_dim=128 q:BF16 k:BF16 "
    "v:BF16 out:BF16",
    "n_tokens=17 n_kv_tokens=97 n_sequences=5 n_heads=6 n_kv_heads=2 head_dim=48 q:F16 k:F16 "
    "v:F16 out:F16 q+8 k+16 v+24 out+16 causal=0 lse:-",
    "n_tokens=127 n_kv_tokens=200 n_sequences=1 n_heads=2 n_kv_heads=1 head_dim=64 sm_scale=0.25 "
    "out=q",
    "n_tokens=230 n_kv_tokens=230 n_sequences=3 n_heads=8 n_kv_heads=2 head_dim=128 q:BF16 k:BF16 "
    "v:BF16 out:BF16",
    "n_tokens=70 n_kv_tokens=300 n_sequences=2 n_heads=4 n_kv_heads=1 head_dim=64 k:F16 v:F16 "
    "causal=0",
    "n_tokens=4 n_kv_tokens=0 n_sequences=2 n_heads=2 n_kv_heads=1 head_dim=16",
    "n_tokens=0 n_kv_tokens=4 n_sequences=2 n_heads=2 n_kv_heads=1 head_dim=16",
    "n_tokens=70 n_kv_tokens=150 n_sequences=1 n_heads=2 n_kv_heads=1 head_dim=16 window=70",
    "n_tokens=5 n_kv_tokens=270 n_sequences=1 n_heads=3 n_kv_heads=1 head_dim=64 window=130 "
    "logits_soft_cap=2 causal=0 q:BF16 k:BF16 v:BF16 out:BF16",
    "n_tokens=12 n_kv_tokens=150 n_sequences=2 n_heads=2 n_kv_heads=1 head_dim=24 "
    "n_mask_words=60 logits_soft_cap=50",
    "n_tokens=6 n_kv_tokens=90 n_sequences=3 n_heads=2 n_kv_heads=1 head_dim=16 n_mask_words=40 "
    "window=20 k:F16 v:F16 lse:-",
    "n_tokens=230 n_kv_tokens=600 n_sequences=3 n_heads=8 n_kv_heads=2 head_dim=128 window=97 "
    "q:BF16 k:BF16 v:BF16 out:BF16",
    "n_tokens=100 n_kv_tokens=500 n_sequences=2 n_heads=4 n_kv_heads=1 head_dim=64 window=300 "
    "n_mask_words=1600 k:F16 v:F16",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=512 n_kv_tokens=512 n_sequences=1 n_heads=32 n_kv_heads=8 "
    "head_dim=128 q:BF16 k:BF16 v:BF16 out:BF16 lse:-",
    "llama-3.2-1b: n_tokens=512 n_kv_tokens=512 n_sequences=1 n_heads=32 n_kv_heads=8 head_dim=64 "
    "q:BF16 k:BF16 v:BF16 out:BF16 lse:-",
    "internlm2-1.8b: n_tokens=512 n_kv_tokens=512 n_sequences=4 n_heads=16 n_kv_heads=8 "
    "head_dim=128 q:BF16 k:BF16 v:BF16 out:BF16 lse:-",
    "smollm2-135m: n_tokens=512 n_kv_tokens=512 n_sequences=1 n_heads=9 n_kv_heads=3 head_dim=64 "
    "lse:-",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 2e-6, 2e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 1e-2, 1e-2}, {0}};

const op_info op_ragged_prefill = {
    .name = "ragged_prefill",
    .summary = "attention over sequences that lie one after the other, without a cache",
    .place = "Prompts without history, straight from the rotated output of attn_qkv.",
    .formula =
        "p[t, h, j] = exp(cap(sm_scale * sum_i q[t, h, i] * k[f + j, h / group, i])) over "
        "the j that t sees; out[t, h] = sum_j p[t, h, j] * v[f + j, h / group] / sum_j p[t, h, "
        "j]; lse[t, h] = log2(sum_j p[t, h, j]). group = n_heads / n_kv_heads. Token t is "
        "number i = t - qo_indptr[b] of qo_len in its sequence b, whose kv_len keys and "
        "values begin at f = kv_indptr[b]; j < kv_len is seen if not causal or j + qo_len "
        "<= kv_len + i; with a mask, if bit i * kv_len + j is set; with a window, only if "
        "also j + qo_len + window > kv_len + i. cap(s) = s, or with a logits_soft_cap c, c "
        "* tanh(s / c).",
    .precision = "float32 or wider, the softmax relative to its running maximum; out is rounded "
                 "once. Positions are taken in an order fixed only by j: the value does not "
                 "depend on other sequences and is that of paged_prefill.",
    .edge_cases = "A token that sees nothing (an empty sequence; causal with more queries than "
                  "keys; a row of zeros in the mask) gives 0, and -inf in lse. Sequences may have "
                  "no tokens or no keys. A NaN "
                  "in q or in a key or value that is seen makes the head's output NaN. out may be "
                  "q.",
    .source = "FlashInfer BatchPrefillWithRaggedKVCacheWrapper",
    .unit = "one head of one token: token * n_heads + head",
    .flops = "4 * attended_pairs * n_heads * head_dim",
    .axes = {{"n_tokens", AXIS_VARIABLE, "tokens of all sequences"},
             {"n_heads", AXIS_CONSTANT, "query heads, a multiple of n_kv_heads"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"},
             {"n_kv_tokens", AXIS_VARIABLE, "keys and values of all sequences"},
             {"n_kv_heads", AXIS_CONSTANT, "heads of keys and values"},
             {"n_sequences", AXIS_VARIABLE, "sequences"},
             AXIS_MASK_WORDS,
             {"attended_pairs", AXIS_DERIVED, "pairs of a token and a position that it sees"}},
    .tensors = {{"q", OP_IN, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "any strides of tokens and heads"},
                {"k", OP_IN, OP_FLOATS, "n_kv_tokens, n_kv_heads, head_dim", false,
                 "any strides of tokens and heads"},
                {"v", OP_IN, OP_FLOATS, "n_kv_tokens, n_kv_heads, head_dim", false, "as k"},
                TENSOR_QO_INDPTR,
                {"kv_indptr", OP_IN, OP_TYPE(I32), "n_sequences + 1", false,
                 "sequence b has the keys and values kv_indptr[b] .. kv_indptr[b + 1] - 1"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "any strides of tokens and heads; may be q"},
                {"lse", OP_OUT, OP_TYPE(F32) | OP_TYPE(F64), "n_tokens, n_heads", true,
                 "log-sum-exp in base 2, for merge_state"},
                TENSOR_MASK},
    .params = {{"sm_scale", PARAM_FLOAT, 0, "factor of the scores; 0: 1 / sqrt(head_dim)"},
               {"causal", PARAM_BOOL, 1, "a token sees no later one of its sequence"},
               PARAM_WINDOW,
               PARAM_SOFT_CAP},
    .units = units,
    .check = check,
    .derive = derive,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = ragged_prefill_reference,
    .variants = variants,
    .cuda = ragged_prefill_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "head_dim",
};
