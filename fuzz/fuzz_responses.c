/* Items of /v1/responses as messages: a message of the model has text, and calls have names and
 * arguments, whatever the items are; what is refused has a sentence. The input is the request's
 * body.
 */
#include "base/json.h"
#include "server/api_responses.h"

#include <stdlib.h>
#include <string.h>

static void must(bool good)
{
    if (!good) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static call c;
    api_error error = {0};
    cJSON *body, *message;
    if (json_parse((const char *)data, size, "input", &body, &error.error) != QP_OK) return 0;
    cJSON *list = cJSON_CreateArray();
    c.p.input = json_get(body, "input");
    c.p.instructions = cJSON_GetStringValue(json_get(body, "instructions"));
    if (responses_messages(&c, list, &error) == QP_OK) {
        cJSON_ArrayForEach(message, list)
        {
            const cJSON *calls = json_get(message, "tool_calls"), *one;
            const char *role = cJSON_GetStringValue(json_get(message, "role"));
            if (!role || strcmp(role, "assistant") != 0) continue; /* checked with all messages */
            must(cJSON_IsString(json_get(message, "content")));
            cJSON_ArrayForEach(one, calls)
            {
                const cJSON *function = json_get(one, "function");
                must(cJSON_IsString(json_get(function, "name")));
                must(cJSON_IsString(json_get(function, "arguments")));
            }
        }
    } else {
        must(error.error.message[0] != '\0');
    }
    cJSON_Delete(list);
    cJSON_Delete(body);
    return 0;
}
