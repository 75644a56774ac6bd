/* A page of sections, paragraphs, tables and code, printed as plain text or as Markdown.
 */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>

enum { PAGE_MAX_COLUMNS = 16, PAGE_CELL_SIZE = 512 };

typedef struct page {
    strbuf *out;
    bool markdown;
    int level; /* heading level of the page's title: 1 is the outermost */
    /* the table in progress; its rows are kept until they are printed, because their widths are
     * needed */
    int n_columns;
    strbuf cells; /* NUL-terminated, row by row, the header first */
    int n_rows;
    bool begun; /* the header is printed */
    bool right[PAGE_MAX_COLUMNS];
    size_t widths[PAGE_MAX_COLUMNS];
} page;

void page_title(page *page, const char *title, const char *summary);
void page_section(page *page, const char *name);
/* A paragraph, wrapped at 100 columns in plain text. */
void page_paragraph(page *page, const char *text);
/* Literal lines, `length` bytes of `text`; `language` names their language for Markdown. */
void page_code(page *page, const char *language, const char *text, size_t length);

/* A table: page_table() with the columns' names, page_row() with that many texts, page_table_end().
 * Names that begin with '>' are right-aligned columns of numbers. */
void page_table(page *page, int n_columns, const char *const *names);
void page_row(page *page, const char *const *cells);
void page_table_end(page *page);

/* For tables that are read while they grow: makes columns at least as wide as these texts; prints
 * the rows so far, before others follow. */
void page_reserve(page *page, const char *const *cells);
void page_table_rows(page *page);
