/* JSON Schema to grammars: see json_schema.h. */
#include "grammar/json_schema_parts.h"

#include "base/strbuf.h"
#include "text/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Messages ------------------------------------------------------------------------------ */

static void print_path(const schema_path *path, strbuf *out)
{
    if (!path) {
        strbuf_puts(out, "#");
        return;
    }
    print_path(path->outer, out);
    if (path->name)
        strbuf_printf(out, "/%.60s", path->name);
    else
        strbuf_printf(out, "/%d", path->index);
}

qp_status schema_at(schema_compiler *c, const schema_path *path, qp_status status)
{
    strbuf text = {0};
    if (status == QP_OK) return QP_OK;
    print_path(path, &text);
    error_prefix(c->error, "%.300s", strbuf_text(&text));
    strbuf_free(&text);
    return status;
}

qp_status schema_refuse(schema_compiler *c, const schema_path *path, qp_status status,
                        const char *format, ...)
{
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (schema_exhausted(c)) {
        snprintf(message, sizeof message,
                 "the schema takes too much work: at most %d members are looked at, compared and "
                 "copied",
                 SCHEMA_MAX_WORK);
        status = QP_UNSUPPORTED;
    }
    return schema_at(c, path, error_set(c->error, status, "%s", message));
}

qp_status schema_nothing(schema_compiler *c, const schema_path *path, grammar_expr *out,
                         const char *format, ...)
{
    char message[300];
    strbuf text = {0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    print_path(path, &text);
    if (!*c->g->nothing)
        snprintf(c->g->nothing, sizeof c->g->nothing, "%.90s: %s", strbuf_text(&text), message);
    strbuf_free(&text);
    *out = grammar_nothing(c->g);
    return QP_OK;
}

/* ---- Keywords ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    unsigned bit;
} types[] = {{"null", TYPE_NULL},       {"boolean", TYPE_BOOLEAN},
             {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER | TYPE_INTEGER},
             {"string", TYPE_STRING},   {"array", TYPE_ARRAY},
             {"object", TYPE_OBJECT}};
enum { N_TYPES = sizeof types / sizeof *types };

/* Keywords, and what they are about: without "type" they say which type is meant. */
static const struct {
    const char *name;
    unsigned type;
} about[] = {{"properties", TYPE_OBJECT},
             {"required", TYPE_OBJECT},
             {"additionalProperties", TYPE_OBJECT},
             {"minProperties", TYPE_OBJECT},
             {"maxProperties", TYPE_OBJECT},
             {"items", TYPE_ARRAY},
             {"prefixItems", TYPE_ARRAY},
             {"minItems", TYPE_ARRAY},
             {"maxItems", TYPE_ARRAY},
             {"pattern", TYPE_STRING},
             {"minLength", TYPE_STRING},
             {"maxLength", TYPE_STRING},
             {"format", TYPE_STRING},
             {"minimum", TYPE_NUMBER | TYPE_INTEGER},
             {"maximum", TYPE_NUMBER | TYPE_INTEGER},
             {"exclusiveMinimum", TYPE_NUMBER | TYPE_INTEGER},
             {"exclusiveMaximum", TYPE_NUMBER | TYPE_INTEGER},
             {"propertyNames", TYPE_OBJECT},
             {"patternProperties", TYPE_OBJECT},
             {"uniqueItems", TYPE_ARRAY},
             {"multipleOf", TYPE_NUMBER | TYPE_INTEGER}};

/* Values of a keyword that exclude nothing. */
enum { NO_VALUE = 0, VALUE_FALSE = 1, VALUE_TRUE = 2, VALUE_EMPTY = 4 };

/* Keywords that exclude values, that no grammar here expresses, and with which values they exclude
 * nothing. */
static const struct {
    const char *name;
    unsigned harmless;
} unsupported[] = {{"not", VALUE_FALSE},
                   {"if", VALUE_FALSE | VALUE_TRUE | VALUE_EMPTY}, /* see then, else */
                   {"then", VALUE_TRUE | VALUE_EMPTY},
                   {"else", VALUE_TRUE | VALUE_EMPTY},
                   {"contains", NO_VALUE},
                   {"minContains", NO_VALUE},
                   {"maxContains", NO_VALUE},
                   {"dependencies", VALUE_EMPTY},
                   {"$dynamicRef", NO_VALUE},
                   {"$recursiveRef", NO_VALUE},
                   {"dependentRequired", VALUE_EMPTY},
                   {"dependentSchemas", VALUE_EMPTY},
                   {"unevaluatedItems", VALUE_TRUE | VALUE_EMPTY},
                   {"unevaluatedProperties", VALUE_TRUE | VALUE_EMPTY}};

bool schema_is_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof about / sizeof *about; i++)
        if (strcmp(about[i].name, name) == 0) return true;
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (strcmp(unsupported[i].name, name) == 0) return true;
    return false;
}

