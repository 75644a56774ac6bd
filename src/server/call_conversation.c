/* Conversations as chat templates want them: see call.h. */
#include "server/call.h"

#include "server/server_state.h"

#include <stdlib.h>
#include <string.h>

static qp_status no_memory(api_error *error, size_t bytes)
{
    return api_failed(error, error_no_memory(&error->error, "the conversation", bytes));
}

/* The text of a message's content: a text, or an array of parts that are texts. */
static qp_status content_text(const cJSON *content, strbuf *out, api_error *error)
{
    const cJSON *part;
    if (!content) return QP_OK;
    if (cJSON_IsString(content)) {
        strbuf_puts(out, content->valuestring);
        return QP_OK;
    }
    if (!cJSON_IsArray(content))
        return api_refuse(error, 400, "messages",
                          "the content of a message must be a text or an array of parts, found %s",
                          json_type_name(content));
    cJSON_ArrayForEach(part, content)
    {
        const cJSON *text = json_get(part, "text");
        if (!cJSON_IsString(text))
            return api_refuse(error, 400, "messages",
                              "a part of a message is of type \"%.40s\": the model reads only text",
                              json_text(part, "type"));
        strbuf_puts(out, text->valuestring);
    }
    return QP_OK;
}

/* Templates want the arguments of a call as an object; clients send them back as a text of JSON. */
static void open_arguments(cJSON *message)
{
    cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(message, "tool_calls"))
    {
        cJSON *function = cJSON_GetObjectItemCaseSensitive(item, "function");
        const cJSON *arguments = json_get(function, "arguments");
        if (!cJSON_IsString(arguments)) continue;
        cJSON *object = NULL;
        const char *text = arguments->valuestring;
        json_parse_exact(text, strlen(text), "arguments", &object, NULL);
        if (cJSON_IsObject(object))
            cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", object);
        else
            cJSON_Delete(object);
    }
}

/* A call must name a function; its arguments are an object, or a text that is meant to be one. */
static qp_status check_calls(const cJSON *message, api_error *error)
{
    const cJSON *calls = json_get(message, "tool_calls"), *item;
    if (calls && !cJSON_IsArray(calls))
        return api_refuse(error, 400, "messages",
                          "\"tool_calls\" of a message must be a list, found %s",
                          json_type_name(calls));
    cJSON_ArrayForEach(item, calls)
    {
        const cJSON *function = json_get(item, "function");
        const cJSON *arguments = json_get(function, "arguments");
        const bool fits = !arguments || cJSON_IsString(arguments) || cJSON_IsObject(arguments);
        if (cJSON_IsString(json_get(function, "name")) && fits) continue;
        return api_refuse(
            error, 400, "messages",
            "a call of a tool must be {\"function\": {\"name\": ..., \"arguments\": a text "
            "or an object}}, found %s",
            fits ? "one without a name" : json_type_name(arguments));
    }
    return QP_OK;
}

static qp_status add_message(const cJSON *message, cJSON *out, api_error *error)
{
    strbuf text = {0};
    const cJSON *role = json_get(message, "role");
    if (!cJSON_IsString(role))
        return api_refuse(error, 400, "messages",
                          "a message must be an object with a \"role\" and a \"content\", found %s",
                          cJSON_IsObject(message) ? "one without a role" : json_type_name(message));
    if (cJSON_GetArraySize(json_get(message, "images")))
        return api_refuse(error, 400, "messages",
                          "a message has \"images\": the model reads only text");
    TRY(check_calls(message, error));
    qp_status status = content_text(json_get(message, "content"), &text, error);
    cJSON *copy = status == QP_OK ? cJSON_Duplicate(message, true) : NULL;
    if (copy) {
        bool developer = strcmp(role->valuestring, "developer") == 0;
        cJSON_DeleteItemFromObjectCaseSensitive(copy, "content");
        cJSON_AddStringToObject(copy, "content", strbuf_text(&text));
        if (developer)
            cJSON_ReplaceItemInObjectCaseSensitive(copy, "role", cJSON_CreateString("system"));
        open_arguments(copy);
        call_name_thinking(copy);
        cJSON_AddItemToArray(out, copy);
    }
    strbuf_free(&text);
    if (status == QP_OK && !copy) status = no_memory(error, 0);
    return status;
}

