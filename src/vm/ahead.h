/* What a worker prefetches while it waits: the beginning of the weights that it reads next.
 *
 * Weights are the same in every pass, and a slice of output features always reads the same rows, so
 * the addresses are computed once. A prefetch needs no signal, because instructions wait only for
 * activations.
 */
#ifndef QUIPU_VM_AHEAD_H
#define QUIPU_VM_AHEAD_H

#include "vm/bound.h"

typedef struct ahead {
    const char *data; /* NULL: nothing to prefetch */
    size_t bytes;     /* bytes left to prefetch */
} ahead;

/* For every instruction, [workers][longest]: the weights that it, or else the first later
 * instruction of its queue that has weights, reads. free() it. */
qp_status ahead_make(const bound_schedule *setup, ahead **out, qp_error *error);

/* Prefetches a little more; false when everything was prefetched. */
static inline bool ahead_ask(ahead *a)
{
    enum { LINE = 64, LINES = 2 };
    if (a->bytes < LINE * LINES) return false;
    for (int i = 0; i < LINES; i++)
        __builtin_prefetch(a->data + i * LINE, 0, 2); /* for reading, into the L2 cache */
    a->data += LINE * LINES;
    a->bytes -= LINE * LINES;
    return true;
}

#endif
