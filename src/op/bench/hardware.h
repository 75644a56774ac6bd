/* The limits of this machine, measured: reading memory, multiplying floats, dot products of bytes.
 * Samples are short and alternate with the kernels that are compared with them, because other
 * programs run on the same processors.
 */
#pragma once

#include "base/threads.h"

#include <stddef.h>
#include <stdint.h>

typedef enum hardware_limit {
    HARDWARE_READ,    /* bytes per second: reading huge pages once, sequentially */
    HARDWARE_FLOAT,   /* FLOP a second: float32 fused multiply-adds in registers, two each */
    HARDWARE_INTEGER, /* operations a second: byte products and their sums, two each */
    HARDWARE_MATRIX,  /* FLOP a second of BF16 tile products; 0 without AMX */
    HARDWARE_LIMITS
} hardware_limit;

typedef struct hardware hardware;

/* `bytes` of memory to read, several times the caches; `features` are the instruction sets that may
 * be used. The caller keeps the pool. */
qp_status hardware_create(size_t bytes, uint32_t features, thread_pool *pool, hardware **out,
                          qp_error *error);

/* One sample of a few milliseconds, over all threads of the pool; 0 where the processor lacks the
 * instructions. */
double hardware_sample(hardware *hardware, hardware_limit limit);

/* Bytes a second of reading this memory once, over all threads. */
double hardware_read(hardware *hardware, const void *memory, size_t bytes);

void hardware_destroy(hardware *hardware);
