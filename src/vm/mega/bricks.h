/* Quantised weights as the megakernel reads them: bricks, in the order in which the lanes of a warp
 * feed them to the matrix units. The same arithmetic for the host and the GPU.
 *
 * A brick is 2 or 4 blocks of 16 rows by 32 columns, side by side or, of W_down, one below the
 * other. A lane of a warp has g = lane / 4 and t = lane % 4: it holds rows g and g + 8 of a block,
 * four columns of each of the block's two fragments (brick_column() says which). Quants are stored
 * as they are, without a sign: levels 0..15, 0..63, 0..255. Behind the quants lie the scales.
 *
 *     Q8_0   2 blocks  quants [block][lane][4 words]: fragment 0 of row g, of row g + 8, fragment 1
 *                      scales [g][block][row g, row g + 8] F16
 *     Q4_0   4 blocks  quants [2 blocks][lane][4 words]: fragments 0 and 1 of a block, then the
 * next scales as Q8_0 Q4_K   4 blocks  quants as Q4_0 [2 blocks][g][block][row g, row g + 8] d and
 * dmin, F16 both [g][block][row g, row g + 8] scale and minimum, a byte each Q6_K   2 blocks quants
 * [lane][4 words] low nibbles as Q4_0, [lane][2 words] high bits [g][block][row g, row g + 8] d in
 * F16, two signed scales of a byte
 *
 * A word of nibbles, from bit 0 (columns 0..3 of the lane's four):
 *     row g: 0, 2; row g + 8: 0, 2; then row g: 1, 3; row g + 8: 1, 3
 * so that both neighbours come out of a word by one mask. High bits: columns 0..3 of row g, of row
 * g + 8, then of the next fragment: brick_high_shift().
 */
#ifndef QUIPU_VM_MEGA_BRICKS_H
#define QUIPU_VM_MEGA_BRICKS_H

#include "op/norm_qkv_rope/pairs.h"
#include "op/portable.h"
#include "tensor/codec_blocks.h"

enum { BRICK_NONE, BRICK_Q8_0, BRICK_Q4_0, BRICK_Q4_K, BRICK_Q6_K };

enum {
    BRICK_ROWS = 16,    /* of a block */
    BRICK_COLUMNS = 32, /* of a block */
    BRICK_QUANTS = 1024,
    BRICK_HIGH = 512, /* Q6_K: where the high bits begin */
    BRICK_SCALES_Q6_K = 768,
    BRICK_BYTES_Q8_0 = BRICK_QUANTS + 64,
    BRICK_BYTES_Q4_0 = BRICK_QUANTS + 128,
    BRICK_BYTES_Q4_K = BRICK_QUANTS + 384,
    BRICK_BYTES_Q6_K = BRICK_SCALES_Q6_K + 128,
    BRICK_MAX_BYTES = BRICK_BYTES_Q4_K,
};

/* How a matrix is cut. */
enum {
    BRICKS_OF_ROWS,     /* [tile of 16 rows][columns] */
    BRICKS_OF_PAIRS,    /* the same, rows in the order of QKV's units: four first features of pairs,
                         * then their four second ones */
    BRICKS_OF_HEADS,    /* [KV head][tile of 16 rows][the head's columns] */
    BRICKS_OF_FEATURES, /* [32 columns][rows], blocks of a brick one below the other */
};

typedef struct brick_matrix {
    uint64_t from, to; /* addresses: rows as stored, bricks */
    int32_t kind, form;
    int32_t rows, columns; /* multiples of 16 but for the last rows, and of 32 */
    int32_t head_columns;  /* of HEADS */
    int32_t head_dim;      /* of PAIRS, all of which turn */
    int32_t turns_apart;   /* of PAIRS: features i and i + head_dim / 2, not 2 i and 2 i + 1 */
    int32_t zero;
} brick_matrix;

OP_FN int brick_blocks(int kind)
{
    return kind == BRICK_Q4_0 || kind == BRICK_Q4_K ? 4 : 2;
}
OP_FN int brick_bytes(int kind)
{
    return kind == BRICK_Q8_0   ? BRICK_BYTES_Q8_0
           : kind == BRICK_Q4_0 ? BRICK_BYTES_Q4_0
           : kind == BRICK_Q4_K ? BRICK_BYTES_Q4_K
                                : BRICK_BYTES_Q6_K;
}

/* Bricks that lie side by side over so many columns (or, of W_down, rows). */
OP_FN int bricks_across(int kind, int columns)
{
    int each = BRICK_COLUMNS * brick_blocks(kind);
    return (columns + each - 1) / each;
}
OP_FN int bricks_below(int kind, int rows)
{
    int each = BRICK_ROWS * brick_blocks(kind);
    return (rows + each - 1) / each;
}

