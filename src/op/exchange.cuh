/* Rows exchanged between ranks on GPUs of one host: all_reduce and all_gather, which differ in how
 * they combine what arrives. See cuda/exchange.h for the protocols. Ranks' parts are combined in
 * the order of the ranks, so every rank gets the same bits.
 *
 * An all_gather is an all_reduce in which each rank's part is zeros outside its own columns, and
 * bits are or-ed: exact, and with the same traffic in both directions, which the protocols need.
 */
#pragma once

#include "op/device.cuh"
#include "op/exchange_rows.h"
#include "op/rms_norm/rms_norm.cuh"

/* ---- waits --------------------------------------------------------------------------------- */

struct exchange_wait {
    uint32_t tries;
    uint64_t begin; /* ns; 0: not known yet */
};

/* Whether the wait is to end although nothing has arrived: it, or an earlier one, took too long. */
__device__ static __noinline__ bool exchange_expired(const exchange &e, exchange_wait &wait,
                                                     int from, uint32_t expected, uint32_t found)
{
    exchange_failure *failure = (exchange_failure *)e.failure;
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (*(volatile uint32_t *)&failure->failed) return true;
    if (wait.begin == 0) wait.begin = now;
    if (now - wait.begin < e.limit_ns) return false;
    if (atomicExch_system(&failure->failed, 1) == 0) {
        failure->from = (uint32_t)from;
        failure->block = blockIdx.x;
        failure->expected = expected;
        failure->found = found;
    }
    return true;
}

/* The clock is read, and the failure looked for, only now and then. */
DEVICE_FN bool exchange_gives_up(const exchange &e, exchange_wait &wait, int from,
                                 uint32_t expected, uint32_t found)
{
    enum { TRIES = 1024 };
    return ++wait.tries % TRIES == 0 && exchange_expired(e, wait, from, expected, found);
}

/* The ranks after this one, in a circle, so that not all write to the same one first. */
DEVICE_FN int exchange_peer(const exchange &e, int i)
{
    return e.rank + i < e.n_ranks ? e.rank + i : e.rank + i - e.n_ranks;
}

/* ---- combining ----------------------------------------------------------------------------- */

template <bool GATHER> DEVICE_FN float exchange_combine(float a, float b)
{
    return GATHER ? __uint_as_float(__float_as_uint(a) | __float_as_uint(b)) : a + b;
}

template <bool GATHER> DEVICE_FN void exchange_combine4(float4 &to, const float4 &part)
{
    to =
        make_float4(exchange_combine<GATHER>(to.x, part.x), exchange_combine<GATHER>(to.y, part.y),
                    exchange_combine<GATHER>(to.z, part.z), exchange_combine<GATHER>(to.w, part.w));
}

/* ---- words --------------------------------------------------------------------------------- */

DEVICE_FN uint64_t exchange_word(float value, uint32_t round)
{
    return (uint64_t)round << 32 | __float_as_uint(value);
}

/* Two words, each of which arrives whole. */
DEVICE_FN void exchange_store(char *to, uint64_t a, uint64_t b)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b)
                 : "memory");
}
DEVICE_FN void exchange_load(const char *from, uint64_t &a, uint64_t &b)
{
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(a), "=l"(b)
                 : "l"(from)
                 : "memory");
}

/* Where words lie in a receive buffer: slots of blocks, in which a thread has a pair of words every
 * `pitch` bytes. */
struct exchange_slots {
    uint64_t offset;
    uint32_t blocks, bytes, pitch;
};
DEVICE_FN exchange_slots exchange_word_slots(void)
{
    return {0, EXCHANGE_BLOCKS, EXCHANGE_WORDS_BYTES, EXCHANGE_THREADS * 16};
}
DEVICE_FN exchange_slots exchange_row_slots(const exchange &e)
{
    return {exchange_rows_offset(e.n_ranks), ROWS_BLOCKS, EXCHANGE_ROW_BYTES, ROWS_THREADS * 16};
}

/* A thread's words in the receive buffer of `receiver`. */
DEVICE_FN char *exchange_words(const exchange &e, const exchange_slots &slots, int receiver,
                               int from, uint32_t round)
{
    uint64_t slot = ((round & 1) * (uint64_t)e.n_ranks + from) * slots.blocks + blockIdx.x;
    return (char *)e.receive[receiver] + slots.offset + slot * slots.bytes + threadIdx.x * 16;
}

