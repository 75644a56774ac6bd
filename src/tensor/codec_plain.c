/* Codecs of the plain types: one number an element.
 *
 * memcpy reads and writes them, since a tensor in a file may start at any byte.
 */
#include "tensor/codec_table.h"
#include "tensor/float16.h"
#include "tensor/float8.h"

#include <string.h>

static void decode_f32(const void *src, float *dst, int64_t n)
{
    if (n > 0) memcpy(dst, src, (size_t)n * sizeof *dst);
}

static void encode_f32(const float *src, const float *importance, void *dst, int64_t n)
{
    (void)importance;
    if (n > 0) memcpy(dst, src, (size_t)n * sizeof *src);
}

/* The loops over values of another type: `convert` maps one to the other. */
#define DEFINE_DECODE(name, stored, convert)                                                       \
    static void decode_##name(const void *src, float *dst, int64_t n)                              \
    {                                                                                              \
        const char *bytes = src;                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                          \
            stored value;                                                                          \
            memcpy(&value, bytes + (size_t)i * sizeof value, sizeof value);                        \
            dst[i] = convert(value);                                                               \
        }                                                                                          \
    }

#define DEFINE_ENCODE(name, stored, convert)                                                       \
    static void encode_##name(const float *src, const float *importance, void *dst, int64_t n)     \
    {                                                                                              \
        (void)importance;                                                                          \
        char *bytes = dst;                                                                         \
        for (int64_t i = 0; i < n; i++) {                                                          \
            stored value = convert(src[i]);                                                        \
            memcpy(bytes + (size_t)i * sizeof value, &value, sizeof value);                        \
        }                                                                                          \
    }

DEFINE_DECODE(f16, uint16_t, f16_to_f32)
DEFINE_ENCODE(f16, uint16_t, f32_to_f16)
DEFINE_DECODE(bf16, uint16_t, bf16_to_f32)
DEFINE_ENCODE(bf16, uint16_t, f32_to_bf16)
DEFINE_DECODE(f8, uint8_t, f8_to_f32)
DEFINE_ENCODE(f8, uint8_t, f32_to_f8)
DEFINE_DECODE(i32, int32_t, (float))
DEFINE_DECODE(i64, int64_t, (float))
/* Beyond F32's range this is infinity by IEEE 754, which C17's annex F promises. */
DEFINE_DECODE(f64, double, (float))

const codec codec_F32 = {decode_f32, encode_f32};
const codec codec_F16 = {decode_f16, encode_f16};
const codec codec_BF16 = {decode_bf16, encode_bf16};
const codec codec_F8 = {decode_f8, encode_f8};
const codec codec_I32 = {decode_i32, NULL};
const codec codec_I64 = {decode_i64, NULL};
const codec codec_F64 = {decode_f64, NULL};
