/* What copies keys and values for paged_decode into a ring in shared memory: the ring, a block's
 * items, and the warps that look up pages and copy. See paged_decode_ring.cuh. */
#pragma once

#include "op/attention/paged_sizes.h"
#include "op/barrier.cuh"
#include "op/paged_decode/paged_decode_warp.cuh"

enum {
    RING_ITEMS = 3, /* that are announced and not finished */
};

template <typename T, int HEAD_DIM> struct ring_sizes {
    enum {
        ROW = HEAD_DIM * (int)sizeof(T),
        VALUE_ROW = ROW + 16,
        VALUES = 16 * ROW, /* where they begin in a stage */
        STAGE = PAGED_RING_STAGE(ROW),
        STAGES = PAGED_RING_STAGES(ROW),
        /* Chunks of 16 bytes of odd rows of keys change places with those 64 bytes away, because
         * lanes of a warp read the same columns of neighbouring rows. */
        SWAP = ROW > 64 ? 4 : 0,
        /* So many sixteens at a time, so that a warp raises its maximum seldom enough. */
        DEPTH = decode_form<T, HEAD_DIM>::DEPTH,
    };
};

typedef struct ring_item {
    int sequence, part, n_parts; /* of the sequence */
    int first_part; /* the number of the sequence's first, counted over all sequences */
    int kv_head;    /* negative: there are no more items */
    int hidden;     /* positions at the beginning that are not seen */
    int n_seen;     /* positions, these included */
} ring_item;

template <int HEAD_DIM, int STAGES> struct ring_shared {
    decode_part<HEAD_DIM> parts[PAGED_DECODE_WARPS][PAGED_DECODE_MAX_GROUP];
    uint4 query[PAGED_DECODE_MAX_GROUP][HEAD_DIM / 8]; /* in the type of the products */
    uint64_t full[STAGES], empty[STAGES];
    uint64_t announced[RING_ITEMS], finished[RING_ITEMS];
    ring_item items[RING_ITEMS];
    bool is_last; /* part of its sequence */
};

/* A place in a ring of N, and the parity of its round. */
template <int N> struct ring_turn {
    int place = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void step(int n)
    {
        place += n;
        while (place >= N)
            place -= N, parity ^= 1;
    }
};

