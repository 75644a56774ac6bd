/* Builds a tokenizer from its parts, and answers questions about it. */
#include "text/tokenizer_build.h"

#include <stdlib.h>
#include <string.h>

qp_status tokenizer_create(vocabulary_kind kind, tokenizer **out, qp_error *error)
{
    static const char *const names[] = {
        [VOCABULARY_BYTES] = "bpe",
        [VOCABULARY_CHARS] = "bpe-chars",
        [VOCABULARY_SCORES] = "sentencepiece",
    };
    tokenizer *result = calloc(1, sizeof *result);
    if (!result) return error_no_memory(error, "a tokenizer", sizeof *result);
    vocabulary_init(&result->vocabulary, kind);
    result->special = (tokenizer_special){-1, -1, -1, -1, -1};
    result->model_name = names[kind];
    *out = result;
    return QP_OK;
}

void tokenizer_free(tokenizer *tokenizer)
{
    if (!tokenizer) return;
    vocabulary_free(&tokenizer->vocabulary);
    pre_tokenizer_free(&tokenizer->pre);
    piece_trie_free(&tokenizer->added);
    piece_trie_free(&tokenizer->added_normalized);
    piece_trie_free(&tokenizer->whole);
    regex_free(tokenizer->word_character);
    free(tokenizer);
}

/* --- Finishing. --- */

/* An added token that is found after normalization is itself normalized, like the text around
 * it. */
static qp_status add_normalized(tokenizer *tokenizer, int32_t id, qp_error *error)
{
    strbuf text = {0};
    qp_status status =
        normalize(&tokenizer->normalizer, vocabulary_bytes(&tokenizer->vocabulary, id),
                  tokenizer->vocabulary.pieces[id].length, true, &text, error);
    if (status == QP_OK)
        status = piece_trie_add(&tokenizer->added_normalized, strbuf_text(&text), text.length, id,
                                error);
    strbuf_free(&text);
    return status;
}

static qp_status build_tries(tokenizer *tokenizer, qp_error *error)
{
    const vocabulary *vocabulary = &tokenizer->vocabulary;
    for (int32_t id = 0; id < vocabulary->count; id++) {
        const vocabulary_piece *piece = &vocabulary->pieces[id];
        const char *bytes = vocabulary_bytes(vocabulary, id);
        if ((piece->flags & PIECE_ADDED) && (piece->flags & PIECE_NORMALIZED))
            TRY(add_normalized(tokenizer, id, error));
        else if (piece->flags & PIECE_ADDED)
            TRY(piece_trie_add(&tokenizer->added, bytes, piece->length, id, error));
        if (vocabulary->kind == VOCABULARY_SCORES && (piece->flags & PIECE_MODEL) &&
            piece->type == PIECE_USER_DEFINED) {
            TRY(piece_trie_add(&tokenizer->whole, bytes, piece->length, id, error));
            tokenizer->has_whole = true;
        }
        if ((piece->flags & PIECE_SINGLE_WORD) && !tokenizer->word_character) {
            const char pattern[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
            TRY(regex_compile(pattern, sizeof pattern - 1, false, "added tokens",
                              &tokenizer->word_character, error));
        }
    }
    return QP_OK;
}

static qp_status check_special(const tokenizer *tokenizer, int32_t id, const char *role,
                               const char *where, qp_error *error)
{
    if (id < tokenizer->vocabulary.count) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: the %s token is %d, but the vocabulary has %d tokens",
                     where, role, id, tokenizer->vocabulary.count);
}

static qp_status finish(tokenizer *tokenizer, const char *where, qp_error *error)
{
    const tokenizer_special *special = &tokenizer->special;
    if (tokenizer->vocabulary.count == 0)
        return error_set(error, QP_FORMAT, "%s: the vocabulary is empty", where);
    TRY(check_special(tokenizer, special->bos, "BOS", where, error));
    TRY(check_special(tokenizer, special->eos, "EOS", where, error));
    TRY(check_special(tokenizer, special->eot, "end-of-turn", where, error));
    TRY(check_special(tokenizer, special->unknown, "unknown", where, error));
    TRY(check_special(tokenizer, special->padding, "padding", where, error));
    if (special->bos < 0) tokenizer->default_flags &= ~(unsigned)TOKENIZER_BOS;
    if (special->eos < 0) tokenizer->default_flags &= ~(unsigned)TOKENIZER_EOS;
    if (!tokenizer->vocabulary.merges)
        TRY(vocabulary_reserve_merges(&tokenizer->vocabulary, 0, error));
    return build_tries(tokenizer, error);
}

