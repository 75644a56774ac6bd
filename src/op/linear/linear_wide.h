/* Products of many rows with their epilogues, on sm_90a: declarations shared by host and kernels.
 *
 * A block has a tile of LINEAR_WIDE_ROWS rows of x and LINEAR_WIDE_FEATURES rows of the weight. The
 * two blocks of a cluster have the same rows of the weight and share the copies of them. With
 * silu_and_mul half of a tile's features are gates and half are their ups; with rope and kv_append
 * they are whole heads of q, k and v.
 */
#pragma once

#include "quipu_kernel.h"

enum {
    LINEAR_WIDE_ROWS = 128,     /* rows of x in a tile */
    LINEAR_WIDE_FEATURES = 256, /* rows of the weight in a tile, */
    LINEAR_WIDE_NARROW = 192,   /* or in a narrow one, where turns are then fuller */
    LINEAR_WIDE_DEPTH = 64,     /* columns of both that are multiplied at a time */
    LINEAR_WIDE_BLOCKS = 2,     /* of a cluster */
    LINEAR_WIDE_THREADS = 384,  /* a warpgroup that copies, two that multiply 64 rows each */
    LINEAR_WIDE_STAGES = 4,
    /* Bytes of shared memory: a stage; results to be stored; rows' places in a cache. */
    LINEAR_WIDE_STAGE = (LINEAR_WIDE_ROWS + LINEAR_WIDE_FEATURES) * LINEAR_WIDE_DEPTH * 2,
    LINEAR_WIDE_OUT = LINEAR_WIDE_ROWS * LINEAR_WIDE_FEATURES,
    LINEAR_WIDE_PLACES = LINEAR_WIDE_ROWS * 16,
    LINEAR_WIDE_SHARED =
        LINEAR_WIDE_STAGES * LINEAR_WIDE_STAGE + LINEAR_WIDE_OUT + LINEAR_WIDE_PLACES + 128,
};

typedef struct linear_wide {
    /* CUtensorMaps of BF16 with boxes of 64 columns: x in 128 rows, the weight in 128, and
     * silu(gate) * up in 64. */
    char x_map[128] __attribute__((aligned(64)));
    char weight_map[128] __attribute__((aligned(64)));
    char out_map[128] __attribute__((aligned(64)));
    int32_t n_rows;       /* of x */
    int32_t n_steps;      /* LINEAR_WIDE_DEPTHs of a row */
    int32_t row_tiles;    /* of a cluster's rows */
    int32_t tiles;        /* of a cluster, in all */
    int32_t feature_step; /* rows of the weight from one tile's first half to the next tile's */
    int32_t half_step;    /* and to its own second half */
} linear_wide;

/* Where the likeliest feature of each row of x goes. */
typedef struct wide_likeliest {
    uint64_t *best;     /* (n_rows), zeros before and after each launch */
    uint32_t *ended;    /* blocks that have ended; zero likewise */
    int32_t *ids;       /* (n_rows) */
    int32_t n_features; /* of the weight */
} wide_likeliest;
