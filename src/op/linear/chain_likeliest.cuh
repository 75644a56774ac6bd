/* The likeliest feature of each row of x, from a product's sums in registers: no logits are written
 * or read.
 *
 * A thread keeps the best of its features for each of its rows, through all tiles of its block. The
 * order is that of op/argmax: the larger sum first, of equal sums the lower feature; NaN counts as
 * minus infinity. Sum and feature form one integer, of which the larger comes first, so that blocks
 * may merge theirs in any order. The last block to end a chain turns them into features.
 */
#pragma once

#include "op/linear/chain_block.cuh"
#include "op/linear/linear_stream.cuh"

/* The key of a value that is not NaN; never 0. */
DEVICE_FN uint64_t likeliest_key(float value, int32_t feature)
{
    uint32_t bits = __float_as_uint(value + 0.0f); /* makes -0 0 */
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~feature;
}
DEVICE_FN int32_t likeliest_feature(uint64_t key)
{
    return (int32_t) ~(uint32_t)key;
}

/* Of rows 8 q + 2 t + j of x. */
template <int COLUMNS> struct likeliest_best {
    float value[COLUMNS / 8][2];
    int32_t feature[COLUMNS / 8][2];
};

/* A thread's features rise from call to call. */
template <int COLUMNS>
DEVICE_FN void likeliest_take(likeliest_best<COLUMNS> &best, const stream_sums<COLUMNS> &sums,
                              int part, int feature)
{
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float value = sums.of[q][2 * part + j];
            bool first = best.feature[q][j] < 0;
            if (first || value > best.value[q][j]) {
                best.value[q][j] = isnan(value) ? -CUDART_INF_F : value;
                best.feature[q][j] = feature;
            }
        }
}

DEVICE_FN uint64_t likeliest_of_lanes(uint64_t key)
{
#pragma unroll
    for (int step = 4; step < WARP; step *= 2) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, key, step);
        if (other > key) key = other;
    }
    return key;
}

/* All worker threads: merges this block's best into those of all blocks. `space`: a warp's keys of
 * all rows. */
template <int COLUMNS>
DEVICE_FN void likeliest_tell(const linear_chain &call, const likeliest_best<COLUMNS> &best,
                              uint64_t *space)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    chain_meet(); /* no thread reads the space any more */
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint64_t key =
                best.feature[q][j] < 0 ? 0 : likeliest_key(best.value[q][j], best.feature[q][j]);
            key = likeliest_of_lanes(key);
            if (lane < 4) space[warp * COLUMNS + q * 8 + lane * 2 + j] = key;
        }
    chain_meet(); /* the keys are complete */
    if ((int)threadIdx.x >= call.n_ids) return;
    uint64_t key = 0;
    for (int w = 0; w < CHAIN_WORKERS / WARP; w++)
        key = max(key, space[w * COLUMNS + threadIdx.x]);
    if (key > 0) atomicMax((unsigned long long *)call.best + threadIdx.x, key);
}

/* All worker threads of the last block to end. */
DEVICE_FN void likeliest_leave(const linear_chain &call)
{
    for (int row = threadIdx.x; row < call.n_ids; row += CHAIN_WORKERS) {
        call.ids[row] = likeliest_feature(__ldcg(call.best + row));
        call.best[row] = 0;
    }
}
