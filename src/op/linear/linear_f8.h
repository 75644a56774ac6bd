/* Matrices in FP8 (F8_128) as the GPU multiplies them, on sm_90a: shared by host and kernels.
 *
 * F8_128 stores the scale of 128 numbers next to them. Tensor copies need the numbers of a row at a
 * distance that is a multiple of 16 bytes, so the GPU has such a matrix in panels of 128 rows,
 * which take the same number of bytes:
 *
 *     panel = 128 rows of in_features numbers | in_features / 128 times 128 scales, one a row
 *
 * A view of a matrix in panels has the type F8 and the strides of F8_128.
 *
 * Rows of x in FP8 are (n_rows, in_features). Their scales follow, (in_features / group, pitch): a
 * row of it for each group of columns. A group is what a kernel multiplies before it adds in
 * float32 registers, and what a block has of a row that it makes: F8_GROUP columns.
 */
#pragma once

#include "op/linear/linear_stream.h"

enum {
    F8_COLUMNS = 128,             /* of the weight that share a scale, and that a stage has */
    F8_ROWS = 128,                /* of a panel */
    F8_SCALES = F8_ROWS * 4,      /* bytes */
    F8_FEW = LINEAR_STREAM_MAX_X, /* rows of x that linear_f8_stream takes */
};

/* Bytes of a panel. */
#define F8_PANEL(columns)                                                                          \
    ((int64_t)F8_ROWS * (columns) + (int64_t)(columns) / F8_COLUMNS * F8_SCALES)

/* Of rows of x: columns that share a scale, and the pitch of scales. */
#define F8_GROUP(rows)   ((rows) <= F8_FEW ? 64 : 128)
#define F8_X_PITCH(rows) ((rows) <= F8_FEW ? (int64_t)F8_FEW : ((int64_t)(rows) + 255) / 256 * 256)

/* Bytes of x in FP8 without and with its scales. */
#define F8_X_NUMBERS(rows, columns) ((int64_t)(rows) * (columns))
#define F8_X_BYTES(rows, columns)                                                                  \
    (F8_X_NUMBERS(rows, columns) + F8_X_PITCH(rows) * ((columns) / F8_GROUP(rows)) * 4)

/* ---- many rows ----------------------------------------------------------------------------- */

/* A tile has 128 rows of x and one or two panels of the weight: two where that gives tiles enough,
 * because rows of x are then read half as often. */
enum {
    F8_WIDE_ROWS = 128,
    F8_WIDE_BLOCKS = 2, /* of a cluster, which have neighbouring rows of x and the same panels */
    F8_WIDE_THREADS = 384,
    F8_WIDE_OUT = F8_WIDE_ROWS * F8_COLUMNS, /* bytes of results to be stored */
    F8_WIDE_PLACES = F8_WIDE_ROWS * 16,      /* of rows' places in a cache */
};
#define F8_WIDE_STAGES(panels) ((panels) == 2 ? 4 : 6)
#define F8_WIDE_STAGE(panels)  ((F8_WIDE_ROWS + (panels)*F8_ROWS) * F8_COLUMNS)
#define F8_WIDE_SCALES(panels) ((1 + (panels)) * F8_SCALES) /* of x and of the panels */
#define F8_WIDE_SHARED(panels)                                                                     \
    (F8_WIDE_STAGES(panels) * (F8_WIDE_STAGE(panels) + F8_WIDE_SCALES(panels) + 24) +              \
     F8_WIDE_OUT + F8_WIDE_PLACES)

typedef struct linear_f8_wide {
    /* CUtensorMaps in pairs of bytes: x in boxes of 128 rows, the weight in boxes of 64 times the
     * panels of a tile, silu(gate) * up in FP8 in boxes of 64 rows; all of 128 columns. */
    char x_map[128] __attribute__((aligned(64)));
    char weight_map[128] __attribute__((aligned(64)));
    char out_map[128] __attribute__((aligned(64)));
    const float *x_scales; /* (n_steps, x_pitch) */
    const char *weight;    /* panels */
    float *out_scales;     /* with silu_and_mul: (features / 128, x_pitch) */
    float *out;            /* else: (n_rows, features), out_pitch floats from row to row */
    const float *residual; /* the same shape; may be out; or NULL */
    const void *bias;      /* (features), of bias_type; or NULL */
    int64_t x_pitch, out_pitch, residual_pitch, panel_bytes;
    int32_t n_rows;     /* of x */
    int32_t n_steps;    /* F8_COLUMNS of a row */
    int32_t features;   /* of out */
    int32_t row_tiles;  /* of a cluster's rows */
    int32_t tiles;      /* of a cluster, in all */
    int32_t panel_step; /* panels from one tile's first to the next tile's */
    int32_t second;     /* and to its own second */
    int32_t n_panels;   /* of the weight */
    int32_t bias_type;  /* of dtype */
} linear_f8_wide;

/* ---- few rows ------------------------------------------------------------------------------ */

typedef struct linear_f8_stream {
    linear_stream run; /* n_steps: F8_COLUMNS of a row; narrowed: of silu_and_mul, in FP8 */
    const char *weight;
    const float *x_scales; /* (2 n_steps, F8_FEW) */
    float *out_scales;     /* with silu_and_mul: (features / 64, F8_FEW) */
    int64_t panel_bytes;
    int32_t up_panels; /* panels from a gate's to its up's */
} linear_f8_stream;

#define F8_STREAM_STAGE(columns)  ((F8_ROWS + (columns)) * F8_COLUMNS)
#define F8_STREAM_SCALES(columns) (F8_SCALES + 2 * 4 * (columns)) /* of the weight and of x */
#define F8_STREAM_SHARED(columns, stages)                                                          \
    ((stages) * (F8_STREAM_STAGE(columns) + F8_STREAM_SCALES(columns)) +                           \
     LINEAR_STREAM_MAX_STAGES * 16 + 16)
