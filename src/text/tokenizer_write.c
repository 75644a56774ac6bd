/* Writes tokenizers as the tokenizer.ggml.* keys of GGUF files, the inverse of tokenizer_gguf.c.
 *
 * GGUF has two kinds of tokenizers: "gpt2", merges over byte letters with a pre-tokenizer known by
 * name, and "llama", pieces with scores. Merges over characters, which tokenizer.json has for
 * models that were trained with sentencepiece, become scores where scores can express them.
 */
#include "text/tokenizer_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name

/* The arrays to write. The tokens' texts are in one buffer; slices are made when it is complete. */
typedef struct token_table {
    int64_t count;
    strbuf text;
    size_t *ends;   /* [count], in the text */
    int32_t *types; /* [count] */
    float *scores;  /* [count] */
} token_table;

static qp_status table_create(token_table *table, int64_t count, qp_error *error)
{
    size_t n = (size_t)count;
    *table = (token_table){.count = count,
                           .ends = calloc(n, sizeof *table->ends),
                           .types = calloc(n, sizeof *table->types),
                           .scores = calloc(n, sizeof *table->scores)};
    if (table->ends && table->types && table->scores) return QP_OK;
    return error_no_memory(error, "a vocabulary", n * sizeof *table->ends);
}

static void table_free(token_table *table)
{
    strbuf_free(&table->text);
    free(table->ends);
    free(table->types);
    free(table->scores);
}

/* Ends the token whose text was just appended. */
static void table_close_token(token_table *table, int64_t id, piece_type type, float score)
{
    table->ends[id] = table->text.length;
    table->types[id] = type;
    table->scores[id] = score;
}

/* Appends a token that no text produces. */
static void table_put_unused(token_table *table, int64_t id)
{
    strbuf_printf(&table->text, "[PAD%lld]", (long long)id);
    table_close_token(table, id, PIECE_UNUSED, 0);
}

/* An array of strings from texts whose ends are in `ends`. */
static qp_status put_strings(gguf_writer *writer, const char *key, const strbuf *text,
                             const size_t *ends, size_t count, qp_error *error)
{
    text_slice *slices = malloc((count ? count : 1) * sizeof *slices);
    if (!slices || text->failed) {
        free(slices);
        return error_no_memory(error, key, text->length + count * sizeof *slices);
    }
    size_t begin = 0;
    for (size_t i = 0; i < count; begin = ends[i], i++)
        slices[i] = (text_slice){strbuf_text(text) + begin, ends[i] - begin};
    gguf_put_strings(writer, key, slices, count);
    free(slices);
    return QP_OK;
}

static qp_status put_table(gguf_writer *writer, const token_table *table, bool scores,
                           qp_error *error)
{
    size_t count = (size_t)table->count;
    TRY(put_strings(writer, KEY("tokens"), &table->text, table->ends, count, error));
    if (scores) gguf_put_array(writer, KEY("scores"), GGUF_F32, table->scores, count);
    gguf_put_array(writer, KEY("token_type"), GGUF_I32, table->types, count);
    return QP_OK;
}

static void put_id(gguf_writer *writer, const char *key, int32_t id)
{
    if (id >= 0) gguf_put_u32(writer, key, (uint32_t)id);
}

static void put_special(gguf_writer *writer, const tokenizer *tokenizer)
{
    const tokenizer_special *special = &tokenizer->special;
    put_id(writer, KEY("bos_token_id"), special->bos);
    put_id(writer, KEY("eos_token_id"), special->eos);
    if (special->eot != special->eos) put_id(writer, KEY("eot_token_id"), special->eot);
    put_id(writer, KEY("unknown_token_id"), special->unknown);
    put_id(writer, KEY("padding_token_id"), special->padding);
    gguf_put_bool(writer, KEY("add_bos_token"), tokenizer->default_flags & TOKENIZER_BOS);
    gguf_put_bool(writer, KEY("add_eos_token"), tokenizer->default_flags & TOKENIZER_EOS);
}

/* --- Pieces. --- */

/* A piece's text in the file's notation. Added tokens are written unchanged; the others in byte
 * letters, or with marks for spaces. */
