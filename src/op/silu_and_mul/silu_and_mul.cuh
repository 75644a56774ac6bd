/* silu_and_mul on the GPU: a thread has eight neighbours, or one element if rows are not aligned.
 */
#pragma once

#include "op/device.cuh"
#include "op/silu_and_mul/silu_and_mul.h"

/* The exponential by the hardware's 2^x, corrected by the rounding error of the product with log2
 * e, because the error would otherwise grow with the gate. */
DEVICE_FN float silu(float gate)
{
    const float log2_e = 1.4426950408889634f, ln_2 = 0.69314718f;
    float power = -gate * log2_e, rest = fmaf(-gate, log2_e, -power), result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(power));
    if (fabsf(power) < 126.0f) result = fmaf(result, rest * ln_2, result);
    return __fdividef(gate, 1.0f + result);
}

/* Eight elements of [call.begin, call.end) a thread. */
DEVICE_FN void silu_and_mul_vectors(const silu_rows &call)
{
    uint32_t per_row = (uint32_t)call.n / 8;
    uint32_t eight = (uint32_t)(call.begin / 8) + blockIdx.x * SILU_THREADS + threadIdx.x;
    uint32_t row = eight / per_row;
    int i = (int)(eight - row * per_row) * 8;
    bool there = eight < (uint32_t)(call.end / 8);
    device_eight gate = {}, up = {};
    device_wait_for_last();
    if (there) {
        gate = device_fetch8<true>(call.x, row, i, 2 * call.n);
        up = device_fetch8<true>(call.x, row, i + call.n, 2 * call.n);
    }
    /* Not earlier, because the next kernel's blocks would take the place of this one's. */
    device_let_next_begin();
    if (!there) return;
    float g[8], u[8];
    device_unpack8(call.x.type, gate, g);
    device_unpack8(call.x.type, up, u);
#pragma unroll
    for (int j = 0; j < 8; j++)
        g[j] = silu(g[j]) * u[j];
    if (call.out.data) device_store8<true>(call.out, row, i, call.n, g);
    if (call.narrowed.data) device_store8<true>(call.narrowed, row, i, call.n, g);
}

DEVICE_FN void silu_and_mul_block(const op_call &call, int64_t begin, int64_t end)
{
    const tensor &x = call.tensors[SILU_AND_MUL_X], &out = call.tensors[SILU_AND_MUL_OUT];
    int64_t n = out.shape[1];
    for (int64_t unit = begin + threadIdx.x; unit < end; unit += blockDim.x) {
        const char *in = device_row(x, unit / n);
        float gate = device_load(x.type, in, unit % n), up = device_load(x.type, in, n + unit % n);
        device_store(out.type, device_row(out, unit / n), unit % n, silu(gate) * up);
    }
}
