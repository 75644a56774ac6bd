/* Reads Hugging Face's tokenizer.json with a BPE model, and GPT-2's older pair of files.
 *
 * The tree of a large file has half a million nodes. It is walked once, in order, and its strings
 * are converted in place (byte letters to bytes), so that reading costs little more than parsing.
 */
#include "text/json_pipeline.h"
#include "text/settings.h"

#include <string.h>

/* --- Pieces. --- */

/* Sets one piece of the vocabulary, in the file's notation. */
static qp_status set_piece(tokenizer *tokenizer, char *text, int64_t id, int64_t limit,
                           bool byte_fallback, const char *where, qp_error *error)
{
    vocabulary *vocabulary = &tokenizer->vocabulary;
    size_t length = strlen(text);
    int byte = byte_fallback ? piece_byte(text, length) : -1;
    piece_type type = PIECE_NORMAL;
    unsigned flags = PIECE_MODEL;
    if (byte >= 0) {
        text[0] = (char)byte;
        length = 1;
        type = PIECE_BYTE;
        flags = 0;
    } else if (vocabulary->kind == VOCABULARY_BYTES) {
        size_t bytes = piece_undo_letters(text, length, text);
        if (bytes == SIZE_MAX)
            flags = 0;
        else
            length = bytes;
    } else if (tokenizer->normalizer.spaces_are_marked) {
        bool is_reachable;
        length = piece_unmark_spaces(text, length, text, &is_reachable);
        if (!is_reachable) flags = 0;
    }
    return vocabulary_set(vocabulary, id, limit, text, length, type, flags, where, error);
}

static qp_status read_vocab(tokenizer *tokenizer, cJSON *vocab, int64_t limit, bool byte_fallback,
                            const char *where, qp_error *error)
{
    cJSON *item;
    cJSON_ArrayForEach(item, vocab)
    {
        double id = item->valuedouble;
        if (!cJSON_IsNumber(item) || !(id >= 0 && id <= INT32_MAX) || id != (double)(int64_t)id)
            return error_set(error, QP_FORMAT,
                             "%s: the id of token \"%.64s\" must be a whole number, found %s",
                             where, item->string, json_type_name(item));
        TRY(set_piece(tokenizer, item->string, (int64_t)id, limit, byte_fallback, where, error));
    }
    return QP_OK;
}

/* Whether the piece of an id has exactly these bytes. */
static bool is_piece(const vocabulary *vocabulary, int64_t id, const char *text, size_t length)
{
    const vocabulary_piece *piece = &vocabulary->pieces[id];
    return piece->length == length &&
           memcmp(vocabulary_bytes(vocabulary, (int32_t)id), text, length) == 0;
}

qp_status tokenizer_add_token(tokenizer *tokenizer, int64_t id, int64_t limit, const cJSON *entry,
                              const char *where, qp_error *error)
{
    static const struct {
        const char *key;
        unsigned flag;
    } keys[] = {{"lstrip", PIECE_LSTRIP},
                {"rstrip", PIECE_RSTRIP},
                {"single_word", PIECE_SINGLE_WORD},
                {"normalized", PIECE_NORMALIZED}};
    const char *content = NULL;
    TRY(json_get_string(entry, "content", where, &content, error));
    if (!content)
        return error_set(error, QP_FORMAT, "%s: added token %lld has no \"content\"", where,
                         (long long)id);
    bool special = false;
    TRY(json_get_bool(entry, "special", where, &special, error));
    unsigned flags = PIECE_ADDED;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        bool set = keys[i].flag == PIECE_NORMALIZED && !special;
        TRY(json_get_bool(entry, keys[i].key, where, &set, error));
        if (set) flags |= keys[i].flag;
    }
    piece_type type = special ? PIECE_CONTROL : PIECE_USER_DEFINED;
    vocabulary *vocabulary = &tokenizer->vocabulary;
    if (id >= 0 && id < vocabulary->count && vocabulary->pieces[id].type != PIECE_NONE) {
        vocabulary_piece *piece = &vocabulary->pieces[id];
        if (is_piece(vocabulary, id, content, strlen(content))) {
            piece->type = (uint8_t)type;
            piece->flags = (uint8_t)((piece->flags & PIECE_MODEL) | flags);
            return QP_OK;
        }
        piece->type = PIECE_NONE;
    }
    return vocabulary_set(vocabulary, id, limit, content, strlen(content), type, flags, where,
                          error);
}

