/* What the files of the executor share. */
#ifndef QUIPU_VM_CUDA_EXECUTOR_PARTS_H
#define QUIPU_VM_CUDA_EXECUTOR_PARTS_H

#include "vm/cuda/executor.h"

#include <stdint.h>

/* Of one pass: its inputs as the batch has them, and its tokens. */
size_t cuda_executor_input_bytes(const program *plan);
size_t cuda_executor_token_bytes(const program *plan);

/* Where the inputs of pass `pass` of a group lie; a pass by itself is the first of the first.
 * Behind those of all groups lie the tokens of all passes. */
cuda_address cuda_executor_inputs(const cuda_executor *executor, int group, int pass);
void cuda_executor_place_inputs(cuda_executor *executor, const batch *batch, int group, int pass);

/* A pass begins: the sums that the last one has cleared are this one's. */
void cuda_executor_begin_pass(cuda_executor *executor);

void cuda_executor_free_lists(cuda_executor *executor);

/* The batch's angles, where it has some, into the RoPE table. */
qp_status cuda_executor_copy_angles(cuda_executor *executor, const batch *batch, qp_error *error);

#endif
