/* Encodes text to ids: finds added tokens, then normalizes, cuts into words and merges the rest. */
#define _GNU_SOURCE /* memmem */
#include "text/bpe.h"
#include "text/control_marks.h"
#include "text/tokenizer_build.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* One call of tokenizer_encode(). */
typedef struct encoding {
    const tokenizer *tokenizer;
    bool parse_special;
    const char *mark; /* a mark to be removed, or NULL */
    strbuf normalized, unmarked;
    pre_scratch pre;
    bpe_scratch bpe;
    token_ids *ids;
} encoding;

/* --- A growing list. --- */

qp_status token_ids_push(token_ids *ids, int32_t id, qp_error *error)
{
    if (ids->count == ids->capacity) {
        size_t capacity = ids->capacity ? ids->capacity * 2 : 64;
        int32_t *data = realloc(ids->data, capacity * sizeof *data);
        if (!data) return error_no_memory(error, "token ids", capacity * sizeof *data);
        ids->data = data;
        ids->capacity = capacity;
    }
    ids->data[ids->count++] = id;
    return QP_OK;
}

void token_ids_free(token_ids *ids)
{
    free(ids->data);
    *ids = (token_ids){0};
}

/* --- Added tokens. --- */

/* An occurrence of an added token, with the white space that it absorbs. */
typedef struct occurrence {
    size_t begin, end;
    int32_t id;
} occurrence;

