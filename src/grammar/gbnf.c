/* GBNF: see gbnf.h. */
#include "grammar/gbnf.h"

#include "base/keyed_hash.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_BUCKETS = 4096 };

typedef struct reader {
    grammar *g;
    const char *at, *end;
    int line, nesting;
    hash_key key;
    uint32_t *buckets; /* [NAME_BUCKETS]: rule + 1 */
    uint32_t *same;    /* [GRAMMAR_MAX_RULES]: the next rule of the bucket + 1 */
    qp_error *error;
} reader;

static qp_status fail(const reader *r, const char *what)
{
    return error_set(r->error, QP_FORMAT, "line %d of the grammar: %s", r->line, what);
}

static char peek(const reader *r, size_t ahead)
{
    return (size_t)(r->end - r->at) > ahead ? r->at[ahead] : '\0';
}

static bool take(reader *r, char c)
{
    if (peek(r, 0) != c || r->at == r->end) return false;
    r->at++;
    return true;
}

/* Skips white space and comments; ends of lines too with `lines`. */
static void skip(reader *r, bool lines)
{
    for (; r->at < r->end; r->at++) {
        if (*r->at == '#')
            while (r->at + 1 < r->end && r->at[1] != '\n' && r->at[1] != '\r')
                r->at++;
        else if (*r->at == '\n' && lines)
            r->line++;
        else if (*r->at != ' ' && *r->at != '\t' &&
                 !(*r->at == '\r' && (lines || peek(r, 1) == '\n')))
            return;
    }
}

/* ---- Names --------------------------------------------------------------------------------- */

