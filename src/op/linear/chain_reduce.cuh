/* Rows whose sums are over ranks, in chains on several GPUs: a block pushes its row to the blocks
 * that have the same row on the other GPUs, and adds what they push. Thread by thread: each thread
 * exchanges the elements that it adds.
 */
#pragma once

#include "cuda/exchange_chain.h"
#include "op/exchange.cuh"

/* Lanes have fours from i and from i + 128 on. So their words are 16 bytes from lane to lane, and a
 * pitch from one pair of elements to the next. */
enum { CHAIN_REDUCE_PITCH = 16 * WARP };

DEVICE_FN char *chain_words(const exchange &e, int receiver, int from, uint32_t round, int64_t row,
                            int i)
{
    const uint64_t slot = ((round & 1) * (uint64_t)e.n_ranks + from) * EXCHANGE_CHAIN_ROWS + row;
    return (char *)e.receive[receiver] + exchange_chain_offset(e.n_ranks) +
           (slot * EXCHANGE_CHAIN_COLUMNS + i / 128 * 128) * EXCHANGE_CHAIN_WORD + i % 128 / 4 * 16;
}

DEVICE_FN uint32_t *chain_round(const exchange &e, int64_t row)
{
    return (uint32_t *)e.rounds + EXCHANGE_COUNTERS + row;
}

DEVICE_FN void chain_push(const exchange &e, uint32_t round, int64_t row, int i,
                          const float4 (&own)[2])
{
    for (int k = 1; k < e.n_ranks; k++)
        exchange_push(chain_words(e, exchange_peer(e, k), e.rank, round, row, i),
                      CHAIN_REDUCE_PITCH, round, own);
}

/* own becomes the sum over ranks, in their order. */
DEVICE_FN void chain_take(const exchange &e, uint32_t round, int64_t row, int i, float4 (&own)[2])
{
    float4 sum[2] = {}, part[2];
    for (int from = 0; from < e.n_ranks; from++) {
        if (from != e.rank)
            exchange_take(e, chain_words(e, e.rank, from, round, row, i), CHAIN_REDUCE_PITCH, from,
                          round, part);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float4 next = from == e.rank ? own[k] : part[k];
            if (from == 0)
                sum[k] = next;
            else
                exchange_combine4<false>(sum[k], next);
        }
    }
    own[0] = sum[0], own[1] = sum[1];
}
