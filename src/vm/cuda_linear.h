/* The three ways of linear on the GPU: for cuda_ops.c's table. */
#ifndef QUIPU_VM_CUDA_LINEAR_H
#define QUIPU_VM_CUDA_LINEAR_H

#include "vm/cuda_ops.h"

/* Few rows of x: the weight is read once for up to eight of them. */
bool cuda_linear_few_accepts(const op_call *call);
qp_status cuda_linear_few(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                          qp_error *error);

/* Any number of rows, on the tensor cores with 16 bits of every factor. */
qp_status cuda_linear_tiles(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            qp_error *error);

/* Many rows, by cuBLASLt: x and weights that are not BF16 are rounded to it. */
bool cuda_linear_blas_accepts(const op_call *call);
bool cuda_linear_blas_pays(const op_call *call);
size_t cuda_linear_blas_workspace(const op_call *call);
extern const op_tolerance cuda_linear_blas_tolerances[];
qp_status cuda_linear_blas(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                           qp_error *error);

/* Where cuBLASLt's products look for x in BF16. */
cuda_address cuda_linear_narrowed(const cuda_ops *ops);

/* Launches a kernel on a grid; one without blocks is left out. */
qp_status cuda_ops_launch_grid(cuda_ops *ops, cuda_function function, const char *name,
                               unsigned grid_x, unsigned grid_y, unsigned threads, void **arguments,
                               qp_error *error);

#endif
