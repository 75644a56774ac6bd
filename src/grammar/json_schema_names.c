/* Names of an object's members: "patternProperties", "propertyNames", and names that are none of
 * the properties.
 *
 * A property whose name a pattern allows has a value of both schemas; another name of the pattern
 * has a value of the pattern's. A name of two patterns would need a value of both, so such schemas
 * are refused, unless the values are alike. */
#include "grammar/json_schema_texts.h"

#include "grammar/pattern.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PATTERNS = 16 };

struct member_names {
    const cJSON *patterns; /* "patternProperties": NULL, or with a member at least */
    text_set *sets;        /* [n_sets]: of their names */
    size_t n_sets;
    const cJSON *wanted; /* "propertyNames", where it excludes some; and its names */
    text_set allowed;
};

/* ---- Reading ------------------------------------------------------------------------------- */

/* Whether the name's values may differ from those of a pattern before it. */
static qp_status check_overlap(schema_compiler *c, member_names *names, const cJSON *pattern,
                               const schema_path *path)
{
    const cJSON *other = names->patterns->child;
    text_set *last = &names->sets[names->n_sets - 1];
    for (size_t i = 0; i + 1 < names->n_sets; i++, other = other->next)
        if (!schema_equal(c, other, pattern) && texts_overlap(c, &names->sets[i], last))
            return schema_refuse(c, path, QP_UNSUPPORTED,
                                 "the patterns \"%.60s\" and \"%.60s\" of \"patternProperties\" "
                                 "may match the same name",
                                 other->string, pattern->string);
    return QP_OK;
}

static qp_status read_patterns(schema_compiler *c, member_names *names, const schema_path *path)
{
    const cJSON *pattern;
    if (cJSON_GetArraySize(names->patterns) > MOST_PATTERNS)
        return schema_refuse(c, path, QP_UNSUPPORTED, "\"patternProperties\" may have %d patterns",
                             MOST_PATTERNS);
    names->sets = calloc(MOST_PATTERNS, sizeof *names->sets);
    if (!names->sets) return error_no_memory(c->error, "the schema", 0);
    cJSON_ArrayForEach(pattern, names->patterns)
    {
        text_set *set = &names->sets[names->n_sets++];
        TRY(schema_at(c, path, texts_of_pattern(c, set, pattern->string)));
        TRY(check_overlap(c, names, pattern, path));
    }
    return QP_OK;
}

static bool excludes_names(const cJSON *wanted)
{
    if (!wanted || cJSON_IsTrue(wanted) || (cJSON_IsObject(wanted) && !wanted->child)) return false;
    const char *type = cJSON_GetStringValue(json_get(wanted, "type"));
    return !type || strcmp(type, "string") != 0 || wanted->child->next;
}

static qp_status check_strings(schema_compiler *c, const cJSON *wanted, const schema_path *at)
{
    unsigned types = 0;
    const cJSON *item, *listed = json_get(wanted, "enum");
    if (!cJSON_IsObject(wanted))
        return schema_refuse(c, at, QP_UNSUPPORTED, "names need a schema of strings");
    TRY(schema_types(c, wanted, at, &types));
    bool texts =
        types == TYPE_STRING || cJSON_IsString(json_get(wanted, "const")) || (listed && !types);
    cJSON_ArrayForEach(item, listed) texts = texts && cJSON_IsString(item);
    return texts ? QP_OK : schema_refuse(c, at, QP_UNSUPPORTED, "names must be of type string");
}

