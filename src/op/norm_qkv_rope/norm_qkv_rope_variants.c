/* norm_qkv_rope from the variants of rms_norm, linear, head_norm, rope and kv_append.
 *
 * Whole heads are projected together, as many adjacent heads as the slice has: queries into their
 * places, where norms and RoPE work on them, keys and values into scratch and from there into the
 * cache. A slice may begin or end with a part of a head; that part goes through scratch feature by
 * feature, since the rest of the head belongs to another worker.
 */
#include "base/checked.h"
#include "op/compose.h"
#include "op/kv_append/kv_append.h"
#include "op/norm_qkv_rope/norm_qkv_rope.h"
#include "op/rope/rope.h"
#include "op/table.h"

#include <string.h>

static const compose_norm norm_qkv_rope_norm = {
    .x = NORM_QKV_ROPE_X,
    .norm_weight = NORM_QKV_ROPE_NORM_WEIGHT,
    .eps = NORM_QKV_ROPE_EPS,
    .weights = {NORM_QKV_ROPE_Q_WEIGHT, NORM_QKV_ROPE_K_WEIGHT, NORM_QKV_ROPE_V_WEIGHT},
    .biases = {NORM_QKV_ROPE_Q_BIAS, NORM_QKV_ROPE_K_BIAS, NORM_QKV_ROPE_V_BIAS},
    .n = 3};

/* A slice at work. */
typedef struct job {
    const op_call *call;
    uint32_t level;
    compose_linear parts[COMPOSE_MOST];
    tensor normed;          /* (n_tokens, hidden_size) */
    float *features, *head; /* scratch: projected heads; one head that is assembled */
    int64_t n_tokens, head_dim;
} job;

static int64_t units(const op_call *call)
{
    return op_norm_qkv_rope.units(call);
}

/* Heads of a token side by side, as linear writes them. */
static bool norm_qkv_rope_accepts(const op_call *call)
{
    const tensor *q = &call->tensors[NORM_QKV_ROPE_Q];
    return q->type == DTYPE_F32 && q->stride[1] == q->shape[2] * (int64_t)sizeof(float) &&
           call->tensors[NORM_QKV_ROPE_K_CACHE].type != DTYPE_F64 &&
           call->tensors[NORM_QKV_ROPE_V_CACHE].type != DTYPE_F64;
}

static size_t features_bytes(const op_call *call)
{
    const tensor *k = &call->tensors[NORM_QKV_ROPE_K_WEIGHT];
    const tensor *q = &call->tensors[NORM_QKV_ROPE_Q];
    return round_up((size_t)(q->shape[0] * k->shape[0]) * sizeof(float), 64);
}

static size_t head_bytes(const op_call *call)
{
    const tensor *q = &call->tensors[NORM_QKV_ROPE_Q];
    return round_up((size_t)(q->shape[0] * q->shape[2]) * sizeof(float), 64);
}

static size_t norm_qkv_rope_scratch(const op_call *call, uint32_t level)
{
    int64_t n_tokens = call->tensors[NORM_QKV_ROPE_X].shape[0];
    return features_bytes(call) + head_bytes(call) +
           compose_scratch_bytes(call, &norm_qkv_rope_norm, n_tokens, level);
}

/* Normalises and rotates heads (n_tokens, heads, head_dim) of a kind in place. */
static void turn(const job *j, int kind, tensor heads)
{
    if (norm_qkv_rope_norms(j->call, kind)) {
        op_call norm = norm_qkv_rope_norm_heads(j->call, kind, heads);
        compose_run(&op_head_norm, j->level, &norm);
    }
    if (j->call->params[NORM_QKV_ROPE_TURNS] == 0) return;
    op_call rope = {.end = j->n_tokens};
    rope.tensors[ROPE_POSITIONS] = j->call->tensors[NORM_QKV_ROPE_ROPE_ROWS];
    rope.tensors[ROPE_COS_SIN] = j->call->tensors[NORM_QKV_ROPE_COS_SIN];
    rope.tensors[ROPE_Q] = heads;
    rope.tensors[ROPE_K] = tensor_slice(heads, 1, 0, 0);
    rope.params[ROPE_INTERLEAVED] = j->call->params[NORM_QKV_ROPE_INTERLEAVED];
    compose_run(&op_rope, j->level, &rope);
}

