/* Which rule is the first whose result differs: quipu diff --first-rule. */
#pragma once

#include "base/strbuf.h"
#include "quipu.h"

/* Runs the tokens (NULL: pseudo-random ones) without rules and with all that the options take, the
 * last `singles` of them one by one, and compares the logits: within 1e-5 of their norm, or 1e-2 on
 * a GPU and where attention is cut into parts. If they differ, halves the sequence of the rules'
 * matches until one is left; each half opens the model anew. Appends the verdict; *equal: no match
 * changes the result. QP_UNSUPPORTED: the machine needs all of its rules. */
qp_status first_rule_find(const qp_engine_options *options, const int32_t *tokens, int64_t n_tokens,
                          int64_t singles, strbuf *out, bool *equal, qp_error *error);
