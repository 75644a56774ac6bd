/* Changes of conversations that a template refuses: see conversation.h. */
#include "engine/conversation.h"

#include "base/hash.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum {
    ID_LENGTH = 9,
    LOOK_AT = 256, /* results of a message's calls, of which the one of a call is looked for */
};

static bool is_result(const cJSON *message)
{
    return strcmp(json_text(message, "role"), "tool") == 0;
}

/* ---- ids ----------------------------------------------------------------------------------- */

static bool is_short_id(const char *id)
{
    size_t n = 0;
    while (isalnum((unsigned char)id[n]))
        n++;
    return n == ID_LENGTH && !id[n];
}

static void shorten(const char *id, char *out)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    uint64_t bits = strlen(id);
    for (const char *c = id; *c; c++)
        bits = hash_mix(bits ^ (uint8_t)*c);
    for (int i = 0; i < ID_LENGTH; i++, bits /= 36)
        out[i] = digits[bits % 36];
    out[ID_LENGTH] = '\0';
}

static void set_text(cJSON *object, const char *name, const char *text)
{
    cJSON_DeleteItemFromObjectCaseSensitive(object, name);
    cJSON_AddStringToObject(object, name, text);
}

/* Shortens an id that is there; returns whether it was changed. */
static bool shorten_member(cJSON *object, const char *name)
{
    char id[ID_LENGTH + 1];
    const char *given = json_text(object, name);
    if (!*given || is_short_id(given)) return false;
    shorten(given, id);
    set_text(object, name, id);
    return true;
}

/* The first call of the message, of this name if it is not NULL, that no result has taken yet;
 * NULL: none. */
static const cJSON *take_call(const cJSON *message, const char *name, uint64_t *taken)
{
    const cJSON *call;
    uint64_t bit = 1;
    cJSON_ArrayForEach(call, json_get(message, "tool_calls"))
    {
        const char *own = json_text(json_get(call, "function"), "name");
        if (!(*taken & bit) && (!name || strcmp(name, own) == 0)) {
            *taken |= bit;
            return call;
        }
        bit <<= 1;
        if (!bit) break; /* results of more than 64 calls have ids */
    }
    return NULL;
}

static bool name_result(const cJSON *message, cJSON *result, uint64_t *taken)
{
    const char *name = json_text(result, "name");
    if (!*name) name = json_text(result, "tool_name");
    const cJSON *call = *name ? take_call(message, name, taken) : NULL;
    if (!call) call = take_call(message, NULL, taken);
    if (!call) return false;
    set_text(result, "tool_call_id", json_text(call, "id"));
    return true;
}

/* Ids of the message's calls; `n` counts the calls of the conversation. */
static bool name_calls(const cJSON *message, unsigned *n)
{
    cJSON *call;
    bool changed = false;
    cJSON_ArrayForEach(call, json_get(message, "tool_calls"))
    {
        char id[32];
        const bool none = !*json_text(call, "id");
        snprintf(id, sizeof id, "call%05u", (*n)++ % 100000);
        if (none && cJSON_IsObject(call)) set_text(call, "id", id);
        changed |= shorten_member(call, "id") || none;
    }
    return changed;
}

bool conversation_shorten_ids(cJSON *messages)
{
    cJSON *message;
    const cJSON *caller = NULL; /* the last message with calls */
    uint64_t taken = 0;
    unsigned n = 0;
    bool changed = false;
    cJSON_ArrayForEach(message, messages)
    {
        if (cJSON_GetArraySize(json_get(message, "tool_calls"))) {
            caller = message;
            taken = 0;
            changed |= name_calls(message, &n);
        } else if (is_result(message)) {
            const bool none = !*json_text(message, "tool_call_id");
            changed |= none ? name_result(caller, message, &taken)
                            : shorten_member(message, "tool_call_id");
        }
    }
    return changed;
}

/* ---- several calls ------------------------------------------------------------------------- */

/* A copy of the message without content and with the call only. */
static cJSON *message_of_call(const cJSON *message, cJSON *call)
{
    cJSON *out = cJSON_Duplicate(message, true), *calls = cJSON_CreateArray();
    set_text(out, "content", "");
    cJSON_AddItemToArray(calls, call);
    cJSON_DeleteItemFromObjectCaseSensitive(out, "tool_calls");
    cJSON_AddItemToObject(out, "tool_calls", calls);
    return out;
}

/* Takes the result of the call from the first of those that begin the list; NULL: it is not there.
 */
static cJSON *take_result(cJSON *messages, const cJSON *call)
{
    int looked = 0;
    cJSON *message;
    cJSON_ArrayForEach(message, messages)
    {
        if (!is_result(message) || looked++ == LOOK_AT) break;
        if (strcmp(json_text(message, "tool_call_id"), json_text(call, "id")) == 0)
            return cJSON_DetachItemViaPointer(messages, message);
    }
    return NULL;
}

static void add_with_result(cJSON *out, cJSON *message, cJSON *messages)
{
    const cJSON *call = cJSON_GetArrayItem(json_get(message, "tool_calls"), 0);
    cJSON_AddItemToArray(out, message);
    cJSON *result = take_result(messages, call);
    if (result) cJSON_AddItemToArray(out, result);
}

/* Appends the message, which has several calls, as several. */
static void split(cJSON *out, cJSON *message, cJSON *messages)
{
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    cJSON *rest = cJSON_CreateArray(), *call;
    while ((call = cJSON_DetachItemFromArray(calls, 1)))
        cJSON_AddItemToArray(rest, call);
    add_with_result(out, message, messages);
    while ((call = cJSON_DetachItemFromArray(rest, 0)))
        add_with_result(out, message_of_call(message, call), messages);
    cJSON_Delete(rest);
}

bool conversation_split_calls(cJSON *messages)
{
    bool changed = false;
    cJSON *out = cJSON_CreateArray(), *message;
    while ((message = cJSON_DetachItemFromArray(messages, 0))) {
        const bool several = cJSON_GetArraySize(json_get(message, "tool_calls")) > 1;
        changed |= several;
        if (several)
            split(out, message, messages);
        else
            cJSON_AddItemToArray(out, message);
    }
    while ((message = cJSON_DetachItemFromArray(out, 0)))
        cJSON_AddItemToArray(messages, message);
    cJSON_Delete(out);
    return changed;
}
