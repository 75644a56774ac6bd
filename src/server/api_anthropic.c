/* POST /v1/messages and /v1/messages/count_tokens.
 *
 * A message's content is a list of blocks. Blocks of text and calls of tools become messages of
 * OpenAI's form, which is what chat templates read.
 */
#include "server/endpoints.h"

#include "server/api_parts.h"
#include "server/lora.h"
#include "server/server_state.h"
#include "text/json_string.h"

#include <stdio.h>
#include <string.h>

static qp_status read_tool_choice(void *out, const char *name, const cJSON *value, api_error *error)
{
    parameters *p = out;
    const char *word = json_text(value, "type");
    p->no_tools = strcmp(word, "none") == 0;
    p->tool.one = cJSON_IsTrue(json_get(value, "disable_parallel_tool_use"));
    if (p->no_tools || strcmp(word, "auto") == 0) return QP_OK;
    const char *tool = cJSON_GetStringValue(json_get(value, "name"));
    const bool any = strcmp(word, "any") == 0;
    if (any || (strcmp(word, "tool") == 0 && tool))
        return form_force_call(p, name, any ? NULL : tool), QP_OK;
    return api_refuse(error, 400, name,
                      "\"%s\" may be of type none, auto, any, or tool with a name", name);
}

static qp_status read_output_config(void *out, const char *name, const cJSON *value,
                                    api_error *error)
{
    char format_name[FORM_FIELD];
    const cJSON *format = json_get(value, "format");
    snprintf(format_name, sizeof format_name, "%s.format", name);
    return format ? form_read_response(out, format_name, format, error) : QP_OK;
}

static const field message_fields[] = {
    MODEL_FIELD,
    FIELD("system", TREE(JSON_STRING | JSON_ARRAY, system), .help = "the system message"),
    FIELD("tool_choice", READ(JSON_OBJECT, read_tool_choice),
          .schema = "{\"required\": [\"type\"], \"properties\": {\"type\": {\"enum\": [\"none\", "
                    "\"auto\", \"any\", \"tool\"]}}}",
          .help = "of type none, auto, any or tool"),
    {0}};

static const field answer_fields[] = {
    FIELD("max_tokens", INTEGER(max_tokens), .low = 1, .high = 1 << 30, .required = true,
          .help = "of the answer"),
    FIELD("stop_sequences", READ(JSON_ARRAY, call_read_stop), .items = ITEMS_TEXTS,
          .help = "texts that end the answer, which does not hold them"),
    FIELD("stream", BOOLEAN(stream), .help = "send the answer as it is made"),
    FIELD("output_config", READ(JSON_OBJECT, read_output_config),
          .schema = "{\"properties\": {\"format\": " SCHEMA_FORMAT "}}",
          .help = "with a format of type json_schema"),
    FIELD("output_format", READ(JSON_OBJECT, form_read_response), .schema = SCHEMA_FORMAT,
          .help = "the format of output_config under its older name"),
    {0}};

static const field *const message_tables[] = {
    call_message_fields, message_fields,       call_tool_fields,        answer_fields,
    call_ending_fields,  call_thinking_fields, call_sampling_fields,    call_vendor_fields,
    call_refused_fields, call_single_fields,   call_no_logprobs_fields, NULL};
const field *const count_tokens_tables[] = {call_message_fields, message_fields, call_tool_fields,
                                            call_thinking_fields, NULL};

/* ---- To OpenAI's form ---------------------------------------------------------------------- */

static void add_tool_use(cJSON *message, const cJSON *block)
{
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    const cJSON *input = json_get(block, "input");
    const cJSON none = {.type = cJSON_Object};
    if (!calls) calls = cJSON_AddArrayToObject(message, "tool_calls");
    cJSON_AddItemToArray(
        calls, json_make("{'id':%q,'type':'function','function':{'name':%q,'arguments':%j}}",
                         json_text(block, "id"), json_text(block, "name"), input ? input : &none));
}

