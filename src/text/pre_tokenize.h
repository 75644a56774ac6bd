/* Pre-tokenization: a text cut into words, inside which merging happens.
 *
 * A list of steps, each cutting what the one before it left. Words flow through the steps one at a
 * time, so nothing is stored between them. Expressions see valid UTF-8 only: bytes outside of it
 * separate, and go on as words of their own.
 */
#ifndef QUIPU_TEXT_PRE_TOKENIZE_H
#define QUIPU_TEXT_PRE_TOKENIZE_H

#include "base/status.h"
#include "base/strbuf.h"
#include "text/regex.h"

#include <stdbool.h>
#include <stddef.h>

/* What becomes of an expression's matches, in Hugging Face's words. */
typedef enum split_behavior {
    SPLIT_ISOLATED,             /* a match is a word */
    SPLIT_REMOVED,              /* a match is dropped */
    SPLIT_MERGED_WITH_PREVIOUS, /* a match ends the word before it */
    SPLIT_MERGED_WITH_NEXT,     /* a match begins the word after it */
    SPLIT_CONTIGUOUS,           /* matches that touch are one word */
} split_behavior;

/* Where a space is put in front of a text. */
typedef enum space_prefix {
    SPACE_PREFIX_NEVER,
    SPACE_PREFIX_FIRST,  /* at the beginning of the whole text */
    SPACE_PREFIX_ALWAYS, /* and after each special token in it */
} space_prefix;

typedef struct pre_step {
    regex *split; /* owned; NULL: the step puts a space in front where there is none */
    bool invert;  /* what the expression does not match counts as matched */
    split_behavior behavior;
    space_prefix prefix;
} pre_step;

enum { MAX_PRE_STEPS = 16 };

typedef struct pre_tokenizer {
    pre_step steps[MAX_PRE_STEPS];
    int count;
} pre_tokenizer;

/* Takes over step.split, also on failure. `where` is for messages. */
qp_status pre_tokenizer_add(pre_tokenizer *pre, pre_step step, const char *where, qp_error *error);
qp_status pre_tokenizer_add_split(pre_tokenizer *pre, const char *pattern, split_behavior behavior,
                                  const char *where, qp_error *error);
void pre_tokenizer_free(pre_tokenizer *pre);

/* What a name stands for beside the steps. */
typedef struct pre_habits {
    bool ignore_merges; /* a word that is a token is that token, whatever merges give */
    bool add_bos;       /* where the file does not say */
    bool nfc;           /* the text goes through Normalization Form C first */
} pre_habits;

/* The steps of a pre-tokenizer known by name in GGUF files ("llama-bpe", "smollm", "gpt-2", ...).
 * QP_UNSUPPORTED for an unknown name. */
qp_status pre_tokenizer_by_name(pre_tokenizer *pre, const char *name, pre_habits *habits,
                                const char *where, qp_error *error);

/* The name that stands for just these steps and habits (add_bos aside), where there is one; NULL
 * otherwise. */
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

/* Calls word() with each word in order. `is_first`: the text begins what is encoded. */
qp_status pre_tokenize(const pre_tokenizer *pre, pre_scratch *scratch, const char *text,
                       size_t length, bool is_first, pre_tokenizer_word *word, void *context,
                       qp_error *error);

#endif
