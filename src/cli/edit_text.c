/* The text and cursor of a message being edited: see edit_text.h. */
#define _XOPEN_SOURCE 700 /* wcwidth */
#include "cli/edit_text.h"

#include "text/utf8.h"

#include <ctype.h>
#include <string.h>
#include <wchar.h>

enum { ZERO_WIDTH_JOINER = 0x200d, TAB_COLUMNS = 4 };

int edit_width(uint32_t code_point)
{
    int width = wcwidth((wchar_t)code_point);
    return width > 0 ? width : 0;
}

static bool is_regional(uint32_t c)
{
    return c >= 0x1f1e6 && c <= 0x1f1ff; /* regional indicators: two of them are a flag */
}

/* Whether the code point is part of the same cluster as the character before it. */
static bool extends(uint32_t c)
{
    bool skin_tone = c >= 0x1f3fb && c <= 0x1f3ff;
    return skin_tone || (c >= 0x80 && edit_width(c) == 0);
}

/* A byte that begins no valid sequence is a cluster of its own. */
static size_t decode(const char *text, size_t length, uint32_t *c)
{
    size_t size = utf8_sequence(text, length);
    *c = size ? utf8_decode(text, size) : 0xfffd;
    return size ? size : 1;
}

size_t edit_cluster(const char *text, size_t length, int *width)
{
    uint32_t c, next;
    size_t at = decode(text, length, &c);
    bool flag = is_regional(c);
    *width = c == '\t' ? TAB_COLUMNS : edit_width(c);
    while (at < length && c != '\n') {
        size_t size = decode(text + at, length - at, &next);
        bool second = flag && is_regional(next);
        if (!second && c != ZERO_WIDTH_JOINER && !extends(next)) break;
        if (second) *width = 2;
        flag = false;
        c = next;
        at += size;
    }
    return at;
}

void edit_set(edit_text *t, const char *text, size_t length)
{
    strbuf_clear(&t->text);
    strbuf_append(&t->text, text, length);
    t->cursor = t->text.length;
}

void edit_insert(edit_text *t, const char *text, size_t length)
{
    size_t after = t->text.length - t->cursor;
    if (!strbuf_append(&t->text, text, length)) return;
    char *gap = t->text.data + t->cursor;
    memmove(gap + length, gap, after);
    memcpy(gap, text, length);
    t->cursor += length;
}

void edit_remove(edit_text *t, size_t from, size_t to)
{
    if (to <= from) return;
    memmove(t->text.data + from, t->text.data + to, t->text.length - to);
    t->text.length -= to - from;
    t->text.data[t->text.length] = '\0';
    t->cursor = from;
}

size_t edit_next(const edit_text *t, size_t at)
{
    int width;
    if (at >= t->text.length) return at;
    return at + edit_cluster(t->text.data + at, t->text.length - at, &width);
}

size_t edit_previous(const edit_text *t, size_t at)
{
    if (at == 0) return 0;
    size_t found = edit_line_start(t, at);
    if (found == at) return at - 1; /* the line break */
    for (size_t next; (next = edit_next(t, found)) < at; found = next) {
    }
    return found;
}

/* Words consist of letters, digits and all characters that are not ASCII. */
static bool in_word(const edit_text *t, size_t at)
{
    unsigned char c = (unsigned char)t->text.data[at];
    return c >= 0x80 || isalnum(c) || c == '_';
}

size_t edit_word_left(const edit_text *t, size_t at)
{
    while (at > 0 && !in_word(t, edit_previous(t, at)))
        at = edit_previous(t, at);
    while (at > 0 && in_word(t, edit_previous(t, at)))
        at = edit_previous(t, at);
    return at;
}

size_t edit_word_right(const edit_text *t, size_t at)
{
    while (at < t->text.length && !in_word(t, at))
        at = edit_next(t, at);
    while (at < t->text.length && in_word(t, at))
        at = edit_next(t, at);
    return at;
}

size_t edit_line_start(const edit_text *t, size_t at)
{
    while (at > 0 && t->text.data[at - 1] != '\n')
        at--;
    return at;
}

size_t edit_line_end(const edit_text *t, size_t at)
{
    while (at < t->text.length && t->text.data[at] != '\n')
        at++;
    return at;
}

/* Columns from the start of the line to `at`. */
static int column_of(const edit_text *t, size_t at)
{
    int column = 0, width;
    for (size_t i = edit_line_start(t, at); i < at; column += width)
        i += edit_cluster(t->text.data + i, t->text.length - i, &width);
    return column;
}

/* Puts the cursor into the line that begins at `start`, at the wanted column. */
static void go_to_column(edit_text *t, size_t start, int column)
{
    size_t at = start, end = edit_line_end(t, start);
    int width;
    while (at < end) {
        size_t size = edit_cluster(t->text.data + at, end - at, &width);
        if (column < width) break;
        column -= width;
        at += size;
    }
    t->cursor = at;
}

bool edit_up(edit_text *t)
{
    size_t start = edit_line_start(t, t->cursor);
    if (start == 0) return false;
    go_to_column(t, edit_line_start(t, start - 1), column_of(t, t->cursor));
    return true;
}

bool edit_down(edit_text *t)
{
    size_t end = edit_line_end(t, t->cursor);
    if (end == t->text.length) return false;
    go_to_column(t, end + 1, column_of(t, t->cursor));
    return true;
}

void edit_transpose(edit_text *t)
{
    size_t middle = t->cursor;
    if (middle == edit_line_end(t, middle)) middle = edit_previous(t, middle);
    if (middle == edit_line_start(t, middle)) return;
    size_t first = edit_previous(t, middle), end = edit_next(t, middle);
    strbuf swapped = {0};
    strbuf_append(&swapped, t->text.data + middle, end - middle);
    strbuf_append(&swapped, t->text.data + first, middle - first);
    if (!swapped.failed) memcpy(t->text.data + first, swapped.data, end - first);
    t->cursor = end;
    strbuf_free(&swapped);
}

void edit_clean(const char *bytes, size_t length, strbuf *out)
{
    strbuf valid = {0};
    utf8_put_valid(&valid, bytes, length);
    for (size_t i = 0; i < valid.length; i++) {
        const unsigned char c = (unsigned char)valid.data[i];
        const bool second = c == '\n' && i > 0 && valid.data[i - 1] == '\r'; /* of \r\n */
        if (c == '\r')
            strbuf_putc(out, '\n');
        else if (!second && (c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f)))
            strbuf_putc(out, (char)c);
    }
    out->failed |= valid.failed;
    strbuf_free(&valid);
}

static const char QUOTES[] = "\"\"\"";

bool edit_is_quoted(const char *text)
{
    size_t length = strlen(text);
    if (strncmp(text, QUOTES, 3) != 0) return false;
    while (length > 3 && strchr(" \t\n", text[length - 1]))
        length--;
    return length < 6 || memcmp(text + length - 3, QUOTES, 3) != 0;
}

void edit_unquote(strbuf *text)
{
    if (strncmp(strbuf_text(text), QUOTES, 3) != 0) return;
    size_t end = text->length, begin = 3;
    while (end > 3 && strchr(" \t\n", text->data[end - 1]))
        end--;
    if (end >= 6 && memcmp(text->data + end - 3, QUOTES, 3) == 0) end -= 3;
    if (text->data[begin] == '\n') begin++;
    if (end > begin && text->data[end - 1] == '\n') end--;
    text->length = end > begin ? end - begin : 0;
    memmove(text->data, text->data + begin, text->length);
    text->data[text->length] = '\0';
}
