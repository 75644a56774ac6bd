/* Quantised matrices in the order in which chains multiply them: shared by host and GPU.
 *
 * A unit is what one warp multiplies at a time: 16 rows by 64 columns. Four units, one below the
 * other, are a group of 64 rows by 64 columns; the groups of the same rows follow one another, so
 * that one bulk copy brings several. Lane 4 g + t has rows g and g + 8 of a unit and, of each 16
 * columns k, columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, as wgmma takes them from registers:
 *
 *     4 bits  [lane][k] a word: row g in the low nibbles of its bytes, row g + 8 in the high ones;
 *             columns in the order of bytes, or for Q4_0 0, 2, 1, 3
 *     8 bits  [k / 2][lane][k % 2][row g, row g + 8] a word
 *     scales  [g] of 32 columns: [half][row g, row g + 8] a float
 *             [k / 2][g] of 16 columns: [k % 2][row g, row g + 8] a float
 *             of a row of FP8: elsewhere, in the order of the rows of units
 *
 * Q4_0's scales are the sum of two BF16 numbers. A level u stands for scale * (u - zero) + minimum;
 * minima follow the scales in the same order.
 */
#pragma once

#include "op/portable.h"

enum {
    PACKED_NONE,
    PACKED_Q4_0, /* 4 bits, zero at 8, scales of 32 columns */
    PACKED_Q4,   /* 4 bits, scales and minima of 32 columns: Q4_1, Q4_K */
    PACKED_Q6,   /* 8 bits, zero at 32, scales of 16 columns: Q6_K */
    PACKED_F8,   /* 8 bits, E4M3 with scales of rows */
};

enum {
    PACKED_ROWS = 16,       /* of a unit */
    PACKED_COLUMNS = 64,    /* of a unit */
    PACKED_GROUP_UNITS = 4, /* one below the other */
    PACKED_GROUP_ROWS = PACKED_ROWS * PACKED_GROUP_UNITS,
    PACKED_SCALES = 128, /* bytes of 32 scales */
};

/* Bytes of a unit's levels, and of a unit. */
OP_FN int packed_level_bytes(int kind)
{
    return kind == PACKED_Q4_0 || kind == PACKED_Q4 ? 512 : 1024;
}
OP_FN int packed_unit_bytes(int kind)
{
    if (kind == PACKED_F8) return packed_level_bytes(kind);
    return packed_level_bytes(kind) +
           (kind == PACKED_Q4 || kind == PACKED_Q6 ? 2 * PACKED_SCALES : PACKED_SCALES);
}

/* Groups that a stage of a chain's ring has of the same rows. */
OP_FN int packed_depths(int kind)
{
    return kind == PACKED_Q6 ? 1 : 2;
}

/* A matrix to pack, or a gate and its up: eight rows of the gate, then eight of the up. */
typedef struct packed_matrix {
    uint64_t from[2], to; /* addresses: of rows as stored; the second is 0 without an up */
    uint64_t scales_from[2], scales_to; /* of FP8, a float a row */
    int64_t row_bytes;
    int32_t type; /* dtype */
    int32_t kind;
    int32_t rows, columns; /* rows of both; columns: a multiple of PACKED_COLUMNS */
} packed_matrix;

/* A matrix in BF16, or a gate with its up below it, to be stored again as the tiles of a chain's
 * product (linear_chain.h): tile by tile, and in a tile 64 columns by 64, as rows of 128 bytes in
 * the 128-byte swizzle of shared memory. Rows after the last are zeros. */
typedef struct tiled_matrix {
    uint64_t from, to; /* addresses */
    int64_t row_bytes;
    int32_t rows, columns; /* rows of both; columns: a multiple of 64 */
    int32_t tile_rows;
    int32_t pairs; /* a tile has eight rows of the gate, then eight of the up, and so on */
} tiled_matrix;

OP_FN int64_t packed_groups(int64_t rows, int64_t columns)
{
    return (rows + PACKED_GROUP_ROWS - 1) / PACKED_GROUP_ROWS * (columns / PACKED_COLUMNS);
}
