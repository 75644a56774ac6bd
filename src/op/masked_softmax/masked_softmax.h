/* Call layout of masked_softmax, and the mask of causal attention with history. */
#pragma once

#include "op/op.h"

enum { MASKED_SOFTMAX_SCORES, MASKED_SOFTMAX_MASK, MASKED_SOFTMAX_PROBABILITIES };
enum { MASKED_SOFTMAX_SCALE };

op_kernel masked_softmax_reference;

/* The operator causal_mask: fills mask (bs, max_q_len, max_kv_len): query q of sequence b, which
 * follows history[b] cached tokens, sees keys 0 .. history[b] + q. Rows at or beyond q_lens[b] are
 * padding and see nothing.
 */
void masked_softmax_causal_mask(const tensor *mask, const int32_t *q_lens, const int32_t *history);
