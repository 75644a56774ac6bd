/* Call layout of top_k, and its two rounds over a whole vocabulary. */
#pragma once

#include "op/op.h"

enum { TOP_K_LOGITS, TOP_K_CANDIDATES, TOP_K_VALUES, TOP_K_IDS };

op_kernel top_k_reference;

/* The call of the second round, which reads what `first` wrote, its outputs (n_rows, n_blocks, k)
 * contiguous, and writes `values` and `ids` (n_rows, 1, k). */
op_call top_k_second_round(const op_call *first, tensor values, tensor ids);
