/* Sums over ranks of rows that are cut among them, and the norms of these rows: see
 * exchange_sums_cuda.h. Ranks' parts are added in the order of the ranks, with x to the first, and
 * squares in the order of rms_norm.cuh.
 */
#pragma once

#include "cuda/exchange_sums.h"
#include "op/exchange.cuh"

/* Every rank's block of this number is here. */
DEVICE_FN void sums_meet(const exchange &e, uint32_t round)
{
    __syncthreads();
    if ((int)threadIdx.x < e.n_ranks && (int)threadIdx.x != e.rank)
        exchange_flags(e, (int)threadIdx.x, round);
    __syncthreads();
}

DEVICE_FN void sums_add8(float (&v)[8], const char *from)
{
    const float4 a = __ldcg((const float4 *)from), b = __ldcg((const float4 *)from + 1);
    const float part[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] += part[j];
}

/* Puts eight elements of a norm on all GPUs. */
DEVICE_FN void sums_send8(const exchange_sums &call, uint64_t offset, uint32_t row, int i,
                          const float (&v)[8])
{
    const exchange &e = call.ranks;
    for (int p = 1; p <= e.n_ranks; p++) {
        const device_rows to = {(char *)e.receive[exchange_peer(e, p)] + offset, call.norm.n * 2,
                                DTYPE_BF16};
        device_store8<true>(to, row, i, call.norm.n, v);
    }
}

/* A row of this rank. */
DEVICE_FN void sums_row(const exchange_sums &call, uint32_t own, float *cells)
{
    const exchange &e = call.ranks;
    const int first = 8 * (int)threadIdx.x, step = 8 * (int)blockDim.x, n = call.norm.n;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int n_warps = (int)blockDim.x / WARP;
    const uint32_t row = call.first + own;
    const char *parts = (const char *)e.receive[e.rank] + exchange_parts_offset(e.n_ranks);
    float kept[SUMS_EIGHTS][8], sums[SUMS_EIGHTS];
#pragma unroll
    for (int k = 0; k < SUMS_EIGHTS; k++)
        norm_load<false, true>(call.norm, row, first + k * step, kept[k]);
    for (int from = 0; from < e.n_ranks; from++) {
        const char *part = parts + ((uint64_t)from * call.per + own) * n * 4;
#pragma unroll
        for (int k = 0; k < SUMS_EIGHTS; k++)
            if (first + k * step < n) sums_add8(kept[k], part + (first + k * step) * 4);
    }
#pragma unroll
    for (int k = 0; k < SUMS_EIGHTS; k++)
        sums[k] = warp_sum(norm_squares(kept[k]));
    __syncthreads(); /* the row before has been read */
#pragma unroll
    for (int k = 0; k < SUMS_EIGHTS; k++)
        if (lane == k && k * n_warps + warp < MAX_WARPS) cells[k * n_warps + warp] = sums[k];
    __syncthreads();
    const float scale = norm_scale(warp_sum(cells[lane]), n, call.norm.eps);
#pragma unroll
    for (int k = 0; k < SUMS_EIGHTS; k++) {
        const int i = first + k * step;
        float weight[8];
        if (i >= n) continue;
        device_store8<true>(call.norm.x, row, i, n, kept[k]);
        device_unpack8(call.norm.weight.type, device_fetch8<true>(call.norm.weight, 0, i, n),
                       weight);
        norm_apply(kept[k], scale, weight);
        sums_send8(call, exchange_normed_offset(e.n_ranks), row, i, kept[k]);
    }
}

/* A round for the parts, which have come before these kernels begin, and one for the norms. */
DEVICE_FN void sums_rows(const exchange_sums &call, uint32_t *counters)
{
    __shared__ float cells[MAX_WARPS];
    device_wait_for_last();
    uint32_t *counter = counters + blockIdx.x, round = *counter;
    if (threadIdx.x < MAX_WARPS) cells[threadIdx.x] = 0;
    sums_meet(call.ranks, round + 1);
    for (uint32_t own = blockIdx.x; own < call.n_own; own += gridDim.x)
        sums_row(call, own, cells);
    sums_meet(call.ranks, round + 2);
    if (threadIdx.x == 0) *counter = round + 2;
}
