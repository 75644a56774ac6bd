/* paged_prefill with wgmma over a cache in FP8: that of paged_prefill_wgmma.cuh with a warpgroup
 * more, which widens keys and values to F16, because wgmma has no product of F16 with FP8.
 *
 *     copying warps -> stages of FP8 -> widening warpgroup -> stages of F16 -> computing warpgroups
 *
 * Each of its warps has eights of rows of a stage, and arrives at the stage's mbarriers when they
 * are there. The results have the bits that the same numbers have in a cache of F16.
 */
#pragma once

#include "op/paged_prefill/paged_prefill_wgmma.cuh"

/* The sizes of a kernel: see paged_cuda.h. */
template <int DIM> struct prefill_f8_form {
    enum {
        HEAD_DIM = DIM,
        GROUPS = 2,
        ROWS = GROUPS * 64,
        STEP = PAGED_PREFILL_STEP,
        K_STAGES = PAGED_PREFILL_F8_STAGES(DIM),
        V_STAGES = PAGED_PREFILL_F8_STAGES(DIM),
        RAW_STAGES = PAGED_PREFILL_RAW_STAGES(DIM),
        REGISTERS = 216,
        COPYING = 40, /* and of one that widens */
        SHARED = PAGED_PREFILL_F8_SHARED(DIM),
        WIDENS = true,
    };
};

/* The stages of FP8, after the rest of shared memory. */
template <typename FORM> struct prefill_raw {
    enum {
        STAGE = FORM::STEP * FORM::HEAD_DIM,
        K = (prefill_memory<FORM>::END + 1023) / 1024 * 1024, /* swizzled by 1 KB */
        V = K + FORM::RAW_STAGES * STAGE,
        BARRIERS = V + FORM::RAW_STAGES * STAGE,
    };
    typedef prefill_ring<FORM::RAW_STAGES, STAGE, K, BARRIERS> keys;
    typedef prefill_ring<FORM::RAW_STAGES, STAGE, V, keys::END> values;
    static_assert((int)values::END <= (int)FORM::SHARED, "as PAGED_PREFILL_F8_SHARED counts");
};

/* Byte of 16 elements of a row in a stage of FP8: tensor maps permute those of a row of 128 bytes
 * by the row's number, and those of a row of 64 bytes by the number of its pair of rows. */
template <int HEAD_DIM> __device__ __forceinline__ uint32_t prefill_raw_byte(int row, int chunk)
{
    int place = HEAD_DIM == 64 ? chunk ^ row / 2 % 4 : chunk ^ row % 8;
    return (uint32_t)(row * HEAD_DIM + place * 16);
}

/* A widening warp's part of a stage; of values those from n_there on are zeros, because a weight of
 * 0 must not meet NaN. */
template <typename FORM, bool VALUES, typename RAW, typename RING>
__device__ __forceinline__ void prefill_widen(RAW &raw, RING &ring, int n_there)
{
    constexpr int FOURS = FORM::HEAD_DIM / 64; /* of chunks of a row */
    const int warp = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;
    raw.wait();
    ring.wait_empty();
#pragma unroll 2
    for (int i = 0; i < FORM::STEP / 32 * FOURS; i++) {
        const int row = (i / FOURS * 4 + warp) * 8 + lane / 4, chunk = i % FOURS * 4 + lane % 4;
        const uint32_t to = ring.at() + tile_byte(FORM::STEP, row, chunk * 2);
        uint32_t four[4], wide[8];
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(four[0]), "=r"(four[1]), "=r"(four[2]), "=r"(four[3])
                     : "r"(raw.at() + prefill_raw_byte<FORM::HEAD_DIM>(row, chunk))
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (VALUES && row >= n_there) four[j] = 0;
            wide[2 * j] = decode_f8x2(four[j]);
            wide[2 * j + 1] = decode_f8x2(four[j] >> 16);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) /* neighbours by the lowest bit, which the swizzle flips */
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to ^ j * 16),
                         "r"(wide[4 * j]), "r"(wide[4 * j + 1]), "r"(wide[4 * j + 2]),
                         "r"(wide[4 * j + 3])
                         : "memory");
    }
    wgmma_publish();
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.full());
    ring.next();
    raw.give();
}

/* A widening warp: the stages that the copying warps fill, tile after tile. */
template <typename FORM, typename LIMITS, typename RAW_K, typename RAW_V, typename K, typename V,
          typename SLOTS>
__device__ __forceinline__ void
prefill_widen_tiles(const paged_attention &call, const LIMITS &limits, const char *shared,
                    RAW_K raw_keys, RAW_V raw_values, K keys, V values, SLOTS slots)
{
    const prefill_tile *tiles = (const prefill_tile *)(shared + prefill_memory<FORM>::TILES);
    for (;; slots.next()) {
        slots.wait();
        const prefill_tile &tile = tiles[slots.stage];
        if (tile.n_tokens < 0) break;
        prefill_steps<FORM::STEP> steps =
            prefill_steps_of<FORM::STEP>(call, limits, tile, FORM::ROWS);
        int n_there = tile.length - steps.start;
#pragma unroll 1
        for (int i = steps.count; i > 0; i--, n_there -= FORM::STEP) {
            prefill_widen<FORM, false>(raw_keys, keys, n_there);
            prefill_widen<FORM, true>(raw_values, values, n_there);
        }
        __syncwarp(); /* all lanes have read the tile */
        slots.give(slots.stage);
    }
}

template <typename FORM, typename LIMITS>
__device__ __forceinline__ void paged_prefill_f8(const paged_attention &call,
                                                 const tensor_map &k_map, const tensor_map &v_map,
                                                 const LIMITS &limits, char *shared)
{
    typedef prefill_memory<FORM> memory;
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    typename memory::keys keys = {address, 0, 0};
    typename memory::values values = {address, 0, 0};
    typename memory::slots slots = {address, 0, 0};
    typename prefill_raw<FORM>::keys raw_keys = {address, 0, 0};
    typename prefill_raw<FORM>::values raw_values = {address, 0, 0};
    int warp = (int)threadIdx.x / 32;
    if (!call.beside) device_let_next_begin();
    if (threadIdx.x == 0) {
        keys.initialise(FORM::GROUPS * 4, 4);
        values.initialise(FORM::GROUPS * 4, 4);
        raw_keys.initialise(4);
        raw_values.initialise(4);
        slots.initialise(FORM::GROUPS * 4 + 2 + 4); /* those that copy and widen read them too */
        barrier_init(address + memory::WANTED, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads(); /* the mbarriers are initialised */
    if (warp >= FORM::GROUPS * 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)FORM::COPYING));
        if (warp >= FORM::GROUPS * 4 + 4)
            prefill_widen_tiles<FORM>(call, limits, shared, raw_keys, raw_values, keys, values,
                                      slots);
        else if (warp % 4 == 0)
            prefill_find_tiles<FORM>(call, limits, shared, slots);
        else if (warp % 4 == 1)
            prefill_copy<FORM, false>(call, k_map, limits, false, shared, raw_keys, slots);
        else if (warp % 4 == 2)
            prefill_copy<FORM, true>(call, v_map, limits, false, shared, raw_values, slots);
    } else {
        prefill_computing_warp<__half, FORM>(call, limits, false, shared, keys, values, slots);
    }
}
