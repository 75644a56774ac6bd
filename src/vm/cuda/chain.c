/* Chains of products: see chain.h and linear_chain.cuh. Here: how they begin, steps on rows between
 * products, and the launch. */
#include "vm/cuda/chain.h"

#include "cuda/exchange_chain.h"
#include "op/all_reduce/all_reduce.h"
#include "op/embedding/embedding.h"
#include "op/rms_norm/rms_norm.h"
#include "vm/cuda/chain_build.h"
#include "vm/cuda/chain_check.h"

bool cuda_chain_begin(cuda_ops *ops, int64_t rows, const tensor *x, cuda_address x_at,
                      int64_t n_chunks, cuda_chain *out)
{
    if (!cuda_device_has(ops->device, CUDA_CHAIN_NEEDS) || rows > LINEAR_STREAM_MAX_X) return false;
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

bool cuda_chain_is_full(const cuda_chain *c)
{
    return c->run.n_steps + 1 >= CHAIN_MAX_STEPS; /* one more step may be needed to add parts */
}

static void add_rows(cuda_chain *c, const chain_rows *rows)
{
    chain_next_step(c, CHAIN_ROWS, rows->n_rows)->of.rows = *rows;
    if (rows->parts.n_features > CHAIN_ROW) c->run.wide = true;
}

/* ---- steps between products ----------------------------------------------------------------- */

/* Adds the parts of the last product to the residual, into x. */
static chain_rows rows_of(const cuda_chain *c, const chain_product *p)
{
    return (chain_rows){.parts = chain_last_parts(c),
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
        !chain_has_fours(sum) || !chain_same_view(out, sum) || parts->data != sum->data ||
        parts->stride[1] != sum->stride[0] || sum->shape[0] > EXCHANGE_CHAIN_ROWS ||
        sum->shape[1] > EXCHANGE_CHAIN_COLUMNS || sum->shape[1] > chain_most_columns(c) ||
        !chain_parts_fit(&chain_last_step(c)->of.product))
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
    if (!op_call_has_no_f64(call) || ids->type != DTYPE_I32 || !chain_has_fours(out) ||
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
    if (chain_takes_none(c) || !c->sum.rank || !chain_makes_x(c) || c->gathered.rank ||
        table->type != DTYPE_F32 || table->data != c->sum.data ||
        table->shape[1] != c->sum.shape[1] || table->stride[0] != c->sum.stride[0] ||
        !chain_has_fours(out) || ids->type != DTYPE_I32)
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
    chain_step *last = chain_last_step(c);
    size_t bytes = (size_t)(x->shape[0] * x->shape[1]) * 2;
    if (chain_takes_none(c) || !op_call_has_no_f64(call) ||
        call->params[RMS_NORM_ROUND_FIRST] != 0 || !chain_has_fours(x) ||
        x->shape[1] > chain_most_columns(c) || out->type != DTYPE_F32 || x->shape[0] > c->columns ||
        weight->data == NULL || !chain_has_weight_fours(weight) ||
        2 * bytes > c->ops->workspace.bytes - CUDA_OWN_WORKSPACE)
        return false;
    if (c->table.rank && !chain_same_view(x, &c->gathered)) return false;
    if (last && (!c->sum.rank || !chain_makes_x(c) || !chain_same_view(x, source) ||
                 !chain_parts_fit(&last->of.product)))
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

/* ---- launching ----------------------------------------------------------------------------- */

bool cuda_chain_is_whole(const cuda_chain *c)
{
    if (c->n_products == 0 || c->gathered.rank) return false;
    if (!c->sum.rank) return c->ended; /* else a product must still read the last step's output */
    const chain_product *last = &c->run.steps[c->run.n_steps - 1].of.product;
    if (chain_makes_x(c)) return chain_parts_fit(last);
    return last->ranks == 1 && chain_has_fours(&c->sum) && !c->bias.rank;
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
    chain_step *last = chain_last_step(c);
    chain_product *p = &last->of.product;
    if (!c->sum.rank) return;
    if (chain_makes_x(c)) {
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
    if (c->ops->recording) TRY(chain_verify(&c->run, c->ops->device->n_multiprocessors, error));
    return cuda_linear_chain(c->ops, &c->run, c->columns, error);
}
