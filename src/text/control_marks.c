/* Distinguishes control tokens in messages from those of a template: see control_marks.h. */
#include "text/control_marks.h"

#include "text/tokenizer_build.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* U+FDD0 to U+FDEF are noncharacters, reserved for a program's own use: EF B7 90 to EF B7 AF. */
static const unsigned char FIRST[2] = {0xef, 0xb7};
enum { THIRD = 0x90, N_MARKS = 32 };

static bool is_control(const tokenizer *t, int32_t id)
{
    const vocabulary_piece *piece = &t->vocabulary.pieces[id];
    return piece->type == PIECE_CONTROL && (piece->flags & PIECE_ADDED) && piece->length;
}

qp_status control_marks_init(control_marks *m, const tokenizer *tokenizer, qp_error *error)
{
    const int32_t n = tokenizer->vocabulary.count;
    int32_t count = 0;
    for (int32_t id = 0; id < n; id++)
        count += is_control(tokenizer, id);
    *m = (control_marks){.tokenizer = tokenizer};
    m->ids = malloc(((size_t)count + 1) * sizeof *m->ids);
    if (!m->ids) return error_no_memory(error, "control tokens", (size_t)count * sizeof *m->ids);
    for (int32_t id = 0; id < n; id++)
        if (is_control(tokenizer, id)) m->ids[m->count++] = id;
    return QP_OK;
}

void control_marks_free(control_marks *m)
{
    free(m->ids);
    *m = (control_marks){0};
}

void control_marks_see(control_marks *m, const char *text, size_t length)
{
    for (size_t i = 0; i + 2 < length; i++) {
        unsigned third = (unsigned char)text[i + 2];
        if (memcmp(text + i, FIRST, 2) != 0 || third < THIRD || third >= THIRD + N_MARKS) continue;
        m->seen |= UINT32_C(1) << (third - THIRD);
    }
}

qp_status control_marks_choose(control_marks *m, qp_error *error)
{
    for (int i = 0; i < N_MARKS; i++) {
        if (m->seen & (UINT32_C(1) << i)) continue;
        memcpy(m->mark, FIRST, 2);
        m->mark[2] = (char)(THIRD + i);
        return QP_OK;
    }
    return error_set(error, QP_INVALID,
                     "the conversation holds all of U+FDD0 to U+FDEF, which are no characters: "
                     "leave one of them out");
}

/* Whether the text's end is the beginning of a control token that the following text could
 * complete. */
static bool ends_in_token(const control_marks *m, const char *text, size_t length)
{
    for (int32_t i = 0; i < m->count; i++) {
        const vocabulary_piece *piece = &m->tokenizer->vocabulary.pieces[m->ids[i]];
        const char *bytes = vocabulary_bytes(&m->tokenizer->vocabulary, m->ids[i]);
        for (size_t n = 1; n < piece->length && n <= length; n++)
            if (memcmp(text + length - n, bytes, n) == 0) return true;
    }
    return false;
}

/* Whether the text's beginning is the end of a control token that the preceding text could
 * begin. */
static bool begins_in_token(const control_marks *m, const char *text, size_t length)
{
    for (int32_t i = 0; i < m->count; i++) {
        const vocabulary_piece *piece = &m->tokenizer->vocabulary.pieces[m->ids[i]];
        const char *end = vocabulary_bytes(&m->tokenizer->vocabulary, m->ids[i]) + piece->length;
        for (size_t n = 1; n < piece->length && n <= length; n++)
            if (memcmp(text, end - n, n) == 0) return true;
    }
    return false;
}

/* Whether a control token is written at text[at]. */
static bool is_token_at(const control_marks *m, const char *text, size_t length, size_t at)
{
    const piece_trie *tries[] = {&m->tokenizer->added, &m->tokenizer->added_normalized};
    for (int i = 0; i < 2; i++) {
        size_t match;
        if (tries[i]->count == 0) continue;
        int32_t id = piece_trie_match(tries[i], text + at, length - at, &match);
        if (id >= 0 && is_control(m->tokenizer, id)) return true;
    }
    return false;
}

void control_marks_put(const control_marks *m, const char *text, size_t length, strbuf *out,
                       bool *changed)
{
    bool begins = begins_in_token(m, text, length), ends = ends_in_token(m, text, length);
    *changed = begins || ends;
    if (begins) strbuf_puts(out, m->mark);
    for (size_t at = 0; at < length;) {
        size_t size = utf8_sequence(text + at, length - at);
        if (size == 0) size = 1;
        bool token = is_token_at(m, text, length, at);
        strbuf_append(out, text + at, size);
        at += size;
        if (!token || at == length) continue;
        strbuf_puts(out, m->mark);
        *changed = true;
    }
    if (ends) strbuf_puts(out, m->mark);
}
