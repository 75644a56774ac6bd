/* Lines of Markdown: see markdown.h. */
#include "cli/markdown.h"

#include <ctype.h>
#include <string.h>

/* Removes bytes from the front. */
static void drop(strbuf *text, size_t count)
{
    if (count == 0) return;
    text->length -= count;
    memmove(text->data, text->data + count, text->length + 1);
}

/* ---- showing text -------------------------------------------------------------------------- */

static void set_style(markdown *m, unsigned mask, strbuf *out)
{
    static const char *const codes[] = {";1", ";2", ";3", ";36", ";9"};
    char sequence[32] = "\x1b[0";
    if (mask == m->style) return;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (mask >> i & 1 && !(m->colourless && 1U << i == MARKDOWN_CODE))
            strcat(sequence, codes[i]);
    strcat(sequence, "m");
    word_wrap_style(&m->wrap, sequence, out);
    m->style = mask;
}

void markdown_show(markdown *m, unsigned mask, const char *text, size_t length, int columns,
                   strbuf *out)
{
    if (length == 0) return;
    set_style(m, m->base | mask, out);
    word_wrap_put(&m->wrap, text, length, columns, out);
}

static void show_literal(markdown *m, unsigned mask, const char *text, int columns, strbuf *out)
{
    markdown_show(m, mask, text, strlen(text), columns, out);
}

/* The sink of the text of a line. */
typedef struct line_sink {
    markdown *m;
    int columns;
    strbuf *out;
} line_sink;

static void show_span(void *context, unsigned mask, const char *text, size_t length)
{
    const line_sink *to = context;
    markdown_show(to->m, mask, text, length, to->columns, to->out);
}

/* Shows the text of the line that is certain, or with `whole` all of it. */
static void show_text(markdown *m, bool whole, int columns, strbuf *out)
{
    line_sink to = {m, columns, out};
    const char *text = strbuf_text(&m->line);
    size_t shown = m->line.length;
    if (m->fence)
        markdown_show(m, MARKDOWN_CODE, text, shown, columns, out);
    else
        shown = markdown_spans(text, shown, m->before, m->mask, whole, show_span, &to);
    if (shown > 0) m->before = text[shown - 1];
    drop(&m->line, shown);
}

/* ---- beginnings of lines ------------------------------------------------------------------- */

static size_t run_of(const char *text, char c)
{
    size_t n = 0;
    while (text[n] == c)
        n++;
    return n;
}

static void begin_text(markdown *m, size_t marks, unsigned mask, int indent)
{
    drop(&m->line, marks);
    m->begun = true;
    m->mask = mask;
    m->before = ' ';
    m->wrap.indent = indent;
}

/* "### Heading" */
static bool begin_heading(markdown *m, const char *text)
{
    const size_t n = run_of(text, '#');
    if (n > 6) return begin_text(m, 0, 0, 0), true;
    if (!text[n]) return false;
    if (text[n] == ' ')
        begin_text(m, n + 1, MARKDOWN_BOLD, 0);
    else
        begin_text(m, 0, 0, 0);
    return true;
}

/* "- item", "12. item"; the mark is `length` bytes long. */
static void begin_item(markdown *m, size_t blanks, size_t length, int columns, strbuf *out)
{
    strbuf mark = {0};
    const bool number = isdigit((unsigned char)strbuf_text(&m->line)[blanks]);
    strbuf_append(&mark, m->line.data, blanks + length - 1);
    if (!number) {
        mark.length = blanks;
        strbuf_puts(&mark, "•");
    }
    strbuf_putc(&mark, ' ');
    show_literal(m, 0, strbuf_text(&mark), columns, out);
    begin_text(m, blanks + length, 0, (int)(blanks + length));
    strbuf_free(&mark);
}

/* A line that begins with a minus or an asterisk: an item, or a rule, or text. */
static bool begin_dash(markdown *m, const char *text, size_t blanks, bool whole, int columns,
                       strbuf *out)
{
    const size_t n = run_of(text, *text);
    const bool only = !text[n + strspn(text + n, " ")];
    if (whole && only && n >= 3) {
        for (int i = 0; i < columns - 2 && i < 60; i++)
            show_literal(m, MARKDOWN_DIM, "─", columns, out);
        begin_text(m, m->line.length, 0, 0);
    } else if (n == 1 && text[1] == ' ') {
        begin_item(m, blanks, 2, columns, out);
    } else if (only && !whole) {
        return false;
    } else {
        begin_text(m, 0, 0, (int)blanks);
    }
    return true;
}

