/* The likeliest token over ranks: see op/exchange_likeliest.h. A block finds that of a row, and its
 * first thread exchanges words with the blocks of the same number. */
#pragma once

#include "op/argmax/argmax.cuh"
#include "op/exchange.cuh"
#include "op/exchange_likeliest.h"

DEVICE_FN ranked likeliest_take(const exchange &e, int from, uint32_t round)
{
    const char *at = exchange_words(e, exchange_word_slots(), e.rank, from, round);
    exchange_wait wait = {};
    uint64_t value, id;
    do
        exchange_load(at, value, id);
    while (((uint32_t)(value >> 32) != round || (uint32_t)(id >> 32) != round) &&
           !exchange_gives_up(e, wait, from, round, (uint32_t)(value >> 32)));
    return {__uint_as_float((uint32_t)value), (int32_t)(uint32_t)id};
}

/* One thread: the first of all ranks' entries. */
DEVICE_FN ranked likeliest_of_ranks(const exchange &e, ranked own, uint32_t round)
{
    for (int i = 1; i < e.n_ranks; i++)
        exchange_store(exchange_words(e, exchange_word_slots(), exchange_peer(e, i), e.rank, round),
                       exchange_word(own.value, round), (uint64_t)round << 32 | (uint32_t)own.id);
    for (int i = 1; i < e.n_ranks; i++)
        own = ranked_first(own, likeliest_take(e, exchange_peer(e, i), round));
    return own;
}

DEVICE_FN void likeliest_rows(const exchange_likeliest &call)
{
    __shared__ ranked cells[MAX_WARPS];
    device_take_turn();
    uint32_t *counter = (uint32_t *)call.ranks.rounds + blockIdx.x, round = *counter;
    for (int row = blockIdx.x; row < call.n_rows; row += gridDim.x) {
        const char *in = (const char *)call.part.data + (int64_t)row * call.part.stride;
        ranked best = block_first(argmax_of_thread(DTYPE_F32, in, call.n_own), cells);
        if (best.id >= 0) best.id += call.first;
        round++;
        if (threadIdx.x == 0)
            ((int32_t *)call.ids)[row] = likeliest_of_ranks(call.ranks, best, round).id;
    }
    __syncthreads(); /* every thread has read the counter */
    if (threadIdx.x == 0) *counter = round;
}
