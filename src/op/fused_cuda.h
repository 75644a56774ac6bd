/* Fused operators that multiply on the GPU: how their kernels are launched. */
#ifndef QUIPU_OP_FUSED_CUDA_H
#define QUIPU_OP_FUSED_CUDA_H

#include "op/cuda_ops.h"
#include "op/variants.h"

enum {
    CUDA_FUSED_THREADS = 256,
    CUDA_FUSED_MANY = 4, /* rows of the kernels for several */
};

/* Fields of a row; `unit_count` units per block, 0: one warp per unit, one group after another. */
#define CUDA_FUSED_ROWS(NAME, short_name, unit_count, accept)                                      \
    .op = OP_##NAME, .name = "cuda", .image = "cuda_fused", .function = "run_" #short_name,        \
    .units = unit_count, .accepts = accept, .launch = cuda_fused_rows

/* Blocks for one row, or for several at a time. The call's last tensor is the output, one row for
 * each row of x. */
qp_status cuda_fused_rows(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          const cuda_forms *forms, qp_error *error);

/* The same; `alone`: always one row at a time. */
qp_status cuda_fused_launch(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            bool alone, qp_error *error);

#endif
