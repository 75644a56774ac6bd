/* attention_partial: attention over parts of the paged KV cache, so that several workers share one
 * long context.
 *
 * The number of parts is a shape (n_states). The positions of each part follow from the positions
 * that a token sees, from the page of the first one on (partition.h). The bits depend on both, and
 * never on the worker that computes a part. A unit is a part of one KV head, for all tokens, and
 * units are ordered head by head, so attention can begin, and its parts be merged, head by head.
 */
#include "op/attention_partial/attention_partial.h"

#include "op/attention/attention.h"
#include "op/attention/mask.h"
#include "op/attention/ragged.h"
#include "op/attention/tile.h"
#include "op/attention_partial/partition.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    return call->tensors[ATTENTION_PARTIAL_K_CACHE].shape[2] *
           call->tensors[ATTENTION_PARTIAL_V].shape[2];
}

/* The KV heads to which the units [begin, end) belong; all heads where there are no parts. */
static op_columns kv_heads_of(const op_call *call, int64_t begin, int64_t end)
{
    int64_t n_states = call->tensors[ATTENTION_PARTIAL_V].shape[2];
    if (n_states == 0) return (op_columns){0, call->tensors[ATTENTION_PARTIAL_K_CACHE].shape[2]};
    return (op_columns){begin / n_states, (end + n_states - 1) / n_states};
}

static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    const tensor *cache = &call->tensors[ATTENTION_PARTIAL_K_CACHE];
    const tensor *v = &call->tensors[ATTENTION_PARTIAL_V]; /* (n, n_heads, n_states, head_dim) */
    op_columns heads = kv_heads_of(call, begin, end);
    if (t == ATTENTION_PARTIAL_K_CACHE || t == ATTENTION_PARTIAL_V_CACHE)
        return page_columns(&call->tensors[t], heads.begin, heads.end);
    int64_t per_head = v->shape[1] / cache->shape[2];
    if (t == ATTENTION_PARTIAL_Q || t == ATTENTION_PARTIAL_V) per_head *= v->shape[3];
    if (t == ATTENTION_PARTIAL_V || t == ATTENTION_PARTIAL_S) per_head *= v->shape[2];
    return (op_columns){heads.begin * per_head, heads.end * per_head};
}

static page_table table_of(const op_call *call)
{
    return (page_table){.kv_indptr = &call->tensors[ATTENTION_PARTIAL_KV_INDPTR],
                        .kv_indices = &call->tensors[ATTENTION_PARTIAL_KV_INDICES],
                        .kv_last_page_len = &call->tensors[ATTENTION_PARTIAL_KV_LAST_PAGE_LEN],
                        .k_cache = &call->tensors[ATTENTION_PARTIAL_K_CACHE]};
}

static qp_status check(const op_call *call, qp_error *error)
{
    page_table table = table_of(call);
    TRY(attention_check_limits("attention_partial", call->params[ATTENTION_PARTIAL_WINDOW], 0,
                               error));
    return paged_check("attention_partial", &call->tensors[ATTENTION_PARTIAL_Q],
                       &call->tensors[ATTENTION_PARTIAL_QO_INDPTR], &table, error);
}

static attention_rule rule_of(const op_call *call)
{
    return (attention_rule){.causal = call->params[ATTENTION_PARTIAL_CAUSAL] != 0,
                            .window = (int64_t)call->params[ATTENTION_PARTIAL_WINDOW]};
}

static double derive(const op_call *call, const char *axis)
{
    page_table table = table_of(call);
    attention_rule rule = rule_of(call);
    return paged_derive(&call->tensors[ATTENTION_PARTIAL_QO_INDPTR], &table, &rule, axis);
}

static size_t scratch_bytes(const op_call *call)
{
    return attention_tile_scratch(call->tensors[ATTENTION_PARTIAL_Q].shape[2]);
}

static void prepare(op_call *call, uint64_t seed)
{
    const tensor *qo_indptr = &call->tensors[ATTENTION_PARTIAL_QO_INDPTR];
    page_table table = table_of(call);
    indptr_fill(qo_indptr, call->tensors[ATTENTION_PARTIAL_Q].shape[0], seed);
    page_table_fill(&table, qo_indptr, seed + 1);
}

/* Positions that a token of sequence b sees. */
static attention_range seen_by(const op_call *call, const page_table *table, int64_t token,
                               int64_t b)
{
    const tensor *qo_indptr = &call->tensors[ATTENTION_PARTIAL_QO_INDPTR];
    const attention_rule rule = rule_of(call);
    int64_t i = token - ((const int32_t *)qo_indptr->data)[b];
    return attention_range_of(&rule, i, indptr_count(qo_indptr, b), page_table_length(table, b));
}

