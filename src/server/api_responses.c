/* POST /v1/responses. A request brings its whole conversation, or goes on from an earlier response.
 *
 * A stream is a list of numbered events. They open, fill and close items of the output; the last
 * event has the whole response.
 */
#include "server/api_responses.h"

#include "server/api_parts.h"
#include "server/endpoints.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <stdio.h>
#include <string.h>

/* ---- Fields -------------------------------------------------------------------------------- */

static qp_status refuse_state(void *out, const char *name, const cJSON *value, api_error *error)
{
    (void)out;
    if (cJSON_IsFalse(value)) return QP_OK;
    return api_refuse(
        error, 400, name,
        "\"%s\": the server keeps no prompts, and makes nothing without a client that "
        "waits for it",
        name);
}

static qp_status refuse_stored_prompt(void *out, const char *name, const cJSON *value,
                                      api_error *error)
{
    return cJSON_IsObject(value) ? refuse_state(out, name, value, error) : QP_OK;
}

static qp_status read_previous(void *out, const char *name, const cJSON *value, api_error *error)
{
    (void)name, (void)error;
    if (*value->valuestring) ((parameters *)out)->previous = value->valuestring;
    return QP_OK;
}

static qp_status read_store(void *out, const char *name, const cJSON *value, api_error *error)
{
    (void)name, (void)error;
    ((parameters *)out)->no_store = cJSON_IsFalse(value);
    return QP_OK;
}

/* What is included of items that the server never makes is nothing. */
static qp_status read_include(void *out, const char *name, const cJSON *value, api_error *error)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, value)
    {
        const char *what = cJSON_GetStringValue(item);
        if (!what || strcmp(what, "message.output_text.logprobs") == 0)
            return api_refuse(
                error, 400, name,
                "\"%s\" has %.60s, which cannot be included: log-probabilities are at "
                "/v1/chat/completions",
                name, what ? what : json_type_name(item));
    }
    ((parameters *)out)->include = value;
    return QP_OK;
}

static qp_status read_text_format(void *out, const char *name, const cJSON *value, api_error *error)
{
    const cJSON *format = json_get(value, "format");
    return format ? form_read_response(out, name, format, error) : QP_OK;
}

static const field response_fields[] = {
    FIELD("input", TREE(JSON_STRING | JSON_ARRAY, input), .required = true,
          .help = "a text, or the items of a conversation"),
    FIELD("instructions", TEXT(instructions), .help = "the system message"),
    FIELD("max_output_tokens", READ(JSON_NUMBER, call_read_length), .schema = SCHEMA_COUNT,
          .help = "of the answer; none: until the context is full"),
    MODEL_FIELD,
    FIELD("stream", BOOLEAN(stream), .help = "send the answer as it is made"),
    FIELD("text", READ(JSON_OBJECT, read_text_format),
          .schema = "{\"properties\": {\"format\": " SCHEMA_FORMAT "}}",
          .help = "with a format of type text, json_object or json_schema"),
    FIELD("previous_response_id", READ(JSON_STRING, read_previous),
          .help =
              "the response that this one goes on from: its conversation comes before the input"),
    FIELD("store", READ(JSON_BOOL, read_store),
          .help = "false: the response is not kept for previous_response_id"),
    FIELD("metadata", TREE(JSON_OBJECT, metadata), .help = "comes back with the response"),
    FIELD("include", READ(JSON_ARRAY, read_include),
          .help = "with reasoning.encrypted_content, reasoning items have that"),
    FIELD("prompt", READ(JSON_STRING | JSON_OBJECT, refuse_stored_prompt),
          .help = "not built: an object names a prompt that the server keeps, and it keeps none"),
    FIELD("background", READ(JSON_BOOL, refuse_state), .schema = "{\"enum\": [false, null]}",
          .help = "not built: an answer is made while its client waits"),
    {0}};

const field *const openai_response_tables[] = {response_fields,
                                               call_tool_fields,
                                               call_tool_choice_fields,
                                               call_thinking_fields,
                                               call_ending_fields,
                                               call_sampling_fields,
                                               call_vendor_fields,
                                               call_refused_fields,
                                               call_no_logprobs_fields,
                                               call_single_fields,
                                               NULL};

