/* Chains of products: see chain.h and linear_chain.cuh. */
#include "vm/cuda/chain.h"

#include "cuda/exchange_chain.h"
#include "op/all_reduce/all_reduce.h"
#include "op/argmax/argmax.h"
#include "op/embedding/embedding.h"
#include "op/kv_append/kv_append.h"
#include "op/linear/linear.h"
#include "op/paged_decode/paged_decode.h"
#include "op/rms_norm/rms_norm.h"
#include "op/rope/rope.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "op/variants.h"
#include "op/attention/attention_cuda.h"
#include "op/linear/linear_cuda.h"
#include "op/linear/linear_f8_rows_cuda.h"
#include "op/linear/linear_stream_cuda.h"
#include "vm/cuda/chain_check.h"

#include <math.h>

static bool same_view(const tensor *a, const tensor *b)
{
    return a->rank == 2 && b->rank == 2 && a->data == b->data && a->type == b->type &&
           a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] && a->stride[0] == b->stride[0];
}

static bool has_fours(const tensor *view)
{
    return view->type == DTYPE_F32 && view->shape[1] % 4 == 0 && view->stride[0] % 16 == 0 &&
           (uintptr_t)view->data % 16 == 0;
}

bool cuda_chain_begin(cuda_ops *ops, int64_t rows, const tensor *x, cuda_address x_at,
                      int64_t n_chunks, cuda_chain *out)
{
    if (!cuda_device_is_hopper(ops->device) || rows > LINEAR_STREAM_MAX_X) return false;
    *out = (cuda_chain){.ops = ops,
                        .columns = LINEAR_STREAM_COLUMNS(rows),
                        .n_chunks = n_chunks,
                        .x = *x,
                        .x_at = cuda_narrow_place(ops),
                        .first_x_at = x_at};
    out->run.arrived = (uint32_t *)(uintptr_t)cuda_ops_counters(ops);
    cuda_linear_chain_set_stages(&out->run, out->columns);
    return true;
}

void cuda_chain_pack(cuda_chain *c, const cuda_packed *packed, cuda_address named,
                     cuda_address parts)
{
    c->packed = packed;
    c->named = named;
    c->parts = parts;
    c->run.packed = packed->in_f8 ? CHAIN_PACKED_IN_F8 : CHAIN_PACKED_LEVELS;
}

static bool is_in_f8(const cuda_chain *c)
{
    return c->packed && c->packed->in_f8;
}

static chain_step *next_step(cuda_chain *c, chain_kind kind, int64_t items)
{
    const int n = c->ops->device->n_multiprocessors;
    chain_step *step = &c->run.steps[c->run.n_steps++];
    *step = (chain_step){.kind = kind, .blocks = items < n ? (int32_t)items : n};
    return step;
}

bool cuda_chain_is_full(const cuda_chain *c)
{
    return c->run.n_steps + 1 >= CHAIN_MAX_STEPS; /* one more step may be needed to add parts */
}

static bool is_full(const cuda_chain *c)
{
    return c->ended || cuda_chain_is_full(c);
}

/* Features of a row at most. Kernels of wide rows are those of ranks, and for heads of 128. */
static int64_t most_columns(const cuda_chain *c)
{
    return c->ops->exchange && !c->packed && c->run.head != 64 ? CHAIN_WIDE_ROW : CHAIN_ROW;
}

static void add_rows(cuda_chain *c, const chain_rows *rows)
{
    next_step(c, CHAIN_ROWS, rows->n_rows)->of.rows = *rows;
    if (rows->parts.n_features > CHAIN_ROW) c->run.wide = true;
}

static chain_step *last_step(cuda_chain *c)
{
    return c->run.n_steps > 0 ? &c->run.steps[c->run.n_steps - 1] : NULL;
}

/* ---- products ------------------------------------------------------------------------------ */

static void set_ranks(const cuda_chain *c, chain_step *step, int ranks)
{
    const int n = c->ops->device->n_multiprocessors;
    int items = step->of.product.n_tiles * ranks;
    step->of.product.ranks = ranks;
    step->blocks = items < n ? items : n;
}

/* Whether the kernel of a single product would accept the call, and its x meets the kernel's
 * conditions. */
