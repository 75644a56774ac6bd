/* Objects and arrays of a schema. */
#include "grammar/json_schema_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- Objects ------------------------------------------------------------------------------- */

/* A property, and the expressions of it and of those after it. */
typedef struct members {
    schema_compiler *c;
    grammar_expr extra; /* one more member; */
    bool extras;        /* there may be any number of them */
} members;

/* An expression that stands in several places: once, as a rule. */
static grammar_expr as_rule(grammar *g, const char *name, grammar_expr e)
{
    const uint32_t rule = grammar_add_rule(g, name, strlen(name));
    grammar_set_rule(g, rule, e);
    return grammar_rule_expr(g, rule);
}

grammar_expr schema_member(schema_compiler *c, grammar_expr key, grammar_expr value)
{
    grammar_expr parts[] = {key, grammar_text(c->g, ":"), json_space(c->parts), value};
    return grammar_sequence(c->g, parts, 4);
}

/* The members from a property on. `rest`: with commas, after another member; `first`: without, and
 * *may_be_none: there may be no member. Made from the last property to the first, so that each is
 * compiled once; what follows a property is a rule, because two expressions use it. */
static void add_member(members *m, grammar_expr member, bool required, grammar_expr *rest,
                       grammar_expr *first, bool *may_be_none)
{
    grammar *g = m->c->g;
    static const char name[] = "the members of an object";
    const grammar_expr property = as_rule(g, name, member), after = as_rule(g, name, *rest);
    const grammar_expr begins = grammar_pair(g, property, after);
    *first = required ? begins : grammar_either(g, begins, *first);
    grammar_expr more = json_after_comma(m->c->parts, property);
    if (!required) more = grammar_optional(g, more);
    *rest = grammar_pair(g, more, after);
    *may_be_none = *may_be_none && !required;
}

/* Properties that are required and not described: those that a pattern or additionalProperties
 * describes, or any value, after the others. *properties and *additional are replaced where there
 * are some. */
static qp_status add_required(schema_compiler *c, const cJSON *required, member_names *names,
                              const cJSON **properties, const cJSON **additional,
                              const schema_path *path)
{
    const cJSON *item;
    cJSON *all = NULL;
    if (required && !cJSON_IsArray(required))
        return schema_refuse(c, path, QP_INVALID, "\"required\" must be a list of names");
    cJSON_ArrayForEach(item, required)
    {
        if (!cJSON_IsString(item))
            return schema_refuse(c, path, QP_INVALID, "\"required\" must be a list of names");
        if (schema_find(c, all ? all : *properties, item->valuestring)) continue;
        const cJSON *described = schema_names_pattern(c, names, item->valuestring);
        if (!described) described = *additional;
        if (cJSON_IsFalse(described) || schema_exhausted(c))
            return schema_refuse(
                c, path, QP_UNSUPPORTED,
                "\"required\" names \"%.60s\", which is not in \"properties\", and "
                "\"additionalProperties\" is false",
                item->valuestring);
        const cJSON any = {.type = cJSON_True}, none = {.type = cJSON_Object};
        cJSON *value;
        if (!all) TRY(schema_copy(c, *properties ? *properties : &none, path, &all));
        TRY(schema_copy(c, described ? described : &any, path, &value));
        if (!cJSON_AddItemReferenceToObject(all, item->valuestring, value))
            return error_no_memory(c->error, "the schema", 0);
    }
    static const cJSON open = {.type = cJSON_True};
    if (all && !*properties && !*additional) *additional = &open;
    if (all) *properties = all;
    return QP_OK;
}

/* A member that is none of the properties. */
static qp_status find_extra(members *m, member_names *names, const cJSON *properties,
                            const cJSON *additional, const schema_path *path)
{
    grammar_expr member;
    TRY(schema_names_others(m->c, names, properties, additional, path, &member, &m->extras));
    if (m->extras) m->extra = as_rule(m->c->g, "a member of an object", member);
    return QP_OK;
}

