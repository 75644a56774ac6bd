/* Filters on single values, as jinja2 defines them: see run.h. */
#include "template/run.h"

#include "template/pychar.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool given(value item)
{
    return item.kind != VALUE_MISSING && item.kind != VALUE_NONE;
}

/* An optional integer. */
static qp_status option_int(run *run, value from, int64_t absent, int64_t *out)
{
    *out = absent;
    return given(from) ? need_int(run, from, out) : QP_OK;
}

/* The filter's input, as text. */
static qp_status self_text(run *run, call *call, const string **out)
{
    value text;
    TRY(run_str(run, call->self, &text));
    *out = text.as.text;
    return QP_OK;
}

static qp_status option_text(run *run, value from, const string *absent, const string **out)
{
    value text;
    *out = absent;
    if (from.kind == VALUE_MISSING) return QP_OK;
    TRY(run_str(run, from, &text));
    *out = text.as.text;
    return QP_OK;
}

static qp_status filter_case(run *run, call *call, value *out)
{
    const string *text;
    TRY(self_text(run, call, &text));
    return text_case(run, text, call->builtin->detail, out);
}

static qp_status filter_capitalize(run *run, call *call, value *out)
{
    const string *text;
    TRY(self_text(run, call, &text));
    return text_capitalize(run, text, out);
}

/* Upper case at the start and after any of -({[< and white space, lower case elsewhere. */
static qp_status filter_title(run *run, call *call, value *out)
{
    const string *text;
    builder made = {.run = run};
    bool start = true;
    TRY(self_text(run, call, &text));
    for (size_t at = 0; at < text->length;) {
        uint32_t code, mapped[PYCHAR_MAX_MAPPING];
        size_t size = pychar_decode(text->data + at, text->length - at, &code);
        size_t n = pychar_map(start ? PYCHAR_UPPER : PYCHAR_LOWER, code, mapped);
        if (code == PYCHAR_INVALID) TRY(builder_put(&made, text->data + at, size));
        for (size_t i = 0; i < n && code != PYCHAR_INVALID; i++)
            TRY(builder_code(&made, mapped[i]));
        start = pychar_is_space(code) || (code && code < 0x80 && strchr("-({[<", (int)code));
        at += size;
    }
    TRY(run_step(run, text->length / 8));
    return builder_finish(&made, out);
}

static qp_status filter_trim(run *run, call *call, value *out)
{
    const string *text, *chars = NULL;
    TRY(self_text(run, call, &text));
    if (given(call->bound[0])) TRY(need_text(run, call->bound[0], &chars));
    return text_strip(run, text, chars, STRIP_BOTH, out);
}

static qp_status filter_replace(run *run, call *call, value *out)
{
    const string *text, *old, *new;
    int64_t count;
    TRY(self_text(run, call, &text));
    TRY(option_text(run, call->bound[0], NULL, &old));
    TRY(option_text(run, call->bound[1], NULL, &new));
    TRY(option_int(run, call->bound[2], -1, &count));
    return text_replace(run, text, old, new, count, out);
}

static qp_status filter_string(run *run, call *call, value *out)
{
    return run_str(run, call->self, out);
}

static qp_status filter_length(run *run, call *call, value *out)
{
    static const string length = {"length", 6, 6};
    value self = call->self;
    bool sized = self.kind == VALUE_LIST && self.as.items->kind != LIST_ITERATOR;
    if (self.kind == VALUE_LOOP) return loop_attribute(run, self.as.loop, &length, out);
    *out = value_int(self.kind == VALUE_STRING ? (int64_t)self.as.text->points
                     : self.kind == VALUE_DICT ? (int64_t)self.as.members->count
                     : sized                   ? (int64_t)self.as.items->count
                                               : 0);
    if (sized || self.kind == VALUE_STRING || self.kind == VALUE_DICT ||
        self.kind == VALUE_UNDEFINED)
        return QP_OK;
    return run_fail(run, "object of type '%s' has no length", value_type(self));
}

static qp_status filter_default(run *run, call *call, value *out)
{
    bool falsy = value_truth(call->bound[1]) && !value_truth(call->self);
    *out = call->self;
    if (call->self.kind != VALUE_UNDEFINED && !falsy) return QP_OK;
    if (call->bound[0].kind == VALUE_MISSING) return run_view(run, "", 0, out);
    *out = call->bound[0];
    return QP_OK;
}

