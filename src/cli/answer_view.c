/* Shows an answer as it is made: see answer_view.h. */
#include "cli/answer_view.h"

#include "base/option_cache.h"
#include "base/status.h"
#include "cli/terminal.h"

#include <ctype.h>
#include <string.h>

void answer_view_begin(answer_view *v, const cli_settings *settings)
{
    answer_view_free(v);
    v->drawn = !settings->plain && !settings->raw && terminal_draws();
    v->page.colourless = option_has_no_colours();
    v->folded = v->drawn && strcmp(cli_thoughts[settings->thoughts], "fold") == 0;
}

/* Writes what was drawn. */
static qp_status write_out(strbuf *out, qp_error *error)
{
    qp_status status = out->failed ? error_no_memory(error, "the answer", out->length)
                                   : cli_write(strbuf_text(out), out->length, error);
    strbuf_free(out);
    return status == QP_OK ? cli_flush(error) : status;
}

qp_status answer_view_write(answer_view *v, const char *text, size_t length, qp_error *error)
{
    int columns, lines;
    strbuf out = {0};
    if (!v->drawn) {
        TRY(terminal_show_text(&v->page.wrap, text, length, error));
        return cli_flush(error);
    }
    terminal_size(&columns, &lines);
    markdown_put(&v->page, text, length, columns, &out);
    return write_out(&out, error);
}

/* Shows what is still held back, and begins a new page with these styles. */
static qp_status turn_page(answer_view *v, unsigned base, const char *between, qp_error *error)
{
    int columns, lines;
    strbuf out = {0};
    terminal_size(&columns, &lines);
    markdown_end(&v->page, columns, &out);
    strbuf_puts(&out, between);
    markdown_free(&v->page);
    v->page = (markdown){.base = base, .colourless = option_has_no_colours()};
    return write_out(&out, error);
}

static int count_words(const strbuf *text)
{
    int words = 0;
    for (const char *at = strbuf_text(text); *at; at++)
        words += !isspace((unsigned char)*at) && (!at[1] || isspace((unsigned char)at[1]));
    return words;
}

/* The line that stands for folded thoughts, in place of the one before. */
static qp_status show_folded(const answer_view *v, bool ended, qp_error *error)
{
    strbuf out = {0};
    const int words = count_words(&v->thoughts);
    strbuf_printf(&out, "\r\x1b[K\x1b[2m(%s %d word%s%s)\x1b[0m%s",
                  ended ? "thought" : "thinking:", words, words == 1 ? "" : "s", ended ? "" : "...",
                  ended ? "\n\n" : "");
    return write_out(&out, error);
}

static qp_status turn(answer_view *v, bool thinking, qp_error *error)
{
    if (v->thinking == thinking) return QP_OK;
    v->thinking = thinking;
    if (v->folded) return show_folded(v, !thinking, error);
    if (v->drawn) return turn_page(v, thinking ? MARKDOWN_DIM : 0, thinking ? "" : "\n\n", error);
    const char *mark = thinking ? "<think>\n" : "\n</think>\n\n";
    return answer_view_write(v, mark, strlen(mark), error);
}

qp_status answer_view_put(answer_view *v, const qp_text_piece *piece, qp_error *error)
{
    const bool thinking = piece->kind == QP_TEXT_THINKING;
    strbuf_append(thinking ? &v->thoughts : &v->content, piece->text, piece->length);
    TRY(turn(v, thinking, error));
    if (thinking && v->folded) return show_folded(v, false, error);
    return answer_view_write(v, piece->text, piece->length, error);
}

qp_status answer_view_end(answer_view *v, qp_error *error)
{
    TRY(turn(v, false, error));
    if (v->drawn) return turn_page(v, 0, "\n", error);
    return answer_view_write(v, "\n", 1, error);
}

qp_status answer_view_thoughts(answer_view *v, qp_error *error)
{
    const bool folded = v->folded;
    if (v->thoughts.length == 0)
        return error_set(error, QP_INVALID, "The last answer has no thoughts.");
    v->folded = false;
    qp_status status = turn(v, true, error);
    if (status == QP_OK) status = answer_view_write(v, v->thoughts.data, v->thoughts.length, error);
    v->folded = folded;
    v->thinking = false;
    if (status != QP_OK) return status;
    return v->drawn ? turn_page(v, 0, "\n", error)
                    : answer_view_write(v, "\n</think>\n", 10, error);
}

bool answer_view_is_empty(const answer_view *v)
{
    return v->content.length + v->thoughts.length == 0;
}

void answer_view_free(answer_view *v)
{
    markdown_free(&v->page);
    strbuf_free(&v->content);
    strbuf_free(&v->thoughts);
    *v = (answer_view){0};
}
