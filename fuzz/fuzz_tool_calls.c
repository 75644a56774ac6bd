/* Texts of models with calls of tools: what was handed out as content stays content however the
 * text comes in pieces, and arguments are objects of JSON in UTF-8. */
#include "server/tool_calls.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

static const tool_names tools = {(const char *[]){"f", "weather"}, 2};

/* The bytes of content in a text that comes in pieces of `step` bytes; `length`: it has no call. */
static size_t content_of(const char *text, size_t length, size_t step)
{
    size_t content = 0;
    bool call = false;
    for (size_t end = 0; end < length && !call;) {
        end = end + step < length ? end + step : length;
        const size_t more =
            tool_calls_scan(text + content, end - content, content == 0, end == length, &call);
        if (more > end - content) abort();
        content += more;
    }
    return content;
}

static void check_calls(const char *text, size_t length)
{
    cJSON *calls = tool_calls_parse(text, length, &tools), *call;
    cJSON_ArrayForEach(call, calls)
    {
        const char *name = cJSON_GetStringValue(json_get(call, "name"));
        const char *arguments = cJSON_GetStringValue(json_get(call, "arguments"));
        if (!name || !arguments) abort();
        if (utf8_valid_run(name, strlen(name)) != strlen(name)) abort();
        if (utf8_valid_run(arguments, strlen(arguments)) != strlen(arguments)) abort();
        cJSON *tree = cJSON_Parse(arguments);
        if (!cJSON_IsObject(tree)) abort();
        cJSON_Delete(tree);
    }
    cJSON_Delete(calls);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const size_t content = content_of(text, size, size);
    for (size_t step = 1; step < 8; step += 3)
        if (content_of(text, size, step) != content) abort();
    check_calls(text + content, size - content);
    return 0;
}
