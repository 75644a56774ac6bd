/* Schemas that must hold together, and schemas that exclude each other. */
#include "grammar/json_schema_parts.h"

#include <string.h>

/* Gives a tree to the compiler, which deletes it at its end. */
static qp_status keep(schema_compiler *c, cJSON *tree)
{
    if (tree && cJSON_AddItemToArray(c->owned, tree)) return QP_OK;
    cJSON_Delete(tree);
    return error_no_memory(c->error, "the schema", 0);
}

static int count_values(const cJSON *tree)
{
    int n = 1;
    const cJSON *item;
    cJSON_ArrayForEach(item, tree) n += count_values(item);
    return n;
}

static qp_status copy(schema_compiler *c, const cJSON *tree, const schema_path *path, cJSON **out)
{
    const int n = count_values(tree);
    c->n_merged += n;
    schema_spend(c, (size_t)n);
    if (c->n_merged > SCHEMA_MAX_MERGED || c->n_merged < 0)
        return schema_refuse(c, path, QP_UNSUPPORTED, "\"allOf\" and \"$ref\" join too much");
    *out = cJSON_Duplicate(tree, true);
    return *out ? QP_OK : error_no_memory(c->error, "the schema", 0);
}

qp_status schema_copy(schema_compiler *c, const cJSON *schema, const schema_path *path, cJSON **out)
{
    TRY(copy(c, schema, path, out));
    return keep(c, *out);
}

qp_status schema_without(schema_compiler *c, const cJSON *schema, const char *name,
                         const schema_path *path, cJSON **out)
{
    TRY(schema_copy(c, schema, path, out));
    cJSON_DeleteItemFromObjectCaseSensitive(*out, name);
    return QP_OK;
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0) return true;
    return false;
}

/* A text that cJSON frees. */
static char *strdup_of(const char *text)
{
    const size_t size = strlen(text) + 1;
    char *out = cJSON_malloc(size);
    return out ? memcpy(out, text, size) : NULL;
}

/* Replaces a property by one that requires it and another one, which it takes over. */
static qp_status hold_both(schema_compiler *c, cJSON *properties, cJSON *mine, cJSON *theirs,
                           const schema_path *path)
{
    cJSON *both = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(both, "allOf"), *copied;
    if (!list || !cJSON_AddItemToArray(list, theirs)) {
        cJSON_Delete(both);
        cJSON_Delete(theirs);
        return error_no_memory(c->error, "the schema", 0);
    }
    qp_status status = copy(c, mine, path, &copied);
    if (status == QP_OK) {
        cJSON_AddItemToArray(list, copied);
        both->string = strdup_of(mine->string);
        cJSON_ReplaceItemViaPointer(properties, mine, both);
        if (!both->string) return error_no_memory(c->error, "the schema", 0);
    } else {
        cJSON_Delete(both);
    }
    return status;
}

/* Properties of both; one that both have must hold twice. */
static qp_status join_properties(schema_compiler *c, cJSON *a, const cJSON *b,
                                 const schema_path *path)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, b)
    {
        cJSON *mine = schema_find(c, a, item->string), *theirs;
        if (mine && schema_equal(c, mine, item)) continue;
        TRY(copy(c, item, path, &theirs));
        if (!mine) {
            cJSON_AddItemToObject(a, item->string, theirs);
            continue;
        }
        TRY(hold_both(c, a, mine, theirs, path));
    }
    return QP_OK;
}

static qp_status join_required(schema_compiler *c, cJSON *a, const cJSON *b,
                               const schema_path *path)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, b)
    {
        cJSON *name;
        TRY(copy(c, item, path, &name));
        cJSON_AddItemToArray(a, name);
    }
    return QP_OK;
}

/* Types that both allow, as a list. */
static qp_status join_types(schema_compiler *c, cJSON *a, const cJSON *b, const schema_path *path)
{
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    unsigned x, y;
    TRY(schema_types(c, a, path, &x));
    TRY(schema_types(c, b, path, &y));
    cJSON *list = cJSON_CreateArray();
    for (unsigned i = 0; i < 7; i++)
        if (x & y & (1u << i)) cJSON_AddItemToArray(list, cJSON_CreateString(names[i]));
    if (!list) return error_no_memory(c->error, "the schema", 0);
    cJSON_ReplaceItemInObjectCaseSensitive(a, "type", list);
    return QP_OK;
}