template <int FOURS>
DEVICE_FN void exchange_push(char *to, uint32_t pitch, uint32_t round, const float4 (&v)[FOURS])
{
#pragma unroll
    for (int f = 0; f < FOURS; f++, to += 2 * pitch) {
        exchange_store(to, exchange_word(v[f].x, round), exchange_word(v[f].y, round));
        exchange_store(to + pitch, exchange_word(v[f].z, round), exchange_word(v[f].w, round));
    }
}

template <int FOURS>
DEVICE_FN void exchange_take(const exchange &e, const char *at, uint32_t pitch, int from,
                             uint32_t round, float4 (&v)[FOURS])
{
    uint64_t word[FOURS][4];
    exchange_wait wait = {};
    bool arrived;
    do {
        arrived = true;
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            exchange_load(at + 2 * f * pitch, word[f][0], word[f][1]);
            exchange_load(at + (2 * f + 1) * pitch, word[f][2], word[f][3]);
        }
#pragma unroll
        for (int i = 0; i < 4 * FOURS; i++)
            arrived = arrived && (uint32_t)(word[i / 4][i % 4] >> 32) == round;
    } while (!arrived && !exchange_gives_up(e, wait, from, round, (uint32_t)(word[0][0] >> 32)));
#pragma unroll
    for (int f = 0; f < FOURS; f++)
        v[f] = make_float4(
            __uint_as_float((uint32_t)word[f][0]), __uint_as_float((uint32_t)word[f][1]),
            __uint_as_float((uint32_t)word[f][2]), __uint_as_float((uint32_t)word[f][3]));
}

/* A round: v becomes what all ranks' parts combine to. */
template <bool GATHER, int FOURS>
DEVICE_FN void exchange_words_round(const exchange &e, const exchange_slots &slots, uint32_t round,
                                    float4 (&v)[FOURS])
{
    float4 sum[FOURS], part[FOURS];
    for (int i = 1; i < e.n_ranks; i++)
        exchange_push(exchange_words(e, slots, exchange_peer(e, i), e.rank, round), slots.pitch,
                      round, v);
    for (int from = 0; from < e.n_ranks; from++) {
        if (from != e.rank)
            exchange_take(e, exchange_words(e, slots, e.rank, from, round), slots.pitch, from,
                          round, part);
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            const float4 own = from == e.rank ? v[f] : part[f];
            if (from == 0)
                sum[f] = own;
            else
                exchange_combine4<GATHER>(sum[f], own);
        }
    }
#pragma unroll
    for (int f = 0; f < FOURS; f++)
        v[f] = sum[f];
}

/* ---- chunks -------------------------------------------------------------------------------- */

enum { CHUNK_PITCH = EXCHANGE_THREADS * 16 }; /* bytes from a thread's four to its next */

DEVICE_FN char *exchange_chunk(const exchange &e, int receiver, int from, uint32_t round)
{
    uint64_t slot = ((round & 1) * (uint64_t)e.n_ranks + from) * CHUNKS_BLOCKS + blockIdx.x;
    return (char *)e.receive[receiver] + exchange_chunks_offset(e.n_ranks) +
           slot * EXCHANGE_CHUNK_BYTES + threadIdx.x * 16;
}

DEVICE_FN uint32_t *exchange_flag(const exchange &e, int receiver, int from)
{
    return (uint32_t *)((char *)e.receive[receiver] + exchange_flags_offset(e.n_ranks) +
                        ((uint64_t)from * CHUNKS_BLOCKS + blockIdx.x) * EXCHANGE_FLAG_BYTES);
}

/* Tells a peer that this block's chunk is there, and waits for the peer's. A peer may already be a
 * round further. */
DEVICE_FN void exchange_flags(const exchange &e, int peer, uint32_t round)
{
    uint32_t *theirs = exchange_flag(e, peer, e.rank), *ours = exchange_flag(e, e.rank, peer),
             found;
    exchange_wait wait = {};
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(round) : "memory");
    do
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(ours) : "memory");
    while ((int32_t)(found - round) < 0 && !exchange_gives_up(e, wait, peer, round, found));
}

