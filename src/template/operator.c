/* Operators of templates, with Python's rules: see run.h. */
#define _GNU_SOURCE /* memmem */
#include "template/run.h"

#include "base/checked.h"
#include "template/pychar.h"

#include <math.h>
#include <string.h>

static const char *operator_text(token_kind kind)
{
    switch (kind) {
    case TOKEN_ADD:
        return "+";
    case TOKEN_SUB:
        return "-";
    case TOKEN_MUL:
        return "*";
    case TOKEN_DIV:
        return "/";
    case TOKEN_FLOORDIV:
        return "//";
    case TOKEN_MOD:
        return "%";
    default:
        return "**";
    }
}

static qp_status overflow(run *run)
{
    return run_fail(run, "an integer does not fit into 64 bits");
}

static qp_status division_by_zero(run *run)
{
    return run_fail(run, "division by zero");
}

qp_status need_int(run *run, value from, int64_t *out)
{
    if (from.kind == VALUE_UNDEFINED) return run_fail_undefined(run, from);
    if (from.kind != VALUE_INT && from.kind != VALUE_BOOL)
        return run_fail(run, "'%s' object cannot be interpreted as an integer", value_type(from));
    *out = value_as_int(from);
    return QP_OK;
}

qp_status need_text(run *run, value from, const string **out)
{
    if (from.kind == VALUE_UNDEFINED) return run_fail_undefined(run, from);
    if (from.kind != VALUE_STRING)
        return run_fail(run, "expected a string, found '%s'", value_type(from));
    *out = from.as.text;
    return QP_OK;
}

qp_status need_key(run *run, value key)
{
    bool hashable = value_hashable(&run->heap, key);
    TRY(run_step(run, 1));
    return hashable ? QP_OK : run_fail(run, "unhashable type: '%s'", value_type(key));
}

static qp_status int_power(run *run, int64_t base, int64_t exponent, value *out)
{
    if (exponent < 0 && base == 0) return division_by_zero(run);
    if (exponent < 0) {
        *out = value_float(pow((double)base, (double)exponent));
        return QP_OK;
    }
    int64_t result = 1;
    while (exponent > 0) {
        if (exponent % 2 && __builtin_mul_overflow(result, base, &result)) return overflow(run);
        exponent /= 2;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow(run);
    }
    *out = value_int(result);
    return QP_OK;
}

static qp_status int_division(run *run, token_kind kind, int64_t a, int64_t b, value *out)
{
    if (b == 0) return division_by_zero(run);
    if (kind == TOKEN_DIV) {
        *out = value_float((double)a / (double)b);
        return QP_OK;
    }
    if (b == -1) { /* the processor's division traps for the smallest integer */
        if (kind == TOKEN_FLOORDIV && a == INT64_MIN) return overflow(run);
        *out = value_int(kind == TOKEN_FLOORDIV ? -a : 0);
        return QP_OK;
    }
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = value_int(kind == TOKEN_FLOORDIV ? quotient : rest);
    return QP_OK;
}

static qp_status int_binary(run *run, token_kind kind, int64_t a, int64_t b, value *out)
{
    int64_t result = 0;
    bool wrong = false;
    switch (kind) {
    case TOKEN_ADD:
        wrong = __builtin_add_overflow(a, b, &result);
        break;
    case TOKEN_SUB:
        wrong = __builtin_sub_overflow(a, b, &result);
        break;
    case TOKEN_MUL:
        wrong = __builtin_mul_overflow(a, b, &result);
        break;
    case TOKEN_POW:
        return int_power(run, a, b, out);
    default:
        return int_division(run, kind, a, b, out);
    }
    *out = value_int(result);
    return wrong ? overflow(run) : QP_OK;
}

