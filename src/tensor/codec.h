/* Reference codecs of every element type: stored bytes to floats and back.
 *
 * Decoding follows ggml's formulas to the last bit, one multiplication or subtraction after the
 * other in float32, so that fast kernels and other programs can be compared with it. The blocks
 * themselves are drawn in codec_blocks.h.
 */
#pragma once

#include "tensor/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* Decodes n values, a multiple of the type's block, from `src` (any alignment) into dst[n]. Every
 * type can be decoded; I32, I64 and F64 are rounded to the nearest float. */
void dtype_decode(dtype type, const void *src, float *dst, int64_t n);

/* Whether dtype_encode() takes the type: all but I32, I64 and F64. */
bool dtype_can_encode(dtype type);

/* Encodes src[n], n a multiple of the type's block, into `dst` (any alignment).
 *
 * The Q formats of 32 equal ggml's to the bit. Q2_K to Q6_K search for the scales with the least
 * weighted error. Any float is safe. Values that a block's F16 scale cannot hold are lost: the
 * formats of 32 get an infinite scale as in ggml, Q2_K to Q6_K saturate. NaNs become some level. */
void dtype_encode(dtype type, const float *src, void *dst, int64_t n);

/* The same where importance[n], numbers of at least 0, says how much the squared error of each
 * value counts: quantised types but Q8_1, Q8_K and F8_128 search for the scales with the least
 * error then. NULL, and a block whose numbers have no finite sum above 0: all values count alike.
 */
void dtype_encode_weighted(dtype type, const float *src, const float *importance, void *dst,
                           int64_t n);
