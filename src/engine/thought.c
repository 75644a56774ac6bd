/* Budgets of thoughts, and forms after them: see thought.h. */
#define _GNU_SOURCE /* memmem */
#include "engine/thought.h"

#include <stdio.h>
#include <string.h>

/* The token that the mark is; -1: the mark is a text of several. */
static int32_t token_of(const tokenizer *t, const char *mark)
{
    return tokenizer_find(t, mark, strlen(mark));
}

/* Appends a text to the closing tokens. */
static qp_status add_closing(const qp_vocabulary *v, const char *text, thought_rules *out,
                             qp_error *error)
{
    qp_tokens tokens = {0};
    TRY(qp_tokenize(v, text, strlen(text), QP_BOS_NEVER | QP_SPECIAL, &tokens, error));
    const size_t room = THOUGHT_MOST_CLOSING - out->n_closing;
    const size_t n = tokens.count < room ? tokens.count : room;
    memcpy(out->closing + out->n_closing, tokens.data, n * sizeof *out->closing);
    out->n_closing += n;
    qp_tokens_free(&tokens);
    return QP_OK;
}

static qp_status make_closing(const qp_vocabulary *v, thought_rules *out, qp_error *error)
{
    char text[THOUGHT_LONGEST_MARK + 8];
    out->close = out->marks->close;
    const int32_t close = token_of(v->tokenizer, out->close);
    snprintf(text, sizeof text, "\n%s\n\n", out->close);
    TRY(add_closing(v, text, out, error));
    out->after = out->n_closing;
    for (size_t i = 0; i < out->n_closing; i++)
        if (out->closing[i] == close) out->after = i + 1;
    if (out->form && close < 0) out->budget = 0;
    return QP_OK;
}

/* In channels a message ends, and the header of the next begins, which is a call's own. */
static qp_status make_headers(const qp_vocabulary *v, bool calls, thought_rules *out,
                              qp_error *error)
{
    const char *header = out->marks->close;
    out->close = calls ? out->marks->prompt : header;
    TRY(add_closing(v, "<|end|>", out, error));
    TRY(add_closing(v, out->marks->prompt, out, error));
    out->first = out->n_closing;
    if (!calls) TRY(add_closing(v, header, out, error));
    out->after = out->n_closing;
    return QP_OK;
}

qp_status thought_rules_make(const qp_vocabulary *v, const int32_t *prompt, size_t n_prompt,
                             int64_t budget, thought_end_kind then, thought_rules *out,
                             qp_error *error)
{
    *out = (thought_rules){.budget = budget, .form = then != THOUGHT_TEXT, .open_token = -1};
    if (budget < 0 && !out->form) return QP_OK;
    out->marks = thinking_marks_of(v);
    if (!out->marks) return QP_OK;
    out->tokenizer = v->tokenizer;
    out->open = thinking_begins(out->marks, v->tokenizer, prompt, n_prompt);
    out->open_token = token_of(v->tokenizer, out->marks->open);
    if (out->marks->prompt) return make_headers(v, then == THOUGHT_CALLS, out, error);
    return make_closing(v, out, error);
}

static void force(thought_watch *w, const thought_rules *r, size_t from)
{
    w->next = from;
    w->forcing = from < r->n_closing;
}

void thought_begin(thought_watch *w, const thought_rules *r)
{
    *w = (thought_watch){.inside = r->open};
    if (!w->inside || r->budget != 0) return;
    force(w, r, r->first);
    w->inside = w->forcing;
}

/* Whether the text ends a mark with this token; what came before it counts no more. */
static bool completes(thought_watch *w, const thought_rules *r, int32_t token, const char *mark)
{
    size_t length = 0;
    const char *piece = tokenizer_piece(r->tokenizer, token, &length);
    if (!piece) return false;
    const size_t skip = length > THOUGHT_LONGEST_MARK ? length - THOUGHT_LONGEST_MARK : 0;
    const size_t keep = w->n_tail < THOUGHT_LONGEST_MARK ? w->n_tail : THOUGHT_LONGEST_MARK;
    memmove(w->tail, w->tail + w->n_tail - keep, keep);
    memcpy(w->tail + keep, piece + skip, length - skip);
    w->n_tail = keep + length - skip;
    const bool found = memmem(w->tail, w->n_tail, mark, strlen(mark)) != NULL;
    if (found) w->n_tail = 0;
    return found;
}

static bool take_forced(thought_watch *w, const thought_rules *r)
{
    if (++w->next < r->n_closing) return false;
    w->forcing = w->inside = false;
    return true;
}

static bool take_thought(thought_watch *w, const thought_rules *r, int32_t token)
{
    w->used++;
    if (completes(w, r, token, r->close)) {
        w->inside = false;
        if (r->form) force(w, r, r->after);
        return true;
    }
    if (r->budget < 0 || w->used < (size_t)r->budget) return false;
    force(w, r, 0);
    return true;
}

bool thought_take(thought_watch *w, const thought_rules *r, int32_t token)
{
    if (!r->marks) return false;
    const bool first = !w->begun;
    w->begun = true;
    if (w->forcing) return take_forced(w, r);
    if (w->inside) return take_thought(w, r, token);
    if ((r->form && !first) || !completes(w, r, token, r->marks->open)) return false;
    w->inside = true;
    if (r->budget >= 0 && w->used >= (size_t)r->budget) force(w, r, 0);
    return true;
}

bool thought_end(thought_watch *w, const thought_rules *r)
{
    if (r->form && w->inside && !w->forcing) force(w, r, 0);
    return w->forcing;
}

int32_t thought_forced(const thought_watch *w, const thought_rules *r)
{
    return w->forcing ? r->closing[w->next] : -1;
}

bool thought_is_over(const thought_watch *w)
{
    return !w->inside && !w->forcing;
}

int32_t thought_opening(const thought_watch *w, const thought_rules *r)
{
    const bool may = r->marks && r->form && !w->begun && r->budget != 0;
    return may ? r->open_token : -1;
}

size_t thought_left(const thought_watch *w, const thought_rules *r)
{
    if (!r->marks || r->budget < 0 || !w->inside || w->forcing) return SIZE_MAX;
    return (size_t)r->budget - w->used;
}