/* Python's grammar of a float: digits (with single underscores between them), or inf and nan. */
static bool parse_float(const char *text, size_t length, double *out)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    size_t at = length && (text[0] == '-' || text[0] == '+'), digits = 0;
    double sign = length && text[0] == '-' ? -1 : 1;
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (n != length - at || strncasecmp(text + at, words[i], n) != 0) continue;
        *out = sign * (i < 2 ? INFINITY : NAN);
        return true;
    }
    bool point = false, exponent = false;
    for (size_t i = at; i < length; i++) {
        char c = text[i], next = i + 1 < length ? text[i + 1] : 0;
        bool digit = c >= '0' && c <= '9',
             before = i > at && text[i - 1] >= '0' && text[i - 1] <= '9';
        digits += digit;
        if (digit) continue;
        if (c == '_' && before && next >= '0' && next <= '9') continue;
        if (c == '.' && !point && !exponent) {
            point = true;
            continue;
        }
        if ((c | 32) != 'e' || exponent || digits == 0) return false;
        exponent = true;
        if (next == '+' || next == '-') next = ++i + 1 < length ? text[i + 1] : 0;
        if (next < '0' || next > '9') return false;
    }
    if (digits == 0) return false;
    *out = sign * template_parse_double(text + at, length - at);
    return true;
}

/* The text without white space around it, for numbers. */
static qp_status number_text(run *run, value from, const string **out)
{
    value stripped;
    TRY(text_strip(run, from.as.text, NULL, STRIP_BOTH, &stripped));
    *out = stripped.as.text;
    return QP_OK;
}

static qp_status filter_float(run *run, call *call, value *out)
{
    const string *text;
    double number;
    value absent = call->bound[0].kind == VALUE_MISSING ? value_float(0) : call->bound[0];
    if (call->self.kind == VALUE_UNDEFINED) return run_fail_undefined(run, call->self);
    *out = absent;
    if (value_is_number(call->self)) *out = value_float(value_as_float(call->self));
    if (call->self.kind != VALUE_STRING) return QP_OK;
    TRY(number_text(run, call->self, &text));
    if (parse_float(text->data, text->length, &number)) *out = value_float(number);
    return QP_OK;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    char lower = c | 32;
    return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
}

/* Python's int(text, base); *valid: whether the text is a number. */
static qp_status parse_int(run *run, const string *text, int64_t base, int64_t *out, bool *valid)
{
    size_t at = text->length && (text->data[0] == '-' || text->data[0] == '+');
    bool negative = at && text->data[0] == '-', digits = false;
    *out = 0;
    *valid = false;
    if (at + 2 < text->length && text->data[at] == '0') {
        char mark = text->data[at + 1] | 32;
        if ((base == 16 && mark == 'x') || (base == 8 && mark == 'o') || (base == 2 && mark == 'b'))
            at += 2;
    }
    for (; at < text->length; at++) {
        char c = text->data[at];
        if (c == '_' && digits && at + 1 < text->length && text->data[at + 1] != '_') continue;
        int digit = digit_of(c);
        if (digit >= base) return QP_OK;
        digits = true;
        if (__builtin_mul_overflow(*out, base, out) ||
            __builtin_sub_overflow(*out, (int64_t)digit, out))
            return run_fail(run, "an integer does not fit into 64 bits");
    }
    if (digits && !negative && __builtin_sub_overflow((int64_t)0, *out, out))
        return run_fail(run, "an integer does not fit into 64 bits");
    *valid = digits;
    return QP_OK;
}

static qp_status float_to_int(run *run, double number, value absent, value *out)
{
    *out = absent;
    if (isnan(number)) return QP_OK;
    if (!(fabs(number) < 0x1p63)) return run_fail(run, "an integer does not fit into 64 bits");
    *out = value_int((int64_t)number);
    return QP_OK;
}

static qp_status filter_int(run *run, call *call, value *out)
{
    const string *text;
    int64_t base, number;
    double fraction;
    bool valid;
    value absent = call->bound[0].kind == VALUE_MISSING ? value_int(0) : call->bound[0];
    if (call->self.kind == VALUE_UNDEFINED) return run_fail_undefined(run, call->self);
    TRY(option_int(run, call->bound[1], 10, &base));
    if (base < 2 || base > 36) return run_fail(run, "the base of an integer must be 2 to 36");
    *out = absent;
    if (call->self.kind == VALUE_FLOAT) return float_to_int(run, call->self.as.number, absent, out);
    if (value_is_number(call->self)) *out = value_int(value_as_int(call->self));
    if (call->self.kind != VALUE_STRING) return QP_OK;
    TRY(number_text(run, call->self, &text));
    TRY(parse_int(run, text, base, &number, &valid));
    if (valid)
        *out = value_int(number);
    else if (parse_float(text->data, text->length, &fraction) && isfinite(fraction))
        return float_to_int(run, fraction, absent, out);
    return QP_OK;
}

