/* Parameters of linear_experts' kernels for few tokens (experts_few.cuh). */
#pragma once

#include "op/linear/linear_eight.h"

enum {
    EXPERTS_WARPS = 12,
    EXPERTS_TEAM = 4, /* warps that share the steps of a tile of gate and up; of down all do,
                         because a block has only one or two */
    EXPERTS_FEATURES = LINEAR_EIGHT_FEATURES, /* rows of weights in a tile; of gate and up, half of
                                                 them each */
    EXPERTS_GROUP = 6,                        /* tiles of a team between two exchanges of sums */
    EXPERTS_MOST_CHOICES = 64,                /* of a token */
    EXPERTS_STEP_BYTES = 768, /* of x in three parts of 16 bits, for a step's 128 columns */
    EXPERTS_SUM_BYTES = 16,   /* and the sums of its blocks of 32 */
};

/* Of a step's rows in shared memory: bytes from row to row, as in LINEAR_EIGHT_FORMATS; steps in
 * flight for each warp. */
#define EXPERTS_FORMATS(X)                                                                         \
    X(F16, 288, 2)                                                                                 \
    X(BF16, 288, 2)                                                                                \
    X(Q8_0, 160, 3)                                                                                \
    X(Q4_0, 112, 4)                                                                                \
    X(Q4_K, 80, 5)                                                                                 \
    X(Q6_K, 240, 2)                                                                                \
    X(MXFP4, 96, 3)

/* Dynamic shared memory: rings of all warps, their sums, and x (rows, steps). */
#define EXPERTS_RING(pitch, stages) (EXPERTS_WARPS * (stages)*EXPERTS_FEATURES * (pitch))
#define EXPERTS_SUMS                (EXPERTS_WARPS * EXPERTS_GROUP * EXPERTS_FEATURES * 4)
#define EXPERTS_SHARED(pitch, stages, x_steps)                                                     \
    (EXPERTS_RING(pitch, stages) + EXPERTS_SUMS +                                                  \
     (x_steps) * (EXPERTS_STEP_BYTES + EXPERTS_SUM_BYTES))

/* Weights are gate and up, or down and none; row 0 of expert 0. Pitches are bytes of weights and
 * biases, else elements. */
typedef struct experts_few {
    const char *weight[2];
    uint32_t expert_pitch[2], row_pitch[2]; /* all experts take less than 4 GiB */
    const void *bias[2];                    /* NULL: none */
    int64_t bias_pitch[2];
    const float *x, *shares, *residual; /* residual NULL: none; shares NULL of gate and up */
    const int32_t *ids;
    float *out;
    int64_t x_token, x_choice, ids_pitch, shares_pitch, residual_pitch, out_token, out_choice;
    int32_t bias_type[2];
    int32_t top_k, x_rows; /* of a token: 1, or one a choice */
    int32_t n_columns, row_bytes, n_features;
    int32_t begin, end, tiles; /* outputs that are wanted, and tiles for them, of each expert or
                                * of all together */
    int32_t n_steps;           /* of a row of weights */
    int32_t number_base;       /* as in linear_eight */
    int32_t early; /* the kernel before waited for ids before it let this one start, so weights may
                    * be copied before it has ended */
    float alpha, limit, added;
} experts_few;
