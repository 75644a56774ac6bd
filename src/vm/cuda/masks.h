/* Masks of allowed tokens on their way to a GPU.
 *
 * Answers that are bound to a form have a new mask for each token: 16 KB each, so that the start of
 * a copy takes longer than the copy. Therefore the masks of all slots are kept in pinned memory
 * too, in the layout of PLAN_ALLOWED, and one copy brings all that have changed since the last run.
 */
#pragma once

#include "cuda/memory.h"
#include "plan/program.h"

typedef struct cuda_masks {
    cuda_pinned all;   /* (slots, words); not allocated before the first mask */
    size_t begin, end; /* the bytes of `all` that the GPU lacks; begin == end: none */
} cuda_masks;

/* Takes the first `bytes` of a slot's mask, or, where `slot` is negative, of all slots. No run that
 * reads masks may be in flight. */
qp_status cuda_masks_write(cuda_masks *masks, const cuda_device *device, const program *program,
                           int64_t slot, const void *mask, size_t bytes, qp_error *error);

/* Puts the copy of what has changed to the tensor at `to` into the stream. */
qp_status cuda_masks_send(cuda_masks *masks, const cuda_device *device, cuda_address to,
                          qp_error *error);