template <bool GATHER>
DEVICE_FN void exchange_chunks_round(const exchange &e, uint32_t round, float4 (&v)[CHUNKS_FOURS])
{
    for (int i = 1; i < e.n_ranks; i++) {
        char *to = exchange_chunk(e, exchange_peer(e, i), e.rank, round);
#pragma unroll
        for (int f = 0; f < CHUNKS_FOURS; f++)
            *(float4 *)(to + f * CHUNK_PITCH) = v[f];
    }
    __syncthreads(); /* the block's chunk is written */
    if ((int)threadIdx.x < e.n_ranks && (int)threadIdx.x != e.rank)
        exchange_flags(e, (int)threadIdx.x, round);
    __syncthreads(); /* the peers' chunks are here */
    float4 sum[CHUNKS_FOURS];
    for (int from = 0; from < e.n_ranks; from++) {
        const char *at = exchange_chunk(e, e.rank, from, round);
#pragma unroll
        for (int f = 0; f < CHUNKS_FOURS; f++) {
            const float4 part =
                from == e.rank ? v[f] : __ldcg((const float4 *)(at + f * CHUNK_PITCH));
            if (from == 0)
                sum[f] = part;
            else
                exchange_combine4<GATHER>(sum[f], part);
        }
    }
#pragma unroll
    for (int f = 0; f < CHUNKS_FOURS; f++)
        v[f] = sum[f];
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* This rank's part of the four elements of out from column c on, zeros where it has none. */
DEVICE_FN float4 exchange_own(const exchange_rows &call, uint32_t row, int c)
{
    if (call.ids) row = (uint32_t)call.ids[row];
    const float *from = (const float *)(call.part.data + row * call.part.stride);
    if (row - call.first_row >= call.n_own_rows) return make_float4(0, 0, 0, 0);
    if (call.vectors)
        return c >= call.first && c < call.first + call.n_own
                   ? *(const float4 *)(from + c - call.first)
                   : make_float4(0, 0, 0, 0);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] =
            c + i >= call.first && c + i < call.first + call.n_own ? from[c + i - call.first] : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
}

DEVICE_FN void exchange_put(const exchange_rows &call, uint32_t row, int c, float4 value)
{
    float *to = (float *)(call.out.data + row * call.out.stride) + c;
    if (call.vectors) {
        *(float4 *)to = value;
        return;
    }
    const float v[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (c + i < call.n_columns) to[i] = v[i];
}

/* Blocks take turns. The next kernel may start at once, and fetch its weights while this one waits
 * for the peers. */
template <bool GATHER, bool CHUNKS>
DEVICE_FN void exchange_all(const exchange_rows &call, uint32_t *counters)
{
    const int FOURS = CHUNKS ? CHUNKS_FOURS : EXCHANGE_FOURS;
    const uint32_t per_row = (uint32_t)(call.n_columns + 3) / 4, total = per_row * call.n_rows;
    const uint32_t own = FOURS * EXCHANGE_THREADS;
    device_take_turn();
    uint32_t *counter = counters + blockIdx.x, round = *counter;
    for (uint32_t begin = blockIdx.x * own; begin < total; begin += gridDim.x * own) {
        float4 v[FOURS];
        round++;
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            uint32_t i = begin + f * EXCHANGE_THREADS + threadIdx.x;
            v[f] = i < total ? exchange_own(call, i / per_row, (int)(i % per_row) * 4)
                             : make_float4(0, 0, 0, 0);
        }
        if constexpr (CHUNKS)
            exchange_chunks_round<GATHER>(call.ranks, round, v);
        else
            exchange_words_round<GATHER>(call.ranks, exchange_word_slots(), round, v);
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            uint32_t i = begin + f * EXCHANGE_THREADS + threadIdx.x;
            if (i < total) exchange_put(call, i / per_row, (int)(i % per_row) * 4, v[f]);
        }
    }
    __syncthreads(); /* every thread has read the counter */
    if (threadIdx.x == 0) *counter = round;
}

/* all_reduce, then rms_norm of the sum: a row for each block, whose threads have eight neighbours
 * each, as in norm_row(), so that the norm has its bits. */
DEVICE_FN void exchange_norm(const exchange_rows &call, const norm_rows &norm, uint32_t *counters)
{
    __shared__ float cells[MAX_WARPS];
    const int i = 8 * (int)threadIdx.x, n = norm.n;
    const uint32_t row = blockIdx.x;
    const device_eight weight = device_fetch8<true>(norm.weight, 0, i, n);
    device_take_turn();
    uint32_t *counter = counters + blockIdx.x, round = *counter + 1;
    float4 v[ROWS_FOURS];
#pragma unroll
    for (int f = 0; f < ROWS_FOURS; f++)
        v[f] = i < n ? exchange_own(call, row, i + 4 * f) : make_float4(0, 0, 0, 0);
    exchange_words_round<false>(call.ranks, exchange_row_slots(call.ranks), round, v);
    float x[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
    const float scale = norm_scale(block_sum(norm_squares(x), cells), n, norm.eps);
    if (threadIdx.x == 0) *counter = round; /* every thread has read it: block_sum() waits */
    if (i >= n) return;
    exchange_put(call, row, i, v[0]);
    exchange_put(call, row, i + 4, v[1]);
    norm_store<false, true>(norm, row, i, weight, scale, x);
}
