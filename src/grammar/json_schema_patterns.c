/* "patternProperties": members whose names a pattern allows.
 *
 * A name that a property and a pattern allow would have to be left out of the pattern, and a name
 * of two patterns would have to have a value of both; a grammar cannot say either, so such schemas
 * are refused. Whether there is such a name is found by running the patterns' automata side by
 * side.
 */
#include "grammar/json_schema_parts.h"

#include "grammar/pattern.h"
#include "grammar/stacks.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PATTERNS = 16, MOST_PAIRS = 4096, PAIR_SLOTS = 2 * MOST_PAIRS };

/* The names of a pattern, as strings of JSON. */
typedef struct name_set {
    grammar g;
    automaton m;
    stacks s;
} name_set;

static qp_status open_names(const char *pattern, name_set *n, qp_error *error)
{
    static const char root[] = "root";
    json_parts parts = {.g = &n->g};
    grammar_expr names;
    *n = (name_set){0};
    const uint32_t rule = grammar_add_rule(&n->g, root, sizeof root - 1);
    TRY(pattern_compile(&parts, pattern, &names, error));
    grammar_set_rule(&n->g, rule, json_quoted(&parts, names));
    TRY(automaton_compile(&n->g, &n->m, error));
    return stacks_open(&n->s, &n->m, 64, error);
}

static void close_names(name_set *n)
{
    stacks_free(&n->s);
    automaton_free(&n->m);
    grammar_free(&n->g);
}

static bool has_name(schema_compiler *c, name_set *n, const char *name)
{
    cJSON *text = cJSON_CreateStringReference(name);
    char *written = text ? cJSON_PrintUnformatted(text) : NULL;
    uint32_t at = stacks_root(&n->s);
    for (const char *b = written; b && *b; b++)
        at = stacks_step(&n->s, at, (uint8_t)*b);
    if (!written) c->g->failed = QP_NO_MEMORY;
    schema_spend(c, written ? strlen(written) : 0);
    cJSON_free(written);
    cJSON_Delete(text);
    return n->s.configs[at].ends;
}

/* Pairs of configurations that some text leads to. */
typedef struct pair_set {
    uint64_t slots[PAIR_SLOTS], list[MOST_PAIRS]; /* 0: none; both dead: never met */
    size_t count;
} pair_set;

/* false: there is no room. */
static bool add_pair(pair_set *p, uint32_t a, uint32_t b)
{
    const uint64_t pair = (uint64_t)a << 32 | b;
    size_t at = (size_t)((pair * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % PAIR_SLOTS;
    for (; p->slots[at]; at = (at + 1) % PAIR_SLOTS)
        if (p->slots[at] == pair) return true;
    if (p->count == MOST_PAIRS) return false;
    p->slots[at] = p->list[p->count++] = pair;
    return true;
}

/* Whether a name may be in both; true, too, where that takes too long to say. */
static bool share_names(schema_compiler *c, name_set *a, name_set *b)
{
    pair_set *pairs = calloc(1, sizeof *pairs);
    if (!pairs) c->g->failed = QP_NO_MEMORY;
    bool shared = !pairs || !add_pair(pairs, stacks_root(&a->s), stacks_root(&b->s));
    for (size_t i = 0; !shared && i < pairs->count; i++) {
        const uint32_t x = (uint32_t)(pairs->list[i] >> 32), y = (uint32_t)pairs->list[i];
        a->s.work = b->s.work = 0;
        shared = a->s.configs[x].ends && b->s.configs[y].ends;
        for (int byte = 0; !shared && byte < 256; byte++) {
            const uint32_t p = stacks_step(&a->s, x, (uint8_t)byte),
                           q = stacks_step(&b->s, y, (uint8_t)byte);
            if (p != CONFIG_DEAD && q != CONFIG_DEAD) shared = !add_pair(pairs, p, q);
        }
        shared = shared || a->s.failed != QP_OK || b->s.failed != QP_OK ||
                 !schema_spend(c, 256 + a->s.work + b->s.work);
    }
    free(pairs);
    return shared;
}

/* Whether the new pattern's names are of no property and of no other pattern with another schema.
 */
static qp_status check_names(schema_compiler *c, name_set *sets, size_t n, const cJSON *pattern,
                             const cJSON *patterns, const cJSON *properties,
                             const schema_path *path)
{
    const cJSON *item, *other = patterns->child;
    cJSON_ArrayForEach(item, properties) if (
        has_name(c, &sets[n],
                 item->string)) return schema_refuse(c, path, QP_UNSUPPORTED,
                                                     "\"%.60s\" is one of the properties, and "
                                                     "matches the pattern "
                                                     "\"%.60s\" of \"patternProperties\"",
                                                     item->string, pattern->string);
    for (size_t i = 0; i < n; i++, other = other->next)
        if (!schema_equal(c, other, pattern) && share_names(c, &sets[i], &sets[n]))
            return schema_refuse(c, path, QP_UNSUPPORTED,
                                 "the patterns \"%.60s\" and \"%.60s\" of \"patternProperties\" "
                                 "may match the same name",
                                 other->string, pattern->string);
    return QP_OK;
}

static qp_status add_member(schema_compiler *c, const cJSON *pattern, const schema_path *path,
                            expr_list *list)
{
    const schema_path at = {.outer = path, .name = "patternProperties"},
                      here = {.outer = &at, .name = pattern->string};
    grammar_expr names, value;
    TRY(schema_at(c, path, pattern_compile(c->parts, pattern->string, &names, c->error)));
    TRY(schema_compile(c, pattern, &here, &value));
    expr_list_add(c->g, list, schema_member(c, json_quoted(c->parts, names), value));
    return QP_OK;
}

qp_status schema_pattern_member(schema_compiler *c, const cJSON *patterns, const cJSON *properties,
                                const schema_path *path, grammar_expr *out)
{
    expr_list list = {0};
    const cJSON *pattern;
    size_t n = 0;
    qp_status status = QP_OK;
    if (cJSON_GetArraySize(patterns) > MOST_PATTERNS)
        return schema_refuse(c, path, QP_UNSUPPORTED, "\"patternProperties\" may have %d patterns",
                             MOST_PATTERNS);
    name_set *sets = calloc(MOST_PATTERNS, sizeof *sets);
    if (!sets) return error_no_memory(c->error, "the schema", 0);
    cJSON_ArrayForEach(pattern, patterns)
    {
        status = schema_at(c, path, open_names(pattern->string, &sets[n++], c->error));
        schema_spend(c, sets[n - 1].g.n_exprs + sets[n - 1].g.n_children);
        if (status == QP_OK)
            status = check_names(c, sets, n - 1, pattern, patterns, properties, path);
        if (status == QP_OK) status = add_member(c, pattern, path, &list);
        if (status != QP_OK) break;
    }
    for (size_t i = 0; i < n; i++)
        close_names(&sets[i]);
    free(sets);
    *out = grammar_choice_of(c->g, &list);
    return status;
}
