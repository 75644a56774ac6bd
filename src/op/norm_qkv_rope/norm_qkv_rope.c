/* norm_qkv_rope: everything before attention in one operator: the norm, the three projections, the
 * rotation of queries and keys, and the append of the new keys and values to the cache; where a
 * family has them, also the norms of each query and key head before the rotation.
 *
 * A unit is a pair of features that RoPE rotates together (pairs.h), so no unit needs another's
 * result, and every slice normalises the rows again. A norm of heads needs the whole head: a slice
 * that begins or ends inside of one computes all of it and stores its own part. Units are ordered
 * by KV heads, so that attention can begin with a KV head whose queries, keys and values are
 * complete. The reference computes a head, or the slice's part of a head, with the references of
 * rms_norm, linear, head_norm, rope and kv_append in float64.
 */
#include "op/norm_qkv_rope/norm_qkv_rope.h"

#include "base/checked.h"
#include "op/attention/attention.h"
#include "op/attention/ragged.h"
#include "op/fixed.h"
#include "op/fused.h"
#include "op/head_norm/head_norm.h"
#include "op/kv_append/kv_append.h"
#include "op/rope/rope.h"
#include "op/row.h"
#include "op/table.h"

#include <string.h>

static int64_t n_kv_heads_of(const op_call *call)
{
    return call->tensors[NORM_QKV_ROPE_K_CACHE].shape[2];
}

static int64_t group_of(const op_call *call)
{
    return call->tensors[NORM_QKV_ROPE_Q].shape[1] / n_kv_heads_of(call);
}

/* Units of a KV head: its queries', its keys' and its values'. */
static int64_t units_together(const op_call *call)
{
    return (group_of(call) + 2) * (call->tensors[NORM_QKV_ROPE_Q].shape[2] / 2);
}

static int64_t units(const op_call *call)
{
    return n_kv_heads_of(call) * units_together(call);
}

/* Heads of q and of the caches are whole. */
static op_columns columns(const op_call *call, int t, int64_t begin, int64_t end)
{
    const tensor *q = &call->tensors[NORM_QKV_ROPE_Q]; /* (n_tokens, n_heads, head_dim) */
    int64_t together = units_together(call), half = q->shape[2] / 2, group = group_of(call);
    op_columns kv = {begin / together, (end + together - 1) / together};
    if (t == NORM_QKV_ROPE_K_CACHE || t == NORM_QKV_ROPE_V_CACHE)
        return page_columns(&call->tensors[t], kv.begin, kv.end);
    if (t != NORM_QKV_ROPE_Q) return (op_columns){0, call->tensors[NORM_QKV_ROPE_X].shape[1]};
    int64_t first = begin % together / half, last = (end - 1) % together / half;
    first = kv.begin * group + (first < group ? first : group);
    last = (kv.end - 1) * group + (last < group ? last + 1 : group);
    return (op_columns){first * q->shape[2], last * q->shape[2]};
}

pair_run norm_qkv_rope_run(const op_call *call, int64_t unit, int64_t end)
{
    int64_t half = call->tensors[NORM_QKV_ROPE_Q].shape[2] / 2;
    pair_place place = pair_place_of(unit, group_of(call), half);
    int64_t last = place.pair + end - unit;
    return (pair_run){place.kind, place.head, place.pair, last < half ? last : half};
}

bool norm_qkv_rope_norms(const op_call *call, int kind)
{
    return kind != PAIR_VALUE && call->tensors[NORM_QKV_ROPE_Q_NORM + kind].rank > 0;
}

op_call norm_qkv_rope_norm_heads(const op_call *call, int kind, tensor heads)
{
    op_call norm = {.end = heads.shape[0]};
    norm.tensors[HEAD_NORM_Q] = heads;
    norm.tensors[HEAD_NORM_K] = tensor_slice(heads, 1, 0, 0);
    norm.tensors[HEAD_NORM_Q_WEIGHT] = norm.tensors[HEAD_NORM_K_WEIGHT] =
        call->tensors[NORM_QKV_ROPE_Q_NORM + kind];
    norm.params[HEAD_NORM_EPS] = call->params[NORM_QKV_ROPE_EPS];
    return norm;
}

