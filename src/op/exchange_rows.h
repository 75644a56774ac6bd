/* What the kernels of all_reduce and all_gather are called with: shared by host and kernels. */
#ifndef QUIPU_OP_EXCHANGE_ROWS_H
#define QUIPU_OP_EXCHANGE_ROWS_H

#include "cuda/exchange.h"
#include "op/device_rows.h"

typedef struct exchange_rows {
    device_rows part, out; /* F32; part may lie in out */
    uint32_t n_rows;
    int32_t n_columns;    /* of out */
    int32_t first, n_own; /* the columns of out that `part` holds: of all_reduce all */
    int32_t vectors;      /* all four elements from a multiple of 4 on lie together, aligned */
    exchange ranks;
} exchange_rows;

#endif
