/* Strings and numbers of schemas: formats, patterns, lengths and bounds. See json_schema_parts.h.
 */
#include "grammar/json_schema_texts.h"

#include "grammar/pattern.h"
#include "text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define YEAR "[0-9]{4}"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"      \
    "02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"                                     \
    "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HEX   "[0-9a-fA-F]"
#define IPV4  BYTE "(\\." BYTE "){3}"
#define H16   HEX "{1,4}"
#define LS32  "(" H16 ":" H16 "|" IPV4 ")"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
/* Characters of a URI (RFC 3986) after its scheme, without "#". */
#define URI_CHARACTER "([a-zA-Z0-9._~:/?@!$&'()*+,;=-]|\\[|\\]|%" HEX "{2})"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32
             "|((" H16 ":)?" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16
             ":){2}" LS32 "|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16
             ")?::" LS32 "|((" H16 ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,9}$"},
    {"uri", "^[a-zA-Z][a-zA-Z0-9+.-]*:" URI_CHARACTER "+(#" URI_CHARACTER "*)?$"},
    {"uri-reference", "^" URI_CHARACTER "*(#" URI_CHARACTER "*)?$"},
    {"duration", "^P([0-9]+W|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)|"
                 "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
                 "(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?)$"},
    {"json-pointer", "^(/([^~/]|~[01])*)*$"},
    {"email", "^[a-zA-Z0-9_+-]{1,40}(\\.[a-zA-Z0-9_+-]{1,20}){0,3}@[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}"
              "[a-zA-Z0-9])?(\\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?){1,4}$"},
};

static qp_status find_format(schema_compiler *c, const cJSON *schema, const schema_path *path,
                             const char **pattern)
{
    const cJSON *format = json_get(schema, "format");
    if (!format) return QP_OK;
    if (!cJSON_IsString(format))
        return schema_refuse(c, path, QP_INVALID, "\"format\" must be a text, found %s",
                             json_type_name(format));
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, format->valuestring) != 0) continue;
        *pattern = formats[i].pattern;
        return QP_OK;
    }
    return QP_OK; /* JSON Schema has formats as notes */
}

static qp_status read_lengths(schema_compiler *c, const cJSON *schema, const schema_path *path,
                              uint32_t *min, uint32_t *max)
{
    TRY(schema_count(c, schema, "minLength", path, min));
    return schema_count(c, schema, "maxLength", path, max);
}

static qp_status read_pattern(schema_compiler *c, const cJSON *schema, const schema_path *path,
                              const char **out)
{
    const cJSON *pattern = json_get(schema, "pattern");
    *out = cJSON_GetStringValue(pattern);
    if (!pattern || *out) return QP_OK;
    return schema_refuse(c, path, QP_INVALID, "\"pattern\" must be a text");
}

qp_status schema_string_allowed(schema_compiler *c, const cJSON *schema, const schema_path *path,
                                const cJSON *value, bool *out)
{
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED;
    const char *pattern;
    text_set matching;
    TRY(read_lengths(c, schema, path, &min, &max));
    TRY(read_pattern(c, schema, path, &pattern));
    const size_t length = utf8_characters(value->valuestring, strlen(value->valuestring));
    *out = length >= min && length <= max;
    if (!*out || !pattern) return QP_OK;
    qp_status status = schema_at(c, path, texts_of_pattern(c, &matching, pattern));
    if (status == QP_OK) *out = texts_have(c, &matching, value->valuestring);
    texts_close(&matching);
    return status;
}

/* Strings of so many characters, in any notation, with their quotes. */
static grammar_expr of_lengths(json_parts *parts, uint32_t min, uint32_t max)
{
    return json_quoted(parts, grammar_repeat(parts->g, json_character(parts), min, max));
}

/* Strings of a pattern whose length does not follow from one repetition of it. */
static qp_status within_lengths(schema_compiler *c, const char *pattern, uint32_t min, uint32_t max,
                                const schema_path *path, grammar_expr *out)
{
    text_set matching, lengths;
    text_set *const both[] = {&matching, &lengths};
    texts_begin(&lengths);
    qp_status status = texts_of_pattern(c, &matching, pattern);
    if (status == QP_OK) status = texts_end(c, &lengths, of_lengths(&lengths.parts, min, max));
    schema_at(c, path, status);
    if (status == QP_OK) status = texts_common(c, both, 2, path, out);
    texts_close(&matching);
    texts_close(&lengths);
    return status;
}

