/* linear on the GPU: what its kernels' launchers share, and their rows' functions.
 *
 * Few rows in two ways (linear_few, linear_eight), batches (linear_stream), tiles, and many rows by
 * cuBLASLt or, with what follows them, by linear_wide.
 */
#ifndef QUIPU_OP_LINEAR_CUDA_H
#define QUIPU_OP_LINEAR_CUDA_H

#include "op/cuda_ops.h"

/* Rows of x from which on it pays to decode weights that are not BF16 before the product. */
enum { CUDA_LINEAR_MANY_ROWS = 64 };

/* Any number of rows, on the tensor cores with 16 bits of every factor. */
qp_status cuda_linear_tiles(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error);

/* Those of products that round x to BF16. */
extern const op_tolerance cuda_linear_narrowed_tolerances[];

/* Whether `silu` is the silu_and_mul of product `call`, both whole, to float32, and nothing else is
 * added to the product. */
bool cuda_linear_is_activated(const op_call *call, const op_call *silu);

/* Where x is in BF16, made there if it is not yet. */
qp_status cuda_linear_narrowed_x(cuda_ops *ops, const op_call *call, const cuda_forms *forms,
                                 cuda_address *at, qp_error *error);

#endif
