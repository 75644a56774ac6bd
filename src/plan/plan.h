/* Building a program from a model's sizes and options. The page that writes the forward pass is
 * llama.c. */
#ifndef QUIPU_PLAN_PLAN_H
#define QUIPU_PLAN_PLAN_H

#include "model/model.h"
#include "plan/program.h"

/* The usual options for a model: F16 cache in pages of 16, one sequence at its whole context. */
plan_options plan_default_options(const model_config *config);

/* Leaves only the first `layers` layers, 0: all. QP_INVALID if the model has fewer. */
qp_status plan_take_layers(model_config *config, int64_t layers, qp_error *error);

/* Builds the program, places its tensors in the arena, and verifies it. Reads types and shapes of
 * the weights from `model`; NULL, for questions about sizes: weights are F32, with the shapes of
 * the config and without biases. program_free() the result, also after a failure. */
qp_status plan_build(const model_config *config, const model *model, const plan_options *options,
                     program *out, qp_error *error);

/* Gives the program the weights of a model that was opened anew, for instance with its weights
 * where only its sizes were known before. It has the sizes and types that the program was built
 * from. */
void program_attach(program *program, const model *model);

/* The largest context (a multiple of the page size, at most the model's) that fits `available`
 * bytes with everything else as in `options`; 0: none does. */
int64_t plan_largest_context(const model_config *config, const plan_options *options,
                             uint64_t weight_bytes, uint64_t available);

#endif
