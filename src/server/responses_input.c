/* Items of /v1/responses as messages: see api_responses.h. */
#include "server/api_responses.h"

#include <stdio.h>
#include <string.h>

/* Templates that show earlier thinking read it under this name. */
#define THINKING "reasoning_content"

const char *responses_text(const cJSON *item, const char *name)
{
    const char *text = cJSON_GetStringValue(json_get(item, name));
    return text ? text : "";
}

static cJSON *add_message(cJSON *list, const char *role, const char *text)
{
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", role);
    if (text) cJSON_AddStringToObject(message, "content", text);
    cJSON_AddItemToArray(list, message);
    return message;
}

/* ---- What the model wrote ------------------------------------------------------------------ */

/* The message of the turn at the end of the list, which is the model's. */
static cJSON *turn_of(cJSON *list)
{
    cJSON *last = list->child ? list->child->prev : NULL; /* without a walk: lists may be long */
    if (strcmp(responses_text(last, "role"), "assistant") == 0) return last;
    last = add_message(list, "assistant", NULL);
    cJSON_AddArrayToObject(last, "content");
    return last;
}

/* Appends a part to an array of texts of the message. */
static void append_text(cJSON *message, const char *name, const char *text)
{
    cJSON *parts = cJSON_GetObjectItemCaseSensitive(message, name), *part = cJSON_CreateObject();
    if (!parts) parts = cJSON_AddArrayToObject(message, name);
    cJSON_AddStringToObject(part, "text", text);
    cJSON_AddItemToArray(parts, part);
}

/* Appends an item's content, a text or parts that are texts, to an array of texts of the turn. */
static qp_status add_texts(cJSON *list, const cJSON *item, const char *name, api_error *error)
{
    const cJSON *content = json_get(item, "content"), *part;
    if (cJSON_IsString(content)) append_text(turn_of(list), name, content->valuestring);
    if (content && !cJSON_IsString(content) && !cJSON_IsArray(content))
        return api_refuse(error, 400, "input",
                          "the content of an item must be a text or an array of parts, found %s",
                          json_type_name(content));
    cJSON_ArrayForEach(part, content)
    {
        const bool refusal = strcmp(responses_text(part, "type"), "refusal") == 0;
        if (!cJSON_IsString(json_get(part, refusal ? "refusal" : "text")))
            return api_refuse(error, 400, "input",
                              "a part of a message is of type \"%.40s\": the model reads only text",
                              responses_text(part, "type"));
        append_text(turn_of(list), name, responses_text(part, refusal ? "refusal" : "text"));
    }
    return QP_OK;
}

/* Thoughts; clients that keep nothing else of them send back what was "encrypted". */
static qp_status add_reasoning(cJSON *list, const cJSON *item, api_error *error)
{
    const char *sealed = responses_text(item, "encrypted_content");
    const size_t mark = strlen(RESPONSES_SEAL);
    if (!cJSON_GetArraySize(json_get(item, "content")) &&
        strncmp(sealed, RESPONSES_SEAL, mark) == 0) {
        append_text(turn_of(list), THINKING, sealed + mark);
        return QP_OK;
    }
    return add_texts(list, item, THINKING, error);
}

/* Refuses a call without a name, or with something else than a text as what it is called with. */
static qp_status check_call(const cJSON *item, const char *given, api_error *error)
{
    const cJSON *name = json_get(item, "name"), *value = json_get(item, given);
    if (!cJSON_IsString(name))
        return api_refuse(error, 400, "input", "a call of a tool must have a \"name\", found %s",
                          json_type_name(name));
    if (!value || cJSON_IsString(value)) return QP_OK;
    return api_refuse(error, 400, "input", "\"%s\" of a call of a tool must be a text, found %s",
                      given, json_type_name(value));
}

/* Makes one text of the thinking of each turn. */
static void join_thinking(cJSON *list)
{
    cJSON *message;
    const cJSON *part;
    cJSON_ArrayForEach(message, list)
    {
        strbuf text = {0};
        const cJSON *parts = json_get(message, THINKING);
        if (!cJSON_IsArray(parts)) continue;
        cJSON_ArrayForEach(part, parts) strbuf_puts(&text, responses_text(part, "text"));
        cJSON_ReplaceItemInObjectCaseSensitive(message, THINKING,
                                               cJSON_CreateString(strbuf_text(&text)));
        strbuf_free(&text);
    }
}

static void add_call(cJSON *list, const cJSON *item, const char *name, const char *arguments)
{
    cJSON *turn = turn_of(list), *one = cJSON_CreateObject();
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(turn, "tool_calls");
    if (!calls) calls = cJSON_AddArrayToObject(turn, "tool_calls");
    cJSON_AddItemToArray(calls, one);
    cJSON_AddStringToObject(one, "id", responses_text(item, "call_id"));
    cJSON_AddStringToObject(one, "type", "function");
    cJSON *function = cJSON_AddObjectToObject(one, "function");
    cJSON_AddStringToObject(function, "name", name);
    cJSON_AddStringToObject(function, "arguments", arguments);
}

