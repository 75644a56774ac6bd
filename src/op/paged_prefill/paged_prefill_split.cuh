/* paged_prefill with wgmma, for sm_90a, the warps split by role: one warpgroup copies keys and
 * values through a ring of stages, the others compute 64 rows each.
 *
 * Without a barrier among them the computing groups drift apart until one computes exponentials
 * while another's products keep the tensor cores busy. The ring is as large as memory allows: of a
 * short prompt most of what will be read is in flight at once.
 */
#ifndef QUIPU_OP_PAGED_PREFILL_SPLIT_CUH
#define QUIPU_OP_PAGED_PREFILL_SPLIT_CUH

#include "op/barrier.cuh"
#include "op/paged_prefill/paged_prefill_wgmma.cuh"

enum { SPLIT_STAGES = PAGED_PREFILL_STAGES };

/* A ring of tiles in shared memory. Every copying thread arrives at `full`, one thread of each
 * computing warp at `empty`. */
typedef struct split_ring {
    uint32_t tiles, full, empty; /* addresses: of SPLIT_STAGES tiles and barriers */
    int stage;
    uint32_t parity;
} split_ring;

template <int HEAD_DIM, int STEP> __device__ __forceinline__ uint32_t split_tile(split_ring &ring)
{
    return ring.tiles + (uint32_t)ring.stage * STEP * HEAD_DIM * 2;
}
__device__ __forceinline__ void split_next(split_ring &ring)
{
    if (++ring.stage == SPLIT_STAGES) ring.stage = 0, ring.parity ^= 1;
}
/* Waits until the stage's copies have come; products may read them then. */
__device__ __forceinline__ void split_wait(const split_ring &ring)
{
    barrier_wait(ring.full + 8 * ring.stage, ring.parity);
    wgmma_publish();
}
/* Releases the stage: this warp has read it. */
__device__ __forceinline__ void split_give(const split_ring &ring)
{
    if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty + 8 * ring.stage);
}

/* Copies STEP positions into the next tile; lane i of a warp knows where the i-th sixteen begins.
 * The thread arrives at the mbarrier when its copies have come. */
template <int HEAD_DIM, int STEP>
__device__ __forceinline__ void split_fetch(const char *cache, int64_t place, int64_t stride,
                                            int n_there, split_ring &ring)
{
    constexpr int CHUNKS = HEAD_DIM / 8, ROWS = 128 / CHUNKS;
    static_assert(ROWS % 8 == 0, "a thread's rows have one permutation");
    int thread = (int)threadIdx.x % 128, chunk = thread % CHUNKS, row = thread / CHUNKS;
    uint32_t own = row * (uint32_t)stride + chunk * 16;
    uint32_t to = split_tile<HEAD_DIM, STEP>(ring) + tile_byte(STEP, row, chunk);
    barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
#pragma unroll
    for (int i = 0; i < STEP / 16; i++) {
        const char *from = cache + __shfl_sync(0xffffffffu, place, i) + own;
#pragma unroll
        for (int r = 0; r < 16; r += ROWS) /* eights of rows, whose chunks are permuted alike */
            copy_async(to + (i * 16 + r) * 128, from + r * (uint32_t)stride,
                       i * 16 + r + row < n_there);
    }
    copy_arrive(ring.full + 8 * ring.stage);
    split_next(ring);
}

/* The copying group, from position `start` on: keys of step 0, then those of step i + 1 and the
 * values of step i. */
template <int HEAD_DIM, int STEP>
__device__ __forceinline__ void split_copy(const paged_attention &call, const prefill_tile &tile,
                                           int start, int n_steps, split_ring keys,
                                           split_ring values)
{
    const char *k_cache = call.k + tile.kv_head * call.k_strides.head;
    const char *v_cache = call.v + tile.kv_head * call.v_strides.head;
    uint32_t last = (uint32_t)(tile.walk.length - 1) / 16;
    uint32_t sixteen = (uint32_t)start / 16 + threadIdx.x % (STEP / 16);
    int left = tile.walk.length - start;
    int64_t k_place = page_offset(tile.walk, call.k_strides, min(sixteen, last)), v_place;
    for (int i = 0; i <= n_steps; i++) {
        int64_t v_next = 0;
        if (i < n_steps) {
            v_next = page_offset(tile.walk, call.v_strides, min(sixteen, last));
            split_fetch<HEAD_DIM, STEP>(k_cache, k_place, call.k_strides.position, left, keys);
            sixteen += STEP / 16;
            k_place = page_offset(tile.walk, call.k_strides, min(sixteen, last));
        }
        if (i > 0)
            split_fetch<HEAD_DIM, STEP>(v_cache, v_place, call.v_strides.position, left + STEP,
                                        values);
        left -= STEP;
        v_place = v_next;
    }
}

/* Threads that meet: the copying group alone, and all. The copying group then goes on without
 * waiting. */
enum { SPLIT_COPYING = 1, SPLIT_ALL = 2 };
__device__ __forceinline__ void split_meet(int which, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}
__device__ __forceinline__ void split_go_on(int which, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(which), "r"(threads) : "memory");
}

/* The end of the product o += weights v, then o *= shrink where that is not 1. The branch depends
 * on the sums, which are never negative: the compiler does not know that. Else it would wait for
 * the product before it computes the exponentials. */
