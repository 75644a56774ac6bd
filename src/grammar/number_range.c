/* Numbers within bounds, digit by digit: see json_parts.h.
 *
 * A decimal number is compared as its digits are: it is greater than a bound if it has the bound's
 * digits up to a place and a greater one there. Bounds of both signs are two ranges.
 */
#include "grammar/json_parts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BOUND_DIGITS = 15, MORE_DIGITS = 15, ANY_INTEGER_DIGITS = 18 };

/* A bound without its sign: digits before the point, without leading zeros, and after it, without
 * trailing zeros. */
typedef struct decimal {
    int64_t whole;
    char fraction[32];
    bool excluded, infinite;
} decimal;

/* ---- Integers ------------------------------------------------------------------------------ */

/* As many digits as `a` has, with a value from a on, or up to it. */
static grammar_expr digits_from(json_parts *p, const char *a)
{
    grammar *g = p->g;
    if (!*a) return GRAMMAR_EMPTY;
    const uint32_t rest = (uint32_t)strlen(a + 1);
    const grammar_expr same = grammar_pair(g, json_digit(p, *a, *a), digits_from(p, a + 1));
    if (*a == '9') return same;
    return grammar_either(
        g, same, grammar_pair(g, json_digit(p, (char)(*a + 1), '9'), json_digits(p, rest, rest)));
}

static grammar_expr digits_to(json_parts *p, const char *b)
{
    grammar *g = p->g;
    if (!*b) return GRAMMAR_EMPTY;
    const uint32_t rest = (uint32_t)strlen(b + 1);
    const grammar_expr same = grammar_pair(g, json_digit(p, *b, *b), digits_to(p, b + 1));
    if (*b == '0') return same;
    return grammar_either(
        g, same, grammar_pair(g, json_digit(p, '0', (char)(*b - 1)), json_digits(p, rest, rest)));
}

/* Digits from a to b, which have the same length. */
static grammar_expr digits_between(json_parts *p, const char *a, const char *b)
{
    grammar *g = p->g;
    if (!*a) return GRAMMAR_EMPTY;
    if (*a == *b) return grammar_pair(g, json_digit(p, *a, *a), digits_between(p, a + 1, b + 1));
    const uint32_t rest = (uint32_t)strlen(a + 1);
    grammar_expr all[3] = {
        grammar_pair(g, json_digit(p, *a, *a), digits_from(p, a + 1)),
        grammar_pair(g, json_digit(p, *b, *b), digits_to(p, b + 1)),
    };
    const bool more = *b - *a > 1;
    if (more)
        all[2] = grammar_pair(g, json_digit(p, (char)(*a + 1), (char)(*b - 1)),
                              json_digits(p, rest, rest));
    return grammar_choice(g, all, more ? 3 : 2);
}

/* Whole numbers from a to *b; NULL: without an upper bound. */
static grammar_expr whole_between(json_parts *p, uint64_t a, const uint64_t *b)
{
    grammar *g = p->g;
    expr_list out = {0};
    char low[32], high[32];
    if (b && a > *b) return grammar_nothing(g);
    const size_t first = (size_t)snprintf(low, sizeof low, "%llu", (unsigned long long)a);
    const size_t last = b ? (size_t)snprintf(high, sizeof high, "%llu", (unsigned long long)*b)
                          : ANY_INTEGER_DIGITS;
    if (b && first == last) return digits_between(p, low, high);
    expr_list_add(g, &out, digits_from(p, low));
    const size_t most = b ? last - 1 : last; /* digits of those that are not compared */
    if (most > first)
        expr_list_add(g, &out,
                      grammar_pair(g, json_digit(p, '1', '9'),
                                   json_digits(p, (uint32_t)first, (uint32_t)most - 1)));
    if (b) {
        memset(low, '0', last);
        low[0] = '1';
        low[last] = '\0';
        expr_list_add(g, &out, digits_between(p, low, high));
    }
    return grammar_choice_of(g, &out);
}

static qp_status check_bound(double bound, qp_error *error)
{
    if (isinf(bound) || fabs(bound) < 0x1p63) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "a bound must be less than 2^63, found %g", bound);
}

static qp_status no_number(qp_error *error)
{
    return error_set(error, QP_INVALID, "no number is within the bounds");
}

/* A whole number: its sign and size. */
typedef struct signed_whole {
    bool negative;
    uint64_t size;
} signed_whole;

static bool is_less(signed_whole a, signed_whole b)
{
    if (a.negative != b.negative) return a.negative;
    return a.negative ? a.size > b.size : a.size < b.size;
}

/* To the next whole number above, or below; false: it is too large. */
static bool move(signed_whole *w, bool up)
{
    if (w->negative == up && w->size > 0)
        w->size--;
    else if (w->size == UINT64_MAX)
        return false;
    else
        *w = (signed_whole){!up, w->size + 1};
    w->negative = w->negative && w->size > 0;
    return true;
}

