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

static void hand_out(answer *a, qp_text_kind kind, const char *text, size_t length)
{
    call *c = a->call;
    if (c->streaming && !c->replied) c->dialect->delta(c, a, kind, text, length);
    a->begun = true;
    a->ids_sent = a->n_ids;
}

/* The part at the end, if it is of this kind, or else a new one; NULL: no memory. */
static answer_part *part_of(answer *a, qp_text_kind kind, size_t from)
{
    answer_part *last = a->n_parts ? &a->parts[a->n_parts - 1] : NULL;
    if (last && last->kind == kind && kind != QP_TEXT_CALL) return last;
    if (!grow((void **)&a->parts, &a->parts_capacity, a->n_parts + 1, sizeof *a->parts))
        return NULL;
    a->parts[a->n_parts] = (answer_part){.kind = kind, .from = from};
    return &a->parts[a->n_parts++];
}

/* Without memory for the part the text is lost from replies that have parts, as after any failure.
 */
static void add_text(answer *a, qp_text_kind kind, const char *text, size_t length)
{
    strbuf *all = kind == QP_TEXT_THINKING ? &a->thinking : &a->text;
    answer_part *part = part_of(a, kind, all->length);
    strbuf_append(all, text, length);
    if (part) part->length += length;
    if (kind != QP_TEXT_THINKING || !a->call->p.no_thoughts) hand_out(a, kind, text, length);
}

static bool streams_calls(const call *c)
{
    return c->streaming && !c->dialect->whole_calls;
}

/* Adds the call that ends; false: it is none. Without memory it is left out. */
static bool add_call(answer *a, bool broken)
{
    const char *written = strbuf_text(&a->arguments);
    const bool streamed = streams_calls(a->call); /* then its deltas add up to what was written */
    char *printed = broken ? NULL : tool_call_print_arguments(written, a->arguments.length);
    if (!printed && !streamed) return false;
    if (!a->tool_calls) a->tool_calls = cJSON_CreateArray();
    cJSON *call = cJSON_CreateObject();
    answer_part *part = part_of(a, QP_TEXT_CALL, 0);
    const bool added = part && cJSON_AddStringToObject(call, "id", a->call_id) &&
                       cJSON_AddStringToObject(call, "name", strbuf_text(&a->name)) &&
                       cJSON_AddStringToObject(call, "arguments", streamed ? written : printed) &&
                       cJSON_AddItemToArray(a->tool_calls, call);
    if (added && !printed) cJSON_AddTrueToObject(call, "broken");
    if (part) part->call = call;
    if (!added) cJSON_Delete(call);
    if (!added && part) a->n_parts--;
    free(printed);
    return added;
}

static void begin_call(answer *a, const char *name, size_t length)
{
    random_id(a->call_id, sizeof a->call_id);
    strbuf_clear(&a->name);
    strbuf_clear(&a->arguments);
    strbuf_append(&a->name, name, length);
    a->in_string = a->escaped = false;
    if (streams_calls(a->call)) hand_out(a, QP_TEXT_CALL, strbuf_text(&a->name), a->name.length);
}

/* Appends arguments as JSON allows them: models write line ends inside of texts. */
static void add_arguments(answer *a, const char *text, size_t length)
{
    const size_t before = a->arguments.length;
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (a->in_string && c < ' ')
            strbuf_printf(&a->arguments, a->escaped ? "u%04x" : "\\u%04x", c);
        else
            strbuf_putc(&a->arguments, text[i]);
        if (c == '"' && !a->escaped) a->in_string = !a->in_string;
        a->escaped = a->in_string && c == '\\' && !a->escaped;
    }
    if (streams_calls(a->call))
        hand_out(a, QP_TEXT_ARGUMENTS, strbuf_text(&a->arguments) + before,
                 a->arguments.length - before);
}

static void end_call(answer *a, const qp_text_piece *piece)
{
    if (!add_call(a, piece->broken)) {
        add_text(a, QP_TEXT_CONTENT, piece->text, piece->length);
        return;
    }
    hand_out(a, QP_TEXT_CALL_END, piece->text, piece->length);
    a->call_number++;
}

static void take_piece(answer *a, const qp_text_piece *piece)
{
    switch (piece->kind) {
    case QP_TEXT_CALL:
        begin_call(a, piece->text, piece->length);
        return;
    case QP_TEXT_ARGUMENTS:
        add_arguments(a, piece->text, piece->length);
        return;
    case QP_TEXT_CALL_END:
        end_call(a, piece);
        return;
    default:
        add_text(a, piece->kind, piece->text, piece->length);
    }
}

static void take_text(answer *a)
{
    qp_text_piece piece = {.size = sizeof piece};
    while (qp_text_stream_next(a->stream, &piece))
        take_piece(a, &piece);
    if (!a->begun || a->n_ids > a->ids_sent) hand_out(a, QP_TEXT_CONTENT, "", 0);
}

static void finish_answer(answer *a, int finish)
{
    call *c = a->call;
    a->ended = true;
    a->finish = finish;
    while (a->n_notes && a->stopped && a->notes[a->n_notes - 1].offset >= a->stream->certain)
        a->n_notes--; /* tokens of the stop text */
    take_text(a);
    if (!cJSON_GetArraySize(a->tool_calls)) {
        cJSON_Delete(a->tool_calls);
        a->tool_calls = NULL;
    }
    if (c->streaming && !c->replied && c->dialect->finish) c->dialect->finish(c, a);
}

static bool answer_thinks(const answer *a)
{
    return a->stream->state == TEXT_THINKING;
}

/* What qp_text_stream_ended() says, and a->stopped. */
static bool is_over(answer *a)
{
    return qp_text_stream_ended(a->stream, NULL, &a->stopped);
}

void answer_add_token(answer *a, request *r, const token_event *event)
{
    if (a->ended) return; /* it was cancelled at a stop text */
    const bool thought = answer_thinks(a);
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
    a->n_thinking += thought || answer_thinks(a);
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
    const request *r = c->prompts[a->prompt].request;
    const qp_sampling stops = {.size = sizeof stops, .stops = c->p.stops, .n_stops = c->p.n_stops};
    const qp_text_stream_options options = {.size = sizeof options,
                                            .sampling = &stops,
                                            .tools = c->tools.names,
                                            .n_tools = c->tools.count,
                                            .thinking = c->chat && !c->p.thoughts_in_text,
                                            .special = c->p.special,
                                            .prompt = r->prompt,
                                            .n_prompt = r->n_prompt};
    return qp_text_stream_open(c->server->vocabulary, &options, &a->stream, error);
}

void answer_free(answer *a)
{
    qp_text_stream_close(a->stream);
    strbuf_free(&a->text);
    strbuf_free(&a->thinking);
    strbuf_free(&a->name);
    strbuf_free(&a->arguments);
    cJSON_Delete(a->tool_calls);
    free(a->parts);
    free(a->notes);
    free(a->tops);
    free(a->ids);
}
