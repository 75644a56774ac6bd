/* Readers of the parts of a tokenizer.json around its model: normalizer, pre-tokenizer,
 * post-processor and decoder. Each fills its fields of the tokenizer and refuses what it does not
 * support. */
#pragma once

#include "base/json.h"
#include "text/tokenizer_build.h"

/* Whether pieces are written in GPT-2's byte letters, because there is a ByteLevel
 * pre-tokenizer. */
bool json_is_byte_level(const cJSON *root);

qp_status json_read_normalizer(const cJSON *item, tokenizer *tokenizer, const char *where,
                               qp_error *error);
qp_status json_read_pre_tokenizer(const cJSON *item, tokenizer *tokenizer, const char *where,
                                  qp_error *error);
/* Sets BOS and EOS from the template for a single text. */
qp_status json_read_post_processor(const cJSON *item, tokenizer *tokenizer, const char *where,
                                   qp_error *error);
qp_status json_read_decoder(const cJSON *item, tokenizer *tokenizer, const char *where,
                            qp_error *error);
