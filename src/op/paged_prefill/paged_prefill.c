/* paged_prefill: attention of any number of new tokens of each sequence over its paged KV cache.
 *
 * It serves prompts, chunks of prompts and single tokens: the cache already holds the new tokens'
 * keys and values, and the last query of a sequence sees all of them.
 */
#include "op/paged_prefill/paged_prefill.h"

#include "op/attention/attention.h"
#include "op/attention/mask.h"
#include "op/attention/ragged.h"
#include "op/attention/tile.h"
#include "op/paged_prefill/pieces.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <string.h>

static int64_t units(const op_call *call)
{
    const tensor *q = &call->tensors[PAGED_PREFILL_Q];
    return q->shape[0] * q->shape[1];
}

static page_table table_of(const op_call *call)
{
    return (page_table){.kv_indptr = &call->tensors[PAGED_PREFILL_KV_INDPTR],
                        .kv_indices = &call->tensors[PAGED_PREFILL_KV_INDICES],
                        .kv_last_page_len = &call->tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN],
                        .k_cache = &call->tensors[PAGED_PREFILL_K_CACHE]};
}

static int64_t kv_length(const op_call *call, int64_t b)
{
    page_table table = table_of(call);
    return page_table_length(&table, b);
}

static attention_masks masks_of(const op_call *call)
{
    return (attention_masks){.mask = &call->tensors[PAGED_PREFILL_MASK],
                             .qo_indptr = &call->tensors[PAGED_PREFILL_QO_INDPTR],
                             .call = call,
                             .kv_length = kv_length};
}

static attention_rule rule_of(const op_call *call, int64_t b)
{
    attention_masks masks = masks_of(call);
    return (attention_rule){.causal = call->params[PAGED_PREFILL_CAUSAL] != 0,
                            .window = (int64_t)call->params[PAGED_PREFILL_WINDOW],
                            .mask = attention_mask_of(&masks, b)};
}

static qp_status check(const op_call *call, qp_error *error)
{
    page_table table = table_of(call);
    attention_masks masks = masks_of(call);
    TRY(attention_check_limits("paged_prefill", call->params[PAGED_PREFILL_WINDOW],
                               call->params[PAGED_PREFILL_SOFT_CAP], error));
    TRY(paged_check("paged_prefill", &call->tensors[PAGED_PREFILL_Q],
                    &call->tensors[PAGED_PREFILL_QO_INDPTR], &table, error));
    return attention_masks_check("paged_prefill", &masks, error);
}

static double derive(const op_call *call, const char *axis)
{
    const tensor *qo_indptr = &call->tensors[PAGED_PREFILL_QO_INDPTR];
    page_table table = table_of(call);
    if (!qo_indptr->data || !page_table_has_data(&table)) return 0;
    if (strcmp(axis, "kv_tokens") == 0) return page_table_total(&table);
    double pairs = 0;
    for (int64_t b = 0; b < indptr_sequences(qo_indptr); b++) {
        attention_rule rule = rule_of(call, b);
        pairs += attention_pairs(&rule, indptr_count(qo_indptr, b), kv_length(call, b));
    }
    return pairs;
}

static size_t scratch_bytes(const op_call *call)
{
    return attention_tile_scratch(call->tensors[PAGED_PREFILL_Q].shape[2]);
}

static void prepare(op_call *call, uint64_t seed)
{
    const tensor *qo_indptr = &call->tensors[PAGED_PREFILL_QO_INDPTR];
    page_table table = table_of(call);
    indptr_fill(qo_indptr, call->tensors[PAGED_PREFILL_Q].shape[0], seed);
    page_table_fill(&table, qo_indptr, seed + 1);
    attention_masks masks = masks_of(call);
    attention_masks_fill(&masks, seed + 2);
}

void paged_prefill_reference(const op_call *call)
{
    const tensor *q = &call->tensors[PAGED_PREFILL_Q];
    const tensor *qo_indptr = &call->tensors[PAGED_PREFILL_QO_INDPTR];
    page_table table = table_of(call);
    attention_source source = {.k = call->tensors[PAGED_PREFILL_K_CACHE],
                               .v = call->tensors[PAGED_PREFILL_V_CACHE]};
    attention_row row = {.q = q,
                         .out = &call->tensors[PAGED_PREFILL_OUT],
                         .lse = &call->tensors[PAGED_PREFILL_LSE],
                         .sm_scale = call->params[PAGED_PREFILL_SM_SCALE],
                         .soft_cap = call->params[PAGED_PREFILL_SOFT_CAP]};

    for (int64_t unit = call->begin; unit < call->end; unit++) {
        row.token = unit / q->shape[1];
        row.head = unit % q->shape[1];
        int64_t b = indptr_find(qo_indptr, row.token);
        int64_t i = row.token - ((const int32_t *)qo_indptr->data)[b];
        attention_rule rule = rule_of(call, b);
        row.range = attention_range_of(&rule, i, indptr_count(qo_indptr, b), kv_length(call, b));
        source.pages = page_table_pages(&table, b);
        attention_compute(&source, &row, call->scratch);
    }
}

