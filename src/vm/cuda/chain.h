/* Builds one launch (linear_chain.cuh) from several operators: products of a batch and the
 * operators between them, taken from the operators' calls in the program's order.
 *
 * A chain accepts a call if the call works on the results of the previous call, in these forms:
 *
 *     linear (+ residual), [all_reduce,] [gather,] rms_norm       linear, silu_and_mul
 *     linear, [head_norm,] [rope,] kv_append, paged_decode      linear [, argmax]
 *
 * It begins with [embedding,] rms_norm or with one of these forms. A chain does not write its
 * intermediate results where the operators would have written them, with these exceptions: x of
 * residuals, the cache, q where attention is another kernel, and the last product.
 */
#pragma once

#include "op/linear/linear_chain_cuda.h"
#include "vm/cuda/packed.h"
#include "vm/cuda/tiles.h"

typedef struct cuda_chain {
    cuda_ops *ops;
    linear_chain run;
    int nodes[CHAIN_MAX_STEPS]; /* the first node of each step, as the caller counts nodes */
    int columns;                /* of x's tiles */
    int n_products;
    const cuda_packed *packed; /* products read these parts; NULL: weights in BF16 */
    const cuda_tiles *tiles;   /* products read these; NULL: rows */
    cuda_address named, parts; /* where the weights that products name and parts begin */
    int64_t n_chunks;        /* of attention: parts of each sequence; 0: not all sequences decode */
    tensor x;                /* the input of the next product; rank 0: nothing is in BF16 */
    cuda_address x_at;       /* its address, in BF16 */
    cuda_address first_x_at; /* the first product's input, which another kernel left */
    tensor sum;              /* the last product's output, of which there are parts; rank 0: none */
    tensor weight, bias;     /* and its weight, and bias */
    const int32_t *rows;     /* the rows of x that the next norm takes; NULL: all */
    tensor gathered;         /* the gathered rows; rank 0: not gathered */
    tensor table;            /* the rows' source, where no product came before */
    bool adds;               /* the last product is added to x */
    bool reduces;            /* the last product's sum is over all ranks */
    bool ended;              /* with rope, after which only attention follows; or with the likeliest
                              * tokens */
} cuda_chain;

/* Begins an empty chain for calls of `rows` rows; false where the GPU has no such kernel, or a
 * chain does not pay. `x` is in BF16 at `x_at`; rank 0: nothing is. Sequences have `n_chunks`
 * parts; 0: not all sequences decode. */
bool cuda_chain_begin(cuda_ops *ops, int64_t rows, const tensor *x, cuda_address x_at,
                      int64_t n_chunks, cuda_chain *out);

/* Products of an empty chain read `packed` in place of their weights in BF16, or in FP8, which
 * begin at `named`; the parts begin at `parts`. */
void cuda_chain_pack(cuda_chain *chain, const cuda_packed *packed, cuda_address named,
                     cuda_address parts);

/* Each function appends a call, or leaves the chain unchanged and returns false. Before kv_append
 * come head_norm in models that normalise heads, and rope in layers that rotate them; else NULL. */
bool cuda_chain_product(cuda_chain *chain, const op_call *linear);
bool cuda_chain_activated(cuda_chain *chain, const op_call *linear, const op_call *silu);
bool cuda_chain_reduce(cuda_chain *chain, const op_call *all_reduce);
bool cuda_chain_gather(cuda_chain *chain, const op_call *embedding);
bool cuda_chain_norm(cuda_chain *chain, const op_call *norm);
bool cuda_chain_append(cuda_chain *chain, const op_call *norm, const op_call *rope,
                       const op_call *append);
bool cuda_chain_attention(cuda_chain *chain, const op_call *decode);

/* The last call of a chain, for logits that nothing else reads: they are not written. */
bool cuda_chain_likeliest(cuda_chain *chain, const op_call *argmax);

/* Whether the steps so far can be launched by themselves: another kernel can read their results. */
bool cuda_chain_is_whole(const cuda_chain *chain);

/* Whether the chain is full; and whether its last step is a norm. A chain may end with a norm where
 * only a product reads it, in BF16. The next chain can then fetch its weights before this one ends.
 */
bool cuda_chain_is_full(const cuda_chain *chain);
bool cuda_chain_ends_with_norm(const cuda_chain *chain);

/* Checks the whole chain (chain_check.h) and launches it. chain->x is then in BF16 at chain->x_at
 * if the chain ends with a norm. */
qp_status cuda_chain_launch(cuda_chain *chain, qp_error *error);