/* Copies heads (n_tokens, heads, features) into features [begin, end) of the cache's heads from
 * `first` on. */
static void append(const job *j, int kind, tensor heads, int64_t first, int64_t begin, int64_t end)
{
    op_call part = {.end = j->n_tokens};
    int used = kind == PAIR_KEY ? KV_APPEND_K : KV_APPEND_V;
    part.tensors[KV_APPEND_K] = part.tensors[KV_APPEND_V] = tensor_slice(heads, 1, 0, 0);
    part.tensors[used] = heads;
    part.tensors[KV_APPEND_POSITIONS] = j->call->tensors[NORM_QKV_ROPE_POSITIONS];
    part.tensors[KV_APPEND_QO_INDPTR] = j->call->tensors[NORM_QKV_ROPE_QO_INDPTR];
    part.tensors[KV_APPEND_KV_INDPTR] = j->call->tensors[NORM_QKV_ROPE_KV_INDPTR];
    part.tensors[KV_APPEND_KV_INDICES] = j->call->tensors[NORM_QKV_ROPE_KV_INDICES];
    part.tensors[KV_APPEND_KV_LAST_PAGE_LEN] = j->call->tensors[NORM_QKV_ROPE_KV_LAST_PAGE_LEN];
    for (int cache = 0; cache < 2; cache++) {
        tensor pages = j->call->tensors[NORM_QKV_ROPE_K_CACHE + cache];
        pages = tensor_slice(pages, 2, first, heads.shape[1]);
        part.tensors[KV_APPEND_K_CACHE + cache] = tensor_slice(pages, 3, begin, end - begin);
    }
    compose_run(&op_kv_append, j->level, &part);
}

/* Computes whole heads [first, end) of a kind. */
static void run_heads(const job *j, int kind, int64_t first, int64_t end)
{
    const compose_linear *part = &j->parts[kind];
    int64_t begin = first * j->head_dim, n = (end - first) * j->head_dim;
    if (kind == PAIR_QUERY) {
        tensor q = j->call->tensors[NORM_QKV_ROPE_Q], flat = q;
        flat.rank = 2;
        flat.shape[1] = q.shape[1] * q.shape[2];
        flat.stride[1] = q.stride[2];
        compose_project(j->call, part, &j->normed, begin, begin + n, &flat);
        turn(j, kind, tensor_slice(q, 1, first, end - first));
        return;
    }
    tensor features = tensor_2d(j->features, DTYPE_F32, j->n_tokens, n);
    compose_project_apart(j->call, part, &j->normed, begin, begin + n, &features);
    tensor heads = tensor_split(features, 1, end - first);
    if (kind == PAIR_KEY) turn(j, kind, heads);
    append(j, kind, heads, first, 0, j->head_dim);
}

