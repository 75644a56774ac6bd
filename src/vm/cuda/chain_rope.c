/* head_norm, rope, kv_append and attention in a chain: see chain.h. */
#include "op/attention/attention_cuda.h"
#include "op/head_norm/head_norm.h"
#include "op/kv_append/kv_append.h"
#include "op/paged_decode/paged_decode.h"
#include "op/rope/rope.h"
#include "vm/cuda/chain_build.h"

#include <math.h>

/* ---- head_norm, rope and kv_append ------------------------------------------------------------
 */

/* Whether the heads of `view` are columns [first, first + ..) of the last product. */
static bool are_columns(const cuda_chain *c, const tensor *view, int64_t first)
{
    return view->type == DTYPE_F32 && view->rank == 3 &&
           view->data == (char *)c->sum.data + first * 4 && view->stride[0] == c->sum.stride[0] &&
           view->stride[1] == view->shape[2] * 4 && view->shape[0] == c->sum.shape[0];
}

/* Whether each head of a cache begins at a multiple of 8 bytes. */
static bool has_eights(const tensor *cache)
{
    return ((cache->stride[0] | cache->stride[1] | cache->stride[2] | (int64_t)cache->data) & 7) ==
           0;
}

/* Whether the last product's output is q, k and v of the tokens, whose k and v are appended. */
static bool takes_append(const cuda_chain *c, const op_call *append)
{
    const tensor *k = &append->tensors[KV_APPEND_K], *v = &append->tensors[KV_APPEND_V];
    const int64_t dim = k->shape[2], n_kv = k->shape[1] * dim;
    const int64_t n_q = c->sum.rank ? c->sum.shape[1] - 2 * n_kv : 0;
    return !chain_takes_none(c) && c->sum.rank && !c->adds && n_q > 0 && n_q % dim == 0 &&
           are_columns(c, k, n_q) && are_columns(c, v, n_q + n_kv) && k->shape[1] == v->shape[1] &&
           dim % 8 == 0 && dim <= CHAIN_WIDEST_HEAD && chain_has_fours(&c->sum) &&
           has_eights(&append->tensors[KV_APPEND_K_CACHE]) &&
           has_eights(&append->tensors[KV_APPEND_V_CACHE]) && op_call_has_no_f64(append) &&
           append->begin == 0 && append->end == k->shape[0];
}

/* Whether a call works on the q and the k of that product. */
static bool is_of_same_heads(const cuda_chain *c, const op_call *call, const tensor *q,
                             const tensor *k, const op_call *append)
{
    const int64_t n_q = q->shape[1] * q->shape[2];
    return are_columns(c, q, 0) && are_columns(c, k, n_q) &&
           k->data == append->tensors[KV_APPEND_K].data && call->begin == 0 &&
           call->end == append->end;
}

static bool takes_rope(const cuda_chain *c, const op_call *rope, const op_call *append)
{
    const tensor *q = &rope->tensors[ROPE_Q], *table = &rope->tensors[ROPE_COS_SIN];
    return is_of_same_heads(c, rope, q, &rope->tensors[ROPE_K], append) &&
           table->type == DTYPE_F32 && table->shape[1] == q->shape[2] && chain_has_fours(table);
}

/* Eights of a head are neighbouring lanes of a warp, in the order of halves of a head. */
static bool takes_norm(const cuda_chain *c, const op_call *norm, const op_call *rope,
                       const op_call *append)
{
    const tensor *q = &norm->tensors[HEAD_NORM_Q];
    const tensor *q_weight = &norm->tensors[HEAD_NORM_Q_WEIGHT];
    const tensor *k_weight = &norm->tensors[HEAD_NORM_K_WEIGHT];
    const int64_t eights = q->shape[2] / 8;
    return is_of_same_heads(c, norm, q, &norm->tensors[HEAD_NORM_K], append) &&
           (eights & (eights - 1)) == 0 && q_weight->type == k_weight->type &&
           chain_has_weight_fours(q_weight) && chain_has_weight_fours(k_weight) &&
           !(rope && rope->params[ROPE_INTERLEAVED] != 0);
}

