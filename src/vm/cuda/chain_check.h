/* Chains as records: prints a step as text, and checks what must hold of all steps before a chain
 * runs. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "op/linear/linear_chain.h"

/* "product 960 x 576 (9 rows), 30 tiles in 4 parts, 120 blocks". */
void chain_step_print(const chain_step *step, strbuf *out);

/* Checks a chain whose maps are still descriptions (cuda/launch.h), for a GPU with this number of
 * multiprocessors:
 *
 *     - the number of steps is one that the kernel accepts, and there are at most as many
 *       blocks as multiprocessors;
 *     - a product reads what the step before it left in BF16, the first product what another
 *       launch left, in rows of the same length;
 *     - no product writes its output over its own x;
 *     - the next step adds all parts of a product, and no step adds others;
 *     - parts lie within the workspace reserved for them;
 *     - only the last step leaves sums or the likeliest tokens outside the chain;
 *     - a rope without blocks runs in the blocks of the attention that follows, over the
 *       same cache.
 *
 * The message says which step is wrong, and how.
 */
qp_status chain_verify(const linear_chain *chain, int n_multiprocessors, qp_error *error);