static qp_status read_response(call *c, const cJSON *body, api_error *error)
{
    (void)body;
    TRY(responses_open_earlier(c, error));
    cJSON *variables = NULL, *list = cJSON_CreateArray();
    cJSON *tools = c->p.tools ? responses_tools(c) : NULL;
    qp_status status = responses_messages(c, list, error);
    if (status == QP_OK) status = call_chat_variables(c, list, tools, &variables, error);
    /* The names of the tools stay with the call. */
    if (tools) cJSON_AddItemToObject(c->body, "quipu tools", tools);
    cJSON_Delete(list);
    return status == QP_OK ? call_add_chat(c, variables, error) : status;
}

/* ---- Parts of the output ------------------------------------------------------------------- */

/* The item of a part of the answer: a message or thoughts. */
static void put_item_id(const call *c, qp_text_kind kind, size_t index, char *out, size_t size)
{
    snprintf(out, size, "%s_%s_%zu", kind == QP_TEXT_THINKING ? "rs" : "msg", c->id, index);
}

static void put_text_part(qp_text_kind kind, const char *text, size_t length, strbuf *out)
{
    json_put(out,
             kind == QP_TEXT_THINKING
                 ? "{'type':'reasoning_text','text':%Q}"
                 : "{'type':'output_text','text':%Q,'annotations':[],'logprobs':[]}",
             text, length);
}

/* Where the text of a part stands. */
static const char *text_of(const answer *a, const answer_part *part)
{
    const strbuf *all = part->kind == QP_TEXT_THINKING ? &a->thinking : &a->text;
    return strbuf_text(all) + part->from;
}

static bool wants_seal(const call *c)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, c->p.include)
    {
        if (strcmp(item->valuestring, "reasoning.encrypted_content") == 0) return true;
    }
    return false;
}

/* `text`: of the whole item; NULL: it begins. */
static void put_text_item(const call *c, qp_text_kind kind, size_t index, const char *text,
                          size_t length, strbuf *out)
{
    char id[72];
    const bool thought = kind == QP_TEXT_THINKING;
    put_item_id(c, kind, index, id, sizeof id);
    json_put(out, "{'type':%q,'id':%q,'status':%q,", thought ? "reasoning" : "message", id,
             text ? "completed" : "in_progress");
    json_put(out, thought ? "'summary':[],'content':[" : "'role':'assistant','content':[");
    if (text) put_text_part(kind, text, length, out);
    strbuf_putc(out, ']');
    if (text && thought && wants_seal(c)) {
        strbuf sealed = {0};
        strbuf_puts(&sealed, RESPONSES_SEAL);
        strbuf_append(&sealed, text, length);
        json_put(out, ",'encrypted_content':%Q", strbuf_text(&sealed), sealed.length);
        strbuf_free(&sealed);
    }
    strbuf_putc(out, '}');
}

/* Appends a tree that was made for this, and deletes it. */
static void put_tree(strbuf *out, cJSON *tree)
{
    out->failed |= !tree;
    json_put(out, "%j", tree);
    cJSON_Delete(tree);
}

/* The items of the output, with commas between them. */
static void put_output(const call *c, strbuf *out)
{
    const answer *a = &c->answers[0];
    if (!a->ended) return;
    if (!a->n_parts) put_text_item(c, QP_TEXT_CONTENT, 0, "", 0, out);
    for (size_t i = 0; i < a->n_parts; i++) {
        const answer_part *part = &a->parts[i];
        if (i) strbuf_putc(out, ',');
        if (part->kind == QP_TEXT_CALL)
            put_tree(out, responses_call_item(c, part->call, true));
        else
            put_text_item(c, part->kind, i, text_of(a, part), part->length, out);
    }
}

static void put_usage(const call *c, strbuf *out)
{
    const call_usage sum = call_sum_usage(c);
    if (!c->answers[0].ended)
        json_put(out, ",'usage':null");
    else
        json_put(out,
                 ",'usage':{'input_tokens':%z,'input_tokens_details':{'cached_tokens':%z},"
                 "'output_tokens':%z,'output_tokens_details':{'reasoning_tokens':%z},"
                 "'total_tokens':%z}",
                 sum.prompt, sum.cached, sum.completion, sum.thinking, sum.prompt + sum.completion);
}

static const char *status_of(const call *c)
{
    const answer *a = &c->answers[0];
    if (!a->ended) return "in_progress";
    return strcmp(call_finish_reason(a), "length") == 0 ? "incomplete" : "completed";
}