static chain_rope append_step(const cuda_chain *c, const op_call *append)
{
    const tensor *t = append->tensors, *k = &t[KV_APPEND_K_CACHE], *v = &t[KV_APPEND_V_CACHE];
    return (chain_rope){
        .parts = chain_last_parts(c),
        .q = c->sum.data,
        .k_cache = k->data,
        .v_cache = v->data,
        .positions = t[KV_APPEND_POSITIONS].data,
        .qo_indptr = t[KV_APPEND_QO_INDPTR].data,
        .kv_indptr = t[KV_APPEND_KV_INDPTR].data,
        .kv_indices = t[KV_APPEND_KV_INDICES].data,
        .q_pitch = c->sum.stride[0] / 4,
        .k_page = k->stride[0],
        .k_slot = k->stride[1],
        .k_head = k->stride[2],
        .v_page = v->stride[0],
        .v_slot = v->stride[1],
        .v_head = v->stride[2],
        .n_tokens = (int32_t)c->sum.shape[0],
        .n_sequences = (int32_t)t[KV_APPEND_QO_INDPTR].shape[0] - 1,
        .n_q = (int32_t)(c->sum.shape[1] / k->shape[3] - 2 * k->shape[2]),
        .n_kv = (int32_t)k->shape[2],
        .head_dim = (int32_t)k->shape[3],
        .page_size = (int32_t)k->shape[1],
        .k_type = (int32_t)k->type,
        .v_type = (int32_t)v->type,
    };
}

static void add_rope(const op_call *rope, chain_rope *step)
{
    const tensor *table = &rope->tensors[ROPE_COS_SIN];
    step->table = table->data;
    step->table_rows = rope->tensors[ROPE_POSITIONS].data;
    step->table_pitch = table->stride[0] / 4;
    step->interleaved = rope->params[ROPE_INTERLEAVED] != 0;
}

static void add_norm(const op_call *norm, chain_rope *step)
{
    step->q_norm = norm->tensors[HEAD_NORM_Q_WEIGHT].data;
    step->k_norm = norm->tensors[HEAD_NORM_K_WEIGHT].data;
    step->norm_type = (int32_t)norm->tensors[HEAD_NORM_Q_WEIGHT].type;
    step->eps = (float)norm->params[HEAD_NORM_EPS];
}

/* Blocks that share a token. */
static int64_t cuts_of(const cuda_chain *c)
{
    int64_t cuts = c->ops->device->n_multiprocessors / c->sum.shape[0];
    int64_t most = chain_groups_of(c->sum.shape[1] / 8, CHAIN_WORKERS);
    if (cuts > most) cuts = most;
    return cuts < 1 ? 1 : cuts;
}

bool cuda_chain_append(cuda_chain *c, const op_call *norm, const op_call *rope,
                       const op_call *append)
{
    const chain_step *last = chain_last_step(c);
    if (!last || !takes_append(c, append) || (rope && !takes_rope(c, rope, append)) ||
        (norm && !takes_norm(c, norm, rope, append)) || !chain_parts_fit(&last->of.product))
        return false;
    chain_rope step = append_step(c, append);
    if (rope) add_rope(rope, &step);
    if (norm) add_norm(norm, &step);
    if (norm) c->run.families = true;
    step.cuts = (int32_t)cuts_of(c);
    chain_next_step(c, CHAIN_ROPE, (int64_t)step.n_tokens * step.cuts)->of.rope = step;
    c->sum.rank = 0;
    c->ended = true;
    return true;
}

/* ---- attention ----------------------------------------------------------------------------- */

/* Whether the queries of a block's heads, and their new keys and values, fit into the room of x;
 * with heads of 128 elements they have a part of it. */
static bool queries_fit(const cuda_chain *c, const tensor *q, const tensor *k)
{
    int64_t items = chain_groups_of(q->shape[0] * k->shape[2], c->ops->device->n_multiprocessors);
    int64_t bytes = items * (q->shape[1] / k->shape[2] + 2) * q->shape[2] * 2;
    return bytes <=
           (q->shape[2] == 128 ? CHAIN_QUERIES : c->run.x_stages * CHAIN_X_BYTES(c->columns));
}

/* All attention of a chain has heads of one size. Those of 128 elements are faster by a kernel of
 * their own where a half of a block would have several: both give the same bits. */
static bool takes_heads(const cuda_chain *c, const tensor *q, const tensor *k)
{
    const int64_t dim = q->shape[2], group = q->shape[1] / k->shape[2];
    const bool one_each = q->shape[0] * k->shape[2] <= 2 * c->ops->device->n_multiprocessors;
    return ((dim == 64 && !c->run.wide) || (dim == 128 && one_each)) && group <= CHAIN_GROUP &&
           q->stride[1] == dim * 4 && k->shape[3] == dim &&
           (c->run.head == 0 || c->run.head == dim);
}

/* Whether nothing limits which positions are seen. A window may be as long as the longest sequence
 * that paged_decode_batch.cuh does not cut: then it hides nothing. */