/* Templates that show earlier thinking read it under this name. */
static void add_thinking(cJSON *message, const cJSON *block)
{
    const char *earlier = cJSON_GetStringValue(json_get(message, "reasoning_content"));
    const char *text = cJSON_GetStringValue(json_get(block, "thinking"));
    strbuf all = {0};
    if (!text) return;
    strbuf_printf(&all, "%s%s%s", earlier ? earlier : "", earlier ? "\n\n" : "", text);
    cJSON_DeleteItemFromObjectCaseSensitive(message, "reasoning_content");
    cJSON_AddStringToObject(message, "reasoning_content", strbuf_text(&all));
    strbuf_free(&all);
}

/* A document of text, after its title, is a part of the message; false: it is of another kind. */
static bool add_document(cJSON *parts, const cJSON *block)
{
    const cJSON *source = json_get(block, "source");
    const char *title = json_text(block, "title");
    const char *data = cJSON_GetStringValue(json_get(source, "data"));
    if (strcmp(json_text(source, "type"), "text") != 0 || !data) return false;
    strbuf text = {0};
    strbuf_printf(&text, "%s%s%s\n", title, *title ? "\n" : "", data);
    cJSON_AddItemToArray(parts, json_make("{'type':'text','text':%q}", strbuf_text(&text)));
    strbuf_free(&text);
    return true;
}

/* A tool's result is a message of its own. */
static void add_tool_result(cJSON *list, const cJSON *block)
{
    const cJSON *content = json_get(block, "content");
    const cJSON none = {.type = cJSON_String, .valuestring = ""};
    cJSON_AddItemToArray(list,
                         json_make("{'role':'tool','tool_call_id':%q,'content':%j}",
                                   json_text(block, "tool_use_id"), content ? content : &none));
}

static qp_status add_blocks(const char *role, const cJSON *blocks, cJSON *list, api_error *error)
{
    const cJSON *block;
    cJSON *message = json_make("{'role':%q,'content':[]}", role);
    cJSON *parts = cJSON_GetObjectItemCaseSensitive(message, "content");
    qp_status status = QP_OK;
    cJSON_ArrayForEach(block, blocks)
    {
        const char *type = json_text(block, "type");
        if (strcmp(type, "text") == 0)
            cJSON_AddItemToArray(parts, cJSON_Duplicate(block, true));
        else if (strcmp(type, "tool_use") == 0)
            add_tool_use(message, block);
        else if (strcmp(type, "tool_result") == 0)
            add_tool_result(list, block);
        else if (strcmp(type, "thinking") == 0)
            add_thinking(message, block);
        else if (strcmp(type, "document") == 0 && add_document(parts, block))
            continue;
        else if (status == QP_OK && strcmp(type, "redacted_thinking") != 0)
            status = api_refuse(error, 400, "messages",
                                "a block is of type \"%.40s\": the model reads only text", type);
    }
    if (cJSON_GetArraySize(parts) || json_get(message, "tool_calls"))
        cJSON_AddItemToArray(list, message);
    else
        cJSON_Delete(message);
    return status;
}

static qp_status add_message(const cJSON *message, cJSON *list, api_error *error)
{
    const cJSON *role = json_get(message, "role"), *content = json_get(message, "content");
    if (cJSON_IsString(role) && cJSON_IsArray(content))
        return add_blocks(role->valuestring, content, list, error);
    cJSON_AddItemToArray(list, cJSON_Duplicate(message, true)); /* checked later */
    return QP_OK;
}

/* {"name", "description", "input_schema"} as {"type": "function", "function": ...}. */
static cJSON *convert_tools(const cJSON *tools)
{
    const cJSON *tool;
    cJSON *list = cJSON_CreateArray();
    cJSON_ArrayForEach(tool, tools)
    {
        cJSON *out = json_make("{'type':'function','function':%j}", tool);
        cJSON *function = cJSON_GetObjectItemCaseSensitive(out, "function");
        cJSON *schema = cJSON_DetachItemFromObjectCaseSensitive(function, "input_schema");
        if (schema) cJSON_AddItemToObject(function, "parameters", schema);
        cJSON_AddItemToArray(list, out);
    }
    return list;
}

