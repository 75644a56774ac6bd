/* Attention in a chain, for one token of each sequence: the arithmetic of paged_decode_warp.cuh on
 * keys and values that come through the ring of weights.
 *
 * Half of a block's worker threads takes a KV head of a sequence, as one block of
 * paged_decode_batch.cuh does. A stage of the ring has the next sixteens of positions; stages of
 * the two halves alternate. The half's four warps take them as that kernel deals them: with heads
 * of 64 elements a stage has a turn of each warp, of a sixteen in 16 bits and of two in FP8; with
 * heads of 128 it has a turn of the next warp, of two sixteens, or of four in FP8. Where the step
 * before is a rope step without blocks, this block's worker threads make the queries and the new
 * keys and values from the parts of the product before. They keep them in shared memory too, and
 * the warp that takes a head's last sixteen puts the new key and value into it, so no copy waits
 * for them. Elsewhere the last sixteen waits for the step before.
 */
#pragma once

#include "op/linear/chain_cache.cuh"
#include "op/linear/chain_rope.cuh"
#include "op/paged_decode/paged_decode_warp.cuh"
#include "op/linear/chain_query.cuh"

enum {
    CHAIN_SEVERAL = 4,              /* sixteens at a time, with few rows */
    CHAIN_PART_HEADS = CHAIN_GROUP, /* heads of a warp's part */
};

/* How a stage has the cache's elements. */
template <typename T> struct chain_form {
    enum {
        ROW = CHAIN_HEAD * (int)sizeof(T),
        TILE = CHAIN_TILE((int)sizeof(T)),
        DEPTH = decode_form<T, CHAIN_HEAD>::DEPTH, /* sixteens of a warp's turn */
        TURN = DEPTH * 2 * TILE,                   /* their bytes */
        TURNS = CHAIN_SIXTEENS((int)sizeof(T)) / DEPTH,
    };
};

DEVICE_FN void chain_read(uint4 &d, uint32_t from)
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
                 : "r"(from)
                 : "memory");
}
DEVICE_FN void chain_read(uint2 &d, uint32_t from)
{
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(d.x), "=r"(d.y) : "r"(from) : "memory");
}

/* Where 16 bytes of a row of a tile are: tensor maps permute those of a row of 128 bytes by the
 * row's number, see paged.cuh, and those of a row of 64 bytes by the number of its pair of rows. */
template <typename T> DEVICE_FN uint32_t chain_chunk(int row, int chunk)
{
    return chain_form<T>::ROW == 64
               ? row * 64 + (chunk ^ row / 2 % 4) * 16
               : chunk / 8 * CHAIN_BOX + row * 128 + (chunk % 8 ^ row % 8) * 16;
}

/* The same of a box with rows of 128 bytes. */
DEVICE_FN uint4 chain_piece(uint32_t box, int row, int piece)
{
    uint4 d;
    chain_read(d, box + row * 128 + (piece ^ row % 8) * 16);
    return d;
}

/* The lane, each time anew: else the compiler keeps the addresses in tiles of every type in
 * registers through the whole kernel, and others' numbers do not fit. */
DEVICE_FN int chain_lane(void)
{
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* As decode_load_keys() and decode_load_values(). */
template <typename T>
DEVICE_FN void chain_load_keys(decode_keys<T, CHAIN_HEAD> &keys, uint32_t tile, int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < decode_keys<T, CHAIN_HEAD>::PIECES; i++)
            chain_read(keys.piece[r][i], tile + chain_chunk<T>(g + r * 8, i * 4 + t));
}

