/* What this machine can do at most, measured: reading memory, multiplying floats, dot products of
 * bytes. Short samples, meant to be taken in turn with what is held against them, because other
 * programs run on the same processors.
 */
#ifndef QUIPU_OP_BENCH_MACHINE_H
#define QUIPU_OP_BENCH_MACHINE_H

#include "base/threads.h"

typedef enum machine_limit {
    MACHINE_READ,    /* bytes a second: reading huge pages once, from end to end */
    MACHINE_FLOAT,   /* FLOP a second: float32 fused multiply-adds in registers, two each */
    MACHINE_INTEGER, /* operations a second: byte products and their sums, two each */
    MACHINE_MATRIX,  /* FLOP a second of BF16 tile products; 0 without AMX */
    MACHINE_LIMITS
} machine_limit;

typedef struct machine machine;

/* `bytes` of memory to read, several times the caches; `features` says which instructions may be
 * used. The pool is borrowed. */
qp_status machine_create(size_t bytes, uint32_t features, thread_pool *pool, machine **out,
                         qp_error *error);

/* One sample of a few milliseconds, over all threads of the pool; 0 where the processor lacks the
 * instructions. */
double machine_sample(machine *machine, machine_limit limit);

/* Bytes a second of reading this memory once, over all threads. */
double machine_read(machine *machine, const void *memory, size_t bytes);

void machine_destroy(machine *machine);

#endif
