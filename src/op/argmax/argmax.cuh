/* argmax on the GPU: a block a row. */
#ifndef QUIPU_OP_ARGMAX_CUH
#define QUIPU_OP_ARGMAX_CUH

#include "op/argmax/argmax.h"
#include "op/device.cuh"

/* A value and its id; the larger value comes first, of equals the lower id, and one with an id
 * before one without (-1). */
struct ranked {
    float value;
    int32_t id;
};

DEVICE_FN bool ranked_before(ranked a, ranked b)
{
    if (a.value != b.value) return a.value > b.value;
    return (uint32_t)a.id < (uint32_t)b.id;
}

/* The first of all threads' entries, in every thread; `cells` is shared, of MAX_WARPS. */
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

DEVICE_FN void argmax_block(const op_call &call, int64_t begin, int64_t end)
{
    __shared__ ranked cells[MAX_WARPS];
    const tensor &logits = call.tensors[ARGMAX_LOGITS];
    int32_t *ids = (int32_t *)call.tensors[ARGMAX_IDS].data;
    for (int64_t row = begin; row < end; row++) {
        const char *in = device_row(logits, row);
        ranked best = {-CUDART_INF_F, -1};
        for (int64_t i = threadIdx.x; i < logits.shape[1]; i += blockDim.x) {
            ranked next = {rank_value(device_load(logits.type, in, i)), (int32_t)i};
            if (ranked_before(next, best)) best = next;
        }
        best = block_first(best, cells);
        if (threadIdx.x == 0) ids[row] = best.id;
    }
}

#endif
