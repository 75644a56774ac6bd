/* linear with matrices in FP8 by cuBLASLt: where all elements of a row share a scale, of the matrix
 * and of x (linear_f8_rows.h). */
#pragma once

#include "op/cuda_ops.h"
#include "op/linear/linear_f8_rows.h"

/* Whether a matrix of F8_128 of this shape may be kept so. */
bool cuda_f8_rows_can(int64_t rows, int64_t columns);

/* Stores a matrix of F8_128 so. Where the blocks of a row have different scales, which a model's
 * matrices that are kept so do not, its numbers are rounded again, for the largest of them. */
qp_status cuda_f8_rows_arrange(cuda_ops *ops, const tensor *from, cuda_address to,
                               cuda_address scales, qp_error *error);

/* Whether a view of FP8 is such a matrix, in place of one in panels (linear_f8_cuda.h); the address
 * of its scales. */
static inline bool cuda_f8_has_rows(const tensor *view)
{
    return view->type == DTYPE_F8 && view->stride[2] != 0;
}
static inline cuda_address cuda_f8_row_scales(const tensor *view)
{
    return cuda_device_form(view->data) + (cuda_address)view->stride[2];
}

/* Of x in FP8. A row of x may be many times as large as the others, and its rounding errors too. */
extern const op_tolerance cuda_f8_rows_tolerances[];

bool cuda_f8_rows_accepts(const op_call *call);
bool cuda_f8_rows_pays(const cuda_ops *ops, const op_call *call);
size_t cuda_f8_rows_workspace(const op_call *call);
qp_status cuda_f8_rows(cuda_ops *ops, const cuda_kernel *kernel, const op_call *call,
                       const cuda_forms *forms, qp_error *error);

/* With silu_and_mul: gate and up are in BF16 in the memory of the product's output, and silu(gate)
 * * up in FP8 after them. */
bool cuda_f8_rows_activates(const cuda_ops *ops, const op_call *calls);
cuda_left cuda_f8_rows_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x);
qp_status cuda_f8_rows_silu(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                            qp_error *error);

/* With rope and kv_append: q, k and v are in BF16 in the memory of the product's output, where then
 * rotated q is in the type of the cache. */
bool cuda_f8_rows_turns(const cuda_ops *ops, const op_call *calls);
cuda_left cuda_f8_rows_rope_leaves(const cuda_ops *ops, const op_call *calls, cuda_address x);
qp_status cuda_f8_rows_rope(cuda_ops *ops, const op_call *calls, const cuda_forms *forms,
                            qp_error *error);
