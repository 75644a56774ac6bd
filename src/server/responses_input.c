/* Items of /v1/responses as messages: see api_responses.h. */
#include "server/api_responses.h"

#include "text/json_string.h"

#include <stdio.h>
#include <string.h>

/* Templates that show earlier thinking read it under this name. */
#define THINKING "reasoning_content"

static cJSON *add_message(cJSON *list, const char *role, const char *text)
{
    cJSON *message = text ? json_make("{'role':%q,'content':%q}", role, text)
                          : json_make("{'role':%q,'content':[]}", role);
    cJSON_AddItemToArray(list, message);
    return message;
}

/* ---- What the model wrote ------------------------------------------------------------------ */

/* The message of the turn at the end of the list, which is the model's. */
static cJSON *turn_of(cJSON *list)
{
    cJSON *last = list->child ? list->child->prev : NULL; /* without a walk: lists may be long */
    if (strcmp(json_text(last, "role"), "assistant") == 0) return last;
    return add_message(list, "assistant", NULL);
}

/* Appends a part to an array of texts of the message. */
static void append_text(cJSON *message, const char *name, const char *text)
{
    cJSON *parts = cJSON_GetObjectItemCaseSensitive(message, name);
    if (!parts) parts = cJSON_AddArrayToObject(message, name);
    cJSON_AddItemToArray(parts, json_make("{'text':%q}", text));
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
        const bool refusal = strcmp(json_text(part, "type"), "refusal") == 0;
        if (!cJSON_IsString(json_get(part, refusal ? "refusal" : "text")))
            return api_refuse(error, 400, "input",
                              "a part of a message is of type \"%.40s\": the model reads only text",
                              json_text(part, "type"));
        append_text(turn_of(list), name, json_text(part, refusal ? "refusal" : "text"));
    }
    return QP_OK;
}

/* Thoughts; clients that keep nothing else of them send back what was "encrypted". */
static qp_status add_reasoning(cJSON *list, const cJSON *item, api_error *error)
{
    const char *sealed = json_text(item, "encrypted_content");
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
        cJSON_ArrayForEach(part, parts) strbuf_puts(&text, json_text(part, "text"));
        cJSON_ReplaceItemInObjectCaseSensitive(message, THINKING,
                                               cJSON_CreateString(strbuf_text(&text)));
        strbuf_free(&text);
    }
}

static void add_call(cJSON *list, const cJSON *item, const char *name, const char *arguments)
{
    cJSON *turn = turn_of(list), *calls = cJSON_GetObjectItemCaseSensitive(turn, "tool_calls");
    if (!calls) calls = cJSON_AddArrayToObject(turn, "tool_calls");
    cJSON_AddItemToArray(
        calls, json_make("{'id':%q,'type':'function','function':{'name':%q,'arguments':%q}}",
                         json_text(item, "call_id"), name, arguments));
}

static qp_status add_function_call(cJSON *list, const cJSON *item, api_error *error)
{
    char name[256];
    TRY(check_call(item, "arguments", error));
    const char *space = json_text(item, "namespace"), *own = json_text(item, "name");
    responses_full_name(space, own, name, sizeof name);
    add_call(list, item, name, json_text(item, "arguments"));
    return QP_OK;
}

static qp_status add_custom_call(cJSON *list, const cJSON *item, api_error *error)
{
    TRY(check_call(item, "input", error));
    strbuf arguments = {0};
    json_put(&arguments, "{'input':%q}", json_text(item, "input"));
    add_call(list, item, json_text(item, "name"), strbuf_text(&arguments));
    strbuf_free(&arguments);
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
    strbuf_printf(&text, "%s: ", json_text(item, "author"));
    cJSON_ArrayForEach(part, json_get(item, "content"))
    {
        if (cJSON_IsString(json_get(part, "text")))
            strbuf_puts(&text, json_text(part, "text"));
        else
            status =
                api_refuse(error, 400, "input",
                           "a part of an agent's message is of type \"%.40s\": the model reads "
                           "only text",
                           json_text(part, "type"));
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
    const cJSON none = {.type = cJSON_String, .valuestring = ""},
                *output = json_get(item, "output");
    const char *id = json_text(item, "call_id");
    cJSON_AddItemToArray(list,
                         json_make("{'role':'tool','tool_call_id':%q,'content':%j}",
                                   *id ? id : json_text(item, "id"), output ? output : &none));
}

static qp_status add_item(cJSON *list, const cJSON *item, api_error *error)
{
    const char *type = json_text(item, "type");
    const bool message = !*type || strcmp(type, "message") == 0;
    if (message && strcmp(json_text(item, "role"), "assistant") == 0) {
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
