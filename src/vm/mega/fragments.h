/* Quantised weights in the megakernel's order: fragments. Host and GPU share this code.
 *
 * A fragment is what one warp multiplies at a time: 4 blocks of 16 rows by 32 columns, side by side
 * or, of W_down, one below the other, in the order in which lanes feed them to the tensor cores.
 * Lane 4 g + t holds rows g and g + 8 of a block, and of each row columns 4 t to 4 t + 3 of both
 * halves of 16 columns. The quants come first, then the scales:
 *
 *     Q8_0   quants [block][lane][4 words]: first half of row g, of row g + 8, then second halves
 *            scales [g][block][row g, row g + 8] F16
 *     Q4_0   quants [2 blocks][lane][block][2 words]: a half of row g in low nibbles, of row g + 8
 *            in high ones; scales as Q8_0
 *     Q4_1   quants as Q4_0; [2 blocks][g][block][row g, row g + 8] d and m, F16 both
 *     Q4_K   quants as Q4_0; d and dmin as Q4_1's d and m
 *            [g][block][row g, row g + 8] scale and minimum, a byte each
 *     Q6_K   low nibbles as Q4_0, high bits [lane][block] a word: two bits of each of four columns,
 *            in each byte from bit 0 on half 0 of row g, of row g + 8, then half 1
 *            [block][g][row g, row g + 8] d in F16, two signed scales of a byte, one for each half
 *     F8       quants, which are E4M3 numbers, as Q8_0; scales [g][row g, row g + 8] F32
 *     F8_DOWN  the same of W_down, where the scales of all rows lie before the fragments
 *     BF16     2 blocks; [block][half][lane][4 words]: the columns of row g, then of row g + 8
 *
 * Quants of types whose levels are centred on zero are in two's complement of their own width
 * (Q8_0, Q6_K, and row g + 8 of Q4_0; row g of Q4_0 is as stored, so that a byte is the number
 * 16 * high + low). Quants of types with a minimum are unsigned.
 */
#pragma once

#include "op/norm_qkv_rope/pairs.h"
#include "op/portable.h"
#include "tensor/codec_blocks.h"

enum {
    FRAGMENT_NONE,
    FRAGMENT_Q8_0,
    FRAGMENT_Q4_0,
    FRAGMENT_Q4_K,
    FRAGMENT_Q6_K,
    FRAGMENT_Q4_1,
    FRAGMENT_F8,
    FRAGMENT_F8_DOWN,
    FRAGMENT_BF16, /* of the output matrix beside F8 */
    FRAGMENT_KINDS,
};

enum {
    FRAGMENT_ROWS = 16,    /* of a block */
    FRAGMENT_COLUMNS = 32, /* of a block */
    FRAGMENT_BLOCKS = 4,
    FRAGMENT_WIDTH = FRAGMENT_BLOCKS * FRAGMENT_COLUMNS,
    FRAGMENT_NIBBLES = 1024, /* bytes of the 4-bit quants of a fragment */
    FRAGMENT_HIGH = FRAGMENT_NIBBLES,
    FRAGMENT_SCALES_Q6_K = FRAGMENT_HIGH + 512,
    FRAGMENT_BYTES_Q8_0 = 2 * FRAGMENT_NIBBLES + 128,
    FRAGMENT_BYTES_Q4_0 = FRAGMENT_NIBBLES + 128,
    FRAGMENT_BYTES_Q4_1 = FRAGMENT_NIBBLES + 256,
    FRAGMENT_BYTES_Q4_K = FRAGMENT_NIBBLES + 384,
    FRAGMENT_BYTES_Q6_K = FRAGMENT_SCALES_Q6_K + 256,
    FRAGMENT_SCALES_F8 = 2 * FRAGMENT_NIBBLES,
    FRAGMENT_BYTES_F8 = FRAGMENT_SCALES_F8 + 64,
    FRAGMENT_BYTES_F8_DOWN = FRAGMENT_SCALES_F8,
    FRAGMENT_BYTES_BF16 = 2048,
};

