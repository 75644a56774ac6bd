/* Fields of requests by their tables: see fields.h. */
#include "server/fields.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    unsigned type;
    const char *name, *schema;
} json_types[] = {{JSON_BOOL, "true or false", "boolean"},
                  {JSON_NUMBER, "a number", "number"},
                  {JSON_STRING, "a string", "string"},
                  {JSON_ARRAY, "an array", "array"},
                  {JSON_OBJECT, "an object", "object"}};
enum { N_JSON_TYPES = sizeof json_types / sizeof *json_types };

static unsigned type_of(const cJSON *value)
{
    if (cJSON_IsBool(value)) return JSON_BOOL;
    if (cJSON_IsNumber(value)) return JSON_NUMBER;
    if (cJSON_IsString(value)) return JSON_STRING;
    if (cJSON_IsArray(value)) return JSON_ARRAY;
    return JSON_OBJECT;
}

static unsigned types_of(const field *f)
{
    switch (f->type) {
    case FIELD_BOOL:
        return JSON_BOOL;
    case FIELD_INTEGER:
    case FIELD_NUMBER:
    case FIELD_SETTING:
        return JSON_NUMBER;
    case FIELD_STRING:
        return JSON_STRING;
    case FIELD_OBJECT:
        return JSON_OBJECT;
    case FIELD_NEUTRAL:
        return JSON_ANY;
    default:
        return f->types;
    }
}

static qp_status wrong_type(const field *f, const char *name, const cJSON *value, api_error *error)
{
    strbuf expected = {0};
    for (int i = 0; i < N_JSON_TYPES; i++) {
        if (!(types_of(f) & json_types[i].type)) continue;
        strbuf_printf(&expected, "%s%s", expected.length ? " or " : "", json_types[i].name);
    }
    qp_status status = api_refuse(error, 400, name, "\"%s\" must be %s, found %s", name,
                                  strbuf_text(&expected), json_type_name(value));
    strbuf_free(&expected);
    return status;
}

static bool is_whole(const field *f)
{
    return f->type == FIELD_INTEGER ||
           (f->type == FIELD_SETTING && (f->setting == QP_TOP_K || f->setting == QP_SEED));
}

static qp_status check_range(const field *f, const char *name, double value, api_error *error)
{
    bool whole = is_whole(f);
    bool any = f->low == 0 && f->high == 0;
    bool fits = any ? !whole || fabs(value) <= 0x1p53 : value >= f->low && value <= f->high;
    if (fits && (!whole || value == floor(value))) return QP_OK;
    const char *kind = whole ? "a whole number" : "a number";
    if (any)
        return api_refuse(error, 400, name, "\"%s\" must be %s, found %.17g", name, kind, value);
    return api_refuse(error, 400, name, "\"%s\" must be %s from %.17g to %.17g, found %.17g", name,
                      kind, f->low, f->high, value);
}

static qp_status read_tables(field_tables tables, const char *prefix, const cJSON *body, char *out,
                             api_error *error);

static qp_status check_neutral(const field *f, const char *name, const cJSON *value,
                               api_error *error)
{
    cJSON *schema = cJSON_Parse(f->schema);
    const cJSON *neutral = json_get(schema, "enum"), *item;
    bool found = false;
    cJSON_ArrayForEach(item, neutral) found = found || cJSON_Compare(item, value, true);
    if (!found) {
        char *only = cJSON_PrintUnformatted(neutral->child);
        api_refuse(error, 400, name, "\"%s\" cannot be done here: %s; leave it away, or give %.40s",
                   name, f->help, only ? only : "null");
        cJSON_free(only);
    }
    cJSON_Delete(schema);
    return found ? QP_OK : QP_INVALID;
}

static qp_status read_setting(const field *f, const char *name, double value, void *at,
                              api_error *error)
{
    TRY(check_range(f, name, value, error));
    if (f->setting == QP_TOP_K && value < 0) value = 0; /* as vLLM writes that all may be chosen */
    if (qp_sampling_set(at, f->setting, value, QP_FROM_REQUEST, &error->error) == QP_OK)
        return QP_OK;
    qp_error why = error->error; /* the table allows less than the engine: not reached */
    return api_refuse(error, 400, name, "\"%s\": %.900s", name, why.message);
}

