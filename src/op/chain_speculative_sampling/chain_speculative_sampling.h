/* Call layout of chain_speculative_sampling, and what its reference and its variants share. */
#pragma once

#include "op/op.h"

enum {
    CHAIN_SAMPLING_DRAFT_PROBS,
    CHAIN_SAMPLING_DRAFT_IDS,
    CHAIN_SAMPLING_UNIFORM,
    CHAIN_SAMPLING_TARGET_PROBS,
    CHAIN_SAMPLING_IDS,
    CHAIN_SAMPLING_ACCEPTED,
    CHAIN_SAMPLING_EMITTED,
};

/* One draw of a token: the distribution that it is drawn from, and its uniform sample. */
typedef struct chain_draw {
    const void *target, *draft; /* (vocab_size) rows; draft NULL: only the target's */
    double uniform;
} chain_draw;

/* Draws the token where the chain ends. */
typedef int64_t chain_drawer(const op_call *call, const chain_draw *draw);

/* The operator, given its costly part. */
void chain_sampling_run(const op_call *call, chain_drawer *drawer);

op_kernel chain_speculative_sampling_reference;
