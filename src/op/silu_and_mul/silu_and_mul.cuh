/* silu_and_mul on the GPU: four neighbours a thread where rows have a multiple of four. */
#ifndef QUIPU_OP_SILU_AND_MUL_CUH
#define QUIPU_OP_SILU_AND_MUL_CUH

#include "op/device.cuh"
#include "op/silu_and_mul/silu_and_mul.h"

DEVICE_FN float silu(float gate)
{
    return gate / (1.0f + expf(-gate));
}

/* Where a unit lies, by its distance from the beginning of a row. */
struct silu_place {
    int64_t row;
    uint32_t column;
};
DEVICE_FN silu_place silu_place_of(int64_t first_row, uint32_t units, uint32_t n)
{
    uint32_t rows = units / n;
    return {first_row + rows, units - rows * n};
}

enum { SILU_AT_ONCE = 2 }; /* times four units that a thread has on their way */

/* Rows of a multiple of four elements, below 2^31 of them. */
DEVICE_FN void silu_and_mul_fours(const tensor &x, const tensor &out, int64_t begin, int64_t end,
                                  uint16_t *narrowed)
{
    const int64_t n = out.shape[1], first_row = begin / n, first = first_row * n;
    for (int64_t at = begin + 4 * threadIdx.x; at < end; at += SILU_AT_ONCE * 4 * blockDim.x) {
        float4 gate[SILU_AT_ONCE], up[SILU_AT_ONCE];
        silu_place place[SILU_AT_ONCE];
#pragma unroll
        for (int j = 0; j < SILU_AT_ONCE; j++) {
            int64_t unit = at + j * 4 * blockDim.x;
            if (unit >= end) continue;
            place[j] = silu_place_of(first_row, (uint32_t)(unit - first), (uint32_t)n);
            const char *in = device_row(x, place[j].row);
            gate[j] = device_load4(x.type, in, place[j].column, 2 * n);
            up[j] = device_load4(x.type, in, n + place[j].column, 2 * n);
        }
#pragma unroll
        for (int j = 0; j < SILU_AT_ONCE; j++) {
            int64_t unit = at + j * 4 * blockDim.x;
            if (unit >= end) continue;
            float4 y = make_float4(silu(gate[j].x) * up[j].x, silu(gate[j].y) * up[j].y,
                                   silu(gate[j].z) * up[j].z, silu(gate[j].w) * up[j].w);
            device_store4(out.type, device_row(out, place[j].row), place[j].column, n, y);
            if (narrowed) device_narrow(narrowed + unit, y);
        }
    }
}

/* `narrowed` (n_tokens, intermediate_size), if not NULL, gets the output rounded to BF16 too. */
DEVICE_FN void silu_and_mul_block(const op_call &call, int64_t begin, int64_t end,
                                  uint16_t *narrowed = nullptr)
{
    const tensor &x = call.tensors[SILU_AND_MUL_X], &out = call.tensors[SILU_AND_MUL_OUT];
    int64_t n = out.shape[1];
    if ((n | begin | end) % 4 == 0 && n < INT32_MAX)
        return silu_and_mul_fours(x, out, begin, end, narrowed);
    for (int64_t unit = begin + threadIdx.x; unit < end; unit += blockDim.x) {
        const char *in = device_row(x, unit / n);
        float gate = device_load(x.type, in, unit % n), up = device_load(x.type, in, n + unit % n);
        device_store(out.type, device_row(out, unit / n), unit % n, silu(gate) * up);
        if (narrowed) device_store(DTYPE_BF16, narrowed, unit, silu(gate) * up);
    }
}

#endif