OP_FN int64_t brick_count(const brick_matrix *m)
{
    int64_t tiles = (m->rows + BRICK_ROWS - 1) / BRICK_ROWS;
    if (m->form == BRICKS_OF_FEATURES)
        return (int64_t)(m->columns / BRICK_COLUMNS) * bricks_below(m->kind, m->rows);
    if (m->form == BRICKS_OF_HEADS)
        return m->columns / m->head_columns * tiles * bricks_across(m->kind, m->head_columns);
    return tiles * bricks_across(m->kind, m->columns);
}

/* Block j of brick n: its first row and column in the matrix; `columns` are left from there, none
 * where it is only there to fill the brick. */
typedef struct brick_place {
    int64_t row, column;
    int columns;
} brick_place;

OP_FN brick_place brick_place_of(const brick_matrix *m, int64_t n, int j)
{
    int64_t tiles = (m->rows + BRICK_ROWS - 1) / BRICK_ROWS, width = m->columns, head = 0;
    int blocks = brick_blocks(m->kind);
    brick_place p;
    if (m->form == BRICKS_OF_FEATURES) {
        int64_t below = bricks_below(m->kind, m->rows);
        p.row = (n % below * blocks + j) * BRICK_ROWS;
        p.column = n / below * BRICK_COLUMNS;
        p.columns = p.row < m->rows ? BRICK_COLUMNS : 0;
        return p;
    }
    if (m->form == BRICKS_OF_HEADS) {
        int64_t each = tiles * bricks_across(m->kind, m->head_columns);
        width = m->head_columns;
        head = n / each;
        n %= each;
    }
    int64_t across = bricks_across(m->kind, (int)width);
    int64_t column = (n % across * blocks + j) * BRICK_COLUMNS;
    p.row = n / across * BRICK_ROWS;
    p.column = head * width + column;
    p.columns = column < width ? BRICK_COLUMNS : 0;
    return p;
}

/* The matrix's row that is row i of a tile that begins at `first`. */
OP_FN int64_t brick_row(const brick_matrix *m, int64_t first, int i)
{
    if (m->form != BRICKS_OF_PAIRS) return first + i;
    int64_t head = first / m->head_dim, pair = first % m->head_dim / 2;
    int second = i >> 2 & 1;
    pair += (i >> 3) * 4 + (i & 3);
    return head * m->head_dim +
           (m->turns_apart ? pair + second * (m->head_dim / 2) : 2 * pair + second);
}

/* The column of a block that is the lane's i-th of a fragment's four. Q6_K has a scale for 16
 * columns, a fragment's. */
OP_FN int brick_column(int kind, int t, int fragment, int i)
{
    return kind == BRICK_Q6_K ? 16 * fragment + 4 * t + i : 8 * t + 4 * fragment + i;
}

OP_FN int brick_nibble_shift(int high_row, int i)
{
    return 16 * (i & 1) + 8 * high_row + 4 * (i >> 1);
}
OP_FN int brick_high_shift(int fragment, int high_row, int i)
{
    return 16 * (i & 1) + 8 * fragment + 4 * high_row + 2 * (i >> 1);
}

/* ---- reading rows as stored ------------------------------------------------------------------ */

OP_FN int64_t brick_row_bytes(int kind, int64_t columns)
{
    return kind == BRICK_Q8_0   ? columns / BLOCK_32 * BLOCK_BYTES_Q8_0
           : kind == BRICK_Q4_0 ? columns / BLOCK_32 * BLOCK_BYTES_Q4_0
           : kind == BRICK_Q4_K ? columns / BLOCK_K * BLOCK_BYTES_Q4_K
                                : columns / BLOCK_K * BLOCK_BYTES_Q6_K;
}

/* The level of a column, counted from the lowest. */
OP_FN uint32_t brick_level(int kind, const uint8_t *row, int64_t column)
{
    int in = (int)(column % BLOCK_K), in_32 = (int)(column % BLOCK_32);
    if (kind == BRICK_Q8_0) return row[column / BLOCK_32 * BLOCK_BYTES_Q8_0 + 2 + in_32] ^ 0x80u;
    if (kind == BRICK_Q4_0)
        return row[column / BLOCK_32 * BLOCK_BYTES_Q4_0 + 2 + in_32 % 16] >> in_32 / 16 * 4 & 15u;
    if (kind == BRICK_Q4_K)
        return row[column / BLOCK_K * BLOCK_BYTES_Q4_K + 16 + in / 64 * 32 + in_32] >>
                   in / 32 % 2 * 4 &
               15u;
    const uint8_t *block = row + column / BLOCK_K * BLOCK_BYTES_Q6_K;
    int half = in / 128, rest = in % 128;
    uint32_t low = block[64 * half + rest % 64] >> rest / 64 * 4 & 15u;
    return low | (block[128 + 32 * half + rest % 32] >> rest / 32 * 2 & 3u) << 4;
}