/* Python's float floor division and remainder. */
static void float_divmod(double a, double b, double *quotient, double *rest)
{
    *rest = fmod(a, b);
    double exact = (a - *rest) / b;
    if (*rest != 0) {
        if ((b < 0) != (*rest < 0)) {
            *rest += b;
            exact -= 1;
        }
    } else {
        *rest = copysign(0, b);
    }
    *quotient = floor(exact);
    if (exact - *quotient > 0.5) *quotient += 1;
    if (exact == 0) *quotient = copysign(0, a / b);
}

static qp_status float_binary(run *run, token_kind kind, double a, double b, value *out)
{
    double result = 0, rest = 0;
    bool divides = kind == TOKEN_DIV || kind == TOKEN_FLOORDIV || kind == TOKEN_MOD;
    if (divides && b == 0) return division_by_zero(run);
    switch (kind) {
    case TOKEN_ADD:
        result = a + b;
        break;
    case TOKEN_SUB:
        result = a - b;
        break;
    case TOKEN_MUL:
        result = a * b;
        break;
    case TOKEN_DIV:
        result = a / b;
        break;
    case TOKEN_POW:
        if (a == 0 && b < 0) return division_by_zero(run);
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
            return run_fail(run, "a power with a complex result");
        result = pow(a, b);
        if (isinf(result) && isfinite(a) && isfinite(b))
            return run_fail(run, "the result of '**' is too large");
        break;
    default:
        float_divmod(a, b, &result, &rest);
        if (kind == TOKEN_MOD) result = rest;
    }
    *out = value_float(result);
    return QP_OK;
}

static bool is_sequence(value item)
{
    return value_is_list(item, LIST_LIST) || value_is_list(item, LIST_TUPLE);
}

static qp_status add_lists(run *run, const list *a, const list *b, value *out)
{
    TRY(run_list(run, a->kind, a->count + b->count, out));
    value *items = out->as.items->items;
    if (a->count) memcpy(items, a->items, a->count * sizeof *items);
    if (b->count) memcpy(items + a->count, b->items, b->count * sizeof *items);
    return QP_OK;
}

static qp_status add_texts(run *run, value a, value b, value *out)
{
    builder text = {.run = run};
    bool markup = a.markup || b.markup;
    if (markup) {
        TRY(text_escape(run, a, &a));
        TRY(text_escape(run, b, &b));
    }
    TRY(print_str(&text, a));
    TRY(print_str(&text, b));
    TRY(builder_finish(&text, out));
    out->markup = markup;
    return QP_OK;
}

/* text * n or list * n */
static qp_status repeat(run *run, value item, int64_t times, value *out)
{
    size_t n = times > 0 ? (size_t)times : 0;
    if (item.kind == VALUE_STRING) {
        builder text = {.run = run};
        TRY(builder_repeat(&text, item.as.text, n));
        return builder_finish(&text, out);
    }
    const list *from = item.as.items;
    size_t total;
    if (!checked_mul(from->count, n, &total)) return run_check(run, NULL);
    TRY(run_list(run, from->kind, total, out));
    for (size_t i = 0; i < total; i++)
        out->as.items->items[i] = from->items[i % from->count];
    return QP_OK;
}

static bool is_integer(value item)
{
    return item.kind == VALUE_INT || item.kind == VALUE_BOOL;
}

qp_status op_binary(run *run, token_kind kind, value a, value b, value *out)
{
    if (kind == TOKEN_MOD && a.kind == VALUE_STRING) return format_percent(run, a.as.text, b, out);
    if (a.kind == VALUE_UNDEFINED) return run_fail_undefined(run, a);
    if (b.kind == VALUE_UNDEFINED) return run_fail_undefined(run, b);
    if (is_integer(a) && is_integer(b))
        return int_binary(run, kind, value_as_int(a), value_as_int(b), out);
    if (value_is_number(a) && value_is_number(b))
        return float_binary(run, kind, value_as_float(a), value_as_float(b), out);
    if (kind == TOKEN_ADD && a.kind == VALUE_STRING && b.kind == VALUE_STRING)
        return add_texts(run, a, b, out);
    if (kind == TOKEN_ADD && is_sequence(a) && is_sequence(b) &&
        a.as.items->kind == b.as.items->kind)
        return add_lists(run, a.as.items, b.as.items, out);
    if (kind == TOKEN_MUL && (a.kind == VALUE_STRING || is_sequence(a)) && is_integer(b))
        return repeat(run, a, value_as_int(b), out);
    if (kind == TOKEN_MUL && (b.kind == VALUE_STRING || is_sequence(b)) && is_integer(a))
        return repeat(run, b, value_as_int(a), out);
    return run_fail(run, "unsupported operand types for %s: '%s' and '%s'", operator_text(kind),
                    value_type(a), value_type(b));
}

