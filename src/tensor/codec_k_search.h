/* The search for the scales of a block of 256; private to codec_k_encode*.c.
 *
 * The K formats choose scales on two levels: a float for each sub-block, then integers times the
 * block's F16. The search follows that order and minimises sum of w[i] * (x[i] - decoded[i])^2:
 *
 *   1. Each sub-block by itself: a row of candidate step sizes around (range / levels), each
 *      improved by least squares with its levels held, the best kept.
 *   2. The block: F16 factors from the largest scale and minimum; then for each sub-block the best
 *      integers near the quotients; then the factors by least squares with everything else held,
 *      as long as the error falls.
 *
 * w[i] = |x[i]| + the sub-block's root mean square: large weights matter more, but none is free;
 * with an importance matrix, times the value's share of the block's importance. Values are first
 * scaled by a power of two into [-1, 1], so that no square overflows or vanishes.
 */
#pragma once

#include "tensor/codec_blocks.h"
#include "tensor/float16.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    MAX_SUB = 32,   /* values in the largest sub-block */
    LANES = 8,      /* partial sums, so that compilers may use vector registers */
    MAX_REFITS = 4, /* least squares rounds over a block; the error settles in two or three */
};

/* What the levels of a sub-block mean: x = scale * k - min, k a whole number in [low, high], or one
 * of 16 levels. Q3_K, Q6_K and formats of levels have no min. */
typedef struct level_grid {
    int n; /* values in a sub-block, a multiple of LANES */
    float low, high;
    const int8_t *levels; /* [16], ascending; NULL: all whole numbers */
} level_grid;

/* A block's values in [-1, 1] and their weights; the true values are x * 2^exponent. */
typedef struct k_values {
    float x[BLOCK_K];
    float w[BLOCK_K];
    int exponent;
} k_values;

/* Weighted sums over a sub-block with its levels k. */
typedef struct moments {
    double w, k, kk, x, xk;
} moments;

typedef struct affine {
    float scale, min;
} affine;

/* x as a finite number. */
static inline float tame(float x)
{
    if (isnan(x)) return 0;
    return x > 0x1.fffffep127f ? 0x1.fffffep127f : x < -0x1.fffffep127f ? -0x1.fffffep127f : x;
}

static inline void weigh_by(const float *importance, k_values *values, int n)
{
    double sum = 0;
    for (int i = 0; importance && i < n; i++)
        sum += importance[i];
    if (!(sum > 0) || !isfinite(sum)) return;
    const double factor = n / sum;
    for (int i = 0; i < n; i++)
        values->w[i] *= (float)(importance[i] * factor + 1e-9);
}

static inline void weigh(k_values *values, int n)
{
    for (int begin = 0; begin < BLOCK_K; begin += n) {
        const float *x = values->x + begin;
        float squares = 0;
        for (int i = 0; i < n; i++)
            squares += x[i] * x[i];
        float root = sqrtf(squares / (float)n);
        for (int i = 0; i < n; i++)
            values->w[begin + i] = root + fabsf(x[i]);
    }
}

/* False when every value is below 2^-25, half of the smallest that an F16 scale gives: all are
 * zero then. */
static inline bool load(const float *src, const float *importance, int sub_block, k_values *values)
{
    float largest = 0;
    for (int i = 0; i < BLOCK_K; i++)
        largest = fmaxf(largest, fabsf(tame(src[i])));
    if (largest < 0x1p-25f) return false;
    frexpf(largest, &values->exponent);
    double factor = ldexp(1, -values->exponent);
    for (int i = 0; i < BLOCK_K; i++)
        values->x[i] = (float)(tame(src[i]) * factor);
    weigh(values, sub_block);
    weigh_by(importance, values, BLOCK_K);
    return true;
}

/* The same for a block of 32, which is the first sub-block of a block with zeros. */
static inline bool load_32(const float *src, const float *importance, k_values *values)
{
    float x[BLOCK_K] = {0}, weights[BLOCK_K] = {0};
    memcpy(x, src, BLOCK_32 * sizeof *x);
    if (importance) memcpy(weights, importance, BLOCK_32 * sizeof *weights);
    return load(x, importance ? weights : NULL, BLOCK_32, values);
}

/* The F16 nearest to the true value of x; finite, and 0 only if x is. */
static inline uint16_t half_of(float x, int exponent)
{
    double size = ldexp(fabs((double)x), exponent);
    if (size == 0) return 0;
    size = size < 0x1p-24 ? 0x1p-24 : size > 65504 ? 65504 : size;
    return f32_to_f16((float)(x < 0 ? -size : size));
}

static inline float scaled_half(uint16_t half, int exponent)
{
    return ldexpf(f16_to_f32(half), -exponent);
}

/* Nearest levels k[n] under (scale, min). */
static inline void choose_levels(const float *x, level_grid grid, affine fit, float *k)
{
    float inverse = fit.scale != 0 ? 1 / fit.scale : 0;
    if (!isfinite(inverse)) inverse = 0;
    for (int i = 0; grid.levels && i < grid.n; i++) {
        int nearest = 0;
        for (int j = 0; j < 15; j++)
            nearest += x[i] * inverse > 0.5f * (float)(grid.levels[j] + grid.levels[j + 1]);
        k[i] = (float)grid.levels[nearest];
    }
    if (grid.levels) return;
    float last = grid.high - grid.low, offset = 0.5f - grid.low;
    for (int i = 0; i < grid.n; i++) {
        float level = (x[i] + fit.min) * inverse + offset;
        level = level > 0 ? level : 0;
        level = level < last ? level : last;
        k[i] = (float)(int)level + grid.low;
    }
}

static inline float sum_lanes(const float *lanes)
{
    float sum = 0;
    for (int j = 0; j < LANES; j++)
        sum += lanes[j];
    return sum;
}

/* The weighted squared error with the nearest levels under (scale, min). */
static inline float error_of(const float *x, const float *w, level_grid grid, affine fit)
{
    float k[MAX_SUB], sums[LANES] = {0};
    choose_levels(x, grid, fit, k);
    for (int i = 0; i < grid.n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float miss = fit.scale * k[i + j] - fit.min - x[i + j];
            sums[j] += w[i + j] * miss * miss;
        }
    }
    return sum_lanes(sums);
}

static inline moments moments_of(const float *x, const float *w, level_grid grid, affine fit)
{
    float k[MAX_SUB];
    float sums[5][LANES] = {0};
    choose_levels(x, grid, fit, k);
    for (int i = 0; i < grid.n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float wk = w[i + j] * k[i + j];
            sums[0][j] += w[i + j];
            sums[1][j] += wk;
            sums[2][j] += wk * k[i + j];
            sums[3][j] += w[i + j] * x[i + j];
            sums[4][j] += wk * x[i + j];
        }
    }
    return (moments){sum_lanes(sums[0]), sum_lanes(sums[1]), sum_lanes(sums[2]), sum_lanes(sums[3]),
                     sum_lanes(sums[4])};
}

/* Least squares for x = a * u - b * v with b >= 0, from the weighted sums of products; only a if
 * the minimum lies at negative b. False when there is no solution. */
static inline bool solve(double uu, double uv, double vv, double xu, double xv, double *a,
                         double *b)
{
    double determinant = uu * vv - uv * uv;
    if (determinant > 0) {
        *a = (xu * vv - xv * uv) / determinant;
        *b = (xu * uv - xv * uu) / determinant;
        if (*b >= 0) return true;
    }
    *b = 0;
    if (!(uu > 0)) return false;
    *a = xu / uu;
    return true;
}
