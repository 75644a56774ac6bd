/* paged_prefill in pieces that several workers compute: for the units of a call, the states of
 * segments of ATTENTION_SEGMENT positions (op/attention/tile.h), in any order, and then, from all
 * of these, the outputs, with the bits that `kernel` gives. */
#pragma once

#include "op/op.h"

typedef struct paged_prefill_states {
    int64_t n_segments;
    float *of; /* of unit 0, though the call need not have it: those of a unit lie together */
} paged_prefill_states;

/* Whether there is such a form of the kernel. */
bool paged_prefill_has_pieces(op_kernel *kernel);

/* Floats of a unit's state of one segment. */
int64_t paged_prefill_state_floats(const op_call *call);

void paged_prefill_segment(op_kernel *kernel, const op_call *call,
                           const paged_prefill_states *states, int64_t segment);
void paged_prefill_merge(op_kernel *kernel, const op_call *call,
                         const paged_prefill_states *states);