static qp_status read_added_tokens(tokenizer *tokenizer, const cJSON *list, int64_t limit,
                                   const char *where, qp_error *error)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, list)
    {
        int64_t id = -1;
        TRY(json_get_i64(entry, "id", where, &id, error));
        TRY(tokenizer_add_token(tokenizer, id, limit, entry, where, error));
    }
    return QP_OK;
}

/* --- Merges. --- */

/* Adds a merge; both sides are in the file's notation and are converted in place. */
static qp_status add_merge(tokenizer *tokenizer, char *left, size_t left_length, char *right,
                           size_t right_length, const char *where, qp_error *error)
{
    vocabulary *vocabulary = &tokenizer->vocabulary;
    if (vocabulary->kind == VOCABULARY_BYTES) {
        left_length = piece_undo_letters(left, left_length, left);
        right_length = piece_undo_letters(right, right_length, right);
        if (left_length == SIZE_MAX || right_length == SIZE_MAX)
            return error_set(error, QP_FORMAT,
                             "%s: merge %u holds a character that is not a byte's letter", where,
                             vocabulary->n_merges);
    } else if (tokenizer->normalizer.spaces_are_marked) {
        bool is_reachable;
        left_length = piece_unmark_spaces(left, left_length, left, &is_reachable);
        right_length = piece_unmark_spaces(right, right_length, right, &is_reachable);
    }
    return vocabulary_add_merge(vocabulary, left, left_length, right, right_length, where, error);
}

/* Splits "a b", the form of older files and of merges.txt. */
static qp_status add_merge_line(tokenizer *tokenizer, char *line, size_t length, const char *where,
                                qp_error *error)
{
    char *space = memchr(line, ' ', length);
    size_t left = space ? (size_t)(space - line) : 0;
    if (!space || memchr(space + 1, ' ', length - left - 1))
        return error_set(error, QP_FORMAT,
                         "%s: merge %u must be two pieces with a space between, found \"%.*s\"",
                         where, tokenizer->vocabulary.n_merges, length < 64 ? (int)length : 64,
                         line);
    return add_merge(tokenizer, line, left, space + 1, length - left - 1, where, error);
}

static qp_status read_merges(tokenizer *tokenizer, cJSON *merges, const char *where,
                             qp_error *error)
{
    TRY(vocabulary_reserve_merges(&tokenizer->vocabulary, (size_t)cJSON_GetArraySize(merges),
                                  error));
    cJSON *item;
    cJSON_ArrayForEach(item, merges)
    {
        if (cJSON_IsString(item)) {
            TRY(add_merge_line(tokenizer, item->valuestring, strlen(item->valuestring), where,
                               error));
            continue;
        }
        cJSON *left = cJSON_IsArray(item) ? item->child : NULL, *right = left ? left->next : NULL;
        if (!cJSON_IsString(left) || !cJSON_IsString(right) || right->next)
            return error_set(error, QP_FORMAT, "%s: merge %u must be two strings, found %s", where,
                             tokenizer->vocabulary.n_merges, json_type_name(item));
        TRY(add_merge(tokenizer, left->valuestring, strlen(left->valuestring), right->valuestring,
                      strlen(right->valuestring), where, error));
    }
    return QP_OK;
}

/* --- The model. --- */

