/* rms_norm with its output in FP8: see rms_norm_f8.h. A block has a row, and a thread so many
 * eights of neighbours, as in norm_small_row(), whose order of sums it has.
 */
#include "op/f8.cuh"
#include "op/rms_norm/rms_norm.cuh"
#include "op/rms_norm/rms_norm_f8.h"

/* Eight neighbours, of a group of 64 or 128. */
DEVICE_FN void norm_f8_store(const norm_f8_rows &call, int64_t row, int i, const float (&v)[8])
{
    const unsigned lanes = 0xffffu << (threadIdx.x & 16); /* 128 elements */
    const float4 low = make_float4(v[0], v[1], v[2], v[3]);
    const float4 high = make_float4(v[4], v[5], v[6], v[7]);
    const float2 s =
        f8_scale(f8_largest_of(lanes, call.group / 8, fmaxf(f8_largest(low), f8_largest(high))));
    *(uint2 *)(call.out + row * call.of.n + i) =
        make_uint2(f8_pack4(low, s.y), f8_pack4(high, s.y));
    if (i % call.group == 0) call.scales[i / call.group * call.pitch + row] = s.x;
}

/* The same of a row with one scale, of which a block has all. */
template <int EIGHTS>
DEVICE_FN void norm_f8_store_row(const norm_f8_rows &call, int64_t row, float *cells,
                                 const float (&v)[EIGHTS][8])
{
    const int lane = (int)threadIdx.x % WARP, n_warps = (int)blockDim.x / WARP;
    float largest = 0;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            largest = fmaxf(largest, fabsf(v[e][j]));
    largest = f8_largest_of(ALL_LANES, WARP, largest);
    __syncthreads(); /* the cells have been read */
    if (lane == 0) cells[threadIdx.x / WARP] = largest;
    __syncthreads();
    const float2 s = f8_scale(f8_largest_of(ALL_LANES, WARP, lane < n_warps ? cells[lane] : 0));
    if (threadIdx.x == 0) call.scales[row] = s.x;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        const int i = 8 * ((int)threadIdx.x + e * (int)blockDim.x);
        if (i >= call.of.n) continue;
        *(uint2 *)(call.out + row * call.of.n + i) =
            make_uint2(f8_pack4(make_float4(v[e][0], v[e][1], v[e][2], v[e][3]), s.y),
                       f8_pack4(make_float4(v[e][4], v[e][5], v[e][6], v[e][7]), s.y));
    }
}

template <int EIGHTS, bool BY_ROWS>
DEVICE_FN void norm_f8_row(const norm_f8_rows &call, int64_t row)
{
    __shared__ float cells[MAX_WARPS];
    const int first = 8 * (int)threadIdx.x, step = 8 * (int)blockDim.x;
    const int n_warps = (int)blockDim.x / WARP;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    float kept[EIGHTS][8], sums[EIGHTS];
    device_eight weight[EIGHTS];
    if (warp == 0) cells[lane] = 0;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        weight[e] = device_fetch8<true>(call.of.weight, 0, first + e * step, call.of.n);
    device_wait_for_last();
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        norm_load<false, true>(call.of, row, first + e * step, kept[e]);
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        sums[e] = warp_sum(norm_squares(kept[e]));
    __syncthreads(); /* the cells are zero */
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
        if (lane == e && e * n_warps + warp < MAX_WARPS) cells[e * n_warps + warp] = sums[e];
    __syncthreads();
    const float scale = norm_scale(warp_sum(cells[lane]), call.of.n, call.of.eps);
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        const int i = first + e * step;
        float w[8];
        if (i >= call.of.n) continue;
        device_unpack8(call.of.weight.type, weight[e], w);
        norm_apply(kept[e], scale, w);
#pragma unroll
        for (int j = 0; j < 8; j++)
            kept[e][j] = f8_first(kept[e][j]);
        if (!BY_ROWS) norm_f8_store(call, row, i, kept[e]);
    }
    if (BY_ROWS) norm_f8_store_row(call, row, cells, kept);
}

#define NORM_F8(name, eights, by_rows)                                                             \
    extern "C" __global__ void __launch_bounds__(NORM_F8_MOST / 8 / eights)                        \
        run_rms_norm_f8_##name(const __grid_constant__ norm_f8_rows call)                          \
    {                                                                                              \
        device_let_next_begin();                                                                   \
        norm_f8_row<eights, by_rows>(call, call.of.begin + blockIdx.x);                            \
    }
NORM_F8(1, 1, false)
NORM_F8(4, 4, false)
NORM_F8(rows_1, 1, true)
NORM_F8(rows_4, 4, true)
