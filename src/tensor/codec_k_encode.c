/* Encoding of Q4_K, Q6_K and Q8_K (drawn in codec_blocks.h).
 *
 * Q4_K and Q6_K choose scales on two levels: a float for each sub-block, then integers times the
 * block's F16. The search follows that order and minimises sum of w[i] * (x[i] - decoded[i])^2:
 *
 *   1. Each sub-block alone: a row of candidate step sizes around (range / levels), each improved
 *      by least squares with its levels held, the best kept.
 *   2. The block: F16 factors from the largest scale and minimum; then for each sub-block the best
 *      integers near the quotients; then the factors by least squares with everything else held,
 *      as long as the error falls.
 *
 * w[i] = |x[i]| + the sub-block's root mean square: large weights matter more, but none is free.
 * Values are first scaled by a power of two into [-1, 1], so that no square overflows or vanishes.
 */
#include "tensor/codec_blocks.h"
#include "tensor/codec_k.h"
#include "tensor/float16.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    MAX_SUB = 32,    /* values in the largest sub-block */
    LANES = 8,       /* partial sums, so that compilers may use vector registers */
    MAX_REFITS = 4,  /* least squares rounds over a block; the error settles in two or three */
    Q6_K_ZERO = 32,  /* the level that stands for 0 in Q6_K */
    Q4_K_SCALE = 63, /* the largest integer scale and minimum of Q4_K */
};

/* How a sub-block's levels stand for values: x = scale * k - min, k a whole number in [low, high].
 * Q6_K has no min. */
typedef struct level_grid {
    int n; /* values in a sub-block, a multiple of LANES */
    float low, high;
} level_grid;

static const level_grid q4_grid = {32, 0, 15};
static const level_grid q6_grid = {16, -Q6_K_ZERO, 63 - Q6_K_ZERO};

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
static float tame(float x)
{
    if (isnan(x)) return 0;
    return x > 0x1.fffffep127f ? 0x1.fffffep127f : x < -0x1.fffffep127f ? -0x1.fffffep127f : x;
}

static void weigh(k_values *values, int n)
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
static bool load(const float *src, int sub_block, k_values *values)
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
    return true;
}

/* The F16 nearest to the true value of x; not 0 unless x is, and finite. */
static uint16_t half_of(float x, int exponent)
{
    double size = ldexp(fabs((double)x), exponent);
    if (size == 0) return 0;
    size = size < 0x1p-24 ? 0x1p-24 : size > 65504 ? 65504 : size;
    return f32_to_f16((float)(x < 0 ? -size : size));
}

static float scaled_half(uint16_t half, int exponent)
{
    return ldexpf(f16_to_f32(half), -exponent);
}

/* Nearest levels k[n] under (scale, min). */
static void choose_levels(const float *x, level_grid grid, affine fit, float *k)
{
    float inverse = fit.scale != 0 ? 1 / fit.scale : 0;
    if (!isfinite(inverse)) inverse = 0;
    float last = grid.high - grid.low, offset = 0.5f - grid.low;
    for (int i = 0; i < grid.n; i++) {
        float level = (x[i] + fit.min) * inverse + offset;
        level = level > 0 ? level : 0;
        level = level < last ? level : last;
        k[i] = (float)(int)level + grid.low;
    }
}

static float sum_lanes(const float *lanes)
{
    float sum = 0;
    for (int j = 0; j < LANES; j++)
        sum += lanes[j];
    return sum;
}

/* The weighted squared error with the nearest levels under (scale, min). */
static float error_of(const float *x, const float *w, level_grid grid, affine fit)
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

static moments moments_of(const float *x, const float *w, level_grid grid, affine fit)
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

/* Least squares for x = a * u - b * v with b >= 0, from the weighted sums of products; a alone
 * where the minimum lies at negative b. False when there is nothing to solve. */
static bool solve(double uu, double uv, double vv, double xu, double xv, double *a, double *b)
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

/* ---- Q4_K ------------------------------------------------------------------------------------ */

