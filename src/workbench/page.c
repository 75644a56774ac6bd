/* Prints pages as plain text or Markdown: see page.h. */
#include "workbench/page.h"

#include "text/utf8.h"

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

static size_t text_width(const char *text)
{
    return utf8_characters(text, strlen(text));
}

void page_reserve(page *page, const char *const *cells)
{
    for (int c = 0; c < page->n_columns; c++) {
        const size_t width = text_width(cells[c]);
        if (width > page->widths[c]) page->widths[c] = width;
    }
}

void page_row(page *page, const char *const *cells)
{
    for (int c = 0; c < page->n_columns; c++)
        strbuf_append(&page->cells, cells[c], strlen(cells[c]) + 1);
    page_reserve(page, cells);
    page->n_rows++;
}

void page_table(page *page, int n_columns, const char *const *names)
{
    const char *plain[PAGE_MAX_COLUMNS];
    page->n_columns = n_columns;
    page->n_rows = 0;
    page->begun = false;
    memset(page->widths, 0, sizeof page->widths);
    strbuf_clear(&page->cells);
    for (int c = 0; c < n_columns; c++) {
        page->right[c] = *names[c] == '>';
        plain[c] = names[c] + page->right[c];
    }
    page_row(page, plain);
}

static void print_plain_row(page *page, const char *row)
{
    for (int c = 0; c < page->n_columns; c++) {
        size_t pad = page->widths[c] - text_width(row);
        if (c > 0) strbuf_puts(page->out, "  ");
        if (page->right[c]) repeat(page->out, ' ', pad);
        strbuf_puts(page->out, row);
        if (!page->right[c] && c + 1 < page->n_columns) repeat(page->out, ' ', pad);
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

void page_table_rows(page *page)
{
    if (page->cells.failed) page->out->failed = true;
    if (page->cells.failed || page->n_rows == 0) return;
    if (!page->begun) begin_block(page);
    const char *row = page->cells.data;
    for (int r = 0; r < page->n_rows; r++) {
        if (page->markdown)
            print_markdown_row(page, row);
        else
            print_plain_row(page, row);
        if (page->markdown && !page->begun) {
            for (int c = 0; c < page->n_columns; c++)
                strbuf_puts(page->out, page->right[c] ? "|---:" : "|---");
            strbuf_puts(page->out, "|\n");
        }
        page->begun = true;
        row = skip_row(row, page->n_columns);
    }
    strbuf_clear(&page->cells);
    page->n_rows = 0;
}

void page_table_end(page *page)
{
    page_table_rows(page);
    strbuf_free(&page->cells);
    page->cells = (strbuf){0};
}