/* Those of a part, counted from the part's first page; the first page's number. */
static attention_range range_of(const op_call *call, attention_range seen, int64_t part,
                                int64_t *page)
{
    const int64_t page_size = call->tensors[ATTENTION_PARTIAL_K_CACHE].shape[1];
    const int64_t first = seen.first / page_size * page_size;
    int64_t begin, end;
    partition_range(seen.end - first, call->tensors[ATTENTION_PARTIAL_V].shape[2], page_size, part,
                    &begin, &end);
    *page = (first + begin) / page_size;
    const int64_t unseen = seen.first - first - begin;
    return (attention_range){.first = unseen > 0 ? unseen : 0, .end = end - begin};
}

/* All heads of a KV head's group, in one token and one part. */
static void run_unit(const op_call *call, int64_t token, int64_t kv_head, int64_t part)
{
    const tensor *q = &call->tensors[ATTENTION_PARTIAL_Q];
    const tensor *s = &call->tensors[ATTENTION_PARTIAL_S];
    const tensor *qo_indptr = &call->tensors[ATTENTION_PARTIAL_QO_INDPTR];
    page_table table = table_of(call);
    int64_t group = q->shape[1] / table.k_cache->shape[2], b = indptr_find(qo_indptr, token), page;
    attention_range range = range_of(call, seen_by(call, &table, token, b), part, &page);
    tensor out = tensor_slice(call->tensors[ATTENTION_PARTIAL_V], 2, part, 1);
    tensor lse = s->rank ? tensor_slice(*s, 2, part, 1) : *s;
    attention_source source = {.k = call->tensors[ATTENTION_PARTIAL_K_CACHE],
                               .v = call->tensors[ATTENTION_PARTIAL_V_CACHE],
                               .pages = page_table_pages(&table, b) + page};
    attention_row row = {.q = q,
                         .out = &out,
                         .lse = &lse,
                         .token = token,
                         .range = range,
                         .sm_scale = call->params[ATTENTION_PARTIAL_SM_SCALE]};
    for (row.head = kv_head * group; row.head < (kv_head + 1) * group; row.head++)
        attention_compute(&source, &row, call->scratch);
}

void attention_partial_reference(const op_call *call)
{
    int64_t n_states = call->tensors[ATTENTION_PARTIAL_V].shape[2];
    int64_t n_tokens = call->tensors[ATTENTION_PARTIAL_Q].shape[0];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        for (int64_t token = 0; token < n_tokens; token++)
            run_unit(call, token, unit / n_states, unit % n_states);
    }
}

/* Parts [first, end) of a KV head, token by token: each token has its own positions in a part. */
static void run_parts(const op_call *call, attention_slice *slice, attention_source *source,
                      int64_t first, int64_t end)
{
    const tensor *qo_indptr = &call->tensors[ATTENTION_PARTIAL_QO_INDPTR];
    const tensor *v = &call->tensors[ATTENTION_PARTIAL_V], *s = &call->tensors[ATTENTION_PARTIAL_S];
    page_table table = table_of(call);
    for (int64_t token = 0; token < v->shape[0]; token++) {
        int64_t b = indptr_find(qo_indptr, token), page;
        const attention_range seen = seen_by(call, &table, token, b);
        for (int64_t part = first; part < end; part++) {
            tensor out = tensor_slice(*v, 2, part, 1);
            tensor lse = s->rank ? tensor_slice(*s, 2, part, 1) : *s;
            const attention_range range = range_of(call, seen, part, &page);
            source->pages = page_table_pages(&table, b) + page;
            slice->out = &out;
            slice->lse = &lse;
            attention_token(slice, source, token, &range);
        }
    }
}

/* One part: KV heads [first, end) of whole sequences, many tokens per tile. */
static void run_sequences(const op_call *call, attention_slice *slice, attention_source *source)
{
    const tensor *qo_indptr = &call->tensors[ATTENTION_PARTIAL_QO_INDPTR];
    page_table table = table_of(call);
    attention_rule rule = rule_of(call);
    slice->out = &call->tensors[ATTENTION_PARTIAL_V];
    slice->lse = &call->tensors[ATTENTION_PARTIAL_S];
    for (int64_t b = 0; b < indptr_sequences(qo_indptr); b++) {
        source->pages = page_table_pages(&table, b);
        attention_sequence(slice, source, ((const int32_t *)qo_indptr->data)[b],
                           indptr_count(qo_indptr, b), page_table_length(&table, b), &rule);
    }
}

