/* A draft model: a smaller model with the same vocabulary proposes tokens, one pass for each.
 *
 * It is an engine of its own, with a session for each session of the target. Its sampler has the
 * request's settings and draws the same random numbers for a position, so where both models have
 * nearly the same logits they choose the same token, also at a high temperature.
 */
#pragma once

#include "engine/speculate.h"

/* Opens options->draft for the engine that was opened with the options. QP_INVALID if the
 * vocabularies differ. The proposer's close() frees everything. */
qp_status draft_open(struct qp_engine *target, const qp_engine_options *options, proposer **out,
                     qp_error *error);
