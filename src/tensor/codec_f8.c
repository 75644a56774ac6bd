/* The codec of F8_128: blocks of 128 numbers in E4M3 with a scale in float32 (codec_blocks.h). */
#include "tensor/codec_blocks.h"
#include "tensor/codec_table.h"
#include "tensor/float8.h"

#include <math.h>
#include <string.h>

static void decode_f8_128(const void *src, float *dst, int64_t n_blocks)
{
    for (int64_t b = 0; b < n_blocks; b++, dst += BLOCK_128) {
        block_f8_128 block;
        memcpy(&block, (const char *)src + (size_t)b * sizeof block, sizeof block);
        for (int i = 0; i < BLOCK_128; i++)
            dst[i] = block.d * f8_to_f32(block.qs[i]);
    }
}

/* The scale makes the largest magnitude the largest number of the format. */
static void encode_f8_128(const float *src, void *dst, int64_t n_blocks)
{
    for (int64_t b = 0; b < n_blocks; b++, src += BLOCK_128) {
        float largest = 0;
        for (int i = 0; i < BLOCK_128; i++)
            if (fabsf(src[i]) > largest) largest = fabsf(src[i]);
        block_f8_128 block = {.d = largest / F8_LARGEST};
        float inverse = 1 / block.d;
        if (!isfinite(inverse)) block.d = inverse = 0; /* zeros, or nearly */
        for (int i = 0; i < BLOCK_128; i++)
            block.qs[i] = f32_to_f8(src[i] * inverse);
        memcpy((char *)dst + (size_t)b * sizeof block, &block, sizeof block);
    }
}

const codec codec_F8_128 = {decode_f8_128, encode_f8_128};