static bool sees_all(const op_call *call)
{
    attention_limits limits = CUDA_ATTENTION_LIMITS(call, PAGED_DECODE);
    if (cuda_decode_chunks(limits.window) > 1) limits.window = 0;
    return !cuda_is_limited(&limits);
}

/* The conditions under which paged_decode_batch.cuh does not cut a sequence and heads have the
 * tiles' width. */
static bool takes_attention(const cuda_chain *c, const op_call *call)
{
    const tensor *q = &call->tensors[PAGED_DECODE_Q], *k = &call->tensors[PAGED_DECODE_K_CACHE];
    int64_t row = q->shape[1] * q->shape[2];
    size_t bytes = (size_t)(q->shape[0] * row) * 2;
    return (c->run.n_steps == 0 || c->ended) && c->run.n_steps + 1 < CHAIN_MAX_STEPS &&
           sees_all(call) && cuda_decode_accepts(call) && cuda_decode_pays(c->ops, call) &&
           q->shape[0] <= c->columns && takes_heads(c, q, k) && q->type == DTYPE_F32 &&
           !call->tensors[PAGED_DECODE_LSE].rank && call->begin == 0 &&
           call->end == q->shape[0] * q->shape[1] && c->n_chunks == 1 && queries_fit(c, q, k) &&
           2 * bytes <= c->ops->workspace.bytes - CUDA_OWN_WORKSPACE;
}

/* Whether the last step is the rope of exactly the tokens that attention reads, one of each
 * sequence in their order, into the same cache. */
static bool turns_before(cuda_chain *c, const chain_attention *a, const tensor *k, const tensor *v)
{
    const chain_step *last = chain_last_step(c);
    if (!last || last->kind != CHAIN_ROPE) return false;
    const chain_rope *rope = &last->of.rope;
    return rope->q == a->q && rope->n_tokens == a->n_sequences &&
           rope->n_sequences == a->n_sequences && rope->head_dim == k->shape[3] &&
           rope->n_kv == a->n_kv && rope->n_q == a->n_kv * a->group && rope->k_cache == k->data &&
           rope->v_cache == v->data && rope->kv_indptr == a->kv_indptr &&
           rope->kv_indices == a->kv_indices && rope->k_type == a->type && rope->v_type == a->type;
}

/* The output's heads as one row, as the next product takes it. */
static tensor rows_of_heads(const tensor *heads)
{
    tensor rows = *heads;
    rows.rank = 2;
    rows.shape[1] *= rows.shape[2];
    rows.stride[1] = rows.stride[2];
    return rows;
}

bool cuda_chain_attention(cuda_chain *c, const op_call *call)
{
    const tensor *q = &call->tensors[PAGED_DECODE_Q], *k = &call->tensors[PAGED_DECODE_K_CACHE];
    const tensor *v = &call->tensors[PAGED_DECODE_V_CACHE];
    const tensor *out = &call->tensors[PAGED_DECODE_OUT];
    if (!takes_attention(c, call) || out->stride[1] != out->shape[2] * out->stride[2]) return false;
    double scale = call->params[PAGED_DECODE_SM_SCALE];
    cuda_address at = cuda_other_narrow_place(c->ops, c->x_at);
    chain_attention a = {
        .q = q->data,
        .narrowed = (void *)(uintptr_t)at,
        .kv_indptr = call->tensors[PAGED_DECODE_KV_INDPTR].data,
        .kv_indices = call->tensors[PAGED_DECODE_KV_INDICES].data,
        .kv_last_page_len = call->tensors[PAGED_DECODE_KV_LAST_PAGE_LEN].data,
        .q_pitch = (int32_t)(q->stride[0] / 4),
        .sm_scale = (float)(scale != 0 ? scale : 1 / sqrt((double)q->shape[2])),
        .n_sequences = (int32_t)q->shape[0],
        .n_kv = (int32_t)k->shape[2],
        .page_size = (int32_t)k->shape[1],
        .group = (int16_t)(q->shape[1] / k->shape[2]),
        .type = (int16_t)k->type,
    };
    if (cuda_stream_map_cache(c->ops, k, a.k_map, NULL) != QP_OK ||
        cuda_stream_map_cache(c->ops, v, a.v_map, NULL) != QP_OK)
        return false;
    if (turns_before(c, &a, k, v)) {
        chain_last_step(c)->blocks = 0; /* attention's blocks run it */
        chain_last_step(c)->of.rope.cuts = a.n_kv;
    }
    chain_next_step(c, CHAIN_ATTENTION, q->shape[0] * k->shape[2])->of.attention = a;
    c->run.head = (int32_t)q->shape[2];
    c->x = rows_of_heads(out);
    c->x_at = at;
    c->ended = false;
    return true;
}
