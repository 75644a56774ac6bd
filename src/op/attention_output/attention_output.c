/* attention_output: multiplies the attention of each KV head by its columns of the output
 * projection and adds the products to the residual.
 *
 * The projection is a sum over heads. Cut by KV heads instead of output features, each part needs
 * the attention of only one KV head. The parts are added in fixed point, where every order gives
 * the same sum, so no worker waits for the attention of others. The units of the first KV head also
 * add the old residual.
 */
#include "op/attention_output/attention_output.h"

#include "base/checked.h"
#include "op/attention/attention.h"
#include "op/attention/mask.h"
#include "op/attention/ragged.h"
#include "op/attention_partial/attention_partial.h"
#include "op/element.h"
#include "op/fixed.h"
#include "op/linear/linear.h"
#include "op/merge_states/merge_states.h"
#include "op/table.h"

#include <string.h>

enum { TILE = 64 }; /* output features per tile */

static int64_t n_kv_heads_of(const op_call *call)
{
    return call->tensors[ATTENTION_OUTPUT_K_CACHE].shape[2];
}

static int64_t units(const op_call *call)
{
    return n_kv_heads_of(call) * call->tensors[ATTENTION_OUTPUT_X_OUT].shape[1];
}

/* The features that the units [begin, end) add to: all of them, where the units belong to several
 * KV heads. */
static op_columns features_of(const op_call *call, int64_t begin, int64_t end)
{
    int64_t hidden_size = call->tensors[ATTENTION_OUTPUT_X_OUT].shape[1];
    if (begin >= end) return (op_columns){0, 0};
    if (begin / hidden_size != (end - 1) / hidden_size) return (op_columns){0, hidden_size};
    return (op_columns){begin % hidden_size, (end - 1) % hidden_size + 1};
}

static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    const tensor *q = &call->tensors[ATTENTION_OUTPUT_Q]; /* (n_tokens, n_heads, head_dim) */
    int64_t hidden_size = call->tensors[ATTENTION_OUTPUT_X_OUT].shape[1];
    int64_t per_head = q->shape[1] / n_kv_heads_of(call);
    op_columns heads = {begin / hidden_size, (end + hidden_size - 1) / hidden_size};
    switch (t) {
    case ATTENTION_OUTPUT_X_OUT:
        return features_of(call, begin, end);
    case ATTENTION_OUTPUT_X:
        return features_of(call, begin, end < hidden_size ? end : hidden_size);
    case ATTENTION_OUTPUT_K_CACHE:
    case ATTENTION_OUTPUT_V_CACHE:
        return page_columns(&call->tensors[t], heads.begin, heads.end);
    case ATTENTION_OUTPUT_Q:
        per_head *= q->shape[2];
        break;
    case ATTENTION_OUTPUT_V:
        per_head *= call->tensors[t].shape[2] * q->shape[2];
        break;
    case ATTENTION_OUTPUT_S:
        per_head *= call->tensors[t].shape[2];
        break;
    default:
        return (op_columns){0, 1};
    }
    return (op_columns){heads.begin * per_head, heads.end * per_head};
}

static page_table table_of(const op_call *call)
{
    return (page_table){.kv_indptr = &call->tensors[ATTENTION_OUTPUT_KV_INDPTR],
                        .kv_indices = &call->tensors[ATTENTION_OUTPUT_KV_INDICES],
                        .kv_last_page_len = &call->tensors[ATTENTION_OUTPUT_KV_LAST_PAGE_LEN],
                        .k_cache = &call->tensors[ATTENTION_OUTPUT_K_CACHE]};
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *weight = &call->tensors[ATTENTION_OUTPUT_WEIGHT];
    page_table table = table_of(call);
    TRY(attention_check_limits("attention_output", call->params[ATTENTION_OUTPUT_WINDOW], 0,
                               error));
    if (!call->tensors[ATTENTION_OUTPUT_V].rank != !call->tensors[ATTENTION_OUTPUT_S].rank)
        return error_set(error, QP_INVALID,
                         "attention_output: v and s must both be present, or both absent");
    if (weight->shape[1] % dtype_block_elements(weight->type) != 0)
        return error_set(error, QP_INVALID,
                         "attention_output: a weight row of %lld is not whole blocks of %s",
                         (long long)weight->shape[1], dtype_name(weight->type));
    return paged_check("attention_output", &call->tensors[ATTENTION_OUTPUT_Q],
                       &call->tensors[ATTENTION_OUTPUT_QO_INDPTR], &table, error);
}

static double derive(const op_call *call, const char *axis)
{
    page_table table = table_of(call);
    attention_rule rule = {.causal = call->params[ATTENTION_OUTPUT_CAUSAL] != 0,
                           .window = (int64_t)call->params[ATTENTION_OUTPUT_WINDOW]};
    return paged_derive(&call->tensors[ATTENTION_OUTPUT_QO_INDPTR], &table, &rule, axis);
}