/* What of the call to compute. */
static void run_task(const op_call *call, attention_kernel *kernel, attention_task task,
                     const paged_prefill_states *states, int64_t segment)
{
    const tensor *qo_indptr = &call->tensors[PAGED_PREFILL_QO_INDPTR];
    const int32_t *border = qo_indptr->data;
    page_table table = table_of(call);
    int64_t n_heads = call->tensors[PAGED_PREFILL_Q].shape[1];
    attention_source source = {.k = call->tensors[PAGED_PREFILL_K_CACHE],
                               .v = call->tensors[PAGED_PREFILL_V_CACHE]};
    attention_slice slice = {.q = &call->tensors[PAGED_PREFILL_Q],
                             .out = &call->tensors[PAGED_PREFILL_OUT],
                             .lse = &call->tensors[PAGED_PREFILL_LSE],
                             .sm_scale = call->params[PAGED_PREFILL_SM_SCALE],
                             .soft_cap = call->params[PAGED_PREFILL_SOFT_CAP],
                             .begin = call->begin,
                             .end = call->end,
                             .kernel = kernel,
                             .scratch = call->scratch,
                             .task = task,
                             .segment = segment,
                             .n_segments = states ? states->n_segments : 0,
                             .states = states ? states->of : NULL};

    if (call->begin == call->end) return;
    int64_t first = indptr_find(qo_indptr, call->begin / n_heads);
    int64_t last = indptr_find(qo_indptr, (call->end - 1) / n_heads);
    for (int64_t b = first; b <= last; b++) {
        attention_rule rule = rule_of(call, b);
        source.pages = page_table_pages(&table, b);
        attention_sequence(&slice, &source, border[b], indptr_count(qo_indptr, b),
                           kv_length(call, b), &rule);
    }
}

static void run_tiles(const op_call *call, attention_kernel *kernel)
{
    run_task(call, kernel, ATTENTION_WHOLE, NULL, 0);
}

static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) &&
           call->tensors[PAGED_PREFILL_Q].shape[2] <= ATTENTION_MAX_HEAD_DIM;
}

ATTENTION_KERNELS(paged_prefill)

