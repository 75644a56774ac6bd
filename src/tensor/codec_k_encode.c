/* Encoding of Q3_K, Q6_K, IQ4_XS and IQ4_NL (drawn in codec_blocks.h), whose sub-blocks have a
 * signed scale and no minimum, by the search of codec_k_search.h; and of Q8_K, which only rounds.
 */
#include "tensor/codec_k.h"
#include "tensor/codec_k_search.h"
#include "tensor/levels.h"

#include <string.h>

typedef struct signed_format {
    level_grid grid; /* low is minus the level that stands for 0 */
    int lowest;      /* integer scales are in [lowest, -1 - lowest] */
    int n_steps;     /* candidates to each side of the usual step size ... */
    float step;      /* ... in units of a level; a finer grid finds nothing better */
} signed_format;

static const signed_format q3_format = {{16, -4, 3, NULL}, -32, 9, 0.1f};
static const signed_format q6_format = {{16, -32, 31, NULL}, -128, 3, 0.3f};
static const signed_format iq4_format = {{32, -127, 113, levels_iq4}, -32, 9, 1.5f};

static inline int sub_blocks(const signed_format f)
{
    return BLOCK_K / f.grid.n;
}

/* The value of largest magnitude, with its sign; of equal ones the first. */
static float extreme_of(const float *x, int n)
{
    float extreme = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    }
    return extreme;
}

/* A negative scale gives the largest value the lowest level, because the range is longer at that
 * end. */
static float fit_sub_block(const signed_format f, const float *x, const float *w)
{
    float extreme = extreme_of(x, f.grid.n);
    affine best = {extreme / f.grid.low, 0};
    if (extreme == 0) return 0;
    float least = error_of(x, w, f.grid, best);
    for (int step = -f.n_steps; step <= f.n_steps; step++) {
        affine guess = {extreme / (f.grid.low + f.step * (float)step), 0};
        moments m = moments_of(x, w, f.grid, guess);
        if (!(m.kk > 0)) continue;
        affine fit = {(float)(m.xk / m.kk), 0};
        float error = error_of(x, w, f.grid, fit);
        if (error < least) {
            least = error;
            best = fit;
        }
    }
    return best.scale;
}

/* The stored fields except the levels. */
typedef struct signed_choice {
    uint16_t d;
    int8_t scales[BLOCK_K / 16];
    double error;
} signed_choice;

static affine affine_of(const signed_choice *choice, int exponent, int j)
{
    return (affine){scaled_half(choice->d, exponent) * (float)choice->scales[j], 0};
}

static signed_choice choose_block(const signed_format f, const k_values *values, const float *fits,
                                  float factor)
{
    signed_choice choice = {.d = half_of(factor, values->exponent)};
    float d = scaled_half(choice.d, values->exponent);
    float low = (float)f.lowest, high = (float)(-1 - f.lowest);
    for (int j = 0; j < sub_blocks(f); j++) {
        float quotient = d != 0 ? fits[j] / d : 0, least = INFINITY;
        quotient = quotient > low ? quotient < high ? quotient : high : low;
        int nearest = (int)lrintf(quotient);
        for (int s = nearest - 1; s <= nearest + 1; s++) {
            if (s < f.lowest || s > -1 - f.lowest) continue;
            affine trial = {d * (float)s, 0};
            float error =
                error_of(values->x + j * f.grid.n, values->w + j * f.grid.n, f.grid, trial);
            if (error >= least) continue;
            least = error;
            choice.scales[j] = (int8_t)s;
        }
        choice.error += least;
    }
    return choice;
}

/* The best d for the choice's integers and levels. */
static bool refit_block(const signed_format f, const k_values *values, const signed_choice *choice,
                        float *d)
{
    double uu = 0, xu = 0;
    for (int j = 0; j < sub_blocks(f); j++) {
        affine fit = affine_of(choice, values->exponent, j);
        moments m = moments_of(values->x + j * f.grid.n, values->w + j * f.grid.n, f.grid, fit);
        double s = choice->scales[j];
        uu += s * s * m.kk;
        xu += s * m.xk;
    }
    if (!(uu > 0)) return false;
    *d = (float)(xu / uu);
    return true;
}

static signed_choice search_block(const signed_format f, const k_values *values)
{
    float fits[BLOCK_K / 16];
    for (int j = 0; j < sub_blocks(f); j++)
        fits[j] = fit_sub_block(f, values->x + j * f.grid.n, values->w + j * f.grid.n);
    float d = extreme_of(fits, sub_blocks(f)) / (float)f.lowest;
    signed_choice best = choose_block(f, values, fits, d);
    for (int round = 0; round < MAX_REFITS; round++) {
        if (!refit_block(f, values, &best, &d)) break;
        signed_choice next = choose_block(f, values, fits, d);
        if (!(next.error < best.error)) break;
        best = next;
    }
    return best;
}

/* The choice for a block and its levels, counted from the lowest; for a block of zeros, a factor of
 * 0 and the level that means 0. */
