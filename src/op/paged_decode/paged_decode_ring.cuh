/* paged_decode of few sequences, through a ring in shared memory: the arithmetic of
 * paged_decode_warp.cuh on keys and values that warps of their own copy ahead.
 *
 * The grid has no more blocks than are resident. Each takes every gridDim.x-th item, which is a
 * part of a sequence and a KV head:
 *
 *     block = PAGED_DECODE_WARPS consumer warps   scores, softmax, values; merge their sums, and a
 *                                                 sequence's parts when its last one is there
 *           + a warp for keys, a warp for values  look up pages, copy a sixteen of positions into
 *                                                 each stage
 *
 * The copying warps run ahead through all items of the block as far as the ring has room, so
 * neither the look-ups nor the merging of an item interrupts the reading. They start as many copies
 * of 16 bytes as lanes, because bulk copies of a head's rows, of 128 or 256 bytes each, took twice
 * the time.
 *
 * Consumer warps deal the sixteens among themselves in turns of DEPTH, with which they raise the
 * maximum; the warps' parts, and then a sequence's, are merged in their order, as in
 * paged_decode_batch.cuh.
 *
 * Before griddepcontrol.wait the copying warps read what earlier passes have written: not a
 * sequence's last sixteen.
 */
#pragma once

#include "op/paged_decode/paged_decode_copy.cuh"

enum { RING_THREADS = PAGED_DECODE_WARPS * 32 }; /* that compute */

/* ---- computing ----------------------------------------------------------------------------- */

/* Eight elements of an item's queries as they are in memory; only F32 fills `high`. They are
 * converted where they are used, so that the load does not stall the warp before. */
typedef struct ring_query {
    uint4 low, high;
} ring_query;

/* The consumer threads' eights, in the order of heads; the last threads may have none. */
template <int HEAD_DIM>
__device__ __forceinline__ ring_query ring_fetch_query(const paged_attention &call,
                                                       const ring_item &item)
{
    int head = (int)threadIdx.x / (HEAD_DIM / 8), column = (int)threadIdx.x % (HEAD_DIM / 8) * 8;
    bool in_f32 = call.q_type == DTYPE_F32, there = item.kv_head >= 0 && head < call.group;
    const char *from = (const char *)call.q + item.sequence * call.q_strides.token +
                       (item.kv_head * call.group + head) * call.q_strides.head +
                       column * (in_f32 ? 4 : 2);
    ring_query raw = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (there) raw.low = *(const uint4 *)from;
    if (there && in_f32) raw.high = *(const uint4 *)(from + 16);
    return raw;
}

/* Leaves them in the type of the products, with the sign of the scale. */
template <typename T, int HEAD_DIM, int STAGES>
__device__ __forceinline__ void ring_leave_query(const paged_attention &call, const ring_query &raw,
                                                 ring_shared<HEAD_DIM, STAGES> &shared)
{
    static_assert(PAGED_DECODE_MAX_GROUP * HEAD_DIM / 8 <= RING_THREADS, "an eight a thread");
    const uint32_t low[] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w};
    const uint32_t high[] = {raw.high.x, raw.high.y, raw.high.z, raw.high.w};
    const float sign = call.sm_scale < 0 ? -1.0f : 1.0f;
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t *two = i < 2 ? low + i * 2 : high + i * 2 - 4;
        float2 pair = call.q_type == DTYPE_F32
                          ? make_float2(__uint_as_float(two[0]), __uint_as_float(two[1]))
                      : call.q_type == DTYPE_BF16 ? unpack_pair(__nv_bfloat16(), low[i])
                                                  : unpack_pair(__half(), low[i]);
        word[i] = pack_pair(typename product_of<T>::type(), pair.x * sign, pair.y * sign);
    }
    if (threadIdx.x < PAGED_DECODE_MAX_GROUP * HEAD_DIM / 8)
        shared.query[0][threadIdx.x] = make_uint4(word[0], word[1], word[2], word[3]);
}

