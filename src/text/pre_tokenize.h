/* Pre-tokenization: cuts a text into words; merging happens within a word.
 *
 * A list of steps, each of which cuts the words of the step before it. Words flow through the steps
 * one at a time, so nothing is stored between them. Expressions see only valid UTF-8: invalid bytes
 * separate words, and are words of their own.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "text/regex.h"

#include <stdbool.h>
#include <stddef.h>

/* What happens to the matches of an expression, in Hugging Face's terms. */
typedef enum split_behavior {
    SPLIT_ISOLATED,             /* a match is a word */
    SPLIT_REMOVED,              /* a match is dropped */
    SPLIT_MERGED_WITH_PREVIOUS, /* a match ends the word before it */
    SPLIT_MERGED_WITH_NEXT,     /* a match begins the word after it */
    SPLIT_CONTIGUOUS,           /* matches that touch are one word */
} split_behavior;

/* Where a space is inserted before a text. */
typedef enum space_prefix {
    SPACE_PREFIX_NEVER,
    SPACE_PREFIX_FIRST,  /* at the beginning of the whole text */
    SPACE_PREFIX_ALWAYS, /* and after each special token in it */
} space_prefix;

typedef struct pre_step {
    regex *split; /* owned; NULL: the step inserts a space at the beginning if there is none */
    bool invert;  /* the text between matches counts as matched */
    split_behavior behavior;
    space_prefix prefix;
} pre_step;

enum { MAX_PRE_STEPS = 16 };

typedef struct pre_tokenizer {
    pre_step steps[MAX_PRE_STEPS];
    int count;
} pre_tokenizer;

/* Takes ownership of step.split, also on failure. `where` is for messages. */
qp_status pre_tokenizer_add(pre_tokenizer *pre, pre_step step, const char *where, qp_error *error);
qp_status pre_tokenizer_add_split(pre_tokenizer *pre, const char *pattern, split_behavior behavior,
                                  const char *where, qp_error *error);
void pre_tokenizer_free(pre_tokenizer *pre);

/* The properties of a pre-tokenizer besides its steps. */
typedef struct pre_habits {
    bool
        ignore_merges; /* a word that equals a token becomes that token, whatever the merges give */
    bool add_bos;      /* used if the file does not say */
    bool nfc;          /* the text is converted to Normalization Form C first */
} pre_habits;

/* The steps of a pre-tokenizer known by name in GGUF files ("llama-bpe", "smollm", "gpt-2", ...).
 * QP_UNSUPPORTED for an unknown name. */
qp_status pre_tokenizer_by_name(pre_tokenizer *pre, const char *name, pre_habits *habits,
                                const char *where, qp_error *error);

/* The name of the pre-tokenizer with exactly these steps and properties (except add_bos), if there
 * is one; else NULL. */
const char *pre_tokenizer_name(const pre_tokenizer *pre, pre_habits habits);

/* GPT-2's expression, which Hugging Face's ByteLevel applies by default. */
extern const char gpt2_pattern[];

typedef qp_status pre_tokenizer_word(void *context, const char *word, size_t length,
                                     qp_error *error);

/* Working memory. Zero-initialise; pre_scratch_free() at the end. */
typedef struct pre_scratch {
    regex_scratch *regex;
    strbuf prefixed[MAX_PRE_STEPS];
} pre_scratch;

void pre_scratch_free(pre_scratch *scratch);

/* Calls word() with each word in order. `is_first`: the text is at the beginning of the input. */
qp_status pre_tokenize(const pre_tokenizer *pre, pre_scratch *scratch, const char *text,
                       size_t length, bool is_first, pre_tokenizer_word *word, void *context,
                       qp_error *error);