static attention_kernel *tiles_of(op_kernel *kernel)
{
#define TILES_OF(level, features, op)                                                              \
    if (kernel == op##_##level) return attention_tile_##level;
    SIMD_LEVELS(TILES_OF, paged_prefill)
    return NULL;
}

bool paged_prefill_has_pieces(op_kernel *kernel)
{
    return tiles_of(kernel) != NULL;
}

int64_t paged_prefill_state_floats(const op_call *call)
{
    return attention_state_floats(call->tensors[PAGED_PREFILL_Q].shape[2]);
}

void paged_prefill_segment(op_kernel *kernel, const op_call *call,
                           const paged_prefill_states *states, int64_t segment)
{
    run_task(call, tiles_of(kernel), ATTENTION_STATE, states, segment);
}

void paged_prefill_merge(op_kernel *kernel, const op_call *call, const paged_prefill_states *states)
{
    run_task(call, tiles_of(kernel), ATTENTION_MERGE, states, 0);
}

static const char *const cases[] = {
    "n_tokens=1 n_sequences=1 n_heads=4 n_kv_heads=4 head_dim=64 n_pages=5 page_size=16 "
    "n_kv_indices=4",
    "n_tokens=37 n_sequences=3 n_heads=4 n_kv_heads=1 head_dim=64 n_pages=40 page_size=5 "
    "n_kv_indices=33",
    "n_tokens=34 n_sequences=2 n_heads=3 n_kv_heads=3 head_dim=32 n_pages=54 page_size=1 "
    "n_kv_indices=54 causal=0 lse:-",
    "n_tokens=17 n_sequences=1 n_heads=8 n_kv_heads=2 head_dim=128 n_pages=9 page_size=16 "
    "n_kv_indices=7 q:BF16 k_cache:BF16 v_cache:BF16 out:BF16",
    "n_tokens=9 n_sequences=5 n_heads=6 n_kv_heads=2 head_dim=48 n_pages=30 page_size=3 "
    "n_kv_indices=27 q:F16 k_cache:F16 v_cache:F16 out:F16 q+8 out+16",
    "n_tokens=34 n_sequences=1 n_heads=2 n_kv_heads=1 head_dim=16 n_pages=1 page_size=1 "
    "n_kv_indices=1",
    "n_tokens=127 n_sequences=1 n_heads=2 n_kv_heads=1 head_dim=64 n_pages=40 page_size=16 "
    "n_kv_indices=32 k_cache:F16 v_cache:F16 k_cache@0213 v_cache@0213",
    "n_tokens=6 n_sequences=2 n_heads=9 n_kv_heads=3 head_dim=64 n_pages=12 page_size=16 "
    "n_kv_indices=10 k_cache:F16 v_cache:F16 sm_scale=0.25 out=q",
    "n_tokens=5 n_sequences=2 n_heads=2 n_kv_heads=2 head_dim=8 n_pages=4 page_size=16 "
    "n_kv_indices=0",
    "n_tokens=0 n_sequences=2 n_heads=2 n_kv_heads=2 head_dim=8 n_pages=4 page_size=16 "
    "n_kv_indices=4",
    "n_tokens=60 n_sequences=2 n_heads=2 n_kv_heads=1 head_dim=32 n_pages=20 page_size=16 "
    "n_kv_indices=14 window=37",
    "n_tokens=4 n_sequences=1 n_heads=6 n_kv_heads=1 head_dim=64 n_pages=40 page_size=16 "
    "n_kv_indices=33 window=128 logits_soft_cap=1.5 causal=0 k_cache:F16 v_cache:F16",
    "n_tokens=15 n_sequences=3 n_heads=2 n_kv_heads=1 head_dim=20 n_pages=40 page_size=7 "
    "n_kv_indices=35 n_mask_words=120 logits_soft_cap=30 q:BF16 k_cache:BF16 v_cache:BF16 out:BF16",
    "n_tokens=5 n_sequences=2 n_heads=2 n_kv_heads=2 head_dim=48 n_pages=30 page_size=10 "
    "n_kv_indices=30 n_mask_words=60 window=100 lse:-",
    "n_tokens=37 n_sequences=3 n_heads=4 n_kv_heads=2 head_dim=128 n_pages=40 page_size=16 "
    "n_kv_indices=33 k_cache:F8 v_cache:F8",
    "n_tokens=150 n_sequences=2 n_heads=4 n_kv_heads=1 head_dim=64 n_pages=40 page_size=16 "
    "n_kv_indices=32 q:BF16 k_cache:F8 v_cache:F8 out:BF16 lse:-",
    "n_tokens=9 n_sequences=5 n_heads=6 n_kv_heads=2 head_dim=20 n_pages=30 page_size=3 "
    "n_kv_indices=27 q:F16 k_cache:F8 v_cache:F8 out:F16",
    "n_tokens=300 n_sequences=3 n_heads=4 n_kv_heads=1 head_dim=64 n_pages=50 page_size=16 "
    "n_kv_indices=45 window=100 q:BF16 k_cache:BF16 v_cache:BF16 out:BF16",
    "n_tokens=200 n_sequences=2 n_heads=4 n_kv_heads=2 head_dim=128 n_pages=40 page_size=16 "
    "n_kv_indices=40 n_mask_words=4010 logits_soft_cap=20 k_cache:F16 v_cache:F16",
    "n_tokens=70 n_sequences=1 n_heads=8 n_kv_heads=1 head_dim=128 n_pages=30 page_size=16 "
    "n_kv_indices=30 window=130 logits_soft_cap=50 causal=0 k_cache:BF16 v_cache:BF16",
    "n_tokens=300 n_sequences=3 n_heads=4 n_kv_heads=2 head_dim=64 n_pages=50 page_size=16 "
    "n_kv_indices=45 q:F16 k_cache:F8 v_cache:F8 out:F16 k_cache@0213 v_cache@0213 out=q",
    "n_tokens=150 n_sequences=2 n_heads=4 n_kv_heads=2 head_dim=128 n_pages=20 page_size=32 "
    "n_kv_indices=18 causal=0 k_cache:F8 v_cache:F8 lse:-",
    "n_tokens=300 n_sequences=3 n_heads=4 n_kv_heads=1 head_dim=64 n_pages=50 page_size=16 "
    "n_kv_indices=45 window=100 q:BF16 k_cache:F8 v_cache:F8 out:BF16",
    "n_tokens=100 n_sequences=2 n_heads=4 n_kv_heads=2 head_dim=128 n_pages=30 page_size=16 "
    "n_kv_indices=24 n_mask_words=1210 logits_soft_cap=20 k_cache:F8 v_cache:F8",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=512 n_sequences=1 n_heads=32 n_kv_heads=8 head_dim=128 n_pages=128 "
    "page_size=16 n_kv_indices=128 q:BF16 k_cache:BF16 v_cache:BF16 out:BF16 lse:-",
    "llama-3.2-1b: n_tokens=512 n_sequences=1 n_heads=32 n_kv_heads=8 head_dim=64 n_pages=128 "
    "page_size=16 n_kv_indices=128 q:BF16 k_cache:BF16 v_cache:BF16 out:BF16 lse:-",
    "internlm2-1.8b: n_tokens=512 n_sequences=4 n_heads=16 n_kv_heads=8 head_dim=128 n_pages=128 "
    "page_size=16 n_kv_indices=128 q:BF16 k_cache:BF16 v_cache:BF16 out:BF16 lse:-",
    "smollm2-135m: n_tokens=512 n_sequences=1 n_heads=9 n_kv_heads=3 head_dim=64 n_pages=32 "
    "page_size=16 n_kv_indices=32 k_cache:F16 v_cache:F16 lse:-",
    "llama-3.2-1b cache F8: n_tokens=2048 n_sequences=1 n_heads=32 n_kv_heads=8 head_dim=64 "
    "n_pages=128 page_size=16 n_kv_indices=128 q:BF16 k_cache:F8 v_cache:F8 out:BF16 lse:-",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 2e-6, 2e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 1e-2, 1e-2}, {0}};

