/* The megakernel's instances for 16-bit weights; and the kernel that transposes W_down. */
#include "vm/mega/one_sequence.cuh"

/* out (columns, rows) = in (rows, columns) transposed: W_down, once. Eights of a row are where
 * product_transposed() looks for them, if `exchanges`. Blocks of 32 x 8 threads. */
extern "C" __global__ void mega_transpose(const uint16_t *in, uint16_t *out, int rows, int columns,
                                          int exchanges)
{
    __shared__ uint16_t tile[32][33];
    int column = blockIdx.x * 32, row = blockIdx.y * 32, x = threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 8)
        if (row + y < rows && column + x < columns)
            tile[y][x] = in[(int64_t)(row + y) * columns + column + x];
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8)
        if (column + y < columns && row + x < rows)
            out[(int64_t)(column + y) * rows +
                ((row + x) ^ (exchanges ? ((column + y) & 7) << 3 : 0))] = tile[x][y];
}

MEGA_KERNELS(1)
MEGA_KERNELS(2)
