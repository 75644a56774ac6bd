/* Items of /v1/responses as messages: a turn of the model is an array of texts and its thinking one
 * text, no call is lost, and calls have names and arguments, whatever the items are; what is
 * refused has a sentence. The input is the request's body.
 */
#include "base/json.h"
#include "server/api_responses.h"

#include <stdlib.h>
#include <string.h>

static void must(bool good)
{
    if (!good) abort();
}

static int count_calls(const cJSON *items)
{
    const cJSON *item;
    int n = 0;
    cJSON_ArrayForEach(item, items)
    {
        const char *type = json_text(item, "type");
        n += strcmp(type, "function_call") == 0 || strcmp(type, "custom_tool_call") == 0;
    }
    return n;
}

/* The number of the turn's calls. */
static int check_turn(const cJSON *turn)
{
    const cJSON *content = json_get(turn, "content"),
                *thinking = json_get(turn, "reasoning_content");
    const cJSON *calls = json_get(turn, "tool_calls"), *one;
    must(cJSON_IsArray(content) && (!thinking || cJSON_IsString(thinking)));
    cJSON_ArrayForEach(one, content) must(cJSON_IsString(json_get(one, "text")));
    cJSON_ArrayForEach(one, calls)
    {
        const cJSON *function = json_get(one, "function");
        must(cJSON_IsString(json_get(function, "name")));
        must(cJSON_IsString(json_get(function, "arguments")));
    }
    return cJSON_GetArraySize(calls);
}

static void check(const call *c)
{
    const cJSON *message;
    api_error error = {0};
    int calls = 0;
    cJSON *list = cJSON_CreateArray();
    if (responses_messages(c, list, &error) == QP_OK) {
        cJSON_ArrayForEach(message, list)
        {
            if (strcmp(json_text(message, "role"), "assistant") == 0)
                calls += check_turn(message); /* others are checked with all messages */
        }
        must(calls == count_calls(c->p.input));
    } else {
        must(error.error.message[0] != '\0');
    }
    cJSON_Delete(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static call c;
    cJSON *body;
    if (json_parse((const char *)data, size, "input", &body, NULL) != QP_OK) return 0;
    c.p.input = json_get(body, "input");
    c.p.instructions = cJSON_GetStringValue(json_get(body, "instructions"));
    if (cJSON_IsString(c.p.input) || cJSON_IsArray(c.p.input)) check(&c); /* as the field says */
    cJSON_Delete(body);
    return 0;
}