qp_status op_negate(run *run, value a, value *out)
{
    if (a.kind == VALUE_UNDEFINED) return run_fail_undefined(run, a);
    if (!value_is_number(a))
        return run_fail(run, "bad operand type for unary -: '%s'", value_type(a));
    if (a.kind == VALUE_FLOAT) {
        *out = value_float(-a.as.number);
        return QP_OK;
    }
    return int_binary(run, TOKEN_SUB, 0, value_as_int(a), out);
}

int64_t text_find(run *run, const string *text, const string *what, size_t from, size_t to)
{
    if (what->length > to - from) return -1;
    if (what->length == 0) return (int64_t)from;
    const char *found = memmem(text->data + from, to - from, what->data, what->length);
    size_t end = found ? (size_t)(found - text->data) : to;
    heap_spend(&run->heap, (end - from) / 64);
    return found ? (int64_t)(found - text->data) : -1;
}

static qp_status contains(run *run, value container, value item, bool *out)
{
    *out = false;
    if (container.kind == VALUE_STRING) {
        const string *what;
        if (item.kind != VALUE_STRING)
            return run_fail(run, "'in <string>' requires a string on its left, found '%s'",
                            value_type(item));
        TRY(need_text(run, item, &what));
        *out = text_find(run, container.as.text, what, 0, container.as.text->length) >= 0;
        return run_step(run, 1);
    }
    if (container.kind == VALUE_DICT) {
        TRY(need_key(run, item));
        *out = dict_get(&run->heap, container.as.members, item) != NULL;
        return run_step(run, 1);
    }
    if (container.kind != VALUE_LIST && container.kind != VALUE_UNDEFINED)
        return run_fail(run, "argument of type '%s' is not iterable", value_type(container));
    list *items;
    TRY(run_iterate(run, container, &items));
    for (size_t i = 0; i < items->count && !*out; i++)
        *out = value_equal(&run->heap, items->items[i], item);
    return run_step(run, 1);
}

qp_status op_compare(run *run, compare_kind kind, value a, value b, bool *out)
{
    static const char *const texts[] = {"==", "!=", "<", "<=", ">", ">="};
    if (kind == COMPARE_IN || kind == COMPARE_NOT_IN) {
        TRY(contains(run, b, a, out));
        *out = *out == (kind == COMPARE_IN);
        return QP_OK;
    }
    if (kind == COMPARE_EQ || kind == COMPARE_NE) {
        *out = value_equal(&run->heap, a, b) == (kind == COMPARE_EQ);
        return run_step(run, 1);
    }
    if (a.kind == VALUE_UNDEFINED) return run_fail_undefined(run, a);
    if (b.kind == VALUE_UNDEFINED) return run_fail_undefined(run, b);
    int order;
    bool unordered, known = value_compare(&run->heap, a, b, &order, &unordered);
    TRY(run_step(run, 1));
    if (!known)
        return run_fail(run, "'%s' not supported between instances of '%s' and '%s'", texts[kind],
                        value_type(a), value_type(b));
    *out = kind == COMPARE_LT   ? order < 0
           : kind == COMPARE_LE ? order <= 0
           : kind == COMPARE_GT ? order > 0
                                : order >= 0;
    *out = *out && !unordered;
    return QP_OK;
}

