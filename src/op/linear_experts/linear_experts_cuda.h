/* linear_experts on the GPU: what the launchers of its kernels share.
 *
 * Few tokens read the weights of their experts at the speed of memory (experts_few.cuh). More are
 * grouped by expert and multiplied in tiles on the tensor cores (experts_tiles.cuh). Any other call
 * runs a warp for each output (experts_plain.cu).
 */
#pragma once

#include "op/cuda_ops.h"

enum { CUDA_EXPERTS_STATIC = 2048 }; /* at least the kernels' static shared memory */

/* Whether a call is gate and up with their activation, only products, or their sums; and all but
 * its weights, biases and ids is in F32. */
bool cuda_experts_in_f32(const op_call *call);

/* Whether calls are both halves of a mixture's network, each whole, the second of the first one's
 * output. */
bool cuda_experts_are_both(const op_call *calls);

/* ---- few tokens ---------------------------------------------------------------------------- */

bool cuda_experts_few_accepts(const op_call *call);
bool cuda_experts_few_pays(const cuda_ops *ops, const op_call *call);
qp_status cuda_experts_few(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                           const cuda_forms *forms, qp_error *error);

/* Both halves: the second one's weights are copied while the first one's last blocks run. */
bool cuda_experts_few_both_accepts(const cuda_ops *ops, const op_call *calls);
qp_status cuda_experts_few_both(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                qp_error *error);

/* ---- many tokens --------------------------------------------------------------------------- */

bool cuda_experts_tiles_accepts(const op_call *call);
bool cuda_experts_tiles_pays(const cuda_ops *ops, const op_call *call);
size_t cuda_experts_tiles_workspace(const op_call *call);
qp_status cuda_experts_tiles(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                             const cuda_forms *forms, qp_error *error);

/* Both halves: choices are grouped once, and what is between them is only stored in BF16. */
bool cuda_experts_tiles_both_accepts(const cuda_ops *ops, const op_call *calls);
qp_status cuda_experts_tiles_both(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                  qp_error *error);
extern const op_tolerance cuda_experts_tolerances[];
