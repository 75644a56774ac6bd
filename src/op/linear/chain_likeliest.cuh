/* The likeliest feature of every row of x, from a product's sums as they stand in registers: no
 * logits are written, nor read again.
 *
 * A thread keeps the best of its features for each of its rows, through all tiles of its block.
 * What comes first is as op/argmax says: the larger sum, of equals the lower feature; NaN counts as
 * minus infinity. Sum and feature make one integer, the larger coming first, so that blocks may add
 * theirs in any order; the last block to end a chain turns them into features.
 */
#ifndef QUIPU_OP_CHAIN_LIKELIEST_CUH
#define QUIPU_OP_CHAIN_LIKELIEST_CUH

#include "op/linear/chain_block.cuh"
#include "op/linear/linear_stream.cuh"

/* Of a value that is no NaN. Never 0. */
DEVICE_FN uint64_t likeliest_key(float value, int32_t feature)
{
    uint32_t bits = __float_as_uint(value + 0.0f); /* -0 is 0 */
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

/* All workers: this block's best, to all blocks'. `space`: a warp's keys of all rows. */
template <int COLUMNS>
DEVICE_FN void likeliest_tell(const linear_chain &call, const likeliest_best<COLUMNS> &best,
                              uint64_t *space)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    chain_meet(); /* nobody reads the space any more */
#pragma unroll
    for (int q = 0; q < COLUMNS / 8; q++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint64_t key =
                best.feature[q][j] < 0 ? 0 : likeliest_key(best.value[q][j], best.feature[q][j]);
            key = likeliest_of_lanes(key);
            if (lane < 4) space[warp * COLUMNS + q * 8 + lane * 2 + j] = key;
        }
    chain_meet(); /* they are there */
    if ((int)threadIdx.x >= call.n_ids) return;
    uint64_t key = 0;
    for (int w = 0; w < CHAIN_WORKERS / WARP; w++)
        key = max(key, space[w * COLUMNS + threadIdx.x]);
    if (key > 0) atomicMax((unsigned long long *)call.best + threadIdx.x, key);
}

/* All workers of the last block to end. */
DEVICE_FN void likeliest_leave(const linear_chain &call)
{
    for (int row = threadIdx.x; row < call.n_ids; row += CHAIN_WORKERS) {
        call.ids[row] = likeliest_feature(__ldcg(call.best + row));
        call.best[row] = 0;
    }
}

#endif
