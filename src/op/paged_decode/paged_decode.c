/* paged_decode: attention of one new token of each sequence over its paged KV cache.
 *
 * It equals paged_prefill with one query per sequence, bit for bit. It has a name of its own
 * because its fast kernels differ: this operator is limited by reading the cache.
 */
#include "op/paged_decode/paged_decode.h"

#include "op/attention/attention.h"
#include "op/attention/mask.h"
#include "op/attention/ragged.h"
#include "op/attention/tile.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <string.h>

static int64_t units(const op_call *call)
{
    const tensor *q = &call->tensors[PAGED_DECODE_Q];
    return q->shape[0] * q->shape[1];
}

static page_table table_of(const op_call *call)
{
    return (page_table){.kv_indptr = &call->tensors[PAGED_DECODE_KV_INDPTR],
                        .kv_indices = &call->tensors[PAGED_DECODE_KV_INDICES],
                        .kv_last_page_len = &call->tensors[PAGED_DECODE_KV_LAST_PAGE_LEN],
                        .k_cache = &call->tensors[PAGED_DECODE_K_CACHE]};
}

/* A sequence's only token is its last. */
static attention_rule rule_of(const op_call *call)
{
    return (attention_rule){.window = (int64_t)call->params[PAGED_DECODE_WINDOW]};
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *q = &call->tensors[PAGED_DECODE_Q];
    page_table table = table_of(call);
    TRY(attention_check_limits("paged_decode", call->params[PAGED_DECODE_WINDOW],
                               call->params[PAGED_DECODE_SOFT_CAP], error));
    TRY(attention_check_heads("paged_decode", q->shape[1], table.k_cache->shape[2], error));
    return page_table_check("paged_decode", &table, error);
}

static double derive(const op_call *call, const char *axis)
{
    page_table table = table_of(call);
    attention_rule rule = rule_of(call);
    if (strcmp(axis, "kv_tokens") != 0 || !page_table_has_data(&table)) return 0;
    double seen = 0;
    for (int64_t b = 0; b < indptr_sequences(table.kv_indptr); b++)
        seen += attention_pairs(&rule, 1, page_table_length(&table, b));
    return seen;
}

static size_t scratch_bytes(const op_call *call)
{
    return attention_tile_scratch(call->tensors[PAGED_DECODE_Q].shape[2]);
}

static void prepare(op_call *call, uint64_t seed)
{
    page_table table = table_of(call);
    page_table_fill(&table, NULL, seed);
}

void paged_decode_reference(const op_call *call)
{
    const tensor *q = &call->tensors[PAGED_DECODE_Q];
    page_table table = table_of(call);
    attention_source source = {.k = call->tensors[PAGED_DECODE_K_CACHE],
                               .v = call->tensors[PAGED_DECODE_V_CACHE]};
    attention_row row = {.q = q,
                         .out = &call->tensors[PAGED_DECODE_OUT],
                         .lse = &call->tensors[PAGED_DECODE_LSE],
                         .sm_scale = call->params[PAGED_DECODE_SM_SCALE],
                         .soft_cap = call->params[PAGED_DECODE_SOFT_CAP]};
    attention_rule rule = rule_of(call);

    for (int64_t unit = call->begin; unit < call->end; unit++) {
        row.token = unit / q->shape[1];
        row.head = unit % q->shape[1];
        row.range = attention_range_of(&rule, 0, 1, page_table_length(&table, row.token));
        source.pages = page_table_pages(&table, row.token);
        attention_compute(&source, &row, call->scratch);
    }
}

static void run_tiles(const op_call *call, attention_kernel *kernel)
{
    page_table table = table_of(call);
    int64_t n_heads = call->tensors[PAGED_DECODE_Q].shape[1];
    attention_source source = {.k = call->tensors[PAGED_DECODE_K_CACHE],
                               .v = call->tensors[PAGED_DECODE_V_CACHE]};
    attention_slice slice = {.q = &call->tensors[PAGED_DECODE_Q],
                             .out = &call->tensors[PAGED_DECODE_OUT],
                             .lse = &call->tensors[PAGED_DECODE_LSE],
                             .sm_scale = call->params[PAGED_DECODE_SM_SCALE],
                             .soft_cap = call->params[PAGED_DECODE_SOFT_CAP],
                             .begin = call->begin,
                             .end = call->end,
                             .kernel = kernel,
                             .scratch = call->scratch};
    attention_rule rule = rule_of(call);
    if (call->begin == call->end) return;
    for (int64_t b = call->begin / n_heads; b <= (call->end - 1) / n_heads; b++) {
        source.pages = page_table_pages(&table, b);
        attention_sequence(&slice, &source, b, 1, page_table_length(&table, b), &rule);
    }
}