/* A tool that Anthropic's servers would run has a type of its own and no schema. */
static qp_status check_tools(const cJSON *tools, api_error *error)
{
    const cJSON *tool;
    cJSON_ArrayForEach(tool, tools)
    {
        const cJSON *type = json_get(tool, "type");
        if (json_get(tool, "input_schema") || !cJSON_IsString(type)) continue;
        if (strcmp(type->valuestring, "custom") == 0) continue;
        return api_refuse(
            error, 400, "tools",
            "the tool \"%.60s\" runs on Anthropic's servers, not here: leave it out, or "
            "give one with an \"input_schema\", which you run",
            type->valuestring);
    }
    return QP_OK;
}

static qp_status convert(call *c, cJSON **variables, api_error *error)
{
    const cJSON *message;
    TRY(check_tools(c->p.tools, error));
    cJSON *list = cJSON_CreateArray();
    cJSON *tools = c->p.tools ? convert_tools(c->p.tools) : NULL;
    qp_status status = QP_OK;
    if (c->p.system)
        cJSON_AddItemToArray(list, json_make("{'role':'system','content':%j}", c->p.system));
    cJSON_ArrayForEach(message, c->p.messages)
    {
        if (status == QP_OK) status = add_message(message, list, error);
    }
    c->p.continues = call_ends_in_answer(list);
    if (status == QP_OK) status = call_chat_variables(c, list, tools, variables, error);
    /* The names of the tools stay with the call. */
    if (tools) cJSON_AddItemToObject(c->body, "quipu tools", tools);
    cJSON_Delete(list);
    return status;
}

static qp_status read_messages(call *c, const cJSON *body, api_error *error)
{
    (void)body;
    cJSON *variables;
    TRY(convert(c, &variables, error));
    return call_add_chat(c, variables, error);
}

qp_status answer_count_tokens(call *c, api_error *error)
{
    TRY(read_messages(c, c->body, error));
    call_put_length(c, "");
    return QP_OK;
}

/* ---- Replies ------------------------------------------------------------------------------- */

static const char *stop_reason(const answer *a)
{
    if (call_was_cut(a)) return "max_tokens";
    if (a->tool_calls) return "tool_use";
    return a->finish == QP_FINISH_STOP_TEXT ? "stop_sequence" : "end_turn";
}

static void put_usage(const call *c, strbuf *out)
{
    call_usage sum = call_sum_usage(c);
    json_put(out,
             "'usage':{'input_tokens':%z,'cache_creation_input_tokens':0,"
             "'cache_read_input_tokens':%z,'output_tokens':%z}",
             sum.prompt - sum.cached, sum.cached, sum.completion);
}

static void put_stop(const answer *a, strbuf *out)
{
    json_put(out, "'stop_reason':%q,'stop_sequence':%q", stop_reason(a), a->stopped);
}

static void put_message_head(const call *c, strbuf *out)
{
    json_put(out, "'id':'msg_%s','type':'message','role':'assistant','model':%q", c->id,
             lora_model(c));
}

/* A block with all that it has, or as it begins. Nobody has signed a thought here, but clients keep
 * only blocks that have a signature. */
#define SIGNATURE "unsigned"

static void put_text_block(qp_text_kind kind, const char *text, size_t length, strbuf *out)
{
    if (kind == QP_TEXT_THINKING)
        json_put(out, "{'type':'thinking','thinking':%Q,'signature':%q}", text, length,
                 length ? SIGNATURE : "");
    else
        json_put(out, "{'type':'text','text':%Q}", text, length);
}

static void put_call_block(const char *id, const char *name, const char *input, strbuf *out)
{
    json_put(out, "{'type':'tool_use','id':'toolu_%s','name':%q,'input':%s}", id, name, input);
}

static void put_block(const answer *a, const answer_part *part, strbuf *out)
{
    const strbuf *all = part->kind == QP_TEXT_THINKING ? &a->thinking : &a->text;
    if (part->kind != QP_TEXT_CALL)
        put_text_block(part->kind, strbuf_text(all) + part->from, part->length, out);
    else
        put_call_block(json_text(part->call, "id"), json_text(part->call, "name"),
                       json_text(part->call, "arguments"), out);
}

