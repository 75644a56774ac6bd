/* Judges the results of op_type "sampling": tokens drawn from probabilities, which are different in
 * every call. No token may lie outside of what top_k and top_p leave, and over many calls tokens
 * must be as frequent as they should be. */
#pragma once

#include "workbench/arguments.h"

typedef struct samples samples;

/* For the inputs `probs` (rows x vocabulary, or one row) and, where the definition has them,
 * `top_k` and `top_p`. QP_UNSUPPORTED for definitions of another form. samples_free() the result.
 */
qp_status samples_create(const arguments *arguments, samples **out, qp_error *error);
void samples_free(samples *samples);

/* How many calls give enough tokens. */
int samples_calls(const samples *samples);

/* Adds the tokens of one call, from a function's memory. False if one cannot be: `what` says which.
 */
bool samples_add(samples *samples, const char *memory, char *what, size_t size);

/* The total variation distance of the tokens so far from those expected, 0 to 1: half the sum of
 * the differences of frequencies, of 32 groups of tokens that are about as likely as each other. */
double samples_distance(const samples *samples);
