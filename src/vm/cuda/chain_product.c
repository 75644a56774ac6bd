/* Products of a chain: by themselves, with silu_and_mul, and with the choice of the likeliest
 * token; see chain.h. */
#include "op/argmax/argmax.h"
#include "op/linear/linear.h"
#include "op/linear/linear_f8_rows_cuda.h"
#include "op/silu_and_mul/silu_and_mul.h"
#include "vm/cuda/chain_build.h"

static bool is_in_f8(const cuda_chain *c)
{
    return c->packed && c->packed->in_f8;
}

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
    return !chain_takes_none(c) && !c->sum.rank && accepted &&
           cuda_linear_stream_pays(c->ops, call) && x->shape[1] % LINEAR_STREAM_DEPTH == 0 &&
           chain_same_view(x, &c->x) && call->begin == 0 && call->end == weight->shape[0] &&
           x->shape[0] <= c->columns;
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
        .n_tiles = (int32_t)chain_groups_of(weight->shape[0], cut.rows),
        .low = cut.rows == LINEAR_STREAM_LOW_ROWS,
        .n_depths = (int32_t)(x->shape[1] / LINEAR_STREAM_DEPTH),
    };
    if (c->run.n_steps == 0) c->x_at = c->first_x_at;
    p.bf16_x = c->run.n_steps == 0 || chain_last_step(c)->kind == CHAIN_ATTENTION;
    if (!map_weight(c, weight, pairs, cut.rows, &p) ||
        (c->packed && !find_parts(c, weight, pairs, cut.rows, &p)) ||
        cuda_stream_map_deep(c->ops, c->x_at, x->shape[0], x->shape[1], 2 * x->shape[1], c->columns,
                             CHAIN_X_DEPTHS, p.x_map, NULL) != QP_OK)
        return false;
    chain_next_step(c, CHAIN_PRODUCT, p.n_tiles)->of.product = p;
    set_ranks(c, chain_last_step(c), cut.ranks);
    c->n_products++;
    *out = &chain_last_step(c)->of.product;
    return true;
}

bool cuda_chain_product(cuda_chain *c, const op_call *call)
{
    const tensor *residual = &call->tensors[LINEAR_RESIDUAL], *out = &call->tensors[LINEAR_OUT];
    const tensor *bias = &call->tensors[LINEAR_BIAS];
    chain_product *p;
    if (!takes_product(c, call) || (bias->rank && !chain_has_weight_fours(bias)) ||
        (residual->rank && !chain_same_view(residual, out)) ||
        (residual->rank && (!chain_has_fours(out) || out->shape[1] > chain_most_columns(c))) ||
        !add_product(c, call, false, cut_of(c, call), &p))
        return false;
    p->end = CHAIN_PARTS;
    p->out = (float *)(uintptr_t)c->ops->workspace.address; /* cuBLASLt does not use it here */
    p->out_pitch = p->n_features;
    c->sum = *out;
    c->weight = call->tensors[LINEAR_WEIGHT];
    c->bias = *bias;
    if (bias->rank) c->run.families = true;
    c->adds = residual->rank > 0;
    return true;
}

/* Tiles of so many rows that a block has, at most. */
static int64_t rounds_of(const cuda_chain *c, int64_t features, int rows)
{
    return chain_groups_of(chain_groups_of(features, rows), c->ops->device->n_multiprocessors);
}

/* Rows of a tile of gate and up. All blocks get the same number of tiles, as few as possible, and
 * no more rows than that takes: eight of gate and eight of up are together. Parts are in groups of
 * rows, so their tiles are high, or low where no block has more of these. */
static int activated_rows(const cuda_chain *c, int64_t features, int64_t columns)
{
    const int64_t rounds = rounds_of(c, features, LINEAR_STREAM_ROWS);
    const bool whole_stages = columns % (LINEAR_STREAM_DEPTH * CHAIN_X_DEPTHS) == 0;
    if (c->packed)
        return whole_stages && rounds_of(c, features, LINEAR_STREAM_LOW_ROWS) == rounds
                   ? LINEAR_STREAM_LOW_ROWS
                   : LINEAR_STREAM_ROWS;
    if (rounds == 1) return LINEAR_STREAM_ROWS;
    return (int)chain_groups_of(features, c->ops->device->n_multiprocessors * rounds * 16) * 16;
}

bool cuda_chain_activated(cuda_chain *c, const op_call *call, const op_call *silu)
{
    const tensor *out = &silu->tensors[SILU_AND_MUL_OUT];
    chain_product *p;
    const op_call both[] = {*call, *silu};
    const int64_t *shape = call->tensors[LINEAR_WEIGHT].shape;
    const cuda_stream_cut whole = {activated_rows(c, shape[0], shape[1]), 1};
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

/* ---- the likeliest token --------------------------------------------------------------------- */

/* All blocks get the same number of tiles, as few as possible; otherwise some would have one more
 * than others. */
static bool even_out(cuda_chain *c, chain_product *p)
{
    if (c->packed) return !p->low; /* parts are in groups of rows */
    const int n = c->ops->device->n_multiprocessors;
    const int64_t rounds = chain_groups_of(p->n_tiles, n);
    const int64_t rows =
        rounds > 1 ? chain_groups_of(p->n_features, n * rounds) : LINEAR_STREAM_ROWS;
    if (p->low || !map_weight(c, &c->weight, false, (int)rows, p)) return false;
    p->n_tiles = (int32_t)chain_groups_of(p->n_features, rows);
    return true;
}

bool cuda_chain_likeliest(cuda_chain *c, const op_call *call)
{
    const tensor *logits = &call->tensors[ARGMAX_LOGITS], *ids = &call->tensors[ARGMAX_IDS];
    chain_product *last = c->sum.rank ? &chain_last_step(c)->of.product : NULL;
    if (!last || c->adds || c->bias.rank || last->ranks != 1 || !chain_same_view(logits, &c->sum) ||
        ids->type != DTYPE_I32 || call->begin != 0 || call->end != logits->shape[0] ||
        !even_out(c, last))
        return false;
    last->end = CHAIN_LIKELIEST;
    c->sum.rank = 0;
    c->ended = true;
    c->run.best = (uint64_t *)(uintptr_t)cuda_ops_counters(c->ops) + CHAIN_BEST_AT;
    c->run.ids = ids->data;
    c->run.n_ids = (int32_t)logits->shape[0];
    return true;
}