OP_FN uint32_t brick_two_bytes(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

/* What a block's row of 32 columns is scaled by: of Q8_0 and Q4_0 d; of Q4_K d and dmin, and behind
 * them scale and minimum; of Q6_K d and two scales. */
typedef struct brick_scale {
    uint32_t word, rest;
} brick_scale;

OP_FN brick_scale brick_scale_of(int kind, const uint8_t *row, int64_t column)
{
    brick_scale s = {0, 0};
    int j = (int)(column % BLOCK_K / 32);
    if (kind == BRICK_Q8_0 || kind == BRICK_Q4_0) {
        int bytes = kind == BRICK_Q8_0 ? BLOCK_BYTES_Q8_0 : BLOCK_BYTES_Q4_0;
        s.word = brick_two_bytes(row + column / BLOCK_32 * bytes);
    } else if (kind == BRICK_Q4_K) {
        const uint8_t *block = row + column / BLOCK_K * BLOCK_BYTES_Q4_K, *packed = block + 4;
        uint32_t scale = packed[j] & 63u, min = packed[j + 4] & 63u;
        if (j >= 4) {
            scale = (packed[j + 4] & 15u) | (uint32_t)(packed[j - 4] >> 6) << 4;
            min = packed[j + 4] >> 4 | (uint32_t)(packed[j] >> 6) << 4;
        }
        s.word = brick_two_bytes(block) | brick_two_bytes(block + 2) << 16;
        s.rest = scale | min << 8;
    } else {
        const uint8_t *block = row + column / BLOCK_K * BLOCK_BYTES_Q6_K;
        s.word = brick_two_bytes(block + 208) | brick_two_bytes(block + 192 + 2 * j) << 16;
    }
    return s;
}

/* ---- making bricks --------------------------------------------------------------------------- */

/* A lane's part of block j of a brick; `rows`: its two rows as stored, NULL where there is none. */
OP_FN void brick_write_quants(const brick_matrix *m, uint8_t *brick, int j, int lane,
                              const uint8_t *const rows[2], int64_t column)
{
    uint32_t low[2][2] = {{0, 0}, {0, 0}}, high = 0; /* [fragment][row, of Q8_0] */
    for (int f = 0; f < 2; f++)
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 4; i++) {
                if (!rows[h]) continue;
                int64_t at = column + brick_column(m->kind, lane % 4, f, i);
                uint32_t level = brick_level(m->kind, rows[h], at);
                if (m->kind == BRICK_Q8_0)
                    low[f][h] |= level << 8 * i;
                else
                    low[f][0] |= (level & 15) << brick_nibble_shift(h, i);
                high |= (level >> 4 & 3) << brick_high_shift(f, h, i);
            }
    uint32_t *words = (uint32_t *)(void *)brick;
    if (m->kind == BRICK_Q8_0) {
        for (int i = 0; i < 4; i++)
            words[j * 128 + lane * 4 + i] = low[i / 2][i % 2];
        return;
    }
    for (int f = 0; f < 2; f++)
        words[j / 2 * 128 + lane * 4 + j % 2 * 2 + f] = low[f][0];
    if (m->kind == BRICK_Q6_K) words[BRICK_HIGH / 4 + lane * 2 + j] = high;
}

OP_FN void brick_write_scales(const brick_matrix *m, uint8_t *brick, int j, int lane,
                              const uint8_t *const rows[2], int64_t column)
{
    int g = lane / 4;
    for (int h = 0; h < 2; h++) {
        brick_scale s = {0, 0};
        if (rows[h]) s = brick_scale_of(m->kind, rows[h], column);
        uint32_t *words = (uint32_t *)(void *)(brick + BRICK_QUANTS);
        uint16_t *halves = (uint16_t *)(void *)(brick + BRICK_QUANTS);
        if (m->kind == BRICK_Q4_K) {
            words[j / 2 * 32 + g * 4 + j % 2 * 2 + h] = s.word;
            halves[128 + g * 8 + j * 2 + h] = (uint16_t)s.rest;
        } else if (m->kind == BRICK_Q6_K) {
            words = (uint32_t *)(void *)(brick + BRICK_SCALES_Q6_K);
            words[g * 4 + j * 2 + h] = s.word;
        } else {
            halves[(g * brick_blocks(m->kind) + j) * 2 + h] = (uint16_t)s.word;
        }
    }
}

/* A lane's part of brick n, `from` and `to` being where the matrix and its bricks begin. */
OP_FN void brick_write(const brick_matrix *m, const uint8_t *from, uint8_t *to, int64_t n, int lane)
{
    uint8_t *brick = to + n * brick_bytes(m->kind);
    int64_t row_bytes = brick_row_bytes(m->kind, m->columns);
    for (int j = 0; j < brick_blocks(m->kind); j++) {
        brick_place p = brick_place_of(m, n, j);
        const uint8_t *rows[2];
        for (int h = 0; h < 2; h++) {
            int64_t row = brick_row(m, p.row, lane / 4 + 8 * h);
            rows[h] = p.columns && row < m->rows ? from + row * row_bytes : 0;
        }
        brick_write_quants(m, brick, j, lane, rows, p.column);
        if (lane % 4 == 0) brick_write_scales(m, brick, j, lane, rows, p.column);
    }
}

#endif