/* The first whole number within a bound, which is not infinite. `up`: it is the lower bound. */
static qp_status first_within(double bound, const char *text, bool up, bool excluded,
                              signed_whole *out, qp_error *error)
{
    char *end = NULL;
    errno = 0;
    const double rounded = up ? ceil(bound) : floor(bound);
    const uint64_t size = text ? strtoull(text + (*text == '-'), &end, 10) : 0;
    const bool exact = text && !*end && errno == 0;
    if (!exact && !(fabs(rounded) < 0x1p64))
        return error_set(error, QP_UNSUPPORTED, "a bound must be less than 2^64, found %g", bound);
    *out = (signed_whole){bound < 0, exact ? size : (uint64_t)fabs(rounded)};
    out->negative = out->negative && out->size > 0;
    if (!excluded || (!exact && rounded != bound) || move(out, up)) return QP_OK;
    return error_set(error, QP_UNSUPPORTED, "a bound must be less than 2^64, found %g", bound);
}

qp_status json_integer_within(json_parts *p, const number_bounds *b, grammar_expr *out,
                              qp_error *error)
{
    grammar *g = p->g;
    signed_whole low = {0}, high = {0};
    const bool from = !isinf(b->low), to = !isinf(b->high);
    if (from) TRY(first_within(b->low, b->low_text, true, b->above, &low, error));
    if (to) TRY(first_within(b->high, b->high_text, false, b->below, &high, error));
    if (from && to && is_less(high, low)) return no_number(error);
    grammar_expr from_zero = grammar_nothing(g), below_zero = from_zero;
    if (!to || !high.negative)
        from_zero = whole_between(p, from && !low.negative ? low.size : 0, to ? &high.size : NULL);
    if (!from || low.negative)
        below_zero = grammar_pair(
            g, grammar_text(g, "-"),
            whole_between(p, to && high.negative ? high.size : 1, from ? &low.size : NULL));
    *out = grammar_either(g, from_zero, below_zero);
    return QP_OK;
}

/* ---- Decimal numbers ----------------------------------------------------------------------- */

/* Digits of which one is not zero; any; zeros. All of them may go on after the bound's digits. */
static grammar_expr some_positive(json_parts *p)
{
    grammar_expr parts[] = {grammar_repeat(p->g, json_digit(p, '0', '0'), 0, MORE_DIGITS),
                            json_digit(p, '1', '9'), json_digits(p, 0, MORE_DIGITS)};
    return grammar_sequence(p->g, parts, 3);
}

static grammar_expr zeros(json_parts *p, uint32_t min)
{
    return grammar_repeat(p->g, json_digit(p, '0', '0'), min, MORE_DIGITS);
}

/* Digits after those that are the bound's: 0.a or more; 0.b or less. Unless some have `begun`,
 * there must be one, because a point needs a digit. */
static grammar_expr fraction_from(json_parts *p, const char *a, bool excluded)
{
    grammar *g = p->g;
    if (!*a) return excluded ? some_positive(p) : json_digits(p, 0, MORE_DIGITS);
    const grammar_expr same =
        grammar_pair(g, json_digit(p, *a, *a), fraction_from(p, a + 1, excluded));
    if (*a == '9') return same;
    return grammar_either(
        g, same,
        grammar_pair(g, json_digit(p, (char)(*a + 1), '9'), json_digits(p, 0, MORE_DIGITS)));
}

static grammar_expr fraction_to(json_parts *p, const char *b, bool excluded, bool begun)
{
    grammar *g = p->g;
    expr_list out = {0};
    if (!*b) return excluded ? grammar_nothing(g) : zeros(p, !begun);
    if (begun) expr_list_add(g, &out, GRAMMAR_EMPTY);
    expr_list_add(g, &out,
                  grammar_pair(g, json_digit(p, *b, *b), fraction_to(p, b + 1, excluded, true)));
    if (*b > '0')
        expr_list_add(
            g, &out,
            grammar_pair(g, json_digit(p, '0', (char)(*b - 1)), json_digits(p, 0, MORE_DIGITS)));
    return grammar_choice_of(g, &out);
}