/* Refuses settings that would change the tokens; models of this family do not have them. */
static qp_status refuse_model_options(const cJSON *model, const char *where, qp_error *error)
{
    const char *type = "BPE";
    TRY(json_get_string(model, "type", where, &type, error));
    if (strcmp(type, "BPE") != 0)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: the model is of type \"%.32s\"; quipu reads BPE", where, type);
    double dropout = 0;
    TRY(json_get_double(model, "dropout", where, &dropout, error));
    const char *prefix = "", *suffix = "";
    TRY(json_get_string(model, "continuing_subword_prefix", where, &prefix, error));
    TRY(json_get_string(model, "end_of_word_suffix", where, &suffix, error));
    const char *name = *prefix   ? "continuing_subword_prefix"
                       : *suffix ? "end_of_word_suffix"
                                 : "dropout";
    if (*prefix || *suffix || dropout != 0)
        return error_set(error, QP_UNSUPPORTED, "%s: quipu does not do \"%s\"", where, name);
    return QP_OK;
}

static qp_status require(const cJSON *parent, const char *key, bool is_array, const char *where,
                         cJSON **out, qp_error *error)
{
    *out = cJSON_GetObjectItemCaseSensitive(parent, key);
    if (is_array ? cJSON_IsArray(*out) : cJSON_IsObject(*out)) return QP_OK;
    return error_set(error, QP_FORMAT, "%s: \"%s\" must be %s, found %s", where, key,
                     is_array ? "an array" : "an object", json_type_name(*out));
}

static qp_status read_model(tokenizer *tokenizer, const cJSON *root, const cJSON *model,
                            const tokenizer_settings *settings, const char *where, qp_error *error)
{
    vocabulary *vocabulary = &tokenizer->vocabulary;
    cJSON *vocab, *merges;
    TRY(refuse_model_options(model, where, error));
    TRY(require(model, "vocab", false, where, &vocab, error));
    TRY(require(model, "merges", true, where, &merges, error));
    bool byte_fallback = false;
    TRY(json_get_bool(model, "byte_fallback", where, &byte_fallback, error));
    TRY(json_get_bool(model, "ignore_merges", where, &vocabulary->ignore_merges, error));
    TRY(json_get_bool(model, "fuse_unk", where, &vocabulary->fuse_unknown, error));
    const cJSON *added = json_get(root, "added_tokens");
    int64_t limit =
        tokenizer_id_limit((size_t)cJSON_GetArraySize(vocab) + (size_t)cJSON_GetArraySize(added));
    TRY(read_vocab(tokenizer, vocab, limit, byte_fallback, where, error));
    TRY(read_added_tokens(tokenizer, added, limit, where, error));
    TRY(settings_add_tokens(settings, tokenizer, error));
    TRY(vocabulary_index(vocabulary, error));
    TRY(read_merges(tokenizer, merges, where, error));
    const char *unknown = NULL;
    TRY(json_get_string(model, "unk_token", where, &unknown, error));
    if (unknown) vocabulary->unknown_id = vocabulary_find(vocabulary, unknown, strlen(unknown));
    tokenizer->special.unknown = vocabulary->unknown_id;
    return QP_OK;
}

static qp_status read_root(tokenizer *tokenizer, const cJSON *root, const cJSON *model,
                           const tokenizer_settings *settings, const char *where, qp_error *error)
{
    TRY(json_read_normalizer(json_get(root, "normalizer"), tokenizer, where, error));
    TRY(json_read_pre_tokenizer(json_get(root, "pre_tokenizer"), tokenizer, where, error));
    TRY(json_read_post_processor(json_get(root, "post_processor"), tokenizer, where, error));
    TRY(json_read_decoder(json_get(root, "decoder"), tokenizer, where, error));
    return read_model(tokenizer, root, model, settings, where, error);
}