static void whole(call *c)
{
    const answer *a = &c->answers[0];
    strbuf *out = &c->out;
    strbuf_putc(out, '{');
    put_message_head(c, out);
    json_put(out, ",'content':[");
    if (!a->n_parts) put_text_block(QP_TEXT_CONTENT, "", 0, out);
    for (size_t i = 0; i < a->n_parts; i++) {
        if (i) strbuf_putc(out, ',');
        put_block(a, &a->parts[i], out);
    }
    strbuf_puts(out, "],");
    put_stop(a, out);
    strbuf_putc(out, ',');
    put_usage(c, out);
    strbuf_putc(out, '}');
}

/* c->state of a stream: the kind of the block that is open, plus one, and how many blocks there
 * were before it. */
enum { BLOCK_KINDS = 8 };

static int block_of(const call *c)
{
    return c->state / BLOCK_KINDS;
}

static bool is_open(const call *c, qp_text_kind kind)
{
    return c->state % BLOCK_KINDS == (int)kind + 1;
}

/* `rest`: members after the type, without a brace. */
static void begin_event(call *c, const char *type, const char *rest)
{
    json_put(&c->out, "event: %s\ndata: {'type':%q,%s", type, type, rest);
}

static void end_event(call *c, const char *braces)
{
    json_put(&c->out, "%s\n\n", braces);
}

static void begin_block_event(call *c, const char *type)
{
    begin_event(c, type, "");
    json_put(&c->out, "'index':%d", block_of(c));
}

static void put_delta(call *c, const char *type, const char *name, const char *text, size_t length)
{
    begin_block_event(c, "content_block_delta");
    json_put(&c->out, ",'delta':{'type':%q,'%s':%Q", type, name, text, length);
    end_event(c, "}}");
}

static void close_block(call *c)
{
    if (c->state % BLOCK_KINDS == 0) return;
    if (is_open(c, QP_TEXT_THINKING))
        put_delta(c, "signature_delta", "signature", SIGNATURE, strlen(SIGNATURE));
    begin_block_event(c, "content_block_stop");
    end_event(c, "}");
    c->state = (block_of(c) + 1) * BLOCK_KINDS;
}

static void open_block(call *c, const answer *a, qp_text_kind kind)
{
    if (kind != QP_TEXT_CALL && is_open(c, kind)) return;
    close_block(c);
    c->state += (int)kind + 1;
    begin_block_event(c, "content_block_start");
    json_put(&c->out, ",'content_block':");
    if (kind == QP_TEXT_CALL)
        put_call_block(a->call_id, strbuf_text(&a->name), "{}", &c->out);
    else
        put_text_block(kind, "", 0, &c->out);
    end_event(c, "}");
}

static void begin(call *c)
{
    begin_event(c, "message_start", "\"message\":{");
    put_message_head(c, &c->out);
    json_put(&c->out, ",'content':[],'stop_reason':null,'stop_sequence':null,");
    put_usage(c, &c->out);
    end_event(c, "}}");
}

static void delta(call *c, answer *a, qp_text_kind kind, const char *text, size_t length)
{
    if (kind == QP_TEXT_CALL_END) {
        close_block(c);
        return;
    }
    if (!length) return;
    if (kind != QP_TEXT_ARGUMENTS) open_block(c, a, kind);
    if (kind == QP_TEXT_CONTENT) put_delta(c, "text_delta", "text", text, length);
    if (kind == QP_TEXT_THINKING) put_delta(c, "thinking_delta", "thinking", text, length);
    if (kind == QP_TEXT_ARGUMENTS) put_delta(c, "input_json_delta", "partial_json", text, length);
}

static void finish(call *c, answer *a)
{
    (void)a;
    close_block(c);
}

static void end(call *c)
{
    begin_event(c, "message_delta", "\"delta\":{");
    put_stop(&c->answers[0], &c->out);
    strbuf_puts(&c->out, "},");
    put_usage(c, &c->out);
    end_event(c, "}");
    strbuf_puts(&c->out, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void fail(call *c, const api_error *error)
{
    strbuf_puts(&c->out, "event: error\ndata: ");
    api_error_body(error, API_ANTHROPIC, &c->out);
    strbuf_puts(&c->out, "\n\n");
}

const dialect anthropic_messages = {
    .fields = message_tables,
    .stream_type = "text/event-stream",
    .read = read_messages,
    .whole = whole,
    .begin = begin,
    .delta = delta,
    .finish = finish,
    .end = end,
    .fail = fail,
};