static bool begin_number(markdown *m, const char *text, size_t blanks, bool whole, int columns,
                         strbuf *out)
{
    const size_t n = strspn(text, "0123456789");
    if (n <= 9 && !whole && (!text[n] || (strchr(".)", text[n]) && !text[n + 1]))) return false;
    if (n <= 9 && text[n] && strchr(".)", text[n]) && text[n + 1] == ' ')
        begin_item(m, blanks, n + 2, columns, out);
    else
        begin_text(m, 0, 0, (int)blanks);
    return true;
}

static void begin_quote(markdown *m, const char *text, size_t blanks, int columns, strbuf *out)
{
    show_literal(m, MARKDOWN_DIM, "│ ", columns, out);
    begin_text(m, blanks + 1 + (text[1] == ' '), MARKDOWN_DIM, 2);
}

/* Finds out what the line is, as far as what arrived of it tells; true once it is known. A fence, a
 * rule and a row of a table are known by the whole line only. */
static bool begin_line(markdown *m, bool whole, int columns, strbuf *out)
{
    const char *line = strbuf_text(&m->line);
    const size_t blanks = run_of(line, ' ');
    const char *text = line + blanks;
    const char *after = text + run_of(text, '`');
    if (!whole && (after > text || m->fence) && !after[run_of(after, ' ')]) return false;
    if (m->fence) return begin_text(m, 0, 0, 0), true;
    if (after - text >= 3 || *text == '|') return false;
    if (m->heading.length > 0 && (*text || whole)) markdown_table_end(m, columns, out);
    switch (*text) {
    case '\0':
        return false;
    case '#':
        return begin_heading(m, text);
    case '>':
        if (!text[1] && !whole) return false;
        return begin_quote(m, text, blanks, columns, out), true;
    case '-':
    case '*':
    case '+':
        return begin_dash(m, text, blanks, whole, columns, out);
    default:
        if (isdigit((unsigned char)*text))
            return begin_number(m, text, blanks, whole, columns, out);
        return begin_text(m, 0, 0, (int)blanks), true;
    }
}

/* ---- whole lines --------------------------------------------------------------------------- */

/* Whether the line opens or closes code; if so, it is shown. */
static bool take_fence(markdown *m, int columns, strbuf *out)
{
    const char *text = strbuf_text(&m->line);
    text += run_of(text, ' ');
    const int n = (int)run_of(text, '`');
    if (m->begun || n < 3 || (m->fence && (n < m->fence || text[n + (int)strspn(text + n, " ")])))
        return false;
    m->wrap.code = true; /* lines of code, and fences, are not wrapped */
    show_literal(m, MARKDOWN_DIM, strbuf_text(&m->line), columns, out);
    m->fence = m->fence ? 0 : n;
    strbuf_clear(&m->line);
    return true;
}

/* Shows the rest of a line that has ended. */
static void finish_line(markdown *m, int columns, strbuf *out)
{
    const bool row = !m->begun && !m->fence && m->line.length && m->line.data[0] == '|';
    if (row && markdown_table_line(m, columns, out)) return;
    if (!take_fence(m, columns, out)) {
        if (!m->begun && !row && !begin_line(m, true, columns, out)) begin_text(m, 0, 0, 0);
        show_text(m, true, columns, out);
    }
    set_style(m, m->base, out);
}

static void end_line(markdown *m, int columns, strbuf *out)
{
    const bool row = m->line.length && m->line.data[0] == '|' && !m->begun && !m->fence;
    finish_line(m, columns, out);
    if (!row || m->heading.length == 0) word_wrap_put(&m->wrap, "\n", 1, columns, out);
    strbuf_clear(&m->line);
    m->begun = false;
    m->wrap.indent = 0;
    m->wrap.code = m->fence > 0;
}

void markdown_put(markdown *m, const char *text, size_t length, int columns, strbuf *out)
{
    while (length > 0) {
        const char *newline = memchr(text, '\n', length);
        const size_t size = newline ? (size_t)(newline - text) : length;
        strbuf_append(&m->line, text, size);
        if (newline)
            end_line(m, columns, out);
        else if (m->begun || begin_line(m, false, columns, out))
            show_text(m, false, columns, out);
        text += size + (newline != NULL);
        length -= size + (newline != NULL);
    }
}

void markdown_end(markdown *m, int columns, strbuf *out)
{
    if (m->line.length > 0) finish_line(m, columns, out);
    if (m->heading.length > 0) markdown_table_end(m, columns, out);
    set_style(m, 0, out);
}

void markdown_free(markdown *m)
{
    word_wrap_free(&m->wrap);
    strbuf_free(&m->line);
    strbuf_free(&m->heading);
    strbuf_free(&m->rule);
    *m = (markdown){0};
}