static inline void encode_block(const signed_format f, const float *src, const float *importance,
                                signed_choice *choice, uint8_t levels[BLOCK_K])
{
    k_values values;
    *choice = (signed_choice){0};
    memset(levels, (int)-f.grid.low, BLOCK_K);
    if (!load(src, importance, f.grid.n, &values)) return;
    *choice = search_block(f, &values);
    for (int j = 0; j < sub_blocks(f); j++) {
        float k[MAX_SUB];
        choose_levels(values.x + j * f.grid.n, f.grid, affine_of(choice, values.exponent, j), k);
        for (int i = 0; i < f.grid.n; i++)
            levels[j * f.grid.n + i] = (uint8_t)(k[i] - f.grid.low);
    }
}

/* Scales as Q3_K holds them, stored plus 32. */
static void pack_q3_scales(const int8_t *scales, uint8_t *packed)
{
    for (int j = 0; j < BLOCK_K / 16; j++) {
        int stored = scales[j] + 32;
        packed[j % 8] |= (uint8_t)((stored & 0xf) << j / 8 * 4);
        packed[8 + j % 4] |= (uint8_t)(stored >> 4 << j / 4 * 2);
    }
}

static void q3_k_block(const float *src, const float *importance, block_q3_k *block)
{
    signed_choice choice;
    uint8_t levels[BLOCK_K];
    encode_block(q3_format, src, importance, &choice, levels);
    block->d = choice.d;
    pack_q3_scales(choice.scales, block->scales);
    k_pack_pairs(levels, block->qs);
    k_pack_bits(levels, 2, block->hmask);
}
CODEC_ENCODER(q3_k, BLOCK_K)

static void pack_q6_level(block_q6_k *block, int i, int level)
{
    int half = i / 128, within = i % 128;
    block->ql[half * 64 + within % 64] |= (uint8_t)((level & 0xf) << within / 64 * 4);
    block->qh[half * 32 + within % 32] |= (uint8_t)(level >> 4 << within / 32 * 2);
}

static void q6_k_block(const float *src, const float *importance, block_q6_k *block)
{
    signed_choice choice;
    uint8_t levels[BLOCK_K];
    encode_block(q6_format, src, importance, &choice, levels);
    block->d = choice.d;
    memcpy(block->scales, choice.scales, sizeof block->scales);
    for (int i = 0; i < BLOCK_K; i++)
        pack_q6_level(block, i, levels[i]);
}
CODEC_ENCODER(q6_k, BLOCK_K)

/* ---- IQ4 ------------------------------------------------------------------------------------ */

/* 32 levels, counted from the lowest, as nibbles that name them. */
static void pack_iq4_levels(const uint8_t *levels, uint8_t *qs)
{
    memset(qs, 0, BLOCK_32 / 2);
    for (int i = 0; i < BLOCK_32; i++) {
        int name = 0;
        while (levels_iq4[name] - levels_iq4[0] < levels[i])
            name++;
        qs[i % 16] |= (uint8_t)(name << i / 16 * 4);
    }
}

static void iq4_xs_block(const float *src, const float *importance, block_iq4_xs *block)
{
    signed_choice choice;
    uint8_t levels[BLOCK_K];
    encode_block(iq4_format, src, importance, &choice, levels);
    block->d = choice.d;
    for (int j = 0; j < sub_blocks(iq4_format); j++) {
        const int stored = choice.scales[j] + 32;
        block->scales_l[j / 2] |= (uint8_t)((stored & 0xf) << j % 2 * 4);
        block->scales_h |= (uint16_t)(stored >> 4 << 2 * j);
        pack_iq4_levels(levels + 32 * j, block->qs + 16 * j);
    }
}
CODEC_ENCODER(iq4_xs, BLOCK_K)

static uint16_t search_32(const signed_format f, const float *src, const float *importance,
                          uint8_t *levels)
{
    uint16_t d = 0;
    float k[MAX_SUB];
    k_values values = {.exponent = 0};
    const bool any = load_32(src, importance, &values);
    if (any) d = half_of(fit_sub_block(f, values.x, values.w), values.exponent);
    const affine fit = {any ? scaled_half(d, values.exponent) : 0, 0};
    choose_levels(values.x, f.grid, fit, k);
    for (int i = 0; i < BLOCK_32; i++)
        levels[i] = (uint8_t)(k[i] - f.grid.low);
    return d;
}

static void iq4_nl_block(const float *src, const float *importance, block_iq4_nl *block)
{
    uint8_t levels[BLOCK_32];
    block->d = search_32(iq4_format, src, importance, levels);
    pack_iq4_levels(levels, block->qs);
}
CODEC_ENCODER(iq4_nl, BLOCK_32)

uint16_t k_search_signed(int lowest, const float *src, const float *importance, uint8_t *levels)
{
    const float low = (float)lowest, high = lowest == -127 ? 127 : -1 - low;
    const signed_format f = {{BLOCK_32, low, high, NULL}, 0, 9, 0.1f};
    return search_32(f, src, importance, levels);
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

static void q8_k_block(const float *src, const float *importance, block_q8_k *block)
{
    (void)importance;
    encode_q8_block(src, block);
}
CODEC_ENCODER(q8_k, BLOCK_K)