qp_status schema_of_string(schema_compiler *c, const cJSON *schema, const schema_path *path,
                           grammar_expr *out)
{
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED;
    const char *formatted = NULL, *pattern;
    grammar_expr text;
    bool fits = false;
    TRY(read_lengths(c, schema, path, &min, &max));
    TRY(find_format(c, schema, path, &formatted));
    TRY(read_pattern(c, schema, path, &pattern));
    if (min > max) return schema_nothing(c, path, out, "\"minLength\" is more than \"maxLength\"");
    if (pattern) formatted = pattern; /* a format beside it is a note */
    if (!formatted && min == 0 && max == GRAMMAR_UNBOUNDED)
        return *out = json_string(c->parts), QP_OK;
    if (formatted && max > 0)
        TRY(schema_at(
            c, path,
            pattern_compile_within(c->parts, formatted, min, max, &fits, &text, c->error)));
    if (fits) return *out = json_quoted(c->parts, text), QP_OK;
    if (pattern) return within_lengths(c, pattern, min, max, path, out);
    return *out = of_lengths(c->parts, min, max), QP_OK;
}

/* A bound; *excluded as in draft 4, where it is a flag beside the bound. */
static qp_status bound(schema_compiler *c, const cJSON *schema, const char *name,
                       const schema_path *path, double *out, const char **text, bool *given)
{
    const cJSON *value = json_get(schema, name);
    *given = value != NULL;
    *text = value && cJSON_IsNumber(value) ? json_number_text(value) : NULL;
    if (!value) return QP_OK;
    if (!cJSON_IsNumber(value))
        return schema_refuse(c, path, QP_INVALID, "\"%s\" must be a number, found %s", name,
                             json_type_name(value));
    if (!isfinite(value->valuedouble)) /* such as 1e999 */
        return schema_refuse(c, path, QP_UNSUPPORTED, "\"%s\" is too large", name);
    *out = value->valuedouble;
    return QP_OK;
}

/* *any: there is a bound. */
static qp_status read_bounds(schema_compiler *c, const cJSON *schema, const schema_path *path,
                             number_bounds *b, bool *any)
{
    double above = 0, below = 0;
    const char *above_text, *below_text;
    bool low, high, is_above, is_below;
    *b = (number_bounds){.low = -INFINITY, .high = INFINITY};
    TRY(bound(c, schema, "minimum", path, &b->low, &b->low_text, &low));
    TRY(bound(c, schema, "maximum", path, &b->high, &b->high_text, &high));
    TRY(bound(c, schema, "exclusiveMinimum", path, &above, &above_text, &is_above));
    TRY(bound(c, schema, "exclusiveMaximum", path, &below, &below_text, &is_below));
    if (is_above && above >= b->low) b->low = above, b->low_text = above_text, b->above = true;
    if (is_below && below <= b->high) b->high = below, b->high_text = below_text, b->below = true;
    *any = low || high || is_above || is_below;
    return QP_OK;
}

/* Whether a number is a multiple, as far as doubles say so exactly. */
static qp_status check_multiple(schema_compiler *c, const cJSON *schema, double number,
                                const schema_path *path, bool *out)
{
    const cJSON *multiple = json_get(schema, "multipleOf");
    if (!multiple) return *out = true, QP_OK;
    const double k = cJSON_IsNumber(multiple) ? multiple->valuedouble : 0;
    *out = fmod(number, k) == 0;
    if (k > 0 && k == floor(k) && k <= 0x1p53) return QP_OK;
    return schema_refuse(c, path, QP_UNSUPPORTED,
                         "\"multipleOf\" beside constants must be a whole number up to 2^53");
}

qp_status schema_number_allowed(schema_compiler *c, const cJSON *schema, const schema_path *path,
                                const cJSON *value, bool *out)
{
    number_bounds b;
    bool any;
    const double number = value->valuedouble;
    TRY(read_bounds(c, schema, path, &b, &any));
    *out = (b.above ? number > b.low : number >= b.low) &&
           (b.below ? number < b.high : number <= b.high);
    return *out ? check_multiple(c, schema, number, path, out) : QP_OK;
}

