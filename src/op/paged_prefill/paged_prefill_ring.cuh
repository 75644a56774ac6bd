/* How the copying warp of paged_prefill_stream.cuh hands keys, values and tiles to the others.
 *
 *     tiles    4 slots    which rows a tile has; n_tokens -1: there are no more
 *     keys     stages of STEP positions
 *     values   stages of STEP positions
 *
 * Sixteen positions are one copy of 64 elements each by the bulk tensor copy engine, because they
 * are in one page. The copies of the next tile follow at once: they are under way while this one's
 * last products and its stores are.
 */
#ifndef QUIPU_OP_PAGED_PREFILL_RING_CUH
#define QUIPU_OP_PAGED_PREFILL_RING_CUH

#include "op/attention/wgmma.cuh"
#include "op/barrier.cuh"
#include "op/paged_prefill/paged_prefill_stream.h"
#include "op/paged_prefill/paged_prefill_tile.cuh"

enum { PREFILL_SLOTS = PAGED_STREAM_SLOTS };

typedef struct alignas(64) tensor_map {
    char bytes[128];
} tensor_map;

/* Stages in shared memory. The copying warp arrives at `full`, one thread of each computing warp at
 * `empty`. */
template <int STAGES, int BYTES> struct prefill_ring {
    uint32_t stages, full, empty; /* addresses */
    int stage;
    uint32_t parity;

    __device__ __forceinline__ uint32_t at() const { return stages + (uint32_t)stage * BYTES; }
    __device__ __forceinline__ void wait() const { barrier_wait(full + 8 * stage, parity); }
    __device__ __forceinline__ void wait_empty() const
    {
        barrier_wait(empty + 8 * stage, parity ^ 1);
    }
    /* This warp has read the stage. */
    __device__ __forceinline__ void give()
    {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * stage);
        next();
    }
    __device__ __forceinline__ void next()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ void initialise(int arrivals) const
    {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, arrivals);
        }
    }
};

/* Tiles in shared memory. */
struct prefill_slots {
    prefill_tile *tiles;
    uint32_t full, empty;
    int slot;
    uint32_t parity;

    __device__ __forceinline__ void next()
    {
        if (++slot == PREFILL_SLOTS) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ void initialise(int arrivals) const
    {
        for (int i = 0; i < PREFILL_SLOTS; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, arrivals);
        }
    }
    /* The present tile, and the end of its use. */
    __device__ __forceinline__ const prefill_tile &wait() const
    {
        barrier_wait(full + 8 * slot, parity);
        return tiles[slot];
    }
    __device__ __forceinline__ void give(int which) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * which);
    }
    /* Leaves a tile in the present slot. */
    __device__ __forceinline__ void put(const prefill_tile &tile)
    {
        barrier_wait(empty + 8 * slot, parity ^ 1);
        if (threadIdx.x % 32 == 0) {
            tiles[slot] = tile;
            barrier_arrive(full + 8 * slot);
        }
        __syncwarp();
        next();
    }
};

/* The number of a tile's steps. */
template <int STEP>
__device__ __forceinline__ int prefill_steps(const paged_attention &call, const prefill_tile &tile,
                                             int rows)
{
    return (prefill_visible(call, tile, tile.first_row + rows - 1) + STEP - 1) / STEP;
}

/* A lane's copy of a step: 64 elements of the `sixteen`-th sixteen positions. */
struct prefill_box {
    int32_t element, offset, page;
};
__device__ __forceinline__ prefill_box prefill_box_of(const paged_attention &call,
                                                      const page_walk &walk, int element,
                                                      uint32_t sixteen)
{
    uint32_t slot = walk.inverse ? __umulhi(sixteen, walk.inverse) : sixteen;
    int32_t offset = (int32_t)(sixteen - slot * walk.page_size) * 16;
    int32_t page = __ldg(walk.pages + slot);
    return call.kv_last_page_len ? prefill_box{element, offset, page}
                                 : prefill_box{element, offset + page, 0};
}
__device__ __forceinline__ void prefill_box_copy(uint32_t to, const tensor_map &map,
                                                 const prefill_box &box, int kv_head,
                                                 uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(box.element), "r"(kv_head), "r"(box.offset),
                 "r"(box.page)
                 : "memory");
}

/* The values of sixteens that the sequence fills in part or not at all: its positions, and zeros
 * after its end, because a weight of 0 must not meet NaN. By a warp. */
template <int HEAD_DIM, int STEP>
__device__ __forceinline__ void
prefill_copy_end(const paged_attention &call, const prefill_tile &tile, uint32_t first, uint32_t to)
{
    const page_walk &walk = tile.walk;
    constexpr int CHUNKS = HEAD_DIM / 8;
    const char *cache = call.v + tile.kv_head * call.v_strides.head;
    uint32_t last = (uint32_t)(walk.length - 1) / 16, full = (uint32_t)walk.length / 16;
    for (uint32_t i = max(first, full); i < first + STEP / 16; i++) {
        const char *from = cache + page_offset(walk, call.v_strides, min(i, last));
        for (int c = (int)threadIdx.x % 32; c < 16 * CHUNKS; c += 32) {
            int row = c / CHUNKS, chunk = c % CHUNKS;
            copy_async(to + tile_byte(STEP, (int)(i - first) * 16 + row, chunk),
                       from + row * (uint32_t)call.v_strides.position + chunk * 16,
                       (int)i * 16 + row < walk.length);
        }
    }
    copy_commit();
    copy_wait<0>();
    wgmma_publish();
    __syncwarp();
}