static size_t name_length(const reader *r)
{
    size_t n = 0;
    for (char c = peek(r, 0); (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '-' || c == '_';
         c = peek(r, n))
        n++;
    return n;
}

/* The rule of a name, which is made if there is none. */
static uint32_t find_rule(reader *r, const char *name, size_t length)
{
    uint32_t *bucket = &r->buckets[keyed_hash(r->key, name, length) % NAME_BUCKETS];
    for (uint32_t i = *bucket; i; i = r->same[i - 1]) {
        const char *known = r->g->rules[i - 1].name;
        if (strlen(known) == length && memcmp(known, name, length) == 0) return i - 1;
    }
    const uint32_t rule = grammar_add_rule(r->g, name, length);
    if (r->g->failed != QP_OK) return 0;
    r->same[rule] = *bucket;
    *bucket = rule + 1;
    return rule;
}

/* ---- Characters ---------------------------------------------------------------------------- */

static qp_status take_hex(reader *r, int digits, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++) {
        const char *all = "0123456789abcdef", c = peek(r, 0);
        const char *at = c ? strchr(all, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
        if (!at) return fail(r, "an escape lacks hexadecimal digits");
        *out = *out * 16 + (uint32_t)(at - all);
        r->at++;
    }
    if (*out > GRAMMAR_MAX_CODE_POINT || (*out >= 0xD800 && *out <= 0xDFFF))
        return fail(r, "an escape is no character of Unicode");
    return QP_OK;
}

static qp_status take_character(reader *r, uint32_t *out)
{
    if (!take(r, '\\')) {
        const size_t length = utf8_sequence(r->at, (size_t)(r->end - r->at));
        if (length == 0) return fail(r, "the text is not UTF-8");
        *out = utf8_decode(r->at, length);
        r->line += *out == '\n';
        r->at += length;
        return QP_OK;
    }
    static const char from[] = "nrt\\\"[]-^", to[] = "\n\r\t\\\"[]-^";
    const char name = peek(r, 0);
    const char *known = name ? strchr(from, name) : NULL;
    r->at += r->at < r->end;
    if (name == 'x') return take_hex(r, 2, out);
    if (name == 'u') return take_hex(r, 4, out);
    if (name == 'U') return take_hex(r, 8, out);
    if (!known)
        return fail(r, "an unknown escape; \\n \\r \\t \\\\ \\\" \\[ \\] \\x \\u \\U are there");
    *out = (uint8_t)to[known - from];
    return QP_OK;
}

/* After the opening quote. */
static qp_status take_literal(reader *r, grammar_expr *out)
{
    expr_list list = {0};
    qp_status status = QP_OK;
    while (status == QP_OK && !take(r, '"')) {
        uint32_t c = 0;
        char bytes[4];
        status =
            r->at == r->end ? fail(r, "a text lacks its closing quote") : take_character(r, &c);
        if (status == QP_OK)
            expr_list_add(r->g, &list, grammar_literal(r->g, bytes, utf8_encode(c, bytes)));
    }
    *out = grammar_sequence_of(r->g, &list);
    return status;
}

/* After "[". */
static qp_status take_set(reader *r, code_set *set)
{
    const bool inverted = take(r, '^');
    while (!take(r, ']')) {
        uint32_t low, high;
        if (r->at == r->end) return fail(r, "a class lacks its \"]\"");
        TRY(take_character(r, &low));
        high = low;
        if (peek(r, 0) == '-' && peek(r, 1) != ']') {
            r->at++;
            if (r->at == r->end) return fail(r, "a class lacks its \"]\"");
            TRY(take_character(r, &high));
        }
        if (high < low) return fail(r, "a range of a class ends before it begins");
        code_set_add(set, low, high);
    }
    code_set_normalize(set);
    if (inverted) code_set_invert(set);
    return QP_OK;
}

static qp_status take_class(reader *r, grammar_expr *out)
{
    code_set set = {0};
    qp_status status = take_set(r, &set);
    *out = grammar_code_points(r->g, &set);
    free(set.ranges);
    return status;
}

static grammar_expr any_character(grammar *g)
{
    code_set set = {0};
    code_set_add(&set, 1, GRAMMAR_MAX_CODE_POINT);
    const grammar_expr e = grammar_code_points(g, &set);
    free(set.ranges);
    return e;
}

/* ---- Expressions --------------------------------------------------------------------------- */

static qp_status take_choice(reader *r, grammar_expr *out);

static qp_status take_item(reader *r, grammar_expr *out)
{
    const size_t name = name_length(r);
    if (name) {
        *out = grammar_rule_expr(r->g, find_rule(r, r->at, name));
        r->at += name;
        return QP_OK;
    }
    if (take(r, '"')) return take_literal(r, out);
    if (take(r, '[')) return take_class(r, out);
    if (take(r, '.')) return *out = any_character(r->g), QP_OK;
    if (peek(r, 0) == '<' || peek(r, 0) == '!')
        return error_set(r->error, QP_UNSUPPORTED,
                         "line %d of the grammar: tokens (<...>) are not supported, write their "
                         "text",
                         r->line);
    if (!take(r, '(')) return fail(r, "expected a text, a class, a rule or a bracket");
    if (++r->nesting > GBNF_MAX_NESTING) return fail(r, "too many brackets in each other");
    TRY(take_choice(r, out));
    r->nesting--;
    skip(r, true);
    return take(r, ')') ? QP_OK : fail(r, "a bracket lacks its \")\"");
}

static qp_status take_count(reader *r, uint32_t *out)
{
    uint64_t value = 0;
    const char *first = r->at;
    for (char c = peek(r, 0); c >= '0' && c <= '9'; r->at++, c = peek(r, 0)) {
        value = value * 10 + (uint64_t)(c - '0');
        if (value > GRAMMAR_MAX_COUNT) return fail(r, "a count is more than a billion");
    }
    if (r->at == first) return fail(r, "a repetition lacks its count");
    *out = (uint32_t)value;
    return QP_OK;
}

static qp_status take_counts(reader *r, uint32_t *min, uint32_t *max)
{
    skip(r, true);
    *min = 0;
    if (peek(r, 0) != ',') TRY(take_count(r, min));
    skip(r, true);
    *max = *min;
    if (take(r, ',')) {
        skip(r, true);
        *max = GRAMMAR_UNBOUNDED;
        if (peek(r, 0) != '}') TRY(take_count(r, max));
        skip(r, true);
    }
    if (!take(r, '}')) return fail(r, "a repetition lacks its \"}\"");
    return *max < *min ? fail(r, "a repetition ends before it begins") : QP_OK;
}

/* All that follow an item: "*", "+", "?", "{...}". */
static qp_status take_repetitions(reader *r, grammar_expr *e)
{
    for (int n = 0;; n++) {
        uint32_t min = 0, max = GRAMMAR_UNBOUNDED;
        if (n == GBNF_MAX_NESTING) return fail(r, "too many repetitions of a repetition");
        if (take(r, '+'))
            min = 1;
        else if (take(r, '?'))
            max = 1;
        else if (take(r, '{'))
            TRY(take_counts(r, &min, &max));
        else if (!take(r, '*'))
            return QP_OK;
        *e = grammar_repeat(r->g, *e, min, max);
    }
}

/* Whether a rule begins here: NAME ::= */
static bool at_rule(const reader *r)
{
    reader ahead = *r;
    const size_t length = name_length(&ahead);
    ahead.at += length;
    skip(&ahead, true);
    return length && peek(&ahead, 0) == ':' && peek(&ahead, 1) == ':' && peek(&ahead, 2) == '=';
}

static qp_status take_sequence(reader *r, grammar_expr *out)
{
    expr_list list = {0};
    qp_status status = QP_OK;
    for (skip(r, r->nesting > 0); status == QP_OK; skip(r, r->nesting > 0)) {
        grammar_expr e = GRAMMAR_EMPTY;
        const char c = peek(r, 0);
        if (r->at == r->end || c == '|' || c == ')' || c == '\n' || c == '\r') break;
        status = take_item(r, &e);
        skip(r, r->nesting > 0);
        if (status == QP_OK) status = take_repetitions(r, &e);
        expr_list_add(r->g, &list, e);
    }
    *out = grammar_sequence_of(r->g, &list);
    return status;
}

/* A line may end before or after "|". */
static bool take_bar(reader *r)
{
    reader ahead = *r;
    skip(&ahead, true);
    if (!take(&ahead, '|')) return false;
    *r = ahead;
    return true;
}

static qp_status take_choice(reader *r, grammar_expr *out)
{
    expr_list list = {0};
    qp_status status = QP_OK;
    do {
        grammar_expr e;
        skip(r, true);
        status = take_sequence(r, &e);
        expr_list_add(r->g, &list, e);
    } while (status == QP_OK && take_bar(r));
    *out = grammar_choice_of(r->g, &list);
    return status;
}

static qp_status take_rule(reader *r)
{
    grammar_expr e;
    const size_t length = name_length(r);
    if (!at_rule(r)) return fail(r, "expected a rule, NAME ::= ...");
    const uint32_t rule = find_rule(r, r->at, length);
    if (r->g->failed != QP_OK) return QP_OK; /* grammar_check() says what it is */
    if (rule < r->g->n_rules && r->g->rules[rule].set)
        return error_set(r->error, QP_FORMAT, "line %d of the grammar: a second rule \"%.*s\"",
                         r->line, (int)(length < 80 ? length : 80), r->at);
    r->at += length;
    skip(r, true);
    r->at += 3;
    TRY(take_choice(r, &e));
    grammar_set_rule(r->g, rule, e);
    if (r->at < r->end && peek(r, 0) == ')') return fail(r, "a \")\" without a bracket");
    return QP_OK;
}

static qp_status take_rules(reader *r)
{
    find_rule(r, "root", 4);
    for (skip(r, true); r->at < r->end; skip(r, true)) {
        TRY(take_rule(r));
        if (r->g->failed != QP_OK) return QP_OK; /* grammar_check() says what it is */
    }
    return QP_OK;
}

qp_status gbnf_read(const char *text, size_t length, grammar *out, qp_error *error)
{
    reader r = {.g = out,
                .at = text,
                .end = text + length,
                .line = 1,
                .key = hash_key_get(),
                .buckets = calloc(NAME_BUCKETS, sizeof *r.buckets),
                .same = calloc(GRAMMAR_MAX_RULES, sizeof *r.same),
                .error = error};
    qp_status status =
        r.buckets && r.same ? take_rules(&r) : error_no_memory(error, "the grammar", NAME_BUCKETS);
    free(r.buckets);
    free(r.same);
    return status;
}