template <int HEAD_DIM, int TILES>
__device__ __forceinline__ void split_close(float (&o)[HEAD_DIM / 8][4], float (&s)[TILES][4],
                                            const softmax_rows &rows, const float (&shrink)[2])
{
    wgmma_hold(s);
    bool shrinks = shrink[0] != 1 || shrink[1] != 1 || rows.sum[0] < 0 || rows.sum[1] < 0;
    if (__any_sync(0xffffffffu, shrinks)) {
        wgmma_wait<0>();
        wgmma_hold(o);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++)
            o[i / 4][i % 4] *= shrink[i % 4 / 2];
    }
    wgmma_wait<0>();
    wgmma_hold(o);
}

/* A computing group. */
template <typename T, int HEAD_DIM, int STEP, int GROUPS, typename LIMITS>
__device__ __forceinline__ void
split_compute(softmax_rows &rows, const limited_rows<LIMITS> &limited, float (&o)[HEAD_DIM / 8][4],
              int start, int n_steps, int seen_by_all, float scale, uint32_t q, split_ring keys,
              split_ring values)
{
    constexpr int Q_ROWS = GROUPS * 64;
    float s[STEP / 8][4], shrink[2];
    uint32_t weights[STEP / 16][4];
    split_wait(keys);
    wgmma_hold(s);
    wgmma_begin();
    prefill_wgmma_scores<T, HEAD_DIM, STEP>(s, q, Q_ROWS, split_tile<HEAD_DIM, STEP>(keys));
    wgmma_wait<0>();
    wgmma_hold(s);
    split_give(keys);
    split_next(keys);
    limit_scores(s, limited, start);
    softmax_step(s, rows, start, start + STEP > seen_by_all, scale, shrink);
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
        weights_pack<T>(s, i, weights[i]);

    for (int step = 1; step < n_steps; step++) {
        split_wait(keys);
        wgmma_hold(s);
        wgmma_hold(o);
        wgmma_begin();
        prefill_wgmma_scores<T, HEAD_DIM, STEP>(s, q, Q_ROWS, split_tile<HEAD_DIM, STEP>(keys));
        split_wait(values);
        wgmma_begin(); /* for the weights */
        prefill_wgmma_values<T, HEAD_DIM, STEP>(o, weights, split_tile<HEAD_DIM, STEP>(values));
        wgmma_wait<1>();
        wgmma_hold(s);
        split_give(keys);
        split_next(keys);
        int first = start + step * STEP;
        limit_scores(s, limited, first);
        softmax_step(s, rows, first, first + STEP > seen_by_all, scale, shrink);
        split_close<HEAD_DIM>(o, s, rows, shrink);
        split_give(values);
        split_next(values);
#pragma unroll
        for (int i = 0; i < STEP / 16; i++)
            weights_pack<T>(s, i, weights[i]);
    }
    split_wait(values);
    wgmma_hold(o);
    wgmma_begin();
    prefill_wgmma_values<T, HEAD_DIM, STEP>(o, weights, split_tile<HEAD_DIM, STEP>(values));
    wgmma_wait<0>();
    wgmma_hold(o);
}

template <typename T, int HEAD_DIM, int STEP, int GROUPS, int REGISTERS, int COPY_REGISTERS,
          typename LIMITS>
__device__ __forceinline__ void paged_prefill_split(const paged_attention &call,
                                                    const LIMITS &limits, char *shared)
{
    constexpr int ROWS = GROUPS * 64, RING = SPLIT_STAGES * STEP * HEAD_DIM * 2;
    constexpr int THREADS = GROUPS * 128 + 128;
    prefill_tile tile;
    if (!prefill_tile_begin(call, ROWS, tile)) return;
    uint32_t q = (uint32_t)__cvta_generic_to_shared(shared), k = q + ROWS * HEAD_DIM * 2;
    uint32_t barriers = k + 2 * RING;
    split_ring keys = {k, barriers, barriers + 8 * SPLIT_STAGES, 0, 0};
    split_ring values = {k + RING, keys.empty + 8 * SPLIT_STAGES, keys.empty + 16 * SPLIT_STAGES, 0,
                         0};
    int group = (int)threadIdx.x / 128;
    int seen = prefill_visible(call, tile, tile.first_row + ROWS - 1);
    int start = limits_start<STEP>(limits, call, tile);
    int n_steps = (seen - start + STEP - 1) / STEP;
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPY_REGISTERS));
        int stage = (int)threadIdx.x % 128;
        if (stage < SPLIT_STAGES) {
            barrier_init(keys.full + 8 * stage, 128);
            barrier_init(values.full + 8 * stage, 128);
            barrier_init(keys.empty + 8 * stage, 4 * GROUPS);
            barrier_init(values.empty + 8 * stage, 4 * GROUPS);
        }
        split_meet(SPLIT_COPYING, 128); /* the mbarriers are initialised */
        split_go_on(SPLIT_ALL, THREADS);
        if (n_steps > 0) split_copy<HEAD_DIM, STEP>(call, tile, start, n_steps, keys, values);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
        prefill_load_queries<T, HEAD_DIM, ROWS, 64, 128>(call, tile, shared, group * 64);
        int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
        softmax_rows rows = prefill_rows(call, tile, row);
        limited_rows<LIMITS> limited(limits, call, tile, row);
        float o[HEAD_DIM / 8][4] = {}, scale = limits_scale(limits, call);
        int seen_by_all = prefill_visible(call, tile, tile.first_row + (int)threadIdx.x / 32 * 16);
        wgmma_publish();
        split_meet(SPLIT_ALL, THREADS); /* the queries and the mbarriers are there */
        if (n_steps > 0)
            split_compute<T, HEAD_DIM, STEP, GROUPS>(rows, limited, o, start, n_steps, seen_by_all,
                                                     scale, q + (uint32_t)group * 64 * 128, keys,
                                                     values);
        prefill_store<HEAD_DIM>(call, tile, row, rows, scale, o);
    }
}

#endif
