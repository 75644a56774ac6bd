/* Grammars as data: see grammar.h. */
#include "grammar/grammar.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Room for one more item; false and `failed` set when there is none. */
static bool grow(grammar *g, void **items, size_t *capacity, size_t count, size_t most, size_t size)
{
    if (count >= most) {
        if (g->failed == QP_OK) g->failed = QP_UNSUPPORTED;
        return false;
    }
    if (count < *capacity) return true;
    const size_t wanted = *capacity ? 2 * *capacity : 64;
    void *grown = realloc(*items, wanted * size);
    if (!grown) {
        g->failed = QP_NO_MEMORY;
        return false;
    }
    *items = grown;
    *capacity = wanted;
    return true;
}

#define GROW(g, items, most)                                                                       \
    grow(g, (void **)&(g)->items, &(g)->items##_capacity, (g)->n_##items, most, sizeof *(g)->items)

void grammar_free(grammar *g)
{
    for (size_t i = 0; i < g->n_rules; i++)
        free(g->rules[i].name);
    free(g->exprs);
    free(g->sets);
    free(g->children);
    free(g->rules);
    *g = (grammar){0};
}

static grammar_expr add(grammar *g, expr e)
{
    if (!GROW(g, exprs, GRAMMAR_MAX_EXPRS)) return GRAMMAR_EMPTY;
    if (g->n_exprs == 0) g->exprs[g->n_exprs++] = (expr){.kind = EXPR_EMPTY};
    g->exprs[g->n_exprs] = e;
    return (grammar_expr)g->n_exprs++;
}

static grammar_expr add_list(grammar *g, expr_kind kind, const grammar_expr *items, size_t count)
{
    expr e = {.kind = kind, .first = (uint32_t)g->n_children, .count = (uint32_t)count};
    for (size_t i = 0; i < count; i++) {
        if (!GROW(g, children, 4 * (size_t)GRAMMAR_MAX_EXPRS)) return GRAMMAR_EMPTY;
        g->children[g->n_children++] = items[i];
    }
    return add(g, e);
}

grammar_expr grammar_sequence(grammar *g, const grammar_expr *items, size_t count)
{
    if (count == 0) return GRAMMAR_EMPTY;
    return count == 1 ? items[0] : add_list(g, EXPR_SEQUENCE, items, count);
}

grammar_expr grammar_choice(grammar *g, const grammar_expr *items, size_t count)
{
    return count == 1 ? items[0] : add_list(g, EXPR_CHOICE, items, count);
}

grammar_expr grammar_pair(grammar *g, grammar_expr first, grammar_expr second)
{
    return grammar_sequence(g, (grammar_expr[]){first, second}, 2);
}

grammar_expr grammar_either(grammar *g, grammar_expr first, grammar_expr second)
{
    return grammar_choice(g, (grammar_expr[]){first, second}, 2);
}

grammar_expr grammar_nothing(grammar *g)
{
    return grammar_choice(g, NULL, 0);
}

grammar_expr grammar_repeat(grammar *g, grammar_expr item, uint32_t min, uint32_t max)
{
    if (min == 1 && max == 1) return item;
    if (max == 0) return GRAMMAR_EMPTY;
    return add(g, (expr){.kind = EXPR_REPEAT, .first = item, .min = min, .max = max});
}

grammar_expr grammar_optional(grammar *g, grammar_expr item)
{
    return grammar_repeat(g, item, 0, 1);
}

grammar_expr grammar_bytes(grammar *g, const byte_set *set)
{
    if (!GROW(g, sets, GRAMMAR_MAX_EXPRS)) return GRAMMAR_EMPTY;
    g->sets[g->n_sets] = *set;
    return add(g, (expr){.kind = EXPR_BYTES, .first = (uint32_t)g->n_sets++});
}

static grammar_expr byte_range(grammar *g, uint8_t low, uint8_t high)
{
    byte_set set = {0};
    for (unsigned byte = low; byte <= high; byte++)
        set.bits[byte >> 6] |= UINT64_C(1) << (byte & 63);
    return grammar_bytes(g, &set);
}

grammar_expr grammar_literal(grammar *g, const char *text, size_t length)
{
    expr_list list = {0};
    for (size_t i = 0; i < length; i++)
        expr_list_add(g, &list, byte_range(g, (uint8_t)text[i], (uint8_t)text[i]));
    return grammar_sequence_of(g, &list);
}

grammar_expr grammar_text(grammar *g, const char *text)
{
    return grammar_literal(g, text, strlen(text));
}

/* ---- Lists --------------------------------------------------------------------------------- */

void expr_list_add(grammar *g, expr_list *list, grammar_expr item)
{
    if (!grow(g, (void **)&list->items, &list->capacity, list->count, GRAMMAR_MAX_EXPRS,
              sizeof *list->items))
        return;
    list->items[list->count++] = item;
}

grammar_expr grammar_sequence_of(grammar *g, expr_list *list)
{
    grammar_expr e = grammar_sequence(g, list->items, list->count);
    free(list->items);
    *list = (expr_list){0};
    return e;
}

grammar_expr grammar_choice_of(grammar *g, expr_list *list)
{
    grammar_expr e = grammar_choice(g, list->items, list->count);
    free(list->items);
    *list = (expr_list){0};
    return e;
}

/* ---- Rules --------------------------------------------------------------------------------- */

uint32_t grammar_add_rule(grammar *g, const char *name, size_t length)
{
    if (g->n_exprs == 0) add(g, (expr){.kind = EXPR_EMPTY}); /* a grammar has one at least */
    if (!GROW(g, rules, GRAMMAR_MAX_RULES)) return 0;
    char *copy = strndup(name, length);
    if (!copy) {
        g->failed = QP_NO_MEMORY;
        return 0;
    }
    g->rules[g->n_rules] = (grammar_rule){.name = copy};
    return (uint32_t)g->n_rules++;
}

void grammar_set_rule(grammar *g, uint32_t rule, grammar_expr e)
{
    if (rule >= g->n_rules) return; /* after a failure */
    g->rules[rule].expr = e;
    g->rules[rule].set = true;
}

grammar_expr grammar_rule_expr(grammar *g, uint32_t rule)
{
    return add(g, (expr){.kind = EXPR_RULE, .first = rule});
}

/* ---- Code points --------------------------------------------------------------------------- */

void code_set_add(code_set *set, uint32_t low, uint32_t high)
{
    if (set->count == set->capacity) {
        const size_t wanted = set->capacity ? 2 * set->capacity : 16;
        code_range *grown = realloc(set->ranges, wanted * sizeof *grown);
        if (!grown) {
            set->failed = true;
            return;
        }
        set->ranges = grown;
        set->capacity = wanted;
    }
    set->ranges[set->count++] = (code_range){low, high};
}

static int by_low(const void *left, const void *right)
{
    const code_range *a = left, *b = right;
    return (a->low > b->low) - (a->low < b->low);
}

void code_set_normalize(code_set *set)
{
    size_t count = 0;
    if (set->count) qsort(set->ranges, set->count, sizeof *set->ranges, by_low);
    for (size_t i = 0; i < set->count; i++) {
        const code_range r = set->ranges[i];
        code_range *last = count ? &set->ranges[count - 1] : NULL;
        if (!last || r.low > last->high + 1)
            set->ranges[count++] = r;
        else if (r.high > last->high)
            last->high = r.high;
    }
    set->count = count;
}

void code_set_invert(code_set *set)
{
    code_set out = {.failed = set->failed};
    uint32_t next = 1;
    code_set_normalize(set);
    for (size_t i = 0; i < set->count; i++) {
        if (set->ranges[i].low > next) code_set_add(&out, next, set->ranges[i].low - 1);
        next = set->ranges[i].high + 1; /* 1 at least */
    }
    if (next <= GRAMMAR_MAX_CODE_POINT) code_set_add(&out, next, GRAMMAR_MAX_CODE_POINT);
    free(set->ranges);
    *set = out;
}

bool code_set_has(const code_set *set, uint32_t code_point)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->ranges[i].low <= code_point && code_point <= set->ranges[i].high) return true;
    return false;
}