/* The bounds of a slice of a sequence of `length`, like Python's slice.indices(). */
typedef struct bounds {
    int64_t start, stop, step;
    size_t count;
} bounds;

static qp_status slice_bound(run *run, value from, int64_t length, int64_t step, int64_t absent,
                             int64_t *out)
{
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length;
    *out = absent;
    if (from.kind == VALUE_NONE) return QP_OK;
    TRY(need_int(run, from, out));
    if (*out < 0) *out = *out < -length ? low : *out + length;
    if (*out < low) *out = low;
    if (*out > high) *out = high;
    return QP_OK;
}

static qp_status slice_bounds(run *run, size_t size, value start, value stop, value step,
                              bounds *out)
{
    int64_t length = (int64_t)size;
    out->step = 1;
    if (step.kind != VALUE_NONE) TRY(need_int(run, step, &out->step));
    if (out->step == 0) return run_fail(run, "slice step cannot be zero");
    if (out->step == INT64_MIN) out->step = -INT64_MAX;
    bool back = out->step < 0;
    TRY(slice_bound(run, start, length, out->step, back ? length - 1 : 0, &out->start));
    TRY(slice_bound(run, stop, length, out->step, back ? -1 : length, &out->stop));
    out->count = 0;
    if (back && out->stop < out->start)
        out->count = (size_t)((out->start - out->stop - 1) / -out->step + 1);
    else if (!back && out->start < out->stop)
        out->count = (size_t)((out->stop - out->start - 1) / out->step + 1);
    return QP_OK;
}

qp_status text_part(run *run, const string *text, size_t from, size_t to, value *out)
{
    if (from >= to) return run_view(run, "", 0, out);
    bool ascii = text->length == text->points;
    size_t start = ascii ? from : pychar_offset(text->data, text->length, from);
    size_t end =
        ascii ? to : start + pychar_offset(text->data + start, text->length - start, to - from);
    TRY(run_step(run, ascii ? 0 : end / 64));
    return run_view(run, text->data + start, end - start, out);
}

static qp_status slice_text(run *run, const string *text, const bounds *bounds, value *out)
{
    size_t start = (size_t)bounds->start;
    if (bounds->step == 1) return text_part(run, text, start, start + bounds->count, out);
    list *characters;
    builder made = {.run = run};
    TRY(run_iterate(run, value_text(text), &characters));
    int64_t at = bounds->start;
    for (size_t i = 0; i < bounds->count; i++, at += i < bounds->count ? bounds->step : 0) {
        const string *one = characters->items[at].as.text;
        TRY(builder_put(&made, one->data, one->length));
    }
    return builder_finish(&made, out);
}

qp_status op_slice(run *run, value object, value start, value stop, value step, value *out)
{
    bounds bounds;
    if (object.kind == VALUE_UNDEFINED) return run_fail_undefined(run, object);
    if (object.kind == VALUE_STRING) {
        TRY(slice_bounds(run, object.as.text->points, start, stop, step, &bounds));
        return slice_text(run, object.as.text, &bounds, out);
    }
    if (object.kind != VALUE_LIST || object.as.items->kind > LIST_RANGE)
        return run_fail(run, "'%s' object cannot be sliced", value_type(object));
    const list *from = object.as.items;
    TRY(slice_bounds(run, from->count, start, stop, step, &bounds));
    TRY(run_list(run, from->kind, bounds.count, out));
    list *made = out->as.items;
    int64_t at = bounds.start;
    for (size_t i = 0; i < bounds.count; i++, at += i < bounds.count ? bounds.step : 0)
        made->items[i] = from->items[at];
    if (from->kind == LIST_RANGE) {
        made->start = from->start + bounds.start * from->step;
        made->step = from->step * bounds.step;
        made->stop = from->start + bounds.stop * from->step;
    }
    return QP_OK;
}
