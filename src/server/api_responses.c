/* POST /v1/responses. A request brings its whole conversation, or goes on from an earlier response.
 *
 * A stream is a list of numbered events. They open, fill and close items of the output; the last
 * event has the whole response.
 */
#include "server/api_openai.h"
#include "server/api_responses.h"

#include "server/api_parts.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <stdio.h>
#include <string.h>

#define AT(member) .at = offsetof(parameters, member)

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
    FIELD("input", .type = FIELD_JSON, .types = JSON_STRING | JSON_ARRAY, AT(input),
          .required = true, .help = "a text, or the items of a conversation"),
    FIELD("instructions", .type = FIELD_STRING, AT(instructions), .help = "the system message"),
    FIELD("max_output_tokens", .type = FIELD_READ, .types = JSON_NUMBER, .read = call_read_length,
          .schema = SCHEMA_COUNT, .help = "of the answer; none: until the context is full"),
    FIELD("model", .type = FIELD_STRING, AT(model), .help = "any name: the server has one model"),
    FIELD("stream", .type = FIELD_BOOL, AT(stream), .help = "send the answer as it is made"),
    FIELD("text", .type = FIELD_READ, .types = JSON_OBJECT, .read = read_text_format,
          .schema = "{\"properties\": {\"format\": " SCHEMA_FORMAT "}}",
          .help = "with a format of type text, json_object or json_schema"),
    FIELD("previous_response_id", .type = FIELD_READ, .types = JSON_STRING, .read = read_previous,
          .help =
              "the response that this one goes on from: its conversation comes before the input"),
    FIELD("store", .type = FIELD_READ, .types = JSON_BOOL, .read = read_store,
          .help = "false: the response is not kept for previous_response_id"),
    FIELD("metadata", .type = FIELD_JSON, .types = JSON_OBJECT, AT(metadata),
          .help = "comes back with the response"),
    FIELD("include", .type = FIELD_READ, .types = JSON_ARRAY, .read = read_include,
          .help = "with reasoning.encrypted_content, reasoning items have that"),
    FIELD("prompt", .type = FIELD_READ, .types = JSON_STRING | JSON_OBJECT,
          .read = refuse_stored_prompt,
          .help = "not built: an object names a prompt that the server keeps, and it keeps none"),
    FIELD("background", .type = FIELD_READ, .types = JSON_BOOL, .read = refuse_state,
          .schema = "{\"enum\": [false, null]}",
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

static cJSON *text_part(qp_text_kind kind, const char *text, size_t length)
{
    strbuf json = {0};
    cJSON *part = cJSON_CreateObject();
    const bool thought = kind == QP_TEXT_THINKING;
    json_put_string(&json, text, length);
    cJSON_AddStringToObject(part, "type", thought ? "reasoning_text" : "output_text");
    cJSON_AddRawToObject(part, "text", strbuf_text(&json));
    if (!thought) cJSON_AddArrayToObject(part, "annotations");
    if (!thought) cJSON_AddArrayToObject(part, "logprobs");
    strbuf_free(&json);
    return part;
}

static cJSON *part_of(const answer *a, const answer_part *part)
{
    const strbuf *all = part->kind == QP_TEXT_THINKING ? &a->thinking : &a->text;
    return text_part(part->kind, strbuf_text(all) + part->from, part->length);
}

static bool wants_seal(const call *c)
{
    const cJSON *item;
    cJSON_ArrayForEach(item,
                       c->p.include) if (cJSON_IsString(item) &&
                                         strcmp(item->valuestring, "reasoning.encrypted_content") ==
                                             0) return true;
    return false;
}

/* `part`: the item's text; NULL: it begins. */
static cJSON *text_item(const call *c, qp_text_kind kind, size_t index, cJSON *part)
{
    char id[72];
    const bool thought = kind == QP_TEXT_THINKING;
    cJSON *item = cJSON_CreateObject();
    put_item_id(c, kind, index, id, sizeof id);
    cJSON_AddStringToObject(item, "type", thought ? "reasoning" : "message");
    cJSON_AddStringToObject(item, "id", id);
    cJSON_AddStringToObject(item, "status", part ? "completed" : "in_progress");
    if (thought) cJSON_AddArrayToObject(item, "summary");
    if (!thought) cJSON_AddStringToObject(item, "role", "assistant");
    cJSON *content = cJSON_AddArrayToObject(item, "content");
    if (part && thought && wants_seal(c)) {
        strbuf sealed = {0}; /* the text is JSON already */
        strbuf_printf(&sealed, "\"" RESPONSES_SEAL "%s", json_get(part, "text")->valuestring + 1);
        cJSON_AddRawToObject(item, "encrypted_content", strbuf_text(&sealed));
        strbuf_free(&sealed);
    }
    if (part) cJSON_AddItemToArray(content, part);
    return item;
}

static cJSON *empty_message(const call *c)
{
    return text_item(c, QP_TEXT_CONTENT, 0, text_part(QP_TEXT_CONTENT, "", 0));
}

static void add_output(const call *c, cJSON *output)
{
    const answer *a = &c->answers[0];
    if (!a->ended) return;
    if (!a->n_parts) cJSON_AddItemToArray(output, empty_message(c));
    for (size_t i = 0; i < a->n_parts; i++) {
        const answer_part *part = &a->parts[i];
        cJSON_AddItemToArray(output, part->kind == QP_TEXT_CALL
                                         ? responses_call_item(c, part->call, true)
                                         : text_item(c, part->kind, i, part_of(a, part)));
    }
}

static void add_usage(const call *c, cJSON *tree)
{
    call_usage sum = call_sum_usage(c);
    cJSON *usage = cJSON_AddObjectToObject(tree, "usage");
    cJSON_AddNumberToObject(usage, "input_tokens", (double)sum.prompt);
    cJSON *details = cJSON_AddObjectToObject(usage, "input_tokens_details");
    cJSON_AddNumberToObject(details, "cached_tokens", (double)sum.cached);
    cJSON_AddNumberToObject(usage, "output_tokens", (double)sum.completion);
    details = cJSON_AddObjectToObject(usage, "output_tokens_details");
    cJSON_AddNumberToObject(details, "reasoning_tokens", (double)sum.thinking);
    cJSON_AddNumberToObject(usage, "total_tokens", (double)(sum.prompt + sum.completion));
}

static const char *status_of(const call *c)
{
    const answer *a = &c->answers[0];
    if (!a->ended) return "in_progress";
    return strcmp(call_finish_reason(a), "length") == 0 ? "incomplete" : "completed";
}

/* What the request asked for. */
static cJSON *tool_choice_tree(const parameters *p)
{
    if (!*p->tool.field || p->no_tools) return cJSON_CreateString(p->no_tools ? "none" : "auto");
    if (!p->tool.name) return cJSON_CreateString("required");
    cJSON *tree = cJSON_CreateObject();
    cJSON_AddStringToObject(tree, "type", "function");
    cJSON_AddStringToObject(tree, "name", p->tool.name);
    return tree;
}

static cJSON *response_tree(const call *c)
{
    char id[48];
    const char *status = status_of(c);
    cJSON *tree = cJSON_CreateObject();
    snprintf(id, sizeof id, "resp_%s", c->id);
    cJSON_AddStringToObject(tree, "id", id);
    cJSON_AddStringToObject(tree, "object", "response");
    cJSON_AddNumberToObject(tree, "created_at", (double)c->created);
    cJSON_AddStringToObject(tree, "status", status);
    cJSON_AddNullToObject(tree, "error");
    if (strcmp(status, "incomplete") == 0) {
        cJSON *why = cJSON_AddObjectToObject(tree, "incomplete_details");
        cJSON_AddStringToObject(why, "reason", "max_output_tokens");
    } else {
        cJSON_AddNullToObject(tree, "incomplete_details");
    }
    if (c->p.instructions)
        cJSON_AddStringToObject(tree, "instructions", c->p.instructions);
    else
        cJSON_AddNullToObject(tree, "instructions");
    cJSON_AddStringToObject(tree, "model", lora_model(c));
    add_output(c, cJSON_AddArrayToObject(tree, "output"));
    cJSON_AddBoolToObject(tree, "parallel_tool_calls", !c->p.tool.one);
    if (c->p.previous)
        cJSON_AddStringToObject(tree, "previous_response_id", c->p.previous);
    else
        cJSON_AddNullToObject(tree, "previous_response_id");
    cJSON_AddBoolToObject(tree, "store", !c->p.no_store && c->server->responses.kept);
    cJSON_AddNumberToObject(tree, "temperature", c->p.sampling.value[QP_TEMPERATURE]);
    cJSON_AddNumberToObject(tree, "top_p", c->p.sampling.value[QP_TOP_P]);
    cJSON_AddItemToObject(tree, "tool_choice", tool_choice_tree(&c->p));
    cJSON_AddItemToObject(tree, "tools",
                          c->p.tools ? cJSON_Duplicate(c->p.tools, true) : cJSON_CreateArray());
    cJSON_AddStringToObject(tree, "truncation", "disabled");
    cJSON_AddItemToObject(tree, "metadata",
                          c->p.metadata ? cJSON_Duplicate(c->p.metadata, true)
                                        : cJSON_CreateObject());
    if (c->answers[0].ended)
        add_usage(c, tree);
    else
        cJSON_AddNullToObject(tree, "usage");
    return tree;
}

static void put_tree(cJSON *tree, strbuf *out)
{
    char *text = tree ? json_print(tree) : NULL;
    if (text)
        strbuf_puts(out, text);
    else
        out->failed = true;
    cJSON_free(text);
    cJSON_Delete(tree);
}

static void whole(call *c)
{
    cJSON *tree = response_tree(c);
    responses_keep(c, tree);
    put_tree(tree, &c->out);
}

/* ---- Events -------------------------------------------------------------------------------- */

/* c->state: number of events so far. The answer's parts are the items, with their numbers. */
static cJSON *new_event(call *c, const char *type)
{
    cJSON *event = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "type", type);
    cJSON_AddNumberToObject(event, "sequence_number", c->state++);
    return event;
}

