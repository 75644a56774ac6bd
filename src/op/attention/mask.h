/* What the attention operators share of their optional features: a window, a cap of the scores, and
 * masks that the caller gives.
 *
 * A mask has a bit for each pair of a query and a position of its sequence: bit i * kv_length + j
 * is set if query i sees position j. Sequences follow each other, and each begins with a new word,
 * so sequence b begins after ceil(qo_length * kv_length / 32) words for each sequence before it.
 */
#pragma once

#include "op/attention/attention.h"
#include "op/op.h"

/* The tensor, the parameters and the axis as operators describe them. */
#define TENSOR_MASK                                                                                \
    {                                                                                              \
        "mask", OP_IN, OP_TYPE(I32), "n_mask_words", true,                                         \
            "bits, the lowest of a word first: i * kv_len + j is set if token i of the sequence "  \
            "sees position j; each sequence begins with a new word. Replaces causal"               \
    }
#define PARAM_WINDOW                                                                               \
    {                                                                                              \
        "window", PARAM_INT, 0,                                                                    \
            "the latest positions that a token sees, its own among them (FlashInfer's "            \
            "window_left + 1); 0: all"                                                             \
    }
#define PARAM_SOFT_CAP                                                                             \
    {                                                                                              \
        "logits_soft_cap", PARAM_FLOAT, 0,                                                         \
            "bounds the scaled scores s: cap * tanh(s / cap); 0: they stay"                        \
    }
#define AXIS_MASK_WORDS                                                                            \
    {                                                                                              \
        "n_mask_words", AXIS_VARIABLE, "words of 32 bits that the masks of all sequences take"     \
    }

/* The masks of a call. */
typedef struct attention_masks {
    const tensor *mask;      /* (n_mask_words); rank 0: there are none */
    const tensor *qo_indptr; /* (n_sequences + 1) */
    const op_call *call;
    int64_t (*kv_length)(const op_call *call, int64_t b); /* positions of sequence b */
} attention_masks;

/* The mask of sequence b; NULL where there are none. */
const uint32_t *attention_mask_of(const attention_masks *masks, int64_t b);

/* Whether there are words for all masks. Views without data pass. */
qp_status attention_masks_check(const char *op, const attention_masks *masks, qp_error *error);

/* Whether the window and the cap are possible. */
qp_status attention_check_limits(const char *op, double window, double soft_cap, qp_error *error);

/* Test contents: rows that see nothing, a first part, and random positions. */
void attention_masks_fill(const attention_masks *masks, uint64_t seed);
