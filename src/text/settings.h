/* What a model's directory says about its tokens besides the tokenizer itself:
 * tokenizer_config.json, special_tokens_map.json and config.json. */
#pragma once

#include "base/json.h"
#include "text/tokenizer_build.h"

/* The strings point into the trees. */
typedef struct tokenizer_settings {
    cJSON *config;      /* tokenizer_config.json; NULL where absent, like the next two */
    cJSON *special_map; /* special_tokens_map.json */
    cJSON *model;       /* config.json */
    char where[512];    /* for messages: the directory's tokenizer_config.json */
} tokenizer_settings;

/* Reads the files that exist. settings_free() also on failure. */
qp_status settings_read(const char *directory, tokenizer_settings *settings, qp_error *error);
void settings_free(tokenizer_settings *settings);

/* Called before vocabulary_index(): adds the tokens of added_tokens_decoder. `settings` may be
 * NULL. */
qp_status settings_add_tokens(const tokenizer_settings *settings, tokenizer *tokenizer,
                              qp_error *error);

/* Called after tokenizer_finish(): sets special ids, whether BOS and EOS are added, and where the
 * leading space is inserted. */
qp_status settings_apply(const tokenizer_settings *settings, tokenizer *tokenizer, qp_error *error);

/* The readers of tokenizer_parse_json() and tokenizer_parse_sentencepiece(). */
qp_status tokenizer_build_json(const char *text, size_t length, const char *where,
                               const tokenizer_settings *settings, tokenizer **out,
                               qp_error *error);
qp_status tokenizer_build_sentencepiece(const void *data, size_t size, const char *where,
                                        const tokenizer_settings *settings, tokenizer **out,
                                        qp_error *error);

/* Parses GPT-2's two files; both texts are changed. */
qp_status tokenizer_build_gpt2(cJSON *vocab, char *merges, size_t length, const char *where,
                               const tokenizer_settings *settings, tokenizer **out,
                               qp_error *error);
