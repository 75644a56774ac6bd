/* Shared by the references of operators that begin with a norm: rows normalised into float64, and
 * matrix products with them, by the references of rms_norm and linear. */
#pragma once

#include "op/op.h"

enum { FUSED_ROWS = 16 }; /* rows that are normalised at a time */

typedef struct fused_norm {
    const tensor *x;      /* (n_rows, hidden_size); I64: in fixed point (fixed.h) */
    const tensor *weight; /* (hidden_size) */
    double eps;
    tensor rows;   /* F64 (FUSED_ROWS, hidden_size) */
    void *scratch; /* of linear */
} fused_norm;

/* Bytes of scratch for rows of this many elements. */
size_t fused_norm_bytes(int64_t hidden_size);
fused_norm fused_norm_make(const tensor *x, const tensor *weight, double eps, void *scratch);

/* Normalises rows [first, first + count) of x, count <= FUSED_ROWS; with `which` not NULL, the rows
 * which[first .. first + count). */
void fused_norm_rows(const fused_norm *norm, int64_t first, int64_t count, const int32_t *which);

/* out (count, end - begin) = the normalised rows' product with rows [begin, end) of a weight, plus
 * their bias, which may be absent. */
void fused_norm_project(const fused_norm *norm, int64_t count, const tensor *weight,
                        const tensor *bias, int64_t begin, int64_t end, tensor out);

/* linear's check of one weight. */
qp_status fused_check_weight(const tensor *x, const tensor *weight, qp_error *error);
