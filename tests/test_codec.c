/* The codecs, compared with ggml's results (golden/codec.bin, made by scripts/codec_goldens.py),
 * and properties for all values: 16-bit floats exhaustively, error bounds, extremes. */
#include "test.h"

#include "base/hash.h"
#include "tensor/codec.h"
#include "tensor/float16.h"
#include "tensor/float8.h"

#include <float.h>
#include <math.h>

enum { MAX_VALUES = 1024, MAX_BYTES = MAX_VALUES * 8 };

/* One record of the golden file. */
enum { DECODE, ENCODE, BEST_OF_GGML };

typedef struct record {
    dtype type;
    uint32_t kind, n;
    size_t bytes;
    uint8_t blocks[MAX_BYTES];
    float values[MAX_VALUES];
} record;

static bool read_record(FILE *file, record *out)
{
    char name[9] = {0};
    if (fread(name, 1, 8, file) != 8) return false;
    assert_int_equal(fread(&out->kind, 4, 1, file), 1);
    assert_int_equal(fread(&out->n, 4, 1, file), 1);
    out->type = dtype_from_name(name);
    assert_int_not_equal(out->type, DTYPE_COUNT);
    assert_in_range(out->n, 1, MAX_VALUES);
    out->bytes = dtype_row_bytes(out->type, out->n);
    assert_int_equal(fread(out->blocks, 1, out->bytes, file), out->bytes);
    assert_int_equal(fread(out->values, sizeof(float), out->n, file), out->n);
    return true;
}

/* Calls check for every record of a kind; returns how many there were. */
static int for_each_record(uint32_t kind, void (*check)(const record *))
{
    int count = 0;
    record *golden = malloc(sizeof *golden);
    FILE *file = fopen("golden/codec.bin", "rb");
    assert_non_null(golden);
    assert_non_null(file);
    while (read_record(file, golden)) {
        if (golden->kind != kind) continue;
        check(golden);
        count++;
    }
    fclose(file);
    free(golden);
    return count;
}

/* Bit for bit, but for the signs and payloads of NaNs, which are the processor's business. */
static void assert_same_floats(dtype type, const float *got, const float *want, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue;
        if (float_bits(got[i]) != float_bits(want[i]))
            fail_msg("%s value %u: %.9g (%08x), expected %.9g (%08x)", dtype_name(type), i, got[i],
                     float_bits(got[i]), want[i], float_bits(want[i]));
    }
}

static void check_decoded(const record *golden)
{
    float values[MAX_VALUES];
    uint8_t shifted[MAX_BYTES + 3];
    for (size_t offset = 0; offset <= 3; offset++) {
        memcpy(shifted + offset, golden->blocks, golden->bytes);
        memset(values, 0xa5, sizeof values);
        dtype_decode(golden->type, shifted + offset, values, golden->n);
        assert_same_floats(golden->type, values, golden->values, golden->n);
    }
}

static void test_decode_equals_ggml(void **state)
{
    (void)state;
    assert_int_equal(for_each_record(DECODE, check_decoded), 27);
}

static void check_encoded(const record *golden)
{
    uint8_t got[MAX_BYTES + 2];
    size_t block = dtype_block_bytes(golden->type);
    for (size_t offset = 0; offset <= 1; offset++) {
        memset(got, 0xa5, sizeof got);
        dtype_encode(golden->type, golden->values, got + offset, golden->n);
        assert_int_equal(got[offset + golden->bytes], 0xa5);
        for (size_t i = 0; i < golden->bytes; i++) {
            if (got[offset + i] != golden->blocks[i])
                fail_msg("%s block %zu byte %zu: %02x, expected %02x", dtype_name(golden->type),
                         i / block, i % block, got[offset + i], golden->blocks[i]);
        }
    }
}

static void test_encode_equals_ggml(void **state)
{
    (void)state;
    assert_int_equal(for_each_record(ENCODE, check_encoded), 10);
}

static double rms_error(const float *got, const float *want, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    return sqrt(sum / n);
}