/* The names of the tools, for the answer's reader. */
static qp_status read_tools(call *c, const cJSON *tools, api_error *error)
{
    const cJSON *tool;
    size_t count = (size_t)cJSON_GetArraySize(tools);
    c->tools.names = calloc(count + 1, sizeof *c->tools.names);
    if (!c->tools.names) return no_memory(error, count);
    cJSON_ArrayForEach(tool, tools)
    {
        const cJSON *name = json_get(json_get(tool, "function"), "name");
        const char *type = cJSON_GetStringValue(json_get(tool, "type"));
        if (type && strcmp(type, "function") != 0)
            return api_refuse(error, 400, "tools",
                              "a tool is of type \"%.40s\": the server runs none itself, and knows "
                              "only those of type \"function\"",
                              type);
        if (!cJSON_IsString(name))
            return api_refuse(error, 400, "tools",
                              "a tool must be {\"type\": \"function\", \"function\": {\"name\": "
                              "..., \"parameters\": ...}}");
        c->tools.names[c->tools.count++] = name->valuestring;
    }
    return QP_OK;
}

static bool has_words(const cJSON *text)
{
    return cJSON_IsString(text) && text->valuestring[strspn(text->valuestring, " \t\r\n")];
}

bool call_ends_in_answer(const cJSON *messages)
{
    const cJSON *last = cJSON_GetArrayItem(messages, cJSON_GetArraySize(messages) - 1), *part;
    const char *role = cJSON_GetStringValue(json_get(last, "role"));
    const cJSON *content = json_get(last, "content");
    bool text = has_words(content);
    cJSON_ArrayForEach(part, content) text = text || has_words(json_get(part, "text"));
    return role && strcmp(role, "assistant") == 0 && text &&
           !cJSON_GetArraySize(json_get(last, "tool_calls"));
}

static qp_status check_continued(const call *c, const cJSON *messages, api_error *error)
{
    if (!c->p.continues) return QP_OK;
    if (c->p.generation_prompt)
        return api_refuse(error, 400, "continue_final_message",
                          "\"continue_final_message\" and \"add_generation_prompt\" exclude each "
                          "other: an answer continues the last message or begins a new one");
    if (call_ends_in_answer(messages)) return QP_OK;
    return api_refuse(error, 400, "continue_final_message",
                      "\"continue_final_message\" needs a last message of the role \"assistant\" "
                      "with a text");
}

/* The members of both objects, each of which may be NULL; those of `given` take precedence. */
static cJSON *merge_variables(const cJSON *defaults, const cJSON *given)
{
    const cJSON *item;
    cJSON *out = defaults ? cJSON_Duplicate(defaults, true) : cJSON_CreateObject();
    cJSON_ArrayForEach(item, given)
    {
        cJSON_DeleteItemFromObjectCaseSensitive(out, item->string);
        cJSON_AddItemToObject(out, item->string, cJSON_Duplicate(item, true));
    }
    return out;
}

/* Llama 3's templates write a day of 2024 unless they are told which one it is. */
static void put_date(const call *c, cJSON *variables)
{
    static const char name[] = "date_string";
    const char *source = qp_chat_template(c->server->vocabulary);
    char day[32];
    struct tm local;
    if (!source || !strstr(source, name) || cJSON_HasObjectItem(variables, name)) return;
    localtime_r(&c->created, &local);
    strftime(day, sizeof day, "%d %b %Y", &local);
    cJSON_AddStringToObject(variables, name, day);
}

qp_status call_chat_variables(call *c, const cJSON *messages, const cJSON *tools, cJSON **out,
                              api_error *error)
{
    const cJSON *message;
    *out = NULL;
    TRY(server_vocabulary(c->server, error));
    if (!cJSON_GetArraySize(messages))
        return api_refuse(error, 400, "messages", "\"messages\" must have at least one message");
    TRY(check_continued(c, messages, error));
    if (tools && !c->p.no_tools) TRY(read_tools(c, tools, error));
    TRY(call_open_tool_form(c, tools, error));
    cJSON *variables =
        merge_variables(c->server->options->template_variables, c->p.template_variables);
    cJSON *list = cJSON_CreateArray();
    qp_status status = variables && list ? QP_OK : no_memory(error, 0);
    cJSON_ArrayForEach(message, messages)
    {
        if (status == QP_OK) status = add_message(message, list, error);
    }
    if (status != QP_OK) {
        cJSON_Delete(list);
        cJSON_Delete(variables);
        return status;
    }
    call_put_thinking(&c->p, variables);
    put_date(c, variables);
    cJSON_DeleteItemFromObjectCaseSensitive(variables, "messages");
    cJSON_AddItemToObject(variables, "messages", list);
    if (!c->server->takes_tools)
        tool_texts_write(list, c->tools.count ? tools : NULL);
    else if (c->tools.count)
        cJSON_AddItemToObject(variables, "tools", cJSON_Duplicate(tools, true));
    cJSON_DeleteItemFromObjectCaseSensitive(variables, "continue_final_message");
    cJSON_AddBoolToObject(variables, "continue_final_message", c->p.continues);
    *out = variables;
    return QP_OK;
}
