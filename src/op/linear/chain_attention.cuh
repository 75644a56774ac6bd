/* Attention in a chain, for one token of each sequence: the arithmetic of paged_decode_batch.cuh on
 * keys and values that come through the ring of weights.
 *
 * Half of a block's worker threads takes a KV head of a sequence, as one block of that kernel does.
 * A stage of the ring has the next sixteens of positions: keys and values in boxes of 16 rows of
 * 128 bytes, swizzled as for wgmma; stages of the two halves alternate. With heads of 64 elements a
 * stage has a sixteen for each of the half's four warps; with heads of 128 it has two, for the next
 * warp, as that kernel deals them. Where the step before is a rope step without blocks, this
 * block's worker threads make the queries and the new keys and values from the parts of the product
 * before. They keep them in shared memory too, and the warp that takes a head's last sixteen puts
 * the new key and value into it, so no copy waits for them. Elsewhere the last sixteen waits for
 * the step before.
 */
#ifndef QUIPU_OP_CHAIN_ATTENTION_CUH
#define QUIPU_OP_CHAIN_ATTENTION_CUH

#include "op/linear/chain_cache.cuh"
#include "op/linear/chain_rope.cuh"
#include "op/paged_decode/paged_decode_batch.cuh"
#include "op/linear/chain_query.cuh"

enum {
    CHAIN_SEVERAL = 4,                           /* rounds at a time, with few rows */
    CHAIN_PART_HEADS = CHAIN_HEAD == 64 ? 8 : 4, /* heads of a group in a warp's part, at most */
};

/* The 16 bytes `piece` of a box's row. */
DEVICE_FN uint4 chain_piece(uint32_t tile, int row, int piece)
{
    uint4 d;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
                 : "r"(tile + row * 128 + (piece ^ row % 8) * 16)
                 : "memory");
    return d;
}

/* As decode_load_keys() and decode_load_values(). */
DEVICE_FN void chain_load_keys(uint4 (&piece)[2][CHAIN_HEAD / 32], uint32_t tile)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < CHAIN_HEAD / 32; i++)
            piece[r][i] = chain_piece(tile + i / 2 * CHAIN_BOX, g + r * 8, i % 2 * 4 + t);
}

DEVICE_FN void chain_load_values(uint4 (&piece)[4][CHAIN_HEAD / 64], uint32_t tile, int n_seen)
{
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int position = t * 2 + r % 2 + r / 2 * 8;
#pragma unroll
        for (int i = 0; i < CHAIN_BOXES; i++) {
            piece[r][i] = chain_piece(tile + i * CHAIN_BOX, position, g);
            if (position >= n_seen) piece[r][i] = make_uint4(0, 0, 0, 0);
        }
    }
}

/* The threads of a half meet. */
DEVICE_FN void chain_half_meets(int half)
{
    if (half)
        asm volatile("bar.sync 3, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
}

/* A lane's part of a group's queries in the order of decode_scores(): pieces t and t + 4 of head g.
 */
struct chain_query {
    uint4 piece[CHAIN_HEAD / 32];
};

/* Of the block's nth item. */
DEVICE_FN chain_query chain_query_of(const chain_attention &c, uint32_t queries, int n)
{
    chain_query query = {};
    int g = (int)threadIdx.x % WARP / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < CHAIN_HEAD / 32; i++)
        if (g < c.group)
            query.piece[i] = chain_piece(
                queries, (n * chain_own_heads(c) + g) * CHAIN_BOXES + i / 2, i % 2 * 4 + t);
    return query;
}

/* A new key and value in shared memory, as rows from `row` on; -1: the cache has them. */
struct chain_new {
    uint32_t heads;
    int row;
};

/* Of the block's nth item. */
DEVICE_FN chain_new chain_new_of(const chain_attention &c, bool turned, uint32_t heads, int n)
{
    return chain_new{heads, turned ? (n * chain_own_heads(c) + c.group) * (int)CHAIN_BOXES : -1};
}

