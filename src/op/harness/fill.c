/* Filling test inputs: see fill.h. */
#include "op/harness/fill.h"

#include "op/element.h"
#include "op/harness/fixture.h"

#include <math.h>

const char *fill_name(fill_kind fill)
{
    static const char *const names[FILL_COUNT] = {
        [FILL_NORMAL] = "normal values",     [FILL_ZEROS] = "zeros",
        [FILL_SMALL] = "small values",       [FILL_DENORMALS] = "denormals",
        [FILL_TIES] = "few distinct values", [FILL_HUGE] = "huge values",
        [FILL_INFINITY] = "infinities",      [FILL_NAN] = "NaN",
    };
    return names[fill];
}

bool fill_applies(const op_info *op, fill_kind fill)
{
    switch (fill) {
    case FILL_HUGE:
        return op->fills & OP_FILL_HUGE;
    case FILL_INFINITY:
        return op->fills & OP_FILL_INFINITY;
    case FILL_NAN:
        return op->fills & OP_FILL_NAN;
    default:
        return true;
    }
}

/* Adds four uniform 16-bit parts: close to normal, and the same on every machine. */
static double normal_value(uint64_t bits)
{
    double sum = 0;
    for (int part = 0; part < 4; part++)
        sum += ((double)(bits >> 16 * part & 0xffff) + 0.5) * 0x1p-16;
    return (sum - 2) * 1.7320508075688772; /* four variances of 1/12 to one of 1 */
}

/* The type's smallest positive value, and how many of them make the smallest normal one. */
static double denormal_value(dtype type, uint64_t bits)
{
    double quantum = type == DTYPE_F16    ? 0x1p-24
                     : type == DTYPE_BF16 ? 0x1p-133
                     : type == DTYPE_F8   ? 0x1p-9
                                          : 0x1p-149;
    uint64_t count = type == DTYPE_F16    ? 1 << 10
                     : type == DTYPE_BF16 ? 1 << 7
                     : type == DTYPE_F8   ? 1 << 3
                                          : 1 << 23;
    return quantum * (double)(bits % count) * (bits >> 63 ? -1 : 1);
}

static double fill_value(dtype type, fill_kind fill, uint64_t bits, uint64_t row_bits)
{
    double value = normal_value(bits);
    uint64_t choice = hash_mix(bits);
    switch (fill) {
    case FILL_ZEROS:
        return bits & 1 ? -0.0 : 0.0;
    case FILL_SMALL:
        return value * 0x1p-10;
    case FILL_DENORMALS:
        return denormal_value(type, choice);
    case FILL_TIES:
        return round(2 * value) / 2;
    case FILL_HUGE:
        return value * (type == DTYPE_F16 ? 0x1p14 : type == DTYPE_F8 ? 0x1p7 : 0x1p50);
    case FILL_INFINITY:
        return row_bits % 4 == 0 || choice % 4 == 0 ? -INFINITY : value;
    case FILL_NAN:
        return choice % 64 == 0 ? NAN : value;
    default:
        return value;
    }
}

/* Offset of the F16 scales in a block; -1: none. F8_128 has one in F32. */
static const int scale_offsets[DTYPE_COUNT][2] = {
    [DTYPE_Q8_0] = {0, -1},    [DTYPE_Q4_0] = {0, -1},    [DTYPE_Q4_1] = {0, 2},
    [DTYPE_Q5_0] = {0, -1},    [DTYPE_Q5_1] = {0, 2},     [DTYPE_Q2_K] = {80, 82},
    [DTYPE_Q3_K] = {108, -1},  [DTYPE_Q4_K] = {0, 2},     [DTYPE_Q5_K] = {0, 2},
    [DTYPE_Q6_K] = {208, -1},  [DTYPE_F8_128] = {-1, -1}, [DTYPE_IQ4_NL] = {0, -1},
    [DTYPE_IQ4_XS] = {0, -1},  [DTYPE_NVFP4] = {-1, -1},  [DTYPE_TQ1_0] = {52, -1},
    [DTYPE_TQ2_0] = {64, -1},  [DTYPE_IQ3_XXS] = {0, -1}, [DTYPE_IQ3_S] = {0, -1},
    [DTYPE_IQ2_XXS] = {0, -1}, [DTYPE_IQ2_XS] = {0, -1},  [DTYPE_IQ2_S] = {0, -1},
    [DTYPE_IQ1_S] = {0, -1},   [DTYPE_IQ1_M] = {-1, -1},  [DTYPE_MXFP4] = {-1, -1},
};

/* Random bits, which are always a valid block, with scales of a usual magnitude. */
static void fill_block(dtype type, fill_kind fill, uint64_t seed, unsigned char *block)
{
    size_t size = dtype_block_bytes(type);
    for (size_t i = 0; i < size; i++)
        block[i] = fill == FILL_ZEROS ? 0 : (unsigned char)hash_random(seed, 1, i);
    if (type == DTYPE_F8_128 && fill != FILL_ZEROS) {
        for (size_t i = sizeof(float); i < size; i++)
            if ((block[i] & 0x7f) == 0x7f) block[i] ^= 1; /* no NaN */
        element_store(DTYPE_F32, block, 0, normal_value(hash_random(seed, 2, 0)) * 0x1p-6);
    }
    if (type == DTYPE_MXFP4 && fill != FILL_ZEROS) block[0] = (unsigned char)(118 + block[0] % 8);
    for (int i = 0; i < 4 && type == DTYPE_NVFP4; i++)
        block[i] &= 0x1f;                              /* below 1/8 */
    for (int i = 0; i < 4 && type == DTYPE_IQ1_M; i++) /* its F16, about 0x2000, in four nibbles */
        block[49 + 2 * i] = (unsigned char)((block[49 + 2 * i] & 15) | (i == 3 ? 0x20 : 0));
    for (int scale = 0; scale < 2 && fill != FILL_ZEROS; scale++) {
        int at = scale_offsets[type][scale];
        if (at < 0) continue;
        double value = normal_value(hash_random(seed, 2, (uint64_t)scale)) * 0x1p-6;
        element_store(DTYPE_F16, block + at, 0, value);
    }
}

static void fill_row(const tensor *view, fill_kind fill, uint64_t seed, unsigned char *row)
{
    int64_t n = view->shape[view->rank - 1] / dtype_block_elements(view->type);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = hash_random(seed, 0, (uint64_t)i);
        if (dtype_is_quantized(view->type))
            fill_block(view->type, fill, bits, row + (size_t)i * dtype_block_bytes(view->type));
        else if (view->type == DTYPE_I32 || view->type == DTYPE_I64)
            element_store(view->type, row, i, 0);
        else
            element_store(view->type, row, i, fill_value(view->type, fill, bits, hash_mix(seed)));
    }
}

void fill_tensor(const tensor *view, fill_kind fill, uint64_t seed)
{
    for (int64_t row = 0; row < view_rows(view); row++)
        fill_row(view, fill, hash_random(seed, 3, (uint64_t)row), view_row(view, row));
}
