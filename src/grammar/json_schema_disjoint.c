/* Whether the schemas of a list exclude each other, as far as types and constants show it.
 *
 * Usually each has another constant, or a required property with another constant: then one sort
 * shows it. Otherwise each is compared with each. */
#include "grammar/json_schema_parts.h"

#include <stdlib.h>
#include <string.h>

enum { KEYWORDS = 16, MOST_TAGS = 8 };

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

/* Whether no value is valid under both. */
static bool two_disjoint(schema_compiler *c, const cJSON *a, const cJSON *b)
{
    qp_error *error = c->error;
    unsigned x = 0, y = 0;
    const cJSON *item;
    a = follow_ref(c, a);
    b = follow_ref(c, b);
    /* each keyword is looked for among the members */
    const int members = cJSON_GetArraySize(a) + cJSON_GetArraySize(b);
    if (!schema_spend(c, KEYWORDS * (size_t)(members + 1))) return false;
    if (!a || !b || !cJSON_IsObject(a) || !cJSON_IsObject(b)) return false;
    c->error = NULL;
    const bool typed =
        schema_types(c, a, NULL, &x) == QP_OK && schema_types(c, b, NULL, &y) == QP_OK;
    c->error = error;
    if (typed && json_get(a, "type") && json_get(b, "type") && !(x & y)) return true;
    if (constants_disjoint(c, a, b)) return true;
    const cJSON *properties = json_get(b, "properties");
    const cJSON *required[] = {json_get(a, "required"), json_get(b, "required")};
    cJSON_ArrayForEach(item, json_get(a, "properties"))
    {
        const cJSON *other = schema_find(c, properties, item->string);
        if (schema_exhausted(c)) return false;
        if (other && schema_requires(c, required[0], item->string) &&
            schema_requires(c, required[1], item->string) && constants_disjoint(c, item, other))
            return true;
    }
    return false;
}

/* ---- Tags ---------------------------------------------------------------------------------- */

/* The text or number that a schema requires: as its value, or of a property. NULL: none. */
static const cJSON *tag_of(schema_compiler *c, const cJSON *schema, const char *property)
{
    schema = follow_ref(c, schema);
    if (property) {
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

static bool have_tags(schema_compiler *c, const cJSON *all, const char *property)
{
    size_t n = 0;
    const cJSON *item, **tags = calloc((size_t)cJSON_GetArraySize(all) + 1, sizeof *tags);
    bool different = tags != NULL;
    cJSON_ArrayForEach(item, all)
    {
        if (different) different = (tags[n++] = tag_of(c, item, property)) != NULL;
    }
    if (different) qsort(tags, n, sizeof *tags, compare_tags);
    for (size_t i = 1; different && i < n; i++)
        different = compare_tags(&tags[i - 1], &tags[i]) != 0;
    free(tags);
    return different;
}

bool schemas_disjoint(schema_compiler *c, const cJSON *all)
{
    const cJSON *property;
    int tries = 0;
    if (have_tags(c, all, NULL)) return true;
    cJSON_ArrayForEach(property, json_get(follow_ref(c, all->child), "properties"))
    {
        if (!json_get(property, "const")) continue;
        if (have_tags(c, all, property->string)) return true;
        if (++tries == MOST_TAGS) break;
    }
    for (const cJSON *a = all->child; a; a = a->next)
        for (const cJSON *b = a->next; b; b = b->next)
            if (!two_disjoint(c, a, b)) return false;
    return true;
}
