/* Parts of JSON: see json_parts.h. */
#include "grammar/json_parts.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

enum { MAX_INDENT = 20, MAX_DIGITS = 18 };

/* The rule at *rule; *fresh: it was made now, and the caller sets it. */
static grammar_expr rule_of(json_parts *p, uint32_t *rule, const char *name, bool *fresh)
{
    *fresh = *rule == 0;
    if (*fresh) *rule = grammar_add_rule(p->g, name, strlen(name));
    return grammar_rule_expr(p->g, *rule);
}

static grammar_expr set_of(grammar *g, const char *bytes)
{
    byte_set set = {0};
    for (const char *b = bytes; *b; b++)
        set.bits[(uint8_t)*b >> 6] |= UINT64_C(1) << ((uint8_t)*b & 63);
    return grammar_bytes(g, &set);
}

grammar_expr json_space(json_parts *p)
{
    bool fresh;
    grammar *g = p->g;
    const grammar_expr e = rule_of(p, &p->space, "white space", &fresh);
    if (!fresh) return e;
    const grammar_expr indent = grammar_repeat(g, set_of(g, " \t"), 0, MAX_INDENT);
    const grammar_expr line = grammar_pair(g, grammar_text(g, "\n"), indent);
    grammar_set_rule(g, p->space,
                     grammar_optional(g, grammar_either(g, grammar_text(g, " "), line)));
    return e;
}

/* ---- Strings ------------------------------------------------------------------------------- */

static grammar_expr hex(grammar *g, const char *digits, uint32_t times)
{
    return grammar_repeat(g, set_of(g, digits), times, times);
}

static const char any_hex[] = "0123456789abcdefABCDEF";

/* What follows \u: all but 0000 and surrogates, or a pair of surrogates. */
static grammar_expr code_unit(grammar *g)
{
    grammar_expr below_d[] = {hex(g, "123456789abcefABCEF", 1), hex(g, any_hex, 3)};
    grammar_expr d[] = {set_of(g, "dD"), set_of(g, "01234567"), hex(g, any_hex, 2)};
    grammar_expr zero_1[] = {grammar_text(g, "0"), set_of(g, any_hex + 1), hex(g, any_hex, 2)};
    grammar_expr zero_2[] = {grammar_text(g, "00"), set_of(g, any_hex + 1), hex(g, any_hex, 1)};
    grammar_expr zero_3[] = {grammar_text(g, "000"), set_of(g, any_hex + 1)};
    grammar_expr pair[] = {set_of(g, "dD"),        set_of(g, "89abAB"), hex(g, any_hex, 2),
                           grammar_text(g, "\\u"), set_of(g, "dD"),     set_of(g, "cdefCDEF"),
                           hex(g, any_hex, 2)};
    grammar_expr all[] = {grammar_sequence(g, below_d, 2), grammar_sequence(g, d, 3),
                          grammar_sequence(g, zero_1, 3),  grammar_sequence(g, zero_2, 3),
                          grammar_sequence(g, zero_3, 2),  grammar_sequence(g, pair, 7)};
    return grammar_choice(g, all, 6);
}

/* Characters that a string holds as they are. */
static grammar_expr plain_character(grammar *g)
{
    code_set set = {0};
    code_set_add(&set, 0, 0x1F);
    code_set_add(&set, '"', '"');
    code_set_add(&set, '\\', '\\');
    code_set_invert(&set);
    const grammar_expr e = grammar_code_points(g, &set);
    free(set.ranges);
    return e;
}

grammar_expr json_character(json_parts *p)
{
    grammar *g = p->g;
    const grammar_expr number = grammar_pair(g, grammar_text(g, "u"), code_unit(g));
    const grammar_expr escaped = grammar_either(g, set_of(g, "\"\\/bfnrt"), number);
    return grammar_either(g, plain_character(g), grammar_pair(g, grammar_text(g, "\\"), escaped));
}

grammar_expr json_quoted(json_parts *p, grammar_expr text)
{
    grammar_expr parts[] = {grammar_text(p->g, "\""), text, grammar_text(p->g, "\"")};
    return grammar_sequence(p->g, parts, 3);
}

grammar_expr json_string(json_parts *p)
{
    bool fresh;
    const grammar_expr e = rule_of(p, &p->string, "a string", &fresh);
    if (fresh)
        grammar_set_rule(
            p->g, p->string,
            json_quoted(p, grammar_repeat(p->g, json_character(p), 0, GRAMMAR_UNBOUNDED)));
    return e;
}