static bool takes_product(const cuda_chain *c, const op_call *call)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    const bool accepted = is_in_f8(c) ? cuda_f8_rows_accepts(call) && cuda_f8_has_rows(weight)
                                      : cuda_linear_stream_accepts(call);
    return !is_full(c) && !c->sum.rank && accepted && cuda_linear_stream_pays(c->ops, call) &&
           x->shape[1] % LINEAR_STREAM_DEPTH == 0 && same_view(x, &c->x) && call->begin == 0 &&
           call->end == weight->shape[0] && !call->tensors[LINEAR_BIAS].rank &&
           x->shape[0] <= c->columns;
}

static int64_t groups_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Cuts the product as the kernel of a single product does, so that results are bit-identical. */
static cuda_stream_cut cut_of(const cuda_chain *c, const op_call *call)
{
    const int64_t *shape = call->tensors[LINEAR_WEIGHT].shape;
    return cuda_stream_cut_of(shape[0], shape[1] / LINEAR_STREAM_DEPTH,
                              c->ops->device->n_multiprocessors);
}

static bool map_weight(const cuda_chain *c, const tensor *weight, bool pairs, int rows,
                       chain_product *p)
{
    p->weight_dimension = pairs ? 3 : 1;
    p->weight_step = pairs ? rows / 16 : rows;
    if (is_in_f8(c)) return true; /* which has no map */
    if (cuda_stream_map_weight(c->ops, weight, pairs, rows, p->weight_map, &p->weight_dimension,
                               &p->weight_step, NULL) != QP_OK)
        return false;
    return !p->low || cuda_stream_map_deep(c->ops, (cuda_address)(uintptr_t)weight->data,
                                           weight->shape[0], weight->shape[1], weight->stride[0],
                                           rows, CHAIN_X_DEPTHS, p->weight_map, NULL) == QP_OK;
}

/* The parts replace the weight's map. */
static bool find_parts(const cuda_chain *c, const tensor *weight, bool pairs, int rows,
                       chain_product *p)
{
    return cuda_packed_find(c->packed, cuda_device_form(weight->data) - c->named, weight->shape[0],
                            pairs, rows, c->parts, &p->packed);
}

static bool add_product(cuda_chain *c, const op_call *call, bool pairs, cuda_stream_cut cut,
                        chain_product **out)
{
    const tensor *x = &call->tensors[LINEAR_X], *weight = &call->tensors[LINEAR_WEIGHT];
    chain_product p = {
        .n_rows = (int32_t)x->shape[0],
        .n_features = (int32_t)weight->shape[0],
        .n_tiles = (int32_t)groups_of(weight->shape[0], cut.rows),
        .low = cut.rows == LINEAR_STREAM_LOW_ROWS,
        .n_depths = (int32_t)(x->shape[1] / LINEAR_STREAM_DEPTH),
    };
    if (c->run.n_steps == 0) c->x_at = c->first_x_at;
    p.bf16_x = c->run.n_steps == 0 || last_step(c)->kind == CHAIN_ATTENTION;
    if (!map_weight(c, weight, pairs, cut.rows, &p) ||
        (c->packed && !find_parts(c, weight, pairs, cut.rows, &p)) ||
        cuda_stream_map_deep(c->ops, c->x_at, x->shape[0], x->shape[1], 2 * x->shape[1], c->columns,
                             CHAIN_X_DEPTHS, p.x_map, NULL) != QP_OK)
        return false;
    next_step(c, CHAIN_PRODUCT, p.n_tiles)->of.product = p;
    set_ranks(c, last_step(c), cut.ranks);
    c->n_products++;
    *out = &last_step(c)->of.product;
    return true;
}

bool cuda_chain_product(cuda_chain *c, const op_call *call)
{
    const tensor *residual = &call->tensors[LINEAR_RESIDUAL], *out = &call->tensors[LINEAR_OUT];
    chain_product *p;
    if (!takes_product(c, call) || (residual->rank && !same_view(residual, out)) ||
        (residual->rank && (!has_fours(out) || out->shape[1] > most_columns(c))) ||
        !add_product(c, call, false, cut_of(c, call), &p))
        return false;
    p->end = CHAIN_PARTS;
    p->out = (float *)(uintptr_t)c->ops->workspace.address; /* cuBLASLt does not use it here */
    p->out_pitch = p->n_features;
    c->sum = *out;
    c->weight = call->tensors[LINEAR_WEIGHT];
    c->adds = residual->rank > 0;
    return true;
}

/* Rows of a tile of gate and up. All blocks get the same number of tiles, as few as possible, and
 * no more rows than that takes: eight of gate and eight of up are together. */