/* The operators inside, for n_heads heads each (0 or 1). */
static op_call rope_call(const op_call *call, tensor q)
{
    op_call rope = {.end = q.shape[0]};
    rope.tensors[ROPE_POSITIONS] = call->tensors[NORM_QKV_ROPE_ROPE_ROWS];
    rope.tensors[ROPE_COS_SIN] = call->tensors[NORM_QKV_ROPE_COS_SIN];
    rope.tensors[ROPE_Q] = q;
    rope.tensors[ROPE_K] = tensor_slice(q, 1, 0, 0);
    rope.params[ROPE_INTERLEAVED] = call->params[NORM_QKV_ROPE_INTERLEAVED];
    return rope;
}

static op_call append_call(const op_call *call, tensor k, tensor v)
{
    op_call append = {.end = k.shape[0]};
    append.tensors[KV_APPEND_K] = k;
    append.tensors[KV_APPEND_V] = v;
    append.tensors[KV_APPEND_POSITIONS] = call->tensors[NORM_QKV_ROPE_POSITIONS];
    append.tensors[KV_APPEND_QO_INDPTR] = call->tensors[NORM_QKV_ROPE_QO_INDPTR];
    append.tensors[KV_APPEND_KV_INDPTR] = call->tensors[NORM_QKV_ROPE_KV_INDPTR];
    append.tensors[KV_APPEND_KV_INDICES] = call->tensors[NORM_QKV_ROPE_KV_INDICES];
    append.tensors[KV_APPEND_KV_LAST_PAGE_LEN] = call->tensors[NORM_QKV_ROPE_KV_LAST_PAGE_LEN];
    append.tensors[KV_APPEND_K_CACHE] = call->tensors[NORM_QKV_ROPE_K_CACHE];
    append.tensors[KV_APPEND_V_CACHE] = call->tensors[NORM_QKV_ROPE_V_CACHE];
    return append;
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *q = &call->tensors[NORM_QKV_ROPE_Q];
    TRY(attention_check_heads("norm_qkv_rope", q->shape[1], n_kv_heads_of(call), error));
    if (q->shape[2] % 2 != 0)
        return error_set(error, QP_INVALID, "norm_qkv_rope: head_dim must be even, found %lld",
                         (long long)q->shape[2]);
    for (int t = NORM_QKV_ROPE_Q_WEIGHT; t <= NORM_QKV_ROPE_V_WEIGHT; t++)
        TRY(fused_check_weight(&call->tensors[NORM_QKV_ROPE_X], &call->tensors[t], error));
    op_call rope = rope_call(call, *q), append = append_call(call, *q, *q);
    TRY(op_rope.check(&rope, error));
    return op_kv_append.check(&append, error);
}

static void prepare(op_call *call, uint64_t seed)
{
    op_call rope = rope_call(call, call->tensors[NORM_QKV_ROPE_Q]);
    op_call append = append_call(call, rope.tensors[ROPE_Q], rope.tensors[ROPE_Q]);
    const tensor *x = &call->tensors[NORM_QKV_ROPE_X];
    if (x->type == DTYPE_I64) fixed_fill(x, true, seed + 1);
    op_rope.prepare(&rope, seed);
    op_kv_append.prepare(&append, seed);
}

/* A head of every token, and what the norm and its products need. */
static size_t scratch_bytes(const op_call *call)
{
    const tensor *q = &call->tensors[NORM_QKV_ROPE_Q];
    return fused_norm_bytes(call->tensors[NORM_QKV_ROPE_X].shape[1]) +
           round_up((size_t)(q->shape[0] * q->shape[2]) * sizeof(double), 64);
}

/* Computes the run's features of every token into head (n_tokens, head_dim), with zeros elsewhere.
 */
static void project(const op_call *call, const fused_norm *norm, const pair_run *run,
                    int64_t ranges[3][2], int n_ranges, const tensor *head)
{
    const tensor *weight = &call->tensors[NORM_QKV_ROPE_Q_WEIGHT + run->kind];
    const tensor *bias = &call->tensors[NORM_QKV_ROPE_Q_BIAS + run->kind];
    int64_t n_tokens = head->shape[0], first = run->head * head->shape[1];
    memset(head->data, 0, tensor_bytes(head));
    for (int64_t row = 0; row < n_tokens; row += FUSED_ROWS) {
        int64_t count = n_tokens - row < FUSED_ROWS ? n_tokens - row : FUSED_ROWS;
        tensor rows = tensor_slice(*head, 0, row, count);
        fused_norm_rows(norm, row, count, NULL);
        for (int i = 0; i < n_ranges; i++) {
            int64_t begin = ranges[i][0], end = ranges[i][1];
            fused_norm_project(norm, count, weight, bias, first + begin, first + end,
                               tensor_slice(rows, 1, begin, end - begin));
        }
    }
}

