/* rms_norm and add_rms_norm on the GPU: one block per row, eight neighbours per thread.
 *
 * A row of up to 8 * blockDim.x elements stays in registers between its sum and its scaling; the
 * rest of a longer one is read twice. Many rows have small blocks with several eights per thread.
 * The order of the sum depends only on the row's length: four neighbours, two fours, the eights of
 * 256 neighbours in warp_sum()'s order of lanes, and in the same order those sums, of up to 8192
 * elements. Code that computes a norm elsewhere must add its squares in this order too.
 */
#pragma once

#include "op/device.cuh"

DEVICE_FN float norm_squares4(float a, float b, float c, float d)
{
    return fmaf(d, d, fmaf(c, c, fmaf(b, b, a * a)));
}

DEVICE_FN float norm_squares(const float (&v)[8])
{
    return norm_squares4(v[0], v[1], v[2], v[3]) + norm_squares4(v[4], v[5], v[6], v[7]);
}

/* The sum over 256 neighbours if a lane has the squares of [4 * lane, 4 * lane + 4) and of the four
 * 128 elements further; the same order, and every lane gets it. */
DEVICE_FN float norm_sum_of_fours(float near, float far)
{
    near += __shfl_xor_sync(ALL_LANES, near, 1);
    far += __shfl_xor_sync(ALL_LANES, far, 1);
    near += far;
    for (int step = WARP / 2; step > 1; step /= 2)
        near += __shfl_xor_sync(ALL_LANES, near, step);
    return near;
}

DEVICE_FN float norm_scale(float squares, int n, float eps)
{
    return 1.0f / sqrtf(squares / (float)n + eps);
}

DEVICE_FN float4 norm_apply4(float4 v, float scale, float4 weight)
{
    return make_float4(v.x * scale * weight.x, v.y * scale * weight.y, v.z * scale * weight.z,
                       v.w * scale * weight.w);
}

DEVICE_FN void norm_apply(float (&v)[8], float scale, const float (&weight)[8])
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = v[j] * scale * weight[j];
}

/* Elements [i, i + 8) of the norm's input. */
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

/* Stores them, scaled; and unscaled in the residual. */
template <bool ADD, bool VECTORS>
DEVICE_FN void norm_store(const norm_rows &call, int64_t row, int i, const device_eight &weight,
                          float scale, float (&v)[8])
{
    float w[8];
    if (ADD) device_store8<VECTORS>(call.residual, row, i, call.n, v);
    device_unpack8(call.weight.type, weight, w);
    norm_apply(v, scale, w);
    if (call.out.data) device_store8<VECTORS>(call.out, row, i, call.n, v);
    if (call.narrowed.data) device_store8<VECTORS>(call.narrowed, row, i, call.n, v);
}

/* With ADD residual <- x + residual, and out is the norm of that; else out is the norm of x.
 * VECTORS: all rows are aligned, and their length is a multiple of 8. */
template <bool ADD, bool VECTORS> DEVICE_FN void norm_row(const norm_rows &call, int64_t row)
{
    __shared__ float cells[MAX_WARPS];
    int first = 8 * (int)threadIdx.x, step = 8 * (int)blockDim.x, n = call.n;
    device_eight weight = device_fetch8<VECTORS>(call.weight, 0, first, n);
    device_wait_for_last();
    float kept[8];
    norm_load<ADD, VECTORS>(call, row, first, kept);
    float sum = norm_squares(kept);
    for (int i = first + step; i < n; i += step) {
        float v[8];
        norm_load<ADD, VECTORS>(call, row, i, v);
        sum += norm_squares(v);
    }
    float scale = norm_scale(block_sum(sum, cells), n, call.eps);
    if (first < n) norm_store<ADD, VECTORS>(call, row, first, weight, scale, kept);
    for (int i = first + step; i < n; i += step) {
        float v[8];
        norm_load<ADD, VECTORS>(call, row, i, v);
        norm_store<ADD, VECTORS>(call, row, i, device_fetch8<VECTORS>(call.weight, 0, i, n), scale,
                                 v);
    }
}

/* For many aligned rows of at most EIGHTS * 8 * blockDim.x elements: a thread has several eights,
 * in the same order, so that many small blocks load while others add up. */
template <bool ADD, int EIGHTS> DEVICE_FN void norm_small_row(const norm_rows &call, int64_t row)
{
    __shared__ float cells[MAX_WARPS];
    int first = 8 * (int)threadIdx.x, step = 8 * (int)blockDim.x, n_warps = (int)blockDim.x / WARP;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    float kept[EIGHTS][8], sums[EIGHTS];
    device_eight weight[EIGHTS];
    if (warp == 0) cells[lane] = 0;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        weight[e] = device_fetch8<true>(call.weight, 0, first + e * step, call.n);
    device_wait_for_last();
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        norm_load<ADD, true>(call, row, first + e * step, kept[e]);
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        sums[e] = warp_sum(norm_squares(kept[e]));
    __syncthreads(); /* the cells are zero */
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        if (lane == e && e * n_warps + warp < MAX_WARPS) cells[e * n_warps + warp] = sums[e];
    __syncthreads();
    float scale = norm_scale(warp_sum(cells[lane]), call.n, call.eps);
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        int i = first + e * step;
        if (i >= call.n) continue;
        norm_store<ADD, true>(call, row, i, weight[e], scale, kept[e]);
    }
}