static unsigned harmless_kind(const cJSON *value)
{
    if (cJSON_IsFalse(value)) return VALUE_FALSE;
    if (cJSON_IsTrue(value)) return VALUE_TRUE;
    return cJSON_IsObject(value) && !value->child ? VALUE_EMPTY : NO_VALUE;
}

/* "unevaluated...": false excludes nothing where the schema itself says what the others are: an
 * object with properties and no additionalProperties has no others. */
static bool is_closed(const cJSON *schema, const char *unevaluated, const cJSON *value)
{
    if (!cJSON_IsFalse(value)) return false;
    if (strcmp(unevaluated, "unevaluatedItems") == 0) return json_get(schema, "items") != NULL;
    return strcmp(unevaluated, "unevaluatedProperties") == 0 &&
           (json_get(schema, "properties") || json_get(schema, "additionalProperties"));
}

static qp_status check_keywords(schema_compiler *c, const cJSON *schema, const schema_path *path)
{
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        const char *name = unsupported[i].name;
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(schema, name);
        if (value && !(harmless_kind(value) & unsupported[i].harmless) &&
            !is_closed(schema, name, value))
            return schema_refuse(c, path, QP_UNSUPPORTED, "\"%s\" is not supported", name);
    }
    return QP_OK;
}

static qp_status type_bit(schema_compiler *c, const cJSON *name, const schema_path *path,
                          unsigned *out)
{
    for (int i = 0; i < N_TYPES && cJSON_IsString(name); i++) {
        if (strcmp(types[i].name, name->valuestring) != 0) continue;
        *out |= types[i].bit;
        return QP_OK;
    }
    return schema_refuse(c, path, QP_INVALID,
                         "\"type\" must be null, boolean, integer, number, string, array or "
                         "object, or a list of these, found %.40s",
                         cJSON_IsString(name) ? name->valuestring : json_type_name(name));
}

qp_status schema_types(schema_compiler *c, const cJSON *schema, const schema_path *path,
                       unsigned *out)
{
    const cJSON *type = json_get(schema, "type"), *item;
    *out = 0;
    if (cJSON_IsArray(type)) {
        cJSON_ArrayForEach(item, type) TRY(type_bit(c, item, path, out));
    } else if (type) {
        TRY(type_bit(c, type, path, out));
    }
    for (size_t i = 0; !type && i < sizeof about / sizeof *about; i++)
        if (json_get(schema, about[i].name)) *out |= about[i].type;
    if (*out && cJSON_IsTrue(json_get(schema, "nullable"))) *out |= TYPE_NULL;
    return QP_OK;
}

qp_status schema_count(schema_compiler *c, const cJSON *schema, const char *name,
                       const schema_path *path, uint32_t *out)
{
    const cJSON *value = json_get(schema, name);
    if (!value) return QP_OK;
    const double number = cJSON_IsNumber(value) ? value->valuedouble : -1;
    if (!(number >= 0 && number <= GRAMMAR_MAX_COUNT && number == floor(number)))
        return schema_refuse(c, path, QP_INVALID,
                             "\"%s\" must be a whole number from 0 to a billion", name);
    *out = (uint32_t)number;
    return QP_OK;
}

/* ---- Values -------------------------------------------------------------------------------- */

unsigned schema_type_of(const cJSON *value)
{
    if (cJSON_IsNull(value)) return TYPE_NULL;
    if (cJSON_IsBool(value)) return TYPE_BOOLEAN;
    if (cJSON_IsString(value)) return TYPE_STRING;
    if (cJSON_IsArray(value)) return TYPE_ARRAY;
    if (cJSON_IsObject(value)) return TYPE_OBJECT;
    return value->valuedouble == floor(value->valuedouble) ? TYPE_INTEGER : TYPE_NUMBER;
}

/* Numbers are doubles here: beyond 2^53 they might not be what was written. */
static bool is_exact(const cJSON *value)
{
    const cJSON *item;
    if (cJSON_IsNumber(value)) return fabs(value->valuedouble) <= 0x1p53;
    cJSON_ArrayForEach(item, value) if (!is_exact(item)) return false;
    return true;
}

/* Keywords about a constant's type that are not evaluated. ("format" excludes no constant: JSON
 * Schema has it as a note.) */