/* This thread arrives at a barrier when its copies up to here have come. */
__device__ __forceinline__ void copy_arrive(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* The search for parts: a lane has one of 32 sequences, so that an item seldom needs a look-up. */
typedef struct ring_search {
    int first, before;  /* sequences before the 32, and their parts */
    int pages, length;  /* the lane's: its first page in kv_indices, positions */
    int parts, through; /* and its parts, and those up to and with it of the 32 */
} ring_search;

template <typename LIMITS>
__device__ __forceinline__ void ring_look(const paged_attention &call, const LIMITS &limits,
                                          ring_search &search)
{
    int lane = (int)threadIdx.x % 32, sequence = search.first + lane;
    search.pages = search.length = search.parts = 0;
    if (sequence < call.n_sequences) {
        const page_walk walk = page_walk_of(call, sequence);
        int seen = walk.length - limits_first(limits, walk.length, 0) / 16 * 16;
        search.pages = (int)(walk.pages - call.kv_indices);
        search.length = walk.length;
        search.parts = PAGED_DECODE_CHUNKS(seen, PAGED_FEW_CHUNK(seen));
    }
    search.through = search.parts;
    for (int step = 1; step < 32; step *= 2) {
        int more = __shfl_up_sync(0xffffffffu, search.through, step);
        if (lane >= step) search.through += more;
    }
}

/* An item, and where to read it. */
typedef struct ring_source {
    ring_item item;
    int pages; /* the sequence's first in kv_indices */
    int first; /* the sequence's sixteen with which the item begins */
} ring_source;

/* The item of this number, counted over the parts of all sequences, KV heads fastest; numbers rise
 * from call to call. */
template <typename LIMITS>
__device__ __forceinline__ ring_source ring_find(const paged_attention &call, const LIMITS &limits,
                                                 int number, ring_search &search)
{
    ring_source source = {{0, 0, 0, 0, -1, 0, 0}, 0, 0};
    ring_item &item = source.item;
    int part = number / call.n_kv_heads;
    unsigned reached;
    while (true) {
        reached = __ballot_sync(0xffffffffu, search.before + search.through > part);
        if (reached) break;
        search.before += __shfl_sync(0xffffffffu, search.through, 31);
        search.first += 32;
        if (search.first >= call.n_sequences) return source;
        ring_look(call, limits, search);
    }
    int owner = __ffs((int)reached) - 1;
    int length = __shfl_sync(0xffffffffu, search.length, owner);
    int hidden = limits_first(limits, length, 0), skipped = hidden / 16;
    length -= skipped * 16;
    int size = PAGED_FEW_CHUNK(length);
    item.sequence = search.first + owner;
    item.n_parts = __shfl_sync(0xffffffffu, search.parts, owner);
    item.first_part =
        search.before + __shfl_sync(0xffffffffu, search.through - search.parts, owner);
    item.part = part - item.first_part;
    item.kv_head = number % call.n_kv_heads;
    item.n_seen = item.part + 1 < item.n_parts ? size : length - item.part * size;
    item.hidden = item.part == 0 ? hidden % 16 : 0;
    source.pages = __shfl_sync(0xffffffffu, search.pages, owner);
    source.first = skipped + item.part * (size / 16);
    return source;
}

/* The number of a sixteen's page among the sequence's. */
__device__ __forceinline__ uint32_t ring_slot(const page_walk &walk, uint32_t sixteen)
{
    return walk.inverse ? __umulhi(sixteen, walk.inverse) : sixteen;
}

/* The lane's of 32 sixteens of an item from the i-th on: its page, and where it begins in a cache.
 */
__device__ __forceinline__ uint32_t ring_sixteen(const ring_source &source, int i)
{
    int last = (source.item.n_seen + 15) / 16 - 1;
    return (uint32_t)(source.first + min(i + (int)threadIdx.x % 32, max(last, 0)));
}
__device__ __forceinline__ int ring_page(const paged_attention &call, const page_walk &walk,
                                         const ring_source &source, int i)
{
    if (source.item.n_seen == 0) return 0;
    return __ldg(call.kv_indices + source.pages + ring_slot(walk, ring_sixteen(source, i)));
}
__device__ __forceinline__ int64_t ring_place(const page_walk &walk, const paged_strides &strides,
                                              const ring_source &source, int i, int page)
{
    uint32_t sixteen = ring_sixteen(source, i);
    uint32_t offset = (sixteen - ring_slot(walk, sixteen) * walk.page_size) * 16;
    return page * strides.page + offset * (uint32_t)strides.position;
}

/* A copying warp; the one for keys announces the items. */
template <typename T, int HEAD_DIM, bool VALUES, int STAGES, typename LIMITS>
__device__ __forceinline__ void ring_copy(const paged_attention &call, const LIMITS &limits,
                                          ring_shared<HEAD_DIM, STAGES> &shared, char *stages)
{
    typedef ring_sizes<T, HEAD_DIM> sizes;
    constexpr int PITCH = VALUES ? sizes::VALUE_ROW : sizes::ROW;
    constexpr int CHUNKS = sizes::ROW / 16, ROWS = 32 / CHUNKS; /* of a warp's 32 copies */
    const paged_strides &strides = VALUES ? call.v_strides : call.k_strides;
    int lane = (int)threadIdx.x % 32, row = lane / CHUNKS, chunk = lane % CHUNKS;
    int place = VALUES ? chunk : chunk ^ row % 2 * sizes::SWAP;
    uint32_t to = shared_address(stages) + (VALUES ? sizes::VALUES : 0) + row * PITCH + place * 16;
    const char *from = (VALUES ? call.v : call.k) + row * strides.position + chunk * 16;
    const page_walk walk = page_walk_of(call, 0); /* for the size of pages */
    ring_turn<STAGES> turn;
    ring_turn<RING_ITEMS> slot;
    ring_search search = {0, 0, 0, 0, 0, 0};
    ring_look(call, limits, search);
    int number = (int)blockIdx.x;
    ring_source source = ring_find(call, limits, number, search);
    int page = ring_page(call, walk, source, 0);
    for (;; slot.step(1)) {
        const ring_item &item = source.item;
        if (!VALUES) {
            barrier_wait(shared_address(&shared.finished[slot.place]), slot.parity ^ 1);
            if (lane == 0) {
                shared.items[slot.place] = item;
                barrier_arrive(shared_address(&shared.announced[slot.place]));
            }
        }
        if (item.kv_head < 0) return;
        number += (int)gridDim.x;
        const ring_source next = ring_find(call, limits, number, search);
        const int next_page = ring_page(call, walk, next, 0); /* is needed after this item */
        const char *head = from + item.kv_head * strides.head;
        int n = (item.n_seen + 15) / 16;
        int newest = item.part + 1 == item.n_parts ? n - 1 : n;
        int64_t own = 0;
        for (int i = 0; i < n; i++, turn.step(1)) {
            if (i % 32 == 0) {
                if (i > 0) page = ring_page(call, walk, source, i);
                own = ring_place(walk, strides, source, i, page);
            }
            const char *rows = head + __shfl_sync(0xffffffffu, own, i % 32);
            if (i == newest) device_wait_for_last();
            barrier_wait(shared_address(&shared.empty[turn.place]), turn.parity ^ 1);
#pragma unroll
            for (int r = 0; r < 16; r += ROWS)
                copy_async(to + turn.place * sizes::STAGE + r * PITCH,
                           rows + r * (uint32_t)strides.position, true);
            copy_arrive(shared_address(&shared.full[turn.place]));
        }
        source = next;
        page = next_page;
    }
}
