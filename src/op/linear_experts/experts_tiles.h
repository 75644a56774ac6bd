/* Parameters of linear_experts' kernels for many tokens (experts_tiles.cuh). */
#pragma once

#include <stdint.h>

enum {
    EXPERTS_TILE_THREADS = 256,
    EXPERTS_TILE_FEATURES = 128, /* rows of weights: of gate and up, half of them each */
    EXPERTS_TILE_DEPTH = 64,     /* columns at a time */
    EXPERTS_TILE_STAGES = 3,
    EXPERTS_GROUP_THREADS = 1024,
    EXPERTS_MOST = EXPERTS_GROUP_THREADS, /* experts of a layer */
};

/* Rows of x in a tile; expected rows of an expert up to which they are used. */
#define EXPERTS_TILE_ROWS(X) X(16, 12) X(64, 64) X(128, INT32_MAX)

/* Types with instances of their own; all others share one that branches on the type. */
#define EXPERTS_TILE_TYPES(X) X(BF16) X(Q4_K) X(Q6_K) X(MXFP4) X(COUNT)

#define EXPERTS_TILE_SHARED(rows)                                                                  \
    (EXPERTS_TILE_STAGES * ((rows) + EXPERTS_TILE_FEATURES) * EXPERTS_TILE_DEPTH * 2)

/* The choices of a call by expert, and tiles of up to so many choices of one expert. */
typedef struct experts_groups {
    int32_t *first;   /* [n_experts + 1]: where an expert's choices begin among those below */
    int32_t *choices; /* [n_tokens * top_k] */
    int32_t *tiles;   /* pairs: an expert, and the tile's first choice among those above */
    int32_t *n_tiles;
} experts_groups;

/* What groups are made from. */
typedef struct experts_grouping {
    experts_groups groups;
    const int32_t *ids;
    int64_t ids_pitch;
    int32_t n_choices, top_k, n_experts, rows; /* of x in a tile */
} experts_grouping;

/* Weights are gate and up, or down and none. Pitches are bytes of weights and biases, else
 * elements. */
typedef struct experts_tiles {
    experts_groups groups;
    const char *weight[2];
    int64_t expert_pitch[2], row_pitch[2];
    const void *bias[2]; /* NULL: none */
    int64_t bias_pitch[2];
    int32_t type[2], bias_type[2];
    const uint16_t *x; /* in BF16 */
    int64_t x_pitch;
    const float *shares; /* of down: factors of outputs; or NULL */
    int64_t shares_pitch;
    void *out; /* a row for each choice, in BF16 if `narrow` */
    int64_t out_token, out_choice;
    int32_t x_rows, top_k, n_columns, n_features, narrow;
    float alpha, limit, added;
} experts_tiles;

/* The sums over the choices of each token. */
typedef struct experts_sums {
    const float *parts; /* a row a choice */
    int64_t parts_pitch;
    const int32_t *ids;
    const float *residual; /* NULL: none */
    float *out;
    int64_t ids_pitch, residual_pitch, out_pitch;
    int32_t top_k, n_features;
} experts_sums;
