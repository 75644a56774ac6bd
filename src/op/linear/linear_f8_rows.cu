/* What products of FP8 with a scale a row need besides cuBLASLt (linear_f8_rows.h): the matrix from
 * F8_128, and rows of x, or of silu(gate) * up, to FP8. */
#include "op/device.cuh"
#include "op/f8.cuh"
#include "op/linear/linear_f8_rows.h"
#include "op/silu_and_mul/silu_and_mul.cuh"
#include "tensor/decode.cuh"
#include "tensor/float8.h"

/* ---- the matrix ------------------------------------------------------------------------------ */

/* The scale of largest magnitude among a row's blocks. */
DEVICE_FN float f8_row_scale(const char *row, int64_t steps)
{
    float scale = 0;
    for (int64_t i = threadIdx.x % WARP; i < steps; i += WARP) {
        const float own = *(const float *)(row + i * BLOCK_BYTES_F8_128);
        if (fabsf(own) > fabsf(scale)) scale = own;
    }
    for (int step = WARP / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, scale, step);
        if (fabsf(other) > fabsf(scale) || (fabsf(other) == fabsf(scale) && other > scale))
            scale = other;
    }
    return scale;
}

/* Four numbers of a block for another scale: the same where the ratio of both is 1. */
DEVICE_FN uint32_t f8_rescale4(uint32_t numbers, float ratio)
{
    uint32_t out = 0;
    if (ratio == 1) return numbers;
#pragma unroll
    for (int i = 0; i < 4; i++)
        out |= (uint32_t)f32_to_f8(f8_to_f32((uint8_t)(numbers >> 8 * i)) * ratio) << 8 * i;
    return out;
}

/* A warp for a row. Numbers stay as they are where all blocks of the row have its scale. */
extern "C" __global__ void __launch_bounds__(256)
    run_f8_rows_arrange(const __grid_constant__ tensor from, uint8_t *to, float *scales)
{
    const int64_t columns = from.shape[1], steps = columns / BLOCK_128;
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / WARP;
    const int lane = threadIdx.x % WARP;
    device_take_turn();
    for (int64_t r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP; r < from.shape[0];
         r += warps) {
        const char *row = device_row(from, r);
        const float scale = f8_row_scale(row, steps);
        if (lane == 0) scales[r] = scale;
        for (int64_t i = 0; i < steps; i++) {
            const uint32_t *block = (const uint32_t *)(row + i * BLOCK_BYTES_F8_128);
            const float ratio = scale != 0 ? __uint_as_float(block[0]) / scale : 1.0f;
            *(uint32_t *)(to + r * columns + i * BLOCK_128 + lane * 4) =
                f8_rescale4(block[1 + lane], ratio);
        }
    }
}

/* ---- rows of x ------------------------------------------------------------------------------- */

/* The largest of a block's threads; `cells` are free. */
DEVICE_FN float f8_block_largest(float largest, float *cells)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    largest = f8_largest_of(ALL_LANES, WARP, largest);
    if (lane == 0) cells[warp] = largest;
    __syncthreads();
    return f8_largest_of(ALL_LANES, WARP, lane < (int)blockDim.x / WARP ? cells[lane] : 0);
}

/* Eight neighbours, as two BF16 a word. */
DEVICE_FN float f8_largest8(const uint4 &v)
{
    const __nv_bfloat162 *pairs = (const __nv_bfloat162 *)&v;
    const __nv_bfloat162 largest = __hmax2(__hmax2(__habs2(pairs[0]), __habs2(pairs[1])),
                                           __hmax2(__habs2(pairs[2]), __habs2(pairs[3])));
    return fmaxf(__low2float(largest), __high2float(largest));
}

DEVICE_FN uint2 f8_pack8(const uint4 &v, float inverse)
{
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    uint32_t out[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        out[i] = f8_pack4(make_float4(__uint_as_float(word[2 * i] << 16),
                                      __uint_as_float(word[2 * i] & 0xffff0000u),
                                      __uint_as_float(word[2 * i + 1] << 16),
                                      __uint_as_float(word[2 * i + 1] & 0xffff0000u)),
                          inverse);
    return make_uint2(out[0], out[1]);
}

/* A block stores row blockIdx.x of n elements. `load(i)`: elements [i, i + 8) in BF16. */
template <int EIGHTS, typename LOAD>
DEVICE_FN void f8_rows_store(int n, uint8_t *to, float *scales, const LOAD &load)
{
    __shared__ float cells[MAX_WARPS];
    const int first = 8 * (int)threadIdx.x, step = 8 * (int)blockDim.x;
    const int64_t row = blockIdx.x;
    uint4 kept[EIGHTS];
    float largest = 0;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        kept[e] = first + e * step < n ? load(first + e * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        largest = fmaxf(largest, f8_largest8(kept[e]));
    const float2 s = f8_scale(f8_block_largest(largest, cells));
    if (threadIdx.x == 0) scales[row] = s.x;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        if (first + e * step < n)
            *(uint2 *)(to + row * n + first + e * step) = f8_pack8(kept[e], s.y);
}

/* Rows of x in BF16, without gaps. */
template <int EIGHTS>
DEVICE_FN void f8_rows_quantise(const uint16_t *x, int n, uint8_t *to, float *scales)
{
    device_take_turn();
    const uint16_t *row = x + (int64_t)blockIdx.x * n;
    f8_rows_store<EIGHTS>(n, to, scales, [&](int i) { return *(const uint4 *)(row + i); });
}

/* Rows of n gates, then n ups, in BF16, without gaps. */
template <int EIGHTS>
DEVICE_FN void f8_rows_silu(const uint16_t *x, int n, uint8_t *to, float *scales)
{
    device_take_turn();
    const uint16_t *row = x + 2 * (int64_t)blockIdx.x * n;
    f8_rows_store<EIGHTS>(n, to, scales, [&](int i) {
        const device_eight gates = {*(const uint4 *)(row + i), {}};
        const device_eight ups = {*(const uint4 *)(row + n + i), {}};
        float g[8], u[8];
        device_unpack8(DTYPE_BF16, gates, g);
        device_unpack8(DTYPE_BF16, ups, u);
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            word[j] = device_pack2(DTYPE_BF16, silu(g[2 * j]) * u[2 * j],
                                   silu(g[2 * j + 1]) * u[2 * j + 1]);
        return make_uint4(word[0], word[1], word[2], word[3]);
    });
}

#define F8_ROWS_KERNEL(what, eights, blocks)                                                       \
    extern "C" __global__ void __launch_bounds__(F8_ROWS_MOST_THREADS, blocks)                     \
        run_f8_rows_##what##_##eights(const uint16_t *x, int32_t n, uint8_t *to, float *scales)    \
    {                                                                                              \
        f8_rows_##what<eights>(x, n, to, scales);                                                  \
    }
F8_ROWS_KERNEL(quantise, 1, 2)
F8_ROWS_KERNEL(quantise, 4, 1)
F8_ROWS_KERNEL(silu, 1, 2)
F8_ROWS_KERNEL(silu, 4, 1)
