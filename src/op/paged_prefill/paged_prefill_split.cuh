/* paged_prefill with wgmma, for sm_90a, the warps split by role: one group of four warps copies
 * keys and values, the others compute 64 rows each.
 *
 * Without a barrier among them the computing groups drift apart until one has its exponentials
 * computed while another one's products keep the tensor cores busy. Within a group too the product
 * of a step's weights with the values goes on during the next step's exponentials.
 */
#ifndef QUIPU_OP_PAGED_PREFILL_SPLIT_CUH
#define QUIPU_OP_PAGED_PREFILL_SPLIT_CUH

#include "op/paged_prefill/paged_prefill_wgmma.cuh"

/* Barriers of the two stages of keys and of values, by parity of the step: full by the copying
 * warps, free by the computing ones. */
typedef struct split_barriers {
    uint64_t full_k[2], full_v[2], free_k[2], free_v[2];
} split_barriers;

__device__ __forceinline__ uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}
__device__ __forceinline__ void barrier_init(uint64_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
/* Waits until the phase of this parity is over. */
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, int parity)
{
    uint32_t over = 0;
    while (!over)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}
/* One arrival of the whole warp, after what its lanes did. */
__device__ __forceinline__ void barrier_arrive_warp(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

/* Says that the copies into a stage but for the last LEFT groups have come. */
template <int LEFT> __device__ __forceinline__ void split_publish(uint64_t *full)
{
    copy_wait<LEFT>();
    wgmma_publish();
    barrier_arrive_warp(full);
}

/* Copies COUNT positions into a tile; lane i of a warp knows where the i-th sixteen begins. */
template <int HEAD_DIM, int COUNT>
__device__ __forceinline__ void split_fetch(const char *cache, int64_t place, int64_t stride,
                                            int n_there, uint32_t tile)
{
    constexpr int CHUNKS = HEAD_DIM / 8, STEP = 128 / CHUNKS;
    int thread = (int)threadIdx.x % 128, chunk = thread % CHUNKS, row = thread / CHUNKS;
#pragma unroll 2
    for (int i = 0; i < COUNT / STEP; i++, row += STEP) {
        const char *from = cache + __shfl_sync(0xffffffffu, place, i * STEP / 16) +
                           (row % 16 * (uint32_t)stride + chunk * 16);
        copy_async(tile + tile_byte(COUNT, row, chunk), from, row < n_there);
    }
    copy_commit();
}

/* The copying group: keys of step 0, then those of step i + 1 and the values of step i. What has
 * been copied is published once the copies behind it have begun. */
template <int HEAD_DIM, int STEP>
__device__ __forceinline__ void split_copy(const paged_attention &call, const prefill_tile &tile,
                                           int n_steps, uint32_t k, uint32_t v,
                                           split_barriers *barriers)
{
    constexpr uint32_t STAGE = STEP * HEAD_DIM * 2;
    const char *k_cache = call.k + tile.kv_head * call.k_strides.head;
    const char *v_cache = call.v + tile.kv_head * call.v_strides.head;
    uint32_t last = (uint32_t)(tile.walk.length - 1) / 16, lane = threadIdx.x % (STEP / 16);
    int64_t v_place = 0;
    for (int i = 0; i <= n_steps; i++) {
        int stage = i % 2, turn = i / 2 % 2;
        int64_t v_next = 0;
        if (i < n_steps) {
            uint32_t sixteen = min((uint32_t)(i * (STEP / 16)) + lane, last);
            int64_t k_place = page_offset(tile.walk, call.k_strides, sixteen);
            v_next = page_offset(tile.walk, call.v_strides, sixteen);
            barrier_wait(&barriers->free_k[stage], turn ^ 1);
            split_fetch<HEAD_DIM, STEP>(k_cache, k_place, call.k_strides.position,
                                        tile.walk.length - i * STEP, k + stage * STAGE);
            if (i > 1) split_publish<1>(&barriers->full_v[stage]);
        }
        if (i > 0) {
            int before = stage ^ 1;
            barrier_wait(&barriers->free_v[before], ((i - 1) / 2 % 2) ^ 1);
            split_fetch<HEAD_DIM, STEP>(v_cache, v_place, call.v_strides.position,
                                        tile.walk.length - (i - 1) * STEP, v + before * STAGE);
        }
        if (i < n_steps) {
            if (i == 0)
                split_publish<0>(&barriers->full_k[0]);
            else
                split_publish<1>(&barriers->full_k[stage]);
        }
        v_place = v_next;
    }
    if (n_steps > 1) split_publish<1>(&barriers->full_v[n_steps % 2]);
    split_publish<0>(&barriers->full_v[(n_steps - 1) % 2]);
}

/* A computing group. */
template <typename T, int HEAD_DIM, int STEP>
__device__ __forceinline__ void
split_compute(softmax_rows &rows, float (&o)[HEAD_DIM / 8][4], int n_steps, int seen_by_all,
              float scale, uint32_t q, int q_rows, uint32_t k, uint32_t v, split_barriers *barriers)
{
    constexpr uint32_t STAGE = STEP * HEAD_DIM * 2;
    float s[STEP / 8][4], shrink[2];
    uint32_t weights[STEP / 16][4];
    barrier_wait(&barriers->full_k[0], 0);
    wgmma_hold(s);
    wgmma_begin();
    prefill_wgmma_scores<T, HEAD_DIM, STEP>(s, q, q_rows, k);
    wgmma_wait<0>();
    wgmma_hold(s);
    barrier_arrive_warp(&barriers->free_k[0]);
    softmax_step(s, rows, 0, STEP > seen_by_all, scale, shrink);
#pragma unroll
    for (int i = 0; i < STEP / 16; i++)
        weights_pack<T>(s, i, weights[i]);

    for (int step = 1; step < n_steps; step++) {
        int stage = step % 2, before = stage ^ 1;
        barrier_wait(&barriers->full_k[stage], step / 2 % 2);
        wgmma_hold(s);
        wgmma_hold(o);
        wgmma_begin();
        prefill_wgmma_scores<T, HEAD_DIM, STEP>(s, q, q_rows, k + stage * STAGE);
        barrier_wait(&barriers->full_v[before], (step - 1) / 2 % 2);
        wgmma_begin();
        prefill_wgmma_values<T, HEAD_DIM, STEP>(o, weights, v + before * STAGE);
        wgmma_wait<1>();
        wgmma_hold(s);
        barrier_arrive_warp(&barriers->free_k[stage]);
        softmax_step(s, rows, step * STEP, (step + 1) * STEP > seen_by_all, scale, shrink);
        wgmma_wait<0>();
        wgmma_hold(o);
        barrier_arrive_warp(&barriers->free_v[before]);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++)
            o[i / 4][i % 4] *= shrink[i % 4 / 2];
#pragma unroll
        for (int i = 0; i < STEP / 16; i++)
            weights_pack<T>(s, i, weights[i]);
    }
    int stage = (n_steps - 1) % 2;
    barrier_wait(&barriers->full_v[stage], (n_steps - 1) / 2 % 2);
    wgmma_hold(o);
    wgmma_begin();
    prefill_wgmma_values<T, HEAD_DIM, STEP>(o, weights, v + stage * STAGE);
    wgmma_wait<0>();
    wgmma_hold(o);
}

