/* Tokenizers: text to token ids and back.
 *
 * Byte-level BPE (GPT-2, Llama 3, SmolLM2) and SentencePiece BPE (Llama 2, Mistral, InternLM2),
 * read from the files of models: tokenizer.json, tokenizer.model, vocab.json + merges.txt, or the
 * keys of a GGUF file. All of these are untrusted.
 *
 * Text is bytes and need not be valid UTF-8. Invalid bytes are never part of a pre-tokenizer's
 * match; they are words of their own and become byte tokens. So decoding an encoded text gives the
 * same bytes wherever the vocabulary has a token for each byte.
 *
 * A tokenizer does not change after it is opened; any number of threads may encode with one.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "file/gguf.h"
#include "file/gguf_write.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tokenizer tokenizer;

/* --- Opening. tokenizer_free() the result; *out is NULL on failure. --- */

/* A Hugging Face tokenizer.json with a BPE model. `name` is the text's name in messages. A part
 * that would change ids and is not supported (a normalizer, a pre-tokenizer, dropout) is
 * QP_UNSUPPORTED. */
qp_status tokenizer_open_json(const char *path, tokenizer **out, qp_error *error);
qp_status tokenizer_parse_json(const char *text, size_t length, const char *name, tokenizer **out,
                               qp_error *error);

/* A sentencepiece tokenizer.model. Unigram models and character maps (NFKC) are QP_UNSUPPORTED. */
qp_status tokenizer_open_sentencepiece(const char *path, tokenizer **out, qp_error *error);
qp_status tokenizer_parse_sentencepiece(const void *data, size_t size, const char *name,
                                        tokenizer **out, qp_error *error);

/* The tokenizer.ggml.* keys of a GGUF file: models "llama" and "gpt2". The tokenizer keeps copies;
 * the file may be closed. Not const: reading an array of strings indexes the file. */
qp_status tokenizer_open_gguf(gguf *file, tokenizer **out, qp_error *error);

/* GPT-2's vocab.json and merges.txt. */
qp_status tokenizer_open_gpt2(const char *vocab_path, const char *merges_path, tokenizer **out,
                              qp_error *error);

/* A model's directory: its tokenizer.json, or tokenizer.model, or vocab.json + merges.txt, with
 * what tokenizer_config.json, special_tokens_map.json and config.json say about special tokens. */
qp_status tokenizer_open_directory(const char *directory, tokenizer **out, qp_error *error);

/* NULL is allowed. */
void tokenizer_free(tokenizer *tokenizer);

/* --- Writing. --- */

/* Writes the tokenizer.ggml.* keys of the tokenizer to a GGUF file, with ids up to n_tokens, the
 * rows of the embedding; missing ids become tokens that never occur. Byte-level vocabularies become
 * "gpt2", the others "llama". QP_UNSUPPORTED if GGUF cannot express something that would change ids
 * everywhere (an unnamed pre-tokenizer, merges that no scores express, more tokens than rows).
 * Smaller losses are appended to `losses`, a line each. */
qp_status tokenizer_write_gguf(const tokenizer *tokenizer, int64_t n_tokens, const char *where,
                               gguf_writer *writer, strbuf *losses, qp_error *error);

/* A vocabulary for weights without one: the 256 byte tokens, a space, <unk>, <s>, </s>, and unused
 * tokens; n_tokens is at least 260. */
qp_status tokenizer_write_minimal_gguf(int64_t n_tokens, gguf_writer *writer, qp_error *error);

/* --- Encoding. --- */

/* A growable list of ids. Zero-initialise; token_ids_free() at the end. */
typedef struct token_ids {
    int32_t *data;
    size_t count;
    size_t capacity;
} token_ids;

qp_status token_ids_push(token_ids *ids, int32_t id, qp_error *error);
void token_ids_free(token_ids *ids);

/* Flags for encoding. */
enum {
    TOKENIZER_BOS = 1, /* begin with the BOS token; an error if the vocabulary has none */
    TOKENIZER_EOS = 2, /* end with the EOS token; an error if the vocabulary has none */
    TOKENIZER_SPECIAL =
        4, /* control tokens written in the text ("<|im_start|>") become their ids; without it they
              are text, which is right for text that is not trusted */
};

