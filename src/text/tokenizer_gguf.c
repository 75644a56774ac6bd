/* Reads tokenizers from the tokenizer.ggml.* keys of GGUF files, with llama.cpp's meaning. */
#include "file/slice.h"
#include "text/tokenizer_build.h"

#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name

/* The file's arrays. */
typedef struct arrays {
    const text_slice *tokens;
    int64_t *types;
    double *scores;
    const text_slice *merges;
    size_t n_tokens, n_types, n_scores, n_merges;
} arrays;

static qp_status read_arrays(gguf *file, arrays *a, qp_error *error)
{
    TRY(gguf_get_strings(file, KEY("tokens"), &a->tokens, &a->n_tokens, error));
    TRY(gguf_get_strings(file, KEY("merges"), &a->merges, &a->n_merges, error));
    TRY(gguf_get_i64_array(file, KEY("token_type"), &a->types, &a->n_types, error));
    TRY(gguf_get_double_array(file, KEY("scores"), &a->scores, &a->n_scores, error));
    const char *where = gguf_path(file);
    if (a->n_tokens == 0)
        return error_set(error, QP_FORMAT, "%s: no tokens in " KEY("tokens"), where);
    if (a->n_types && a->n_types != a->n_tokens)
        return error_set(error, QP_FORMAT,
                         "%s: " KEY("token_type") " has %zu entries for %zu tokens", where,
                         a->n_types, a->n_tokens);
    if (a->n_scores && a->n_scores != a->n_tokens)
        return error_set(error, QP_FORMAT, "%s: " KEY("scores") " has %zu entries for %zu tokens",
                         where, a->n_scores, a->n_tokens);
    return QP_OK;
}

/* Converts a piece's text to the bytes that it stands for, in place. */
static size_t convert_piece(const tokenizer *tokenizer, piece_type *type, char *text, size_t length,
                            unsigned *flags)
{
    bool bytes = tokenizer->vocabulary.kind == VOCABULARY_BYTES;
    int byte = bytes ? -1 : piece_byte(text, length);
    *flags = 0;
    if (*type == PIECE_BYTE && byte >= 0) {
        text[0] = (char)byte;
        return 1;
    }
    if (*type == PIECE_CONTROL || *type == PIECE_UNKNOWN || *type == PIECE_USER_DEFINED)
        *flags = PIECE_ADDED;
    bool is_reachable = true;
    if (!bytes && *type != PIECE_CONTROL && *type != PIECE_UNKNOWN)
        length = piece_unmark_spaces(text, length, text, &is_reachable);
    if (bytes && *type == PIECE_USER_DEFINED) *flags |= PIECE_MODEL;
    if (*type != PIECE_NORMAL && (bytes || *type != PIECE_UNUSED)) return length;
    if (bytes) {
        size_t undone = piece_undo_letters(text, length, text);
        is_reachable = undone != SIZE_MAX;
        if (is_reachable) length = undone;
    }
    if (is_reachable) *flags |= PIECE_MODEL;
    return length;
}

static qp_status set_pieces(tokenizer *tokenizer, const arrays *a, const char *where,
                            qp_error *error)
{
    vocabulary *vocabulary = &tokenizer->vocabulary;
    strbuf text = {0};
    qp_status status = QP_OK;
    for (size_t i = 0; i < a->n_tokens && status == QP_OK; i++) {
        piece_type type = PIECE_NORMAL;
        if (a->n_types && a->types[i] >= PIECE_NORMAL && a->types[i] <= PIECE_BYTE)
            type = (piece_type)a->types[i];
        unsigned flags;
        strbuf_clear(&text);
        if (!strbuf_append(&text, a->tokens[i].data, a->tokens[i].length)) {
            status = error_no_memory(error, "a token", a->tokens[i].length);
            break;
        }
        size_t length = convert_piece(tokenizer, &type, text.data, text.length, &flags);
        status = vocabulary_set(vocabulary, (int64_t)i, (int64_t)a->n_tokens, text.data, length,
                                type, flags, where, error);
        if (status == QP_OK && a->n_scores) vocabulary->pieces[i].score = (float)a->scores[i];
    }
    strbuf_free(&text);
    return status;
}

/* Adds one merge, "a b" in byte letters. */
static qp_status add_merge(vocabulary *vocabulary, text_slice line, strbuf *text, const char *where,
                           qp_error *error)
{
    const char *space = line.length ? memchr(line.data, ' ', line.length) : NULL;
    size_t left = space ? (size_t)(space - line.data) : 0;
    strbuf_clear(text);
    if (!strbuf_append(text, line.data, line.length))
        return error_no_memory(error, "a merge", line.length);
    size_t left_bytes = SIZE_MAX, right_bytes = SIZE_MAX;
    char *right = text->data + left + 1;
    if (space) {
        left_bytes = piece_undo_letters(text->data, left, text->data);
        right_bytes = piece_undo_letters(right, line.length - left - 1, right);
    }
    char quoted[SLICE_QUOTE_SIZE];
    if (left_bytes == SIZE_MAX || right_bytes == SIZE_MAX)
        return error_set(error, QP_FORMAT,
                         "%s: merge %u must be two pieces in byte letters with a space between, "
                         "found %s",
                         where, vocabulary->n_merges, slice_quote(line, quoted));
    return vocabulary_add_merge(vocabulary, text->data, left_bytes, right, right_bytes, where,
                                error);
}