/* A control character's escape. */
static grammar_expr control_character(grammar *g, uint32_t c)
{
    static const char names[] = "btn_fr"; /* from U+0008 on */
    char text[8];
    if (c >= 8 && c <= 13 && c != 11)
        snprintf(text, sizeof text, "\\%c", names[c - 8]);
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    return grammar_text(g, text);
}

/* The escapes of the control characters in a set. All of them, as most sets have, are a rule. */
static grammar_expr control_characters(json_parts *p, const code_set *given)
{
    grammar *g = p->g;
    expr_list out = {0};
    uint32_t n = 0;
    bool fresh = false;
    for (uint32_t c = 1; c < 0x20; c++)
        n += code_set_has(given, c);
    const grammar_expr all =
        n == 0x1F ? rule_of(p, &p->control, "a control character", &fresh) : GRAMMAR_EMPTY;
    if (n == 0x1F && !fresh) return all;
    for (uint32_t c = 1; c < 0x20; c++)
        if (code_set_has(given, c)) expr_list_add(g, &out, control_character(g, c));
    const grammar_expr e = grammar_choice_of(g, &out);
    if (fresh) grammar_set_rule(g, p->control, e);
    return fresh ? all : e;
}

grammar_expr json_character_of(json_parts *p, const code_set *given)
{
    grammar *g = p->g;
    expr_list out = {0};
    code_set plain = {0};
    expr_list_add(g, &out, control_characters(p, given));
    if (code_set_has(given, '"')) expr_list_add(g, &out, grammar_text(g, "\\\""));
    if (code_set_has(given, '\\')) expr_list_add(g, &out, grammar_text(g, "\\\\"));
    for (size_t i = 0; i < given->count; i++) {
        uint32_t low = given->ranges[i].low < 0x20 ? 0x20 : given->ranges[i].low;
        const uint32_t high = given->ranges[i].high, marks[] = {'"', '\\'};
        for (int k = 0; k < 2; k++) {
            if (low > marks[k] || high < marks[k]) continue;
            if (low < marks[k]) code_set_add(&plain, low, marks[k] - 1);
            low = marks[k] + 1;
        }
        if (low <= high) code_set_add(&plain, low, high);
    }
    plain.failed |= given->failed;
    expr_list_add(g, &out, grammar_code_points(g, &plain));
    free(plain.ranges);
    return grammar_choice_of(g, &out);
}

/* ---- Numbers ------------------------------------------------------------------------------- */

grammar_expr json_digit(json_parts *p, char low, char high)
{
    byte_set set = {0};
    for (int c = low; c <= high; c++)
        set.bits[0] |= UINT64_C(1) << c;
    return grammar_bytes(p->g, &set);
}

grammar_expr json_digits(json_parts *p, uint32_t min, uint32_t max)
{
    return grammar_repeat(p->g, json_digit(p, '0', '9'), min, max);
}

grammar_expr json_integer(json_parts *p)
{
    bool fresh;
    grammar *g = p->g;
    const grammar_expr e = rule_of(p, &p->integer, "an integer", &fresh);
    if (!fresh) return e;
    const grammar_expr more =
        grammar_pair(g, json_digit(p, '1', '9'), json_digits(p, 0, MAX_DIGITS - 1));
    grammar_set_rule(g, p->integer,
                     grammar_pair(g, grammar_optional(g, grammar_text(g, "-")),
                                  grammar_either(g, grammar_text(g, "0"), more)));
    return e;
}

grammar_expr json_number(json_parts *p)
{
    bool fresh;
    grammar *g = p->g;
    const grammar_expr e = rule_of(p, &p->number, "a number", &fresh);
    if (!fresh) return e;
    const grammar_expr large = grammar_pair(g, json_digit(p, '1', '2'), json_digits(p, 2, 2));
    grammar_expr exponent[] = {set_of(g, "eE"), grammar_optional(g, set_of(g, "+-")),
                               grammar_either(g, json_digits(p, 1, 2), large)};
    const grammar_expr fraction =
        grammar_pair(g, grammar_text(g, "."), json_digits(p, 1, MAX_DIGITS));
    grammar_expr parts[] = {json_integer(p), grammar_optional(g, fraction),
                            grammar_optional(g, grammar_sequence(g, exponent, 3))};
    grammar_set_rule(g, p->number, grammar_sequence(g, parts, 3));
    return e;
}

