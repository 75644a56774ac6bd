/* Tables of Markdown: see markdown.h. A table's first row of cells fixes the widths of its columns
 * together with the heading, so that each row is shown when it has arrived. */
#include "cli/markdown.h"

#include "cli/edit_text.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { NARROWEST = 3, BETWEEN = 3 /* columns between two cells */ };

/* A character of a cell. */
typedef struct glyph {
    char bytes[5]; /* with a NUL */
    int8_t width;
    uint8_t mask;
} glyph;

typedef struct cell {
    glyph *glyphs; /* [count] */
    int count, capacity, width;
    int shown; /* glyphs that earlier lines of the row have */
} cell;

typedef struct row {
    cell cells[MARKDOWN_MOST_COLUMNS];
    int count;
} row;

/* ---- reading ------------------------------------------------------------------------------- */

static void add_glyphs(void *context, unsigned mask, const char *text, size_t length)
{
    cell *c = context;
    for (size_t i = 0, size; i < length; i += size) {
        const size_t sequence = utf8_sequence(text + i, length - i);
        const uint32_t code = sequence ? utf8_decode(text + i, sequence) : 0;
        size = sequence ? sequence : 1;
        if (c->count == c->capacity) {
            const int capacity = c->capacity ? 2 * c->capacity : 32;
            glyph *more = realloc(c->glyphs, (size_t)capacity * sizeof *more);
            if (!more) return;
            c->glyphs = more;
            c->capacity = capacity;
        }
        glyph *g = &c->glyphs[c->count++];
        *g = (glyph){.bytes = "?", .width = 1, .mask = (uint8_t)mask};
        if (code >= 0x20 && (code < 0x7f || code >= 0xa0)) {
            memcpy(g->bytes, text + i, size);
            g->bytes[size] = '\0';
            g->width = (int8_t)edit_width(code);
        }
        c->width += g->width;
    }
}

/* Where the cell at `text` ends: a bar that is not escaped. */
static size_t cell_length(const char *text)
{
    size_t n = 0;
    while (text[n] && text[n] != '|')
        n += text[n] == '\\' && text[n + 1] ? 2 : 1;
    return n;
}

static void read_row(const char *line, unsigned mask, row *out)
{
    *out = (row){0};
    for (line++; *line && out->count < MARKDOWN_MOST_COLUMNS;) {
        const size_t length = cell_length(line), blanks = strspn(line, " ");
        size_t end = length;
        while (end > blanks && line[end - 1] == ' ')
            end--;
        if (blanks < length || line[length])
            markdown_spans(line + (blanks < end ? blanks : end), blanks < end ? end - blanks : 0,
                           ' ', mask, true, add_glyphs, &out->cells[out->count++]);
        line += length + (line[length] == '|');
    }
}

static void free_row(row *r)
{
    for (int i = 0; i < MARKDOWN_MOST_COLUMNS; i++)
        free(r->cells[i].glyphs);
}

/* "|---|:-:|" */
static bool is_rule(const char *line)
{
    return strchr(line, '-') && !line[strspn(line, "|-: ")];
}

/* ---- widths -------------------------------------------------------------------------------- */

/* "---:" to the right, ":---:" in the middle. */
static markdown_side side_of(const cell *rule)
{
    if (rule->count == 0 || rule->glyphs[rule->count - 1].bytes[0] != ':') return MARKDOWN_LEFT;
    return rule->glyphs[0].bytes[0] == ':' ? MARKDOWN_MIDDLE : MARKDOWN_RIGHT;
}

