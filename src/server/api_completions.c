/* POST /v1/completions: continues text or tokens. */
#include "server/endpoints.h"

#include "server/api_parts.h"
#include "server/server_state.h"
#include "text/json_string.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

static qp_status read_logprobs(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    double count = cJSON_IsBool(value) ? cJSON_IsTrue(value) - 1 : value->valuedouble;
    if (!(count >= -1 && count <= REQUEST_MAX_TOP) || count != (double)(int)count)
        return api_refuse(error, 400, name, "\"logprobs\" must be a whole number from 0 to %d",
                          REQUEST_MAX_TOP);
    p->logprobs = count >= 0;
    p->top_logprobs = (int64_t)count;
    return QP_OK;
}

static const field completion_fields[] = {
    FIELD("prompt", TREE(JSON_STRING | JSON_ARRAY, prompt), .required = true,
          .help = "a text, an array of token ids, or an array of these"),
    FIELD("max_tokens", READ(JSON_NUMBER, call_read_length), .schema = SCHEMA_COUNT,
          .help = "of an answer; none: 16"),
    FIELD("logprobs", READ(JSON_NUMBER | JSON_BOOL, read_logprobs),
          .help = "log probabilities of the tokens, and of this many alternatives to each"),
    FIELD("echo", BOOLEAN(echo), .help = "the prompt is part of the text"),
    FIELD("best_of", INTEGER(best_of), .low = 1, .high = REQUEST_MAX_CHOICES,
          .help = "must be n where it is given"),
    FIELD("suffix", TEXT(suffix),
          .help = "what follows the text that is filled in, for a model with marks for that"),
    FIELD("stream_options", .type = FIELD_OBJECT, .tables = openai_stream_tables),
    {0}};

static const field *const completion_tables[] = {
    completion_fields,    call_openai_fields, call_ending_fields,  call_bias_fields,
    call_sampling_fields, call_vendor_fields, call_refused_fields, NULL};

/* ---- Prompts ------------------------------------------------------------------------------- */

/* Keeps the text of the last added prompt, for the echo. */
static qp_status keep_text(call *c, const char *text, api_error *error)
{
    call_prompt *prompt = &c->prompts[c->n_prompts - 1];
    if (!c->p.echo) return QP_OK;
    if (text) {
        prompt->text = strdup(text);
        prompt->length = strlen(text);
        if (!prompt->text)
            return api_failed(error, error_no_memory(&error->error, "the prompt", prompt->length));
        return QP_OK;
    }
    if (!c->server->vocabulary) return QP_OK;
    qp_status status =
        qp_detokenize(c->server->vocabulary, prompt->request->prompt, prompt->request->n_prompt,
                      QP_SPECIAL, &prompt->text, &prompt->length, &error->error);
    return status == QP_OK ? QP_OK : api_failed(error, status);
}

/* For call_add_prompts(). */
static qp_status keep_echo(call *c, const cJSON *prompt, api_error *error)
{
    return keep_text(c, cJSON_IsString(prompt) ? prompt->valuestring : NULL, error);
}

static qp_status read_completion(call *c, const cJSON *body, api_error *error)
{
    if (!json_get(body, "max_tokens")) c->p.max_tokens = 16; /* OpenAI's default */
    if (!c->server->vocabulary) c->p.token_ids = true;       /* there is no text */
    if (c->p.best_of >= 0 && c->p.best_of != c->p.n)
        return api_refuse(error, 400, "best_of", "\"best_of\" must be the same as \"n\"");
    if (c->p.max_tokens == 0 && !c->p.echo)
        return api_refuse(error, 400, "max_tokens",
                          "\"max_tokens\" of 0 asks for nothing without \"echo\": true");
    c->p.parse_special = atomic_load(&c->server->raw_special);
    if (!c->p.suffix || !*c->p.suffix) return call_add_prompts(c, "prompt", keep_echo, error);
    if (!cJSON_IsString(c->p.prompt))
        return api_refuse(error, 400, "prompt", "with \"suffix\" the \"prompt\" must be one text");
    TRY(call_add_fill(c, c->p.prompt->valuestring, c->p.suffix, NULL, NULL, error));
    return keep_echo(c, c->p.prompt, error);
}

/* ---- Replies ------------------------------------------------------------------------------- */

/* The four arrays of OpenAI's form, side by side. */
typedef struct columns {
    strbuf tokens, logprobs, tops, offsets;
    size_t offset; /* characters before the next token */
} columns;

static void put_piece(const call *c, int32_t token, strbuf *out)
{
    size_t length = 0;
    const char *piece = qp_token_piece(c->server->vocabulary, token, &length);
    json_put_string(out, piece ? piece : "", length);
}