static void send_event(call *c, cJSON *event)
{
    strbuf_printf(&c->out, "event: %s\ndata: ", responses_text(event, "type"));
    put_tree(event, &c->out);
    strbuf_puts(&c->out, "\n\n");
}

static void send_response(call *c, const char *type)
{
    cJSON *event = new_event(c, type);
    cJSON *tree = response_tree(c);
    if (c->answers[0].ended) responses_keep(c, tree);
    cJSON_AddItemToObject(event, "response", tree);
    send_event(c, event);
}

static void send_item(call *c, const char *type, size_t index, cJSON *item)
{
    cJSON *event = new_event(c, type);
    cJSON_AddNumberToObject(event, "output_index", (double)index);
    cJSON_AddItemToObject(event, "item", item);
    send_event(c, event);
}

/* An event of the text of an item. */
static cJSON *text_event(call *c, qp_text_kind kind, size_t index, const char *type)
{
    char id[72];
    cJSON *event = new_event(c, type);
    put_item_id(c, kind, index, id, sizeof id);
    cJSON_AddStringToObject(event, "item_id", id);
    cJSON_AddNumberToObject(event, "output_index", (double)index);
    cJSON_AddNumberToObject(event, "content_index", 0);
    return event;
}

static void begin(call *c)
{
    send_response(c, "response.created");
    send_response(c, "response.in_progress");
}