/* Appends the ids of text[0..length) to `ids`. Nothing is appended on failure. */
qp_status tokenizer_encode(const tokenizer *tokenizer, const char *text, size_t length,
                           unsigned flags, token_ids *ids, qp_error *error);

/* The same for a text that holds marks (control_marks.h): a control token with `mark`, of
 * CONTROL_MARK_SIZE bytes, inside is text, and the marks are removed. */
qp_status tokenizer_encode_marked(const tokenizer *tokenizer, const char *text, size_t length,
                                  const char *mark, unsigned flags, token_ids *ids,
                                  qp_error *error);

/* The flags TOKENIZER_BOS and TOKENIZER_EOS as the model wants them for plain text. */
unsigned tokenizer_default_flags(const tokenizer *tokenizer);

/* --- Decoding, a token at a time. --- */

enum {
    TOKENIZER_DECODE_CONTROL = 1,  /* control tokens appear as their text; otherwise as nothing */
    TOKENIZER_DECODE_CONTINUE = 2, /* the text continues earlier tokens: the leading space that
                                      encoding inserted at a text's beginning is kept */
};

/* A decoder holds back the bytes of an unfinished UTF-8 sequence until the rest arrives, so that it
 * never appends a part of a character. Plain data: copy it to branch. */
typedef struct tokenizer_decoder {
    const tokenizer *tokenizer;
    unsigned flags;
    bool at_start; /* nothing was written yet */
    uint8_t held_count;
    char held[4];
} tokenizer_decoder;

void tokenizer_decoder_init(tokenizer_decoder *decoder, const tokenizer *tokenizer, unsigned flags);

/* Appends to `text` what the token completes. QP_INVALID for an id outside the vocabulary. */
qp_status tokenizer_decoder_push(tokenizer_decoder *decoder, int32_t id, strbuf *text,
                                 qp_error *error);

/* Appends the bytes that are still held back, at the end of the text. */
qp_status tokenizer_decoder_flush(tokenizer_decoder *decoder, strbuf *text, qp_error *error);

/* All of the above over a whole list. */
qp_status tokenizer_decode(const tokenizer *tokenizer, const int32_t *ids, size_t count,
                           unsigned flags, strbuf *text, qp_error *error);

/* --- The vocabulary. --- */

/* Ids are 0 .. tokenizer_vocab_size() - 1, possibly with holes (tokenizer_piece() is empty). The
 * model's vocab_size may be larger: padded rows have no token. */
int32_t tokenizer_vocab_size(const tokenizer *tokenizer);

/* The bytes of a token in a text: spaces as spaces, byte tokens as the byte, control tokens as
 * their name. Not NUL-terminated. NULL and *length = 0 for an id outside the vocabulary.
 */
const char *tokenizer_piece(const tokenizer *tokenizer, int32_t id, size_t *length);

/* The id of a token by those bytes, or by a control token's name; -1 when there is none. If two
 * tokens have the same bytes, a control token wins, then the lower id. */
int32_t tokenizer_find(const tokenizer *tokenizer, const char *piece, size_t length);

/* The first token that is another text for each; -1: ids mean the same to both. */
int32_t tokenizer_difference(const tokenizer *a, const tokenizer *b);

/* Whether the token is markup and never text: BOS, EOS, <|im_start|>, ... */
bool tokenizer_is_control(const tokenizer *tokenizer, int32_t id);

/* Ids of the tokens with a role; -1 for a role that no file names. */
typedef struct tokenizer_special {
    int32_t bos;     /* begins a text */
    int32_t eos;     /* ends a text */
    int32_t eot;     /* ends a turn of a conversation */
    int32_t unknown; /* replaces text that has no token */
    int32_t padding;
} tokenizer_special;

tokenizer_special tokenizer_special_ids(const tokenizer *tokenizer);

/* "bpe" (byte-level), "bpe-chars" (merges over characters) or "sentencepiece"; and the name of the
 * pre-tokenizer where it has one ("llama-bpe", "tokenizer.json"), "" otherwise. For people. */
const char *tokenizer_model_name(const tokenizer *tokenizer);
const char *tokenizer_pre_name(const tokenizer *tokenizer);
