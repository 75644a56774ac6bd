/* POST /v1/chat/completions. */
#include "server/endpoints.h"

#include "server/api_parts.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <string.h>

static const field chat_fields[] = {
    FIELD("max_tokens", READ(JSON_NUMBER, call_read_length), .schema = SCHEMA_COUNT,
          .help = "of an answer; none: until the context is full"),
    FIELD("max_completion_tokens", READ(JSON_NUMBER, call_read_length), .schema = SCHEMA_COUNT,
          .help = "another name of max_tokens"),
    FIELD("logprobs", BOOLEAN(logprobs), .help = "how likely each token was"),
    FIELD("top_logprobs", INTEGER(top_logprobs), .high = REQUEST_MAX_TOP,
          .help = "alternatives of each token"),
    FIELD("stream_options", .type = FIELD_OBJECT, .tables = openai_stream_tables),
    FIELD("timings_per_token", BOOLEAN(timings),
          .help =
              "the reply, or the usage of a stream, has the times of the first answer (llama.cpp)"),
    FIELD("return_progress", BOOLEAN(progress),
          .help =
              "a stream begins with chunks that say how much of the prompt is read (llama.cpp)"),
    FIELD("verbose", BOOLEAN(verbose),
          .help = "the reply, or an answer's last chunk, has it as llama.cpp's /completion writes "
                  "it, with "
                  "the prompt as the model has read it, as \"__verbose\""),
    {0}};

const field *const openai_chat_tables[] = {call_message_fields,
                                           call_thinking_fields,
                                           chat_fields,
                                           call_tool_fields,
                                           call_tool_choice_fields,
                                           call_template_fields,
                                           call_openai_fields,
                                           call_ending_fields,
                                           call_bias_fields,
                                           call_sampling_fields,
                                           call_vendor_fields,
                                           call_refused_fields,
                                           call_single_fields,
                                           NULL};

static qp_status read_chat(call *c, const cJSON *body, api_error *error)
{
    (void)body;
    cJSON *variables;
    if (c->p.top_logprobs > 0 && !c->p.logprobs)
        return api_refuse(error, 400, "top_logprobs",
                          "\"top_logprobs\" needs \"logprobs\": true beside it");
    TRY(call_chat_variables(c, c->p.messages, c->p.tools, &variables, error));
    return call_add_chat(c, variables, error);
}

qp_status answer_chat_length(call *c, api_error *error)
{
    TRY(read_chat(c, c->body, error));
    call_put_length(c, "");
    return QP_OK;
}

/* ---- Log-probabilities --------------------------------------------------------------------- */

/* ,"logprobs":{"content":[...]} of the notes up to `end`. */
static void put_logprobs(const call *c, answer *a, size_t end, strbuf *out)
{
    json_put(out, c->p.logprobs ? ",'logprobs':{'content':" : ",'logprobs':null");
    if (!c->p.logprobs) return;
    put_notes(c, a, end, false, out);
    json_put(out, ",'refusal':null}");
}

/* ---- Streams ------------------------------------------------------------------------------- */

static void open_chunk(call *c, const answer *a)
{
    if (!c->head.length) {
        strbuf_puts(&c->head, "data: ");
        put_openai_head(c, "chatcmpl", "chat.completion.chunk", &c->head);
        json_put(&c->head, ",'choices':[{'index':");
    }
    strbuf_append(&c->out, c->head.data, c->head.length);
    json_put(&c->out, "%z,'delta':{", a->index);
}

/* Ends the only choice of a chunk; members of the chunk may follow. */
static void close_choice(call *c, const char *reason)
{
    json_put(&c->out, ",'finish_reason':%q}]", reason);
    if (c->p.include_usage) json_put(&c->out, ",'usage':null");
}

static void close_chunk(call *c, const char *reason)
{
    close_choice(c, reason);
    strbuf_puts(&c->out, "}\n\n");
}

static void put_verbose(const call *c, answer *a, bool last, strbuf *out)
{
    if (!c->p.verbose) return;
    json_put(out, ",'__verbose':");
    put_llama_cpp_result(c, a, last, out);
}

static void chat_reading(call *c, const answer *a, size_t read)
{
    open_chunk(c, a);
    json_put(&c->out, "},'logprobs':null");
    close_choice(c, NULL);
    if (c->p.timings) put_prompt_timings(c, a, read, &c->out);
    put_progress(c, a, read, &c->out);
    strbuf_puts(&c->out, "}\n\n");
}