static void open_text(call *c, qp_text_kind kind, size_t index)
{
    send_item(c, "response.output_item.added", index, text_item(c, kind, index, NULL));
    cJSON *event = text_event(c, kind, index, "response.content_part.added");
    cJSON_AddItemToObject(event, "part", text_part(kind, "", 0));
    send_event(c, event);
}

static void send_text(call *c, qp_text_kind kind, size_t index, const char *text, size_t length)
{
    char id[72];
    const bool thought = kind == QP_TEXT_THINKING;
    const char *type = thought ? "response.reasoning_text.delta" : "response.output_text.delta";
    put_item_id(c, kind, index, id, sizeof id);
    strbuf_printf(&c->out,
                  "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d,\"item_id\":\"%s\","
                  "\"output_index\":%zu,\"content_index\":0,%s\"delta\":",
                  type, type, c->state++, id, index, thought ? "" : "\"logprobs\":[],");
    json_put_string(&c->out, text, length);
    strbuf_puts(&c->out, "}\n\n");
}

static void close_text(call *c, qp_text_kind kind, size_t index, cJSON *part)
{
    const bool thought = kind == QP_TEXT_THINKING;
    cJSON *event = text_event(
        c, kind, index, thought ? "response.reasoning_text.done" : "response.output_text.done");
    cJSON_AddItemToObject(event, "text", cJSON_Duplicate(json_get(part, "text"), false));
    if (!thought) cJSON_AddArrayToObject(event, "logprobs");
    send_event(c, event);
    event = text_event(c, kind, index, "response.content_part.done");
    cJSON_AddItemToObject(event, "part", cJSON_Duplicate(part, true));
    send_event(c, event);
    send_item(c, "response.output_item.done", index, text_item(c, kind, index, part));
}

