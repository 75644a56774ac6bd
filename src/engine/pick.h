/* Ways of choosing a token that the plan's step "sample" does not have: on the CPU, from a row of
 * logits. Sequences with such settings run one pass at a time; others cost nothing.
 *
 *     logits -> biases, mask, penalties, DRY -> top-n-sigma -> temperature -> top-k -> typical
 *            -> top-p -> min-p -> XTC -> draw
 *            -> (in place of top-k to XTC) mirostat 2 -> draw
 *
 * Each filter sees the probabilities of what is left by the one before it. Draws are those of the
 * step "sample": noise of (seed, position, token), so a seed gives the same choices everywhere.
 *
 * Sources: DRY, XTC: the authors' pull requests to text-generation-webui (5677, 6335); locally
 * typical sampling: arXiv 2202.00666; top-n-sigma: arXiv 2411.07641; mirostat: arXiv 2007.14966.
 */
#pragma once

#include "quipu.h"

typedef struct pick_candidate {
    double logit; /* before the temperature; minus infinity: excluded */
    double p;     /* among those that are left */
    double shift; /* used by locally typical sampling */
    int32_t token;
} pick_candidate;

/* Whether the settings, by qp_setting, have one that needs this. */
bool pick_is_needed(const double *value);

/* Sorts the candidates, the likeliest first, and keeps those that the filters keep, one at least;
 * returns how many. `mu`: of mirostat. */
size_t pick_filter(const double *value, uint64_t seed, uint64_t position, double mu,
                   pick_candidate *candidates, size_t n);

/* The place of the candidate that is drawn among the first n; with temperature 0 the likeliest. */
size_t pick_draw(const double *value, uint64_t seed, uint64_t position,
                 const pick_candidate *candidates, size_t n);

/* The tokens of a text, and which of its ends a repetition may reach. */
typedef struct dry_text {
    const int32_t *tokens; /* [n] */
    size_t n;
    size_t limit;     /* tokens after the last sequence breaker */
    int32_t *lengths; /* [n] scratch */
} dry_text;

/* Subtracts DRY's penalties from logits [n_candidates], by token. `longest`: [n_candidates] zeros,
 * which become the longest repetition that each token would go on with. */
void dry_penalise(const double *value, const dry_text *text, pick_candidate *candidates,
                  size_t n_candidates, int32_t *longest);