static void run_tiles(const op_call *call, attention_kernel *kernel)
{
    const tensor *q = &call->tensors[ATTENTION_PARTIAL_Q];
    attention_source source = {.k = call->tensors[ATTENTION_PARTIAL_K_CACHE],
                               .v = call->tensors[ATTENTION_PARTIAL_V_CACHE]};
    attention_slice slice = {.q = q,
                             .sm_scale = call->params[ATTENTION_PARTIAL_SM_SCALE],
                             .end = q->shape[0] * q->shape[1],
                             .kernel = kernel,
                             .scratch = call->scratch};
    int64_t n_states = call->tensors[ATTENTION_PARTIAL_V].shape[2];
    int64_t group = q->shape[1] / source.k.shape[2];
    for (int64_t unit = call->begin, end; unit < call->end; unit = end) {
        int64_t kv_head = unit / n_states, last = (kv_head + 1) * n_states;
        slice.first_head = kv_head * group;
        slice.end_head = slice.first_head + group;
        end = last < call->end ? last : call->end;
        if (n_states > 1) {
            run_parts(call, &slice, &source, unit % n_states, unit % n_states + end - unit);
            continue;
        }
        end = call->end;
        slice.end_head = end * group;
        run_sequences(call, &slice, &source);
    }
}

static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) &&
           call->tensors[ATTENTION_PARTIAL_Q].shape[2] <= ATTENTION_MAX_HEAD_DIM;
}

ATTENTION_KERNELS(attention_partial)

static const char *const cases[] = {
    "n_tokens=1 n_sequences=1 n_heads=4 n_kv_heads=4 n_states=3 head_dim=64 n_pages=20 "
    "page_size=16 n_kv_indices=17",
    "n_tokens=5 n_sequences=3 n_heads=4 n_kv_heads=1 n_states=4 head_dim=64 n_pages=90 "
    "page_size=5 n_kv_indices=83",
    "n_tokens=4 n_sequences=2 n_heads=3 n_kv_heads=3 n_states=2 head_dim=32 n_pages=154 "
    "page_size=1 n_kv_indices=154 causal=0",
    "n_tokens=7 n_sequences=1 n_heads=8 n_kv_heads=2 n_states=5 head_dim=128 n_pages=29 "
    "page_size=16 n_kv_indices=27 q:BF16 k_cache:BF16 v_cache:BF16",
    "n_tokens=3 n_sequences=3 n_heads=6 n_kv_heads=2 n_states=16 head_dim=48 n_pages=30 "
    "page_size=100 n_kv_indices=27 q:F16 k_cache:F16 v_cache:F16 v:F16 q+8 v+16",
    "n_tokens=6 n_sequences=2 n_heads=9 n_kv_heads=3 n_states=1 head_dim=64 n_pages=12 "
    "page_size=16 n_kv_indices=10 k_cache:F16 v_cache:F16 k_cache@0213 v_cache@0213 sm_scale=0.25 "
    "s:-",
    "n_tokens=5 n_sequences=3 n_heads=4 n_kv_heads=2 n_states=3 head_dim=32 n_pages=90 "
    "page_size=8 n_kv_indices=83 window=130",
    "n_tokens=6 n_sequences=2 n_heads=4 n_kv_heads=2 n_states=1 head_dim=64 n_pages=12 "
    "page_size=16 n_kv_indices=10 window=5 k_cache:F16 v_cache:F16",
    "n_tokens=5 n_sequences=2 n_heads=2 n_kv_heads=2 n_states=2 head_dim=8 n_pages=4 page_size=16 "
    "n_kv_indices=0",
    "n_tokens=0 n_sequences=2 n_heads=2 n_kv_heads=2 n_states=2 head_dim=8 n_pages=4 page_size=16 "
    "n_kv_indices=4",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=1 n_sequences=1 n_heads=32 n_kv_heads=8 n_states=16 head_dim=128 "
    "n_pages=512 page_size=16 n_kv_indices=512 k_cache:F16 v_cache:F16",
    "llama-3.2-1b: n_tokens=1 n_sequences=1 n_heads=32 n_kv_heads=8 n_states=16 head_dim=64 "
    "n_pages=512 page_size=16 n_kv_indices=512 k_cache:F16 v_cache:F16",
    "internlm2-1.8b: n_tokens=8 n_sequences=8 n_heads=16 n_kv_heads=8 n_states=16 head_dim=128 "
    "n_pages=512 page_size=16 n_kv_indices=512 k_cache:F16 v_cache:F16",
    "smollm2-135m: n_tokens=1 n_sequences=1 n_heads=9 n_kv_heads=3 n_states=4 head_dim=64 "
    "n_pages=128 page_size=16 n_kv_indices=128 k_cache:F16 v_cache:F16",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 2e-6, 2e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 1e-2, 1e-2}, {0}};

