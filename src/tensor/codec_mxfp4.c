/* The codec of MXFP4 (drawn in codec_blocks.h), of the Open Compute Project's microscaling formats.
 * The float operations are gguf-py's, because files are compared bit for bit. */
#include "tensor/codec_table.h"
#include "tensor/levels.h"
#include "tensor/stored.h"

#include <math.h>
#include <string.h>

static void mxfp4_values(const block_mxfp4 *block, float *dst)
{
    const float scale = stored_mxfp4_scale(block->e);
    for (int i = 0; i < BLOCK_32 / 2; i++) {
        dst[i] = scale * (float)levels_fp4[block->qs[i] & 15];
        dst[BLOCK_32 / 2 + i] = scale * (float)levels_fp4[block->qs[i] >> 4];
    }
}

/* The exponent with which the largest value is at least 4, of the numbers up to 6. */
static uint8_t exponent_of(const float *x)
{
    float most = 0;
    for (int i = 0; i < BLOCK_32; i++)
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    if (most == 0) return 0;
    const float e = floorf(log2f(most)) - 2 + 127;
    return (uint8_t)(e > 0 ? e < 254 ? e : 254 : 0);
}

/* The nearest number, of equally near ones the first; 0 for NaN. */
static uint8_t nearest(float x, float scale)
{
    int best = 0;
    for (int i = 1; i < 16; i++) {
        const float error = fabsf(scale * (float)levels_fp4[i] - x);
        if (error < fabsf(scale * (float)levels_fp4[best] - x)) best = i;
    }
    return (uint8_t)best;
}

static void encode_with(const float *src, uint8_t e, block_mxfp4 *block)
{
    const float scale = stored_mxfp4_scale(e);
    block->e = e;
    for (int i = 0; i < BLOCK_32 / 2; i++)
        block->qs[i] =
            (uint8_t)(nearest(src[i], scale) | nearest(src[BLOCK_32 / 2 + i], scale) << 4);
}

static double error_of(const float *src, const float *importance, const block_mxfp4 *block)
{
    double error = 0;
    float values[BLOCK_32];
    mxfp4_values(block, values);
    for (int i = 0; i < BLOCK_32; i++) {
        const double miss = (double)values[i] - src[i];
        error += miss * miss * importance[i];
    }
    return error;
}

/* With importance, the best of the usual exponent and its neighbours. */
static void mxfp4_block(const float *src, const float *importance, block_mxfp4 *block)
{
    const uint8_t usual = exponent_of(src);
    encode_with(src, usual, block);
    if (!importance) return;
    double least = error_of(src, importance, block);
    for (int e = usual > 0 ? usual - 1 : 0; e <= usual + 1 && e < 255; e++) {
        block_mxfp4 trial;
        encode_with(src, (uint8_t)e, &trial);
        const double error = error_of(src, importance, &trial);
        if (!(error < least)) continue;
        least = error;
        *block = trial;
    }
}
CODEC_ENCODER(mxfp4, BLOCK_32)

CODEC(MXFP4, mxfp4, BLOCK_32, encode_mxfp4)
