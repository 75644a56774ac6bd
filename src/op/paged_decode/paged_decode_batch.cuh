/* paged_decode on tensor cores, bound by reading the cache once.
 *
 * A block takes PAGED_CHUNK positions of one sequence and one KV head, for all heads of the group;
 * its warps take 16 positions by turns (paged_decode_warp.cuh).
 *
 * The warps' parts, and then the chunks' if a sequence has several, are merged in the order of
 * positions by the block that ends last; each block counts itself in `arrived`. How a sequence is
 * cut depends only on its length, so its result does not depend on the batch. A remainder of less
 * than half a chunk belongs to the last chunk, because a block for it would cost more than it
 * reads.
 *
 * If the longest sequence is not known, a grid with room for the longest possible times all
 * sequences would consist almost only of empty blocks, which take as long as the reading. Blocks
 * then search for their part.
 *
 * Beside paged_prefill of the same batch's other rows (`beside`) the kernel runs while that one's
 * last blocks do, because it reads nothing of theirs. paged_prefill then lets it begin only after
 * the kernels before have ended, whose rows and positions both read. The last block waits for
 * paged_prefill, so that this kernel ends after it.
 */
#pragma once

#include "op/paged_decode/paged_decode_warp.cuh"

/* Where the sixteens of a chunk begin in the two caches, in bytes. */
typedef struct decode_place {
    int64_t k, v;
} decode_place;

/* The warp's part of a chunk of n_seen positions, of which the first `hidden` are not seen: DEPTH
 * sixteens, then those after the other warps'. */
template <typename T, int HEAD_DIM, int WARPS, typename LIMITS>
__device__ __forceinline__ void
decode_warp(const paged_attention &call, const LIMITS &limits, const char *query_row, int kv_head,
            const decode_place *place, int hidden, int n_seen, decode_part<HEAD_DIM> *part)
{
    constexpr int DEPTH = decode_form<T, HEAD_DIM>::DEPTH;
    int g = (int)threadIdx.x % 32 / 4;
    bool is_head = g < call.group;
    float scale = limits_scale(limits, call);
    const char *k_cache = call.k + kv_head * call.k_strides.head;
    const char *v_cache = call.v + kv_head * call.v_strides.head;
    decode_keys<T, HEAD_DIM> keys[DEPTH];
    decode_values<T, HEAD_DIM> values[DEPTH];
    uint4 query[HEAD_DIM / 32];
    int n = (n_seen + 15) / 16, i = (int)threadIdx.x / 32 * DEPTH;
    /* Loads what earlier passes stored in the cache while this pass's previous kernels run. */
#pragma unroll
    for (int when = 0; when < 2; when++) {
        if (when == 1 && !call.beside) device_wait_for_last();
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (when == 0 ? i + d >= n - 1 : i + d != n - 1) continue;
            decode_load_keys(keys[d], k_cache + place[i + d].k, call.k_strides.position);
            decode_load_values(values[d], v_cache + place[i + d].v, call.v_strides.position,
                               n_seen - (i + d) * 16);
        }
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; i++)
        query[i] = is_head ? load_query<typename product_of<T>::type>(
                                 call.q_type, query_row + g * call.q_strides.head,
                                 decode_column<T>(i), call.sm_scale < 0 ? -1.0f : 1.0f)
                           : make_uint4(0, 0, 0, 0);

    decode_sums<HEAD_DIM> sums;
    for (; i < n; i += WARPS * DEPTH) {
        int next = i + WARPS * DEPTH;
        float s[DEPTH][2][4], highest = sums.maximum;
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            decode_scores(s[d], query, keys[d]);
            if (next + d < n)
                decode_load_keys(keys[d], k_cache + place[next + d].k, call.k_strides.position);
            decode_limit(s[d], limits, call, (i + d) * 16, hidden);
            highest = decode_highest(s[d], (i + d) * 16, n_seen, highest);
        }
        float base = decode_rise<HEAD_DIM>(sums, highest, scale);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            if (i + d >= n) continue;
            decode_add(sums, s[d], values[d], base, scale);
            if (next + d < n)
                decode_load_values(values[d], v_cache + place[next + d].v, call.v_strides.position,
                                   n_seen - (next + d) * 16);
        }
    }
    decode_leave<HEAD_DIM>(sums, scale, part);
}

/* A block's part: a chunk of a sequence. */
typedef struct decode_cut {
    int sequence, chunk, n_chunks; /* chunk >= n_chunks: there is no part */
    int first_part; /* the number of the sequence's first part, counted over all sequences */
} decode_cut;

/* Sixteens before the first that the sequence's token sees; chunks are counted from there. */
template <typename LIMITS>
__device__ __forceinline__ int decode_skipped(const LIMITS &limits, int length)
{
    return limits_first(limits, length, 0) / 16;
}

template <typename LIMITS>
__device__ __forceinline__ int decode_chunks(const paged_attention &call, const LIMITS &limits,
                                             int sequence)
{
    int length = page_walk_of(call, sequence).length;
    length -= decode_skipped(limits, length) * 16;
    return PAGED_DECODE_CHUNKS(length, PAGED_CHUNK);
}

/* Which part is this block's: from its place in the grid, or by counting the chunks of the
 * sequences before. */