const op_info op_attention_partial = {
    .name = "attention_partial",
    .summary = "attention over each of several parts of a paged KV cache",
    .place = "attention of the fused plan, after norm_qkv_rope: every part of a sequence's "
             "positions belongs to another worker, and merge_states merges them. With one part "
             "it is paged_prefill.",
    .formula =
        "p[t, h, j] = exp(sm_scale * sum_i q[t, h, i] * k[j, h / group, i]): v[t, h, p] = "
        "sum_j p[t, h, j] * v[j, h / group] / sum_j p[t, h, j] and s[t, h, p] = log2(sum_j "
        "p[t, h, j]) over the positions j in [F + p * c, min(F + (p + 1) * c, L)) that t sees, "
        "where t sees the positions [S, L) as in paged_prefill, F is S rounded down to whole "
        "pages, and c = max(64, ceil((L - F) / n_states)), rounded up to whole pages. group = "
        "n_heads / n_kv_heads; keys and values of position j lie "
        "where paged_prefill finds them.",
    .precision = "float32 or wider, the softmax relative to its running maximum; v and s are "
                 "rounded once. Positions are taken in an order fixed only by j and c.",
    .edge_cases = "A part without positions gives 0, and -inf in s. Sequences may have no tokens, "
                  "or no pages and a last page length of 0. A NaN in q or in a key or value that "
                  "is seen makes the part's output NaN. With one part v may be q.",
    .source = "FlashInfer's split-KV decoding: attention states for merge_states",
    .unit = "a part of a KV head, for all tokens and the heads of its group: kv_head * n_states + "
            "part",
    .flops = "4 * attended_pairs * n_heads * head_dim",
    .bytes = "n_tokens * n_heads * head_dim * (sizeof_q + n_states * sizeof_v) + kv_tokens * "
             "n_kv_heads * head_dim * (sizeof_k_cache + sizeof_v_cache)",
    .axes = {{"n_tokens", AXIS_VARIABLE, "new tokens of all sequences"},
             {"n_heads", AXIS_CONSTANT, "query heads, a multiple of n_kv_heads"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"},
             {"n_sequences", AXIS_VARIABLE, "sequences"},
             {"n_kv_indices", AXIS_VARIABLE, "pages in use, over all sequences"},
             {"n_pages", AXIS_CONSTANT, "pages of the cache"},
             {"page_size", AXIS_CONSTANT, "positions in a page"},
             {"n_kv_heads", AXIS_CONSTANT, "heads of keys and values"},
             {"n_states", AXIS_CONSTANT, "parts into which the positions are split"},
             {"kv_tokens", AXIS_DERIVED, "cached positions, over all sequences"},
             {"attended_pairs", AXIS_DERIVED, "pairs of a token and a position that it sees"}},
    .tensors = {{"q", OP_IN, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "tokens may be strided"},
                TENSOR_QO_INDPTR,
                TENSOR_KV_INDPTR,
                TENSOR_KV_INDICES,
                TENSOR_KV_LAST_PAGE_LEN("1 .. page_size"),
                TENSOR_K_CACHE(OP_IN),
                TENSOR_V_CACHE(OP_IN),
                {"v", OP_OUT, OP_FLOATS, "n_tokens, n_heads, n_states, head_dim", false,
                 "outputs of the parts; tokens may be strided"},
                {"s", OP_OUT, OP_TYPE(F32) | OP_TYPE(F64), "n_tokens, n_heads, n_states", true,
                 "their log-sum-exps, base 2, for merge_states; tokens may be strided"}},
    .params = {{"sm_scale", PARAM_FLOAT, 0, "factor of the scores; 0: 1 / sqrt(head_dim)"},
               {"causal", PARAM_BOOL, 1, "a token sees no later one of its sequence"},
               PARAM_WINDOW},
    .units = units,
    .columns = columns,
    .check = check,
    .derive = derive,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = attention_partial_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "head_dim",
};
