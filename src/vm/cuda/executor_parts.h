/* What the files of the executor share. */
#pragma once

#include "vm/cuda/executor.h"

#include <stdint.h>

/* Bytes of one pass's inputs, in the batch's layout, and of its tokens. */
size_t cuda_executor_input_bytes(const program *program);
size_t cuda_executor_token_bytes(const program *program);

/* The address of the inputs of pass `pass` of a group; a single pass uses those of the
 * first pass of the first group. The tokens of all passes follow the inputs of all groups. */
cuda_address cuda_executor_inputs(const cuda_executor *executor, int group, int pass);
void cuda_executor_place_inputs(cuda_executor *executor, const batch *batch, int group, int pass);

/* Begins a pass: it uses the sums that the last pass cleared. */
void cuda_executor_begin_pass(cuda_executor *executor);

void cuda_executor_free_lists(cuda_executor *executor);

/* Puts the launches of an entry of a list that was run before into the stream. */
qp_status cuda_executor_run_entry(const cuda_executor *executor, const launch_list *list,
                                  const launch_entry *entry, qp_error *error);

/* Puts the copy of masks that have changed, if any, into the stream. */
qp_status cuda_executor_send_masks(cuda_executor *executor, qp_error *error);

/* Copies the batch's angles, if it has any, to the RoPE table. */
qp_status cuda_executor_copy_angles(cuda_executor *executor, const batch *batch, qp_error *error);
