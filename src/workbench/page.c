/* Prints pages as plain text or Markdown: see page.h. */
#include "workbench/page.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 100 };

static void repeat(strbuf *out, char c, size_t count)
{
    while (count-- > 0)
        strbuf_putc(out, c);
}

/* Separates blocks by an empty line. */
static void begin_block(page *page)
{
    if (page->out->length > 0) strbuf_putc(page->out, '\n');
}

void page_title(page *page, const char *title, const char *summary)
{
    begin_block(page);
    if (page->markdown) {
        repeat(page->out, '#', (size_t)page->level);
        strbuf_printf(page->out, " %s\n\n%c%s.\n", title, toupper((unsigned char)*summary),
                      summary + 1);
    } else {
        strbuf_printf(page->out, "%s: %s\n", title, summary);
    }
}

void page_section(page *page, const char *name)
{
    begin_block(page);
    if (page->markdown) {
        repeat(page->out, '#', (size_t)page->level + 1);
        strbuf_printf(page->out, " %s\n", name);
        return;
    }
    for (const char *c = name; *c; c++)
        strbuf_putc(page->out, (char)toupper((unsigned char)*c));
    strbuf_putc(page->out, '\n');
}

void page_paragraph(page *page, const char *text)
{
    begin_block(page);
    if (page->markdown) {
        strbuf_printf(page->out, "%s\n", text);
        return;
    }
    size_t column = 0;
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        size_t length = strcspn(text, " ");
        if (column > 0 && column + 1 + length > WIDTH) {
            strbuf_putc(page->out, '\n');
            column = 0;
        }
        if (column > 0) strbuf_putc(page->out, ' ');
        strbuf_append(page->out, text, length);
        column += length + (column > 0);
        text += length;
    }
    strbuf_putc(page->out, '\n');
}

void page_code(page *page, const char *language, const char *text, size_t length)
{
    begin_block(page);
    while (length > 0 && text[length - 1] == '\n')
        length--;
    if (page->markdown) strbuf_printf(page->out, "```%s\n", language);
    strbuf_append(page->out, text, length);
    strbuf_puts(page->out, page->markdown ? "\n```\n" : "\n");
}

void page_table(page *page, int n_columns, const char *const *names)
{
    page->n_columns = n_columns;
    page->n_rows = 0;
    strbuf_clear(&page->cells);
    page_row(page, names);
}

void page_row(page *page, const char *const *cells)
{
    for (int c = 0; c < page->n_columns; c++)
        strbuf_append(&page->cells, cells[c], strlen(cells[c]) + 1);
    page->n_rows++;
}

/* Counts characters, not bytes, so that columns of UTF-8 line up. */
static size_t text_width(const char *text)
{
    size_t width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_plain_row(page *page, const char *row, const size_t *widths, const bool *right)
{
    for (int c = 0; c < page->n_columns; c++) {
        size_t pad = widths[c] - text_width(row);
        if (c > 0) strbuf_puts(page->out, "  ");
        if (right[c]) repeat(page->out, ' ', pad);
        strbuf_puts(page->out, row);
        if (!right[c] && c + 1 < page->n_columns) repeat(page->out, ' ', pad);
        row += strlen(row) + 1;
    }
    strbuf_putc(page->out, '\n');
}

static void print_markdown_row(page *page, const char *row)
{
    for (int c = 0; c < page->n_columns; c++) {
        strbuf_puts(page->out, "| ");
        for (; *row; row++) {
            if (*row == '|') strbuf_putc(page->out, '\\');
            strbuf_putc(page->out, *row);
        }
        row++;
        strbuf_putc(page->out, ' ');
    }
    strbuf_puts(page->out, "|\n");
}

static const char *skip_row(const char *row, int n_columns)
{
    for (int c = 0; c < n_columns; c++)
        row += strlen(row) + 1;
    return row;
}

/* Reads the header's marks for columns of numbers, and removes them. */
static void take_marks(page *page, bool *right)
{
    char *name = page->cells.data;
    for (int c = 0; c < page->n_columns; c++) {
        size_t length = strlen(name);
        right[c] = *name == '>';
        if (right[c])
            memmove(name, name + 1, page->cells.length - (size_t)(name - page->cells.data) - 1);
        name += length + !right[c];
    }
}

void page_table_end(page *page)
{
    if (page->cells.failed) {
        page->out->failed = true;
        strbuf_free(&page->cells);
        return;
    }
    bool right[PAGE_MAX_COLUMNS];
    begin_block(page);
    take_marks(page, right);
    size_t widths[PAGE_MAX_COLUMNS] = {0};
    const char *cell = page->cells.data;
    for (int i = 0; i < page->n_rows * page->n_columns; i++) {
        size_t width = text_width(cell);
        if (width > widths[i % page->n_columns]) widths[i % page->n_columns] = width;
        cell += strlen(cell) + 1;
    }
    const char *row = page->cells.data;
    for (int r = 0; r < page->n_rows; r++) {
        if (page->markdown)
            print_markdown_row(page, row);
        else
            print_plain_row(page, row, widths, right);
        if (page->markdown && r == 0) {
            for (int c = 0; c < page->n_columns; c++)
                strbuf_puts(page->out, right[c] ? "|---:" : "|---");
            strbuf_puts(page->out, "|\n");
        }
        row = skip_row(row, page->n_columns);
    }
    strbuf_free(&page->cells);
    page->cells = (strbuf){0};
}