static void check_search(const record *golden)
{
    uint8_t blocks[MAX_BYTES];
    float ours[MAX_VALUES], theirs[MAX_VALUES];
    dtype_encode(golden->type, golden->values, blocks, golden->n);
    dtype_decode(golden->type, blocks, ours, golden->n);
    dtype_decode(golden->type, golden->blocks, theirs, golden->n);
    double error = rms_error(ours, golden->values, golden->n);
    double limit = rms_error(theirs, golden->values, golden->n);
    if (!(error <= limit))
        fail_msg("%s: RMS error %g, ggml has %g", dtype_name(golden->type), error, limit);
}

static void test_search_is_no_worse_than_ggml(void **state)
{
    (void)state;
    assert_int_equal(for_each_record(BEST_OF_GGML, check_search), 21);
}

/* About normal, about 1 in size: the sum of twelve uniforms. */
static float random_value(uint64_t stream, uint64_t i)
{
    float sum = -6;
    for (uint64_t k = 0; k < 12; k++)
        sum += hash_uniform(hash_random(7, stream, i * 12 + k));
    return sum;
}

/* The types that encode, and the largest RMS error that normal values may suffer: half a step of
 * the mean range over sqrt(3), with a little to spare. */
static const struct {
    dtype type;
    double rms;
} bounds[] = {
    {DTYPE_F32, 0},        {DTYPE_F16, 0.0003},   {DTYPE_BF16, 0.0025},  {DTYPE_Q8_0, 0.007},
    {DTYPE_Q8_1, 0.007},   {DTYPE_Q8_K, 0.0085},  {DTYPE_Q6_K, 0.019},   {DTYPE_Q5_1, 0.045},
    {DTYPE_Q5_0, 0.050},   {DTYPE_Q4_1, 0.090},   {DTYPE_Q4_0, 0.100},   {DTYPE_Q4_K, 0.076},
    {DTYPE_Q5_K, 0.038},   {DTYPE_Q3_K, 0.17},    {DTYPE_Q2_K, 0.30},    {DTYPE_F8, 0.030},
    {DTYPE_F8_128, 0.028}, {DTYPE_IQ4_NL, 0.090}, {DTYPE_IQ4_XS, 0.080}, {DTYPE_MXFP4, 0.15},
};
enum { N_BOUNDS = sizeof bounds / sizeof *bounds };

static void test_round_trip_error(void **state)
{
    (void)state;
    float values[MAX_VALUES], back[MAX_VALUES], again[MAX_VALUES];
    uint8_t blocks[MAX_BYTES];
    for (int b = 0; b < N_BOUNDS; b++) {
        for (uint64_t round = 0; round < 8; round++) {
            float size = ldexpf(1, (int)round - 5);
            for (uint64_t i = 0; i < MAX_VALUES; i++)
                values[i] = size * random_value(round, i);
            dtype_encode(bounds[b].type, values, blocks, MAX_VALUES);
            dtype_decode(bounds[b].type, blocks, back, MAX_VALUES);
            double error = rms_error(back, values, MAX_VALUES) / (double)size;
            if (error > bounds[b].rms)
                fail_msg("%s: RMS error %g", dtype_name(bounds[b].type), error);
            /* A second trip may not lose as much again. */
            dtype_encode(bounds[b].type, back, blocks, MAX_VALUES);
            dtype_decode(bounds[b].type, blocks, again, MAX_VALUES);
            assert_true(rms_error(again, back, MAX_VALUES) <= error * (double)size);
        }
    }
}

/* Sums of squared errors, each times its importance. */
static double weighted_error(dtype type, const float *values, const float *importance,
                             const float *search)
{
    double sum = 0;
    float back[MAX_VALUES];
    uint8_t blocks[MAX_BYTES];
    dtype_encode_weighted(type, values, search, blocks, MAX_VALUES);
    dtype_decode(type, blocks, back, MAX_VALUES);
    for (int i = 0; i < MAX_VALUES; i++) {
        assert_true(isfinite(back[i]));
        sum += importance[i] * pow((double)back[i] - values[i], 2);
    }
    return sum;
}