static affine fit_q4_sub_block(const float *x, const float *w)
{
    float low = 0, high = x[0]; /* a minimum is stored as a positive number to subtract */
    for (int i = 0; i < q4_grid.n; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    affine best = {(high - low) / q4_grid.high, -low};
    if (!(high > low)) return best;
    float least = error_of(x, w, q4_grid, best);
    for (int step = -10; step <= 10; step++) {
        affine guess = {(high - low) / (q4_grid.high + 0.1f * (float)step), -low};
        moments m = moments_of(x, w, q4_grid, guess);
        double scale, min;
        if (!solve(m.kk, m.k, m.w, m.xk, m.x, &scale, &min) || !(scale > 0)) continue;
        affine fit = {(float)scale, (float)min};
        float error = error_of(x, w, q4_grid, fit);
        if (error < least) {
            least = error;
            best = fit;
        }
    }
    return best;
}

/* What is stored, but for the levels. */
typedef struct q4_k_choice {
    uint16_t d, dmin;
    uint8_t scales[BLOCK_K / 32], mins[BLOCK_K / 32];
    double error;
} q4_k_choice;

static affine q4_k_affine(const q4_k_choice *choice, int exponent, int j)
{
    return (affine){scaled_half(choice->d, exponent) * (float)choice->scales[j],
                    scaled_half(choice->dmin, exponent) * (float)choice->mins[j]};
}

/* value / unit as the nearest of 0..Q4_K_SCALE. */
static int nearest_q4_scale(float value, float unit)
{
    float quotient = unit > 0 ? value / unit : 0;
    return quotient < Q4_K_SCALE ? (int)(quotient + 0.5f) : Q4_K_SCALE;
}

/* The integers of sub-block j near the fit's quotients that give the least error. */
static float choose_q4_scales(const k_values *values, affine fit, int j, q4_k_choice *choice)
{
    const float *x = values->x + j * 32, *w = values->w + j * 32;
    float d = scaled_half(choice->d, values->exponent);
    float dmin = scaled_half(choice->dmin, values->exponent);
    int scale = nearest_q4_scale(fit.scale, d), min = nearest_q4_scale(fit.min, dmin);
    float least = INFINITY;
    for (int s = scale - 1; s <= scale + 1; s++) {
        for (int m = min - 1; m <= min + 1; m++) {
            if (s < 0 || s > Q4_K_SCALE || m < 0 || m > Q4_K_SCALE) continue;
            affine trial = {d * (float)s, dmin * (float)m};
            float error = error_of(x, w, q4_grid, trial);
            if (error >= least) continue;
            least = error;
            choice->scales[j] = (uint8_t)s;
            choice->mins[j] = (uint8_t)m;
        }
    }
    return least;
}

static q4_k_choice choose_q4_block(const k_values *values, const affine *fits, float d, float dmin)
{
    q4_k_choice choice = {.d = half_of(d, values->exponent),
                          .dmin = half_of(dmin, values->exponent)};
    for (int j = 0; j < BLOCK_K / 32; j++)
        choice.error += choose_q4_scales(values, fits[j], j, &choice);
    return choice;
}

/* The best d and dmin for the choice's integers and levels. */
static bool refit_q4_block(const k_values *values, const q4_k_choice *choice, float *d, float *dmin)
{
    double uu = 0, uv = 0, vv = 0, xu = 0, xv = 0, a, b;
    for (int j = 0; j < BLOCK_K / 32; j++) {
        affine fit = q4_k_affine(choice, values->exponent, j);
        moments m = moments_of(values->x + j * 32, values->w + j * 32, q4_grid, fit);
        double s = choice->scales[j], t = choice->mins[j];
        uu += s * s * m.kk;
        uv += s * t * m.k;
        vv += t * t * m.w;
        xu += s * m.xk;
        xv += t * m.x;
    }
    if (!solve(uu, uv, vv, xu, xv, &a, &b) || !(a > 0)) return false;
    *d = (float)a;
    *dmin = (float)b;
    return true;
}

static q4_k_choice search_q4_block(const k_values *values)
{
    affine fits[BLOCK_K / 32];
    float d = 0, dmin = 0;
    for (int j = 0; j < BLOCK_K / 32; j++) {
        fits[j] = fit_q4_sub_block(values->x + j * 32, values->w + j * 32);
        d = fmaxf(d, fits[j].scale / Q4_K_SCALE);
        dmin = fmaxf(dmin, fits[j].min / Q4_K_SCALE);
    }
    q4_k_choice best = choose_q4_block(values, fits, d, dmin);
    for (int round = 0; round < MAX_REFITS; round++) {
        if (!refit_q4_block(values, &best, &d, &dmin)) break;
        q4_k_choice next = choose_q4_block(values, fits, d, dmin);
        if (!(next.error < best.error)) break;
        best = next;
    }
    return best;
}

static void encode_q4_block(const float *src, block_q4_k *block)
{
    k_values values;
    memset(block, 0, sizeof *block);
    if (!load(src, q4_grid.n, &values)) return;
    q4_k_choice choice = search_q4_block(&values);
    block->d = choice.d;
    block->dmin = choice.dmin;
    k_pack_scales(choice.scales, choice.mins, block->scales);
    for (int j = 0; j < BLOCK_K / 32; j++) {
        float k[MAX_SUB];
        choose_levels(values.x + j * 32, q4_grid, q4_k_affine(&choice, values.exponent, j), k);
        for (int i = 0; i < 32; i++)
            block->qs[j / 2 * 32 + i] |= (uint8_t)((int)k[i] << j % 2 * 4);
    }
}

void k_encode_q4(const float *src, void *dst, int64_t n_blocks)
{
    char *bytes = dst;
    for (int64_t b = 0; b < n_blocks; b++, src += BLOCK_K) {
        block_q4_k block;
        encode_q4_block(src, &block);
        memcpy(bytes + (size_t)b * sizeof block, &block, sizeof block);
    }
}

/* ---- Q6_K ------------------------------------------------------------------------------------ */

/* The value of largest magnitude, the first of equals, with its sign. */
static float extreme_of(const float *x, int n)
{
    float extreme = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    }
    return extreme;
}

