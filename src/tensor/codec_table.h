/* The codecs' table, private to codec*.c: one `codec` for each line of dtype.def.
 *
 * A type without its codec_NAME does not link, so the table cannot miss an entry of the list.
 */
#pragma once

#include <stdint.h>

/* Decodes n_blocks blocks from `src` (any alignment) to dst[n_blocks * elements of a block]. */
typedef void codec_decode_fn(const void *src, float *dst, int64_t n_blocks);

/* The inverse; `dst` may have any alignment. */
typedef void codec_encode_fn(const float *src, void *dst, int64_t n_blocks);

typedef struct codec {
    codec_decode_fn *decode;
    codec_encode_fn *encode; /* NULL: the type is only decoded */
} codec;

#define DTYPE(name, elements, bytes, gguf, safetensors) extern const codec codec_##name;
#include "tensor/dtype.def"
#undef DTYPE