/* What the request asked for. */
static void put_tool_choice(const parameters *p, strbuf *out)
{
    const bool forced = *p->tool.field && !p->no_tools;
    if (forced && p->tool.name)
        json_put(out, ",'tool_choice':{'type':'function','name':%q}", p->tool.name);
    else
        json_put(out, ",'tool_choice':%q", p->no_tools ? "none" : forced ? "required" : "auto");
}

static void put_response(const call *c, const strbuf *output, strbuf *out)
{
    static const cJSON none = {.type = cJSON_Object}, no_tools = {.type = cJSON_Array};
    const parameters *p = &c->p;
    const char *status = status_of(c);
    json_put(out, "{'id':'resp_%s','object':'response','created_at':%i,'status':%q,'error':null",
             c->id, (int64_t)c->created, status);
    json_put(out, strcmp(status, "incomplete") == 0
                      ? ",'incomplete_details':{'reason':'max_output_tokens'}"
                      : ",'incomplete_details':null");
    json_put(out, ",'instructions':%q,'model':%q,'output':[%t]", p->instructions, lora_model(c),
             output);
    json_put(out,
             ",'parallel_tool_calls':%b,'previous_response_id':%q,'store':%b,'temperature':%g,"
             "'top_p':%g",
             !p->tool.one, p->previous, !p->no_store && c->server->responses.kept,
             p->sampling.value[QP_TEMPERATURE], p->sampling.value[QP_TOP_P]);
    put_tool_choice(p, out);
    json_put(out, ",'tools':%j,'truncation':'disabled','metadata':%j",
             p->tools ? p->tools : &no_tools, p->metadata ? p->metadata : &none);
    put_usage(c, out);
    strbuf_putc(out, '}');
}

/* The response is kept once it has ended. */
static void put_and_keep(const call *c, strbuf *out)
{
    strbuf reply = {0}, output = {0};
    put_output(c, &output);
    put_response(c, &output, &reply);
    if (c->answers[0].ended) responses_keep(c, &reply, &output);
    json_put(out, "%t", &reply);
    strbuf_free(&reply);
    strbuf_free(&output);
}

static void whole(call *c)
{
    put_and_keep(c, &c->out);
}

/* ---- Events -------------------------------------------------------------------------------- */

/* c->state: number of events so far. The answer's parts are the items, with their numbers. Members
 * of the event follow, then end_event(). */
static void begin_event(call *c, const char *type)
{
    json_put(&c->out, "event: %s\ndata: {'type':%q,'sequence_number':%d", type, type, c->state++);
}

static void end_event(call *c)
{
    strbuf_puts(&c->out, "}\n\n");
}

static void send_response(call *c, const char *type)
{
    begin_event(c, type);
    json_put(&c->out, ",'response':");
    put_and_keep(c, &c->out);
    end_event(c);
}

/* An event of an item, which follows. */
static void begin_item_event(call *c, const char *type, size_t index)
{
    begin_event(c, type);
    json_put(&c->out, ",'output_index':%z,'item':", index);
}

static void send_text_item(call *c, qp_text_kind kind, const char *type, size_t index,
                           const char *text, size_t length)
{
    begin_item_event(c, type, index);
    put_text_item(c, kind, index, text, length, &c->out);
    end_event(c);
}

static void send_call_item(call *c, const char *type, size_t index, cJSON *item)
{
    begin_item_event(c, type, index);
    put_tree(&c->out, item);
    end_event(c);
}

/* An event of the text of an item; its type is that of thoughts or of content. */
static void begin_text_event(call *c, qp_text_kind kind, size_t index, const char *thought,
                             const char *content)
{
    char id[72];
    put_item_id(c, kind, index, id, sizeof id);
    begin_event(c, kind == QP_TEXT_THINKING ? thought : content);
    json_put(&c->out, ",'item_id':%q,'output_index':%z,'content_index':0", id, index);
}

static void send_part(call *c, qp_text_kind kind, size_t index, const char *type, const char *text,
                      size_t length)
{
    begin_text_event(c, kind, index, type, type);
    json_put(&c->out, ",'part':");
    put_text_part(kind, text, length, &c->out);
    end_event(c);
}

static void begin(call *c)
{
    send_response(c, "response.created");
    send_response(c, "response.in_progress");
}

static void open_text(call *c, qp_text_kind kind, size_t index)
{
    send_text_item(c, kind, "response.output_item.added", index, NULL, 0);
    send_part(c, kind, index, "response.content_part.added", "", 0);
}

