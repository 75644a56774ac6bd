/* Log-probabilities of tokens, from a row of logits. */
#pragma once

#include "server/request.h"

/* The natural logarithm of the sum of the exponentials of a row, float32 [vocab_size]. */
double logprobs_sum(const float *row, size_t vocab_size);

/* The natural logarithm of a token's probability; `sum`: the row's logprobs_sum(). */
float logprob_of(const float *row, double sum, int32_t token);

/* Writes the `wanted` likeliest tokens to top[0 .. wanted), the likeliest first; of equal ones the
 * lower id first. Returns how many it wrote. */
size_t logprobs_top(const float *row, size_t vocab_size, double sum, size_t wanted, token_top *top);