static void put_piece(const tokenizer *tokenizer, int32_t id, strbuf *out)
{
    const vocabulary_piece *piece = &tokenizer->vocabulary.pieces[id];
    const char *bytes = vocabulary_bytes(&tokenizer->vocabulary, id);
    bool in_letters = tokenizer->vocabulary.kind == VOCABULARY_BYTES;
    bool is_added = piece->flags & PIECE_ADDED, is_model = piece->flags & PIECE_MODEL;
    if (piece->type == PIECE_BYTE)
        strbuf_printf(out, "<0x%02X>", (unsigned)(uint8_t)*bytes);
    else if (piece->type == PIECE_UNKNOWN)
        strbuf_puts(out, "<unk>");
    else if (is_added || !is_model)
        strbuf_append(out, bytes, piece->length);
    else if (in_letters)
        piece_put_letters(bytes, piece->length, out);
    else
        piece_mark_spaces(bytes, piece->length, out);
}

static qp_status fill_table(const tokenizer *tokenizer, const float *scores, token_table *table,
                            qp_error *error)
{
    const vocabulary *vocabulary = &tokenizer->vocabulary;
    TRY(table_create(table, table->count, error));
    for (int64_t id = 0; id < table->count; id++) {
        if (id >= vocabulary->count || vocabulary->pieces[id].type == PIECE_NONE) {
            table_put_unused(table, id);
            continue;
        }
        const vocabulary_piece *piece = &vocabulary->pieces[id];
        piece_type type = (piece_type)piece->type;
        if (id == tokenizer->special.unknown && vocabulary->kind != VOCABULARY_BYTES)
            type = PIECE_UNKNOWN;
        put_piece(tokenizer, (int32_t)id, &table->text);
        table_close_token(table, id, type, scores ? scores[id] : piece->score);
    }
    return QP_OK;
}

/* Reports what added tokens lose: GGUF keeps only their text. */
static void note_added(const vocabulary *vocabulary, strbuf *losses)
{
    int habits = 0;
    for (int32_t id = 0; id < vocabulary->count; id++)
        habits +=
            (vocabulary->pieces[id].flags & (PIECE_LSTRIP | PIECE_RSTRIP | PIECE_SINGLE_WORD)) != 0;
    if (habits)
        strbuf_printf(losses,
                      "%d added tokens take white space along or stand for whole words only; GGUF "
                      "has no key for that\n",
                      habits);
}

/* --- Merges. --- */

static int compare_ranks(const void *a, const void *b)
{
    const merge_slot *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* The merges by increasing rank, to free(). */
static qp_status list_merges(const vocabulary *vocabulary, merge_slot **out, size_t *count,
                             qp_error *error)
{
    size_t slots = vocabulary->merges ? vocabulary->merges_mask + 1 : 0, n = 0;
    merge_slot *list = malloc((slots ? slots : 1) * sizeof *list);
    if (!list) return error_no_memory(error, "the merges", slots * sizeof *list);
    for (size_t i = 0; i < slots; i++) {
        if (vocabulary->merges[i].pair != MERGE_FREE) list[n++] = vocabulary->merges[i];
    }
    qsort(list, n, sizeof *list, compare_ranks);
    *out = list;
    *count = n;
    return QP_OK;
}

static qp_status put_merges(const vocabulary *vocabulary, gguf_writer *writer, qp_error *error)
{
    merge_slot *list;
    size_t count;
    TRY(list_merges(vocabulary, &list, &count, error));
    size_t *ends = malloc((count ? count : 1) * sizeof *ends);
    strbuf text = {0};
    for (size_t i = 0; ends && i < count; i++) {
        const int32_t ids[2] = {(int32_t)(list[i].pair >> 32), (int32_t)(uint32_t)list[i].pair};
        for (int side = 0; side < 2; side++) {
            if (side) strbuf_putc(&text, ' ');
            piece_put_letters(vocabulary_bytes(vocabulary, ids[side]),
                              vocabulary->pieces[ids[side]].length, &text);
        }
        ends[i] = text.length;
    }
    qp_status status = ends ? put_strings(writer, KEY("merges"), &text, ends, count, error)
                            : error_no_memory(error, "the merges", count * sizeof *ends);
    strbuf_free(&text);
    free(ends);
    free(list);
    return status;
}

/* --- Byte-level BPE: "gpt2". --- */

static qp_status write_bytes(const tokenizer *tokenizer, int64_t n_tokens, const char *where,
                             gguf_writer *writer, qp_error *error)
{
    const pre_habits habits = {.ignore_merges = tokenizer->vocabulary.ignore_merges,
                               .nfc = tokenizer->normalizer.nfc};
    const char *pre = pre_tokenizer_name(&tokenizer->pre, habits);
    if (!pre)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: GGUF names pre-tokenizers, and none of the names that quipu knows "
                         "stands for how this tokenizer splits a text",
                         where);
    gguf_put_string(writer, KEY("model"), slice_of("gpt2"));
    gguf_put_string(writer, KEY("pre"), slice_of(pre));
    token_table table = {.count = n_tokens};
    qp_status status = fill_table(tokenizer, NULL, &table, error);
    if (status == QP_OK) status = put_table(writer, &table, false, error);
    if (status == QP_OK) status = put_merges(&tokenizer->vocabulary, writer, error);
    table_free(&table);
    return status;
}

