/* The padded batch: sequences of different lengths as one rectangle [bs, max_q_len].
 *
 * The tokens of a batch lie packed, one sequence after another: [n_tokens]. In the rectangle token
 * t stands in slot t + padding_offsets[t], where padding_offsets[t] is the number of padding slots
 * before it; slot s is position s % max_q_len of sequence s / max_q_len.
 */
#pragma once

#include "base/status.h"
#include "tensor/tensor.h"

/* offsets[t] for all tokens of the sequences; returns their number. lengths[i] <= max_length. */
int64_t padding_offsets(const int32_t *lengths, int64_t bs, int64_t max_length, int32_t *offsets);

/* The token in a slot, or -1 for padding: a search, since slots rise with tokens. */
int64_t padding_token(const int32_t *offsets, int64_t n_tokens, int64_t slot);

/* Checks that offsets (n_tokens), I32, give every token a slot of its own below bs * max_length, in
 * rising order. */
qp_status padding_check(const char *op, const tensor *offsets, int64_t bs, int64_t max_length,
                        qp_error *error);

/* For tests: the offsets of sequences whose lengths add up to all n_tokens of `offsets` (n_tokens);
 * the seed decides how unequal the lengths are. */
void padding_random_offsets(uint64_t seed, const tensor *offsets, int64_t bs, int64_t max_length);

/* Checks that slots (bs), I32, or without slots the numbers of the sequences, lie below n_slots. */
qp_status padding_check_slots(const char *op, const tensor *slots, int64_t bs, int64_t n_slots,
                              qp_error *error);

/* Checks that each of values (n), I32, lies in [0, limit); the message names `what`. */
qp_status index_check(const char *op, const char *what, const tensor *values, int64_t limit,
                      qp_error *error);