template <typename LIMITS>
__device__ __forceinline__ decode_cut decode_find(const paged_attention &call, const LIMITS &limits)
{
    decode_cut cut = {(int)blockIdx.y, (int)blockIdx.z, 0, 0};
    if (!call.search) {
        cut.first_part = cut.sequence * (int)gridDim.z;
        cut.n_chunks = decode_chunks(call, limits, cut.sequence);
        return cut;
    }
    int lane = (int)threadIdx.x % 32, wanted = (int)blockIdx.y;
    for (int first = 0; first < call.n_sequences; first += 32) {
        int own = first + lane < call.n_sequences ? decode_chunks(call, limits, first + lane) : 0;
        int through = own;
        for (int step = 1; step < 32; step *= 2) {
            int before = __shfl_up_sync(0xffffffffu, through, step);
            if (lane >= step) through += before;
        }
        unsigned reached = __ballot_sync(0xffffffffu, through > wanted);
        if (reached == 0) {
            wanted -= __shfl_sync(0xffffffffu, through, 31);
            continue;
        }
        int owner = __ffs((int)reached) - 1;
        cut.sequence = first + owner;
        cut.n_chunks = __shfl_sync(0xffffffffu, own, owner);
        cut.chunk = wanted - __shfl_sync(0xffffffffu, through - own, owner);
        cut.first_part = (int)blockIdx.y - cut.chunk;
        return cut;
    }
    return cut;
}

/* Grid: n_kv_heads, n_sequences, the most chunks of a sequence; or, if blocks search, n_kv_heads
 * and at least as many as there are chunks. `partial`: a decode_part for each sequence, chunk of
 * the grid and head, `arrived`: a counter for each sequence and KV head, 0 before the first launch
 * and again after each; neither is needed if no sequence has two chunks. */
template <typename T, int HEAD_DIM, int WARPS, typename LIMITS>
__device__ __forceinline__ void decode_block(const paged_attention &call, const LIMITS &limits)
{
    constexpr int THREADS = WARPS * 32, MERGED = 8;
    __shared__ decode_place place[PAGED_CHUNK / 16 + PAGED_CHUNK / 32];
    __shared__ decode_part<HEAD_DIM> parts[WARPS][PAGED_DECODE_MAX_GROUP];
    __shared__ bool is_last;
    decode_cut cut = decode_find(call, limits);
    if (cut.chunk >= cut.n_chunks) return;
    page_walk walk = page_walk_of(call, cut.sequence);
    int hidden = limits_first(limits, walk.length, 0), skipped = hidden / 16;
    walk.length -= skipped * 16;
    int kv_head = (int)blockIdx.x;
    int n_seen = cut.chunk + 1 < cut.n_chunks ? PAGED_CHUNK : walk.length - cut.chunk * PAGED_CHUNK;
    for (int i = (int)threadIdx.x; i * 16 < n_seen; i += THREADS) {
        uint32_t sixteen = (uint32_t)(skipped + cut.chunk * (PAGED_CHUNK / 16) + i);
        place[i].k = page_offset(walk, call.k_strides, sixteen);
        place[i].v = page_offset(walk, call.v_strides, sixteen);
    }
    __syncthreads(); /* the places are known */
    int first_head = kv_head * call.group;
    decode_warp<T, HEAD_DIM, WARPS>(call, limits,
                                    (const char *)call.q + cut.sequence * call.q_strides.token +
                                        first_head * call.q_strides.head,
                                    kv_head, place, cut.chunk == 0 ? hidden % 16 : 0, n_seen,
                                    parts[threadIdx.x / 32]);
    __syncthreads(); /* the warps' parts are there */

    int n_heads = call.n_kv_heads * call.group;
    decode_part<HEAD_DIM> *partial =
        (decode_part<HEAD_DIM> *)call.partial + (int64_t)cut.first_part * n_heads + first_head;
    for (int i = (int)threadIdx.x; i < call.group * HEAD_DIM / 2; i += THREADS) {
        int head = i / (HEAD_DIM / 2), element = i % (HEAD_DIM / 2) * 2;
        decode_state state = decode_merge<HEAD_DIM, true, WARPS>(
            &parts[0][head], PAGED_DECODE_MAX_GROUP, WARPS, element);
        if (cut.n_chunks == 1) {
            decode_store<HEAD_DIM>(call, cut.sequence, first_head + head, element, state);
            continue;
        }
        decode_part<HEAD_DIM> *part = partial + (int64_t)cut.chunk * n_heads + head;
        if (element == 0) part->base = state.base, part->sum = state.sum;
        *(float2 *)(part->out + element) = state.out;
    }
    if (cut.n_chunks == 1) return;

    __threadfence();
    __syncthreads(); /* the chunk's part is written before it is counted */
    uint32_t *arrived = call.arrived + cut.sequence * call.n_kv_heads + kv_head;
    if (threadIdx.x == 0) {
        is_last = atomicAdd(arrived, 1) == (uint32_t)cut.n_chunks - 1;
        if (is_last) *arrived = 0;
        __threadfence();
    }
    __syncthreads(); /* is_last is known */
    if (!is_last) return;
    for (int i = (int)threadIdx.x; i < call.group * HEAD_DIM / 2; i += THREADS) {
        int head = i / (HEAD_DIM / 2), element = i % (HEAD_DIM / 2) * 2;
        decode_store<HEAD_DIM>(
            call, cut.sequence, first_head + head, element,
            decode_merge<HEAD_DIM, false, MERGED>(partial + head, n_heads, cut.n_chunks, element));
    }
}

template <typename T, int HEAD_DIM, int WARPS, typename LIMITS>
__device__ __forceinline__ void paged_decode_batch(const paged_attention &call,
                                                   const LIMITS &limits)
{
    device_let_next_begin();
    decode_block<T, HEAD_DIM, WARPS>(call, limits);
    const bool is_last =
        blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z;
    if (call.beside && is_last) device_wait_for_last();
}
