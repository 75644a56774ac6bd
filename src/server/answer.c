/* One answer of a call: tokens become text, and the text content and calls of tools. See call.h. */
#include "server/answer.h"

#include "server/json_memory.h"
#include "server/server_state.h"

#include <stdlib.h>
#include <string.h>

static bool grow(void **data, size_t *capacity, size_t needed, size_t size)
{
    if (needed <= *capacity) return true;
    size_t wanted = *capacity ? 2 * *capacity : 64;
    while (wanted < needed)
        wanted *= 2;
    void *grown = realloc(*data, wanted * size);
    if (!grown) return false;
    *data = grown;
    *capacity = wanted;
    return true;
}

/* If memory runs out, notes are left out: the reply is still valid without them. */
static void add_note(answer *a, const token_event *event)
{
    size_t tops = event->n_top;
    if (!grow((void **)&a->notes, &a->notes_capacity, a->n_notes + 1, sizeof *a->notes) ||
        !grow((void **)&a->tops, &a->tops_capacity, a->n_tops + tops, sizeof *a->tops))
        return;
    if (tops) memcpy(a->tops + a->n_tops, event->top, tops * sizeof *a->tops);
    a->notes[a->n_notes++] = (token_note){.token = event->token,
                                          .logprob = event->logprob,
                                          .offset = a->decoded,
                                          .tops = a->n_tops,
                                          .n_tops = (uint32_t)tops};
    a->n_tops += tops;
}

static void add_id(answer *a, int32_t token)
{
    if (grow((void **)&a->ids, &a->ids_capacity, a->n_ids + 1, sizeof *a->ids))
        a->ids[a->n_ids++] = token;
}

/* Appends the token's text to what is pending. */
static void decode(answer *a, int32_t token)
{
    const qp_vocabulary *vocabulary = a->call->server->vocabulary;
    strbuf *pending = &a->stop.pending;
    size_t before = pending->length, length = 0;
    if (!vocabulary || token >= tokenizer_vocab_size(vocabulary->tokenizer)) return;
    const char *piece = tokenizer_piece(vocabulary->tokenizer, token, &length);
    bool marker = a->call->tools.count && tokenizer_is_control(vocabulary->tokenizer, token) &&
                  tool_calls_marker(piece, length);
    if (marker)
        strbuf_append(pending, piece, length);
    else
        tokenizer_decoder_push(&a->decoder, token, pending, NULL);
    a->decoded += pending->length - before;
}

/* Determines how much of the text is content. `ended`: the text is complete. */
static void find_content(answer *a, bool ended)
{
    if (!a->call->tools.count) {
        a->content = a->text.length;
        return;
    }
    if (a->tool_text) return;
    /* Content that was sent ends before any marker, so the search starts there. */
    size_t from = a->content;
    a->content = from + tool_calls_scan(strbuf_text(&a->text) + from, a->text.length - from,
                                        from == 0, ended, &a->tool_text);
}

static void hand_out(answer *a)
{
    call *c = a->call;
    size_t length = a->content - a->sent;
    bool some = length > 0 || !a->begun || a->n_ids > a->ids_sent;
    if (c->streaming && !c->replied && some)
        c->dialect->delta(c, a, strbuf_text(&a->text) + a->sent, length);
    a->begun = true;
    a->sent = a->content;
    a->ids_sent = a->n_ids;
}

static void take_certain(answer *a, size_t certain, bool ended)
{
    strbuf_append(&a->text, strbuf_text(&a->stop.pending), certain);
    stop_text_consume(&a->stop, certain);
    find_content(a, ended);
}

static void finish_answer(answer *a, int finish)
{
    call *c = a->call;
    a->ended = true;
    a->finish = finish;
    take_certain(a, a->stop.pending.length, true);
    if (a->tool_text) {
        json_memory_clear();
        a->tool_calls = tool_calls_parse(strbuf_text(&a->text) + a->content,
                                         a->text.length - a->content, &c->tools);
        if (json_memory_failed()) { /* a call may lack its name */
            cJSON_Delete(a->tool_calls);
            a->tool_calls = NULL;
        }
        if (!a->tool_calls) a->content = a->text.length;
    }
    while (a->n_notes && a->notes[a->n_notes - 1].offset >= a->text.length && a->stop.found)
        a->n_notes--; /* tokens of the stop text */
    hand_out(a);
    if (c->streaming && !c->replied) c->dialect->finish(c, a);
}

/* The stop text that appears first in the pending text; NULL: none. */
static const char *find_stop(const answer *a)
{
    const char *text = strbuf_text(&a->stop.pending), *first = NULL, *found = NULL;
    for (size_t i = 0; i < a->stop.n_stops; i++) {
        const char *at = strstr(text, a->stop.stops[i]);
        if (at && (!first || at < first)) {
            first = at;
            found = a->stop.stops[i];
        }
    }
    return found;
}

void answer_add_token(answer *a, request *r, const token_event *event)
{
    if (a->ended) return; /* it was cancelled at a stop text */
    a->n_tokens++;
    if (r->top_logprobs >= 0) add_note(a, event);
    if (a->call->p.token_ids) add_id(a, event->token);
    decode(a, event->token);
    a->stopped = find_stop(a);
    size_t certain = stop_text_scan(&a->stop);
    if (a->stop.found) {
        finish_answer(a, QP_FINISH_STOP_TEXT);
        request_cancel(r, (int)(a->index % r->n_choices));
        return;
    }
    take_certain(a, certain, false);
    hand_out(a);
}

void answer_end(answer *a, request *r, const token_event *event)
{
    (void)r;
    if (a->ended) return;
    if (a->decoder.tokenizer) tokenizer_decoder_flush(&a->decoder, &a->stop.pending, NULL);
    stop_text_scan(&a->stop);
    finish_answer(a, a->stop.found ? QP_FINISH_STOP_TEXT : event->finish);
}
