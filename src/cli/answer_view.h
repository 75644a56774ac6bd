/* Shows an answer as it is made. At a terminal its Markdown is drawn, and thoughts before it are
 * dimmed, or folded to a line; elsewhere its text is written as it is, and thoughts stand between
 * the marks that most models use. */
#pragma once

#include "cli/cli.h"
#include "cli/markdown.h"

typedef struct answer_view {
    markdown page;   /* of the answer, or of its thoughts */
    strbuf content;  /* of the answer */
    strbuf thoughts; /* that preceded it */
    bool thinking;   /* thoughts are being shown */
    bool drawn, folded;
} answer_view;

/* How the settings want answers to be shown. */
void answer_view_begin(answer_view *view, const cli_settings *settings);
qp_status answer_view_put(answer_view *view, const qp_text_piece *piece, qp_error *error);

/* The same for text of which nothing is known. */
qp_status answer_view_write(answer_view *view, const char *text, size_t length, qp_error *error);

/* Ends the last line. */
qp_status answer_view_end(answer_view *view, qp_error *error);

/* Shows the thoughts of the last answer. */
qp_status answer_view_thoughts(answer_view *view, qp_error *error);

/* Whether the answer says nothing so far. */
bool answer_view_is_empty(const answer_view *view);

void answer_view_free(answer_view *view);
