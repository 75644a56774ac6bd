/* Numbers of quantised types as they lie in their blocks (codec_blocks.h draws them), by the word:
 * what kernels that decode a type in their own order share. Compiles as C and as CUDA C. */
#pragma once

#include "tensor/codec_blocks.h"
#include "tensor/float16.h"

/* Q4_K's and Q5_K's scale j and minimum j. */
FLOAT16_FN void stored_scale_min(const uint8_t *scales, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = scales[j] & 63;
        *min = scales[j + 4] & 63;
    } else {
        *scale = (scales[j + 4] & 15) | scales[j - 4] >> 6 << 4;
        *min = scales[j + 4] >> 4 | scales[j] >> 6 << 4;
    }
}

/* Q4_K's scales 0 to 3, or 4 to 7, as bytes of a word, from the first four bytes of packed scales
 * and the last four; minima from the second four and the high nibbles of the last four. */
FLOAT16_FN uint32_t stored_first_scales(uint32_t first)
{
    return first & 0x3f3f3f3fu;
}
FLOAT16_FN uint32_t stored_last_scales(uint32_t first, uint32_t last)
{
    return (last & 0x0f0f0f0fu) | (first >> 2 & 0x30303030u);
}

/* Levels of Q6_K, a byte each, from bytes with four low bits and bytes with two high bits. */
FLOAT16_FN uint32_t stored_six_bits(uint32_t low, uint32_t high)
{
    return (low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4;
}

/* MXFP4's scale: 2^(e - 128), which is subnormal for the two smallest. */
FLOAT16_FN float stored_mxfp4_scale(uint32_t e)
{
    return float_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}
