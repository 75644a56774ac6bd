/* linear_quant with AMX: a tile of 16 rows of x and 16 weight rows in one instruction per scale.
 *
 * The packed weights already have the layout of the second operand: words of four values, rows of
 * the weight side by side. Sums leave the tile registers after every scale, through memory in L1,
 * and the vector unit scales them, one block later than the tile unit so that both are busy. The
 * arithmetic, and thus every bit, is that of the other variants. Fewer rows of x than a tile has
 * use vpdpbusd.
 */
#include "op/linear/linear_quant_zmm.inc"

#define KERNELS      quant_kernels_amx
#define OFFSET8      1
#define SIGNED_BYTES 1
#define FETCH_FAR    1

static inline __attribute__((always_inline)) vint v_dot4(vint sum, const vint *w, const int8_t *x,
                                                         int bits)
{
    (void)bits;
    for (int s = 0; s < 4; s++)
        sum = _mm512_dpbusd_epi32(sum, w[s], four_values(x + 4 * s));
    return sum;
}

#include "op/linear/linear_quant_kernel.inc"

/* Tile registers, macros because they become parts of names: sums; x (16 rows, values of a scale);
 * weights (words of a scale, 16 rows). */
#define SUMS     0
#define X_VALUES 1
#define WEIGHTS  2

enum { TILE_SUMS = QUANT_TILE * QUANT_ROWS };

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

static const tile_config configs[2] = {
    {.palette = 1, .row_bytes = {64, 32, 64}, .rows = {16, 16, 8}}, /* a scale for 32 values */
    {.palette = 1, .row_bytes = {64, 16, 64}, .rows = {16, 16, 4}}, /* for 16 */
};

static void configure(const quant_format *f)
{
    _tile_loadconfig(&configs[f->groups - 1]);
}

static void release(void)
{
    _tile_release();
}

/* dots (digits, groups, 16 rows of x, 16 weight rows) of a block. */
INLINE void tile_dots(const quant_format *f, int digits, const uint8_t *bytes, const int8_t *q,
                      int32_t *dots)
{
    for (int g = 0; g < f->groups; g++) {
        _tile_loadd(WEIGHTS, bytes + 4 * g * WORD_BYTES, WORD_BYTES);
        for (int i = 0; i < digits; i++) {
            _tile_zero(SUMS);
            _tile_loadd(X_VALUES, q + i * QUANT_TILE * QUANT_BLOCK + 16 * g, QUANT_BLOCK);
            _tile_dpbssd(SUMS, X_VALUES, WEIGHTS);
            _tile_stored(SUMS, dots + (i * f->groups + g) * TILE_SUMS, WORD_BYTES);
        }
    }
}

/* The contribution of a block to 16 rows of sums. */
INLINE void add_dots(const quant_format *f, int digits, const int32_t *dots, const float *scales,
                     quant_x x, vfloat *out)
{
    vfloat scale[2], minimum[2];
    for (int g = 0; g < f->groups; g++) {
        scale[g] = v_load_floats(scales + g * QUANT_ROWS);
        if (f->minimum) minimum[g] = v_load_floats(scales + (f->groups + g) * QUANT_ROWS);
    }
    UNROLL16 for (int r = 0; r < QUANT_TILE; r++)
    {
        vint sums[2];
        for (int g = 0; g < f->groups; g++) {
            const int32_t *of = dots + g * TILE_SUMS + r * QUANT_ROWS;
            sums[g] = v_load(of);
            if (digits == 2)
                sums[g] = join_digits(digits, sums[g], v_load(of + f->groups * TILE_SUMS));
        }
        out[r] = add_block(f, sums, scale, minimum, x.d + r, x.c, r, QUANT_TILE, out[r]);
    }
}

INLINE void run_whole_tile(const quant_format *f, int digits, const uint8_t *bytes,
                           const float *scales, int count, quant_x x, float *sums)
{
    _Alignas(64) int32_t dots[2][2 * 2 * TILE_SUMS];
    vfloat out[QUANT_TILE];
    UNROLL16 for (int r = 0; r < QUANT_TILE; r++)
    {
        out[r] = v_load_floats(sums + r * QUANT_SUMS);
    }
    tile_dots(f, digits, bytes, x.q, dots[0]);
    for (int b = 0; b < count; b++) {
        if (b + 1 < count)
            tile_dots(f, digits, bytes + (b + 1) * 8 * WORD_BYTES,
                      x.q + (b + 1) * digits * QUANT_TILE * QUANT_BLOCK, dots[(b + 1) % 2]);
        add_dots(
            f, digits, dots[b % 2], scales + b * quant_scale_floats(f),
            (quant_x){.d = x.d + b * QUANT_TILE, .c = (float *)x.c + b * QUANT_TILE * f->groups},
            out);
    }
    UNROLL16 for (int r = 0; r < QUANT_TILE; r++)
    {
        v_store_floats(sums + r * QUANT_SUMS, out[r]);
    }
}

INLINE void run_tile_amx(const quant_format *f, int offset, int digits, const uint8_t *bytes,
                         const float *scales, int count, quant_x x, int rows, int n_groups,
                         float *sums)
{
    if (rows < QUANT_TILE) { /* the vector unit by itself is as fast */
        run_tile(f, offset, digits, bytes, scales, count, x, rows, n_groups, sums);
        return;
    }
    for (int g = 0; g < n_groups; g++)
        run_whole_tile(f, digits, bytes + g * QUANT_CHUNK_BYTES,
                       scales + g * QUANT_CHUNK * quant_scale_floats(f), count, x,
                       sums + g * QUANT_ROWS);
}

#define RUN_TILE run_tile_amx
#define FEW_ROWS (QUANT_TILE - 1)
#define BEGIN    configure
#define END      release
#include "op/linear/linear_quant_table.inc"