static void prepare(op_call *call, uint64_t seed)
{
    const tensor *qo_indptr = &call->tensors[ATTENTION_OUTPUT_QO_INDPTR];
    page_table table = table_of(call);
    indptr_fill(qo_indptr, call->tensors[ATTENTION_OUTPUT_Q].shape[0], seed);
    page_table_fill(&table, qo_indptr, seed + 1);
    fixed_fill(&call->tensors[ATTENTION_OUTPUT_X], true, seed + 2);
    fixed_fill(&call->tensors[ATTENTION_OUTPUT_X_OUT], false, seed + 3);
}

/* Scratch: heads (n_tokens, n_heads, head_dim) F64, of which one KV head's are in use, a tile of
 * their product, and the scratch of the operators inside. */
static size_t heads_bytes(const op_call *call)
{
    const tensor *q = &call->tensors[ATTENTION_OUTPUT_Q];
    return round_up((size_t)(q->shape[0] * q->shape[1] * q->shape[2]) * sizeof(double), 64);
}

static size_t tile_bytes(const op_call *call)
{
    return (size_t)call->tensors[ATTENTION_OUTPUT_Q].shape[0] * TILE * sizeof(double);
}

static tensor heads_of(const op_call *call)
{
    const tensor *q = &call->tensors[ATTENTION_OUTPUT_Q];
    return tensor_3d(call->scratch, DTYPE_F64, q->shape[0], q->shape[1], q->shape[2]);
}

/* Attention of a KV head over all positions, in one part. */
static op_call attention_call(const op_call *call, int64_t kv_head, void *scratch)
{
    op_call attend = {.begin = kv_head, .end = kv_head + 1, .scratch = scratch};
    for (int t = ATTENTION_PARTIAL_Q; t <= ATTENTION_PARTIAL_V_CACHE; t++)
        attend.tensors[t] = call->tensors[ATTENTION_OUTPUT_Q + t - ATTENTION_PARTIAL_Q];
    tensor heads = heads_of(call), *v = &attend.tensors[ATTENTION_PARTIAL_V];
    *v = tensor_split(heads, 1, heads.shape[1]); /* (n_tokens, n_heads, 1, head_dim) */
    attend.params[ATTENTION_PARTIAL_SM_SCALE] = call->params[ATTENTION_OUTPUT_SM_SCALE];
    attend.params[ATTENTION_PARTIAL_CAUSAL] = call->params[ATTENTION_OUTPUT_CAUSAL];
    attend.params[ATTENTION_PARTIAL_WINDOW] = call->params[ATTENTION_OUTPUT_WINDOW];
    return attend;
}

static op_call merge_call(const op_call *call, int64_t kv_head, void *scratch)
{
    int64_t group = call->tensors[ATTENTION_OUTPUT_Q].shape[1] / n_kv_heads_of(call);
    op_call merge = {.begin = kv_head * group, .end = (kv_head + 1) * group, .scratch = scratch};
    merge.tensors[MERGE_STATES_V] = call->tensors[ATTENTION_OUTPUT_V];
    merge.tensors[MERGE_STATES_S] = call->tensors[ATTENTION_OUTPUT_S];
    merge.tensors[MERGE_STATES_OUT] = heads_of(call);
    return merge;
}

/* The product with a KV head's columns. It uses only these columns where they are whole blocks;
 * otherwise it uses all columns, with zeros for the other heads. */
static op_call linear_call(const op_call *call, int64_t kv_head, void *scratch)
{
    const tensor *weight = &call->tensors[ATTENTION_OUTPUT_WEIGHT];
    tensor heads = heads_of(call),
           x = tensor_2d(heads.data, DTYPE_F64, heads.shape[0], heads.shape[1] * heads.shape[2]);
    int64_t each = x.shape[1] / n_kv_heads_of(call), block = dtype_block_elements(weight->type);
    op_call linear = {.scratch = scratch};
    linear.tensors[LINEAR_X] = x;
    linear.tensors[LINEAR_WEIGHT] = *weight;
    if (each % block != 0) return linear;
    linear.tensors[LINEAR_X] = tensor_slice(x, 1, kv_head * each, each);
    linear.tensors[LINEAR_WEIGHT] = tensor_slice(*weight, 1, kv_head * each, each);
    return linear;
}

static size_t scratch_bytes(const op_call *call)
{
    op_call attend = attention_call(call, 0, NULL), merge = merge_call(call, 0, NULL);
    op_call linear = linear_call(call, 0, NULL);
    bool states = call->tensors[ATTENTION_OUTPUT_V].rank > 0;
    size_t first = states ? op_merge_states.scratch_bytes(&merge)
                          : op_attention_partial.scratch_bytes(&attend);
    size_t second = op_linear.scratch_bytes(&linear);
    return heads_bytes(call) + tile_bytes(call) + (first > second ? first : second);
}

