/* Schemas of schemas: $ref, anyOf, oneOf, allOf. See json_schema_parts.h. */
#include "grammar/json_schema_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- References ---------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A part of a JSON pointer in a fragment of a URI: "%20" is a blank, then "~1" is "/", "~0" is "~".
 */
static bool read_part(const char **at, char *out, size_t size)
{
    size_t n = 0;
    for (; **at && **at != '/'; (*at)++) {
        char ch = **at;
        if (ch == '%') {
            const int high = hex_digit((*at)[1]), low = high < 0 ? -1 : hex_digit((*at)[2]);
            if (low < 0 || !(high | low)) return false;
            ch = (char)(16 * high + low);
            *at += 2;
        }
        if (ch == '~' && ((*at)[1] == '0' || (*at)[1] == '1')) ch = *++*at == '0' ? '~' : '/';
        if (n + 1 >= size) return false;
        out[n++] = ch;
    }
    out[n] = '\0';
    return true;
}

/* The schema that has a name of its own, "$anchor": "a" or "$id": "#a". */
static const cJSON *find_anchor(schema_compiler *c, const cJSON *tree, const char *name)
{
    static const char *const keywords[] = {"$anchor", "$id", "id"};
    const cJSON *item, *found = NULL;
    for (int i = 0; i < 3 && cJSON_IsObject(tree); i++) {
        const char *text = cJSON_GetStringValue(json_get(tree, keywords[i]));
        if (text && (i == 0 || *text++ == '#') && strcmp(text, name) == 0) return tree;
    }
    if (!schema_spend(c, 4)) return NULL;
    cJSON_ArrayForEach(item, tree) if (!found && item->child) found = find_anchor(c, item, name);
    return found;
}

/* The fragment of a reference to this schema: what follows "#", also after the schema's own name.
 */
static const char *own_fragment(const schema_compiler *c, const char *text)
{
    const char *id = cJSON_GetStringValue(json_get(c->root, "$id"));
    if (!id) id = cJSON_GetStringValue(json_get(c->root, "id"));
    const size_t length = id ? strcspn(id, "#") : 0;
    if (length && strncmp(text, id, length) == 0) text += length;
    return *text == '#' ? text + 1 : length && !*text ? text : NULL;
}

qp_status schema_resolve(schema_compiler *c, const cJSON *schema, const schema_path *path,
                         const cJSON **out)
{
    char part[256];
    const cJSON *ref = json_get(schema, "$ref"), *found = c->root;
    const char *text = cJSON_IsString(ref) ? ref->valuestring : "x", *at = own_fragment(c, text);
    bool good = at != NULL;
    if (good && *at && *at != '/') {
        found = find_anchor(c, c->root, at);
        at = "";
    }
    while (good && found && *at == '/') {
        at++;
        good = read_part(&at, part, sizeof part);
        char *end;
        const long index = strtol(part, &end, 10);
        if (cJSON_IsArray(found)) schema_spend(c, (size_t)cJSON_GetArraySize(found));
        found = cJSON_IsArray(found) ? (*part && !*end && index >= 0 && index < INT32_MAX
                                            ? cJSON_GetArrayItem(found, (int)index)
                                            : NULL)
                                     : schema_find(c, found, part);
    }
    *out = found;
    if (good && !*at && found) return QP_OK;
    return schema_refuse(c, path, good && !*at ? QP_INVALID : QP_UNSUPPORTED,
                         "\"$ref\" must name a part of this schema, \"#/$defs/NAME\", found %.80s",
                         cJSON_IsString(ref) ? text : json_type_name(ref));
}

qp_status schema_add_target(schema_compiler *c, schema_target t)
{
    if (c->n_targets == c->targets_capacity) {
        const size_t wanted = c->targets_capacity ? 2 * c->targets_capacity : 16;
        schema_target *grown = realloc(c->targets, wanted * sizeof *grown);
        if (!grown) return error_no_memory(c->error, "the schema", wanted * sizeof *grown);
        c->targets = grown;
        c->targets_capacity = wanted;
    }
    c->targets[c->n_targets++] = t;
    return QP_OK;
}

/* A rule for what $ref names, which may contain itself. */
static qp_status reference(schema_compiler *c, const cJSON *schema, const schema_path *path,
                           grammar_expr *out)
{
    const cJSON *target, *ref = json_get(schema, "$ref");
    TRY(schema_resolve(c, schema, path, &target));
    for (size_t i = 0; i < c->n_targets; i++) {
        if (c->targets[i].schema != target) continue;
        schema_spend(c, i / 4);
        *out = grammar_rule_expr(c->g, c->targets[i].rule);
        return QP_OK;
    }
    const schema_path at = {.name = "$ref", .outer = path};
    const uint32_t rule = grammar_add_rule(c->g, ref->valuestring, strlen(ref->valuestring));
    grammar_expr e;
    TRY(schema_add_target(c, (schema_target){target, rule}));
    TRY(schema_compile(c, target, &at, &e));
    grammar_set_rule(c->g, rule, e);
    *out = grammar_rule_expr(c->g, rule);
    return QP_OK;
}

/* ---- Combinations -------------------------------------------------------------------------- */

bool schema_only_describes(const char *keyword)
{
    static const char *const excluding[] = {"type",     "enum",  "const",       "nullable",
                                            "anyOf",    "oneOf", "allOf",       "$ref",
                                            "contains", "items", "prefixItems", "additionalItems"};
    for (size_t i = 0; i < sizeof excluding / sizeof *excluding; i++)
        if (strcmp(keyword, excluding[i]) == 0) return false;
    return !schema_is_keyword(keyword);
}