static qp_status check_beside(schema_compiler *c, const cJSON *schema, const cJSON *value,
                              const schema_path *path)
{
    for (size_t i = 0; i < sizeof about / sizeof *about; i++) {
        const char *name = about[i].name;
        const bool evaluated = !(about[i].type & (TYPE_ARRAY | TYPE_OBJECT));
        if (evaluated || !(about[i].type & schema_type_of(value)) || !json_get(schema, name))
            continue;
        return schema_refuse(c, path, QP_UNSUPPORTED, "\"%s\" is not supported beside constants",
                             name);
    }
    return QP_OK;
}

static bool is_in(schema_compiler *c, const cJSON *list, const cJSON *value)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list) if (schema_equal(c, item, value)) return true;
    return false;
}

/* Whether everything but "const" and "enum" allows a constant. `types`: 0 for all. */
static qp_status allows_constant(schema_compiler *c, const cJSON *schema, unsigned types,
                                 const cJSON *value, const schema_path *path, bool *out)
{
    *out = !types || schema_type_of(value) & types;
    if (!*out) return QP_OK;
    TRY(check_beside(c, schema, value, path));
    if (cJSON_IsString(value)) return schema_string_allowed(c, schema, path, value, out);
    if (cJSON_IsNumber(value)) return schema_number_allowed(c, schema, path, value, out);
    return QP_OK;
}

/* enum and const, as far as the other keywords allow them. */
static qp_status constants(schema_compiler *c, const cJSON *schema, unsigned types,
                           const schema_path *path, grammar_expr *out)
{
    const cJSON *one = cJSON_GetObjectItemCaseSensitive(schema, "const");
    const cJSON *list = json_get(schema, "enum");
    size_t n = 0;
    if ((list || !one) && (!cJSON_IsArray(list) || !list->child))
        return schema_refuse(c, path, QP_INVALID, "\"enum\" must be a list of values");
    const cJSON **values = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *values);
    if (!values) return error_no_memory(c->error, "the schema", 0);
    bool exact = true;
    qp_status status = QP_OK;
    for (const cJSON *item = one ? one : list->child; item && status == QP_OK;
         item = one ? NULL : item->next) {
        bool allowed;
        status = allows_constant(c, schema, types, item, path, &allowed);
        if (status != QP_OK || !allowed || (one && list && !is_in(c, list, one))) continue;
        values[n++] = item;
        exact = exact && is_exact(item);
    }
    *out = json_one_of(c->parts, values, n);
    free(values);
    TRY(status);
    if (!exact) return schema_refuse(c, path, QP_UNSUPPORTED, "a constant is a number beyond 2^53");
    if (n == 0) return schema_nothing(c, path, out, "no constant is what the other keywords allow");
    return QP_OK;
}

static qp_status of_type(schema_compiler *c, const cJSON *schema, unsigned type,
                         const schema_path *path, grammar_expr *out)
{
    grammar *g = c->g;
    switch (type) {
    case TYPE_NULL:
        return *out = grammar_text(g, "null"), QP_OK;
    case TYPE_BOOLEAN:
        *out = grammar_either(g, grammar_text(g, "true"), grammar_text(g, "false"));
        return QP_OK;
    case TYPE_INTEGER:
        return schema_of_number(c, schema, path, true, out);
    case TYPE_NUMBER:
        return schema_of_number(c, schema, path, false, out);
    case TYPE_STRING:
        return schema_of_string(c, schema, path, out);
    case TYPE_ARRAY:
        return schema_array(c, schema, path, out);
    default:
        return schema_object(c, schema, path, out);
    }
}

static qp_status of_types(schema_compiler *c, const cJSON *schema, unsigned allowed,
                          const schema_path *path, grammar_expr *out)
{
    expr_list list = {0};
    qp_status status = QP_OK;
    if (allowed & TYPE_NUMBER) allowed &= ~(unsigned)TYPE_INTEGER;
    for (unsigned bit = 1; bit < TYPE_ALL && status == QP_OK; bit <<= 1) {
        grammar_expr e = GRAMMAR_EMPTY;
        if (!(allowed & bit)) continue;
        status = of_type(c, schema, bit, path, &e);
        expr_list_add(c->g, &list, e);
    }
    *out = grammar_choice_of(c->g, &list);
    return status;
}