static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) &&
           call->tensors[PAGED_DECODE_Q].shape[2] <= ATTENTION_MAX_HEAD_DIM;
}

ATTENTION_KERNELS(paged_decode)

static const char *const cases[] = {
    "n_sequences=1 n_heads=4 n_kv_heads=4 head_dim=64 n_pages=5 page_size=16 n_kv_indices=4",
    "n_sequences=12 n_heads=4 n_kv_heads=1 head_dim=64 n_pages=60 page_size=16 n_kv_indices=48",
    "n_sequences=17 n_heads=2 n_kv_heads=2 head_dim=32 n_pages=97 page_size=1 n_kv_indices=97 "
    "lse:-",
    "n_sequences=3 n_heads=8 n_kv_heads=1 head_dim=128 n_pages=40 page_size=8 n_kv_indices=37 "
    "q:BF16 k_cache:BF16 v_cache:BF16 out:BF16",
    "n_sequences=2 n_heads=2 n_kv_heads=1 head_dim=256 n_pages=64 page_size=16 n_kv_indices=64 "
    "q:F16 k_cache:F16 v_cache:F16 out:F16 q+8 out+16 k_cache@0213 v_cache@0213",
    "n_sequences=4 n_heads=9 n_kv_heads=3 head_dim=64 n_pages=12 page_size=16 n_kv_indices=10 "
    "k_cache:F16 v_cache:F16 sm_scale=0.25 out=q",
    "n_sequences=3 n_heads=4 n_kv_heads=2 head_dim=64 n_pages=300 page_size=16 n_kv_indices=290 "
    "q:BF16 k_cache:BF16 v_cache:BF16 out:BF16",
    "n_sequences=5 n_heads=2 n_kv_heads=2 head_dim=8 n_pages=4 page_size=16 n_kv_indices=0",
    "n_sequences=0 n_heads=2 n_kv_heads=2 head_dim=8 n_pages=4 page_size=16 n_kv_indices=0",
    "n_sequences=4 n_heads=8 n_kv_heads=2 head_dim=64 n_pages=80 page_size=16 n_kv_indices=70 "
    "window=100 k_cache:F16 v_cache:F16",
    "n_sequences=3 n_heads=2 n_kv_heads=1 head_dim=32 n_pages=40 page_size=5 n_kv_indices=37 "
    "window=1 logits_soft_cap=20",
    "n_sequences=9 n_heads=4 n_kv_heads=1 head_dim=64 n_pages=60 page_size=16 n_kv_indices=48 "
    "k_cache:F8 v_cache:F8",
    "n_sequences=3 n_heads=4 n_kv_heads=2 head_dim=128 n_pages=300 page_size=16 n_kv_indices=290 "
    "q:BF16 k_cache:F8 v_cache:F8 out:BF16",
    "n_sequences=3 n_heads=4 n_kv_heads=2 head_dim=20 n_pages=30 page_size=7 n_kv_indices=29 "
    "k_cache:F8 v_cache:F8",
    "n_sequences=3 n_heads=8 n_kv_heads=2 head_dim=64 n_pages=300 page_size=16 n_kv_indices=290 "
    "q:BF16 k_cache:BF16 v_cache:BF16 out:BF16 window=700",
    "n_sequences=2 n_heads=16 n_kv_heads=2 head_dim=128 n_pages=150 page_size=32 n_kv_indices=140 "
    "k_cache:F16 v_cache:F16 window=1100 logits_soft_cap=30",
    "n_sequences=3 n_heads=4 n_kv_heads=1 head_dim=64 n_pages=200 page_size=16 n_kv_indices=180 "
    "q:F16 k_cache:F8 v_cache:F8 out:F16 k_cache@0213 v_cache@0213 out=q sm_scale=-0.25",
    "n_sequences=33 n_heads=14 n_kv_heads=2 head_dim=128 n_pages=20 page_size=48 n_kv_indices=36 "
    "k_cache:F8 v_cache:F8 lse:-",
    "n_sequences=4 n_heads=8 n_kv_heads=2 head_dim=64 n_pages=80 page_size=16 n_kv_indices=70 "
    "window=100 k_cache:F8 v_cache:F8",
    "n_sequences=2 n_heads=8 n_kv_heads=1 head_dim=128 n_pages=90 page_size=16 n_kv_indices=80 "
    "k_cache:F8 v_cache:F8 window=500 logits_soft_cap=30",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_sequences=16 n_heads=32 n_kv_heads=8 head_dim=128 n_pages=2048 page_size=16 "
    "n_kv_indices=2048 q:BF16 k_cache:BF16 v_cache:BF16 out:BF16 lse:-",
    "llama-3.2-1b: n_sequences=1 n_heads=32 n_kv_heads=8 head_dim=64 n_pages=128 page_size=16 "
    "n_kv_indices=128 q:BF16 k_cache:BF16 v_cache:BF16 out:BF16 lse:-",
    "internlm2-1.8b: n_sequences=128 n_heads=16 n_kv_heads=8 head_dim=128 n_pages=4096 "
    "page_size=16 n_kv_indices=4096 q:BF16 k_cache:BF16 v_cache:BF16 out:BF16 lse:-",
    "smollm2-135m: n_sequences=1 n_heads=9 n_kv_heads=3 head_dim=64 n_pages=64 page_size=16 "
    "n_kv_indices=64 k_cache:F16 v_cache:F16 lse:-",
    "llama-3.2-1b cache F8: n_sequences=64 n_heads=32 n_kv_heads=8 head_dim=64 n_pages=4096 "
    "page_size=16 n_kv_indices=4096 q:BF16 k_cache:F8 v_cache:F8 out:BF16 lse:-",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 2e-6, 2e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 1e-2, 1e-2}, {0}};

