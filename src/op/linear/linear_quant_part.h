/* Shared by the files of linear_quant: the formats, the packed weights, the rounded x, and what an
 * instruction set provides.
 *
 * Packed weights, for every 16 rows (a group; rows that are not there are zeros):
 *
 *   halves   (blocks, halves, 16) F16     scales: d of 16 rows, then m or dmin of 16 rows
 *            padded to 64 bytes
 *   words    (blocks, words, 16) 32 bits  a word of a stored block, of 16 rows; the order of the
 *                                         words as stored, the halves left out
 *
 * A lane of a vector register is a weight row, a 32-bit word of it four neighbouring values for
 * vpdpbusd or vpmaddubsw, and nothing is ever summed across lanes. The one word that is rewritten
 * is qh of Q5_0 and Q5_1: bit 8 * b + s of it belongs to value 4 * s + b.
 *
 * Rounded x: rows in tiles of `height`, a block's rows of a tile together (few rows are one tile):
 *
 *   q   (tiles, blocks, digits, height, 32) int8; of two digits the value is the first
 *                                                plus 255 times the second, both in [-127, 127]
 *   d   (tiles, blocks, height)             float
 *   c   (tiles, blocks, groups, height)     for types with minima d * (sum of q), float; for others
 *                                           -offset * (sum of q), int32; of each scale's values
 */
#pragma once

#include "op/linear/linear_quant.h"
#include "tensor/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    QUANT_BLOCK = 32, /* values that share a scale of x */
    QUANT_ROWS = 16,  /* weight rows packed together */
    QUANT_TILE = 16,  /* rows of x together, when there are many */
    QUANT_PAIR = 2,   /* groups multiplied with rows of x at a time: a load of x serves both */
    QUANT_CHUNK = 16, /* blocks of a pair unpacked at a time: with their scales they stay in L1 */
    QUANT_CHUNK_BYTES = QUANT_CHUNK * QUANT_BLOCK * QUANT_ROWS,
    QUANT_SUMS = QUANT_PAIR * QUANT_ROWS, /* sums of a row of x */
    QUANT_LEVELS_16 = 127 * 256,          /* the greatest value of two digits: 127 + 255 * 127 */
};

/* Blocks whose greatest magnitude is below this are rounded to zeros: levels / magnitude is finite
 * from here on. */
#define QUANT_LEAST_8  0x1p-120f
#define QUANT_LEAST_16 0x1p-110f

typedef struct quant_format {
    dtype type;
    int blocks;    /* blocks of 32 in a stored block */
    int bytes;     /* of a stored block */
    int words;     /* 32-bit words of a stored block besides the halves */
    int halves;    /* fields of 16 bits of a stored block: F16 scales, scales_h of IQ4_XS,
                    * and in the low byte e of MXFP4 */
    int halves_at; /* where in the stored block, in bytes */
    int groups;    /* scales for a block of 32: 1 or 2 */
    bool minimum;
    int offset; /* unpacked values are unsigned, that much above what they mean */
    int bits;   /* of an unpacked value; those of 8 are signed unless v_dot4 wants them lifted */
} quant_format;

/* X(NAME, name, blocks, bytes, words, halves, halves_at, groups, minimum, offset, bits) */
#define QUANT_FORMATS(X)                                                                           \
    X(Q8_0, q8_0, 1, 34, 8, 1, 0, 1, false, 128, 8)                                                \
    X(Q4_0, q4_0, 1, 18, 4, 1, 0, 1, false, 8, 4)                                                  \
    X(Q4_1, q4_1, 1, 20, 4, 2, 0, 1, true, 0, 4)                                                   \
    X(Q5_0, q5_0, 1, 22, 5, 1, 0, 1, false, 16, 5)                                                 \
    X(Q5_1, q5_1, 1, 24, 5, 2, 0, 1, true, 0, 5)                                                   \
    X(Q2_K, q2_k, 8, 84, 20, 2, 80, 2, true, 0, 2)                                                 \
    X(Q3_K, q3_k, 8, 110, 27, 1, 108, 2, false, 4, 3)                                              \
    X(Q4_K, q4_k, 8, 144, 35, 2, 0, 1, true, 0, 4)                                                 \
    X(Q5_K, q5_k, 8, 176, 43, 2, 0, 1, true, 0, 5)                                                 \
    X(Q6_K, q6_k, 8, 210, 52, 1, 208, 2, false, 32, 6)                                             \
    X(IQ4_NL, iq4_nl, 1, 18, 4, 1, 0, 1, false, 128, 8)                                            \
    X(IQ4_XS, iq4_xs, 8, 136, 33, 2, 0, 1, false, 128, 8)                                          \
    X(NVFP4, nvfp4, 2, 36, 9, 0, 0, 2, false, 12, 5)                                               \
    X(TQ1_0, tq1_0, 8, 54, 13, 1, 52, 1, false, 1, 2)                                              \
    X(TQ2_0, tq2_0, 8, 66, 16, 1, 64, 1, false, 1, 2)                                              \
    X(IQ3_XXS, iq3_xxs, 8, 98, 24, 1, 0, 1, false, 62, 7)                                          \
    X(IQ3_S, iq3_s, 8, 110, 27, 1, 0, 1, false, 15, 5)                                             \
    X(IQ2_XXS, iq2_xxs, 8, 66, 16, 1, 0, 1, false, 43, 7)                                          \
    X(IQ2_XS, iq2_xs, 8, 74, 18, 1, 0, 2, false, 43, 7)                                            \
    X(IQ2_S, iq2_s, 8, 82, 20, 1, 0, 2, false, 43, 7)                                              \
    X(IQ1_S, iq1_s, 8, 50, 12, 1, 0, 1, false, 9, 5)                                               \
    X(IQ1_M, iq1_m, 8, 56, 14, 0, 0, 2, false, 9, 5)                                               \
    X(MXFP4, mxfp4, 1, 17, 4, 1, 0, 1, false, 12, 5)

