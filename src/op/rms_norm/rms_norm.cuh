/* rms_norm and add_rms_norm on the GPU: a block a row, eight neighbours a thread.
 *
 * A row of up to 8 * blockDim.x elements stays in registers between its sum and its scaling; of a
 * longer one what comes after is read twice. The order of the sum depends on the row's length
 * alone.
 */
#ifndef QUIPU_OP_RMS_NORM_CUH
#define QUIPU_OP_RMS_NORM_CUH

#include "op/device.cuh"

/* Elements [i, i + 8) of what a row's norm is of. */
template <bool ADD, bool VECTORS>
DEVICE_FN void norm_load(const norm_rows &call, int64_t row, int i, float (&v)[8])
{
    device_eight x = device_fetch8<VECTORS>(call.x, row, i, call.n), residual;
    if (ADD) residual = device_fetch8<VECTORS>(call.residual, row, i, call.n);
    device_unpack8(call.x.type, x, v);
    if (!ADD) return;
    float kept[8];
    device_unpack8(call.residual.type, residual, kept);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] += kept[j];
}

/* Writes them, scaled; and into the residual as they are. */
template <bool ADD, bool VECTORS>
DEVICE_FN void norm_store(const norm_rows &call, int64_t row, int i, const device_eight &weight,
                          float scale, float (&v)[8])
{
    float w[8];
    if (ADD) device_store8<VECTORS>(call.residual, row, i, call.n, v);
    device_unpack8(call.weight.type, weight, w);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = v[j] * scale * w[j];
    device_store8<VECTORS>(call.out, row, i, call.n, v);
    if (call.narrowed.data) device_store8<VECTORS>(call.narrowed, row, i, call.n, v);
}

/* With ADD residual <- x + residual, and out is the norm of that; else out is the norm of x.
 * VECTORS: all rows lie on vectors, and their length is a multiple of 8. */
template <bool ADD, bool VECTORS> DEVICE_FN void norm_row(const norm_rows &call, int64_t row)
{
    __shared__ float cells[MAX_WARPS];
    int first = 8 * (int)threadIdx.x, step = 8 * (int)blockDim.x, n = call.n;
    device_eight weight = device_fetch8<VECTORS>(call.weight, 0, first, n);
    device_wait_for_last();
    float kept[8], sum = 0;
    norm_load<ADD, VECTORS>(call, row, first, kept);
#pragma unroll
    for (int j = 0; j < 8; j++)
        sum = fmaf(kept[j], kept[j], sum);
    for (int i = first + step; i < n; i += step) {
        float v[8];
        norm_load<ADD, VECTORS>(call, row, i, v);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(v[j], v[j], sum);
    }
    float scale = 1.0f / sqrtf(block_sum(sum, cells) / (float)n + call.eps);
    if (first < n) norm_store<ADD, VECTORS>(call, row, first, weight, scale, kept);
    for (int i = first + step; i < n; i += step) {
        float v[8];
        norm_load<ADD, VECTORS>(call, row, i, v);
        norm_store<ADD, VECTORS>(call, row, i, device_fetch8<VECTORS>(call.weight, 0, i, n), scale,
                                 v);
    }
}

#endif