/* A negative scale makes -32, the longer end, positive. */
static float fit_q6_sub_block(const float *x, const float *w)
{
    float extreme = extreme_of(x, q6_grid.n);
    affine best = {extreme / q6_grid.low, 0};
    if (extreme == 0) return 0;
    float least = error_of(x, w, q6_grid, best);
    for (int step = -3; step <= 3; step++) { /* a finer row finds nothing better */
        affine guess = {extreme / (q6_grid.low + 0.3f * (float)step), 0};
        moments m = moments_of(x, w, q6_grid, guess);
        if (!(m.kk > 0)) continue;
        affine fit = {(float)(m.xk / m.kk), 0};
        float error = error_of(x, w, q6_grid, fit);
        if (error < least) {
            least = error;
            best = fit;
        }
    }
    return best.scale;
}

typedef struct q6_k_choice {
    uint16_t d;
    int8_t scales[BLOCK_K / 16];
    double error;
} q6_k_choice;

static affine q6_k_affine(const q6_k_choice *choice, int exponent, int j)
{
    return (affine){scaled_half(choice->d, exponent) * (float)choice->scales[j], 0};
}

static q6_k_choice choose_q6_block(const k_values *values, const float *fits, float factor)
{
    q6_k_choice choice = {.d = half_of(factor, values->exponent)};
    float d = scaled_half(choice.d, values->exponent);
    for (int j = 0; j < BLOCK_K / 16; j++) {
        float quotient = d != 0 ? fits[j] / d : 0, least = INFINITY;
        quotient = quotient > INT8_MIN ? quotient < INT8_MAX ? quotient : INT8_MAX : INT8_MIN;
        int nearest = (int)lrintf(quotient);
        for (int s = nearest - 1; s <= nearest + 1; s++) {
            if (s < INT8_MIN || s > INT8_MAX) continue;
            affine trial = {d * (float)s, 0};
            float error = error_of(values->x + j * 16, values->w + j * 16, q6_grid, trial);
            if (error >= least) continue;
            least = error;
            choice.scales[j] = (int8_t)s;
        }
        choice.error += least;
    }
    return choice;
}

