/* The warps of paged_prefill with wgmma that do not compute: one looks for tiles, one copies keys,
 * one copies values. Copies run before the warps that compute as far as these rings have room; a
 * tile is looked for when its first copies are wanted:
 *
 *     tiles    4 slots    which rows a tile has; n_tokens -1: there are no more
 *     keys     stages of 128 positions
 *     values   stages of 128 positions
 *
 * Sixteen positions are one copy of 64 elements each by the bulk tensor copy engine, because they
 * are in one page. The copies of the next tile follow at once: they are under way while this one's
 * last products and its stores are.
 */
#pragma once

#include "op/attention/wgmma.cuh"
#include "op/barrier.cuh"
#include "op/paged_prefill/paged_prefill_limits.cuh"

typedef struct alignas(64) tensor_map {
    char bytes[128];
} tensor_map;

/* Before the first copy by it. */
__device__ __forceinline__ void map_prefetch(const tensor_map &map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/* STAGES pieces of shared memory of BYTES each, FIRST bytes from the beginning, and their
 * mbarriers. The warp that fills it arrives at `full`, one thread of each other warp at `empty`. */
template <int STAGES, int BYTES, int FIRST, int BARRIERS> struct prefill_ring {
    enum { END = BARRIERS + 16 * STAGES };
    uint32_t shared; /* its address */
    int stage;
    uint32_t parity;

    __device__ __forceinline__ uint32_t at() const
    {
        return shared + FIRST + (uint32_t)stage * BYTES;
    }
    __device__ __forceinline__ uint32_t full() const { return shared + BARRIERS + 8 * stage; }
    __device__ __forceinline__ uint32_t empty(int which) const
    {
        return shared + BARRIERS + 8 * STAGES + 8 * which;
    }
    __device__ __forceinline__ void wait() const { barrier_wait(full(), parity); }
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(stage), parity ^ 1); }
    /* This warp has read a stage. */
    __device__ __forceinline__ void give(int which) const
    {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty(which));
    }
    __device__ __forceinline__ void give()
    {
        give(stage);
        next();
    }
    __device__ __forceinline__ void next()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ void initialise(int arrivals, int fillers = 1) const
    {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared + BARRIERS + 8 * i, fillers);
            barrier_init(empty(i), arrivals);
        }
    }
};

/* Shared memory: two tiles' queries, stages of keys and of values, slots of tiles. */
template <typename FORM> struct prefill_memory {
    enum {
        STAGE = FORM::STEP * FORM::HEAD_DIM * 2,
        QUERIES = FORM::ROWS * FORM::HEAD_DIM * 2, /* of one tile */
        K = 2 * QUERIES,
        V = K + FORM::K_STAGES * STAGE,
        TILES = V + FORM::V_STAGES * STAGE,
        BARRIERS = TILES + PAGED_PREFILL_SLOTS * (int)sizeof(prefill_tile)
    };
    typedef prefill_ring<FORM::K_STAGES, STAGE, K, BARRIERS> keys;
    typedef prefill_ring<FORM::V_STAGES, STAGE, V, keys::END> values;
    typedef prefill_ring<PAGED_PREFILL_SLOTS, (int)sizeof(prefill_tile), TILES, values::END> slots;
    enum { WANTED = slots::END, END = WANTED + 8 }; /* an mbarrier: the next tile is wanted */
    static_assert((int)END <= (int)FORM::SHARED, "as PAGED_PREFILL_SHARED counts");
};

