/* Fragments, the megakernel's order of quantised weights: each lane finds the values of the stored
 * rows, for every type and every cut. */
#include "test.h"

#include "tensor/codec.h"
#include "tensor/dtype.h"
#include "tensor/float16.h"
#include "tensor/float8.h"
#include "vm/mega/fragments.h"

static const struct {
    int kind;
    dtype type;
} kinds[] = {{FRAGMENT_Q8_0, DTYPE_Q8_0},  {FRAGMENT_Q4_0, DTYPE_Q4_0}, {FRAGMENT_Q4_1, DTYPE_Q4_1},
             {FRAGMENT_Q4_K, DTYPE_Q4_K},  {FRAGMENT_Q6_K, DTYPE_Q6_K}, {FRAGMENT_F8, DTYPE_F8},
             {FRAGMENT_F8_DOWN, DTYPE_F8}, {FRAGMENT_BF16, DTYPE_BF16}};

static uint32_t word_at(const uint8_t *fragment, int at)
{
    uint32_t w;
    memcpy(&w, fragment + at, sizeof w);
    return w;
}
static float half_at(const uint8_t *fragment, int at)
{
    uint16_t bits;
    memcpy(&bits, fragment + at, sizeof bits);
    return f16_to_f32(bits);
}

/* A number of `bits` bits in two's complement. */
static int signed_bits(uint32_t value, int bits)
{
    return (int)(value ^ 1u << (bits - 1)) - (1 << (bits - 1));
}

/* The i-th of a lane's four columns of half f, in row g + 8 h of block j: as the kernels take it
 * out of the words that fragments.h draws. */
static float value_in_fragment(int kind, const uint8_t *fragment, int j, int lane, int f, int h,
                               int i)
{
    int g = lane / 4, row = (g * 4 + j) * 2 + h;
    if (kind == FRAGMENT_Q8_0) {
        uint32_t w = word_at(fragment, j * 512 + lane * 16 + f * 8 + h * 4);
        return half_at(fragment, 2048 + 2 * row) * (float)signed_bits(w >> 8 * i & 255, 8);
    }
    if (kind == FRAGMENT_BF16) {
        uint16_t bits;
        memcpy(&bits, fragment + (j * 2 + f) * 512 + lane * 16 + h * 8 + i * 2, sizeof bits);
        return bf16_to_f32(bits);
    }
    if (kind == FRAGMENT_F8 || kind == FRAGMENT_F8_DOWN) {
        uint32_t w = word_at(fragment, j * 512 + lane * 16 + f * 8 + h * 4);
        float scale = 1;
        if (kind == FRAGMENT_F8) memcpy(&scale, fragment + 2048 + g * 8 + h * 4, sizeof scale);
        return f8_to_f32((uint8_t)(w >> 8 * i & 255)) * scale;
    }
    uint32_t w = word_at(fragment, j / 2 * 512 + lane * 16 + j % 2 * 8 + f * 4);
    uint32_t quant = w >> (8 * i + 4 * h) & 15;
    if (kind == FRAGMENT_Q4_0)
        return half_at(fragment, 1024 + 2 * row) *
               (float)(h ? signed_bits(quant, 4) : (int)quant - 8);
    int d = 1024 + j / 2 * 128 + g * 16 + j % 2 * 8 + h * 4, packed = 1280 + 2 * row;
    if (kind == FRAGMENT_Q4_1)
        return half_at(fragment, d) * (float)quant + half_at(fragment, d + 2);
    if (kind == FRAGMENT_Q4_K) {
        float scale = half_at(fragment, d) * (float)fragment[packed];
        float min = half_at(fragment, d + 2) * (float)fragment[packed + 1];
        return scale * (float)quant - min;
    }
    uint32_t high = word_at(fragment, 1024 + lane * 16 + j * 4);
    quant |= (high >> (8 * i + 4 * f + 2 * h) & 3) << 4;
    d = 1536 + j * 64 + g * 8 + h * 4;
    return half_at(fragment, d) * (float)(int8_t)fragment[d + 2 + f] * (float)signed_bits(quant, 6);
}

