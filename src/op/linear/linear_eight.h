/* Parameters of linear's kernels for up to eight rows (linear_eight.cuh). */
#pragma once

#include "op/linear/linear_sizes.h"

#include <stdint.h>

enum {
    LINEAR_EIGHT_ROWS = LINEAR_FEW_ROWS,
    LINEAR_EIGHT_FEATURES = 16, /* rows of the weight in a tile */
    LINEAR_EIGHT_COLUMNS = 128, /* columns of a step */
    LINEAR_EIGHT_BLOCK = 32,    /* in_features must be a multiple of this */
    LINEAR_EIGHT_WARPS = 16,
};

/* Of a step's rows in shared memory: bytes from row to row, without bank conflicts among the rows
 * that eight lanes read at once; steps in flight per warp; tiles that it multiplies by the x in its
 * registers. */
#define LINEAR_EIGHT_FORMATS(X)                                                                    \
    X(F16, 288, 2, 4)                                                                              \
    X(BF16, 288, 2, 4)                                                                             \
    X(Q8_0, 160, 3, 12)                                                                            \
    X(Q4_0, 112, 4, 14)                                                                            \
    X(Q4_1, 112, 4, 14)                                                                            \
    X(Q4_K, 80, 5, 14)                                                                             \
    X(Q6_K, 240, 2, 12)

#define LINEAR_EIGHT_SHARED(pitch, stages, tiles)                                                  \
    (LINEAR_EIGHT_WARPS * ((tiles)*LINEAR_EIGHT_ROWS * LINEAR_EIGHT_FEATURES * 4 +                 \
                           (stages)*LINEAR_EIGHT_FEATURES * (pitch)))

/* A tile is 16 neighbouring rows of the weight; or, with silu_and_mul, eight of gate and eight of
 * up for eight outputs. */
typedef struct linear_eight {
    const char *weight; /* row 0 */
    const float *x, *residual;
    const void *bias; /* NULL, like residual: none */
    float *out;
    int64_t weight_pitch, row_bytes; /* bytes */
    int64_t below;                   /* bytes from a tile's first eight rows to the others */
    int64_t tile_pitch;              /* bytes from tile to tile */
    int64_t x_pitch, residual_pitch, out_pitch; /* elements */
    int32_t n_rows, n_columns;
    int32_t begin, tiles; /* the first tile's first row of the weight, and first output */
    int32_t first, end;   /* the outputs that are wanted, among those of the tiles */
    int32_t bias_type, activates;
    int32_t number_base; /* 0x43004300; as a constant it would cost an instruction at each use */
    int32_t zero;
} linear_eight;