template <typename T, int HEAD_DIM, int STEP, int GROUPS, int REGISTERS, int COPY_REGISTERS>
__device__ __forceinline__ void paged_prefill_split(const paged_attention &call, char *shared)
{
    constexpr int ROWS = GROUPS * 64;
    constexpr uint32_t STAGE = STEP * HEAD_DIM * 2;
    prefill_tile tile;
    if (!prefill_tile_find(call, ROWS, tile)) return;
    uint32_t q = shared_address(shared), k = q + ROWS * HEAD_DIM * 2, v = k + 2 * STAGE;
    split_barriers *barriers = (split_barriers *)(shared + ROWS * HEAD_DIM * 2 + 4 * STAGE);
    int group = (int)threadIdx.x / 128;
    int seen = prefill_visible(call, tile, tile.first_row + ROWS - 1);
    int n_steps = (seen + STEP - 1) / STEP;
    if (threadIdx.x < 2) {
        barrier_init(&barriers->full_k[threadIdx.x], 4);
        barrier_init(&barriers->full_v[threadIdx.x], 4);
        barrier_init(&barriers->free_k[threadIdx.x], 4 * GROUPS);
        barrier_init(&barriers->free_v[threadIdx.x], 4 * GROUPS);
    }
    prefill_load_queries<T, HEAD_DIM, ROWS, GROUPS * 128 + 128>(call, tile, shared);
    wgmma_publish();
    __syncthreads(); /* the queries and the barriers are there */
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPY_REGISTERS));
        if (n_steps > 0) split_copy<HEAD_DIM, STEP>(call, tile, n_steps, k, v, barriers);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
        int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
        softmax_rows rows = prefill_rows(call, tile, row);
        float o[HEAD_DIM / 8][4] = {}, scale = prefill_scale(call);
        int seen_by_all = prefill_visible(call, tile, tile.first_row + (int)threadIdx.x / 32 * 16);
        if (n_steps > 0)
            split_compute<T, HEAD_DIM, STEP>(rows, o, n_steps, seen_by_all, scale,
                                             q + (uint32_t)group * 64 * 128, ROWS, k, v, barriers);
        prefill_store<HEAD_DIM>(call, tile, row, rows, scale, o);
    }
}

#endif