static qp_status read_field(const field *f, const char *name, const cJSON *value, char *out,
                            api_error *error)
{
    void *at = out + f->at;
    if (!(types_of(f) & type_of(value))) return wrong_type(f, name, value, error);
    switch (f->type) {
    case FIELD_BOOL:
        *(bool *)at = cJSON_IsTrue(value);
        return QP_OK;
    case FIELD_INTEGER:
        TRY(check_range(f, name, value->valuedouble, error));
        *(int64_t *)at = (int64_t)value->valuedouble;
        return QP_OK;
    case FIELD_NUMBER:
        TRY(check_range(f, name, value->valuedouble, error));
        *(double *)at = value->valuedouble;
        return QP_OK;
    case FIELD_STRING:
        *(const char **)at = value->valuestring;
        return QP_OK;
    case FIELD_SETTING:
        return read_setting(f, name, value->valuedouble, at, error);
    case FIELD_JSON:
        *(const cJSON **)at = value;
        return QP_OK;
    case FIELD_READ:
        return f->read(out, name, value, error);
    case FIELD_OBJECT:
        return read_tables(f->tables, name, value, out, error);
    case FIELD_NEUTRAL:
        return check_neutral(f, name, value, error);
    }
    return QP_OK;
}

static qp_status read_fields(const field *table, const char *prefix, const cJSON *body, char *out,
                             api_error *error)
{
    for (const field *f = table; f->name; f++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", f->name);
        const cJSON *value = json_get(body, f->name);
        if (value)
            TRY(read_field(f, name, value, out, error));
        else if (f->required)
            return api_refuse(error, 400, name, "\"%s\" is missing", name);
    }
    return QP_OK;
}

static qp_status read_tables(field_tables tables, const char *prefix, const cJSON *body, char *out,
                             api_error *error)
{
    for (; *tables; tables++)
        TRY(read_fields(*tables, prefix, body, out, error));
    return QP_OK;
}

qp_status fields_read(field_tables tables, const cJSON *body, void *out, api_error *error)
{
    if (!cJSON_IsObject(body))
        return api_refuse(error, 400, NULL, "the body must be a JSON object, found %s",
                          json_type_name(body));
    return read_tables(tables, "", body, out, error);
}

/* ---- Schema -------------------------------------------------------------------------------- */

static void add_field(cJSON *properties, cJSON *required, const field *f);

static cJSON *object_schema(const field *const *tables)
{
    cJSON *schema = cJSON_CreateObject();
    cJSON_AddStringToObject(schema, "type", "object");
    cJSON *properties = cJSON_AddObjectToObject(schema, "properties");
    cJSON *required = cJSON_CreateArray();
    for (; *tables; tables++) {
        for (const field *f = *tables; f->name; f++)
            add_field(properties, required, f);
    }
    if (cJSON_GetArraySize(required))
        cJSON_AddItemToObject(schema, "required", required);
    else
        cJSON_Delete(required);
    return schema;
}

static void add_types(cJSON *schema, const field *f)
{
    cJSON *types = cJSON_AddArrayToObject(schema, "type");
    for (int i = 0; i < N_JSON_TYPES; i++) {
        if (!(types_of(f) & json_types[i].type)) continue;
        cJSON_AddItemToArray(types,
                             cJSON_CreateString(is_whole(f) ? "integer" : json_types[i].schema));
    }
    if (!f->required) cJSON_AddItemToArray(types, cJSON_CreateString("null"));
}

static void add_items(cJSON *schema, const field *f)
{
    cJSON *items = f->items ? cJSON_Parse(f->items) : cJSON_CreateObject();
    assert(items);
    cJSON_AddItemToObject(schema, "items", items);
    if (f->least_items) cJSON_AddNumberToObject(schema, "minItems", f->least_items);
}

/* Moves the members of an object to another. */
static void add_members(cJSON *schema, cJSON *members)
{
    assert(members);
    for (cJSON *member; (member = members->child);) {
        cJSON_DetachItemViaPointer(members, member);
        cJSON_AddItemToObject(schema, member->string, member);
    }
    cJSON_Delete(members);
}

static void add_field(cJSON *properties, cJSON *required, const field *f)
{
    cJSON *schema;
    if (f->type == FIELD_OBJECT) {
        schema = object_schema(f->tables);
        cJSON_DeleteItemFromObjectCaseSensitive(schema, "type");
        add_types(schema, f);
    } else if (f->type == FIELD_NEUTRAL) {
        schema = cJSON_CreateObject();
    } else {
        schema = cJSON_CreateObject();
        add_types(schema, f);
        if (f->low != 0 || f->high != 0) {
            cJSON_AddNumberToObject(schema, "minimum", f->low);
            cJSON_AddNumberToObject(schema, "maximum", f->high);
        }
        if (types_of(f) & JSON_ARRAY) add_items(schema, f);
    }
    if (f->schema) add_members(schema, cJSON_Parse(f->schema));
    if (f->help) cJSON_AddStringToObject(schema, "description", f->help);
    cJSON_AddItemToObject(properties, f->name, schema);
    if (f->required) cJSON_AddItemToArray(required, cJSON_CreateString(f->name));
}

cJSON *fields_schema(field_tables tables)
{
    return object_schema(tables);
}
