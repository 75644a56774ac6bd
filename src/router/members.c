/* Finds members of an object: see members.h. */
#include "router/members.h"

#include <cjson/cJSON.h>
#include <string.h>

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && strchr(" \t\r\n", *at))
        at++;
    return at;
}

/* After the string that begins at `at`; `end`: it does not end. */
static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\') at++;
    return at < end ? at + 1 : end;
}

/* After any value: strings are skipped, brackets counted. */
static const char *skip_value(const char *at, const char *end)
{
    size_t depth = 0;
    while (at < end) {
        const char c = *at;
        if (depth == 0 && (c == ',' || c == '}' || c == ']')) return at;
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        at = c == '"' ? skip_string(at, end) : at + 1;
        if (depth == 0 && (c == '"' || c == '}' || c == ']')) return at;
    }
    return end;
}

bool member_find(const char *json, size_t length, const char *name, const char **value,
                 size_t *value_length)
{
    const char *end = json + length, *at = skip_space(json, end);
    const size_t wanted = strlen(name);
    bool found = false;
    if (at == end || *at != '{') return false;
    for (at = skip_space(at + 1, end); at < end && *at == '"'; at = skip_space(at + 1, end)) {
        const char *key = at + 1, *after = skip_string(at, end);
        at = skip_space(after, end);
        if (at == end || *at != ':') return found;
        const char *begin = skip_space(at + 1, end);
        at = skip_value(begin, end);
        if ((size_t)(after - 1 - key) == wanted && memcmp(key, name, wanted) == 0) {
            *value = begin;
            *value_length = (size_t)(at - begin);
            found = true;
        }
        at = skip_space(at, end);
        if (at == end || *at != ',') return found;
    }
    return found;
}

bool member_text(const char *json, size_t length, const char *name, char *out, size_t size)
{
    const char *value;
    size_t n;
    if (!member_find(json, length, name, &value, &n) || n == 0 || *value != '"') return false;
    cJSON *text = cJSON_ParseWithLength(value, n);
    const char *string = cJSON_GetStringValue(text);
    const bool fits = string && strlen(string) < size;
    if (fits) strcpy(out, string);
    cJSON_Delete(text);
    return fits;
}