/* A stage's keys. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void ring_keys(decode_keys<T, HEAD_DIM> &keys, const char *stage)
{
    typedef ring_sizes<T, HEAD_DIM> sizes;
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4, swap = g % 2 * sizes::SWAP * 16;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const char *row = stage + (g + r * 8) * sizes::ROW;
#pragma unroll
        for (int i = 0; i < decode_keys<T, HEAD_DIM>::PIECES; i++)
            keys.piece[r][i] = *(const uint4 *)(row + ((i * 4 + t) * 16 ^ swap));
    }
}

/* A stage's values, zeros from n_seen on. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void ring_values(decode_values<T, HEAD_DIM> &values, const char *stage,
                                            int n_seen)
{
    typedef typename eight_of<T>::type eight;
    typedef ring_sizes<T, HEAD_DIM> sizes;
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int position = t * 2 + r % 2 + r / 2 * 8;
        const char *row = stage + sizes::VALUES + position * sizes::VALUE_ROW;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 64; i++)
            values.eight[r][i] = position >= n_seen ? eight{} : ((const eight *)row)[i * 8 + g];
    }
}

/* A consumer warp's sums over its share of an item, whose first sixteen is in the stage of
 * `turn`. */
template <typename T, int HEAD_DIM, int STAGES, typename LIMITS>
__device__ __forceinline__ void
ring_consume(decode_sums<HEAD_DIM> &sums, const paged_attention &call, const LIMITS &limits,
             const ring_item &item, ring_turn<STAGES> turn, ring_shared<HEAD_DIM, STAGES> &shared,
             const char *stages)
{
    typedef ring_sizes<T, HEAD_DIM> sizes;
    constexpr int DEPTH = sizes::DEPTH, ROUND = PAGED_DECODE_WARPS * DEPTH;
    int warp = (int)threadIdx.x / 32, n = (item.n_seen + 15) / 16;
    float scale = limits_scale(limits, call);
    uint4 query[HEAD_DIM / 32];
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; i++)
        query[i] = shared.query[threadIdx.x % 32 / 4][decode_column<T>(i) / 8];
    turn.step(warp * DEPTH);
    for (int i = warp * DEPTH; i < n; i += ROUND, turn.step(ROUND)) {
        float s[DEPTH][2][4], highest = sums.maximum;
        ring_turn<STAGES> at = turn;
#pragma unroll
        for (int d = 0; d < DEPTH; d++, at.step(1)) {
            decode_keys<T, HEAD_DIM> keys;
            if (i + d >= n) continue;
            barrier_wait(shared_address(&shared.full[at.place]), at.parity);
            ring_keys(keys, stages + at.place * sizes::STAGE);
            decode_scores(s[d], query, keys);
            decode_limit(s[d], limits, call, (i + d) * 16, item.hidden);
            highest = decode_highest(s[d], (i + d) * 16, item.n_seen, highest);
        }
        float base = decode_rise<HEAD_DIM>(sums, highest, scale);
        at = turn;
#pragma unroll
        for (int d = 0; d < DEPTH; d++, at.step(1)) {
            decode_values<T, HEAD_DIM> values;
            if (i + d >= n) continue;
            ring_values(values, stages + at.place * sizes::STAGE, item.n_seen - (i + d) * 16);
            decode_add(sums, s[d], values, base, scale);
            __syncwarp(); /* all lanes have read the stage */
            if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared.empty[at.place]));
        }
    }
}

/* ---- merging ------------------------------------------------------------------------------- */

/* A part of the item's sequence, for the first head of the item's group; the next part is all heads
 * further. */
template <int HEAD_DIM>
__device__ __forceinline__ decode_part<HEAD_DIM> *ring_parts(const paged_attention &call,
                                                             const ring_item &item, int number)
{
    int64_t part = item.first_part + number;
    return (decode_part<HEAD_DIM> *)call.partial +
           (part * call.n_kv_heads + item.kv_head) * call.group;
}

/* The consumer warps meet. */
__device__ __forceinline__ void ring_meet(void)
{
    asm volatile("bar.sync 1, %0;" ::"n"(PAGED_DECODE_WARPS * 32) : "memory");
}

