/* Three ways of linear on the GPU, for cuda_ops.c's table; others are cuda_linear_eight.h's and
 * cuda_linear_stream.h's. */
#ifndef QUIPU_VM_CUDA_LINEAR_H
#define QUIPU_VM_CUDA_LINEAR_H

#include "vm/cuda_ops.h"

/* Rows of x from which on it pays to decode weights that are not BF16 before the product. */
enum { CUDA_LINEAR_MANY_ROWS = 64 };

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

/* Where kernels that narrow leave x in BF16 for products; and the other place, for a product that
 * leaves the next one's x there while its own is read. */
cuda_address cuda_linear_narrowed(const cuda_ops *ops);
cuda_address cuda_linear_other_narrowed(const cuda_ops *ops, cuda_address at);

/* Whether `silu` is the silu_and_mul of product `call`, both whole, to float32, and nothing else is
 * added to the product. */
bool cuda_linear_is_activated(const op_call *call, const op_call *silu);

/* Finds x in BF16, or makes it; it lies at `*at`. */
qp_status cuda_linear_narrow_x(cuda_ops *ops, const tensor *x, cuda_address *at, qp_error *error);

/* Launches a kernel on a grid; one without blocks is left out. */
qp_status cuda_ops_launch_grid(cuda_ops *ops, cuda_function function, const char *name,
                               unsigned grid_x, unsigned grid_y, unsigned threads, void **arguments,
                               qp_error *error);

/* The same, but blocks may come before the kernel before has ended (programmatic dependent launch):
 * for kernels that wait for it themselves, device_wait_for_last(), before they write anything or
 * read what another kernel of the pass writes. */
qp_status cuda_ops_launch_early(cuda_ops *ops, cuda_function function, const char *name,
                                unsigned grid_x, unsigned grid_y, unsigned threads,
                                void **arguments, qp_error *error);

/* The same with the grid, the block and the shared memory that `launch` has, early in clusters of
 * so many blocks; or, with a `cluster` of 0, in turn. */
qp_status cuda_ops_launch_with(cuda_ops *ops, cuda_function function, const char *name,
                               cuda_launch launch, unsigned cluster, void **arguments,
                               qp_error *error);

/* The kernel `name` of an image, which has that place among the helpers, found when it is first
 * wanted; `shared_bytes` as cuda_device_function() has them. */
qp_status cuda_ops_find_helper_of(cuda_ops *ops, int helper, const char *image, const char *name,
                                  int shared_bytes, cuda_function *out, qp_error *error);

/* The same of cuda_ops.cu. */
qp_status cuda_ops_find_helper(cuda_ops *ops, int helper, const char *name, cuda_function *out,
                               qp_error *error);

#endif