static bool is_white_space(uint32_t c, bool is_marked)
{
    if (c == ' ') return !is_marked;
    return (c >= 0x9 && c <= 0xD) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* Bytes of the valid character that ends at text[end); 0 if there is none. */
static size_t character_before(const char *text, size_t end)
{
    for (size_t n = 1; n <= 4 && n <= end; n++) {
        if (utf8_sequence(text + end - n, n) == n) return n;
    }
    return 0;
}

static qp_status is_word_character(encoding *e, const char *text, size_t length, bool *is_word,
                                   qp_error *error)
{
    *is_word = false;
    if (length == 0) return QP_OK;
    if (!e->pre.regex && !(e->pre.regex = regex_scratch_create()))
        return error_no_memory(error, "the added tokens", 0);
    size_t begin, end;
    return regex_find(e->tokenizer->word_character, e->pre.regex, text, length, 0, is_word, &begin,
                      &end, error);
}

/* Whether the token stands between non-word characters, as PIECE_SINGLE_WORD requires. */
static qp_status stands_alone(encoding *e, const char *text, size_t length,
                              const occurrence *occurrence, bool *alone, qp_error *error)
{
    bool before, after;
    const char *rest = text + occurrence->end;
    size_t n = character_before(text, occurrence->begin);
    TRY(is_word_character(e, text + occurrence->begin - n, n, &before, error));
    n = utf8_sequence(rest, length - occurrence->end);
    TRY(is_word_character(e, rest, n, &after, error));
    *alone = !before && !after;
    return QP_OK;
}

/* `floor`: the end of the previous occurrence, which has absorbed the white space before it.
 * `is_marked`: spaces have been replaced by marks. */
static void take_white_space(unsigned flags, bool is_marked, const char *text, size_t length,
                             size_t floor, occurrence *occurrence)
{
    while ((flags & PIECE_LSTRIP) && occurrence->begin > floor) {
        size_t n = character_before(text, occurrence->begin);
        if (n == 0 || !is_white_space(utf8_decode(text + occurrence->begin - n, n), is_marked))
            break;
        occurrence->begin -= n;
    }
    if (occurrence->begin < floor) occurrence->begin = floor;
    while (flags & PIECE_RSTRIP) {
        const char *rest = text + occurrence->end;
        size_t n = utf8_sequence(rest, length - occurrence->end);
        if (n == 0 || !is_white_space(utf8_decode(rest, n), is_marked)) break;
        occurrence->end += n;
    }
}

/* Finds the next added token that counts, from *at on; found->id is -1 when there is none. As in
 * Hugging Face's tokenizers, the search continues after an occurrence that does not count. */
static qp_status find_added(encoding *e, const piece_trie *trie, const char *text, size_t length,
                            size_t floor, occurrence *found, qp_error *error)
{
    const vocabulary_piece *pieces = e->tokenizer->vocabulary.pieces;
    for (size_t at = floor; at < length;) {
        size_t match = 1;
        int32_t id = piece_trie_match(trie, text + at, length - at, &match);
        *found = (occurrence){at, at + match, id};
        at += match;
        if (id < 0) continue;
        unsigned flags = pieces[id].flags;
        if (!e->parse_special && pieces[id].type != PIECE_USER_DEFINED) continue;
        bool alone = true;
        if (flags & PIECE_SINGLE_WORD) TRY(stands_alone(e, text, length, found, &alone, error));
        if (!alone) continue;
        bool is_marked = (flags & PIECE_NORMALIZED) && e->tokenizer->normalizer.marks_first;
        take_white_space(flags, is_marked, text, length, floor, found);
        return QP_OK;
    }
    found->id = -1;
    return QP_OK;
}

typedef qp_status fragment_handler(encoding *e, const char *text, size_t length, bool is_first,
                                   qp_error *error);

/* Encodes the text between added tokens, and appends their ids. */
static qp_status split_added(encoding *e, const piece_trie *trie, fragment_handler *next,
                             const char *text, size_t length, bool is_first, qp_error *error)
{
    size_t done = 0;
    while (trie->count > 0 && done < length) {
        occurrence found = {.id = -1};
        TRY(find_added(e, trie, text, length, done, &found, error));
        if (found.id < 0) break;
        if (found.begin > done)
            TRY(next(e, text + done, found.begin - done, is_first && done == 0, error));
        TRY(token_ids_push(e->ids, found.id, error));
        done = found.end;
    }
    if (done == length) return QP_OK;
    return next(e, text + done, length - done, is_first && done == 0, error);
}

/* --- From fragments to ids. --- */

static qp_status encode_word(void *context, const char *word, size_t length, qp_error *error)
{
    encoding *e = context;
    const tokenizer *tokenizer = e->tokenizer;
    return bpe_encode(&tokenizer->vocabulary, tokenizer->has_whole ? &tokenizer->whole : NULL,
                      &e->bpe, word, length, e->ids, error);
}

/* Removes the marks, which are no longer needed after the search for added tokens. */
static qp_status remove_marks(encoding *e, const char **text, size_t *length, qp_error *error)
{
    strbuf_clear(&e->unmarked);
    for (size_t at = 0; at < *length;) {
        const char *from = *text + at;
        const char *found = memmem(from, *length - at, e->mark, CONTROL_MARK_SIZE);
        size_t size = found ? (size_t)(found - from) : *length - at;
        strbuf_append(&e->unmarked, from, size);
        at += found ? size + CONTROL_MARK_SIZE : size;
    }
    if (e->unmarked.failed) return error_no_memory(error, "the text", *length);
    *text = strbuf_text(&e->unmarked);
    *length = e->unmarked.length;
    return QP_OK;
}

static qp_status encode_normalized(encoding *e, const char *text, size_t length, bool is_first,
                                   qp_error *error)
{
    if (e->mark) TRY(remove_marks(e, &text, &length, error));
    if (length == 0) return QP_OK;
    return pre_tokenize(&e->tokenizer->pre, &e->pre, text, length, is_first, encode_word, e, error);
}

static qp_status encode_fragment(encoding *e, const char *text, size_t length, bool is_first,
                                 qp_error *error)
{
    const tokenizer *tokenizer = e->tokenizer;
    if (!normalizer_is_identity(&tokenizer->normalizer)) {
        strbuf_clear(&e->normalized);
        TRY(normalize(&tokenizer->normalizer, text, length, is_first, &e->normalized, error));
        text = strbuf_text(&e->normalized);
        length = e->normalized.length;
    }
    return split_added(e, &tokenizer->added_normalized, encode_normalized, text, length, is_first,
                       error);
}

/* Appends BOS or EOS, where asked for. */
static qp_status push_special(token_ids *ids, bool wanted, int32_t id, const char *name,
                              qp_error *error)
{
    if (!wanted) return QP_OK;
    if (id < 0)
        return error_set(error, QP_INVALID, "the tokenizer has no %s token to add to the text",
                         name);
    return token_ids_push(ids, id, error);
}

static qp_status encode(encoding *e, const char *text, size_t length, unsigned flags,
                        qp_error *error)
{
    const tokenizer *tokenizer = e->tokenizer;
    TRY(push_special(e->ids, flags & TOKENIZER_BOS, tokenizer->special.bos, "BOS", error));
    TRY(split_added(e, &tokenizer->added, encode_fragment, text, length, true, error));
    return push_special(e->ids, flags & TOKENIZER_EOS, tokenizer->special.eos, "EOS", error);
}

qp_status tokenizer_encode_marked(const tokenizer *tokenizer, const char *text, size_t length,
                                  const char *mark, unsigned flags, token_ids *ids, qp_error *error)
{
    encoding e = {.tokenizer = tokenizer,
                  .parse_special = flags & TOKENIZER_SPECIAL,
                  .mark = mark,
                  .ids = ids};
    size_t count = ids->count;
    qp_status status = encode(&e, text, length, flags, error);
    if (status != QP_OK) ids->count = count;
    strbuf_free(&e.normalized);
    strbuf_free(&e.unmarked);
    pre_scratch_free(&e.pre);
    bpe_scratch_free(&e.bpe);
    return status;
}

qp_status tokenizer_encode(const tokenizer *tokenizer, const char *text, size_t length,
                           unsigned flags, token_ids *ids, qp_error *error)
{
    return tokenizer_encode_marked(tokenizer, text, length, NULL, flags, ids, error);
}