/* A warp: puts them into its N sixteens from position `first` on, over what copies found there, if
 * one of them has the last position. */
template <int N>
DEVICE_FN void chain_put_new(const chain_new &fresh, uint32_t sixteens, int first, int n_seen)
{
    const int lane = (int)threadIdx.x % WARP, last = n_seen - 1 - first, row = last % 16;
    if (fresh.row < 0 || last < 0 || last >= N * 16) return;
#pragma unroll 1
    for (int i = lane; i < CHAIN_COPIES * 8; i += WARP) { /* boxes of eight pieces */
        const uint4 d = chain_piece(fresh.heads, fresh.row + i / 8, i % 8);
        uint32_t to = sixteens + (last / 16 * CHAIN_COPIES + i / 8) * CHAIN_BOX + row * 128 +
                      (i % 8 ^ row % 8) * 16;
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(d.x), "r"(d.y),
                     "r"(d.z), "r"(d.w)
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* copies will write there again */
    __syncwarp();
}

/* Scores and values of 16 positions from `first` on. */
struct chain_sixteen {
    float s[2][4];
    uint4 value[4][CHAIN_HEAD / 64];
    int first;
};

DEVICE_FN void chain_add(int type, decode_sums<CHAIN_HEAD> &sums, chain_sixteen &of, int n_seen,
                         float scale)
{
    float highest = decode_highest(of.s, of.first, n_seen, sums.maximum);
    float base = decode_rise<CHAIN_HEAD>(sums, highest, scale);
    if (type == DTYPE_BF16)
        decode_add<__nv_bfloat16, CHAIN_HEAD>(sums, of.s, of.value, base, scale);
    else
        decode_add<__half, CHAIN_HEAD>(sums, of.s, of.value, base, scale);
}

/* The same of a stage with one warp's sixteens, from which keys and values come as they are needed:
 * all of them would not fit in registers. */
template <typename T>
DEVICE_FN void chain_add_stage(decode_sums<CHAIN_HEAD> &sums, const chain_query &query,
                               uint32_t stage, int first, int n_seen, float scale)
{
    float s[CHAIN_SIXTEENS][2][4], highest = sums.maximum;
#pragma unroll
    for (int d = 0; d < CHAIN_SIXTEENS; d++) {
        uint4 key[2][CHAIN_HEAD / 32];
        chain_load_keys(key, stage + d * 2 * CHAIN_TILE);
        decode_scores<T, CHAIN_HEAD>(s[d], query.piece, key);
        highest = decode_highest(s[d], first + d * 16, n_seen, highest);
    }
    float base = decode_rise<CHAIN_HEAD>(sums, highest, scale);
#pragma unroll
    for (int d = 0; d < CHAIN_SIXTEENS; d++) {
        uint4 value[4][CHAIN_HEAD / 64];
        if (first + d * 16 >= n_seen) continue;
        chain_load_values(value, stage + d * 2 * CHAIN_TILE + CHAIN_TILE, n_seen - first - d * 16);
        decode_add<T, CHAIN_HEAD>(sums, s[d], value, base, scale);
    }
}

/* One of a warp's rounds, where a stage is one warp's; the warp then releases it. */
DEVICE_FN void chain_attend_stage(const chain_attention &c, decode_sums<CHAIN_HEAD> &sums,
                                  const chain_query &query, const chain_new &fresh, int round,
                                  int n_seen, float scale, chain_ring &ring)
{
    const int first = round * CHAIN_SIXTEENS * 16;
    chain_ring_wait(ring);
    if (round % CHAIN_FOUR == (int)threadIdx.x / WARP % CHAIN_FOUR) {
        chain_put_new<CHAIN_SIXTEENS>(fresh, chain_stage(ring), first, n_seen);
        if (c.type == DTYPE_BF16)
            chain_add_stage<__nv_bfloat16>(sums, query, chain_stage(ring), first, n_seen, scale);
        else
            chain_add_stage<__half>(sums, query, chain_stage(ring), first, n_seen, scale);
    }
    __syncwarp(); /* all lanes have read */
    if (threadIdx.x % WARP == 0) chain_ring_give(ring, CHAIN_READERS / CHAIN_FOUR);
    chain_ring_next(ring);
}

/* The same where each warp has a sixteen of the stage, which comes to registers. */
DEVICE_FN void chain_take_round(const chain_attention &c, decode_sums<CHAIN_HEAD> &sums,
                                const chain_query &query, const chain_new &fresh, int round,
                                int n_seen, float scale, chain_ring &ring)
{
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP % CHAIN_FOUR;
    chain_ring_wait(ring);
    chain_sixteen of;
    of.first = (round * CHAIN_FOUR + warp) * 16;
    uint32_t tile = chain_stage(ring) + warp * 2 * CHAIN_TILE;
    uint4 key[2][CHAIN_HEAD / 32];
    chain_put_new<1>(fresh, tile, of.first, n_seen);
    chain_load_keys(key, tile);
    chain_load_values(of.value, tile + CHAIN_TILE, n_seen - of.first);
    __syncwarp(); /* all lanes have read */
    if (lane == 0) chain_ring_give(ring, CHAIN_READERS / CHAIN_FOUR);
    chain_ring_next(ring);
    if (c.type == DTYPE_BF16)
        decode_scores<__nv_bfloat16, CHAIN_HEAD>(of.s, query.piece, key);
    else
        decode_scores<__half, CHAIN_HEAD>(of.s, query.piece, key);
    if (of.first < n_seen) chain_add(c.type, sums, of, n_seen, scale);
}

/* N of a warp's sixteens, CHAIN_FOUR sixteens apart, all of which are there. The scores of all of
 * them come first, so that their products, shuffles and exponents overlap; then they are added in
 * their order, as one by one. */
template <typename T, int N>
DEVICE_FN void chain_add_several(decode_sums<CHAIN_HEAD> &sums, const chain_query &query,
                                 const uint32_t (&tile)[N], int first, int n_seen, float scale)
{
    const int t = (int)threadIdx.x % 4, step = CHAIN_FOUR * 16;
    float s[N][2][4], base[N], shrink[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint4 key[2][CHAIN_HEAD / 32];
        chain_load_keys(key, tile[i]);
        decode_scores<T, CHAIN_HEAD>(s[i], query.piece, key);
        base[i] = quad_max(decode_highest(s[i], first + i * step, n_seen, -INFINITY));
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float before = sums.maximum;
        sums.maximum = fmaxf(before, base[i]);
        base[i] = softmax_base(sums.maximum, scale);
        shrink[i] = softmax_shrink(before, scale, base[i]);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint4 value[4][CHAIN_HEAD / 64];
        const float shrinks[2] = {__shfl_sync(0xffffffffu, shrink[i], t * 8),
                                  __shfl_sync(0xffffffffu, shrink[i], t * 8 + 4)};
        chain_load_values(value, tile[i] + CHAIN_TILE, n_seen - first - i * step);
        sums.sum = __fmul_rn(sums.sum, shrink[i]);
#pragma unroll
        for (int j = 0; j < CHAIN_HEAD / 4; j++)
            sums.o[j / 4][j % 4] *= shrinks[j % 2];
        decode_add<T, CHAIN_HEAD>(sums, s[i], value, base[i], scale);
    }
}

/* The next N stages of a half, of which each warp has a sixteen of each; the warp then releases
 * them. `before`, `after`: stages of the other half before and after each of them. */
template <typename T, int N>
DEVICE_FN void chain_take_rounds(decode_sums<CHAIN_HEAD> &sums, const chain_query &query,
                                 const chain_new &fresh, int round, int n_seen, float scale,
                                 int before, int after, chain_ring &ring)
{
    const int warp = (int)threadIdx.x / WARP % CHAIN_FOUR, step = CHAIN_FOUR * 16;
    const int first = (round * CHAIN_FOUR + warp) * 16;
    uint32_t tile[N], empty[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        chain_ring_next(ring, before);
        chain_ring_wait(ring);
        tile[i] = chain_stage(ring) + warp * 2 * CHAIN_TILE;
        empty[i] = ring.empty + 4 * (ring.at & ~1u);
        chain_ring_next(ring, 1 + after);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (n_seen <= first + i * step + 16) {
            chain_put_new<1>(fresh, tile[i], first + i * step, n_seen);
            break;
        }
    if (first + (N - 1) * step < n_seen) {
        chain_add_several<T, N>(sums, query, tile, first, n_seen, scale);
    } else { /* the last one is not there */
#pragma unroll
        for (int i = 0; i + 1 < N; i++) {
            const uint32_t one[1] = {tile[i]};
            chain_add_several<T, 1>(sums, query, one, first + i * step, n_seen, scale);
        }
    }
    __syncwarp(); /* all lanes have read */
#pragma unroll
    for (int i = 0; i < N; i++)
        if (threadIdx.x % WARP == 0) barrier_arrive_times(empty[i], CHAIN_READERS / CHAIN_FOUR);
}

/* A warp's part of a head. The other half has its own number of rounds.
 *
 * An mbarrier distinguishes a phase from the next one, but not from the one after that. So a half
 * may wait for a stage only after the previous contents of that stage have come, also if those were
 * the other half's. While both halves have rounds, every second stage is one half's own, of an even
 * number of stages, and so were its previous contents. Before and after rounds that only one half
 * has, the halves meet.
 */
DEVICE_FN void chain_attend_head(const chain_attention &c, const chain_head &own,
                                 const chain_query &query, const chain_new &fresh, int half,
                                 int other_rounds, chain_ring &ring, decode_part<CHAIN_HEAD> *part)
{
    float scale = fabsf(c.sm_scale) * 1.4426950408889634f;
    decode_sums<CHAIN_HEAD> sums;
    const bool apart = own.rounds != other_rounds;
    for (int round = 0; round < max(own.rounds, other_rounds); round++) {
        bool other = round < other_rounds;
        if (apart && round == min(own.rounds, other_rounds)) chain_meet();
        chain_ring_next(ring, half && other);
        if (CHAIN_BOXES > 1) {
            if (round < own.rounds)
                chain_attend_stage(c, sums, query, fresh, round, own.n_seen, scale, ring);
        } else if (round < own.rounds) {
            chain_take_round(c, sums, query, fresh, round, own.n_seen, scale, ring);
        }
        chain_ring_next(ring, !half && other);
    }
    if (apart) chain_meet();
    decode_leave<CHAIN_HEAD, CHAIN_PART_HEADS>(sums, scale, part);
}

/* The same, several rounds at a time. With few rows a block has one head at most, its warps are
 * few, and the ring has room for the stages that they hold, the other half's between them. */
template <typename T>
DEVICE_FN void chain_attend_rounds(const chain_attention &c, const chain_head &own,
                                   const chain_query &query, const chain_new &fresh, int half,
                                   int other_rounds, chain_ring &ring,
                                   decode_part<CHAIN_HEAD> *part)
{
    const float scale = fabsf(c.sm_scale) * 1.4426950408889634f;
    const int both = min(own.rounds, other_rounds);
    decode_sums<CHAIN_HEAD> sums;
    int round = 0;
#pragma unroll 1
    for (int alone = 0; alone < 2; alone++) {
        const int end = alone ? own.rounds : both;
        const int before = alone ? 0 : half, after = alone ? 0 : !half;
        if (alone && own.rounds != other_rounds) chain_meet();
#pragma unroll 1
        while (round < end) {
            if (round + CHAIN_SEVERAL <= end) {
                chain_take_rounds<T, CHAIN_SEVERAL>(sums, query, fresh, round, own.n_seen, scale,
                                                    before, after, ring);
                round += CHAIN_SEVERAL;
            } else {
                chain_take_rounds<T, 1>(sums, query, fresh, round, own.n_seen, scale, before, after,
                                        ring);
                round++;
            }
        }
    }
    if (other_rounds > own.rounds) chain_ring_skip(ring, other_rounds - own.rounds);
    if (own.rounds != other_rounds) chain_meet();
    decode_leave<CHAIN_HEAD, CHAIN_PART_HEADS>(sums, scale, part);
}

/* A half: merges its warps' parts in the order of the warps. */
DEVICE_FN void chain_merge(const chain_attention &c, const chain_head &head,
                           const decode_part<CHAIN_HEAD> *parts)
{
    int64_t row = (head.sequence * c.n_kv + head.kv_head) * c.group;
    if (!head.there) return;
    for (int i = (int)threadIdx.x % (CHAIN_FOUR * WARP); i < c.group * CHAIN_HEAD / 2;
         i += CHAIN_FOUR * WARP) {
        int h = i / (CHAIN_HEAD / 2), element = i % (CHAIN_HEAD / 2) * 2;
        decode_state state = decode_merge<CHAIN_HEAD, true, CHAIN_FOUR>(parts + h, CHAIN_PART_HEADS,
                                                                        CHAIN_FOUR, element);
        float factor = state.sum == 0 ? 0 : 1 / state.sum;
        store_pair(DTYPE_BF16, (char *)(c.narrowed + (row + h) * CHAIN_HEAD), element,
                   state.out.x * factor, state.out.y * factor);
    }
}

/* The worker threads. `space`: the warps' parts. `queries`: room for them in the memory of x, which
 * is free between two products. `n_ropes`: rope steps so far in which this block took part.
 * SEVERAL: the ring has room for the stages of CHAIN_SEVERAL rounds of each half. */
template <bool SEVERAL>
DEVICE_FN void chain_attend(const linear_chain &call, int s, int n_ropes, chain_ring &ring,
                            uint32_t queries, float *space, chain_looked_up *up)
{
    const chain_attention &c = call.steps[s].of.attention;
    const int half = (int)threadIdx.x / (CHAIN_FOUR * WARP), step = 2 * gridDim.x;
    decode_part<CHAIN_HEAD> *parts =
        (decode_part<CHAIN_HEAD> *)space + half * CHAIN_FOUR * CHAIN_PART_HEADS;
    int item = blockIdx.x + half * gridDim.x, other = blockIdx.x + !half * gridDim.x;
    chain_head own = chain_head_of(c, item), next;
    int other_rounds = chain_head_of(c, other).rounds;
    const bool turned = chain_turns(call, s);
    if (turned) {
        chain_turn_own(call, s, n_ropes, queries, up);
    } else {
        chain_wait_all(call, s);
        chain_take_queries(c, queries);
    }
    chain_meet(); /* queries, keys and values are there */
    if (turned) chain_places_used(n_ropes, up);
    for (int n = half; min(item, other) < c.n_sequences * c.n_kv; n += 2, own = next) {
        item += step, other += step;
        chain_delay(s + item);
        next = chain_head_of(c, item);
        int next_rounds = chain_head_of(c, other).rounds;
        chain_query query = {};
        if (own.there) query = chain_query_of(c, queries, n);
        const chain_new fresh = chain_new_of(c, turned, queries, n);
        decode_part<CHAIN_HEAD> *part =
            parts + (int)threadIdx.x / WARP % CHAIN_FOUR * CHAIN_PART_HEADS;
        if (!SEVERAL || CHAIN_BOXES > 1)
            chain_attend_head(c, own, query, fresh, half, other_rounds, ring, part);
        else if (c.type == DTYPE_BF16) /* a branch inside its loop would keep instructions apart */
            chain_attend_rounds<__nv_bfloat16>(c, own, query, fresh, half, other_rounds, ring,
                                               part);
        else
            chain_attend_rounds<__half>(c, own, query, fresh, half, other_rounds, ring, part);
        other_rounds = next_rounds;
        chain_half_meets(half); /* the parts are there */
        chain_merge(c, own, parts);
        chain_half_meets(half); /* and have been read */
    }
    /* Copies will write x there again. */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
