/* Encoding of Q2_K, Q4_K and Q5_K (drawn in codec_blocks.h): the formats whose sub-blocks have a
 * scale and a minimum. One search (codec_k_search.h) serves them; they differ in a row of numbers
 * and in how levels and scales are packed.
 */
#include "tensor/codec_k.h"
#include "tensor/codec_k_search.h"

#include <string.h>

enum { MAX_SUB_BLOCKS = BLOCK_K / 16 };

typedef struct min_format {
    level_grid grid;
    int top; /* the largest integer scale and minimum */
} min_format;

static const min_format q2_format = {{16, 0, 3, NULL}, 15};
static const min_format q4_format = {{32, 0, 15, NULL}, 63};
static const min_format q5_format = {{32, 0, 31, NULL}, 63};

static affine fit_sub_block(const level_grid grid, const float *x, const float *w)
{
    float low = 0, high = x[0]; /* a minimum is stored as a positive number to subtract */
    for (int i = 0; i < grid.n; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    affine best = {(high - low) / grid.high, -low};
    if (!(high > low)) return best;
    float least = error_of(x, w, grid, best);
    for (int step = -10; step <= 10; step++) {
        affine guess = {(high - low) / (grid.high + 0.1f * (float)step), -low};
        moments m = moments_of(x, w, grid, guess);
        double scale, min;
        if (!solve(m.kk, m.k, m.w, m.xk, m.x, &scale, &min) || !(scale > 0)) continue;
        affine fit = {(float)scale, (float)min};
        float error = error_of(x, w, grid, fit);
        if (error < least) {
            least = error;
            best = fit;
        }
    }
    return best;
}

/* The stored fields except the levels. */
typedef struct min_choice {
    uint16_t d, dmin;
    uint8_t scales[MAX_SUB_BLOCKS], mins[MAX_SUB_BLOCKS];
    double error;
} min_choice;

static affine affine_of(const min_choice *choice, int exponent, int j)
{
    return (affine){scaled_half(choice->d, exponent) * (float)choice->scales[j],
                    scaled_half(choice->dmin, exponent) * (float)choice->mins[j]};
}

/* value / unit as the nearest of 0 .. top. */
static int nearest_integer(float value, float unit, int top)
{
    float quotient = unit > 0 ? value / unit : 0;
    return quotient < (float)top ? (int)(quotient + 0.5f) : top;
}

/* The integers of sub-block j, near the fit's quotients, that give the least error. */
static float choose_integers(const min_format f, const k_values *values, affine fit, int j,
                             min_choice *choice)
{
    const float *x = values->x + j * f.grid.n, *w = values->w + j * f.grid.n;
    float d = scaled_half(choice->d, values->exponent);
    float dmin = scaled_half(choice->dmin, values->exponent);
    int scale = nearest_integer(fit.scale, d, f.top), min = nearest_integer(fit.min, dmin, f.top);
    float least = INFINITY;
    for (int s = scale - 1; s <= scale + 1; s++) {
        for (int m = min - 1; m <= min + 1; m++) {
            if (s < 0 || s > f.top || m < 0 || m > f.top) continue;
            affine trial = {d * (float)s, dmin * (float)m};
            float error = error_of(x, w, f.grid, trial);
            if (error >= least) continue;
            least = error;
            choice->scales[j] = (uint8_t)s;
            choice->mins[j] = (uint8_t)m;
        }
    }
    return least;
}

static min_choice choose_block(const min_format f, const k_values *values, const affine *fits,
                               float d, float dmin)
{
    min_choice choice = {.d = half_of(d, values->exponent),
                         .dmin = half_of(dmin, values->exponent)};
    for (int j = 0; j < BLOCK_K / f.grid.n; j++)
        choice.error += choose_integers(f, values, fits[j], j, &choice);
    return choice;
}

/* The best d and dmin for the choice's integers and levels. */
static bool refit_block(const min_format f, const k_values *values, const min_choice *choice,
                        float *d, float *dmin)
{
    double uu = 0, uv = 0, vv = 0, xu = 0, xv = 0, a, b;
    for (int j = 0; j < BLOCK_K / f.grid.n; j++) {
        affine fit = affine_of(choice, values->exponent, j);
        moments m = moments_of(values->x + j * f.grid.n, values->w + j * f.grid.n, f.grid, fit);
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

static min_choice search_block(const min_format f, const k_values *values)
{
    affine fits[MAX_SUB_BLOCKS];
    float d = 0, dmin = 0;
    for (int j = 0; j < BLOCK_K / f.grid.n; j++) {
        fits[j] = fit_sub_block(f.grid, values->x + j * f.grid.n, values->w + j * f.grid.n);
        d = fmaxf(d, fits[j].scale / (float)f.top);
        dmin = fmaxf(dmin, fits[j].min / (float)f.top);
    }
    min_choice best = choose_block(f, values, fits, d, dmin);
    for (int round = 0; round < MAX_REFITS; round++) {
        if (!refit_block(f, values, &best, &d, &dmin)) break;
        min_choice next = choose_block(f, values, fits, d, dmin);
        if (!(next.error < best.error)) break;
        best = next;
    }
    return best;
}

/* The choice for a block and its levels; all zero for a block of zeros. */
static inline void encode_block(const min_format f, const float *src, const float *importance,
                                min_choice *choice, uint8_t levels[BLOCK_K])
{
    k_values values;
    *choice = (min_choice){0};
    memset(levels, 0, BLOCK_K);
    if (!load(src, importance, f.grid.n, &values)) return;
    *choice = search_block(f, &values);
    for (int j = 0; j < BLOCK_K / f.grid.n; j++) {
        float k[MAX_SUB];
        choose_levels(values.x + j * f.grid.n, f.grid, affine_of(choice, values.exponent, j), k);
        for (int i = 0; i < f.grid.n; i++)
            levels[j * f.grid.n + i] = (uint8_t)k[i];
    }
}

static void q2_k_block(const float *src, const float *importance, block_q2_k *block)
{
    min_choice choice;
    uint8_t levels[BLOCK_K];
    encode_block(q2_format, src, importance, &choice, levels);
    block->d = choice.d;
    block->dmin = choice.dmin;
    for (int j = 0; j < BLOCK_K / 16; j++)
        block->scales[j] = (uint8_t)(choice.scales[j] | choice.mins[j] << 4);
    k_pack_pairs(levels, block->qs);
}
CODEC_ENCODER(q2_k, BLOCK_K)

static void q4_k_block(const float *src, const float *importance, block_q4_k *block)
{
    min_choice choice;
    uint8_t levels[BLOCK_K];
    encode_block(q4_format, src, importance, &choice, levels);
    block->d = choice.d;
    block->dmin = choice.dmin;
    k_pack_scales(choice.scales, choice.mins, block->scales);
    k_pack_nibbles(levels, block->qs);
}
CODEC_ENCODER(q4_k, BLOCK_K)

static void q5_k_block(const float *src, const float *importance, block_q5_k *block)
{
    min_choice choice;
    uint8_t levels[BLOCK_K];
    encode_block(q5_format, src, importance, &choice, levels);
    block->d = choice.d;
    block->dmin = choice.dmin;
    k_pack_scales(choice.scales, choice.mins, block->scales);
    k_pack_nibbles(levels, block->qs);
    k_pack_bits(levels, 4, block->qh);
}
CODEC_ENCODER(q5_k, BLOCK_K)

/* Values are counted from the largest, so that the smallest is below 0: their minimum is stored as
 * a number to subtract. */
uint16_t k_search_affine(int last, const float *src, const float *importance, uint16_t *m,
                         uint8_t *levels)
{
    const level_grid grid = {BLOCK_32, 0, (float)last, NULL};
    float below[BLOCK_32], most = tame(src[0]), k[MAX_SUB];
    k_values values;
    for (int i = 1; i < BLOCK_32; i++)
        most = fmaxf(most, tame(src[i]));
    for (int i = 0; i < BLOCK_32; i++)
        below[i] = tame(src[i]) - most;
    memset(levels, 0, BLOCK_32);
    *m = f32_to_f16(most);
    if (!load_32(below, importance, &values)) return 0;
    const affine fit = fit_sub_block(grid, values.x, values.w);
    const uint16_t d = half_of(fit.scale, values.exponent);
    *m = f32_to_f16(most - ldexpf(fit.min, values.exponent));
    const float offset = ldexpf(most - f16_to_f32(*m), -values.exponent);
    choose_levels(values.x, grid, (affine){scaled_half(d, values.exponent), offset}, k);
    for (int i = 0; i < BLOCK_32; i++)
        levels[i] = (uint8_t)k[i];
    return d;
}