/* `known`: log-probability and alternatives exist; the first token of a prompt has none. */
static void add_row(const call *c, columns *to, int32_t token, bool known, float logprob,
                    const token_top *tops, size_t n_tops)
{
    const char *comma = to->tokens.length ? "," : "";
    size_t length = 0;
    const char *piece = qp_token_piece(c->server->vocabulary, token, &length);
    strbuf_puts(&to->tokens, comma);
    put_piece(c, token, &to->tokens);
    strbuf_puts(&to->logprobs, comma);
    known ? put_logprob(&to->logprobs, logprob) : (void)strbuf_puts(&to->logprobs, "null");
    strbuf_puts(&to->tops, comma);
    strbuf_puts(&to->tops, known ? "{" : "null");
    for (size_t i = 0; known && i < n_tops; i++) {
        if (i) strbuf_putc(&to->tops, ',');
        put_piece(c, tops[i].token, &to->tops);
        strbuf_putc(&to->tops, ':');
        put_logprob(&to->tops, tops[i].logprob);
    }
    if (known) strbuf_putc(&to->tops, '}');
    strbuf_printf(&to->offsets, "%s%zu", comma, to->offset);
    to->offset += utf8_characters(piece, length);
}

static void add_prompt_rows(const call *c, columns *to, const request *r)
{
    size_t n_tops = r->top_logprobs > 0 ? (size_t)r->top_logprobs : 0;
    for (size_t i = 0; r->prompt_logprob && i < r->n_prompt; i++)
        add_row(c, to, r->prompt[i], i > 0, r->prompt_logprob[i],
                r->prompt_top ? r->prompt_top + i * n_tops : NULL, r->prompt_top ? n_tops : 0);
}

static void put_logprobs(const call *c, answer *a, bool echo, size_t end, strbuf *out)
{
    columns to = {.offset = a->noted && a->noted < a->n_notes ? a->notes[a->noted].offset : 0};
    if (!c->p.logprobs) {
        json_put(out, ",'logprobs':null");
        return;
    }
    if (echo) add_prompt_rows(c, &to, c->prompts[a->prompt].request);
    for (; a->noted < end; a->noted++) {
        const token_note *note = &a->notes[a->noted];
        add_row(c, &to, note->token, true, note->logprob, a->tops + note->tops, note->n_tops);
    }
    json_put(
        out,
        ",'logprobs':{'tokens':[%t],'token_logprobs':[%t],'top_logprobs':[%t],'text_offset':[%t]}",
        &to.tokens, &to.logprobs, &to.tops, &to.offsets);
    strbuf_free(&to.tokens);
    strbuf_free(&to.logprobs);
    strbuf_free(&to.tops);
    strbuf_free(&to.offsets);
}

/* A choice; `text` follows the prompt where that is echoed; ids from the `ids`-th on. */
static void put_choice(call *c, answer *a, bool echo, const char *text, size_t length, size_t notes,
                       size_t ids, const char *reason)
{
    strbuf whole = {0};
    strbuf *out = &c->out;
    const call_prompt *prompt = &c->prompts[a->prompt];
    echo = echo && c->p.echo;
    json_put(out, "{'index':%z,'text':", a->index);
    if (echo && prompt->text) {
        strbuf_append(&whole, prompt->text, prompt->length);
        strbuf_append(&whole, text, length);
        json_put_string(out, strbuf_text(&whole), whole.length);
    } else {
        json_put_string(out, text, length);
    }
    put_logprobs(c, a, echo, notes, out);
    put_token_ids(c, a, ids, out);
    json_put(out, ",'finish_reason':%q}", reason);
    strbuf_free(&whole);
}

static void put_chunk(call *c, answer *a, bool echo, const char *text, size_t length, size_t notes,
                      const char *reason)
{
    if (!c->head.length) {
        strbuf_puts(&c->head, "data: ");
        put_openai_head(c, "cmpl", "text_completion", &c->head);
        json_put(&c->head, ",'choices':[");
    }
    strbuf_append(&c->out, c->head.data, c->head.length);
    put_choice(c, a, echo, text, length, notes, a->ids_sent, reason);
    strbuf_puts(&c->out, c->p.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void completion_delta(call *c, answer *a, qp_text_kind kind, const char *text, size_t length)
{
    (void)kind; /* there are no conversations here */
    bool echo = !a->begun && c->p.echo;
    if (length || echo || a->n_ids > a->ids_sent)
        put_chunk(c, a, echo, text, length, notes_handed(a), NULL);
}

static void completion_finish(call *c, answer *a)
{
    put_chunk(c, a, false, "", 0, a->n_notes, call_finish_reason(a));
}

static void completion_end(call *c)
{
    end_openai_stream(c, "cmpl", "text_completion");
}

static void completion_whole(call *c)
{
    put_openai_head(c, "cmpl", "text_completion", &c->out);
    json_put(&c->out, ",'choices':[");
    for (size_t i = 0; i < c->n_answers; i++) {
        answer *a = &c->answers[i];
        if (i) strbuf_putc(&c->out, ',');
        put_choice(c, a, true, strbuf_text(&a->text), a->text.length, a->n_notes, 0,
                   call_finish_reason(a));
    }
    strbuf_putc(&c->out, ']');
    put_openai_usage(c, &c->out);
    strbuf_putc(&c->out, '}');
}

const dialect openai_completions = {
    .fields = completion_tables,
    .stream_type = "text/event-stream",
    .read = read_completion,
    .whole = completion_whole,
    .delta = completion_delta,
    .finish = completion_finish,
    .end = completion_end,
    .fail = fail_openai,
};
