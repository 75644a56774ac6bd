/* Custom kernels for the machine `cuda`: rows like those of quipu's own kernels. A launch
 * list fuses no operator whose call such a kernel accepts. */
#pragma once

#include "op/cuda_ops.h"
#include "plan/program.h"

struct qp_cuda_kernel;

/* Fills the rows of all operators, [OP_COUNT], for cuda_ops.custom. QP_INVALID names an operator
 * that does not exist or is given twice, or a kernel without a launcher. */
qp_status custom_kernels_fill(cuda_kernel *table, const struct qp_cuda_kernel *kernels,
                              size_t n_kernels, qp_error *error);

/* QP_INVALID if a kernel has no call to run in the program, neither in its largest batch nor in one
 * of a single token. `table` may be NULL. */
qp_status custom_kernels_check(const cuda_kernel *table, const program *program, qp_error *error);
