/* The codec of F8_128: blocks of 128 numbers in E4M3 with a scale in float32 (codec_blocks.h). */
#include "tensor/codec_blocks.h"
#include "tensor/codec_table.h"
#include "tensor/float8.h"

#include <math.h>
#include <string.h>

static void f8_128_values(const block_f8_128 *block, float *dst)
{
    for (int i = 0; i < BLOCK_128; i++)
        dst[i] = block->d * f8_to_f32(block->qs[i]);
}

/* The scale makes the largest magnitude the largest number of the format. */
static void f8_128_block(const float *src, const float *importance, block_f8_128 *block)
{
    (void)importance;
    float largest = 0;
    for (int i = 0; i < BLOCK_128; i++)
        if (fabsf(src[i]) > largest) largest = fabsf(src[i]);
    block->d = largest / F8_LARGEST;
    float inverse = 1 / block->d;
    if (!isfinite(inverse)) block->d = inverse = 0; /* zeros, or nearly */
    for (int i = 0; i < BLOCK_128; i++)
        block->qs[i] = f32_to_f8(src[i] * inverse);
}
CODEC_ENCODER(f8_128, BLOCK_128)

CODEC(F8_128, f8_128, BLOCK_128, encode_f8_128)