static int activated_rows(const cuda_chain *c, int64_t features)
{
    const int n = c->ops->device->n_multiprocessors;
    const int64_t rounds = groups_of(groups_of(features, LINEAR_STREAM_ROWS), n);
    if (c->packed || rounds == 1) return LINEAR_STREAM_ROWS; /* parts are in groups of rows */
    return (int)groups_of(features, n * rounds * 16) * 16;
}

bool cuda_chain_activated(cuda_chain *c, const op_call *call, const op_call *silu)
{
    const tensor *out = &silu->tensors[SILU_AND_MUL_OUT];
    chain_product *p;
    const op_call both[] = {*call, *silu};
    const int64_t features = call->tensors[LINEAR_WEIGHT].shape[0];
    const cuda_stream_cut whole = {activated_rows(c, features), 1};
    if (!takes_product(c, call) || cut_of(c, call).ranks > 1 ||
        !cuda_linear_stream_activates(c->ops, both) || !add_product(c, call, true, whole, &p))
        return false;
    c->x = *out;
    c->x_at = cuda_other_narrow_place(c->ops, c->x_at);
    p->end = CHAIN_SILU;
    p->n_features = (int32_t)out->shape[1];
    p->narrowed = (void *)(uintptr_t)c->x_at;
    return true;
}

/* ---- steps between products ----------------------------------------------------------------- */

/* Whether the parts of the last product fit in their room. The size is computed for 64 rows, so
 * that it does not depend on the number of rows. */
static bool parts_fit(const chain_product *p)
{
    int64_t features = (int64_t)p->ranks * p->n_features;
    return features * LINEAR_STREAM_MAX_X * 4 <= CUDA_BLAS_WORKSPACE && p->n_features % 4 == 0;
}

static chain_parts parts_of(const chain_product *p)
{
    return (chain_parts){p->out, p->ranks, p->n_rows, p->n_features};
}

/* Whether the last product's sum becomes x: with the residual, or over all ranks, of which one has
 * the residual. */
static bool makes_x(const cuda_chain *c)
{
    return c->adds || c->reduces;
}

/* Adds the parts of the last product to the residual, into x. */
static chain_rows rows_of(const cuda_chain *c, const chain_product *p)
{
    return (chain_rows){.parts = parts_of(p),
                        .residual = c->adds ? c->sum.data : NULL,
                        .out = c->sum.data,
                        .residual_pitch = c->sum.stride[0] / 4,
                        .out_pitch = c->sum.stride[0] / 4,
                        .n_rows = p->n_rows,
                        .reduced = c->reduces};
}

/* All ranks accept the same calls, if their products have the same shapes. */
bool cuda_chain_reduce(cuda_chain *c, const op_call *call)
{
    const tensor *parts = &call->tensors[ALL_REDUCE_PARTS], *out = &call->tensors[ALL_REDUCE_OUT];
    const tensor *sum = &c->sum;
    if (!c->ops->exchange || c->packed || c->reduces || c->gathered.rank || !sum->rank ||
        !has_fours(sum) || !same_view(out, sum) || parts->data != sum->data ||
        parts->stride[1] != sum->stride[0] || sum->shape[0] > EXCHANGE_CHAIN_ROWS ||
        sum->shape[1] > EXCHANGE_CHAIN_COLUMNS || sum->shape[1] > most_columns(c) ||
        !parts_fit(&last_step(c)->of.product))
        return false;
    c->reduces = true;
    c->run.reduces = true;
    c->run.ranks = *c->ops->exchange;
    return true;
}

/* The first norm reads rows of the table. */
static bool begin_with_rows(cuda_chain *c, const op_call *call)
{
    const tensor *table = &call->tensors[EMBEDDING_TABLE], *out = &call->tensors[EMBEDDING_OUT];
    const tensor *ids = &call->tensors[EMBEDDING_IDS];
    const unsigned eights = table->type == DTYPE_F32 ? 16 : 8; /* bytes of four elements */
    if (!op_call_has_no_f64(call) || ids->type != DTYPE_I32 || !has_fours(out) ||
        (table->type != DTYPE_F32 && table->type != DTYPE_F16 && table->type != DTYPE_BF16) ||
        table->stride[0] % eights != 0 || (uintptr_t)table->data % eights != 0 ||
        call->begin != 0 || call->end != out->shape[0])
        return false;
    c->gathered = *out;
    c->rows = ids->data;
    c->table = *table;
    return true;
}