/* Any keys: up to max members, at least one unless `may_be_none`. */
static grammar_expr map(const members *m, bool may_be_none, uint32_t max)
{
    grammar *g = m->c->g;
    json_parts *parts = m->c->parts;
    if (!m->extras || max == 0) return json_bracketed(parts, '{', GRAMMAR_EMPTY, false, '}');
    const uint32_t most = max == GRAMMAR_UNBOUNDED ? max : max - 1;
    const grammar_expr more = grammar_repeat(g, json_after_comma(parts, m->extra), 0, most);
    return json_bracketed(parts, '{', grammar_pair(g, m->extra, more), may_be_none, '}');
}

static qp_status compile_properties(schema_compiler *c, const cJSON *properties,
                                    const schema_path *path, expr_list *out)
{
    const schema_path at = {.outer = path, .name = "properties"};
    const cJSON *item;
    cJSON_ArrayForEach(item, properties)
    {
        const schema_path here = {.outer = &at, .name = item->string};
        grammar_expr value;
        TRY(schema_compile(c, item, &here, &value));
        expr_list_add(c->g, out, schema_member(c, json_key(c->parts, item->string), value));
    }
    return QP_OK;
}

static grammar_expr all_members(members *m, const cJSON *properties, const cJSON *required,
                                const expr_list *values)
{
    grammar *g = m->c->g;
    json_parts *parts = m->c->parts;
    grammar_expr rest = GRAMMAR_EMPTY, first = GRAMMAR_EMPTY;
    bool may_be_none = true;
    if (m->extras) {
        rest = grammar_repeat(g, json_after_comma(parts, m->extra), 0, GRAMMAR_UNBOUNDED);
        first = grammar_pair(g, m->extra, rest);
    } else {
        first = grammar_nothing(g);
    }
    const cJSON *last = properties->child->prev; /* cJSON: the first one's is the last */
    for (size_t i = values->count; i-- > 0; last = last->prev)
        add_member(m, values->items[i], schema_requires(m->c, required, last->string), &rest,
                   &first, &may_be_none);
    return json_bracketed(parts, '{', first, may_be_none, '}');
}

/* ---- Counted members ----------------------------------------------------------------------- */

enum { MOST_COUNTS = 4096 };

/* What may follow the last property after `n` members. A key of those that are not named may come
 * twice, so that only the first of them counts. */
static grammar_expr counted_extras(members *m, uint32_t n, uint32_t min, uint32_t max)
{
    grammar *g = m->c->g;
    const uint32_t missing = n < min ? min - n : 0;
    if (n > max || missing > m->extras) return grammar_nothing(g);
    if (!m->extras || n == max) return GRAMMAR_EMPTY;
    const uint32_t most = max == GRAMMAR_UNBOUNDED ? max : max - n - (n == 0);
    const grammar_expr more =
        grammar_repeat(g, json_after_comma(m->c->parts, m->extra), n ? missing : 0, most);
    if (n) return more;
    const grammar_expr some = grammar_pair(g, m->extra, more);
    return missing ? some : grammar_optional(g, some);
}

/* With so many members at least and at most: after[n], what follows n members, from the last
 * property to the first. */
static grammar_expr counted_members(members *m, const cJSON *properties, const cJSON *required,
                                    const expr_list *values, uint32_t min, uint32_t max)
{
    static const char name[] = "the members of an object";
    grammar *g = m->c->g;
    const cJSON *last = properties->child->prev;
    const size_t count = values->count;
    grammar_expr *after = calloc(count + 1, sizeof *after);
    if (!after) g->failed = QP_NO_MEMORY;
    for (uint32_t n = 0; after && n <= count; n++)
        after[n] = counted_extras(m, n, min, max);
    for (size_t i = count; after && i-- > 0; last = last->prev) {
        const bool needed = schema_requires(m->c, required, last->string);
        const grammar_expr value = as_rule(g, name, values->items[i]);
        for (uint32_t n = 0; n <= i; n++) {
            const grammar_expr with =
                grammar_pair(g, n ? json_after_comma(m->c->parts, value) : value, after[n + 1]);
            after[n] = as_rule(g, name, needed ? with : grammar_either(g, with, after[n]));
        }
    }
    const grammar_expr all = after ? after[0] : GRAMMAR_EMPTY;
    free(after);
    return json_bracketed(m->c->parts, '{', all, false, '}');
}

