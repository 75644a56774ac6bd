/* A product of many rows whose partial sums ranks add, and the norm of the sum. */
#pragma once

#include "op/cuda_ops.h"

/* As functions of a fusion with all_reduce and rms_norm (cuda_fusion). */
bool cuda_linear_summed_accepts(const cuda_ops *ops, const op_call *calls);
cuda_left cuda_linear_summed_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x);
qp_status cuda_linear_summed(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                             qp_error *error);

/* After that each rank has only its own rows of x. This sends all rows to all ranks, or those that
 * `ids` names, if it is not NULL. */
qp_status cuda_linear_summed_rows(cuda_ops *ops, const tensor *x, const tensor *ids,
                                  const tensor *out, qp_error *error);