const op_info op_paged_decode = {
    .name = "paged_decode",
    .summary = "attention of one token per sequence over a paged KV cache",
    .place = "After rope and kv_append when every sequence has one new token: the cache already "
             "holds its key and value.",
    .formula = "p[b, h, j] = exp(cap(sm_scale * sum_i q[b, h, i] * k[j, h / group, i])) for j < "
               "kv_len, with a window for kv_len - window <= j < kv_len; out[b, h] = sum_j p[b, h, "
               "j] * v[j, h / group] / sum_j p[b, h, j]; lse[b, h] = "
               "log2(sum_j p[b, h, j]). group = n_heads / n_kv_heads, kv_len = (pages - 1) * "
               "page_size + kv_last_page_len[b]. cap(s) = s, or with a logits_soft_cap c, c * "
               "tanh(s / c). Position j of sequence b lies at "
               "[kv_indices[kv_indptr[b] + j / page_size], j % page_size, h / group] of the "
               "caches.",
    .precision = "float32 or wider, the softmax relative to its running maximum; out is rounded "
                 "once. Positions are taken in an order fixed only by j: the value does not "
                 "depend on page_size or on other sequences.",
    .edge_cases = "An empty sequence (no pages, last page length 0) gives 0, and -inf in lse. A "
                  "NaN in q or in a key or value makes the head's output NaN. out may be q. "
                  "Several sequences may share pages.",
    .source = "FlashInfer BatchDecodeWithPagedKVCacheWrapper",
    .unit = "one head of one sequence: sequence * n_heads + head",
    .flops = "4 * kv_tokens * n_heads * head_dim",
    .bytes = "n_sequences * n_heads * head_dim * (sizeof_q + sizeof_out) + kv_tokens * n_kv_heads "
             "* head_dim * (sizeof_k_cache + sizeof_v_cache)",
    .axes = {{"n_sequences", AXIS_VARIABLE, "sequences, each with one new token"},
             {"n_heads", AXIS_CONSTANT, "query heads, a multiple of n_kv_heads"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"},
             {"n_pages", AXIS_CONSTANT, "pages of the cache"},
             {"page_size", AXIS_CONSTANT, "positions in a page"},
             {"n_kv_heads", AXIS_CONSTANT, "heads of keys and values"},
             {"n_kv_indices", AXIS_VARIABLE, "pages in use, over all sequences"},
             {"kv_tokens", AXIS_DERIVED, "positions that are seen, over all sequences"}},
    .tensors = {{"q", OP_IN, OP_FLOATS, "n_sequences, n_heads, head_dim", false,
                 "any strides of sequences and heads"},
                TENSOR_K_CACHE(OP_IN),
                TENSOR_V_CACHE(OP_IN),
                TENSOR_KV_INDPTR,
                TENSOR_KV_INDICES,
                TENSOR_KV_LAST_PAGE_LEN("1 .. page_size"),
                {"out", OP_OUT, OP_FLOATS, "n_sequences, n_heads, head_dim", false,
                 "any strides of sequences and heads; may be q"},
                {"lse", OP_OUT, OP_TYPE(F32) | OP_TYPE(F64), "n_sequences, n_heads", true,
                 "log-sum-exp in base 2, for merge_state"}},
    .params = {{"sm_scale", PARAM_FLOAT, 0, "factor of the scores; 0: 1 / sqrt(head_dim)"},
               PARAM_WINDOW,
               PARAM_SOFT_CAP},
    .units = units,
    .check = check,
    .derive = derive,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = paged_decode_reference,
    .variants = variants,
    .cuda = paged_decode_cuda,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "head_dim",
};