/* ---- Objects as a whole -------------------------------------------------------------------- */

/* An object without named properties. */
static qp_status compile_map(members *m, uint32_t min, uint32_t max, const schema_path *path,
                             grammar_expr *out)
{
    if (min > max || (min > 0 && !m->extras))
        return schema_nothing(m->c, path, out,
                              "no object has at least %u and at most %u properties here",
                              (unsigned)min, m->extras ? (unsigned)max : 0);
    if (min > 1) /* a grammar cannot exclude that two of the members have the same key */
        return schema_refuse(m->c, path, QP_UNSUPPORTED,
                             "\"minProperties\" of more than 1 is not supported; name the "
                             "properties and those that are required");
    *out = map(m, min == 0, max);
    return QP_OK;
}

static qp_status compile_named(members *m, const cJSON *properties, const cJSON *required,
                               uint32_t min, uint32_t max, const schema_path *path,
                               grammar_expr *out)
{
    expr_list values = {0};
    const uint32_t n = (uint32_t)cJSON_GetArraySize(properties);
    uint32_t n_required = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, properties) n_required +=
        schema_requires(m->c, required, item->string);
    const bool counted = min > n_required || max != GRAMMAR_UNBOUNDED;
    if (counted && (n * (n + 1) / 2 > MOST_COUNTS || (m->extras && min > n_required + 1)))
        return schema_refuse(m->c, path, QP_UNSUPPORTED,
                             "\"minProperties\" and \"maxProperties\" are not supported beside "
                             "so many properties, or where keys that are not named may come twice");
    qp_status status = compile_properties(m->c, properties, path, &values);
    if (status == QP_OK && m->c->g->failed == QP_OK)
        *out = counted ? counted_members(m, properties, required, &values, min, max)
                       : all_members(m, properties, required, &values);
    grammar_choice_of(m->c->g, &values); /* frees the list */
    return status;
}

static qp_status compile_object(schema_compiler *c, const cJSON *schema, member_names *names,
                                const schema_path *path, grammar_expr *out)
{
    const cJSON *properties = json_get(schema, "properties");
    const cJSON *required = json_get(schema, "required");
    const cJSON *additional = json_get(schema, "additionalProperties");
    members m = {.c = c};
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED;
    TRY(schema_count(c, schema, "minProperties", path, &min));
    TRY(schema_count(c, schema, "maxProperties", path, &max));
    if (properties && !cJSON_IsObject(properties))
        return schema_refuse(c, path, QP_INVALID, "\"properties\" must be an object, found %s",
                             json_type_name(properties));
    if (cJSON_GetArraySize(properties) > SCHEMA_MAX_PROPERTIES)
        return schema_refuse(c, path, QP_UNSUPPORTED, "an object may name %d properties, found %d",
                             SCHEMA_MAX_PROPERTIES, cJSON_GetArraySize(properties));
    TRY(add_required(c, required, names, &properties, &additional, path));
    TRY(schema_names_join(c, names, path, &properties));
    TRY(find_extra(&m, names, properties, additional, path));
    return properties && properties->child
               ? compile_named(&m, properties, required, min, max, path, out)
               : compile_map(&m, min, max, path, out);
}

qp_status schema_object(schema_compiler *c, const cJSON *schema, const schema_path *path,
                        grammar_expr *out)
{
    member_names *names;
    qp_status status = schema_names_open(c, schema, path, &names);
    if (status == QP_OK) status = compile_object(c, schema, names, path, out);
    schema_names_close(names);
    return status;
}

