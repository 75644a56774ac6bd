/* The parts of a tokenizer, for the files that build one: the readers of tokenizer.json,
 * tokenizer.model, GGUF and vocab.json fill these fields, then tokenizer_finish() does the rest. */
#pragma once

#include "base/json.h"
#include "text/piece_trie.h"
#include "text/pre_tokenize.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

/* What happens to the text first. Where a format writes U+2581 for a space, quipu writes a space
 * for U+2581, in the text and in the pieces. */
typedef struct normalizer {
    bool spaces_are_marked; /* U+2581 in the text is the same as a space */
    bool marks_first; /* the same already before normalized added tokens are searched: a mark is not
                         white space for lstrip and rstrip */
    bool remove_extra;   /* sentencepiece: no spaces at the ends, one between words */
    space_prefix prefix; /* one more space at the beginning, even if there is one */
    bool nfc;            /* Normalization Form C (text/nfc.h), which excludes the flags above */
} normalizer;

/* How decoding removes the space that encoding inserted. */
typedef enum decode_strip {
    DECODE_STRIP_NONE,
    DECODE_STRIP_ONE,  /* from the first token that is text */
    DECODE_STRIP_EACH, /* from each token as long as nothing else was written */
} decode_strip;

struct tokenizer {
    vocabulary vocabulary;
    normalizer normalizer;
    pre_tokenizer pre;
    decode_strip strip;
    tokenizer_special special;
    unsigned default_flags;
    const char *model_name;
    char pre_name[64];

    /* Built by tokenizer_finish(). */
    piece_trie added;            /* the PIECE_ADDED pieces */
    piece_trie added_normalized; /* the PIECE_ADDED pieces with PIECE_NORMALIZED */
    piece_trie whole;            /* sentencepiece: user-defined pieces */
    bool has_whole;
    regex *word_character; /* matches a part of a word; NULL if no rule needs it */
};

qp_status tokenizer_create(vocabulary_kind kind, tokenizer **out, qp_error *error);

/* Adds the token of a JSON entry {content, special, lstrip, rstrip, single_word, normalized}, as in
 * tokenizer.json and tokenizer_config.json; called before vocabulary_index(). If the id has a piece
 * with another text, the new text replaces it. */
qp_status tokenizer_add_token(tokenizer *tokenizer, int64_t id, int64_t limit, const cJSON *entry,
                              const char *where, qp_error *error);

/* Upper bound of the ids of a source with this many tokens: it allows holes, but a small file
 * cannot ask for a large table. */
static inline int64_t tokenizer_id_limit(size_t n_tokens)
{
    return (int64_t)n_tokens * 2 + 1024;
}

/* Builds the derived fields from the pieces and checks the special ids. Frees the tokenizer on
 * failure; returns it on success. */
qp_status tokenizer_finish(tokenizer *tokenizer, const char *where, struct tokenizer **out,
                           qp_error *error);

/* Replaces U+2581 in a piece of a sentencepiece-like vocabulary by a space. *is_reachable is false
 * for a piece that contains a space, which no text can produce. Writes at most `length` bytes. */
size_t piece_unmark_spaces(const char *piece, size_t length, char *out, bool *is_reachable);

/* The byte of "<0x0A>"; -1 for any other text. */
int piece_byte(const char *piece, size_t length);

/* Undoes GPT-2's byte letters. Writes at most `length` bytes and returns their number; SIZE_MAX
 * where the piece holds a character that is not one of the 256 letters. */
size_t piece_undo_letters(const char *piece, size_t length, char *out);

/* The inverses: bytes as GPT-2's letters, spaces as U+2581. Append to `out`. */
void piece_put_letters(const char *bytes, size_t length, strbuf *out);
void piece_mark_spaces(const char *bytes, size_t length, strbuf *out);

bool normalizer_is_identity(const normalizer *normalizer);

/* Appends the normalized text. `is_first`: it is at the beginning of the input. */
qp_status normalize(const normalizer *normalizer, const char *text, size_t length, bool is_first,
                    strbuf *out, qp_error *error);
