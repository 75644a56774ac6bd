/* Call layout of adjust_logits: indices of its tensors, bits of a row's `uses`. */
#pragma once

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

/* What is done to a row. */
enum {
    ADJUST_COUNT = 1,    /* count the previous token first */
    ADJUST_BIAS = 2,     /* add the slot's biases */
    ADJUST_PENALISE = 4, /* apply penalties to the tokens in the slot's history */
    ADJUST_MASK = 8,     /* exclude the tokens that the slot does not allow */
};

/* An entry of history: twice the number of times that the answer has the token, plus 1 if the
 * answer or the prompt has it.
 */
enum { ADJUST_SEEN = 1, ADJUST_ONCE = 2 };

/* Words of 32 tokens in a row of allowed tokens. */
#define ADJUST_MASK_WORDS(vocab_size) (((vocab_size) + 31) / 32)

op_kernel adjust_logits_reference;
