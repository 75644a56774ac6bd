/* paged_prefill with mma.sync, for any GPU from sm_80 on: keys and values by cp.async through two
 * stages, four warps of 32 rows each.
 *
 * 32 rows per warp, not 16: each fragment of keys and values that a warp loads from shared memory
 * is used twice; else shared memory would be the limit.
 */
#pragma once

#include "op/paged_prefill/paged_prefill_limits.cuh"

enum {
    PREFILL_MMA_ROWS = PAGED_PREFILL_MMA_ROWS,
    PREFILL_MMA_WARPS = PAGED_PREFILL_MMA_THREADS / 32
};

/* Four 8 x 8 fragments, of whose rows each lane gives one address. */
__device__ __forceinline__ void load_fragments(uint32_t (&d)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_fragments_transposed(uint32_t (&d)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
}

/* Address of the chunk 2 d further in the same row of a tile of `rows` rows, counted from chunk 0
 * or 1. */
__device__ __forceinline__ uint32_t tile_pair(uint32_t address, int rows, int d)
{
    return (address ^ d % 4 * 32) + d / 4 * rows * 128;
}

/* s[half] (16, STEP) = q (16, HEAD_DIM) k (STEP, HEAD_DIM)^T for the warp's two halves */
template <typename T, int HEAD_DIM, int STEP>
__device__ __forceinline__ void prefill_mma_scores(float (&s)[2][STEP / 8][4], uint32_t q,
                                                   uint32_t k)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    q += tile_byte(PREFILL_MMA_ROWS, warp * 32 + lane % 16, lane / 16);
    k += tile_byte(STEP, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < STEP; i++)
        s[i / (STEP / 2)][i % (STEP / 2) / 4][i % 4] = 0;
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        uint32_t a[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++)
            load_fragments(a[half], tile_pair(q, PREFILL_MMA_ROWS, d) + half * 16 * 128);
#pragma unroll
        for (int i = 0; i < STEP / 16; i++) {
            uint32_t b[4];
            load_fragments(b, tile_pair(k, STEP, d) + i * 16 * 128);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                mma_16816(T(), s[half][2 * i], a[half], b[0], b[1]);
                mma_16816(T(), s[half][2 * i + 1], a[half], b[2], b[3]);
            }
        }
    }
}

/* o[half] (16, HEAD_DIM) += s[half] (16, STEP) v (STEP, HEAD_DIM) */
template <typename T, int HEAD_DIM, int STEP>
__device__ __forceinline__ void prefill_mma_values(float (&o)[2][HEAD_DIM / 8][4],
                                                   const float (&s)[2][STEP / 8][4], uint32_t v)
{
    int lane = (int)threadIdx.x % 32;
    v += tile_byte(STEP, lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < STEP / 16; i++) {
        uint32_t a[2][4];
        weights_pack<T>(s[0], i, a[0]);
        weights_pack<T>(s[1], i, a[1]);
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            uint32_t b[4];
            load_fragments_transposed(b, tile_pair(v, STEP, d) + i * 16 * 128);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                mma_16816(T(), o[half][2 * d], a[half], b[0], b[1]);
                mma_16816(T(), o[half][2 * d + 1], a[half], b[2], b[3]);
            }
        }
    }
}

template <typename T, int HEAD_DIM, int STEP, typename LIMITS>
__device__ __forceinline__ void paged_prefill_mma(const paged_attention &call, const LIMITS &limits,
                                                  char *shared)
{
    constexpr int THREADS = PREFILL_MMA_WARPS * 32, ROWS = PREFILL_MMA_ROWS;
    constexpr uint32_t STAGE = STEP * HEAD_DIM * 2;
    prefill_tile tile;
    if (!call.beside) device_let_next_begin();
    if (!prefill_tile_find(call, ROWS, (int)blockIdx.x, tile)) return;
    prefill_take_turn(call);
    page_walk walk = page_walk_of(call, tile.sequence);
    const char *k_cache = call.k + tile.kv_head * call.k_strides.head;
    const char *v_cache = call.v + tile.kv_head * call.v_strides.head;
    uint32_t q = (uint32_t)__cvta_generic_to_shared(shared);
    uint32_t k = q + ROWS * HEAD_DIM * 2, v = k + 2 * STAGE;
    page_places<STEP> *places = (page_places<STEP> *)(shared + ROWS * HEAD_DIM * 2 + 4 * STAGE);
    float scale = limits_scale(limits, call);

    int row = (int)threadIdx.x / 32 * 32 + (int)threadIdx.x % 32 / 4;
    softmax_rows rows[2] = {prefill_rows(call, tile, row), prefill_rows(call, tile, row + 16)};
    limited_rows<LIMITS> limited[2] = {limited_rows<LIMITS>(limits, call, tile, row),
                                       limited_rows<LIMITS>(limits, call, tile, row + 16)};
    float o[2][HEAD_DIM / 8][4] = {};
    int seen = prefill_visible(call, tile, tile.first_row + ROWS - 1);
    int seen_by_all = prefill_visible(call, tile, tile.first_row + (int)threadIdx.x / 32 * 32);

    int start = limits_start<STEP>(limits, call, tile);
    if (seen > 0) {
        int slot = start / STEP % page_places<STEP>::STEPS;
        page_places_find(places, call, walk, start);
        page_places_find(places, call, walk, start + STEP);
        __syncthreads(); /* the first places are known */
        tile_fetch<HEAD_DIM, STEP, THREADS>(k_cache, places->k[slot], call.k_strides.position,
                                            tile.length - start, k);
        tile_fetch<HEAD_DIM, STEP, THREADS>(v_cache, places->v[slot], call.v_strides.position,
                                            tile.length - start, v);
    }
    copy_commit();
    prefill_load_queries<T, HEAD_DIM, ROWS, ROWS, THREADS>(call, tile, shared, 0);
    for (int first = start, stage = 0; first < seen; first += STEP, stage ^= 1) {
        copy_wait<0>();
        __syncthreads(); /* the stage has come, and no thread reads the other any more */
        int next = first + STEP, slot = next / STEP % page_places<STEP>::STEPS;
        if (next < seen) {
            uint32_t other = (stage ^ 1) * STAGE;
            tile_fetch<HEAD_DIM, STEP, THREADS>(k_cache, places->k[slot], call.k_strides.position,
                                                tile.length - next, k + other);
            tile_fetch<HEAD_DIM, STEP, THREADS>(v_cache, places->v[slot], call.v_strides.position,
                                                tile.length - next, v + other);
            copy_commit();
            page_places_find(places, call, walk, next + STEP);
        }
        float s[2][STEP / 8][4], shrink[2];
        prefill_mma_scores<T, HEAD_DIM, STEP>(s, q, k + stage * STAGE);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            limit_scores(s[half], limited[half], first);
            softmax_step(s[half], rows[half], first, first + STEP > seen_by_all, scale, shrink);
            prefill_shrink<HEAD_DIM>(o[half], shrink);
        }
        prefill_mma_values<T, HEAD_DIM, STEP>(o, s, v + stage * STAGE);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float factor[2];
        prefill_factors(call, tile, row + i * 16, rows[i], scale, factor);
        prefill_store<HEAD_DIM>(call, tile, row + i * 16, factor, o[i]);
    }
}
