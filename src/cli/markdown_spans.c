/* Marks within a line of Markdown: see markdown.h. */
#include "cli/markdown.h"

#include <ctype.h>
#include <string.h>

enum { LONGEST = 600 }; /* bytes that a mark holds back */

/* A text in which marks are looked for. */
typedef struct span_text {
    const char *text; /* [length] */
    size_t length;
    bool whole; /* nothing follows */
    unsigned mask;
    markdown_sink *sink;
    void *context;
} span_text;

static size_t run_at(const span_text *s, size_t at)
{
    size_t n = 1;
    while (at + n < s->length && s->text[at + n] == s->text[at])
        n++;
    return n;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || (c & 0x80);
}

/* Where the run of `n` marks at `at` is closed; 0: nowhere in the text. */
static size_t find_end(const span_text *s, size_t at, size_t n)
{
    const char mark = s->text[at];
    for (size_t i = at + n, run; i < s->length; i += run) {
        const char c = s->text[i];
        run = c == mark || c == '`' ? run_at(s, i) : 1;
        if (mark != '`' && c == '\\') run = 2;
        const bool ends = c == mark && run == n && i > at + n;
        if (ends && mark == '`') return i;
        if (ends && !is_blank(s->text[i - 1]) &&
            (mark != '_' || i + run >= s->length || !is_word(s->text[i + run])))
            return i;
    }
    return 0;
}

/* The style of a run of marks that may open a span; 0: it is text. */
static unsigned style_of(const span_text *s, size_t at, size_t n, char before)
{
    const char mark = s->text[at];
    const char after = at + n < s->length ? s->text[at + n] : ' ';
    if (mark == '`') return MARKDOWN_CODE;
    if (is_blank(after) || n > 3 || (mark == '_' && is_word(before))) return 0;
    if (mark == '~') return n == 2 ? MARKDOWN_STRUCK : 0;
    return (n & 1 ? MARKDOWN_ITALIC : 0) | (n & 2 ? MARKDOWN_BOLD : 0);
}

/* Hands the span at `at` on, or its first byte as text; returns the bytes that were taken, 0: its
 * end may still arrive. */
static size_t take_mark(const span_text *s, size_t at, char before)
{
    const size_t n = run_at(s, at), left = s->length - at;
    const bool waits = !s->whole && left < LONGEST;
    if (waits && n == left) return 0;
    const unsigned style = style_of(s, at, n, before);
    const size_t end = style ? find_end(s, at, n) : 0;
    if (style && (!end || end + n == s->length) && waits) return 0;
    if (!end) {
        s->sink(s->context, s->mask, s->text + at, n);
        return n;
    }
    const char *inside = s->text + at + n;
    if (style == MARKDOWN_CODE)
        s->sink(s->context, s->mask | style, inside, end - at - n);
    else
        markdown_spans(inside, end - at - n, ' ', s->mask | style, true, s->sink, s->context);
    return end + n - at;
}

/* "\*" is an asterisk. */
static size_t take_escape(const span_text *s, size_t at)
{
    if (at + 1 == s->length && !s->whole) return 0;
    const bool escapes = at + 1 < s->length && ispunct((unsigned char)s->text[at + 1]);
    s->sink(s->context, s->mask, s->text + at + escapes, 1);
    return 1 + escapes;
}

size_t markdown_spans(const char *text, size_t length, char before, unsigned mask, bool whole,
                      markdown_sink *sink, void *context)
{
    const span_text s = {text, length, whole, mask, sink, context};
    size_t at = 0;
    while (at < length) {
        size_t plain = at;
        while (plain < length && !strchr("`*_~\\", text[plain]))
            plain++;
        if (plain > at) sink(context, mask, text + at, plain - at);
        at = plain;
        if (at == length) break;
        if (at > 0) before = text[at - 1];
        const size_t taken = text[at] == '\\' ? take_escape(&s, at) : take_mark(&s, at, before);
        if (taken == 0) break;
        at += taken;
    }
    return at;
}