/* Whether a schema says more than this keyword and what only describes. */
static bool says_more(const cJSON *schema, const char *but)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, schema)
    {
        if (strcmp(item->string, but) != 0 && !schema_only_describes(item->string)) return true;
    }
    return false;
}

/* Whether a keyword stands before "properties", so that what it names comes first in an object. */
static bool stands_first(const cJSON *schema, const char *keyword)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, schema)
    {
        if (strcmp(item->string, "properties") == 0) return false;
        if (strcmp(item->string, keyword) == 0) return true;
    }
    return false;
}

/* The schema `rest` with another one, whose keyword has left `schema`. Properties that only the
 * other one names come before those of the rest where the keyword stood before them. */
static qp_status join(schema_compiler *c, const cJSON *schema, const char *keyword,
                      const cJSON *rest, const cJSON *other, const schema_path *path,
                      const cJSON **out)
{
    const cJSON *own = json_get(rest, "properties");
    TRY(schema_merge(c, rest, other, path, out));
    cJSON *all = cJSON_GetObjectItemCaseSensitive(*out, "properties");
    if (!own || *out == rest || *out == other || !stands_first(schema, keyword)) return QP_OK;
    for (int i = cJSON_GetArraySize(own); i > 0; i--) /* those of the rest, which are first */
        cJSON_AddItemToArray(all, cJSON_DetachItemViaPointer(all, all->child));
    return QP_OK;
}

/* The alternatives, each with what the schema says beside them: *out[n], which the caller frees. */
static qp_status read_alternatives(schema_compiler *c, const cJSON *schema, const char *name,
                                   const schema_path *path, const cJSON ***out, size_t *n)
{
    const cJSON *all = json_get(schema, name), *item;
    const schema_path at = {.outer = path, .name = name};
    cJSON *rest = NULL;
    *n = 0;
    *out = NULL;
    if (!cJSON_IsArray(all) || !all->child)
        return schema_refuse(c, path, QP_INVALID, "\"%s\" must be a list of schemas", name);
    if (says_more(schema, name)) TRY(schema_without(c, schema, name, path, &rest));
    *out = calloc((size_t)cJSON_GetArraySize(all), sizeof **out);
    if (!*out) return error_no_memory(c->error, "the schema", 0);
    cJSON_ArrayForEach(item, all)
    {
        const schema_path here = {.outer = &at, .index = (int)*n};
        (*out)[*n] = item;
        if (rest) TRY(join(c, schema, name, rest, item, &here, &(*out)[*n]));
        ++*n;
    }
    return QP_OK;
}

qp_status schema_alternatives(schema_compiler *c, const cJSON *schema, const char *name,
                              const schema_path *path, grammar_expr *out)
{
    const schema_path at = {.outer = path, .name = name};
    const cJSON **all;
    size_t n;
    expr_list list = {0};
    qp_status status = read_alternatives(c, schema, name, path, &all, &n);
    if (status == QP_OK && strcmp(name, "oneOf") == 0 && !schemas_disjoint(c, all, n))
        status = schema_refuse(c, path, QP_UNSUPPORTED,
                               "alternatives of \"oneOf\" may overlap: give them different types, "
                               "constants or required properties, or use \"anyOf\"");
    for (size_t i = 0; i < n && status == QP_OK; i++) {
        const schema_path here = {.outer = &at, .index = (int)i};
        grammar_expr e;
        status = schema_compile(c, all[i], &here, &e);
        if (status == QP_OK) expr_list_add(c->g, &list, e);
    }
    *out = grammar_choice_of(c->g, &list);
    free(all);
    return status;
}

qp_status schema_all_of(schema_compiler *c, const cJSON *schema, const schema_path *path,
                        grammar_expr *out)
{
    const cJSON *all = json_get(schema, "allOf"), *item, *joined;
    static const cJSON any = {.type = cJSON_True};
    const schema_path at = {.outer = path, .name = "allOf"};
    cJSON *rest;
    int index = 0;
    if (!cJSON_IsArray(all))
        return schema_refuse(c, path, QP_INVALID, "\"allOf\" must be a list of schemas");
    TRY(schema_without(c, schema, "allOf", path, &rest));
    joined = &any;
    cJSON_ArrayForEach(item, all)
    {
        const schema_path here = {.outer = &at, .index = index++};
        TRY(schema_merge(c, joined, item, &here, &joined));
    }
    TRY(join(c, schema, "allOf", rest, joined, path, &joined));
    return schema_compile(c, joined, path, out);
}

/* $ref with other keywords beside it: both in one schema. */
static qp_status reference_and_more(schema_compiler *c, const cJSON *schema,
                                    const schema_path *path, grammar_expr *out)
{
    const cJSON *target, *joined;
    cJSON *rest;
    TRY(schema_resolve(c, schema, path, &target));
    TRY(schema_without(c, schema, "$ref", path, &rest));
    TRY(join(c, schema, "$ref", rest, target, path, &joined));
    return schema_compile(c, joined, path, out);
}

qp_status schema_reference(schema_compiler *c, const cJSON *schema, const schema_path *path,
                           grammar_expr *out)
{
    return (says_more(schema, "$ref") ? reference_and_more : reference)(c, schema, path, out);
}