bool cuda_chain_gather(cuda_chain *c, const op_call *call)
{
    if (c->run.n_steps == 0 && !c->gathered.rank) return begin_with_rows(c, call);
    const tensor *table = &call->tensors[EMBEDDING_TABLE], *out = &call->tensors[EMBEDDING_OUT];
    const tensor *ids = &call->tensors[EMBEDDING_IDS];
    if (is_full(c) || !c->sum.rank || !makes_x(c) || c->gathered.rank || table->type != DTYPE_F32 ||
        table->data != c->sum.data || table->shape[1] != c->sum.shape[1] ||
        table->stride[0] != c->sum.stride[0] || !has_fours(out) || ids->type != DTYPE_I32)
        return false;
    c->gathered = *out;
    c->rows = ids->data;
    return true;
}

bool cuda_chain_norm(cuda_chain *c, const op_call *call)
{
    const tensor *x = &call->tensors[RMS_NORM_X], *weight = &call->tensors[RMS_NORM_WEIGHT];
    const tensor *out = &call->tensors[RMS_NORM_OUT];
    const tensor *source = c->gathered.rank ? &c->gathered : &c->sum;
    chain_step *last = last_step(c);
    size_t bytes = (size_t)(x->shape[0] * x->shape[1]) * 2;
    if (is_full(c) || !op_call_has_no_f64(call) || call->params[RMS_NORM_ROUND_FIRST] != 0 ||
        !has_fours(x) || x->shape[1] > most_columns(c) || out->type != DTYPE_F32 ||
        x->shape[0] > c->columns || weight->data == NULL || (uintptr_t)weight->data % 8 != 0 ||
        2 * bytes > c->ops->workspace.bytes - CUDA_OWN_WORKSPACE)
        return false;
    if (c->table.rank && !same_view(x, &c->gathered)) return false;
    if (last &&
        (!c->sum.rank || !makes_x(c) || !same_view(x, source) || !parts_fit(&last->of.product)))
        return false;
    chain_rows rows = {
        .parts = {.n_rows = (int32_t)x->shape[0], .n_features = (int32_t)x->shape[1]},
        .residual = x->data,
        .residual_pitch = x->stride[0] / 4};
    if (last) rows = rows_of(c, &last->of.product);
    if (c->gathered.rank) rows.out = NULL; /* nothing reads those rows again */
    if (c->table.rank) {
        rows.out = x->data;
        rows.out_pitch = x->stride[0] / 4;
        rows.table = c->table.data;
        rows.table_type = (int32_t)c->table.type;
        rows.residual_pitch = c->table.stride[0];
    }
    if (last) c->x_at = cuda_other_narrow_place(c->ops, c->x_at);
    rows.rows = c->rows;
    rows.weight = weight->data;
    rows.weight_type = (int32_t)weight->type;
    rows.eps = (float)call->params[RMS_NORM_EPS];
    rows.n_rows = (int32_t)x->shape[0];
    rows.narrowed = (void *)(uintptr_t)c->x_at;
    add_rows(c, &rows);
    c->x = *out;
    c->sum.rank = c->gathered.rank = c->table.rank = 0;
    c->reduces = false;
    c->rows = NULL;
    return true;
}

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

static bool takes_rope(const cuda_chain *c, const op_call *rope, const op_call *append)
{
    const tensor *q = &rope->tensors[ROPE_Q], *k = &rope->tensors[ROPE_K];
    const tensor *v = &append->tensors[KV_APPEND_V], *table = &rope->tensors[ROPE_COS_SIN];
    const tensor *k_cache = &append->tensors[KV_APPEND_K_CACHE];
    const tensor *v_cache = &append->tensors[KV_APPEND_V_CACHE];
    int64_t dim = q->shape[2], n_q = q->shape[1] * dim, n_kv = k->shape[1] * dim;
    return !is_full(c) && c->sum.rank && !c->adds && are_columns(c, q, 0) &&
           are_columns(c, k, n_q) && are_columns(c, v, n_q + n_kv) &&
           c->sum.shape[1] == n_q + 2 * n_kv && append->tensors[KV_APPEND_K].data == k->data &&
           k->shape[1] == v->shape[1] && table->type == DTYPE_F32 && table->shape[1] == dim &&
           dim % 8 == 0 && has_fours(&c->sum) && has_fours(table) && has_eights(k_cache) &&
           has_eights(v_cache) && op_call_has_no_f64(append) && rope->begin == 0 &&
           rope->end == q->shape[0] && append->end == rope->end;
}

