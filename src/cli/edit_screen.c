/* Draws the message being edited on a terminal: see edit_screen.h. */
#include "cli/edit_screen.h"

#include <stdlib.h>
#include <string.h>

static bool add_row(edit_screen *s, screen_row row)
{
    if (s->n_rows == s->capacity) {
        int capacity = s->capacity ? 2 * s->capacity : 16;
        screen_row *rows = realloc(s->rows, (size_t)capacity * sizeof *rows);
        if (!rows) return false;
        s->rows = rows;
        s->capacity = capacity;
    }
    s->rows[s->n_rows++] = row;
    return true;
}

static int text_width(const char *text)
{
    int sum = 0, width;
    for (size_t i = 0, n = strlen(text); i < n; sum += width)
        i += edit_cluster(text + i, n - i, &width);
    return sum;
}

/* Cuts the text into rows of at most `columns`, and finds the cursor among them. */
static void lay_out(edit_screen *s, const edit_text *t, int indent, int columns)
{
    const char *text = strbuf_text(&t->text);
    const size_t length = t->text.length;
    screen_row row = {.width = indent, .first = true};
    s->n_rows = 0;
    for (size_t at = 0;;) {
        int width = 0;
        bool end = at == length, line_break = !end && text[at] == '\n';
        size_t size = end || line_break ? 0 : edit_cluster(text + at, length - at, &width);
        /* A cursor past the last column stands in the next row. */
        bool cursor_wraps = at == t->cursor && row.width >= columns;
        if ((row.width + width > columns && row.width > indent) || cursor_wraps) {
            row.end = at;
            if (!add_row(s, row)) return;
            row = (screen_row){.start = at, .width = indent};
        }
        if (at == t->cursor) {
            s->cursor_row = s->n_rows;
            s->cursor_column = row.width;
        }
        row.width += width;
        at += size;
        if (!end && !line_break) continue;
        row.end = at;
        if (!add_row(s, row) || end) return;
        at++;
        row = (screen_row){.start = at, .width = indent, .first = true};
    }
}

/* Chooses which rows are shown: all, or as many as fit around the cursor. */
static void choose_rows(edit_screen *s, int lines)
{
    int top = s->cursor_row - lines / 2;
    if (top > s->n_rows - lines) top = s->n_rows - lines;
    s->top = top > 0 ? top : 0;
    s->bottom = s->top + lines < s->n_rows ? s->top + lines : s->n_rows;
}

/* Rows of the terminal between the first row drawn and the cursor. A terminal that has become
 * narrower has wrapped the rows drawn before. */
static int rows_above_cursor(const edit_screen *s, int columns)
{
    int above = 0;
    for (int i = s->top; i < s->cursor_row; i++)
        above += s->rows[i].width > columns ? (s->rows[i].width + columns - 1) / columns : 1;
    return above + (columns < s->columns ? s->cursor_column / columns : 0);
}

static void erase(const edit_screen *s, int columns, strbuf *out)
{
    int above = s->columns ? rows_above_cursor(s, columns) : 0;
    if (above) strbuf_printf(out, "\x1b[%dA", above);
    strbuf_puts(out, "\r\x1b[J");
}

static void put_row(const edit_screen *s, const edit_text *t, int index, const char *prompt,
                    int indent, strbuf *out)
{
    const screen_row *row = &s->rows[index];
    if (index == 0)
        strbuf_puts(out, prompt);
    else
        strbuf_printf(out, "%-*s", indent, row->first ? "." : "");
    const char *text = strbuf_text(&t->text);
    for (size_t at = row->start; at < row->end; at++) {
        if (text[at] == '\t')
            strbuf_puts(out, "    ");
        else
            strbuf_putc(out, text[at]);
    }
}

void screen_draw(edit_screen *s, const edit_text *t, const char *prompt, int columns, int lines,
                 strbuf *out)
{
    int indent = text_width(prompt);
    erase(s, columns, out);
    lay_out(s, t, indent, columns);
    choose_rows(s, lines > 1 ? lines : 1);
    s->columns = columns;
    for (int i = s->top; i < s->bottom; i++) {
        if (i > s->top) strbuf_puts(out, "\r\n");
        put_row(s, t, i, prompt, indent, out);
    }
    int up = s->bottom - 1 - s->cursor_row;
    if (up > 0) strbuf_printf(out, "\x1b[%dA", up);
    strbuf_puts(out, "\r");
    if (s->cursor_column) strbuf_printf(out, "\x1b[%dC", s->cursor_column);
}

void screen_leave(edit_screen *s, strbuf *out)
{
    int down = s->bottom - 1 - s->cursor_row;
    if (s->columns && down > 0) strbuf_printf(out, "\x1b[%dB", down);
    strbuf_puts(out, "\r\n");
    screen_forget(s);
}

void screen_forget(edit_screen *s)
{
    s->columns = 0;
    s->top = s->bottom = s->cursor_row = s->cursor_column = 0;
}

void screen_free(edit_screen *s)
{
    free(s->rows);
    *s = (edit_screen){0};
}