static qp_status of_keywords(schema_compiler *c, const cJSON *schema, const schema_path *path,
                             grammar_expr *out)
{
    unsigned allowed;
    TRY(check_keywords(c, schema, path));
    if (json_get(schema, "allOf")) return schema_all_of(c, schema, path, out);
    if (json_get(schema, "$ref")) return schema_reference(c, schema, path, out);
    if (json_get(schema, "anyOf")) return schema_alternatives(c, schema, "anyOf", path, out);
    if (json_get(schema, "oneOf")) return schema_alternatives(c, schema, "oneOf", path, out);
    TRY(schema_types(c, schema, path, &allowed));
    if (!allowed && json_get(schema, "type"))
        return schema_nothing(c, path, out, "no type is allowed by all of \"allOf\"");
    if (json_get(schema, "enum") || cJSON_GetObjectItemCaseSensitive(schema, "const"))
        return constants(c, schema, json_get(schema, "type") ? allowed : 0, path, out);
    if (!allowed) return *out = json_value(c->parts), QP_OK;
    return of_types(c, schema, allowed, path, out);
}

qp_status schema_compile(schema_compiler *c, const cJSON *schema, const schema_path *path,
                         grammar_expr *out)
{
    *out = GRAMMAR_EMPTY;
    if (cJSON_IsTrue(schema)) return *out = json_value(c->parts), QP_OK;
    if (cJSON_IsFalse(schema)) return schema_nothing(c, path, out, "false allows no value");
    if (!cJSON_IsObject(schema))
        return schema_refuse(c, path, QP_INVALID,
                             "a schema must be an object, true or false, "
                             "found %s",
                             json_type_name(schema));
    if (c->nesting == SCHEMA_MAX_NESTING)
        return schema_refuse(c, path, QP_UNSUPPORTED, "schemas are nested deeper than %d",
                             SCHEMA_MAX_NESTING);
    if (schema_exhausted(c) || ++c->n_schemas > SCHEMA_MAX_SCHEMAS || c->g->failed != QP_OK)
        return schema_refuse(c, path, QP_UNSUPPORTED,
                             "the schema is too large: it may have %d schemas and %d expressions",
                             SCHEMA_MAX_SCHEMAS, GRAMMAR_MAX_EXPRS);
    c->nesting++;
    qp_status status = of_keywords(c, schema, path, out);
    c->nesting--;
    return status;
}

static qp_status compile_root(json_parts *parts, const cJSON *schema, uint32_t rule,
                              grammar_expr *out, qp_error *error)
{
    schema_compiler c = {.parts = parts, .g = parts->g, .root = schema, .error = error};
    c.owned = cJSON_CreateArray();
    qp_status status = c.owned ? QP_OK : error_no_memory(error, "the schema", 0);
    if (status == QP_OK) status = schema_add_target(&c, (schema_target){schema, rule});
    if (status == QP_OK) status = schema_compile(&c, schema, NULL, out);
    free(c.targets);
    cJSON_Delete(c.owned);
    return status;
}

/* About as many bytes as the text of a value has. */
static size_t text_bytes(const cJSON *value)
{
    const cJSON *item;
    size_t n = 2 + (value->string ? strlen(value->string) : 0);
    if (cJSON_IsString(value)) n += strlen(value->valuestring);
    cJSON_ArrayForEach(item, value) n += text_bytes(item);
    return n;
}

static qp_status check_length(size_t length, qp_error *error)
{
    if (length <= SCHEMA_MAX_TEXT) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "a schema may have %d bytes, found %zu",
                     SCHEMA_MAX_TEXT, length);
}

qp_status json_schema_add(json_parts *parts, const cJSON *schema, grammar_expr *out,
                          qp_error *error)
{
    grammar_expr e;
    TRY(check_length(text_bytes(schema), error));
    const uint32_t rule = grammar_add_rule(parts->g, "#", 1);
    TRY(compile_root(parts, schema, rule, &e, error));
    grammar_set_rule(parts->g, rule, e);
    *out = grammar_rule_expr(parts->g, rule);
    return QP_OK;
}

qp_status json_schema_parse(const char *text, size_t length, grammar *out, qp_error *error)
{
    cJSON *schema;
    json_parts parts = {.g = out};
    grammar_expr e;
    TRY(check_length(length, error));
    if (utf8_valid_run(text, length) != length)
        return error_set(error, QP_FORMAT, "the schema is not UTF-8");
    TRY(json_parse_exact(text, length, "the schema", &schema, error));
    qp_status status = json_schema_add(&parts, schema, &e, error);
    cJSON_Delete(schema);
    return status;
}

void json_schema_any_object(grammar *out)
{
    json_parts parts = {.g = out};
    const uint32_t root = grammar_add_rule(out, "#", 1);
    grammar_set_rule(out, root, json_object(&parts));
}
