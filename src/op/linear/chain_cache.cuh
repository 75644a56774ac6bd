/* The cache of attention in a chain: which KV heads a block has, and the copies of their keys and
 * values to the ring of weights. See chain_attention.cuh.
 *
 * A stage has sixteens of positions one after another, each as a tile of keys and one of values: in
 * 16 bits boxes of rows of 128 bytes, in FP8 one box, whose rows have as many bytes as a head has
 * elements. So a stage has twice as many sixteens in FP8.
 */
#pragma once

#include "op/linear/chain_block.cuh"

enum {
    CHAIN_BOX = 16 * 128,          /* bytes of 64 elements of 16 positions, in 16 bits */
    CHAIN_BOXES = CHAIN_HEAD / 64, /* of a head's keys or values, one after another */
    CHAIN_FOUR = 4,                /* warps of a half */
};

/* In a cache whose elements have so many bytes: those of a sixteen's keys or values, and the
 * sixteens of a stage. */
#define CHAIN_TILE(bytes)     (16 * CHAIN_HEAD * (bytes))
#define CHAIN_SIXTEENS(bytes) (CHAIN_WEIGHT_BYTES / (2 * CHAIN_TILE(bytes)))

/* ---- a block's heads ------------------------------------------------------------------------ */

/* The KV head of a sequence that a half of the worker threads works on. */
struct chain_head {
    int sequence, kv_head;
    int n_seen, rounds; /* positions, and the stages that they fill */
    bool there;
};

DEVICE_FN chain_head chain_head_of(const chain_attention &c, int item)
{
    chain_head h = {item / c.n_kv, item % c.n_kv, 0, 0, item < c.n_sequences * c.n_kv};
    if (!h.there) return h;
    int pages = c.kv_indptr[h.sequence + 1] - c.kv_indptr[h.sequence];
    if (pages > 0) h.n_seen = (pages - 1) * c.page_size + c.kv_last_page_len[h.sequence];
    const int sixteens = (h.n_seen + 15) / 16;
    h.rounds = c.type == DTYPE_F8 ? (sixteens + CHAIN_SIXTEENS(1) - 1) / CHAIN_SIXTEENS(1)
                                  : (sixteens + CHAIN_SIXTEENS(2) - 1) / CHAIN_SIXTEENS(2);
    return h;
}

/* Items of this block, which has at least one. */
DEVICE_FN int chain_own_items(const chain_attention &c)
{
    return (c.n_sequences * c.n_kv - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
}

/* Whether the blocks of attention also do the rope step before it. */
DEVICE_FN bool chain_turns(const linear_chain &call, int s)
{
    return s > 0 && call.steps[s - 1].blocks == 0;
}

/* ---- copies -------------------------------------------------------------------------------- */

/* Copies a box of a cache's map to shared memory. */
DEVICE_FN void chain_copy_box(uint32_t to, const char *map, int element, int head, int position,
                              int page, uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(element), "r"(head), "r"(position), "r"(page), "r"(barrier),
                 "l"(policy)
                 : "memory");
}

/* Sixteens of positions in pages. */
struct chain_walk {
    uint32_t sixteens, inverse; /* in a page; 2^32 / sixteens rounded up, 0 for 1: see page_walk */
};

DEVICE_FN uint32_t chain_slot(const chain_walk &walk, uint32_t sixteen)
{
    return walk.inverse ? __umulhi(sixteen, walk.inverse) : sixteen;
}

/* A lane has the pages of sixteens lane, lane + 32 and so on. */
struct chain_pages {
    int of[CHAIN_PAGES];
};

DEVICE_FN chain_pages chain_pages_of(const chain_attention &c, const chain_walk &walk,
                                     const chain_head &head)
{
    chain_pages pages;
    int lane = (int)threadIdx.x % WARP, first = head.there ? c.kv_indptr[head.sequence] : 0;
#pragma unroll
    for (int i = 0; i < CHAIN_PAGES; i++) {
        int sixteen = lane + i * WARP;
        pages.of[i] =
            sixteen * 16 < head.n_seen ? c.kv_indices[first + chain_slot(walk, sixteen)] : 0;
    }
    return pages;
}

/* What the two halves take at the same time. */
struct chain_turn {
    chain_head head[2];
    chain_pages pages[2];
};

