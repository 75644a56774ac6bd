/* POST /v1/responses, without state: every request brings its whole conversation.
 *
 * A stream is a list of numbered events. They open, fill and close items of the output; the last
 * event has the whole response.
 */
#include "server/api_openai.h"
#include "server/api_responses.h"

#include "server/api_parts.h"
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
    return api_refuse(error, 400, name,
                      "\"%s\": the server keeps nothing; send the whole conversation as \"input\"",
                      name);
}

static qp_status refuse_stored_prompt(void *out, const char *name, const cJSON *value,
                                      api_error *error)
{
    return cJSON_IsObject(value) ? refuse_state(out, name, value, error) : QP_OK;
}

static qp_status read_text_format(void *out, const char *name, const cJSON *value, api_error *error)
{
    const cJSON *format = json_get(value, "format");
    return format ? form_read_response(out, name, format, error) : QP_OK;
}

static const field response_fields[] = {
    {.name = "input",
     .type = FIELD_JSON,
     .types = JSON_STRING | JSON_ARRAY,
     AT(input),
     .required = true,
     .help = "a text, or the items of a conversation"},
    {.name = "instructions", .type = FIELD_STRING, AT(instructions), .help = "the system message"},
    {.name = "max_output_tokens",
     .type = FIELD_READ,
     .types = JSON_NUMBER,
     .read = call_read_length,
     .schema = SCHEMA_COUNT,
     .help = "of the answer; none: until the context is full"},
    {.name = "model",
     .type = FIELD_STRING,
     AT(model),
     .help = "any name: the server has one model"},
    {.name = "stream", .type = FIELD_BOOL, AT(stream), .help = "send the answer as it is made"},
    {.name = "text",
     .type = FIELD_READ,
     .types = JSON_OBJECT,
     .read = read_text_format,
     .schema = "{\"properties\": {\"format\": " SCHEMA_FORMAT "}}",
     .help = "with a format of type text, json_object or json_schema"},
    {.name = "previous_response_id",
     .type = FIELD_READ,
     .types = JSON_STRING,
     .read = refuse_state,
     .schema = "{\"enum\": [null]}",
     .help = "not built: the server keeps no responses"},
    {.name = "prompt",
     .type = FIELD_READ,
     .types = JSON_STRING | JSON_OBJECT,
     .read = refuse_stored_prompt,
     .help = "not built: an object names a prompt that the server keeps, and it keeps none"},
    {.name = "background",
     .type = FIELD_READ,
     .types = JSON_BOOL,
     .read = refuse_state,
     .schema = "{\"enum\": [false, null]}",
     .help = "not built: the server keeps no responses"},
    {0}};

static const field *const response_tables[] = {
    response_fields,         call_tool_fields,   call_tool_choice_fields,
    call_sampling_fields,    call_vendor_fields, call_refused_fields,
    call_no_logprobs_fields, call_single_fields, NULL};

static qp_status read_response(call *c, const cJSON *body, api_error *error)
{
    (void)body;
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

static cJSON *text_part(const char *text, size_t length)
{
    strbuf json = {0};
    cJSON *part = cJSON_CreateObject();
    json_put_string(&json, text, length);
    cJSON_AddStringToObject(part, "type", "output_text");
    cJSON_AddRawToObject(part, "text", strbuf_text(&json));
    cJSON_AddArrayToObject(part, "annotations");
    cJSON_AddArrayToObject(part, "logprobs");
    strbuf_free(&json);
    return part;
}

static cJSON *message_item(const call *c, const answer *a, const char *status)
{
    char id[48];
    cJSON *item = cJSON_CreateObject();
    snprintf(id, sizeof id, "msg_%s", c->id);
    cJSON_AddStringToObject(item, "type", "message");
    cJSON_AddStringToObject(item, "id", id);
    cJSON_AddStringToObject(item, "status", status);
    cJSON_AddStringToObject(item, "role", "assistant");
    cJSON *content = cJSON_AddArrayToObject(item, "content");
    if (a) cJSON_AddItemToArray(content, text_part(strbuf_text(&a->text), a->text.length));
    return item;
}

static bool has_message(const answer *a)
{
    return a->text.length > 0 || !a->tool_calls;
}

static void add_output(const call *c, cJSON *output)
{
    const answer *a = &c->answers[0];
    const cJSON *tool_call;
    if (!a->ended) return;
    if (has_message(a)) cJSON_AddItemToArray(output, message_item(c, a, "completed"));
    cJSON_ArrayForEach(tool_call, a->tool_calls)
        cJSON_AddItemToArray(output, responses_call_item(c, tool_call, true));
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
    cJSON_AddNumberToObject(details, "reasoning_tokens", 0);
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
    cJSON_AddStringToObject(tree, "model", c->server->options->alias);
    add_output(c, cJSON_AddArrayToObject(tree, "output"));
    cJSON_AddBoolToObject(tree, "parallel_tool_calls", !c->p.tool.one);
    cJSON_AddNullToObject(tree, "previous_response_id");
    cJSON_AddBoolToObject(tree, "store", false);
    cJSON_AddNumberToObject(tree, "temperature", c->p.sampling.value[QP_TEMPERATURE]);
    cJSON_AddNumberToObject(tree, "top_p", c->p.sampling.value[QP_TOP_P]);
    cJSON_AddItemToObject(tree, "tool_choice", tool_choice_tree(&c->p));
    cJSON_AddItemToObject(tree, "tools",
                          c->p.tools ? cJSON_Duplicate(c->p.tools, true) : cJSON_CreateArray());
    cJSON_AddStringToObject(tree, "truncation", "disabled");
    cJSON_AddObjectToObject(tree, "metadata");
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
    put_tree(response_tree(c), &c->out);
}

/* ---- Events -------------------------------------------------------------------------------- */

/* c->state: number of events so far. If there is a message, it is the item with index 0. */
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
    cJSON_AddItemToObject(event, "response", response_tree(c));
    send_event(c, event);
}

