/* What one of several ranks computes of a model, and which part of each weight it holds for that.
 *
 * Attention is cut by KV heads; where there are more ranks than KV heads, several ranks hold a copy
 * of one and share its query heads. The rest is cut by output features, also of each expert. In the
 * cut `reduce` the output and the down projection are cut by input features, so that each rank
 * makes partial sums of all hidden features.
 */
#pragma once

#include "model/model.h"
#include "plan/program.h"

/* The shard of rank options->rank. `model` (may be NULL) says how large the blocks of quantised
 * weights are, which are never cut. QP_INVALID if there are more ranks than there is to share. */
qp_status shard_of_rank(const model_config *whole, const model *model, const plan_options *options,
                        program_shard *out, qp_error *error);

/* Sets which rows and columns of w->whole the rank holds. */
void shard_cut_weight(const program *program, program_weight *w);