bool cuda_chain_rope(cuda_chain *c, const op_call *rope, const op_call *append)
{
    const tensor *q = &rope->tensors[ROPE_Q], *k = &append->tensors[KV_APPEND_K_CACHE];
    const tensor *v = &append->tensors[KV_APPEND_V_CACHE], *table = &rope->tensors[ROPE_COS_SIN];
    chain_step *last = last_step(c);
    if (!last || !takes_rope(c, rope, append) || !parts_fit(&last->of.product)) return false;
    int64_t eights = c->sum.shape[1] / 8, tokens = q->shape[0];
    int64_t cuts = c->ops->device->n_multiprocessors / tokens;
    int64_t most = groups_of(eights, CHAIN_WORKERS);
    if (cuts > most) cuts = most;
    if (cuts < 1) cuts = 1;
    next_step(c, CHAIN_ROPE, tokens * cuts)->of.rope = (chain_rope){
        .parts = parts_of(&last->of.product),
        .q = q->data,
        .k_cache = k->data,
        .v_cache = v->data,
        .table = table->data,
        .table_rows = rope->tensors[ROPE_POSITIONS].data,
        .positions = append->tensors[KV_APPEND_POSITIONS].data,
        .qo_indptr = append->tensors[KV_APPEND_QO_INDPTR].data,
        .kv_indptr = append->tensors[KV_APPEND_KV_INDPTR].data,
        .kv_indices = append->tensors[KV_APPEND_KV_INDICES].data,
        .q_pitch = q->stride[0] / 4,
        .table_pitch = table->stride[0] / 4,
        .k_page = k->stride[0],
        .k_slot = k->stride[1],
        .k_head = k->stride[2],
        .v_page = v->stride[0],
        .v_slot = v->stride[1],
        .v_head = v->stride[2],
        .n_tokens = (int32_t)tokens,
        .n_sequences = (int32_t)append->tensors[KV_APPEND_QO_INDPTR].shape[0] - 1,
        .n_q = (int32_t)q->shape[1],
        .n_kv = (int32_t)k->shape[2],
        .head_dim = (int32_t)q->shape[2],
        .page_size = (int32_t)k->shape[1],
        .cuts = (int32_t)cuts,
        .interleaved = rope->params[ROPE_INTERLEAVED] != 0,
        .k_type = (int32_t)k->type,
        .v_type = (int32_t)v->type,
    };
    c->sum.rank = 0;
    c->ended = true;
    return true;
}

/* ---- attention ----------------------------------------------------------------------------- */

/* Whether the queries of a block's heads, and their new keys and values, fit into the room of x. */
static bool queries_fit(const cuda_chain *c, const tensor *q, const tensor *k)
{
    int64_t items = groups_of(q->shape[0] * k->shape[2], c->ops->device->n_multiprocessors);
    int64_t heads = q->shape[1] / k->shape[2] + 2;
    return items * heads * q->shape[2] * 2 <= c->run.x_stages * CHAIN_X_BYTES(c->columns);
}

/* All attention of a chain has heads of one size. Those of 128 elements have room for four in a
 * group, and are faster by a kernel of their own where a half of a block would have several: both
 * give the same bits. */
static bool takes_heads(const cuda_chain *c, const tensor *q, const tensor *k)
{
    const int64_t dim = q->shape[2], group = q->shape[1] / k->shape[2];
    const bool one_each = q->shape[0] * k->shape[2] <= 2 * c->ops->device->n_multiprocessors;
    return ((dim == 64 && !c->run.wide) || (dim == 128 && group <= 4 && one_each)) &&
           q->stride[1] == dim * 4 && k->shape[3] == dim &&
           (c->run.head == 0 || c->run.head == dim);
}

/* The conditions under which paged_decode_batch.cuh does not cut a sequence and heads have the
 * tiles' width. */
static bool takes_attention(const cuda_chain *c, const op_call *call)
{
    const tensor *q = &call->tensors[PAGED_DECODE_Q], *k = &call->tensors[PAGED_DECODE_K_CACHE];
    int64_t row = q->shape[1] * q->shape[2];
    size_t bytes = (size_t)(q->shape[0] * row) * 2;
    const attention_limits limits = CUDA_ATTENTION_LIMITS(call, PAGED_DECODE);
    return (c->run.n_steps == 0 || c->ended) && c->run.n_steps + 1 < CHAIN_MAX_STEPS &&
           !cuda_is_limited(&limits) && cuda_decode_accepts(call) &&
           cuda_decode_pays(c->ops, call) && q->shape[0] <= c->columns && takes_heads(c, q, k) &&
           q->type == DTYPE_F32 && !call->tensors[PAGED_DECODE_LSE].rank && call->begin == 0 &&
           call->end == q->shape[0] * q->shape[1] && c->n_chunks == 1 && queries_fit(c, q, k) &&
           2 * bytes <= c->ops->workspace.bytes - CUDA_OWN_WORKSPACE;
}