/* Copies a tile's keys and values: keys of step 0, then those of step i + 1 and the values of step
 * i. Each lane has one box of a step. */
template <int HEAD_DIM, int STEP, typename KEYS, typename VALUES>
__device__ __forceinline__ void prefill_copy(const paged_attention &call, const tensor_map &k_map,
                                             const tensor_map &v_map, const prefill_tile &tile,
                                             int n_steps, KEYS &keys, VALUES &values)
{
    constexpr int WIDE = HEAD_DIM / 64, BOXES = STEP / 16 * WIDE, BOX = 16 * 128;
    static_assert(BOXES <= 32, "a box a lane");
    const page_walk &walk = tile.walk;
    int lane = (int)threadIdx.x % 32, own = lane / WIDE, element = lane % WIDE * 64;
    uint32_t last = (uint32_t)(walk.length - 1) / 16, full = (uint32_t)walk.length / 16;
    uint32_t to = (uint32_t)(lane % WIDE * STEP * 128 + own * BOX);
    uint32_t first = 0;
    prefill_box now = prefill_box_of(call, walk, element, min(first + own, last)), before = now;
#pragma unroll 1
    for (int i = 0; i <= n_steps; i++, first += STEP / 16) {
        prefill_box next = prefill_box_of(call, walk, element, min(first + STEP / 16 + own, last));
        if (i < n_steps) {
            int there = min((int)(last + 1 - first), STEP / 16) * WIDE;
            uint32_t barrier = keys.full + 8 * keys.stage;
            keys.wait_empty();
            if (lane == 0) barrier_expect(barrier, there * BOX);
            __syncwarp();
            if (lane < there) prefill_box_copy(keys.at() + to, k_map, now, tile.kv_head, barrier);
            keys.next();
        }
        if (i > 0) {
            uint32_t of = first - STEP / 16;
            int there = min((int)(full - of), STEP / 16) * WIDE;
            uint32_t barrier = values.full + 8 * values.stage;
            values.wait_empty();
            if (there < BOXES) prefill_copy_end<HEAD_DIM, STEP>(call, tile, of, values.at());
            if (lane == 0) barrier_expect(barrier, there * BOX);
            __syncwarp();
            if (lane < there)
                prefill_box_copy(values.at() + to, v_map, before, tile.kv_head, barrier);
            values.next();
        }
        before = now;
        now = next;
    }
}

/* The tile of a number; n_tokens -1: there are not so many. */
__device__ __forceinline__ prefill_tile prefill_tile_of(const paged_attention &call, int rows,
                                                        int number)
{
    prefill_tile tile;
    int sequence;
    if (!prefill_tile_find(call, rows, number, tile, sequence)) tile.n_tokens = -1;
    return tile;
}

/* Lane 0 takes the number of a tile. */
__device__ __forceinline__ uint32_t prefill_take(const paged_attention &call)
{
    return threadIdx.x % 32 == 0 ? gridDim.x + atomicAdd(call.arrived, 1u) : 0;
}

/* The copying warp. It takes numbers of tiles from a counter, one ahead of the tile it looks up,
 * and looks up one ahead of the tile that is copied. The block that ends last resets the counter.
 */
template <int HEAD_DIM, int STEP, typename KEYS, typename VALUES>
__device__ __forceinline__ void
prefill_produce(const paged_attention &call, const tensor_map &k_map, const tensor_map &v_map,
                int rows, prefill_slots slots, KEYS keys, VALUES values)
{
    prefill_tile tile = prefill_tile_of(call, rows, (int)blockIdx.x);
    slots.put(tile);
    device_wait_for_last();
    uint32_t taken = prefill_take(call);
    while (tile.n_tokens >= 0) {
        int number = (int)__shfl_sync(0xffffffffu, taken, 0);
        taken = prefill_take(call);
        prefill_tile next = prefill_tile_of(call, rows, number);
        slots.put(next);
        int n_steps = prefill_steps<STEP>(call, tile, rows);
        if (n_steps > 0)
            prefill_copy<HEAD_DIM, STEP>(call, k_map, v_map, tile, n_steps, keys, values);
        tile = next;
    }
    if (threadIdx.x % 32 != 0) return;
    __threadfence(); /* the last number has been taken */
    if (taken != 0 && atomicInc(call.arrived + 1, gridDim.x - 1) == gridDim.x - 1)
        *(volatile uint32_t *)call.arrived = 0;
}

#endif
