/* Shows an answer as it is made. */
#ifndef QUIPU_CLI_ANSWER_VIEW_H
#define QUIPU_CLI_ANSWER_VIEW_H

#include "cli/word_wrap.h"
#include "quipu.h"

typedef struct answer_view {
    word_wrap wrap;
    strbuf content;  /* of the answer */
    strbuf thoughts; /* that preceded it */
    bool thinking;   /* thoughts are being shown */
} answer_view;

void answer_view_begin(answer_view *view);
qp_status answer_view_put(answer_view *view, const qp_text_piece *piece, qp_error *error);

/* Ends the last line. */
qp_status answer_view_end(answer_view *view, qp_error *error);

/* Whether the answer says nothing so far. */
bool answer_view_is_empty(const answer_view *view);

void answer_view_free(answer_view *view);

#endif
