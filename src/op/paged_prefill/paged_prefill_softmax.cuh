/* The running softmax of paged_prefill with wgmma.
 *
 * Weights are relative to a row's maximum, which stays as it is while weights are small enough. So
 * most steps compute their exponentials at once, without looking for a maximum first, and earlier
 * sums are not rescaled. Only if some weights of a row are large, or if the row has seen nothing
 * before, the row gets the maximum of its scores up to this step. A row decides by its own scores,
 * whatever rows are beside it.
 */
#pragma once

#include "op/attention/paged.cuh"

/* The largest sum of a lane's weights of a step, a quarter of a row's, for which the maximum stays.
 */
#define PREFILL_LARGE 1024.0f

/* The sums of weights by row, of a lane's columns: short chains of additions. */
struct prefill_sums {
    float part[2][2]; /* [row][tile % 2] */

    __device__ __forceinline__ float of(int row) const { return part[row][0] + part[row][1]; }
};

/* The weight of a score. */
__device__ __forceinline__ float prefill_weight(float score, float scale, float base)
{
    return exp2_fast(fmaf(score, scale, -base));
}

/* Which of the lane's rows have one of these lanes: a row has four. */
__device__ __forceinline__ bool prefill_has(unsigned lanes)
{
    return lanes >> (threadIdx.x % 32 & ~3u) & 15;
}

/* Weights by the present maxima. False, in all lanes, if some row has to change its maximum:
 * `moves` says which of the lane's. Then nothing has changed but `weights`. */
template <typename T, int TILES>
__device__ __forceinline__ bool
prefill_weigh_at_once(const float (&s)[TILES][4], softmax_rows &rows, float scale,
                      uint32_t (&weights)[TILES / 2][4], bool (&moves)[2])
{
    const float base[2] = {softmax_base(rows.maximum[0], scale),
                           softmax_base(rows.maximum[1], scale)};
    prefill_sums sums = {};
#pragma unroll
    for (int i = 0; i < TILES * 2;
         i++) { /* pairs of columns: of row 0, of row 1, the next tile's */
        float low = prefill_weight(s[i / 2][i % 2 * 2], scale, base[i % 2]);
        float high = prefill_weight(s[i / 2][i % 2 * 2 + 1], scale, base[i % 2]);
        sums.part[i % 2][i / 2 % 2] += low;
        sums.part[i % 2][i / 2 % 2] += high;
        weights[i / 4][i % 4] = pack_pair(T(), low, high);
    }
    unsigned large[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        large[r] = __ballot_sync(0xffffffffu,
                                 !(sums.of(r) <= PREFILL_LARGE) || rows.maximum[r] == -INFINITY);
    if (large[0] | large[1]) {
        moves[0] = prefill_has(large[0]);
        moves[1] = prefill_has(large[1]);
        return false;
    }
    rows.sum[0] += sums.of(0);
    rows.sum[1] += sums.of(1);
    return true;
}

/* Turns scores into weights by the maxima of all scores up to these, in the rows that move.
 * `shrink`: the factors for earlier sums. */
template <int TILES>
__device__ __forceinline__ void prefill_weigh(float (&s)[TILES][4], softmax_rows &rows, float scale,
                                              const bool (&moves)[2], float (&shrink)[2])
{
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float even = s[0][2 * r], odd = s[0][2 * r + 1];
#pragma unroll
        for (int i = 1; i < TILES; i++)
            even = fmaxf(even, s[i][2 * r]), odd = fmaxf(odd, s[i][2 * r + 1]);
        float before = rows.maximum[r], maximum = fmaxf(before, quad_max(fmaxf(even, odd)));
        if (!moves[r]) maximum = before;
        base[r] = softmax_base(maximum, scale);
        shrink[r] = softmax_shrink(before, scale, base[r]);
        rows.maximum[r] = maximum;
    }
    prefill_sums sums = {};
#pragma unroll
    for (int i = 0; i < TILES * 4; i++) {
        s[i / 4][i % 4] = prefill_weight(s[i / 4][i % 4], scale, base[i % 4 / 2]);
        sums.part[i % 4 / 2][i / 4 % 2] += s[i / 4][i % 4];
    }
    rows.sum[0] = rows.sum[0] * shrink[0] + sums.of(0);
    rows.sum[1] = rows.sum[1] * shrink[1] + sums.of(1);
}

/* Takes out the scores of positions that rows do not see, of those from `first` on. */
template <int TILES>
__device__ __forceinline__ void prefill_mask(float (&s)[TILES][4], const softmax_rows &rows,
                                             int first)
{
    int column = first + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < TILES * 4; i++)
        if (column + i / 4 * 8 + i % 2 >= rows.n_visible[i % 4 / 2]) s[i / 4][i % 4] = -INFINITY;
}
