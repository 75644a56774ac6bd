/* Sets of texts: see json_schema_texts.h. */
#include "grammar/json_schema_texts.h"

#include "grammar/pattern.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 2 * TEXTS_MAX_STATES, NO_STATE = TEXTS_MAX_STATES, HORIZON = 64 };

/* ---- A set --------------------------------------------------------------------------------- */

void texts_begin(text_set *set)
{
    static const char root[] = "root";
    *set = (text_set){0};
    set->parts.g = &set->g;
    grammar_add_rule(&set->g, root, strlen(root));
}

qp_status texts_end(schema_compiler *c, text_set *set, grammar_expr all)
{
    grammar_set_rule(&set->g, 0, all);
    schema_spend(c, set->g.n_exprs + set->g.n_children);
    TRY(automaton_compile(&set->g, &set->m, c->error));
    return stacks_open(&set->s, &set->m, HORIZON, c->error);
}

void texts_close(text_set *set)
{
    stacks_free(&set->s);
    automaton_free(&set->m);
    grammar_free(&set->g);
}

qp_status texts_of_pattern(schema_compiler *c, text_set *set, const char *pattern)
{
    grammar_expr text;
    texts_begin(set);
    TRY(pattern_compile(&set->parts, pattern, &text, c->error));
    return texts_end(c, set, json_quoted(&set->parts, text));
}

bool texts_have(schema_compiler *c, text_set *set, const char *string)
{
    cJSON *text = cJSON_CreateStringReference(string);
    char *written = text ? cJSON_PrintUnformatted(text) : NULL;
    uint32_t at = stacks_root(&set->s);
    for (const char *b = written; b && *b; b++)
        at = stacks_step(&set->s, at, (uint8_t)*b);
    if (!written) c->g->failed = QP_NO_MEMORY;
    schema_spend(c, written ? strlen(written) : 0);
    cJSON_free(written);
    cJSON_Delete(text);
    return set->s.configs[at].ends;
}

/* ---- The product of sets ------------------------------------------------------------------- */

typedef struct product {
    schema_compiler *c;
    text_set *const *sets;
    size_t n, count;
    uint32_t *states;      /* [count][n]: configurations */
    uint16_t slots[SLOTS]; /* 1 + a state, by its hash; 0: none */
    uint8_t kinds[256];    /* bytes that no set distinguishes have one kind, */
    uint8_t members[256];  /* and this is one of them: [n_kinds] */
    int n_kinds;
    bool full;
} product;

/* The state with these configurations, which may be new; NO_STATE: there is no room. */
static uint32_t state_of(product *p, const uint32_t *configs)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < p->n; i++)
        hash = (hash + configs[i]) * UINT64_C(0x9E3779B97F4A7C15), hash ^= hash >> 29;
    size_t at = (size_t)hash % SLOTS;
    for (; p->slots[at]; at = (at + 1) % SLOTS)
        if (memcmp(p->states + (p->slots[at] - 1) * p->n, configs, p->n * sizeof *configs) == 0)
            return p->slots[at] - 1u;
    p->full = p->full || p->count == TEXTS_MAX_STATES;
    if (p->full) return NO_STATE;
    memcpy(p->states + p->count * p->n, configs, p->n * sizeof *configs);
    p->slots[at] = (uint16_t)++p->count;
    return (uint32_t)p->count - 1;
}

/* The state after a byte; NO_STATE: no common text goes on so. */
static uint32_t next_state(product *p, size_t state, uint8_t byte, uint32_t *configs)
{
    for (size_t i = 0; i < p->n; i++) {
        text_set *set = p->sets[i];
        set->s.work = 0;
        configs[i] = stacks_step(&set->s, p->states[state * p->n + i], byte);
        if (!schema_spend(p->c, 1 + set->s.work)) p->full = true;
        p->full = p->full || set->s.failed != QP_OK || set->s.too_deep;
        if (configs[i] == CONFIG_DEAD && !set->left_out) return NO_STATE;
    }
    return state_of(p, configs);
}

static bool may_end(const product *p, size_t state)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->sets[i]->s.configs[p->states[state * p->n + i]].ends == p->sets[i]->left_out)
            return false;
    return true;
}