/* The KV head's outputs of all tokens, with zeros for the other heads. */
static void attend(const op_call *call, int64_t kv_head, void *scratch)
{
    memset(call->scratch, 0, heads_bytes(call));
    if (call->tensors[ATTENTION_OUTPUT_V].rank) {
        op_call merge = merge_call(call, kv_head, scratch);
        merge_states_reference(&merge);
    } else {
        op_call attention = attention_call(call, kv_head, scratch);
        attention_partial_reference(&attention);
    }
}

/* Adds features [first, end) of one KV head to the sums. */
static void add_features(const op_call *call, int64_t kv_head, int64_t first, int64_t end,
                         const tensor *tile)
{
    const tensor *x = &call->tensors[ATTENTION_OUTPUT_X];
    const tensor *bias = &call->tensors[ATTENTION_OUTPUT_BIAS];
    for (int64_t t = 0; t < tile->shape[0]; t++) {
        const double *sums = tensor_row(tile, t);
        int64_t *to = tensor_row(&call->tensors[ATTENTION_OUTPUT_X_OUT], t);
        const int64_t *from = tensor_row(x, t);
        for (int64_t f = first; f < end; f++) {
            double sum = sums[f - first];
            if (kv_head == 0 && bias->rank) sum += element_load(bias->type, bias->data, f);
            fixed_add(to + f, fixed_from(sum) + (kv_head == 0 ? fixed_value(from[f]) : 0));
        }
    }
}

void attention_output_reference(const op_call *call)
{
    int64_t hidden_size = call->tensors[ATTENTION_OUTPUT_X_OUT].shape[1];
    int64_t n_tokens = call->tensors[ATTENTION_OUTPUT_Q].shape[0];
    char *sums = (char *)call->scratch + heads_bytes(call), *scratch = sums + tile_bytes(call);

    for (int64_t unit = call->begin, end; unit < call->end && n_tokens > 0; unit = end) {
        int64_t kv_head = unit / hidden_size, base = kv_head * hidden_size;
        end = base + hidden_size < call->end ? base + hidden_size : call->end;
        attend(call, kv_head, scratch);
        for (int64_t f = unit - base; f < end - base; f += TILE) {
            int64_t last = f + TILE < end - base ? f + TILE : end - base;
            tensor tile = tensor_2d(sums, DTYPE_F64, n_tokens, last - f);
            op_call linear = linear_call(call, kv_head, scratch);
            linear.tensors[LINEAR_WEIGHT] =
                tensor_slice(linear.tensors[LINEAR_WEIGHT], 0, f, last - f);
            linear.tensors[LINEAR_OUT] = tile;
            linear.end = last - f;
            linear_reference(&linear);
            add_features(call, kv_head, f, last, &tile);
        }
    }
}

static const char *const cases[] = {
    "n_tokens=1 n_sequences=1 n_heads=4 n_kv_heads=4 n_states=3 head_dim=16 n_pages=20 "
    "page_size=16 n_kv_indices=17 hidden_size=48 bias:-",
    "n_tokens=5 n_sequences=3 n_heads=4 n_kv_heads=1 head_dim=8 n_pages=20 page_size=5 "
    "n_kv_indices=14 hidden_size=19 v:- s:- weight:BF16",
    "n_tokens=4 n_sequences=2 n_heads=6 n_kv_heads=2 n_states=2 head_dim=12 n_pages=9 page_size=4 "
    "n_kv_indices=8 hidden_size=111 weight:F16 q:BF16 k_cache:BF16 v_cache:BF16 x+8 x_out+16",
    "n_tokens=2 n_sequences=1 n_heads=6 n_kv_heads=3 head_dim=16 n_pages=4 page_size=16 "
    "n_kv_indices=2 hidden_size=20 v:- s:- weight:Q8_0 k_cache:F16 v_cache:F16 k_cache@0213 "
    "v_cache@0213 sm_scale=0.25",
    "n_tokens=3 n_sequences=3 n_heads=12 n_kv_heads=3 n_states=5 head_dim=64 n_pages=9 "
    "page_size=8 n_kv_indices=7 hidden_size=17 weight:Q4_K causal=0 bias:-",
    "n_tokens=2 n_sequences=1 n_heads=8 n_kv_heads=4 n_states=2 head_dim=8 n_pages=3 page_size=16 "
    "n_kv_indices=1 hidden_size=33 weight:Q4_0",
    "n_tokens=4 n_sequences=2 n_heads=4 n_kv_heads=2 head_dim=8 n_pages=9 page_size=8 "
    "n_kv_indices=8 hidden_size=24 v:- s:- window=11",
    "n_tokens=0 n_sequences=2 n_heads=2 n_kv_heads=2 n_states=2 head_dim=8 n_pages=4 page_size=16 "
    "n_kv_indices=4 hidden_size=8",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=1 n_sequences=1 n_heads=32 n_kv_heads=8 n_states=16 head_dim=128 "
    "n_pages=512 page_size=16 n_kv_indices=512 hidden_size=4096 k_cache:F16 v_cache:F16 "
    "weight:BF16 bias:-",
    "llama-3.2-1b: n_tokens=1 n_sequences=1 n_heads=32 n_kv_heads=8 n_states=16 head_dim=64 "
    "n_pages=512 page_size=16 n_kv_indices=512 hidden_size=2048 k_cache:F16 v_cache:F16 "
    "weight:BF16 bias:-",
    "smollm2-135m: n_tokens=1 n_sequences=1 n_heads=9 n_kv_heads=3 n_states=4 head_dim=64 "
    "n_pages=128 page_size=16 n_kv_indices=128 hidden_size=576 k_cache:F16 v_cache:F16 "
    "weight:Q8_0 bias:-",
    NULL,
};

