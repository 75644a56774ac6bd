/* paged_prefill with wgmma, for sm_90a: keys and values by cp.async through two stages each,
 * warpgroups of 64 rows each.
 *
 * The scores of a step are started before the product of the last step's weights with the values:
 * while the tensor cores work on that product, the warps compute the new step's exponentials. One
 * barrier per step, by which the copies of the step before have come.
 */
#ifndef QUIPU_OP_PAGED_PREFILL_WGMMA_CUH
#define QUIPU_OP_PAGED_PREFILL_WGMMA_CUH

#include "op/attention/wgmma.cuh"
#include "op/paged_prefill/paged_prefill_limits.cuh"

/* s (64, STEP) = q (64, HEAD_DIM) k (STEP, HEAD_DIM)^T; q: of `rows` rows, from the group's first
 */
template <typename T, int HEAD_DIM, int STEP>
__device__ __forceinline__ void prefill_wgmma_scores(float (&s)[STEP / 8][4], uint32_t q, int rows,
                                                     uint32_t k)
{
    const uint64_t queries = wgmma_operand(q, rows), keys = wgmma_operand(k, STEP);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++)
        wgmma_scores(T(), s, wgmma_further(queries, d / 4 * rows * 128 + d % 4 * 32),
                     wgmma_further(keys, d / 4 * STEP * 128 + d % 4 * 32), d > 0);
    wgmma_commit();
}

/* o (64, HEAD_DIM) += weights (64, STEP) v (STEP, HEAD_DIM) */
template <typename T, int HEAD_DIM, int STEP>
__device__ __forceinline__ void prefill_wgmma_values(float (&o)[HEAD_DIM / 8][4],
                                                     const uint32_t (&weights)[STEP / 16][4],
                                                     uint32_t v)
{
    const uint64_t values = wgmma_operand(v, STEP);
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
        wgmma_values(T(), o, weights[i], wgmma_further(values, i * 16 * 128), 1);
    wgmma_commit();
}

template <typename T, int HEAD_DIM, int STEP, int GROUPS, typename LIMITS>
__device__ __forceinline__ void paged_prefill_wgmma(const paged_attention &call,
                                                    const LIMITS &limits, char *shared)
{
    constexpr int THREADS = GROUPS * 128, ROWS = GROUPS * 64;
    constexpr uint32_t STAGE = STEP * HEAD_DIM * 2;
    prefill_tile tile;
    if (!prefill_tile_begin(call, ROWS, tile)) return;
    const char *k_cache = call.k + tile.kv_head * call.k_strides.head;
    const char *v_cache = call.v + tile.kv_head * call.v_strides.head;
    uint32_t q = (uint32_t)__cvta_generic_to_shared(shared);
    uint32_t k = q + ROWS * HEAD_DIM * 2, v = k + 2 * STAGE;
    page_places<STEP> *places = (page_places<STEP> *)(shared + ROWS * HEAD_DIM * 2 + 4 * STAGE);
    uint32_t own_q = q + (uint32_t)threadIdx.x / 128 * 64 * 128;
    float scale = limits_scale(limits, call);

    int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    softmax_rows rows = prefill_rows(call, tile, row);
    limited_rows<LIMITS> limited(limits, call, tile, row);
    float o[HEAD_DIM / 8][4] = {};
    int seen = prefill_visible(call, tile, tile.first_row + ROWS - 1);
    int seen_by_all = prefill_visible(call, tile, tile.first_row + (int)threadIdx.x / 32 * 16);

    if (seen > 0) {
        float s[STEP / 8][4], shrink[2];
        uint32_t weights[STEP / 16][4];
        int length = tile.walk.length, start = limits_start<STEP>(limits, call, tile);
        int begin = start / STEP % page_places<STEP>::STEPS;
        for (int i = 0; i < 3; i++)
            page_places_find(places, call, tile.walk, start + i * STEP);
        __syncthreads(); /* the first places are known */
        tile_fetch<HEAD_DIM, STEP, THREADS>(k_cache, places->k[begin], call.k_strides.position,
                                            length - start, k);
        copy_commit();
        if (start + STEP < seen)
            tile_fetch<HEAD_DIM, STEP, THREADS>(
                k_cache, places->k[(begin + 1) % page_places<STEP>::STEPS], call.k_strides.position,
                length - start - STEP, k + STAGE);
        tile_fetch<HEAD_DIM, STEP, THREADS>(v_cache, places->v[begin], call.v_strides.position,
                                            length - start, v);
        copy_commit();
        prefill_load_queries<T, HEAD_DIM, ROWS, ROWS, THREADS>(call, tile, shared, 0);
        copy_wait<1>();
        wgmma_publish();
        __syncthreads(); /* the queries and the first keys have come */
        wgmma_hold(s);
        wgmma_begin();
        prefill_wgmma_scores<T, HEAD_DIM, STEP>(s, own_q, ROWS, k);
        wgmma_wait<0>();
        wgmma_hold(s);
        limit_scores(s, limited, start);
        softmax_step(s, rows, start, start + STEP > seen_by_all, scale, shrink);
#pragma unroll
        for (int i = 0; i < STEP / 16; i++)
            weights_pack<T>(s, i, weights[i]);

        uint32_t stage = 0; /* of the values; the next step's keys are in the other */
        for (int first = start + STEP; first < seen; first += STEP, stage ^= STAGE) {
            copy_wait<0>();
            wgmma_publish();
            __syncthreads(); /* these stages have come, and no thread reads the others any more */
            wgmma_hold(s);
            wgmma_hold(o);
            wgmma_begin();
            prefill_wgmma_scores<T, HEAD_DIM, STEP>(s, own_q, ROWS, k + (stage ^ STAGE));
            prefill_wgmma_values<T, HEAD_DIM, STEP>(o, weights, v + stage);
            int next = first + STEP, slot = first / STEP % page_places<STEP>::STEPS;
            if (next < seen)
                tile_fetch<HEAD_DIM, STEP, THREADS>(
                    k_cache, places->k[(slot + 1) % page_places<STEP>::STEPS],
                    call.k_strides.position, length - next, k + stage);
            tile_fetch<HEAD_DIM, STEP, THREADS>(v_cache, places->v[slot], call.v_strides.position,
                                                length - first, v + (stage ^ STAGE));
            copy_commit();
            page_places_find(places, call, tile.walk, next + STEP);
            wgmma_wait<1>();
            wgmma_hold(s);
            limit_scores(s, limited, first);
            softmax_step(s, rows, first, first + STEP > seen_by_all, scale, shrink);
            wgmma_wait<0>();
            wgmma_hold(o);
            prefill_shrink<HEAD_DIM>(o, shrink);
#pragma unroll
            for (int i = 0; i < STEP / 16; i++)
                weights_pack<T>(s, i, weights[i]);
        }
        copy_wait<0>();
        wgmma_publish();
        __syncthreads(); /* the last values have come */
        wgmma_hold(o);
        wgmma_begin();
        prefill_wgmma_values<T, HEAD_DIM, STEP>(o, weights, v + stage);
        wgmma_wait<0>();
        wgmma_hold(o);
    }
    prefill_store<HEAD_DIM>(call, tile, row, rows, scale, o);
}

#endif