static void test_importance_lowers_the_error_that_matters(void **state)
{
    (void)state;
    static const dtype types[] = {DTYPE_Q4_0,   DTYPE_Q4_1,   DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0,
                                  DTYPE_Q2_K,   DTYPE_Q3_K,   DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K,
                                  DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
    float values[MAX_VALUES], importance[MAX_VALUES], useless[MAX_VALUES];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        double plain = 0, weighted = 0;
        for (uint64_t round = 0; round < 8; round++) {
            for (uint64_t i = 0; i < MAX_VALUES; i++) {
                values[i] = random_value(round, i);
                importance[i] = expf(4 * random_value(round + 100, i));
                useless[i] = round == 0 ? 0 : round == 1 ? INFINITY : NAN;
            }
            plain += weighted_error(types[t], values, importance, NULL);
            weighted += weighted_error(types[t], values, importance, importance);
            weighted_error(types[t], values, importance, useless);
        }
        if (!(weighted < 0.995 * plain))
            fail_msg("%s: %g with importance, %g without", dtype_name(types[t]), weighted, plain);
    }
}

static void test_can_encode(void **state)
{
    (void)state;
    for (int type = 0; type < DTYPE_COUNT; type++) {
        bool listed = false;
        for (int b = 0; b < N_BOUNDS; b++)
            listed |= bounds[b].type == (dtype)type;
        assert_int_equal(dtype_can_encode((dtype)type), listed);
    }
    assert_false(dtype_can_encode(DTYPE_COUNT));
}

static void test_zeros(void **state)
{
    (void)state;
    float values[256] = {0}, back[256];
    uint8_t blocks[256 * 4];
    for (int b = 0; b < N_BOUNDS; b++) {
        dtype_encode(bounds[b].type, values, blocks, 256);
        memset(back, 0xa5, sizeof back);
        dtype_decode(bounds[b].type, blocks, back, 256);
        for (int i = 0; i < 256; i++)
            assert_true(back[i] == 0);
        dtype_encode(bounds[b].type, values, blocks, 0); /* nothing is legal */
        dtype_decode(bounds[b].type, blocks, back, 0);
    }
}

/* Extremes that a search could divide by or square: every byte of the blocks and every value is
 * written, whatever was there before. */
static void test_extremes_are_defined(void **state)
{
    (void)state;
    static const float extremes[] = {
        FLT_MAX, -FLT_MAX, FLT_TRUE_MIN, -FLT_TRUE_MIN, FLT_MIN,  0x1p-24f,  0x1p-25f, 0x1p-26f,
        65504,   65520,    1e30f,        -1e-30f,       INFINITY, -INFINITY, 0x1p127f, NAN,
        -0.0f,   1,        4e6f,         1e-38f,
    };
    enum { N = sizeof extremes / sizeof *extremes };
    float values[256], back[2][256];
    uint8_t blocks[2][256 * 4];
    for (int b = 0; b < N_BOUNDS; b++) {
        for (int first = 0; first < N; first++) {
            for (int second = 0; second < N; second++) {
                for (uint64_t i = 0; i < 256; i++)
                    values[i] = extremes[hash_random(1, 2, i) % 3 ? first : second];
                for (int k = 0; k < 2; k++) {
                    memset(blocks[k], k ? 0xff : 0, sizeof blocks[k]);
                    memset(back[k], k ? 0xff : 0, sizeof back[k]);
                    dtype_encode(bounds[b].type, values, blocks[k], 256);
                    dtype_decode(bounds[b].type, blocks[k], back[k], 256);
                }
                assert_memory_equal(blocks[0], blocks[1], dtype_row_bytes(bounds[b].type, 256));
                assert_memory_equal(back[0], back[1], sizeof back[0]);
            }
        }
    }
}

