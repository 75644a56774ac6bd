/* The megakernel's instances for quantised weights of all kinds, which a model may mix; and the
 * kernel that makes bricks. */
#define MEGA_BRICKS 0x3e /* all of bricks.h */
#include "vm/mega/one_sequence.cuh"

/* A warp a brick. */
extern "C" __global__ void mega_make_bricks(const __grid_constant__ brick_matrix m)
{
    int64_t warps = (int64_t)gridDim.x * blockDim.x / 32, count = brick_count(&m);
    int lane = threadIdx.x & 31;
    for (int64_t n = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; n < count; n += warps)
        brick_write(&m, (const uint8_t *)m.from, (uint8_t *)m.to, n, lane);
}

MEGA_KERNELS(0)