/* Adds the sequences for [low, high], which have the same number of bytes. A range whose bounds
 * differ in a byte before the last is cut, until all bytes after it span all continuations. */
static void add_sequences(grammar *g, expr_list *out, uint32_t low, uint32_t high)
{
    char a[4], b[4];
    const size_t length = utf8_encode(low, a);
    for (size_t i = 1; i < length; i++) {
        const uint32_t span = (UINT32_C(1) << (6 * i)) - 1; /* of the last i bytes */
        if ((low & ~span) == (high & ~span)) continue;
        if (low & span) {
            add_sequences(g, out, low, low | span);
            add_sequences(g, out, (low | span) + 1, high);
            return;
        }
        if ((high & span) != span) {
            add_sequences(g, out, low, (high & ~span) - 1);
            add_sequences(g, out, high & ~span, high);
            return;
        }
    }
    expr_list bytes = {0};
    utf8_encode(high, b);
    for (size_t i = 0; i < length; i++)
        expr_list_add(g, &bytes, byte_range(g, (uint8_t)a[i], (uint8_t)b[i]));
    expr_list_add(g, out, grammar_sequence_of(g, &bytes));
}

grammar_expr grammar_code_points(grammar *g, const code_set *given)
{
    /* Ranges of code points whose sequences have the same length; surrogates lie between two. */
    static const code_range lengths[] = {
        {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, GRAMMAR_MAX_CODE_POINT}};
    expr_list out = {0};
    byte_set ascii = {0};
    if (given->failed) g->failed = QP_NO_MEMORY;
    for (size_t i = 0; i < given->count; i++) {
        const code_range r = given->ranges[i];
        for (uint32_t c = r.low; c <= r.high && c < 0x80; c++)
            ascii.bits[c >> 6] |= UINT64_C(1) << (c & 63);
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            const uint32_t low = r.low > lengths[k].low ? r.low : lengths[k].low;
            const uint32_t high = r.high < lengths[k].high ? r.high : lengths[k].high;
            if (low <= high) add_sequences(g, &out, low, high);
        }
    }
    if (ascii.bits[0] || ascii.bits[1]) expr_list_add(g, &out, grammar_bytes(g, &ascii));
    return grammar_choice_of(g, &out);
}
