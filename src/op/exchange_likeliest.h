/* The likeliest token of rows whose logits are cut by columns: each rank finds that of its own, and
 * all exchange these. What the host and the kernel share. */
#pragma once

#include "cuda/exchange.h"
#include "op/device_rows.h"

enum { LIKELIEST_THREADS = 1024 };

typedef struct exchange_likeliest {
    device_rows part; /* F32 (n_rows, n_own): this rank's columns, */
    int32_t first;    /* of all from this one on */
    int32_t n_own, n_rows;
    uint64_t ids; /* address: int32_t [n_rows] */
    exchange ranks;
} exchange_likeliest;