/* ---- Values -------------------------------------------------------------------------------- */

grammar_expr json_bracketed(json_parts *p, char open, grammar_expr items, bool may_be_empty,
                            char close)
{
    grammar *g = p->g;
    grammar_expr inside = grammar_pair(g, items, json_space(p));
    if (may_be_empty) inside = grammar_optional(g, inside);
    grammar_expr parts[] = {grammar_literal(g, &open, 1), json_space(p), inside,
                            grammar_literal(g, &close, 1)};
    return grammar_sequence(g, parts, 4);
}

grammar_expr json_after_comma(json_parts *p, grammar_expr item)
{
    grammar_expr parts[] = {grammar_text(p->g, ","), json_space(p), item};
    return grammar_sequence(p->g, parts, 3);
}

/* Items with commas between them, one at least. */
static grammar_expr listed(json_parts *p, grammar_expr (*item)(json_parts *p))
{
    const grammar_expr more =
        grammar_repeat(p->g, json_after_comma(p, item(p)), 0, GRAMMAR_UNBOUNDED);
    return grammar_pair(p->g, item(p), more);
}

static grammar_expr member(json_parts *p)
{
    grammar_expr parts[] = {json_string(p), grammar_text(p->g, ":"), json_space(p), json_value(p)};
    return grammar_sequence(p->g, parts, 4);
}

grammar_expr json_object(json_parts *p)
{
    bool fresh;
    const grammar_expr e = rule_of(p, &p->object, "an object", &fresh);
    if (fresh)
        grammar_set_rule(p->g, p->object, json_bracketed(p, '{', listed(p, member), true, '}'));
    return e;
}

static grammar_expr array_of_any(json_parts *p)
{
    bool fresh;
    const grammar_expr e = rule_of(p, &p->array, "an array", &fresh);
    if (fresh)
        grammar_set_rule(p->g, p->array, json_bracketed(p, '[', listed(p, json_value), true, ']'));
    return e;
}

grammar_expr json_value(json_parts *p)
{
    bool fresh;
    grammar *g = p->g;
    const grammar_expr e = rule_of(p, &p->value, "a value", &fresh);
    if (!fresh) return e;
    grammar_expr all[] = {json_object(p),         array_of_any(p),         json_string(p),
                          json_number(p),         grammar_text(g, "true"), grammar_text(g, "false"),
                          grammar_text(g, "null")};
    grammar_set_rule(g, p->value, grammar_choice(g, all, 7));
    return e;
}

/* ---- Given values -------------------------------------------------------------------------- */

/* A value without parts, as it is printed. */
static grammar_expr scalar(json_parts *p, const cJSON *value)
{
    char *text = json_print(value);
    if (!text) p->g->failed = QP_NO_MEMORY;
    const grammar_expr e = grammar_text(p->g, text ? text : "");
    cJSON_free(text);
    return e;
}

grammar_expr json_key(json_parts *p, const char *name)
{
    cJSON *text = cJSON_CreateStringReference(name);
    if (!text) p->g->failed = QP_NO_MEMORY;
    const grammar_expr e = text ? scalar(p, text) : GRAMMAR_EMPTY;
    cJSON_Delete(text);
    return e;
}

