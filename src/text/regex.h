/* The expressions of pre-tokenizers, through PCRE2.
 *
 * They were written for Oniguruma (Hugging Face) or for a similar backtracking engine; PCRE2 reads
 * most of their notation the same way. regex_compile() rewrites \s, which in PCRE2 also matches
 * U+180E, and refuses what the engines interpret differently. Expressions come from files, so
 * matching is limited in steps and memory, and reports when it reaches the limit.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct regex regex;
typedef struct regex_scratch regex_scratch;

/* `literal`: the pattern is a plain string. `where` is for messages. regex_free() the result. */
qp_status regex_compile(const char *pattern, size_t length, bool literal, const char *where,
                        regex **out, qp_error *error);
void regex_free(regex *regex);

/* The expression as it was given; NULL for a plain string. */
const char *regex_pattern(const regex *regex);

/* Working memory for matching: each thread needs its own; NULL when memory is out. */
regex_scratch *regex_scratch_create(void);
void regex_scratch_free(regex_scratch *scratch);

/* Finds the first match of `regex` in valid UTF-8 subject[0 .. length) at or after `from`. *found:
 * whether there is one; it lies at [*begin, *end), from <= *begin <= *end. */
qp_status regex_find(const regex *regex, regex_scratch *scratch, const char *subject, size_t length,
                     size_t from, bool *found, size_t *begin, size_t *end, qp_error *error);
