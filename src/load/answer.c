#include "load/answer.h"

#include "base/json.h"

#include <string.h>

static uint32_t count_of(const cJSON *object, const char *key)
{
    const cJSON *number = json_get(object, key);
    if (!cJSON_IsNumber(number) || number->valuedouble < 0) return 0;
    return number->valuedouble < UINT32_MAX ? (uint32_t)number->valuedouble : UINT32_MAX;
}

static void read_usage(answer *a, const cJSON *usage)
{
    if (!cJSON_IsObject(usage)) return;
    a->has_usage = true;
    a->input_tokens = count_of(usage, "prompt_tokens");
    a->output_tokens = count_of(usage, "completion_tokens");
    a->cached_tokens = count_of(json_get(usage, "prompt_tokens_details"), "cached_tokens");
}

/* A string that is not empty, or a list. */
static bool says_something(const cJSON *item)
{
    return cJSON_IsArray(item) || (cJSON_IsString(item) && *item->valuestring);
}

/* Whether the event carries a token. A token that completes no character, and a control token, have
 * an empty text. An event without a token may hold only the role (the first of a chat) or only the
 * finish reason (the last of some servers). */
static bool carries_token(const cJSON *choice, bool finished)
{
    const cJSON *delta = json_get(choice, "delta");
    if (!delta) {
        const cJSON *text = json_get(choice, "text");
        return says_something(text) || (cJSON_IsString(text) && !finished);
    }
    const cJSON *content = json_get(delta, "content");
    if (says_something(content) || says_something(json_get(delta, "tool_calls")) ||
        says_something(json_get(delta, "reasoning_content")))
        return true;
    return cJSON_IsString(content) && !finished && !json_get(delta, "role");
}

static const char *message_of(const cJSON *root)
{
    const cJSON *object = json_get(root, "error");
    if (cJSON_IsString(object)) return object->valuestring;
    const cJSON *message = json_get(object ? object : root, "message");
    if (cJSON_IsString(message)) return message->valuestring;
    return object ? "an error without a message" : NULL;
}

static qp_status read_event(answer *a, const cJSON *root, qp_error *error)
{
    if (json_get(root, "error"))
        return error_set(error, QP_INVALID, "the server ended the answer: %s", message_of(root));
    const cJSON *choices = json_get(root, "choices"), *choice;
    if (!cJSON_IsArray(choices))
        return error_set(error, QP_FORMAT, "an event of the server has no \"choices\"");
    cJSON_ArrayForEach(choice, choices)
    {
        bool finished = cJSON_IsString(json_get(choice, "finish_reason"));
        a->finished |= finished;
        a->text |= carries_token(choice, finished);
    }
    read_usage(a, json_get(root, "usage"));
    return QP_OK;
}

qp_status answer_read(answer *a, const char *data, size_t length, qp_error *error)
{
    static const char end[] = "[DONE]";
    a->text = false;
    if (length == sizeof end - 1 && memcmp(data, end, length) == 0) {
        a->done = true;
        return QP_OK;
    }
    cJSON *root = cJSON_ParseWithLength(data, length);
    qp_status status =
        cJSON_IsObject(root)
            ? read_event(a, root, error)
            : error_set(error, QP_FORMAT, "an event of the server is not a JSON object: \"%.*s\"",
                        (int)(length < 60 ? length : 60), data);
    cJSON_Delete(root);
    return status;
}

qp_status answer_refused(int http_status, const char *body, size_t length, qp_error *error)
{
    cJSON *root = cJSON_ParseWithLength(body, length);
    const char *message = root ? message_of(root) : NULL;
    qp_status status = message ? error_set(error, QP_INVALID, "HTTP %d: %s", http_status, message)
                               : error_set(error, QP_INVALID, "HTTP %d: \"%.*s\"", http_status,
                                           (int)(length < 200 ? length : 200), body);
    cJSON_Delete(root);
    return status;
}
