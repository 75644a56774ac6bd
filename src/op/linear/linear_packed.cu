/* Brings matrices into the orders of linear_packed.h, once, before the first pass. */
#include "op/device.cuh"
#include "op/linear/linear_packed.h"
#include "tensor/decode.cuh"

/* The level of a column, as PACKED_... kinds count it. */
DEVICE_FN uint32_t level_of(int type, const uint8_t *row, int column)
{
    const int in = column % 256, in_32 = column % 32;
    if (type == DTYPE_Q4_0 || type == DTYPE_Q4_1) {
        const int bytes = type == DTYPE_Q4_0 ? BLOCK_BYTES_Q4_0 : BLOCK_BYTES_Q4_1;
        return row[(column / 32 + 1) * bytes - 16 + in_32 % 16] >> in_32 / 16 * 4 & 15u;
    }
    if (type == DTYPE_F8) return row[column];
    if (type == DTYPE_Q4_K)
        return row[column / 256 * BLOCK_BYTES_Q4_K + 16 + in / 64 * 32 + in_32] >> in / 32 % 2 * 4 &
               15u;
    const uint8_t *block = row + column / 256 * BLOCK_BYTES_Q6_K;
    const int half = in / 128, rest = in % 128;
    uint32_t low = block[64 * half + rest % 64] >> rest / 64 * 4 & 15u;
    return low | (block[128 + 32 * half + rest % 32] >> rest / 32 * 2 & 3u) << 4;
}

/* The scale and the minimum of a column's block, by the formulas of tensor/decode.cuh. */
DEVICE_FN float2 scale_of(int type, const uint8_t *row, int column)
{
    if (type == DTYPE_Q4_0) return make_float2(decode_f16(row + column / 32 * BLOCK_BYTES_Q4_0), 0);
    if (type == DTYPE_Q4_1) {
        const uint8_t *block = row + column / 32 * BLOCK_BYTES_Q4_1;
        return make_float2(decode_f16(block), decode_f16(block + 2));
    }
    if (type == DTYPE_Q4_K) {
        const uint8_t *block = row + column / 256 * BLOCK_BYTES_Q4_K;
        int scale, min;
        stored_scale_min(block + 4, column % 256 / 32, &scale, &min);
        return make_float2(decode_f16(block) * (float)scale, -(decode_f16(block + 2) * (float)min));
    }
    const uint8_t *block = row + column / 256 * BLOCK_BYTES_Q6_K;
    return make_float2(decode_f16(block + 208) * (float)(int8_t)block[192 + column % 256 / 16], 0);
}

/* The stored row for a row of the packed matrix; NULL: there is none. */
DEVICE_FN const uint8_t *row_of(const packed_matrix &m, int row)
{
    const uint64_t second = m.from[1] && row % 16 >= 8;
    const int64_t stored = m.from[1] ? row / 16 * 8 + row % 8 : row;
    return row < m.rows ? (const uint8_t *)m.from[second] + stored * m.row_bytes : nullptr;
}

/* The scale of that row of FP8. */
DEVICE_FN float row_scale_of(const packed_matrix &m, int row)
{
    const uint64_t second = m.from[1] && row % 16 >= 8;
    const int64_t stored = m.from[1] ? row / 16 * 8 + row % 8 : row;
    return row < m.rows ? ((const float *)m.scales_from[second])[stored] : 0.0f;
}

/* A lane's levels of the 16 columns from `column` on of one of its rows, a byte each. */
DEVICE_FN uint32_t levels_of(const packed_matrix &m, const uint8_t *row, int column, int t)
{
    uint32_t word = 0;
    for (int i = 0; i < 4 && row; i++)
        word |= level_of(m.type, row, column + 2 * t + i % 2 + i / 2 * 8) << 8 * i;
    return word;
}

/* Four levels, a byte each: the first two in the low nibbles of both halves, then the others. */
DEVICE_FN uint32_t halves_of(uint32_t levels)
{
    return (levels & 15) | (levels >> 8 & 15) << 16 | (levels >> 16 & 15) << 8 |
           (levels >> 24 & 15) << 24;
}

