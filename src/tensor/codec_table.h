/* The codecs' table, private to codec*.c: one `codec` for each line of dtype.def.
 *
 * A type without its codec_NAME does not link, so the table cannot miss an entry of the list.
 */
#pragma once

#include <stdint.h>
#include <string.h>

/* Decodes n_blocks blocks from `src` (any alignment) to dst[n_blocks * elements of a block]. */
typedef void codec_decode_fn(const void *src, float *dst, int64_t n_blocks);

/* The inverse; `dst` may have any alignment. importance: how much the error of each value counts,
 * as in dtype_encode_weighted(); NULL: all alike. */
typedef void codec_encode_fn(const float *src, const float *importance, void *dst,
                             int64_t n_blocks);

typedef struct codec {
    codec_decode_fn *decode;
    codec_encode_fn *encode; /* NULL: the type is only decoded */
} codec;

/* The loops over blocks. CODEC_ENCODER: encode_q4_k() from q4_k_block(src, importance, block),
 * which gets a block of zeros. CODEC: a decoder from q4_k_values(block, dst), and the codec of
 * Q4_K. */
#define CODEC_ENCODER(name, elements)                                                              \
    codec_encode_fn encode_##name;                                                                 \
    void encode_##name(const float *src, const float *importance, void *dst, int64_t n_blocks)     \
    {                                                                                              \
        char *bytes = dst;                                                                         \
        for (int64_t b = 0; b < n_blocks; b++, src += (elements)) {                                \
            block_##name block = {0};                                                              \
            name##_block(src, importance ? &importance[b * (elements)] : NULL, &block);            \
            memcpy(bytes + (size_t)b * sizeof block, &block, sizeof block);                        \
        }                                                                                          \
    }
#define CODEC(NAME, name, elements, encoder)                                                       \
    static void decode_##name(const void *src, float *dst, int64_t n_blocks)                       \
    {                                                                                              \
        const char *bytes = src;                                                                   \
        for (int64_t b = 0; b < n_blocks; b++, dst += (elements)) {                                \
            block_##name block;                                                                    \
            memcpy(&block, bytes + (size_t)b * sizeof block, sizeof block);                        \
            name##_values(&block, dst);                                                            \
        }                                                                                          \
    }                                                                                              \
    const codec codec_##NAME = {decode_##name, encoder};

#define DTYPE(name, elements, bytes, gguf, safetensors) extern const codec codec_##name;
#include "tensor/dtype.def"
#undef DTYPE