/* Searches keep their factors finite, and what is small and representable. */
static void test_searches_saturate(void **state)
{
    (void)state;
    static const dtype types[] = {DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
    static const float sizes[] = {FLT_MAX, 1e30f, 1e8f, 1, 1e-4f, 1e-6f, 0x1p-24f, 1e-30f};
    float values[256], back[256];
    uint8_t blocks[256];
    for (int t = 0; t < 3; t++) {
        for (int s = 0; s < 8; s++) {
            for (uint64_t i = 0; i < 256; i++)
                values[i] = (hash_uniform(hash_random(3, 4, i)) * 2 - 1) * sizes[s];
            dtype_encode(types[t], values, blocks, 256);
            dtype_decode(types[t], blocks, back, 256);
            for (int i = 0; i < 256; i++) {
                assert_true(isfinite(back[i]));
                assert_true(values[i] * back[i] >= 0 || fabsf(back[i]) < sizes[s] * 0.2f);
                assert_true(fabsf(back[i]) <= fmaxf(sizes[s], 0x1p-25f) * 1.2f);
            }
            double error = rms_error(back, values, 256);
            if (sizes[s] >= 1e-4f && sizes[s] <= 1) assert_true(error < 0.04 * (double)sizes[s]);
            assert_true(error <= (double)sizes[s]);
        }
    }
}

/* Sub-blocks of one value each are within the precision of the scales. */
static void test_constant_sub_blocks(void **state)
{
    (void)state;
    float values[256], back[256];
    uint8_t blocks[256];
    for (int i = 0; i < 256; i++)
        values[i] = -0.25f - (float)(i / 32);
    dtype_encode(DTYPE_Q4_K, values, blocks, 256);
    dtype_decode(DTYPE_Q4_K, blocks, back, 256);
    assert_true(rms_error(back, values, 256) < 7.25 / 63 / 2);
    for (int i = 0; i < 256; i++)
        values[i] = -0.25f - (float)(i / 16);
    dtype_encode(DTYPE_Q6_K, values, blocks, 256);
    dtype_decode(DTYPE_Q6_K, blocks, back, 256);
    assert_true(rms_error(back, values, 256) < 15.25 / 127 / 2);
}

static void test_plain_types(void **state)
{
    (void)state;
    float out[3];
    int32_t ints[] = {0, -7, INT32_MAX};
    int64_t longs[] = {INT64_MIN, 1, 1 << 20};
    double doubles[] = {1.0 + 0x1p-30, -1e300, 1e-300};
    dtype_decode(DTYPE_I32, ints, out, 3);
    assert_true(out[0] == 0 && out[1] == -7 && out[2] == 0x1p31f);
    dtype_decode(DTYPE_I64, longs, out, 3);
    assert_true(out[0] == -0x1p63f && out[1] == 1 && out[2] == 0x1p20f);
    dtype_decode(DTYPE_F64, doubles, out, 3);
    assert_true(out[0] == 1 && out[1] == -INFINITY && out[2] == 0);
}

/* The value of F8 bits by the definition, the NaN's place as 480. */
static double f8_value(uint32_t bits)
{
    int exponent = (int)(bits >> 3 & 15), mantissa = bits & 7;
    double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return bits & 0x80 ? -size : size;
}

static void test_f8_to_f32_is_exact(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x100; bits++) {
        float value = f8_to_f32((uint8_t)bits);
        if ((bits & 0x7f) == 0x7f) {
            assert_true(isnan(value));
            assert_int_equal(f32_to_f8(value), 0x7f);
            continue;
        }
        assert_true((double)value == f8_value(bits));
        assert_true(!signbit(value) == !(bits & 0x80));
        assert_int_equal(f32_to_f8(value), bits);
    }
}

/* Half way between neighbours goes to the even one, and a float to either side of that does not;
 * beyond the last is the last. */
static void test_f32_to_f8_rounds_to_even(void **state)
{
    (void)state;
    for (uint32_t low = 0; low < 0x7e; low++) {
        float middle = (float)((f8_value(low) + f8_value(low + 1)) / 2);
        for (uint32_t sign = 0; sign <= 0x80; sign += 0x80) {
            float side = sign ? -1 : 1;
            uint32_t even = low & 1 ? low + 1 : low;
            assert_int_equal(f32_to_f8(side * middle), sign | even);
            assert_int_equal(f32_to_f8(side * nextafterf(middle, 0)), sign | low);
            assert_int_equal(f32_to_f8(side * nextafterf(middle, INFINITY)), sign | (low + 1));
        }
    }
    assert_int_equal(f32_to_f8(449), 0x7e);
    assert_int_equal(f32_to_f8(-1e30f), 0xfe);
    assert_int_equal(f32_to_f8(INFINITY), 0x7e);
    assert_int_equal(f32_to_f8(-INFINITY), 0xfe);
    assert_int_equal(f32_to_f8(-NAN), 0x7f);
    assert_int_equal(f32_to_f8(0x1p-149f), 0);
    assert_int_equal(f32_to_f8(-0.0f), 0x80);
}