/* --- Scores: "llama". --- */

/* sentencepiece merges any two neighbours that together are a piece. Merges express the same if
 * each such pair is among them. */
static bool every_pair_merges(const vocabulary *vocabulary)
{
    for (int32_t id = 0; id < vocabulary->count; id++) {
        const vocabulary_piece *piece = &vocabulary->pieces[id];
        const char *bytes = vocabulary_bytes(vocabulary, id);
        if (piece->type != PIECE_NORMAL || !(piece->flags & PIECE_MODEL)) continue;
        for (uint32_t cut = 1; cut < piece->length; cut++) {
            int32_t left = vocabulary_find(vocabulary, bytes, cut);
            int32_t right = vocabulary_find(vocabulary, bytes + cut, piece->length - cut);
            if (left >= 0 && right >= 0 && !vocabulary_find_merge(vocabulary, left, right))
                return false;
        }
    }
    return true;
}

/* Computes scores[count] so that pieces merge in the order of the merges' ranks: minus the number
 * of pieces made before. False if the merges of one piece are not consecutive. */
static bool scores_of_merges(const merge_slot *list, size_t n, float *scores)
{
    int made = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && list[i].id == list[i - 1].id) continue;
        if (scores[list[i].id] < 0) return false;
        scores[list[i].id] = (float)-++made;
    }
    return true;
}

/* Scores for a vocabulary of merges over characters, to free(). */
static qp_status make_scores(const tokenizer *tokenizer, const char *where, float **out,
                             qp_error *error)
{
    const vocabulary *vocabulary = &tokenizer->vocabulary;
    merge_slot *list;
    size_t n;
    TRY(list_merges(vocabulary, &list, &n, error));
    size_t bytes = ((size_t)vocabulary->count + 1) * sizeof(float);
    float *scores = calloc(1, bytes);
    bool same = scores && scores_of_merges(list, n, scores) && every_pair_merges(vocabulary);
    free(list);
    if (same) {
        *out = scores;
        return QP_OK;
    }
    free(scores);
    if (!scores) return error_no_memory(error, "scores", bytes);
    return error_set(error, QP_UNSUPPORTED,
                     "%s: GGUF keeps merges over characters as scores, which cannot say what this "
                     "file's merges say; put the model's tokenizer.model in its place",
                     where);
}

/* Whether the steps only insert a space at the beginning; *prefix: where. */
static bool only_prefixes(const pre_tokenizer *pre, space_prefix *prefix)
{
    for (int i = 0; i < pre->count; i++) {
        if (pre->steps[i].split) return false;
        *prefix = pre->steps[i].prefix;
    }
    return true;
}