static qp_status add_merges(tokenizer *tokenizer, const arrays *a, const char *where,
                            qp_error *error)
{
    vocabulary *vocabulary = &tokenizer->vocabulary;
    TRY(vocabulary_reserve_merges(vocabulary, a->n_merges, error));
    strbuf text = {0};
    qp_status status = QP_OK;
    for (size_t i = 0; i < a->n_merges && status == QP_OK; i++)
        status = add_merge(vocabulary, a->merges[i], &text, where, error);
    strbuf_free(&text);
    return status;
}

/* --- Keys. --- */

static qp_status read_id(const gguf *file, const char *key, int32_t *id, qp_error *error)
{
    int64_t value = -1;
    TRY(gguf_get_i64(file, key, &value, error));
    /* Writers use -1 and 2^32 - 1 for "none". */
    *id = value >= 0 && value < INT32_MAX ? (int32_t)value : -1;
    return QP_OK;
}

static qp_status read_special(const gguf *file, tokenizer *tokenizer, bool add_bos, qp_error *error)
{
    tokenizer_special *special = &tokenizer->special;
    TRY(read_id(file, KEY("bos_token_id"), &special->bos, error));
    TRY(read_id(file, KEY("eos_token_id"), &special->eos, error));
    TRY(read_id(file, KEY("eot_token_id"), &special->eot, error));
    TRY(read_id(file, KEY("unknown_token_id"), &special->unknown, error));
    TRY(read_id(file, KEY("padding_token_id"), &special->padding, error));
    bool add_eos = false;
    TRY(gguf_get_bool(file, KEY("add_bos_token"), &add_bos, error));
    TRY(gguf_get_bool(file, KEY("add_eos_token"), &add_eos, error));
    if (add_bos) tokenizer->default_flags |= TOKENIZER_BOS;
    if (add_eos) tokenizer->default_flags |= TOKENIZER_EOS;
    return QP_OK;
}

/* Model "gpt2": bytes and merges. */
static qp_status read_bytes(gguf *file, const arrays *a, tokenizer *tokenizer, qp_error *error)
{
    const char *where = gguf_path(file);
    text_slice name = slice_of("default");
    TRY(gguf_get_string(file, KEY("pre"), &name, error));
    size_t length =
        name.length < sizeof tokenizer->pre_name ? name.length : sizeof tokenizer->pre_name - 1;
    memcpy(tokenizer->pre_name, name.data, length);
    pre_habits habits;
    TRY(pre_tokenizer_by_name(&tokenizer->pre, tokenizer->pre_name, &habits, where, error));
    tokenizer->vocabulary.ignore_merges = habits.ignore_merges;
    tokenizer->normalizer.nfc = habits.nfc;
    TRY(read_special(file, tokenizer, habits.add_bos, error));
    TRY(set_pieces(tokenizer, a, where, error));
    TRY(vocabulary_index(&tokenizer->vocabulary, error));
    return add_merges(tokenizer, a, where, error);
}

/* Model "llama": sentencepiece's pieces and scores. */
static qp_status read_scores(gguf *file, const arrays *a, tokenizer *tokenizer, qp_error *error)
{
    const char *where = gguf_path(file);
    if (a->n_scores == 0)
        return error_set(error, QP_FORMAT, "%s: a \"llama\" tokenizer needs " KEY("scores"), where);
    bool prefix = true, remove_extra = false;
    TRY(gguf_get_bool(file, KEY("add_space_prefix"), &prefix, error));
    TRY(gguf_get_bool(file, KEY("remove_extra_whitespaces"), &remove_extra, error));
    tokenizer->normalizer = (normalizer){
        .spaces_are_marked = true,
        .remove_extra = remove_extra,
        .prefix = prefix ? SPACE_PREFIX_ALWAYS : SPACE_PREFIX_NEVER,
    };
    if (prefix) tokenizer->strip = DECODE_STRIP_ONE;
    if (remove_extra) tokenizer->strip = DECODE_STRIP_EACH;
    TRY(read_special(file, tokenizer, true, error));
    TRY(set_pieces(tokenizer, a, where, error));
    tokenizer->vocabulary.unknown_id = tokenizer->special.unknown;
    tokenizer->vocabulary.fuse_unknown = true;
    return vocabulary_index(&tokenizer->vocabulary, error);
}

static qp_status build(gguf *file, const arrays *a, tokenizer **out, qp_error *error)
{
    text_slice model = {"", 0};
    TRY(gguf_get_string(file, KEY("model"), &model, error));
    bool is_scores = slice_is(model, "llama");
    char quoted[SLICE_QUOTE_SIZE];
    if (!is_scores && !slice_is(model, "gpt2"))
        return error_set(error, QP_UNSUPPORTED,
                         "%s: " KEY("model") " is %s; quipu reads \"llama\" and \"gpt2\"",
                         gguf_path(file), slice_quote(model, quoted));
    tokenizer *tokenizer;
    TRY(tokenizer_create(is_scores ? VOCABULARY_SCORES : VOCABULARY_BYTES, &tokenizer, error));
    qp_status status =
        is_scores ? read_scores(file, a, tokenizer, error) : read_bytes(file, a, tokenizer, error);
    if (status != QP_OK) {
        tokenizer_free(tokenizer);
        return status;
    }
    return tokenizer_finish(tokenizer, gguf_path(file), out, error);
}

qp_status tokenizer_open_gguf(gguf *file, tokenizer **out, qp_error *error)
{
    *out = NULL;
    arrays a = {0};
    qp_status status = read_arrays(file, &a, error);
    if (status == QP_OK) status = build(file, &a, out, error);
    free(a.types);
    free(a.scores);
    return status;
}