DEVICE_FN void pack_levels(const packed_matrix &m, const uint8_t *const *rows, int column, int lane,
                           uint32_t *unit)
{
    for (int k = 0; k < 4; k++) {
        const uint32_t low = levels_of(m, rows[0], column + 16 * k, lane % 4);
        const uint32_t high = levels_of(m, rows[1], column + 16 * k, lane % 4);
        if (m.kind == PACKED_Q4_0) {
            unit[lane * 4 + k] = halves_of(low) | halves_of(high) << 4;
            continue;
        }
        if (m.kind == PACKED_Q4) {
            unit[lane * 4 + k] = low | high << 4;
            continue;
        }
        unit[k / 2 * 128 + lane * 4 + k % 2 * 2] = low;
        unit[k / 2 * 128 + lane * 4 + k % 2 * 2 + 1] = high;
    }
}

/* A scale as two BF16 numbers. */
DEVICE_FN float two_parts(float scale)
{
    const __nv_bfloat16 large = __float2bfloat16_rn(scale);
    const __nv_bfloat16 small = __float2bfloat16_rn(scale - __bfloat162float(large));
    return __uint_as_float(__bfloat16_as_ushort(large) | (uint32_t)__bfloat16_as_ushort(small)
                                                             << 16);
}

/* Of lanes 4 g. */
DEVICE_FN void pack_scales(const packed_matrix &m, const uint8_t *const *rows, int column, int g,
                           float *scales)
{
    const int blocks = m.kind == PACKED_Q6 ? 4 : 2;
    for (int b = 0; b < blocks; b++)
        for (int h = 0; h < 2; h++) {
            const float2 v =
                rows[h] ? scale_of(m.type, rows[h], column + b * (64 / blocks)) : make_float2(0, 0);
            const int at = b / 2 * 32 + g * 4 + b % 2 * 2 + h;
            scales[at] = m.kind == PACKED_Q4_0 ? two_parts(v.x) : v.x;
            if (m.kind == PACKED_Q4) scales[32 + at] = v.y;
        }
}

/* A warp packs a unit at a time. */
extern "C" __global__ void __launch_bounds__(256)
    pack_matrix(const __grid_constant__ packed_matrix m)
{
    const int64_t across = m.columns / PACKED_COLUMNS;
    const int64_t n = packed_groups(m.rows, m.columns) * PACKED_GROUP_UNITS;
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / WARP;
    const int lane = threadIdx.x % WARP;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < n; i += warps) {
        const int64_t group = i / PACKED_GROUP_UNITS;
        const int row = (int)(group / across * PACKED_GROUP_ROWS +
                              i % PACKED_GROUP_UNITS * PACKED_ROWS + lane / 4);
        const int column = (int)(group % across * PACKED_COLUMNS);
        const uint8_t *const rows[2] = {row_of(m, row), row_of(m, row + 8)};
        char *unit = (char *)m.to + i * packed_unit_bytes(m.kind);
        pack_levels(m, rows, column, lane, (uint32_t *)unit);
        if (m.kind == PACKED_F8) {
            float *scales = (float *)m.scales_to + (row - lane / 4);
            if (column == 0 && lane < PACKED_ROWS)
                scales[lane] = row_scale_of(m, row - lane / 4 + lane);
        } else if (lane % 4 == 0) {
            pack_scales(m, rows, column, lane / 4, (float *)(unit + packed_level_bytes(m.kind)));
        }
    }
}

/* ---- tiles of BF16 ------------------------------------------------------------------------- */

/* The stored row for a row of a tile; -1: there is none. */
DEVICE_FN int64_t tiled_row(const tiled_matrix &m, int64_t tile, int row)
{
    const int64_t at = tile * m.tile_rows + row;
    if (!m.pairs) return at < m.rows ? at : -1;
    const int64_t half = m.rows / 2, feature = at / 16 * 8 + at % 8;
    return feature < half ? feature + (at % 16 >= 8 ? half : 0) : -1;
}

/* A thread moves 16 bytes at a time. */
extern "C" __global__ void __launch_bounds__(256)
    tile_matrix(const __grid_constant__ tiled_matrix m)
{
    const int64_t steps = m.columns / PACKED_COLUMNS;
    const int64_t n = (m.rows + m.tile_rows - 1) / m.tile_rows * steps * m.tile_rows * 8;
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        const int64_t line = i / 8, stage = line / m.tile_rows;
        const int piece = (int)(i % 8), row = (int)(line % m.tile_rows);
        const int64_t from = tiled_row(m, stage / steps, row);
        const char *source = (const char *)m.from + from * m.row_bytes + stage % steps * 128;
        const uint4 d = from < 0 ? make_uint4(0, 0, 0, 0) : *(const uint4 *)(source + piece * 16);
        *(uint4 *)((char *)m.to + line * 128 + (piece ^ row % 8) * 16) = d;
    }
}