DEVICE_FN chain_turn chain_turn_of(const chain_attention &c, const chain_walk &walk, int item)
{
    chain_turn turn;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        turn.head[half] = chain_head_of(c, item + half * gridDim.x);
        turn.pages[half] = chain_pages_of(c, walk, turn.head[half]);
    }
    return turn;
}

/* A warp: copies a stage of a cache whose elements have BYTES. */
template <int BYTES>
DEVICE_FN void chain_fetch_round(const chain_attention &c, const chain_walk &walk,
                                 const chain_head &head, const chain_pages &pages, int round,
                                 const chain_ring &ring, uint64_t policy)
{
    constexpr int SIXTEENS = CHAIN_SIXTEENS(BYTES), BOXES = BYTES == 1 ? 1 : CHAIN_BOXES;
    constexpr int COPIES = 2 * BOXES; /* of a sixteen: of keys, then of values */
    const int lane = (int)threadIdx.x % WARP, sixteen = round * SIXTEENS + lane / COPIES;
    const int n = min((head.n_seen + 15) / 16 - round * SIXTEENS, SIXTEENS), box = lane % COPIES;
    const int in_page = sixteen - chain_slot(walk, sixteen) * walk.sixteens;
    int page = 0;
#pragma unroll
    for (int i = 0; i < CHAIN_PAGES; i++) {
        int found = __shfl_sync(0xffffffffu, pages.of[i], sixteen % WARP);
        if (sixteen / WARP == i) page = found;
    }
    if (lane == 0) chain_ring_take(ring, n * 2 * CHAIN_TILE(BYTES));
    __syncwarp(); /* the stage is free and expects all of its bytes */
    if (lane < COPIES * n)
        chain_copy_box(chain_stage(ring) + lane * (CHAIN_TILE(BYTES) / BOXES),
                       box >= BOXES ? c.v_map : c.k_map, box % BOXES * 64, head.kv_head,
                       in_page * 16, page, ring.full + 4 * (ring.at & ~1u), policy);
}

/* One of CHAIN_FETCHERS producer warps. */
struct chain_fetcher {
    int number, n_meetings;
    uint32_t meeting; /* an mbarrier */
};

/* The producer warps meet: another warp than last time fills a stage. */
DEVICE_FN void chain_fetchers_meet(chain_fetcher &own)
{
    if (threadIdx.x % WARP == 0) barrier_arrive(own.meeting);
    barrier_wait(own.meeting, own.n_meetings++ & 1);
    __syncwarp();
}

/* One of the producer warps: every CHAIN_FETCHERS-th stage of the ring, because starting copies as
 * small as a page's takes longer than the copies. */
DEVICE_FN void chain_fetch_cache(const linear_chain &call, int s, chain_fetcher &own,
                                 chain_ring &ring)
{
    const chain_attention &c = call.steps[s].of.attention;
    const int n_items = c.n_sequences * c.n_kv;
    const chain_walk walk = {(uint32_t)c.page_size / 16, 0xffffffffu / (c.page_size / 16) + 1};
    const uint64_t policy = chain_read_once();
    bool waited = s == 0 || chain_turns(call, s); /* the new keys and values are there, or come */
    if ((int)blockIdx.x >= n_items) return;
    device_wait_for_last(); /* page tables, and data that earlier passes wrote */
    chain_fetchers_meet(own);
    chain_turn turn = chain_turn_of(c, walk, blockIdx.x), next;
    for (int item = blockIdx.x; item < n_items; item += 2 * gridDim.x, turn = next) {
        const chain_head(&head)[2] = turn.head;
        chain_delay(s + item);
        next = chain_turn_of(c, walk, item + 2 * gridDim.x);
        for (int round = 0; round < max(head[0].rounds, head[1].rounds); round++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (round >= head[half].rounds) continue;
                if ((ring.at >> 1) % CHAIN_FETCHERS == own.number) {
                    if (round + 1 == head[half].rounds && !waited) {
                        chain_wait(call.arrived + s - 1, call.steps[s - 1].blocks);
                        __syncwarp();
                        waited = true;
                    }
                    if (c.type == DTYPE_F8)
                        chain_fetch_round<1>(c, walk, head[half], turn.pages[half], round, ring,
                                             policy);
                    else
                        chain_fetch_round<2>(c, walk, head[half], turn.pages[half], round, ring,
                                             policy);
                }
                chain_ring_next(ring);
            }
    }
    chain_fetchers_meet(own);
}
