/* Calls of tools in text: see tool_calls.h. */
#define _GNU_SOURCE /* memmem */
#include "server/tool_calls.h"

#include "base/strbuf.h"
#include "server/random_id.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

static const char HERMES[] = "<tool_call>", HERMES_END[] = "</tool_call>",
                  MISTRAL[] = "[TOOL_CALLS]", MISTRAL_ARGUMENTS[] = "[ARGS]",
                  PYTHON[] = "<|python_tag|>",
                  FUNCTION[] = "<function=", FUNCTION_END[] = "</function>";
static const char *const markers[] = {HERMES, MISTRAL, PYTHON, FUNCTION};
enum { N_MARKERS = sizeof markers / sizeof *markers };

bool tool_calls_marker(const char *piece, size_t length)
{
    static const char *const pieces[] = {HERMES, HERMES_END, MISTRAL, MISTRAL_ARGUMENTS, PYTHON};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        if (strlen(pieces[i]) == length && memcmp(pieces[i], piece, length) == 0) return true;
    }
    return false;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

size_t tool_calls_scan(const char *text, size_t length, bool begins, bool ended, bool *call)
{
    size_t first = 0, certain = length;
    while (first < length && is_blank(text[first]))
        first++;
    *call = begins && first < length && text[first] == '{';
    if (*call) return 0;
    if (first == length && !ended) return 0;
    for (int i = 0; i < N_MARKERS; i++) {
        const char *at = memmem(text, length, markers[i], strlen(markers[i]));
        if (!at || (size_t)(at - text) > certain) continue;
        certain = (size_t)(at - text);
        *call = true;
    }
    if (*call || ended) return certain;
    for (int i = 0; i < N_MARKERS; i++) { /* the beginning of a marker at the end */
        size_t most = strlen(markers[i]) - 1;
        for (size_t n = most < length ? most : length; n > 0; n--) {
            if (memcmp(text + length - n, markers[i], n) != 0) continue;
            if (length - n < certain) certain = length - n;
            break;
        }
    }
    return certain;
}

/* ---- Parsing ------------------------------------------------------------------------------- */

/* Appends the text as cJSON can hold it: with U+FFFD for bytes that are not UTF-8 and for NULs, as
 * they are or as \\u0000 in a string. */
static void put_readable(strbuf *out, const char *text, size_t length)
{
    static const char nul[] = "\\u0000", backslash[] = "\\\\";
    const size_t nul_length = sizeof nul - 1, backslash_length = sizeof backslash - 1;
    for (const char *end = text + length; text < end;) {
        const size_t left = (size_t)(end - text);
        size_t taken = 1;
        if (*text == '\0') {
            strbuf_puts(out, UTF8_REPLACEMENT);
        } else if (left >= nul_length && memcmp(text, nul, nul_length) == 0) {
            strbuf_puts(out, UTF8_REPLACEMENT);
            taken = nul_length;
        } else if (left >= backslash_length && memcmp(text, backslash, backslash_length) == 0) {
            strbuf_append(out, text, taken = backslash_length);
        } else {
            while (taken < left && text[taken] && text[taken] != '\\')
                taken++;
            utf8_put_valid(out, text, taken);
        }
        text += taken;
    }
}

typedef struct parse {
    const char *at, *end;
    const tool_names *tools;
    cJSON *calls;
} parse;

static void skip_blanks(parse *p)
{
    while (p->at < p->end && (is_blank(*p->at) || *p->at == ';'))
        p->at++;
}

static bool take(parse *p, const char *word)
{
    size_t length = strlen(word);
    skip_blanks(p);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0) return false;
    p->at += length;
    return true;
}

static cJSON *take_json(parse *p)
{
    const char *end = NULL;
    skip_blanks(p);
    cJSON *value = cJSON_ParseWithLengthOpts(p->at, (size_t)(p->end - p->at), &end, false);
    if (value && json_keep_numbers(value, p->at, (size_t)(end - p->at), NULL) != QP_OK) {
        cJSON_Delete(value);
        return NULL;
    }
    if (value) p->at = end;
    return value;
}

