/* Tools for a model whose chat template has no place for them: they become texts of the messages,
 * so that the model reads them. A call is written as tool_form.c forces it: {"name": ...,
 * "parameters": ...}. */
#include "server/call.h"

#include "text/json_string.h"

#include <string.h>

static const cJSON *or_empty(const cJSON *value)
{
    static const cJSON none = {.type = cJSON_Object};
    return value ? value : &none;
}

/* The message's content becomes `before`, its own, and `after`. */
static void extend(cJSON *message, const char *before, const char *after)
{
    strbuf text = {0};
    strbuf_printf(&text, "%s%s%s", before, json_text(message, "content"), after);
    cJSON_DeleteItemFromObjectCaseSensitive(message, "content");
    cJSON_AddStringToObject(message, "content", strbuf_text(&text));
    strbuf_free(&text);
}

static void describe(const cJSON *tools, strbuf *out)
{
    const cJSON *tool;
    strbuf_puts(out, "You can call these functions, each described by an object of JSON:\n");
    cJSON_ArrayForEach(tool, tools)
    {
        json_put(out, "%j\n", or_empty(json_get(tool, "function")));
    }
    strbuf_puts(
        out, "To call one, answer only with {\"name\": its name, \"parameters\": its arguments}.");
}

/* Into the system message, or before the first message if there is none. */
static void add_description(cJSON *messages, const cJSON *tools)
{
    strbuf text = {0};
    cJSON *first = cJSON_GetArrayItem(messages, 0);
    const bool system = strcmp(json_text(first, "role"), "system") == 0;
    if (system) strbuf_puts(&text, "\n\n");
    describe(tools, &text);
    if (!system) strbuf_puts(&text, "\n\n");
    extend(first, system ? "" : strbuf_text(&text), system ? strbuf_text(&text) : "");
    strbuf_free(&text);
}

static void write_calls(cJSON *message)
{
    const cJSON *call;
    strbuf text = {0};
    cJSON_ArrayForEach(call, json_get(message, "tool_calls"))
    {
        const cJSON *function = json_get(call, "function");
        json_put(&text, "%s{'name': %j, 'parameters': %j}",
                 call->prev && call->prev->next ? "\n" : "", or_empty(json_get(function, "name")),
                 or_empty(json_get(function, "arguments")));
    }
    if (!text.length) return;
    extend(message, "", strbuf_text(&text));
    cJSON_DeleteItemFromObjectCaseSensitive(message, "tool_calls");
    strbuf_free(&text);
}

static void write_result(cJSON *message)
{
    cJSON_ReplaceItemInObjectCaseSensitive(message, "role", cJSON_CreateString("user"));
    extend(message, "Result of the call:\n", "");
}

static bool is_of(const cJSON *message, const char *role)
{
    return strcmp(json_text(message, "role"), role) == 0;
}

/* Results and what the user says after them become one message: many templates want the user's
 * turns and the model's to alternate. */
static void write_results(cJSON *messages, cJSON *first)
{
    strbuf more = {0};
    write_result(first);
    for (cJSON *next; (next = first->next) && (is_of(next, "tool") || is_of(next, "user"));) {
        if (is_of(next, "tool")) write_result(next);
        strbuf_printf(&more, "\n\n%s", json_text(next, "content"));
        cJSON_Delete(cJSON_DetachItemViaPointer(messages, next));
    }
    extend(first, "", strbuf_text(&more));
    strbuf_free(&more);
}

void tool_texts_write(cJSON *messages, const cJSON *tools)
{
    cJSON *message;
    cJSON_ArrayForEach(message, messages)
    {
        write_calls(message);
        if (is_of(message, "tool")) write_results(messages, message);
    }
    if (cJSON_GetArraySize(tools)) add_description(messages, tools);
}