static qp_status write_scores(const tokenizer *tokenizer, int64_t n_tokens, const char *where,
                              gguf_writer *writer, strbuf *losses, qp_error *error)
{
    const normalizer *normalizer = &tokenizer->normalizer;
    space_prefix prefix = normalizer->prefix;
    if (!normalizer->spaces_are_marked || !only_prefixes(&tokenizer->pre, &prefix))
        return error_set(error, QP_UNSUPPORTED,
                         "%s: GGUF cannot say how this tokenizer splits a text", where);
    if (prefix == SPACE_PREFIX_FIRST)
        strbuf_puts(losses, "text after a special token gets a space in front too; GGUF has no key "
                            "for a space at the beginning alone\n");
    gguf_put_string(writer, KEY("model"), slice_of("llama"));
    gguf_put_string(writer, KEY("pre"), slice_of("default"));
    float *scores = NULL;
    if (tokenizer->vocabulary.kind == VOCABULARY_CHARS)
        TRY(make_scores(tokenizer, where, &scores, error));
    token_table table = {.count = n_tokens};
    qp_status status = fill_table(tokenizer, scores, &table, error);
    if (status == QP_OK) status = put_table(writer, &table, true, error);
    gguf_put_bool(writer, KEY("add_space_prefix"), prefix != SPACE_PREFIX_NEVER);
    gguf_put_bool(writer, KEY("remove_extra_whitespaces"), normalizer->remove_extra);
    table_free(&table);
    free(scores);
    return status;
}

qp_status tokenizer_write_gguf(const tokenizer *tokenizer, int64_t n_tokens, const char *where,
                               gguf_writer *writer, strbuf *losses, qp_error *error)
{
    if (tokenizer->vocabulary.count > n_tokens)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: the tokenizer has %d tokens, but the model has embeddings for %lld",
                         where, tokenizer->vocabulary.count, (long long)n_tokens);
    note_added(&tokenizer->vocabulary, losses);
    bool bytes = tokenizer->vocabulary.kind == VOCABULARY_BYTES;
    TRY(bytes ? write_bytes(tokenizer, n_tokens, where, writer, error)
              : write_scores(tokenizer, n_tokens, where, writer, losses, error));
    put_special(writer, tokenizer);
    return QP_OK;
}

/* --- Weights without a vocabulary. --- */

enum {
    MINIMAL_UNKNOWN,
    MINIMAL_BOS,
    MINIMAL_EOS,
    MINIMAL_BYTES,
    MINIMAL_SPACE = 259,
    MINIMAL_REST
};

qp_status tokenizer_write_minimal_gguf(int64_t n_tokens, gguf_writer *writer, qp_error *error)
{
    static const char *const names[] = {"<unk>", "<s>", "</s>"};
    static const piece_type types[] = {PIECE_UNKNOWN, PIECE_CONTROL, PIECE_CONTROL};
    if (n_tokens < MINIMAL_REST)
        return error_set(error, QP_UNSUPPORTED, "a vocabulary needs at least %d tokens, found %lld",
                         MINIMAL_REST, (long long)n_tokens);
    token_table table;
    qp_status status = table_create(&table, n_tokens, error);
    for (int64_t id = 0; status == QP_OK && id < n_tokens; id++) {
        if (id >= MINIMAL_REST) {
            table_put_unused(&table, id);
        } else if (id == MINIMAL_SPACE) {
            piece_mark_spaces(" ", 1, &table.text);
            table_close_token(&table, id, PIECE_NORMAL, 0);
        } else if (id >= MINIMAL_BYTES) {
            strbuf_printf(&table.text, "<0x%02X>", (unsigned)(id - MINIMAL_BYTES));
            table_close_token(&table, id, PIECE_BYTE, 0);
        } else {
            strbuf_puts(&table.text, names[id]);
            table_close_token(&table, id, types[id], 0);
        }
    }
    gguf_put_string(writer, KEY("model"), slice_of("llama"));
    gguf_put_string(writer, KEY("pre"), slice_of("default"));
    if (status == QP_OK) status = put_table(writer, &table, true, error);
    table_free(&table);
    gguf_put_u32(writer, KEY("bos_token_id"), MINIMAL_BOS);
    gguf_put_u32(writer, KEY("eos_token_id"), MINIMAL_EOS);
    gguf_put_u32(writer, KEY("unknown_token_id"), MINIMAL_UNKNOWN);
    gguf_put_bool(writer, KEY("add_bos_token"), true);
    return status;
}