/* How a matrix is cut into fragments. */
enum {
    FRAGMENTS_OF_ROWS, /* [tile of 16 rows][columns] */
    /* The same, rows in the order of QKV's units: the first features of four pairs, then the second
     * ones. */
    FRAGMENTS_OF_PAIRS,
    FRAGMENTS_OF_HEADS,    /* [KV head][tile of 16 rows][the head's columns] */
    FRAGMENTS_OF_FEATURES, /* [32 columns][rows], a fragment's blocks one below the other */
};

typedef struct fragment_matrix {
    uint64_t from, to; /* addresses: of the rows as stored, of the fragments */
    uint64_t scales;   /* F8: of float [rows], the scales of rows, which are only numbers */
    int32_t kind, form;
    /* Rows: a multiple of 16, or the last tile is not full; columns: a multiple of 32. */
    int32_t rows, columns;
    int32_t head_columns; /* FRAGMENTS_OF_HEADS: columns of a KV head */
    int32_t head_dim;     /* FRAGMENTS_OF_PAIRS: elements of a head, all of which RoPE rotates */
    /* FRAGMENTS_OF_PAIRS: 1: a pair is features i and i + head_dim / 2; 0: 2 i and 2 i + 1. */
    int32_t turns_apart;
    int32_t zero;
} fragment_matrix;

OP_FN int fragment_bytes(int kind)
{
    return kind == FRAGMENT_Q8_0   ? FRAGMENT_BYTES_Q8_0
           : kind == FRAGMENT_Q4_0 ? FRAGMENT_BYTES_Q4_0
           : kind == FRAGMENT_Q4_1 ? FRAGMENT_BYTES_Q4_1
           : kind == FRAGMENT_Q4_K ? FRAGMENT_BYTES_Q4_K
           : kind == FRAGMENT_Q6_K ? FRAGMENT_BYTES_Q6_K
           : kind == FRAGMENT_F8   ? FRAGMENT_BYTES_F8
           : kind == FRAGMENT_BF16 ? FRAGMENT_BYTES_BF16
                                   : FRAGMENT_BYTES_F8_DOWN;
}

OP_FN int fragment_blocks(int kind)
{
    return kind == FRAGMENT_BF16 ? FRAGMENT_BLOCKS / 2 : FRAGMENT_BLOCKS;
}

/* Whether quants take a byte. */
OP_FN int fragment_has_bytes(int kind)
{
    return kind == FRAGMENT_Q8_0 || kind == FRAGMENT_F8 || kind == FRAGMENT_F8_DOWN;
}

/* Bytes of scales before the fragments: a float for each row. */
OP_FN int64_t fragment_bytes_before(const fragment_matrix *m)
{
    return m->kind == FRAGMENT_F8_DOWN ? 4 * (int64_t)m->rows : 0;
}

/* Fragments side by side over so many columns, and one below the other over so many rows of W_down.
 * Fragments of two blocks are twice as many. */
OP_FN int fragments_across(int columns)
{
    return (columns + FRAGMENT_WIDTH - 1) / FRAGMENT_WIDTH;
}
OP_FN int fragments_across_of(int kind, int columns)
{
    return fragments_across(columns) * FRAGMENT_BLOCKS / fragment_blocks(kind);
}
OP_FN int fragments_below(int rows)
{
    const int each = FRAGMENT_ROWS * FRAGMENT_BLOCKS;
    return (rows + each - 1) / each;
}

