/* The parts of JSON as expressions of a grammar, in the one form that answers have.
 *
 * White space may follow "{", "[", "," and ":", and stand before "}" and "]": nothing, a space, or
 * a new line with up to 20 spaces or tabs. So a model may write compactly or in lines, but not
 * white space without an end. Numbers have at most 18 digits before the point, 18 after it and 3 of
 * the exponent. Escapes \u0000 and surrogates without their mates are left out.
 */
#pragma once

#include "base/json.h"
#include "grammar/grammar.h"

/* Rules that are made when they are first used. Zero-initialise, with `g`; a rule that was not yet
 * made is 0, which is the root's number. */
typedef struct json_parts {
    grammar *g;
    uint64_t work; /* of compiling schemas: see json_schema_work.c */
    uint32_t space, character, control, string, number, integer, value, object, array;
} json_parts;

grammar_expr json_space(json_parts *p);
grammar_expr json_character(json_parts *p); /* of a string, in any notation */
grammar_expr json_string(json_parts *p);
grammar_expr json_number(json_parts *p);
grammar_expr json_integer(json_parts *p);
grammar_expr json_value(json_parts *p); /* any */
grammar_expr json_object(json_parts *p);

/* A character of the set in a string, in its usual notation. */
grammar_expr json_character_of(json_parts *p, const code_set *set);

/* `text` between quotes. */
grammar_expr json_quoted(json_parts *p, grammar_expr text);

/* "{" ITEMS "}" or "[" ITEMS "]" with white space. `items` may be empty if `may_be_empty`. */
grammar_expr json_bracketed(json_parts *p, char open, grammar_expr items, bool may_be_empty,
                            char close);

/* "," and white space, then the expression. */
grammar_expr json_after_comma(json_parts *p, grammar_expr item);

/* A value as it is. */
grammar_expr json_literal(json_parts *p, const cJSON *value);

/* The name of a member, in quotes. */
grammar_expr json_key(json_parts *p, const char *name);

/* One of the values. */
grammar_expr json_one_of(json_parts *p, const cJSON *const *values, size_t n);

enum { JSON_MAX_KEY = 512 }; /* bytes of a name beside other keys */

/* A key that is none of the names, which are followed by other members in their list. */
grammar_expr json_other_key(json_parts *p, const cJSON *names);

/* Bounds of numbers. `low` and `high` may be infinite. */
typedef struct number_bounds {
    double low, high;
    const char *low_text,
        *high_text;    /* as written, of integers that a double does not hold; or NULL */
    bool above, below; /* the bound itself is excluded */
} number_bounds;

/* Integers and decimal numbers within bounds. QP_UNSUPPORTED: a bound has too many digits;
 * QP_INVALID: there is no such number. number_range.c */
qp_status json_integer_within(json_parts *p, const number_bounds *bounds, grammar_expr *out,
                              qp_error *error);
qp_status json_number_within(json_parts *p, const number_bounds *bounds, grammar_expr *out,
                             qp_error *error);

/* Digits: any, `min` to `max` of them; one from `low` to `high`. */
grammar_expr json_digits(json_parts *p, uint32_t min, uint32_t max);
grammar_expr json_digit(json_parts *p, char low, char high);