static bool has_control(const tokenizer *tokenizer, const char *name, int32_t *id)
{
    *id = tokenizer_find(tokenizer, name, strlen(name));
    return tokenizer_is_control(tokenizer, *id);
}

/* The token that ends a turn, where no key names it: chat models use one of a few names. A call
 * ends gpt-oss' turn, <|end|> only a message, whatever a key says. */
static void find_end_of_turn(tokenizer *tokenizer)
{
    int32_t returns, call;
    if (has_control(tokenizer, "<|return|>", &returns) && has_control(tokenizer, "<|call|>", &call))
        tokenizer->special.eot = call;
    static const char *const names[] = {"<|eot_id|>", "<|im_end|>", "<|end|>"};
    for (size_t i = 0; i < sizeof names / sizeof *names && tokenizer->special.eot < 0; i++) {
        int32_t id;
        if (has_control(tokenizer, names[i], &id)) tokenizer->special.eot = id;
    }
}

qp_status tokenizer_finish(tokenizer *tokenizer, const char *where, struct tokenizer **out,
                           qp_error *error)
{
    qp_status status = finish(tokenizer, where, error);
    if (status != QP_OK) {
        tokenizer_free(tokenizer);
        return status;
    }
    find_end_of_turn(tokenizer);
    *out = tokenizer;
    return QP_OK;
}

/* --- Questions. --- */

unsigned tokenizer_default_flags(const tokenizer *tokenizer)
{
    return tokenizer->default_flags;
}

int32_t tokenizer_vocab_size(const tokenizer *tokenizer)
{
    return tokenizer->vocabulary.count;
}

const char *tokenizer_piece(const tokenizer *tokenizer, int32_t id, size_t *length)
{
    *length = 0;
    if (id < 0 || id >= tokenizer->vocabulary.count) return NULL;
    *length = tokenizer->vocabulary.pieces[id].length;
    return vocabulary_bytes(&tokenizer->vocabulary, id);
}

int32_t tokenizer_find(const tokenizer *tokenizer, const char *piece, size_t length)
{
    size_t match = 0;
    int32_t id = piece_trie_match(&tokenizer->added, piece, length, &match);
    if (id >= 0 && match == length) return id;
    id = vocabulary_find(&tokenizer->vocabulary, piece, length);
    if (id < 0 && length == 1) id = tokenizer->vocabulary.byte_ids[(uint8_t)*piece];
    if (id >= 0) return id;
    id = piece_trie_match(&tokenizer->added_normalized, piece, length, &match);
    return id >= 0 && match == length ? id : -1;
}

bool tokenizer_is_control(const tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->vocabulary.count &&
           tokenizer->vocabulary.pieces[id].type == PIECE_CONTROL;
}

int32_t tokenizer_difference(const tokenizer *a, const tokenizer *b)
{
    const int32_t na = tokenizer_vocab_size(a), nb = tokenizer_vocab_size(b);
    for (int32_t id = 0; a != b && (id < na || id < nb); id++) {
        size_t x, y;
        const char *one = tokenizer_piece(a, id, &x), *other = tokenizer_piece(b, id, &y);
        if (x != y || (x > 0 && memcmp(one, other, x) != 0)) return id;
    }
    return -1;
}

tokenizer_special tokenizer_special_ids(const tokenizer *tokenizer)
{
    return tokenizer->special;
}

const char *tokenizer_model_name(const tokenizer *tokenizer)
{
    return tokenizer->model_name;
}

const char *tokenizer_pre_name(const tokenizer *tokenizer)
{
    return tokenizer->pre_name;
}