template <typename T>
DEVICE_FN void chain_load_values(decode_values<T, CHAIN_HEAD> &values, uint32_t tile, int n_seen,
                                 int lane)
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int position = t * 2 + r % 2 + r / 2 * 8;
#pragma unroll
        for (int i = 0; i < CHAIN_HEAD / 64; i++) {
            const int byte = (i * 8 + g) * 8 * (int)sizeof(T);
            chain_read(values.eight[r][i], tile + chain_chunk<T>(position, byte / 16) + byte % 16);
            if (position >= n_seen) values.eight[r][i] = {};
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

/* A lane's part of a group's queries in the order of decode_scores(), of head g. */
struct chain_query {
    uint4 piece[CHAIN_HEAD / 32];
};

/* Of the block's nth item. */
template <typename T>
DEVICE_FN chain_query chain_query_of(const chain_attention &c, uint32_t queries, int n)
{
    chain_query query = {};
    const int g = (int)threadIdx.x % WARP / 4;
#pragma unroll
    for (int i = 0; i < CHAIN_HEAD / 32; i++) {
        const int column = decode_column<T>(i);
        const int row = (n * chain_own_heads(c) + g) * CHAIN_BOXES + column / 64;
        if (g < c.group) query.piece[i] = chain_piece(queries, row, column % 64 / 8);
    }
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

/* A warp: puts them into its turn from position `first` on, over what copies found there, if it has
 * the last position. */
template <typename T>
DEVICE_FN void chain_put_new(const chain_new &fresh, uint32_t turn, int first, int n_seen)
{
    constexpr int CHUNKS = chain_form<T>::ROW / 16;
    const int lane = (int)threadIdx.x % WARP, last = n_seen - 1 - first;
    if (fresh.row < 0 || last < 0 || last >= chain_form<T>::DEPTH * 16) return;
#pragma unroll 1
    for (int i = lane; i < 2 * CHUNKS; i += WARP) { /* the key's, then the value's */
        const int of_value = i / CHUNKS, chunk = i % CHUNKS;
        const uint4 d =
            chain_piece(fresh.heads, fresh.row + of_value * CHAIN_BOXES + chunk / 8, chunk % 8);
        const uint32_t to = turn + (last / 16 * 2 + of_value) * chain_form<T>::TILE +
                            chain_chunk<T>(last % 16, chunk);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(d.x), "r"(d.y),
                     "r"(d.z), "r"(d.w)
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* copies will write there again */
    __syncwarp();
}

/* Adds a turn, whose keys and values come from shared memory as they are needed: with heads of 128
 * all of them would not fit in registers. */
template <typename T>
DEVICE_FN void chain_add_turn(decode_sums<CHAIN_HEAD> &sums, const chain_query &query,
                              uint32_t turn, int first, int n_seen, float scale)
{
    typedef chain_form<T> form;
    const int lane = chain_lane();
    float s[form::DEPTH][2][4], highest = sums.maximum;
#pragma unroll
    for (int d = 0; d < form::DEPTH; d++) {
        decode_keys<T, CHAIN_HEAD> keys;
        chain_load_keys(keys, turn + d * 2 * form::TILE, lane);
        decode_scores(s[d], query.piece, keys);
        highest = decode_highest(s[d], first + d * 16, n_seen, highest);
    }
    float base = decode_rise<CHAIN_HEAD>(sums, highest, scale);
#pragma unroll
    for (int d = 0; d < form::DEPTH; d++) {
        decode_values<T, CHAIN_HEAD> values;
        if (first + d * 16 >= n_seen) continue;
        chain_load_values(values, turn + d * 2 * form::TILE + form::TILE, n_seen - first - d * 16,
                          lane);
        decode_add(sums, s[d], values, base, scale);
    }
}

/* One of a half's rounds, where a stage has turns of some warps; the warp then releases it. */
template <typename T>
DEVICE_FN void chain_attend_stage(decode_sums<CHAIN_HEAD> &sums, const chain_query &query,
                                  const chain_new &fresh, int round, int n_seen, float scale,
                                  chain_ring &ring)
{
    typedef chain_form<T> form;
    const int warp = (int)threadIdx.x / WARP % CHAIN_FOUR;
    const int nth = warp - round * form::TURNS % CHAIN_FOUR; /* turn of the stage */
    chain_ring_wait(ring);
    if (nth >= 0 && nth < form::TURNS) {
        const int first = (round * form::TURNS + nth) * form::DEPTH * 16;
        const uint32_t turn = chain_stage(ring) + nth * form::TURN;
        chain_put_new<T>(fresh, turn, first, n_seen);
        if (first < n_seen) chain_add_turn<T>(sums, query, turn, first, n_seen, scale);
    }
    __syncwarp(); /* all lanes have read */
    if (threadIdx.x % WARP == 0) chain_ring_give(ring, CHAIN_READERS / CHAIN_FOUR);
    chain_ring_next(ring);
}

/* The same where each warp has a turn of the stage, which comes to registers. */
template <typename T>
DEVICE_FN void chain_take_round(decode_sums<CHAIN_HEAD> &sums, const chain_query &query,
                                const chain_new &fresh, int round, int n_seen, float scale,
                                chain_ring &ring)
{
    typedef chain_form<T> form;
    const int lane = chain_lane(), warp = (int)threadIdx.x / WARP % CHAIN_FOUR;
    const int first = (round * CHAIN_FOUR + warp) * form::DEPTH * 16;
    decode_keys<T, CHAIN_HEAD> keys[form::DEPTH];
    decode_values<T, CHAIN_HEAD> values[form::DEPTH];
    float s[form::DEPTH][2][4], highest = sums.maximum;
    chain_ring_wait(ring);
    const uint32_t turn = chain_stage(ring) + warp * form::TURN;
    chain_put_new<T>(fresh, turn, first, n_seen);
#pragma unroll
    for (int d = 0; d < form::DEPTH; d++) {
        const uint32_t tile = turn + d * 2 * form::TILE;
        chain_load_keys(keys[d], tile, lane);
        chain_load_values(values[d], tile + form::TILE, n_seen - first - d * 16, lane);
    }
    __syncwarp(); /* all lanes have read */
    if (lane == 0) chain_ring_give(ring, CHAIN_READERS / CHAIN_FOUR);
    chain_ring_next(ring);
    if (first >= n_seen) return;
#pragma unroll
    for (int d = 0; d < form::DEPTH; d++) {
        decode_scores(s[d], query.piece, keys[d]);
        highest = decode_highest(s[d], first + d * 16, n_seen, highest);
    }
    float base = decode_rise<CHAIN_HEAD>(sums, highest, scale);
#pragma unroll
    for (int d = 0; d < form::DEPTH; d++)
        if (first + d * 16 < n_seen) decode_add(sums, s[d], values[d], base, scale);
}

/* N of a warp's turns, one of a stage each, all of which are there. The scores of all of them come
 * first, so that their products, shuffles and exponents overlap; then they are added in their
 * order, as one by one. */
template <typename T, int N>
DEVICE_FN void chain_add_several(decode_sums<CHAIN_HEAD> &sums, const chain_query &query,
                                 const uint32_t (&turn)[N], int first, int n_seen, float scale)
{
    typedef chain_form<T> form;
    const int lane = chain_lane(), t = lane % 4, step = CHAIN_FOUR * form::DEPTH * 16;
    float s[N][form::DEPTH][2][4], base[N], shrink[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        float highest = -INFINITY;
#pragma unroll
        for (int d = 0; d < form::DEPTH; d++) {
            decode_keys<T, CHAIN_HEAD> keys;
            chain_load_keys(keys, turn[i] + d * 2 * form::TILE, lane);
            decode_scores(s[i][d], query.piece, keys);
            highest = decode_highest(s[i][d], first + i * step + d * 16, n_seen, highest);
        }
        base[i] = quad_max(highest);
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
        const float shrinks[2] = {__shfl_sync(0xffffffffu, shrink[i], t * 8),
                                  __shfl_sync(0xffffffffu, shrink[i], t * 8 + 4)};
        sums.sum = __fmul_rn(sums.sum, shrink[i]);
#pragma unroll
        for (int j = 0; j < CHAIN_HEAD / 4; j++)
            sums.o[j / 4][j % 4] *= shrinks[j % 2];
#pragma unroll
        for (int d = 0; d < form::DEPTH; d++) {
            const int left = n_seen - first - i * step - d * 16;
            decode_values<T, CHAIN_HEAD> values;
            if (d > 0 && left <= 0) continue;
            chain_load_values(values, turn[i] + d * 2 * form::TILE + form::TILE, left, lane);
            decode_add(sums, s[i][d], values, base[i], scale);
        }
    }
}

/* The next N stages of a half, of which each warp has a turn of each; the warp then releases them.
 * `before`, `after`: stages of the other half before and after each of them. */
template <typename T, int N>
DEVICE_FN void chain_take_rounds(decode_sums<CHAIN_HEAD> &sums, const chain_query &query,
                                 const chain_new &fresh, int round, int n_seen, float scale,
                                 int before, int after, chain_ring &ring)
{
    typedef chain_form<T> form;
    const int warp = (int)threadIdx.x / WARP % CHAIN_FOUR, step = CHAIN_FOUR * form::DEPTH * 16;
    const int first = (round * CHAIN_FOUR + warp) * form::DEPTH * 16;
    uint32_t turn[N], empty[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        chain_ring_next(ring, before);
        chain_ring_wait(ring);
        turn[i] = chain_stage(ring) + warp * form::TURN;
        empty[i] = ring.empty + 4 * (ring.at & ~1u);
        chain_ring_next(ring, 1 + after);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (n_seen <= first + i * step + form::DEPTH * 16) {
            chain_put_new<T>(fresh, turn[i], first + i * step, n_seen);
            break;
        }
    if (first + (N - 1) * step < n_seen) {
        chain_add_several<T, N>(sums, query, turn, first, n_seen, scale);
    } else { /* the last one is not there */
#pragma unroll
        for (int i = 0; i + 1 < N; i++) {
            const uint32_t one[1] = {turn[i]};
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
template <typename T>
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
                chain_attend_stage<T>(sums, query, fresh, round, own.n_seen, scale, ring);
        } else if (round < own.rounds) {
            chain_take_round<T>(sums, query, fresh, round, own.n_seen, scale, ring);
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
    constexpr int SEVERAL = CHAIN_SEVERAL / chain_form<T>::DEPTH;
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
            if (round + SEVERAL <= end) {
                chain_take_rounds<T, SEVERAL>(sums, query, fresh, round, own.n_seen, scale, before,
                                              after, ring);
                round += SEVERAL;
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

/* A warp's part of the block's nth item, by the one of the two that the kernel has room for. */
template <typename T, bool SEVERAL>
DEVICE_FN void chain_attend_item(const chain_attention &c, const chain_head &own, uint32_t queries,
                                 int n, const chain_new &fresh, int half, int other_rounds,
                                 chain_ring &ring, decode_part<CHAIN_HEAD> *part)
{
    chain_query query = {};
    if (own.there) query = chain_query_of<T>(c, queries, n);
    if (SEVERAL && CHAIN_BOXES == 1)
        chain_attend_rounds<T>(c, own, query, fresh, half, other_rounds, ring, part);
    else
        chain_attend_head<T>(c, own, query, fresh, half, other_rounds, ring, part);
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

/* Where a half's warps leave their parts: in `space`; with heads of 128, which has room for one
 * half's, the other half's follow the queries. */
DEVICE_FN decode_part<CHAIN_HEAD> *chain_parts_place(int half, char *queries, float *space)
{
    typedef decode_part<CHAIN_HEAD> part;
    const int n = CHAIN_FOUR * CHAIN_PART_HEADS;
    static_assert((CHAIN_BOXES > 1 ? 1 : 2) * n * sizeof(part) <= CHAIN_SPACE(0) - CHAIN_LOOKED_UP,
                  "their room");
    if (CHAIN_BOXES > 1 && half) return (part *)(queries + CHAIN_QUERIES);
    return (part *)space + half * n;
}

/* The worker threads. `space`: the warps' parts. `x_room`: room for queries in the memory of x,
 * which is free between two products. `n_ropes`: rope steps so far in which this block took part.
 * SEVERAL: the ring has room for the stages of CHAIN_SEVERAL rounds of each half. */
template <bool SEVERAL>
DEVICE_FN void chain_attend(const linear_chain &call, int s, int n_ropes, chain_ring &ring,
                            char *x_room, float *space, chain_looked_up *up)
{
    const chain_attention &c = call.steps[s].of.attention;
    const int half = (int)threadIdx.x / (CHAIN_FOUR * WARP), step = 2 * gridDim.x;
    const uint32_t queries = shared_address(x_room);
    decode_part<CHAIN_HEAD> *parts = chain_parts_place(half, x_room, space);
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
        const chain_new fresh = chain_new_of(c, turned, queries, n);
        decode_part<CHAIN_HEAD> *part =
            parts + (int)threadIdx.x / WARP % CHAIN_FOUR * CHAIN_PART_HEADS;
        if (c.type == DTYPE_BF16) /* a branch inside loops would keep instructions apart */
            chain_attend_item<__nv_bfloat16, SEVERAL>(c, own, queries, n, fresh, half, other_rounds,
                                                      ring, part);
        else if (c.type == DTYPE_F8)
            chain_attend_item<element_f8, SEVERAL>(c, own, queries, n, fresh, half, other_rounds,
                                                   ring, part);
        else
            chain_attend_item<__half, SEVERAL>(c, own, queries, n, fresh, half, other_rounds, ring,
                                               part);
        other_rounds = next_rounds;
        chain_half_meets(half); /* the parts are there */
        chain_merge(c, own, parts);
        chain_half_meets(half); /* and have been read */
    }
    /* Copies will write x there again. */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
