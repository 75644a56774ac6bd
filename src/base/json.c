/* Typed reading of JSON: see json.h. */
#include "base/json.h"

#include <math.h>

qp_status json_parse(const char *text, size_t length, const char *where, cJSON **out,
                     qp_error *error)
{
    const char *end = NULL;
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

const cJSON *json_get(const cJSON *object, const char *key)
{
    if (!cJSON_IsObject(object)) return NULL;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
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