/* Features [begin, end) of a query head, or of a key or value head into the cache. */
static void store(const op_call *call, const pair_run *run, const tensor *head, int64_t begin,
                  int64_t end)
{
    tensor part = tensor_slice(tensor_split(*head, 0, head->shape[0]), 2, begin, end - begin);
    if (run->kind == PAIR_QUERY) {
        tensor q = tensor_slice(call->tensors[NORM_QKV_ROPE_Q], 1, run->head, 1);
        q = tensor_slice(q, 2, begin, end - begin);
        for (int64_t t = 0; t < q.shape[0]; t++)
            row_store(q.type, tensor_row(&q, t), end - begin, tensor_row(&part, t));
        return;
    }
    tensor none = tensor_slice(part, 1, 0, 0);
    op_call append =
        append_call(call, run->kind == PAIR_KEY ? part : none, run->kind == PAIR_KEY ? none : part);
    for (int t = KV_APPEND_K_CACHE; t <= KV_APPEND_V_CACHE; t++) {
        append.tensors[t] = tensor_slice(append.tensors[t], 2, run->head, 1);
        append.tensors[t] = tensor_slice(append.tensors[t], 3, begin, end - begin);
    }
    kv_append_reference(&append);
}

void norm_qkv_rope_reference(const op_call *call)
{
    const tensor *x = &call->tensors[NORM_QKV_ROPE_X]; /* (n_tokens, hidden_size) */
    int64_t head_dim = call->tensors[NORM_QKV_ROPE_Q].shape[2];
    int64_t rotary_dim = call->tensors[NORM_QKV_ROPE_COS_SIN].shape[1], ranges[3][2];
    int64_t whole[3][2] = {{0, head_dim}};
    int interleaved = call->params[NORM_QKV_ROPE_INTERLEAVED] != 0;
    fused_norm norm = fused_norm_make(x, &call->tensors[NORM_QKV_ROPE_NORM_WEIGHT],
                                      call->params[NORM_QKV_ROPE_EPS], call->scratch);
    tensor head = tensor_2d((char *)call->scratch + fused_norm_bytes(x->shape[1]), DTYPE_F64,
                            x->shape[0], head_dim);

    if (x->shape[0] == 0) return;
    for (int64_t unit = call->begin; unit < call->end;) {
        pair_run run = norm_qkv_rope_run(call, unit, call->end);
        int n_ranges = pair_ranges(run.kind, interleaved, run.begin, run.end, rotary_dim, ranges);
        const bool norms = norm_qkv_rope_norms(call, run.kind);
        const tensor heads = tensor_split(head, 0, head.shape[0]);
        project(call, &norm, &run, norms ? whole : ranges, norms ? 1 : n_ranges, &head);
        if (norms) {
            op_call norm_heads = norm_qkv_rope_norm_heads(call, run.kind, heads);
            head_norm_reference(&norm_heads);
        }
        if (run.kind != PAIR_VALUE && call->params[NORM_QKV_ROPE_TURNS] != 0) {
            op_call rope = rope_call(call, heads);
            rope_reference(&rope);
        }
        for (int i = 0; i < n_ranges; i++)
            store(call, &run, &head, ranges[i][0], ranges[i][1]);
        unit += run.end - run.begin;
    }
}