static qp_status filter_abs(run *run, call *call, value *out)
{
    if (call->self.kind == VALUE_UNDEFINED) return run_fail_undefined(run, call->self);
    if (!value_is_number(call->self))
        return run_fail(run, "bad operand type for abs(): '%s'", value_type(call->self));
    *out = call->self.kind == VALUE_BOOL ? value_int(call->self.as.boolean) : call->self;
    if (out->kind == VALUE_FLOAT)
        out->as.number = fabs(out->as.number);
    else if (out->as.integer < 0)
        return op_negate(run, *out, out);
    return QP_OK;
}

/* round(number, places) of an integer: to tens, hundreds, ... with halves to the even one. */
static qp_status round_int(run *run, int64_t number, int64_t places, value *out)
{
    int64_t unit = 1;
    *out = value_int(number);
    if (places >= 0) return QP_OK;
    *out = value_int(0);
    if (places < -18) return QP_OK;
    while (places++ < 0)
        unit *= 10;
    int64_t rest = number % unit, down = number - rest;
    int64_t twice = unit - llabs(rest) - llabs(rest); /* < 0: more than half */
    bool away = twice < 0 || (twice == 0 && (down / unit) % 2 != 0);
    if (away && __builtin_add_overflow(down, number < 0 ? -unit : unit, &down))
        return run_fail(run, "an integer does not fit into 64 bits");
    *out = value_int(down);
    return QP_OK;
}

/* round(number, places) of a float: the decimal nearest to its exact value. */
static double round_float(double number, int64_t places)
{
    char text[700];
    if (!isfinite(number) || places > 323) return number;
    if (places < -308) return copysign(0, number);
    if (places < 0) {
        double unit = pow(10, (double)-places);
        return nearbyint(number / unit) * unit;
    }
    snprintf(text, sizeof text, "%.*f", (int)places, number);
    return strtod(text, NULL);
}

static qp_status filter_round(run *run, call *call, value *out)
{
    static const string common = {"common", 6, 6};
    const string *method;
    int64_t places;
    if (call->self.kind == VALUE_UNDEFINED) return run_fail_undefined(run, call->self);
    if (!value_is_number(call->self))
        return run_fail(run, "type %s cannot be rounded", value_type(call->self));
    TRY(option_int(run, call->bound[0], 0, &places));
    TRY(option_text(run, call->bound[1], &common, &method));
    bool ceil_it = string_is(method, "ceil"), floor_it = string_is(method, "floor");
    if (ceil_it || floor_it) {
        double unit = pow(10, (double)places), scaled = value_as_float(call->self) * unit;
        /* Python divides an integer, which has no negative zero. */
        *out = value_float(((ceil_it ? ceil(scaled) : floor(scaled)) + 0.0) / unit);
        return QP_OK;
    }
    if (!string_is(method, "common"))
        return run_fail(run, "the method must be common, ceil or floor");
    if (call->self.kind != VALUE_FLOAT)
        return round_int(run, value_as_int(call->self), places, out);
    *out = value_float(round_float(call->self.as.number, places));
    return QP_OK;
}

static qp_status filter_indent(run *run, call *call, value *out)
{
    static const string blank = {" ", 1, 1};
    const string *text, *unit = &blank;
    int64_t width = 4;
    value lines;
    builder made = {.run = run};
    TRY(need_text(run, call->self, &text));
    if (call->bound[0].kind == VALUE_STRING) {
        unit = call->bound[0].as.text;
        width = 1;
    } else {
        TRY(option_int(run, call->bound[0], 4, &width));
    }
    if (width < 0) width = 0;
    TRY(text_lines(run, text, false, &lines));
    const list *items = lines.as.items;
    /* jinja2 adds a newline before it splits: a text that ends in one keeps an empty last line. */
    bool open = text->length == 0 || text->data[text->length - 1] == '\n' ||
                text->data[text->length - 1] == '\r';
    size_t count = items->count + open;
    for (size_t i = 0; i < count; i++) {
        const string *line = i < items->count ? items->items[i].as.text : NULL;
        bool filled = (line && line->length) || value_truth(call->bound[2]);
        if (i) TRY(builder_text(&made, "\n"));
        if (i == 0 ? value_truth(call->bound[1]) : filled)
            TRY(builder_repeat(&made, unit, (size_t)width));
        if (line) TRY(builder_put(&made, line->data, line->length));
    }
    return builder_finish(&made, out);
}