/* Random blocks whose scales are numbers. */
static uint8_t *make_rows(dtype type, int64_t blocks)
{
    static const int scales[][2] = {
        [DTYPE_Q8_0] = {0, -1}, [DTYPE_Q4_0] = {0, -1},   [DTYPE_Q4_1] = {0, 2},
        [DTYPE_Q4_K] = {0, 2},  [DTYPE_Q6_K] = {208, -1}, [DTYPE_F8] = {-1, -1},
        [DTYPE_BF16] = {-1, -1}};
    size_t bytes = dtype_block_bytes(type);
    uint8_t *rows = malloc((size_t)blocks * bytes);
    uint32_t seed = 1;
    assert_non_null(rows);
    for (size_t i = 0; i < (size_t)blocks * bytes; i++)
        rows[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
    for (size_t i = 0; type == DTYPE_F8 && i < (size_t)blocks; i++)
        if ((rows[i] & 0x7f) == 0x7f) rows[i] = 0x7e; /* no NaN */
    for (size_t i = 1; type == DTYPE_BF16 && i < 2 * (size_t)blocks; i += 2)
        rows[i] = (uint8_t)(rows[i] & 0xbf); /* the same */
    for (int64_t b = 0; b < blocks; b++)
        for (int i = 0; i < 2; i++) {
            uint16_t d = f32_to_f16((float)((seed = seed * 1664525 + 1013904223) >> 20) / 4096);
            int at = scales[type][i];
            if (at >= 0) memcpy(rows + (size_t)b * bytes + at, &d, sizeof d);
        }
    return rows;
}

/* The value of an element, of F8 times the scale of its row; of W_down that lies elsewhere. */
static float value_of(const fragment_matrix *m, const float *values, int64_t row, int64_t column)
{
    const float *scales = (const float *)(uintptr_t)m->scales;
    return values[row * m->columns + column] * (m->kind == FRAGMENT_F8 ? scales[row] : 1);
}

/* Every element of the matrix lies in exactly one place, with its value; the rest is zero. */
static void check(dtype type, const fragment_matrix *m)
{
    int64_t elements = (int64_t)m->rows * m->columns, count = fragment_count(m);
    uint8_t *rows = make_rows(type, elements / dtype_block_elements(type));
    uint8_t *fragments = malloc((size_t)count * (size_t)fragment_bytes(m->kind));
    float *values = malloc((size_t)elements * sizeof *values);
    char *seen = calloc(1, (size_t)elements);
    assert_true(fragments && values && seen);
    dtype_decode(type, rows, values, elements);
    for (int64_t n = 0; n < count; n++)
        for (int lane = 0; lane < 32; lane++)
            fragment_write(m, rows, fragments, n, lane);
    int64_t found = 0;
    for (int64_t n = 0; n < count; n++)
        for (int at = 0; at < fragment_blocks(m->kind) * 32 * 16; at++) {
            int j = at / 512, lane = at / 16 % 32, f = at / 8 % 2, h = at / 4 % 2, i = at % 4;
            float value = value_in_fragment(m->kind, fragments + n * fragment_bytes(m->kind), j,
                                            lane, f, h, i);
            fragment_place p = fragment_place_of(m, n, j);
            int64_t row = fragment_row(m, p.row, lane / 4 + 8 * h);
            if (!p.columns || row >= m->rows) {
                assert_true(value == 0);
                continue;
            }
            int64_t place = row * m->columns + p.column + fragment_column(lane % 4, f, i);
            assert_true(value ==
                        value_of(m, values, row, p.column + fragment_column(lane % 4, f, i)));
            assert_false(seen[place]);
            seen[place] = 1;
            found++;
        }
    assert_int_equal(found, elements);
    free(rows);
    free(fragments);
    free(values);
    free(seen);
}

static void fragments_hold_the_rows(void **state)
{
    (void)state;
    static const fragment_matrix cuts[] = {
        {.form = FRAGMENTS_OF_ROWS, .rows = 40, .columns = 768},
        {.form = FRAGMENTS_OF_ROWS, .rows = 32, .columns = 2304},
        {.form = FRAGMENTS_OF_PAIRS, .rows = 128, .columns = 256, .head_dim = 64, .turns_apart = 1},
        {.form = FRAGMENTS_OF_PAIRS, .rows = 128, .columns = 256, .head_dim = 64},
        {.form = FRAGMENTS_OF_HEADS, .rows = 64, .columns = 768, .head_columns = 192},
        {.form = FRAGMENTS_OF_FEATURES, .rows = 192, .columns = 512},
    };
    float scales[192];
    for (int r = 0; r < 192; r++)
        scales[r] = 1.0f / (float)(3 + r);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            fragment_matrix m = cuts[i];
            const bool down = m.form == FRAGMENTS_OF_FEATURES;
            m.kind = kinds[k].kind;
            m.scales = (uint64_t)(uintptr_t)scales;
            if (m.kind == (down ? FRAGMENT_F8 : FRAGMENT_F8_DOWN)) continue;
            if (m.kind == FRAGMENT_BF16 && m.form != FRAGMENTS_OF_ROWS) continue;
            check(kinds[k].type, &m);
            assert_int_equal(fragment_bytes_before(&m),
                             m.kind == FRAGMENT_F8_DOWN ? 4 * m.rows : 0);
        }
}

/* A tile of QKV's rows: four first features, their four partners. */
static void rows_of_pairs_are_in_the_order_of_units(void **state)
{
    (void)state;
    fragment_matrix m = {.form = FRAGMENTS_OF_PAIRS, .head_dim = 64, .turns_apart = 1};
    assert_int_equal(fragment_row(&m, 0, 0), 0);
    assert_int_equal(fragment_row(&m, 0, 3), 3);
    assert_int_equal(fragment_row(&m, 0, 4), 32);
    assert_int_equal(fragment_row(&m, 0, 8), 4);
    assert_int_equal(fragment_row(&m, 64 + 16, 12), 64 + 32 + 8 + 4);
    m.turns_apart = 0;
    assert_int_equal(fragment_row(&m, 0, 4), 1);
    assert_int_equal(fragment_row(&m, 16, 1), 18);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_hold_the_rows),
        cmocka_unit_test(rows_of_pairs_are_in_the_order_of_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