grammar_expr json_literal(json_parts *p, const cJSON *value)
{
    grammar *g = p->g;
    const bool object = cJSON_IsObject(value);
    expr_list list = {0};
    const cJSON *item;
    if (!object && !cJSON_IsArray(value)) return scalar(p, value);
    cJSON_ArrayForEach(item, value)
    {
        grammar_expr parts[] = {GRAMMAR_EMPTY, GRAMMAR_EMPTY, GRAMMAR_EMPTY, json_literal(p, item)};
        if (object) {
            parts[0] = json_key(p, item->string);
            parts[1] = grammar_text(g, ":");
            parts[2] = json_space(p);
        }
        const grammar_expr e = grammar_sequence(g, parts, 4);
        expr_list_add(g, &list, item == value->child ? e : json_after_comma(p, e));
    }
    const bool empty = !value->child;
    return json_bracketed(p, object ? '{' : '[', grammar_sequence_of(g, &list), empty,
                          object ? '}' : ']');
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* One of the sorted texts, from byte `at` on: those that go on with the same bytes share them, so
 * that a long list begins with few ways. */
static grammar_expr words(grammar *g, char *const *texts, size_t n, size_t at)
{
    expr_list out = {0};
    for (size_t i = 0; i < n;) {
        size_t end = i + 1, to = at;
        const char *first = texts[i];
        while (end < n && texts[end][at] == first[at])
            end++;
        const char *last = texts[end - 1];
        while (first[to] && first[to] == last[to])
            to++;
        const grammar_expr head = grammar_literal(g, first + at, to - at);
        const bool ends = !first[to];
        size_t rest = i;
        while (ends && rest < end && !texts[rest][to])
            rest++;
        grammar_expr tail = rest < end ? words(g, texts + rest, end - rest, to) : GRAMMAR_EMPTY;
        if (ends && rest < end) tail = grammar_optional(g, tail);
        expr_list_add(g, &out, grammar_pair(g, head, tail));
        i = end;
    }
    return grammar_choice_of(g, &out);
}

grammar_expr json_one_of(json_parts *p, const cJSON *const *values, size_t n)
{
    grammar *g = p->g;
    expr_list out = {0};
    size_t n_texts = 0;
    char **texts = calloc(n + 1, sizeof *texts);
    for (size_t i = 0; i < n && texts; i++) {
        if (cJSON_IsObject(values[i]) || cJSON_IsArray(values[i]))
            expr_list_add(g, &out, json_literal(p, values[i]));
        else if ((texts[n_texts] = json_print(values[i])))
            n_texts++;
        else
            g->failed = QP_NO_MEMORY;
    }
    if (!texts) g->failed = QP_NO_MEMORY;
    if (n_texts) {
        qsort(texts, n_texts, sizeof *texts, by_text);
        expr_list_add(g, &out, words(g, texts, n_texts, 0));
    }
    for (size_t i = 0; i < n_texts; i++)
        cJSON_free(texts[i]);
    free(texts);
    return grammar_choice_of(g, &out);
}

/* The rest of a key that begins like the sorted names from byte `at` on, and is none of them. */
static grammar_expr not_words(json_parts *p, char *const *names, size_t n, size_t at)
{
    grammar *g = p->g;
    expr_list out = {0};
    code_set others = {0};
    const bool may_end = n == 0 || names[0][at];
    while (n > 0 && !names[0][at])
        names++, n--;
    for (size_t i = 0; i < n;) {
        const size_t length = utf8_sequence(names[i] + at, strlen(names[i] + at));
        const uint32_t c = length ? utf8_decode(names[i] + at, length) : (uint8_t)names[i][at];
        size_t end = i + 1;
        while (end < n && strncmp(names[end] + at, names[i] + at, length ? length : 1) == 0)
            end++;
        code_set one = {0};
        code_set_add(&one, c, c);
        code_set_add(&others, c, c);
        expr_list_add(g, &out,
                      grammar_pair(g, json_character_of(p, &one),
                                   not_words(p, names + i, end - i, at + (length ? length : 1))));
        free(one.ranges);
        i = end;
    }
    code_set_invert(&others);
    expr_list_add(
        g, &out,
        grammar_pair(g, json_character_of(p, &others),
                     grammar_repeat(g, grammar_rule_expr(g, p->character), 0, GRAMMAR_UNBOUNDED)));
    free(others.ranges);
    const grammar_expr e = grammar_choice_of(g, &out);
    return may_end ? grammar_optional(g, e) : e;
}

grammar_expr json_other_key(json_parts *p, const cJSON *names)
{
    bool fresh;
    size_t n = 0;
    const cJSON *item;
    rule_of(p, &p->character, "a character", &fresh);
    if (fresh) grammar_set_rule(p->g, p->character, json_character(p));
    char **texts = calloc((size_t)cJSON_GetArraySize(names) + 1, sizeof *texts);
    if (!texts) p->g->failed = QP_NO_MEMORY;
    if (!texts) return GRAMMAR_EMPTY;
    cJSON_ArrayForEach(item, names)
    {
        texts[n++] = item->string;
        if (strlen(item->string) > JSON_MAX_KEY && p->g->failed == QP_OK)
            p->g->failed = QP_UNSUPPORTED; /* not_words() calls itself for each character */
    }
    if (p->g->failed != QP_OK) n = 0;
    if (n) qsort(texts, n, sizeof *texts, by_text);
    const grammar_expr e = json_quoted(p, not_words(p, texts, n, 0));
    free(texts);
    return e;
}
