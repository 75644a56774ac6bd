/* The program: what a plan yields and every machine runs.
 *
 * Sizes that change from batch to batch are axes. A shape holds them negated, and a program is
 * bound to a batch by the values of its axes, so one program serves prefill and decode.
 */
#ifndef QUIPU_PLAN_PROGRAM_H
#define QUIPU_PLAN_PROGRAM_H

#include <stdint.h>

/* Sizes that the batch decides; as a dimension they are stored negated. */
typedef enum program_axis {
    AXIS_TOKENS = 1,    /* new tokens of all sequences */
    AXIS_SEQUENCES,     /* sequences in the batch */
    AXIS_SEQUENCE_ENDS, /* sequences + 1: an indptr array */
    AXIS_PAGE_REFS,     /* entries of kv_indices */
    AXIS_OUTPUTS,       /* rows whose logits are wanted */
    AXIS_PAGES,         /* pages of the KV cache */
    AXIS_POSITIONS,     /* rows of the RoPE table */
    AXES
} program_axis;

/* Values of the axes, by axis. */
typedef struct plan_sizes {
    int64_t of[AXES];
} plan_sizes;

#endif
