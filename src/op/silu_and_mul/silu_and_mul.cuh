/* silu_and_mul on the GPU: four neighbours a thread where they are floats on whole vectors. */
#ifndef QUIPU_OP_SILU_AND_MUL_CUH
#define QUIPU_OP_SILU_AND_MUL_CUH

#include "op/device.cuh"
#include "op/silu_and_mul/silu_and_mul.h"

DEVICE_FN float silu(float gate)
{
    return gate / (1.0f + expf(-gate));
}

/* `narrowed` (n_tokens, intermediate_size), if not NULL, gets the output rounded to BF16 too. */
DEVICE_FN void silu_and_mul_block(const op_call &call, int64_t begin, int64_t end,
                                  uint16_t *narrowed = nullptr)
{
    const tensor &x = call.tensors[SILU_AND_MUL_X], &out = call.tensors[SILU_AND_MUL_OUT];
    int64_t n = out.shape[1];
    bool vectors =
        x.type == DTYPE_F32 && out.type == DTYPE_F32 && (n | begin | end) % 4 == 0 &&
        (((uintptr_t)x.data | (uintptr_t)out.data | x.stride[0] | out.stride[0]) & 15) == 0;
    if (vectors) {
        for (int64_t unit = begin + 4 * threadIdx.x; unit < end; unit += 4 * blockDim.x) {
            const float *in = (const float *)device_row(x, unit / n) + unit % n;
            float4 gate = *(const float4 *)in, up = *(const float4 *)(in + n);
            float4 y = make_float4(silu(gate.x) * up.x, silu(gate.y) * up.y, silu(gate.z) * up.z,
                                   silu(gate.w) * up.w);
            *(float4 *)((float *)device_row(out, unit / n) + unit % n) = y;
            if (narrowed) device_narrow(narrowed + unit, y);
        }
        return;
    }
    for (int64_t unit = begin + threadIdx.x; unit < end; unit += blockDim.x) {
        const char *in = device_row(x, unit / n);
        float gate = device_load(x.type, in, unit % n), up = device_load(x.type, in, n + unit % n);
        device_store(out.type, device_row(out, unit / n), unit % n, silu(gate) * up);
        if (narrowed) device_store(DTYPE_BF16, narrowed, unit, silu(gate) * up);
    }
}

#endif