static void send_item(call *c, const char *type, int index, cJSON *item)
{
    cJSON *event = new_event(c, type);
    cJSON_AddNumberToObject(event, "output_index", index);
    cJSON_AddItemToObject(event, "item", item);
    send_event(c, event);
}

/* An event of the message's text. */
static cJSON *text_event(call *c, const char *type)
{
    char id[48];
    cJSON *event = new_event(c, type);
    snprintf(id, sizeof id, "msg_%s", c->id);
    cJSON_AddStringToObject(event, "item_id", id);
    cJSON_AddNumberToObject(event, "output_index", 0);
    cJSON_AddNumberToObject(event, "content_index", 0);
    return event;
}

static void begin(call *c)
{
    send_response(c, "response.created");
    send_response(c, "response.in_progress");
}

static void open_message(call *c)
{
    send_item(c, "response.output_item.added", 0, message_item(c, NULL, "in_progress"));
    cJSON *event = text_event(c, "response.content_part.added");
    cJSON_AddItemToObject(event, "part", text_part("", 0));
    send_event(c, event);
}

static void delta(call *c, answer *a, const char *text, size_t length)
{
    if (!length) return;
    if (!a->sent) open_message(c);
    strbuf_printf(
        &c->out,
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\","
        "\"sequence_number\":%d,\"item_id\":\"msg_%s\",\"output_index\":0,"
        "\"content_index\":0,\"logprobs\":[],\"delta\":",
        c->state++, c->id);
    json_put_string(&c->out, text, length);
    strbuf_puts(&c->out, "}\n\n");
}

static void close_message(call *c, const answer *a)
{
    cJSON *part = text_part(strbuf_text(&a->text), a->text.length);
    cJSON *event = text_event(c, "response.output_text.done");
    cJSON_AddItemToObject(event, "text", cJSON_Duplicate(json_get(part, "text"), false));
    cJSON_AddArrayToObject(event, "logprobs");
    send_event(c, event);
    event = text_event(c, "response.content_part.done");
    cJSON_AddItemToObject(event, "part", part);
    send_event(c, event);
    send_item(c, "response.output_item.done", 0, message_item(c, a, "completed"));
}

static void send_call(call *c, const cJSON *tool_call, int index)
{
    cJSON *whole_item = responses_call_item(c, tool_call, true);
    const bool custom = json_get(whole_item, "input") != NULL;
    const char *given = custom ? "input" : "arguments";
    send_item(c, "response.output_item.added", index, responses_call_item(c, tool_call, false));
    for (int done = 0; done < 2; done++) {
        char type[64];
        snprintf(type, sizeof type, "response.%s.%s",
                 custom ? "custom_tool_call_input" : "function_call_arguments",
                 done ? "done" : "delta");
        cJSON *event = new_event(c, type);
        cJSON_AddStringToObject(event, "item_id", responses_text(whole_item, "id"));
        cJSON_AddNumberToObject(event, "output_index", index);
        cJSON_AddStringToObject(event, done ? given : "delta", responses_text(whole_item, given));
        if (done) cJSON_AddStringToObject(event, "name", responses_text(whole_item, "name"));
        send_event(c, event);
    }
    send_item(c, "response.output_item.done", index, whole_item);
}

static void finish(call *c, answer *a)
{
    const cJSON *tool_call;
    int index = has_message(a);
    if (has_message(a) && !a->text.length) open_message(c);
    if (has_message(a)) close_message(c, a);
    cJSON_ArrayForEach(tool_call, a->tool_calls) send_call(c, tool_call, index++);
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
    .fields = response_tables,
    .stream_type = "text/event-stream",
    .read = read_response,
    .whole = whole,
    .begin = begin,
    .delta = delta,
    .finish = finish,
    .end = end,
    .fail = fail,
};
