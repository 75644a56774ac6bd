/* Shows an answer as it is made: see answer_view.h. */
#include "cli/answer_view.h"

#include "base/status.h"
#include "cli/cli.h"
#include "cli/terminal.h"

#include <string.h>

void answer_view_begin(answer_view *v)
{
    answer_view_free(v);
}

static qp_status show(answer_view *v, const char *text, size_t length, qp_error *error)
{
    TRY(terminal_show_text(&v->wrap, text, length, error));
    return cli_flush(error);
}

/* Thoughts stand between marks, as most models write them. */
static qp_status turn(answer_view *v, bool thinking, qp_error *error)
{
    if (v->thinking == thinking) return QP_OK;
    const char *mark = thinking ? "<think>\n" : "\n</think>\n\n";
    v->thinking = thinking;
    return show(v, mark, strlen(mark), error);
}

qp_status answer_view_put(answer_view *v, const qp_text_piece *piece, qp_error *error)
{
    const bool thinking = piece->kind == QP_TEXT_THINKING;
    TRY(turn(v, thinking, error));
    strbuf_append(thinking ? &v->thoughts : &v->content, piece->text, piece->length);
    return show(v, piece->text, piece->length, error);
}

qp_status answer_view_end(answer_view *v, qp_error *error)
{
    TRY(turn(v, false, error));
    return show(v, "\n", 1, error);
}

bool answer_view_is_empty(const answer_view *v)
{
    return v->content.length + v->thoughts.length == 0;
}

void answer_view_free(answer_view *v)
{
    word_wrap_free(&v->wrap);
    strbuf_free(&v->content);
    strbuf_free(&v->thoughts);
    *v = (answer_view){0};
}