OP_FN int64_t fragment_count(const fragment_matrix *m)
{
    int64_t tiles = (m->rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS;
    if (m->form == FRAGMENTS_OF_FEATURES)
        return (int64_t)(m->columns / FRAGMENT_COLUMNS) * fragments_below(m->rows);
    if (m->form == FRAGMENTS_OF_HEADS)
        return m->columns / m->head_columns * tiles * fragments_across(m->head_columns);
    return tiles * fragments_across_of(m->kind, m->columns);
}

/* Block j of fragment n: its first row and column in the matrix, and its columns: 0 if the block
 * only fills up the fragment. */
typedef struct fragment_place {
    int64_t row, column;
    int columns;
} fragment_place;

OP_FN fragment_place fragment_place_of(const fragment_matrix *m, int64_t n, int j)
{
    int64_t tiles = (m->rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS, width = m->columns, head = 0;
    fragment_place p;
    if (m->form == FRAGMENTS_OF_FEATURES) {
        int64_t below = fragments_below(m->rows);
        p.row = (n % below * FRAGMENT_BLOCKS + j) * FRAGMENT_ROWS;
        p.column = n / below * FRAGMENT_COLUMNS;
        p.columns = p.row < m->rows ? FRAGMENT_COLUMNS : 0;
        return p;
    }
    if (m->form == FRAGMENTS_OF_HEADS) {
        int64_t each = tiles * fragments_across(m->head_columns);
        width = m->head_columns;
        head = n / each;
        n %= each;
    }
    int64_t across = fragments_across_of(m->kind, (int)width);
    int64_t column = (n % across * fragment_blocks(m->kind) + j) * FRAGMENT_COLUMNS;
    p.row = n / across * FRAGMENT_ROWS;
    p.column = head * width + column;
    p.columns = column < width ? FRAGMENT_COLUMNS : 0;
    return p;
}

/* The matrix's row for row i of a tile that begins at `first`. */
OP_FN int64_t fragment_row(const fragment_matrix *m, int64_t first, int i)
{
    if (m->form != FRAGMENTS_OF_PAIRS) return first + i;
    int64_t head = first / m->head_dim, pair = first % m->head_dim / 2;
    int second = i >> 2 & 1;
    pair += (i >> 3) * 4 + (i & 3);
    return head * m->head_dim +
           (m->turns_apart ? pair + second * (m->head_dim / 2) : 2 * pair + second);
}

/* The column of a block that is the i-th of lane t's four in a half. */
OP_FN int fragment_column(int t, int half, int i)
{
    return FRAGMENT_COLUMNS / 2 * half + 4 * t + i;
}

OP_FN int fragment_high_shift(int half, int high_row, int i)
{
    return 8 * i + 4 * half + 2 * high_row;
}

/* ---- reading rows as stored ------------------------------------------------------------------ */

OP_FN int64_t fragment_row_bytes(int kind, int64_t columns)
{
    return kind == FRAGMENT_Q8_0   ? columns / BLOCK_32 * BLOCK_BYTES_Q8_0
           : kind == FRAGMENT_Q4_0 ? columns / BLOCK_32 * BLOCK_BYTES_Q4_0
           : kind == FRAGMENT_Q4_1 ? columns / BLOCK_32 * BLOCK_BYTES_Q4_1
           : kind == FRAGMENT_Q4_K ? columns / BLOCK_K * BLOCK_BYTES_Q4_K
           : kind == FRAGMENT_Q6_K ? columns / BLOCK_K * BLOCK_BYTES_Q6_K
           : kind == FRAGMENT_BF16 ? 2 * columns
                                   : columns;
}

/* The quant of a column, in the low bits. */
OP_FN uint32_t fragment_quant(int kind, const uint8_t *row, int64_t column)
{
    int in = (int)(column % BLOCK_K), in_32 = (int)(column % BLOCK_32);
    if (kind == FRAGMENT_F8 || kind == FRAGMENT_F8_DOWN) return row[column];
    if (kind == FRAGMENT_Q8_0) return row[column / BLOCK_32 * BLOCK_BYTES_Q8_0 + 2 + in_32];
    if (kind == FRAGMENT_Q4_0 || kind == FRAGMENT_Q4_1) {
        int bytes = kind == FRAGMENT_Q4_0 ? BLOCK_BYTES_Q4_0 : BLOCK_BYTES_Q4_1;
        const uint8_t *quants = row + (column / BLOCK_32 + 1) * bytes - BLOCK_32 / 2;
        return (quants[in_32 % 16] >> in_32 / 16 * 4 & 15u) ^ (kind == FRAGMENT_Q4_0 ? 8u : 0u);
    }
    if (kind == FRAGMENT_Q4_K)
        return row[column / BLOCK_K * BLOCK_BYTES_Q4_K + 16 + in / 64 * 32 + in_32] >>
                   in / 32 % 2 * 4 &
               15u;
    const uint8_t *block = row + column / BLOCK_K * BLOCK_BYTES_Q6_K;
    int half = in / 128, rest = in % 128;
    uint32_t low = block[64 * half + rest % 64] >> rest / 64 * 4 & 15u;
    return (low | (block[128 + 32 * half + rest % 32] >> rest / 32 * 2 & 3u) << 4) ^ 32u;
}

OP_FN uint32_t fragment_two_bytes(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

/* The scales of a block's row of 32 columns: Q8_0 and Q4_0: d; Q4_1: d and m; Q4_K: d and dmin, and
 * in `rest` scale and minimum; Q6_K: d and two scales. */
typedef struct fragment_scale {
    uint32_t word, rest;
} fragment_scale;

OP_FN fragment_scale fragment_scale_of(int kind, const uint8_t *row, int64_t column)
{
    fragment_scale s = {0, 0};
    int j = (int)(column % BLOCK_K / 32);
    if (kind == FRAGMENT_Q8_0 || kind == FRAGMENT_Q4_0) {
        int bytes = kind == FRAGMENT_Q8_0 ? BLOCK_BYTES_Q8_0 : BLOCK_BYTES_Q4_0;
        s.word = fragment_two_bytes(row + column / BLOCK_32 * bytes);
    } else if (kind == FRAGMENT_Q4_1) {
        const uint8_t *block = row + column / BLOCK_32 * BLOCK_BYTES_Q4_1;
        s.word = fragment_two_bytes(block) | fragment_two_bytes(block + 2) << 16;
    } else if (kind == FRAGMENT_Q4_K) {
        const uint8_t *block = row + column / BLOCK_K * BLOCK_BYTES_Q4_K, *packed = block + 4;
        uint32_t scale = packed[j] & 63u, min = packed[j + 4] & 63u;
        if (j >= 4) {
            scale = (packed[j + 4] & 15u) | (uint32_t)(packed[j - 4] >> 6) << 4;
            min = packed[j + 4] >> 4 | (uint32_t)(packed[j] >> 6) << 4;
        }
        s.word = fragment_two_bytes(block) | fragment_two_bytes(block + 2) << 16;
        s.rest = scale | min << 8;
    } else {
        const uint8_t *block = row + column / BLOCK_K * BLOCK_BYTES_Q6_K;
        s.word = fragment_two_bytes(block + 208) | fragment_two_bytes(block + 192 + 2 * j) << 16;
    }
    return s;
}

/* ---- making fragments ---------------------------------------------------------------------------
 */

/* Writes a lane's part of block j's quants. `rows`: its two rows as stored; NULL: there is none. */
OP_FN void fragment_write_quants(const fragment_matrix *m, uint8_t *fragment, int j, int lane,
                                 const uint8_t *const rows[2], int64_t column)
{
    uint32_t low[2][2] = {{0, 0}, {0, 0}}, high = 0; /* [half][row, of quants of a byte] */
    for (int f = 0; f < 2; f++)
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 4; i++) {
                if (!rows[h]) continue;
                uint32_t q =
                    fragment_quant(m->kind, rows[h], column + fragment_column(lane % 4, f, i));
                if (m->kind == FRAGMENT_Q4_0 && h == 0) q ^= 8;
                if (fragment_has_bytes(m->kind))
                    low[f][h] |= q << 8 * i;
                else
                    low[f][0] |= (q & 15) << (8 * i + 4 * h);
                high |= (q >> 4 & 3) << fragment_high_shift(f, h, i);
            }
    uint32_t *words = (uint32_t *)(void *)fragment;
    if (fragment_has_bytes(m->kind)) {
        for (int i = 0; i < 4; i++)
            words[j * 128 + lane * 4 + i] = low[i / 2][i % 2];
        return;
    }
    for (int f = 0; f < 2; f++)
        words[j / 2 * 128 + lane * 4 + j % 2 * 2 + f] = low[f][0];
    if (m->kind == FRAGMENT_Q6_K) words[FRAGMENT_HIGH / 4 + lane * 4 + j] = high;
}

OP_FN void fragment_write_scales(const fragment_matrix *m, uint8_t *fragment, int j, int lane,
                                 const uint8_t *const rows[2], int64_t column)
{
    int g = lane / 4, quants = m->kind == FRAGMENT_Q8_0 ? 2 * FRAGMENT_NIBBLES : FRAGMENT_NIBBLES;
    if (m->kind == FRAGMENT_Q6_K) quants = FRAGMENT_SCALES_Q6_K;
    uint32_t *words = (uint32_t *)(void *)(fragment + quants);
    uint16_t *halves = (uint16_t *)(void *)(fragment + quants);
    for (int h = 0; h < 2; h++) {
        fragment_scale s = {0, 0};
        if (rows[h]) s = fragment_scale_of(m->kind, rows[h], column);
        if (m->kind == FRAGMENT_Q8_0 || m->kind == FRAGMENT_Q4_0)
            halves[(g * FRAGMENT_BLOCKS + j) * 2 + h] = (uint16_t)s.word;
        else if (m->kind == FRAGMENT_Q6_K)
            words[(j * 8 + g) * 2 + h] = s.word;
        else
            words[j / 2 * 32 + g * 4 + j % 2 * 2 + h] = s.word;
        if (m->kind == FRAGMENT_Q4_K) halves[128 + g * 8 + j * 2 + h] = (uint16_t)s.rest;
    }
}

/* The same of BF16. */
OP_FN void fragment_write_numbers(uint8_t *fragment, int j, int lane, const uint8_t *const rows[2],
                                  int64_t column)
{
    uint16_t *to = (uint16_t *)(void *)fragment + (j * 2 * 32 + lane) * 8;
    for (int f = 0; f < 2; f++)
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 4; i++) {
                const uint16_t *row = (const uint16_t *)(const void *)rows[h];
                to[f * 32 * 8 + h * 4 + i] =
                    row ? row[column + fragment_column(lane % 4, f, i)] : (uint16_t)0;
            }
}

/* The scales of two rows of F8. */
OP_FN void fragment_write_row_scales(const fragment_matrix *m, uint8_t *fragment, int lane,
                                     const int64_t rows[2])
{
    const float *scales = (const float *)(uintptr_t)m->scales;
    float *to = (float *)(void *)(fragment + FRAGMENT_SCALES_F8) + lane / 4 * 2;
    for (int h = 0; h < 2; h++)
        to[h] = rows[h] < m->rows ? scales[rows[h]] : 0;
}

/* Writes a lane's part of fragment n of the matrix at `from` to the fragments at `to`. */
OP_FN void fragment_write(const fragment_matrix *m, const uint8_t *from, uint8_t *to, int64_t n,
                          int lane)
{
    uint8_t *fragment = to + n * fragment_bytes(m->kind);
    int64_t row_bytes = fragment_row_bytes(m->kind, m->columns);
    for (int j = 0; j < fragment_blocks(m->kind); j++) {
        fragment_place p = fragment_place_of(m, n, j);
        const uint8_t *rows[2];
        int64_t numbers[2];
        for (int h = 0; h < 2; h++) {
            numbers[h] = fragment_row(m, p.row, lane / 4 + 8 * h);
            rows[h] = p.columns && numbers[h] < m->rows ? from + numbers[h] * row_bytes : 0;
        }
        if (m->kind == FRAGMENT_BF16)
            fragment_write_numbers(fragment, j, lane, rows, p.column);
        else
            fragment_write_quants(m, fragment, j, lane, rows, p.column);
        if (lane % 4 || m->kind == FRAGMENT_F8_DOWN || m->kind == FRAGMENT_BF16) continue;
        if (m->kind != FRAGMENT_F8)
            fragment_write_scales(m, fragment, j, lane, rows, p.column);
        else if (j == 0)
            fragment_write_row_scales(m, fragment, lane, numbers);
    }
}