/* Whole numbers that are multiples of k: digits lead from one remainder to the next. */
static grammar_expr multiples_of(json_parts *parts, uint32_t k)
{
    static const char name[] = "a multiple";
    grammar *g = parts->g;
    const uint32_t first = grammar_add_rule(g, name, strlen(name));
    for (uint32_t r = 1; r < k; r++)
        grammar_add_rule(g, name, strlen(name));
    expr_list begin = {0};
    for (uint32_t r = 0; r < k; r++) {
        expr_list more = {0};
        if (r == 0) expr_list_add(g, &more, GRAMMAR_EMPTY);
        for (uint32_t d = 0; d < 10; d++) {
            const grammar_expr digit = json_digit(parts, (char)('0' + d), (char)('0' + d));
            const grammar_expr rest = grammar_rule_expr(g, first + (10 * r + d) % k);
            expr_list_add(g, &more, grammar_pair(g, digit, rest));
            if (r == 0 && d > 0) expr_list_add(g, &begin, grammar_pair(g, digit, rest));
        }
        grammar_set_rule(g, first + r, grammar_choice_of(g, &more));
    }
    const grammar_expr size = grammar_choice_of(g, &begin);
    const grammar_expr sign = grammar_optional(g, grammar_text(g, "-"));
    return grammar_either(g, grammar_text(g, "0"), grammar_pair(g, sign, size));
}

/* Numbers with so many digits after the point at most. */
static grammar_expr decimals(json_parts *parts, uint32_t digits)
{
    grammar *g = parts->g;
    const grammar_expr after = grammar_pair(g, grammar_text(g, "."), json_digits(parts, 1, digits));
    return grammar_pair(g, json_integer(parts), grammar_optional(g, after));
}

/* Multiples of whole numbers up to MOST_MULTIPLE, and of 0.1, 0.01 and so on. */
static qp_status of_multiple(schema_compiler *c, json_parts *parts, double k, bool whole,
                             const schema_path *path, grammar_expr *out)
{
    enum { MOST_MULTIPLE = 128, MOST_DECIMALS = 9 };
    for (uint32_t digits = 1; digits <= MOST_DECIMALS && !whole; digits++) {
        char power[16];
        snprintf(power, sizeof power, "1e-%u", digits);
        if (k == strtod(power, NULL)) return *out = decimals(parts, digits), QP_OK;
    }
    if (k <= MOST_MULTIPLE && k == floor(k))
        return *out = k == 1 ? json_integer(parts) : multiples_of(parts, (uint32_t)k), QP_OK;
    return schema_refuse(c, path, QP_UNSUPPORTED,
                         "\"multipleOf\" may be a whole number up to %d or 0.1, 0.01, ..., found "
                         "%.17g",
                         MOST_MULTIPLE, k);
}

static qp_status within_bounds(schema_compiler *c, json_parts *parts, const number_bounds *b,
                               bool whole, grammar_expr *out)
{
    return whole ? json_integer_within(parts, b, out, c->error)
                 : json_number_within(parts, b, out, c->error);
}

/* Multiples within bounds. */
static qp_status multiples_within(schema_compiler *c, double k, const number_bounds *b, bool whole,
                                  const schema_path *path, grammar_expr *out)
{
    text_set multiples, within;
    text_set *const both[] = {&multiples, &within};
    grammar_expr e = GRAMMAR_EMPTY;
    texts_begin(&multiples);
    texts_begin(&within);
    qp_status status = of_multiple(c, &multiples.parts, k, whole, path, &e);
    if (status == QP_OK) status = texts_end(c, &multiples, e);
    if (status == QP_OK) status = within_bounds(c, &within.parts, b, whole, &e);
    if (status == QP_OK) status = texts_end(c, &within, e);
    if (status == QP_OK) status = texts_common(c, both, 2, path, out);
    texts_close(&multiples);
    texts_close(&within);
    return status;
}

qp_status schema_of_number(schema_compiler *c, const cJSON *schema, const schema_path *path,
                           bool whole, grammar_expr *out)
{
    number_bounds b;
    bool bounded;
    const cJSON *multiple = json_get(schema, "multipleOf");
    const double k = multiple && cJSON_IsNumber(multiple) ? multiple->valuedouble : 0;
    qp_status status = QP_OK;
    TRY(read_bounds(c, schema, path, &b, &bounded));
    if (multiple && !(k > 0))
        return schema_refuse(c, path, QP_INVALID, "\"multipleOf\" must be a number above 0");
    const bool divides = multiple && !(whole && fmod(1, k) == 0); /* else all integers are such */
    if (divides && !bounded) return of_multiple(c, c->parts, k, whole, path, out);
    if (divides)
        status = multiples_within(c, k, &b, whole, path, out);
    else if (bounded)
        status = schema_at(c, path, within_bounds(c, c->parts, &b, whole, out));
    else
        *out = whole ? json_integer(c->parts) : json_number(c->parts);
    if (status == QP_INVALID) return schema_nothing(c, path, out, "no number is within the bounds");
    return status;
}