/* Of kernels that compute in float32 throughout. */
static const op_tolerance tolerances[] = {{DTYPE_I64, 1e-5, 1e-5}, {0}};

const op_info op_attention_output = {
    .name = "attention_output",
    .summary = "a KV head's attention times its columns of the output projection, added to x",
    .place = "attn_output of the plan of sums, after attention_partial: no KV head waits for "
             "another.",
    .formula = "o[t, h] = sum_p 2^s[t, h, p] * v[t, h, p] / sum_p 2^s[t, h, p]; without v and s, "
               "attention of q over the cache as in paged_prefill. For each KV head g: x_out[t, f] "
               "+= round(2^32 * sum_{h of g, i} o[t, h, i] * weight[f, h * head_dim + i]), and of "
               "the first KV head also x[t, f] and bias[f]",
    .precision = "What a KV head adds is computed in float32 or wider and rounded once, to fixed "
                 "point with 32 fraction bits (op/fixed.h). Sums of integers are the same "
                 "in any order. Counts in the top bits of x are not copied.",
    .edge_cases = "A token that sees no position adds 0. What is NaN adds 0.",
    .source = "merge_states and linear, fused by KV head",
    .unit = "an output feature of a KV head, for all tokens: kv_head * hidden_size + feature",
    .flops = "2 * n_tokens * n_heads * head_dim * hidden_size",
    .bytes = "n_tokens * n_heads * head_dim * sizeof_q + hidden_size * n_heads * head_dim * "
             "sizeof_weight + n_tokens * hidden_size * 8 * (1 + 2 * n_kv_heads)",
    .axes = {{"n_tokens", AXIS_VARIABLE, "new tokens of all sequences"},
             {"n_heads", AXIS_CONSTANT, "query heads, a multiple of n_kv_heads"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"},
             {"n_sequences", AXIS_VARIABLE, "sequences"},
             {"n_kv_indices", AXIS_VARIABLE, "pages in use, over all sequences"},
             {"n_pages", AXIS_CONSTANT, "pages of the cache"},
             {"page_size", AXIS_CONSTANT, "positions in a page"},
             {"n_kv_heads", AXIS_CONSTANT, "heads of keys and values"},
             {"n_states", AXIS_CONSTANT, "parts into which the positions are split"},
             {"hidden_size", AXIS_CONSTANT, "elements of a row of x"},
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
                {"v", OP_IN, OP_FLOATS, "n_tokens, n_heads, n_states, head_dim", true,
                 "output of attention_partial for q and the cache; where the context is short, a "
                 "machine may read those instead"},
                {"s", OP_IN, OP_TYPE(F32) | OP_TYPE(F64), "n_tokens, n_heads, n_states", true,
                 "log-sum-exps of v, base 2; absent with v"},
                {"weight", OP_IN, OP_WEIGHTS, "hidden_size, n_heads * head_dim", false,
                 "row-major, a row is whole blocks of its type; rows may be strided"},
                {"bias", OP_IN, OP_FLOATS, "hidden_size", true, "absent: zeros"},
                {"x", OP_IN, OP_TYPE(I64), "n_tokens, hidden_size", false,
                 "the residual, fixed point; only units of the first KV head read it"},
                {"x_out", OP_ACCUMULATE, OP_TYPE(I64), "n_tokens, hidden_size", false,
                 "sums in fixed point; rows may be strided"}},
    .params = {{"sm_scale", PARAM_FLOAT, 0, "factor of the scores; 0: 1 / sqrt(head_dim)"},
               {"causal", PARAM_BOOL, 1, "a token sees no later one of its sequence"},
               PARAM_WINDOW},
    .units = units,
    .columns = columns,
    .check = check,
    .derive = derive,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = attention_output_reference,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
};