const op_info op_paged_prefill = {
    .name = "paged_prefill",
    .summary = "attention of new tokens over a paged KV cache",
    .place = "After rope and kv_append: the cache already holds the new tokens' own keys and "
             "values. Prompts, their chunks, and tokens of several sequences in one call.",
    .formula =
        "p[t, h, j] = exp(cap(sm_scale * sum_i q[t, h, i] * k[j, h / group, i])) over the "
        "positions j that t sees; out[t, h] = sum_j p[t, h, j] * v[j, h / group] / sum_j "
        "p[t, h, j]; lse[t, h] = log2(sum_j p[t, h, j]). group = n_heads / n_kv_heads. "
        "Token t is number i = t - qo_indptr[b] of qo_len in its sequence b, of kv_len = "
        "(pages - 1) * page_size + kv_last_page_len[b] cached positions; j is seen if not "
        "causal or j + qo_len <= kv_len + i; with a mask, if bit i * kv_len + j is set; with a "
        "window, only if also j + qo_len + window > kv_len + i. cap(s) = s, or with a "
        "logits_soft_cap c, c * tanh(s / c). Position j lies at [kv_indices[kv_indptr[b] "
        "+ j / page_size], j % page_size, h / group] of the caches.",
    .precision = "float32 or wider, the softmax relative to its running maximum; out is rounded "
                 "once. Positions are taken in an order fixed only by j: the value does not "
                 "depend on page_size, on how a prompt was cut, or on other sequences.",
    .edge_cases = "A token that sees nothing (an empty sequence; causal with more queries than "
                  "positions; a row of zeros in the mask) gives 0, and -inf in lse. Sequences may "
                  "have no tokens, or no pages "
                  "and a last page length of 0. A NaN in q or in a key or value that is seen makes "
                  "the head's output NaN. out may be q. Several sequences may share pages.",
    .source = "FlashInfer BatchPrefillWithPagedKVCacheWrapper",
    .unit = "one head of one token: token * n_heads + head",
    .flops = "4 * attended_pairs * n_heads * head_dim",
    .bytes = "n_tokens * n_heads * head_dim * (sizeof_q + sizeof_out) + kv_tokens * n_kv_heads * "
             "head_dim * (sizeof_k_cache + sizeof_v_cache)",
    .axes = {{"n_tokens", AXIS_VARIABLE, "new tokens of all sequences"},
             {"n_heads", AXIS_CONSTANT, "query heads, a multiple of n_kv_heads"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"},
             {"n_pages", AXIS_CONSTANT, "pages of the cache"},
             {"page_size", AXIS_CONSTANT, "positions in a page"},
             {"n_kv_heads", AXIS_CONSTANT, "heads of keys and values"},
             {"n_sequences", AXIS_VARIABLE, "sequences"},
             {"n_kv_indices", AXIS_VARIABLE, "pages in use, over all sequences"},
             AXIS_MASK_WORDS,
             {"kv_tokens", AXIS_DERIVED, "cached positions, over all sequences"},
             {"attended_pairs", AXIS_DERIVED, "pairs of a token and a position that it sees"}},
    .tensors = {{"q", OP_IN, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "any strides of tokens and heads"},
                TENSOR_K_CACHE(OP_IN),
                TENSOR_V_CACHE(OP_IN),
                TENSOR_QO_INDPTR,
                TENSOR_KV_INDPTR,
                TENSOR_KV_INDICES,
                TENSOR_KV_LAST_PAGE_LEN("1 .. page_size"),
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
    .reference = paged_prefill_reference,
    .variants = variants,
    .cuda = paged_prefill_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "head_dim",
};
