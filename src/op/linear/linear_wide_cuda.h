/* Products of many rows together with the operators that follow them, by quipu's own kernels:
 * linear_wide.cuh. */
#pragma once

#include "op/linear/linear_wide.h"
#include "op/cuda_ops.h"

enum { CUDA_WIDE_NEEDS = CUDA_WGMMA_TILES | CUDA_CLUSTERS }; /* features */

/* Whether this many rows of x and of the weight fill the GPU's waves of tiles well enough. */
bool cuda_linear_wide_fills(int64_t rows, int64_t features, int n_multiprocessors);

/* Whether a weight is whole and stored in BF16, and nothing is added to its product; and whether
 * the kernel is then faster than cuBLASLt's and another after it. It runs only with a fusion. */
bool cuda_linear_wide_accepts(const op_call *call);
bool cuda_linear_wide_pays(const cuda_ops *ops, const op_call *call);

/* Whether the kernel of such a product can also compute the silu_and_mul of its output, for a
 * product that reads that only in BF16. */
bool cuda_linear_wide_activates(const cuda_ops *ops, const op_call *calls);

/* Launches both. The memory of the product's output then holds, in BF16 and contiguous, what
 * silu_and_mul would write. */
cuda_left cuda_linear_wide_silu_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x);
qp_status cuda_linear_wide_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                qp_error *error);

/* The same for the product that makes q, k and v, the rope of q and k, and the kv_append of k and
 * v, where only attention reads q, and only the cache is read of k and v. */
bool cuda_linear_wide_turns(const cuda_ops *ops, const op_call *calls);

/* Launches all three. The memory of the product's output then holds, contiguous and in the type of
 * the cache, what rope would make of q. */
cuda_left cuda_linear_wide_rope_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x);
qp_status cuda_linear_wide_rope(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                qp_error *error);

/* The same for a product whose output only argmax reads. No output is written but the ids. */
bool cuda_linear_wide_finds(const cuda_ops *ops, const op_call *calls);
qp_status cuda_linear_wide_likeliest(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                     qp_error *error);