static qp_status filter_truncate(run *run, call *call, value *out)
{
    static const string dots = {"...", 3, 3};
    const string *text, *end;
    int64_t length, leeway;
    value size;
    builder made = {.run = run};
    TRY(filter_length(run, call, &size));
    TRY(option_int(run, call->bound[0], 255, &length));
    TRY(option_text(run, call->bound[2], &dots, &end));
    TRY(option_int(run, call->bound[3], 5, &leeway));
    if (length < (int64_t)end->points || leeway < 0)
        return run_fail(run, "truncate: the length must be %zu or more", end->points);
    *out = call->self;
    if (leeway > INT64_MAX - length || size.as.integer <= length + leeway) return QP_OK;
    TRY(need_text(run, call->self, &text));
    TRY(text_part(run, text, 0, (size_t)length - end->points, out));
    size_t keep = out->as.text->length;
    if (!value_truth(call->bound[1])) {
        while (keep > 0 && text->data[keep - 1] != ' ')
            keep--;
        keep = keep ? keep - 1 : out->as.text->length;
    }
    TRY(builder_put(&made, text->data, keep));
    TRY(builder_put(&made, end->data, end->length));
    return builder_finish(&made, out);
}

static qp_status filter_center(run *run, call *call, value *out)
{
    static const string blank = {" ", 1, 1};
    const string *text;
    int64_t width;
    builder made = {.run = run};
    TRY(self_text(run, call, &text));
    TRY(option_int(run, call->bound[0], 80, &width));
    int64_t pad = width - (int64_t)text->points, left = pad / 2 + (pad & width & 1);
    if (pad > 0) TRY(builder_repeat(&made, &blank, (size_t)left));
    TRY(builder_put(&made, text->data, text->length));
    if (pad > 0) TRY(builder_repeat(&made, &blank, (size_t)(pad - left)));
    return builder_finish(&made, out);
}

static qp_status filter_wordcount(run *run, call *call, value *out)
{
    const string *text;
    bool inside = false;
    int64_t words = 0;
    TRY(self_text(run, call, &text));
    TRY(run_step(run, text->length / 8));
    for (size_t at = 0; at < text->length;) {
        uint32_t code;
        at += pychar_decode(text->data + at, text->length - at, &code);
        bool word = code == '_' || pychar_is(PYCHAR_ALPHA, code) || pychar_is(PYCHAR_NUMERIC, code);
        words += word && !inside;
        inside = word;
    }
    *out = value_int(words);
    return QP_OK;
}

static qp_status filter_attr(run *run, call *call, value *out)
{
    const string *name;
    TRY(need_text(run, call->bound[0], &name));
    if (call->self.kind == VALUE_DICT) {
        bool forbidden;
        if (!find_method(call->self, name, &forbidden))
            return run_undefined(run, "a dict has no such attribute", out);
    }
    return run_attribute(run, call->self, name, out);
}

static qp_status filter_format(run *run, call *call, value *out)
{
    const string *text;
    value arguments;
    TRY(self_text(run, call, &text));
    if (call->n_named && call->n_positional)
        return run_fail(run, "format: positional and keyword arguments cannot be mixed");
    if (call->n_named) {
        dict *members = dict_new(&run->heap);
        TRY(run_check(run, members));
        for (size_t i = 0; i < call->n_named; i++) {
            bool set =
                dict_set(&run->heap, members, value_text(call->named[i].name), call->named[i].item);
            TRY(run_check(run, set ? members : NULL));
        }
        arguments = (value){.kind = VALUE_DICT, .as.members = members};
    } else {
        TRY(run_list(run, LIST_TUPLE, call->n_positional, &arguments));
        for (size_t i = 0; i < call->n_positional; i++)
            arguments.as.items->items[i] = call->positional[i];
    }
    return format_percent(run, text, arguments, out);
}

static const builtin filters[] = {
    {"abs", "", 0, filter_abs, 0},
    {"attr", "name", 1, filter_attr, 0},
    {"capitalize", "", 0, filter_capitalize, 0},
    {"center", "width", 0, filter_center, 0},
    {"count", "", 0, filter_length, 0},
    {"d", "default_value boolean", 0, filter_default, 0},
    {"default", "default_value boolean", 0, filter_default, 0},
    {"float", "default", 0, filter_float, 0},
    {"format", NULL, 0, filter_format, 0},
    {"indent", "width first blank", 0, filter_indent, 0},
    {"int", "default base", 0, filter_int, 0},
    {"length", "", 0, filter_length, 0},
    {"lower", "", 0, filter_case, PYCHAR_LOWER},
    {"replace", "old new count", 2, filter_replace, 0},
    {"round", "precision method", 0, filter_round, 0},
    {"string", "", 0, filter_string, 0},
    {"title", "", 0, filter_title, 0},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson, 0},
    {"trim", "chars", 0, filter_trim, 0},
    {"truncate", "length killwords end leeway", 0, filter_truncate, 0},
    {"upper", "", 0, filter_case, PYCHAR_UPPER},
    {"wordcount", "", 0, filter_wordcount, 0},
};

const builtin *find_filter(const string *name)
{
    return find_in(filters, sizeof filters / sizeof filters[0], name);
}