/* additionalProperties of one schema must know the properties of the other. */
static qp_status check_closed(schema_compiler *c, const cJSON *closed, const cJSON *other,
                              const schema_path *path)
{
    const cJSON *item, *extra = json_get(closed, "additionalProperties");
    if (!extra || cJSON_IsTrue(extra)) return QP_OK;
    cJSON_ArrayForEach(item, json_get(other, "properties"))
    {
        if (!schema_find(c, json_get(closed, "properties"), item->string))
            return schema_refuse(
                c, path, QP_UNSUPPORTED,
                "\"allOf\": \"%.60s\" is a property of one schema, and another one "
                "has \"additionalProperties\" without it",
                item->string);
    }
    return QP_OK;
}

/* "items" is about all items of a schema, but beside "prefixItems" only about those after them. */
static qp_status check_items(schema_compiler *c, const cJSON *prefixed, const cJSON *other,
                             const schema_path *path)
{
    const bool prefix =
        json_get(prefixed, "prefixItems") || cJSON_IsArray(json_get(prefixed, "items"));
    if (!prefix || !json_get(other, "items") || schema_equal(c, prefixed, other)) return QP_OK;
    return schema_refuse(c, path, QP_UNSUPPORTED,
                         "\"allOf\": \"items\" of one schema beside \"prefixItems\" of another");
}

/* null is allowed if both allow it: without "type" they do, whatever "nullable" says. */
static bool joins_nullable(const cJSON *a, const cJSON *b)
{
    const bool x = !json_get(a, "type") || cJSON_IsTrue(json_get(a, "nullable"));
    const bool y = !json_get(b, "type") || cJSON_IsTrue(json_get(b, "nullable"));
    return x && y;
}

static qp_status join_member(schema_compiler *c, cJSON *a, const cJSON *b, const cJSON *item,
                             const schema_path *path)
{
    static const char *const lower[] = {"minimum",  "exclusiveMinimum", "minLength",
                                        "minItems", "minProperties",    NULL};
    static const char *const upper[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                        "maxItems", "maxProperties",    NULL};
    cJSON *mine = schema_find(c, a, item->string);
    const char *name = item->string;
    if (!mine) {
        cJSON *theirs;
        TRY(copy(c, item, path, &theirs));
        cJSON_AddItemToObject(a, name, theirs);
        return QP_OK;
    }
    if (schema_only_describes(name) || schema_equal(c, mine, item)) return QP_OK;
    if (strcmp(name, "properties") == 0) return join_properties(c, mine, item, path);
    if (strcmp(name, "required") == 0 || strcmp(name, "allOf") == 0)
        return join_required(c, mine, item, path);
    if (strcmp(name, "type") == 0) return join_types(c, a, b, path);
    const bool numbers = cJSON_IsNumber(mine) && cJSON_IsNumber(item);
    if (numbers && is_one_of(name, lower) && item->valuedouble > mine->valuedouble)
        cJSON_SetNumberValue(mine, item->valuedouble);
    else if (numbers && is_one_of(name, upper) && item->valuedouble < mine->valuedouble)
        cJSON_SetNumberValue(mine, item->valuedouble);
    else if (!numbers || !(is_one_of(name, lower) || is_one_of(name, upper)))
        return schema_refuse(c, path, QP_UNSUPPORTED,
                             "\"allOf\": two different values of \"%.60s\"", name);
    return QP_OK;
}

qp_status schema_merge(schema_compiler *c, const cJSON *a, const cJSON *b, const schema_path *path,
                       const cJSON **out)
{
    const cJSON *item;
    cJSON *joined;
    if (cJSON_IsTrue(b) || cJSON_IsFalse(a)) return *out = a, QP_OK;
    if (cJSON_IsTrue(a) || cJSON_IsFalse(b)) return *out = b, QP_OK;
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b))
        return schema_refuse(c, path, QP_UNSUPPORTED,
                             "only schemas that are objects are joined, found %s",
                             json_type_name(b));
    for (const cJSON **side = &a; side; side = side == &a ? &b : NULL)
        while (json_get(*side, "$ref") && cJSON_GetArraySize(*side) == 1 &&
               ++c->n_schemas < SCHEMA_MAX_SCHEMAS)
            TRY(schema_resolve(c, *side, path, side));
    TRY(check_closed(c, a, b, path));
    TRY(check_closed(c, b, a, path));
    TRY(check_items(c, a, b, path));
    TRY(check_items(c, b, a, path));
    TRY(copy(c, a, path, &joined));
    TRY(keep(c, joined));
    cJSON_ArrayForEach(item, b) TRY(join_member(c, joined, b, item, path));
    if (!joins_nullable(a, b)) cJSON_DeleteItemFromObjectCaseSensitive(joined, "nullable");
    *out = joined;
    return QP_OK;
}
