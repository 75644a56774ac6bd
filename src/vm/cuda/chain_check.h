/* Chains as records: a step as text, and what must hold of all steps before a chain runs. */
#ifndef QUIPU_VM_CUDA_CHAIN_CHECK_H
#define QUIPU_VM_CUDA_CHAIN_CHECK_H

#include "base/status.h"
#include "base/strbuf.h"
#include "op/linear/linear_chain.h"

/* "product 960 x 576 (9 rows), 30 tiles in 4 parts, 120 blocks". */
void chain_step_print(const chain_step *step, strbuf *out);

/* Checks a chain whose maps are descriptions still (cuda/launch.h), for a GPU of so many
 * multiprocessors:
 *
 *   - there are as many steps as the kernel takes, and blocks as there are multiprocessors;
 *   - a product multiplies what the step before it left in BF16, the first one what another launch
 *     left, in rows of the same length;
 *   - no product leaves its output where its own x is;
 *   - parts of a product are added by the next step, whole, and no step adds others;
 *   - parts lie within the workspace that is theirs;
 *   - sums that leave the chain, and the likeliest tokens, are the last step's;
 *   - a rope without blocks is run by those of the attention that follows, over the same cache.
 *
 * The message says which step is wrong, and how. */
qp_status chain_verify(const linear_chain *chain, int n_multiprocessors, qp_error *error);

#endif