static void set_sides(markdown *m)
{
    row rule;
    read_row(strbuf_text(&m->rule), 0, &rule);
    for (int i = 0; i < MARKDOWN_MOST_COLUMNS; i++)
        m->sides[i] = side_of(&rule.cells[i]);
    free_row(&rule);
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Shares the window's width among the columns. Each gets what the first row needs, and for later
 * rows half as much again, or less where the first row needs the whole width. A column that needs
 * more than an equal part gets an equal part of what the others leave. */
static void set_widths(markdown *m, const row *heading, const row *first, int columns)
{
    const int n = m->n_columns = heading->count, room = columns - 1 - BETWEEN * (n - 1);
    int wanted[MARKDOWN_MOST_COLUMNS] = {0}, sum = 0, share = room / (n ? n : 1);
    for (int i = 0; i < n; i++) {
        const int width = first->cells[i].width;
        wanted[i] = heading->cells[i].width > width ? heading->cells[i].width : width;
        sum += wanted[i] + wanted[i] / 2 + 4;
    }
    for (int i = 0; i < n; i++)
        wanted[i] += sum <= room ? wanted[i] / 2 + 4 : least(wanted[i] / 2 + 4, share / 4);
    for (int round = 0; sum > room && round < n; round++) {
        int left = room, wide = 0;
        for (int i = 0; i < n; i++)
            if (wanted[i] <= share)
                left -= wanted[i];
            else
                wide++;
        share = wide ? left / wide : share;
    }
    for (int i = 0; i < n; i++) {
        m->widths[i] = sum > room ? least(wanted[i], share) : wanted[i];
        if (m->widths[i] < NARROWEST) m->widths[i] = NARROWEST;
    }
}

/* ---- drawing ------------------------------------------------------------------------------- */

/* The glyphs of the cell's next line: as many words as fit. */
static int line_of(const cell *c, int width)
{
    int end = c->shown, used = 0, word = -1;
    while (end < c->count && used + c->glyphs[end].width <= width) {
        if (c->glyphs[end].bytes[0] == ' ') word = end;
        used += c->glyphs[end++].width;
    }
    return end < c->count && word > c->shown && c->glyphs[end].bytes[0] != ' ' ? word : end;
}

static void put_blanks(markdown *m, int count, int columns, strbuf *out)
{
    for (int i = 0; i < count; i++)
        markdown_show(m, 0, " ", 1, columns, out);
}

static void draw_cell_line(markdown *m, cell *c, int i, int columns, strbuf *out)
{
    const int end = line_of(c, m->widths[i]);
    const bool last = i + 1 == m->n_columns;
    int blanks = m->widths[i], before = 0;
    for (int g = c->shown; g < end; g++)
        blanks -= c->glyphs[g].width;
    if (m->sides[i] != MARKDOWN_LEFT) before = m->sides[i] == MARKDOWN_RIGHT ? blanks : blanks / 2;
    if (!last || c->shown < end) put_blanks(m, before, columns, out);
    for (; c->shown < end; c->shown++) {
        const glyph *g = &c->glyphs[c->shown];
        markdown_show(m, g->mask, g->bytes, strlen(g->bytes), columns, out);
    }
    while (c->shown < c->count && c->glyphs[c->shown].bytes[0] == ' ')
        c->shown++;
    if (!last) put_blanks(m, blanks - before, columns, out);
}

static void end_drawn(markdown *m, int columns, strbuf *out)
{
    markdown_show(m, 0, "\n", 1, columns, out);
}

/* Takes from the widest columns what a window that became narrower does not have. */
static void narrow(markdown *m, int columns)
{
    for (;;) {
        int widest = 0, total = BETWEEN * (m->n_columns - 1);
        for (int i = 0; i < m->n_columns; i++) {
            total += m->widths[i];
            if (m->widths[i] > m->widths[widest]) widest = i;
        }
        if (total < columns || m->widths[widest] <= NARROWEST) return;
        m->widths[widest]--;
    }
}

static void draw_row(markdown *m, row *r, int columns, strbuf *out)
{
    narrow(m, columns);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < m->n_columns; i++) {
            draw_cell_line(m, &r->cells[i], i, columns, out);
            more |= r->cells[i].shown < r->cells[i].count;
            if (i + 1 < m->n_columns)
                markdown_show(m, MARKDOWN_DIM, " │ ", strlen(" │ "), columns, out);
        }
        end_drawn(m, columns, out);
    }
}

static void draw_rule(markdown *m, int columns, strbuf *out)
{
    for (int i = 0; i < m->n_columns; i++) {
        if (i) markdown_show(m, MARKDOWN_DIM, "─┼─", strlen("─┼─"), columns, out);
        for (int w = 0; w < m->widths[i]; w++)
            markdown_show(m, MARKDOWN_DIM, "─", strlen("─"), columns, out);
    }
    end_drawn(m, columns, out);
}

static void draw_heading(markdown *m, const row *first, int columns, strbuf *out)
{
    row heading;
    read_row(strbuf_text(&m->heading), MARKDOWN_BOLD, &heading);
    set_sides(m);
    set_widths(m, &heading, first, columns);
    draw_row(m, &heading, columns, out);
    draw_rule(m, columns, out);
    free_row(&heading);
}

/* ---- lines --------------------------------------------------------------------------------- */

/* The lines were no table: they are text. */
static void give_up(markdown *m, int columns, strbuf *out)
{
    const strbuf *lines[] = {&m->heading, &m->rule};
    for (int i = 0; i < 2; i++)
        if (lines[i]->length > 0) {
            markdown_show(m, 0, lines[i]->data, lines[i]->length, columns, out);
            end_drawn(m, columns, out);
        }
}

static void forget(markdown *m)
{
    strbuf_clear(&m->heading);
    strbuf_clear(&m->rule);
    m->n_columns = 0;
}

/* Whether a table of this heading has room on the window. */
static bool fits(const char *heading, int columns)
{
    row r;
    read_row(heading, 0, &r);
    const int count = r.count;
    free_row(&r);
    return count > 0 && count < MARKDOWN_MOST_COLUMNS && count * (NARROWEST + BETWEEN) <= columns;
}

bool markdown_table_line(markdown *m, int columns, strbuf *out)
{
    const char *line = strbuf_text(&m->line);
    if (m->heading.length == 0) {
        if (!fits(line, columns)) return false;
        strbuf_append(&m->heading, line, m->line.length);
        return true;
    }
    if (m->rule.length == 0) {
        if (is_rule(line)) return strbuf_append(&m->rule, line, m->line.length), true;
        give_up(m, columns, out);
        forget(m);
        return false;
    }
    row r;
    read_row(line, 0, &r);
    if (m->n_columns == 0) draw_heading(m, &r, columns, out);
    draw_row(m, &r, columns, out);
    free_row(&r);
    return true;
}

void markdown_table_end(markdown *m, int columns, strbuf *out)
{
    const row none = {0};
    if (m->rule.length == 0)
        give_up(m, columns, out);
    else if (m->n_columns == 0)
        draw_heading(m, &none, columns, out);
    forget(m);
}
