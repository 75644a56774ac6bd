/* argmax on the GPU: one block per row. */
#pragma once

#include "op/argmax/argmax.h"
#include "op/device.cuh"

/* A value and its id. The larger value comes first, of equal values the lower id; an entry with an
 * id comes before one without (-1). */
struct ranked {
    float value;
    int32_t id;
};

DEVICE_FN bool ranked_before(ranked a, ranked b)
{
    if (a.value != b.value) return a.value > b.value;
    return (uint32_t)a.id < (uint32_t)b.id;
}

/* The first of all threads' entries, in every thread. `cells`: shared memory, MAX_WARPS entries. */
DEVICE_FN ranked block_first(ranked mine, ranked *cells)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    for (int round = 0; round < 2; round++) {
        for (int step = WARP / 2; step > 0; step /= 2) {
            ranked other = {__shfl_xor_sync(ALL_LANES, mine.value, step),
                            __shfl_xor_sync(ALL_LANES, mine.id, step)};
            if (ranked_before(other, mine)) mine = other;
        }
        if (round == 1) break;
        __syncthreads();
        if (lane == 0) cells[warp] = mine;
        __syncthreads();
        mine = lane < n_warps ? cells[lane] : ranked{-CUDART_INF_F, -1};
    }
    return mine;
}

/* NaN counts as minus infinity. */
DEVICE_FN float rank_value(float value)
{
    return isnan(value) ? -CUDART_INF_F : value;
}

DEVICE_FN ranked ranked_first(ranked a, ranked b)
{
    return ranked_before(b, a) ? b : a;
}

/* This thread's first entry of a row. Aligned floats are loaded as vectors, several in flight at
 * once. */
DEVICE_FN ranked argmax_of_thread(dtype type, const char *row, int64_t n)
{
    ranked best = {-CUDART_INF_F, -1};
    int64_t done = 0;
    if (type == DTYPE_F32 && device_aligned(row, 16)) {
        done = n / 4 * 4;
#pragma unroll 8
        for (int64_t i = 4 * threadIdx.x; i < done; i += 4 * blockDim.x) {
            float4 v = *(const float4 *)((const float *)row + i);
            const float values[4] = {v.x, v.y, v.z, v.w};
            for (int j = 0; j < 4; j++)
                best = ranked_first(best, ranked{rank_value(values[j]), (int32_t)i + j});
        }
    }
    for (int64_t i = done + threadIdx.x; i < n; i += blockDim.x)
        best = ranked_first(best, ranked{rank_value(device_load(type, row, i)), (int32_t)i});
    return best;
}

DEVICE_FN void argmax_block(const op_call &call, int64_t begin, int64_t end)
{
    __shared__ ranked cells[MAX_WARPS];
    const tensor &logits = call.tensors[ARGMAX_LOGITS];
    int32_t *ids = (int32_t *)call.tensors[ARGMAX_IDS].data;
    for (int64_t row = begin; row < end; row++) {
        const char *in = device_row(logits, row);
        ranked best = block_first(argmax_of_thread(logits.type, in, logits.shape[1]), cells);
        if (threadIdx.x == 0) ids[row] = best.id;
    }
}