/* Merges the warps' parts of an item: the result of a sequence of one part, or its part. */
template <int HEAD_DIM, int STAGES>
__device__ __forceinline__ void ring_leave(const paged_attention &call, const ring_item &item,
                                           const ring_shared<HEAD_DIM, STAGES> &shared)
{
    int first_head = item.kv_head * call.group;
    for (int i = (int)threadIdx.x; i < call.group * HEAD_DIM / 2; i += RING_THREADS) {
        int head = i / (HEAD_DIM / 2), element = i % (HEAD_DIM / 2) * 2;
        decode_state state = decode_merge<HEAD_DIM, true, PAGED_DECODE_WARPS>(
            &shared.parts[0][head], PAGED_DECODE_MAX_GROUP, PAGED_DECODE_WARPS, element);
        if (item.n_parts == 1) {
            decode_store<HEAD_DIM>(call, item.sequence, first_head + head, element, state);
            continue;
        }
        decode_part<HEAD_DIM> *part = ring_parts<HEAD_DIM>(call, item, item.part) + head;
        if (element == 0) part->base = state.base, part->sum = state.sum;
        *(float2 *)(part->out + element) = state.out;
    }
}

/* Adds n <= MOST parts, whose loads are in flight at once, in their order. Other blocks wrote them,
 * so they are not in the L1 cache. */
template <int HEAD_DIM, int MOST>
__device__ __forceinline__ void ring_add(decode_state (&state)[2],
                                         const decode_part<HEAD_DIM> *part, int stride, int n,
                                         int element)
{
    float2 of[MOST], out[MOST][2]; /* base and sum, outputs */
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        const decode_part<HEAD_DIM> *from = part + min(i, n - 1) * stride;
        of[i] = __ldcg((const float2 *)&from->base);
#pragma unroll
        for (int j = 0; j < 2; j++)
            out[i][j] = __ldcg((const float2 *)(from->out + element + j * 2));
    }
    float highest = state[0].base;
#pragma unroll
    for (int i = 0; i < MOST; i++)
        highest = fmaxf(highest, of[i].x); /* the last one again */
    float base = highest == -INFINITY ? 0 : highest, shrink = exp2_fast(state[0].base - base);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        state[j].base = highest;
        state[j].sum *= shrink, state[j].out.x *= shrink, state[j].out.y *= shrink;
    }
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        if (i >= n) continue;
        float factor = exp2_fast(of[i].x - base);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            state[j].sum = fmaf(factor, of[i].y, state[j].sum);
            state[j].out.x = fmaf(factor, out[i][j].x, state[j].out.x);
            state[j].out.y = fmaf(factor, out[i][j].y, state[j].out.y);
        }
    }
}

/* Merges all parts of the item's sequence. */
template <int HEAD_DIM>
__device__ __forceinline__ void ring_merge(const paged_attention &call, const ring_item &item)
{
    constexpr int MOST = 16;
    int stride = call.n_kv_heads * call.group, first_head = item.kv_head * call.group;
    for (int i = (int)threadIdx.x; i < call.group * HEAD_DIM / 4; i += RING_THREADS) {
        int head = i / (HEAD_DIM / 4), element = i % (HEAD_DIM / 4) * 4;
        const decode_part<HEAD_DIM> *parts = ring_parts<HEAD_DIM>(call, item, 0) + head;
        decode_state state[2] = {{-INFINITY, 0, {0, 0}}, {-INFINITY, 0, {0, 0}}};
        for (int first = 0; first < item.n_parts; first += MOST)
            ring_add<HEAD_DIM, MOST>(state, parts + first * stride, stride, item.n_parts - first,
                                     element);
#pragma unroll
        for (int j = 0; j < 2; j++)
            decode_store<HEAD_DIM>(call, item.sequence, first_head + head, element + j * 2,
                                   state[j]);
    }
}

/* Counts a part of a sequence, which all consumer warps have written; the block that counts the
 * last one merges them. */
