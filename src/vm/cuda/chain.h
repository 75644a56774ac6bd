/* Products of a batch and what stands between them as one kernel, linear_chain.cuh: gathered from
 * the calls of operators as a plan has them in turn.
 *
 * A chain takes calls as long as each works on what the one before left, of the forms
 *
 *     linear (+ residual), [gather,] rms_norm       linear, silu_and_mul
 *     linear, rope and kv_append, paged_decode      linear [, argmax]
 *
 * and begins with [embedding,] rms_norm or with one of them.
 * None of what one step of it leaves to the next is written where the operator would have written
 * it, but for x of residuals, the cache, q where attention is another kernel, and the last product.
 */
#ifndef QUIPU_VM_CUDA_CHAIN_H
#define QUIPU_VM_CUDA_CHAIN_H

#include "op/linear/linear_chain_cuda.h"

typedef struct cuda_chain {
    cuda_ops *ops;
    linear_chain run;
    int nodes[CHAIN_MAX_STEPS]; /* of each step the first node, as the caller counts them */
    int columns;                /* of x's tiles */
    int n_products;
    int64_t n_chunks;        /* of attention: parts of each sequence; 0: not all decode */
    tensor x;                /* what the next product must multiply; rank 0: nothing is in BF16 */
    cuda_address x_at;       /* where it is, in BF16; */
    cuda_address first_x_at; /* that of the first product, which another kernel has left */
    tensor sum;              /* the last product's output, of which there are parts; rank 0: none */
    tensor weight;           /* and its weight */
    const int32_t *rows;     /* of x's rows, those that the next norm takes; NULL: all */
    tensor gathered;         /* what they are called; rank 0: not gathered */
    tensor table;            /* of which, where no product came before */
    bool adds;               /* the last product is added to x */
    bool ended;              /* with rope: only attention may follow */
} cuda_chain;

/* An empty chain for calls of `rows` rows; false where the GPU has no such kernel, or it does not
 * pay. `x` is in BF16 at `x_at`, rank 0: nothing is. Sequences have `n_chunks` parts, 0: not all
 * decode. */
bool cuda_chain_begin(cuda_ops *ops, int64_t rows, const tensor *x, cuda_address x_at,
                      int64_t n_chunks, cuda_chain *out);

/* Each takes a call, or leaves the chain as it is and returns false. */
bool cuda_chain_product(cuda_chain *chain, const op_call *linear);
bool cuda_chain_activated(cuda_chain *chain, const op_call *linear, const op_call *silu);
bool cuda_chain_gather(cuda_chain *chain, const op_call *embedding);
bool cuda_chain_norm(cuda_chain *chain, const op_call *norm);
bool cuda_chain_rope(cuda_chain *chain, const op_call *rope, const op_call *append);
bool cuda_chain_attention(cuda_chain *chain, const op_call *decode);

/* The last call that a chain takes, of logits that nobody else reads: they are not written. */
bool cuda_chain_likeliest(cuda_chain *chain, const op_call *argmax);

/* Whether what was taken so far can stand alone: somebody else may take what is left. */
bool cuda_chain_is_whole(const cuda_chain *chain);

/* Whether no more steps fit; and whether the last one is a norm, with which a chain may end where
 * nobody but a product reads that, in BF16. The chain behind it then has weights to fetch before
 * this one has ended. */
bool cuda_chain_is_full(const cuda_chain *chain);
bool cuda_chain_ends_with_norm(const cuda_chain *chain);

/* Checks a whole chain (chain_check.h) and launches it. Afterwards chain->x is in BF16 at
 * chain->x_at where the chain ends with a norm; else nothing is. */
qp_status cuda_chain_launch(cuda_chain *chain, qp_error *error);

#endif
