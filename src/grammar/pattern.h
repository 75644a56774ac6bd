/* Regular expressions of JSON Schema ("pattern") as expressions of a grammar.
 *
 * The subset that both ECMAScript and everyone else reads alike: characters and escapes, classes,
 * \d \w \s, groups, choices, and repetitions with counts. "^" may stand first and "$" last in an
 * alternative of the whole, or of a group that is one; without them the text may have more before
 * or after. Look-around, references, \b and classes by property are refused.
 */
#pragma once

#include "grammar/json_parts.h"

enum { PATTERN_MAX_NESTING = 100 };

/* The text between the quotes of a string of JSON that matches the pattern. */
qp_status pattern_compile(json_parts *parts, const char *pattern, grammar_expr *out,
                          qp_error *error);

/* The same of texts with `least` to `most` characters (above 0). *fits: false where that cannot be
 * said: the pattern has more than one repetition, or another part, on which the length depends. */
qp_status pattern_compile_within(json_parts *parts, const char *pattern, uint32_t least,
                                 uint32_t most, bool *fits, grammar_expr *out, qp_error *error);

/* A grammar whose texts match the pattern from their beginning to their end; "^" and "$" may stand
 * there all the same. */
qp_status pattern_read(const char *pattern, grammar *out, qp_error *error);
