/* Writing a page of the plan, and making a program of what it has written. lower/lower.h builds
 * programs with both. */
#pragma once

#include "model/model.h"
#include "plan/program.h"

/* The usual options for a model: F16 cache in pages of 16, one sequence at its whole context. */
plan_options plan_default_options(const model_config *config);

/* Leaves only the first `layers` layers, 0: all. QP_INVALID if the model has fewer. */
qp_status plan_take_layers(model_config *config, int64_t layers, qp_error *error);

/* What a page has written: builder.h. */
struct plan_builder;

/* Checks the options and writes the page of their form; rules (src/lower) may then rewrite the
 * draft. free() draft->nodes and program_free() `out`, also after a failure. */
qp_status plan_draft(const model_config *config, const model *model, const plan_options *options,
                     program *out, struct plan_builder *draft, qp_error *error);

/* Makes the program of the draft: places its tensors in the arena, and verifies it. */
qp_status plan_finish(const struct plan_builder *draft, const model *model, qp_error *error);

/* Gives the program the weights of a model that was opened anew, for instance with its weights
 * where only its sizes were known before. It has the sizes and types that the program was built
 * from. */
void program_attach(program *program, const model *model);
