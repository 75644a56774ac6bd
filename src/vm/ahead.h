/* What a worker asks memory for while it waits: the beginning of the weights that it reads next.
 *
 * Weights are the same in every pass and a slice of output features reads the same rows of them, so
 * that where they begin is found once. They need no signal: only activations are waited for.
 */
#ifndef QUIPU_VM_AHEAD_H
#define QUIPU_VM_AHEAD_H

#include "vm/bound.h"

typedef struct ahead {
    const char *data; /* NULL: no weights come */
    size_t bytes;     /* left to ask for */
} ahead;

/* For every instruction, [workers][longest], the weights that are read next, by itself or by one
 * behind it in the queue; free() it. */
qp_status ahead_make(const bound_schedule *setup, ahead **out, qp_error *error);

/* Asks for some more; false when all of it was asked for. */
static inline bool ahead_ask(ahead *a)
{
    enum { LINE = 64, LINES = 2 };
    if (a->bytes < LINE * LINES) return false;
    for (int i = 0; i < LINES; i++)
        __builtin_prefetch(a->data + i * LINE, 0, 2); /* to read, into the second cache */
    a->data += LINE * LINES;
    a->bytes -= LINE * LINES;
    return true;
}

#endif
