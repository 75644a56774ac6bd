/* Memory of ranks' sums of many rows (op/exchange_sums.cuh): after the receive buffer and the words
 * of chains, each rank has the parts of its own rows, [from][row][column] in float32, and the norms
 * of all rows, in BF16. Ranks have as many rows each, so the last has room for some more.
 */
#pragma once

#include "cuda/exchange_chain.h"

enum {
    EXCHANGE_SUMS_COLUMNS = 8192,  /* at most */
    EXCHANGE_SUMS_MOST = 16 << 20, /* elements of all rows: 2048 rows of 8192 */
};

EXCHANGE_FN uint64_t exchange_parts_offset(int n_ranks)
{
    return (exchange_all_bytes(n_ranks) + 255) / 256 * 256;
}
EXCHANGE_FN uint64_t exchange_normed_offset(int n_ranks)
{
    return exchange_parts_offset(n_ranks) +
           (EXCHANGE_SUMS_MOST + (uint64_t)n_ranks * EXCHANGE_SUMS_COLUMNS) * 4;
}
EXCHANGE_FN uint64_t exchange_buffer_bytes(int n_ranks)
{
    return exchange_normed_offset(n_ranks) + (uint64_t)EXCHANGE_SUMS_MOST * 2;
}