static void find_kinds(product *p)
{
    for (int byte = 0; byte < 256; byte++) {
        int kind = 0;
        for (bool same = false; kind < p->n_kinds; kind++) {
            same = true;
            for (size_t i = 0; i < p->n && same; i++)
                same = p->sets[i]->m.classes[byte] == p->sets[i]->m.classes[p->members[kind]];
            if (same) break;
        }
        if (kind == p->n_kinds) p->members[p->n_kinds++] = (uint8_t)byte;
        p->kinds[byte] = (uint8_t)kind;
    }
}

static product *open_product(schema_compiler *c, text_set *const *sets, size_t n)
{
    product *p = calloc(1, sizeof *p);
    uint32_t *first = calloc(n, sizeof *first);
    uint32_t *states = calloc(TEXTS_MAX_STATES * n, sizeof *states);
    if (p && first && states) {
        *p = (product){.c = c, .sets = sets, .n = n, .states = states};
        find_kinds(p);
        for (size_t i = 0; i < n; i++)
            first[i] = stacks_root(&sets[i]->s);
        state_of(p, first);
    } else {
        c->g->failed = QP_NO_MEMORY;
        free(states);
        free(p);
        p = NULL;
    }
    free(first);
    return p;
}

static void close_product(product *p)
{
    if (p) free(p->states);
    free(p);
}

/* The states that follow one, by kinds of bytes: targets[n_kinds]. */
static void follow(product *p, size_t state, uint32_t *targets)
{
    uint32_t configs[TEXTS_MAX_SETS];
    for (int kind = 0; kind < p->n_kinds; kind++)
        targets[kind] = next_state(p, state, p->members[kind], configs);
}

bool texts_overlap(schema_compiler *c, text_set *a, text_set *b)
{
    text_set *const both[] = {a, b};
    uint32_t targets[256];
    bool found = false;
    product *p = open_product(c, both, 2);
    for (size_t i = 0; p && i < p->count && !p->full && !found; i++) {
        found = may_end(p, i);
        follow(p, i, targets);
    }
    found = found || !p || p->full;
    close_product(p);
    return found;
}

/* A rule's expression: bytes, each with the rule of the state that it leads to. */
static grammar_expr state_expr(product *p, size_t state, uint32_t first)
{
    grammar *g = p->c->g;
    expr_list list = {0};
    uint32_t targets[256];
    const size_t known = p->count;
    follow(p, state, targets);
    for (size_t i = known; i < p->count; i++)
        grammar_add_rule(g, "a text", strlen("a text"));
    if (may_end(p, state)) expr_list_add(g, &list, GRAMMAR_EMPTY);
    for (int kind = 0; kind < p->n_kinds; kind++) {
        const uint32_t target = targets[kind];
        byte_set set = {0};
        if (target == NO_STATE) continue;
        for (int byte = 0; byte < 256; byte++)
            if (targets[p->kinds[byte]] == target)
                set.bits[byte >> 6] |= UINT64_C(1) << (byte & 63);
        for (int same = kind; same < p->n_kinds; same++)
            if (targets[same] == target) targets[same] = NO_STATE;
        expr_list_add(
            g, &list,
            grammar_pair(g, grammar_bytes(g, &set), grammar_rule_expr(g, first + target)));
    }
    return grammar_choice_of(g, &list);
}

qp_status texts_common(schema_compiler *c, text_set *const *sets, size_t n, const schema_path *path,
                       grammar_expr *out)
{
    product *p = open_product(c, sets, n);
    if (!p) return error_no_memory(c->error, "the schema", 0);
    const uint32_t first = grammar_add_rule(c->g, "a text", strlen("a text"));
    for (size_t i = 0; i < p->count && !p->full && c->g->failed == QP_OK; i++)
        grammar_set_rule(c->g, first + (uint32_t)i, state_expr(p, i, first));
    const bool full = p->full;
    close_product(p);
    *out = grammar_rule_expr(c->g, first);
    if (!full) return QP_OK;
    return schema_refuse(c, path, QP_UNSUPPORTED,
                         "patterns, lengths, bounds and names that hold together need more than %d "
                         "states: make lengths or patterns shorter",
                         TEXTS_MAX_STATES);
}
