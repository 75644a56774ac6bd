/* Experts of gpt-oss in safetensors: one tensor for all experts of a layer, in one of two ways.
 *
 *     NAME           (n_experts, columns, rows)            BF16, F16 or F32: transposed
 *     NAME_blocks    (n_experts, rows, columns / 32, 16)   U8, with
 *     NAME_scales    (n_experts, rows, columns / 32)       U8: MXFP4
 *     NAME_bias      (n_experts, rows)
 *
 * gate and up are one tensor, whose rows are in turn a row of gate and one of up. The rest of the
 * program sees matrices of rows, those of all experts one after the other, in the stored type.
 */
#pragma once

#include "file/safetensors.h"

typedef struct joined_experts {
    dtype type;        /* MXFP4, or that of the plain tensor */
    const char *plain; /* NULL: blocks and scales */
    const uint8_t *blocks, *scales;
    int64_t n_experts, rows, columns; /* of a stored matrix: gate and up are one */
    int64_t step, first;              /* the matrix's rows are first, first + step, ... of these */
} joined_experts;

/* The tensors of that name, `step` matrices in turn of which the matrix is number `first`. Absent
 * tensors leave out->type DTYPE_COUNT; QP_FORMAT names those whose shape or type is another. */
qp_status joined_experts_find(const safetensors *file, const char *name, int64_t n_experts,
                              int64_t step, int64_t first, joined_experts *out, qp_error *error);

/* Rows [begin, begin + rows) of all experts' rows. */
void joined_experts_read(const joined_experts *experts, int64_t begin, int64_t rows, void *dst);
