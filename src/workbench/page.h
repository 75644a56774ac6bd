/* A page of sections, paragraphs, tables and code, as plain text or as Markdown: what is said is
 * written once, how it looks is decided here.
 */
#ifndef QUIPU_WORKBENCH_PAGE_H
#define QUIPU_WORKBENCH_PAGE_H

#include "base/strbuf.h"

enum { PAGE_MAX_COLUMNS = 16, PAGE_CELL_SIZE = 512 };

typedef struct page {
    strbuf *out;
    bool markdown;
    int level; /* of the page's title: 1 is the outermost */
    /* the table that is being filled; rows keep until its end, for their widths */
    int n_columns;
    strbuf cells; /* NUL-terminated, row by row, the header first */
    int n_rows;
} page;

void page_title(page *page, const char *title, const char *summary);
void page_section(page *page, const char *name);
/* Wrapped at 100 columns in plain text. */
void page_paragraph(page *page, const char *text);
/* Lines as they are; `language` names them for Markdown. `length` bytes of `text`. */
void page_code(page *page, const char *language, const char *text, size_t length);

/* A table: page_table() with the columns' names, page_row() with as many texts, page_table_end().
 * Names that begin with '>' are columns of numbers, to the right. */
void page_table(page *page, int n_columns, const char *const *names);
void page_row(page *page, const char *const *cells);
void page_table_end(page *page);

#endif
