/* Reads memory as fast as a GPU can. The speed of generation is compared with this bound. */
#include <stdint.h>

/* Blocks of 512 threads, each with four loads of 16 bytes in flight; `sink` is never written. */
extern "C" __global__ void __launch_bounds__(512)
    read_all(const uint4 *from, int64_t words, uint32_t *sink)
{
    uint32_t all = 0;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < words; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < 4; j++)
            all |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < words; i += step) {
        uint4 v = __ldcs(from + i);
        all |= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (all == 0x5eed1e55 && words < 0) *sink = all;
}
