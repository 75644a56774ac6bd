/* linear for batches on sm_90a, limited by reading weights in BF16: declarations shared by host and
 * kernel.
 *
 * The kernel's only parameter is a linear_stream, passed by value. A block multiplies a tile of
 * LINEAR_STREAM_ROWS or LINEAR_STREAM_LOW_ROWS rows of the weight by all rows of x in BF16. The
 * tensor map defines which rows of the weight a tile has. Two rows that belong together (a gate and
 * its up) are eight apart in it, so that one thread has both.
 */
#pragma once

#include "quipu_kernel.h"

enum {
    LINEAR_STREAM_ROWS = 128,    /* rows of the weight in a tile */
    LINEAR_STREAM_LOW_ROWS = 64, /* and in a low tile */
    LINEAR_STREAM_DEPTH = 64,    /* columns of weight and x that are multiplied at a time */
    LINEAR_STREAM_THREADS = 288, /* two warpgroups that multiply, and a producer warp */
    LINEAR_STREAM_MAX_X = 64,    /* rows of x in a block */
    LINEAR_STREAM_MAX_RANKS = 8,
    LINEAR_STREAM_MAX_STAGES = 12,
};

/* The epilogue. */
typedef enum linear_stream_end {
    LINEAR_STREAM_PLAIN, /* out = sum + bias + residual */
    LINEAR_STREAM_SILU,  /* narrowed = silu(gate) * up */
} linear_stream_end;

typedef struct linear_stream {
    /* CUtensorMaps: of the weight, five dimensions, and of x in BF16, two. */
    char weight_map[128] __attribute__((aligned(64)));
    char x_map[128] __attribute__((aligned(64)));
    float *out;            /* (n_rows, features), `out_pitch` floats from row to row */
    const float *residual; /* the same shape; may be out; or NULL */
    const void *bias;      /* (features), of bias_type; or NULL */
    uint16_t *narrowed;    /* (n_rows, features), contiguous; LINEAR_STREAM_SILU */
    int64_t out_pitch, residual_pitch;
    int64_t begin, end; /* features */
    int32_t n_rows;     /* of x */
    int32_t n_steps;    /* LINEAR_STREAM_DEPTHs of a row */
    /* Blocks of a cluster that share a tile: each has a part of its rows, and sums are added in the
     * order of ranks. */
    int32_t ranks;
    int32_t stages;           /* in shared memory */
    int32_t end_kind;         /* linear_stream_end */
    int32_t weight_dimension; /* the dimension of the map that tiles count in */
    int32_t weight_step;      /* and by how much */
    int32_t tile_rows;        /* of the weight */
    int32_t bias_type;        /* of dtype */
    int32_t vectors;          /* rows of out and of residual begin at multiples of 16 bytes */
} linear_stream;

/* Columns of x's tile for n rows of x. */
#define LINEAR_STREAM_COLUMNS(n) ((n) <= 16 ? 16 : (n) <= 32 ? 32 : 64)

/* Bytes of dynamic shared memory: stages, which sums overwrite at the end, and mbarriers. */
#define LINEAR_STREAM_STAGE(columns) ((LINEAR_STREAM_ROWS + (columns)) * LINEAR_STREAM_DEPTH * 2)
#define LINEAR_STREAM_SUMS(columns)  (LINEAR_STREAM_ROWS * (columns)*4)
#define LINEAR_STREAM_SHARED(columns, stages)                                                      \
    ((stages)*LINEAR_STREAM_STAGE(columns) + LINEAR_STREAM_MAX_STAGES * 16 + 16)
