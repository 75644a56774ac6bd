/* Rows of x that chains exchange between two of their steps (op/linear/chain_reduce.cuh): words, as
 * in cuda/exchange.h, a row for each block. They lie after the receive buffer of exchange.h, and
 * their rounds are counted after its counters, for each row.
 */
#pragma once

#include "cuda/exchange.h"

enum { EXCHANGE_CHAIN_ROWS = 64, EXCHANGE_CHAIN_COLUMNS = 8192, EXCHANGE_CHAIN_WORD = 8 };

EXCHANGE_FN uint64_t exchange_chain_offset(int n_ranks)
{
    return (exchange_receive_bytes(n_ranks) + 255) / 256 * 256;
}

/* Bytes of a receive buffer, with the words of chains: [2 rounds][from][row][column]. */
EXCHANGE_FN uint64_t exchange_all_bytes(int n_ranks)
{
    return exchange_chain_offset(n_ranks) + (uint64_t)2 * n_ranks * EXCHANGE_CHAIN_ROWS *
                                                EXCHANGE_CHAIN_COLUMNS * EXCHANGE_CHAIN_WORD;
}

/* Of uint32_t. */
EXCHANGE_FN uint64_t exchange_all_counters(void)
{
    return EXCHANGE_COUNTERS + EXCHANGE_CHAIN_ROWS;
}