/* The best d for the choice's integers and levels. */
static bool refit_q6_block(const k_values *values, const q6_k_choice *choice, float *d)
{
    double uu = 0, xu = 0;
    for (int j = 0; j < BLOCK_K / 16; j++) {
        affine fit = q6_k_affine(choice, values->exponent, j);
        moments m = moments_of(values->x + j * 16, values->w + j * 16, q6_grid, fit);
        double s = choice->scales[j];
        uu += s * s * m.kk;
        xu += s * m.xk;
    }
    if (!(uu > 0)) return false;
    *d = (float)(xu / uu);
    return true;
}

static q6_k_choice search_q6_block(const k_values *values)
{
    float fits[BLOCK_K / 16];
    for (int j = 0; j < BLOCK_K / 16; j++)
        fits[j] = fit_q6_sub_block(values->x + j * 16, values->w + j * 16);
    float d = extreme_of(fits, BLOCK_K / 16) / INT8_MIN;
    q6_k_choice best = choose_q6_block(values, fits, d);
    for (int round = 0; round < MAX_REFITS; round++) {
        if (!refit_q6_block(values, &best, &d)) break;
        q6_k_choice next = choose_q6_block(values, fits, d);
        if (!(next.error < best.error)) break;
        best = next;
    }
    return best;
}

static void pack_q6_level(block_q6_k *block, int i, int level)
{
    int half = i / 128, within = i % 128;
    block->ql[half * 64 + within % 64] |= (uint8_t)((level & 0xf) << within / 64 * 4);
    block->qh[half * 32 + within % 32] |= (uint8_t)(level >> 4 << within / 32 * 2);
}

static void encode_q6_block(const float *src, block_q6_k *block)
{
    k_values values;
    q6_k_choice choice = {0};
    memset(block, 0, sizeof *block);
    if (load(src, q6_grid.n, &values)) {
        choice = search_q6_block(&values);
    } else {
        memset(&values, 0, sizeof values);
    }
    block->d = choice.d;
    memcpy(block->scales, choice.scales, sizeof block->scales);
    for (int j = 0; j < BLOCK_K / 16; j++) {
        float k[MAX_SUB];
        choose_levels(values.x + j * 16, q6_grid, q6_k_affine(&choice, values.exponent, j), k);
        for (int i = 0; i < 16; i++)
            pack_q6_level(block, j * 16 + i, (int)k[i] + Q6_K_ZERO);
    }
}

void k_encode_q6(const float *src, void *dst, int64_t n_blocks)
{
    char *bytes = dst;
    for (int64_t b = 0; b < n_blocks; b++, src += BLOCK_K) {
        block_q6_k block;
        encode_q6_block(src, &block);
        memcpy(bytes + (size_t)b * sizeof block, &block, sizeof block);
    }
}

/* ---- Q8_K ------------------------------------------------------------------------------------ */

/* ggml's activations: the extreme becomes -127 whatever its sign, ties go to even. */
static void encode_q8_block(const float *src, block_q8_k *block)
{
    float scale = -127 / extreme_of(src, BLOCK_K);
    memset(block, 0, sizeof *block);
    if (!isfinite(scale) || scale == 0) return;
    block->d = 1 / scale;
    for (int i = 0; i < BLOCK_K; i++) {
        float level = isnan(src[i]) ? 0 : scale * src[i];
        block->qs[i] = (int8_t)lrintf(level < 127 ? level : 127);
        block->bsums[i / 16] = (int16_t)(block->bsums[i / 16] + block->qs[i]);
    }
}

void k_encode_q8(const float *src, void *dst, int64_t n_blocks)
{
    char *bytes = dst;
    for (int64_t b = 0; b < n_blocks; b++, src += BLOCK_K) {
        block_q8_k block;
        encode_q8_block(src, &block);
        memcpy(bytes + (size_t)b * sizeof block, &block, sizeof block);
    }
}
