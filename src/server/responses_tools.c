/* Tools of /v1/responses: see api_responses.h. */
#include "server/api_responses.h"

#include "text/json_string.h"

#include <stdio.h>
#include <string.h>

static bool is_of_type(const cJSON *item, const char *type)
{
    return strcmp(json_text(item, "type"), type) == 0;
}

/* ---- To functions -------------------------------------------------------------------------- */

void responses_full_name(const char *space, const char *name, char *out, size_t size)
{
    const size_t length = strlen(space);
    const bool ends = length >= 2 && strcmp(space + length - 2, "__") == 0;
    snprintf(out, size, "%s%s%s", space, *space && !ends ? "__" : "", name);
}

/* {"type": "function", "name": ...} as {"type": "function", "function": {"name": ...}}. */
static void add_function(cJSON *list, const char *space, const cJSON *tool)
{
    char name[256];
    cJSON *out = cJSON_CreateObject(), *function = cJSON_Duplicate(tool, true);
    cJSON_DeleteItemFromObjectCaseSensitive(function, "type");
    if (*space) {
        responses_full_name(space, json_text(tool, "name"), name, sizeof name);
        cJSON_DeleteItemFromObjectCaseSensitive(function, "name");
        cJSON_AddStringToObject(function, "name", name);
    }
    cJSON_AddStringToObject(out, "type", "function");
    cJSON_AddItemToObject(out, "function", function);
    cJSON_AddItemToArray(list, out);
}

/* A function whose only argument is the text that the tool takes. */
static void add_custom(cJSON *list, const cJSON *tool)
{
    strbuf about = {0};
    const cJSON *format = json_get(tool, "format");
    const char *definition = json_text(format, "definition");
    strbuf_puts(&about, json_text(tool, "description"));
    if (*definition)
        strbuf_printf(&about, "\nThe input follows this grammar (%s):\n%s",
                      json_text(format, "syntax"), definition);
    cJSON_AddItemToArray(
        list, json_make("{'type':'function','function':{'name':%q,'description':%q,'parameters':"
                        "{'type':'object','properties':{'input':{'type':'string'}},"
                        "'required':['input'],'additionalProperties':false}}}",
                        json_text(tool, "name"), strbuf_text(&about)));
    strbuf_free(&about);
}

static void add_tool(cJSON *list, const cJSON *tool, strbuf *left_out)
{
    const cJSON *inner;
    if (is_of_type(tool, "function")) {
        add_function(list, "", tool);
    } else if (is_of_type(tool, "custom")) {
        add_custom(list, tool);
    } else if (is_of_type(tool, "namespace")) {
        cJSON_ArrayForEach(inner, json_get(tool, "tools"))
            add_function(list, json_text(tool, "name"), inner);
    } else {
        strbuf_printf(left_out, "%s%.40s", left_out->length ? ", " : "", json_text(tool, "type"));
    }
}

/* A quoted text of a header: without what would end it. */
static void put_quoted(strbuf *out, const char *text)
{
    for (const char *c = text; *c; c++)
        strbuf_putc(out, *c < ' ' || *c == '"' || *c == '\\' || *c == 127 ? '?' : *c);
}

cJSON *responses_tools(const call *c)
{
    const cJSON *tool;
    strbuf left_out = {0}, header = {0};
    cJSON *list = cJSON_CreateArray();
    cJSON_ArrayForEach(tool, c->p.tools) add_tool(list, tool, &left_out);
    if (left_out.length) {
        strbuf_puts(&header,
                    "Warning: 299 quipu \"tools that this server cannot run are left out: ");
        put_quoted(&header, strbuf_text(&left_out));
        strbuf_puts(&header, "\"");
        exchange_add_header(c->exchange, strbuf_text(&header));
    }
    strbuf_free(&left_out);
    strbuf_free(&header);
    return list;
}

/* ---- To items ------------------------------------------------------------------------------ */

/* The tool that the model calls by this name, and its namespace ("": none); NULL: none. */
static const cJSON *find_tool(const call *c, const char *name, const char **space)
{
    const cJSON *tool, *inner;
    char own[256];
    cJSON_ArrayForEach(tool, c->p.tools)
    {
        *space = is_of_type(tool, "namespace") ? json_text(tool, "name") : "";
        if (!**space && strcmp(json_text(tool, "name"), name) == 0) return tool;
        cJSON_ArrayForEach(inner, json_get(tool, "tools"))
        {
            responses_full_name(*space, json_text(inner, "name"), own, sizeof own);
            if (**space && strcmp(own, name) == 0) return inner;
        }
    }
    *space = "";
    return NULL;
}

/* The text that a custom tool is called with: the argument "input". */
static void add_input(cJSON *item, const char *arguments, bool done)
{
    cJSON *object = NULL;
    if (done) json_parse(arguments, strlen(arguments), "arguments", &object, NULL);
    cJSON_AddStringToObject(item, "input", json_text(object, "input"));
    cJSON_Delete(object);
}

void responses_call_id(bool custom, const char *call_id, char *out, size_t size)
{
    snprintf(out, size, "%s_%s", custom ? "ctc" : "fc", call_id);
}

bool responses_is_custom(const call *c, const char *name)
{
    const char *space;
    const cJSON *tool = find_tool(c, name, &space);
    return tool && is_of_type(tool, "custom");
}

cJSON *responses_call_item(const call *c, const cJSON *tool_call, bool done)
{
    char id[32];
    const char *space, *call_id = json_text(tool_call, "id");
    const cJSON *tool = find_tool(c, json_text(tool_call, "name"), &space);
    const bool custom = tool && is_of_type(tool, "custom");
    const char *arguments = json_text(tool_call, "arguments");
    const char *status = !done                           ? "in_progress"
                         : json_get(tool_call, "broken") ? "incomplete"
                                                         : "completed";
    responses_call_id(custom, call_id, id, sizeof id);
    cJSON *item = json_make("{'type':%q,'id':%q,'call_id':%q,'name':%q}",
                            custom ? "custom_tool_call" : "function_call", id, call_id,
                            json_text(tool ? tool : tool_call, "name"));
    if (*space) cJSON_AddStringToObject(item, "namespace", space);
    if (custom)
        add_input(item, arguments, done);
    else
        cJSON_AddStringToObject(item, "arguments", done ? arguments : "");
    cJSON_AddStringToObject(item, "status", status);
    return item;
}
