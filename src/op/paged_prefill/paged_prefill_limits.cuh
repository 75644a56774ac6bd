/* Windows, caps and masks in tiles of paged_prefill: see op/attention/limits.cuh. They change
 * scores after the product; a window also moves the first step, which stays a multiple of the
 * steps, so that a row's bits do not depend on its tile. */
#pragma once

#include "op/attention/limits.cuh"
#include "op/attention/mask.cuh"
#include "op/paged_prefill/paged_prefill_tile.cuh"

/* The first position in the window of a row of the sequence. */
template <typename LIMITS>
__device__ __forceinline__ int prefill_first(const LIMITS &limits, const paged_attention &call,
                                             const prefill_tile &tile, int row)
{
    int token = prefill_token(call, min(row, tile.n_rows - 1));
    return limits_first(limits, tile.length, tile.n_tokens - token - 1);
}

/* Where the tile's first step begins. */
template <int STEP>
__device__ __forceinline__ int limits_start(const no_limits &, const paged_attention &,
                                            const prefill_tile &)
{
    return 0;
}
template <int STEP>
__device__ __forceinline__ int limits_start(const attention_limits &limits,
                                            const paged_attention &call, const prefill_tile &tile)
{
    return prefill_first(limits, call, tile, tile.first_row) / STEP * STEP;
}

/* The limits of a lane's rows `row` and row + 8 of the tile. */
template <typename LIMITS> struct limited_rows;
template <> struct limited_rows<no_limits> {
    __device__ __forceinline__ limited_rows(const no_limits &, const paged_attention &,
                                            const prefill_tile &, int)
    {
    }
};
template <> struct limited_rows<attention_limits> {
    int first[2];         /* position of the window */
    float inner;          /* limits_inner() */
    const uint32_t *mask; /* of the sequence, or NULL */
    int64_t bit[2];       /* of position 0 */
    int64_t last_word;

    __device__ __forceinline__ limited_rows(const attention_limits &limits,
                                            const paged_attention &call, const prefill_tile &tile,
                                            int row)
        : inner(limits_inner(limits, call)), mask(limits.mask), bit{0, 0}, last_word(0)
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            first[r] = prefill_first(limits, call, tile, tile.first_row + row + r * 8);
        if (!mask) return;
        mask += mask_words_before(call.qo_indptr, call.kv_indptr, call.kv_last_page_len,
                                  call.page_size, tile.sequence);
        last_word = ((int64_t)tile.n_tokens * tile.length - 1) / 32;
#pragma unroll
        for (int r = 0; r < 2; r++)
            bit[r] =
                (int64_t)prefill_token(call, min(tile.first_row + row + r * 8, tile.n_rows - 1)) *
                tile.length;
    }
};

/* Limits the scores of 8 * TILES positions from `first` on. */
template <int TILES>
__device__ __forceinline__ void limit_scores(float (&)[TILES][4], const limited_rows<no_limits> &,
                                             int)
{
}
template <int TILES>
__device__ __forceinline__ void
limit_scores(float (&s)[TILES][4], const limited_rows<attention_limits> &limited, int first)
{
    int column = (int)threadIdx.x % 4 * 2;
    if (limited.inner != 0) {
#pragma unroll
        for (int i = 0; i < TILES * 4; i++)
            s[i / 4][i % 4] = tanh_of(s[i / 4][i % 4] * limited.inner);
    }
    if (limited.mask) {
        static_assert(TILES % 8 == 0, "mask_bits() gives 64 positions");
#pragma unroll
        for (int i = 0; i < TILES * 4; i += 32) { /* 64 positions of one row, then of the other */
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint64_t seen =
                    mask_bits(limited.mask, limited.bit[r] + first + i * 2, limited.last_word) >>
                    column;
#pragma unroll
                for (int j = 0; j < 16; j++)
                    if (!(seen >> (j / 2 * 8 + j % 2) & 1))
                        s[i / 4 + j / 2][2 * r + j % 2] = -INFINITY;
            }
        }
    }
    if (first < max(limited.first[0], limited.first[1])) {
#pragma unroll
        for (int i = 0; i < TILES * 4; i++)
            if (first + column + i / 4 * 8 + i % 2 < limited.first[i % 4 / 2])
                s[i / 4][i % 4] = -INFINITY;
    }
}
