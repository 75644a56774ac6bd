/* Whether schemas exclude each other, as far as types, constants, patterns, required properties and
 * closed objects show it.
 *
 * Usually each has another constant, or a required property with another constant: then one sort
 * shows it. Otherwise each is compared with each. */
#include "grammar/json_schema_texts.h"

#include <stdlib.h>
#include <string.h>

enum { KEYWORDS = 24, MOST_TAGS = 8, MOST_DEPTH = 8 };

/* The constants of a schema: a list, or one. NULL: any value. */
static const cJSON *constants(const cJSON *schema, bool *list)
{
    const cJSON *one = cJSON_GetObjectItemCaseSensitive(schema, "const");
    *list = !one;
    return one ? one : json_get(schema, "enum");
}

static bool constants_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    bool a_list, b_list;
    const cJSON *x = constants(a, &a_list), *y = constants(b, &b_list);
    if (!x || !y) return false;
    for (const cJSON *i = a_list ? x->child : x; i; i = a_list ? i->next : NULL)
        for (const cJSON *k = b_list ? y->child : y; k; k = b_list ? k->next : NULL)
            if (schema_equal(c, i, k) || schema_exhausted(c)) return false;
    return true;
}

/* The schema that $ref names; the schema itself if it has none, or one that is not found. */
static const cJSON *follow_ref(schema_compiler *c, const cJSON *schema)
{
    qp_error *error = c->error;
    c->error = NULL;
    for (int i = 0; i < 10 && json_get(schema, "$ref"); i++)
        if (schema_resolve(c, schema, NULL, &schema) != QP_OK) break;
    c->error = error;
    return schema;
}

/* The types of values that are written, and of those that are valid: keywords of objects make an
 * answer an object, but do not exclude a text. */
typedef struct value_types {
    unsigned written, valid;
} value_types;

static value_types types_of(schema_compiler *c, const cJSON *schema)
{
    bool list;
    value_types t = {0, TYPE_ALL};
    const cJSON *value = constants(schema, &list);
    for (const cJSON *i = list && value ? value->child : value; i; i = list ? i->next : NULL)
        t.written |= schema_type_of(i);
    if (value) return (value_types){t.written, t.written};
    qp_error *error = c->error;
    c->error = NULL;
    const bool known = schema_types(c, schema, NULL, &t.written) == QP_OK && t.written;
    c->error = error;
    if (known && json_get(schema, "type")) return (value_types){t.written, t.written};
    const bool more = json_get(schema, "$ref") || json_get(schema, "anyOf") ||
                      json_get(schema, "oneOf") || json_get(schema, "allOf");
    if (!known || more) t.written = TYPE_ALL;
    return t;
}

/* Types of texts that may be of both. */
static unsigned shared_types(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    const value_types x = types_of(c, a), y = types_of(c, b);
    return (x.written & y.valid) | (y.written & x.valid);
}

/* Strings that match different patterns, or constants that do not match one. */
static bool strings_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    bool list;
    text_set x, y = {0};
    const char *pattern = cJSON_GetStringValue(json_get(a, "pattern")),
               *other = cJSON_GetStringValue(json_get(b, "pattern"));
    const cJSON *value = constants(b, &list);
    if (!pattern || !(other || value)) return false;
    qp_error *error = c->error;
    c->error = NULL;
    bool disjoint = texts_of_pattern(c, &x, pattern) == QP_OK;
    if (value) {
        for (const cJSON *i = list ? value->child : value; i; i = list ? i->next : NULL)
            disjoint = disjoint && !(cJSON_IsString(i) && texts_have(c, &x, i->valuestring));
    } else {
        disjoint = disjoint && texts_of_pattern(c, &y, other) == QP_OK && !texts_overlap(c, &x, &y);
    }
    c->error = error;
    texts_close(&x);
    texts_close(&y);
    return disjoint && !schema_exhausted(c);
}

static bool two_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b, int depth);

/* Whether objects of one lack what the other requires, or have another value there. */
static bool objects_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b, int depth)
{
    const cJSON *name, *mine = json_get(a, "properties"), *theirs = json_get(b, "properties");
    const bool closed =
        cJSON_IsFalse(json_get(b, "additionalProperties")) && !json_get(b, "patternProperties");
    cJSON_ArrayForEach(name, json_get(a, "required"))
    {
        const char *text = cJSON_GetStringValue(name);
        const cJSON *other = text ? schema_find(c, theirs, text) : NULL;
        if (schema_exhausted(c)) return false;
        if (text && closed && !other) return true;
        const cJSON *value = other ? schema_find(c, mine, text) : NULL;
        if (value && two_disjoint(c, value, other, depth + 1)) return true;
    }
    return false;
}

