/* What products of matrices in FP8 share (linear_f8.h): panels, x in FP8, and the tensor cores'
 * instructions, and access to shared memory. */
#pragma once

#include "op/attention/wgmma.cuh"
#include "op/barrier.cuh"
#include "op/f8.cuh"
#include "op/linear/linear_f8.h"
#include "op/linear/linear_stream.cuh"
#include "op/linear/linear_wide.cuh"
#include "op/silu_and_mul/silu_and_mul.cuh"
#include "tensor/decode.cuh"

/* ---- panels -------------------------------------------------------------------------------- */

/* Rows of F8_128 into panels, a warp for 128 numbers. Rows that fill the last panel are zero. */
DEVICE_FN void f8_arrange(const tensor &from, char *to)
{
    const int64_t rows = from.shape[0], columns = from.shape[1], steps = columns / F8_COLUMNS;
    const int64_t panels = (rows + F8_ROWS - 1) / F8_ROWS;
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / WARP;
    const int lane = threadIdx.x % WARP;
    device_take_turn();
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
         i < panels * F8_ROWS * steps; i += warps) {
        const int64_t row = i / steps, step = i % steps;
        const uint32_t *block =
            (const uint32_t *)(device_row(from, row) + step * BLOCK_BYTES_F8_128);
        char *panel = to + row / F8_ROWS * F8_PANEL(columns);
        const uint32_t word = row < rows ? block[1 + lane] : 0;
        *(uint32_t *)(panel + row % F8_ROWS * columns + step * F8_COLUMNS + lane * 4) = word;
        if (lane == 0)
            *(uint32_t *)(panel + F8_ROWS * columns + step * F8_SCALES + row % F8_ROWS * 4) =
                row < rows ? block[0] : 0;
    }
}

/* ---- x in FP8 ------------------------------------------------------------------------------ */

enum { F8_QUANTISE_ROWS = 8, F8_QUANTISE_STEPS = 4 };

/* Rows of x in BF16 to FP8: a warp for one row and F8_QUANTISE_STEPS times 128 columns. */
template <int GROUP>
DEVICE_FN void f8_quantise(const tensor &from, uint8_t *to, float *scales, int64_t pitch)
{
    const int64_t columns = from.shape[1];
    const int64_t row = (int64_t)blockIdx.x * F8_QUANTISE_ROWS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, steps = (int)(columns / F8_COLUMNS);
    const int first = (int)blockIdx.y * F8_QUANTISE_STEPS;
    device_take_turn();
    if (row >= from.shape[0]) return;
    uint2 raw[F8_QUANTISE_STEPS];
#pragma unroll
    for (int i = 0; i < F8_QUANTISE_STEPS; i++)
        if (first + i < steps)
            raw[i] = *(const uint2 *)(device_row(from, row) + (first + i) * 256 + lane * 8);
#pragma unroll
    for (int i = 0; i < F8_QUANTISE_STEPS; i++) {
        if (first + i >= steps) continue;
        const float2 low = __bfloat1622float2(*(const __nv_bfloat162 *)&raw[i].x);
        const float2 high = __bfloat1622float2(*(const __nv_bfloat162 *)&raw[i].y);
        const float4 v = make_float4(low.x, low.y, high.x, high.y);
        const float2 s = f8_scale(f8_largest_of(ALL_LANES, GROUP / 4, f8_largest(v)));
        *(uint32_t *)(to + row * columns + (first + i) * F8_COLUMNS + lane * 4) = f8_pack4(v, s.y);
        if (lane % (GROUP / 4) == 0)
            scales[((first + i) * (128 / GROUP) + lane / (GROUP / 4)) * pitch + row] = s.x;
    }
}

/* ---- wgmma --------------------------------------------------------------------------------- */

/* d (64, COLUMNS) = [d +] a (64, 32) b (COLUMNS, 32)^T in FP8, both in shared memory. */
#define F8_WGMMA(COLUMNS, TILES, A, B, ADD)                                                        \
    DEVICE_FN void f8_multiply(float(&d)[TILES][4], uint64_t a, uint64_t b, int add)               \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ADD ", 0;\n"                             \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k32.f32.e4m3.e4m3 "             \
                     "" WGMMA_NAMES##TILES ", %" A ", %" B ", p, 1, 1;\n}"                         \
                     : WGMMA_D##TILES                                                              \
                     : "l"(a), "l"(b), "r"(add)                                                    \
                     : "memory");                                                                  \
    }
F8_WGMMA(16, 2, "8", "9", "10")
F8_WGMMA(32, 4, "16", "17", "18")
F8_WGMMA(64, 8, "32", "33", "34")
F8_WGMMA(128, 16, "64", "65", "66")
#undef F8_WGMMA

/* ---- shared memory ------------------------------------------------------------------------- */

DEVICE_FN void f8_copy(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

DEVICE_FN float2 f8_load2(uint32_t address)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
    return v;
}
DEVICE_FN uint4 f8_load16(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
DEVICE_FN float f8_load(uint32_t address)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
    return v;
}