static qp_status add_function_call(cJSON *list, const cJSON *item, api_error *error)
{
    char name[256];
    TRY(check_call(item, "arguments", error));
    const char *space = responses_text(item, "namespace"), *own = responses_text(item, "name");
    responses_full_name(space, own, name, sizeof name);
    add_call(list, item, name, responses_text(item, "arguments"));
    return QP_OK;
}

static qp_status add_custom_call(cJSON *list, const cJSON *item, api_error *error)
{
    TRY(check_call(item, "input", error));
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "input", responses_text(item, "input"));
    char *arguments = cJSON_PrintUnformatted(object);
    add_call(list, item, responses_text(item, "name"), arguments ? arguments : "");
    cJSON_free(arguments);
    cJSON_Delete(object);
    return QP_OK;
}

/* A command in the client's own shell, as a call of a tool. */
static void add_shell_call(cJSON *list, const cJSON *item)
{
    char *action = cJSON_PrintUnformatted(json_get(item, "action"));
    add_call(list, item, "local_shell", action ? action : "{}");
    cJSON_free(action);
}

/* What another agent says: a message of the user that names who it is from. */
static qp_status add_agent_message(cJSON *list, const cJSON *item, api_error *error)
{
    strbuf text = {0};
    const cJSON *part;
    qp_status status = QP_OK;
    strbuf_printf(&text, "%s: ", responses_text(item, "author"));
    cJSON_ArrayForEach(part, json_get(item, "content"))
    {
        if (cJSON_IsString(json_get(part, "text")))
            strbuf_puts(&text, responses_text(part, "text"));
        else
            status =
                api_refuse(error, 400, "input",
                           "a part of an agent's message is of type \"%.40s\": the model reads "
                           "only text",
                           responses_text(part, "type"));
    }
    add_message(list, "user", strbuf_text(&text));
    strbuf_free(&text);
    return status;
}

/* What a hosted tool did: its result is in the text that followed it. */
static bool is_of_hosted_tool(const char *type)
{
    static const char *const names[] = {"web_search_call", "file_search_call",
                                        "image_generation_call", "code_interpreter_call"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(type, names[i]) == 0) return true;
    return false;
}

/* ---- Items --------------------------------------------------------------------------------- */

static void add_result(cJSON *list, const cJSON *item)
{
    const cJSON *output = json_get(item, "output");
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", "tool");
    const char *id = responses_text(item, "call_id");
    cJSON_AddStringToObject(message, "tool_call_id", *id ? id : responses_text(item, "id"));
    cJSON_AddItemToObject(message, "content",
                          output ? cJSON_Duplicate(output, true) : cJSON_CreateString(""));
    cJSON_AddItemToArray(list, message);
}

static qp_status add_item(cJSON *list, const cJSON *item, api_error *error)
{
    const char *type = responses_text(item, "type");
    const bool message = !*type || strcmp(type, "message") == 0;
    if (message && strcmp(responses_text(item, "role"), "assistant") == 0) {
        turn_of(list);
        return add_texts(list, item, "content", error);
    }
    if (strcmp(type, "reasoning") == 0) return add_reasoning(list, item, error);
    if (strcmp(type, "function_call") == 0) return add_function_call(list, item, error);
    if (strcmp(type, "custom_tool_call") == 0) return add_custom_call(list, item, error);
    if (strcmp(type, "agent_message") == 0) return add_agent_message(list, item, error);
    if (message)
        cJSON_AddItemToArray(list, cJSON_Duplicate(item, true)); /* checked later */
    else if (strcmp(type, "local_shell_call") == 0)
        add_shell_call(list, item);
    else if (strcmp(type, "function_call_output") == 0 ||
             strcmp(type, "local_shell_call_output") == 0 ||
             strcmp(type, "custom_tool_call_output") == 0)
        add_result(list, item);
    else if (!is_of_hosted_tool(type))
        return api_refuse(error, 400, "input",
                          "an item of the input is of type \"%.40s\", which is not known here",
                          type);
    return QP_OK;
}

qp_status responses_messages(const call *c, cJSON *list, api_error *error)
{
    const cJSON *item;
    const cJSON *earlier = json_get(c->body, RESPONSES_EARLIER);
    if (c->p.instructions) add_message(list, "system", c->p.instructions);
    cJSON_ArrayForEach(item, earlier) TRY(add_item(list, item, error));
    if (cJSON_IsString(c->p.input)) add_message(list, "user", c->p.input->valuestring);
    cJSON_ArrayForEach(item, c->p.input) TRY(add_item(list, item, error));
    join_thinking(list);
    return QP_OK;
}
