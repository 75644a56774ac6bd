/* paged_decode of few sequences, through a ring in shared memory: what host and kernels share,
 * besides paged_cuda.h. */
#pragma once

#include "op/attention/paged_cuda.h"

/* A block's dynamic shared memory is a ring of stages of 16 positions of a KV head, whose rows have
 * `row` bytes. A row of values is 16 bytes longer than in the cache, because lanes of a warp read
 * the same columns of every other row. */
enum {
    PAGED_RING_BLOCKS = 2,        /* resident on a multiprocessor */
    PAGED_RING_BYTES = 93 * 1024, /* of a block's shared memory: two blocks fit */
    /* The warps that compute, and those that copy keys and values. */
    PAGED_RING_THREADS = (PAGED_DECODE_WARPS + 2) * 32,
};
#define PAGED_RING_STAGE(row)  (16 * ((row)*2 + 16))
#define PAGED_RING_STAGES(row) (PAGED_RING_BYTES / PAGED_RING_STAGE(row))
#define PAGED_RING_SHARED(row) (PAGED_RING_STAGES(row) * PAGED_RING_STAGE(row))

/* Positions of each part of a sequence, except the last. */
enum { PAGED_FEW_LEAST = 128, PAGED_FEW_PARTS = 16 };
#define PAGED_FEW_CHUNK(length)                                                                    \
    ((length) <= PAGED_FEW_PARTS * PAGED_FEW_LEAST ? PAGED_FEW_LEAST                               \
     : (length) >= PAGED_FEW_PARTS * PAGED_CHUNK   ? PAGED_CHUNK                                   \
                                                   : PAGED_FEW_SPLIT(length, PAGED_FEW_PARTS * 16))
#define PAGED_FEW_SPLIT(length, sixteens) (((length) + (sixteens)-1) / (sixteens)*16)