/* ---- Arrays -------------------------------------------------------------------------------- */

/* The first items, by their places, and the name of the keyword for those after them. Older drafts
 * write them as a list of "items", with "additionalItems" for the others. */
static const cJSON *find_prefix(const cJSON *schema, const char **name, const char **others)
{
    const cJSON *items = json_get(schema, "items");
    const bool older = cJSON_IsArray(items);
    *name = older ? "items" : "prefixItems";
    *others = older ? "additionalItems" : "items";
    return older ? items : json_get(schema, "prefixItems");
}

/* What may come after the first items; *none: nothing. */
static qp_status find_items(schema_compiler *c, const cJSON *schema, const char *name,
                            const schema_path *path, grammar_expr *out, bool *none)
{
    const cJSON *items = json_get(schema, name);
    const schema_path at = {.outer = path, .name = name};
    grammar_expr value = json_value(c->parts);
    *none = cJSON_IsFalse(items);
    if (items && !*none) TRY(schema_compile(c, items, &at, &value));
    *out = as_rule(c->g, "an item", value);
    return QP_OK;
}

/* Items with commas, after `n` others, so that there are min to max with those. */
static grammar_expr rest_of(schema_compiler *c, grammar_expr item, uint32_t n, uint32_t min,
                            uint32_t max)
{
    const uint32_t least = min > n ? min - n : 0;
    const uint32_t most = max == GRAMMAR_UNBOUNDED ? max : max > n ? max - n : 0;
    return grammar_repeat(c->g, json_after_comma(c->parts, item), least, most);
}

/* The first items from the last to the first, each with what follows it. `at`: their list. */
static qp_status with_prefix(schema_compiler *c, const cJSON *prefix, const schema_path *at,
                             uint32_t min, uint32_t max, grammar_expr *tail)
{
    const cJSON *item = prefix->child->prev;
    for (uint32_t i = (uint32_t)cJSON_GetArraySize(prefix); i-- > 0; item = item->prev) {
        const schema_path here = {.outer = at, .index = (int)i};
        grammar_expr value;
        TRY(schema_compile(c, item, &here, &value));
        if (i > 0) value = json_after_comma(c->parts, value);
        *tail = i >= max ? GRAMMAR_EMPTY : grammar_pair(c->g, value, *tail);
        if (i >= min && i > 0 && i < max) *tail = grammar_optional(c->g, *tail);
    }
    return QP_OK;
}

qp_status schema_array(schema_compiler *c, const cJSON *schema, const schema_path *path,
                       grammar_expr *out)
{
    const char *name, *others;
    const cJSON *prefix = find_prefix(schema, &name, &others);
    const schema_path at = {.outer = path, .name = name};
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED;
    grammar_expr item = GRAMMAR_EMPTY, list;
    bool none = false;
    TRY(schema_count(c, schema, "minItems", path, &min));
    TRY(schema_count(c, schema, "maxItems", path, &max));
    TRY(find_items(c, schema, others, path, &item, &none));
    if (prefix && !cJSON_IsArray(prefix))
        return schema_refuse(c, path, QP_INVALID, "\"prefixItems\" must be a list of schemas");
    const uint32_t n = (uint32_t)cJSON_GetArraySize(prefix);
    if (none && max > n) max = n;
    if (min > max)
        return schema_nothing(c, path, out, "no array has at least %u and at most %u items",
                              (unsigned)min, (unsigned)max);
    if (n > 0) {
        list = rest_of(c, item, n, min, max);
        TRY(with_prefix(c, prefix, &at, min, max, &list));
    } else {
        list = grammar_pair(c->g, item, rest_of(c, item, 1, min, max));
    }
    if (max == 0) list = GRAMMAR_EMPTY;
    *out = json_bracketed(c->parts, '[', list, min == 0 && max > 0, ']');
    return QP_OK;
}
