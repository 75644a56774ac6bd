/* Prefetching while a worker waits: the first bytes of the weights that the worker reads next.
 *
 * Weights are the same in every pass, and a slice of output features always reads the same rows, so
 * the addresses are computed once. A prefetch needs no signal, because instructions wait only for
 * activations.
 */
#pragma once

#include "vm/bound.h"

typedef struct prefetch {
    const char *data; /* NULL: nothing to prefetch */
    size_t bytes;     /* bytes left to prefetch */
} prefetch;

/* For every instruction, [workers][longest]: the weights that it reads. If it reads none, the
 * weights of the next instruction in its queue that reads some. free() it. */
qp_status prefetch_table(const bound_schedule *setup, prefetch **out, qp_error *error);

/* Prefetches the next few cache lines; false when everything was prefetched. */
static inline bool prefetch_more(prefetch *a)
{
    enum { LINE = 64, LINES = 2 };
    if (a->bytes < LINE * LINES) return false;
    for (int i = 0; i < LINES; i++)
        __builtin_prefetch(a->data + i * LINE, 0, 2); /* for reading, into the L2 cache */
    a->data += LINE * LINES;
    a->bytes -= LINE * LINES;
    return true;
}