static bool is_known(const tool_names *tools, const char *name)
{
    for (size_t i = 0; i < tools->count; i++) {
        if (strcmp(tools->names[i], name) == 0) return true;
    }
    return false;
}

/* Adds a call; `arguments`: NULL (none), an object, or a text that holds one. */
static bool add_call(parse *p, const char *name, const cJSON *arguments)
{
    char id[10];
    random_id(id, sizeof id);
    cJSON *opened = NULL;
    strbuf held = {0};
    if (cJSON_IsString(arguments)) {
        put_readable(&held, arguments->valuestring, strlen(arguments->valuestring));
        json_parse_exact(strbuf_text(&held), held.length, "arguments", &opened, NULL);
        strbuf_free(&held);
    }
    if (opened) arguments = opened;
    bool good = !arguments || cJSON_IsObject(arguments);
    char *text = !good ? NULL : arguments ? json_print(arguments) : strdup("{}");
    cJSON *call = text ? cJSON_CreateObject() : NULL;
    bool added = call && cJSON_AddStringToObject(call, "id", id) &&
                 cJSON_AddStringToObject(call, "name", name) &&
                 cJSON_AddStringToObject(call, "arguments", text) &&
                 cJSON_AddItemToArray(p->calls, call);
    free(text);
    cJSON_Delete(opened);
    if (!added) cJSON_Delete(call);
    return added;
}

/* {"name": ..., "arguments" or "parameters": ...}; `known`: of a tool that was offered. */
static bool add_object(parse *p, const cJSON *object, bool known)
{
    const cJSON *name = json_get(object, "name");
    const cJSON *arguments = json_get(object, "arguments");
    if (!arguments) arguments = json_get(object, "parameters");
    if (!cJSON_IsString(name) || (known && !is_known(p->tools, name->valuestring))) return false;
    if (known && !arguments) return false;
    return add_call(p, name->valuestring, arguments);
}

static bool parse_object(parse *p, bool known)
{
    cJSON *object = take_json(p);
    bool added = false;
    if (cJSON_IsArray(object)) {
        const cJSON *item;
        cJSON_ArrayForEach(item, object)
        {
            added = add_object(p, item, known);
            if (!added) break;
        }
    } else if (object) {
        added = add_object(p, object, known);
    }
    cJSON_Delete(object);
    return added;
}

/* NAME{...}, with `between` after the name. */
static bool parse_named(parse *p, const char *between)
{
    skip_blanks(p);
    size_t length = 0, most = (size_t)(p->end - p->at);
    while (length < most && length < 128 && !strchr("{[>( \n", p->at[length]))
        length++;
    char *name = length ? strndup(p->at, length) : NULL;
    if (!name) return false;
    p->at += length;
    take(p, between);
    cJSON *arguments = take_json(p);
    bool added = cJSON_IsObject(arguments) && add_call(p, name, arguments);
    cJSON_Delete(arguments);
    free(name);
    return added;
}

static bool parse_call(parse *p)
{
    if (take(p, HERMES)) {
        bool added = parse_object(p, false);
        take(p, HERMES_END);
        return added;
    }
    if (take(p, FUNCTION)) {
        bool added = parse_named(p, ">");
        take(p, FUNCTION_END);
        return added;
    }
    if (take(p, MISTRAL)) {
        skip_blanks(p);
        bool json = p->at < p->end && (*p->at == '[' || *p->at == '{');
        return json ? parse_object(p, false) : parse_named(p, MISTRAL_ARGUMENTS);
    }
    if (take(p, PYTHON)) return parse_object(p, false);
    skip_blanks(p);
    return p->at < p->end && *p->at == '{' && parse_object(p, true);
}

cJSON *tool_calls_parse(const char *text, size_t length, const tool_names *tools)
{
    strbuf valid = {0};
    put_readable(&valid, text, length);
    const char *begin = strbuf_text(&valid);
    parse p = {begin, begin + valid.length, tools, cJSON_CreateArray()};
    bool good = p.calls && !valid.failed;
    while (good && (skip_blanks(&p), p.at < p.end))
        good = parse_call(&p);
    strbuf_free(&valid);
    if (p.calls && cJSON_GetArraySize(p.calls) > 0) return p.calls;
    cJSON_Delete(p.calls);
    return NULL;
}
