/* Dispatch to the codec of a type: see codec.h. */
#include "tensor/codec.h"

#include "tensor/codec_table.h"

#include <assert.h>

static const codec *const codecs[DTYPE_COUNT] = {
#define DTYPE(name, elements, bytes, gguf, safetensors) [DTYPE_##name] = &codec_##name,
#include "tensor/dtype.def"
#undef DTYPE
};

static int64_t count_blocks(dtype type, int64_t n)
{
    assert(type < DTYPE_COUNT && n >= 0 && n % dtype_block_elements(type) == 0);
    return n / dtype_block_elements(type);
}

void dtype_decode(dtype type, const void *src, float *dst, int64_t n)
{
    codecs[type]->decode(src, dst, count_blocks(type, n));
}

bool dtype_can_encode(dtype type)
{
    return type < DTYPE_COUNT && codecs[type]->encode;
}

void dtype_encode(dtype type, const float *src, void *dst, int64_t n)
{
    dtype_encode_weighted(type, src, NULL, dst, n);
}

void dtype_encode_weighted(dtype type, const float *src, const float *importance, void *dst,
                           int64_t n)
{
    assert(dtype_can_encode(type));
    codecs[type]->encode(src, importance, dst, count_blocks(type, n));
}
