/* linear for up to eight rows by the tensor cores (linear_eight.cuh), for linear_cuda.c's table. */
#pragma once

#include "op/cuda_ops.h"

/* Whether blocks lie at any multiple of two bytes; else the kernel takes rows at multiples of 16.
 */
bool cuda_linear_eight_in_words(dtype type);

/* Any number of rows, eight at a time; the weight is read once for each eight. */
bool cuda_linear_eight_accepts(const op_call *call);
bool cuda_linear_eight_pays(const cuda_ops *ops, const op_call *call);
qp_status cuda_linear_eight(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                            const cuda_forms *forms, qp_error *error);

/* Whether the kernel can also compute the activation calls[1] of the product calls[0] of gate and
 * up; then cuda_linear_eight_silu() does so, and the product itself is not stored. */
bool cuda_linear_eight_activates(const cuda_ops *ops, const op_call *calls);
qp_status cuda_linear_eight_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                                 qp_error *error);
