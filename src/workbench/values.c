/* Values of FlashInfer-Bench's element types: see values.h. */
#include "workbench/values.h"

#include "base/hash.h"
#include "tensor/float16.h"

#include <math.h>
#include <string.h>

enum { RANDOM_INTEGER = 1024 };

static const value_type types[] = {
    {"float32", "F32", 4, DTYPE_F32, 0, 0, 1},
    {"float16", "F16", 2, DTYPE_F16, 0, 0, 1},
    {"bfloat16", "BF16", 2, DTYPE_BF16, 0, 0, 1},
    {"float8_e4m3fn", "F8_E4M3", 1, DTYPE_COUNT, 0, 0, 1},
    {"float8_e5m2", "F8_E5M2", 1, DTYPE_COUNT, 0, 0, 1},
    {"float4_e2m1", "F4", 1, DTYPE_COUNT, 0, 0, 2}, /* PyTorch's pairs */
    {"int64", "I64", 8, DTYPE_I64, -RANDOM_INTEGER, RANDOM_INTEGER - 1, 1},
    {"int32", "I32", 4, DTYPE_I32, -RANDOM_INTEGER, RANDOM_INTEGER - 1, 1},
    {"int16", "I16", 2, DTYPE_COUNT, -RANDOM_INTEGER, RANDOM_INTEGER - 1, 1},
    {"int8", "I8", 1, DTYPE_COUNT, -128, 127, 1},
    {"bool", "BOOL", 1, DTYPE_COUNT, 0, 1, 1},
};

const value_type *value_type_find(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, name) == 0) return &types[i];
    }
    return NULL;
}

static bool is_real(const value_type *type)
{
    return type->low == type->high;
}

/* A sign, `exponent_bits` bits of exponent, the rest of 7 bits a mantissa. */
static double float8_value(uint8_t bits, int exponent_bits)
{
    int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    int exponent = (bits & 0x7f) >> mantissa_bits;
    double sign = bits & 0x80 ? -1 : 1;
    if (exponent_bits == 4 && (bits & 0x7f) == 0x7f) return NAN; /* e4m3fn has no infinities */
    if (exponent_bits == 5 && exponent == 31) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/* A sign, two bits of exponent, one of mantissa. */
static double float4_value(uint8_t bits)
{
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return bits & 8 ? -values[bits & 7] : values[bits & 7];
}

#define READ(ctype)                                                                                \
    ctype value;                                                                                   \
    memcpy(&value, at, sizeof value)

double value_at(const value_type *type, const void *data, size_t i)
{
    const char *at = (const char *)data + i / (size_t)type->parts * type->bytes;
    if (type->parts == 2) return float4_value((uint8_t)((uint8_t)*at >> 4 * (i % 2) & 15));
    if (is_real(type)) {
        if (type->type == DTYPE_F32) {
            READ(float);
            return value;
        }
        if (type->bytes == 1) return float8_value((uint8_t)*at, strstr(type->name, "e4") ? 4 : 5);
        READ(uint16_t);
        return type->type == DTYPE_F16 ? f16_to_f32(value) : bf16_to_f32(value);
    }
    if (type->bytes == 8) {
        READ(int64_t);
        return (double)value;
    }
    if (type->bytes == 4) {
        READ(int32_t);
        return value;
    }
    if (type->bytes == 2) {
        READ(int16_t);
        return value;
    }
    return type->low == 0 ? *(const uint8_t *)at != 0 : *(const int8_t *)at;
}

/* --- random values --------------------------------------------------------------------------- */

/* The sum of four uniform parts, with a variance of 1. */
static float normal_value(uint64_t bits)
{
    double sum = 0;
    for (int part = 0; part < 4; part++)
        sum += ((double)(bits >> 16 * part & 0xffff) + 0.5) * 0x1p-16;
    return (float)((sum - 2) * 1.7320508075688772);
}

static void put_value(const value_type *type, char *at, float value)
{
    uint16_t half = type->type == DTYPE_F16 ? f32_to_f16(value) : f32_to_bf16(value);
    memcpy(at, type->bytes == 4 ? (const void *)&value : (const void *)&half, type->bytes);
}

static void put_real(const value_type *type, char *at, uint64_t bits)
{
    if (type->bytes > 1) {
        put_value(type, at, normal_value(bits));
        return;
    }
    do
        *at = (char)(bits = hash_mix(bits));
    while (!(fabs(value_at(type, at, 0)) <= 2 && fabs(value_at(type, at, type->parts - 1u)) <= 2));
}

void values_randomize(const value_type *type, void *data, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        char *at = (char *)data + i * type->bytes;
        uint64_t bits = hash_random(seed, type->bytes, i);
        if (is_real(type)) {
            put_real(type, at, bits);
            continue;
        }
        uint64_t range = (uint64_t)(type->high - type->low) + 1;
        int64_t value = (int64_t)type->low + (int64_t)(bits % range);
        memcpy(at, &value, type->bytes); /* the low bytes come first */
    }
}

void values_softmax(const value_type *type, void *data, size_t rows, size_t n)
{
    for (size_t row = 0; row < rows && type->bytes > 1; row++) {
        char *at = (char *)data + row * n * type->bytes;
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += exp(value_at(type, at, i));
        for (size_t i = 0; i < n; i++)
            put_value(type, at + i * type->bytes, (float)(exp(value_at(type, at, i)) / sum));
    }
}

/* --- comparing ------------------------------------------------------------------------------- */

void values_compare(const value_type *type, const void *data, const void *expected, size_t n,
                    double atol, double rtol, values_error *out)
{
    static const double tiny = 1e-8; /* so that zeros have a relative error */
    n *= (size_t)type->parts;
    for (size_t i = 0; i < n; i++) {
        double found = value_at(type, data, i), right = value_at(type, expected, i);
        double absolute = 0;
        if (found != right && !(isnan(found) && isnan(right)))
            absolute = isfinite(found) && isfinite(right) ? fabs(found - right) : INFINITY;
        double relative = isinf(absolute) ? INFINITY : absolute / (fabs(right) + tiny);
        if (isinf(right) && absolute == 0) relative = 0;
        if (isnan(right) && absolute == 0) relative = 0;
        if (absolute > out->absolute) out->absolute = absolute;
        if (relative > out->relative) out->relative = relative;
        if (absolute > atol && relative > rtol && out->n_wrong++ == 0) out->first = out->n + i;
    }
    out->n += n;
}
