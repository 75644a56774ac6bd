/* Call layout of adjust_logits: indices of its tensors, bits of a row's `uses`. */
#ifndef QUIPU_OP_ADJUST_LOGITS_H
#define QUIPU_OP_ADJUST_LOGITS_H

#include "op/op.h"

enum {
    ADJUST_LOGITS_LOGITS,
    ADJUST_LOGITS_LAST,
    ADJUST_LOGITS_SLOTS,
    ADJUST_LOGITS_USES,
    ADJUST_LOGITS_REPETITIONS,
    ADJUST_LOGITS_PRESENCES,
    ADJUST_LOGITS_FREQUENCIES,
    ADJUST_LOGITS_HISTORY,
    ADJUST_LOGITS_BIAS,
    ADJUST_LOGITS_ALLOWED,
};

/* What a row has done to it, besides nothing. */
enum {
    ADJUST_COUNT = 1,    /* the token after which it comes was chosen: count it first */
    ADJUST_BIAS = 2,     /* add the slot's biases */
    ADJUST_PENALISE = 4, /* tokens that the slot's history has */
    ADJUST_MASK = 8,     /* tokens that the slot does not allow */
};

/* An entry of history: twice a token's times in the answer, plus 1 if it is there or in the prompt.
 */
enum { ADJUST_SEEN = 1, ADJUST_ONCE = 2 };

/* Words of 32 tokens in a row of allowed tokens. */
#define ADJUST_MASK_WORDS(vocab_size) (((vocab_size) + 31) / 32)

op_kernel adjust_logits_reference, adjust_logits_avx2, adjust_logits_avx512;

#endif