/* Whether all alternatives of a schema, or one of what must hold together, exclude another one. */
static bool parts_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b, int depth)
{
    static const char *const names[] = {"anyOf", "oneOf"};
    const cJSON *item;
    for (int i = 0; i < 2; i++) {
        const cJSON *all = json_get(a, names[i]);
        bool disjoint = all && all->child;
        cJSON_ArrayForEach(item, all) disjoint = disjoint && two_disjoint(c, item, b, depth + 1);
        if (disjoint) return true;
    }
    cJSON_ArrayForEach(item, json_get(a, "allOf"))
    {
        if (two_disjoint(c, item, b, depth + 1)) return true;
    }
    return false;
}

/* Whether no value is written by one and valid under the other. */
static bool two_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b, int depth)
{
    a = follow_ref(c, a);
    b = follow_ref(c, b);
    /* each keyword is looked for among the members */
    const int members = cJSON_GetArraySize(a) + cJSON_GetArraySize(b);
    if (depth == MOST_DEPTH || !schema_spend(c, KEYWORDS * (size_t)(members + 1))) return false;
    if (cJSON_IsFalse(a) || cJSON_IsFalse(b)) return true;
    if (!a || !b || !cJSON_IsObject(a) || !cJSON_IsObject(b)) return false;
    const unsigned shared = shared_types(c, a, b);
    if (!shared || constants_disjoint(c, a, b)) return true;
    if (shared == TYPE_STRING && (strings_disjoint(c, a, b) || strings_disjoint(c, b, a)))
        return true;
    if (shared == TYPE_OBJECT &&
        (objects_disjoint(c, a, b, depth) || objects_disjoint(c, b, a, depth)))
        return true;
    return parts_disjoint(c, a, b, depth) || parts_disjoint(c, b, a, depth);
}

/* ---- Tags ---------------------------------------------------------------------------------- */

/* The text or number that a schema requires: as its value, or of a property. NULL: none. */
static const cJSON *tag_of(schema_compiler *c, const cJSON *schema, const char *property)
{
    schema = follow_ref(c, schema);
    if (property) {
        if (types_of(c, schema).written != TYPE_OBJECT) return NULL;
        if (!schema_requires(c, json_get(schema, "required"), property)) return NULL;
        schema = schema_find(c, json_get(schema, "properties"), property);
    }
    const cJSON *tag = json_get(schema, "const");
    return cJSON_IsString(tag) || cJSON_IsNumber(tag) ? tag : NULL;
}

static int compare_tags(const void *left, const void *right)
{
    const cJSON *a = *(const cJSON *const *)left, *b = *(const cJSON *const *)right;
    if (cJSON_IsString(a) != cJSON_IsString(b)) return cJSON_IsString(a) ? 1 : -1;
    if (cJSON_IsString(a)) return strcmp(a->valuestring, b->valuestring);
    return (a->valuedouble > b->valuedouble) - (a->valuedouble < b->valuedouble);
}

static bool have_tags(schema_compiler *c, const cJSON *const *all, size_t n, const char *property)
{
    const cJSON **tags = calloc(n + 1, sizeof *tags);
    bool different = tags != NULL;
    for (size_t i = 0; different && i < n; i++)
        different = (tags[i] = tag_of(c, all[i], property)) != NULL;
    if (different) qsort(tags, n, sizeof *tags, compare_tags);
    for (size_t i = 1; different && i < n; i++)
        different = compare_tags(&tags[i - 1], &tags[i]) != 0;
    free(tags);
    return different;
}

bool schemas_disjoint(schema_compiler *c, const cJSON *const *all, size_t n)
{
    const cJSON *property;
    int tries = 0;
    if (have_tags(c, all, n, NULL)) return true;
    cJSON_ArrayForEach(property, json_get(follow_ref(c, all[0]), "properties"))
    {
        if (!json_get(property, "const")) continue;
        if (have_tags(c, all, n, property->string)) return true;
        if (++tries == MOST_TAGS) break;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            if (!two_disjoint(c, all[i], all[k], 0)) return false;
    return true;
}