/* The steps of a tile: from position `start` on. */
template <int STEP> struct prefill_steps {
    int start, count;
};
template <int STEP, typename LIMITS>
__device__ __forceinline__ prefill_steps<STEP> prefill_steps_of(const paged_attention &call,
                                                                const LIMITS &limits,
                                                                const prefill_tile &tile, int rows)
{
    int start = limits_start<STEP>(limits, call, tile);
    int seen = prefill_visible(call, tile, tile.first_row + rows - 1);
    return {start, (seen - start + STEP - 1) / STEP};
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
__device__ __forceinline__ void prefill_copy_end(const paged_attention &call,
                                                 const prefill_tile &tile, const page_walk &walk,
                                                 uint32_t first, uint32_t to)
{
    constexpr int CHUNKS = HEAD_DIM / 8;
    const char *cache = call.v + tile.kv_head * call.v_strides.head;
    uint32_t last = (uint32_t)(tile.length - 1) / 16, full = (uint32_t)tile.length / 16;
    for (uint32_t i = max(first, full); i < first + STEP / 16; i++) {
        const char *from = cache + page_offset(walk, call.v_strides, min(i, last));
        for (int c = (int)threadIdx.x % 32; c < 16 * CHUNKS; c += 32) {
            int row = c / CHUNKS, chunk = c % CHUNKS;
            copy_async(to + tile_byte(STEP, (int)(i - first) * 16 + row, chunk),
                       from + row * (uint32_t)call.v_strides.position + chunk * 16,
                       (int)i * 16 + row < tile.length);
        }
    }
    copy_commit();
    copy_wait<0>();
    wgmma_publish();
    __syncwarp();
}

/* The outputs of rows that see nothing. By a warp. */
template <int HEAD_DIM>
__device__ __forceinline__ void prefill_store_nothing(const paged_attention &call,
                                                      const prefill_tile &tile, int rows)
{
    const float o[HEAD_DIM / 8][4] = {};
    const softmax_rows nothing = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
#pragma unroll 1
    for (int row = (int)threadIdx.x % 32 / 4; row < rows; row += 16) {
        float factor[2];
        prefill_factors(call, tile, row, nothing, 1, factor);
        prefill_store<HEAD_DIM>(call, tile, row, factor, o);
    }
}

/* The next number from the counter of tiles. By a warp. */
__device__ __forceinline__ int prefill_take(const paged_attention &call)
{
    uint32_t taken = threadIdx.x % 32 == 0 ? gridDim.x + atomicAdd(call.arrived, 1u) : 0;
    return (int)__shfl_sync(0xffffffffu, taken, 0);
}

/* After the last one. The block that ends last resets the counter. */
__device__ __forceinline__ void prefill_close_counter(const paged_attention &call)
{
    if (threadIdx.x % 32 != 0) return;
    __threadfence(); /* the last number has been taken */
    if (atomicInc(call.arrived + 1, gridDim.x - 1) == gridDim.x - 1)
        *(volatile uint32_t *)call.arrived = 0;
}

/* The warp that looks for tiles. The first one is found while the last kernel runs, the others when
 * they are wanted: when the keys of a tile's last step are to be copied, some steps before the
 * groups need the next tile, or those of its first step if the groups themselves copy queries. Not
 * earlier, because a block that took more tiles would keep them from blocks that have nothing else
 * to do. */
template <typename FORM, typename LIMITS, typename SLOTS>
__device__ __forceinline__ void prefill_find_tiles(const paged_attention &call,
                                                   const LIMITS &limits, char *shared, SLOTS slots)
{
    prefill_tile *tiles = (prefill_tile *)(shared + prefill_memory<FORM>::TILES);
    uint32_t wanted = slots.shared + prefill_memory<FORM>::WANTED, parity = 0;
    prefill_tile tile = {0, -1, 0, 0, 0, 0, 0};
    prefill_tile_find(call, FORM::ROWS, (int)blockIdx.x, tile);
    for (bool first = true;; first = false) {
        bool nothing = tile.n_tokens >= 0 &&
                       prefill_steps_of<FORM::STEP>(call, limits, tile, FORM::ROWS).count <= 0;
        if (!nothing) {
            slots.wait_empty();
            if (threadIdx.x % 32 == 0) {
                tiles[slots.stage] = tile;
                barrier_arrive(slots.full());
            }
            __syncwarp();
            slots.next();
        }
        if (first) device_wait_for_last();
        if (tile.n_tokens < 0) break;
        if (nothing) {
            prefill_store_nothing<FORM::HEAD_DIM>(call, tile, FORM::ROWS);
        } else {
            barrier_wait(wanted, parity);
            parity ^= 1;
        }
        tile.n_tokens = -1;
        prefill_tile_find(call, FORM::ROWS, prefill_take(call), tile);
    }
    prefill_close_counter(call);
}

/* The warp that copies keys, or that of values, tile after tile. Each lane has one box of a step.
 * Keys that no row sees are left out, because their scores are replaced. Values are not, because a
 * weight of 0 must not meet NaN. Of a cache in FP8 those after the sequence's end are made zeros
 * when they are widened. */
template <typename FORM, bool VALUES, typename LIMITS, typename RING, typename SLOTS>
__device__ __forceinline__ void prefill_copy(const paged_attention &call, const tensor_map &map,
                                             const LIMITS &limits, bool carried, char *shared,
                                             RING ring, SLOTS slots)
{
    constexpr int STEP = FORM::STEP, WIDE = FORM::WIDENS ? 1 : FORM::HEAD_DIM / 64,
                  BOXES = STEP / 16 * WIDE, BOX = FORM::WIDENS ? 16 * FORM::HEAD_DIM : 16 * 128;
    constexpr bool ZEROS = VALUES && !FORM::WIDENS;
    static_assert(BOXES <= 32, "a box a lane");
    const prefill_tile *tiles = (const prefill_tile *)(shared + prefill_memory<FORM>::TILES);
    int lane = (int)threadIdx.x % 32, element = lane % WIDE * 64;
    map_prefetch(map);
    uint32_t own = (uint32_t)lane / WIDE, to = (uint32_t)(lane % WIDE * STEP * 128) + own * BOX;
    for (;; slots.next()) {
        slots.wait();
        const prefill_tile &tile = tiles[slots.stage];
        if (tile.n_tokens < 0) break;
        prefill_steps<STEP> steps = prefill_steps_of<STEP>(call, limits, tile, FORM::ROWS);
        page_walk walk = page_walk_of(call, tile.sequence);
        int seen = prefill_visible(call, tile, tile.first_row + FORM::ROWS - 1);
        uint32_t first = (uint32_t)steps.start / 16, last = (uint32_t)(tile.length - 1) / 16;
        uint32_t end = ZEROS    ? (uint32_t)tile.length / 16
                       : VALUES ? (uint32_t)(tile.length + 15) / 16
                                : (uint32_t)(seen + 15) / 16;
        int kv_head = tile.kv_head;
        prefill_box box = prefill_box_of(call, walk, element, min(first + own, last));
        device_wait_for_last(); /* the first tile's pages are looked up while the last kernel runs
                                 */
#pragma unroll 1
        for (int i = steps.count; i > 0; i--) {
            if (!VALUES && i == (carried ? 1 : steps.count) && lane == 0)
                barrier_arrive(ring.shared + prefill_memory<FORM>::WANTED);
            int there = min((int)(end - first), STEP / 16) * WIDE;
            ring.wait_empty();
            if (ZEROS && there < BOXES)
                prefill_copy_end<FORM::HEAD_DIM, STEP>(call, tile, walk, first, ring.at());
            if (lane == 0) barrier_expect(ring.full(), there * BOX);
            __syncwarp();
            if (lane < there) prefill_box_copy(ring.at() + to, map, box, kv_head, ring.full());
            ring.next();
            first += STEP / 16;
            if (i > 1) box = prefill_box_of(call, walk, element, min(first + own, last));
        }
        __syncwarp(); /* all lanes have read the tile */
        slots.give(slots.stage);
    }
}