/* Computes a part of one head, of which a norm needs all features. */
static void run_part(const job *j, const pair_run *run)
{
    const compose_linear *part = &j->parts[run->kind];
    int64_t rotary_dim = j->call->tensors[NORM_QKV_ROPE_COS_SIN].shape[1], ranges[3][2];
    int interleaved = j->call->params[NORM_QKV_ROPE_INTERLEAVED] != 0;
    int n_ranges = pair_ranges(run->kind, interleaved, run->begin, run->end, rotary_dim, ranges);
    tensor head = tensor_3d(j->head, DTYPE_F32, j->n_tokens, 1, j->head_dim);
    const bool norms = norm_qkv_rope_norms(j->call, run->kind);
    memset(j->head, 0, tensor_bytes(&head));
    for (int i = 0; i < (norms ? 1 : n_ranges); i++) {
        const int64_t at = norms ? 0 : ranges[i][0];
        const int64_t n = norms ? j->head_dim : ranges[i][1] - at;
        int64_t begin = run->head * j->head_dim + at;
        tensor features = tensor_2d(j->features, DTYPE_F32, j->n_tokens, n);
        compose_project_apart(j->call, part, &j->normed, begin, begin + n, &features);
        for (int64_t t = 0; t < j->n_tokens; t++)
            memcpy((float *)tensor_row(&head, t) + at, tensor_row(&features, t),
                   (size_t)n * sizeof(float));
    }
    if (run->kind != PAIR_VALUE) turn(j, run->kind, head);
    for (int i = 0; i < n_ranges; i++) {
        int64_t begin = ranges[i][0], n = ranges[i][1] - begin;
        if (run->kind != PAIR_QUERY) {
            append(j, run->kind, tensor_slice(head, 2, begin, n), run->head, begin, begin + n);
            continue;
        }
        for (int64_t t = 0; t < j->n_tokens; t++)
            memcpy((float *)tensor_row2(&j->call->tensors[NORM_QKV_ROPE_Q], t, run->head) + begin,
                   (float *)tensor_row(&head, t) + begin, (size_t)n * sizeof(float));
    }
}

/* Finds the next run of a slice's units [unit, end): KV heads with everything that belongs to them,
 * whole heads of one kind, or a part of a head. Returns its end. */
static int64_t run_next(const job *j, int64_t unit, int64_t end)
{
    int64_t half = j->head_dim / 2, n_heads = j->call->tensors[NORM_QKV_ROPE_Q].shape[1];
    int64_t group = n_heads / j->call->tensors[NORM_QKV_ROPE_K_CACHE].shape[2];
    int64_t together = (group + 2) * half, kv_head = unit / together;
    if (unit % together == 0 && end - unit >= together) {
        int64_t last = end / together;
        run_heads(j, PAIR_QUERY, kv_head * group, last * group);
        run_heads(j, PAIR_KEY, kv_head, last);
        run_heads(j, PAIR_VALUE, kv_head, last);
        return last * together;
    }
    pair_run run = norm_qkv_rope_run(j->call, unit, end);
    if (run.end - run.begin < half) {
        run_part(j, &run);
        return unit + run.end - run.begin;
    }
    int64_t heads = 1;
    if (run.kind == PAIR_QUERY) {
        int64_t fit = (end - unit) / half, left = (kv_head + 1) * group - run.head;
        heads = fit < left ? fit : left;
    }
    run_heads(j, run.kind, run.head, run.head + heads);
    return unit + heads * half;
}

static void norm_qkv_rope_compute(const op_call *call, uint32_t level)
{
    const tensor *q = &call->tensors[NORM_QKV_ROPE_Q];
    job j = {.call = call, .level = level, .n_tokens = q->shape[0], .head_dim = q->shape[2]};
    char *scratch = call->scratch;
    if (j.n_tokens == 0 || call->begin == call->end) return;
    j.features = call->scratch;
    j.head = (float *)(scratch + features_bytes(call));
    compose_linears(call, &norm_qkv_rope_norm, level, j.parts);
    j.normed = compose_rows(call, &norm_qkv_rope_norm, j.n_tokens, NULL, level,
                            scratch + features_bytes(call) + head_bytes(call));
    for (int64_t unit = call->begin; unit < call->end;)
        unit = run_next(&j, unit, call->end);
}

/* Slots of a cache that did not change make its typical element smaller than the new values. */
static const op_tolerance coarse_tolerances[] = {
    {DTYPE_F32, 2e-2, 4e-1}, {DTYPE_F16, 2e-2, 4e-1}, {DTYPE_BF16, 3e-2, 4e-1}, {0}};

COMPOSE_VARIANTS(norm_qkv_rope, 64, coarse_tolerances)
