/* What linear's kernels for up to eight rows are told (linear_eight.cuh). */
#ifndef QUIPU_OP_LINEAR_EIGHT_H
#define QUIPU_OP_LINEAR_EIGHT_H

#include <stdint.h>

enum {
    LINEAR_EIGHT_ROWS = 8,
    LINEAR_EIGHT_FEATURES = 16, /* rows of the weight in a tile */
    LINEAR_EIGHT_COLUMNS = 128, /* of a step */
    LINEAR_EIGHT_BLOCK = 32,    /* in_features are a multiple of it */
    LINEAR_EIGHT_WARPS = 16,
    LINEAR_EIGHT_SUM_PITCH = 20, /* floats from row to row of a tile's sums: no bank conflicts */
};

/* Of a step's rows in shared memory: bytes from row to row, so that those that eight lanes read at
 * once meet no bank twice; steps that are under way in each warp; tiles that it multiplies by the
 * x that it has in registers. */
#define LINEAR_EIGHT_FORMATS(X)                                                                    \
    X(F16, 288, 2, 4)                                                                              \
    X(BF16, 288, 2, 4)                                                                             \
    X(Q8_0, 160, 3, 8)                                                                             \
    X(Q4_0, 112, 5, 8)                                                                             \
    X(Q4_1, 112, 5, 8)                                                                             \
    X(Q4_K, 80, 6, 8)                                                                              \
    X(Q6_K, 240, 2, 8)

#define LINEAR_EIGHT_SHARED(pitch, stages, tiles)                                                  \
    (LINEAR_EIGHT_WARPS * ((tiles)*LINEAR_EIGHT_ROWS * LINEAR_EIGHT_SUM_PITCH * 4 +                \
                           (stages)*LINEAR_EIGHT_FEATURES * (pitch)))

/* A tile is 16 rows of the weight in a row, or, where gate and up make an activation, eight of each
 * for eight outputs. */
typedef struct linear_eight {
    const char *weight; /* row 0 */
    const float *x, *residual;
    const void *bias; /* NULL, as residual: none */
    float *out;
    int64_t weight_pitch, row_bytes; /* bytes */
    int64_t below;                   /* bytes from a tile's first eight rows to the others */
    int64_t x_pitch, residual_pitch, out_pitch; /* elements */
    int32_t n_rows, n_columns;
    int32_t begin, end; /* outputs */
    int32_t last_tile;  /* no tile begins behind this row of the weight */
    int32_t bias_type, activates;
    int32_t number_base; /* 0x43004300: as a constant it would cost an instruction each time */
} linear_eight;

#endif