enum {
#define X(NAME, name, ...) QUANT_##NAME,
    QUANT_FORMATS(X)
#undef X
        QUANT_N_FORMATS
};

static const quant_format quant_formats[QUANT_N_FORMATS] = {
#define X(NAME, name, ...) {DTYPE_##NAME, __VA_ARGS__},
    QUANT_FORMATS(X)
#undef X
};

/* What a tile sees of a format once it is unpacked: formats of one shape share its kernel. Values
 * of fewer than 4 bits are multiplied as those of 4 are. */
#define QUANT_SHAPE(groups, minimum, bits)                                                         \
    (((bits) > 4 ? (bits)-4 : 0) * 4 + ((groups)-1) * 2 + ((minimum) ? 1 : 0))
enum { QUANT_N_SHAPES = QUANT_SHAPE(2, true, 8) + 1 };

static inline int quant_shape_of(const quant_format *f)
{
    return QUANT_SHAPE(f->groups, f->minimum, f->bits);
}

/* Bytes of a group's halves and of a whole group, for rows of n_blocks blocks of 32. */
static inline size_t quant_halves_bytes(const quant_format *f, int64_t n_blocks)
{
    size_t bytes = (size_t)(n_blocks / f->blocks * f->halves * QUANT_ROWS) * sizeof(uint16_t);
    return (bytes + 63) & ~(size_t)63;
}
static inline size_t quant_group_bytes(const quant_format *f, int64_t n_blocks)
{
    size_t words = (size_t)(n_blocks / f->blocks * f->words * QUANT_ROWS) * sizeof(uint32_t);
    return quant_halves_bytes(f, n_blocks) + words;
}

/* Floats that a block's scales take when unpacked: (groups, 16) and for minima as much again. */
static inline int quant_scale_floats(const quant_format *f)
{
    return f->groups * (f->minimum ? 2 : 1) * QUANT_ROWS;
}

/* Rounded x from some tile and block on. */
typedef struct quant_x {
    int8_t *q;
    float *d;
    void *c; /* 32-bit elements */
} quant_x;

/* What an instruction set provides; pointers to packed groups are to their beginning. */
typedef struct quant_kernels {
    int few_rows; /* up to this many rows, `few` is faster than `unpack` and `tile` */
    /* Around a thread's calls of the tiles of a format; NULL: nothing to prepare. */
    void (*begin)(const quant_format *f);
    void (*end)(void);
    /* Of what follows, [0] is for x of one digit and [1] for two.
     * Rounds a row, n_blocks * 32 floats; `to` points to its place in its tile. */
    void (*round[2])(const quant_format *f, const float *x, int64_t n_blocks, int height,
                     quant_x to);
    struct {
        /* out[16] = one row of x, height 1, times a group. */
        void (*vector[2])(const uint8_t *group, int64_t n_blocks, quant_x x, float *out);
        /* sums (rows, 2, 16): of its first 16 = `rows` rows of x, height `rows`, times a group. */
        void (*few[2])(const uint8_t *group, int64_t n_blocks, quant_x x, int rows, float *sums);
        /* Blocks [first, first + count) of a group to bytes (count, 8 words, 16, 4) and scales
         * (count, quant_scale_floats); `first` is a multiple of the stored block. */
        void (*unpack)(const uint8_t *group, int64_t n_blocks, int64_t first, int count,
                       uint8_t *bytes, float *scales);
    } of[QUANT_N_FORMATS];
    /* By shape: adds the products of `rows` <= 16 rows of a tile and `count` unpacked blocks of one
     * or two groups, from bytes (2, QUANT_CHUNK, 8 words, 16, 4) and scales (2, QUANT_CHUNK,
     * quant_scale_floats), to sums (rows, 2, 16). */
    void (*tile[QUANT_N_SHAPES][2])(int offset, const uint8_t *bytes, const float *scales,
                                    int count, quant_x x, int rows, int n_groups, float *sums);
} quant_kernels;

#define QUANT_KERNELS_DECLARE(level, ...) extern const quant_kernels quant_kernels_##level;
LINEAR_QUANT_LEVELS(QUANT_KERNELS_DECLARE)
