/* Matrices in FP8 with a scale a row, and rows of x in FP8 with a scale a row: what cuBLASLt
 * multiplies (linear_f8_rows_cuda.h). Shared by host and kernels.
 *
 * The numbers of a matrix are rows without gaps; its scales, in F32, are elsewhere, so that those
 * of matrices that are merged are next to each other as well. A view of it has the type F8, and
 * stride[2] is the distance in bytes from its numbers to its scales.
 *
 * Rows of x are (n_rows, in_features), then their scales, (n_rows).
 */
#pragma once

#include "op/portable.h"

enum {
    F8_ROWS_FOLD = 16,           /* rows of a matrix are a multiple of this */
    F8_ROWS_MOST_THREADS = 1024, /* of a block, which has a row; */
    F8_ROWS_SHORT = 1,           /* a thread has so many eights of neighbours */
    F8_ROWS_LONG = 4,            /* in longer rows */
    F8_ROWS_MOST = F8_ROWS_MOST_THREADS * F8_ROWS_LONG * 8, /* elements of a row of x */
};