static grammar_expr fraction_between(json_parts *p, const char *a, const char *b,
                                     const decimal *low, const decimal *high, bool begun)
{
    grammar *g = p->g;
    const char x = *a ? *a : '0', y = *b ? *b : '0';
    const bool stops = !*a && !low->excluded && (*b || !high->excluded);
    expr_list out = {0};
    if (stops && begun) expr_list_add(g, &out, GRAMMAR_EMPTY);
    if (!*a && !*b) {
        if (stops) expr_list_add(g, &out, zeros(p, 1));
    } else if (x == y) {
        expr_list_add(g, &out,
                      grammar_pair(g, json_digit(p, x, x),
                                   fraction_between(p, a + !!*a, b + !!*b, low, high, true)));
    } else if (x < y) {
        expr_list_add(
            g, &out,
            grammar_pair(g, json_digit(p, x, x), fraction_from(p, a + !!*a, low->excluded)));
        expr_list_add(
            g, &out,
            grammar_pair(g, json_digit(p, y, y), fraction_to(p, b + !!*b, high->excluded, true)));
        if (y - x > 1)
            expr_list_add(g, &out,
                          grammar_pair(g, json_digit(p, (char)(x + 1), (char)(y - 1)),
                                       json_digits(p, 0, MORE_DIGITS)));
    }
    return grammar_choice_of(g, &out);
}

/* A point and the digits, one at least. Without a fraction if `bare`. */
static grammar_expr after_point(json_parts *p, bool bare, grammar_expr digits)
{
    grammar *g = p->g;
    const grammar_expr e = grammar_pair(g, grammar_text(g, "."), digits);
    return bare ? grammar_optional(g, e) : e;
}

static grammar_expr any_fraction(json_parts *p)
{
    return after_point(p, true, json_digits(p, 1, MORE_DIGITS));
}

static grammar_expr whole(json_parts *p, int64_t value)
{
    const uint64_t at = (uint64_t)value;
    return whole_between(p, at, &at);
}

/* Numbers from low to high, both of them positive or zero. */
static grammar_expr positive_between(json_parts *p, const decimal *low, const decimal *high)
{
    grammar *g = p->g;
    if (!high->infinite && low->whole > high->whole) return grammar_nothing(g);
    if (!high->infinite && low->whole == high->whole) {
        const bool bare = !*low->fraction && !low->excluded && (*high->fraction || !high->excluded);
        const grammar_expr digits =
            fraction_between(p, low->fraction, high->fraction, low, high, false);
        return grammar_pair(g, whole(p, low->whole), after_point(p, bare, digits));
    }
    const bool from_whole = !*low->fraction && !low->excluded;
    const grammar_expr at_low =
        from_whole ? any_fraction(p)
                   : after_point(p, false, fraction_from(p, low->fraction, low->excluded));
    const uint64_t next = (uint64_t)low->whole + 1, last = (uint64_t)high->whole - 1;
    grammar_expr all[3] = {
        grammar_pair(g, whole(p, low->whole), at_low),
        grammar_pair(g, whole_between(p, next, high->infinite ? NULL : &last), any_fraction(p))};
    if (high->infinite) return grammar_choice(g, all, 2);
    const bool bare = *high->fraction || !high->excluded;
    all[2] =
        grammar_pair(g, whole(p, high->whole),
                     after_point(p, bare, fraction_to(p, high->fraction, high->excluded, false)));
    return grammar_choice(g, all, 3);
}

static qp_status read_decimal(double value, bool excluded, decimal *out, qp_error *error)
{
    char text[64];
    *out = (decimal){.excluded = excluded, .infinite = isinf(value)};
    if (out->infinite) return QP_OK;
    if (fabs(value) >= 1e15 && value == floor(value)) {
        out->whole = (int64_t)fabs(value);
        return QP_OK;
    }
    for (int digits = BOUND_DIGITS; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, fabs(value));
        if (strtod(text, NULL) == fabs(value)) break;
    }
    char *point = strpbrk(text, ".e");
    if (point && strchr(text, 'e'))
        return error_set(error, QP_UNSUPPORTED,
                         "a bound of numbers must be 0 or from 0.0001 to 1e15, found %s", text);
    out->whole = strtoll(text, NULL, 10);
    if (point) snprintf(out->fraction, sizeof out->fraction, "%.20s", point + 1);
    return QP_OK;
}

qp_status json_number_within(json_parts *p, const number_bounds *b, grammar_expr *out,
                             qp_error *error)
{
    grammar *g = p->g;
    decimal low, high;
    const decimal zero = {0};
    TRY(check_bound(b->low, error));
    TRY(check_bound(b->high, error));
    TRY(read_decimal(b->low, b->above, &low, error));
    TRY(read_decimal(b->high, b->below, &high, error));
    if (b->low > b->high || (b->low == b->high && (b->above || b->below))) return no_number(error);
    expr_list list = {0};
    if (b->high >= 0)
        expr_list_add(g, &list, positive_between(p, b->low >= 0 ? &low : &zero, &high));
    if (b->low < 0) {
        decimal least = b->high < 0 ? high : zero;
        if (b->high == 0) least.excluded = b->below;
        expr_list_add(g, &list,
                      grammar_pair(g, grammar_text(g, "-"), positive_between(p, &least, &low)));
    }
    *out = grammar_choice_of(g, &list);
    return QP_OK;
}