/* More of the text, or all of it. */
static void send_text(call *c, qp_text_kind kind, size_t index, bool all, const char *text,
                      size_t length)
{
    if (all)
        begin_text_event(c, kind, index, "response.reasoning_text.done",
                         "response.output_text.done");
    else
        begin_text_event(c, kind, index, "response.reasoning_text.delta",
                         "response.output_text.delta");
    if (kind != QP_TEXT_THINKING) json_put(&c->out, ",'logprobs':[]");
    json_put(&c->out, ",%q:%Q", all ? "text" : "delta", text, length);
    end_event(c);
}

static void close_text(call *c, qp_text_kind kind, size_t index, const char *text, size_t length)
{
    send_text(c, kind, index, true, text, length);
    send_part(c, kind, index, "response.content_part.done", text, length);
    send_text_item(c, kind, "response.output_item.done", index, text, length);
}

/* Closes the text that is the last of the first `n` parts. */
static void close_last(call *c, const answer *a, size_t n)
{
    const answer_part *part = n ? &a->parts[n - 1] : NULL;
    if (part && part->kind != QP_TEXT_CALL)
        close_text(c, part->kind, n - 1, text_of(a, part), part->length);
}

static void open_call(call *c, const answer *a)
{
    cJSON *item = json_make("{'id':%q,'name':%q}", a->call_id, strbuf_text(&a->name));
    send_call_item(c, "response.output_item.added", a->n_parts,
                   responses_call_item(c, item, false));
    cJSON_Delete(item);
}

/* `text`: more of what the tool is called with, or all of it once the call is whole and has its
 * `name`. */
static void send_given(call *c, const char *call_id, size_t index, bool custom, const char *name,
                       const char *text)
{
    static const char *const types[2][2] = {
        {"response.function_call_arguments.delta", "response.function_call_arguments.done"},
        {"response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"}};
    char id[32];
    responses_call_id(custom, call_id, id, sizeof id);
    begin_event(c, types[custom][name != NULL]);
    json_put(&c->out, ",'item_id':%q,'output_index':%z,%q:%q", id, index,
             !name    ? "delta"
             : custom ? "input"
                      : "arguments",
             text);
    if (name) json_put(&c->out, ",'name':%q", name);
    end_event(c);
}

static void close_call(call *c, const answer *a)
{
    const size_t index = a->n_parts - 1;
    cJSON *item = responses_call_item(c, a->parts[index].call, true);
    const bool custom = json_get(item, "input") != NULL;
    const char *given = json_text(item, custom ? "input" : "arguments");
    if (custom) send_given(c, a->call_id, index, custom, NULL, given);
    send_given(c, a->call_id, index, custom, json_text(item, "name"), given);
    send_call_item(c, "response.output_item.done", index, item);
}

static void delta(call *c, answer *a, qp_text_kind kind, const char *text, size_t length)
{
    const size_t last = a->n_parts ? a->n_parts - 1 : 0;
    switch (kind) {
    case QP_TEXT_CALL:
        close_last(c, a, a->n_parts);
        open_call(c, a);
        return;
    case QP_TEXT_ARGUMENTS:
        if (!responses_is_custom(c, strbuf_text(&a->name)))
            send_given(c, a->call_id, a->n_parts, false, NULL, text);
        return;
    case QP_TEXT_CALL_END:
        close_call(c, a);
        return;
    default:
        if (!length || !a->n_parts) return;
        if (a->parts[last].length == length) { /* it begins */
            close_last(c, a, last);
            open_text(c, kind, last);
        }
        send_text(c, kind, last, false, text, length);
    }
}

static void finish(call *c, answer *a)
{
    close_last(c, a, a->n_parts);
    if (a->n_parts) return;
    open_text(c, QP_TEXT_CONTENT, 0);
    close_text(c, QP_TEXT_CONTENT, 0, "", 0);
}

static void end(call *c)
{
    const bool complete = strcmp(status_of(c), "completed") == 0;
    send_response(c, complete ? "response.completed" : "response.incomplete");
}

static void fail(call *c, const api_error *error)
{
    begin_event(c, "error");
    json_put(&c->out, ",'code':'server_error','message':%q,'param':null", error->error.message);
    end_event(c);
}

const dialect openai_responses = {
    .fields = openai_response_tables,
    .stream_type = "text/event-stream",
    .read = read_response,
    .whole = whole,
    .begin = begin,
    .delta = delta,
    .finish = finish,
    .end = end,
    .fail = fail,
};