template <int HEAD_DIM, int STAGES>
__device__ __forceinline__ void ring_count(const paged_attention &call, const ring_item &item,
                                           ring_shared<HEAD_DIM, STAGES> &shared)
{
    uint32_t *arrived = call.arrived + item.sequence * call.n_kv_heads + item.kv_head;
    ring_meet(); /* the part is written */
    if (threadIdx.x == 0) {
        __threadfence();
        shared.is_last = atomicAdd(arrived, 1) == (uint32_t)item.n_parts - 1;
        if (shared.is_last) *arrived = 0;
        __threadfence();
    }
    ring_meet(); /* is_last is known */
    if (shared.is_last) ring_merge<HEAD_DIM>(call, item);
}

/* ---- a block ------------------------------------------------------------------------------- */

template <int HEAD_DIM, int STAGES>
__device__ __forceinline__ void ring_begin(ring_shared<HEAD_DIM, STAGES> &shared)
{
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared_address(&shared.full[i]), 64); /* lanes that copy */
        barrier_init(shared_address(&shared.empty[i]), 1);
    }
    for (int i = 0; i < RING_ITEMS; i++) {
        barrier_init(shared_address(&shared.announced[i]), 1);
        barrier_init(shared_address(&shared.finished[i]), PAGED_DECODE_WARPS);
    }
}

/* A consumer warp: all items of the block. The next item's queries are on their way while the
 * warps' parts of this one are merged. */
template <typename T, int HEAD_DIM, int STAGES, typename LIMITS>
__device__ __forceinline__ void ring_compute(const paged_attention &call, const LIMITS &limits,
                                             ring_shared<HEAD_DIM, STAGES> &shared,
                                             const char *stages)
{
    ring_turn<STAGES> turn;
    ring_turn<RING_ITEMS> slot;
    device_wait_for_last();
    barrier_wait(shared_address(&shared.announced[0]), 0);
    ring_item item = shared.items[0];
    ring_leave_query<T>(call, ring_fetch_query<HEAD_DIM>(call, item), shared);
    while (item.kv_head >= 0) {
        decode_sums<HEAD_DIM> sums;
        ring_turn<RING_ITEMS> own = slot;
        ring_meet(); /* the queries are there, and the parts of the item before are read */
        ring_consume<T, HEAD_DIM>(sums, call, limits, item, turn, shared, stages);
        turn.step((item.n_seen + 15) / 16);
        decode_leave<HEAD_DIM>(sums, limits_scale(limits, call), shared.parts[threadIdx.x / 32]);
        slot.step(1);
        barrier_wait(shared_address(&shared.announced[slot.place]), slot.parity);
        const ring_item next = shared.items[slot.place];
        const ring_query raw = ring_fetch_query<HEAD_DIM>(call, next);
        ring_meet(); /* the warps' parts are there, and the queries have been read */
        ring_leave(call, item, shared);
        ring_leave_query<T>(call, raw, shared);
        if (item.n_parts > 1) ring_count(call, item, shared);
        if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared.finished[own.place]));
        item = next;
    }
}

/* Grid: any number of blocks, best as many as are resident, of PAGED_RING_THREADS. `stages`:
 * PAGED_RING_SHARED bytes of shared memory. `partial`: a decode_part for each part of a
 * sequence and head, `arrived`: a counter for each sequence and KV head, 0 before the first launch
 * and again after each; neither is needed if no sequence has two parts. */
template <typename T, int HEAD_DIM, typename LIMITS>
__device__ __forceinline__ void paged_decode_ring(const paged_attention &call, const LIMITS &limits,
                                                  char *stages)
{
    __shared__ ring_shared<HEAD_DIM, ring_sizes<T, HEAD_DIM>::STAGES> shared;
    const int warp = (int)threadIdx.x / 32;
    device_let_next_begin();
    if (threadIdx.x == 0) ring_begin(shared);
    __syncthreads(); /* the barriers are there */
    if (warp == PAGED_DECODE_WARPS)
        ring_copy<T, HEAD_DIM, false>(call, limits, shared, stages);
    else if (warp > PAGED_DECODE_WARPS)
        ring_copy<T, HEAD_DIM, true>(call, limits, shared, stages);
    else
        ring_compute<T, HEAD_DIM>(call, limits, shared, stages);
}
