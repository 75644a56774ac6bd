/* Launches of chains of products: linear_chain.h. vm/cuda/chain.h builds the chains. */
#pragma once

#include "op/cuda_ops.h"
#include "op/linear/linear_chain.h"

enum { CUDA_CHAIN_NEEDS = CUDA_WGMMA_TILES | CUDA_DEPENDENT_LAUNCH }; /* features */

/* Sets the numbers of stages of a chain whose tiles of x have this many columns: as many as shared
 * memory holds. */
void cuda_linear_chain_set_stages(linear_chain *chain, int columns);

qp_status cuda_linear_chain(cuda_ops *ops, const linear_chain *chain, int columns, qp_error *error);