static const char *const cases[] = {
    "n_tokens=1 hidden_size=64 n_heads=4 n_kv_heads=2 head_dim=16 rotary_dim=16 n_positions=40 "
    "n_sequences=1 n_pages=3 page_size=16 n_kv_indices=2 q_bias:- k_bias:- v_bias:- q_norm:- "
    "k_norm:-",
    "n_tokens=19 hidden_size=111 n_heads=3 n_kv_heads=3 head_dim=12 rotary_dim=8 n_positions=40 "
    "n_sequences=3 n_pages=20 page_size=5 n_kv_indices=14 k_cache:F16 v_cache:F16 q_norm:- "
    "k_norm:-",
    "n_tokens=3 hidden_size=96 n_heads=6 n_kv_heads=2 head_dim=16 rotary_dim=16 n_positions=9 "
    "n_sequences=2 n_pages=8 page_size=4 n_kv_indices=6 interleaved=1 q_weight:BF16 k_weight:BF16 "
    "v_weight:BF16 k_cache:BF16 v_cache:BF16 k_cache@0213 v_cache@0213 q_bias:- k_bias:- v_bias:- "
    "q_norm:- k_norm:-",
    "n_tokens=2 hidden_size=256 n_heads=4 n_kv_heads=1 head_dim=8 rotary_dim=4 n_positions=99 "
    "n_sequences=1 n_pages=4 page_size=16 n_kv_indices=2 interleaved=1 q_weight:Q4_K k_weight:Q4_K "
    "v_weight:Q6_K k_cache:F16 v_cache:F16 k_bias:- v_bias:- x+16 q+8 q_norm:- k_norm:-",
    "n_tokens=2 hidden_size=160 n_heads=2 n_kv_heads=2 head_dim=20 rotary_dim=20 n_positions=99 "
    "n_sequences=2 n_pages=4 page_size=16 n_kv_indices=3 q_weight:Q8_0 k_weight:Q4_0 v_weight:Q4_1 "
    "x:F16 norm_weight:F16 q:F16 k_cache:F16 v_cache:F16 q_bias:- k_bias:- v_bias:- eps=0.25 "
    "q_norm:- k_norm:-",
    "n_tokens=5 hidden_size=256 n_heads=6 n_kv_heads=2 head_dim=32 rotary_dim=32 n_positions=99 "
    "n_sequences=2 n_pages=4 page_size=16 n_kv_indices=3 q_weight:Q4_1 k_weight:Q4_1 "
    "v_weight:Q6_K k_cache:F16 v_cache:F16 k_cache@0213 v_cache@0213 q_bias:- k_bias:- v_bias:- "
    "q_norm:- k_norm:-",
    "n_tokens=1 hidden_size=64 n_heads=2 n_kv_heads=1 head_dim=48 rotary_dim=40 n_positions=99 "
    "n_sequences=1 n_pages=4 page_size=16 n_kv_indices=3 q_weight:Q8_0 k_weight:Q8_0 "
    "v_weight:F16 k_cache:BF16 v_cache:BF16 q_norm:- k_norm:-",
    "n_tokens=3 hidden_size=64 n_heads=4 n_kv_heads=2 head_dim=16 rotary_dim=16 n_positions=99 "
    "n_sequences=1 n_pages=4 page_size=16 n_kv_indices=3 x:I64 x+8 q_weight:BF16 k_weight:BF16 "
    "v_weight:BF16 k_cache:F16 v_cache:F16 q_bias:- k_bias:- v_bias:- q_norm:- k_norm:-",
    "n_tokens=0 hidden_size=64 n_heads=2 n_kv_heads=1 head_dim=16 rotary_dim=16 n_positions=8 "
    "n_sequences=2 n_pages=3 page_size=16 n_kv_indices=2 q_bias:- k_bias:- v_bias:- q_norm:- "
    "k_norm:-",
    "n_tokens=3 hidden_size=64 n_heads=4 n_kv_heads=2 head_dim=16 rotary_dim=16 n_positions=40 "
    "n_sequences=2 n_pages=6 page_size=8 n_kv_indices=4 k_cache:F16 v_cache:F16 q_bias:- k_bias:- "
    "v_bias:-",
    "n_tokens=2 hidden_size=96 n_heads=6 n_kv_heads=2 head_dim=24 rotary_dim=16 n_positions=40 "
    "n_sequences=1 n_pages=4 page_size=8 n_kv_indices=2 interleaved=1 x:I64 x+8 q_weight:BF16 "
    "k_weight:BF16 "
    "v_weight:BF16 k_cache:BF16 v_cache:BF16 q_norm:BF16 k_norm:BF16 v_bias:- eps=0.25",
    "n_tokens=2 hidden_size=64 n_heads=4 n_kv_heads=2 head_dim=16 rotary_dim=16 n_positions=40 "
    "n_sequences=1 n_pages=4 page_size=8 n_kv_indices=2 turns=0 k_cache:F16 v_cache:F16 q_norm:- "
    "k_norm:-",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_tokens=1 hidden_size=4096 n_heads=32 n_kv_heads=8 head_dim=128 "
    "rotary_dim=128 n_positions=8192 n_sequences=1 n_pages=128 page_size=16 n_kv_indices=128 "
    "q_weight:BF16 k_weight:BF16 v_weight:BF16 k_cache:F16 v_cache:F16 q_bias:- k_bias:- v_bias:- "
    "q_norm:- k_norm:-",
    "llama-3.2-1b: n_tokens=1 hidden_size=2048 n_heads=32 n_kv_heads=8 head_dim=64 rotary_dim=64 "
    "n_positions=8192 n_sequences=1 n_pages=128 page_size=16 n_kv_indices=128 q_weight:BF16 "
    "k_weight:BF16 v_weight:BF16 k_cache:F16 v_cache:F16 q_bias:- k_bias:- v_bias:- q_norm:- "
    "k_norm:-",
    "internlm2-1.8b: n_tokens=8 hidden_size=2048 n_heads=16 n_kv_heads=8 head_dim=128 "
    "rotary_dim=128 n_positions=8192 n_sequences=8 n_pages=128 page_size=16 n_kv_indices=128 "
    "q_weight:BF16 k_weight:BF16 v_weight:BF16 k_cache:F16 v_cache:F16 q_bias:- k_bias:- v_bias:- "
    "q_norm:- k_norm:-",
    "smollm2-135m: n_tokens=1 hidden_size=576 n_heads=9 n_kv_heads=3 head_dim=64 rotary_dim=64 "
    "n_positions=2048 n_sequences=1 n_pages=32 page_size=16 n_kv_indices=32 interleaved=1 "
    "q_weight:Q4_1 k_weight:Q4_1 v_weight:Q4_1 k_cache:F16 v_cache:F16 q_bias:- k_bias:- "
    "v_bias:- q_norm:- k_norm:-",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_norm_qkv_rope = {
    .name = "norm_qkv_rope",
    .summary = "norm, QKV projection, rotary embedding and cache append in one",
    .place = "attn_qkv of the fused plan: attn_norm, attn_qkv, rope and kv_append without a worker "
             "waiting for another in between. attention_partial reads what it leaves.",
    .formula = "y[t, i] = x[t, i] / sqrt(sum_j x[t, j]^2 / hidden_size + eps) * norm_weight[i]; "
               "heads h of q, k and v: y q_weight^T + q_bias, y k_weight^T + k_bias, y v_weight^T "
               "+ v_bias; each head of q and k divided by its root mean square and times q_norm or "
               "k_norm, where those are there; q and k turned, if `turns`, as rope does by row "
               "rope_rows[t] of cos_sin; q[t] <- the "
               "queries; k_cache[p, s], v_cache[p, s] <- keys and values, with p = "
               "kv_indices[kv_indptr[b] + positions[t] / page_size] and s = positions[t] % "
               "page_size, as kv_append does",
    .precision =
        "Nothing is rounded below float32 before q and the caches, each rounded once; "
        "weights are decoded exactly as their format defines. The sums' order depends only on "
        "hidden_size.",
    .edge_cases = "As rope and kv_append: features from rotary_dim on do not turn, a row outside "
                  "the table or a position outside its sequence's pages is refused before the "
                  "call, slots that no token goes to are not touched. head_dim must be even.",
    .source = "rms_norm, linear, head_norm, rope and kv_append, fused",
    .unit = "two features of a head that turn together, for all tokens; by KV heads: the pairs of "
            "its group's queries, of its keys, of its values (op/norm_qkv_rope/pairs.h)",
    .flops = "n_tokens * (4 * hidden_size + 2 * hidden_size * (n_heads + 2 * n_kv_heads) * "
             "head_dim + 3 * (n_heads + n_kv_heads) * rotary_dim)",
    .bytes = "n_tokens * (hidden_size * sizeof_x + n_heads * head_dim * sizeof_q + n_kv_heads * "
             "head_dim * (sizeof_k_cache + sizeof_v_cache) + rotary_dim * sizeof_cos_sin) + "
             "hidden_size * head_dim * (n_heads * sizeof_q_weight + n_kv_heads * "
             "(sizeof_k_weight + sizeof_v_weight))",
    .axes = {{"n_tokens", AXIS_VARIABLE, "new tokens of all sequences"},
             {"hidden_size", AXIS_CONSTANT, "elements of a row of x"},
             {"n_heads", AXIS_CONSTANT, "query heads, a multiple of n_kv_heads"},
             {"n_kv_heads", AXIS_CONSTANT, "heads of keys and values"},
             {"head_dim", AXIS_CONSTANT, "elements of a head"},
             {"n_positions", AXIS_CONSTANT, "rows of the table"},
             {"rotary_dim", AXIS_CONSTANT, "elements that turn: even, at most head_dim"},
             {"n_sequences", AXIS_VARIABLE, "sequences"},
             {"n_kv_indices", AXIS_VARIABLE, "pages in use, over all sequences"},
             {"n_pages", AXIS_CONSTANT, "pages of the cache"},
             {"page_size", AXIS_CONSTANT, "positions in a page"}},
    .tensors = {{"x", OP_IN, OP_FLOATS | OP_TYPE(I64), "n_tokens, hidden_size", false,
                 "rows may be strided; I64: in fixed point (op/fixed.h)"},
                {"norm_weight", OP_IN, OP_FLOATS, "hidden_size", false,
                 "scale of each element of a normalised row"},
                {"q_weight", OP_IN, OP_WEIGHTS, "n_heads * head_dim, hidden_size", false,
                 "row-major, a row is whole blocks of its type; rows may be strided"},
                {"k_weight", OP_IN, OP_WEIGHTS, "n_kv_heads * head_dim, hidden_size", false,
                 "as q_weight, of the same type or another"},
                {"v_weight", OP_IN, OP_WEIGHTS, "n_kv_heads * head_dim, hidden_size", false,
                 "as q_weight, of the same type or another"},
                {"q_bias", OP_IN, OP_FLOATS, "n_heads * head_dim", true, "absent: zeros"},
                {"k_bias", OP_IN, OP_FLOATS, "n_kv_heads * head_dim", true, "absent: zeros"},
                {"v_bias", OP_IN, OP_FLOATS, "n_kv_heads * head_dim", true, "absent: zeros"},
                {"q_norm", OP_IN, OP_FLOATS, "head_dim", true,
                 "scale of each element of a query head after its norm; absent: heads have none"},
                {"k_norm", OP_IN, OP_FLOATS, "head_dim", true, "the same of key heads"},
                {"rope_rows", OP_IN, OP_TYPE(I32), "n_tokens", false,
                 "each token's row of the table: its position, where frequencies are fixed"},
                {"cos_sin", OP_IN, OP_TYPE(F32), "n_positions, rotary_dim", false,
                 "a row holds the position's rotary_dim / 2 cosines, then as many sines"},
                {"positions", OP_IN, OP_TYPE(I32), "n_tokens", false,
                 "each token's position in its sequence"},
                TENSOR_QO_INDPTR,
                TENSOR_KV_INDPTR,
                TENSOR_KV_INDICES,
                TENSOR_KV_LAST_PAGE_LEN("the new tokens counted"),
                TENSOR_K_CACHE(OP_INOUT),
                TENSOR_V_CACHE(OP_INOUT),
                {"q", OP_OUT, OP_FLOATS, "n_tokens, n_heads, head_dim", false,
                 "rotated queries; tokens may be strided; must not overlap x"}},
    .params = {{"eps", PARAM_FLOAT, 1e-5, "added to the mean squares"},
               {"interleaved", PARAM_BOOL, 0, "pairs (2i, 2i + 1) instead of NeoX's halves"},
               {"turns", PARAM_BOOL, 1, "0: a layer that rotates neither q nor k"}},
    .grain = 16,
    .units = units,
    .columns = columns,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = norm_qkv_rope_reference,
    .variants = norm_qkv_rope_variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "hidden_size",
    .fills = OP_FILL_NAN,
};