/* Thoughts have both names that clients know. */
static void put_text(qp_text_kind kind, const char *text, size_t length, strbuf *out)
{
    if (kind == QP_TEXT_THINKING)
        json_put(out, "'reasoning_content':%Q,'reasoning':%Q", text, length, text, length);
    else
        json_put(out, "'content':%Q", text, length);
}

static void put_call_delta(const answer *a, qp_text_kind kind, const char *text, size_t length,
                           strbuf *out)
{
    json_put(out, "'tool_calls':[{'index':%z,", a->call_number);
    if (kind == QP_TEXT_CALL)
        json_put(out, "'id':%q,'type':'function','function':{'name':%Q,'arguments':''}}]",
                 a->call_id, text, length);
    else
        json_put(out, "'function':{'arguments':%Q}}]", text, length);
}

static void chat_delta(call *c, answer *a, qp_text_kind kind, const char *text, size_t length)
{
    if (!a->begun) {
        open_chunk(c, a);
        json_put(&c->out, "'role':'assistant','content':null},'logprobs':null");
        close_chunk(c, NULL);
    }
    const bool ids = a->n_ids > a->ids_sent;
    if (kind == QP_TEXT_CALL_END || (!length && !ids)) return;
    open_chunk(c, a);
    if (kind == QP_TEXT_CALL || kind == QP_TEXT_ARGUMENTS)
        put_call_delta(a, kind, text, length, &c->out);
    else
        put_text(kind, text, length, &c->out);
    strbuf_putc(&c->out, '}');
    put_logprobs(c, a, notes_handed(a), &c->out);
    put_token_ids(c, a, a->ids_sent, &c->out);
    close_chunk(c, NULL);
}

static void chat_finish(call *c, answer *a)
{
    open_chunk(c, a);
    strbuf_putc(&c->out, '}');
    put_logprobs(c, a, a->n_notes, &c->out);
    close_choice(c, call_finish_reason(a));
    put_verbose(c, a, true, &c->out);
    strbuf_puts(&c->out, "}\n\n");
}

static void chat_end(call *c)
{
    end_openai_stream(c, "chatcmpl", "chat.completion.chunk");
}

/* ---- Whole replies ------------------------------------------------------------------------- */

static void put_message(const call *c, const answer *a, strbuf *out)
{
    const cJSON *one;
    json_put(out, "'message':{'role':'assistant',");
    if (a->tool_calls && !a->text.length)
        json_put(out, "'content':null");
    else
        put_text(QP_TEXT_CONTENT, strbuf_text(&a->text), a->text.length, out);
    json_put(out, ",'refusal':null");
    if (a->thinking.length && !c->p.no_thoughts) {
        strbuf_putc(out, ',');
        put_text(QP_TEXT_THINKING, strbuf_text(&a->thinking), a->thinking.length, out);
    }
    cJSON_ArrayForEach(one, a->tool_calls)
        json_put(out, "%s{'id':%q,'type':'function','function':{'name':%q,'arguments':%q}}",
                 one == a->tool_calls->child ? ",\"tool_calls\":[" : ",", json_text(one, "id"),
                 json_text(one, "name"), json_text(one, "arguments"));
    strbuf_puts(out, a->tool_calls ? "]}" : "}");
}

static void chat_whole(call *c)
{
    strbuf *out = &c->out;
    put_openai_head(c, "chatcmpl", "chat.completion", out);
    json_put(out, ",'choices':[");
    for (size_t i = 0; i < c->n_answers; i++) {
        answer *a = &c->answers[i];
        json_put(out, "%s{'index':%z,", i ? "," : "", i);
        put_message(c, a, out);
        put_logprobs(c, a, a->n_notes, out);
        put_token_ids(c, a, 0, out);
        json_put(out, ",'finish_reason':%q}", call_finish_reason(a));
    }
    strbuf_putc(out, ']');
    put_openai_usage(c, out);
    if (c->p.timings) put_timings(c, &c->answers[0], false, out);
    put_verbose(c, &c->answers[0], false, out);
    strbuf_putc(out, '}');
}

const dialect openai_chat = {
    .fields = openai_chat_tables,
    .stream_type = "text/event-stream",
    .read = read_chat,
    .whole = chat_whole,
    .delta = chat_delta,
    .progress = chat_reading,
    .finish = chat_finish,
    .end = chat_end,
    .fail = fail_openai,
};
