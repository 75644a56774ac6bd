/* Building a program from a model's sizes and options, and questions about it. The page that writes
 * the forward pass is llama.c. */
#ifndef QUIPU_PLAN_PLAN_H
#define QUIPU_PLAN_PLAN_H

#include "model/model.h"
#include "plan/program.h"

/* The usual options for a model: F16 cache in pages of 16, one sequence at its whole context. */
plan_options plan_default_options(const model_config *config);

/* Whether there is a fused plan for the model: not where q and k have norms of their own. */
bool plan_can_fuse(const model_config *config);

/* Builds the program, places its tensors in the arena, and verifies it. Reads types and shapes of
 * the weights from `model`; NULL, for questions about sizes: weights are F32, with the shapes of
 * the config and without biases. program_free() the result, also after a failure. */
qp_status plan_build(const model_config *config, const model *model, const plan_options *options,
                     program *out, qp_error *error);
void program_free(program *program);

/* The addresses of the program's weights in the model, for program_memory.weights: [n_weights].
 * NULL where the model has no data. */
void plan_find_weights(const program *program, const model *model, const void **weights);

/* Finds a step by its label: "embedding", or "5.attn_qkv" for one of layer 5. QP_INVALID names the
 * step with the nearest name. */
qp_status program_parse_step(const program *program, const char *text, int *step, qp_error *error);

/* Writes a step's label, as program_parse_step() takes it, into `text`. */
const char *program_step_label(const program *program, int step, char *text, size_t size);

/* Directions in which a step touches a tensor. */
typedef struct program_access {
    bool read, write;
} program_access;
program_access program_step_access(const program *program, int step, plan_tensor_id id);

/* Bytes that a run needs, each part exact. */
typedef struct program_bytes {
    uint64_t weights, arena, sums, kv_cache, rope_table, state, inputs, total;
} program_bytes;
program_bytes program_count_bytes(const program *program, uint64_t weight_bytes);

/* The largest context (a multiple of the page size, at most the model's) that fits `available`
 * bytes with everything else as in `options`; 0: none does. */
int64_t plan_largest_context(const model_config *config, const plan_options *options,
                             uint64_t weight_bytes, uint64_t available);

#endif
