/* POST /v1/chat/completions. */
#include "server/api_openai.h"

#include "server/api_llama_cpp.h"
#include "server/api_parts.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <string.h>

#define AT(member) .at = offsetof(parameters, member)

static const field stream_fields[] = {FIELD("include_usage", .type = FIELD_BOOL, AT(include_usage),
                                            .help = "a last chunk has the usage, and no choices"),
                                      {0}};
static const field *const stream_tables[] = {stream_fields, NULL};

static const field chat_fields[] = {
    FIELD("max_tokens", .type = FIELD_READ, .types = JSON_NUMBER, .read = call_read_length,
          .schema = SCHEMA_COUNT, .help = "of an answer; none: until the context is full"),
    FIELD("max_completion_tokens", .type = FIELD_READ, .types = JSON_NUMBER,
          .read = call_read_length, .schema = SCHEMA_COUNT, .help = "another name of max_tokens"),
    FIELD("logprobs", .type = FIELD_BOOL, AT(logprobs), .help = "how likely each token was"),
    FIELD("top_logprobs", .type = FIELD_INTEGER, AT(top_logprobs), .high = REQUEST_MAX_TOP,
          .help = "alternatives of each token"),
    FIELD("stream_options", .type = FIELD_OBJECT, .tables = stream_tables),
    FIELD("timings_per_token", .type = FIELD_BOOL, AT(timings),
          .help =
              "the reply, or the usage of a stream, has the times of the first answer (llama.cpp)"),
    FIELD("return_progress", .type = FIELD_BOOL, AT(progress),
          .help =
              "a stream begins with chunks that say how much of the prompt is read (llama.cpp)"),
    FIELD("verbose", .type = FIELD_BOOL, AT(verbose),
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

qp_status answer_chat_length(call *c, cJSON **out, api_error *error)
{
    TRY(read_chat(c, c->body, error));
    return call_answer_length(c, out);
}

/* ---- Log-probabilities --------------------------------------------------------------------- */

/* ,"logprobs":{"content":[...]} of the notes up to `end`, from the first that was not handed out.
 */
static void put_notes(const call *c, answer *a, size_t end, strbuf *out)
{
    if (!c->p.logprobs) {
        strbuf_puts(out, ",\"logprobs\":null");
        return;
    }
    strbuf_puts(out, ",\"logprobs\":{\"content\":[");
    for (bool first = true; a->noted < end; a->noted++, first = false) {
        const token_note *note = &a->notes[a->noted];
        strbuf_puts(out, first ? "{" : ",{");
        put_token_logprob(c, note->token, note->logprob, out);
        strbuf_puts(out, ",\"top_logprobs\":[");
        for (uint32_t i = 0; i < note->n_tops; i++) {
            const token_top *top = &a->tops[note->tops + i];
            strbuf_puts(out, i ? ",{" : "{");
            put_token_logprob(c, top->token, top->logprob, out);
            strbuf_putc(out, '}');
        }
        strbuf_puts(out, "]}");
    }
    strbuf_puts(out, "],\"refusal\":null}");
}

/* ---- Streams ------------------------------------------------------------------------------- */

static void put_head(const call *c, const char *object, strbuf *out)
{
    strbuf_printf(out,
                  "{\"id\":\"chatcmpl-%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id,
                  object, (long long)c->created);
    put_model(c, out);
    strbuf_puts(out, ",\"system_fingerprint\":\"quipu-" QP_VERSION "\"");
}

static void open_chunk(call *c, const answer *a)
{
    if (!c->head.length) {
        strbuf_puts(&c->head, "data: ");
        put_head(c, "chat.completion.chunk", &c->head);
        strbuf_puts(&c->head, ",\"choices\":[{\"index\":");
    }
    strbuf_append(&c->out, c->head.data, c->head.length);
    strbuf_printf(&c->out, "%zu,\"delta\":{", a->index);
}

/* Ends the only choice of a chunk; members of the chunk may follow. */
static void close_choice(call *c, const char *reason)
{
    if (reason)
        strbuf_printf(&c->out, ",\"finish_reason\":\"%s\"}]", reason);
    else
        strbuf_puts(&c->out, ",\"finish_reason\":null}]");
    if (c->p.include_usage) strbuf_puts(&c->out, ",\"usage\":null");
}

static void close_chunk(call *c, const char *reason)
{
    close_choice(c, reason);
    strbuf_puts(&c->out, "}\n\n");
}

static void put_verbose(const call *c, answer *a, bool last, strbuf *out)
{
    if (!c->p.verbose) return;
    strbuf_puts(out, ",\"__verbose\":");
    put_llama_cpp_result(c, a, last, out);
}

static void chat_begin(call *c)
{
    (void)c;
}

static void chat_reading(call *c, const answer *a, size_t read)
{
    open_chunk(c, a);
    strbuf_puts(&c->out, "},\"logprobs\":null");
    close_choice(c, NULL);
    if (c->p.timings) put_prompt_timings(c, a, read, &c->out);
    put_progress(c, a, read, &c->out);
    strbuf_puts(&c->out, "}\n\n");
}

/* Thoughts have both names that clients know. */
static void put_text(qp_text_kind kind, const char *text, size_t length, strbuf *out)
{
    const bool thought = kind == QP_TEXT_THINKING;
    strbuf_puts(out, thought ? "\"reasoning_content\":" : "\"content\":");
    json_put_string(out, text, length);
    if (!thought) return;
    strbuf_puts(out, ",\"reasoning\":");
    json_put_string(out, text, length);
}

static void put_call_delta(const answer *a, qp_text_kind kind, const char *text, size_t length,
                           strbuf *out)
{
    const bool begins = kind == QP_TEXT_CALL;
    strbuf_printf(out, "\"tool_calls\":[{\"index\":%zu,", a->call_number);
    if (begins) {
        strbuf_printf(out,
                      "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", a->call_id);
        json_put_string(out, text, length);
        strbuf_puts(out, ",\"arguments\":\"\"");
    } else {
        strbuf_puts(out, "\"function\":{\"arguments\":");
        json_put_string(out, text, length);
    }
    strbuf_puts(out, "}}]");
}

static void chat_delta(call *c, answer *a, qp_text_kind kind, const char *text, size_t length)
{
    if (!a->begun) {
        open_chunk(c, a);
        strbuf_puts(&c->out, "\"role\":\"assistant\",\"content\":null},\"logprobs\":null");
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
    put_notes(c, a, notes_handed(a), &c->out);
    put_token_ids(c, a, a->ids_sent, &c->out);
    close_chunk(c, NULL);
}

static void chat_finish(call *c, answer *a)
{
    open_chunk(c, a);
    strbuf_putc(&c->out, '}');
    put_notes(c, a, a->n_notes, &c->out);
    close_choice(c, call_finish_reason(a));
    put_verbose(c, a, true, &c->out);
    strbuf_puts(&c->out, "}\n\n");
}

static void chat_end(call *c)
{
    if (c->p.include_usage) {
        strbuf_puts(&c->out, "data: ");
        put_head(c, "chat.completion.chunk", &c->out);
        strbuf_puts(&c->out, ",\"choices\":[]");
        put_openai_usage(c, &c->out);
        if (c->p.timings) put_timings(c, &c->answers[0], true, &c->out);
        strbuf_puts(&c->out, "}\n\n");
    }
    strbuf_puts(&c->out, "data: [DONE]\n\n");
}

/* ---- Whole replies ------------------------------------------------------------------------- */

static void put_tool_call(const cJSON *call, strbuf *out)
{
    const char *id = json_get(call, "id")->valuestring, *name = json_get(call, "name")->valuestring,
               *arguments = json_get(call, "arguments")->valuestring;
    strbuf_printf(out, "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
    json_put_string(out, name, strlen(name));
    strbuf_puts(out, ",\"arguments\":");
    json_put_string(out, arguments, strlen(arguments));
    strbuf_puts(out, "}}");
}

static void put_message(const call *c, const answer *a, strbuf *out)
{
    const cJSON *tool_call;
    strbuf_puts(out, "\"message\":{\"role\":\"assistant\",");
    if (a->tool_calls && !a->text.length)
        strbuf_puts(out, "\"content\":null");
    else
        put_text(QP_TEXT_CONTENT, strbuf_text(&a->text), a->text.length, out);
    strbuf_puts(out, ",\"refusal\":null");
    if (a->thinking.length && !c->p.no_thoughts) {
        strbuf_putc(out, ',');
        put_text(QP_TEXT_THINKING, strbuf_text(&a->thinking), a->thinking.length, out);
    }
    if (a->tool_calls) strbuf_puts(out, ",\"tool_calls\":[");
    cJSON_ArrayForEach(tool_call, a->tool_calls)
    {
        if (tool_call != a->tool_calls->child) strbuf_putc(out, ',');
        put_tool_call(tool_call, out);
    }
    strbuf_puts(out, a->tool_calls ? "]}" : "}");
}

static void chat_whole(call *c)
{
    strbuf *out = &c->out;
    put_head(c, "chat.completion", out);
    strbuf_puts(out, ",\"choices\":[");
    for (size_t i = 0; i < c->n_answers; i++) {
        answer *a = &c->answers[i];
        strbuf_printf(out, "%s{\"index\":%zu,", i ? "," : "", i);
        put_message(c, a, out);
        put_notes(c, a, a->n_notes, out);
        put_token_ids(c, a, 0, out);
        strbuf_printf(out, ",\"finish_reason\":\"%s\"}", call_finish_reason(a));
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
    .begin = chat_begin,
    .delta = chat_delta,
    .progress = chat_reading,
    .finish = chat_finish,
    .end = chat_end,
    .fail = fail_openai,
};
