/* Prompts made of parts: parts with the same key have the same tokens in every prompt.
 *
 * So prompts share exactly the prefixes that their keys define. Token p of a part is a hash of
 * seed, key and p. The tokens are ids, words, or pieces of a text of about four bytes a token.
 */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct prompt_part {
    uint64_t key;
    int64_t n_tokens;
} prompt_part;

/* The source of tokens. */
typedef struct prompt_source {
    uint64_t seed;
    int64_t vocab_size; /* ids avoid both ends of the vocabulary, where control tokens are */
    const char *text;   /* NULL: none */
    size_t text_length;
} prompt_source;

/* A hash; each bit depends on all bits of both numbers. */
uint64_t prompt_mix(uint64_t a, uint64_t b);

/* Appends "[12,345,...]". */
void prompt_ids(const prompt_source *source, const prompt_part *parts, size_t n_parts, strbuf *out);

/* Appends a JSON string with its quotes. */
void prompt_text(const prompt_source *source, const prompt_part *parts, size_t n_parts,
                 strbuf *out);
