/* Kernels that bring weights into the megakernel's order, once, before its first pass. */
#include "op/device.cuh"
#include "vm/mega/biases.h"
#include "vm/mega/fragments.h"

/* out (columns, rows) = in (rows, columns) transposed: W_down. `exchanges`: eights of each row are
 * exchanged as product_transposed() expects them. Blocks of 32 x 8 threads. */
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

/* Quantised weights as fragments (fragments.h): a warp writes one fragment at a time; the first
 * block also scales before the fragments. */
extern "C" __global__ void mega_make_fragments(const __grid_constant__ fragment_matrix m)
{
    int64_t warps = (int64_t)gridDim.x * blockDim.x / 32, count = fragment_count(&m);
    int lane = threadIdx.x & 31;
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < fragment_bytes_before(&m) / 4; i += blockDim.x)
            ((float *)(m.to - fragment_bytes_before(&m)))[i] = ((const float *)m.scales)[i];
    for (int64_t n = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; n < count; n += warps)
        fragment_write(&m, (const uint8_t *)m.from, (uint8_t *)m.to, n, lane);
}

/* Biases as float, in the order of biases.h. */
extern "C" __global__ void mega_make_biases(const __grid_constant__ bias_vectors b)
{
    const int count = b.count[0] + b.count[1] + b.count[2];
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const bias_place p = bias_place_of(&b, i);
        const void *from = (const void *)b.from[p.vector];
        ((float *)b.to)[i] = from ? device_load((dtype)b.type[p.vector], from, p.element) : 0;
    }
}
