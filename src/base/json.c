/* Typed reading of JSON: see json.h. */
#include "base/json.h"

#include "base/keyed_hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A value costs cJSON about 80 bytes of memory and as little as two bytes of text, so a small file
 * could ask for many times its size. The vocabularies of large models have 2 million values. */
enum { MAX_VALUES = 4 << 20 };

/* An upper bound of the number of values in the text, if it is valid JSON. *has_nul: a string holds
 * a NUL, as it is or as \u0000. */
static size_t count_values(const char *text, size_t length, bool *has_nul)
{
    static const char escaped[] = "\\u0000";
    size_t count = 1;
    bool in_string = false;
    *has_nul = false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        if (in_string && c == '\\') {
            *has_nul |= length - i >= 6 && memcmp(text + i, escaped, 6) == 0;
            i++;
        } else if (c == '"') {
            in_string = !in_string;
        } else {
            count += !in_string && (c == ',' || c == '[' || c == '{');
            *has_nul |= in_string && c == '\0';
        }
    }
    return count;
}

/* --- Duplicate keys. --- */

/* The members of one object by key, open addressing. */
typedef struct key_table {
    cJSON **slots;
    size_t mask;
    hash_key secret;
} key_table;

static cJSON **find_slot(const key_table *table, const char *key)
{
    size_t at = keyed_hash(table->secret, key, strlen(key)) & table->mask;
    while (table->slots[at] && strcmp(table->slots[at]->string, key) != 0)
        at = (at + 1) & table->mask;
    return &table->slots[at];
}

/* Of members with the same key the last one counts and takes the place of the first, as in Python's
 * json. */
static bool keep_last_members(cJSON *object)
{
    size_t count = (size_t)cJSON_GetArraySize(object), size = 16;
    if (count < 2) return true;
    while (size < count * 2)
        size *= 2;
    key_table table = {calloc(size, sizeof(cJSON *)), size - 1, hash_key_get()};
    if (!table.slots) return false;
    for (cJSON *item = object->child, *next; item; item = next) {
        next = item->next;
        cJSON **slot = find_slot(&table, item->string);
        if (*slot) {
            cJSON_DetachItemViaPointer(object, item);
            cJSON_ReplaceItemViaPointer(object, *slot, item);
        }
        *slot = item;
    }
    free(table.slots);
    return true;
}

/* cJSON limits the nesting, and thereby the depth of this recursion. */
static bool keep_last_everywhere(cJSON *tree)
{
    if (cJSON_IsObject(tree) && !keep_last_members(tree)) return false;
    cJSON *item;
    cJSON_ArrayForEach(item, tree)
    {
        if (item->child && !keep_last_everywhere(item)) return false;
    }
    return true;
}

/* --- Parsing. --- */

qp_status json_parse_all(const char *text, size_t length, const char *where, cJSON **out,
                         qp_error *error)
{
    const char *end = NULL;
    bool has_nul;
    *out = NULL;
    size_t values = count_values(text, length, &has_nul);
    /* cJSON's strings end at a NUL, so the rest would be lost. */
    if (has_nul)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: a text in it holds a NUL character (\\u0000); remove it", where);
    if (values > MAX_VALUES)
        return error_set(error, QP_UNSUPPORTED,
                         "%s: the JSON text holds more than %d values, more than quipu reads",
                         where, MAX_VALUES);
    *out = cJSON_ParseWithLengthOpts(text, length, &end, false);
    bool trailing = false;
    if (*out) {
        while (end < text + length && (*end == ' ' || *end == '\t' || *end == '\r' || *end == '\n'))
            end++;
        trailing = end < text + length && *end != '\0';
        if (!trailing) return QP_OK;
        cJSON_Delete(*out);
        *out = NULL;
    }
    size_t line = 1, column = 1;
    for (const char *p = text; end && p < end && p < text + length; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    return error_set(error, QP_FORMAT, "%s: not valid JSON%s at line %zu, column %zu", where,
                     trailing ? " (text after the value)" : "", line, column);
}

static qp_status parse(const char *text, size_t length, const char *where, bool exact, cJSON **out,
                       qp_error *error)
{
    TRY(json_parse_all(text, length, where, out, error));
    qp_status status = exact ? json_keep_numbers(*out, text, length, error) : QP_OK;
    if (status == QP_OK && !keep_last_everywhere(*out))
        status = error_no_memory(error, "a JSON object", length);
    if (status == QP_OK) return QP_OK;
    cJSON_Delete(*out);
    *out = NULL;
    return status;
}

qp_status json_parse(const char *text, size_t length, const char *where, cJSON **out,
                     qp_error *error)
{
    return parse(text, length, where, false, out, error);
}

qp_status json_parse_exact(const char *text, size_t length, const char *where, cJSON **out,
                           qp_error *error)
{
    return parse(text, length, where, true, out, error);
}

const cJSON *json_get(const cJSON *object, const char *key)
{
    if (!cJSON_IsObject(object)) return NULL;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

const char *json_text(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(json_get(object, key));
    return text ? text : "";
}

const char *json_type_name(const cJSON *item)
{
    if (!item) return "nothing";
    if (cJSON_IsString(item)) return "a string";
    if (cJSON_IsNumber(item)) return "a number";
    if (cJSON_IsBool(item)) return "a boolean";
    if (cJSON_IsArray(item)) return "an array";
    if (cJSON_IsObject(item)) return "an object";
    return "null";
}

static qp_status wrong_type(const cJSON *item, const char *key, const char *where,
                            const char *expected, qp_error *error)
{
    return error_set(error, QP_FORMAT, "%s: \"%s\" must be %s, found %s", where, key, expected,
                     json_type_name(item));
}

qp_status json_get_double(const cJSON *object, const char *key, const char *where, double *out,
                          qp_error *error)
{
    const cJSON *item = json_get(object, key);
    if (!item) return QP_OK;
    if (!cJSON_IsNumber(item)) return wrong_type(item, key, where, "a number", error);
    *out = item->valuedouble;
    return QP_OK;
}

qp_status json_get_i64(const cJSON *object, const char *key, const char *where, int64_t *out,
                       qp_error *error)
{
    const cJSON *item = json_get(object, key);
    if (!item) return QP_OK;
    if (!cJSON_IsNumber(item)) return wrong_type(item, key, where, "a whole number", error);
    double value = item->valuedouble;
    if (!(fabs(value) <= 0x1p53) || value != floor(value))
        return error_set(error, QP_FORMAT, "%s: \"%s\" must be a whole number, found %g", where,
                         key, value);
    *out = (int64_t)value;
    return QP_OK;
}

qp_status json_get_bool(const cJSON *object, const char *key, const char *where, bool *out,
                        qp_error *error)
{
    const cJSON *item = json_get(object, key);
    if (!item) return QP_OK;
    if (!cJSON_IsBool(item)) return wrong_type(item, key, where, "true or false", error);
    *out = cJSON_IsTrue(item);
    return QP_OK;
}

qp_status json_get_string(const cJSON *object, const char *key, const char *where, const char **out,
                          qp_error *error)
{
    const cJSON *item = json_get(object, key);
    if (!item) return QP_OK;
    if (!cJSON_IsString(item)) return wrong_type(item, key, where, "a string", error);
    *out = item->valuestring;
    return QP_OK;
}