/* The names that "propertyNames" allows, by a compiler with a grammar of its own. */
static qp_status read_wanted(schema_compiler *c, member_names *names, const schema_path *path)
{
    const schema_path at = {.outer = path, .name = "propertyNames"};
    text_set *set = &names->allowed;
    grammar_expr all;
    TRY(check_strings(c, names->wanted, &at));
    texts_begin(set);
    schema_compiler inner = *c;
    inner.parts = &set->parts;
    inner.g = &set->g;
    inner.targets = NULL;
    inner.n_targets = inner.targets_capacity = 0;
    set->parts.work = c->parts->work;
    qp_status status = schema_compile(&inner, names->wanted, &at, &all);
    free(inner.targets);
    c->parts->work = set->parts.work;
    c->n_schemas = inner.n_schemas;
    c->n_merged = inner.n_merged;
    return status == QP_OK ? schema_at(c, &at, texts_end(c, set, all)) : status;
}

qp_status schema_names_open(schema_compiler *c, const cJSON *schema, const schema_path *path,
                            member_names **out)
{
    const cJSON *patterns = json_get(schema, "patternProperties"),
                *wanted = json_get(schema, "propertyNames");
    member_names *names = *out = calloc(1, sizeof *names);
    if (!names) return error_no_memory(c->error, "the schema", sizeof *names);
    if (cJSON_GetArraySize(patterns)) names->patterns = patterns;
    if (excludes_names(wanted)) names->wanted = wanted;
    if (names->patterns) TRY(read_patterns(c, names, path));
    return names->wanted ? read_wanted(c, names, path) : QP_OK;
}

void schema_names_close(member_names *names)
{
    if (!names) return;
    for (size_t i = 0; i < names->n_sets; i++)
        texts_close(&names->sets[i]);
    if (names->wanted) texts_close(&names->allowed);
    free(names->sets);
    free(names);
}

/* ---- Properties ---------------------------------------------------------------------------- */

const cJSON *schema_names_pattern(schema_compiler *c, member_names *names, const char *name)
{
    const cJSON *pattern = names->patterns ? names->patterns->child : NULL;
    for (size_t i = 0; i < names->n_sets; i++, pattern = pattern->next)
        if (texts_have(c, &names->sets[i], name)) return pattern;
    return NULL;
}

/* A property with what a pattern asks of its value; none, where its name is not allowed. */
static qp_status joined_property(schema_compiler *c, member_names *names, const cJSON *property,
                                 const schema_path *path, const cJSON **out)
{
    static const cJSON nothing = {.type = cJSON_False};
    const cJSON *pattern = schema_names_pattern(c, names, property->string);
    *out = property;
    if (names->wanted && !texts_have(c, &names->allowed, property->string))
        return *out = &nothing, QP_OK;
    if (!pattern) return QP_OK;
    return schema_merge(c, property, pattern, path, out);
}

qp_status schema_names_join(schema_compiler *c, member_names *names, const schema_path *path,
                            const cJSON **properties)
{
    const cJSON none = {.type = cJSON_Object}, *item, *joined;
    cJSON *all;
    if (!*properties || (!names->patterns && !names->wanted)) return QP_OK;
    TRY(schema_copy(c, &none, path, &all));
    cJSON_ArrayForEach(item, *properties)
    {
        cJSON *copied;
        TRY(joined_property(c, names, item, path, &joined));
        TRY(schema_copy(c, joined, path, &copied));
        if (!cJSON_AddItemReferenceToObject(all, item->string, copied))
            return error_no_memory(c->error, "the schema", 0);
    }
    *properties = all;
    return QP_OK;
}

/* ---- Other names --------------------------------------------------------------------------- */

/* Strings in the notation of a JSON printer. */
static qp_status any_string(schema_compiler *c, text_set *set)
{
    code_set all = {0};
    texts_begin(set);
    code_set_add(&all, 1, GRAMMAR_MAX_CODE_POINT);
    const grammar_expr one = json_character_of(&set->parts, &all);
    free(all.ranges);
    const grammar_expr text = grammar_repeat(&set->g, one, 0, GRAMMAR_UNBOUNDED);
    return texts_end(c, set, json_quoted(&set->parts, text));
}

/* The names of properties that are in a set, or all of them if it is NULL, as a set that is left
 * out. *n: how many. */