static qp_status build(const cJSON *root, const char *where, const tokenizer_settings *settings,
                       tokenizer **out, qp_error *error)
{
    cJSON *model;
    TRY(require(root, "model", false, where, &model, error));
    tokenizer *tokenizer;
    TRY(tokenizer_create(json_is_byte_level(root) ? VOCABULARY_BYTES : VOCABULARY_CHARS, &tokenizer,
                         error));
    strcpy(tokenizer->pre_name, "tokenizer.json");
    qp_status status = read_root(tokenizer, root, model, settings, where, error);
    if (status != QP_OK) {
        tokenizer_free(tokenizer);
        return status;
    }
    return tokenizer_finish(tokenizer, where, out, error);
}

qp_status tokenizer_build_json(const char *text, size_t length, const char *where,
                               const tokenizer_settings *settings, tokenizer **out, qp_error *error)
{
    *out = NULL;
    cJSON *root;
    TRY(json_parse(text, length, where, &root, error));
    qp_status status = build(root, where, settings, out, error);
    cJSON_Delete(root);
    return status;
}

/* --- GPT-2's vocab.json and merges.txt. --- */

/* Reads lines of "a b"; the first may be a comment with the version. */
static qp_status read_merge_lines(tokenizer *tokenizer, char *text, size_t length,
                                  const char *where, qp_error *error)
{
    size_t lines = 1;
    for (size_t i = 0; i < length; i++)
        lines += text[i] == '\n';
    TRY(vocabulary_reserve_merges(&tokenizer->vocabulary, lines, error));
    bool is_first = true;
    for (size_t at = 0; at < length; is_first = false) {
        char *line = text + at, *end = memchr(line, '\n', length - at);
        size_t count = end ? (size_t)(end - line) : length - at;
        at += count + 1;
        if (count > 0 && line[count - 1] == '\r') count--;
        bool is_comment = is_first && count >= 8 && memcmp(line, "#version", 8) == 0;
        if (count > 0 && !is_comment) TRY(add_merge_line(tokenizer, line, count, where, error));
    }
    return QP_OK;
}

static qp_status read_gpt2(tokenizer *tokenizer, cJSON *vocab, char *merges, size_t length,
                           const char *where, const tokenizer_settings *settings, qp_error *error)
{
    if (!cJSON_IsObject(vocab))
        return error_set(error, QP_FORMAT, "%s: expected an object of tokens and ids, found %s",
                         where, json_type_name(vocab));
    int64_t limit = tokenizer_id_limit((size_t)cJSON_GetArraySize(vocab));
    TRY(read_vocab(tokenizer, vocab, limit, false, where, error));
    /* The files do not say which tokens are special; GPT-2 has one. */
    for (int32_t id = 0; id < tokenizer->vocabulary.count; id++) {
        const char end[] = "<|endoftext|>";
        if (!is_piece(&tokenizer->vocabulary, id, end, sizeof end - 1)) continue;
        tokenizer->vocabulary.pieces[id].type = PIECE_CONTROL;
        tokenizer->vocabulary.pieces[id].flags |= PIECE_ADDED;
        tokenizer->special.bos = tokenizer->special.eos = id;
    }
    TRY(settings_add_tokens(settings, tokenizer, error));
    TRY(vocabulary_index(&tokenizer->vocabulary, error));
    TRY(read_merge_lines(tokenizer, merges, length, where, error));
    return pre_tokenizer_add_split(&tokenizer->pre, gpt2_pattern, SPLIT_ISOLATED, where, error);
}

qp_status tokenizer_build_gpt2(cJSON *vocab, char *merges, size_t length, const char *where,
                               const tokenizer_settings *settings, tokenizer **out, qp_error *error)
{
    tokenizer *tokenizer;
    TRY(tokenizer_create(VOCABULARY_BYTES, &tokenizer, error));
    strcpy(tokenizer->pre_name, "gpt-2");
    qp_status status = read_gpt2(tokenizer, vocab, merges, length, where, settings, error);
    if (status != QP_OK) {
        tokenizer_free(tokenizer);
        return status;
    }
    return tokenizer_finish(tokenizer, where, out, error);
}