/* Whether the last step is the rope of exactly the tokens that attention reads, one of each
 * sequence in their order, into the same cache. */
static bool turns_before(cuda_chain *c, const chain_attention *a, const tensor *k, const tensor *v)
{
    const chain_step *last = last_step(c);
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
        last_step(c)->blocks = 0; /* attention's blocks run it */
        last_step(c)->of.rope.cuts = a.n_kv;
    }
    next_step(c, CHAIN_ATTENTION, q->shape[0] * k->shape[2])->of.attention = a;
    c->run.head = (int32_t)q->shape[2];
    c->x = rows_of_heads(out);
    c->x_at = at;
    c->ended = false;
    return true;
}

/* ---- launching ----------------------------------------------------------------------------- */

bool cuda_chain_is_whole(const cuda_chain *c)
{
    if (c->n_products == 0 || c->gathered.rank) return false;
    if (!c->sum.rank) return c->ended; /* else a product must still read the last step's output */
    const chain_product *last = &c->run.steps[c->run.n_steps - 1].of.product;
    return makes_x(c) ? parts_fit(last) : last->ranks == 1 && has_fours(&c->sum);
}

/* All blocks get the same number of tiles, as few as possible; otherwise some would have one more
 * than others. */
static bool even_out(cuda_chain *c, chain_product *p)
{
    if (c->packed) return !p->low; /* parts are in groups of rows */
    const int n = c->ops->device->n_multiprocessors;
    const int64_t rounds = groups_of(p->n_tiles, n);
    const int64_t rows = rounds > 1 ? groups_of(p->n_features, n * rounds) : LINEAR_STREAM_ROWS;
    if (p->low || !map_weight(c, &c->weight, false, (int)rows, p)) return false;
    p->n_tiles = (int32_t)groups_of(p->n_features, rows);
    return true;
}

bool cuda_chain_likeliest(cuda_chain *c, const op_call *call)
{
    const tensor *logits = &call->tensors[ARGMAX_LOGITS], *ids = &call->tensors[ARGMAX_IDS];
    chain_product *last = c->sum.rank ? &last_step(c)->of.product : NULL;
    if (!last || c->adds || last->ranks != 1 || !same_view(logits, &c->sum) ||
        ids->type != DTYPE_I32 || call->begin != 0 || call->end != logits->shape[0] ||
        !even_out(c, last))
        return false;
    last->end = CHAIN_LIKELIEST;
    c->sum.rank = 0;
    c->run.best = (uint64_t *)(uintptr_t)cuda_ops_counters(c->ops) + CHAIN_BEST_AT;
    c->run.ids = ids->data;
    c->run.n_ids = (int32_t)logits->shape[0];
    return true;
}

bool cuda_chain_ends_with_norm(const cuda_chain *c)
{
    const chain_step *last = c->run.n_steps > 0 ? &c->run.steps[c->run.n_steps - 1] : NULL;
    return last && c->n_products > 0 && last->kind == CHAIN_ROWS && last->of.rows.weight;
}

/* Called if no step adds the last product's parts: stores the product whole if its output may be
 * written, or appends a step that adds it to x. */
static void end_sum(cuda_chain *c)
{
    chain_step *last = last_step(c);
    chain_product *p = &last->of.product;
    if (!c->sum.rank) return;
    if (makes_x(c)) {
        const chain_rows rows = rows_of(c, p);
        add_rows(c, &rows);
        return;
    }
    p->end = CHAIN_PLAIN;
    p->out = c->sum.data;
    p->out_pitch = c->sum.stride[0] / 4;
}

qp_status cuda_chain_launch(cuda_chain *c, qp_error *error)
{
    end_sum(c);
    for (int s = 0; s < c->run.n_steps && c->tiles && !c->packed; s++)
        if (c->run.steps[s].kind == CHAIN_PRODUCT)
            cuda_tiles_take(c->tiles, &c->run.steps[s].of.product);
    if (!cuda_chain_ends_with_norm(c)) c->x.rank = 0;
    if (c->ops->recording) TRY(chain_verify(&c->run, c->ops->device->n_multiprocessors, error));
    return cuda_linear_chain(c->ops, &c->run, c->columns, error);
}