static qp_status own_names(schema_compiler *c, const cJSON *properties, text_set *within,
                           text_set *set, size_t *n)
{
    const cJSON *item;
    expr_list all = {0};
    texts_begin(set);
    cJSON_ArrayForEach(item, properties)
    {
        if (within && !texts_have(c, within, item->string)) continue;
        expr_list_add(&set->g, &all, json_key(&set->parts, item->string));
    }
    set->left_out = true;
    *n = all.count;
    const grammar_expr names = grammar_choice_of(&set->g, &all);
    return *n ? texts_end(c, set, names) : QP_OK;
}

/* Keys of a pattern, or of none of them if it is NULL, that name no property. */
static qp_status other_keys(schema_compiler *c, member_names *names, const cJSON *pattern,
                            text_set *matching, const cJSON *properties, const schema_path *path,
                            grammar_expr *out)
{
    _Static_assert(MOST_PATTERNS + 3 <= TEXTS_MAX_SETS, "any, allowed, own and the patterns");
    text_set any = {0}, own = {0}, *sets[TEXTS_MAX_SETS];
    size_t n_own = 0, n = 0;
    qp_status status = matching ? QP_OK : any_string(c, &any);
    if (status == QP_OK) status = own_names(c, properties, matching, &own, &n_own);
    sets[n++] = matching ? matching : &any;
    if (names->wanted) sets[n++] = &names->allowed;
    if (n_own) sets[n++] = &own;
    for (size_t i = 0; i < names->n_sets && !matching; i++)
        sets[n++] = &names->sets[i];
    for (size_t i = 0; i < names->n_sets; i++)
        names->sets[i].left_out = !matching;
    if (status == QP_OK && matching && n == 1) {
        status = schema_at(c, path, pattern_compile(c->parts, pattern->string, out, c->error));
        *out = json_quoted(c->parts, *out);
    } else if (status == QP_OK) {
        status = texts_common(c, sets, n, path, out);
    }
    texts_close(&any);
    texts_close(&own);
    return status;
}

static qp_status add_member(schema_compiler *c, grammar_expr key, const cJSON *schema,
                            const schema_path *at, expr_list *list)
{
    grammar_expr value = json_value(c->parts);
    if (schema) TRY(schema_compile(c, schema, at, &value));
    expr_list_add(c->g, list, schema_member(c, key, value));
    return QP_OK;
}

static qp_status add_additional(schema_compiler *c, member_names *names, const cJSON *properties,
                                const cJSON *additional, const schema_path *path, expr_list *list)
{
    const schema_path at = {.outer = path, .name = "additionalProperties"};
    grammar_expr key;
    if (names->patterns || names->wanted)
        TRY(other_keys(c, names, NULL, NULL, properties, path, &key));
    else if (properties && properties->child)
        key = json_other_key(c->parts, properties);
    else
        key = json_string(c->parts);
    return add_member(c, key, additional, &at, list);
}

qp_status schema_names_others(schema_compiler *c, member_names *names, const cJSON *properties,
                              const cJSON *additional, const schema_path *path, grammar_expr *out,
                              bool *some)
{
    const schema_path in = {.outer = path, .name = "patternProperties"};
    const bool more = additional ? !cJSON_IsFalse(additional) : !properties && !names->patterns;
    const cJSON *pattern;
    expr_list list = {0};
    grammar_expr key = GRAMMAR_EMPTY;
    qp_status status = QP_OK;
    size_t i = 0;
    cJSON_ArrayForEach(pattern, names->patterns)
    {
        const schema_path at = {.outer = &in, .name = pattern->string};
        if (status == QP_OK)
            status = other_keys(c, names, pattern, &names->sets[i++], properties, path, &key);
        if (status == QP_OK) status = add_member(c, key, pattern, &at, &list);
    }
    if (status == QP_OK && more)
        status = add_additional(c, names, properties, additional, path, &list);
    *some = names->patterns || more;
    *out = grammar_choice_of(c->g, &list);
    return status;
}