/* The value of F16 bits by the definition, infinities as 2^16. */
static double f16_value(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 0x1f), mantissa = bits & 0x3ff;
    double size = exponent ? ldexp(0x400 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return bits & 0x8000 ? -size : size;
}

static void test_f16_to_f32_is_exact(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = f16_to_f32((uint16_t)bits);
        if ((bits & 0x7fff) > 0x7c00) {
            assert_true(isnan(value) && !signbit(value) == !(bits & 0x8000));
            assert_int_equal(f32_to_f16(value), bits | 0x200); /* the payload stays, made quiet */
            continue;
        }
        if ((bits & 0x7fff) == 0x7c00) {
            assert_true(isinf(value) && !signbit(value) == !(bits & 0x8000));
        } else {
            assert_true((double)value == f16_value(bits));
            assert_true(!signbit(value) == !(bits & 0x8000));
        }
        assert_int_equal(f32_to_f16(value), bits);
    }
}

/* Half way between neighbours goes to the even one, and a float to either side of that does not;
 * beyond the last, half way goes to infinity. */
static void test_f32_to_f16_rounds_to_even(void **state)
{
    (void)state;
    for (uint32_t low = 0; low < 0x7c00; low++) {
        float middle = (float)((f16_value(low) + f16_value(low + 1)) / 2);
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            float side = sign ? -1 : 1;
            uint32_t even = low & 1 ? low + 1 : low;
            assert_int_equal(f32_to_f16(side * middle), sign | even);
            assert_int_equal(f32_to_f16(side * nextafterf(middle, 0)), sign | low);
            assert_int_equal(f32_to_f16(side * nextafterf(middle, 1e9f)), sign | (low + 1));
        }
    }
    assert_int_equal(f32_to_f16(FLT_TRUE_MIN), 0);
    assert_int_equal(f32_to_f16(-FLT_TRUE_MIN), 0x8000);
    assert_int_equal(f32_to_f16(FLT_MAX), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = bf16_to_f32((uint16_t)bits);
        assert_int_equal(float_bits(value), bits << 16);
        uint32_t magnitude = bits & 0x7fff;
        if (magnitude > 0x7f80) {
            assert_int_equal(f32_to_bf16(value), bits | 0x40);
            assert_int_equal(f32_to_bf16(float_from_bits(bits << 16 | 0xffff)), bits | 0x40);
            continue;
        }
        assert_int_equal(f32_to_bf16(value), bits);
        if (magnitude == 0x7f80) continue;
        /* Below, at and above half way to the next, which may be infinity. */
        assert_int_equal(f32_to_bf16(float_from_bits(bits << 16 | 0x7fff)), bits);
        assert_int_equal(f32_to_bf16(float_from_bits(bits << 16 | 0x8000)), bits + (bits & 1));
        assert_int_equal(f32_to_bf16(float_from_bits(bits << 16 | 0x8001)), bits + 1);
    }
    assert_true(isnan(bf16_to_f32(f32_to_bf16(float_from_bits(0x7f800001u)))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_equals_ggml),
        cmocka_unit_test(test_encode_equals_ggml),
        cmocka_unit_test(test_search_is_no_worse_than_ggml),
        cmocka_unit_test(test_round_trip_error),
        cmocka_unit_test(test_importance_lowers_the_error_that_matters),
        cmocka_unit_test(test_can_encode),
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_extremes_are_defined),
        cmocka_unit_test(test_searches_saturate),
        cmocka_unit_test(test_constant_sub_blocks),
        cmocka_unit_test(test_plain_types),
        cmocka_unit_test(test_f8_to_f32_is_exact),
        cmocka_unit_test(test_f32_to_f8_rounds_to_even),
        cmocka_unit_test(test_f16_to_f32_is_exact),
        cmocka_unit_test(test_f32_to_f16_rounds_to_even),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
