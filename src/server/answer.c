/* One answer of a call: tokens become text, and the text content and calls of tools. See call.h. */
#include "server/answer.h"

#include "server/random_id.h"
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
                                          .offset = a->stream->decoded,
                                          .tops = a->n_tops,
                                          .n_tops = (uint32_t)tops};
    a->n_tops += tops;
}

static void add_id(answer *a, int32_t token)
{
    if (grow((void **)&a->ids, &a->ids_capacity, a->n_ids + 1, sizeof *a->ids))
        a->ids[a->n_ids++] = token;
}

/* ---- text ---------------------------------------------------------------------------------- */

static void hand_out(answer *a)
{
    call *c = a->call;
    const size_t length = a->text.length - a->sent;
    const bool some = length > 0 || !a->begun || a->n_ids > a->ids_sent;
    if (c->streaming && !c->replied && some)
        c->dialect->delta(c, a, strbuf_text(&a->text) + a->sent, length);
    a->begun = true;
    a->sent = a->text.length;
    a->ids_sent = a->n_ids;
}

/* Adds a call that is complete. Without memory it is left out: then it is content. */
static bool add_call(answer *a)
{
    char id[10];
    random_id(id, sizeof id);
    char *arguments = tool_call_print_arguments(strbuf_text(&a->arguments), a->arguments.length);
    if (!a->tool_calls) a->tool_calls = cJSON_CreateArray();
    cJSON *call = arguments ? cJSON_CreateObject() : NULL;
    const bool added = call && !a->name.failed && cJSON_AddStringToObject(call, "id", id) &&
                       cJSON_AddStringToObject(call, "name", strbuf_text(&a->name)) &&
                       cJSON_AddStringToObject(call, "arguments", arguments) &&
                       cJSON_AddItemToArray(a->tool_calls, call);
    if (!added) cJSON_Delete(call);
    free(arguments);
    return added;
}

static void take_piece(answer *a, const qp_text_piece *piece)
{
    switch (piece->kind) {
    case QP_TEXT_CALL:
        strbuf_clear(&a->name);
        strbuf_clear(&a->arguments);
        strbuf_append(&a->name, piece->text, piece->length);
        return;
    case QP_TEXT_ARGUMENTS:
        strbuf_append(&a->arguments, piece->text, piece->length);
        return;
    case QP_TEXT_CALL_END:
        if (!piece->broken && add_call(a)) return;
        break;
    default:
        break;
    }
    strbuf_append(&a->text, piece->text, piece->length);
}

static void take_text(answer *a)
{
    qp_text_piece piece = {.size = sizeof piece};
    while (qp_text_stream_next(a->stream, &piece))
        take_piece(a, &piece);
}

static void finish_answer(answer *a, int finish)
{
    call *c = a->call;
    a->ended = true;
    a->finish = finish;
    take_text(a);
    if (!cJSON_GetArraySize(a->tool_calls)) {
        cJSON_Delete(a->tool_calls);
        a->tool_calls = NULL;
    }
    while (a->n_notes && a->stopped && a->notes[a->n_notes - 1].offset >= a->stream->certain)
        a->n_notes--; /* tokens of the stop text */
    hand_out(a);
    if (c->streaming && !c->replied) c->dialect->finish(c, a);
}

/* What qp_text_stream_ended() says, and a->stopped. */
static bool is_over(answer *a)
{
    return qp_text_stream_ended(a->stream, NULL, &a->stopped);
}

void answer_add_token(answer *a, request *r, const token_event *event)
{
    if (a->ended) return; /* it was cancelled at a stop text */
    a->n_tokens++;
    if (r->top_logprobs >= 0) add_note(a, event);
    if (a->call->p.token_ids) add_id(a, event->token);
    qp_text_stream_add(a->stream, event->token, NULL);
    if (is_over(a)) {
        finish_answer(a, QP_FINISH_STOP_TEXT);
        request_cancel(r, (int)(a->index % r->n_choices));
        return;
    }
    take_text(a);
    hand_out(a);
}

void answer_end(answer *a, request *r, const token_event *event)
{
    (void)r;
    if (a->ended) return;
    qp_text_stream_end(a->stream, NULL);
    finish_answer(a, is_over(a) ? QP_FINISH_STOP_TEXT : event->finish);
}

qp_status answer_open(answer *a, qp_error *error)
{
    const call *c = a->call;
    const qp_sampling stops = {.size = sizeof stops, .stops = c->p.stops, .n_stops = c->p.n_stops};
    const qp_text_stream_options options = {.size = sizeof options,
                                            .sampling = &stops,
                                            .tools = c->tools.names,
                                            .n_tools = c->tools.count,
                                            .special = c->p.special};
    return qp_text_stream_open(c->server->vocabulary, &options, &a->stream, error);
}

void answer_free(answer *a)
{
    qp_text_stream_close(a->stream);
    strbuf_free(&a->text);
    strbuf_free(&a->name);
    strbuf_free(&a->arguments);
    cJSON_Delete(a->tool_calls);
    free(a->notes);
    free(a->tops);
    free(a->ids);
}
