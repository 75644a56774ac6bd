/* What the kernels of all_reduce and all_gather are called with: shared by host and kernels. */
#pragma once

#include "cuda/exchange.h"
#include "op/device_rows.h"

/* Rows that ranks have cut among them: a rank adds all ranks' parts of its own rows to x, and sends
 * their norm to all. */
typedef struct exchange_sums {
    norm_rows norm;        /* x: float32, whole rows; out: none */
    uint32_t first, n_own; /* this rank's rows */
    uint32_t per;          /* the rows of each rank, of the last at most so many */
    exchange ranks;
} exchange_sums;
enum { SUMS_THREADS = 256, SUMS_EIGHTS = 4 };

typedef struct exchange_rows {
    device_rows part, out; /* F32; part may lie in out */
    uint32_t n_rows;
    int32_t n_columns;              /* of out */
    int32_t first, n_own;           /* the columns of out that `part` holds: of all_reduce all */
    uint32_t first_row, n_own_rows; /* and its rows; zeros elsewhere */
    const int32_t *ids; /* [n_rows]: the rows of `part` that make out; NULL: its rows as they are */
    int32_t vectors;    /* all four elements from a multiple of 4 on lie together, aligned */
    exchange ranks;
} exchange_rows;