/* Closes the text that is the last of the first `n` parts. */
static void close_last(call *c, const answer *a, size_t n)
{
    if (n == 0 || a->parts[n - 1].kind == QP_TEXT_CALL) return;
    close_text(c, a->parts[n - 1].kind, n - 1, part_of(a, &a->parts[n - 1]));
}

static void open_call(call *c, const answer *a)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "id", a->call_id);
    cJSON_AddStringToObject(item, "name", strbuf_text(&a->name));
    send_item(c, "response.output_item.added", a->n_parts, responses_call_item(c, item, false));
    cJSON_Delete(item);
}

/* `text`: more arguments, or all of them once the call is `done`. */
static void send_given(call *c, const char *call_id, size_t index, bool custom, const char *name,
                       const char *text)
{
    char type[64], id[32];
    const bool done = name != NULL;
    snprintf(type, sizeof type, "response.%s.%s",
             custom ? "custom_tool_call_input" : "function_call_arguments",
             done ? "done" : "delta");
    responses_call_id(custom, call_id, id, sizeof id);
    cJSON *event = new_event(c, type);
    cJSON_AddStringToObject(event, "item_id", id);
    cJSON_AddNumberToObject(event, "output_index", (double)index);
    cJSON_AddStringToObject(event, !done ? "delta" : custom ? "input" : "arguments", text);
    if (done) cJSON_AddStringToObject(event, "name", name);
    send_event(c, event);
}

static void close_call(call *c, const answer *a)
{
    const size_t index = a->n_parts - 1;
    cJSON *item = responses_call_item(c, a->parts[index].call, true);
    const bool custom = json_get(item, "input") != NULL;
    const char *given = responses_text(item, custom ? "input" : "arguments");
    if (custom) send_given(c, a->call_id, index, custom, NULL, given);
    send_given(c, a->call_id, index, custom, responses_text(item, "name"), given);
    send_item(c, "response.output_item.done", index, item);
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
        send_text(c, kind, last, text, length);
    }
}

static void finish(call *c, answer *a)
{
    close_last(c, a, a->n_parts);
    if (a->n_parts) return;
    open_text(c, QP_TEXT_CONTENT, 0);
    close_text(c, QP_TEXT_CONTENT, 0, text_part(QP_TEXT_CONTENT, "", 0));
}

static void end(call *c)
{
    bool complete = strcmp(status_of(c), "completed") == 0;
    send_response(c, complete ? "response.completed" : "response.incomplete");
}

static void fail(call *c, const api_error *error)
{
    cJSON *event = new_event(c, "error");
    cJSON_AddStringToObject(event, "code", "server_error");
    cJSON_AddStringToObject(event, "message", error->error.message);
    cJSON_AddNullToObject(event, "param");
    send_event(c, event);
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
