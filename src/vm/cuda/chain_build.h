/* What the files that build chains share: chain.c (steps on rows, and the launch), chain_product.c,
 * chain_rope.c (rope and attention). */
#pragma once

#include "op/linear/linear_cuda.h"
#include "op/linear/linear_stream_cuda.h"
#include "op/variants.h"
#include "vm/cuda/chain.h"

/* Whether two matrices are the same rows in memory. */
static inline bool chain_same_view(const tensor *a, const tensor *b)
{
    return a->rank == 2 && b->rank == 2 && a->data == b->data && a->type == b->type &&
           a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] && a->stride[0] == b->stride[0];
}

/* Whether four elements at a time can be loaded and stored. */
static inline bool chain_has_fours(const tensor *view)
{
    return view->type == DTYPE_F32 && view->shape[1] % 4 == 0 && view->stride[0] % 16 == 0 &&
           (uintptr_t)view->data % 16 == 0;
}

/* Appends a step of `items` items, of which each block takes one or more. */
static inline chain_step *chain_next_step(cuda_chain *c, chain_kind kind, int64_t items)
{
    const int n = c->ops->device->n_multiprocessors;
    chain_step *step = &c->run.steps[c->run.n_steps++];
    *step = (chain_step){.kind = kind, .blocks = items < n ? (int32_t)items : n};
    return step;
}

/* No further step may be added. */
static inline bool chain_takes_none(const cuda_chain *c)
{
    return c->ended || cuda_chain_is_full(c);
}

/* Features of a row at most. Kernels of wide rows are those of ranks, and for heads of 128. */
static inline int64_t chain_most_columns(const cuda_chain *c)
{
    return c->ops->exchange && !c->packed && c->run.head != 64 ? CHAIN_WIDE_ROW : CHAIN_ROW;
}

static inline chain_step *chain_last_step(cuda_chain *c)
{
    return c->run.n_steps > 0 ? &c->run.steps[c->run.n_steps - 1] : NULL;
}

static inline int64_t chain_groups_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Whether the parts of the last product fit in their room. The size is computed for 64 rows, so
 * that it does not depend on the number of rows. */
static inline bool chain_parts_fit(const chain_product *p)
{
    int64_t features = (int64_t)p->ranks * p->n_features;
    return features * LINEAR_STREAM_MAX_X * 4 <= CUDA_BLAS_WORKSPACE && p->n_features % 4 == 0;
}

/* The parts of the chain's last product. */
static inline chain_parts chain_last_parts(const cuda_chain *c)
{
    const chain_product *p = &c->run.steps[c->run.n_steps - 1].of.product;
    return (chain_parts){.data = p->out,
                         .bias = c->bias.rank ? c->bias.data : NULL,
                         .n_parts = p->ranks,
                         .n_rows = p->n_rows,
                         .n_features = p->n_features,
                         .bias_type = (int32_t)c->bias.type};
}

/* Whether a vector of weights can be loaded four elements at a time. */
static inline bool chain_has_weight_fours(const tensor *vector)
{
    return (uintptr_t)vector->data % (vector->type == DTYPE_F32 ? 16 : 8) == 0 &&
           (vector->type == DTYPE_F32 || vector->type == DTYPE_F16 || vector->type == DTYPE_BF16);
}

/* Whether the last product's sum becomes x: with the residual, or over all ranks, of which one has
 * the residual. */
static inline bool chain_makes_x(const cuda_chain *c)
{
    return c->adds || c->reduces;
}
